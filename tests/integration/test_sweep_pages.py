"""A sweep works on pages of records in Redis, several script calls long: each record of a page is settled as its own case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import count, islice
from typing import Any

import pytest
import redis

from backstop.leases.redis_exchange import RedisExchange
from backstop.leases.redis_records import RedisKeys, read_leases, read_record
from backstop.model.errors import ContractBroken
from backstop.stores.postgresql.leases import PostgresLeases
from backstop.sweep.ask_log import GroupLog
from backstop.sweep.redis_bucket import RECORDS, Bucket
from backstop.sweep.sweep_redis import BATCH, settle_ended, sweep_bucket
from backstop.sweep.tally import SweepDecision, Tally
from backstop_lab.servers.valkey import Valkey
from client_world import GROUP, TOPIC, Database, consumer, postgres, valkey

__all__ = ["consumer", "postgres", "valkey"]
BUCKET = 3
KEYS = RedisKeys(GROUP)
ODD = "it's {odd}: 100% \\ 鍵 😀 \n"
CASES = ("done", "free", "unknown", "alive", "renewed", "noted done", "unreadable", "vanished")
HELD = 10_000
"""Seconds by which the leases that run differ: no test takes so long."""


@pytest.fixture
def server(valkey: Valkey) -> Iterator[Any]:
    client = redis.Redis.from_url(valkey.url())
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def bucket(valkey: Valkey, server: Any) -> Iterator[Bucket]:
    exchange = RedisExchange(valkey.url())
    yield Bucket(exchange, GROUP, BUCKET)
    exchange.close()


def ids(number: int) -> list[str]:
    """Ids of messages of one bucket."""
    names = (f"{ODD}{n}" for n in count())
    return list(islice((n for n in names if KEYS.bucket_and_key(TOPIC, n)[0] == BUCKET), number))


def name(message_id: str) -> bytes:
    return KEYS.bucket_and_key(TOPIC, message_id)[1]


def now(server: Any) -> int:
    seconds, microseconds = server.time()
    return int(seconds * 1000 + microseconds // 1000)


def text(state: str, ends: int, host: str = "host-1") -> bytes:
    return f"{state}{ends:013d}{7:016d}0001{'e' * 32}|1|-|{host}".encode()


def put(server: Any, records: dict[str, bytes], ends: int) -> None:
    """Records (empty: none) whose index says that they ended then."""
    pipeline = server.pipeline(transaction=False)
    for message_id, record in records.items():
        if record:
            pipeline.set(name(message_id), record, px=3_600_000)
        pipeline.zadd(KEYS.expiry[BUCKET], {name(message_id): ends})
    pipeline.execute()


def index(server: Any) -> dict[bytes, int]:
    found = server.zrange(KEYS.expiry[BUCKET], 0, -1, withscores=True)
    return {member: int(ends) for member, ends in found}


def mixed(server: Any, consumer: Database, each: int) -> dict[str, str]:
    """So many records of each case; the case of each message."""
    at = now(server)
    ended, later = at - 1000, at + 3_600_000
    case_of = dict(zip(ids(each * len(CASES)), CASES * each, strict=True))
    written = {"renewed": text("C", later), "noted done": text("D", ended)}
    written |= {"unreadable": b"no record", "vanished": b""}
    put(server, {one: written.get(it, text("C", ended)) for one, it in case_of.items()}, ended)
    logged = [one for one, it in case_of.items() if it in ("done", "free", "alive")]
    consumer.run(
        """INSERT INTO consumer_log (consumer_group, topic, message_id, state, consumed_at, lease_expires_at)
        SELECT %s, %s, f.id, CASE f.kind WHEN 'done' THEN 'CONSUMED' WHEN 'free' THEN 'EXPIRED' ELSE 'CONSUMING' END,
            CASE f.kind WHEN 'done' THEN now() END,
            CASE f.kind WHEN 'alive' THEN now() + f.number * %s * interval '1 second' END
        FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS f (id, kind, number)""",
        (GROUP, TOPIC, HELD, logged, [case_of[one] for one in logged]),
    )
    return case_of


def test_every_record_of_a_page_is_settled_as_its_own_case(
    bucket: Bucket, server: Any, consumer: Database
) -> None:
    each = RECORDS // 4
    case_of = mixed(server, consumer, each)
    assert 2 * RECORDS <= len(case_of) < BATCH, "one page, and some calls"
    held = {
        row["message_id"]: row["seconds"]
        for row in consumer.run(
            """SELECT message_id, extract(epoch FROM lease_expires_at - now())::float8 AS seconds FROM consumer_log
            WHERE state = 'CONSUMING'"""
        )
    }
    tally = Tally()
    with closing(PostgresLeases("consumer", consumer.dsn)) as leases:
        log = GroupLog(GROUP, leases)
        sweep_bucket(bucket, "front", log, tally, limit=BATCH, dry_run=False)
    assert not tally.missed
    assert tally.counts == {
        "repair": each,
        "reclaim": 2 * each,
        "keep": 3 * each,
        "unreadable": each,
        "vanished": each,
    }
    assert {line.decision: number for line, number in tally.lines.items()} == {
        "REPAIR": each,
        "RECLAIM": 2 * each,
        "KEEP": 3 * each,
    }
    assert {one.message_id for one in tally.differs} == {
        one for one, it in case_of.items() if it == "done"
    }
    at, left = now(server), index(server)
    for message_id, case in case_of.items():
        record = server.get(name(message_id))
        if case in ("done", "free", "unknown", "vanished"):
            assert record is None, (message_id, case)
        elif case == "alive":
            # Each by its own lease's length, and its index with it.
            ends = read_record(record).ends
            assert abs((ends - at) / 1000 - held[message_id]) < HELD / 2
            assert left.pop(name(message_id)) == ends
        elif case == "renewed":
            assert left.pop(name(message_id)) == read_record(record).ends
        else:
            assert record[:1] == (b"D" if case == "noted done" else b"n")
    assert left == {}, "what is held is in the index, and nothing else"


def test_a_dry_run_of_a_page_tells_of_each_and_changes_nothing(
    bucket: Bucket, server: Any, consumer: Database
) -> None:
    case_of = mixed(server, consumer, 3)
    before = {key: server.get(key) for key in server.scan_iter("*:m:*")}, index(server)
    told: list[SweepDecision] = []
    tally = Tally(told.append)
    with closing(PostgresLeases("consumer", consumer.dsn)) as leases:
        log = GroupLog(GROUP, leases)
        sweep_bucket(bucket, "front", log, tally, limit=BATCH, dry_run=True)
    assert {one.message_id: str(one.line.decision) for one in told} == {
        one: "REPAIR" if it == "done" else "RECLAIM"
        for one, it in case_of.items()
        if it in ("done", "free", "unknown")
    }
    assert len(told) == 9
    assert before == ({key: server.get(key) for key in server.scan_iter("*:m:*")}, index(server))


def test_redis_alone_takes_back_each_and_keeps_its_token(bucket: Bucket, server: Any) -> None:
    ended = now(server) - 1000
    names = ids(RECORDS + 10)
    put(server, {one: text("C", ended) for one in names}, ended)
    tally = Tally()
    sweep_bucket(bucket, "redis", None, tally, limit=BATCH, dry_run=False)
    assert tally.counts == {"reclaim": len(names)}
    records = [read_record(server.get(name(one))) for one in names]
    assert {(one.state, one.token, one.fence) for one in records} == {("E", "e" * 32, 7)}
    assert index(server) == {}


def test_what_moved_on_is_named_by_its_place_in_the_page_and_left(
    bucket: Bucket, server: Any
) -> None:
    ended = now(server) - 1000
    put(server, {one: text("C", ended) for one in ids(2 * RECORDS + 100)}, ended)
    seen = bucket.expired(0, BATCH)
    later = text("C", ended + 3_600_000)
    moved = {1, RECORDS - 1, RECORDS, 2 * RECORDS + 99}
    for number in moved:
        server.set(seen.names[number], later)
    actions = ["X"] * len(seen)
    actions[0] = actions[RECORDS + 1] = ""
    assert bucket.settle(seen, actions, open_ms=1000) == moved
    left = {key: server.get(key) for key in server.scan_iter("*:m:*")}
    kept = {seen.names[number]: text("C", ended) for number in (0, RECORDS + 1)}
    assert left == {seen.names[number]: later for number in moved} | kept


def test_what_is_held_for_some_time_is_so_when_one_before_it_moved_on(
    bucket: Bucket, server: Any
) -> None:
    at = now(server)
    put(server, {one: text("C", at - 1000) for one in ids(3)}, at - 1000)
    seen = bucket.expired(0, 3)
    server.set(seen.names[0], text("C", at))
    actions = [f"K{HELD * 1000}", "X", f"K{5 * HELD * 1000}"]
    assert bucket.settle(seen, actions, open_ms=86_400_000) == {0}
    ends = read_record(server.get(seen.names[2])).ends
    assert 4 * HELD < (ends - at) / 1000 < 6 * HELD


def test_a_record_that_stands_twice_in_a_page_is_taken_back_once(
    bucket: Bucket, server: Any
) -> None:
    """As a scan meets it whose index moved meanwhile."""
    ended = now(server) - 1000
    (one,) = ids(1)
    put(server, {one: text("C", ended)}, ended)
    seen = bucket.as_seen([name(one)] * 2, [text("C", ended)] * 2, [ended + 1] * 2)
    tally = Tally()
    settle_ended(bucket, "redis", None, seen, tally, dry_run=False)
    assert tally.counts == {"reclaim": 1}


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b"C",
        text("C", 1)[:-8],
        text("C", 1).replace(b"|-|", b"|"),
        text("Z", 1),
        b"C" + b"x" * 13 + text("C", 1)[14:],
        text("C", 1).replace(b"|1|", b"|one|"),
        text("C", 1).replace(b"0001", b"-001"),
    ],
)
def test_what_is_no_record_is_nobody_s_lease(odd: bytes) -> None:
    assert read_leases([odd]) == [("?" if odd else "", 0, "")]
    with pytest.raises(ContractBroken):
        read_record(odd)


@pytest.mark.parametrize(
    "record",
    [
        text("C", 123),
        text("D", 9_999_999_999_999, "h%7Cost%20%E2%82%AC"),
        text("F", 5) + b"|it broke | twice \n \xff",
        text("E", 0, ""),
    ],
)
def test_a_lease_is_read_as_its_record_is(record: bytes) -> None:
    whole = read_record(record)
    assert read_leases([record]) == [(whole.state, whole.ends, whole.owner_host)]
