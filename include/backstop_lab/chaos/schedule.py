"""What goes wrong, when, for how long: a pure function of the seed, so that a run that failed can be made again.

What really happened is another matter, which the record tells (`record.py`): a process may be dead already when it is to be
frozen.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

PRODUCERS = ("producer-shop_a", "producer-shop_b")
CONSUMERS = ("billing-1", "billing-2", "shipping-1", "shipping-2")
DUTIES = ("reconcile", "resend", "sweep")
PROCESSES = (*PRODUCERS, *CONSUMERS, *DUTIES)
DATABASES = ("control", "shops", "billing", "shipping")
SERVERS = (*DATABASES, "broker", "leases")
LINKS = (
    "producers to shops",
    "producers to broker",
    "billing to billing",
    "shipping to shipping",
    "consumers to broker",
    "consumers to leases",
    "duties to control",
    "duties to shops",
    "duties to billing",
    "duties to shipping",
    "duties to broker",
    "duties to leases",
)
DISKS = ("billing", "broker")
QUIET_START = 6.0
"""Seconds without a fault: the first messages are under way by then."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong. `at` and `seconds` are since the start of the traffic, and how long it lasts."""

    at: float
    kind: str
    victim: str
    seconds: float
    how: str = ""
    """Which way, where there are several; for a clock, by how many seconds it is wrong."""

    @property
    def until(self) -> float:
        return self.at + self.seconds

    def __str__(self) -> str:
        return f"{self.at:6.1f} s  {self.kind:<14} {self.victim:<22} {self.seconds:4.1f} s  {self.how}".rstrip()


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault: whom it can hit, how long it lasts, which ways there are, how often it is drawn."""

    victims: Sequence[str]
    shortest: float
    longest: float
    ways: Sequence[str] = ("",)
    weight: int = 1


KINDS = {
    # A process that is gone, and is started again.
    "kill_process": Kind(PROCESSES, 0.2, 3.0, weight=3),
    # A process that stands still beyond its lease, its claim or its heartbeat, and wakes up late.
    "freeze_process": Kind(PROCESSES, 2.0, 12.0, weight=3),
    # In the middle of its work: dead with a lease in hand and nothing done; still until somebody else has done it.
    "kill_holding": Kind(CONSUMERS, 1.0, 3.0),
    "wake_late": Kind(CONSUMERS, 8.0, 14.0),
    # A power cut, or an operator in a hurry; `one_backend`: PostgreSQL throws everybody out and recovers.
    "kill_server": Kind(SERVERS, 0.3, 5.0, weight=2),
    "kill_backend": Kind(DATABASES, 0.0, 0.0),
    "stop_server": Kind(SERVERS, 0.3, 5.0, ("fast", "immediate")),
    "freeze_server": Kind(SERVERS, 1.0, 8.0, weight=2),
    # The network: an answer that breaks off, one that never comes, slowness, silence.
    "cut_link": Kind(
        LINKS, 1.0, 4.0, ("in the reply", "after the request", "silence", "slowness"), weight=4
    ),
    "skew_clock": Kind(SERVERS, 4.0, 14.0, ("-25", "-6", "-1.5", "1.5", "6", "25"), weight=2),
    "fill_disk": Kind(DISKS, 2.0, 7.0),
    "run_twice": Kind(DUTIES, 3.0, 10.0, ("side by side", "taken over"), weight=2),
    # Redis forgets every lease and every end, and what was done a moment ago is delivered again.
    "flush_leases": Kind(("leases",), 0.0, 0.0),
    # What a broker's own loss looks like: acknowledged, not delivered to anybody, gone.
    "lose_messages": Kind(("broker",), 1.0, 2.0),
}


def schedule(
    seed: int, seconds: float, kinds: Collection[str] = tuple(KINDS), every: float = 3.0
) -> list[Fault]:
    """About one fault in `every` seconds, from QUIET_START until `seconds`, in order; every kind at least once if there is room.

    Nobody is hit by two faults at once; different ones are, as it happens in a night.
    """
    chance = random.Random(f"chaos {seed}")
    wanted = [kind for kind in KINDS if kind in kinds]
    if not wanted:
        return []
    count = max(1, int((seconds - QUIET_START) / every))
    drawn = list(wanted)
    chance.shuffle(drawn)
    drawn = drawn[:count] + chance.choices(
        wanted, [KINDS[kind].weight for kind in wanted], k=max(0, count - len(drawn))
    )
    chance.shuffle(drawn)
    step = (seconds - QUIET_START) / count
    planned: list[Fault] = []
    for place, kind in enumerate(drawn):
        its = KINDS[kind]
        at = round(QUIET_START + (place + chance.random()) * step, 2)
        lasts = round(
            min(chance.uniform(its.shortest, its.longest), max(its.shortest, seconds - at)), 2
        )
        how = chance.choice(its.ways)
        # All is drawn before anything is looked at, so that one fault moved does not change all that follow.
        victims = chance.sample(its.victims, len(its.victims))
        free = [
            name for name in victims if not any(busy(one, name, at, at + lasts) for one in planned)
        ]
        if free:
            planned.append(Fault(at, kind, free[0], lasts, how))
    return sorted(planned, key=lambda one: one.at)


def busy(fault: Fault, victim: str, since: float, until: float) -> bool:
    """Whether the fault has the victim in its hands at any time between the two instants, with a second to recover."""
    return fault.victim == victim and fault.at < until + 1.0 and since < fault.until + 1.0
