"""What the tasks of retention and audit do over real databases: opened, skipped, done, closed as what it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest
from airflow.sdk.exceptions import AirflowFailException

from backstop.airflow import audit, retention
from backstop.airflow import steps as duty
from backstop.airflow.schedule import daily, every, in_window
from backstop.model.errors import AuditFailed, ConfigurationError, Unavailable
from backstop_lab.servers.ports import free_port
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from retention_world import emptied
from system import ROLES, System, settings_dict, system

TODAY, YESTERDAY = 0, 1


class Task:
    """A task instance, as far as our tasks use it."""

    def __init__(self) -> None:
        self.pushed: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


@pytest.fixture(scope="module")
def kept(servers: tuple[Postgres, Valkey]) -> Iterator[System]:
    with system(*servers) as made:
        yield made


@pytest.fixture
def world(kept: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    fresh = emptied(kept)
    hour = datetime.now(UTC) + timedelta(hours=2)
    config = tmp_path / "backstop.yaml"
    window = f"{hour:%H:%M}-{hour + timedelta(hours=1):%H:%M}"
    config.write_text(json.dumps({**settings_dict(), "retention": {"window": window}}))
    monkeypatch.setenv("BACKSTOP_CONFIG", str(config))
    monkeypatch.setenv("BACKSTOP_DOCS_FOLDER", str(tmp_path / "docs"))
    for name in (*ROLES, "broker"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", fresh.urls[name])
    return fresh


def runs(world: System) -> list[tuple[Any, ...]]:
    return world.rows("control", "SELECT duty, state, counts FROM run ORDER BY run_id")


def context(partition: str | None = None) -> dict[str, Any]:
    return {"dag_run": SimpleNamespace(partition_key=partition)}


def test_retention_skips_outside_its_window_and_works_when_asked_to_now(world: System) -> None:
    then = datetime.now(UTC) - timedelta(days=2)
    world.stub("m", status="confirmed", age=timedelta(days=2), updated_at=then)
    assert retention.open_retention(False, False) is None
    assert runs(world) == [("retention", "done", {"window_is_shut": 1})]
    opened = retention.open_retention(False, True)
    assert opened is not None
    assert retention.purge.function(opened, Task())["stubs"] == 1
    duty.close(opened, duty.EndedTasks())
    assert runs(world)[-1][:2] == ("retention", "done")
    assert runs(world)[-1][2]["stubs"] == 1
    assert world.rows("shop_a", "SELECT 1 FROM message_stub") == []


def test_a_shard_that_is_away_makes_retention_incomplete(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_A", f"postgresql://nobody@127.0.0.1:{free_port()}/none")
    opened, task = retention.open_retention(False, True), Task()
    assert opened is not None
    with pytest.raises(Unavailable, match="shop_a"):
        retention.purge.function(opened, task)
    assert "shop_a" in task.pushed[duty.SOMETHING_AWAY]
    with pytest.raises(AirflowFailException):
        duty.close(
            opened, duty.EndedTasks(["purge"], away={"purge": task.pushed[duty.SOMETHING_AWAY]})
        )
    assert runs(world)[-1][:2] == ("retention", "incomplete")


@pytest.mark.parametrize(
    ("partition", "named", "day"),
    [
        (TODAY, None, TODAY),
        (TODAY, YESTERDAY, YESTERDAY),
        (None, None, YESTERDAY),
    ],
)
def test_an_audit_is_of_its_partition_s_day_unless_a_person_names_one(
    world: System, partition: int | None, named: int | None, day: int
) -> None:
    now = datetime.now(UTC)  # one instant: midnight may come while the tests are at work

    def iso(ago: int | None) -> str | None:
        return None if ago is None else (now - timedelta(days=ago)).date().isoformat()

    assert audit.open_audit(context(iso(partition)), iso(named))["day"] == iso(day)


def test_what_is_no_day_or_too_long_ago_is_refused_before_a_run_is_opened(world: System) -> None:
    for named in ("manual", "2001-01-01"):
        with pytest.raises(ConfigurationError, match=named):
            audit.open_audit(context(named), None)
    assert runs(world) == []


def test_a_sound_day_passes_its_data_checks_and_a_breach_fails_them(
    world: System, tmp_path: Path
) -> None:
    today = datetime.now(UTC).date().isoformat()
    opened = audit.open_audit(context(today), None)
    assert audit.look.function(opened, Task())["breaches"] == 0
    assert (tmp_path / "docs" / duty.check("audit", opened)).is_file()
    duty.close(opened, duty.EndedTasks())
    world.stub("m", status="exhausted")
    opened = audit.open_audit(context(today), None)
    assert audit.look.function(opened, Task())["breaches"] == 1
    with pytest.raises(AuditFailed, match="exhausted_stub_has_case"):
        duty.check("audit", opened)
    with pytest.raises(AirflowFailException):
        duty.close(opened, duty.EndedTasks(["audit_invariants"]))
    assert [run[:2] for run in runs(world)] == [("audit", "done"), ("audit", "failed")]


def test_an_audited_day_is_published_as_a_partition_of_the_asset() -> None:
    from airflow.sdk.execution_time.context import OutletEventAccessors
    from airflow.sdk.execution_time.task_runner import _serialize_outlet_events

    events = OutletEventAccessors()
    opened = json.dumps({"run_id": 7, "day": "2026-11-20"})
    assert (
        audit.publish_day.function(opened, "7/audit/index.html", outlet_events=events)
        == "2026-11-20"
    )
    (event,) = _serialize_outlet_events(events)
    assert event["dest_asset_key"]["name"] == "backstop_audited"
    assert event["partition_key"] == "2026-11-20"
    assert event["extra"] == {"run_id": 7, "day": "2026-11-20", "report": "7/audit/index.html"}


@pytest.mark.parametrize(
    ("written", "cron"),
    [
        ("", "5 1 * * *"),
        ("retention: {step_rows: 100}\n", "5 1 * * *"),
        ('retention: {window: "02:00-06:00"}\n', "5 2 * * *"),
        (
            "retention:\n  step_rows: 100\n\n  window: 22:00-01:00  # the quiet hours\n",
            "5 22 * * *",
        ),
        ('retention:\n  window: "23:58-04:00"\n', "3 0 * * *"),
        ('retention: {\n  window: "03:30-04:00"\n}\n', "35 3 * * *"),
        ('retention: {window: "01:00-01:05"}\n', "2 1 * * *"),
        ('retention: {window: "23:59-00:01"}\n', "0 0 * * *"),
        ('retention: {window: "04:00-04:00"}\n', "5 4 * * *"),
    ],
)
def test_retention_starts_when_its_window_opens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, written: str, cron: str
) -> None:
    config = tmp_path / "backstop.yaml"
    config.write_text(f"control: backstop_control\n{written}watch: {{}}\n")
    monkeypatch.setenv("BACKSTOP_CONFIG", str(config))
    monkeypatch.delenv("BACKSTOP_RETENTION_SCHEDULE", raising=False)
    assert in_window("BACKSTOP_RETENTION_SCHEDULE").expression == cron
    monkeypatch.setenv("BACKSTOP_RETENTION_SCHEDULE", "30 2 * * *")
    assert in_window("BACKSTOP_RETENTION_SCHEDULE").expression == "30 2 * * *"


@pytest.mark.parametrize("text", ["0", "0s", "0.0 m"])
def test_an_interval_of_nothing_starts_no_runs_without_end(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("BACKSTOP_RETENTION_SCHEDULE", text)
    with pytest.raises(ValueError, match="write an interval, or none"):
        every("BACKSTOP_RETENTION_SCHEDULE", "5 1 * * *")


def test_a_scheduled_audit_stands_for_the_day_before_it() -> None:
    from airflow.timetables.base import TimeRestriction
    from airflow.timetables.trigger import CronPartitionTimetable

    asked = daily("BACKSTOP_AUDIT_SCHEDULE", "30 5 * * *")
    timetable = CronPartitionTimetable(
        asked.expression,
        timezone=str(asked.timezone),
        run_offset=asked.run_offset,
        key_format=asked.key_format,
    )
    earliest = pendulum.datetime(2026, 11, 21, tz="UTC")
    info = timetable.next_dagrun_info_v2(
        last_dagrun_info=None,
        restriction=TimeRestriction(earliest=earliest, latest=None, catchup=True),
    )
    assert info is not None
    assert (info.run_after.isoformat(), info.partition_key) == (
        "2026-11-21T05:30:00+00:00",
        "2026-11-20",
    )
