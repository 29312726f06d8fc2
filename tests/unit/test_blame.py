"""Whose fault a failure is: one key among those that succeed is poison; many keys at once are a downstream."""

from __future__ import annotations

from datetime import timedelta

import pytest

from backstop.client.blame import Blame, DownstreamAway

BROKEN = ValueError("broken")


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.blame = Blame(timedelta(seconds=30), clock=lambda: self.now)

    def fails(self, key: str, error: Exception = BROKEN) -> bool:
        return self.blame.failed("orders", key, error)

    def succeeds(self, *keys: str) -> None:
        for key in keys:
            self.blame.succeeded("orders", key)


@pytest.fixture
def world() -> World:
    return World()


def test_one_key_that_fails_again_and_again_is_poison_also_alone(world: World) -> None:
    assert [world.fails("a") for _ in range(10)] == [False] * 10


def test_a_few_keys_that_fail_among_many_that_succeed_are_poison(world: World) -> None:
    world.succeeds(*map(str, range(10)))
    assert [world.fails(key) for key in "abcdefghi"] == [False] * 9


def test_when_half_of_the_keys_fail_it_is_the_downstream(world: World) -> None:
    world.succeeds("a", "b", "c")
    assert [world.fails(key) for key in "xyz"] == [False, False, True]


def test_once_it_is_away_it_stays_so_until_something_succeeds(world: World) -> None:
    """Between two tries of a long backoff the window is over: a key must not be parked for being tried first."""
    assert [world.fails(key) for key in "abc"] == [False, False, True]
    world.now = 1000.0
    assert world.fails("a") and world.fails("a")
    world.succeeds("b")
    assert not world.fails("a")


def test_what_failed_before_the_window_does_not_count(world: World) -> None:
    assert not world.fails("a") and not world.fails("b")
    world.now = 31.0
    assert not world.fails("c")
    assert not world.fails("d")
    assert world.fails("e")


def test_a_key_counts_once_and_by_its_last_try(world: World) -> None:
    for key in "abc":
        world.fails(key) if key != "c" else world.succeeds(key)
    assert not world.fails("a")
    world.succeeds("a", "b")
    assert not world.fails("d") and not world.fails("e")


def test_a_handler_that_says_so_is_believed_at_once(world: World) -> None:
    world.succeeds("a", "b", "c")
    assert world.fails("d", DownstreamAway("the bank"))
