"""What every store of logs must hold: a row that is there is found, one that breaks its contract says so,
silence raises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from backstop.model.errors import StoreUnavailable
from backstop.model.records import EARLIEST, LATEST, Key, LogState
from backstop.stores.protocol import LogStore
from backstop.triage.causes.fingerprint import HEAD, TAIL, fingerprint
from backstop.verdicts.frames import micros
from maria_world import MariaLogWorld
from store_world import NOW, PASSWORD, WORLDS, PostgresWorld, token

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
]
MICROSECOND = timedelta(microseconds=1)


@pytest.fixture(scope="module", params=[*WORLDS, MariaLogWorld], ids=lambda world: world.__name__)
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
def store(world: PostgresWorld) -> Iterator[LogStore]:
    with world.logs() as opened:
        yield opened


def test_logs_are_found_by_key_for_their_own_group_only(
    world: PostgresWorld, store: LogStore
) -> None:
    owner = token()
    world.put_log(
        state="CONSUMED",
        consumed_at=NOW,
        updated_at=NOW,
        first_received_at=NOW - MICROSECOND,
        owner_token=owner,
        lease_expires_at=NOW,
        attempts=3,
        duplicates_stopped=2,
        conflicts=1,
        last_error="why",
    )
    world.put_log(consumer_group="shipping", message_id="m-2")
    found = store.logs("billing", [KEY, Key("orders", "m-2"), Key("payments", "m-1"), KEY])
    assert set(found) == {KEY}
    row = found[KEY]
    assert (row.consumer_group, row.topic, row.message_id, row.state) == (
        "billing",
        "orders",
        "m-1",
        "CONSUMED",
    )
    assert (row.consumed_at, row.updated_at, row.lease_expires_at) == (NOW, NOW, NOW)
    assert (row.first_received_at, row.owner_token) == (NOW - MICROSECOND, owner)
    assert (row.attempts, row.duplicates_stopped, row.conflicts, row.last_error) == (3, 2, 1, "why")
    assert row.invalid is None
    assert store.logs("billing", []) == {}


def test_of_an_error_that_no_one_bounded_the_ends_are_read(
    world: PostgresWorld, store: LogStore
) -> None:
    """Another program's stack trace may hold a whole payload, and thousands of logs are read at once."""
    world.put_log(last_error="begins " + "x" * 60_000 + " ends")
    error = store.logs("billing", [KEY])[KEY].last_error
    assert error is not None and len(error) == HEAD + 1 + TAIL
    assert (error[:7], error[-4:]) == ("begins ", "ends")
    assert fingerprint(error) == fingerprint("begins " + "x" * 60_000 + " ends")


def test_ids_of_any_text_are_found(world: PostgresWorld, store: LogStore) -> None:
    keys = [Key(topic, message_id) for topic in ODD[:3] for message_id in ODD]
    for group in ODD:
        for key in keys[::5]:
            world.put_log(consumer_group=group, topic=key.topic, message_id=key.message_id)
    for group in ODD:
        assert set(
            store.logs(group, [*keys, Key("orders", "nul\x00"), Key("orders", "half\ud800")])
        ) == set(keys[::5])


def test_every_state_of_the_contract_is_valid(world: PostgresWorld, store: LogStore) -> None:
    for state in LogState:
        world.put_log(message_id=state.value, state=state.value, consumed_at=NOW)
    found = store.logs("billing", [Key("orders", state.value) for state in LogState])
    assert {row.state: row.invalid for row in found.values()} == {
        state.value: None for state in LogState
    }


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"state": "DONE"}, "unknown state"),
        ({"state": "CONSUMED "}, "unknown state"),
        ({"state": "consumed"}, "unknown state"),
        ({"state": None}, "unknown state"),
        ({"updated_at": None}, "updated_at"),
        ({"state": "CONSUMED", "consumed_at": None}, "consumed_at"),
        ({"first_received_at": None}, "first_received_at"),
        ({"attempts": None}, "count"),
        ({"duplicates_stopped": -1}, "count"),
    ],
)
def test_a_row_that_breaks_its_contract_is_told_and_still_counts_as_there(
    world: PostgresWorld, store: LogStore, columns: dict[str, Any], reason: str
) -> None:
    sound = {"updated_at": NOW, "first_received_at": NOW, "attempts": 1, "duplicates_stopped": 0}
    with world.without_rules():
        world.put_log(message_id="sound", **sound)
        world.put_log(**{**sound, **columns})
        found = store.logs("billing", [KEY, Key("orders", "sound")])
    assert reason in (found[KEY].invalid or "")
    assert found[Key("orders", "sound")].invalid is None


def test_two_rows_for_one_key_are_neither_taken_for_the_truth(
    world: PostgresWorld, store: LogStore
) -> None:
    sound = {"updated_at": NOW, "first_received_at": NOW, "attempts": 1, "duplicates_stopped": 0}
    with world.without_rules():
        world.put_log(**sound)
        world.put_log(**sound, state="CONSUMED", consumed_at=NOW)
        assert store.logs("billing", [KEY])[KEY].invalid


def test_an_instant_that_no_datetime_holds_does_not_stop_the_others(
    world: PostgresWorld, store: LogStore
) -> None:
    odd = world.odd_instants
    keys = [Key("orders", f"odd-{number}") for number in range(len(odd))]
    for key, instant in zip(keys, odd, strict=True):
        world.put_log(message_id=key.message_id, lease_expires_at=instant, updated_at=NOW)
    world.put_log(updated_at=NOW)
    found = store.logs("billing", [KEY, *keys])
    assert len(found) == 1 + len(odd)
    bounds = [bound_of(name) for name in odd.values()]
    assert [found[key].lease_expires_at for key in keys] == bounds
    table = {
        row["message_id"]: row["lease_expires_at"]
        for row in store.log_table("billing", keys).to_pylist()
    }
    assert [table[key.message_id] for key in keys] == [bound and micros(bound) for bound in bounds]


def bound_of(name: str | None) -> datetime | None:
    """The instant that an odd one is read as; null: it is none."""
    if name is None:
        return None
    ends = {"latest": LATEST, "earliest": EARLIEST}
    return ends.get(name) or datetime.fromisoformat(name).replace(tzinfo=UTC)


def test_the_floor_is_the_year_one_until_something_was_purged(
    world: PostgresWorld, store: LogStore
) -> None:
    assert store.floor("billing").year == 1
    world.put_floor("billing", None)
    assert store.floor("billing").year == 1
    world.put_floor("shipping", NOW)
    assert (store.floor("shipping"), store.floor("billing").year) == (NOW, 1)


def test_what_was_received_is_read_from_its_start_up_to_its_end_oldest_first(
    world: PostgresWorld, store: LogStore
) -> None:
    for number in (3, 1, 2, 0):
        world.put_log(message_id=f"m-{number}", first_received_at=NOW + number * MICROSECOND)
    world.put_log(consumer_group="shipping", first_received_at=NOW)

    def received(start: int, end: int, limit: int = 9) -> list[str]:
        rows = store.received_between(
            "billing", NOW + start * MICROSECOND, NOW + end * MICROSECOND, limit
        )
        return [row.message_id for row in rows]

    assert received(1, 3) == ["m-1", "m-2"]
    assert received(0, 4, limit=3) == ["m-0", "m-1", "m-2"]
    assert received(2, 2) == []


def test_the_highest_offset_is_told_for_each_queue_and_epoch(
    world: PostgresWorld, store: LogStore
) -> None:
    rows = [
        (0, "a", 5),
        (0, "a", 12),
        (0, "a", 13),
        (0, "a", 2**63 - 1),
        (0, "b", 1),
        (3, "a", 7),
        (3, "a", 6),
        (1, None, 9),
        (None, None, None),
    ]
    for number, (queue, epoch, offset) in enumerate(rows):
        world.put_log(
            message_id=f"m-{number}", queue_id=queue, queue_epoch=epoch, queue_offset=offset
        )
    world.put_log(topic="payments", queue_id=0, queue_epoch="a", queue_offset=99)
    world.put_log(consumer_group="shipping", queue_id=0, queue_epoch="a", queue_offset=98)
    # Nothing was stored at or above the end of the queue, whatever a row says.
    ends = {(0, "a"): 13, (0, "b"): 2, (3, "a"): 8, (1, "a"): 9, (9, "c"): 1}
    found = store.highest_logged("billing", "orders", ends)
    assert found == {(0, "a"): 12, (0, "b"): 1, (3, "a"): 7}
    assert store.highest_logged("billing", "refunds", ends) == {}
    assert store.highest_logged("billing", "orders", {}) == {}


def test_a_store_that_does_not_answer_says_so_in_three_parts_without_its_password(
    world: PostgresWorld,
) -> None:
    _, store = world.unreachable()
    asks: list[Callable[[], object]] = [
        store.clock,
        lambda: store.floor("billing"),
        lambda: store.logs("billing", [KEY]),
        store.check,
        lambda: store.received_between("billing", NOW, NOW, 1),
        lambda: store.highest_logged("billing", "orders", {(0, "a"): 1}),
    ]
    for ask in asks:
        with pytest.raises(StoreUnavailable) as caught:
            ask()
        error = caught.value
        assert "billing_db" in error.what and error.unaffected and error.next_step
        assert PASSWORD not in str(error) + repr(error) + repr(error.__context__) + repr(store)
    store.close()


def test_a_sound_store_passes_its_check(store: LogStore) -> None:
    findings = store.check()
    assert len(findings) >= 5
    assert all(finding.good for finding in findings), findings
