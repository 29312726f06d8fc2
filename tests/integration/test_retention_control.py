"""What Backstop itself remembers: it goes when it is over, and nothing that an open case, request or letter needs does."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backstop.retention.run_once import run_duty
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from retention_world import emptied
from system import System, system


@pytest.fixture(scope="module")
def kept(servers: tuple[Postgres, Valkey]) -> Iterator[System]:
    with system(
        *servers, retention={"step_rows": 3, "busy_share": 1.0}, policy={"content_retention": "1h"}
    ) as made:
        yield made


@pytest.fixture
def world(kept: System) -> System:
    return emptied(kept)


def retain(world: System, **options: Any) -> dict[str, int]:
    return dict(run_duty(world.settings, world.connections, now=True, **options))


def ids(world: System, query: str) -> set[Any]:
    return {row[0] for row in world.rows("control", query)}


def old_run(
    world: System,
    duty: str = "reconcile",
    age: str = "2 days",
    state: str = "done",
    scope: str = "*",
) -> int:
    ((run_id,),) = world.rows(
        "control",
        """
        INSERT INTO run (duty, scope, token, state, started_at, finished_at, policy_version, code_version)
        VALUES (%s, %s, gen_random_uuid(), %s, now() - %s::interval, now() - %s::interval, '', '') RETURNING run_id
        """,
        duty,
        scope,
        state,
        age,
        age,
    )
    return int(run_id)


def checked(world: System, run_id: int) -> None:
    world.rows(
        "control",
        "INSERT INTO data_check (run_id, suite, passed, expectations) VALUES (%s, 'verdicts', true, 1)",
        run_id,
    )


def test_runs_that_ended_long_ago_go_with_all_they_wrote_and_the_newest_of_a_duty_stays(
    world: System,
) -> None:
    old, last, young = old_run(world), old_run(world), old_run(world, age="1 hour", state="failed")
    for run_id in (old, last, young):
        world.rows(
            "control",
            """
            INSERT INTO verdict
                (run_id, shard, topic, message_id, consumer_group, verdict, reason, eligible, send_count, evidence)
            SELECT %s, 'shop_a', 'orders', 'm' || n, 'billing', 'LOST', '', true, 1, '{}' FROM generate_series(1, 10) n
            """,
            run_id,
        )
        world.rows(
            "control",
            "INSERT INTO verdict_count VALUES (%s, 'orders', 'billing', 'LOST', 10, 10, 10)",
            run_id,
        )
        world.rows(
            "control",
            """
            INSERT INTO staged_stub (run_id, stage, shard, topic, message_id, old_status, new_status, send_count, deliveries)
            VALUES (%s, 1, 'shop_a', 'orders', 'm', 'pending', 'pending', 1, 2)""",
            run_id,
        )
        checked(world, run_id)
    retain(world)
    assert ids(world, "SELECT run_id FROM run WHERE duty = 'reconcile'") == {last, young}
    for table in ("verdict", "verdict_count", "staged_stub", "data_check"):
        assert ids(world, f"SELECT DISTINCT run_id FROM {table}") == {young}, table


def test_a_run_stays_while_anything_at_all_points_at_it(world: System) -> None:
    runs = {
        name: old_run(world, scope=f'["{name}"]')
        for name in ("quarantine", "case", "proof", "progress", "nothing")
    }
    world.rows(
        "control",
        """
        INSERT INTO quarantine (store, row_key, reason, first_run_id) VALUES ('s', 'k', 'r', %s);
        INSERT INTO case_file (kind, topic, summary, opened_by_run) VALUES ('unknown', 'orders', '', %s);
        """,
        runs["quarantine"],
        runs["case"],
    )
    world.rows(
        "control",
        """
        INSERT INTO proof (run_id, topic, window_from, window_to, answer, sentence, stubs, owed_stubs, broken, deliveries, digest)
        VALUES (%s, 'orders', now() - interval '1 h', now(), 'nothing_lost', '', '{}', 0, 0, 0, '')""",
        runs["proof"],
    )
    world.rows(
        "control",
        """
        INSERT INTO progress (consumer_group, broker, topic, queue_id, epoch, next_offset, passed_until, recorded_at, run_id)
        VALUES ('billing', 'embedded', 'orders', 0, 'e', 1, now(), now(), %s)""",
        runs["progress"],
    )
    retain(world)
    left = ids(world, "SELECT run_id FROM run WHERE duty = 'reconcile'")
    assert {name for name, run_id in runs.items() if run_id in left} == {
        "quarantine",
        "case",
        "proof",
        "progress",
    }


def test_a_closed_case_goes_with_members_notes_and_alerts_and_an_open_one_keeps_everything(
    world: System,
) -> None:
    run_id = old_run(world)
    for state in ("open", "decided", "closed"):
        ((case_id,),) = world.rows(
            "control",
            """
            INSERT INTO case_file (kind, topic, summary, state, decided_at, decision, decided_by, why, closed_at)
            VALUES ('exhausted', 'orders', %(state)s, %(state)s, CASE WHEN %(state)s <> 'open' THEN now() - interval '2 d' END,
                'leave', 'anna', 'x', CASE WHEN %(state)s = 'closed' THEN now() - interval '2 d' END) RETURNING case_id
            """.replace("%(state)s", f"'{state}'"),
        )
        world.rows(
            "control",
            f"""
            INSERT INTO case_member (case_id, shard, topic, message_id) VALUES ({case_id}, 'shop_a', 'orders', '{state}');
            INSERT INTO case_note (case_id, written_by, note) VALUES ({case_id}, 'anna', '{state}');
            INSERT INTO alert (case_id, dedup_key, severity, title, body, created_at, delivered_at)
            VALUES ({case_id}, 'case/{case_id}', 'warning', '{state}', '', now() - interval '2 d', now() - interval '2 d');
            INSERT INTO verdict
                (run_id, shard, topic, message_id, consumer_group, verdict, reason, eligible, send_count, evidence)
            VALUES ({run_id}, 'shop_a', 'orders', '{state}', 'billing', 'EXHAUSTED', '', true, 1, '{{}}');
            """,
        )
    world.rows(
        "control",
        """
        INSERT INTO alert (dedup_key, severity, title, body, created_at, delivered_at)
        VALUES ('a', 'info', 'nobody was told', '', now() - interval '9 d', NULL),
            ('b', 'info', 'told', '', now(), now() - interval '2 d')
        """,
    )
    retain(world)
    assert (
        ids(world, "SELECT state FROM case_file")
        == ids(world, "SELECT message_id FROM case_member")
        == {"open", "decided"}
    )
    assert (
        ids(world, "SELECT note FROM case_note")
        == ids(world, "SELECT message_id FROM verdict")
        == {"open", "decided"}
    )
    assert ids(world, "SELECT title FROM alert") == {"open", "decided", "nobody was told"}


def letters(world: System) -> dict[str, int]:
    """Letters of one cause, one of each fate."""
    world.rows(
        "control",
        """
        INSERT INTO drain_batch (run_id, broker, queue, letters, acknowledged_at)
        SELECT run_id, 'embedded', q, 5, at FROM run, (VALUES ('read', now()), ('not acknowledged', NULL)) AS x (q, at)
        WHERE duty = 'triage';
        INSERT INTO cause (fingerprint, template, category, first_seen_at, last_seen_at, dead_letters)
        VALUES ('f', 't', 'poison', now(), now(), 7);
        INSERT INTO case_file (kind, topic, summary, subject) VALUES ('dead_letters', 'orders', '', 'f');
        INSERT INTO dead_letter (batch_id, broker, queue, broker_id, topic, message_id, headers, content, content_bytes, aside,
            state, closed_at, cause_id, category, classified_at, shard, send_number, proof, decided_by, case_id)
        SELECT b.batch_id, 'embedded', x.queue, x.id, 'orders', x.id, '{"k": "v"}', 'secret', 6, x.id = 'aside', x.state,
            now() - x.age::interval, (SELECT cause_id FROM cause), 'poison', now(), 'shop_a', 2, '{}', 'triage',
            CASE WHEN x.id = 'asked about' THEN (SELECT case_id FROM case_file) END
        FROM (VALUES
            ('open', 'read', 'open', NULL), ('replaying', 'read', 'replaying', NULL),
            ('discarded', 'read', 'discarded', '2 d'), ('replayed', 'read', 'replayed', '2 d'),
            ('aside', 'read', 'replayed', '2 h'), ('asked about', 'read', 'discarded', '2 d'),
            ('not acknowledged', 'not acknowledged', 'discarded', '2 d')) AS x (id, queue, state, age)
        JOIN drain_batch b ON b.queue = x.queue;
        INSERT INTO dead_letter_aside SELECT dead_letter_id, 'large secret' FROM dead_letter WHERE aside;
        """,
    )
    return dict(world.rows("control", "SELECT message_id, dead_letter_id FROM dead_letter"))


def test_decided_letters_go_and_undecided_asked_about_and_unacknowledged_ones_stay(
    world: System,
) -> None:
    old_run(world, "triage")
    letters(world)
    assert retain(world, dry_run=True)["letters"] == 2
    counts = retain(world)
    assert (counts["letters"], counts["contents"]) == (2, 4)
    assert ids(world, "SELECT message_id FROM dead_letter") == {
        "open",
        "replaying",
        "aside",
        "asked about",
        "not acknowledged",
    }
    assert ids(world, "SELECT dead_letters FROM cause") == {5}, (
        "a cause counts the letters that are stored"
    )


def test_contents_of_decided_letters_go_earlier_and_nothing_else_of_them_unless_their_case_is_open(
    world: System,
) -> None:
    old_run(world, "triage")
    letters(world)
    retain(world)
    query = "SELECT message_id, content IS NULL, aside, emptied_at IS NOT NULL, content_bytes FROM dead_letter"
    found = {message_id: rest for message_id, *rest in world.rows("control", query)}
    assert found["aside"][:3] == [True, False, True]
    assert found["aside"][3] == 6
    assert (
        found["open"][:3]
        == found["replaying"][:3]
        == found["asked about"][:3]
        == [False, False, False]
    )
    assert world.rows("control", "SELECT 1 FROM dead_letter_aside") == []


def history(world: System, message_id: str, age: str = "2 days", state: str = "sent") -> None:
    world.rows(
        "control",
        """
        INSERT INTO resend_request
            (shard, topic, message_id, send_number, reason, requested_by, state, updated_at, claim_token, claim_deadline)
        VALUES ('shop_a', 'orders', %(id)s, 2, 'LOST', 'test', %(state)s, now() - %(age)s::interval,
            CASE WHEN %(state)s = 'claimed' THEN gen_random_uuid() END, CASE WHEN %(state)s = 'claimed' THEN now() END);
        INSERT INTO delivery_decision (topic, message_id, consumer_group, decision, decided_by, decided_at, why)
        VALUES ('orders', %(id)s, 'billing', 'discard', 'anna', now() - %(age)s::interval, 'x');
        INSERT INTO case_file (kind, topic, summary, subject) VALUES ('exhausted', 'orders', '', %(id)s);
        INSERT INTO withdrawal (shard, topic, message_id, case_id, decided_by, why, applied_at)
        SELECT 'shop_a', 'orders', %(id)s, case_id, 'anna', 'x', now() - %(age)s::interval FROM case_file WHERE subject = %(id)s;
        INSERT INTO message_version (shard, topic, message_id, content_version, content, written_by, why, written_at)
        VALUES ('shop_a', 'orders', %(id)s, 1, 'secret', 'anna', 'x', now() - %(age)s::interval);
        """.replace("%(id)s", f"'{message_id}'")
        .replace("%(age)s", f"'{age}'")
        .replace("%(state)s", f"'{state}'"),
    )


def test_what_was_sent_and_decided_is_remembered_while_a_restore_may_bring_its_stub_back(
    world: System,
) -> None:
    now = datetime.now(UTC)
    world.stub("pending", status="pending")
    world.stub("closed lately", status="confirmed", shard="shop_b", updated_at=now)
    for name in ("pending", "closed lately", "gone"):
        history(world, name)
    history(world, "gone lately", age="30 minutes")
    history(world, "gone, claimed", state="claimed")
    retain(world)
    decided = {"pending", "closed lately", "gone lately"}
    assert ids(world, "SELECT message_id FROM resend_request") == {
        "pending",
        "gone lately",
        "gone, claimed",
    }
    assert (
        ids(world, "SELECT message_id FROM delivery_decision")
        == ids(world, "SELECT message_id FROM withdrawal")
        == decided
    )
    versions = dict(
        world.rows(
            "control", "SELECT message_id, convert_from(content, 'UTF8') FROM message_version"
        )
    )
    assert versions == {"pending": "secret", "closed lately": "", "gone lately": "secret"}


def test_an_edit_keeps_its_content_for_its_own_time_though_an_older_one_of_the_message_is_old(
    world: System,
) -> None:
    world.stub("m", status="confirmed", shard="shop_b", updated_at=datetime.now(UTC))
    history(world, "m")
    world.rows(
        "control",
        "INSERT INTO message_version (shard, topic, message_id, content_version, content, written_by, why)"
        " VALUES ('shop_a', 'orders', 'm', 2, 'newest', 'anna', 'x')",
    )
    retain(world)
    query = "SELECT content_version, convert_from(content, 'UTF8') FROM message_version"
    assert dict(world.rows("control", query)) == {1: "", 2: "newest"}


def test_reports_go_with_the_checks_they_belong_to(world: System, tmp_path: Path) -> None:
    gone, kept = old_run(world), old_run(world, age="1 hour")
    checked(world, kept)
    for name in (str(gone), str(kept), "static", f"{kept}1"):
        (tmp_path / name / "verdicts").mkdir(parents=True)
    for name in (str(gone), str(kept), "static"):
        os.utime(tmp_path / name, (time.time() - 3 * 86400,) * 2)
    assert retain(world, reports=tmp_path)["reports"] == 1
    assert {entry.name for entry in tmp_path.iterdir()} == {str(kept), "static", f"{kept}1"}


def test_oddities_and_broken_rows_go_when_nobody_has_met_them_for_long(world: System) -> None:
    run_id = old_run(world)
    for name, age in (("old", "2 days"), ("met again", "1 hour")):
        world.rows(
            "control",
            f"""
            INSERT INTO quarantine (store, row_key, reason, first_run_id, first_seen_at, last_seen_at)
            VALUES ('s', '{name}', 'r', {run_id}, now() - interval '9 d', now() - interval '{age}');
            INSERT INTO anomaly (kind, subject, first_run_id, first_seen_at, last_seen_at)
            VALUES ('ORPHAN', '{name}', {run_id}, now() - interval '9 d', now() - interval '{age}');
            """,
        )
    retain(world)
    assert (
        ids(world, "SELECT row_key FROM quarantine")
        == ids(world, "SELECT subject FROM anomaly")
        == {"met again"}
    )


def test_nothing_is_taken_by_a_run_that_was_taken_over(world: System) -> None:
    from backstop.model.errors import RunLost
    from backstop.retention.pace import Pace
    from backstop.retention.run_once import purge
    from backstop.runs.run import open_run

    old_run(world)
    last = old_run(world)
    control = world.control()
    lost = open_run(control, "retention", "*", world.settings)
    open_run(control, "retention", "*", world.settings, dead_after=timedelta(0))
    with pytest.raises(RunLost):
        purge(world.settings, world.connections, control, lost, Pace(1.0, timedelta(minutes=1)))
    control.close()
    assert (
        len(ids(world, f"SELECT run_id FROM run WHERE duty = 'reconcile' AND run_id <= {last}"))
        == 2
    )


def test_the_alert_of_a_finding_stays_while_it_holds_so_that_its_end_is_told(
    world: System,
) -> None:
    ((finding_id,),) = world.rows(
        "control",
        "INSERT INTO watch_finding (rule, severity, title, body)"
        " VALUES ('heartbeat', 'critical', 't', 'b') RETURNING finding_id",
    )
    world.rows(
        "control",
        "INSERT INTO alert (dedup_key, severity, title, body, created_at, delivered_at) VALUES"
        f" ('watch/{finding_id}/critical', 'critical', 't', 'b', now() - interval '2 d',"
        " now() - interval '2 d')",
    )
    retain(world)
    assert ids(world, "SELECT title FROM alert") == {"t"}
    world.rows("control", "UPDATE watch_finding SET over_at = now() - interval '2 d'")
    retain(world)
    assert ids(world, "SELECT title FROM alert") == set()


def test_a_report_that_cannot_be_removed_stops_nothing(
    world: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [str(old_run(world)), str(old_run(world))]
    for name in names:
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time.time() - 3 * 86400,) * 2)

    def rmtree(folder: Path, remove: Any = shutil.rmtree) -> None:
        if folder.name == names[0]:
            raise PermissionError(13, "Permission denied")
        remove(folder)

    monkeypatch.setattr("backstop.retention.purge_reports.shutil.rmtree", rmtree)
    counts = retain(world, reports=tmp_path)
    assert (counts["reports"], counts["reports_left"]) == (1, 1)
