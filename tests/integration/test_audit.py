"""The audit over real databases: a sound system has no breach, and each invariant that is broken is found, by ids, and told."""

from __future__ import annotations

import random
from base64 import b85encode
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from backstop.audit import audit_consumers as subject
from backstop.audit.day import day_of
from backstop.audit.invariants import INVARIANTS, LATE
from backstop.audit.record import Breach, Look, record
from backstop.audit.run_once import run_duty
from backstop.checks.run import run_suites
from backstop.checks.suites import checks_of
from backstop.config.settings import Settings
from backstop.model.errors import AuditFailed, ConfigurationError, Unavailable
from backstop.requests.ask import ERASED
from backstop.requests.policy import NOT_CLAIMED
from backstop.runs.run import open_run
from backstop.sql.named import load
from backstop_lab.servers.ports import free_port
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from retention_world import emptied
from system import System, system

BEFORE, AFTER = timedelta(seconds=20), timedelta(seconds=70)
"""Around midnight: a test takes less than the first, and what it writes is a minute old."""
A_RUN = """
    INSERT INTO run (duty, token, state, finished_at, policy_version, code_version)
    VALUES ('reconcile', gen_random_uuid(), 'done', now(), '', '');
"""
A_REQUEST = """
    INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by, state, groups)
    VALUES ('shop_a', 'orders', '{id}', {number}, 'LOST', 'test', '{state}', '{{billing}}');
"""
A_LETTER = (
    A_RUN
    + """
    INSERT INTO drain_batch (run_id, broker, queue, letters, acknowledged_at)
    SELECT max(run_id), 'embedded', 'q', 1, now() FROM run;
    INSERT INTO dead_letter (batch_id, broker, queue, broker_id, topic, message_id, headers, content, content_bytes, state, shard,
        send_number, closed_at, proof, decided_by, drained_at, decision, look_at)
    SELECT batch_id, 'embedded', 'q', '1', 'orders', 'm', '{{}}', 'c', 1, '{state}', 'shop_a', 2,
        CASE WHEN '{state}' IN ('replayed', 'discarded') THEN now() END, '{proof}', 'triage', now() - '{age}'::interval,
        {decision}, {look_at}
    FROM drain_batch;
"""
)


def letter(
    state: str,
    proof: str = '{"log": 1}',
    age: str = "0 s",
    decision: str = "NULL",
    look_at: str = "NULL",
) -> str:
    return A_LETTER.format(state=state, proof=proof, age=age, decision=decision, look_at=look_at)


BREAKERS: dict[str, tuple[str, str]] = {
    "exhausted_delivery_has_case": (
        "control",
        A_RUN
        + """
        INSERT INTO verdict (run_id, shard, topic, message_id, consumer_group, verdict, reason, eligible, send_count, evidence)
        SELECT run_id, 'shop_a', 'orders', 'm', 'billing', 'EXHAUSTED', '', false, 1, '{}' FROM run;
        INSERT INTO verdict_count SELECT run_id, 'orders', 'billing', 'EXHAUSTED', 1, 0, 1 FROM run;
        INSERT INTO staged_count SELECT run_id, 0, 'orders', 'billing', 'EXHAUSTED', 1, 0, 1 FROM run;
        """,
    ),
    "case_has_alert": (
        "control",
        "INSERT INTO case_file (kind, topic, summary) VALUES ('unknown', 'orders', '')",
    ),
    "alert_was_told": (
        "control",
        """
        INSERT INTO alert (dedup_key, severity, title, body, created_at)
        VALUES ('k', 'warning', '', '', now() - interval '1 h')""",
    ),
    "letters_acknowledged": (
        "control",
        A_RUN
        + """
        INSERT INTO drain_batch (run_id, broker, queue, letters, stored_at)
        SELECT run_id, 'embedded', 'q', 1, now() - interval '1 h' FROM run""",
    ),
    "letters_decided": ("control", letter("open", age="1 h")),
    "replay_has_request": ("control", letter("replaying")),
    "discard_has_proof": ("control", letter("discarded", proof="{}")),
    "causes_count_letters": (
        "control",
        """
        INSERT INTO cause (fingerprint, template, category, first_seen_at, last_seen_at, dead_letters)
        VALUES ('f', 't', 'poison', now(), now(), 2)""",
    ),
    "discard_is_honoured": (
        "control",
        """
        INSERT INTO delivery_decision (topic, message_id, consumer_group, decision, decided_by, decided_at, why)
        VALUES ('orders', 'm', 'billing', 'discard', 'anna', now() - interval '1 s', '');
        """
        + A_REQUEST.format(id="m", number=2, state="sent"),
    ),
    "decisions_are_whole": (
        "control",
        """
        SELECT append_decision('ann', 'void', 'case 1', 'refunded', '{}');
        UPDATE decision_log SET who = 'bob'""",
    ),
    "requests_end": (
        "control",
        """
        INSERT INTO resend_request
            (shard, topic, message_id, send_number, reason, requested_by, state, claim_token, claim_deadline)
        VALUES ('shop_a', 'orders', 'm', 2, 'LOST', 'test', 'claimed', gen_random_uuid(), now() - interval '1 h')""",
    ),
    "withdrawals_end": (
        "control",
        """
        INSERT INTO case_file (kind, topic, summary, state, closed_at) VALUES ('exhausted', 'orders', '', 'closed', now());
        INSERT INTO alert (case_id, dedup_key, severity, title, body) SELECT case_id, 'k', 'info', '', '' FROM case_file;
        INSERT INTO withdrawal (shard, topic, message_id, case_id, decided_by, why, begun_at)
        SELECT 'shop_a', 'orders', 'm', case_id, 'anna', '', now() - interval '1 h' FROM case_file""",
    ),
    "runs_end": (
        "control",
        """
        INSERT INTO run (duty, token, policy_version, code_version, heartbeat_at)
        VALUES ('resend', gen_random_uuid(), '', '', now() - interval '1 h')""",
    ),
    "progress_grows": (
        "control",
        A_RUN
        + """
        INSERT INTO progress_history
            (consumer_group, broker, topic, queue_id, epoch, next_offset, passed_until, recorded_at, run_id)
        SELECT 'billing', 'embedded', 'orders', 0, 'e', 10 - n, now(), now() - interval '1 s' * (3 - n), run_id
        FROM run, generate_series(1, 2) n;
        -- What another queue is known for says nothing of this one.
        INSERT INTO anomaly (kind, topic, consumer_group, subject, first_run_id)
        SELECT 'REGRESSION', 'orders', 'billing', 'billing/orders/1/e/7', run_id FROM run""",
    ),
    "counts_add_up": (
        "control",
        A_RUN
        + """
        INSERT INTO verdict_count SELECT run_id, 'orders', 'billing', 'LOST', 3, 0, 0 FROM run""",
    ),
    "duties_ran": (
        "control",
        """
        INSERT INTO run (duty, token, state, started_at, finished_at, policy_version, code_version)
        SELECT d, gen_random_uuid(), 'done', now() - interval '2 d',
            CASE WHEN d = 'sweep' THEN now() - interval '2 d' ELSE now() END, '', ''
        FROM unnest('{reconcile,resend,sweep}'::text[]) d""",
    ),
    "broken_rows_do_not_grow": (
        "control",
        A_RUN
        + """
        INSERT INTO quarantine (store, row_key, reason, first_run_id) SELECT 's', n::text, 'r', run_id
        FROM run, generate_series(1, 21) n""",
    ),
    "erased_stays_erased": (
        "control",
        letter("discarded")
        + """
        INSERT INTO erasure (topic, message_id, asked_by, why, done_at) VALUES ('orders', 'm', 'anna', '', now())""",
    ),
    "erasures_end": (
        "control",
        """
        INSERT INTO erasure (topic, message_id, asked_by, why, begun_at)
        VALUES ('orders', 'm', 'anna', '', now() - interval '1 h')""",
    ),
    "numbers_within_count": (
        "shop_a",
        """
        INSERT INTO send_attempt (topic, message_id, send_number, requested_by, started_at, outcome)
        VALUES ('orders', 'sound', 7, 'test', now(), 'sent')""",
    ),
    "sends_end": (
        "shop_a",
        """
        UPDATE message_stub SET attempt_token = gen_random_uuid(), attempt_deadline = now() - interval '1 h'
        WHERE message_id = 'sound'""",
    ),
    "stubs_are_looked_at": (
        "shop_b",
        """
        INSERT INTO message_stub (topic, message_id, content, next_check_at, created_at)
        VALUES ('orders', 'm', '', now() - interval '1 h', now())""",
    ),
    "withdrawals_are_decisions": (
        "shop_b",
        """
        INSERT INTO message_stub (topic, message_id, content, next_check_at, status)
        VALUES ('orders', 'm', '', now(), 'voided')""",
    ),
    "exhausted_stub_has_case": (
        "shop_b",
        """
        INSERT INTO message_stub (topic, message_id, content, next_check_at, status)
        VALUES ('orders', 'm', '', now(), 'exhausted')""",
    ),
    "overdue_stub_has_case": (
        "shop_b",
        """
        INSERT INTO message_stub (topic, message_id, content, next_check_at, created_at)
        VALUES ('orders', 'm', '', now() + interval '30 min', now() - interval '1 d')""",
    ),
    "sent_requests_were_handed_out": (
        "control",
        A_REQUEST.format(id="sound", number=2, state="sent"),
    ),
    "confirmed_stub_has_logs": (
        "billing_db",
        "DELETE FROM consumer_log WHERE message_id = 'sound'",
    ),
    "leases_end": (
        "shipping_db",
        """
        INSERT INTO consumer_log (consumer_group, topic, message_id, state, lease_expires_at)
        VALUES ('shipping', 'orders', 'm', 'CONSUMING', now() - interval '1 h')""",
    ),
    "floor_is_old": (
        "billing_db",
        "INSERT INTO consumer_log_floor VALUES ('billing', now() - interval '1 h')",
    ),
}
"""For each invariant what breaks it, and nothing else."""


@pytest.fixture(scope="module")
def kept(servers: tuple[Postgres, Valkey]) -> Iterator[System]:
    with system(*servers) as made:
        yield made


@pytest.fixture
def world(kept: System) -> System:
    """A sound system: one message that was sent once and confirmed, with the logs of both groups."""
    fresh = emptied(kept)
    key = fresh.sent("sound", status="confirmed")
    for group in ("billing", "shipping"):
        fresh.log(key, group)
    return fresh


def audit(world: System, **options: Any) -> dict[str, int]:
    return dict(run_duty(world.settings, world.connections, day=today(), **options))


def found(world: System) -> dict[str, set[str]]:
    rows = world.rows(
        "control",
        """
        SELECT invariant, subject FROM audit_finding WHERE run_id = (SELECT max(run_id) FROM run WHERE duty = 'audit')""",
    )
    return {
        invariant: {subject for other, subject in rows if other == invariant}
        for invariant, _ in rows
    }


def today() -> date:
    return datetime.now(UTC).date()


@pytest.fixture(autouse=True)
def one_day() -> None:
    """What a test writes and audits is of one day."""
    soon = datetime.now(UTC) + BEFORE
    left = datetime.combine(soon.date(), time(), UTC) + BEFORE + AFTER - soon
    if left > timedelta(0):
        sleep(left.total_seconds())


def test_a_sound_system_has_no_breach_and_everything_was_looked_at(world: System) -> None:
    counts = audit(world)
    assert (counts["breaches"], counts["not_read"]) == (0, 0)
    looked = world.rows("control", "SELECT DISTINCT invariant FROM audit_look WHERE complete")
    assert {name for (name,) in looked} == set(INVARIANTS)
    query = "SELECT rows_read FROM audit_look WHERE invariant = 'confirmed_stub_has_logs' AND place = 'shard shop_a'"
    assert world.rows("control", query) == [(1,)]
    asked = {"case_has_alert", "sends_end"}
    unknown = world.rows(
        "control", "SELECT DISTINCT invariant FROM audit_look WHERE rows_read IS NULL"
    )
    assert asked <= {name for (name,) in unknown}, (
        "what the database reads by itself is not counted as nothing"
    )
    assert world.rows("control", "SELECT 1 FROM alert") == []


@pytest.mark.parametrize(
    ("status", "applied", "found_too"),
    [("voided", "now()", False), ("voided", "NULL", False), ("pending", "now()", True)],
)
def test_what_somebody_withdrew_or_had_go_on_by_sql_is_found(
    world: System, status: str, applied: str, found_too: bool
) -> None:
    """A person's login may change a stub's status, and nothing in the producer's database says who did."""
    world.rows(
        "shop_a",
        "INSERT INTO message_stub (topic, message_id, content, next_check_at, status) VALUES"
        " ('orders', 'decided', '', now() + interval '1 h', %s), ('orders', 'by sql', '', now(), 'voided')",
        status,
    )
    world.rows(
        "control",
        "INSERT INTO case_file (kind, topic, summary, state, closed_at) VALUES ('exhausted', 'orders', '', 'closed', now());"
        " INSERT INTO withdrawal (shard, topic, message_id, case_id, decided_by, why, applied_at)"
        f" SELECT 'shop_a', 'orders', 'decided', case_id, 'ann', 'w', {applied} FROM case_file",
    )
    audit(world)
    expected = {"orders/by sql"} | ({"orders/decided"} if found_too else set())
    assert found(world)["withdrawals_are_decisions"] == expected


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ("SELECT 1", []),
        ("DELETE FROM decision_log WHERE entry = 3", ["3"]),
        ("DELETE FROM decision_log", ["3"]),
        (
            "DELETE FROM decision_log WHERE entry = 3;"
            " SELECT append_decision('ann', 'void', 'case 9', 'w', '{}')",
            ["3"],
        ),
        ("SELECT forget_decisions('infinity')", []),
    ],
)
def test_decisions_that_were_taken_off_the_end_are_missed_by_the_next_audit(
    world: System, change: str, missing: list[str]
) -> None:
    for case in range(3):
        world.rows(
            "control", "SELECT append_decision('ann', 'void', %s, 'w', '{}')", f"case {case}"
        )
    [(newest,)] = world.rows("control", "SELECT hash FROM decision_log WHERE entry = 3")
    said: list[str] = []
    run_duty(world.settings, world.connections, tell=said.append)
    assert said == [f"the newest entry of decision_log is 3, hash {newest}"]
    world.rows("control", f"{change}; SELECT 1")
    audit(world)
    found = world.rows(
        "control", "SELECT subject FROM audit_finding WHERE invariant = 'decisions_are_whole'"
    )
    assert [subject for (subject,) in found] == missing


@pytest.mark.parametrize(
    ("database", "statement", "subject"),
    [
        ("shop_a", "UPDATE message_stub SET content = 'a restore'", "orders/sound"),
        (
            "billing_db",
            "UPDATE consumer_log SET last_error = 'no such customer'",
            "orders/sound/billing",
        ),
        (
            "control",
            """INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by, state, error)
        VALUES ('shop_a', 'orders', 'sound', 2, 'LOST', 'test', 'open', 'not claimed: quoted')""",
            "request ",
        ),
    ],
)
def test_what_was_erased_and_came_back_is_found_in_every_database(
    world: System, database: str, statement: str, subject: str
) -> None:
    world.rows("shop_a", "UPDATE message_stub SET content = '', headers = '{}', message_key = NULL")
    world.rows(
        "control",
        """
        INSERT INTO erasure (topic, message_id, asked_by, why, done_at) VALUES ('orders', 'sound', 'a', '', now())""",
    )
    assert audit(world)["breaches"] == 0
    world.rows(database, statement)
    audit(world)
    assert set(found(world)) == {"erased_stays_erased"}
    assert all(one.startswith(subject) for one in found(world)["erased_stays_erased"])


@pytest.mark.parametrize(
    ("state", "error", "breaches"),
    [
        ("not_needed", ERASED, 0),
        ("superseded", "the stub had moved on", 0),
        ("open", "the topic was paused", 0),
        ("open", NOT_CLAIMED + "Failing row contains (secret).", 1),
    ],
)
def test_an_erased_message_that_is_owed_again_and_not_sent_has_not_come_back(
    world: System, state: str, error: str, breaches: int
) -> None:
    world.rows("shop_a", "UPDATE message_stub SET content = '', headers = '{}', message_key = NULL")
    world.rows(
        "control",
        """
        INSERT INTO erasure (topic, message_id, asked_by, why, done_at) VALUES ('orders', 'sound', 'a', '', now());
        INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by, state, error)
        VALUES ('shop_a', 'orders', 'sound', 2, 'LOST', 'reconcile', %s, %s)""",
        state,
        error,
    )
    assert audit(world)["breaches"] == breaches


def test_each_invariant_has_its_data_check_with_the_same_sentence_and_a_way_to_break_it() -> None:
    checks = {
        check.name: check.must_hold
        for check in checks_of("audit")
        if check.name != "every_invariant_was_looked_at"
    }
    assert checks == INVARIANTS
    assert set(BREAKERS) == set(INVARIANTS) > LATE


@pytest.mark.parametrize("invariant", BREAKERS)
def test_a_broken_invariant_is_found_alone_and_people_are_told(
    world: System, invariant: str
) -> None:
    database, statement = BREAKERS[invariant]
    world.rows(database, statement.replace("%", "%%"))
    audit(world)
    assert set(found(world)) == {invariant}
    alerts = world.rows(
        "control", "SELECT severity, title FROM alert WHERE dedup_key LIKE 'audit-%%'"
    )
    assert [severity for severity, _ in alerts] == ["warning" if invariant in LATE else "critical"]
    assert invariant in alerts[0][1]


def test_what_a_run_promoted_is_looked_at_although_it_could_not_read_everything(
    world: System,
) -> None:
    database, statement = BREAKERS["exhausted_delivery_has_case"]
    world.rows(database, statement)
    world.rows("control", "UPDATE run SET state = 'incomplete'")
    audit(world)
    assert set(found(world)) == {"exhausted_delivery_has_case"}


def test_where_all_logs_are_another_programs_nothing_is_missing_from_the_audit(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "own_consumers", lambda _: ())
    monkeypatch.setattr(Settings, "keeps_own_log", lambda *_: False)
    audit(world)
    looked = "SELECT invariant, rows_read FROM audit_look WHERE place = 'consumers' ORDER BY 1"
    assert world.rows("control", looked) == [
        ("erased_stays_erased", 0),
        ("floor_is_old", 0),
        ("leases_end", 0),
    ]


def test_an_id_that_no_key_holds_is_a_breach_and_does_not_end_the_audit(world: System) -> None:
    """A stub of before the contract's lengths, or of a program that writes such a one; reconcile sets it aside."""
    message_id = b85encode(random.Random(1).randbytes(2_400)).decode()[:2_668]
    world.rows(
        "shop_b",
        "INSERT INTO message_stub (topic, message_id, content, next_check_at, created_at, schema_version)"
        " VALUES ('orders', %s, '', now() - interval '1 h', now(), 1)",
        message_id,
    )
    audit(world)
    assert [len(names) for names in found(world).values()] == [1]
    assert world.rows("control", "SELECT message_id FROM audit_finding") == [(message_id,)]


def test_an_alert_that_was_given_up_before_anybody_was_told_has_told_nobody(world: System) -> None:
    world.rows(
        "control",
        """
        INSERT INTO case_file (kind, topic, summary) VALUES ('unknown', 'orders', '');
        INSERT INTO alert (case_id, dedup_key, severity, title, body, ended, ended_at)
        SELECT case_id, 'k', 'warning', '', '', 'given_up', now() FROM case_file""",
    )
    audit(world)
    assert set(found(world)) == {"case_has_alert", "alert_was_told"}
    world.rows("control", "UPDATE alert SET ended = 'unrouted', ended_at = now()")
    assert audit(world)["breaches"] == 0


def test_a_duty_that_works_over_midnight_has_succeeded_on_both_days(world: System) -> None:
    """As a retention whose window opens at 23:00: a short run the day before, a long one until the day after."""
    day = datetime.combine(today(), time(), UTC) - timedelta(days=1)
    world.rows(
        "control",
        """
        INSERT INTO run (duty, token, state, started_at, finished_at, policy_version, code_version)
        SELECT duty, gen_random_uuid(), 'done', %s + began, %s + ended, '', ''
        FROM (VALUES ('retention', interval '-55 min', interval '-20 min'),
            ('retention', interval '23 h 5 min', interval '24 h 20 min'),
            ('sweep', interval '-55 min', interval '-20 min'),
            ('sweep', interval '24 h 5 min', interval '24 h 20 min')) AS r (duty, began, ended)""",
        day,
        day,
    )
    query = load("backstop.audit", "control.sql")["duties_ran"]
    asked = {"duties": ["retention", "sweep"], "as_of": day + timedelta(days=1, hours=5)}
    with closing(world.control()) as conn, conn.cursor() as cursor:
        cursor.execute(query, {**asked, "day_from": day, "day_to": day + timedelta(days=1)})
        assert [duty for duty, *_ in cursor.fetchall()] == ["sweep"]


def test_people_are_told_of_an_invariant_once_a_day(world: System) -> None:
    world.rows(*BREAKERS["floor_is_old"])
    audit(world)
    audit(world)
    assert len(world.rows("control", "SELECT 1 FROM alert")) == 1
    run_duty(world.settings, world.connections, day=today() - timedelta(days=1))
    assert len(world.rows("control", "SELECT 1 FROM alert")) == 2


def test_a_message_whose_log_was_purged_or_whose_delivery_a_person_discarded_is_no_breach(
    world: System,
) -> None:
    world.rows("billing_db", "DELETE FROM consumer_log")
    world.rows("shipping_db", "DELETE FROM consumer_log")
    world.rows(
        "control",
        """
        INSERT INTO delivery_decision (topic, message_id, consumer_group, decision, decided_by, why)
        VALUES ('orders', 'sound', 'billing', 'discard', 'anna', '')""",
    )
    world.rows("shipping_db", "INSERT INTO consumer_log_floor VALUES ('shipping', now())")
    audit(world)
    assert set(found(world)) == {"floor_is_old"}


def test_the_data_checks_fail_with_ids_and_the_run_with_them(world: System, tmp_path: Path) -> None:
    world.rows("shop_b", BREAKERS["exhausted_stub_has_case"][1])

    def check(run: Any, suites: Sequence[str]) -> None:
        run_suites(suites, world.urls["control"], run.run_id, None, tmp_path)

    with pytest.raises(AuditFailed, match="exhausted_stub_has_case"):
        audit(world, audit=check)
    ((failed, report),) = world.rows(
        "control", "SELECT failed, report FROM data_check WHERE suite = 'audit'"
    )
    assert [(one["name"], one["ids"]) for one in failed] == [
        ("exhausted_stub_has_case", [{"place": "shard shop_b", "subject": "orders/m"}])
    ]
    assert (tmp_path / report).is_file()
    assert world.rows("control", "SELECT state FROM run WHERE duty = 'audit'") == [("failed",)]
    world.rows("shop_b", "DELETE FROM message_stub")
    audit(world, audit=check)
    assert world.rows("control", "SELECT state FROM run WHERE duty = 'audit' ORDER BY run_id") == [
        ("failed",),
        ("done",),
    ]


def test_an_audit_that_left_an_invariant_out_fails_its_data_checks(
    world: System, tmp_path: Path
) -> None:
    def check(run: Any, suites: Sequence[str]) -> None:
        world.rows("control", "DELETE FROM audit_look WHERE invariant = 'counts_add_up'")
        run_suites(suites, world.urls["control"], run.run_id, None, tmp_path)

    with pytest.raises(AuditFailed, match=r"every_invariant_was_looked_at \(1\)"):
        audit(world, audit=check)


def test_what_does_not_answer_makes_the_audit_incomplete_and_never_sound(world: System) -> None:
    world.rows(*BREAKERS["sent_requests_were_handed_out"])
    world.urls["shop_b"] = world.urls["billing_db"] = (
        f"postgresql://nobody@127.0.0.1:{free_port()}/none"
    )
    with pytest.raises(Unavailable, match=r"shop_b.*"):
        audit(world)
    assert world.rows("control", "SELECT state FROM run WHERE duty = 'audit'") == [("incomplete",)]
    missed = {
        place
        for (place,) in world.rows("control", "SELECT place FROM audit_look WHERE NOT complete")
    }
    assert {"shard shop_b", "store billing_db", "group billing", "control"} <= missed


def test_of_a_day_with_too_many_confirmed_stubs_each_hour_has_a_share_and_the_cut_is_written_down(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    midnight = datetime.combine(today(), time(), UTC)
    world.sent("late", status="confirmed")
    for number in range(3):
        world.sent(f"many-{number}", status="confirmed")
    world.rows("shop_a", "UPDATE message_stub SET updated_at = %s", midnight)
    world.rows(
        "shop_a",
        "UPDATE message_stub SET updated_at = %s WHERE message_id = 'late'",
        midnight + timedelta(hours=22.5),
    )
    monkeypatch.setattr(subject, "SAMPLE", 48)
    monkeypatch.setattr(subject, "PAGE", 2)
    day = day_of(world.settings, midnight + timedelta(days=1, hours=1))
    [look] = [
        one
        for one in subject.audit_consumers(world.settings, world.connections, world.control(), day)
        if one.place == "shard shop_a"
    ]
    assert "orders/late/billing" in {breach.subject for breach in look.breaches}
    assert (look.rows_read, look.missed) == (3, None)
    assert look.cut == ["orders: of 1 hours only the first stubs (48 a day)"]


def test_the_day_is_yesterday_unless_another_is_named_and_never_later_than_now(
    world: System,
) -> None:
    now = datetime(2026, 11, 21, 6, tzinfo=UTC)
    yesterday, today = day_of(world.settings, now), day_of(world.settings, now, now.date())
    assert (yesterday.name, yesterday.end - yesterday.start) == ("2026-11-20", timedelta(days=1))
    assert (today.name, today.end) == ("2026-11-21", now)
    for day in (now.date() + timedelta(days=1), now.date() - timedelta(days=3)):
        with pytest.raises(ConfigurationError, match=day.isoformat()):
            day_of(world.settings, now, day)


def test_a_stub_that_was_recorded_by_a_clock_years_ahead_is_due_too_late_for_any_run(
    world: System,
) -> None:
    world.rows(*BREAKERS["stubs_are_looked_at"])
    world.rows("shop_b", "UPDATE message_stub SET next_check_at = now() + interval '30 minutes'")
    audit(world)
    assert found(world) == {}
    world.rows("shop_b", "UPDATE message_stub SET next_check_at = now() + interval '80 years'")
    audit(world)
    assert found(world) == {"stubs_are_looked_at": {"orders/m"}}


def test_a_stub_that_is_judged_again_and_again_and_not_sent_is_looked_at(world: System) -> None:
    world.rows(*BREAKERS["stubs_are_looked_at"])
    world.rows("shop_b", "UPDATE message_stub SET judged_at = now()")
    audit(world)
    assert found(world) == {}


def test_an_alert_that_waits_is_no_breach_where_a_person_wants_none(world: System) -> None:
    world.rows(*BREAKERS["alert_was_told"])
    written = world.settings.model_dump(exclude_unset=True)
    none = Settings.model_validate({**written, "alerts": {"none_wanted": True}})
    assert run_duty(none, world.connections, day=today())["breaches"] == 0


def test_a_place_whose_name_looks_like_an_end_is_told(world: System) -> None:
    with closing(world.control()) as conn:
        run = open_run(conn, "audit", "*", world.settings)
        look = Look("floor_is_old", "group crm/over", breaches=[Breach("crm/over")])
        record(conn, run, day_of(world.settings, run.as_of, today()), [look])
    assert world.rows("control", "SELECT closing FROM alert") == [(False,)]


def test_each_place_with_a_breach_is_told_whatever_its_name(world: System) -> None:
    places = [f"group {name}" for name in ("a/b", "a|b", "a%2Fb")]
    looks = [Look("floor_is_old", place, breaches=[Breach(place)]) for place in places]
    with closing(world.control()) as conn:
        run = open_run(conn, "audit", "*", world.settings)
        for _ in range(2):
            record(conn, run, day_of(world.settings, run.as_of, today()), looks)
    told = world.rows("control", "SELECT title, thread FROM alert ORDER BY alert_id")
    assert [title.partition(" in ")[2] for title, _ in told] == places
    assert len({thread for _, thread in told}) == len(places), "each is an incident of its own"
