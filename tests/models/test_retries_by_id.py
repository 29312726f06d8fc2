"""Every interleaving of a message that fails and comes again, its group, and one run that lists what waits by id.

The message m was acknowledged at offset 0 of the topic's queue. A worker that fails stores it in the schedule and then commits;
the broker moves it from the schedule to the end of the retry queue; workers may die, and may acknowledge without processing (that
is a loss, which must be found). What a run saw becomes rows, and the verdict is the shipped rule's. Orders that domain.md 3
forbids are explored as well: each must be caught, or this test could not fail.
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
    by_the_rule,
    group_state,
    log,
    no_rows,
    policy,
    progress,
)

SAFE = ("progress", "place", "schedule", "retry", "logs")
FAILURES, DEATHS = 3, 1
TOPIC = -1
"""Where a worker has m from: the topic, else the entry of the retry queue."""


@dataclass(frozen=True)
class World:
    passed: bool = False
    """The group's commit in the topic is past m."""
    place: int = 0
    """Its commit in the retry queue."""
    hands: tuple[tuple[int, str], ...] = ()
    """(from where, working | ended) of each worker that has m."""
    schedule: int = 0
    """Copies of m in the schedule."""
    stored: int = 0
    """Entries of the retry queue, all of m."""
    logged: bool = False
    failures: int = 0
    deaths: int = 0
    read: tuple[tuple[str, Any], ...] = ()

    def over(self) -> bool:
        """Nobody will ever process m, and nobody has."""
        return (
            not self.logged
            and not self.hands
            and self.passed
            and self.schedule == 0
            and self.place == self.stored
        )


@dataclass(frozen=True)
class Model:
    order: tuple[str, ...] = SAFE
    commits_at_receipt: bool = False
    """Then a worker's death brings m back by the schedule, as POP does, and what is settled was recorded a grace ago."""


def steps(world: World, model: Model) -> Iterator[World]:
    froms = [one for one, _ in world.hands]
    if not world.passed and TOPIC not in froms:
        taken = replace(world, hands=(*world.hands, (TOPIC, "working")))
        yield replace(taken, passed=True) if model.commits_at_receipt else taken
    entry = max([world.place, *(one + 1 for one in froms)])
    if entry < world.stored:
        taken = replace(world, hands=(*world.hands, (entry, "working")))
        yield replace(taken, place=entry + 1) if model.commits_at_receipt else taken
    for hand in world.hands:
        rest = tuple(one for one in world.hands if one != hand)
        ended = rest if model.commits_at_receipt else (*rest, (hand[0], "ended"))
        if hand[1] == "working":
            yield replace(world, hands=ended, logged=True)
            yield replace(world, hands=ended)  # acknowledged, and never processed
            if world.failures < FAILURES:
                yield replace(
                    world, hands=ended, schedule=world.schedule + 1, failures=world.failures + 1
                )
        elif hand[0] == TOPIC:
            yield replace(world, hands=rest, passed=True)
        elif hand[0] == world.place:
            yield replace(world, hands=rest, place=world.place + 1)
        if world.deaths < DEATHS:
            dead = replace(world, hands=rest, deaths=world.deaths + 1)
            yield replace(dead, schedule=world.schedule + 1) if model.commits_at_receipt else dead
    if world.schedule:
        yield replace(world, schedule=world.schedule - 1, stored=world.stored + 1)
    if len(world.read) < len(model.order):
        what = model.order[len(world.read)]
        if not (world.read and world.read[-1][0] == "recorded" and _in_hand_still(world)):
            yield replace(world, read=(*world.read, (what, read(world, what))))


def _in_hand_still(world: World) -> bool:
    """Whether somebody has had m in hand since the look was recorded: then the settle grace is not over."""
    return any(hand in world.hands for hand in dict(world.read)["recorded"][2])


def read(world: World, what: str) -> Any:
    match what:
        case "recorded":
            return world.passed, world.place, world.hands
        case "progress":
            return world.passed
        case "place":
            return world.place
        case "schedule":
            return world.schedule > 0
        case "retry":
            return world.stored
        case "logs":
            return world.logged
    raise AssertionError(what)


def explore(model: Model) -> list[World]:
    """Every state in which the run has read everything."""
    seen: set[World] = set()
    todo, ends = [World()], []
    while todo:
        world = todo.pop()
        if world in seen:
            continue
        seen.add(world)
        if len(world.read) == len(model.order):
            ends.append(world)
        else:
            todo.extend(steps(world, model))
    return sorted(ends, key=repr)


def verdicts(ends: list[World]) -> list[tuple[str, bool]]:
    """(verdict, eligible) of m by the shipped rule, for what each run saw."""
    tables = no_rows()
    for number, world in enumerate(ends):
        seen = dict(world.read)
        passed, place = seen["progress"], seen.get("place", 0)
        if "recorded" in seen:
            passed = passed and seen["recorded"][0]
            if "place" not in seen:
                place = seen["recorded"][1]
        topic = f"t{number}"
        tables["delivery"].append(delivery(number, topic, "main", found=seen["logs"]))
        if seen["schedule"] or seen["retry"] > place:
            tables["waiting"].append({"topic": topic, "consumer_group": "g", "message_id": "m"})
        tables["policy"].append(policy(topic, "main"))
        tables["group_state"].append(group_state(topic, "main", LATE))
        tables["progress"].append(progress(topic, "main", int(passed), 1))
    return by_the_rule(tables)


def delivery(number: int, topic: str, broker: str | None, *, found: bool) -> dict[str, Any]:
    """m, sent once and acknowledged at offset 0 of this broker's queue 0."""
    return {
        "stub_id": number,
        "shard": "s",
        "topic": topic,
        "consumer_group": "g",
        "message_id": "m",
        "status": "pending",
        "send_count": 1,
        "refusals": 0,
        "max_sends": None,
        "next_check_at": START,
        "created_at": START,
        "first_seen_at": START,
        "judged_at": None,
        "deliver_at": None,
        "attempted_at": START,
        "sent_at": EARLY,
        "attempt_deadline": START + ATTEMPT,
        "settled": True,
        "broker": broker,
        "queue_id": 0,
        "queue_offset": 0,
        "queue_epoch": "e",
        "first_to_all": True,
        **log(found),
    }


def false_losses(model: Model) -> list[World]:
    """States whose run would send m again although a worker has processed it, or may."""
    ends = explore(model)
    return [
        world
        for world, (_, eligible) in zip(ends, verdicts(ends), strict=True)
        if eligible and not world.over()
    ]


RECORDED = ("recorded", "progress", "schedule", "retry", "logs")


@pytest.mark.parametrize(
    "model", [Model(), Model(RECORDED, commits_at_receipt=True)], ids=["acknowledged", "received"]
)
def test_what_comes_again_is_never_lost_and_what_does_not_is(model: Model) -> None:
    ends = explore(model)
    judged = verdicts(ends)
    assert len(ends) > 300
    assert [
        world
        for world, (_, eligible) in zip(ends, judged, strict=True)
        if eligible and not world.over()
    ] == []
    assert {"CONFIRMED", "BACKLOGGED", "LOST"} <= {verdict for verdict, _ in judged}


def test_a_loss_that_was_over_before_the_run_began_is_found_by_it() -> None:
    ends = []
    for world in {replace(one, read=()) for one in explore(Model()) if one.over()}:
        for what in SAFE:
            world = replace(world, read=(*world.read, (what, read(world, what))))
        ends.append(world)
    assert len(ends) > 3 and set(verdicts(ends)) == {("LOST", True)}


@pytest.mark.parametrize(
    ("order", "commits_at_receipt"),
    [
        (("progress", "schedule", "place", "retry", "logs"), False),
        (("progress", "place", "retry", "schedule", "logs"), False),
        (("place", "schedule", "retry", "progress", "logs"), False),
        (("logs", "progress", "place", "schedule", "retry"), False),
        (("recorded", "progress", "place", "schedule", "retry", "logs"), True),
    ],
    ids=[
        "place after schedule",
        "retry before schedule",
        "progress last",
        "logs first",
        "the place of today",
    ],
)
def test_a_forbidden_order_has_false_losses(
    order: tuple[str, ...], commits_at_receipt: bool
) -> None:
    assert false_losses(Model(order, commits_at_receipt)) != []


def test_a_copy_is_judged_by_its_own_broker_in_every_interleaving() -> None:
    """The topic moved from `old`, where m is, to `new`; the group goes on at each of them by itself, and the two are read in
    either order."""
    tables, wrong, processed = no_rows(), no_rows(), []
    number = 0
    for at_old in (0, 1):
        for at_new in (0, 1):
            for logged in (False, True) if at_old else (False,):
                topic = f"t{number}"
                for rows, broker in ((tables, "old"), (wrong, None)):
                    rows["delivery"].append(delivery(number, topic, broker, found=logged))
                    rows["policy"].append(policy(topic, "new"))
                    for name, settled in (("old", at_old), ("new", at_new)):
                        rows["group_state"].append(group_state(topic, name, LATE))
                        rows["progress"].append(progress(topic, name, settled, 1))
                processed.append(logged or not at_old)
                number += 1
    assert [eligible for _, eligible in by_the_rule(tables)] == [not one for one in processed]
    assert any(
        eligible and one for (_, eligible), one in zip(by_the_rule(wrong), processed, strict=True)
    )
