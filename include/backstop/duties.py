"""Every duty by its name; importing this imports none of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from backstop.runs.duty import Duty

_WHERE = {
    "reconcile": "backstop.reconcile.run_once:RECONCILE",
    "resend": "backstop.resend.run_once:RESEND",
    "sweep": "backstop.sweep.run_once:SWEEP",
    "triage": "backstop.triage.run_once:TRIAGE",
    "retention": "backstop.retention.run_once:RETENTION",
    "audit": "backstop.audit.run_once:AUDIT",
    "prove": "backstop.reconcile.run_proof:PROVE",
    "watch": "backstop.watch.run_once:WATCH",
    "deliver_alerts": "backstop.alerts.run_once:DELIVER_ALERTS",
    "incident": "backstop.incidents.replay:INCIDENT",
}


def names() -> list[str]:
    return list(_WHERE)


def duty_named(name: str) -> Duty[Any]:
    """KeyError for a duty that there is not."""
    module, _, value = _WHERE[name].partition(":")
    duty: Duty[Any] = getattr(import_module(module), value)
    return duty
