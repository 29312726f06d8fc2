"""The schedule of a run under fire is a pure function of its seed, and leaves nobody hit by two faults at once."""

from __future__ import annotations

import pytest

from backstop_lab.chaos.schedule import KINDS, QUIET_START, schedule

SEEDS = range(1, 41)


@pytest.mark.parametrize("seed", [1, 2, 17])
def test_the_same_seed_gives_the_same_schedule_and_another_one_another(seed: int) -> None:
    assert schedule(seed, 75.0) == schedule(seed, 75.0)
    assert schedule(seed, 75.0) != schedule(seed + 1, 75.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_kind_has_its_turn_and_nothing_happens_outside_the_traffic(seed: int) -> None:
    planned = schedule(seed, 75.0)
    assert {fault.kind for fault in planned} >= set(KINDS) - {
        "run_twice",
        "fill_disk",
        "lose_messages",
        "flush_leases",
    }
    assert all(QUIET_START <= fault.at < 75.0 for fault in planned)
    assert all(
        fault.victim in KINDS[fault.kind].victims and fault.how in KINDS[fault.kind].ways
        for fault in planned
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_is_hit_by_two_faults_at_once(seed: int) -> None:
    planned = schedule(seed, 300.0, every=1.0)
    for place, one in enumerate(planned):
        for other in planned[place + 1 :]:
            assert one.victim != other.victim or other.at >= one.until or one.at >= other.until


def test_only_the_kinds_that_are_wanted_come() -> None:
    assert {fault.kind for fault in schedule(1, 75.0, {"skew_clock", "kill_server"})} == {
        "skew_clock",
        "kill_server",
    }
    assert schedule(1, 75.0, ()) == []


def test_over_twenty_seeds_every_victim_and_every_way_comes() -> None:
    planned = [fault for seed in range(1, 21) for fault in schedule(seed, 75.0)]
    for kind, its in KINDS.items():
        assert {fault.victim for fault in planned if fault.kind == kind} == set(its.victims), kind
        assert {fault.how for fault in planned if fault.kind == kind} == set(its.ways), kind
