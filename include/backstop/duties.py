"""Every duty by its name; importing this imports none of them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backstop.runs.duty import Duty

_WHERE = {
    "reconcile": "backstop.reconcile.run_once:RECONCILE",
    "resend": "backstop.resend.run_once:RESEND",
    "sweep": "backstop.sweep.run_once:SWEEP",
    "triage": "backstop.triage.run_once:TRIAGE",
    "watch": "backstop.watch.run_once:WATCH",
    "prove": "backstop.reconcile.run_proof:PROVE",
    "retention": "backstop.retention.run_once:RETENTION",
    "audit": "backstop.audit.run_once:AUDIT",
    "deliver_alerts": "backstop.alerts.run_once:DELIVER_ALERTS",
    "incident": "backstop.incidents.replay:INCIDENT",
}


def names() -> list[str]:
    """In the order in which people are shown them."""
    return list(_WHERE)


def duty_named(name: str) -> Duty[Any]:
    """KeyError for a duty that there is not."""
    module, _, value = _WHERE[name].partition(":")
    duty: Duty[Any] = getattr(import_module(module), value)
    return duty
