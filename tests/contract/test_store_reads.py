"""What duties and people read of a store of stubs beside what is due, and what a restore and an edit change: in every store the same."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from backstop.model.errors import ContentErased
from backstop.model.records import VERSION_HEADER, Key, Outcome
from backstop.stores.protocol import Handed, Recorded, StubStore
from maria_world import MariaStubWorld
from store_world import NOW, WORLDS, PostgresWorld, reopen, token

KEY = Key("orders", "m-1")
DAY = timedelta(days=1)


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


def test_a_window_has_every_stub_of_its_topic_created_in_it_whatever_its_status(
    world: PostgresWorld, store: StubStore
) -> None:
    for number, status in enumerate(("pending", "confirmed", "exhausted", "voided", "no_taker")):
        world.put_stub(
            message_id=status,
            status=status,
            created_at=NOW + timedelta(minutes=number),
            send_count=2,
        )
        world.put_attempt(message_id=status, outcome="refused", groups=["billing"])
    world.put_stub(message_id="before", created_at=NOW - timedelta(microseconds=1))
    world.put_stub(message_id="at the end", created_at=NOW + DAY)
    world.put_stub(topic="payments", message_id="other", created_at=NOW)
    within = {"pending", "confirmed", "exhausted", "voided", "no_taker"}
    for what in ("stubs", "attempts"):
        rows = [
            row["message_id"]
            for part in world.read(store.scan_window("orders", NOW, NOW + DAY, 3), what)
            for row in part
        ]
        assert len(rows) == 5 and set(rows) == within, what
    read = world.read(store.scan_window("none", NOW, NOW + DAY, 3))
    assert [row for part in read for row in part] == []


def test_what_was_recorded_is_counted_by_topic_and_what_became_of_it(
    world: PostgresWorld, store: StubStore
) -> None:
    sent = {"send_count": 1, "queue_id": 0, "queue_offset": 4, "queue_epoch": "e"}
    world.put_stub(message_id="a", created_at=NOW, **sent)
    world.put_stub(message_id="b", created_at=NOW, send_count=1)
    world.put_stub(message_id="c", created_at=NOW, send_count=1, refusals=1)
    world.put_stub(message_id="d", created_at=NOW, deliver_at=NOW, **sent)
    world.put_stub(topic="payments", message_id="e", created_at=NOW)
    world.put_stub(message_id="f", created_at=NOW + DAY)
    assert store.known_until("orders", NOW) == NOW
    assert store.recorded_between(NOW, NOW + DAY) == {
        "orders": Recorded(4, 2, 1, 1),
        "payments": Recorded(1, 0, 0, 0),
    }


def test_the_oldest_due_stub_is_found_and_none_where_nothing_is_due(
    world: PostgresWorld, store: StubStore
) -> None:
    assert store.oldest_due() is None
    earlier = datetime.now(UTC) - timedelta(hours=2)
    world.put_stub(message_id="later", next_check_at=datetime.now(UTC) + DAY)
    assert store.oldest_due() is None
    world.put_stub(message_id="over", status="confirmed", next_check_at=earlier - DAY)
    world.put_stub(message_id="due", next_check_at=earlier)
    world.put_stub(message_id="newer", next_check_at=earlier + timedelta(hours=1))
    assert store.oldest_due() == earlier


def test_the_open_messages_of_a_key_come_in_their_order_after_one_of_them(
    world: PostgresWorld, store: StubStore
) -> None:
    places = [("z", 1), ("a", 2), ("m", None), ("b", None)]
    for number, (name, sequence) in enumerate(places):
        at = NOW + timedelta(seconds=number)
        world.put_stub(message_id=name, ordering_key="k", sequence=sequence, created_at=at)
    world.put_stub(message_id="done", ordering_key="k", sequence=0, status="confirmed")
    world.put_stub(message_id="other", ordering_key="k ", sequence=0)
    assert store.open_in_line("orders", "k", None, 9) == ["z", "a", "m", "b"]
    assert store.open_in_line("orders", "k", "a", 9) == ["m", "b"]
    assert store.open_in_line("orders", "k", "done", 2) == ["z", "a"]


def test_a_message_is_found_by_each_name_that_it_has(
    world: PostgresWorld, store: StubStore
) -> None:
    world.put_stub(message_id="name", created_at=NOW)
    world.put_stub(message_id="by key", message_key="name", created_at=NOW)
    world.put_stub(message_id="newer", message_key="name", created_at=NOW + DAY)
    world.put_stub(message_id="in line", ordering_key="name", created_at=NOW - DAY)
    world.put_stub(message_id="sent", broker_message_id="name", send_count=1, created_at=NOW)
    world.put_stub(topic="payments", message_id="name")
    for other in ("NAME", "name ", "nam"):
        world.put_stub(message_id=f"{other!r}", message_key=other)
    assert store.named(["orders"], "name", 9) == [
        (Key("orders", "name"), "id"),
        (Key("orders", "newer"), "message key"),
        (Key("orders", "by key"), "message key"),
        (Key("orders", "in line"), "ordering key"),
    ]
    assert len(store.named(["orders", "payments"], "name", 9)) == 5
    assert store.named([], "name", 9) == [] == store.named(["orders"], "nul\x00", 9)
    found = [(Key("orders", "sent"), "broker id")]
    assert store.sent_as(["orders"], "name", NOW, 9) == found
    assert store.sent_as(["orders"], "name", NOW + DAY, 9) == []


def test_contents_of_the_messages_beside_one_are_of_its_tag_and_neither_empty_nor_large(
    world: PostgresWorld, store: StubStore
) -> None:
    for name, columns in {
        "m-0": {"content": b"before"},
        "m-1": {"content": b"itself"},
        "m-2": {"content": b""},
        "m-3": {"content": b"after", "status": "confirmed"},
        "m-4": {"content": b"of a tag", "tag": "t"},
        "m-5": {"content": b"x" * 100},
    }.items():
        world.put_stub(message_id=name, **columns)
    assert store.contents_beside(KEY, 9, 99) == [b"after", b"before"]
    assert store.contents_beside(Key("orders", "m-4"), 9, 99) == []
    assert store.contents_beside(Key("orders", "nul\x00"), 9, 99) == []


def test_sizes_are_of_content_and_headers_and_only_of_those_above_a_bound(
    world: PostgresWorld, store: StubStore
) -> None:
    world.put_stub(message_id="small", content=b"x", headers="{}")
    world.put_stub(message_id="large", content=b"x" * 100, headers="{}")
    keys = [Key("orders", name) for name in ("small", "large", "none")]
    assert store.sizes(keys) == {keys[0]: 3, keys[1]: 102}
    assert store.sizes(keys, 3) == {keys[1]: 102}
    assert store.unsendable(keys) == {}


def test_of_a_message_that_was_erased_nothing_can_be_sent(
    world: PostgresWorld, store: StubStore
) -> None:
    world.put_stub(message_id="it's", content=b"", erased_hash=b"\x07" * 32)
    world.put_stub(message_id="empty", content=b"")
    keys = [Key("orders", name) for name in ("it's", "empty", "none")]
    found = store.unsendable(keys)
    assert list(found) == keys[:1] and isinstance(found[keys[0]], ContentErased)
    assert "it's of orders was erased" in found[keys[0]].what


def test_an_edit_is_of_the_version_that_was_seen_and_of_an_open_message_alone(
    world: PostgresWorld, store: StubStore
) -> None:
    under_way = {
        "send_count": 1,
        "attempt_token": token(),
        "attempt_deadline": NOW,
        "attempted_at": NOW,
    }
    world.put_stub()
    world.put_stub(message_id="over", status="confirmed")
    world.put_stub(message_id="under way", **under_way)
    world.put_stub(message_id="erased", erased_hash=b"\x07" * 32)
    assert store.replace_content(KEY, 2, b"edited") is False
    assert store.replace_content(KEY, 1, b"edited \x00\xff'") is True
    assert store.replace_content(KEY, 1, b"again") is False
    for name in ("over", "under way", "erased", "none"):
        assert store.replace_content(Key("orders", name), 1, b"edited") is False
    message = store.contents([KEY])[KEY]
    assert (message.content, message.headers) == (b"edited \x00\xff'", {VERSION_HEADER: "2"})


def test_numbers_that_were_handed_out_before_a_restore_are_not_handed_out_again(
    world: PostgresWorld, store: StubStore
) -> None:
    """The stub knows of number 1 alone, or of none; the place of number 1 stays."""
    world.put_stub(message_id="m-1", send_count=1, queue_id=1, queue_offset=7, queue_epoch="e")
    world.put_stub(message_id="m-2")
    world.put_stub(message_id="m-3", send_count=5)
    at = datetime.now(UTC)
    world.put_stub(message_id="m-4")
    one, two, three, four = (Key("orders", f"m-{number}") for number in (1, 2, 3, 4))
    handed = [
        Handed(one, 2, ["billing"], "request 2", at - timedelta(minutes=1), Outcome.REFUSED),
        Handed(one, 3, None, "request 3", at),
        Handed(two, 1, ["billing", "it's"], "request 1", at),
        Handed(three, 4, None, "request 4", at),
        Handed(four, 1, None, "request 1", at, Outcome.REFUSED),
        Handed(four, 2, None, "request 2", at, Outcome.REFUSED),
    ]
    assert store.raise_numbers(handed) == {one, two, four}
    (refused,) = store.stubs([four]).values()
    assert (refused.send_count, refused.refusals) == (2, 2)
    found, attempts = store.stubs([one, two, three]), store.attempts([one, two, three])
    assert store.raise_numbers(handed) == set() == store.raise_numbers([])
    first = found[one]
    assert (first.send_count, first.refusals, first.attempted_at) == (3, 1, at)
    assert (first.first_queue_id, first.first_queue_offset, first.first_queue_epoch) == (1, 7, "e")
    assert (first.queue_id, first.first_groups) == (None, None)
    assert (found[two].send_count, found[two].first_groups) == (1, ("billing", "it's"))
    assert found[three].send_count == 5 and three not in attempts
    assert [(a.send_number, a.outcome, a.groups) for a in attempts[one]] == [
        (2, "refused", ("billing",)),
        (3, "unknown", None),
    ]


def test_what_a_run_closed_since_a_backup_is_open_again_and_due(
    world: PostgresWorld, store: StubStore
) -> None:
    for topic in ("orders", "payments"):
        for status in ("confirmed", "exhausted", "voided", "no_taker", "pending"):
            world.put_stub(
                topic=topic, message_id=status, status=status, updated_at=NOW, next_check_at=NOW
            )
    world.put_stub(message_id="earlier", status="confirmed", updated_at=NOW - DAY)
    assert reopen(store, ["orders"], NOW) == 2
    rows = world.run(
        "producer",
        "SELECT message_id, status, next_check_at FROM message_stub WHERE topic = 'orders'",
    )
    statuses = {row["message_id"]: row["status"] for row in rows}
    assert statuses == {
        "confirmed": "pending",
        "exhausted": "pending",
        "voided": "voided",
        "no_taker": "no_taker",
        "pending": "pending",
        "earlier": "confirmed",
    }
    reopened = {row["message_id"] for row in rows if row["next_check_at"] < NOW} - {"earlier"}
    assert reopened == {"confirmed", "exhausted"}
    assert reopen(store, [], NOW) == 0
