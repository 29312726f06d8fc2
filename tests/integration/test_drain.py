"""Dead letters leave the broker for the database: whole, once, and never before they are stored."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any

import pytest
import redis

from backstop.brokers.protocol import DeadLetter
from backstop.brokers.redis_streams import Keys, RedisStreams
from backstop.config.load import from_mapping
from backstop.control.connection import connect
from backstop.model.errors import BrokerUnavailable, ConfigurationError, RunLost
from backstop.model.records import Counts, Position
from backstop.runs.duty import close, open_due
from backstop.runs.run import Run, close_run, open_run
from backstop.triage.count_due import any_dead_letter, count_due
from backstop.triage.drain import store_page
from backstop.triage.drain.drain import Bounds, drain_all
from backstop.triage.drain.quota import (
    SUBJECT_OF_NO_GROUP,
    Queue,
    Quota,
    read_quota,
    tell_quota,
)
from backstop.triage.drain.storable import make_storable
from backstop.triage.run_once import TRIAGE, TriageInput
from broken_checks import broken_checks
from control_world import World, servers, world, written_settings  # noqa: F401  fixtures
from letters import INSERT, values

DEAD = Keys().dead("orders", "billing")


@contextmanager
def triage(world: World, scope: str = "*", **options: Any) -> Iterator[Run]:
    run = open_run(world.conn, "triage", scope, world.settings, **options)
    try:
        yield run
    finally:
        close_run(world.conn, run, "done", {})


def drain(world: World, **options: Any) -> Counts:
    with triage(world) as run:
        return drain_all(world.settings, world.connections, world.conn, run, **options)


@pytest.fixture
def client(world: World) -> Iterator[Any]:
    with redis.Redis.from_url(world.connections.url("backstop_broker")) as client:
        yield client


def entry(number: int | str = 0, **fields: Any) -> dict[Any, Any]:
    return {
        "time": "1763746000000000",
        "epoch": "e1",
        "headers": json.dumps({"backstop-message-id": f"m-{number}"}),
        "content": b"content",
        "origin-group": "billing",
        "origin-topic": "orders",
        "origin-queue": "1",
        "origin-offset": "17",
        "origin-epoch": "e1",
        "deliveries": "16",
        "cause": "handler failed",
        "error": "ValueError: no such customer",
        "died": "1763746001000000",
        **{name.replace("_", "-"): value for name, value in fields.items()},
    }


def fill(client: Any, count: int, start: int = 0, key: str = DEAD) -> None:
    pipeline = client.pipeline(transaction=False)
    for number in range(start, start + count):
        pipeline.xadd(key, entry(number))
    pipeline.execute()


def stored(
    world: World, columns: str = "message_id", order: str = "dead_letter_id"
) -> list[tuple[Any, ...]]:
    return world.control(f"SELECT {columns} FROM dead_letter ORDER BY {order}")


def test_a_letter_is_stored_whole_and_then_leaves_the_broker(world: World, client: Any) -> None:
    content, headers = bytes(range(256)), b'{ "backstop-message-id":"m-0",\t"x":"\xc3\xbc" }'
    client.xadd(DEAD, entry(content=content, headers=headers, tag="eu", key="k\\1\t2"))
    counts = drain(world)
    assert counts == {"queues": 5, "read": 1, "stored": 1, "acknowledged": 1}
    assert client.xlen(DEAD) == 0
    [row] = world.control("SELECT to_jsonb(l), l.content, l.headers FROM dead_letter l")
    found: Mapping[str, Any] = row[0]
    assert (bytes(row[1]), bytes(row[2])) == (content, headers)
    assert {
        name: found[name]
        for name in (
            "broker",
            "queue",
            "consumer_group",
            "topic",
            "message_id",
            "queue_id",
            "queue_offset",
            "queue_epoch",
            "tag",
            "partition_key",
            "content_bytes",
            "aside",
            "properties",
            "cause_text",
            "error",
            "deliveries",
            "invalid",
            "state",
        )
    } == {
        "broker": "embedded",
        "queue": DEAD,
        "consumer_group": "billing",
        "topic": "orders",
        "message_id": "m-0",
        "queue_id": 1,
        "queue_offset": 17,
        "queue_epoch": "e1",
        "tag": "eu",
        "partition_key": "k\\1\t2",
        "content_bytes": 256,
        "aside": False,
        "properties": {"time": "1763746000000000"},
        "cause_text": "handler failed",
        "error": "ValueError: no such customer",
        "deliveries": 16,
        "invalid": None,
        "state": "open",
    }
    assert world.control("SELECT extract(epoch FROM died_at)::bigint FROM dead_letter") == [
        (1763746001,)
    ]
    [(letters, acknowledged)] = world.control(
        "SELECT letters, acknowledged_at IS NOT NULL FROM drain_batch"
    )
    assert (letters, acknowledged) == (1, True)


def test_a_broker_whose_settings_cannot_be_leaves_the_others_drained(
    world: World, client: Any
) -> None:
    """One edited line: an option that there is not, or a connection that nobody knows."""
    for number, edited in enumerate(
        (
            {"kind": "activemq", "connection": "backstop_broker", "options": {"nonsense": "1"}},
            {"kind": "redis_streams", "connection": "nobodys"},
        )
    ):
        content = written_settings()
        content["brokers"] = {"an edited one": edited, **content["brokers"]}
        content["topics"]["refunds"]["broker"] = "an edited one"
        settings = from_mapping(content)
        client.xadd(DEAD, entry(number))
        with triage(world) as run:
            due = count_due(settings, world.connections, world.conn, run)
            assert due.queues == (DEAD,) and "an edited one" in due.silent[0]
            with pytest.raises(BrokerUnavailable, match="an edited one"):
                drain_all(settings, world.connections, world.conn, run)
        assert stored(world) == [(f"m-{one}",) for one in range(number + 1)]


def test_the_order_of_a_queue_is_kept_over_pages(world: World, client: Any) -> None:
    fill(client, 250)
    assert drain(world, bounds=Bounds(page=30))["stored"] == 250
    assert [name for (name,) in stored(world)] == [f"m-{number}" for number in range(250)]
    assert world.control(
        "SELECT count(*), sum(letters), count(acknowledged_at) FROM drain_batch"
    ) == [(9, 250, 9)]


def test_a_group_that_floods_fills_its_share_and_the_others_are_drained(
    world: World, client: Any
) -> None:
    """Beyond the share letters stay in the broker, one case says so, and it closes when there is space again."""
    limits = world.settings.dead_letters.model_copy(
        update={"group_kept_bytes": 10 * 1100, "kept_bytes": 100 * 1100}
    )
    settings = world.settings.model_copy(update={"dead_letters": limits})

    def bounded() -> Counts:
        with triage(world) as run:
            return drain_all(settings, world.connections, world.conn, run, bounds=Bounds(page=4))

    fill(client, 25)
    client.xadd(Keys().dead("orders", "shipping"), entry("other", origin_group="shipping"))
    counts = bounded()
    assert (counts["stored"], counts["beyond_quota"], counts["quotas_full"]) == (11, 15, 1)
    assert client.xlen(DEAD) == 15
    assert world.control("SELECT count(*) FROM dead_letter WHERE consumer_group = 'shipping'") == [
        (1,)
    ]
    assert world.control("SELECT count(*) FROM drain_mark WHERE queue = %s", [DEAD]) == [(0,)], (
        "it is not drained to its end"
    )
    [(kind, group, state, summary)] = world.control(
        "SELECT kind, consumer_group, state, summary FROM case_file"
    )
    assert (kind, group, state) == ("quota_full", "billing", "open") and "11000 bytes" in summary
    assert f"Left there: 15 in {DEAD} of embedded." in summary
    assert world.control("SELECT count(*) FROM alert") == [(1,)]
    assert bounded()["beyond_quota"] == 15
    assert world.control("SELECT count(*), min(state) FROM case_file") == [(1, "open")]
    world.control(
        "UPDATE dead_letter SET emptied_at = now()"
    )  # as retention does when they are decided and old
    assert bounded()["stored"] == 10
    world.control("UPDATE dead_letter SET emptied_at = now() WHERE emptied_at IS NULL")
    assert bounded()["stored"] == 5
    assert client.xlen(DEAD) == 0
    assert world.control("SELECT state FROM case_file") == [("closed",)]


def test_letters_of_no_known_group_have_a_share_too_and_the_groups_go_on(world: World) -> None:
    """Another program fills a dead-letter queue that groups share, as ActiveMQ.DLQ is."""
    limits = world.settings.dead_letters.model_copy(
        update={"group_kept_bytes": 10 * 1100, "kept_bytes": 25 * 1100}
    )
    settings = world.settings.model_copy(update={"dead_letters": limits})
    shared = Queue("embedded", "ActiveMQ.DLQ")

    def drained(group: str | None, number: int) -> int:
        """How many of so many fit, beside what is stored; a case says what does not."""
        letters = [
            DeadLetter(shared.queue, str(one), group, "orders", None, b"content", b"{}")
            for one in range(number)
        ]
        with world.conn, world.conn.cursor() as cursor:
            quota = read_quota(cursor, settings)
        fits = quota.fitting(letters, shared)
        for _ in fits:
            world.control(INSERT, values(None, group))
        with triage(world) as run:
            tell_quota(world.conn, run, settings, quota)
        return len(fits)

    def cases() -> list[tuple[Any, ...]]:
        return world.control("SELECT consumer_group, subject, state FROM case_file")

    assert drained(None, 30) == 10
    assert cases() == [("*", SUBJECT_OF_NO_GROUP, "open")]
    [(summary,)] = world.control("SELECT summary FROM case_file")
    assert "Dead letters of no known group take" in summary and "of 11000 bytes" in summary
    assert "Left there: 20 in ActiveMQ.DLQ" in summary and ".group_kept_bytes" in summary
    assert (drained(None, 1), drained("billing", 1)) == (0, 1), "the drain of a group goes on"
    assert cases() == [("*", SUBJECT_OF_NO_GROUP, "open")], "nothing is free yet"
    world.control("UPDATE dead_letter SET emptied_at = now() WHERE consumer_group IS NULL")
    assert drained("billing", 1) == 1
    assert cases() == [("*", SUBJECT_OF_NO_GROUP, "closed")]


def test_the_case_of_a_full_quota_names_what_is_left_and_what_the_broker_may_do_to_it(
    world: World, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backstop.triage.drain.drain._PASSED_OVER", 3)
    limits = world.settings.dead_letters.model_copy(update={"group_kept_bytes": 2 * 1100})
    settings = world.settings.model_copy(update={"dead_letters": limits})
    fill(client, 25)
    with triage(world) as run:
        drain_all(settings, world.connections, world.conn, run, bounds=Bounds(page=4))
    [(summary, left)] = world.control("SELECT summary, evidence -> 'left' FROM case_file")
    [read] = left
    assert read == {
        "broker": "embedded",
        "queue": DEAD,
        "dead_letters": read["dead_letters"],
        "at_least": True,
    }
    assert (
        3 <= read["dead_letters"] < 23
        and f"at least {read['dead_letters']} in {DEAD} of embedded." in summary
    )
    for kind, does in (
        ("rocketmq", "removes it with its files (fileReservedTime)"),
        ("activemq", "maxBrowsePageSize"),
    ):
        broker = settings.brokers["embedded"].model_copy(update={"kind": kind})
        other = settings.model_copy(update={"brokers": {"embedded": broker}})
        quota = Quota(1, 1, full={"billing"})
        quota.left["billing"][Queue("embedded", "ActiveMQ.DLQ")] = 7
        with triage(world) as run:
            tell_quota(world.conn, run, other, quota)
        [(summary,)] = world.control("SELECT summary FROM case_file")
        assert (
            "Left there: 7 in ActiveMQ.DLQ of embedded. Act soon: " in summary and does in summary
        )


def test_when_all_together_are_too_many_every_queue_waits_and_the_run_goes_on(
    world: World, client: Any
) -> None:
    limits = world.settings.dead_letters.model_copy(update={"kept_bytes": 3 * 1100})
    settings = world.settings.model_copy(update={"dead_letters": limits})
    fill(client, 5)
    with triage(world) as run:
        counts = drain_all(settings, world.connections, world.conn, run)
    assert (counts["stored"], counts["beyond_quota"]) == (3, 2)
    assert world.control("SELECT kind, consumer_group, severity FROM case_file") == [
        ("quota_full", "*", "critical")
    ]


def test_a_second_drain_finds_nothing(world: World, client: Any) -> None:
    fill(client, 10)
    drain(world)
    assert drain(world) == {"queues": 5}
    assert len(stored(world)) == 10


def test_every_queue_is_marked_with_an_instant_from_before_it_was_read(
    world: World, client: Any
) -> None:
    fill(client, 3)
    with triage(world) as run:
        drain_all(world.settings, world.connections, world.conn, run)
        query = "SELECT queue, drained_until < clock_timestamp() FROM drain_mark WHERE run_id = %s"
        marks = dict(world.control(query, (run.run_id,)))
    assert DEAD in marks and all(marks.values())
    assert Keys().dead("orders", "shipping") in marks, "an empty queue is drained, too"
    query = "SELECT bool_and(m.drained_until <= l.drained_at) FROM drain_mark m JOIN dead_letter l USING (queue)"
    assert world.control(query) == [(True,)]


def test_a_large_content_is_kept_aside_whole(world: World, client: Any) -> None:
    small, large = b"\x00\x1e\n" * 87_381, bytes(range(256)) * 1024 + b"!"
    client.xadd(DEAD, entry("small", content=small))
    client.xadd(DEAD, entry("large", content=large))
    assert drain(world)["aside"] == 1
    rows = world.control("""
        SELECT message_id, aside, l.content, a.content, content_bytes
        FROM dead_letter l LEFT JOIN dead_letter_aside a USING (dead_letter_id) ORDER BY 1 DESC""")
    assert [
        (name, aside, at and bytes(at), kept and bytes(kept), size)
        for name, aside, at, kept, size in rows
    ] == [
        ("m-small", False, small, None, len(small)),
        ("m-large", True, None, large, len(large)),
    ]


ODD: Mapping[str, tuple[dict[Any, Any], str]] = {
    "no headers": ({"headers": b""}, "not JSON"),
    "broken headers": ({"headers": b"\xff\x00{"}, "not JSON"),
    "headers that are a list": ({"headers": b'["a"]'}, "not a JSON object"),
    "headers nested too deep": ({"headers": b"[" * 100_000}, "not JSON"),
    "no id": ({"headers": b'{"a": "b"}'}, "it has no header"),
    "an id that is a number": ({"headers": b'{"backstop-message-id": 7}'}, "a header is not text"),
    "an id with a NUL": (
        {"headers": b'{"backstop-message-id": "a\\u0000b"}'},
        "message id cannot be stored",
    ),
    "an id with half a pair": (
        {"headers": b'{"backstop-message-id": "a\\ud800b"}'},
        "message id cannot be stored",
    ),
    "an id of a megabyte": (
        {"headers": b'{"backstop-message-id": "%b"}' % (b"i" * 1_000_000)},
        "message id cannot be stored",
    ),
    "a topic that is no text": ({"origin-topic": b"\xfe"}, "origin-topic is not UTF-8"),
    "a group with a NUL": ({"origin-group": b"a\x00"}, "consumer group cannot be stored"),
    "an offset beyond all": ({"origin-offset": b"9" * 30}, "origin-offset is not a valid number"),
    "deliveries that are words": ({"deliveries": b"many"}, "deliveries is not a valid number"),
    "a death in the year 300000": ({"died": b"9" * 19}, "died is not a valid number"),
}


def test_what_is_no_message_is_kept_and_says_why_and_stops_nothing(
    world: World, client: Any
) -> None:
    for name, (fields, _) in ODD.items():
        client.xadd(DEAD, {**entry(name), **fields, "content": name.encode()})
    client.xadd(DEAD, entry("good"))
    assert drain(world) == {
        "queues": 5,
        "read": len(ODD) + 1,
        "stored": len(ODD) + 1,
        "invalid": len(ODD),
        "acknowledged": len(ODD) + 1,
    }
    found = {
        bytes(content).decode(): (why, bytes(headers), properties)
        for content, why, headers, properties in world.control(
            "SELECT content, invalid, headers, properties FROM dead_letter"
        )
    }
    for name, (fields, why) in ODD.items():
        assert why in found[name][0], name
        assert found[name][1] == fields.get(
            "headers", json.dumps({"backstop-message-id": f"m-{name}"}).encode()
        )
    assert found["content"][0] is None
    assert found["an id with a NUL"][2]["message id"] == "a\\x00b"
    assert len(found["an id of a megabyte"][2]["message id"]) == 1_000_000
    assert found["an offset beyond all"][2]["origin-offset"] == "9" * 30
    without = "SELECT count(*) FROM dead_letter WHERE message_id IS NULL"
    assert world.control(without) == [(9,)], (
        "an id that can be read is kept, whatever else is wrong"
    )


def test_texts_with_every_character_that_could_break_a_row_come_back_as_they_were(
    world: World, client: Any
) -> None:
    odd = "m-\\.\n\\N\t\"'\x1e\x1f\x1e\x1e\r\n\\ “ü” 注文 \x7f"
    client.xadd(
        DEAD,
        entry(
            odd[2:],
            error=odd,
            cause=odd,
            tag=odd,
            key=odd,
            origin_topic=odd,
            origin_epoch=odd,
            other=odd,
        ),
    )
    client.xadd(DEAD, entry("next", error="", cause="", tag="\\u0000"))
    drain(world)
    columns = "message_id, topic, tag, partition_key, queue_epoch, cause_text, error, properties ->> 'other'"
    assert stored(world, columns) == [
        (odd,) * 8,
        ("m-next", "orders", "\\u0000", None, "e1", "", "", None),
    ]


def test_a_nul_where_no_text_may_hold_one_is_escaped_and_said(world: World, client: Any) -> None:
    client.xadd(DEAD, entry(error=b"a\x00b", cause=b"\xff", tag=b"t\x00"))
    drain(world)
    [(error, cause, tag, properties)] = stored(world, "error, cause_text, tag, properties")
    assert (error, cause, tag) == ("a\\x00b", "\\xff", "t\\x00")
    assert properties["error is escaped"] == "yes"


def test_letters_of_topics_and_groups_that_are_not_configured_are_stored_too(
    world: World, client: Any
) -> None:
    client.sadd(Keys().group("billing"), "no longer a topic")
    client.xadd(
        Keys().dead("no longer a topic", "billing"),
        entry(origin_topic="no longer a topic", origin_group="gone"),
    )
    drain(world)
    assert stored(world, "topic, consumer_group, invalid") == [("no longer a topic", "gone", None)]


def test_a_letter_stays_what_stops_its_delivery_while_it_is_drained(
    world: World, client: Any
) -> None:
    world.stub("m-0", sends=1)
    client.xadd(DEAD, entry())
    assert world.judge("m-0")["billing"].verdict == "DEAD_LETTERED"
    drain(world)
    assert world.judge("m-0")["billing"].verdict == "DEAD_LETTERED"
    world.control(
        "UPDATE dead_letter SET state = 'discarded', proof = '{}', decided_by = 't', closed_at = now()"
    )
    assert world.judge("m-0")["billing"].verdict != "DEAD_LETTERED"


def test_a_dry_run_counts_and_takes_nothing(world: World, client: Any) -> None:
    fill(client, 4)
    with triage(world, dry_run=True) as run:
        assert drain_all(world.settings, world.connections, world.conn, run) == {"read": 4}
    assert client.xlen(DEAD) == 4 and stored(world) == []


def test_a_run_over_one_topic_drains_the_groups_of_that_topic(world: World, client: Any) -> None:
    fill(client, 2)
    with triage(world, '["payments"]') as run:
        assert "stored" not in drain_all(world.settings, world.connections, world.conn, run)
    with triage(world, '["orders"]') as run:
        assert drain_all(world.settings, world.connections, world.conn, run)["stored"] == 2


def test_a_queue_that_is_longer_than_a_run_may_be_is_gone_on_with_by_the_next(
    world: World, client: Any
) -> None:
    fill(client, 100)
    counts = drain(world, bounds=Bounds(letters=50, page=20))
    assert (counts["stored"], counts["acknowledged"], counts["queues_cut_short"]) == (60, 60, 1)
    assert world.control("SELECT count(*) FROM drain_mark WHERE queue = %s", (DEAD,)) == [(0,)]
    assert drain(world)["stored"] == 40
    assert [name for (name,) in stored(world)] == [f"m-{number}" for number in range(100)]


def test_a_queue_that_others_go_on_filling_is_drained_to_the_end_it_had(
    world: World, client: Any
) -> None:
    fill(client, 500)
    stop = threading.Event()

    def keep_filling() -> None:
        with redis.Redis.from_url(world.connections.url("backstop_broker")) as another:
            number = 500
            while not stop.is_set():
                fill(another, 20, start=number)
                number += 20

    filling = threading.Thread(target=keep_filling)
    filling.start()
    counts = drain(world, bounds=Bounds(page=50))
    more = drain(world)
    stop.set()
    filling.join()
    assert counts["stored"] >= 500 and "queues_cut_short" not in counts
    last = drain(world)
    assert client.xlen(DEAD) == 0
    names = [name for (name,) in stored(world)]
    assert names == [f"m-{number}" for number in range(len(names))]
    assert len(names) == sum(one.get("stored", 0) for one in (counts, more, last))


def test_two_drains_at_once_store_each_letter_once(world: World, client: Any) -> None:
    fill(client, 3000)
    start = threading.Barrier(2)

    def one(scope: str) -> Counts:
        control = connect(world.settings, world.connections)
        run = open_run(control, "triage", scope, world.settings)
        start.wait()
        counts = drain_all(world.settings, world.connections, control, run, bounds=Bounds(page=100))
        close_run(control, run, "done", {})
        control.close()
        return counts

    with ThreadPoolExecutor(2) as pool:
        counts = list(pool.map(one, ["*", '["orders"]']))
    assert sum(one.get("stored", 0) for one in counts) == 3000
    assert [name for (name,) in stored(world)] == [f"m-{number}" for number in range(3000)]
    assert client.xlen(DEAD) == 0
    assert world.control("SELECT count(*) FROM drain_batch WHERE acknowledged_at IS NULL") == [(0,)]


def test_a_letter_that_died_again_under_its_old_id_is_stored_beside_the_first(
    world: World, client: Any
) -> None:
    for death in range(3):
        client.delete(DEAD)
        client.xadd(DEAD, entry(died=f"176374600{death}000000", error=f"death {death}"), id="77-0")
        assert drain(world)["stored"] == 1
    assert stored(world, "broker_id, error") == [
        ("77-0", "death 0"),
        ("77-0#2", "death 1"),
        ("77-0#3", "death 2"),
    ]
    client.delete(DEAD)
    client.xadd(DEAD, entry(died="1763746002000000", error="death 2"), id="77-0")
    assert drain(world) == {"queues": 5, "read": 1, "known": 1, "acknowledged": 1}
    assert client.xlen(DEAD) == 0 and len(stored(world)) == 3


def test_a_run_that_was_taken_over_stores_and_acknowledges_nothing(
    world: World, client: Any
) -> None:
    fill(client, 5)
    for group in world.settings.groups:  # no other queue: what stops it must be the storing itself
        client.delete(Keys().group(group))
    client.sadd(Keys().group("billing"), "orders")
    run = open_run(world.conn, "triage", "*", world.settings)
    with triage(world, dead_after=timedelta(0)), pytest.raises(RunLost):
        drain_all(world.settings, world.connections, world.conn, run)
    assert client.xlen(DEAD) == 5 and stored(world) == []


def test_a_letter_that_the_database_cannot_hold_stays_and_is_named_and_the_others_go_on(
    world: World, client: Any
) -> None:
    fill(client, 7)
    world.control("""
        CREATE FUNCTION too_much() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'it does not fit' USING ERRCODE = 'data_exception'; END $$;
        CREATE TRIGGER too_much BEFORE INSERT ON dead_letter FOR EACH ROW WHEN (NEW.message_id = 'm-4')
            EXECUTE FUNCTION too_much()""")
    try:
        with pytest.raises(
            BrokerUnavailable,
            match=r"billing, \d+-\d+: it cannot be stored and stays there: it does not fit",
        ):
            drain(world)
    finally:
        world.control("DROP FUNCTION too_much CASCADE")
    assert [name for (name,) in stored(world)] == [f"m-{number}" for number in (0, 1, 2, 3, 5, 6)]
    assert client.xlen(DEAD) == 1
    assert world.control("SELECT count(*) FROM drain_mark WHERE queue = %s", (DEAD,)) == [(0,)]
    assert drain(world)["stored"] == 1


def test_a_letter_that_the_database_cannot_hold_keeps_no_page_open_that_the_broker_has_forgotten(
    world: World, client: Any
) -> None:
    fill(client, 7)
    world.control("""
        CREATE FUNCTION too_much() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'it does not fit' USING ERRCODE = 'data_exception'; END $$;
        CREATE TRIGGER too_much BEFORE INSERT ON dead_letter FOR EACH ROW WHEN (NEW.message_id <> 'm-0')
            EXECUTE FUNCTION too_much()""")
    try:
        with pytest.raises(BrokerUnavailable, match="it does not fit"):
            drain(world, bounds=Bounds(page=1))
    finally:
        world.control("DROP FUNCTION too_much CASCADE")
    assert world.control(
        "SELECT count(*), count(acknowledged_at) FROM drain_batch WHERE letters > 0"
    ) == [(1, 1)]


def test_a_queue_is_not_marked_while_a_letter_in_it_cannot_be_told_from_a_stored_one(
    world: World, client: Any
) -> None:
    client.xadd(DEAD, entry(), id="77-0")
    assert drain(world)["stored"] == 1
    world.control("DELETE FROM drain_mark")
    client.delete(DEAD)
    client.xadd(DEAD, entry(), id="77-0")
    # As of a broker that does not say when a letter died; another drain acknowledged the first while this one began.
    world.control("UPDATE dead_letter SET died_at = NULL")
    world.control("UPDATE drain_batch SET acknowledged_at = now() + interval '1 hour'")
    counts = drain(world)
    assert (counts["left"], client.xlen(DEAD)) == (1, 1)
    assert world.control("SELECT count(*) FROM drain_mark WHERE queue = %s", (DEAD,)) == [(0,)]
    world.control("UPDATE drain_batch SET acknowledged_at = now() - interval '1 hour'")
    assert drain(world)["stored"] == 1
    assert world.control("SELECT count(*) FROM drain_mark WHERE queue = %s", (DEAD,)) == [(1,)]


class SharedQueues:
    """A broker with queues of letters under ids that need not be unique, as ActiveMQ's; one that fails acknowledges nothing."""

    def __init__(self, **queues: list[DeadLetter]) -> None:
        self.queues, self.fails = queues, False

    def servers(self, topic: str) -> frozenset[str]:
        return frozenset()

    def dead_letter_queues(self, groups: Sequence[str]) -> list[str]:
        return list(self.queues)

    def open_dead_letters(self, queue: str) -> Any:
        return SharedReader(self, self.queues[queue])


class SharedReader:
    def __init__(self, broker: SharedQueues, queue: list[DeadLetter]) -> None:
        self._broker, self._queue, self._rest = broker, queue, list(queue)

    def read(self, limit: int) -> list[DeadLetter]:
        page, self._rest = self._rest[:limit], self._rest[limit:]
        return page

    def acknowledge(self, letters: Sequence[DeadLetter]) -> None:
        if self._broker.fails:
            raise BrokerUnavailable("The broker went away.", unaffected="-", next_step="-")
        for letter in letters:
            self._queue[:] = [one for one in self._queue if one is not letter]

    def close(self) -> None: ...


def letter(
    broker_id: str,
    message_id: str | None,
    group: str = "billing",
    content: bytes = b"{}",
    queue: str = "shared",
) -> DeadLetter:
    return DeadLetter(
        queue=queue,
        broker_id=broker_id,
        group=group,
        topic="orders",
        message_id=message_id,
        content=content,
        headers=b"{}",
        invalid=None if message_id else "it has no id",
    )


ODD_TEXTS = (
    "",
    "plain",
    "\0",
    "a\0b",
    "half \ud800 a pair",
    "\\u0000",
    "\\x00",
    '"quotes" and \\N and \t\r\n',
    "\x1e\x1f",
    "注文 \U0001f600",
    "x" * 70_000,
)


def test_whatever_a_letter_holds_comes_back_as_it_was_or_escaped_in_its_own_column(
    world: World,
) -> None:
    """Odd values in every field. Most letters have usual names and numbers, so that the row's own check of the others is met."""
    chosen, odd = Random(5), [None, *ODD_TEXTS]
    letters = [
        DeadLetter(
            queue="shared",
            broker_id=f"ID:{number}",
            group=chosen.choice([None, *["billing"] * 40, *ODD_TEXTS[2:]]),
            topic=chosen.choice([None, *["orders"] * 40, *ODD_TEXTS[2:]]),
            message_id=chosen.choice([*[f"m-{number}"] * 40, *odd]),
            content=chosen.choice([b"", b"\0\xff" * 10, b"\\x00", bytes(300_000)]),
            headers=chosen.choice([b"", b"{}", b"\0\xff{"]),
            properties={
                chosen.choice(["time", *ODD_TEXTS]): chosen.choice(ODD_TEXTS)
                for _ in range(number % 3)
            },
            cause=chosen.choice(ODD_TEXTS),
            error=chosen.choice(ODD_TEXTS),
            deliveries=chosen.choice([None, *[0, 2**31 - 1] * 10, 2**31, -1]),
            position=chosen.choice(
                [
                    None,
                    *[Position(0, 0, chosen.choice(ODD_TEXTS))] * 10,
                    *[Position(2**31 - 1, 2**63 - 1, "e1")] * 10,
                    Position(-1, 5, "e1"),
                    Position(1, 2**63, "e1"),
                ]
            ),
            tag=chosen.choice(odd),
            partition_key=chosen.choice(odd),
            died_at=chosen.choice(
                [
                    None,
                    datetime(1, 1, 1, tzinfo=UTC),
                    datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
                    datetime(9999, 12, 31, tzinfo=timezone(timedelta(hours=5))),
                ]
            ),
            invalid=chosen.choice([None, "it is odd", "\0 in it"]),
        )
        for number in range(200)
    ]
    broker: Any = SharedQueues(shared=list(letters))
    assert drain(world, brokers={"embedded": broker})["stored"] == len(letters)
    columns = (
        "l.broker_id, consumer_group, topic, message_id, coalesce(a.content, l.content), headers, properties, cause_text,"
        " error, deliveries, queue_id, queue_offset, queue_epoch, tag, partition_key,"
        " died_at AT TIME ZONE 'UTC', invalid, content_bytes"
    )
    found = world.control(
        f"SELECT {columns} FROM dead_letter l LEFT JOIN dead_letter_aside a USING (dead_letter_id) ORDER BY l.dead_letter_id"
    )
    for row, given in zip(found, letters, strict=True):
        kept = make_storable(given)
        at = kept.position
        assert row[:4] == (kept.broker_id, kept.group, kept.topic, kept.message_id)
        assert (bytes(row[4]), bytes(row[5])) == (given.content, given.headers)
        assert row[6:] == (
            dict(kept.properties),
            kept.cause,
            kept.error,
            kept.deliveries,
            *((None,) * 3 if at is None else (at.queue_id, at.offset, at.epoch)),
            kept.tag,
            kept.partition_key,
            kept.died_at and kept.died_at.astimezone(UTC).replace(tzinfo=None),
            kept.invalid,
            len(given.content),
        )
        texts = (given.cause, given.error, given.tag, given.partition_key, given.invalid)
        if not any("\0" in text or "\ud800" in text for text in texts if text):
            assert (row[7], row[8], row[13], row[14]) == texts[:4], "what fits is as it was"


@pytest.mark.parametrize(("first", "second"), [("m-1", "lost"), (None, None)])
def test_another_message_under_the_id_of_a_stored_letter_is_stored_too(
    world: World, first: str | None, second: str | None
) -> None:
    """A JMS property `message-id` stands in place of ActiveMQ's own id, and a program may copy it from message to message."""
    queue = [letter("ID:x-1", first, content=b"first")]
    broker: Any = SharedQueues(shared=queue)
    broker.fails = True
    with pytest.raises(BrokerUnavailable):
        drain(world, brokers={"embedded": broker})
    assert len(queue) == 1
    broker.fails = False
    queue.append(letter("ID:x-1", second, content=b"second"))
    counts = drain(world, brokers={"embedded": broker})
    assert (counts["known"], counts["stored"], queue) == (1, 1, [])
    found = [(name, bytes(content)) for name, content in stored(world, "message_id, content")]
    assert found == [(first, b"first"), (second, b"second")]


def test_the_number_of_a_second_letter_of_one_id_may_be_another_letters_own_id(
    world: World,
) -> None:
    """All of them are stored once, also when the page of the second one was stored and not acknowledged."""
    queue = [letter("ID:x-1#2", "odd")]
    broker: Any = SharedQueues(shared=queue, other=[])
    drain(world, brokers={"embedded": broker})
    for number, fails in enumerate((True, False)):
        if fails:
            queue += [letter("ID:x-1", "m-1"), letter("ID:x-1", "m-1", "shipping")]
            queue += [letter("ID:x-1", None), letter("ID:x-1", None)]
        broker.queues["other"].append(letter(f"ID:y-{number}", f"o-{number}", queue="other"))
        broker.fails = fails
        if fails:
            with pytest.raises(BrokerUnavailable, match="went away"):
                drain(world, brokers={"embedded": broker})
        else:
            drain(world, brokers={"embedded": broker})
    assert broker.queues == {"shared": [], "other": []}
    assert stored(world, "queue, message_id, consumer_group", "1, 2, 3") == [
        ("other", "o-0", "billing"),
        ("other", "o-1", "billing"),
        ("shared", "m-1", "billing"),
        ("shared", "m-1", "shipping"),
        ("shared", "odd", "billing"),
        ("shared", None, "billing"),
        ("shared", None, "billing"),
    ]


def test_a_queue_that_cannot_be_stored_for_whatever_reason_stops_no_other(world: World) -> None:
    """What was acknowledged of it is marked; the error is named by its kind, for its text may quote a letter."""
    first = [letter("ID:1", "m-1", queue="first"), letter("ID:2", "m-2", queue="first")]
    broker: Any = SharedQueues(first=first, second=[letter("ID:1", "m-3", queue="second")])
    world.control("ALTER TABLE dead_letter ADD CONSTRAINT refused CHECK (message_id <> 'm-2')")
    try:
        named = r"embedded, first: Its dead letters cannot be stored: CheckViolation in .*\.py"
        with pytest.raises(BrokerUnavailable, match=named) as failed:
            drain(world, brokers={"embedded": broker}, bounds=Bounds(page=1))
    finally:
        world.control("ALTER TABLE dead_letter DROP CONSTRAINT refused")
    assert "m-2" not in str(failed.value)
    assert stored(world) == [("m-1",), ("m-3",)]
    assert [one.message_id for one in first] == ["m-2"] and broker.queues["second"] == []
    assert world.control("SELECT count(*) FROM drain_batch WHERE acknowledged_at IS NULL") == [(0,)]
    assert world.control("SELECT queue FROM drain_mark ORDER BY 1") == [("second",)]
    drain(world, brokers={"embedded": broker})
    assert stored(world) == [("m-1",), ("m-3",), ("m-2",)]


class Trap(RedisStreams):
    """A broker whose reader fails on the letters of one group, in a way that nobody foresaw."""

    def open_dead_letters(self, queue: str) -> Any:
        reader = super().open_dead_letters(queue)
        return TrappedReader(reader) if queue == DEAD else reader


class TrappedReader:
    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.acknowledge, self.close = reader.acknowledge, reader.close

    def read(self, limit: int) -> list[Any]:
        letters: list[Any] = self._reader.read(min(limit, 2))
        if any(letter.message_id == "m-3" for letter in letters):
            raise ValueError("the letter's secret")
        return letters


def test_a_letter_that_no_reader_can_read_stops_its_queue_alone_and_is_named_by_the_kind_of_the_failure(
    world: World, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, 5)
    client.sadd(Keys().group("shipping"), "orders")
    fill(client, 2, start=7, key=Keys().dead("orders", "shipping"))
    with (
        Trap(world.connections.url("backstop_broker")) as broker,
        pytest.raises(
            BrokerUnavailable,
            match=r"billing: Its dead letters cannot be read: ValueError in test_drain.py, line \d+\.",
        ) as failed,
    ):
        drain(world, brokers={"embedded": broker})
    assert "secret" not in str(failed.value)
    assert sorted(name for (name,) in stored(world)) == ["m-0", "m-1", "m-7", "m-8"]
    assert client.xlen(DEAD) == 3 and client.xlen(Keys().dead("orders", "shipping")) == 0
    assert world.control("SELECT count(*) FROM drain_mark WHERE queue = %s", (DEAD,)) == [(0,)]

    monkeypatch.setattr(
        "backstop.triage.count_due.open_broker",
        lambda *_: Trap(world.connections.url("backstop_broker")),
    )
    client.xadd(Keys().dead("orders", "shipping"), entry(9))
    client.delete(DEAD)
    client.xadd(DEAD, entry(3))
    with triage(world) as run:
        due = count_due(world.settings, world.connections, world.conn, run)
    assert due.queues == (Keys().dead("orders", "shipping"),)
    assert len(due.silent) == 1 and due.silent[0].startswith(
        f"broker embedded, {DEAD}: Its dead letters cannot be read: ValueError"
    )


class Unanswered(RedisStreams):
    """A broker that does not give the letters of one group, as ActiveMQ does with a map message."""

    def open_dead_letters(self, queue: str) -> Any:
        if queue == DEAD:
            raise BrokerUnavailable("It cannot be read.", unaffected="It stays.", next_step="See.")
        return super().open_dead_letters(queue)


def test_a_queue_that_does_not_answer_hides_no_letter_in_another_queue_of_its_broker(
    world: World, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipping = Keys().dead("orders", "shipping")
    client.xadd(DEAD, entry(1))
    client.xadd(shipping, entry(2, origin_group="shipping"))
    url = world.connections.url("backstop_broker")
    monkeypatch.setattr("backstop.triage.count_due.open_broker", lambda *_: Unanswered(url))
    with Unanswered(url) as broker:
        assert broker.dead_letter_queues(["billing", "shipping"])[0] == DEAD
        assert any_dead_letter(broker, ["billing", "shipping"])
        opened = open_due(TRIAGE, world.settings, world.connections, world.conn, TriageInput())
        assert opened is not None, "the letter of the other queue is due"
        work, _ = opened
        with pytest.raises(BrokerUnavailable, match=re.escape(f"{DEAD}: It cannot be read.")):
            drain_all(*work.parts, brokers={"embedded": broker})
        assert stored(world) == [("m-2",)]
        with pytest.raises(BrokerUnavailable, match="It cannot be read"):
            any_dead_letter(broker, ["billing", "shipping"])
        found = count_due(world.settings, world.connections, world.conn, work.run)
        assert found.queues == () and found.silent == (
            f"broker embedded, {DEAD}: It cannot be read.",
        )
        close(work, [])


def test_a_group_whose_queues_cannot_be_listed_hides_no_letter_of_another_group(
    world: World, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.set(Keys().group("shipping"), "no set")  # another program's
    client.xadd(DEAD, entry(1))
    url = world.connections.url("backstop_broker")
    monkeypatch.setattr("backstop.triage.count_due.open_broker", lambda *_: RedisStreams(url))
    with RedisStreams(url) as broker:
        with pytest.raises(BrokerUnavailable):
            broker.dead_letter_queues(["billing", "shipping"])
        assert any_dead_letter(broker, ["billing", "shipping"])
        with triage(world) as run:
            found = count_due(world.settings, world.connections, world.conn, run)
        assert found.queues == (DEAD,)
        assert [one.split(": ")[0] for one in found.silent] == ["broker embedded, group shipping"]
        with pytest.raises(BrokerUnavailable, match="broker embedded, group shipping: "):
            drain(world)
        assert stored(world) == [("m-1",)]
        with pytest.raises(BrokerUnavailable):  # perhaps that group has one
            any_dead_letter(broker, ["billing", "shipping"])


def test_of_a_broker_that_is_away_the_groups_are_not_asked_one_by_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[str]] = []

    class Away(RedisStreams):
        def clock(self) -> datetime:
            raise BrokerUnavailable("It does not answer.", unaffected="", next_step="")

        def dead_letter_queues(self, groups: Sequence[str]) -> list[str]:
            asked.append(groups)
            return super().dead_letter_queues(groups)

    with Away("redis://127.0.0.1:1") as broker, pytest.raises(BrokerUnavailable):
        any_dead_letter(broker, ["billing", "shipping"])
    assert asked == [["billing", "shipping"]]


@pytest.mark.parametrize(
    "error", [ConfigurationError("No.", unaffected="", next_step=""), KeyError("x")]
)
def test_a_broker_that_fails_in_whatever_way_is_missed_and_ends_no_run(
    world: World, client: Any, error: Exception
) -> None:
    class Wrong(RedisStreams):
        def clock(self) -> datetime:
            raise error

        def dead_letter_queues(self, groups: Sequence[str]) -> list[str]:
            raise error

    client.xadd(DEAD, entry(1))
    with (
        Wrong(world.connections.url("backstop_broker")) as broker,
        triage(world) as run,
        pytest.raises(BrokerUnavailable, match="broker embedded: "),
    ):
        drain_all(world.settings, world.connections, world.conn, run, brokers={"embedded": broker})


def test_a_queue_whose_name_is_too_long_to_be_kept_is_named_and_the_others_go_on(
    world: World, client: Any
) -> None:
    topic = "注" * 500
    client.sadd(Keys().group("billing"), topic)
    client.xadd(Keys().dead(topic, "billing"), entry())
    fill(client, 3)
    with pytest.raises(BrokerUnavailable, match="its name is longer than 1300 bytes"):
        drain(world)
    assert len(stored(world)) == 3 and client.xlen(Keys().dead(topic, "billing")) == 1


class TestSuite:
    """The data check dead_letters_drained."""

    @pytest.mark.parametrize(
        ("change", "broken"),
        [
            ("SELECT 1", {}),
            ("UPDATE drain_batch SET acknowledged_at = NULL", {"acknowledged": 1}),
            (
                "UPDATE drain_mark SET drained_until = clock_timestamp(); UPDATE drain_batch SET acknowledged_at = NULL",
                {"acknowledged": 1, "nothing_left_open": 1},
            ),
            ("DELETE FROM dead_letter WHERE message_id = 'm-0'", {"counted": 1}),
            ("UPDATE dead_letter SET queue = 'another' WHERE message_id = 'm-0'", {"counted": 1}),
            (
                "UPDATE dead_letter SET content = 'cut' WHERE message_id = 'm-0'",
                {"contents_whole": 1},
            ),
            ("DELETE FROM dead_letter_aside", {"contents_whole": 1}),
            (
                "UPDATE dead_letter SET broker_id = (SELECT broker_id FROM dead_letter WHERE message_id = 'm-1') || '#2',"
                " message_id = 'm-1'"
                " WHERE message_id = 'm-0'",
                {"once": 1},
            ),
            ("UPDATE dead_letter SET message_id = NULL WHERE message_id = 'm-0'", {"said_why": 1}),
        ],
    )
    def test_it_holds_after_a_drain_and_each_check_finds_what_it_is_for(
        self, world: World, client: Any, change: str, broken: dict[str, int], tmp_path: Path
    ) -> None:
        fill(client, 3)
        client.xadd(DEAD, entry("large", content=b"x" * 300_000))
        with triage(world) as run:
            drain_all(world.settings, world.connections, world.conn, run)
            world.control(change)
            url = world.postgres.admin_dsn("control")
            assert broken_checks("dead_letters_drained", url, run.run_id, tmp_path) == broken


def test_a_queue_that_somebody_holds_for_too_long_stops_no_other(world: World, client: Any) -> None:
    shipping = Keys().dead("orders", "shipping")
    client.xadd(DEAD, entry(1))
    client.xadd(shipping, entry(2, origin_group="shipping"))
    with world.conn, world.conn.cursor() as cursor:
        cursor.execute("SET lock_timeout = '200ms'")
    with closing(connect(world.settings, world.connections)) as theirs:
        lock = "SELECT pg_advisory_xact_lock(hashtextextended(%s || chr(10) || %s, 6))"
        theirs.cursor().execute(lock, ("embedded", DEAD))
        with pytest.raises(BrokerUnavailable, match="another drain has held it"):
            drain(world)
    assert stored(world) == [("m-2",)]


def test_a_drain_that_stands_still_loses_its_lock(
    world: World, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, copy = [], store_page._copy

    def seen(cursor: Any, *rest: Any) -> int:
        cursor.execute("SHOW idle_in_transaction_session_timeout")
        limits.extend(cursor.fetchone())
        return copy(cursor, *rest)

    monkeypatch.setattr(store_page, "_copy", seen)
    fill(client, 1)
    drain(world)
    assert limits == ["1min"]
