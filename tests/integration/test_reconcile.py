"""Reconcile end to end on real parts: due stubs in two shards, logs in two consumer databases, a broker, and Spark."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from typing import Any

import psycopg2
import pytest

from backstop.brokers.redis_streams import RedisStreams
from backstop.config.connections import Connections
from backstop.decisions.decide import decide
from backstop.model.errors import RunLost, StoreUnavailable
from backstop.model.records import Counts, Key
from backstop.reconcile.row_key import row_key
from backstop.reconcile.run_once import run_once
from backstop.runs.run import Run, close_run, open_run
from backstop.sql.named import load
from backstop.stores.postgresql.stubs import PostgresStubs
from backstop.stores.protocol import Scan
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from system import System, system


@pytest.fixture
def world(postgres: Postgres, valkey: Valkey) -> Iterator[System]:
    with system(postgres, valkey) as running:
        yield running


def no_audit(run: Run, suites: Sequence[str]) -> None:
    """The suites have tests of their own; here the promotion itself is looked at."""


@pytest.fixture
def reconcile(world: System, spark: Any) -> Callable[..., Counts]:
    def once(**options: Any) -> Counts:
        return run_once(world.settings, world.connections, lambda: spark, no_audit, **options)

    return once


def verdicts(world: System) -> dict[tuple[str, str], tuple[str, str]]:
    rows = world.rows(
        "control", "SELECT message_id, consumer_group, verdict, reason FROM verdict ORDER BY run_id"
    )
    return {(message_id, group): (verdict, reason) for message_id, group, verdict, reason in rows}


def status(world: System, key: Key, shard: str = "shop_a") -> str:
    return str(
        world.rows(
            shard, "SELECT status FROM message_stub WHERE topic = %s AND message_id = %s", *key
        )[0][0]
    )


def test_a_message_done_by_every_group_is_confirmed_and_never_looked_at_again(
    world: System, reconcile: Any
) -> None:
    done = world.sent("m:1%'ü")
    world.consume("billing")
    world.consume("shipping")
    counts = reconcile()
    assert (counts["deliveries"], counts["confirmed"]) == (2, 2)
    assert status(world, done) == "confirmed"
    assert reconcile()["due"] == 0


def test_a_message_that_one_group_passed_without_a_log_is_lost_for_that_group_alone(
    world: System, reconcile: Any
) -> None:
    key = world.sent("m-1", shard="shop_b")
    world.consume("billing")
    world.pass_over("shipping")
    reconcile()
    assert verdicts(world) == {("m-1", "shipping"): ("LOST", "passed_over")}
    requests = world.rows(
        "control", "SELECT shard, send_number, groups, state, requested_by FROM resend_request"
    )
    assert requests == [("shop_b", 2, ["shipping"], "open", "reconcile")]
    assert status(world, key, "shop_b") == "pending"


def test_asking_twice_makes_one_request(world: System, reconcile: Any) -> None:
    world.sent("m-1")
    world.pass_over("billing")
    world.pass_over("shipping")
    reconcile()
    reconcile()
    assert world.rows("control", "SELECT groups, state FROM resend_request") == [(None, "open")]


def test_a_backlog_is_never_resent_and_is_looked_at_again_later(
    world: System, reconcile: Any
) -> None:
    for number in range(20):
        world.sent(f"m-{number}")
    counts = reconcile()
    assert counts["backlogged"] == 40
    assert world.rows("control", "SELECT count(*) FROM resend_request") == [(0,)]
    assert world.rows(
        "shop_a", "SELECT count(*) FROM message_stub WHERE next_check_at > judged_at"
    ) == [(20,)]


def test_a_message_never_sent_is_unsent_once_its_first_check_is_over(
    world: System, reconcile: Any
) -> None:
    world.stub("never", send_count=0)
    world.stub("died-before-the-send")
    world.stub("new", send_count=0, first_seen_at=None)
    reconcile()
    seen = verdicts(world)
    assert seen["never", "billing"] == ("UNSENT", "never_sent")
    assert seen["died-before-the-send", "billing"] == ("UNSENT", "not_stored")
    assert ("new", "billing") not in seen
    assert world.rows(
        "shop_a", "SELECT first_seen_at IS NOT NULL FROM message_stub WHERE message_id = 'new'"
    ) == [(True,)]


def test_a_send_whose_outcome_is_unknown_waits_while_the_group_has_older_messages(
    world: System, reconcile: Any
) -> None:
    world.sent("older")
    world.stub("unknown", age=timedelta(seconds=30))
    # The older message was stored before anything could have been stored for the unknown one.
    reconcile()
    assert verdicts(world)["unknown", "billing"][0] in ("BACKLOGGED", "UNSENT")


def test_logs_that_cannot_be_read_decide_nothing(world: System, reconcile: Any) -> None:
    world.sent("m-1")
    world.pass_over("billing")
    world.consume("shipping")
    database = world.urls["billing_db"].rsplit("/", 1)[1]
    world.rows("control", f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS false')
    with pytest.raises(StoreUnavailable) as refused:
        reconcile()
    assert "store billing_db" in refused.value.what
    assert verdicts(world) == {("m-1", "billing"): ("UNKNOWN", "logs_unread")}
    assert world.rows("control", "SELECT count(*) FROM resend_request") == [(0,)]
    assert world.rows("control", "SELECT state FROM run") == [("incomplete",)]
    world.rows("control", f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS true')
    world.rows("shop_a", "UPDATE message_stub SET next_check_at = now()")
    reconcile()
    assert verdicts(world)["m-1", "billing"] == ("LOST", "passed_over")


def test_a_shard_that_is_away_does_not_keep_the_others_from_being_judged(
    world: System, reconcile: Any
) -> None:
    there = world.sent("there")
    world.sent("away", shard="shop_b")
    world.consume("billing")
    world.consume("shipping")
    database = world.urls["shop_b"].rsplit("/", 1)[1]
    world.rows("control", f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS false')
    with pytest.raises(StoreUnavailable, match="shop_b"):
        reconcile()
    assert status(world, there) == "confirmed"


def test_lost_logs_look_like_a_mass_loss_and_nothing_is_sent(world: System, reconcile: Any) -> None:
    for number in range(40):
        world.sent(f"m-{number}")
    world.consume("billing")
    world.consume("shipping")
    world.rows("billing_db", "DELETE FROM consumer_log WHERE consumer_group = 'billing'")
    counts = reconcile()
    assert counts["lost"] == 40
    assert world.rows("control", "SELECT count(*) FROM resend_request") == [(0,)]
    assert world.rows("control", "SELECT kind, consumer_group, state FROM case_file") == [
        ("mass_loss", "billing", "open")
    ]
    assert world.rows("control", "SELECT count(*) FROM case_member") == [(40,)]
    assert world.rows("control", "SELECT count(*) FROM alert") == [(1,)]


def test_a_topic_that_is_only_observed_gets_verdicts_and_no_request(
    postgres: Postgres, valkey: Valkey, spark: Any
) -> None:
    observed = {"orders": {"broker": "embedded", "groups": ["billing", "shipping"]}}
    with system(postgres, valkey, topics=observed) as world:
        world.sent("m-1")
        world.pass_over("billing")
        run_once(world.settings, world.connections, lambda: spark, no_audit)
        assert verdicts(world)["m-1", "billing"][0] == "LOST"
        assert world.rows("control", "SELECT count(*) FROM resend_request") == [(0,)]


def test_a_group_that_takes_no_duplicates_makes_a_case_instead_of_a_resend_to_the_topic(
    postgres: Postgres, valkey: Valkey, spark: Any
) -> None:
    groups = {
        "billing": {"store": "billing_db", "duplicates": "guard", "progress": "acknowledged"},
        "shipping": {"store": "shipping_db", "duplicates": "no", "progress": "acknowledged"},
    }
    with system(postgres, valkey, groups=groups) as world:
        world.sent("m-1")
        world.pass_over("billing")
        world.consume("shipping")
        run_once(world.settings, world.connections, lambda: spark, no_audit)
        assert world.rows("control", "SELECT kind, consumer_group FROM case_file") == [
            ("no_route", "billing")
        ]
        assert world.rows("control", "SELECT count(*) FROM resend_request") == [(0,)]


@pytest.mark.parametrize("restored", [False, True])
def test_a_copy_is_kept_from_a_group_whose_dead_letter_a_restored_control_database_forgot(
    postgres: Postgres, valkey: Valkey, spark: Any, restored: bool
) -> None:
    groups = {
        "billing": {"store": "billing_db", "duplicates": "guard", "progress": "acknowledged"},
        "shipping": {
            "store": "shipping_db",
            "duplicates": "declared_safe",
            "progress": "acknowledged",
        },
    }
    with system(postgres, valkey, groups=groups) as world:
        key = world.sent("m-1")
        for group in groups:
            world.pass_over(group)
        world.log(key, "shipping", "FAILED")
        if restored:
            world.rows("control", "INSERT INTO watermark VALUES ('control restored', now())")
        run_once(world.settings, world.connections, lambda: spark, no_audit)
        assert verdicts(world)["m-1", "shipping"][0] == "STALLED"
        found = "SELECT kind, consumer_group FROM case_file ORDER BY kind"
        asked = "SELECT count(*) FROM resend_request"
        expected = [("no_route", "billing"), ("stalled", "shipping")]
        assert world.rows("control", found) == (expected if restored else [])
        assert world.rows("control", asked) == [(0 if restored else 1,)]


def test_a_message_never_sent_waits_for_a_group_without_duplicates_that_cannot_be_read(
    postgres: Postgres, valkey: Valkey, spark: Any
) -> None:
    groups = {
        "billing": {"store": "billing_db", "duplicates": "guard", "progress": "acknowledged"},
        "shipping": {"store": "shipping_db", "duplicates": "no", "progress": "acknowledged"},
    }
    with system(postgres, valkey, groups=groups) as world:
        world.stub("never", send_count=0)
        away = Connections(
            resolver={**world.urls, "shipping_db": "postgresql://x@127.0.0.1:1/gone"}.get
        )
        with pytest.raises(StoreUnavailable, match="shipping_db"):
            run_once(world.settings, away, lambda: spark, no_audit)
        assert verdicts(world)["never", "billing"] == ("UNSENT", "never_sent")
        assert world.rows("control", "SELECT kind FROM case_file") == []
        run_once(world.settings, world.connections, lambda: spark, no_audit)
        assert world.rows("control", "SELECT groups FROM resend_request") == [(None,)]


def test_a_stub_that_moves_between_two_ranges_of_the_scan_counts_once(
    world: System, reconcile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = world.sent("moved")
    world.consume("billing")
    world.consume("shipping")
    scan_due = PostgresStubs.scan_due

    @contextmanager
    def moves_meanwhile(store: PostgresStubs, *given: Any) -> Iterator[Scan]:
        with scan_due(store, *given) as scan:
            world.rows(
                "shop_a",
                "UPDATE message_stub SET next_check_at = next_check_at - interval '1 hour'",
            )
            yield scan

    monkeypatch.setattr(PostgresStubs, "scan_due", moves_meanwhile)
    assert reconcile()["stubs_read"] == 1
    assert world.rows("control", "SELECT reason FROM quarantine") == []
    assert world.rows("control", "SELECT sum(deliveries)::int FROM verdict_count") == [(2,)]
    assert status(world, key) == "confirmed"


def test_an_id_that_no_key_of_the_control_database_holds_stops_no_other(
    world: System, reconcile: Any
) -> None:
    """It fits the stub's own index, in a table that was there before its lengths were checked."""
    world.stub(random.Random(1).randbytes(1300).hex(), schema_version=1, send_count=0)
    key = world.sent("sound")
    world.consume("billing")
    world.consume("shipping")
    for _ in range(2):
        reconcile()
    assert status(world, key) == "confirmed"
    assert world.rows("control", "SELECT reason, length(message_id) FROM quarantine") == [
        ("key_too_long", 2600)
    ]


def test_broken_rows_are_set_aside_once_and_counted(world: System, reconcile: Any) -> None:
    for shard in ("shop_a", "shop_b"):
        world.stub("twice", shard=shard, send_count=0)
    world.stub("lost-topic", topic="nobody's", send_count=0)
    world.rows(
        "billing_db", "ALTER TABLE consumer_log DROP CONSTRAINT consumer_log_consumed_has_time"
    )
    broken = world.sent("no-time")
    world.consume("shipping")
    world.pass_over("billing")
    world.log(broken, consumed_at=None)
    reconcile()
    found = world.rows("control", "SELECT store, message_id, reason FROM quarantine ORDER BY 1, 2")
    assert [row[:2] for row in found] == [
        ("shard shop_a", "lost-topic"),
        ("shard shop_a", "twice"),
        ("shard shop_b", "twice"),
        ("store billing_db", "no-time"),
    ]
    assert verdicts(world)["no-time", "billing"] == ("UNKNOWN", "log_invalid")
    assert world.rows("control", "SELECT count(*) FROM resend_request") == [(0,)]
    world.rows("shop_a", "UPDATE message_stub SET next_check_at = now()")
    world.rows("shop_b", "UPDATE message_stub SET next_check_at = now()")
    reconcile()
    assert world.rows("control", "SELECT count(*) FROM quarantine") == [(4,)]


def broken_since_the_unknown_horizon(world: System) -> None:
    """As if what is set aside had been found so long ago; and every stub is due again."""
    world.rows("control", "UPDATE run SET as_of = as_of - interval '2 minutes'")
    for shard in ("shop_a", "shop_b"):
        world.rows(shard, "UPDATE message_stub SET next_check_at = now() WHERE status = 'pending'")


def members(world: System) -> list[tuple[Any, ...]]:
    return world.rows(
        "control",
        "SELECT c.kind, c.topic, c.consumer_group, c.state, c.evidence -> 'set_aside', m.message_id, m.settled_at IS NOT NULL"
        " FROM case_file c JOIN case_member m USING (case_id) ORDER BY c.case_id, m.message_id",
    )


def test_a_row_that_stays_broken_is_put_before_a_person(world: System, reconcile: Any) -> None:
    world.sent("twice", shard="shop_a")
    world.stub("twice", shard="shop_b", send_count=0)
    world.rows("shop_a", "ALTER TABLE message_stub DROP CONSTRAINT message_stub_lengths")
    world.stub("x" * 2600, send_count=0)
    world.stub("no-topic-of-ours", topic="nobody's", send_count=0)
    world.log(Key("orders", "twice"), "billing")
    reconcile()
    assert members(world) == [], "whoever repairs it soon is not asked"
    broken_since_the_unknown_horizon(world)
    reconcile()
    twice = {"on_two_shards": 2, "key_too_long": 1}
    hashed = row_key("orders", "x" * 2600)
    found = sorted(members(world))
    assert found == [
        (
            "unknown",
            "nobody's",
            "*",
            "open",
            {"topic_without_policy": 1},
            "no-topic-of-ours",
            False,
        ),
        *(
            ("unknown", "orders", group, "open", twice, message_id, False)
            for group in ("billing", "shipping")
            for message_id in (hashed, "twice")
        ),
    ]
    assert world.rows("control", "SELECT count(*) FROM alert WHERE case_id IS NOT NULL") == [(3,)]
    reconcile()
    # That billing has logged one of the two promises tells nothing. (A case names the reasons that the newest run met.)
    still = sorted((*row[:4], *row[5:]) for row in members(world))
    assert still == [(*row[:4], *row[5:]) for row in found]
    assert world.rows("control", "SELECT count(*) FROM alert WHERE case_id IS NOT NULL") == [(3,)]

    # What a person leaves stays left; what is repaired and done settles by itself.
    with closing(world.control()) as control:
        (case_id,) = world.rows("control", "SELECT case_id FROM case_file WHERE topic <> 'orders'")[
            0
        ]
        decide(control, world.settings, world.connections, case_id, "leave", "ann", "an old test")
    world.rows("shop_b", "DELETE FROM message_stub")
    world.pass_over("billing")
    world.consume("shipping")
    broken_since_the_unknown_horizon(world)
    reconcile()
    assert status(world, Key("orders", "twice")) == "confirmed"
    after = sorted(members(world))
    assert [one[3] for one in after] == ["decided", "open", "open", "open", "open"]
    assert [one[5] for one in after if one[6]] == ["twice", "twice"]


def test_nobody_is_asked_again_about_a_broken_row_that_a_person_discarded(
    world: System, reconcile: Any
) -> None:
    world.sent("twice", shard="shop_a")
    world.stub("twice", shard="shop_b", send_count=0)
    reconcile()
    world.rows(
        "control",
        "INSERT INTO delivery_decision (topic, message_id, consumer_group, decision, decided_by, why)"
        " VALUES ('orders', 'twice', 'billing', 'discard', 'ann', 'because')",
    )
    for _ in range(2):
        broken_since_the_unknown_horizon(world)
        reconcile()
        found = world.rows(
            "control",
            "SELECT m.consumer_group, m.message_id, c.state FROM case_file c JOIN case_member m USING (case_id)",
        )
        assert found == [("shipping", "twice", "open")]


def test_a_thousand_broken_rows_do_not_stop_the_sound_one(world: System, reconcile: Any) -> None:
    world.rows(
        "shop_a",
        """
        INSERT INTO message_stub (topic, message_id, content, next_check_at)
        SELECT 'unheard of', 'b-' || n, '', now() - interval '1 minute' FROM generate_series(1, 1000) n""",
    )
    sound = world.sent("sound")
    world.consume("billing")
    world.consume("shipping")
    reconcile()
    assert status(world, sound) == "confirmed"
    assert world.rows("control", "SELECT count(*) FROM quarantine") == [(1000,)]


def test_a_new_epoch_decides_nothing_until_a_person_accepts_it(
    world: System, reconcile: Any
) -> None:
    world.sent("before")
    reconcile()
    world.broker.delete_topic("orders")
    world.broker.create_topic("orders", 2)
    for group in ("billing", "shipping"):
        world.broker.create_group(group, "orders", at="start")
    world.rows("shop_a", "UPDATE message_stub SET next_check_at = now()")
    reconcile()
    assert verdicts(world)["before", "billing"] == ("UNKNOWN", "new_epoch")
    assert ("new_epoch", "billing") in world.rows(
        "control", "SELECT kind, consumer_group FROM case_file"
    )
    assert world.rows("control", "SELECT count(*) FROM resend_request") == [(0,)]
    world.rows("control", "UPDATE queue_epoch SET accepted = true WHERE present")
    world.rows("shop_a", "UPDATE message_stub SET next_check_at = now()")
    reconcile()
    assert verdicts(world)["before", "billing"] == ("LOST", "passed_over")


def test_an_exhausted_stub_is_confirmed_by_a_log_that_came_late(
    world: System, reconcile: Any
) -> None:
    key = world.stub("m-1", send_count=3, refusals=3)
    for number in (1, 2, 3):
        world.rows(
            "shop_a",
            "INSERT INTO send_attempt (topic, message_id, send_number, requested_by, started_at, outcome)"
            " VALUES (%s, %s, %s, 'producer', now() - interval '1 minute', 'refused')",
            *key,
            number,
        )
    reconcile()
    assert status(world, key) == "exhausted"
    assert world.rows("control", "SELECT DISTINCT kind, state FROM case_file") == [
        ("exhausted", "open")
    ]
    for group in ("billing", "shipping"):
        world.log(key, group)
    reconcile()
    assert status(world, key) == "confirmed"


def test_a_stub_that_no_group_owes_is_set_aside_after_the_overdue_horizon(
    postgres: Postgres, valkey: Valkey, spark: Any
) -> None:
    filtered = {
        "orders": {
            "broker": "embedded",
            "groups": {"billing": {"tags": ["paid"]}},
            "mode": "repair",
        }
    }
    with system(postgres, valkey, topics=filtered) as world:
        young, old = (
            world.stub("young", tag="open"),
            world.stub("old", tag="open", age=timedelta(hours=1)),
        )
        run_once(world.settings, world.connections, lambda: spark, no_audit)
        assert (status(world, young), status(world, old)) == ("pending", "no_taker")


def test_progress_is_recorded_with_the_instant_after_it_was_read(
    world: System, reconcile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may read long after it began (Spark starts, a task is tried again): dated by its start, what it read would count
    as settled too early."""
    world.sent("m-1")
    world.consume("billing")
    read: list[datetime] = []
    progress = RedisStreams.progress

    def watched(self: RedisStreams, topic: str, group: str) -> Any:
        found = progress(self, topic, group)
        read.extend(at for (at,) in world.rows("control", "SELECT clock_timestamp()"))
        return found

    monkeypatch.setattr(RedisStreams, "progress", watched)
    reconcile()
    for table in ("progress", "progress_history"):
        recorded = world.rows("control", f"SELECT DISTINCT recorded_at FROM {table}")
        assert recorded and all(at >= max(read) for (at,) in recorded), table


def test_a_look_after_a_long_silence_leaves_what_the_next_one_settles_by(
    postgres: Postgres, valkey: Valkey, spark: Any
) -> None:
    """Nobody looked for longer than progress_history: the newest look before still says what was passed a settle grace ago."""
    groups = {
        name: {"store": f"{name}_db", "duplicates": "guard", "progress": "received"}
        for name in ("billing", "shipping")
    }
    with system(postgres, valkey, groups=groups) as world:

        def look() -> tuple[str, str]:
            world.rows("shop_a", "UPDATE message_stub SET next_check_at = now() - interval '1 s'")
            run_once(world.settings, world.connections, lambda: spark, no_audit)
            return verdicts(world)["lost", "shipping"]

        world.sent("lost")
        world.consume("billing")
        world.pass_over("shipping")
        assert look() == ("UNKNOWN", "progress_unknown")
        # Ten minutes pass. There was a look before that one, too.
        for table in ("progress", "progress_history"):
            world.rows("control", f"UPDATE {table} SET recorded_at = now() - interval '10 min'")
        world.rows(
            "control",
            """
            INSERT INTO progress_history SELECT consumer_group, broker, topic, queue_id, epoch, next_offset, passed_until,
                retry_pending, recorded_at - interval '10 min', run_id FROM progress_history;
            DELETE FROM retry_place;
            INSERT INTO retry_place SELECT 'shipping', 'embedded', 'orders', now() - m * interval '10 min', '{}'
            FROM generate_series(1, 2) AS m""",
        )
        assert look() == ("LOST", "passed_over")
        assert look() == ("LOST", "passed_over")
        for table in ("progress_history", "retry_place"):
            old = world.rows(
                "control",
                f"SELECT DISTINCT round(extract(epoch FROM now() - recorded_at) / 600) FROM {table}"
                " WHERE consumer_group = 'shipping' AND recorded_at < now() - interval '5 min'",
            )
            assert old == [(1,)], table


def test_a_dry_run_judges_and_promotes_nothing(world: System, reconcile: Any) -> None:
    key = world.sent("m-1")
    world.pass_over("billing")
    world.pass_over("shipping")
    counts = reconcile(dry_run=True)
    assert counts["lost"] == 2
    assert world.rows(
        "control", "SELECT (SELECT count(*) FROM verdict), (SELECT count(*) FROM resend_request)"
    ) == [(0, 0)]
    assert status(world, key) == "pending"


def test_the_verdict_counts_add_up_to_the_deliveries_read(world: System, reconcile: Any) -> None:
    for number in range(30):
        world.sent(f"m-{number}", shard=("shop_a", "shop_b")[number % 2])
    world.consume("billing")
    counts = reconcile()
    ((total,),) = world.rows("control", "SELECT sum(deliveries) FROM verdict_count")
    assert counts["deliveries"] == total == 60


def test_a_promotion_that_was_cut_off_is_finished_by_the_next_run(
    world: System, reconcile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backstop.reconcile import promote

    key = world.sent("m-1")
    world.consume("billing")
    world.consume("shipping")

    class Killed(Exception):
        pass

    def die(*_: object) -> int:
        raise Killed

    with monkeypatch.context() as cut:
        cut.setattr(promote, "_promote_shards", die)
        with pytest.raises(Killed):
            reconcile()
    assert status(world, key) == "pending"
    other = world.sent("m-2")
    world.consume("billing")
    world.consume("shipping")
    world.rows(
        "shop_a",
        "UPDATE message_stub SET next_check_at = now() + interval '1 hour' WHERE message_id = 'm-1'",
    )
    reconcile()
    assert (status(world, key), status(world, other)) == ("confirmed", "confirmed")


def test_a_driver_that_outlives_its_run_changes_nothing(world: System, spark: Any) -> None:
    from backstop.reconcile.judge import judge
    from backstop.reconcile.promote import promote
    from backstop.stores.protocol import Scope

    key = world.sent("m-1")
    world.pass_over("billing")
    control = world.control()
    late = open_run(control, "reconcile", "*", world.settings)
    judge(spark, world.settings, world.connections, control, late, Scope())
    close_run(control, late, "failed", Counts())
    with pytest.raises(RunLost):
        promote(world.settings, world.connections, control, late)
    with pytest.raises(RunLost):
        judge(spark, world.settings, world.connections, control, late, Scope())
    control.close()
    assert world.rows(
        "control", "SELECT (SELECT count(*) FROM verdict), (SELECT count(*) FROM resend_request)"
    ) == [(0, 0)]
    assert world.rows(
        "shop_a", "SELECT judged_at FROM message_stub WHERE message_id = %s", key.message_id
    ) == [(None,)]


def test_odd_logs_are_counted_beside_the_verdicts(world: System, reconcile: Any) -> None:
    world.log(Key("orders", "nobody-promised"), first_received_at="2026-01-01")
    world.log(world.sent("often"), duplicates_stopped=3)
    reconcile()
    found = world.rows("control", "SELECT kind, message_id, times FROM anomaly ORDER BY 1")
    assert found == [("DUPLICATE", "often", 3), ("ORPHAN", "nobody-promised", 1)]


def test_the_broker_away_leaves_everything_unknown(
    postgres: Postgres, tmp_path: Any, spark: Any
) -> None:
    with Valkey(tmp_path / "valkey") as own, system(postgres, own) as world:
        world.sent("m-1")
        own.kill()
        with pytest.raises(StoreUnavailable, match="broker embedded"):
            run_once(world.settings, world.connections, lambda: spark, no_audit)
        assert verdicts(world)["m-1", "billing"] == ("UNKNOWN", "clock_skew")
        own.start()


def test_a_control_database_that_is_away_ends_the_run_with_three_sentences(
    world: System, spark: Any
) -> None:
    gone = world.connections.url("control").rsplit("/", 1)[0] + "/nowhere"
    from backstop.config.connections import Connections

    with pytest.raises(StoreUnavailable) as error:
        run_once(
            world.settings,
            Connections(resolver={**world.urls, "control": gone}.get),
            lambda: spark,
            no_audit,
        )
    assert error.value.exit_code == 3
    assert all((error.value.what, error.value.unaffected, error.value.next_step))
    with psycopg2.connect(world.urls["shop_a"]) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM message_stub")


def test_a_resend_that_the_broker_refused_for_good_makes_a_case_while_it_is_still_open(
    world: System, reconcile: Any
) -> None:
    key = world.stub("too-large", send_count=2, refusals=2)
    for number in (1, 2):
        world.rows(
            "shop_a",
            "INSERT INTO send_attempt (topic, message_id, send_number, requested_by, started_at, outcome)"
            " VALUES (%s, %s, %s, 'reconcile', now() - interval '1 minute', 'refused')",
            *key,
            number,
        )
    world.rows(
        "control",
        "INSERT INTO resend_request (shard, topic, message_id, send_number, groups, reason, requested_by, state, error)"
        " VALUES ('shop_a', %s, %s, 2, NULL, 'never_sent', 'reconcile', 'refused', %s)",
        *key,
        "refused for good: 2 MB",
    )
    reconcile()
    assert world.rows("control", "SELECT kind, consumer_group FROM case_file ORDER BY 2") == [
        ("refused", "billing"),
        ("refused", "shipping"),
    ]
    world.rows(
        "control",
        """UPDATE case_file SET state = 'decided', decision = 'raise', decided_by = 'ann',
               decided_at = clock_timestamp(), why = 'it is smaller now'""",
    )
    count = "SELECT count(*) FROM case_file WHERE kind = 'refused'"
    reconcile()
    assert world.rows("control", count) == [(2,)], "a person allowed another send of it since"
    world.rows(
        "control",
        "UPDATE resend_request SET updated_at = clock_timestamp() WHERE state = 'refused'",
    )
    reconcile()
    assert world.rows("control", count) == [(4,)], "it was refused again after the answer"


def test_a_withdrawn_message_that_is_consumed_after_all_is_found_though_its_log_is_older(
    world: System, reconcile: Any
) -> None:
    """The second one was withdrawn by a decision that was cut short: it was noted later than the log."""
    for name in ("refunded", "refunded too"):
        world.log(world.sent(name), state="FAILED", first_received_at="2026-01-01")
    reconcile()  # the search has passed the logs
    world.rows("shop_a", "UPDATE message_stub SET status = 'voided'")
    world.rows(
        "control",
        "WITH c AS (INSERT INTO case_file (kind, topic, summary) VALUES ('stalled', 'orders', 's') RETURNING case_id)"
        " INSERT INTO withdrawal (shard, topic, message_id, case_id, decided_by, why, begun_at, applied_at)"
        " SELECT 'shop_a', 'orders', w.name, case_id, 'ann', 'w', now() - interval '2 hours', now() + w.noted FROM c, (VALUES"
        " ('refunded', interval '-1 minute'), ('refunded too', interval '1 minute')) AS w (name, noted)",
    )
    world.rows(
        "billing_db",
        "UPDATE consumer_log SET state = 'CONSUMED', consumed_at = now(), updated_at = now()",
    )
    for number in range(2):
        world.sent(f"something due {number}")
        reconcile()
        found = world.rows("control", "SELECT kind, message_id FROM anomaly ORDER BY message_id")
        assert found == [("VOIDED_BUT_CONSUMED", name) for name in ("refunded", "refunded too")]
    counted = "SELECT (counts ->> 'voided_but_consumed')::int FROM run WHERE counts ? 'voided_but_consumed'"
    assert world.rows("control", counted) == [(2,)], "once"


def test_withdrawn_messages_and_open_members_are_read_along_indexes(world: System) -> None:
    queries = load("backstop.reconcile", "queries.sql")
    page = {"since": "2026-01-01", "shard": "", "topic": "", "id": "", "limit": 2000}
    members = {"topics": None, "run_id": 1, "limit": 1000, "broken_since": "2026-01-01"}
    with closing(world.control()) as conn, conn.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
        for name, values, never in (
            ("withdrawn", page, "Sort"),
            ("members_not_open", members, "SubPlan"),
        ):
            cursor.execute("EXPLAIN " + queries[name], values)
            plan = "\n".join(line for (line,) in cursor.fetchall())
            assert never not in plan, plan
