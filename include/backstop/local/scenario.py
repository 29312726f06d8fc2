"""The demo's story, step by step: ordinary traffic, and in the middle of it each fault once.

Small numbers, always the same: what is found must be all of them. What a repair has to send again stays below
the blast radius' floor, except in the step that is about the blast radius.
"""

from __future__ import annotations

from backstop.local import die, hold_up, lose
from backstop.local.stage import Stage

LEAST_MESSAGES = 300
REFUNDS = 10
DRAIN_SECONDS = lose.DRAIN_SECONDS


def play(stage: Stage, messages: int) -> None:
    """Makes `messages` messages in all, and every fault."""
    ordinary = max(0, messages - counted(stage))
    with stage.timed("traffic"):
        stage.bulk(ordinary // 2)
        stage.bulk(REFUNDS, "refunds")
        stage.drained(DRAIN_SECONDS)
    with stage.timed("faults"):
        lose.refuse(stage)
        lose.crash_before_send(stage)
        lose.crash_in_send(stage)
        lose.lose_in_broker(stage)
        lose.move_offset(stage)
        if stage.broker_faults.removes_files:
            lose.remove_files(stage)
        lose.break_rows(stage)
        lose.lose_many_logs(stage)
        hold_up.kill_consumers(stage)
        hold_up.wake_up_late(stage)
        hold_up.empty_the_leases(stage)
    with stage.timed("dead letters"):
        die.suppress(stage)
        die.die_of_the_handler(stage)
    with stage.timed("traffic"):
        stage.bulk(ordinary // 4)
        stage.drained(DRAIN_SECONDS)
    with stage.timed("slow group, store away"):
        hold_up.slow_group_and_store_away(stage)
    with stage.timed("traffic"):
        stage.bulk(ordinary - ordinary // 2 - ordinary // 4)
        stage.drained(DRAIN_SECONDS)


def counted(stage: Stage) -> int:
    """How many messages the faults need."""
    removed = lose.EXPIRED if stage.broker_faults.removes_files else 0
    return REFUNDS + lose.MESSAGES + removed + hold_up.MESSAGES + die.MESSAGES
