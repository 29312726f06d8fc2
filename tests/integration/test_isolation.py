"""One odd row, one group, one shard or one earlier run never stops the repair of anything else.

Each test makes something else fail, and asserts that a lost message is repaired (a request for it is made) in the same run and
in the next one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psycopg2
import pytest
import redis

from backstop.brokers.protocol import DeadLetterRef, Receipt
from backstop.brokers.redis_streams import Keys, RedisStreams
from backstop.config.settings import Settings
from backstop.evidence.apply_apart import MOST
from backstop.evidence.judge_by_key import Judge
from backstop.evidence.read import read_groups
from backstop.evidence.recover_attempts import recover_attempts
from backstop.evidence.sources import Sources
from backstop.model.errors import (
    PromotionFailed,
    RowsLocked,
    StoreFailed,
    StoreUnavailable,
    Unavailable,
)
from backstop.model.records import ID_HEADER, Counts, Key, Outcome, Position
from backstop.reconcile.count_due import count_due
from backstop.reconcile.promote import promote
from backstop.reconcile.record import record_looks
from backstop.reconcile.revisit import revisit_cases
from backstop.reconcile.run_once import RECONCILE, ReconcileInput, run_once
from backstop.reconcile.stage import connect_staging, copy_stubs, copy_verdicts
from backstop.requests.ask import Ask, ask
from backstop.resend import send_claimed
from backstop.resend.claim import Request
from backstop.resend.run_once import run_duty as resend
from backstop.resend.settle import settle_attempts
from backstop.runs.duty import Work, do_step
from backstop.runs.run import EndState, Run, close_run, open_run
from backstop.sql.named import load
from backstop.stores import locked_rows
from backstop.stores.postgresql.logs import PostgresLogs
from backstop.stores.postgresql.stubs import PostgresStubs
from backstop.stores.protocol import Settlement, StubOutcome
from backstop.verdicts.evaluate import Engine
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from broken_checks import broken_checks
from system import System, system

INSTANTS = (
    "infinity",
    "-infinity",
    "0001-01-01 00:00:00+00",
    "4713-01-01 00:00:00+00 BC",
    "9999-12-31 23:59:59.999999+00",
    "294276-12-31 23:59:59+00",
)
TEXTS = (
    "",
    " ",
    "\t\n\r",
    "x" * 100_000,
    "é" * 50_000,
    "\\u0000",
    "\\x00",
    "\\N",
    "\\.",
    "\n\\.\n",
    "'\";--",
    '{"a": [1',
    "NULL",
    "%s%(a)s",
    "\ufffd\u202e\U0001f4a9",
    os.urandom(1_000).hex(),
)
SMALLINTS = (-32_768, 32_767)
INTEGERS = (-(2**31), -1, 0, 2**31 - 1)
BIGINTS = (-(2**63), -1, 0, 2**63 - 1)
OF_TYPE: dict[str, Sequence[Any]] = {
    "timestamp with time zone": INSTANTS,
    "text": TEXTS,
    "integer": INTEGERS,
    "bigint": BIGINTS,
    "smallint": SMALLINTS,
    "jsonb": ('{"a": 1e400}', '{"\\\\u0000": ["x"]}', "{}"),
    "bytea": (b"", b"\x00\xff" * 50_000),
    "ARRAY": ([""], ["", None], [None]),
    "uuid": ("00000000-0000-0000-0000-000000000000",),
}
"""PostgreSQL's name of a type -> odd values; null comes beside them."""
OLD = "2026-01-01T00:00:00+00:00"
STATUSES = ("pending", "confirmed", "exhausted", "voided", "no_taker")


class Odd(Exception):
    """What nobody foresaw."""


@pytest.fixture
def world(postgres: Postgres, valkey: Valkey) -> Iterator[System]:
    with system(postgres, valkey, policy={"blast_floor": 5_000}) as running:
        yield running


def lose(world: System, message_id: str, shard: str = "shop_a") -> Key:
    """A message that the broker has, that both groups have passed, and that none of them logged."""
    key = world.sent(message_id, shard=shard)
    for group in ("billing", "shipping"):
        world.pass_over(group)
    return key


def asked(world: System) -> set[tuple[str, int]]:
    return set(
        world.rows(
            "control",
            "SELECT message_id, send_number FROM resend_request WHERE requested_by = 'reconcile'",
        )
    )


def reconcile(world: System, keys: Sequence[Key]) -> None:
    """A run over these messages: the steps of a run in one process, Spark's part by key. Raises what its promotion raises."""
    conn = world.control()
    run = open_run(conn, "reconcile", "*", world.settings)
    state: EndState = "failed"
    try:
        work = Work(
            RECONCILE, world.settings, world.connections, conn, run, ReconcileInput(lambda: None)
        )
        for step in ("recover", "revisit"):
            do_step(work, step)
        assert count_due(world.settings, world.connections, run.as_of).total > 0
        with Judge(world.settings, world.connections, conn) as judge:
            judgement = judge.judgement(keys)
        kept = Engine().query(
            load("backstop.reconcile", "staged.sql")["kept"], {"judged": judgement.judged_table}
        )
        with (
            closing(connect_staging(world.urls["control"])) as staging,
            staging,
            staging.cursor() as cursor,
        ):
            copy_verdicts(cursor, run.run_id, 0, kept)
            copy_stubs(cursor, run.run_id, 0, judgement.outcome_table)
        promote(world.settings, world.connections, conn, run)
        state = "done"
    finally:
        conn.rollback()
        close_run(conn, run, state, Counts())
        conn.close()


def keys_of(world: System) -> list[Key]:
    return [
        Key(*row)
        for row in world.rows(
            "shop_a", "SELECT topic, message_id FROM message_stub WHERE next_check_at <= now()"
        )
    ]


def columns_of(world: System, database: str, table: str) -> dict[str, str]:
    return dict(
        world.rows(
            database,
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s",
            table,
        )
    )


class OddRows:
    """Puts every odd value that PostgreSQL accepts into every column of a table, a row each."""

    def __init__(self, world: System, database: str, table: str) -> None:
        self._connection = psycopg2.connect(world.urls[database])
        self._connection.autocommit = True
        self.columns, self._table = columns_of(world, database, table), table
        self.put = 0

    def insert(self, table: str, **values: Any) -> bool:
        """Whether PostgreSQL accepts the row."""
        with self._connection.cursor() as cursor:
            try:
                cursor.execute(
                    f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(['%s'] * len(values))})",
                    list(values.values()),
                )
            except psycopg2.Error:
                return False
        self.put += 1
        return True

    def values(self) -> Iterator[tuple[str, Any]]:
        for column, kind in self.columns.items():
            for value in (*OF_TYPE[kind], None):
                yield column, value

    def close(self) -> None:
        self._connection.close()


def put_odd_stubs(world: System, at: Any) -> int:
    rows = OddRows(world, "shop_a", "message_stub")
    usual: dict[str, Any] = {
        "topic": "orders",
        "content": b"{}",
        "send_count": 1,
        "next_check_at": OLD,
        "created_at": at,
        "first_seen_at": at,
        "attempted_at": at,
        "attempt_deadline": at,
        "sent_at": at,
    }
    for number, (column, value) in enumerate(rows.values()):
        rows.insert("message_stub", **{**usual, "message_id": f"odd-stub-{number}", column: value})
        if column in ("attempted_at", "attempt_deadline", "attempt_groups"):
            under_way = {"sent_at": None, "attempt_token": "00000000-0000-0000-0000-000000000001"}
            rows.insert(
                "message_stub",
                **{**usual, **under_way, "message_id": f"odd-under-way-{number}", column: value},
            )
    for status in STATUSES:
        rows.insert("message_stub", **{**usual, "message_id": f"odd-{status}", "status": status})
    # The next number of this one would be no integer.
    rows.insert(
        "message_stub",
        **{
            **usual,
            "message_id": "odd-numbers",
            "send_count": 2**31 - 1,
            "refusals": 1,
            "max_sends": 2**31 - 1,
            "sent_at": None,
        },
    )
    rows.close()
    return rows.put


def put_stubs(world: System, ids: Sequence[str], send_count: int, at: Any) -> None:
    """Sound stubs, for odd rows elsewhere."""
    world.rows(
        "shop_a",
        "INSERT INTO message_stub (topic, message_id, content, send_count, next_check_at, created_at, first_seen_at,"
        " attempted_at, attempt_deadline, sent_at) SELECT 'orders', i, '', %s, %s, %s, %s, %s, %s, %s FROM unnest(%s) AS i",
        send_count,
        *[at] * 6,
        list(ids),
    )


def put_odd_attempts(world: System, at: Any) -> int:
    rows = OddRows(world, "shop_a", "send_attempt")
    values = {f"odd-attempt-{number}": value for number, value in enumerate(rows.values())}
    put_stubs(world, list(values), 2, at)
    usual: dict[str, Any] = {
        "topic": "orders",
        "send_number": 1,
        "requested_by": "test",
        "started_at": at,
        "outcome": "sent",
    }
    for message_id, (column, value) in values.items():
        rows.insert("send_attempt", **{**usual, "message_id": message_id, column: value})
    rows.close()
    return rows.put


def put_odd_logs(world: System, at: Any) -> int:
    world.rows("billing_db", "ALTER TABLE consumer_log DROP CONSTRAINT consumer_log_state_check")
    rows = OddRows(world, "billing_db", "consumer_log")
    usual: dict[str, Any] = {
        "consumer_group": "billing",
        "topic": "orders",
        "first_received_at": at,
        "updated_at": at,
        "lease_expires_at": at,
        "owner_token": "00000000-0000-0000-0000-000000000001",
    }
    for state in ("CONSUMING", "CONSUMED"):
        values = {f"odd-log-{number}-{state}": value for number, value in enumerate(rows.values())}
        put_stubs(world, list(values), 1, at)
        done = {"state": state, "consumed_at": at if state == "CONSUMED" else None}
        for message_id, (column, value) in values.items():
            rows.insert(
                "consumer_log", **{**usual, **done, "message_id": message_id, column: value}
            )
    rows.close()
    return rows.put


def test_odd_values_of_other_messages_stop_no_repair(world: System) -> None:
    ((at,),) = world.rows("control", "SELECT now() - interval '30 minutes'")
    put = [put_odd_stubs(world, at), put_odd_attempts(world, at), put_odd_logs(world, at)]
    assert min(put) > 50, put
    for message_id in ("lost", "lost-later"):
        key = lose(world, message_id)
        reconcile(world, keys_of(world))
        assert (key.message_id, 2) in asked(world)
        # Judged again at once, as if every horizon had come.
        world.rows(
            "shop_a",
            "UPDATE message_stub SET next_check_at = now() WHERE message_id LIKE 'odd%%' AND status = 'pending'",
        )
    looks = world.rows(
        "control", "SELECT max(next_look_at) < now() + interval '1 hour' FROM verdict"
    )
    assert looks == [(True,)], "no look lies beyond the replay horizon of 45 minutes"


def test_odd_values_of_other_messages_stop_no_run_of_spark_and_break_no_check(
    world: System, spark: Any, tmp_path: Path
) -> None:
    """The same through the scans and the packed tables; a check that fails would stop the run's promotion."""
    ((at,),) = world.rows("control", "SELECT now() - interval '30 minutes'")
    put_odd_stubs(world, at)
    put_odd_attempts(world, at)
    put_odd_logs(world, at)
    broken: dict[str, Any] = {}

    def audit(run: Run, suites: Sequence[str]) -> None:
        repaired = ("orders", "payments")
        url = world.urls["control"]
        for suite in suites:
            broken.update(broken_checks(suite, url, run.run_id, tmp_path, repair_topics=repaired))

    for message_id in ("lost", "lost-later"):
        lose(world, message_id)
        run_once(world.settings, world.connections, lambda: spark, audit)
        assert (message_id, 2) in asked(world)
        assert not broken
        world.rows(
            "shop_a",
            "UPDATE message_stub SET next_check_at = now() WHERE message_id LIKE 'odd%%' AND status = 'pending'",
        )


def test_an_offset_that_a_log_only_claims_moves_its_group_past_nothing(
    postgres: Postgres, valkey: Valkey
) -> None:
    """Of a group whose progress is what it logged, a row of another message names an offset that was never stored."""
    usual = {"store": "shipping_db", "duplicates": "guard", "progress": "acknowledged"}
    groups = {
        "billing": {**usual, "store": "billing_db", "progress": "logged"},
        "shipping": usual,
    }
    with system(postgres, valkey, groups=groups) as world:
        keys = [world.sent(f"fresh-{number}") for number in range(6)]
        lives = world.rows("shop_a", "SELECT DISTINCT queue_id, queue_epoch FROM message_stub")
        for queue_id, epoch in lives:
            odd = world.stub(f"odd-{queue_id}")
            world.log(odd, queue_id=queue_id, queue_epoch=epoch, queue_offset=2**62)
        conn = world.control()
        run = open_run(conn, "reconcile", "*", world.settings)
        with Sources(world.settings, world.connections) as sources, conn, conn.cursor() as cursor:
            record_looks(cursor, run, read_groups(sources, cursor, run.as_of, {"orders"}))
            # As if the settle grace had gone by since.
            cursor.execute("UPDATE progress_history SET recorded_at = recorded_at - interval '1 h'")
        close_run(conn, run, "done", Counts())
        with Judge(world.settings, world.connections, conn) as judge:
            judged = judge.judge(keys)
        conn.close()
        found = {(one.verdict, one.reason) for one in judged if one.consumer_group == "billing"}
        assert found == {("BACKLOGGED", "ahead_of_group")}


def break_group_and_shard(world: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything about group shipping and shard shop_b raises what nobody foresaw."""

    def raising(owner: type, name: str, is_broken: Any) -> None:
        whole = getattr(owner, name)

        def maybe(self: Any, *arguments: Any, **options: Any) -> Any:
            if is_broken(self, *arguments):
                raise Odd(f"{name} of {arguments}")
            return whole(self, *arguments, **options)

        monkeypatch.setattr(owner, name, maybe)

    for name in ("progress", "list_retries"):
        raising(RedisStreams, name, lambda _, topic, group, *__: group == "shipping")
    raising(RedisStreams, "dead_letters", lambda _, group: group == "shipping")
    for name in ("clock", "floor", "log_table", "highest_logged", "received_between"):
        raising(PostgresLogs, name, lambda logs, *_: "shipping" in repr(logs))
    for name in (
        "clock",
        "count_due",
        "scan_due",
        "stub_table",
        "attempt_table",
        "recover",
        "promote",
    ):
        raising(PostgresStubs, name, lambda stubs, *_: stubs.shard == "shop_b")


def test_a_group_and_a_shard_that_fail_in_an_unforeseen_way_stop_no_repair(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(world, "not-read", shard="shop_b")
    break_group_and_shard(world, monkeypatch)
    for message_id in ("first", "second"):
        key = lose(world, message_id)
        reconcile(world, [key, Key("orders", "not-read")])
        assert (message_id, 2) in asked(world)
    assert world.rows("control", "SELECT DISTINCT groups FROM resend_request") == [(["billing"],)]
    assert world.rows(
        "control", "SELECT DISTINCT verdict FROM verdict WHERE consumer_group = 'shipping'"
    ) == [("UNKNOWN",)]


@pytest.mark.parametrize(
    ("owner", "method", "part"),
    [
        (RedisStreams, "progress", "shipping"),
        (RedisStreams, "list_retries", "shipping"),
        (RedisStreams, "dead_letters", "shipping"),
        (PostgresLogs, "clock", "shipping_db"),
        (PostgresLogs, "floor", "shipping_db"),
        (PostgresLogs, "log_table", "shipping_db"),
        (PostgresStubs, "stub_table", "shop_b"),
        (PostgresStubs, "clock", "shop_b"),
    ],
)
def test_what_fails_of_one_group_or_shard_is_unknown_of_it_alone_at_a_claim(
    world: System, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, part: str
) -> None:
    key = lose(world, "lost")
    whole = getattr(owner, method)

    def maybe(self: Any, *arguments: Any, **options: Any) -> Any:
        if part in (*arguments, getattr(self, "shard", None)) or part in repr(self):
            raise Odd(method)
        return whole(self, *arguments, **options)

    monkeypatch.setattr(owner, method, maybe)
    conn = world.control()
    with Judge(world.settings, world.connections, conn) as judge:
        judgement = judge.judgement([key])
    conn.close()
    verdicts = {one.consumer_group: one.verdict for one in judgement.judged}
    assert verdicts == {"billing": "LOST", "shipping": "LOST" if part == "shop_b" else "UNKNOWN"}
    assert len(judgement.unreachable) == 1


@pytest.mark.parametrize(
    "owes",
    [True, False],
    ids=["a group that owes the message", "a group that was retired before it"],
)
def test_a_claim_waits_only_for_the_groups_that_it_needs(
    postgres: Postgres, valkey: Valkey, owes: bool
) -> None:
    """The broker does not know group shipping: billing's copy goes out nevertheless."""
    shipping = {"store": "shipping_db", "duplicates": "guard", "progress": "acknowledged"}
    groups = {
        "billing": {**shipping, "store": "billing_db"},
        "shipping": shipping if owes else {**shipping, "active_until": OLD},
    }
    with system(postgres, valkey, groups=groups) as world:
        key = lose(world, "lost")
        client = redis.Redis.from_url(world.urls["broker"])
        for queue in range(2):
            client.xgroup_destroy(Keys().stream("orders", queue), "shipping")
        conn = world.control()
        with conn, conn.cursor() as cursor:
            ask(
                cursor,
                [
                    Ask(
                        "shop_a",
                        "orders",
                        key.message_id,
                        2,
                        ("billing",),
                        "passed_over",
                        "reconcile",
                    )
                ],
                None,
            )
        conn.close()
        with (
            pytest.raises(Unavailable, match="group shipping of topic orders")
            if owes
            else nullcontext()
        ):
            resend(world.settings, world.connections)
        assert world.rows("shop_a", "SELECT send_count FROM message_stub") == [(2,)]
        assert world.rows("control", "SELECT state, groups FROM resend_request") == [
            ("sent", ["billing"])
        ]


def test_a_claim_reads_only_the_dead_letters_that_came_since_the_last_one(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [lose(world, message_id) for message_id in ("first", "second", "third", "fourth")]
    client = redis.Redis.from_url(world.urls["broker"])
    whole = RedisStreams.dead_letters
    read: list[str | None] = []

    def counted(self: Any, group: str, **options: Any) -> Iterator[DeadLetterRef]:
        for dead_letter in whole(self, group, **options):
            read.append(dead_letter.message_id)
            yield dead_letter

    monkeypatch.setattr(RedisStreams, "dead_letters", counted)

    def bury(*message_ids: str) -> list[Any]:
        fields = {"origin-topic": "orders", "origin-group": "billing"}
        return [
            client.xadd(
                Keys().dead("orders", "billing"),
                {"headers": json.dumps({ID_HEADER: one}), **fields},
            )
            for one in message_ids
        ]

    conn = world.control()
    with Judge(world.settings, world.connections, conn) as judge:

        def judged(key: Key) -> tuple[str, list[str | None]]:
            read.clear()
            verdicts = {one.consumer_group: str(one.verdict) for one in judge.judge([key])}
            return verdicts["billing"], list(read)

        _, _, third = bury("other-1", "other-2", "third")
        assert judged(keys[0]) == ("LOST", ["other-1", "other-2", "third"])
        assert judged(keys[1]) == ("LOST", [])
        bury("other-3", "second")
        assert judged(keys[1]) == ("DEAD_LETTERED", ["other-3", "second"])
        assert judged(keys[2]) == (
            "DEAD_LETTERED",
            ["other-1", "other-2", "third", "other-3", "second"],
        )
        # Drained and decided since: what is remembered only rules out.
        client.xdel(Keys().dead("orders", "billing"), third)
        assert judged(keys[2]) == ("LOST", ["other-1", "other-2", "other-3", "second"])
        # A queue that begins anew is read from its beginning.
        client.delete(Keys().dead("orders", "billing"))
        client.xadd(
            Keys().dead("orders", "billing"),
            {"headers": json.dumps({ID_HEADER: "fourth"})},
            id="1-1",
        )
        assert judged(keys[3]) == ("DEAD_LETTERED", ["fourth"])
    conn.close()


def test_a_message_that_fails_again_and_again_hides_no_loss(world: System) -> None:
    """On Redis Streams it stays in the topic's own queue, unacknowledged: its id is known, and the group is past the others."""
    poison = [world.sent(f"poison-{number}") for number in range(8)]
    queues = world.rows("shop_a", "SELECT DISTINCT queue_id FROM message_stub ORDER BY queue_id")
    assert queues == [(0,), (1,)], "one in front of what is lost, wherever that goes"
    lost = world.sent("lost")
    subscription = world.broker.subscribe("billing", ["orders"], "worker")
    for round_ in range(3):
        received = subscription.fetch(100, timedelta(seconds=2))
        while len(received) < 9 - min(round_, 1):
            received += subscription.fetch(100, timedelta(seconds=2))
        subscription.acknowledge([one for one in received if one.message.key == lost])
        for one in received:
            if one.message.key != lost:
                subscription.hand_back(one, after=timedelta(0), counts=True)
    world.consume("shipping")
    for number in range(2):
        conn = world.control()
        with Judge(world.settings, world.connections, conn) as judge:
            judged = judge.judge([*poison, lost])
        conn.close()
        found = {
            (one.key, str(one.verdict), one.reason)
            for one in judged
            if one.consumer_group == "billing"
        }
        assert found == {
            (lost, "LOST", "passed_over"),
            *((key, "BACKLOGGED", "unacknowledged") for key in poison),
        }
        reconcile(world, [*poison, lost])
        assert asked(world) == {("lost", 2)}, number
        world.rows("shop_a", "UPDATE message_stub SET next_check_at = now() - interval '1 s'")
    subscription.close()


def test_the_first_life_of_a_queue_is_accepted_only_where_no_open_copy_has_another(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the control database was lost, or is new: it has seen no queue before."""
    lose(world, "lost")
    key = lose(world, "before")
    ((queue_id,),) = world.rows(
        "shop_a",
        "UPDATE message_stub SET queue_epoch = 'an older life' WHERE message_id = 'before'"
        " RETURNING queue_id",
    )

    def accepted() -> dict[int, bool]:
        conn = world.control()
        with Sources(world.settings, world.connections) as sources, conn, conn.cursor() as cursor:
            looks = read_groups(sources, cursor, datetime.now(UTC), {"orders"})
        conn.close()
        return {number: queue.accepted for number, queue in looks.queues["orders"].items()}

    assert accepted() == {queue_id: False, 1 - queue_id: True}
    conn = world.control()
    with Judge(world.settings, world.connections, conn) as judge:
        judged = {(one.verdict, one.reason, one.case_kind) for one in judge.judge([key])}
    conn.close()
    assert judged == {("UNKNOWN", "new_epoch", "new_epoch")}
    world.rows("shop_a", "UPDATE message_stub SET status = 'confirmed' WHERE message_id = 'before'")
    assert accepted() == {0: True, 1: True}
    whole = PostgresStubs.lives
    monkeypatch.setattr(
        PostgresStubs,
        "lives",
        lambda store, topic: 1 / 0 if store.shard == "shop_b" else whole(store, topic),
    )
    assert accepted() == {0: False, 1: False}, "a shard that does not answer may have such a copy"


def test_half_a_surrogate_pair_in_the_id_of_a_dead_letter_hides_nothing_else(world: System) -> None:
    key = lose(world, "lost")
    client = redis.Redis.from_url(world.urls["broker"])
    headers = b'{"backstop-message-id": "a\\ud800"}'
    client.xadd(
        Keys().dead("orders", "billing"),
        {"headers": headers, "origin-topic": "orders", "origin-group": "billing"},
    )
    with RedisStreams(world.urls["broker"]) as broker:
        assert [letter.message_id for letter in broker.dead_letters("billing")] == [None]
    conn = world.control()
    with Judge(world.settings, world.connections, conn) as judge:
        judgement = judge.judgement([key])
    conn.close()
    assert [one.verdict for one in judgement.judged] == [
        "LOST",
        "LOST",
    ] and not judgement.unreachable


def answering(whole: Any, is_odd: Any, given: dict[str, Any]) -> Any:
    """A method of a broker that answers with `given` about what is odd."""

    def answer(broker: Any, *about: str) -> Any:
        found = whole(broker, *about)
        return [replace(one, **given) for one in found] if is_odd(*about) else found

    return answer


@pytest.mark.parametrize(
    "odd",
    [
        {"next_offset": 2**63},
        {"next_offset": -1},
        {"queue_id": 2**31},
        {"epoch": "a\x00"},
        {"epoch": "a\ud800"},
        {"instant": datetime.max.replace(tzinfo=UTC)},
        {"instant": datetime(2026, 1, 1)},
    ],
    ids=str,
)
def test_what_a_broker_cannot_mean_is_unknown_of_its_group_or_topic_alone(
    world: System, monkeypatch: pytest.MonkeyPatch, odd: dict[str, Any]
) -> None:
    """Of a group of this topic, and of another topic: both would be recorded beside what is good."""
    key = lose(world, "lost")
    elsewhere = world.sent("elsewhere", topic="payments")
    for method, instant, is_odd in (
        ("progress", "passed_until", lambda topic, group="": group == "shipping"),
        ("queues", "read_at", lambda topic, group="": topic == "payments"),
    ):
        given = {instant if name == "instant" else name: value for name, value in odd.items()}

        answer = answering(getattr(RedisStreams, method), is_odd, given)
        monkeypatch.setattr(RedisStreams, method, answer)
    conn = world.control()
    run = open_run(conn, "reconcile", "*", world.settings)
    with Sources(world.settings, world.connections) as sources, conn, conn.cursor() as cursor:
        record_looks(cursor, run, read_groups(sources, cursor, run.as_of, {"orders", "payments"}))
        assert any("cannot be" in why for why in sources.unreachable.values())
    close_run(conn, run, "done", Counts())
    recorded = "SELECT DISTINCT topic, consumer_group FROM progress"
    assert world.rows("control", recorded) == [("orders", "billing")]
    with Judge(world.settings, world.connections, conn) as judge:
        judged = {
            (one.topic, one.consumer_group): str(one.verdict)
            for one in judge.judge([key, elsewhere])
        }
    conn.close()
    assert judged.pop(("orders", "billing")) == "LOST"
    assert set(judged.values()) == {"UNKNOWN"}


def stage(
    world: System, run_id: int, key: Key, shard: str, new_status: str, **columns: Any
) -> None:
    """What a judge staged of a stub in the run, and that its checks passed."""
    given = {
        "run_id": run_id,
        "stage": 0,
        "shard": shard,
        **key._asdict(),
        "old_status": "pending",
        "new_status": new_status,
        "send_count": 1,
        "deliveries": 2,
        **columns,
    }
    world.rows(
        "control",
        f"INSERT INTO staged_stub ({', '.join(given)}) VALUES ({', '.join(['%s'] * len(given))})",
        *given.values(),
    )


def promote_lost(world: System, message_id: str) -> None:
    """A run that found one message lost; raises what its promotion raises."""
    key = world.sent(message_id)
    conn = world.control()
    run = open_run(conn, "reconcile", "*", world.settings)
    stage(world, run.run_id, key, "shop_a", "pending")
    for group in ("billing", "shipping"):
        world.rows(
            "control",
            "INSERT INTO staged_verdict (run_id, stage, shard, topic, message_id, consumer_group, verdict,"
            " reason, eligible, send_count, evidence)"
            " VALUES (%s, 0, 'shop_a', %s, %s, %s, 'LOST', 'passed_over', true, 1, '{}')",
            run.run_id,
            *key,
            group,
        )
    state: EndState = "failed"
    try:
        promote(world.settings, world.connections, conn, run)
        state = "done"
    finally:
        close_run(conn, run, state, Counts())
        conn.close()


TROUBLES = {
    # what is wrong with an earlier run: (its shard, further columns of its staged row, whether this run says so)
    "a shard that is configured no longer": ("shop_z", {}, False),
    "a row that the shard refuses": ("shop_b", {}, True),
    "a look in the year 10000": ("shop_b", {"next_look_at": "10000-01-01 00:00:00+00"}, False),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_an_earlier_run_never_stops_the_promotion_of_this_one(world: System, trouble: str) -> None:
    shard, columns, is_told = TROUBLES[trouble]
    conn = world.control()
    earlier = open_run(conn, "reconcile", "*", world.settings)
    good, odd = world.sent("good", shard="shop_b"), world.sent("odd", shard="shop_b")
    stage(world, earlier.run_id, good, "shop_b", "confirmed")
    stage(world, earlier.run_id, odd, shard, "confirmed" if is_told else "pending", **columns)
    world.rows(
        "control",
        "INSERT INTO verdict_count VALUES (%s, 'orders', 'billing', 'CONFIRMED', 2, 0, 2)",
        earlier.run_id,
    )
    close_run(conn, earlier, "failed", {}, error="cut off")
    conn.close()
    if is_told:
        world.rows(
            "shop_b",
            """
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;
            CREATE TRIGGER refuse BEFORE UPDATE ON message_stub FOR EACH ROW WHEN (NEW.message_id = 'odd')
                EXECUTE FUNCTION refuse()
            """,
        )
        with pytest.raises(PromotionFailed, match="not this one"):
            promote_lost(world, "lost-1")
    else:
        promote_lost(world, "lost-1")
    promote_lost(world, "lost-2")
    assert asked(world) == {("lost-1", 2), ("lost-2", 2)}
    assert world.rows("control", "SELECT state FROM run WHERE run_id = %s", earlier.run_id) == [
        ("done",)
    ]
    assert world.rows("control", "SELECT count(*) FROM staged_stub") == [(0,)]
    statuses = dict(world.rows("shop_b", "SELECT message_id, status FROM message_stub"))
    assert statuses == {"good": "confirmed", "odd": "pending"}


def test_an_older_judgement_never_overrides_a_newer_one_but_with_a_proof(world: System) -> None:
    conn = world.control()
    earlier = open_run(conn, "reconcile", "*", world.settings)
    close_run(conn, earlier, "failed", {}, error="cut off")
    world.rows(
        "control",
        "INSERT INTO verdict_count VALUES (%s, 'orders', 'billing', 'CONFIRMED', 2, 0, 2)",
        earlier.run_id,
    )
    for status in ("confirmed", "no_taker", "exhausted"):
        key = world.stub(status)
        world.rows(
            "shop_a", "UPDATE message_stub SET judged_at = now() WHERE message_id = %s", status
        )
        stage(world, earlier.run_id, key, "shop_a", status)
    conn.close()
    promote_lost(world, "lost")
    found = dict(
        world.rows(
            "shop_a", "SELECT message_id, status FROM message_stub WHERE message_id <> 'lost'"
        )
    )
    assert found == {"confirmed": "confirmed", "no_taker": "pending", "exhausted": "pending"}


REFUSES = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON message_stub FOR EACH ROW WHEN (NEW.message_id = 'odd' {when})
    EXECUTE FUNCTION refuse()
"""
"""Another program's trigger: the shard answers, and refuses every change of one row."""


def leave_under_way(world: System) -> None:
    """As their producers died: nobody settled any of them."""
    world.rows("shop_a", "DELETE FROM send_attempt")
    world.rows(
        "shop_a",
        "UPDATE message_stub SET attempt_token = gen_random_uuid(), sent_at = NULL, queue_id = NULL,"
        " queue_offset = NULL, queue_epoch = NULL",
    )


def ask_for(world: System, *message_ids: str) -> None:
    conn = world.control()
    with conn, conn.cursor() as cursor:
        asks = [
            Ask("shop_a", "orders", one, 2, None, "passed_over", "reconcile") for one in message_ids
        ]
        ask(cursor, asks, None)
    conn.close()


def test_an_attempt_that_its_shard_refuses_to_recover_keeps_no_other_from_it(world: System) -> None:
    keys = [world.sent(message_id) for message_id in ("before", "odd", "sent")]
    leave_under_way(world)
    world.rows("shop_a", REFUSES.format(when=""))
    with Sources(world.settings, world.connections) as sources:
        recovered = recover_attempts(sources)
    assert recovered.attempts == 2 and not recovered.failed
    ((subject, why),) = recovered.missed().items()
    assert subject == "1 attempts of shard shop_a" and "not this one" in why
    left = "SELECT message_id FROM message_stub WHERE attempt_token IS NOT NULL"
    assert world.rows("shop_a", left) == [("odd",)]
    for group in ("billing", "shipping"):
        world.consume(group)
    with pytest.raises(PromotionFailed, match="not this one"):
        reconcile(world, keys)
    statuses = dict(world.rows("shop_a", "SELECT message_id, status FROM message_stub"))
    assert statuses == {"before": "confirmed", "odd": "pending", "sent": "confirmed"}


@pytest.mark.parametrize(
    ("when", "sends", "states"),
    [
        ("", {"before": 2, "odd": 1, "sent": 2}, {"before": "sent", "odd": "open", "sent": "sent"}),
        (
            "AND NEW.attempt_token IS NULL",
            {"before": 2, "odd": 2, "sent": 2},
            {"before": "sent", "odd": "unknown", "sent": "sent"},
        ),
    ],
    ids=["to claim", "to settle"],
)
def test_a_row_that_its_shard_refuses_holds_back_no_other_resend(
    world: System, when: str, sends: dict[str, int], states: dict[str, str]
) -> None:
    for message_id in sends:
        lose(world, message_id)
    world.rows("shop_a", REFUSES.format(when=when))
    ask_for(world, *sends)
    refused = states["odd"] == "open"
    with pytest.raises(Unavailable, match="not this one"):
        resend(world.settings, world.connections)
    found = dict(world.rows("shop_a", "SELECT message_id, send_count FROM message_stub"))
    assert found == sends
    found = dict(world.rows("control", "SELECT message_id, state FROM resend_request"))
    assert found == states
    settled = dict(world.rows("shop_a", "SELECT message_id, sent_at IS NOT NULL FROM message_stub"))
    assert settled["before"] and settled["sent"]
    if refused:
        # The next run takes what is due, and leaves the odd one until its time comes again.
        lose(world, "later")
        ask_for(world, "later")
        resend(world.settings, world.connections)
        found = dict(world.rows("control", "SELECT message_id, state FROM resend_request"))
        assert found == {**states, "later": "sent"}


def test_what_a_mass_loss_asks_a_person_about_is_not_sent_by_a_request_from_before_it(
    world: System,
) -> None:
    for message_id in ("asked", "other"):
        lose(world, message_id)
    ask_for(world, "asked", "other")
    world.rows(
        "control",
        "WITH c AS (INSERT INTO case_file (kind, topic, consumer_group, summary) VALUES ('mass_loss', 'orders', 'billing', 's')"
        " RETURNING case_id) INSERT INTO case_member (case_id, shard, topic, message_id, consumer_group)"
        " SELECT case_id, 'shop_a', 'orders', 'asked', 'billing' FROM c",
    )
    resend(world.settings, world.connections)
    states = dict(world.rows("control", "SELECT message_id, state FROM resend_request"))
    assert states == {"asked": "not_needed", "other": "sent"}
    sends = dict(world.rows("shop_a", "SELECT message_id, send_count FROM message_stub"))
    assert sends == {"asked": 1, "other": 2}


def test_a_promotion_that_missed_a_row_keeps_no_anomaly_from_being_found(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    missed = PromotionFailed("1 stubs of shard shop_a: not this one", unaffected="", next_step="")
    monkeypatch.setattr("backstop.reconcile.run_once.promote", Mock(side_effect=missed))
    world.log(Key("orders", "nobody-promised"), first_received_at="2026-01-01")
    with closing(world.control()) as conn:
        run = open_run(conn, "reconcile", "*", world.settings)
        work = Work(
            RECONCILE, world.settings, world.connections, conn, run, ReconcileInput(lambda: None)
        )
        with pytest.raises(PromotionFailed):
            do_step(work, "promote")
        close_run(conn, run, "failed", Counts())
    found = world.rows("control", "SELECT kind, message_id FROM anomaly")
    assert found == [("ORPHAN", "nobody-promised")]


@contextmanager
def holding(world: System, message_ids: Sequence[str]) -> Iterator[None]:
    """Somebody's transaction holds these rows of shop_a, and goes on doing so."""
    with closing(psycopg2.connect(world.urls["shop_a"])) as theirs, theirs.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM message_stub WHERE message_id = ANY (%s) FOR UPDATE",
            (list(message_ids),),
        )
        yield


def test_rows_that_another_transaction_holds_hold_back_no_other_resend(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locked_rows, "LOCK_TIMEOUT", timedelta(seconds=0.2))
    held = [f"held-{number:02}" for number in range(MOST + 5)]
    for message_id in ("a-first", *held, "z-last"):
        lose(world, message_id)
    ask_for(world, "a-first", *held, "z-last")
    with holding(world, held), pytest.raises(Unavailable, match="Another transaction holds 25"):
        resend(world.settings, world.connections)
    sent = "SELECT message_id FROM message_stub WHERE send_count = 2 ORDER BY 1"
    assert world.rows("shop_a", sent) == [("a-first",), ("z-last",)]
    states = "SELECT state, count(*)::int FROM resend_request GROUP BY 1 ORDER BY 1"
    assert world.rows("control", states) == [("open", len(held)), ("sent", 2)]
    # Their transaction is over, and their time has come again.
    world.rows("control", "UPDATE resend_request SET not_before = now() WHERE state = 'open'")
    resend(world.settings, world.connections)
    assert world.rows("control", states) == [("sent", len(held) + 2)]
    attempts = "SELECT max(send_number), count(*)::int FROM send_attempt WHERE send_number > 1"
    assert world.rows("shop_a", attempts) == [(2, len(held) + 2)]


def test_rows_that_another_transaction_holds_hold_back_no_other_promotion(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locked_rows, "LOCK_TIMEOUT", timedelta(seconds=0.2))
    keys = [world.sent(message_id) for message_id in ("before", "held", "sent")]
    for group in ("billing", "shipping"):
        world.consume(group)
    with holding(world, ["held"]):
        with pytest.raises(StoreUnavailable, match="holds 1 row of shard shop_a"):
            reconcile(world, keys)
        with PostgresStubs("shop_a", world.urls["shop_a"]) as shop:
            given_up = StubOutcome(keys[1], "pending", "exhausted", 1, None)
            with pytest.raises(RowsLocked) as caught:
                shop.promote([given_up], datetime.now(UTC))
        assert caught.value.unaffected == "These rows are as they were."
    statuses = dict(world.rows("shop_a", "SELECT message_id, status FROM message_stub"))
    assert statuses == {"before": "confirmed", "held": "pending", "sent": "confirmed"}
    reconcile(world, keys[1:2])
    statuses = dict(world.rows("shop_a", "SELECT message_id, status FROM message_stub"))
    assert set(statuses.values()) == {"confirmed"}


def test_a_row_at_fault_says_so_beside_one_that_somebody_holds(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locked_rows, "LOCK_TIMEOUT", timedelta(seconds=0.2))
    for message_id in ("held", "odd"):
        lose(world, message_id)
    ask_for(world, "held", "odd")
    world.rows("shop_a", REFUSES.format(when=""))
    with holding(world, ["held"]), pytest.raises(Unavailable):
        resend(world.settings, world.connections)
    said = dict(world.rows("control", "SELECT message_id, error FROM resend_request"))
    assert "not this one" in said["odd"] and "Another transaction" in said["held"]


def test_the_outcome_of_a_copy_whose_row_was_held_for_a_moment_is_kept() -> None:
    class Held:
        """A store of which one row is held, the first time or always."""

        def __init__(self, times: int) -> None:
            self.times = times

        def settle(self, some: Sequence[Settlement]) -> set[Key]:
            keys = {one.key for one in some}
            if self.times and Key("orders", "b") in keys:
                self.times -= 1
                raise RowsLocked.of("shard shop_a", [Key("orders", "b")])
            return keys

    requests = {
        number: Request(number, Key("orders", name), 2, None, "passed_over", "reconcile")
        for number, name in enumerate("ab")
    }
    receipts = {n: Receipt(Outcome.SENT, Position(0, n, "e")) for n in requests}
    for times, second in ((1, Outcome.SENT), (9, Outcome.UNKNOWN)):
        refused: list[tuple[Settlement, StoreFailed]] = []
        store: Any = Held(times)
        found = settle_attempts(
            store, "t", "embedded", timedelta(seconds=1), requests, receipts, refused
        )
        assert found == {0: Outcome.SENT, 1: second}
        assert [one.key.message_id for one, _ in refused] == ["b"] * (second is Outcome.UNKNOWN)


def test_a_table_that_is_locked_is_a_shard_that_does_not_answer(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locked_rows, "LOCK_TIMEOUT", timedelta(seconds=0.2))
    key = world.sent("sent")
    outcome = StubOutcome(key, "pending", "confirmed", 1, None)
    with closing(psycopg2.connect(world.urls["shop_a"])) as theirs:
        theirs.cursor().execute("LOCK TABLE message_stub")
        shop = PostgresStubs("shop_a", world.urls["shop_a"], patience=timedelta(seconds=1))
        with closing(shop), pytest.raises(StoreUnavailable) as caught:
            shop.promote([outcome], datetime.now(UTC))
    assert not isinstance(caught.value, StoreFailed), "no row is at fault"
    assert world.rows("shop_a", "SELECT status FROM message_stub") == [("pending",)]


def test_a_group_whose_own_budget_is_larger_is_sent_to_beyond_that_of_its_topic(
    world: System,
) -> None:
    written = world.settings.model_dump(exclude_unset=True)
    written["policy"]["max_sends"] = 1
    written["groups"]["billing"]["policy"] = {"max_sends": 2}
    world.settings = Settings.model_validate(written)
    lose(world, "lost")
    ask_for(world, "lost")
    resend(world.settings, world.connections)
    assert world.rows("control", "SELECT state FROM resend_request") == [("sent",)]
    attempt = "SELECT groups, outcome FROM send_attempt WHERE send_number = 2"
    assert world.rows("shop_a", attempt) == [(["billing"], "sent")]


def test_a_topic_that_its_broker_cannot_answer_for_stops_the_resends_of_no_other(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(world, "lost")
    world.sent("elsewhere", topic="payments")
    world.rows("shop_a", "UPDATE message_stub SET attempted_at = attempted_at - interval '1 hour'")
    ask_for(world, "lost")
    conn = world.control()
    with closing(conn), conn, conn.cursor() as cursor:
        asked = Ask("shop_a", "payments", "elsewhere", 2, None, "passed_over", "reconcile")
        ask(cursor, [asked], None)
    odd = answering(RedisStreams.queues, lambda topic: topic == "payments", {"next_offset": -1})
    monkeypatch.setattr(RedisStreams, "queues", odd)
    monkeypatch.setattr(send_claimed, "FRESH_SECONDS", 600.0)  # on whatever machine
    with pytest.raises(Unavailable, match="payments"):
        resend(world.settings, world.connections)
    found = dict(world.rows("control", "SELECT message_id, state FROM resend_request"))
    why = world.rows("control", "SELECT message_id, error FROM resend_request")
    assert found == {"lost": "sent", "elsewhere": "open"}, why
    found = dict(world.rows("shop_a", "SELECT message_id, send_count FROM message_stub"))
    assert found == {"lost": 2, "elsewhere": 1}


def test_an_exhausted_row_that_its_shard_refuses_keeps_no_other_from_being_confirmed(
    world: System,
) -> None:
    for message_id in ("before", "odd", "sent"):
        world.sent(message_id)
    world.rows("shop_a", "UPDATE message_stub SET status = 'exhausted'")
    for group in ("billing", "shipping"):
        world.consume(group)
    world.rows("shop_a", REFUSES.format(when=""))
    conn = world.control()
    run = open_run(conn, "reconcile", "*", world.settings)
    with pytest.raises(Unavailable, match="not this one"):
        revisit_cases(world.settings, world.connections, conn, run)
    conn.rollback()
    close_run(conn, run, "failed", Counts())
    conn.close()
    statuses = dict(world.rows("shop_a", "SELECT message_id, status FROM message_stub"))
    assert statuses == {"before": "confirmed", "odd": "exhausted", "sent": "confirmed"}


def test_an_attempt_that_nobody_settled_is_closed_without_any_resend_run(
    postgres: Postgres, valkey: Valkey
) -> None:
    """In mode observe, the default, nothing is ever due for a resend run: reconcile alone recovers."""
    observed = {"orders": {"broker": "embedded", "groups": ["billing", "shipping"]}}
    with system(postgres, valkey, topics=observed) as world:
        assert world.settings.topics["orders"].mode == "observe"
        key = world.sent("crashed")
        world.rows("shop_a", "DELETE FROM send_attempt")
        world.rows(
            "shop_a",
            "UPDATE message_stub SET attempt_token = gen_random_uuid(), sent_at = NULL, queue_id = NULL,"
            " queue_offset = NULL, queue_epoch = NULL WHERE message_id = %s",
            key.message_id,
        )
        world.consume("billing")
        world.consume("shipping")
        reconcile(world, [key])
        found = world.rows(
            "shop_a",
            "SELECT s.status, s.attempt_token, a.outcome"
            " FROM message_stub s JOIN send_attempt a USING (topic, message_id)",
        )
        assert found == [("confirmed", None, "unknown")]
        ((now,),) = world.rows("control", "SELECT now()")
        assert count_due(world.settings, world.connections, now).total == 0
