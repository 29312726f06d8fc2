"""Order whatever happens: lanes, crashes, handovers, late workers, parking and release, in any order.

With one protection taken away the same machine must find it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from backstop.brokers.redis_streams import receive_owned
from backstop.client import OrderedConsumer
from backstop.leases import parking, queue_owner
from client_world import Database, open_broker, postgres, valkey  # noqa: F401
from committed import close_sessions
from order_machine import EFFECT, OrderMachine, Stage

SETTINGS = settings(
    max_examples=20,
    stateful_step_count=30,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)
Switch = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(scope="module")
def stage(postgres: Any, valkey: Any) -> Iterator[Stage]:
    dsn = postgres.admin_dsn("consumer")
    database = Database(dsn)
    database.run("ALTER DATABASE consumer SET synchronous_commit = off")
    close_sessions()  # one that is open goes by what was set before
    database.run(EFFECT)
    with open_broker(valkey.url()) as broker:
        stage = Stage(database, broker)
        yield stage
        stage.close()


def test_the_effects_of_each_key_are_its_messages_in_order_each_once_whatever_happens(
    stage: Stage,
) -> None:
    run_state_machine_as_test(lambda: OrderMachine(stage), settings=SETTINGS)


def without_adoption(patch: pytest.MonkeyPatch) -> None:
    """An owner that reads new messages only."""
    patch.setattr(receive_owned, "_NONE_ADOPTED", b"")


def entered_before_it_was_lost(patch: pytest.MonkeyPatch) -> None:
    """What is asked right before a handler sees what happened until then, and nothing that happens in it: as if all happened in it."""
    patch.setattr(OrderedConsumer, "_may_begin", lambda *_: True)


def without_comparison(patch: pytest.MonkeyPatch) -> None:
    """No look at the fence in the handler's transaction."""
    entered_before_it_was_lost(patch)
    patch.setattr(queue_owner, "compare", lambda connection, queue: None)
    compared, sql = "AND q.fence = %(fence)s::bigint", parking._SQL["complete"]
    assert compared in sql
    patch.setattr(parking, "_SQL", {**parking._SQL, "complete": sql.replace(compared, "")})


def without_lock(patch: pytest.MonkeyPatch) -> None:
    """The key's row is read and not locked."""
    plain = parking._SQL["lock_keys"]
    assert plain.endswith("FOR UPDATE")
    patch.setattr(parking, "_SQL", {**parking._SQL, "lock_keys": plain.removesuffix("FOR UPDATE")})


def without_fence_at_begin(patch: pytest.MonkeyPatch) -> None:
    """A late worker may begin."""
    entered_before_it_was_lost(patch)
    patch.setattr(queue_owner, "held", lambda connection, queues, *_: set(queues))


WEAKENED: dict[str, tuple[str, Switch]] = {
    "no adoption of an expired owner's work": (r"[abc]: \[|something is lost", without_adoption),
    "no comparison of the fence with the handler's effects": ("had an effect", without_comparison),
    "no lock around the question whether a key is parked": ("parked_message_has_key", without_lock),
    "no comparison of the fence at begin": (
        "began a message|had an effect",
        without_fence_at_begin,
    ),
}
"""What the machine says then, and what is taken away."""


@pytest.mark.parametrize("weakness", WEAKENED)
def test_with_one_protection_taken_away_the_machine_finds_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, weakness: str
) -> None:
    found, switch = WEAKENED[weakness]
    switch(monkeypatch)
    bounded = settings(
        SETTINGS, max_examples=60, phases=[Phase.generate], report_multiple_bugs=False
    )
    with pytest.raises(Exception, match=found):
        run_state_machine_as_test(lambda: OrderMachine(stage), settings=bounded)
