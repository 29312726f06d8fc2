"""The sweep on real databases and a real Redis: rows before, rows after."""

from __future__ import annotations

import random
import sys
import threading
from base64 import b85encode
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2
import pytest
import redis

import lease_records
from backstop.checks.run import run_suite, run_suites
from backstop.control.connection import connect
from backstop.leases import guard
from backstop.leases.front import Front
from backstop.leases.lease import Acquired, Arrival, Busy, Conflict
from backstop.leases.redis_exchange import RedisExchange
from backstop.leases.redis_guard import RedisGuard
from backstop.leases.redis_records import RedisKeys, read_record
from backstop.model.errors import (
    AuditFailed,
    ConfigurationError,
    LeaseLost,
    StoreUnavailable,
    Unavailable,
)
from backstop.runs.run import close_run, open_run
from backstop.sweep.check_redis import check_leases
from backstop.sweep.parts import parts_of
from backstop.sweep.run_once import count_before, run_duty
from backstop.sweep.tally import SweepDecision
from backstop.sweep.tell_people import tell_of_failing
from backstop_lab.servers.ports import free_port
from resend_world import ROOT, TOPIC, World, ids, servers, world

sys.path.insert(0, str(ROOT))
__all__ = ["servers", "world"]
GROUP, DB = "billing", "consumer_billing"
LEASE = timedelta(seconds=60)


def begin(
    world: World, names: list[str], host: str = "host-1", lease: float = 60
) -> list[Acquired]:
    connection = psycopg2.connect(world.urls[f"backstop_{DB}"])
    try:
        begun = guard.begin_many(
            connection,
            GROUP,
            [Arrival(TOPIC, name) for name in names],
            lease_seconds=lease,
            owner_host=host,
        )
        connection.commit()
    finally:
        connection.close()
    assert all(isinstance(one, Acquired) for one in begun)
    return [one for one in begun if isinstance(one, Acquired)]


def end_leases(world: World, seconds: float = 1) -> None:
    """Time passes: every lease in the database ended so long ago."""
    world.sql(
        DB,
        "UPDATE consumer_log SET lease_expires_at = clock_timestamp() - %s * interval '1 second' WHERE state = 'CONSUMING'",
        [seconds],
    )


def end_records(world: World, group: str = GROUP) -> int:
    return lease_records.end_records(leases(world), group)


def leases(world: World) -> Any:
    return redis.Redis.from_url(world.urls["backstop_leases"])


def record(world: World, message_id: str, group: str = GROUP) -> Any:
    text = leases(world).get(RedisKeys(group).bucket_and_key(TOPIC, message_id)[1])
    return None if text is None else read_record(text)


def front(world: World) -> Front:
    return Front(
        RedisExchange(world.urls["backstop_leases"]), GROUP, lease=LEASE, owner_host="host-1"
    )


def states(world: World) -> dict[str, str]:
    return dict(world.sql(DB, "SELECT message_id, state FROM consumer_log ORDER BY 1"))


def sweep(world: World, **options: Any) -> dict[str, int]:
    return dict(run_duty(world.settings, world.connections, **options))


def test_an_expired_lease_is_taken_back_and_the_next_begin_takes_it_over(world: World) -> None:
    (old,) = begin(world, ["stuck"])
    end_leases(world)
    begin(world, ["held"])
    assert sweep(world)["reclaim"] == 1
    assert states(world) == {"stuck": "EXPIRED", "held": "CONSUMING"}
    (((token,),),) = (
        world.sql(DB, "SELECT owner_token::text FROM consumer_log WHERE message_id = 'stuck'"),
    )
    assert token == old.token
    (new,) = begin(world, ["stuck"])
    assert new.fence > old.fence


def test_a_host_s_name_that_no_key_holds_ends_no_sweep(world: World) -> None:
    """Any program writes it into its log; the sweep of everything behind it would never come."""
    noise = b85encode(random.Random(1).randbytes(4_000)).decode()
    begin(world, ["stuck"], host=noise)
    begin(world, ["too"], host=noise[:300])
    end_leases(world)
    assert sweep(world)["reclaim"] == 2
    recorded = "SELECT owner_host, leases FROM sweep_count WHERE decision = 'RECLAIM'"
    assert world.sql("control", recorded) == [(noise[:255], 2)]


def test_a_late_worker_still_completes_while_nobody_has_taken_its_message_and_not_after(
    world: World,
) -> None:
    late, later = begin(world, ["late", "later"])
    end_leases(world)
    sweep(world)
    begin(world, ["later"])
    connection = psycopg2.connect(world.urls[f"backstop_{DB}"])
    try:
        guard.complete(connection, late)
        connection.commit()
        with pytest.raises(LeaseLost):
            guard.complete(connection, later)
    finally:
        connection.close()
    assert states(world) == {"late": "CONSUMED", "later": "CONSUMING"}


def test_a_lease_in_a_worker_s_hands_is_skipped_and_not_waited_for(world: World) -> None:
    (held,) = begin(world, ["in hand"])
    begin(world, ["stuck"])
    end_leases(world)
    worker = psycopg2.connect(world.urls[f"backstop_{DB}"])
    try:
        guard.complete(worker, held)  # not committed yet
        assert sweep(world)["reclaim"] == 1
        worker.commit()
    finally:
        worker.close()
    assert states(world) == {"in hand": "CONSUMED", "stuck": "EXPIRED"}


def test_a_lease_that_its_database_refuses_to_change_holds_up_no_other(world: World) -> None:
    names = ["before", "odd", "sent"]
    begin(world, names)
    end_leases(world)
    world.sql(
        DB,
        """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON consumer_log FOR EACH ROW WHEN (NEW.message_id = 'odd')
            EXECUTE FUNCTION refuse()
        """,
    )
    try:
        with pytest.raises(Unavailable, match=r"1 leases of database .*not this one"):
            sweep(world)
        assert states(world) == {"before": "EXPIRED", "odd": "CONSUMING", "sent": "EXPIRED"}
        begin(world, ["later"], lease=0.001)
        with pytest.raises(Unavailable, match="not this one"):
            sweep(world)
        assert states(world)["later"] == "EXPIRED"
    finally:
        world.sql(DB, "DROP FUNCTION refuse() CASCADE")


def test_two_sweeps_at_once_take_each_lease_back_once(world: World) -> None:
    names = ids(5000)
    begin(world, names)
    end_leases(world)
    counts: list[dict[str, int]] = []
    threads = [
        threading.Thread(target=lambda group=group: counts.append(sweep(world, groups=group)))
        for group in (["billing"], ["billing", "shipping"])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(one.get("reclaim", 0) for one in counts) == 5000
    assert set(states(world).values()) == {"EXPIRED"}


@pytest.mark.parametrize("end", ["NULL", "'infinity'", "'9999-12-31'"])
def test_a_lease_without_an_end_is_taken_back_when_nobody_touched_it_for_long(
    world: World, end: str
) -> None:
    begin(world, ["touched", "untouched"])
    world.sql(DB, f"UPDATE consumer_log SET lease_expires_at = {end}")
    world.sql(
        DB,
        "UPDATE consumer_log SET updated_at = now() - interval '25 hours' WHERE message_id = 'untouched'",
    )
    assert sweep(world)["reclaim"] == 1
    assert states(world) == {"touched": "CONSUMING", "untouched": "EXPIRED"}


def test_groups_that_are_not_configured_are_left_alone(world: World) -> None:
    begin(world, ["stuck"])
    end_leases(world)
    world.sql(DB, "UPDATE consumer_log SET consumer_group = 'somebody else'")
    assert sweep(world).get("reclaim", 0) == 0
    assert states(world) == {"stuck": "CONSUMING"}


def test_redis_is_corrected_after_the_database_as_the_log_says(world: World) -> None:
    (done, stuck, alive, endless) = begin(world, ["done", "stuck", "alive", "endless"])
    it = front(world)
    it.held([(lease, Arrival(TOPIC, lease.message_id)) for lease in (done, stuck, alive, endless)])
    world.sql(
        DB, "UPDATE consumer_log SET lease_expires_at = 'infinity' WHERE message_id = 'endless'"
    )
    world.sql(
        DB,
        "UPDATE consumer_log SET state = 'CONSUMED', consumed_at = now() WHERE message_id = 'done'",
    )
    world.sql(
        DB,
        "UPDATE consumer_log SET lease_expires_at = now() - interval '1 s' WHERE message_id = 'stuck'",
    )
    assert end_records(world) == 4
    counts = sweep(world)
    assert (counts["repair"], counts["reclaim"], counts["keep"]) == (
        1,
        2,
        2,
    )  # stuck: in the database, and in front of it
    assert (record(world, "done"), record(world, "stuck")) == (None, None)
    assert record(world, "alive").state == record(world, "endless").state == "C"
    # Which content was done, and whether this copy's is the same, only the database knows.
    assert it.look([Arrival(TOPIC, "done"), Arrival(TOPIC, "stuck")]) == [None, None]
    assert isinstance(it.look([Arrival(TOPIC, "alive")])[0], Busy)
    assert world.sql(
        "control", "SELECT message_id, in_redis, in_database, repaired FROM sweep_sample"
    ) == [("done", "CONSUMING", "CONSUMED", True)]


def test_a_done_in_redis_that_the_database_has_forgotten_is_removed(world: World) -> None:
    kept, forgotten = begin(world, ["kept", "forgotten"])
    it = front(world)
    it.done([(lease, Arrival(TOPIC, lease.message_id)) for lease in (kept, forgotten)])
    world.sql(
        DB,
        "UPDATE consumer_log SET state = 'CONSUMED', consumed_at = now() WHERE message_id = 'kept'",
    )
    world.sql(DB, "DELETE FROM consumer_log WHERE message_id = 'forgotten'")
    counts = sweep(world)
    assert (counts["sampled"], counts["repair"]) == (2, 1)
    assert record(world, "kept").state == "D"
    assert record(world, "forgotten") is None


def test_a_record_that_moved_on_since_it_was_seen_is_not_touched(world: World) -> None:
    from backstop.sweep.redis_bucket import Bucket

    (lease,) = begin(world, ["renewed"])
    it = front(world)
    told = [(lease, Arrival(TOPIC, "renewed"))]
    it.held(told)
    end_records(world)
    number, _ = RedisKeys(GROUP).bucket_and_key(TOPIC, "renewed")
    bucket = Bucket(RedisExchange(world.urls["backstop_leases"]), GROUP, number)
    seen = bucket.expired(0, 10)
    it.held(told)  # its worker renews between the look and the settling
    assert bucket.settle(seen, ["X"], open_ms=1000) == {0}
    assert record(world, "renewed").state == "C"


def test_redis_alone_is_swept_by_itself_and_a_late_end_still_counts(world: World) -> None:
    world.set("redis_guards", to={"mailer": {"redis": "backstop_leases", "consumed_for": "18d"}})
    alone = RedisGuard(RedisExchange(world.urls["backstop_leases"]), "mailer", lease=LEASE)
    stuck, late = alone.begin_many([Arrival(TOPIC, "stuck"), Arrival(TOPIC, "late")])
    assert isinstance(stuck, Acquired) and isinstance(late, Acquired)
    end_records(world, "mailer")
    assert sweep(world)["reclaim"] == 2
    assert record(world, "stuck", "mailer").state == "E"
    alone.complete(late)
    again = alone.begin(Arrival(TOPIC, "stuck"))
    assert isinstance(again, Acquired) and again.fence > stuck.fence and again.attempts == 2
    assert record(world, "late", "mailer").state == "D"


def test_a_dry_run_tells_what_it_would_do_and_changes_nothing(world: World) -> None:
    (lease,) = begin(world, ["stuck"], host="host-7")
    front(world).held([(lease, Arrival(TOPIC, "stuck"))])
    end_leases(world)
    end_records(world)
    told: list[SweepDecision] = []
    counts = sweep(world, dry_run=True, tell=told.append)
    assert counts["reclaim"] == 2
    assert {(one.line.place, one.line.host, one.message_id) for one in told} == {
        ("database billing_db", "host-7", "stuck"),
        ("front of billing", "host-1", "stuck"),
    }
    assert states(world) == {"stuck": "CONSUMING"}
    assert record(world, "stuck").state == "C"
    assert world.sql("control", "SELECT count(*) FROM sweep_count") == [(0,)]


def test_the_database_takes_back_exactly_what_a_dry_run_names(world: World) -> None:
    """The statement decides as `decide` does, whatever state, end and token a log has."""
    world.sql(
        DB,
        """
        INSERT INTO consumer_log
            (consumer_group, topic, message_id, state, lease_expires_at, owner_token, owner_host, consumed_at)
        SELECT g, %s, concat_ws(' ', g, state, ends, token IS NOT NULL), state, ends, token, 'h',
            CASE WHEN state = 'CONSUMED' THEN now() END
        FROM unnest(ARRAY['billing', 'nobody']) AS g, unnest(ARRAY['CONSUMING', 'CONSUMED', 'FAILED', 'EXPIRED']) AS state,
            unnest(ARRAY['-infinity', now() - interval '1 s', now() + interval '1 h', 'infinity', NULL]::timestamptz[]) AS ends,
            unnest(ARRAY[gen_random_uuid(), NULL]) AS token
        WHERE ends IS NOT NULL OR state = 'CONSUMING'""",
        [TOPIC],
    )
    before, told = states(world), list[SweepDecision]()
    sweep(world, dry_run=True, tell=told.append)
    counts = sweep(world)
    changed = {
        message_id for message_id, state in states(world).items() if state != before[message_id]
    }
    assert changed == {one.message_id for one in told} and counts["reclaim"] == len(changed) == 4


def test_counts_are_kept_by_group_topic_host_and_decision(world: World) -> None:
    begin(world, ["a", "b"], host="host-1")
    begin(world, ["c"], host="host-2")
    end_leases(world)
    sweep(world)
    assert world.sql(
        "control", "SELECT owner_host, decision, leases FROM sweep_count ORDER BY 1"
    ) == [("host-1", "RECLAIM", 2), ("host-2", "RECLAIM", 1)]
    assert world.sql(
        "control", "SELECT state, (counts ->> 'reclaim')::int FROM run WHERE duty = 'sweep'"
    ) == [("done", 3)]


def test_one_group_by_hand_leaves_the_others(world: World) -> None:
    begin(world, ["stuck"])
    end_leases(world)
    assert sweep(world, groups=["shipping"]).get("reclaim", 0) == 0
    assert states(world) == {"stuck": "CONSUMING"}
    with pytest.raises(ConfigurationError, match="no group 'biling'"):
        sweep(world, groups=["biling"])


def test_with_the_database_away_redis_frees_nothing_and_the_rest_is_swept(world: World) -> None:
    (lease,) = begin(world, ["stuck"])
    front(world).held([(lease, Arrival(TOPIC, "stuck"))])
    end_records(world)
    good = world.urls[f"backstop_{DB}"]
    world.sql(
        "consumer_shipping",
        """INSERT INTO consumer_log (consumer_group, topic, message_id, state, lease_expires_at)
        VALUES ('shipping', 'orders', 'other', 'CONSUMING', now() - interval '1 s')""",
    )
    world.urls[f"backstop_{DB}"] = f"postgresql://x:secret@127.0.0.1:{free_port()}/gone"
    with pytest.raises(StoreUnavailable) as caught:
        sweep(world)
    world.urls[f"backstop_{DB}"] = good
    assert "billing_db" in str(caught.value) and "secret" not in str(caught.value)
    assert record(world, "stuck").state == "C"
    assert states(world) == {"stuck": "CONSUMING"}
    assert world.sql("consumer_shipping", "SELECT state FROM consumer_log") == [("EXPIRED",)]
    assert world.sql("control", "SELECT state FROM run WHERE duty = 'sweep'") == [("incomplete",)]


def test_a_place_that_cannot_even_be_opened_holds_up_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of backstop.yaml that names a connection which nobody knows, and an error that nobody foresaw."""
    world.sql(
        "consumer_shipping",
        """INSERT INTO consumer_log (consumer_group, topic, message_id, state, lease_expires_at)
        VALUES ('shipping', 'orders', 'other', 'CONSUMING', now() - interval '1 s')""",
    )
    good = world.urls.pop(f"backstop_{DB}")
    with pytest.raises(StoreUnavailable, match=rf"database billing_db: .*backstop_{DB}"):
        sweep(world)
    world.urls[f"backstop_{DB}"] = good
    assert world.sql("consumer_shipping", "SELECT state FROM consumer_log") == [("EXPIRED",)]

    def odd(*_: Any, **__: Any) -> Any:
        raise ValueError("odd")

    begin(world, ["stuck"])
    end_leases(world)
    for module in ("open_stores", "count_ended"):
        monkeypatch.setattr(f"backstop.sweep.{module}.RedisExchange", odd)
    with pytest.raises(StoreUnavailable, match=r"front of billing: .*ValueError: odd"):
        sweep(world)
    assert states(world) == {"stuck": "EXPIRED"}


def test_with_redis_away_the_database_is_swept(world: World) -> None:
    begin(world, ["stuck"])
    end_leases(world)
    good = world.urls["backstop_leases"]
    world.urls["backstop_leases"] = f"redis://:secret@127.0.0.1:{free_port()}/0"
    with pytest.raises(StoreUnavailable) as caught:
        sweep(world)
    world.urls["backstop_leases"] = good
    assert "front of billing" in str(caught.value) and "secret" not in str(caught.value)
    assert states(world) == {"stuck": "EXPIRED"}


def test_a_host_that_leaks_again_and_again_becomes_a_case_that_ends_when_it_stops(
    world: World,
) -> None:
    for number in range(3):
        begin(world, [f"stuck {number}"], host="host-9")
        end_leases(world)
        sweep(world)
    cases = world.sql(
        "control",
        """SELECT kind, topic, consumer_group, subject, state, evidence -> 'leases',
            evidence ->> 'sweeps'
        FROM case_file ORDER BY subject""",
    )
    assert cases == [
        ("lease_leak", "orders", "billing", "handler", "open", 3, "3"),
        ("lease_leak", "*", "billing", "host host-9", "open", 3, "3"),
    ]
    assert world.sql("control", "SELECT count(*) FROM alert WHERE dedup_key LIKE 'case/%%'") == [
        (2,)
    ]
    world.sql("control", "UPDATE sweep_count SET swept_at = swept_at - interval '2 hours'")
    begin(world, ["stuck again"], host="host-9")
    end_leases(world)
    sweep(world)
    assert world.sql("control", "SELECT DISTINCT state FROM case_file") == [("closed",)]
    # The sweep that closes it has just taken one back.
    untrue = "SELECT count(*) FROM alert WHERE body LIKE '%%no lease was lost%%'"
    assert world.sql("control", untrue) == [(0,)]


def test_messages_that_fail_again_and_again_are_a_case_before_the_broker_gives_up(
    world: World,
) -> None:
    world.sql(
        DB,
        """INSERT INTO consumer_log (consumer_group, topic, message_id, state, attempts, last_error)
        VALUES ('billing', 'orders', 'twice', 'FAILED', 2, 'x'),
            ('billing', 'orders', 'thrice', 'FAILED', 3, 'KeyError: Greta')""",
    )
    sweep(world)
    ((kind, summary, state),) = world.sql("control", "SELECT kind, summary, state FROM case_file")
    assert (kind, state) == ("repeated_failure", "open")
    assert "'thrice' was begun 3 times (KeyError)" in summary and "1 messages" in summary
    assert "Greta" not in str(world.sql("control", "SELECT evidence, summary FROM case_file"))
    world.sql(DB, "UPDATE consumer_log SET state = 'CONSUMED', consumed_at = now()")
    sweep(world)
    assert world.sql("control", "SELECT state FROM case_file") == [("closed",)]


def test_nothing_ended_costs_a_count_and_no_more(world: World) -> None:
    sweep(world)  # the first one takes a sample
    begin(world, ["held"])
    assert sweep(world) == {"due": 0}
    assert world.sql(
        "control", "SELECT count(*) FROM run WHERE duty = 'sweep' AND state = 'done'"
    ) == [(2,)]


def test_the_checks_pass_after_a_sweep_and_fail_when_an_old_lease_is_left(
    world: World, tmp_path: Any
) -> None:
    begin(world, ["stuck"])
    end_leases(world, 3600)
    audited: list[str] = []

    def audit(run: Any, suites: Sequence[str]) -> None:
        run_suites(suites, world.urls["backstop_control"], run.run_id, None, tmp_path)
        audited.extend(suites)

    sweep(world, audit=audit)
    assert audited == ["leases_before", "leases_after"]
    begin(world, ["left"])
    end_leases(world, 3600)
    control = connect(world.settings, world.connections)
    try:
        run = open_run(control, "sweep", "*", world.settings)
        count_before(world.settings, world.connections, control, run)
        with pytest.raises(AuditFailed, match="no_lease_overdue"):
            run_suite("leases_before", world.urls["backstop_control"], run.run_id, None, tmp_path)
        close_run(control, run, "failed", {})
    finally:
        control.close()


def test_a_sweep_takes_nothing_back_while_what_it_met_is_not_as_it_should_be(
    world: World, tmp_path: Any
) -> None:
    """A sweep that said done, and left what ended long before: the next one stops at its first check, once."""
    held = "SELECT state FROM consumer_log WHERE message_id = 'left'"
    sweep(world)
    begin(world, ["left"])
    end_leases(world, 3600)

    def audit(run: Any, suites: Sequence[str]) -> None:
        run_suites(suites, world.urls["backstop_control"], run.run_id, None, tmp_path)

    with pytest.raises(AuditFailed, match="no_lease_overdue"):
        sweep(world, audit=audit)
    assert world.sql(DB, held) == [("CONSUMING",)]
    world.sql(
        "control",
        "UPDATE run SET finished_at = finished_at - interval '3 minutes' WHERE state = 'done'",
    )
    sweep(world, audit=audit)
    assert world.sql(DB, held) == [("EXPIRED",)]


def test_a_place_that_no_earlier_sweep_knew_of_stops_no_sweep(world: World, tmp_path: Any) -> None:
    """As a consumer store that was added since, whose table is full of leases of last week."""
    sweep(world)
    world.sql("control", "DELETE FROM sweep_look")  # of a place that it did not know
    begin(world, ["left"])
    end_leases(world, 3600)

    def audit(run: Any, suites: Sequence[str]) -> None:
        run_suites(suites, world.urls["backstop_control"], run.run_id, None, tmp_path)

    sweep(world, audit=audit)
    assert states(world) == {"left": "EXPIRED"}


def test_check_says_whether_the_redis_of_the_leases_answers_and_keeps_what_it_must(
    world: World,
) -> None:
    world.set("redis_guards", to={"mailer": {"redis": "backstop_leases", "consumed_for": "18d"}})
    assert [(f.subject, f.good) for f in check_leases(world.settings, world.connections)] == [
        ("front of billing", True),
        ("front of shipping", True),
        ("redis of mailer", True),
        ("redis of mailer: eviction", True),
        ("redis of mailer: conflicts", True),
    ]
    leases(world).config_set("maxmemory-policy", "allkeys-lru")
    try:
        last = next(
            f
            for f in check_leases(world.settings, world.connections)
            if f.subject.endswith("eviction")
        )
    finally:
        leases(world).config_set("maxmemory-policy", "noeviction")
    assert (last.good, last.says) == (False, "allkeys-lru")
    world.urls["backstop_leases"] = f"redis://:secret@127.0.0.1:{free_port()}/0"
    found = list(check_leases(world.settings, world.connections))
    assert not any(f.good for f in found) and "secret" not in str(found)


def test_check_shows_the_conflicts_of_redis_alone(world: World) -> None:
    world.set("redis_guards", to={"mailer": {"redis": "backstop_leases", "consumed_for": "18d"}})
    alone = RedisGuard(RedisExchange(world.urls["backstop_leases"]), "mailer")
    alone.begin(Arrival(TOPIC, "twice: {used}", b"one content"))
    assert isinstance(alone.begin(Arrival(TOPIC, "twice: {used}", b"another one")), Conflict)
    alone.close()
    last = list(check_leases(world.settings, world.connections))[-1]
    assert (last.subject, last.good, last.says) == (
        "redis of mailer: conflicts",
        False,
        "1: orders twice: {used}",
    )


def test_an_old_dead_letter_neither_keeps_a_case_open_nor_hides_a_message_that_fails_now(
    world: World,
) -> None:
    insert = """INSERT INTO consumer_log (consumer_group, topic, message_id, state, attempts, updated_at, first_received_at)
        SELECT 'billing', %s, 'm' || n, 'FAILED', %s, now() - %s::interval, now() - %s::interval FROM generate_series(1, %s) n"""
    world.sql(DB, insert, ["orders", 16, "1 day", "1 day", 1500])
    sweep(world)
    assert world.sql("control", "SELECT count(*) FROM case_file") == [(0,)]
    world.sql(DB, insert, ["payments", 3, "1 s", "1 hour", 1])
    sweep(world)
    assert world.sql("control", "SELECT topic, state FROM case_file") == [("payments", "open")]
    alerts = "SELECT count(*) FROM alert WHERE title LIKE '%%more messages%%'"
    assert world.sql("control", alerts) == [(0,)]
    world.sql(DB, insert.replace("'m' ||", "'new' ||"), ["payments", 3, "0 s", "0 s", 1])
    for _ in range(2):
        sweep(world)
    assert world.sql("control", alerts) == [(1,)]


def test_a_message_that_fails_after_the_alert_of_its_hour_is_in_the_next_hours(
    world: World,
) -> None:
    insert = """INSERT INTO consumer_log (consumer_group, topic, message_id, state, attempts, updated_at, first_received_at)
        VALUES ('billing', 'orders', %s, 'FAILED', 3, now(), now() - %s::interval)"""

    def alerts(hour: int, minute: int) -> int:
        """Further alerts after a sweep at this time of a day."""
        control = connect(world.settings, world.connections)
        with closing(control), world.run(duty="sweep") as run:
            at = replace(run, as_of=datetime(2030, 1, 1, hour, minute, tzinfo=UTC))
            tell_of_failing(world.settings, world.connections, control, at, None)
        ((number,),) = world.sql(
            "control", "SELECT count(*) FROM alert WHERE title LIKE '%%more messages%%'"
        )
        return int(number)

    world.sql(DB, insert, ["first", "40 minutes"])
    assert alerts(10, 5) == 0
    world.sql("control", "UPDATE case_file SET opened_at = now() - interval '35 minutes'")
    world.sql(DB, insert, ["second", "30 s"])
    assert alerts(10, 15) == 1
    world.sql(DB, insert, ["third", "20 s"])
    assert [alerts(10, 30), alerts(10, 45)] == [1, 1], "one alert an hour"
    assert [alerts(11, 5), alerts(12, 5)] == [2, 2]


def test_a_lease_whose_end_no_calendar_holds_is_taken_back(world: World) -> None:
    begin(world, ["stuck"])
    world.sql(DB, "UPDATE consumer_log SET lease_expires_at = '-infinity'")
    assert sweep(world)["reclaim"] == 1
    assert states(world) == {"stuck": "EXPIRED"}


def test_a_redis_that_was_not_told_of_failures_opens_no_case_of_leaking(world: World) -> None:
    for number in range(4):
        (lease,) = begin(world, [f"failed {number}"])
        front(world).held([(lease, Arrival(TOPIC, lease.message_id))])
        world.sql(DB, "UPDATE consumer_log SET state = 'FAILED', lease_expires_at = now()")
        end_records(world)
        assert sweep(world)["reclaim"] == 1
    assert world.sql("control", "SELECT count(*) FROM case_file") == [(0,)]


def test_what_is_not_ours_in_an_index_is_taken_out_of_it_once(world: World) -> None:
    sweep(world)
    index = RedisKeys(GROUP).expiry[0]
    leases(world).zadd(index, {"not a message": 1})
    assert sweep(world)["vanished"] == 1
    assert leases(world).zcard(index) == 0


def test_idle_runs_of_yesterday_are_dropped(world: World) -> None:
    sweep(world)
    for _ in range(3):
        sweep(world)
    world.sql(
        "control",
        "UPDATE run SET finished_at = finished_at - interval '2 days' WHERE counts = '{\"due\": 0}'",
    )
    sweep(world)
    # The first one, the newest of the idle ones until this one was done, and this one.
    assert world.sql("control", "SELECT count(*) FROM run WHERE duty = 'sweep'") == [(3,)]


# The job on Spark: a scan, a group by, an effect


def mixed(world: World) -> None:
    """Leases that ended in the database, in front of it and in Redis alone; one that lives, one done, and what nobody can read."""
    world.set("redis_guards", to={"mailer": {"redis": "backstop_leases", "consumed_for": "18d"}})
    leases(world).flushall()
    in_front = begin(world, [*ids(40, "front"), "done", "alive"], host="host-1")
    front(world).held([(lease, Arrival(TOPIC, lease.message_id)) for lease in in_front])
    end_leases(world)
    world.sql(
        DB,
        "UPDATE consumer_log SET state = 'CONSUMED', consumed_at = now() WHERE message_id = 'done'",
    )
    world.sql(
        DB,
        "UPDATE consumer_log SET lease_expires_at = now() + interval '1 h' WHERE message_id = 'alive'",
    )
    alone = RedisGuard(RedisExchange(world.urls["backstop_leases"]), "mailer", lease=LEASE)
    alone.begin_many([Arrival(TOPIC, name) for name in ids(30, "alone")])
    alone.close()
    end_records(world)
    end_records(world, "mailer")
    index = RedisKeys(GROUP).expiry[0]
    leases(world).zadd(index, {"not a message": 1})


def what_is_left(world: World) -> Any:
    """The states of all logs, and all that stands in Redis without its instants."""
    server = leases(world)
    records = {
        name: read_record(text)._replace(token="", ends=0, fence=0)
        for name in server.scan_iter("*:m:*")
        if (text := server.get(name))
    }
    indexes = {
        name
        for group in (GROUP, "mailer")
        for key in RedisKeys(group).expiry
        for name in server.zrange(key, 0, -1)
    }
    return states(world), records, indexes


COUNTED = """SELECT consumer_group, topic, owner_host, decision, sum(leases)::int FROM sweep_count
    GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4"""
"""Not by place: what is done is corrected by its bucket's task, or by the sample's beside it."""


def test_on_spark_the_same_leases_are_settled_as_in_one_process(
    world: World, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_jobs import sweep as job

    mixed(world)
    sweep(world)
    expected, counted = what_is_left(world), world.sql("control", COUNTED)
    assert world.sql("control", "SELECT DISTINCT place FROM sweep_count ORDER BY 1") == [
        ("database billing_db",),
        ("front of billing",),
        ("redis of mailer",),
    ]
    world.sql("control", "TRUNCATE sweep_count, sweep_sample")
    world.sql(DB, "TRUNCATE consumer_log")
    mixed(world)
    monkeypatch.setattr(job, "PORTION", 2)
    with world.run(duty="sweep") as run:
        counts = job.run(spark, world.settings, world.connections, run)
    assert what_is_left(world) == expected
    assert world.sql("control", COUNTED) == counted
    assert (counts["reclaim"], counts["vanished"]) == (40 + 40 + 30, 1)
    assert counts["repair"] == 1 and counts["keep"] == 1
    assert world.sql("control", "SELECT message_id, in_database FROM sweep_sample") == [
        ("done", "CONSUMED")
    ]


def test_on_spark_what_is_renewed_between_the_scan_and_the_effect_is_not_touched(
    world: World, spark: Any
) -> None:
    """The log is asked after the scan, and a record changes only as it was seen."""
    from spark_jobs import sweep as job

    renewed, done, stuck = begin(world, ["renewed", "done", "stuck"])
    it = front(world)
    for lease in (renewed, done, stuck):
        it.held([(lease, Arrival(TOPIC, lease.message_id))])
    end_records(world)
    world.sql(
        DB, "UPDATE consumer_log SET lease_expires_at = now() WHERE message_id IN ('done', 'stuck')"
    )
    buckets = [part for part in parts_of(world.settings) if part.kind == "front"]
    carried = world.connections.carrying(world.settings.connection_refs())
    with world.run(duty="sweep") as run:
        ended = job.scanned_ended(spark, world.settings, carried, buckets).localCheckpoint(
            eager=True
        )
        assert ended.count() == 3
        it.held([(renewed, Arrival(TOPIC, "renewed"))])
        world.sql(
            DB,
            "UPDATE consumer_log SET state = 'CONSUMED', consumed_at = now() WHERE message_id = 'done'",
        )
        settled = job.settled_ended(ended, world.settings, carried, run, buckets)
        plan = settled._jdf.queryExecution().toString()
        tallies = [job.read_tally(row["tally"]) for row in settled.collect()]
    assert sum(tally.counts.get("moved_on", 0) for tally in tallies) == 1
    assert [name for tally in tallies for name in tally.examples.values()].count("renewed") == 0
    assert record(world, "renewed").state == "C"
    assert (record(world, "done"), record(world, "stuck")) == (None, None)
    decided = {tally.examples[line]: line.decision for tally in tallies for line in tally.lines}
    assert decided == {"done": "REPAIR", "stuck": "RECLAIM"}
    assert "settle(" in plan and "REPARTITION_BY_NUM" in plan
    scan = job.scanned_ended(spark, world.settings, carried, buckets)
    assert "MapInArrow scan_ended(" in scan._jdf.queryExecution().toString()


def test_on_spark_a_log_that_is_away_frees_nothing_in_front_of_it_and_the_rest_is_swept(
    world: World, spark: Any
) -> None:
    from spark_jobs import sweep as job

    mixed(world)
    good = world.urls[f"backstop_{DB}"]
    kept = what_is_left(world)[1]
    world.urls[f"backstop_{DB}"] = f"postgresql://u:secret@127.0.0.1:{free_port()}/x"
    with (
        world.run(duty="sweep") as run,
        pytest.raises(StoreUnavailable, match="billing_db") as caught,
    ):
        job.run(spark, world.settings, world.connections, run)
    world.urls[f"backstop_{DB}"] = good
    assert "secret" not in str(caught.value)
    left, records, _ = what_is_left(world)
    assert set(left.values()) == {"CONSUMING", "CONSUMED"}
    ours = {name: one for name, one in kept.items() if b"mailer" not in name}
    assert {name: one for name, one in records.items() if b"mailer" not in name} == ours
    assert {one.state for name, one in records.items() if b"mailer" in name} == {"E"}


def test_on_spark_a_redis_that_is_away_costs_its_own_places_alone(world: World, spark: Any) -> None:
    from spark_jobs import sweep as job

    begin(world, ["stuck"])
    end_leases(world)
    good = world.urls["backstop_leases"]
    with world.run(duty="sweep") as run:
        world.urls["backstop_leases"] = f"redis://:secret@127.0.0.1:{free_port()}/0"
        with pytest.raises(StoreUnavailable) as caught:
            job.run(spark, world.settings, world.connections, run)
    world.urls["backstop_leases"] = good
    assert "front of billing" in str(caught.value) and "secret" not in str(caught.value)
    assert states(world) == {"stuck": "EXPIRED"}


def test_the_newest_idle_sweep_is_remembered_for_as_long_as_sweeps_fail(world: World) -> None:
    sweep(world)  # the first one takes a sample
    sweep(world)
    world.sql(
        "control",
        "UPDATE run SET finished_at = finished_at - interval '2 days', started_at = started_at - interval '2 days'",
    )
    ((newest,),) = world.sql("control", "SELECT max(run_id) FROM run")
    good = world.urls[f"backstop_{DB}"]
    world.urls[f"backstop_{DB}"] = f"postgresql://nobody@127.0.0.1:{free_port()}/none"
    with pytest.raises(Unavailable):
        sweep(world)
    world.urls[f"backstop_{DB}"] = good
    assert (newest,) in world.sql("control", "SELECT run_id FROM run WHERE state = 'done'")
