"""A process of a run under fire with one protection switched off: `python weakened_child.py NAME MODULE FILE`.

The switches are here and nowhere else: nothing that is shipped can be told to do without a protection. `slow` runs everything
as it is, only slower where a fault is to hit; so that a fault that is survived with the protection is the same fault.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SLOW_WORK = 0.04
FROZEN = 30
"""Seconds: the other worker has taken over, and a run of reconcile has asked for the next number."""
SLOW_PUBLISH = 0.7
"""Below a second: a worker whose chunk takes longer makes the next one smaller, down to one message."""


def slow_handler() -> None:
    """Work takes a while: somebody is always in the middle of it."""
    from backstop_lab.shop import traffic_consumer

    plain = traffic_consumer.Handler.__call__

    def slowly(self: Any, connection: Any, message: Any, work: Any) -> None:
        plain(self, connection, message, work)
        time.sleep(SLOW_WORK)

    traffic_consumer.Handler.__call__ = slowly


def slow_publish() -> None:
    """Between the number that was taken and the copy that goes out there is time for a fault."""
    from backstop.resend import send_claimed

    plain = send_claimed._has_time

    def slowly(worker: Any, claimed: Any, until: float) -> bool:
        if (
            until < claimed.until
        ):  # the second look of each batch, at the attempt's deadline: the numbers are ours now
            time.sleep(SLOW_PUBLISH)
        return plain(worker, claimed, until)

    send_claimed._has_time = slowly


def effect_before_the_log() -> None:
    """The work is committed by itself, the log after it."""
    from backstop_lab.shop import traffic_consumer

    plain = traffic_consumer.Handler.__call__

    def commit_first(self: Any, connection: Any, message: Any, work: Any) -> None:
        plain(self, connection, message, work)
        connection.commit()
        time.sleep(SLOW_WORK)

    traffic_consumer.Handler.__call__ = commit_first


def complete_without_fence() -> None:
    """Whoever finishes writes CONSUMED, whoever holds the lease."""
    from backstop.leases import postgresql

    slow_handler()
    statements = dict(postgresql._SQL)
    for fenced, instead in (
        ("l.owner_token\n", "g.token\n"),
        ("AND l.owner_token = g.token AND l.state IN ('CONSUMING', 'EXPIRED')", ""),
        ("AND l.owner_token = h.owner_token", ""),
        ("l.owner_token::text AS token", "h.token::text AS token"),
    ):
        assert statements["complete"].count(fenced) == 1, fenced
        statements["complete"] = statements["complete"].replace(fenced, instead)
    postgresql._SQL = statements


def leases_never_end() -> None:
    """Whoever holds a message holds it for ever, dead or alive."""
    change_begin("l.lease_expires_at <= statement_timestamp()", "false")


def the_database_believes_redis() -> None:
    """What Redis does not call done is granted, whatever the log says."""
    change_begin("l.state IN ('FAILED', 'EXPIRED')", "l.state IN ('FAILED', 'EXPIRED', 'CONSUMED')")


def change_begin(protection: str, instead: str) -> None:
    from backstop.leases import postgresql

    statements = dict(postgresql._SQL)
    assert protection in statements["begin"]
    statements["begin"] = statements["begin"].replace(protection, instead)
    postgresql._SQL = statements


def acknowledge_at_receipt() -> None:
    """What is received is acknowledged, whatever becomes of it."""
    from backstop.brokers.redis_streams.receive import RedisSubscription

    slow_handler()
    plain = RedisSubscription.fetch

    def fetch(self: Any, limit: int, wait: Any) -> Any:
        received = plain(self, limit, wait)
        if received:
            self.acknowledge(received)
        return received

    RedisSubscription.fetch = fetch


def send_again_by_itself() -> None:
    """The broker's client retries what it got no answer to."""
    from backstop.brokers.redis_streams.exchange import ConnectionLost, Exchange

    plain = Exchange._once

    def once_more(self: Any, commands: Any, blocking: float) -> Any:
        answers = plain(self, commands, blocking)
        lost = [place for place, answer in enumerate(answers) if isinstance(answer, ConnectionLost)]
        if lost:
            for place, answer in zip(
                lost, plain(self, [commands[place] for place in lost], blocking), strict=True
            ):
                answers[place] = answer
        return answers

    Exchange._once = once_more


def store_whenever_it_comes() -> None:
    """The server is not told until when it may store a message."""
    from backstop.brokers.redis_streams.publish import Publisher

    Publisher._deadline = lambda self, begun: 10**18


def without_data_checks() -> None:
    """They take two thirds of what a run of reconcile costs. Here the checker is asked for one rule of its own, which theirs are not."""
    from backstop.checks import run

    run.run_suites = lambda *_, **__: ()


def no_clock_is_looked_at() -> None:
    from backstop.evidence.read import Clocks

    without_data_checks()
    Clocks.within = lambda self, other, allowed: True


def frozen_before_publish() -> None:
    """Whichever of the workers is first to hold numbers stands still once, for long, before a copy is out."""
    from backstop.resend import send_claimed

    plain = send_claimed._has_time
    frozen = Path(sys.argv[3]).with_name("frozen")

    def stand_still(worker: Any, claimed: Any, until: float) -> bool:
        if until < claimed.until and first_to_make(frozen):
            subprocess.Popen(["/bin/sh", "-c", f"sleep {FROZEN}; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
        return plain(worker, claimed, until)

    send_claimed._has_time = stand_still


def first_to_make(file: Path) -> bool:
    try:
        file.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def publish_after_the_claim() -> None:
    """A worker that wakes up late goes on where it stood."""
    from backstop.resend import send_claimed

    without_data_checks()
    frozen_before_publish()
    stand_still = send_claimed._has_time

    def always(worker: Any, claimed: Any, until: float) -> bool:
        stand_still(worker, claimed, until)
        return True

    send_claimed._has_time = always


def claims_exclude_nobody() -> None:
    """Requests are looked at instead of claimed, and a send number is anybody's."""
    from backstop.resend import claim
    from backstop.stores.postgresql import stubs as postgresql_stubs

    without_data_checks()
    slow_publish()
    requests = dict(claim._SQL)
    assert "WHERE r.state = 'open'" in requests["claim"] and "SKIP LOCKED" in requests["claim"]
    requests["claim"] = requests["claim"].replace(
        "WHERE r.state = 'open'", "WHERE r.state IN ('open', 'claimed')"
    )
    requests["due_topic_shards"] = requests["due_topic_shards"].replace(
        "WHERE r.state = 'open'", "WHERE r.state IN ('open', 'claimed')"
    )
    claim._SQL = requests
    stubs = dict(postgresql_stubs._SQL)
    taken = """AND s.send_count = a.send_number - 1 AND s.status IS NOT DISTINCT FROM 'pending'
    AND s.attempt_token IS NULL AND s.erased_hash IS NULL
"""
    assert taken in stubs["claim"]
    stubs["claim"] = stubs["claim"].replace(taken, "AND s.send_count >= a.send_number - 1\n")
    assert "(NOT a.only_when_due OR s.next_check_at <= i.now)" in stubs["claim"]
    stubs["claim"] = stubs["claim"].replace(
        "(NOT a.only_when_due OR s.next_check_at <= i.now)", "true"
    )
    postgresql_stubs._SQL = stubs
    judge_never_again()


def judge_never_again() -> None:
    """A request is sent as it was asked for, whatever has happened since."""
    from backstop.requests.policy import Send
    from backstop.resend import judge_again

    assert judge_again.decide
    judge_again.decide = lambda asked, requested_by, judged, **rest: Send(
        None if asked is None else tuple(asked), "topic"
    )


SWITCHES: dict[str, Callable[[], None]] = {
    switch.__name__: switch
    for switch in (
        slow_handler,
        slow_publish,
        frozen_before_publish,
        effect_before_the_log,
        complete_without_fence,
        leases_never_end,
        the_database_believes_redis,
        acknowledge_at_receipt,
        send_again_by_itself,
        store_whenever_it_comes,
        no_clock_is_looked_at,
        publish_after_the_claim,
        claims_exclude_nobody,
        judge_never_again,
    )
}

if __name__ == "__main__":
    name, module, file = sys.argv[1:]
    SWITCHES[name]()
    sys.exit(importlib.import_module(module).main([file]))
