"""An ordered consumer killed between park, acknowledge and release, or in a handover: a fresh process does the rest in order."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from backstop.brokers.redis_streams import RedisStreams
from backstop_lab.servers.valkey import Valkey
from client_world import Database, broker, consumer, postgres, valkey  # noqa: F401
from forked import run_forked
from ordered_world import OrderedWorld

CHILD = Path(__file__).with_name("parking_killed_child.py")
PARKING = ("park_key", "log_follower", "begin_head", "park_again", "remove", "unpark")
HANDOVER = ("take", "drain", "release", "leave")
BOUNDARIES = [
    f"{when} the commit of {name}"
    for name in ("begin", "fail", "complete", *PARKING, *HANDOVER)
    if name != "park_again"
    for when in ("before", "after")
]
BOUNDARIES += ["before the acknowledgement", "after the acknowledgement"]


@pytest.mark.parametrize("boundary", [*BOUNDARIES, "none"])
def test_killed_anywhere_nothing_is_lost_and_no_follower_overtakes_its_head(
    consumer: Database, broker: RedisStreams, valkey: Valkey, boundary: str
) -> None:
    world = OrderedWorld(broker, consumer)
    first = {"a": ["a-000", "a-001", "a-002"], "b": ["b-000", "b-001"]}
    world.publish("a-000", "b-000", "a-001", "b-001", "a-002")
    ended = run_forked(
        CHILD, boundary, json.dumps({"consumer": consumer.dsn, "broker": valkey.url()})
    )
    assert ended.returncode == (0 if boundary == "none" else -signal.SIGKILL), ended.stderr
    kept = [i for _, ids in world.parked().values() for i in ids]
    logged = world.states()
    left = sum(broker.lag("orders", "billing").values())
    published = [*first["a"], *first["b"]]
    if left == 0:  # acknowledged is done, or kept
        assert all(logged.get(i) == "CONSUMED" or i in kept for i in published)
    world.expire_queues()
    world.expire_leases()
    with world.worker("fresh") as worker:
        world.step(
            worker, until=lambda: _answered(world) and world.lag() == 0 and world.parked() == {}
        )
    for key, ids in first.items():
        assert world.effects(key) == ids
    assert world.effects("c") in ([], ["c-000", "c-001"]), (
        "published near the end of the child's life"
    )
    assert set(world.states().values()) == {"CONSUMED"}
    assert world.stopped() == []


def _answered(world: OrderedWorld) -> bool:
    """A key that is parked, or parked again because its worker died, gets a person's answer."""
    for key, (state, _) in world.parked().items():
        if state == "PARKED":
            world.answer("retry", key)
    return True
