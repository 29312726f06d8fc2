"""Faults by which work is held up: workers killed and frozen, leases flushed, a group that stands still, a store away."""

from __future__ import annotations

from time import monotonic

from backstop_lab.demo.lose import BURST, DRAIN_SECONDS, NOT_YET, RUN_SECONDS
from backstop_lab.demo.stage import CALLED, Stage
from backstop_lab.faults.stores import flush_leases, make_due_at_once, store_away
from backstop_lab.shop.ledger import Key
from backstop_lab.shop.mishap import HEADERS, KILLED, LEASE_KILLED, WOKE_UP, WOKEN_LATE
from backstop_lab.shop.wait_for import wait_for

KILLS, SLOW, AWAY, FLUSHED = 2, 20, 10, 10
MESSAGES = 2 * KILLS + 2 + FLUSHED + BURST + SLOW + AWAY
JUDGED_BEFORE = 1 / 3
"""Of the unknown horizon: older traffic is judged before a store goes away."""
AGAIN_SECONDS = 20.0
"""What was to be delivered again and did not come within this time is asked for once more."""
SLOW_RUNS = 2
"""Reconcile runs that a slow group is seen by without a resend."""


def kill_consumers(stage: Stage) -> None:
    """Each of these messages kills a worker: of billing between its effect and its commit, of shipping before any effect.

    What is left of it is its lease. The broker delivers the message again, and whoever has it waits for the end of the lease.
    """
    before = {name: group.killed for name, group in stage.groups.items()}
    ordered: dict[str, list[Key]] = {}

    def died() -> dict[str, int]:
        return {name: group.killed - before[name] for name, group in stage.groups.items()}

    for group, fault in (("billing", KILLED), ("shipping", LEASE_KILLED)):
        ids = stage.producers["shop_b"].make(
            "orders", KILLS, headers={HEADERS[fault]: group}, tell=True
        )
        ordered[group] = [("orders", message_id) for message_id in ids]
    wait_for(
        "The death of workers",
        lambda: min(died().values()) >= KILLS,
        RUN_SECONDS,
        lambda: f"{died()} of {KILLS} each",
    )
    for group, keys in ordered.items():
        stage.done(group, keys, RUN_SECONDS)


def wake_up_late(stage: Stage) -> None:
    """A worker of each group stands still in the middle of its work, until another one has done it; then it goes on."""
    late: dict[str, list[Key]] = {}
    for group in stage.groups:
        ids = stage.producers["shop_b"].make(
            "orders", 1, headers={HEADERS[WOKEN_LATE]: group}, tell=True
        )
        late[group] = [("orders", message_id) for message_id in ids]
    wait_for("Workers that stand still", lambda: len(stage.frozen()) == len(late), RUN_SECONDS)
    stage.broker_faults.drop_connections(stage.frozen())
    for group, keys in late.items():
        stage.done(group, keys, RUN_SECONDS)
        stage.groups[group].resume()

    def awake() -> int:
        return sum(WOKE_UP in line["detail"] for line in stage.ledger.lines(WOKEN_LATE))

    wait_for(
        "Late workers that go on",
        lambda: awake() == len(late),
        RUN_SECONDS,
        lambda: f"{awake()} of {len(late)}",
    )


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
        _deliver_until_stopped(stage, name, keys)


def _deliver_until_stopped(stage: Stage, group: str, keys: list[Key]) -> None:
    """Delivers them again until the database has stopped a copy of each: while members of a group come and go, one that has just
    lost a queue may put its place back, and nothing of it comes again."""
    asked_at = -AGAIN_SECONDS

    def stopped() -> bool:
        nonlocal asked_at
        left = stage.without_stopped_copy(group, keys)
        if left and monotonic() - asked_at >= AGAIN_SECONDS:
            asked_at = monotonic()
            stage.broker_faults.deliver_again("orders", group, sorted(left))
        return not left

    wait_for(
        f"Done messages that come again to {group}",
        stopped,
        RUN_SECONDS,
        lambda: f"{len(stage.without_stopped_copy(group, keys))} messages",
    )


def slow_group_and_store_away(stage: Stage) -> None:
    """Shipping stands still for several runs; meanwhile billing's database is away, its work not yet confirmed."""
    judge_old_traffic(stage)
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
    with (
        store_away(stage.platform.server_of(database).admin_dsn(), database),
        stage.wants_runs("reconcile", "sweep", at_once=True),
    ):
        make_due_at_once(list(stage.shards.values()), keys)
        wait_for(
            "A run that could not read billing's logs",
            lambda: stage.unread("billing", keys) == AWAY,
            RUN_SECONDS,
            lambda: f"{AWAY - stage.unread('billing', keys)} messages without that verdict",
        )
    with stage.wants_runs(*CALLED, at_once=True):
        wait_for(
            "Several runs while shipping stood still",
            lambda: stage.judged_since(begun) >= SLOW_RUNS,
            2 * RUN_SECONDS,
            lambda: f"{stage.judged_since(begun)} of {SLOW_RUNS} runs",
        )
    stage.groups["shipping"].resume()


def judge_old_traffic(stage: Stage) -> None:
    """A delivery that is judged for the first time when it is old, while its logs cannot be read, becomes a person's case.

    That is right, and no part of this story: a run judges the traffic of a long demo, or of a busy machine, first.
    """
    begun = stage.now()
    limit = stage.settings.policy_for(None).unknown_horizon.total_seconds() * JUDGED_BEFORE

    def judged() -> bool:
        return stage.oldest_due() <= limit or stage.judged_since(begun) > 0

    with stage.wants_runs("reconcile", at_once=True):
        wait_for(
            "A run over the traffic so far",
            judged,
            2 * RUN_SECONDS,
            lambda: f"{stage.oldest_due():.0f} s old",
        )
