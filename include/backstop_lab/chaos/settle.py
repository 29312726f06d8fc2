"""Heal everything, let the system come to rest, and stop it between two runs; say what is stuck when it does not."""

from __future__ import annotations

import sys
import time
from collections import Counter

import psycopg2
import redis

from backstop_lab.chaos.schedule import LINKS
from backstop_lab.chaos.stage import Stage
from backstop_lab.shop.databases import change
from backstop_lab.shop.workers import DemoBroken, demo_broken

EVERY = 1.0
NO_ANSWER = "no answer"
LATE = 3.0
"""Seconds: a worker that has just woken may still end what it held, and without duties nobody waits for it."""


def heal(stage: Stage) -> None:
    """Every server up, its clock right, its disk free; every link whole; every process running."""
    for link in LINKS:
        stage.proxy.mend(link, cut=False)
    for name, server in stage.servers.items():
        with stage.turn_of(name):
            server.thaw()
            server.skew(0.0)
            server.free()
            server.wanted = True
    for kept in stage.processes.values():
        kept.thaw()
        kept.wake()
        kept.held = False


def settle(stage: Stage, seconds: float) -> float:
    """Returns after how many seconds nothing was left to do, the duties stopped. DemoBroken: what is stuck.

    `seconds`: for how long it may be that nothing gets less; a slow machine is not stuck.
    """
    began = time.monotonic()
    wait_until_quiet(stage, seconds)
    if "reconcile" in stage.without:
        time.sleep(LATE)
    stage.stop_duties()
    return time.monotonic() - began


def wait_until_quiet(stage: Stage, seconds: float) -> None:
    moved_at, least = time.monotonic(), sys.maxsize
    while left := look(stage):
        if NO_ANSWER not in left and left.total() < least:
            moved_at, least = time.monotonic(), left.total()
        if time.monotonic() - moved_at > seconds:
            raise stuck(seconds, left)
        time.sleep(EVERY)


def stuck(seconds: float, left: Counter[str]) -> DemoBroken:
    return demo_broken(
        f"Something is stuck: for {seconds:.0f} s nothing got less, and there is still {dict(left)}.",
        "Read events.jsonl and processes/ in the run's folder.",
    )


def look(stage: Stage) -> Counter[str]:
    """What is not done yet, by name; a server that does not answer is not done either."""
    try:
        return still_open(stage)
    except (psycopg2.Error, redis.RedisError) as error:
        return Counter({NO_ANSWER: 1, type(error).__name__: 1})


def still_open(stage: Stage) -> Counter[str]:
    found: Counter[str] = Counter()
    for topic in stage.settings.topics:
        for group in stage.settings.groups_of(topic):
            found[f"{topic} of {group} in the broker"] += stage.broker_faults.backlog(topic, group)
    if "reconcile" in stage.without:
        return +found  # what was promised stays open: nobody is there to confirm it
    held = set(
        change(
            stage.urls["control"],
            "SELECT m.topic, m.message_id FROM case_member m JOIN case_file c USING (case_id) WHERE c.state = 'open'"
            " AND c.kind IN ('exhausted', 'mass_loss', 'refused', 'new_epoch')",
            (),
        )
    )
    for shard in ("shop_a", "shop_b"):
        for topic, message_id, status in change(
            stage.urls[shard],
            "SELECT topic, message_id, status FROM message_stub WHERE status NOT IN ('confirmed', 'voided')",
            (),
        ):
            if (topic, message_id) not in held:
                found[f"{status} stubs of {shard}"] += 1
    for state, number in change(
        stage.urls["control"],
        "SELECT state, count(*) FROM resend_request WHERE state IN ('open', 'claimed') GROUP BY 1",
        (),
    ):
        found[f"{state} requests"] += number
    return +found
