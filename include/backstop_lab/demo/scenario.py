"""The demo's story, step by step: ordinary traffic, and in the middle of it each fault once.

Small numbers, always the same: what is found must be all of them. What a repair has to send again stays below
the blast radius' floor, except in the step that is about the blast radius.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from backstop_lab.demo import die, hold_up, lose
from backstop_lab.demo.in_order import in_order_beside
from backstop_lab.demo.stage import Stage

LEAST_MESSAGES = 300
REFUNDS = 10
DRAIN_SECONDS = lose.DRAIN_SECONDS
SECONDS_A_MESSAGE = 0.03
"""What the bound of a wait grows by: both groups process hundreds of messages a second on two cores."""
log = logging.getLogger(__name__)


def play(stage: Stage, messages: int) -> None:
    """Makes `messages` messages in all, and every fault; entries that are consumed in order come beside them."""
    with in_order_beside(stage):
        play_phases(stage, messages)


def play_phases(stage: Stage, messages: int) -> None:
    """Traffic, faults and traffic, one after the other."""
    ordinary = max(0, messages - counted(stage))
    with stage.timed("traffic", f"both groups to process {ordinary // 2 + REFUNDS} messages"):
        stage.bulk(ordinary // 2)
        stage.bulk(REFUNDS, "refunds")
        stage.drained(DRAIN_SECONDS + messages * SECONDS_A_MESSAGE)
    with stage.timed(
        "faults",
        "each loss, crash and freeze to happen, and for workers to take over what was interrupted",
    ):
        play_each(
            stage,
            lose.refuse,
            lose.crash_before_send,
            lose.crash_in_send,
            lose.lose_in_broker,
            lose.move_offset,
            *((lose.remove_files,) if stage.broker_faults.removes_files else ()),
            lose.break_rows,
            lose.lose_many_logs,
            hold_up.kill_consumers,
            hold_up.wake_up_late,
            hold_up.empty_the_leases,
        )
    with stage.timed("dead letters", "the broker to give up on messages that cannot be processed"):
        play_each(stage, die.suppress, die.die_of_the_handler)
    with stage.timed("traffic", f"both groups to process {ordinary // 4} messages"):
        stage.bulk(ordinary // 4)
        stage.drained(DRAIN_SECONDS + messages * SECONDS_A_MESSAGE)
    with stage.timed(
        "slow group, store away",
        "reconcile runs while one group stands still and the other's database is away",
    ):
        play_each(stage, hold_up.slow_group_and_store_away)
    with stage.timed("traffic", "both groups to process the rest"):
        stage.bulk(ordinary - ordinary // 2 - ordinary // 4)
        stage.drained(DRAIN_SECONDS + messages * SECONDS_A_MESSAGE)


def play_each(stage: Stage, *faults: Callable[[Stage], None]) -> None:
    """Each fault by itself, one after the other."""
    for fault in faults:
        log.debug(
            "%s: %s", fault.__name__.replace("_", " "), (fault.__doc__ or "").partition("\n")[0]
        )
        fault(stage)


def counted(stage: Stage) -> int:
    """How many messages the faults need."""
    removed = lose.EXPIRED if stage.broker_faults.removes_files else 0
    return REFUNDS + lose.MESSAGES + removed + hold_up.MESSAGES + die.MESSAGES
