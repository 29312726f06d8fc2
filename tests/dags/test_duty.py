"""What the tasks do to a run in a real control database: opened, skipped, audited, closed as what it was."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg2
import pytest
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.sdk.execution_time.task_runner import _serialize_outlet_events

from backstop import duties
from backstop.airflow import notify, prove
from backstop.airflow import steps as duty
from backstop.airflow.control_room import control_room
from backstop.airflow.wake import WORK, wake_duties
from backstop.airflow.watch import wake_after_failed_watch
from backstop.decisions.questions import choose
from backstop.due import look
from backstop.duties import duty_named
from backstop.model.errors import (
    AuditFailed,
    ConfigurationError,
    RunLost,
    RunRefused,
    StoreUnavailable,
)
from backstop.reconcile.export_proof import write_export
from backstop.reconcile.proof_folder import proof_folder
from backstop.reconcile.sign_proof import write_manifest
from backstop.resend.run_once import ResendInput
from backstop_lab.servers.postgres import Postgres
from quick_postgres import new_database
from receivers import endpoint

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with Postgres(tmp_path_factory.mktemp("pg")) as postgres:
        yield postgres


class Control:
    """A control database that the settings point to."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg2.connect(url)
        self.connection.autocommit = True

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(query, values)
            return cursor.fetchall() if cursor.description else []

    def run(self, run_id: int) -> tuple[Any, ...]:
        """state, counts, error"""
        return self.rows("SELECT state, counts, error FROM run WHERE run_id = %s", run_id)[0]

    def stage(self, run_id: int, *, complete: bool = True) -> None:
        self.rows("UPDATE run SET stage = 1 WHERE run_id = %s", run_id)
        self.rows(
            "INSERT INTO staged_count VALUES (%s, 1, 'orders', 'billing', 'CONFIRMED', 3, 0, 3)",
            run_id,
        )
        self.rows(
            "INSERT INTO staged_stub VALUES (%s, 1, 'shop_a', 'orders', 'm', 'pending', 'confirmed', 1, 3)",
            run_id,
        )
        self.rows(
            "INSERT INTO staged_read VALUES (%s, 1, 'shard shop_b', 0, %s, 'it is away')",
            run_id,
            complete,
        )

    def request(
        self, topic: str, state: str = "open", *, due: str = "-1s", number: int = 2
    ) -> None:
        claimed = state == "claimed"
        self.rows(
            "INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by, state,"
            " not_before, claim_token, claim_deadline) VALUES ('shop_a', %s, %s, %s, 'LOST', 'reconcile', %s,"
            " clock_timestamp() + %s::interval, %s, CASE WHEN %s THEN clock_timestamp() + %s::interval END)",
            topic,
            str(uuid.uuid4()),
            number,
            state,
            due,
            str(uuid.uuid4()) if claimed else None,
            claimed,
            due,
        )


@pytest.fixture
def control(server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Control]:
    name = f"control_{uuid.uuid4().hex[:12]}"
    url = new_database(server, name, "control")
    settings = (ROOT / "backstop.yaml").read_text()
    (tmp_path / "backstop.yaml").write_text(
        settings.replace("shipping], mode: repair}", "shipping]}", 1)
    )
    monkeypatch.setenv("BACKSTOP_CONFIG", str(tmp_path / "backstop.yaml"))
    monkeypatch.setenv("AIRFLOW_CONN_BACKSTOP_CONTROL", url)
    monkeypatch.setenv("BACKSTOP_DOCS_FOLDER", str(tmp_path / "docs"))
    database = Control(url)
    yield database
    database.connection.close()


def opened(due: int = 1, duty_name: str = "reconcile") -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patched:
        counting(patched, lambda work: due, duty_name)
        run = duty.open_duty(duty_name)
    assert run is not None
    return run


def counting(
    patched: pytest.MonkeyPatch, due: Callable[[Any], int | None], name: str = "sweep"
) -> None:
    """The duty counts like this."""
    counted = replace(duty_named(name), due=due)
    patched.setattr(duties, "duty_named", lambda _: counted)


def test_with_nothing_due_the_run_is_recorded_and_everything_else_is_skipped(
    control: Control,
) -> None:
    assert duty.open_duty("resend", ResendInput()) is None
    assert control.rows("SELECT state, counts FROM run") == [("done", {"due": 0})]
    assert control.rows("SELECT * FROM duty_lease") == []


def test_what_travels_between_tasks_is_an_id_a_fencing_token_and_counts(control: Control) -> None:
    run = opened(5)
    assert set(run) == {"run_id", "token", "dry_run", "no_send", "due"}
    assert json.loads(json.dumps(run)) == run
    assert run["token"] == control.rows("SELECT token::text FROM run")[0][0]


def test_a_second_run_of_one_scope_is_refused(control: Control) -> None:
    opened()
    with pytest.raises(RunRefused):
        opened()
    assert len(control.rows("SELECT * FROM run")) == 1


def test_a_topic_that_nobody_configured_is_refused(control: Control) -> None:
    with pytest.raises(ConfigurationError, match="order"):
        duty.open_duty("reconcile", scope=duty.scope_of("ordres"))
    assert control.rows("SELECT * FROM run") == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a time"),
        ("yesterday", "not a time"),
        ("2026-11-21", "Write 2026-11-21T00:00:00Z"),
        ("2026-11-21T02:00", "has no time zone"),
    ],
)
def test_an_instant_that_airflow_did_not_check_is_refused_with_how_to_write_it(
    control: Control, text: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigurationError):
        prove.open_proof("orders", "2026-11-21T01:00Z", text)
    assert says in caplog.text and "backstop next: Write " in caplog.text
    caplog.clear()
    if text:  # empty: an open end
        with pytest.raises(ConfigurationError):
            duty.open_duty("reconcile", scope=duty.scope_of("orders", text))
        assert says in caplog.text
    assert control.rows("SELECT * FROM run") == []


def test_a_store_that_is_away_at_the_start_leaves_an_incomplete_run_and_no_lease(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(work: Any) -> int:
        raise StoreUnavailable(
            "shop_b is away.", unaffected="Its stubs are.", next_step="Bring it back."
        )

    with pytest.raises(StoreUnavailable):
        counting(monkeypatch, away)
        duty.open_duty("sweep")
    ((state, error),) = control.rows("SELECT state, error FROM run")
    assert state == "incomplete"
    assert "shop_b is away" in error
    assert control.rows("SELECT * FROM duty_lease") == []


def test_a_run_is_closed_as_done_with_what_it_did(control: Control) -> None:
    run = opened(3)
    control.stage(run["run_id"])
    assert duty.close(run, duty.EndedTasks())["state"] == "done"
    state, counts, error = control.run(run["run_id"])
    assert (state, error) == ("done", None)
    assert counts == {"due": 3, "confirmed": 3}


def test_a_run_that_could_not_read_everything_is_incomplete_and_ends_red(control: Control) -> None:
    run = opened()
    control.stage(run["run_id"], complete=False)
    with pytest.raises(AirflowFailException, match="shard shop_b"):
        duty.close(run, duty.EndedTasks())
    assert control.run(run["run_id"])[0] == "incomplete"
    assert control.rows("SELECT * FROM duty_lease") == []


def test_a_run_with_a_failed_task_is_failed_and_names_it_and_ends_red(control: Control) -> None:
    run = opened()
    with pytest.raises(AirflowFailException, match="audit_requests, promote"):
        duty.close(run, duty.EndedTasks(["audit_requests", "promote"]))
    state, _, error = control.run(run["run_id"])
    assert state == "failed"
    assert error == "failed tasks: audit_requests, promote"


def test_a_run_whose_job_missed_a_store_is_incomplete_not_failed(control: Control) -> None:
    run = opened(duty_name="resend")
    with pytest.raises(AirflowFailException):
        duty.close(
            run,
            duty.EndedTasks(
                ["claim_publish_settle"], away={"claim_publish_settle": "shop_b is away."}
            ),
        )
    state, _, error = control.run(run["run_id"])
    assert (state, error) == ("incomplete", "claim_publish_settle: shop_b is away.")


def test_a_run_of_which_one_task_missed_a_store_and_another_broke_is_failed(
    control: Control,
) -> None:
    run = opened(duty_name="resend")
    with pytest.raises(AirflowFailException):
        duty.close(run, duty.EndedTasks(["audit", "job"], away={"job": "shop_b is away."}))
    assert control.run(run["run_id"])[::2] == (
        "failed",
        "failed tasks: audit, job. away: job: shop_b is away.",
    )


def test_an_audit_keeps_its_report_and_stops_what_comes_after_it(
    control: Control, tmp_path: Path
) -> None:
    run = opened()
    control.stage(run["run_id"])
    assert (tmp_path / "docs" / duty.check("verdicts", run)).is_file()
    control.rows("UPDATE staged_count SET deliveries = 4")
    with pytest.raises(AuditFailed):
        duty.check("verdicts", run)
    assert control.rows("SELECT suite, passed FROM data_check") == [("verdicts", False)]


SENTENCE = "Nothing was lost of orders."


@pytest.mark.parametrize("check", ["red", "green", "not run"])
def test_a_proof_is_published_and_its_sentence_is_logged_only_if_its_check_passed(
    control: Control,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    check: str,
) -> None:
    """Also where somebody marks `audit_proof` as successful by hand."""
    caplog.set_level("INFO")
    monkeypatch.setenv("BACKSTOP_PROOFS", str(tmp_path))
    run = opened(duty_name="prove")
    folder = proof_folder(run["run_id"])
    folder.mkdir()
    files, digest = write_export([], folder, ("jsonl",))
    manifest = {"deliveries": 0, "counts": {}, "digest": str(digest)}
    write_manifest(folder, manifest, files, signed=False)
    control.rows(
        "INSERT INTO proof (run_id, topic, window_from, window_to, answer, sentence, stubs, owed_stubs, broken, deliveries,"
        " digest, published) VALUES (%s, 'orders', now() - interval '1 h', now(), 'nothing_lost', %s, '{}', 0, %s, 0, %s, false)",
        run["run_id"],
        SENTENCE,
        int(check == "red"),
        str(digest),
    )
    if check != "not run":
        with pytest.raises(AuditFailed) if check == "red" else nullcontext():
            duty.check("proof", run)
    with pytest.raises(AuditFailed, match="has not passed") if check != "green" else nullcontext():
        prove.publish.function(opened=run, ti=None)
    shown = control.rows("SELECT published FROM proof") == [(True,)]
    assert shown == (folder / "manifest.json").exists() == (check == "green")
    monkeypatch.setattr(
        duty, "ended", lambda _: duty.EndedTasks([] if check == "green" else ["publish"])
    )
    with pytest.raises(AirflowFailException) if check != "green" else nullcontext():
        prove.close_run.function(opened=run)
    assert (SENTENCE in caplog.text) == (check == "green")
    assert ("No proof is published" in caplog.text) == (check != "green")


def test_a_task_that_wakes_up_after_its_run_was_closed_does_nothing(control: Control) -> None:
    run = opened()
    duty.close(run, duty.EndedTasks())
    for step in (
        lambda: duty.check("verdicts", run),
        lambda: duty.do(run, "promote"),
        lambda: duty.close(run, duty.EndedTasks()),
    ):
        with pytest.raises(RunLost):
            step()
    assert control.rows("SELECT * FROM data_check") == []


def woken() -> list[str]:
    """The assets for which a task that ends now would report an event to Airflow, by name."""
    events = OutletEventAccessors()
    names = wake_duties({"outlet_events": events})
    reported = list(_serialize_outlet_events(events))
    assert {event["source_alias_name"] for event in reported} <= {WORK.name}
    assert [event["dest_asset_key"]["name"] for event in reported] == names
    return names


def test_alerts_and_cases_wake_who_tells_and_who_asks_only_while_there_is_something_to_do(
    control: Control, tmp_path: Path
) -> None:
    config = tmp_path / "backstop.yaml"
    told = "{channels: {team: {url: env:BACKSTOP_TEAM}}}"
    config.write_text(
        config.read_text().replace("alerts: {none_wanted: true}", f"alerts: {told}")
        + "  questions: 1\n"
    )
    assert woken() == []
    control.rows(
        "INSERT INTO case_file (kind, topic, consumer_group, subject, severity, summary, evidence)"
        " SELECT 'unknown', 'orders', 'billing', s, 'warning', '', '{}' FROM unnest(ARRAY['one', 'two']) AS s"
    )
    assert woken() == ["backstop_somebody_to_ask"]
    assert len(choose(control.connection, 1)) == 1
    assert woken() == [], "there is room for one question, and it is asked"
    control.rows(
        "UPDATE case_file SET state = 'closed', closed_at = now() WHERE case_id IN (SELECT case_id FROM case_question)"
    )
    assert woken() == ["backstop_somebody_to_ask"], "its question is to be taken away"
    control.rows("UPDATE case_question SET ended_at = now(), how = 'over'")
    choose(control.connection, 1)
    assert woken() == []
    control.rows(
        "INSERT INTO alert (dedup_key, severity, title, body) VALUES ('duty/test', 'warning', 'a title', 'a body')"
    )
    assert woken() == ["backstop_something_to_tell"]
    later = "SELECT alert_id, 'team', now() + interval '1 h' FROM alert"
    control.rows(f"INSERT INTO alert_delivery (alert_id, channel, next_try_at) {later}")
    assert woken() == [], "its channel is tried again later"
    control.rows("UPDATE alert_delivery SET next_try_at = now()")
    assert woken() == ["backstop_something_to_tell"]
    config.write_text(config.read_text().replace(told, "{none_wanted: true}"))
    assert woken() == [], "nobody is to be told"


def test_after_a_failed_watch_too_a_silent_trigger_is_stood_in_for(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look, "due_now", lambda *_: ["reconcile", "sweep"])
    noted = "INSERT INTO watermark (subject, reached) VALUES ('due work is looked for', now() - interval %s)"
    control.rows(noted, "10 minutes")
    events = OutletEventAccessors()
    names = wake_after_failed_watch.function(outlet_events=events)
    assert names == ["backstop_something_to_judge", "backstop_something_to_sweep"]
    reported = _serialize_outlet_events(events)
    assert [event["dest_asset_key"]["name"] for event in reported] == names
    control.rows("UPDATE watermark SET reached = now()")
    assert wake_after_failed_watch.function(outlet_events=events) == [], "the trigger starts them"


def test_while_the_control_database_is_away_the_channels_are_told_once_an_hour_and_once_when_it_is_back(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, str] = {}

    class Variable:
        """As Airflow keeps them, in its own database."""

        @staticmethod
        def get(key: str, default: Any = None, deserialize_json: bool = False) -> Any:
            return json.loads(kept[key]) if key in kept else default

        @staticmethod
        def set(key: str, value: Any, serialize_json: bool = False) -> None:
            kept[key] = json.dumps(value)

        @staticmethod
        def delete(key: str) -> None:
            del kept[key]

    def fails(dag: str, run: str) -> None:
        notify.tell_failure({"dag": SimpleNamespace(dag_id=dag), "run_id": run})

    monkeypatch.setattr("airflow.sdk.Variable", Variable)
    config = Path(os.environ["BACKSTOP_CONFIG"])
    config.write_text(config.read_text() + "\nnotify: {url: 'env:HOOK'}\n")
    with endpoint() as hook:
        monkeypatch.setenv("HOOK", f"http://{hook.address}/hook")
        url = os.environ["AIRFLOW_CONN_BACKSTOP_CONTROL"]
        monkeypatch.setenv("AIRFLOW_CONN_BACKSTOP_CONTROL", "postgresql://nobody@127.0.0.1:1/gone")
        hook.answers = 500
        fails("watch", "1")
        assert hook.taken == [], "nobody took it, so the next one is told"
        hook.answers = 204
        for run in ("2", "3"):
            for dag in ("watch", "triage", "decide_case", "decide_case__orders"):
                fails(dag, run)
        assert [notice["run"] for notice in hook.taken] == [
            "2"
        ] and "at most once an hour" in hook.taken[0]["text"]
        away = json.loads(kept[notify.AWAY])
        kept[notify.AWAY] = json.dumps(away | {"told": "2020-01-01T00:00:00+00:00"})
        fails("resend", "4")
        assert [notice["run"] for notice in hook.taken] == ["2", "4"]
        monkeypatch.setenv("AIRFLOW_CONN_BACKSTOP_CONTROL", url)
        with control_room() as room:
            notify.tell_back(room.control)
            notify.tell_back(room.control)
    ((title, body),) = control.rows("SELECT title, body FROM alert")
    assert title == "The control database answers again" and kept == {}
    assert "7 failed runs had no alert of their own" in body
    of_people = "decide_case 2, decide_case__orders 2, decide_case 3, decide_case__orders 3"
    assert of_people in body


def test_every_suite_of_a_phase_runs_and_each_that_does_not_hold_is_named(
    control: Control, tmp_path: Path
) -> None:
    run = opened()
    control.stage(run["run_id"])
    phase = ("stub_contract", "verdicts", "log_contract")
    reports = duty.check_all(phase, run)
    assert [(tmp_path / "docs" / report).is_file() for report in reports] == [True] * 3
    control.rows("UPDATE staged_count SET deliveries = 4")
    control.rows("UPDATE staged_read SET complete = false, detail = NULL")
    with pytest.raises(AuditFailed, match=r"reads_complete_or_named.* deliveries_conserved"):
        duty.check_all(("stub_contract", "verdicts"), run)
    kept = control.rows("SELECT suite, passed FROM data_check ORDER BY checked_at")
    assert kept == [("log_contract", True), ("stub_contract", False), ("verdicts", False)]


def test_resend_counts_what_may_go_now(control: Control) -> None:
    """`orders` is in mode observe here, `payments` and `refunds` in repair."""
    due = lambda: duty.open_duty("resend", ResendInput())  # noqa: E731
    control.request("orders")
    control.request("payments", due="1h")
    control.request("payments", "claimed", due="1h")
    control.request("payments", "sent")
    assert due() is None
    assert woken() == []
    control.request("payments")
    control.request("refunds", "claimed", due="-1s")
    assert woken() == ["backstop_something_to_send"]
    control.rows("INSERT INTO pause (topic, paused_by, why) VALUES ('payments', 'me', 'test')")
    run = due()
    assert run is not None
    assert run["due"] == 1
    duty.close(run, duty.EndedTasks())
    control.rows("INSERT INTO pause (topic, paused_by, why) VALUES ('*', 'me', 'test')")
    assert due() is None


def test_the_alert_of_a_persons_failed_run_promises_no_later_run() -> None:
    said = {
        dag: notify.notice_of({"dag": SimpleNamespace(dag_id=dag), "run_id": "r"})["text"]
        for dag in ("reconcile", "decide_case", "decide_case__shop")
    }
    assert [dag for dag, text in said.items() if "the next run goes on" in text] == ["reconcile"]
