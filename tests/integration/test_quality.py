"""The data checks on a real PostgreSQL: what each suite lets through, what it stops, and what it keeps."""

from __future__ import annotations

import contextlib
import json
import random
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import yaml
from jinja2 import Environment
from sqlalchemy import event
from sqlalchemy.engine import Engine

from backstop.checks import SUITES, SuiteResult, data_docs, run_suite, run_suites
from backstop.checks.run import BATCH, KEPT, session_options
from backstop.checks.run import _breaches as find_breaches
from backstop.checks.suites import Check, checks_of, suite_of, with_own
from backstop.config.load import from_mapping
from backstop.duties import duty_named
from backstop.duties import names as duty_names
from backstop.model.errors import AuditFailed, ConfigurationError, RunLost, StoreUnavailable
from backstop.reports.check_system import _own_expectations as find_expectations
from backstop.runs.duty import Check as DutyCheck
from backstop_lab.servers.postgres import Postgres
from backstop_lab.shop.wait_for import wait_for
from quick_postgres import new_database

ROOT = Path(__file__).resolve().parents[2]
STAGE = 2
BEFORE_PROMOTION = ("stub_contract", "log_contract", "verdicts")
OWN_LOGS = """
expectations:
  - name: known_sources
    description: every source is a shard
    rows: reads
    type: expect_column_values_to_match_regex
    kwargs: {column: subject, regex: "^shard "}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with Postgres(tmp_path_factory.mktemp("pg")) as postgres:
        yield postgres


class Control:
    """The control database of one test, with one run whose staged rows are sound: one lost delivery, one
    confirmed."""

    def __init__(self, url: str, docs: Path) -> None:
        self.url, self.docs = url, docs
        self.connection = psycopg2.connect(url)
        self.connection.autocommit = True
        self.run_id = self.one(
            "INSERT INTO run (duty, token, stage, policy_version, code_version)"
            " VALUES ('reconcile', %s, %s, 'p', 'c') RETURNING run_id",
            str(uuid.uuid4()),
            STAGE,
        )

    def one(self, query: str, *values: object) -> Any:
        with self.connection.cursor() as cursor:
            cursor.execute(query, values)
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None

    def stage(
        self,
        message_id: str = "m-1",
        *,
        verdict: str = "LOST",
        eligible: bool = True,
        **other: object,
    ) -> None:
        self.insert(
            "staged_stub",
            shard=other.get("shard", "shop_a"),
            message_id=message_id,
            old_status="pending",
            new_status=other.get("new_status", "pending"),
            send_count=1,
            deliveries=2,
        )
        self.insert(
            "staged_verdict",
            shard=other.get("shard", "shop_a"),
            message_id=message_id,
            consumer_group="billing",
            verdict=verdict,
            reason="passed_over",
            eligible=eligible,
            send_count=1,
            next_look_at=other.get("next_look_at"),
            evidence=json.dumps(other.get("evidence", {"refusals": 0, "budget": 5})),
        )
        self.insert(
            "staged_count",
            consumer_group="billing",
            verdict=verdict,
            deliveries=1,
            eligible=int(eligible),
            newly=0,
        )
        self.insert(
            "staged_count",
            consumer_group="shipping",
            verdict="CONFIRMED",
            deliveries=1,
            eligible=0,
            newly=1,
        )
        self.insert("staged_read", topic=None, subject="shard shop_a", rows_read=1, complete=True)

    def promote(self) -> None:
        """What a sound promotion of `stage()` writes."""
        self.one(
            "INSERT INTO verdict SELECT run_id, shard, topic, message_id, consumer_group, verdict, reason,"
            " eligible, send_count, case_kind, next_look_at, evidence FROM staged_verdict WHERE run_id = %s",
            self.run_id,
        )
        self.one(
            "INSERT INTO verdict_count SELECT run_id, topic, consumer_group, verdict, deliveries, eligible,"
            " newly FROM staged_count WHERE run_id = %s",
            self.run_id,
        )

    def ask(self, message_id: str = "m-1", *, send_number: int = 2, **other: object) -> None:
        self.insert(
            "resend_request",
            stage=None,
            shard="shop_a",
            message_id=message_id,
            send_number=send_number,
            reason="LOST",
            requested_by="reconcile",
            **other,
        )

    def insert(self, table: str, **values: object) -> None:
        row = {"run_id": self.run_id, "stage": STAGE, "topic": "orders", **values}
        row = {name: value for name, value in row.items() if value is not None}
        self.one(
            f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join(['%s'] * len(row))})",
            *row.values(),
        )

    def audit(self, suite: str, topics: tuple[str, ...] = ("orders",)) -> SuiteResult:
        return run_suite(suite, self.url, self.run_id, STAGE, self.docs, repair_topics=topics)

    def audit_all(self, suites: Sequence[str], **given: Any) -> tuple[SuiteResult, ...]:
        return run_suites(
            suites, self.url, self.run_id, STAGE, self.docs, repair_topics=["orders"], **given
        )

    def kept(self) -> list[tuple[str, list[str]]]:
        """Each suite that was kept, in that order, and which of its checks failed."""
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT suite, failed FROM data_check ORDER BY checked_at")
            return [(suite, [one["name"] for one in failed]) for suite, failed in cursor.fetchall()]

    def broken(
        self, suite: str, topics: tuple[str, ...] = ("orders",)
    ) -> dict[str, dict[str, Any]]:
        """The checks that fail, by name, as the data_check row has them."""
        with pytest.raises(AuditFailed):
            self.audit(suite, topics)
        failed = self.one(
            "SELECT failed FROM data_check WHERE run_id = %s AND suite = %s", self.run_id, suite
        )
        return {check["name"]: check for check in failed}


@pytest.fixture
def control(server: Postgres, tmp_path: Path) -> Iterator[Control]:
    name = f"control_{uuid.uuid4().hex[:12]}"
    database = Control(new_database(server, name, "control"), tmp_path / "docs")
    yield database
    database.connection.close()


def test_every_suite_passes_over_no_rows_and_leaves_a_row_and_a_site(control: Control) -> None:
    for suite in SUITES:
        result = control.audit(suite)
        assert result == SuiteResult(
            suite,
            True,
            {check.name: check.must_hold for check in checks_of(suite)},
            (),
            f"{control.run_id}/{suite}/index.html",
        )
        assert (control.docs / result.report).is_file()
    rows = control.one(
        "SELECT json_object_agg(suite, passed) FROM data_check WHERE run_id = %s", control.run_id
    )
    assert rows == dict.fromkeys(SUITES, True)


def test_suites_at_once_each_report_what_they_found(control: Control) -> None:
    control.stage()
    control.one("UPDATE staged_read SET complete = false")
    control.one("UPDATE staged_verdict SET verdict = 'GONE'")
    with pytest.raises(AuditFailed) as failure:
        control.audit_all(BEFORE_PROMOTION)
    found = {
        "stub_contract": ["reads_complete_or_named"],
        "log_contract": ["reads_complete_or_named"],
        "verdicts": ["names_known", "only_losses_are_eligible", "verdicts_conserved"],
    }
    kept = control.kept()
    assert [suite for suite, _ in kept] == list(BEFORE_PROMOTION)
    assert {suite: sorted(checks) for suite, checks in kept} == found
    for suite, checks in found.items():
        assert f"The data check {suite} of run {control.run_id} failed" in failure.value.what
        assert all(f"{check} (" in failure.value.what for check in checks)
        assert f"{control.run_id}/{suite}/index.html" in failure.value.next_step
        # Each has its own results in its own site: one page for each of its sets of rows.
        pages = (control.docs / str(control.run_id) / suite / "validations").rglob("*.html")
        titles = {check.rows for check in checks_of(suite)}
        assert len(list(pages)) == len(titles)


@pytest.mark.parametrize(
    ("breaks", "name", "why"),
    [
        (
            OWN_LOGS.replace("column: subject", "column: no_such_column"),
            "known_sources",
            'could not be run: The column "no_such_column" does not exist',
        ),
        # Counted by one statement with ours over the same rows, which the server then refuses as a whole.
        (
            OWN_LOGS.replace("column: subject", "column: complete"),
            "known_sources",
            "could not be run: operator does not exist: boolean ~ ",
        ),
        (
            OWN_LOGS.replace("column: subject", "column: rows_read")
            .replace("to_match_regex", "to_be_in_set")
            .replace('regex: "^shard "', "value_set: [few]"),
            "known_sources",
            "could not be run: a value is not of the type that it is compared with",
        ),
        (
            OWN_LOGS.replace("to_match_regex", "to_be_a_miracle"),
            "known_sources",
            "could not be run: expect_column_values_to_be_a_miracle not found",
        ),
        ("expectations: [", "own_expectations", "log_contract.yaml cannot be used: while parsing"),
    ],
)
def test_what_a_team_adds_and_cannot_run_hides_no_other_check(
    control: Control, tmp_path: Path, breaks: str, name: str, why: str
) -> None:
    control.stage()
    control.one("UPDATE staged_read SET complete = false")
    (tmp_path / "log_contract.yaml").write_text(breaks)
    with pytest.raises(AuditFailed) as failure:
        control.audit_all(BEFORE_PROMOTION, own=tmp_path)
    assert control.kept() == [
        ("stub_contract", ["reads_complete_or_named"]),
        ("log_contract", ["reads_complete_or_named", name]),
        ("verdicts", []),
    ]
    kept = control.one("SELECT failed FROM data_check WHERE suite = 'log_contract'")
    assert why in kept[-1]["must_hold"]
    held = control.one("SELECT held FROM data_check WHERE suite = 'log_contract'")
    assert set(held) == {one.name for one in checks_of("log_contract")} - {
        "reads_complete_or_named"
    }
    assert "The data check stub_contract" in failure.value.what
    assert f"{name} (1)" in failure.value.what
    assert "The data check verdicts" not in failure.value.what


def test_a_fault_in_one_suite_is_raised_with_what_the_others_found(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    validate = data_docs.validate

    def fail(suite: str, *given: Any) -> Any:
        if suite == "log_contract":
            raise RuntimeError("unforeseen")
        return validate(suite, *given)

    monkeypatch.setattr(data_docs, "validate", fail)
    control.stage()
    control.one("UPDATE staged_read SET complete = false")
    with pytest.raises(RuntimeError, match="unforeseen") as failure:
        control.audit_all(BEFORE_PROMOTION)
    (note,) = failure.value.__notes__
    assert "stub_contract" in note and "reads_complete_or_named" in note
    assert control.kept() == [("stub_contract", ["reads_complete_or_named"]), ("verdicts", [])]


def test_a_suite_runs_while_the_database_works_for_another(control: Control) -> None:
    control.stage()
    site = control.docs / str(control.run_id)
    with psycopg2.connect(control.url) as holder, holder.cursor() as cursor:
        cursor.execute("LOCK TABLE quarantine IN ACCESS EXCLUSIVE MODE")
        with ThreadPoolExecutor(1) as thread:
            try:
                passed = thread.submit(control.audit_all, ("stub_contract", "verdicts"))
                wait_for("the report of verdicts", (site / "verdicts" / "index.html").exists, 60)
                assert not (site / "stub_contract" / "index.html").exists()
                assert control.kept() == []
            finally:
                holder.rollback()
            results = passed.result()
    assert [result.suite for result in results] == ["stub_contract", "verdicts"]
    assert control.kept() == [("stub_contract", []), ("verdicts", [])]
    assert (site / "stub_contract" / "index.html").is_file()


def test_a_sound_run_passes_every_suite(control: Control) -> None:
    control.stage()
    for suite in ("stub_contract", "log_contract", "verdicts"):
        assert control.audit(suite).passed
    control.promote()
    control.ask()
    assert control.audit("requests").passed
    assert control.audit("attempts").passed


def test_a_missing_verdict_breaks_conservation_and_names_the_topic_only(control: Control) -> None:
    control.stage()
    control.one("DELETE FROM staged_count WHERE verdict = 'CONFIRMED'")
    broken = control.broken("verdicts")
    assert set(broken) == {"deliveries_conserved"}
    assert broken["deliveries_conserved"]["count"] == 1
    assert broken["deliveries_conserved"]["ids"] == [{"topic": "orders"}]


def test_verdicts_that_were_staged_but_not_counted_are_found(control: Control) -> None:
    control.stage()
    control.one("UPDATE staged_count SET eligible = 0")
    assert set(control.broken("verdicts")) == {"verdicts_conserved"}


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ("UPDATE staged_verdict SET verdict = 'GONE'", "names_known"),
        (
            "UPDATE staged_count SET verdict = 'FINE' WHERE verdict = 'CONFIRMED'",
            "counted_names_known",
        ),
        (
            "UPDATE staged_verdict SET verdict = 'BACKLOGGED', next_look_at = now() + interval '1 day'",
            "only_losses_are_eligible",
        ),
        ("UPDATE staged_stub SET new_status = 'confirmed'", "confirmed_is_complete"),
        ("UPDATE staged_stub SET new_status = 'exhausted'", "exhausted_is_spent"),
        ("UPDATE staged_stub SET old_status = 'voided'", "final_stays_final"),
        ("UPDATE staged_stub SET send_count = 3", "verdicts_have_stubs"),
        ("UPDATE staged_verdict SET send_count = 5", "sends_within_budget"),
        ("UPDATE staged_verdict SET evidence = '{}'", "sends_within_budget"),
        (
            "UPDATE staged_verdict SET verdict = 'UNKNOWN', eligible = false, next_look_at = 'epoch'",
            "waiting_looks_ahead",
        ),
    ],
)
def test_a_wrong_verdict_stops_the_promotion(control: Control, change: str, check: str) -> None:
    control.stage()
    control.one(change)
    broken = control.broken("verdicts")
    assert check in broken
    assert broken[check]["count"] >= 1


def test_a_delivery_with_two_verdicts_and_a_message_with_two_open_numbers_are_found(
    control: Control,
) -> None:
    control.stage()
    control.one("ALTER TABLE staged_verdict DROP CONSTRAINT staged_verdict_pkey")
    control.one("INSERT INTO staged_verdict SELECT * FROM staged_verdict")
    found = control.broken("verdicts")["one_verdict_a_delivery"]
    assert (found["count"], found["ids"]) == (
        1,
        [{"topic": "orders", "message_id": "m-1", "consumer_group": "billing"}],
    )
    control.ask()
    control.ask("m-2", send_number=2)
    assert control.audit("attempts").passed
    control.ask(send_number=3)
    found = control.broken("attempts")["one_open_number"]
    assert (found["count"], found["ids"]) == (1, [{"topic": "orders", "message_id": "m-1"}])


def test_progress_that_went_back_stops_the_step_unless_a_regression_isolates_its_queue(
    control: Control,
) -> None:
    place = {
        "stage": None,
        "consumer_group": "billing",
        "broker": "embedded",
        "queue_id": 0,
        "epoch": "e",
    }
    control.insert(
        "progress_history",
        **place,
        next_offset=9,
        passed_until="2026-01-01Z",
        recorded_at="2026-01-01Z",
    )
    control.insert(
        "progress", **place, next_offset=5, passed_until="2026-01-02Z", recorded_at="2026-01-02Z"
    )
    assert set(control.broken("verdicts")) == {"progress_never_backwards"}
    control.one(
        "INSERT INTO anomaly (kind, subject, topic, consumer_group, first_run_id)"
        " VALUES ('REGRESSION', 'billing/orders/0/e/9', 'orders', 'billing', %s)",
        control.run_id,
    )
    assert control.audit("verdicts").passed


def test_one_id_judged_on_two_shards_fails_the_stub_contract(control: Control) -> None:
    control.stage()
    control.insert(
        "staged_stub",
        shard="shop_b",
        message_id="m-1",
        old_status="pending",
        new_status="pending",
        send_count=1,
        deliveries=2,
    )
    broken = control.broken("stub_contract")
    assert broken["no_stub_twice"]["ids"] == [{"topic": "orders", "message_id": "m-1"}]


def test_stubs_that_were_set_aside_fail_no_contract(control: Control) -> None:
    control.stage()
    for shard in ("shop_a", "shop_b"):
        control.insert(
            "staged_stub",
            shard=shard,
            message_id="m-2",
            old_status="nonsense",
            new_status="nonsense",
            send_count=1,
            deliveries=0,
        )
    assert control.audit("stub_contract").passed


def test_a_source_that_was_not_read_must_say_why(control: Control) -> None:
    control.stage()
    control.one("UPDATE staged_read SET complete = false")
    assert set(control.broken("stub_contract")) == {"reads_complete_or_named"}
    assert set(control.broken("log_contract")) == {"reads_complete_or_named"}
    control.one("UPDATE staged_read SET detail = 'the database is away'")
    assert control.audit("stub_contract").passed
    assert control.audit("log_contract").passed


def test_a_broken_row_is_not_judged_and_a_broken_log_makes_nothing_eligible(
    control: Control,
) -> None:
    control.stage()
    for store, group in (("shard shop_a", None), ("store billing_db", "billing")):
        control.insert(
            "quarantine",
            run_id=None,
            stage=None,
            store=store,
            row_key="m-1",
            reason="no_time",
            message_id="m-1",
            consumer_group=group,
            first_run_id=control.run_id,
        )
    control.audit("stub_contract")  # holds: a run beside this one met it broken
    row = {"shard": "shop_a", "message_id": "m-1", "old_status": "pending", "new_status": "pending"}
    control.insert("staged_stub", **row, send_count=1, deliveries=0)
    assert set(control.broken("stub_contract")) == {"broken_rows_not_judged"}
    assert set(control.broken("log_contract")) == {"broken_logs_decide_nothing"}


@pytest.mark.parametrize(
    ("change", "topics", "check"),
    [
        (
            "UPDATE verdict SET eligible = false; UPDATE verdict_count SET eligible = 0",
            ("orders",),
            "only_eligible_requested",
        ),
        ("SELECT 1", ("payments",), "only_in_repair"),
        ("UPDATE resend_request SET send_number = 4", ("orders",), "next_send_number"),
        ("UPDATE verdict SET verdict = 'EXHAUSTED'", ("orders",), "exhausted_has_case"),
        (
            "UPDATE verdict_count SET deliveries = 7 WHERE verdict = 'LOST'",
            ("orders",),
            "verdicts_promoted",
        ),
        ("UPDATE verdict_count SET deliveries = 7 WHERE newly = 1", ("orders",), "counts_promoted"),
        (
            "INSERT INTO case_file (kind, topic, summary, opened_by_run) "
            " SELECT 'exhausted', 'orders', 's', run_id FROM run",
            ("orders",),
            "case_has_alert",
        ),
    ],
)
def test_a_wrong_promotion_is_found(
    control: Control, change: str, topics: tuple[str, ...], check: str
) -> None:
    control.stage()
    control.promote()
    control.ask()
    control.one(change)
    assert check in control.broken("requests", topics)


def test_claims_left_behind_and_closed_requests_that_are_open_are_found(control: Control) -> None:
    control.ask(closed_by_run=control.run_id)
    control.ask(
        "m-2",
        state="claimed",
        claim_token=str(uuid.uuid4()),
        updated_at="2026-01-01T00:00Z",
        claim_deadline="2026-01-01T00:05Z",
    )
    control.one('UPDATE run SET counts = \'{"published": 2, "handed_out": 1}\'')
    broken = control.broken("attempts")
    assert set(broken) == {
        "closed_means_closed",
        "no_claim_left_behind",
        "published_within_handed_out",
    }
    assert broken["no_claim_left_behind"]["ids"][0]["message_id"] == "m-2"


def test_a_stage_that_a_later_judge_left_behind_is_not_audited(control: Control) -> None:
    control.stage()
    control.insert(
        "staged_verdict",
        stage=STAGE - 1,
        shard="shop_a",
        message_id="m-0",
        consumer_group="billing",
        verdict="GONE",
        reason="r",
        eligible=True,
        send_count=1,
        evidence="{}",
    )
    assert control.audit("verdicts").passed
    assert run_suite("verdicts", control.url, control.run_id, None, control.docs).passed
    with pytest.raises(AuditFailed):
        run_suite("verdicts", control.url, control.run_id, STAGE - 1, control.docs)


def test_triage_may_replay_nothing_whose_category_is_not_known(control: Control) -> None:
    control.one(
        "INSERT INTO drain_batch (run_id, broker, queue, letters) VALUES (%s, 'b', 'q', 1)",
        control.run_id,
    )
    control.one(
        "INSERT INTO dead_letter (batch_id, broker, queue, broker_id, topic, message_id, headers, content_bytes, state, shard,"
        " send_number, decided_by) SELECT batch_id, 'b', 'q', '1', 'orders', 'm-1', '', 0, 'replaying', 'shop_a', 2, 'olga'"
        " FROM drain_batch"
    )
    assert "no_poison_by_machine" not in control.broken("dead_letters_decided")
    control.one("UPDATE dead_letter SET decided_by = 'triage'")
    assert "no_poison_by_machine" in control.broken("dead_letters_decided")


def test_a_failed_suite_says_what_happened_what_was_not_lost_and_what_to_do(
    control: Control,
) -> None:
    control.stage()
    control.one("UPDATE staged_verdict SET verdict = 'GONE'")
    with pytest.raises(AuditFailed) as failure:
        control.audit("verdicts")
    assert "names_known (1)" in failure.value.what
    assert "promoted" in failure.value.unaffected
    assert f"{control.run_id}/verdicts/index.html" in failure.value.next_step
    assert failure.value.exit_code == 5


@pytest.mark.parametrize("suite", BEFORE_PROMOTION)
def test_the_work_of_a_check_grows_with_what_was_staged_and_not_with_its_square(
    control: Control, suite: str
) -> None:
    """No statistics know the rows that were staged a moment ago."""
    staged = 4_000
    control.one("ALTER TABLE staged_stub SET (autovacuum_enabled = off)")
    control.one("ALTER TABLE staged_verdict SET (autovacuum_enabled = off)")
    values = (control.run_id, STAGE, staged)
    control.one(
        "INSERT INTO staged_stub SELECT %s, %s, 'shop_a', 'orders', 'm-' || n, 'pending',"
        " CASE WHEN n %% 3 = 0 THEN 'confirmed' WHEN n %% 7 = 0 THEN 'exhausted' ELSE 'pending' END, 1, 2"
        " FROM generate_series(1, %s) AS n",
        *values,
    )
    control.one(
        "INSERT INTO staged_verdict (run_id, stage, shard, topic, message_id, consumer_group, verdict, reason, eligible,"
        " send_count, evidence) SELECT %s, %s, 'shop_a', 'orders', 'm-' || n, g,"
        " CASE WHEN n %% 7 = 0 THEN 'EXHAUSTED' ELSE 'LOST' END, 'r',"
        " n %% 7 <> 0, 1, '{}' FROM generate_series(1, %s) AS n, unnest(ARRAY['billing', 'shipping']) AS g WHERE n %% 3 <> 0",
        *values,
    )
    asked: dict[str, Any] = {}

    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if statement.lstrip().startswith("SELECT"):
            asked[statement] = parameters

    event.listen(Engine, "before_cursor_execute", note)
    try:
        with contextlib.suppress(AuditFailed):  # only the amount of work counts here
            control.audit(suite)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    for check in checks_of(suite):
        end = "" if check.sql is None else " ".join(check.sql.split())[-60:]
        assert any(end in " ".join(statement.split()) for statement in asked), check.name
    connection = psycopg2.connect(
        control.url, options=session_options(control.run_id, STAGE, ["orders"])
    )
    with connection, connection.cursor() as cursor:
        for statement, parameters in asked.items():
            cursor.execute(
                f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {statement}",
                parameters or None,
            )
            ((explained,),) = cursor.fetchall()
            plan = explained[0]["Plan"]
            assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 10 * staged, statement
            assert most_rows(plan) < 10 * staged, statement
    connection.close()


def most_rows(plan: dict[str, Any]) -> float:
    """Of all steps of a plan, the most rows that one gave or looked at in vain."""
    rows = sum(
        count for name, count in plan.items() if name == "Actual Rows" or "Rows Removed" in name
    )
    return max(rows * plan["Actual Loops"], *map(most_rows, plan.get("Plans", [])), 0)


@pytest.mark.parametrize("seed", range(4))
def test_verdicts_and_stubs_are_matched_as_a_plain_comparison_does(
    control: Control, seed: int
) -> None:
    """Rows at random: stubs without verdicts, verdicts without stubs, other shards and send counts, ids that are staged twice."""
    dice = random.Random(seed)
    stubs, verdicts = [], {}
    for _ in range(150):
        key = dice.choice(["a", "b"]), dice.choice(["t", "u"]), f"m-{dice.randrange(40)}"
        stubs.append(
            (
                *key,
                dice.choice(["pending", "confirmed"]),
                dice.choice(["pending", "confirmed"]),
                dice.randrange(3),
                dice.randrange(3),
            )
        )
        owed = (
            dice.choice(["t", "u"]),
            f"m-{dice.randrange(60)}",
            dice.choice(["billing", "shipping"]),
        )
        if dice.random() < 0.5:
            verdicts[owed] = (
                dice.choice(["a", "b"]),
                dice.choice(["VOIDED", "LOST"]),
                dice.randrange(3),
            )
    stubs += stubs[:75]
    with control.connection.cursor() as cursor:
        for shard, topic, message, old, new, sent, owes in stubs:
            cursor.execute(
                "INSERT INTO staged_stub VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
                (control.run_id, STAGE, shard, topic, message, old, new, sent, owes),
            )
        for (topic, message, group), (shard, verdict, sent) in verdicts.items():
            cursor.execute(
                "INSERT INTO staged_verdict (run_id, stage, shard, topic, message_id, consumer_group, verdict, reason, eligible,"
                " send_count, evidence) VALUES (%s, %s, %s, %s, %s, %s, %s, 'r', false, %s, '{}')",
                (control.run_id, STAGE, shard, topic, message, group, verdict, sent),
            )
    staged = {(shard, topic, message, sent) for shard, topic, message, _, _, sent, _ in stubs}
    alone = {
        (shard, topic, message, sent)
        for (topic, message, _), (shard, _, sent) in verdicts.items()
        if (shard, topic, message, sent) not in staged
    }
    open_ = {
        (shard, topic, message)
        for (topic, message, _), (shard, verdict, _) in verdicts.items()
        if verdict != "VOIDED"
    }
    unfinished = [
        stub
        for stub in stubs
        if stub[3:5] == ("pending", "confirmed") and (stub[6] == 0 or stub[:3] in open_)
    ]
    assert alone and len(unfinished) > len(set(unfinished))
    broken = control.broken("verdicts")
    assert broken["verdicts_have_stubs"]["count"] == len(alone)
    assert broken["confirmed_is_complete"]["count"] == len(unfinished)
    control.one("DELETE FROM staged_verdict")
    without_deliveries = [stub for stub in unfinished if stub[6] == 0]
    broken = control.broken("verdicts")
    assert "verdicts_have_stubs" not in broken
    assert broken["confirmed_is_complete"]["count"] == len(without_deliveries)


OWN = """
expectations:
  - name: only_orders
    description: nothing but orders is judged here
    rows: stubs
    type: expect_column_values_to_be_in_set
    kwargs: {column: topic, value_set: [orders]}
"""


def test_the_connections_of_a_check_end_with_it(control: Control) -> None:
    """A process that runs many duties would take all that the server has."""
    control.stage()
    for suite in ("stub_contract", "verdicts"):
        control.audit(suite)
    wait_for(
        "the end of every connection but the test's own",
        lambda: (
            control.one("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
            == 1
        ),
        10,
    )


def test_a_check_is_one_query_and_no_staged_row_is_fetched(control: Control) -> None:
    """Millions of rows would come into the task's memory, and each check would take twice as long."""
    control.stage()
    control.insert(
        "staged_stub",
        shard="shop_a",
        message_id="m-2",
        old_status="pending",
        new_status="pending",
        send_count=1,
        deliveries=0,
    )
    fetched: list[tuple[str, int]] = []

    def note(_: Any, cursor: Any, statement: str, *__: Any) -> None:
        fetched.append((" ".join(statement.split()), cursor.rowcount))

    event.listen(Engine, "after_cursor_execute", note)
    try:
        for suite in ("stub_contract", "verdicts"):
            control.audit(suite)
    finally:
        event.remove(Engine, "after_cursor_execute", note)
    for suite in ("stub_contract", "verdicts"):
        for check in checks_of(suite):
            if check.sql is not None:
                end = " ".join(check.sql.split())[-60:]
                (its_own,) = [text for text, _ in fetched if end in text]
                assert its_own.startswith("SELECT COUNT(*)"), its_own
    of_rows = [count for text, count in fetched if text.startswith("SELECT s.* FROM")]
    assert of_rows == [0]


def test_expectations_of_a_team_stop_the_step_and_show_ids_alone(
    control: Control, tmp_path: Path
) -> None:
    control.stage()
    (tmp_path / "stub_contract.yaml").write_text(OWN)
    whole = run_suite(
        "stub_contract", control.url, control.run_id, STAGE, control.docs, own=tmp_path
    )
    assert whole.passed and len(whole.held) == len(checks_of("stub_contract")) + 1
    kept = control.one("SELECT held FROM data_check WHERE suite = 'stub_contract'")
    assert kept["only_orders"] == "nothing but orders is judged here"
    control.one("UPDATE staged_stub SET topic = 'payments'")
    with pytest.raises(AuditFailed, match=r"only_orders \(1\): nothing but orders is judged here"):
        run_suite("stub_contract", control.url, control.run_id, STAGE, control.docs, own=tmp_path)
    failed = control.one("SELECT failed FROM data_check WHERE suite = 'stub_contract'")
    assert [check["ids"] for check in failed] == [
        [{"shard": "shop_a", "topic": "payments", "message_id": "m-1"}]
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            OWN.replace("rows: stubs", "rows: letters"),
            "there are no rows 'letters', but stubs, reads, quarantined",
        ),
        (OWN.replace("only_orders", "topic_named"), "the name topic_named is there twice"),
        (
            OWN.replace("kwargs:", "arguments:"),
            "each expectation has name, description, rows, type and kwargs",
        ),
        (OWN.replace("rows: stubs", "rows: [stubs]"), "there are no rows ['stubs']"),
        (
            OWN.replace("expect_column_values_to_be_in_set", "ExpectColumnValuesToBeInSet"),
            "`type` begins with expect_, in lower case",
        ),
        (
            OWN.replace("{column: topic", "{unexpected_rows_query: SELECT, column: topic"),
            "only_orders: unexpected_rows_query: no SQL of your own",
        ),
        (OWN + OWN, "the key 'expectations' is written twice"),
        (OWN + "    kwargs: {column: shard}\n", "the key 'kwargs' is written twice"),
        ("[]", "it must have the one key `expectations`"),
        ("expectations: [", "flow node"),
    ],
)
def test_a_file_that_is_not_as_documented_is_refused_in_a_sentence(
    tmp_path: Path, text: str, why: str
) -> None:
    (tmp_path / "stub_contract.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=re.escape(why)):
        with_own("stub_contract", tmp_path)


@pytest.mark.parametrize("name", ["stub_contracts.yaml", "stub_contract.yml", "verdict.json"])
def test_a_file_that_no_suite_reads_is_not_ignored(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(OWN)
    for suite in SUITES:
        with pytest.raises(ConfigurationError, match=f"no data check reads {name}"):
            with_own(suite, tmp_path)


def test_a_folder_or_a_file_that_is_not_there_is_not_ignored(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("why")
    (tmp_path / "..data.yaml").write_text("a mount's own")
    assert with_own("verdicts", tmp_path) is suite_of("verdicts")
    (tmp_path / "verdicts.yaml").symlink_to(tmp_path / "away")
    with pytest.raises(ConfigurationError, match=r"verdicts\.yaml cannot be used: .*No such file"):
        with_own("verdicts", tmp_path)
    with pytest.raises(ConfigurationError, match="away cannot be read: No such file"):
        with_own("verdicts", tmp_path / "away")


def test_backstop_check_tries_the_expectations_of_a_team(tmp_path: Path) -> None:
    content = yaml.safe_load((ROOT / "backstop.yaml").read_text())
    settings = from_mapping({**content, "data_checks": {"expectations": str(tmp_path)}})
    (tmp_path / "stub_contract.yaml").write_text(OWN)
    (good,) = find_expectations(settings)
    assert good.good and good.says == f"1 expectations of your own in {tmp_path}"
    (tmp_path / "log_contract.yaml").write_text(OWN)
    (bad,) = find_expectations(settings)
    assert not bad.good and "log_contract.yaml cannot be used" in bad.says
    (tmp_path / "verdict.yaml").write_text(OWN)
    (bad,) = find_expectations(settings)
    assert not bad.good and "no data check reads verdict.yaml" in bad.says
    assert list(find_expectations(from_mapping(content))) == []


def test_what_a_failed_check_leaves_unaffected_is_what_its_duty_does_then() -> None:
    checks = {
        one.name: one
        for name in duty_names()
        for one in duty_named(name).steps
        if isinstance(one, DutyCheck)
    }
    assert set(checks) == set(SUITES) == set(KEPT)
    for name, check in checks.items():
        assert ("all the same" in KEPT[name]) is (check.goes_on == "always"), name


def test_the_page_names_every_column_that_a_team_may_check(control: Control) -> None:
    page = (ROOT / "docs" / "how-to" / "data-checks.md").read_text(encoding="utf-8")
    named: dict[str, list[str]] = {}
    for rows, columns in re.findall(
        r"^\| (`.*?) \| (.*) \|$", page.partition("## Columns")[2], re.M
    ):
        base = re.match(r"those of `(\w+)`", columns)
        named[rows] = re.findall(r"`(\w+)`", columns)
        if base:
            named[rows] = [f"those of {base.group(1)}", *named[rows][1:]]
    of_suite = {"closed": "`closed`", "leases_after": "`places` of `leases_after`"}
    options = session_options(control.run_id, STAGE, ())
    with closing(psycopg2.connect(control.url, options=options)) as connection:
        for suite in SUITES:
            for rows in suite_of(suite).rows.values():
                with connection, connection.cursor() as cursor:
                    cursor.execute(f"{rows.sql.replace('{batch}', f'({BATCH})')} LIMIT 0")
                    found = {column.name for column in cursor.description}
                said = named.get(f"`{rows.name}`") or named[f"`{rows.name}` of `{suite}`"]
                if said[0].startswith("those of "):
                    said = [*named[of_suite[said[0].removeprefix("those of ")]], *said[1:]]
                assert set(said) == found, (suite, rows.name)


def test_a_source_that_was_read_before_the_run_began_stops_the_step(control: Control) -> None:
    control.stage()
    control.one("UPDATE staged_read SET read_at = (SELECT as_of - interval '4 s' FROM run)")
    assert control.audit("stub_contract").passed  # clocks may differ by so much
    control.one("UPDATE staged_read SET read_at = (SELECT as_of - interval '6 s' FROM run)")
    for suite in ("stub_contract", "log_contract"):
        assert control.broken(suite)["sources_fresh"]["ids"] == [{"subject": "shard shop_a"}]


def test_a_check_that_cannot_run_does_not_hold(control: Control) -> None:
    control.one("DROP TABLE progress_history")
    with pytest.raises(AuditFailed, match="progress_never_backwards") as failure:
        control.audit("verdicts")
    assert 'it could not be run: relation "progress_history" does not exist' in failure.value.what
    assert control.kept() == [("verdicts", ["progress_never_backwards"])]


def test_a_check_beyond_its_limit_of_time_does_not_hold_and_is_not_tried_again(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "backstop.checks.run.session_options",
        lambda *given: session_options(*given).replace("timeout=300s", "timeout=500ms"),
    )
    report = control.docs / str(control.run_id) / "stub_contract" / "index.html"
    asked_again: list[str] = []

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        if report.exists() and "staged_read" in statement:
            asked_again.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        with psycopg2.connect(control.url) as holder, holder.cursor() as cursor:
            cursor.execute("LOCK TABLE staged_read IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(AuditFailed, match="sources_fresh"):
                control.audit("stub_contract")
            holder.rollback()
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    ((_, failed),) = control.kept()
    assert "sources_fresh" in failed and "old_status_known" not in failed
    assert asked_again == []


def test_no_limit_of_the_server_for_whole_transactions_ends_a_check(tmp_path: Path) -> None:
    with Postgres(tmp_path / "of_18", version="18") as of_18:  # the limit is there from 17 on
        control = Control(new_database(of_18, "limited", "control"), tmp_path / "docs")
        control.stage()
        control.one("ALTER DATABASE limited SET transaction_timeout = '1s'")

        def waits_longer(holder: Any) -> bool:
            return bool(
                control.one(
                    "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
                    " AND xact_start < clock_timestamp() - interval '2 s')",
                    holder.info.backend_pid,
                )
            )

        with (
            closing(control.connection),
            ThreadPoolExecutor(1) as thread,
            closing(psycopg2.connect(control.url, options="-c transaction_timeout=0")) as of_run,
            closing(psycopg2.connect(control.url, options="-c transaction_timeout=0")) as of_stage,
        ):
            of_run.cursor().execute("SELECT FROM run FOR UPDATE")
            of_stage.cursor().execute("LOCK TABLE staged_verdict")
            audited = thread.submit(control.audit, "verdicts")
            for holder in (of_run, of_stage):
                wait_for("a long wait", lambda: audited.done() or waits_longer(holder), 60)  # noqa: B023 - called at once
                holder.rollback()
            assert audited.result().passed


def test_a_control_database_of_two_servers_is_checked_as_one_of_one(control: Control) -> None:
    control.stage()
    at, of = control.url.rpartition("@")[0], control.url.rpartition("@")[2]
    place, _, name = of.partition("/")
    url = f"{at}@{place},{place}/{name}"
    assert run_suite("verdicts", url, control.run_id, STAGE, control.docs).passed
    control.one("UPDATE staged_verdict SET verdict = 'GONE'")
    with pytest.raises(AuditFailed, match="names_known"):
        run_suite("verdicts", url, control.run_id, STAGE, control.docs)


def test_a_report_that_cannot_be_written_stops_nothing(
    control: Control, caplog: pytest.LogCaptureFixture
) -> None:
    control.stage()
    control.docs.write_text("a file")
    result = control.audit("verdicts")
    assert result.passed and result.report is None
    assert control.kept() == [("verdicts", [])]
    assert "this data check has no report: " in caplog.text
    control.one("UPDATE staged_verdict SET verdict = 'GONE'")
    with pytest.raises(AuditFailed, match="names_known") as failure:
        control.audit("verdicts")
    assert f"Read data_check, run {control.run_id}, then" in failure.value.next_step


def test_a_query_of_a_check_changes_nothing(control: Control) -> None:
    control.one("CREATE SEQUENCE number")
    query = "SELECT nextval('number') FROM {batch} AS run JOIN run AS r USING (run_id)"
    check = Check(
        "counts", "nothing", "run", "unexpected_rows_expectation", {"unexpected_rows_query": query}
    )
    with (
        pytest.raises(psycopg2.errors.ReadOnlySqlTransaction),
        psycopg2.connect(
            control.url, options=session_options(control.run_id, STAGE, ())
        ) as connection,
    ):
        find_breaches(connection, check)
    assert control.one("SELECT NOT is_called FROM number")


def test_a_run_that_is_not_there_is_not_audited_as_if_it_had_no_rows(control: Control) -> None:
    with pytest.raises(RunLost):
        run_suite("verdicts", control.url, control.run_id + 1, STAGE, control.docs)


def test_a_control_database_that_is_away_fails_the_audit(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        run_suite("verdicts", "postgresql://nobody@127.0.0.1:1/none", 1, 1, tmp_path)


def test_neither_the_site_nor_the_row_keeps_a_payload_or_a_password(control: Control) -> None:
    control.stage(evidence={"refusals": 0, "budget": 5, "secret": "payload-5f1c"})
    control.one("UPDATE staged_verdict SET verdict = 'GONE', reason = 'payload-5f1c'")
    broken = control.broken("verdicts")
    password = psycopg2.extensions.parse_dsn(control.url)["password"]
    pages = [
        page
        for page in control.docs.rglob("*")
        if page.is_file() and page.suffix in (".html", ".json")
    ]
    assert any("validations" in page.parts for page in pages)
    for text in [json.dumps(broken), *(page.read_text() for page in pages)]:
        assert "payload-5f1c" not in text
        assert password not in text


def test_the_sites_share_their_fonts_and_images(control: Control) -> None:
    for suite in SUITES:
        control.audit(suite)
    own = sum(page.lstat().st_size for page in (control.docs / str(control.run_id)).rglob("*"))
    assert (
        own < 2_000_000
    )  # a page of 50 KB for each set of rows; with fonts and images it would be 48 MB


def test_a_second_suite_compiles_no_page_again_and_great_expectations_does_not_log_each_field(
    control: Control, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiled: list[str | None] = []
    compile_page = Environment._compile

    def note(environment: Environment, source: str, filename: str) -> Any:
        compiled.append(filename)
        return compile_page(environment, source, filename)

    control.stage()
    control.audit("stub_contract")
    monkeypatch.setattr(Environment, "_compile", note)
    with caplog.at_level("INFO"):
        result = control.audit("verdicts")
    assert (control.docs / result.report).exists()
    assert compiled == []
    assert "_get_default_value" not in caplog.text


def test_importing_the_package_imports_no_great_expectations() -> None:
    code = "import sys, backstop.checks; print('great_expectations' in sys.modules, 'psycopg2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
