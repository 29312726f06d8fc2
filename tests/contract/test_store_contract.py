"""What every store of stubs must hold: each change is a compare-and-set, and silence is never "no row"."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, TypeVar

import psycopg2
import pytest

from backstop.model.errors import ContractBroken, RunLost, StoreFailed, StoreUnavailable
from backstop.model.records import EARLIEST, LATEST, Key, Outcome, Position
from backstop.stores.postgresql import scan as postgresql_scan
from backstop.stores.protocol import (
    ATTEMPT_COLUMNS,
    STUB_COLUMNS,
    Claim,
    Life,
    Part,
    Scope,
    Settlement,
    StubOutcome,
    StubStore,
)
from backstop.verdicts.frames import micros
from maria_world import MariaStubWorld
from store_world import NOW, PASSWORD, WORLDS, PostgresWorld, token

T = TypeVar("T")
KEY = Key("orders", "m-1")
ODD = [
    "plain",
    "with:colon",
    "per%cent%(x)s",
    "it's",
    '"double"',
    "back\\slash",
    "líne\nbreak",
    "emoji-🚚",
    "{a,b}",
    "?$1{fn}",
    "NULL",
    " ",
    "'); DROP TABLE message_stub; --",
    "\u202ertl",
]
MICROSECOND = timedelta(microseconds=1)
in_postgresql = pytest.mark.parametrize(
    "running", [PostgresWorld], indirect=True, ids=["PostgresWorld"]
)


@pytest.fixture(scope="module", params=[*WORLDS, MariaStubWorld], ids=lambda world: world.__name__)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PostgresWorld]:
    world = request.param(tmp_path_factory.mktemp("store"))
    world.start()
    yield world
    world.stop()


@pytest.fixture
def world(running: PostgresWorld) -> PostgresWorld:
    running.empty()
    return running


@pytest.fixture
def store(world: PostgresWorld) -> Iterator[StubStore]:
    with world.stubs() as opened:
        yield opened


def claim_of(key: Key = KEY, **changes: Any) -> Claim:
    base = Claim(
        key=key,
        send_number=2,
        token=token(),
        groups=None,
        requested_by="request 7",
        attempt_seconds=120,
        next_check_seconds=180,
        max_sends=5,
        max_refusals=20,
        only_when_due=True,
    )
    return base._replace(**changes)


def at_once(world: PostgresWorld, *work: Callable[[StubStore], T]) -> list[T]:
    """Each piece of work in a thread and on a store of its own, all begun together."""
    together, results, errors = threading.Barrier(len(work)), {}, []

    def one(number: int, piece: Callable[[StubStore], T]) -> None:
        try:
            with world.stubs() as store:
                store.clock()
                together.wait(60)
                results[number] = piece(store)
        except BaseException as error:  # noqa: BLE001 - told to the test below
            errors.append(error)

    threads = [threading.Thread(target=one, args=item) for item in enumerate(work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors, errors
    return [results[number] for number in range(len(work))]


# Looking


def test_a_stub_is_due_at_exactly_its_instant_and_not_a_microsecond_before(
    world: PostgresWorld, store: StubStore
) -> None:
    world.put_stub(next_check_at=NOW)
    assert store.count_due(NOW, Scope(), 10) == 1
    assert store.count_due(NOW - MICROSECOND, Scope(), 10) == 0
    assert [len(part) for part in world.read(store.scan_due(NOW, Scope(), 4))] == [1]
    assert not any(world.read(store.scan_due(NOW - MICROSECOND, Scope(), 4)))


def test_counting_stops_at_the_limit(world: PostgresWorld, store: StubStore) -> None:
    for number in range(5):
        world.put_stub(message_id=f"m-{number}")
    assert [store.count_due(NOW, Scope(), limit) for limit in (3, 5, 9)] == [3, 5, 5]


def test_only_pending_stubs_are_due(world: PostgresWorld, store: StubStore) -> None:
    for status in ("pending", "confirmed", "exhausted", "voided", "no_taker"):
        world.put_stub(message_id=status, status=status)
    assert store.count_due(NOW, Scope(), 10) == 1
    assert [
        row["message_id"] for part in world.read(store.scan_due(NOW, Scope(), 2)) for row in part
    ] == ["pending"]


def test_a_scope_takes_its_topics_and_a_half_open_range_of_creation(
    world: PostgresWorld, store: StubStore
) -> None:
    for topic in ODD:
        world.put_stub(topic=topic, created_at=NOW)
    day = timedelta(days=1)
    for topic in ODD:
        scope = Scope(topics=[topic], created_from=NOW, created_to=NOW + MICROSECOND)
        assert store.count_due(NOW, scope, 10) == 1
        assert [
            row["topic"] for part in world.read(store.scan_due(NOW, scope, 3)) for row in part
        ] == [topic]
        assert store.count_due(NOW, Scope([topic], created_from=NOW + MICROSECOND), 10) == 0
        assert store.count_due(NOW, Scope([topic], created_from=NOW - day, created_to=NOW), 10) == 0
    assert store.count_due(NOW, Scope(topics=[]), 10) == 0


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_a_scan_has_every_due_stub_in_exactly_one_part(
    world: PostgresWorld, store: StubStore, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_scan, "FEW_ROWS", 0)
    for number in range(60):
        # Many of one instant: a cut may not fall between them.
        world.put_stub(
            message_id=f"m-{number:02}", next_check_at=NOW - timedelta(seconds=number // 9)
        )
    parts = world.read(store.scan_due(NOW, Scope(), partitions))
    found = [row["message_id"] for part in parts for row in part]
    assert sorted(found) == [f"m-{number:02}" for number in range(60)]
    assert len(parts) <= partitions
    assert max(map(len, parts)) <= 60 // (partitions if world.cuts_scans else 1) + 9
    assert list(parts[0][0]) == list(STUB_COLUMNS)


def test_many_stubs_of_one_instant_are_shared_between_parts(
    world: PostgresWorld, store: StubStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_scan, "FEW_ROWS", 0)
    for number in range(60):
        world.put_stub(message_id=f"m-{number:02}", next_check_at=NOW)
    parts = world.read(store.scan_due(NOW, Scope(), 4))
    if world.cuts_scans:
        assert len(parts) == 4 and all(len(part) < 40 for part in parts)
    assert sorted(row["message_id"] for part in parts for row in part) == [
        f"m-{number:02}" for number in range(60)
    ]


def test_an_open_scan_holds_no_lock_that_a_migration_would_wait_for(
    world: PostgresWorld, store: StubStore
) -> None:
    world.put_stub(next_check_at=NOW)
    with store.scan_due(NOW, Scope(), 1):
        assert world.locks_of_stubs() == []


def test_few_stubs_are_one_part(world: PostgresWorld, store: StubStore) -> None:
    for number in range(60):
        world.put_stub(message_id=f"m-{number:02}", next_check_at=NOW - timedelta(seconds=number))
    assert [len(part) for part in world.read(store.scan_due(NOW, Scope(), 7))] == [60]


def test_the_parts_of_a_scan_are_of_one_instant(
    world: PostgresWorld, store: StubStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What changes while they are read is not seen: no stub twice, none missing, no attempt of a later send."""
    monkeypatch.setattr(postgresql_scan, "FEW_ROWS", 0)
    for number in range(4):
        world.put_stub(
            message_id=f"m-{number}",
            send_count=2,
            next_check_at=NOW - timedelta(seconds=4 - number),
        )
    changed: list[str] = []

    def keep(name: str, table: Any) -> tuple[str, list[dict[str, Any]]]:
        if not changed:
            changed.append(name)
            world.run(
                "producer",
                "UPDATE message_stub SET next_check_at = %s WHERE message_id = 'm-0'",
                (NOW,),
            )
            world.run("producer", "DELETE FROM message_stub WHERE message_id = 'm-3'")
            world.put_attempt(message_id="m-1", outcome="sent")
        return name, table.to_pylist()

    with store.scan_due(NOW, Scope(), 2) as scan, world.stubs() as another:
        assert len(scan.parts) == (2 if world.cuts_scans else 1)
        read = [
            (name, row["message_id"])
            for part in scan.parts
            for name, rows in another.read_part(part, keep)
            for row in rows
        ]
    assert sorted(read) == [("stubs", f"m-{number}") for number in range(4)]


@in_postgresql
def test_a_part_whose_scan_has_ended_is_no_answer(world: PostgresWorld, store: StubStore) -> None:
    world.put_stub(next_check_at=NOW)
    with store.scan_due(NOW, Scope(), 2) as scan:
        (part,) = scan.parts
    deadline = time.monotonic() + 60
    with pytest.raises((StoreUnavailable, psycopg2.Error)):
        while time.monotonic() < deadline:  # the server ends the scan's session a moment later
            store.read_part(part, lambda name, table: table)


def test_a_scan_gives_instants_in_microseconds_and_keeps_null(
    world: PostgresWorld, store: StubStore
) -> None:
    world.put_stub(
        next_check_at=NOW,
        created_at=NOW - timedelta(hours=2),
        tag="t",
        queue_id=3,
        queue_offset=9,
        queue_epoch="e",
        send_count=1,
        max_sends=4,
    )
    ((row,),) = world.read(store.scan_due(NOW, Scope(), 1))
    due = micros(NOW)
    assert due is not None
    assert row["next_check_at"] == due
    assert row["created_at"] == due - 2 * 3600 * 1_000_000
    assert (row["sent_at"], row["first_seen_at"], row["attempt_deadline"]) == (None, None, None)
    assert (row["shard"], row["tag"], row["queue_id"], row["queue_offset"]) == ("shop_a", "t", 3, 9)
    assert (row["queue_epoch"], row["send_count"], row["refusals"], row["max_sends"]) == (
        "e",
        1,
        0,
        4,
    )
    assert row["settled"] is True
    under_way(world, "m-2", 60)
    (settled,) = store.stub_table([Key("orders", "m-2")]).column("settled").to_pylist()
    assert settled is False


def test_a_stub_with_an_instant_that_nobody_can_reckon_with_does_not_stop_the_scan(
    world: PostgresWorld, store: StubStore
) -> None:
    first, last = world.ends
    world.put_stub(message_id="broken", created_at=first, deliver_at=last, next_check_at=first)
    world.put_stub(message_id="sound")
    rows = {
        row["message_id"]: row
        for part in world.read(store.scan_due(NOW, Scope(), 3))
        for row in part
    }
    assert set(rows) == {"broken", "sound"}
    ends = (
        rows["broken"]["created_at"],
        rows["broken"]["deliver_at"],
        rows["broken"]["next_check_at"],
    )
    assert ends == (micros(EARLIEST), micros(LATEST), micros(EARLIEST))
    assert set(store.stubs([Key("orders", "broken")])) == {Key("orders", "broken")}


def test_attempts_are_scanned_for_due_stubs_sent_more_than_once_one_row_a_group(
    world: PostgresWorld, store: StubStore
) -> None:
    later = NOW + timedelta(days=1)
    for message_id, sends, due in (("once", 1, NOW), ("twice", 2, NOW), ("later", 2, later)):
        world.put_stub(message_id=message_id, send_count=sends, next_check_at=due)
        world.put_attempt(
            message_id=message_id, outcome="sent", queue_id=0, queue_offset=5, queue_epoch="e"
        )
    world.put_attempt(
        message_id="twice", send_number=2, groups=["billing", "it's"], outcome="refused"
    )
    rows = [row for part in world.read(store.scan_due(NOW, Scope(), 3), "attempts") for row in part]
    assert list(rows[0]) == list(ATTEMPT_COLUMNS)
    told = {
        (r["message_id"], r["send_number"], r["consumer_group"], r["outcome"], r["queue_offset"])
        for r in rows
    }
    assert told == {
        ("twice", 1, None, "sent", 5),
        ("twice", 2, "billing", "refused", None),
        ("twice", 2, "it's", "refused", None),
    }


@in_postgresql
def test_attempts_are_asked_for_only_where_a_stub_of_the_part_has_them(
    world: PostgresWorld, store: StubStore
) -> None:
    world.put_stub(next_check_at=NOW, send_count=1)

    def read() -> list[str]:
        with store.scan_due(NOW, Scope(), 1) as scan:
            (part,) = scan.parts
            asked = part._replace(statements={**part.statements, "attempts": "SELECT 1 / 0"})
            return store.read_part(asked, lambda name, table: name)

    assert read() == ["stubs"]
    for has_them in ("send_count = 2", "send_count = 1, first_groups = '{billing}'"):
        world.run("producer", f"UPDATE message_stub SET {has_them}")
        with pytest.raises((StoreFailed, psycopg2.Error)):
            read()


def test_no_secret_is_in_what_a_scan_shows(world: PostgresWorld, store: StubStore) -> None:
    world.put_stub(next_check_at=NOW)
    password = world.password()
    with store.scan_due(NOW, Scope(), 2) as scan:
        assert password not in repr(scan) + repr(store)


def test_ids_of_any_text_come_back_as_they_were(world: PostgresWorld, store: StubStore) -> None:
    keys = [Key(topic, message_id) for topic in ODD[:4] for message_id in ODD]
    for key in keys:
        world.put_stub(
            topic=key.topic,
            message_id=key.message_id,
            headers=json.dumps({"x": key.message_id}),
            content=key.message_id.encode() + b"\x00\xff",
            ordering_key=key.topic,
        )
    assert set(store.stubs(keys)) == set(keys)
    contents = store.contents(keys)
    for key in keys:
        message = contents[key]
        assert (message.key, message.headers, message.partition_key) == (
            key,
            {"x": key.message_id},
            key.topic,
        )
        assert message.content == key.message_id.encode() + b"\x00\xff"
    claims = [claim_of(key, send_number=1, groups=ODD) for key in keys]
    assert store.claim(claims).keys() == set(keys)
    ended = [
        Settlement(c.key, 1, c.token, Outcome.UNKNOWN, error="lost: \x00 %s '") for c in claims
    ]
    assert store.settle(ended) == set(keys)
    attempts = store.attempts(keys)
    assert {key: [a.groups for a in attempts[key]] for key in keys} == {
        key: [tuple(ODD)] for key in keys
    }
    assert store.promote(
        [StubOutcome(key, "pending", "exhausted", 1, None) for key in keys], NOW
    ) == len(keys)
    assert all(store.void(key) for key in keys)


def test_a_key_that_no_row_can_have_is_absent_and_harms_no_other(
    world: PostgresWorld, store: StubStore
) -> None:
    world.put_stub()
    asked = [Key("orders", "nul\x00"), Key("orders", "half\ud800"), KEY, Key("orders", "none"), KEY]
    assert set(store.stubs(asked)) == {KEY}
    assert store.stubs([]) == {} and store.attempts([]) == {} and store.contents([]) == {}


def test_attempts_by_key_come_in_the_order_of_their_numbers(
    world: PostgresWorld, store: StubStore
) -> None:
    world.put_stub(send_count=3)
    for number in (3, 1, 2):
        world.put_attempt(send_number=number, groups=["billing"] if number == 3 else None)
    assert [(a.send_number, a.groups) for a in store.attempts([KEY])[KEY]] == [
        (1, None),
        (2, None),
        (3, ("billing",)),
    ]


# Claiming


def test_of_two_claims_at_once_exactly_one_gets_each_number(world: PostgresWorld) -> None:
    keys = [Key("orders", f"m-{number:03}") for number in range(200)]
    for key in keys:
        world.put_stub(message_id=key.message_id, send_count=1)
    mine = [claim_of(key) for key in keys]
    yours = [claim_of(key) for key in reversed(keys)]  # the other order: no deadlock either
    first, second = at_once(world, lambda s: set(s.claim(mine)), lambda s: set(s.claim(yours)))
    assert first | second == set(keys) and not first & second
    tokens = {c.key: c.token for c in mine if c.key in first} | {
        c.key: c.token for c in yours if c.key in second
    }
    with world.stubs() as store:
        assert {key: stub.attempt_token for key, stub in store.stubs(keys).items()} == tokens


@pytest.mark.parametrize(
    ("stub", "asked"),
    [
        pytest.param({"send_count": 2}, {}, id="the number was handed out"),
        pytest.param({"send_count": 0}, {}, id="a number before it was not handed out"),
        *[
            pytest.param({"send_count": 1, "status": status}, {}, id=status)
            for status in ("confirmed", "exhausted", "voided", "no_taker")
        ],
        pytest.param(
            {
                "send_count": 1,
                "attempt_token": token(),
                "attempt_deadline": NOW,
                "attempted_at": NOW,
            },
            {},
            id="an attempt is under way",
        ),
        pytest.param({"send_count": 1}, {"max_sends": 1}, id="the policy's budget is used"),
        pytest.param({"send_count": 1, "max_sends": 1}, {}, id="the stub's own budget is used"),
        pytest.param({"send_count": 1, "refusals": 1}, {"max_refusals": 1}, id="refused too often"),
        pytest.param({"send_count": 1, "next_check_at": NOW}, {}, id="it is not due"),
        pytest.param({"send_count": 1, "erased_hash": b"\x07" * 32}, {}, id="it was erased"),
    ],
)
def test_a_claim_hands_out_nothing_when(
    world: PostgresWorld, store: StubStore, stub: dict[str, Any], asked: dict[str, Any]
) -> None:
    world.put_stub(**stub)
    before = world.stub()
    assert store.claim([claim_of(**asked)]) == {}
    assert world.stub() == before


@pytest.mark.parametrize(
    ("stub", "asked"),
    [
        pytest.param(
            {"send_count": 1, "next_check_at": NOW},
            {"only_when_due": False},
            id="a person need not wait",
        ),
        pytest.param(
            {"send_count": 1, "max_sends": 2},
            {"max_sends": 1},
            id="the stub's own budget counts first",
        ),
        pytest.param(
            {"send_count": 1, "refusals": 1}, {"max_sends": 1}, id="a refused number is not spent"
        ),
        pytest.param({"send_count": 0}, {"send_number": 1}, id="Backstop sends the first one"),
    ],
)
def test_a_claim_is_granted_when(
    world: PostgresWorld, store: StubStore, stub: dict[str, Any], asked: dict[str, Any]
) -> None:
    world.put_stub(**stub)
    assert store.claim([claim_of(**asked)]).keys() == {KEY}


def test_headers_that_cannot_be_read_cost_no_number_and_the_error_names_the_message(
    world: PostgresWorld, store: StubStore
) -> None:
    """A producer of another language wrote a number that Python refuses to read."""
    world.put_stub(headers='{"x": ' + "1" * 5_000 + "}")
    before = store.stubs([KEY])
    with pytest.raises(StoreFailed, match="The headers of orders m-1 cannot be sent"):
        store.claim([claim_of(send_number=1)])
    assert store.stubs([KEY]) == before


def test_a_claim_writes_its_attempt_and_the_next_look_by_the_stores_clock(
    world: PostgresWorld, store: StubStore
) -> None:
    world.put_stub(
        send_count=1,
        sent_at=NOW,
        queue_id=1,
        queue_offset=7,
        queue_epoch="e",
        broker_message_id="b",
    )
    claim = claim_of(groups=["billing"], attempt_seconds=7.5, next_check_seconds=90)
    before = store.clock()
    assert store.claim([claim]).keys() == {KEY}
    row, after = world.stub(), store.clock()
    assert (row["send_count"], str(row["attempt_token"])) == (2, claim.token)
    assert (row["attempt_groups"], row["attempt_requested_by"]) == (["billing"], "request 7")
    assert before <= row["attempted_at"] <= after
    assert row["attempt_deadline"] - row["attempted_at"] == timedelta(seconds=7.5)
    assert row["next_check_at"] - row["attempted_at"] == timedelta(seconds=90)
    # Position and time are those of the newest number: nothing is known of it yet.
    assert [row[name] for name in ("sent_at", "queue_id", "queue_offset", "queue_epoch")] == [
        None
    ] * 4


def test_the_place_and_groups_of_number_1_stay_whatever_is_sent_later(
    world: PostgresWorld, store: StubStore
) -> None:
    """They say who owes a message: a resend must not change it."""

    def first() -> list[Any]:
        names = (
            "first_broker",
            "first_queue_id",
            "first_queue_offset",
            "first_queue_epoch",
            "first_to_all",
        )
        found = store.stub_table([KEY])
        (stub,) = store.stubs([KEY]).values()
        seen = [found.column(name).to_pylist()[0] for name in names]
        assert seen == [getattr(stub, name) for name in names]
        return seen

    world.put_stub(
        send_count=1, sent_at=NOW, broker="main", queue_id=1, queue_offset=7, queue_epoch="e"
    )
    assert first() == ["main", 1, 7, "e", True]
    for number, offset in ((2, 40), (3, 50)):
        claim = claim_of(send_number=number, groups=["billing"], only_when_due=False)
        assert store.claim([claim]).keys() == {KEY}
        assert first() == ["main", 1, 7, "e", True]
        store.settle(
            [Settlement(KEY, number, claim.token, Outcome.SENT, Position(2, offset, "f"), "main2")]
        )
        assert first() == ["main", 1, 7, "e", True]
    assert world.stub()["first_broker"] == "main"


def test_a_number_1_that_goes_to_some_groups_says_so_and_its_attempt_is_read(
    world: PostgresWorld, store: StubStore
) -> None:
    world.put_stub(send_count=0, next_check_at=NOW - timedelta(hours=1))
    claim = claim_of(send_number=1, groups=["billing"], only_when_due=False)
    assert store.claim([claim]).keys() == {KEY}
    store.settle([Settlement(KEY, 1, claim.token, Outcome.SENT, Position(0, 3, "e"), "main")])
    assert store.stub_table([KEY]).column("first_to_all").to_pylist() == [False]
    assert store.attempt_table([KEY]).column("consumer_group").to_pylist() == ["billing"]
    world.run("producer", "UPDATE message_stub SET next_check_at = %s", (NOW,))
    ((row,),) = world.read(store.scan_due(NOW, Scope(), 1), "attempts")
    assert (row["send_number"], row["consumer_group"]) == (1, "billing")


def test_stub_and_attempt_record_the_broker_before_the_send(
    world: PostgresWorld, store: StubStore
) -> None:
    world.put_stub(
        send_count=1, sent_at=NOW, broker="main", queue_id=1, queue_offset=7, queue_epoch="e"
    )
    claim = claim_of(broker="main2", attempt_seconds=-1)
    assert store.claim([claim]).keys() == {KEY}
    assert store.stub_table([KEY]).column("broker").to_pylist() == ["main2"]
    assert store.lives(["orders", "none"]) == {"orders": {Life("main2", None, None)}, "none": set()}
    assert store.recover(10) == [KEY]
    (attempt,) = world.attempts()
    assert (attempt["outcome"], attempt["broker"]) == ("unknown", "main2")
    claim = claim_of(send_number=3, broker="main3", only_when_due=False)
    assert store.claim([claim]).keys() == {KEY}
    store.settle([Settlement(KEY, 3, claim.token, Outcome.SENT, Position(2, 40, "f"))])
    assert store.attempt_table([KEY]).column("broker").to_pylist() == ["main2", "main3"]
    assert store.lives(["orders"]) == {"orders": {Life("main2", None, None), Life("main3", 2, "f")}}
    world.run("producer", "UPDATE message_stub SET status = 'confirmed'")
    assert store.lives(["orders"]) == {"orders": set()}


def test_two_numbers_of_one_message_in_one_batch_are_refused(
    world: PostgresWorld, store: StubStore
) -> None:
    world.put_stub(send_count=1)
    with pytest.raises(ContractBroken):
        store.claim([claim_of(), claim_of(send_number=3)])
    assert world.stub()["send_count"] == 1


# Settling and recovering


def claimed(world: PostgresWorld, store: StubStore, **changes: Any) -> Claim:
    world.put_stub(send_count=1, sent_at=NOW, queue_id=1, queue_offset=7, queue_epoch="old")
    claim = claim_of(groups=["billing"], **changes)
    assert store.claim([claim]).keys() == {KEY}
    return claim


@pytest.mark.parametrize("outcome", list(Outcome))
def test_each_outcome_is_settled_once_and_a_second_time_changes_nothing(
    world: PostgresWorld, store: StubStore, outcome: Outcome
) -> None:
    claim = claimed(world, store)
    ended = Settlement(
        KEY, 2, claim.token, outcome, Position(2, 40, "e"), "embedded", "2-40", "why"
    )
    assert store.settle([ended]) == {KEY}
    row, attempts = world.stub(), world.attempts()
    sent = outcome is Outcome.SENT
    assert row["attempt_token"] is None
    assert row["refusals"] == (1 if outcome is Outcome.REFUSED else 0)
    assert (row["sent_at"] is not None) == sent
    place = (2, 40, "e") if sent else (None, None, None)
    assert (row["queue_id"], row["queue_offset"], row["queue_epoch"]) == place
    (attempt,) = attempts
    assert (attempt["send_number"], attempt["outcome"], attempt["groups"]) == (
        2,
        outcome.value,
        ["billing"],
    )
    assert (attempt["requested_by"], attempt["started_at"]) == ("request 7", row["attempted_at"])
    assert (attempt["queue_id"], attempt["queue_offset"], attempt["queue_epoch"]) == place
    assert store.settle([ended]) == set()
    other = ended._replace(outcome=Outcome.REFUSED if sent else Outcome.SENT)
    assert store.settle([other]) == set()
    assert (world.stub(), world.attempts()) == (row, attempts)


@pytest.mark.parametrize("changes", [{"token": token()}, {"send_number": 1}, {"send_number": 3}])
def test_an_attempt_that_is_not_the_callers_is_not_settled(
    world: PostgresWorld, store: StubStore, changes: dict[str, Any]
) -> None:
    claim = claimed(world, store)
    before = world.stub()
    ended = Settlement(KEY, 2, claim.token, Outcome.SENT, Position(2, 40, "e"))._replace(**changes)
    assert store.settle([ended]) == set()
    assert (world.stub(), world.attempts()) == (before, [])


def test_of_two_settlements_at_once_one_is_taken(world: PostgresWorld, store: StubStore) -> None:
    claim = claimed(world, store)
    ended = [
        Settlement(KEY, 2, claim.token, outcome) for outcome in (Outcome.REFUSED, Outcome.UNKNOWN)
    ]
    taken = at_once(world, lambda s: s.settle(ended[:1]), lambda s: s.settle(ended[1:]))
    assert sorted(map(len, taken)) == [0, 1]
    winner = Outcome.REFUSED if taken[0] else Outcome.UNKNOWN
    assert [row["outcome"] for row in world.attempts()] == [winner.value]
    assert world.stub()["refusals"] == (1 if taken[0] else 0)


def under_way(world: PostgresWorld, message_id: str, seconds: float) -> str:
    mine = token()
    world.put_stub(
        message_id=message_id,
        send_count=2,
        attempt_token=mine,
        attempt_groups=["billing"],
        attempt_requested_by="request 9",
        attempted_at=NOW,
        attempt_deadline=datetime.now(UTC) + timedelta(seconds=seconds),
    )
    return mine


def test_recovery_records_what_is_past_its_deadline_as_unknown_and_leaves_the_rest(
    world: PostgresWorld, store: StubStore
) -> None:
    late = under_way(world, "late", -0.001)
    under_way(world, "alive", 60)
    alive = world.stub("alive")
    assert store.recover(10) == [Key("orders", "late")]
    assert store.recover(10) == []
    assert world.stub("alive") == alive
    row = world.stub("late")
    assert (row["attempt_token"], row["send_count"], row["refusals"], row["sent_at"]) == (
        None,
        2,
        0,
        None,
    )
    (attempt,) = world.attempts()
    assert (attempt["message_id"], attempt["send_number"], attempt["outcome"]) == (
        "late",
        2,
        "unknown",
    )
    assert (attempt["groups"], attempt["requested_by"]) == (["billing"], "request 9")
    # Who wakes up late finds that it is no longer his.
    assert (
        store.settle(
            [Settlement(Key("orders", "late"), 2, late, Outcome.SENT, Position(0, 1, "e"))]
        )
        == set()
    )
    assert world.stub("late") == row


def test_a_send_that_may_have_begun_late_is_not_past_before_it_can_have_been_stored(
    world: PostgresWorld, store: StubStore
) -> None:
    # The rule takes a copy without a trusted offset for stored by attempted_at + max_send_duration.
    mine = under_way(world, "settled", 60)
    under_way(world, "died", -1)
    deadline = world.stub("died")["attempt_deadline"]
    earlier = datetime.now(UTC) - timedelta(hours=1)
    world.run("producer", "UPDATE message_stub SET attempted_at = %s", (earlier,))
    key = Key("orders", "settled")
    assert store.settle([Settlement(key, 2, mine, Outcome.UNKNOWN, max_send_seconds=30.0)]) == {key}
    assert store.recover(10, 30.0) == [Key("orders", "died")]
    late = timedelta(seconds=30)
    assert datetime.now(UTC) - world.stub("settled")["attempted_at"] < late + timedelta(seconds=60)
    assert world.stub("died")["attempted_at"] == deadline - late
    assert {row["message_id"]: row["started_at"] for row in world.attempts()} == {
        one: world.stub(one)["attempted_at"] for one in ("settled", "died")
    }


@pytest.mark.parametrize("what", ["claim", "promote", "void"])
def test_who_meets_an_attempt_past_its_deadline_records_it_as_unknown_first(
    world: PostgresWorld, store: StubStore, what: str
) -> None:
    for message_id, seconds in (("late", -1.0), ("other", -1.0), ("alive", 60.0)):
        under_way(world, message_id, seconds)
    late, alive = Key("orders", "late"), Key("orders", "alive")
    if what == "claim":
        claims = [
            claim_of(key)._replace(send_number=3, only_when_due=False) for key in (late, alive)
        ]
        assert store.claim(claims).keys() == {late}
    elif what == "promote":
        outcomes = [StubOutcome(key, "pending", "confirmed", 2, None) for key in (late, alive)]
        assert store.promote(outcomes, datetime.now(UTC)) == 1
    else:
        assert (store.void(late), store.void(alive)) == (True, False)
    (attempt,) = world.attempts()
    assert (attempt["message_id"], attempt["send_number"], attempt["outcome"]) == (
        "late",
        2,
        "unknown",
    )
    after = world.stub("late")
    expected = {"claim": ("pending", 3), "promote": ("confirmed", 2), "void": ("voided", 2)}
    assert (after["status"], after["send_count"]) == expected[what]
    assert (
        world.stub("alive")["send_count"] == 2 and world.stub("alive")["attempt_token"] is not None
    )
    assert world.stub("other")["attempt_token"] is not None


def test_recovery_takes_at_most_its_limit_the_oldest_first(
    world: PostgresWorld, store: StubStore
) -> None:
    for seconds in (1, 3, 2):
        under_way(world, f"late-{seconds}", -seconds)
    assert store.recover(2) == [Key("orders", "late-2"), Key("orders", "late-3")]
    assert store.recover(2) == [Key("orders", "late-1")]


def test_recovery_by_key_takes_what_is_named_and_late_in_key_order(
    world: PostgresWorld, store: StubStore
) -> None:
    for message_id, seconds in (("b", -1.0), ("a", -3.0), ("c", -2.0), ("alive", 60.0)):
        under_way(world, message_id, seconds)
    earlier = datetime.now(UTC) - timedelta(hours=1)
    world.run("producer", "UPDATE message_stub SET attempted_at = %s", (earlier,))
    a, b, c = (Key("orders", one) for one in "abc")
    assert store.late(Key("", ""), 2) == [a, b]
    assert store.late(b, 2) == [c]
    assert store.recover_of([c, a, Key("orders", "alive"), Key("orders", "none")], 30.0) == [a, c]
    assert store.late(Key("", ""), 9) == [b]
    assert {row["message_id"] for row in world.attempts()} == {"a", "c"}
    for one in "ac":
        row = world.stub(one)
        assert row["attempted_at"] == row["attempt_deadline"] - timedelta(seconds=30)
    assert world.stub("alive")["attempt_token"] is not None


def test_two_recoveries_at_once_take_each_attempt_once(world: PostgresWorld) -> None:
    for number in range(100):
        under_way(world, f"m-{number}", -1)
    first, second = at_once(world, lambda s: s.recover(1000), lambda s: s.recover(1000))
    assert len(first) + len(second) == len({*first, *second}) == 100
    assert len(world.attempts()) == 100


def test_a_settlement_that_races_a_recovery_leaves_one_account_of_each_attempt(
    world: PostgresWorld,
) -> None:
    ended = [
        Settlement(
            Key("orders", f"m-{number:03}"),
            2,
            under_way(world, f"m-{number:03}", -1),
            Outcome.REFUSED,
        )
        for number in range(200)
    ]
    settled, recovered = at_once(world, lambda s: s.settle(ended), lambda s: set(s.recover(1000)))
    # Recovery skips what is locked: whoever comes next finds it, if it is still open.
    with world.stubs() as store:
        recovered |= set(store.recover(1000))
    assert settled | recovered == {e.key for e in ended} and not settled & recovered
    told = {Key(row["topic"], row["message_id"]): row["outcome"] for row in world.attempts()}
    assert told == dict.fromkeys(settled, "refused") | dict.fromkeys(recovered, "unknown")
    with world.stubs() as store:
        assert {key for key, stub in store.stubs(told).items() if stub.refusals == 1} == settled


# Promoting and deciding


def test_a_promotion_that_is_stopped_before_its_commit_changes_nothing(
    world: PostgresWorld, store: StubStore
) -> None:
    world.put_stub(send_count=1)
    before, outcome = world.stub(), StubOutcome(KEY, "pending", "confirmed", 1, None)

    def stop() -> None:
        raise RunLost("taken over", unaffected="", next_step="")

    with pytest.raises(RunLost):
        store.promote([outcome], NOW, NOW, stop)
    assert world.stub() == before
    assert store.promote([outcome], NOW, NOW, lambda: None) == 1


def test_a_promotion_sets_status_looks_and_when_it_was_first_seen(
    world: PostgresWorld, store: StubStore
) -> None:
    due = NOW - timedelta(hours=1)
    world.put_stub(send_count=1, next_check_at=due)
    look = NOW + timedelta(minutes=5)
    assert store.promote([StubOutcome(KEY, "pending", "pending", 1, look)], NOW) == 1
    row = world.stub()
    assert (row["next_check_at"], row["first_seen_at"], row["judged_at"]) == (look, NOW, NOW)
    later = NOW + timedelta(minutes=1)
    for next_look in (look - timedelta(minutes=2), None):  # an earlier look never moves it back
        assert store.promote([StubOutcome(KEY, "pending", "pending", 1, next_look)], later) == 1
    row = world.stub()
    assert (row["next_check_at"], row["first_seen_at"], row["judged_at"]) == (look, NOW, later)
    before = world.stub()
    statuses = ("pending", "no_taker", "exhausted")
    late = [
        StubOutcome(KEY, "pending", status, 1, look + timedelta(hours=1)) for status in statuses
    ]
    for outcome in late:
        assert (
            store.promote([outcome], NOW) == 0
        )  # an older judgement never overrides a newer one ...
    assert world.stub() == before
    assert (
        store.promote([StubOutcome(KEY, "pending", "confirmed", 1, None)], NOW) == 1
    )  # ... but with a proof
    assert (world.stub()["status"], world.stub()["judged_at"]) == ("confirmed", later)


@pytest.mark.parametrize(
    ("stub", "outcome"),
    [
        pytest.param({"send_count": 2}, {}, id="it was sent again"),
        pytest.param({"send_count": 1, "status": "exhausted"}, {}, id="its status moved"),
        pytest.param(
            {"send_count": 1, "status": "voided"}, {"old_status": "voided"}, id="voided is final"
        ),
        pytest.param(
            {"send_count": 1, "status": "confirmed"},
            {"old_status": "confirmed", "new_status": "pending"},
            id="confirmed is final",
        ),
        pytest.param(
            {
                "send_count": 1,
                "attempt_token": token(),
                "attempt_deadline": NOW,
                "attempted_at": NOW,
            },
            {},
            id="an attempt is under way",
        ),
    ],
)
def test_a_promotion_changes_nothing_when(
    world: PostgresWorld, store: StubStore, stub: dict[str, Any], outcome: dict[str, Any]
) -> None:
    world.put_stub(**stub)
    before = world.stub()
    judged = StubOutcome(KEY, "pending", "confirmed", 1, NOW)._replace(**outcome)
    assert store.promote([judged], NOW) == 0
    assert world.stub() == before


def test_a_promotion_that_says_exhausted_does_not_undo_the_raise_of_a_person(
    world: PostgresWorld, store: StubStore
) -> None:
    exhausted = StubOutcome(KEY, "pending", "exhausted", 1, None)
    world.put_stub(send_count=1, max_sends=1)
    as_of = datetime.now(UTC)
    assert store.raise_max_sends(KEY, 5)
    assert store.promote([exhausted], as_of) == 0
    assert (world.stub()["status"], world.stub()["max_sends"]) == ("pending", 5)
    # What was done says so though somebody raised it, and a run that looked since knows the new limit.
    assert store.promote([exhausted._replace(new_status="confirmed")], as_of) == 1
    world.put_stub(message_id="m-2", send_count=1)
    assert store.raise_max_sends(Key("orders", "m-2"), 5)
    assert store.promote([exhausted._replace(key=Key("orders", "m-2"))], datetime.now(UTC)) == 1


def test_what_a_person_raised_by_the_stores_clock_is_compared_with_that_clock(
    world: PostgresWorld, store: StubStore
) -> None:
    exhausted = StubOutcome(KEY, "pending", "exhausted", 1, None)
    world.put_stub(send_count=1, max_sends=1)
    assert store.raise_max_sends(KEY, 5)
    ahead = datetime.now(UTC) + timedelta(seconds=3)
    assert store.promote([exhausted], ahead, ahead - timedelta(seconds=10)) == 0
    assert world.stub()["status"] == "pending"
    assert store.promote([exhausted], ahead, ahead) == 1


def test_a_stub_under_way_may_stay_pending(world: PostgresWorld, store: StubStore) -> None:
    world.put_stub(send_count=1, attempt_token=token(), attempt_deadline=NOW, attempted_at=NOW)
    assert store.promote([StubOutcome(KEY, "pending", "pending", 1, NOW)], NOW) == 1
    assert world.stub()["next_check_at"] == NOW


def test_of_two_promotions_at_once_each_stub_moves_once(world: PostgresWorld) -> None:
    keys = [Key("orders", f"m-{number:03}") for number in range(200)]
    for key in keys:
        world.put_stub(message_id=key.message_id)

    def moving(to: str, order: Sequence[Key]) -> Callable[[StubStore], int]:
        return lambda s: s.promote([StubOutcome(key, "pending", to, 0, None) for key in order], NOW)

    moved = at_once(world, moving("exhausted", keys), moving("confirmed", keys[::-1]))
    assert sum(moved) == 200
    statuses = [row["status"] for row in world.run("producer", "SELECT status FROM message_stub")]
    assert [statuses.count("exhausted"), statuses.count("confirmed")] == moved


def test_a_claim_and_a_promotion_at_once_never_both_win(world: PostgresWorld) -> None:
    keys = [Key("orders", f"m-{number:03}") for number in range(200)]
    for key in keys:
        world.put_stub(message_id=key.message_id, send_count=1)
    claims = [claim_of(key) for key in keys]
    outcomes = [StubOutcome(key, "pending", "confirmed", 1, None) for key in keys[::-1]]
    got, moved = at_once(world, lambda s: len(s.claim(claims)), lambda s: s.promote(outcomes, NOW))
    assert got + moved == 200
    assert not world.run(
        "producer",
        "SELECT 1 FROM message_stub WHERE status = 'confirmed' AND attempt_token IS NOT NULL",
    )


def test_neighbours_with_one_outcome_and_others_between_them_each_get_their_own(
    world: PostgresWorld, store: StubStore
) -> None:
    look = datetime.now(UTC) + timedelta(minutes=5)
    decided = {
        "a": ("confirmed", 1, None),
        'b",\\"c': ("confirmed", 1, None),
        "{d,NULL}": ("confirmed", 1, None),
        "NULL": ("pending", 1, look),
        "e\\": ("pending", 1, look),
        "f\n' %s": ("pending", 1, look + timedelta(seconds=1)),
        "g é \u2028": ("exhausted", 2, None),
        "h": ("confirmed", 1, None),
        " i ": ("confirmed", 1, None),
    }
    outcomes = []
    for topic in ("orders", 'pay"\\,{'):
        for message_id, (status, send_count, next_look) in decided.items():
            world.put_stub(topic=topic, message_id=message_id, send_count=send_count)
            outcomes.append(
                StubOutcome(Key(topic, message_id), "pending", status, send_count, next_look)
            )
    assert store.promote(outcomes, look) == len(outcomes)
    found = {
        (row["topic"], row["message_id"]): row
        for row in world.run(
            "producer", "SELECT topic, message_id, status, next_check_at FROM message_stub"
        )
    }
    assert {key: row["status"] for key, row in found.items()} == {
        (*one.key,): one.new_status for one in outcomes
    }
    for one in outcomes:
        if one.next_look_at is not None:
            assert found[one.key]["next_check_at"] == one.next_look_at


def test_more_outcomes_than_one_statement_takes_are_all_promoted(
    world: PostgresWorld, store: StubStore
) -> None:
    world.put_many(25000)
    outcomes = [
        StubOutcome(Key("orders", f"m-{n}"), "pending", "confirmed", 0, None)
        for n in range(1, 25001)
    ]
    assert store.promote(outcomes, NOW) == 25000
    assert store.promote(outcomes, NOW) == 0


UNDER_WAY = {
    "send_count": 1,
    "attempt_token": token(),
    "attempt_deadline": NOW,
    "attempted_at": NOW,
}


@pytest.mark.parametrize(
    ("stub", "done"),
    [
        ({}, True),
        ({"status": "exhausted"}, True),
        ({"status": "confirmed"}, False),
        ({"status": "voided"}, False),
        (UNDER_WAY, False),
    ],
)
def test_only_an_open_stub_without_an_attempt_under_way_is_voided(
    world: PostgresWorld, store: StubStore, stub: dict[str, Any], done: bool
) -> None:
    world.put_stub(**stub)
    before = world.stub()
    assert store.void(KEY) is done
    after = world.stub()
    assert (after["status"] == "voided") if done else (after == before)
    assert store.void(Key("orders", "none")) is False


def test_a_message_is_never_voided_and_claimed_at_once(world: PostgresWorld) -> None:
    for number in range(15):
        key = Key("orders", f"m-{number}")
        world.put_stub(message_id=key.message_id, send_count=1)
        claim = claim_of(key)
        got, voided = at_once(
            world, lambda s, c=claim: bool(s.claim([c])), lambda s, k=key: s.void(k)
        )
        assert got is not voided
        assert (world.stub(key.message_id)["status"] == "voided") is voided


@pytest.mark.parametrize(
    ("stub", "done"),
    [
        ({"send_count": 5, "status": "exhausted"}, True),
        ({"send_count": 5}, True),
        ({"send_count": 7, "status": "exhausted"}, False),
        ({"send_count": 8}, False),
        ({"send_count": 7, "refusals": 2}, True),
        ({"send_count": 9, "refusals": 2}, False),
        ({"send_count": 5, "status": "exhausted", "erased_hash": b"\x07" * 32}, False),
        ({"status": "confirmed"}, False),
        ({"status": "voided"}, False),
    ],
)
def test_a_person_may_raise_the_budget_of_an_open_stub_above_what_was_sent(
    world: PostgresWorld, store: StubStore, stub: dict[str, Any], done: bool
) -> None:
    world.put_stub(next_check_at=NOW, **stub)
    before = world.stub()
    assert store.raise_max_sends(KEY, 7) is done
    after = world.stub()
    if not done:
        assert after == before
        return
    assert (after["status"], after["max_sends"]) == ("pending", 7)
    assert after["next_check_at"] <= datetime.now(UTC)
    assert store.raise_max_sends(KEY, 6) is True and world.stub()["max_sends"] == 7


# Silence


def test_a_store_that_does_not_answer_says_so_in_three_parts_without_its_password(
    world: PostgresWorld,
) -> None:
    store, _ = world.unreachable()
    claim = claim_of()
    asks: list[Callable[[], object]] = [
        store.clock,
        lambda: store.count_due(NOW, Scope(), 1),
        lambda: store.scan_due(NOW, Scope(), 2).__enter__(),
        lambda: store.scan_window("orders", NOW, NOW, 2).__enter__(),
        lambda: store.read_part(Part({"stubs": "SELECT 1"}), lambda name, table: table),
        lambda: store.stubs([KEY]),
        lambda: store.attempts([KEY]),
        lambda: store.contents([KEY]),
        lambda: store.claim([claim]),
        lambda: store.settle([Settlement(KEY, 2, claim.token, Outcome.UNKNOWN)]),
        lambda: store.recover(1),
        lambda: store.late(KEY, 1),
        lambda: store.recover_of([KEY], 1.0),
        lambda: store.promote([StubOutcome(KEY, "pending", "confirmed", 1, None)], NOW),
        lambda: store.void(KEY),
        lambda: store.raise_max_sends(KEY, 3),
        store.check,
    ]
    for ask in asks:
        with pytest.raises(StoreUnavailable) as caught:
            ask()
        error = caught.value
        assert "shop_a" in error.what and error.unaffected and error.next_step
        assert PASSWORD not in str(error) + repr(error) + repr(error.__context__) + repr(store)
    store.close()


def test_closing_a_store_twice_or_unused_is_harmless(world: PostgresWorld) -> None:
    store = world.stubs()
    store.close()
    assert store.clock() is not None  # and it opens again when it is asked
    store.close()
    store.close()


def test_a_sound_store_passes_its_check(store: StubStore) -> None:
    findings = store.check()
    assert len(findings) >= 5
    assert all(finding.good for finding in findings), findings


# Order within a key


def test_neighbours_are_the_first_open_message_before_and_the_first_later_one_that_may_have_been_sent(
    world: PostgresWorld, store: StubStore
) -> None:
    for number, (status, sends, refusals) in enumerate(
        [
            ("confirmed", 1, 0),
            ("exhausted", 5, 0),
            ("pending", 0, 0),
            ("pending", 1, 1),
            ("pending", 1, 0),
            ("confirmed", 1, 0),
        ]
    ):
        world.put_stub(
            message_id=f"m{number}",
            ordering_key="it's",
            sequence=number,
            status=status,
            send_count=sends,
            refusals=refusals,
        )
    world.put_stub(message_id="m9", ordering_key="other", sequence=0)
    world.put_stub(message_id="free")
    keys = [Key("orders", i) for i in ("m0", "m1", "m3", "m5", "m9", "free", "no such")]
    found = {
        key.message_id: (n.ordering_key, n.open_before, n.sent_after)
        for key, n in store.neighbours(keys).items()
    }
    assert found == {
        "m0": ("it's", None, "m1"),
        "m1": ("it's", None, "m4"),
        "m3": ("it's", "m1", "m4"),
        "m5": ("it's", "m1", None),
        "m9": ("other", None, None),
    }


def test_a_message_without_a_sequence_comes_after_those_with_one_by_creation_then_by_id(
    world: PostgresWorld, store: StubStore
) -> None:
    world.put_stub(message_id="z", ordering_key="k", send_count=1, sequence=7, created_at=NOW)
    world.put_stub(message_id="b", ordering_key="k", send_count=1, created_at=NOW)
    world.put_stub(message_id="a", ordering_key="k", send_count=1, created_at=NOW)
    world.put_stub(
        message_id="old", ordering_key="k", send_count=1, created_at=NOW - timedelta(days=1)
    )
    left = ["z", "old", "a", "b"]
    for first, second in pairwise(left):
        assert store.neighbours([Key("orders", second)])[Key("orders", second)].open_before == "z"
        assert store.neighbours([Key("orders", first)])[Key("orders", first)].sent_after == second
