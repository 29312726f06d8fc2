"""Measures whether a replay by hand is more than the blast radius of the policy, with what other plans requested recently."""

from __future__ import annotations

from typing import Any

from backstop.config.settings import Settings
from backstop.runs.run import Run
from backstop.sql.named import load
from backstop.verdicts.blast_radius import Radius, too_wide

_SQL = load("backstop.incidents", "queries.sql")


def is_too_wide(
    cur: Any, settings: Settings, run: Run, incident_id: int, until: int | None = None
) -> bool:
    """Whether a plan, with what others asked for within the window, is more than the blast radius allows without a yes.

    `until`: of the plan only the first so many, and what was asked for of it already.
    """
    cur.execute(_SQL["by_group"], {"run_id": incident_id, "until": until})
    for topic, group, number in cur.fetchall():
        policy = settings.policy_for(topic, group)
        values = {
            "run_id": incident_id,
            "topic": topic,
            "group": group,
            "as_of": run.as_of,
            "seconds": policy.blast_window.total_seconds(),
        }
        cur.execute(_SQL["newly_confirmed"], values)
        confirmed = int(cur.fetchone()[0])
        cur.execute(_SQL["asked_before"], values)
        if too_wide(
            Radius(number + int(cur.fetchone()[0]), confirmed),
            policy.blast_share,
            policy.blast_floor,
        ):
            return True
    return False
