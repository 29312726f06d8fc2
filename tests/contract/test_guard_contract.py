"""What the guard answers and keeps is the same whatever holds the leases: PostgreSQL or MariaDB, Redis in front of it, Redis
alone.

Every test runs alone and in the middle of a batch: its message is begun, renewed and ended among others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from hashlib import sha1
from itertools import count
from random import Random
from typing import Any

import psycopg2
import pytest

from backstop.client.lease_store import InDatabase, InRedis, LeaseStore
from backstop.leases import front as front_module
from backstop.leases import guard, redis_guard
from backstop.leases.lease import (
    SHORTEST_RETRY,
    Acquired,
    Arrival,
    Begun,
    Busy,
    Conflict,
    Done,
    Superseded,
)
from backstop.leases.redis_exchange import Script
from backstop.model.errors import ContractBroken, LeaseLost
from backstop.model.records import ID_BYTES
from backstop.sql import prepared
from client_world import GROUP, TOPIC, consumer, postgres, valkey  # noqa: F401
from guard_world import ID, IN_MARIADB, KINDS, ODD, A, B, GuardWorld, Seen, acquired, arrival
from maria_world import MariaDatabase, maria, maria_consumer, maria_server  # noqa: F401

AROUND = 40
"""Messages that a batch has beside the one of the test: several buckets of Redis get more than one."""
_calls = count()


class Worker:
    """One worker, whose every call is for one message or for one among many."""

    def __init__(self, world: GuardWorld, store: LeaseStore, batch: bool) -> None:
        self.world, self.store, self.batch = world, store, batch
        self._among: dict[Acquired, list[Acquired]] = {}

    def begin(self, *arrivals: Arrival) -> Begun:
        (begun, *_) = self.begin_all(arrivals)
        return begun

    def begin_all(self, arrivals: Sequence[Arrival]) -> list[Begun]:
        others: list[Arrival] = []
        if self.batch:
            call = next(_calls)
            others = [arrival(f"other-{call}-{n}") for n in range(AROUND)]
        half = len(others) // 2
        answers = self.store.begin([*others[:half], *arrivals, *others[half:]])
        among = [acquired(answer) for answer in (*answers[:half], *answers[half + len(arrivals) :])]
        ours = answers[half : half + len(arrivals)]
        for answer in ours:
            if isinstance(answer, Acquired):
                self._among[answer] = among
        return ours

    def acquire(self, message_id: str = ID, **values: Any) -> Acquired:
        return acquired(self.begin(arrival(message_id, **values)))

    def renew(self, lease: Acquired) -> bool:
        others = self._among.get(lease, [])
        held = self.store.renew([*others, lease])
        assert held >= set(others)
        return lease in held

    def complete(self, lease: Acquired) -> None:
        """In a batch: with the others of its begin, in one call."""
        others = self._among.get(lease, [])
        if not others:
            self.store.complete(lease)
            return
        if isinstance(self.store, InRedis):
            ended = self.store._guard.complete_many([*others, lease])
        else:
            assert isinstance(self.store, InDatabase)
            with self.store.store.short_transaction() as connection:
                ended = guard.complete_many(connection, lease.group, [*others, lease])
            if lease in ended:
                self.store._tell(lease, done=True)
        self._among[lease] = []
        assert ended >= set(others)
        if lease not in ended:
            raise LeaseLost("It was not among those that ended.", unaffected="", next_step="")

    def give_back(self, lease: Acquired) -> None:
        self.store.give_back([*self._among.pop(lease, []), lease])


@pytest.fixture(params=[*KINDS, *IN_MARIADB])
def world(
    request: pytest.FixtureRequest, valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[GuardWorld]:
    """In the database alone, every statement for one message is a prepared one; behind a front none is, as at first."""
    if request.param == "database":
        monkeypatch.setattr(prepared, "USES", 0)
    database = request.getfixturevalue("maria" if request.param in IN_MARIADB else "consumer")
    world = GuardWorld(request.param, database, valkey.url())
    world.redis.flushall()
    yield world
    world.close()


@pytest.fixture(params=["single", "batch"])
def batch(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "batch")


@pytest.fixture
def one(world: GuardWorld, batch: bool) -> Worker:
    return Worker(world, world.worker(), batch)


@pytest.fixture
def other(world: GuardWorld, batch: bool) -> Worker:
    return Worker(world, world.worker(), batch)


def seen(world: GuardWorld, message_id: str = ID) -> Seen:
    found = world.see(message_id)
    assert found is not None
    return found


def test_the_first_begin_is_granted_and_the_second_is_told_busy(
    world: GuardWorld, one: Worker, other: Worker
) -> None:
    lease = one.acquire()
    assert other.begin(arrival(ID)) == Busy(timedelta(seconds=10)), (
        "the policy's retry_after: the lease ends later"
    )
    found = seen(world)
    assert (found.state, found.token, found.fence) == (
        "CONSUMING",
        lease.token.replace("-", ""),
        lease.fence,
    )
    assert (found.attempts, lease.attempts, found.hash) == (1, 1, A[:8].hex())


def test_what_is_granted_stands_when_nothing_says_why_the_rest_is_not(
    world: GuardWorld, one: Worker, other: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    if world.kind == "redis":
        pytest.skip("one script grants and says why not")
    lease = one.acquire()

    def away(*_: Any) -> Any:
        raise psycopg2.OperationalError("the server closed the connection unexpectedly")

    with monkeypatch.context() as broken:
        broken.setattr(guard, "refused_many", away)
        granted, refused = other.begin_all([arrival("free"), arrival(ID)])
    assert refused == Busy(timedelta(seconds=10))
    assert seen(world, "free").token == acquired(granted).token.replace("-", "")
    assert seen(world).token == lease.token.replace("-", "")
    # It comes again, and is counted then.
    assert isinstance(other.begin(arrival(ID)), Busy)
    other.complete(acquired(granted))
    one.complete(lease)


def test_busy_tells_when_the_lease_ends_when_that_is_sooner(world: GuardWorld, batch: bool) -> None:
    lease, later = timedelta(minutes=5), timedelta(hours=1)
    Worker(world, world.worker(lease=lease, retry_after=later), batch).acquire()
    begun = Worker(world, world.worker(lease=lease, retry_after=later), batch).begin(arrival(ID))
    assert isinstance(begun, Busy) and timedelta(0) < begun.retry_after <= lease


def test_a_lease_whose_grant_waited_longer_than_it_lasts_lasts_from_the_grant_on(
    world: GuardWorld, batch: bool
) -> None:
    """The first worker's transaction hangs, and is rolled back."""
    if world.kind == "redis":
        pytest.skip("one script waits for nothing")
    second = timedelta(seconds=1)
    other = Worker(world, world.worker(lease=second), batch)
    third = Worker(world, world.worker(lease=second), batch)
    other.begin(arrival("connected"))
    third.begin(arrival("connected, too"))
    with closing(world.database.connect()) as hangs:
        guard.begin_many(hangs, world.group, [arrival(ID)])
        granted: list[Begun] = []
        waits = threading.Thread(target=lambda: granted.append(other.begin(arrival(ID))))
        begun = time.monotonic()
        waits.start()
        waits.join(second.total_seconds() * 1.3)  # as long as the lease, and longer
        assert waits.is_alive() and time.monotonic() - begun > second.total_seconds()
        released = time.monotonic()
        hangs.rollback()
        waits.join(60)
    lease = acquired(granted[0])
    again = third.begin(arrival(ID))
    if time.monotonic() - released < second.total_seconds():
        assert isinstance(again, Busy)
    if isinstance(again, Busy):  # else the lease had ended, on a machine that stood still
        other.complete(lease)


def test_a_lease_that_was_lost_before_its_grant_was_told_is_not_granted(
    world: GuardWorld, one: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grant of a batch waited, and another worker took over what it had been granted first."""
    if world.kind == "redis":
        pytest.skip("one script waits for nothing")
    with monkeypatch.context() as late:
        late.setattr(guard, "_HARDLY_BEGUN", 2.0)
        late.setattr(guard, "renew_many", lambda *_, **__: set())
        (begun,) = one.store.begin([arrival(ID)])
    assert isinstance(begun, Busy)


def test_what_is_completed_is_done_for_everybody_and_for_ever(
    world: GuardWorld, one: Worker, other: Worker
) -> None:
    one.complete(one.acquire())
    world.expire(ID)
    assert [
        one.begin(arrival(ID)),
        other.begin(arrival(ID)),
        other.begin(arrival(ID, resent=True)),
    ] == [Done()] * 3
    assert seen(world).state == "CONSUMED"


def due(state: str, version: int, hash: bytes | None) -> type[Begun]:
    """What domain.md says of a copy, where the log has version 5 of content A."""
    if version < 5:
        return Superseded
    if state == "done":
        return Conflict if hash == B else Done
    if state in ("held", "ended") and hash == B and version == 5:
        return Conflict
    return Busy if state == "held" else Acquired


def test_every_state_version_and_content_has_its_answer(world: GuardWorld) -> None:
    worker = world.worker()
    cases = [
        (state, version, hash)
        for state in ("done", "held", "ended", "failed", "given back", "reclaimed")
        for version in (4, 5, 6)
        for hash in (A, B, None)
    ]
    names = {case: f"m-{number}" for number, case in enumerate(cases)}
    begun = worker.begin([arrival(name, version=5) for name in names.values()])
    for (state, _, _), answer in zip(cases, begun, strict=True):
        lease = acquired(answer)
        match state:
            case "done":
                worker.complete(lease)
            case "failed":
                worker.fail(lease, "it broke")
            case "given back":
                worker.give_back([lease])
            case "ended":
                world.expire(lease.message_id)
            case "reclaimed":
                world.reclaim(lease.message_id)
    answers = world.worker().begin(
        [arrival(name, hash=hash, version=v) for (_, v, hash), name in names.items()]
    )
    told = {case: type(answer) for case, answer in zip(cases, answers, strict=True)}
    assert told == {case: due(*case) for case in cases}
    for (state, version, hash), name in names.items():
        found, granted = seen(world, name), due(state, version, hash) is Acquired
        kept = (version, (hash or b"")[:8].hex()) if granted else (5, A[:8].hex())
        assert (found.version, found.hash) == kept, (
            f"{state}, {version}: a refused copy changes no content, a granted one all"
        )
        if due(state, version, hash) is Conflict:
            assert B[:8].hex() in found.conflicts, (
                "a conflict is stored, with the other content's hash"
            )
        elif not granted:
            assert not found.conflicts


def test_a_conflict_changes_nothing_but_the_note_of_it(
    world: GuardWorld, one: Worker, other: Worker
) -> None:
    lease = one.acquire()
    before = seen(world)
    assert other.begin(arrival(ID, hash=B)) == Conflict()
    after = seen(world)
    assert (after.state, after.token, after.fence, after.attempts, after.hash) == (
        before.state,
        before.token,
        before.fence,
        before.attempts,
        before.hash,
    )
    assert not before.conflicts and B[:8].hex() in after.conflicts
    one.complete(lease)
    assert other.begin(arrival(ID, hash=B)) == Conflict()
    assert other.begin(arrival(ID)) == Done()


class Standing(psycopg2.extensions.cursor):
    """Begins at the very instant at which the lease ends, or `before` it: statements of one query share their timestamp."""

    before = 0

    def execute(self, query: Any, values: Any = None) -> None:
        if "%(lease_seconds)s" in str(query):  # the grant, prepared or not
            moved = f"statement_timestamp() + interval '{Standing.before} microseconds'"
            query = f"UPDATE consumer_log SET lease_expires_at = {moved} WHERE message_id = '{ID}'; {query}"
        super().execute(query, values)


def standing_clock(world: GuardWorld, before: int) -> Any:
    """Connects where the clock stands at the end of the lease, or `before` it."""
    database = world.database
    if not isinstance(database, MariaDatabase):
        return lambda: database.connect(cursor_factory=Standing)
    (log,) = database.log_of(GROUP, TOPIC, ID)
    at = log["lease_expires_at"] - timedelta(microseconds=before)
    seconds = f"SET timestamp = {int(at.timestamp())}.{at.microsecond:06d}"
    return lambda: database.connect(init_command=seconds)


CLOCK_AT_END = """
local function ends_at(key) return tonumber(sub(call('GET', key), 2, 14)) - %d end
clock = function() local e = ends_at(KEYS[%d]); return e, e * 1000 end
"""


def standing_still(name: str, before: int, key: int) -> Script:
    """The script with its clock at the end of the lease that it looks at, or `before` it, in ms; nothing else changed."""
    script = Script(name)
    at = script.text.index("local function ends_of")  # the clock is defined above
    script.text = script.text[:at] + CLOCK_AT_END % (before, key) + script.text[at:]
    script.sha = sha1(script.text.encode(), usedforsecurity=False).hexdigest().encode()
    return script


@pytest.mark.parametrize(("before", "granted"), [(0, True), (1, False)])
def test_a_lease_that_ends_at_this_very_instant_has_ended(
    world: GuardWorld, monkeypatch: pytest.MonkeyPatch, before: int, granted: bool
) -> None:
    world.worker().begin([arrival(ID)])
    monkeypatch.setattr(Standing, "before", before)
    monkeypatch.setattr(redis_guard, "_BEGIN", standing_still("begin", before, 3))
    monkeypatch.setattr(front_module, "_LOOK", standing_still("look", before, 2))
    (begun,) = world.worker(connect=standing_clock(world, before)).begin([arrival(ID)])
    if granted:
        assert isinstance(begun, Acquired)
    else:
        assert begun == Busy(SHORTEST_RETRY)


@pytest.mark.parametrize(
    ("left", "attempts"),
    [
        ("ended", 2),
        ("reclaimed", 2),
        ("failed", 2),
        ("given back", 1),
        ("given back at its end", 1),
    ],
)
def test_what_is_left_is_taken_over_with_a_new_token_and_a_greater_fence(
    world: GuardWorld, one: Worker, other: Worker, left: str, attempts: int
) -> None:
    old = one.acquire()
    match left:
        case "ended":
            world.expire(ID)
        case "reclaimed":
            world.reclaim(ID)
        case "failed":
            one.store.fail(old, "it broke")
            assert (seen(world).state, seen(world).error) == ("FAILED", "it broke")
        case "given back":
            one.give_back(old)
        case "given back at its end":
            world.expire(ID)
            one.give_back(old)
    new = other.acquire()
    assert new.token != old.token and new.fence > old.fence
    assert (new.attempts, seen(world).attempts) == (attempts, attempts)
    assert isinstance(one.begin(arrival(ID)), Busy)


def test_who_was_overtaken_changes_nothing(world: GuardWorld, one: Worker, other: Worker) -> None:
    old = one.acquire()
    world.expire(ID)
    new = other.acquire()
    before = seen(world)
    assert not one.renew(old)
    with pytest.raises(LeaseLost):
        one.complete(old)
    with pytest.raises(LeaseLost):
        one.store.fail(old, "late")
    one.give_back(old)
    assert seen(world) == before
    assert isinstance(world.worker().begin([arrival(ID)])[0], Busy)
    other.complete(new)
    assert seen(world).state == "CONSUMED"


@pytest.mark.parametrize("end", ["done", "failed"])
def test_what_has_ended_is_not_ended_again_by_the_same_worker(
    world: GuardWorld, one: Worker, end: str
) -> None:
    lease = one.acquire()
    if end == "done":
        one.complete(lease)
    else:
        one.store.fail(lease, "it broke")
    before = seen(world)
    assert not one.renew(lease)
    with pytest.raises(LeaseLost):
        one.store.complete(lease)
    with pytest.raises(LeaseLost):
        one.store.fail(lease, "again")
    one.store.give_back([lease])
    assert seen(world) == before


def test_who_gave_it_back_changes_nothing_more(
    world: GuardWorld, one: Worker, other: Worker
) -> None:
    """Else a renewal that was under way would hold it for a lease, for nobody."""
    lease = one.acquire()
    one.give_back(lease)
    before = seen(world)
    assert not one.renew(lease)
    with pytest.raises(LeaseLost):
        one.store.complete(lease)
    with pytest.raises(LeaseLost):
        one.store.fail(lease, "late")
    one.give_back(lease)  # once more, as after a lost answer: it takes no second attempt off
    assert seen(world) == before
    assert other.acquire().fence > lease.fence


@pytest.mark.parametrize("left", ["ended", "reclaimed"])
def test_complete_succeeds_after_the_end_while_nobody_took_it(
    world: GuardWorld, one: Worker, other: Worker, left: str
) -> None:
    lease = one.acquire()
    (world.expire if left == "ended" else world.reclaim)(ID)
    one.complete(lease)
    assert seen(world).state == "CONSUMED"
    assert other.begin(arrival(ID)) == Done()


def test_renew_prolongs_and_brings_back_what_was_reclaimed(
    world: GuardWorld, one: Worker, other: Worker
) -> None:
    lease = one.acquire()
    world.reclaim(ID)
    assert one.renew(lease)
    assert (seen(world).state, seen(world).token) == ("CONSUMING", lease.token.replace("-", ""))
    assert isinstance(other.begin(arrival(ID)), Busy)
    world.expire(ID)
    assert one.renew(lease)
    assert isinstance(other.begin(arrival(ID)), Busy)


def test_fences_only_grow_and_every_attempt_is_counted(
    world: GuardWorld, one: Worker, other: Worker
) -> None:
    fences, attempts = [], 0
    for number in range(8):
        worker = (one, other)[number % 2]
        lease = worker.acquire()
        fences.append(lease.fence)
        attempts += 1
        assert lease.attempts == attempts
        match number % 4:
            case 0:
                world.expire(ID)
            case 1:
                worker.store.fail(lease, "it broke")
            case 2:
                world.reclaim(ID)
            case 3:
                worker.give_back(lease)
                attempts -= 1
    assert fences == sorted(set(fences))


def test_a_fence_grows_also_after_its_record_was_purged(world: GuardWorld) -> None:
    worker = world.worker()
    for _ in range(3):
        last = acquired(worker.begin([arrival(ID)])[0])
        world.expire(ID)
    world.database.run("DELETE FROM consumer_log")
    world.redis.flushall()
    assert acquired(worker.begin([arrival(ID)])[0]).fence > last.fence


@pytest.mark.parametrize("where", ["message id", "topic", "group"])
def test_odd_names_are_messages_of_their_own(world: GuardWorld, where: str) -> None:
    most = ID_BYTES if world.kind in IN_MARIADB else len(max(ODD, key=len))
    names = [name[:most] for name in ODD]
    if where == "group":
        worlds = [GuardWorld(world.kind, world.database, world.url, name[:250]) for name in names]
        arrivals = [[arrival(ID)] for _ in names]
    else:
        worlds = [world]
        named = [
            arrival(name) if where == "message id" else arrival(ID, name[:250]) for name in names
        ]
        arrivals = [named]
    for at, copies in zip(worlds, arrivals, strict=True):
        worker, late = at.worker(), at.worker()
        leases = [acquired(begun) for begun in worker.begin(copies)]
        assert [lease.key for lease in leases] == [copy.key for copy in copies]
        assert {type(begun) for begun in late.begin(copies)} == {Busy}
        assert worker.renew(leases) == set(leases)
        for lease in leases:
            worker.complete(lease)
        assert late.begin(copies) == [Done()] * len(copies)
        for copy in copies:
            found = at.see(copy.message_id, copy.topic)
            assert found is not None and found.state == "CONSUMED"
    for at in worlds:
        if at is not world:
            at.close()


def test_names_that_read_the_same_one_behind_the_other_are_two_messages(world: GuardWorld) -> None:
    worker = world.worker()
    (first, second) = worker.begin([arrival("c", "a:b"), arrival("b:c", "a")])
    worker.complete(acquired(first))
    assert isinstance(second, Acquired)
    assert [type(b) for b in world.worker().begin([arrival("c", "a:b"), arrival("b:c", "a")])] == [
        Done,
        Busy,
    ]


def test_two_copies_in_one_batch_are_refused_before_anything_is_asked(world: GuardWorld) -> None:
    with pytest.raises(ContractBroken):
        world.worker().begin([arrival(ID), arrival("x"), arrival(ID)])
    assert world.see(ID) is None and world.see("x") is None


@pytest.mark.parametrize("start", ["nothing", "ended", "failed"])
def test_of_many_workers_that_begin_at_once_exactly_one_gets_each_lease(
    world: GuardWorld, start: str
) -> None:
    names = [f"race-{number}" for number in range(60)]
    first = world.worker()
    if start != "nothing":
        for lease in first.begin([arrival(name) for name in names]):
            if start == "failed":
                first.fail(acquired(lease), "it broke")
            else:
                world.expire(acquired(lease).message_id)
    gate, answers = threading.Barrier(4), []

    def race(seed: int) -> None:
        worker, mixed = world.worker(), Random(seed).sample(names, len(names))
        gate.wait()
        for at in range(0, len(mixed), 20):
            answers.extend(
                zip(
                    mixed[at : at + 20],
                    worker.begin([arrival(n) for n in mixed[at : at + 20]]),
                    strict=True,
                )
            )

    threads = [threading.Thread(target=race, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    by_name = {name: sorted(type(a).__name__ for n, a in answers if n == name) for name in names}
    assert by_name == {name: ["Acquired", "Busy", "Busy", "Busy"] for name in names}


def test_groups_do_not_share_leases(world: GuardWorld) -> None:
    worker = world.worker()
    worker.complete(acquired(worker.begin([arrival(ID)])[0]))
    elsewhere = GuardWorld(world.kind, world.database, world.url, "shipping")
    assert isinstance(elsewhere.worker().begin([arrival(ID)])[0], Acquired)
    elsewhere.close()
    assert GROUP != "shipping"


def test_a_lease_that_was_lost_while_the_commit_of_its_grant_waited_is_not_granted(
    world: GuardWorld, other: Worker, batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a standby, for example: then its statement knows nothing of it."""
    if world.kind == "redis":
        pytest.skip("one script waits for nothing")
    late = Worker(world, world.worker(lease=timedelta(seconds=1)), batch)
    assert isinstance(late.store, InDatabase)
    asked = late.store.store.retried

    def waits(work: Any, **how: Any) -> Any:
        found = asked(work, **how)
        world.expire(ID)
        acquired(other.begin(arrival(ID)))
        time.sleep(0.2)
        return found

    with monkeypatch.context() as waiting:
        waiting.setattr(late.store.store, "retried", waits)
        assert isinstance(late.begin(arrival(ID)), Busy)
