"""Retention over real databases: what is over goes, what somebody still needs stays, and the log floor moves first."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2
import pytest

from backstop.brokers.protocol import Received
from backstop.config.kept import require_safe
from backstop.config.settings import Settings
from backstop.model.errors import ConfigurationError, Unavailable
from backstop.model.records import Key, Message
from backstop.retention.run_once import RETENTION, RetentionInput, purge_all, run_duty
from backstop.retention.window import time_left
from backstop.runs.duty import Work
from backstop.runs.run import open_run
from backstop.stores.open import open_log_purge, open_log_store, open_stub_purge
from backstop.stores.purge import FIRST_LOG, FIRST_STUB
from backstop_lab.servers.ports import free_port
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from retention_world import emptied
from system import System, settings_dict, system

OLD = timedelta(days=2)
"""Longer than the policy of these tests keeps anything (a day)."""


@pytest.fixture(scope="module")
def kept(servers: tuple[Postgres, Valkey]) -> Iterator[System]:
    with system(*servers, retention={"step_rows": 3, "busy_share": 1.0}) as made:
        yield made


@pytest.fixture
def world(kept: System) -> System:
    return emptied(kept)


def old_stub(
    world: System, message_id: str, status: str = "confirmed", shard: str = "shop_a", **columns: Any
) -> Key:
    """A stub with one attempt that has not moved for two days."""
    key = world.stub(
        message_id,
        shard=shard,
        age=OLD,
        status=status,
        updated_at=datetime.now(UTC) - OLD,
        **columns,
    )
    world.rows(
        shard,
        "INSERT INTO send_attempt (topic, message_id, send_number, requested_by, started_at, outcome)"
        " VALUES (%s, %s, 1, 'producer', now(), 'sent')",
        *key,
    )
    return key


def old_log(
    world: System, message_id: str, state: str = "CONSUMED", group: str = "billing", **columns: Any
) -> Key:
    then = datetime.now(UTC) - OLD
    key = Key("orders", message_id)
    given = {
        "updated_at": then,
        "first_received_at": then,
        **({"consumed_at": then} if state == "CONSUMED" else {}),
        **columns,
    }
    world.log(key, group, state, **given)
    return key


def retain(world: System, **options: Any) -> dict[str, int]:
    return dict(run_duty(world.settings, world.connections, now=True, **options))


def stubs_left(world: System) -> set[str]:
    return {
        i
        for shard in ("shop_a", "shop_b")
        for (i,) in world.rows(shard, "SELECT message_id FROM message_stub")
    }


def logs_left(world: System, group: str = "billing") -> set[str]:
    return {i for (i,) in world.rows(f"{group}_db", "SELECT message_id FROM consumer_log")}


def floor(world: System, group: str = "billing") -> datetime:
    store = open_log_store(world.settings, world.connections, f"{group}_db")
    try:
        return store.floor(group)
    finally:
        store.close()


def test_closed_stubs_go_with_their_attempts_and_open_ones_stay_with_theirs(world: System) -> None:
    for status in ("confirmed", "voided", "no_taker", "pending", "exhausted"):
        for shard in ("shop_a", "shop_b"):
            old_stub(world, f"{status}-{shard}", status, shard)
    world.stub("young", status="confirmed")
    old_stub(world, "under way", attempt_token="00000000-0000-0000-0000-000000000001")
    assert retain(world)["stubs"] == 6
    stay = {
        f"{status}-{shard}" for status in ("pending", "exhausted") for shard in ("shop_a", "shop_b")
    }
    assert stubs_left(world) == {"young", "under way"} | stay
    attempts = {
        i
        for shard in ("shop_a", "shop_b")
        for (i,) in world.rows(shard, "SELECT message_id FROM send_attempt")
    }
    assert attempts == {"under way"} | stay


def test_a_broker_that_keeps_everything_is_trimmed_below_the_settled_progress_of_every_group(
    world: System,
) -> None:
    broker, queues = world.broker, len(world.broker.queues("orders"))
    broker.publish(
        [Message("orders", f"m-{number}", b"x", partition_key=str(number)) for number in range(12)]
    )
    for group, done in (("billing", 12), ("shipping", 8)):
        got: list[Received] = []
        subscription = broker.subscribe(group, ["orders"], "trim")
        while len(got) < 12:
            got += subscription.fetch(12, timedelta(milliseconds=100))
        subscription.acknowledge(got[:done])
    stored_by = broker.clock()
    while broker.clock() - stored_by < timedelta(seconds=1):
        broker.queues("orders")
    before = [broker.progress("orders", group) for group in ("billing", "shipping")]

    def trim(progress: str = "acknowledged", **options: Any) -> dict[str, int]:
        written = settings_dict(retention={"step_rows": 3, "busy_share": 1.0})
        written["brokers"]["embedded"]["options"] |= options
        written["groups"]["shipping"]["progress"] = progress
        return dict(run_duty(Settings.model_validate(written), world.connections, now=True))

    assert "broker_messages" not in trim(), "nothing goes without the option"
    assert "broker_messages" not in trim(retention="1h")
    assert "broker_messages" not in trim("received", retention="1s"), (
        "what was received may come again for hours"
    )
    removed = trim(retention="1s")["broker_messages"]
    assert 0 < removed <= 8
    held = {position.queue_id: position.next_offset for position in before[1]}
    states = broker.queues("orders")
    assert {state.queue_id: state.first_offset for state in states} == held, (
        "the lowest place of all groups"
    )
    assert len(states) == queues
    after = [broker.progress("orders", group) for group in ("billing", "shipping")]
    assert [[one.next_offset for one in some] for some in after] == [
        [one.next_offset for one in some] for some in before
    ]


def test_a_stub_without_a_taker_is_kept_until_nothing_of_it_may_be_published_any_more(
    servers: Any,
) -> None:
    with system(
        *servers, policy={"replay_horizon": "10d", "log_retention": "12d", "stub_retention": "12d"}
    ) as world:
        purge = open_stub_purge(world.settings, world.connections, "shop_a")
        old_stub(world, "waits", "no_taker")
        assert purge.old_stubs("orders", 3600, 3 * 86400, FIRST_STUB, 10) == []
        assert [
            stub.key.message_id for stub in purge.old_stubs("orders", 3600, 86400, FIRST_STUB, 10)
        ] == ["waits"]
        purge.close()


def test_a_log_goes_when_its_stub_is_closed_or_gone_and_stays_while_it_is_open_in_any_shard(
    world: System,
) -> None:
    for status, shard in (
        ("confirmed", "shop_a"),
        ("voided", "shop_b"),
        ("pending", "shop_b"),
        ("exhausted", "shop_a"),
    ):
        world.stub(status, shard=shard, age=OLD, status=status)
        old_log(world, status)
    for state in ("CONSUMED", "FAILED", "EXPIRED", "PARKED"):
        old_log(world, f"orphan-{state}", state)
    old_log(world, "begun", "CONSUMING", lease_expires_at=datetime.now(UTC) + timedelta(hours=1))
    old_log(world, "endless", "CONSUMING")
    old_log(world, "abandoned", "CONSUMING", lease_expires_at=datetime.now(UTC) - timedelta(days=1))
    old_log(world, "moved lately", "FAILED", updated_at=datetime.now(UTC))
    counts = retain(world)
    assert logs_left(world) == {"pending", "exhausted", "begun", "endless", "moved lately"}
    assert (counts["logs"], counts["logs_still_needed"]) == (7, 2)


def test_a_log_whose_content_a_parked_key_keeps_stays_however_old_it_is(world: System) -> None:
    for message_id in ("waits", "discarded"):
        old_log(world, message_id, "PARKED")
    world.rows(
        "billing_db",
        """
        INSERT INTO parked_key (consumer_group, topic, ordering_key, queue_id, state, messages, bytes)
        VALUES ('billing', 'orders', 'k', 0, 'PARKED', 1, 2);
        INSERT INTO parked_message (consumer_group, topic, message_id, ordering_key, content, queue_id)
        VALUES ('billing', 'orders', 'waits', 'k', '', 0)
        """,
    )
    retain(world)
    assert logs_left(world) == {"waits"}


def test_the_floor_is_the_newest_purged_log_and_never_falls(world: System) -> None:
    newest = datetime.now(UTC) - OLD
    for day in range(3):
        then = newest - timedelta(days=day)
        old_log(world, f"day-{day}", updated_at=then, first_received_at=then, consumed_at=then)
    retain(world)
    assert floor(world) == newest
    assert floor(world, "shipping") == datetime.min.replace(tzinfo=UTC)
    old_log(
        world,
        "older",
        updated_at=newest - timedelta(days=9),
        first_received_at=newest - timedelta(days=9),
    )
    retain(world)
    assert logs_left(world) == set()
    assert floor(world) == newest


def test_a_log_that_moves_between_the_look_and_the_purge_stays(world: System) -> None:
    moves, stays = old_log(world, "moves", "FAILED"), old_log(world, "stays", "FAILED")
    purge = open_log_purge(world.settings, world.connections, "billing_db")
    seen, _ = purge.old_logs("billing", {"orders": 60.0}, FIRST_LOG, 10)
    assert {log.key for log in seen if log.is_old} == {moves, stays}
    world.rows(
        "billing_db",
        "UPDATE consumer_log SET state = 'CONSUMING', updated_at = now() WHERE message_id = 'moves'",
    )
    assert purge.purge_logs("billing", seen) == 1
    purge.close()
    assert logs_left(world) == {"moves"}


def test_a_row_in_somebody_s_hands_is_left_and_not_waited_for(world: System) -> None:
    old_log(world, "held")
    old_log(world, "free")
    old_stub(world, "held")
    old_stub(world, "free")
    hands = [psycopg2.connect(world.urls[name]) for name in ("billing_db", "shop_a")]
    for hand, table in zip(hands, ("consumer_log", "message_stub"), strict=True):
        hand.cursor().execute(f"SELECT 1 FROM {table} WHERE message_id = 'held' FOR UPDATE")
    counts = retain(world)
    for hand in hands:
        hand.close()
    assert (counts["logs"], counts["stubs"]) == (1, 1)
    assert logs_left(world) == stubs_left(world) == {"held"}


def test_what_a_request_a_letter_or_a_case_still_needs_stays(world: System) -> None:
    for name in ("requested", "dead", "dead without topic", "asked about", "settled", "free"):
        old_stub(world, name)
        old_log(world, name)
    world.rows(
        "control",
        """
        INSERT INTO run (duty, token, policy_version, code_version) VALUES ('test', gen_random_uuid(), '', '');
        INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by)
        VALUES ('shop_a', 'orders', 'requested', 2, 'LOST', 'test');
        INSERT INTO drain_batch (run_id, broker, queue, letters) SELECT run_id, 'embedded', 'q', 2 FROM run;
        INSERT INTO dead_letter (batch_id, broker, queue, broker_id, topic, message_id, headers, content_bytes)
        SELECT batch_id, 'embedded', 'q', x.id, x.topic, x.message_id, '{}', 0
        FROM drain_batch, (VALUES ('1', 'orders', 'dead'), ('2', NULL, 'dead without topic')) AS x (id, topic, message_id);
        INSERT INTO case_file (kind, topic, summary) VALUES ('exhausted', 'orders', '');
        INSERT INTO case_member (case_id, shard, topic, message_id, settled_at)
        SELECT case_id, 'shop_a', 'orders', x.id, x.at
        FROM case_file, (VALUES ('asked about', NULL), ('settled', now())) AS x (id, at);
        """,
    )
    retain(world)
    assert (
        stubs_left(world)
        == logs_left(world)
        == {"requested", "dead", "dead without topic", "asked about"}
    )


def test_a_shard_that_does_not_answer_keeps_every_log_and_its_own_stubs(world: System) -> None:
    old_log(world, "closed")
    old_stub(world, "closed", shard="shop_b")
    world.urls["shop_a"] = f"postgresql://nobody@127.0.0.1:{free_port()}/none"
    with pytest.raises(Unavailable, match="shop_a"):
        retain(world)
    assert logs_left(world) == {"closed"}
    assert stubs_left_in(world, "shop_b") == set(), "the shard that answers is purged"
    assert world.rows("control", "SELECT state FROM run WHERE duty = 'retention'") == [
        ("incomplete",)
    ]


def stubs_left_in(world: System, shard: str) -> set[str]:
    return {i for (i,) in world.rows(shard, "SELECT message_id FROM message_stub")}


def test_a_policy_that_would_forget_too_soon_purges_nothing(world: System) -> None:
    old_log(world, "m")
    short = Settings.model_validate(settings_dict(policy={"log_retention": "1h"}))
    with pytest.raises(ConfigurationError, match="log_retention"):
        require_safe(short)
    with pytest.raises(ConfigurationError, match="forget too soon"):
        run_duty(short, world.connections, now=True)
    assert logs_left(world) == {"m"}


def test_two_purges_at_once_take_each_row_once(world: System) -> None:
    for number in range(200):
        old_log(world, f"m{number}", group="shipping")
    purges = [open_log_purge(world.settings, world.connections, "shipping_db") for _ in range(4)]
    counts: list[int] = []

    def work(purge: Any) -> None:
        place: Any = FIRST_LOG
        while place is not None:
            page, place = purge.old_logs("shipping", {"orders": 3600.0}, place, 20)
            counts.append(purge.purge_logs("shipping", page))
        purge.close()

    threads = [threading.Thread(target=work, args=(purge,)) for purge in purges]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 200
    assert logs_left(world, "shipping") == set()


def test_a_dry_run_counts_and_takes_nothing(world: System) -> None:
    for number in range(7):
        old_stub(world, f"m{number}")
        old_log(world, f"m{number}")
    counts = retain(world, dry_run=True)
    assert (counts["stubs"], counts["logs"]) == (7, 7)
    assert len(stubs_left(world)) == len(logs_left(world)) == 7
    assert floor(world) == datetime.min.replace(tzinfo=UTC)


def test_outside_its_window_it_does_nothing(servers: Any) -> None:
    now = datetime.now(UTC)
    shut = f"{now + timedelta(hours=2):%H:%M}-{now + timedelta(hours=3):%H:%M}"
    with system(*servers, retention={"window": shut}) as world:
        old_stub(world, "m")
        assert run_duty(world.settings, world.connections) == {"window_is_shut": 1}
        assert stubs_left(world) == {"m"}


def test_a_task_that_comes_to_its_turn_when_the_window_has_shut_purges_nothing(
    servers: Any,
) -> None:
    now = datetime.now(UTC)
    shut = f"{now - timedelta(hours=2):%H:%M}-{now - timedelta(hours=1):%H:%M}"
    with system(*servers, retention={"window": shut}) as world, closing(world.control()) as conn:
        old_stub(world, "m")
        run = replace(
            open_run(conn, "retention", "*", world.settings), as_of=now - timedelta(minutes=90)
        )
        work = Work(RETENTION, world.settings, world.connections, conn, run, RetentionInput())
        assert purge_all(work) is None
        assert stubs_left(world) == {"m"}


@pytest.mark.parametrize(
    ("window", "at", "left"),
    [
        ("01:00-05:00", "01:00", timedelta(hours=4)),
        ("01:00-05:00", "04:59", timedelta(minutes=1)),
        ("01:00-05:00", "05:00", None),
        ("01:00-05:00", "00:59", None),
        ("22:00-02:00", "23:00", timedelta(hours=3)),
        ("22:00-02:00", "01:00", timedelta(hours=1)),
        ("22:00-02:00", "02:00", None),
        ("03:00-03:00", "17:00", timedelta(days=1)),
    ],
)
def test_a_window_is_open_between_its_hours_also_over_midnight(
    window: str, at: str, left: timedelta | None
) -> None:
    hour, minute = map(int, at.split(":"))
    assert time_left(window, datetime(2026, 11, 21, hour, minute, tzinfo=UTC)) == left


def test_a_row_that_its_database_refuses_to_delete_holds_up_no_other(world: System) -> None:
    for name in ("a", "odd", "z"):
        old_stub(world, name)
        old_log(world, name)
    places = (("shop_a", "message_stub"), ("billing_db", "consumer_log"))
    for database, its in places:
        world.rows(
            database,
            f"""
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;
            CREATE TRIGGER refuse BEFORE DELETE ON {its} FOR EACH ROW WHEN (OLD.message_id = 'odd') EXECUTE FUNCTION refuse()""",
        )
    try:
        with pytest.raises(Unavailable, match="not this one"):
            retain(world)
        assert stubs_left(world) == logs_left(world) == {"odd"}
    finally:
        for database, _ in places:
            world.rows(database, "DROP FUNCTION refuse() CASCADE")
