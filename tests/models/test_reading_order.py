"""Every interleaving of a producer, a small queue, a group of two workers and one run: no false loss, and no loss missed.

States are explored one by one; what a run saw in each becomes rows, and the verdict is the shipped rule's, over all of them at
once. A reading order that domain.md forbids is explored as well: it must be caught, or this test could not fail.

Time has two instants. EARLY: the producer's send may still be on its way. LATE: attempt and send are over, everything that
was ever stored has been. The subject is message m; f is another message of the same queue, so that progress moves without m.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from rule_rows import (
    ATTEMPT,
    EARLY,
    LATE,
    START,
    YEAR_1,
    S,
    by_the_rule,
    group_state,
    log,
    no_rows,
    policy,
    progress,
)

SAFE = ("stubs", "progress", "offsets", "logs", "floor")


@dataclass(frozen=True)
class World:
    """What is: the queue is a tuple of (message, stored at), offsets are places in it."""

    late: bool = False
    sending: bool = True
    """The producer's send of m has not ended."""
    acknowledged: int | None = None
    """The offset that the producer recorded."""
    queue: tuple[tuple[str, int], ...] = ()
    lost: bool = False
    """The broker lost m after it had stored it."""
    taken: tuple[str, ...] = ()
    """Messages handed to a worker, in order; each worker holds one."""
    held: tuple[str, ...] = ()
    logged: frozenset[str] = frozenset()
    done: frozenset[str] = frozenset()
    """Acknowledged at the broker."""
    purged: bool = False
    """m's log was purged, after the floor was raised."""
    read: tuple[tuple[str, Any], ...] = ()
    """What the run has read so far, in its order."""


@dataclass(frozen=True)
class Model:
    """Which run, over which group."""

    order: tuple[str, ...] = SAFE
    progress: str = "acknowledged"
    grace: bool = False
    """Progress is read, then every worker that holds a message then logs it, and only then does the run begin."""
    purges: bool = False


def steps(world: World, model: Model) -> Iterator[World]:
    """Everything that can happen next."""
    now = LATE if world.late else EARLY
    stored = {message for message, _ in world.queue}
    if world.sending:
        yield replace(world, sending=False)  # it dies before the send, or in it
        if "m" not in stored:
            yield replace(world, queue=(*world.queue, ("m", now)))
    if "m" in stored and world.sending:
        offset = [message for message, _ in world.queue].index("m")
        yield replace(world, sending=False, acknowledged=offset)
    if "f" not in stored:
        yield replace(world, queue=(*world.queue, ("f", now)))
    if "m" in stored and not world.lost and "m" not in world.taken:
        yield replace(world, lost=True)
    if not world.late and not world.sending:
        yield replace(world, late=True)
    waiting = [message for message, _ in world.queue if message not in world.taken]
    if waiting and len(world.held) < 2:
        if waiting[0] == "m" and world.lost:  # nothing is there: the group goes over it
            yield replace(world, taken=(*world.taken, "m"), done=world.done | {"m"})
        else:
            yield replace(world, taken=(*world.taken, waiting[0]), held=(*world.held, waiting[0]))
    for message in world.held:
        if message not in world.logged:
            yield replace(world, logged=world.logged | {message})
        else:
            left = tuple(one for one in world.held if one != message)
            yield replace(world, held=left, done=world.done | {message})
    if model.purges and "m" in world.done and "m" in world.logged and not world.purged:
        yield replace(world, purged=True)
    if len(world.read) < len(model.order):
        what = model.order[len(world.read)]
        if not (model.grace and what == "stubs" and not _settled(world)):
            yield replace(world, read=(*world.read, (what, read(world, what, model))))


def _settled(world: World) -> bool:
    """Whoever held a message when progress was recorded has logged it: the consume timeout is over."""
    recorded = dict(world.read).get("recorded")
    return recorded is None or all(message in world.logged for message in recorded[1])


def read(world: World, what: str, model: Model) -> Any:
    """What the run sees when it looks at this now."""
    now = LATE if world.late else EARLY
    match what:
        case "stubs":
            return world.acknowledged, now
        case "progress" | "recorded":
            passed = _passed(world, model)
            rest = world.queue[passed:]
            held = world.held if what == "recorded" else ()
            return (passed, rest[0][1] if rest else now), held
        case "offsets":
            return len(world.queue)
        case "logs":
            return "m" in world.logged and not world.purged
        case "floor":
            return START + S if world.purged else YEAR_1
    raise AssertionError(what)


def _passed(world: World, model: Model) -> int:
    messages = [message for message, _ in world.queue]
    if model.progress == "logged":
        logged = [place for place, message in enumerate(messages) if message in world.logged]
        return max(logged, default=-1) + 1
    open_ = [place for place, message in enumerate(messages) if message not in world.done]
    return min(open_, default=len(messages))


def explore(model: Model) -> set[World]:
    """Every state in which the run has read everything."""
    seen: set[World] = set()
    ends: set[World] = set()
    todo = [World()]
    while todo:
        world = todo.pop()
        if world in seen:
            continue
        seen.add(world)
        if len(world.read) == len(model.order):
            ends.add(world)
            continue  # nothing that happens later changes what this run saw
        todo.extend(steps(world, model))
    return ends


def verdicts(ends: list[World], model: Model) -> list[tuple[str, bool]]:
    """(verdict, eligible) of m by the shipped rule, for what each run saw."""
    tables = no_rows()
    for number, world in enumerate(ends):
        seen = dict(world.read)
        acknowledged, as_of = seen["stubs"]
        (passed, passed_until), _ = seen["recorded"] if model.grace else seen["progress"]
        if model.grace:
            (live, live_until), _ = seen["progress"]
            passed, passed_until = min(passed, live), min(passed_until, live_until)
        # One instant for all: a run at EARLY is moved to LATE with everything it knows of time.
        moved = LATE - as_of
        topic, known = f"t{number}", {"topic": f"t{number}", "consumer_group": "g"}
        tables["delivery"].append(
            {
                "stub_id": number,
                "shard": "s",
                **known,
                "message_id": "m",
                "status": "pending",
                "send_count": 1,
                "refusals": 0,
                "max_sends": None,
                "next_check_at": START,
                "created_at": START + moved,
                "first_seen_at": START,
                "judged_at": None,
                "deliver_at": None,
                "attempted_at": START + moved,
                "sent_at": None if acknowledged is None else EARLY + moved,
                "attempt_deadline": START + ATTEMPT + moved,
                "settled": acknowledged is not None,
                "broker": "main",
                "queue_id": None if acknowledged is None else 0,
                "queue_offset": acknowledged,
                "queue_epoch": None if acknowledged is None else "e",
                "first_to_all": True,
                **log(seen["logs"]),
            }
        )
        tables["policy"].append(policy(topic, "main"))
        tables["group_state"].append(
            {
                **group_state(topic, "main", passed_until + moved),
                "log_floor": seen["floor"] + (moved if seen["floor"] > 0 else 0),
            }
        )
        tables["progress"].append(progress(topic, "main", passed, seen["offsets"]))
    return by_the_rule(tables)


def is_lost(world: World) -> bool:
    """The broker never got m, or lost it: nobody will ever process it."""
    stored = any(message == "m" for message, _ in world.queue)
    return world.lost or (not stored and not world.sending)


def false_losses(model: Model) -> list[World]:
    """States whose run would send m again although a worker has processed it, or will."""
    ends = sorted(explore(model), key=repr)
    judged = verdicts(ends, model)
    return [
        world
        for world, (_, eligible) in zip(ends, judged, strict=True)
        if eligible and not is_lost(world)
    ]


def test_no_run_in_the_safe_order_calls_a_message_lost_that_is_not() -> None:
    model = Model()
    ends = sorted(explore(model), key=repr)
    judged = verdicts(ends, model)
    assert len(ends) > 1_000
    assert [
        world
        for world, (_, eligible) in zip(ends, judged, strict=True)
        if eligible and not is_lost(world)
    ] == []
    # The exploration meets what it is about: confirmed, waiting for the group, and really lost in both ways.
    assert {"CONFIRMED", "BACKLOGGED", "LOST", "UNSENT"} <= {verdict for verdict, _ in judged}


def test_purging_logs_meanwhile_makes_nothing_lost_when_the_floor_is_read_last() -> None:
    assert false_losses(Model(purges=True)) == []


@pytest.mark.parametrize(
    ("forbidden", "purges"),
    [
        (("stubs", "logs", "progress", "offsets", "floor"), False),
        (("logs", "stubs", "progress", "offsets", "floor"), False),
        (("stubs", "progress", "offsets", "floor", "logs"), True),
    ],
    ids=["progress after logs", "everything after logs", "floor before logs"],
)
def test_a_forbidden_order_has_false_losses(forbidden: tuple[str, ...], purges: bool) -> None:
    assert false_losses(Model(order=forbidden, purges=purges)) != []


def test_every_real_loss_is_found_once_the_group_is_past_it() -> None:
    """After everything has come to rest, one more run sees a loss as a loss, and nothing else as one."""
    at_rest = {
        replace(world, read=())
        for world in _at_rest()
        if world.late and not world.held and len(world.taken) == len(world.queue)
    }
    model = Model()
    ends = []
    for world in sorted(at_rest, key=repr):
        for what in model.order:
            world = replace(world, read=(*world.read, (what, read(world, what, model))))
        ends.append(world)
    judged = verdicts(ends, model)
    assert len(ends) > 10
    for world, (verdict, eligible) in zip(ends, judged, strict=True):
        assert eligible == is_lost(world), (world, verdict)


def _at_rest() -> set[World]:
    seen: set[World] = set()
    todo = [World()]
    model = Model(order=())
    rest: set[World] = set()
    while todo:
        world = todo.pop()
        if world in seen:
            continue
        seen.add(world)
        following = list(steps(world, model))
        # At rest: what may still happen is only that the broker loses something, or that another message comes.
        todo.extend(following)
        rest.add(world)
    return rest


def test_logged_progress_needs_its_grace() -> None:
    """Two workers log out of order: the highest logged offset is past a message that the other one still holds."""
    assert false_losses(Model(progress="logged")) != []
    assert false_losses(Model(progress="logged", order=("recorded", *SAFE), grace=True)) == []
