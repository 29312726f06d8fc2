"""The demo's story, step by step: ordinary traffic, and in the middle of it each fault once.

Small numbers, always the same: what is found must be all of them. What a repair has to send again stays below
the blast radius' floor, except in the step that is about the blast radius.
"""

from __future__ import annotations

from typing import Any

from backstop.local.faults import break_logs, delete_logs, flush_leases, make_due_at_once, store_away
from backstop.local.ledger import Key
from backstop.local.mishap import HEADERS, KILLED, LEASE_KILLED, WOKE_UP, WOKEN_LATE
from backstop.local.stage import Stage
from backstop.local.wait_for import wait_for

LEAST_MESSAGES = 300
CRASHES, LOST, SKIPPED, KILLS, REFUSED, BROKEN = 4, 5, 5, 2, 5, 2
SLOW, AWAY, PAYMENTS, DELETED, BURST, FLUSHED = 20, 10, 60, 40, 24, 10
NOT_YET = 600.0
"""Seconds: Backstop looks at these stubs when the fault has been made; the injector sets the time then."""
SLOW_RUNS = 2
"""Reconcile runs that a slow group is seen by without a resend."""
RUN_SECONDS = 900.0
DRAIN_SECONDS = 900.0


def play(stage: Stage, messages: int) -> None:
    """Makes `messages` messages in all, and every fault."""
    ordinary = max(0, messages - counted())
    with stage.timed("traffic"):
        stage.bulk(ordinary // 2)
        stage.bulk(10, "refunds")
        stage.drained(DRAIN_SECONDS)
    with stage.timed("faults"):
        refuse(stage)
        crash_before_send(stage)
        crash_in_send(stage)
        lose_in_broker(stage)
        move_offset(stage)
        break_rows(stage)
        lose_many_logs(stage)
        kill_consumers(stage)
        wake_up_late(stage)
        empty_the_leases(stage)
    with stage.timed("traffic"):
        stage.bulk(ordinary // 4)
        stage.drained(DRAIN_SECONDS)
    with stage.timed("slow group, store away"):
        slow_group_and_store_away(stage)
    with stage.timed("traffic"):
        stage.bulk(ordinary - ordinary // 2 - ordinary // 4)
        stage.drained(DRAIN_SECONDS)


def counted() -> int:
    """How many messages the faults need."""
    lease_faults = 2 * KILLS + 2 + FLUSHED + BURST
    return 10 + REFUSED + 2 * CRASHES + 2 * BURST + 3 + BROKEN + PAYMENTS + lease_faults + SLOW + AWAY


def refuse(stage: Stage) -> None:
    """The broker takes no more refunds from the login of producers and of Backstop, for good."""
    stage.broker_faults.refuse("refunds", stage.topics)
    stage.producers["shop_a"].make("refunds", REFUSED, fault="refused")


def crash_before_send(stage: Stage) -> None:
    """Committed, never sent: the process is gone."""
    stage.producers["shop_a"].make_and_die("orders", CRASHES, fault="crash_before_send", die="before_send")


def crash_in_send(stage: Stage) -> None:
    """Sent, and gone before anybody wrote down where."""
    stage.producers["shop_b"].make_and_die("orders", CRASHES, fault="crash_in_send", die="in_send")


def lose_in_broker(stage: Stage) -> None:
    """Acknowledged to the producer, deleted in the broker before any group was given it."""
    stage.drained(DRAIN_SECONDS)
    for group in stage.groups.values():
        group.pause()
    ids = stage.producers["shop_a"].make("orders", BURST, tell=True)
    stage.broker_faults.lose("lost_in_broker", "orders", ids, LOST)
    for group in stage.groups.values():
        group.resume()


def move_offset(stage: Stage) -> None:
    """One group is set past messages that it was never given; the other one gets them."""
    stage.drained(DRAIN_SECONDS)
    stage.groups["shipping"].pause()
    ids = stage.producers["shop_b"].make("orders", BURST, tell=True)
    stage.broker_faults.move_offset("offset_moved", "orders", "shipping", ids, SKIPPED)
    stage.groups["shipping"].resume()


def kill_consumers(stage: Stage) -> None:
    """Each of these messages kills a worker: of billing between its effect and its commit, of shipping before any effect.

    What is left of it is its lease. The broker delivers the message again, and whoever has it waits for the end of the lease.
    """
    before = {name: group.killed for name, group in stage.groups.items()}
    ordered: dict[str, list[Key]] = {}

    def died() -> dict[str, int]:
        return {name: group.killed - before[name] for name, group in stage.groups.items()}

    for group, fault in (("billing", KILLED), ("shipping", LEASE_KILLED)):
        ids = stage.producers["shop_b"].make("orders", KILLS, headers={HEADERS[fault]: group}, tell=True)
        ordered[group] = [("orders", message_id) for message_id in ids]
    wait_for("The death of workers", lambda: min(died().values()) >= KILLS, RUN_SECONDS, lambda: f"{died()} of {KILLS} each")
    for group, keys in ordered.items():
        stage.done(group, keys, RUN_SECONDS)


def wake_up_late(stage: Stage) -> None:
    """A worker of each group stands still in the middle of its work, until another one has done it; then it goes on."""
    late: dict[str, list[Key]] = {}
    for group in stage.groups:
        ids = stage.producers["shop_b"].make("orders", 1, headers={HEADERS[WOKEN_LATE]: group}, tell=True)
        late[group] = [("orders", message_id) for message_id in ids]
    wait_for("Workers that stand still", lambda: len(stage.ledger.lines(WOKEN_LATE)) == len(late), RUN_SECONDS, str)
    for group, keys in late.items():
        stage.done(group, keys, RUN_SECONDS)
        stage.groups[group].resume()

    def awake() -> int:
        return sum(WOKE_UP in line["detail"] for line in stage.ledger.lines(WOKEN_LATE))

    wait_for("Late workers that go on", lambda: awake() == len(late), RUN_SECONDS, lambda: f"{awake()} of {len(late)}")


def empty_the_leases(stage: Stage) -> None:
    """Redis forgets every lease and every end while both groups work; done messages come again, and only the database knows."""
    ids = stage.producers["shop_a"].make("orders", FLUSHED, tell=True)
    keys: list[Key] = [("orders", message_id) for message_id in ids]
    stage.drained(DRAIN_SECONDS)
    for group in stage.groups.values():
        group.pause()
    stage.producers["shop_a"].make("orders", BURST)
    stage.ledger.append("leases_flushed", keys)
    for group in stage.groups.values():
        group.resume()
    for url in set(stage.leases.values()):
        flush_leases(url)
    for name in stage.groups:
        stage.broker_faults.deliver_again("orders", name, keys)


def break_rows(stage: Stage) -> None:
    """A topic in no policy, one id on two shards, and work that was done without a time."""
    shop_a, shop_b = stage.producers["shop_a"], stage.producers["shop_b"]
    shop_a.make("mystery", 1, send=False, fault="broken_rows", detail="topic in no policy")
    both: dict[str, Any] = {
        "message_ids": ["one id, two shards"], "first_check": NOT_YET, "fault": "broken_rows",
        "detail": "one id on two shards",
    }  # fmt: skip
    shop_a.make("orders", 1, **both)
    shop_b.make("orders", 1, send=False, **both)
    ids = shop_a.make("orders", BROKEN, first_check=NOT_YET, tell=True)
    keys: list[Key] = [("orders", message_id) for message_id in ids]
    stage.done("billing", keys, DRAIN_SECONDS)
    break_logs(stage.stores["billing"], "billing", keys, stage.ledger, "broken_rows")
    make_due_at_once(list(stage.shards.values()), [*keys, ("orders", "one id, two shards")])


def lose_many_logs(stage: Stage) -> None:
    """Most of a topic's logs of one group vanish, work done, above the floor: it looks like a mass loss."""
    ids = stage.producers["shop_a"].make("payments", PAYMENTS, first_check=NOT_YET, tell=True)
    keys: list[Key] = [("payments", message_id) for message_id in ids]
    for group in stage.groups:
        stage.done(group, keys, DRAIN_SECONDS)
    # Acknowledged too, or the broker would deliver again what then looks new.
    stage.drained(DRAIN_SECONDS)
    delete_logs(stage.stores["billing"], "billing", keys[:DELETED], stage.ledger, "mass_loss")
    make_due_at_once(list(stage.shards.values()), keys)


def slow_group_and_store_away(stage: Stage) -> None:
    """Shipping stands still for several runs; meanwhile billing's database is away, its work not yet confirmed."""
    stage.groups["shipping"].pause()
    begun = stage.now()
    stage.producers["shop_b"].make("orders", SLOW, fault="slow_group", consumer_group="shipping")
    ids = stage.producers["shop_a"].make(
        "orders", AWAY, first_check=NOT_YET, fault="store_away", consumer_group="billing", tell=True
    )
    keys: list[Key] = [("orders", message_id) for message_id in ids]
    stage.done("billing", keys, DRAIN_SECONDS)
    stage.drained(DRAIN_SECONDS, "billing")
    database = stage.stores["billing"].rpartition("/")[2]
    with store_away(stage.platform.postgres.admin_dsn(), database):
        make_due_at_once(list(stage.shards.values()), keys)
        wait_for(
            "A run that could not read billing's logs", lambda: stage.unread("billing", keys) == AWAY,
            RUN_SECONDS, lambda: f"{AWAY - stage.unread('billing', keys)} messages without that verdict",
        )  # fmt: skip
    wait_for(
        "Several runs while shipping stood still", lambda: stage.judged_since(begun) >= SLOW_RUNS,
        2 * RUN_SECONDS, lambda: f"{stage.judged_since(begun)} of {SLOW_RUNS} runs",
    )  # fmt: skip
    stage.groups["shipping"].resume()
