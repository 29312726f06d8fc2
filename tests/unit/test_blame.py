"""Whose fault a failure is: one key among those that succeed is poison; many keys at once are a downstream."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from backstop.client.blame import MOST_OLDER, Blame, DownstreamAway

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


def test_a_few_poison_keys_of_a_quiet_topic_are_found_although_most_keys_of_a_window_fail(
    world: World,
) -> None:
    counted = dict.fromkeys("abc", 0)
    for second in range(180):
        world.now = float(second)
        if second % 11 == 10:  # three within a window
            world.succeeds(f"good-{second}")
        for key in counted:
            counted[key] += not world.fails(key)
        if second == 30:
            assert max(counted.values()) <= 3, "at first they are too many of what was tried"
    assert min(counted.values()) >= 10


def test_a_key_that_fails_now_and_then_beside_them_does_not_hide_poison_keys(world: World) -> None:
    counted = dict.fromkeys("abc", 0)
    for second in range(300):
        world.now = float(second)
        if second % 25 == 0:
            world.fails("flapping")
        if second % 25 == 1:
            world.succeeds("flapping")
        if second % 16 == 10:  # two within a window
            world.succeeds(f"good-{second}")
        for key in counted:
            counted[key] += not world.fails(key)
    assert min(counted.values()) >= 10


def test_of_a_downstream_that_is_away_a_third_of_the_time_no_key_is_taken_for_poison(
    world: World,
) -> None:
    """Some keys are tried only while it is away, as those that back off may be; most others it hits now and then."""
    for second in range(1_800):
        world.now = float(second)
        if second % 60 >= 40:
            answers = [world.fails(f"k-{key}") for key in range(20)]
            assert all(answers) or second % 60 == 40, "it is away for longer than a second"
        else:
            world.succeeds(*(f"k-{key}" for key in range(5, 20)))


def test_a_downstream_that_comes_and_goes_is_judged_by_its_window_alone(world: World) -> None:
    """Four of five tries fail, at random: all keys fail now and then, so that none of them stands out."""
    chance, counted = random.Random(1), 0
    by_window = Blame(timedelta(seconds=30), clock=lambda: world.now)
    by_window._is_poison = lambda since, now: False  # type: ignore[method-assign]
    for second in range(1_800):
        world.now = float(second)
        for key in map(str, range(20)):
            if chance.random() < 0.2:
                world.succeeds(key)
                by_window.succeeded("orders", key)
            else:
                is_away = world.fails(key)
                assert is_away == by_window.failed("orders", key, BROKEN)
                counted += not is_away
    assert counted < 20


def test_a_release_that_fails_on_most_keys_is_to_blame_however_long(world: World) -> None:
    for second in range(1_800):
        world.now = float(second)
        world.succeeds(f"good-{second % 50}")
        answers = [world.fails(f"bad-{key}") for key in range(60)]
        assert all(answers) or second < 2


def test_of_a_handler_that_spoke_of_a_downstream_earlier_failures_say_nothing(world: World) -> None:
    for second in range(60):
        world.now = float(second)
        world.succeeds(f"good-{second}")
        world.fails("a"), world.fails("b"), world.fails("c", DownstreamAway("the bank"))
    for key in range(100):
        world.fails(f"bad-{key}")
    world.succeeds("one")
    assert world.fails("a"), "since the handler spoke most keys fail"


def test_what_is_known_of_keys_is_bounded(world: World) -> None:
    for second in range(30_000):
        world.now = float(second)
        world.succeeds(f"k-{second}")
    assert len(world.blame._older) == MOST_OLDER and len(world.blame._tries) == 31
