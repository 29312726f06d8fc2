"""What the tasks of the DAG `audit` do."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from airflow.sdk import Asset, task

from backstop.airflow import steps
from backstop.airflow.control_room import Room

log = logging.getLogger(__name__)
AUDITED = Asset("backstop_audited")
"""A day without a breach is one of its partitions."""


@task(retries=0)
def open_run(params: dict[str, Any], **context: Any) -> dict[str, Any]:
    """Set-up: the day, its run and its token."""
    return open_audit(context, params["day"])


def open_audit(context: Mapping[str, Any], day: str | None) -> steps.Opened:
    """Opens the run of a day: the one that a person names, else the partition of this DAG run, else yesterday."""
    from backstop.audit.day import day_of
    from backstop.model.errors import ConfigurationError

    named = day or context["dag_run"].partition_key
    try:
        chosen = date.fromisoformat(named) if named else None
    except ValueError:
        raise ConfigurationError(
            f"{named!r} is not a date.",
            unaffected="Nothing was started.",
            next_step="Write it as 2026-11-21.",
        ) from None
    audited: list[str] = []

    def scope(room: Room) -> str:
        audited.append(
            day_of(room.settings, datetime.now(UTC), chosen).name
        )  # refuses before a run is opened
        return "*"

    opened = steps.open_duty("audit", scope=scope)
    assert opened is not None, "there is always something to look at"
    return opened | {"day": audited[0]}


@task(execution_timeout=timedelta(hours=3))
def look(opened: dict[str, Any], ti: Any) -> dict[str, int]:
    """Every invariant at every place."""
    from backstop.audit.run_once import AuditInput

    # The task's log is outside of the database that it speaks of.
    given = AuditInput(
        date.fromisoformat(opened["day"]), lambda said: log.info("backstop: %s", said)
    )
    return steps.do(opened, "look", given, ti=ti)


@task(outlets=[AUDITED])
def publish_day(opened: str, report: str, **context: Any) -> str:
    """The day is a partition of the asset, with its Data Docs."""
    run = json.loads(opened)
    event = context["outlet_events"][AUDITED]
    event.add_partitions(run["day"])
    event.extra = {"run_id": run["run_id"], "day": run["day"], "report": report}
    return str(run["day"])
