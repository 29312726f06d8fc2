"""Do one fault of the schedule, for as long as it lasts, and undo it; the record tells what was really done."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from time import monotonic
from typing import Any

import psycopg2
import redis

from backstop.model.errors import BackstopError
from backstop_lab.chaos.schedule import CONSUMERS, Fault
from backstop_lab.chaos.servers import signal_if_there
from backstop_lab.chaos.stage import Stage
from backstop_lab.faults.brokers.protocol import LOST
from backstop_lab.faults.stores import flush_leases as flush_leases_of
from backstop_lab.shop.databases import change
from backstop_lab.shop.mishap import LEASE_KILLED, WOKEN_LATE, order

LOST_AT_MOST = 4
AGAIN_AT_MOST = 3
"""Messages of each queue that come again after a flush."""
LOOK_SECONDS = 0.05
TAKEN_SECONDS = 5.0
"""A worker that has taken an order says so in the ledger within that time, or it was killed before it could."""
UP_SECONDS = 60.0
_SECOND = {"side by side": signal.SIGUSR2, "taken over": signal.SIGUSR1}


def strike(stage: Stage, fault: Fault, over: threading.Event) -> None:
    """`over`: set when the run is cut short; then the fault ends at once."""
    with stage.record.lasting(fault.kind, victim=fault.victim, how=fault.how) as facts:
        _KINDS[fault.kind](stage, fault, over, facts)


def kill_process(stage: Stage, fault: Fault, over: threading.Event, facts: dict[str, Any]) -> None:
    kept = stage.processes[fault.victim]
    kept.held = True
    facts["done"] = kept.kill()
    over.wait(fault.seconds)
    kept.held = False


def freeze_process(
    stage: Stage, fault: Fault, over: threading.Event, facts: dict[str, Any]
) -> None:
    kept = stage.processes[fault.victim]
    facts["done"] = bool(kept.freeze())
    over.wait(fault.seconds)
    kept.thaw()


def kill_server(stage: Stage, fault: Fault, over: threading.Event, facts: dict[str, Any]) -> None:
    server = stage.servers[fault.victim]
    with stage.turn_of(fault.victim):
        facts["done"] = server.running
        server.kill()
        over.wait(fault.seconds)
        server.wanted = True


def stop_server(stage: Stage, fault: Fault, over: threading.Event, facts: dict[str, Any]) -> None:
    server = stage.servers[fault.victim]
    with stage.turn_of(fault.victim):
        facts["done"] = server.running
        server.stop(fault.how)
        over.wait(fault.seconds)
        server.wanted = True


def kill_backend(stage: Stage, fault: Fault, over: threading.Event, facts: dict[str, Any]) -> None:
    facts["done"] = stage.servers[fault.victim].kill_a_backend() is not None


def freeze_server(stage: Stage, fault: Fault, over: threading.Event, facts: dict[str, Any]) -> None:
    server = stage.servers[fault.victim]
    with stage.turn_of(fault.victim):
        facts["done"] = bool(server.freeze())
        over.wait(fault.seconds)
        server.thaw()


def cut_link(stage: Stage, fault: Fault, over: threading.Event, facts: dict[str, Any]) -> None:
    link = stage.proxy.links[fault.victim]
    before = link.cuts
    ends = monotonic() + fault.seconds
    facts["connections"] = stage.proxy.spoil(fault.victim, fault.how)
    # Whoever has just been started is not there yet.
    while not facts["connections"] and monotonic() < ends and not over.wait(LOOK_SECONDS):
        facts["connections"] = stage.proxy.spoil(fault.victim, fault.how)
    over.wait(max(0.0, ends - monotonic()))
    # Half of the silences end as if nothing had been, half with a reset.
    stage.proxy.mend(fault.victim, cut=int(fault.at * 100) % 2 == 0)
    facts["cuts"] = link.cuts - before
    facts["done"] = bool(facts["connections"])


def skew_clock(stage: Stage, fault: Fault, over: threading.Event, facts: dict[str, Any]) -> None:
    server = stage.servers[fault.victim]
    server.skew(float(fault.how))
    over.wait(fault.seconds)
    server.skew(0.0)
    facts["done"] = True


def fill_disk(stage: Stage, fault: Fault, over: threading.Event, facts: dict[str, Any]) -> None:
    server = stage.servers[fault.victim]
    facts["done"] = server.small_disk
    if not server.small_disk:
        return
    facts["bytes"] = server.fill()
    over.wait(fault.seconds)
    server.free()


def run_twice(stage: Stage, fault: Fault, over: threading.Event, facts: dict[str, Any]) -> None:
    """A second run beside the living one, again and again; a resend is also a second process."""
    beats, left = 0, fault.seconds
    while left > 0 and not over.is_set():
        pid = stage.processes[fault.victim].pid
        if pid is not None:
            signal_if_there(pid, _SECOND[fault.how])
            beats += 1
        over.wait(min(1.0, left))
        left -= 1.0
    facts["done"] = beats > 0


def lose_messages(stage: Stage, fault: Fault, over: threading.Event, facts: dict[str, Any]) -> None:
    """Every consumer stands still for a moment, so that there is something that nobody was given yet."""
    for name in CONSUMERS:
        stage.processes[name].freeze()
    try:
        over.wait(fault.seconds)
        lost = 0
        for topic in stage.settings.topics:
            # Of a group that another fault has moved back some are done already: those nobody can lose any more.
            ids = without_log(stage, topic, stage.broker_faults.undelivered(topic))
            if ids:
                lost += len(stage.broker_faults.delete_undelivered(LOST, topic, ids, LOST_AT_MOST))
        facts["lost"] = lost
    except (BackstopError, redis.RedisError, psycopg2.Error) as error:
        facts["says"] = str(
            error
        )  # a server is down at this moment, or everything was delivered: nothing is lost
    finally:
        for name in CONSUMERS:
            stage.processes[name].thaw()
    facts["done"] = bool(facts.get("lost"))


def without_log(stage: Stage, topic: str, ids: list[str]) -> list[str]:
    """Those that no group has ever logged, in their order."""
    logged = {
        message_id
        for group in stage.settings.groups
        for (message_id,) in change(
            stage.urls[group],
            "SELECT message_id FROM consumer_log WHERE topic = %s AND message_id = ANY(%s)",
            (topic, ids),
        )
    }
    return [message_id for message_id in ids if message_id not in logged]


def kill_holding(stage: Stage, fault: Fault, over: threading.Event, facts: dict[str, Any]) -> None:
    """It kills itself at its next message: the lease is committed, and nothing else of the work is there."""
    facts["done"] = meet(stage, fault, over, LEASE_KILLED) is not None


def wake_late(stage: Stage, fault: Fault, over: threading.Event, facts: dict[str, Any]) -> None:
    """It stands still between its effect and its commit until another worker has done that message, and then goes on."""
    ends = monotonic() + fault.seconds
    met = meet(stage, fault, over, WOKEN_LATE)
    try:
        taken_over = False
        while met and not taken_over and monotonic() < ends and not over.wait(LOOK_SECONDS):
            taken_over = is_done(stage, fault.victim.partition("-")[0], met)
    finally:
        stage.processes[fault.victim].wake()
    facts["done"] = taken_over


def meet(stage: Stage, fault: Fault, over: threading.Event, mishap: str) -> dict[str, Any] | None:
    """Orders it and waits until the worker met it at a message: that line of the ledger. None: it had none in time."""
    says = f"{fault.victim} "

    def met() -> list[dict[str, Any]]:
        return [line for line in stage.ledger.lines(mishap) if line["detail"].startswith(says)]

    before, ends = len(met()), monotonic() + fault.seconds
    file = order(stage.orders, fault.victim, mishap)
    file.touch()
    while len(met()) == before and monotonic() < ends + TAKEN_SECONDS:
        over.wait(LOOK_SECONDS)
        if (over.is_set() or monotonic() > ends) and withdrawn(file):
            return None
    return next(iter(met()[before:]), None)


def withdrawn(order: Path) -> bool:
    """Whether nobody had taken it."""
    try:
        order.unlink()
    except FileNotFoundError:
        return False
    return True


def is_done(stage: Stage, group: str, line: dict[str, Any]) -> bool:
    try:
        done = change(
            stage.urls[group],
            "SELECT 1 FROM effect WHERE consumer_group = %s AND topic = %s AND message_id = %s",
            (group, line["topic"], line["message_id"]),
        )
    except psycopg2.Error:
        return False  # the database is down at this moment: nobody can say so
    return bool(done)


def flush_leases(stage: Stage, fault: Fault, over: threading.Event, facts: dict[str, Any]) -> None:
    """Emptied under way, and the newest messages that are done come again: only the database knows that they are."""
    try:
        again = {
            (topic, group): stage.broker_faults.newest_done(topic, group, AGAIN_AT_MOST)
            for topic in stage.settings.topics
            for group in stage.settings.groups_of(topic)
        }
        facts["keys"] = flush_leases_of(stage.leases_url)
        for (topic, group), keys in again.items():
            stage.ledger.append("leases_flushed", keys, consumer_group=group)
            stage.broker_faults.deliver_again(topic, group, keys)
        facts["again"] = sum(map(len, again.values()))
    except redis.RedisError as error:
        facts["says"] = str(error)  # one of the two servers is down at this moment
    facts["done"] = bool(facts.get("again"))


_KINDS = {
    "kill_process": kill_process,
    "freeze_process": freeze_process,
    "kill_server": kill_server,
    "stop_server": stop_server,
    "kill_backend": kill_backend,
    "freeze_server": freeze_server,
    "cut_link": cut_link,
    "skew_clock": skew_clock,
    "fill_disk": fill_disk,
    "run_twice": run_twice,
    "lose_messages": lose_messages,
    "kill_holding": kill_holding,
    "wake_late": wake_late,
    "flush_leases": flush_leases,
}
