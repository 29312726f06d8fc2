"""Faults by which messages, promises and logs are lost, each once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from backstop_lab.demo.stage import Stage
from backstop_lab.faults.stores import break_logs, delete_logs, make_due_at_once
from backstop_lab.shop.ledger import Key
from backstop_lab.shop.wait_for import wait_for

CRASHES, LOST, SKIPPED, REFUSED, BROKEN, EXPIRED = 4, 5, 5, 5, 2, 4
PAYMENTS, DELETED, BURST = 60, 40, 24
MESSAGES = REFUSED + 2 * CRASHES + 2 * BURST + 3 + BROKEN + PAYMENTS
NOT_YET = 600.0
"""Seconds: Backstop looks at these stubs when the fault has been made; the injector sets the time then."""
DRAIN_SECONDS = 900.0
RUN_SECONDS = 900.0


def refuse(stage: Stage) -> None:
    """The broker takes no more refunds from the login of producers and of Backstop, for good."""
    stage.broker_faults.refuse("refunds", stage.topics)
    stage.producers["shop_a"].make("refunds", REFUSED, fault="refused")


def crash_before_send(stage: Stage) -> None:
    """Committed, never sent: the process is gone."""
    stage.producers["shop_a"].make_and_die(
        "orders", CRASHES, fault="crash_before_send", die="before_send"
    )


def crash_in_send(stage: Stage) -> None:
    """Sent, and gone before anybody wrote down where."""
    stage.producers["shop_b"].make_and_die("orders", CRASHES, fault="crash_in_send", die="in_send")


def lose_in_broker(stage: Stage) -> None:
    """Acknowledged to the producer, gone from the broker before any group was given it."""
    stage.drained(DRAIN_SECONDS)
    with stage.nobody_receives():
        stage.broker_faults.lose("orders", stage.maker("shop_a", "orders"), BURST, LOST)


def move_offset(stage: Stage) -> None:
    """One group will never be given some messages; the other one gets them."""
    stage.drained(DRAIN_SECONDS)
    with stage.nobody_receives("shipping"):
        stage.broker_faults.skip(
            "orders", "shipping", stage.maker("shop_b", "orders"), BURST, SKIPPED
        )


def remove_files(stage: Stage) -> None:
    """The broker's retention removes what no group has been given yet; they stay away until a run has found it out."""
    stage.drained(DRAIN_SECONDS)
    with stage.nobody_receives():
        since = datetime.now(UTC)
        gone = stage.broker_faults.remove_by_retention(
            "orders", stage.maker("shop_a", "orders"), EXPIRED
        )
        with stage.wants_runs("reconcile", at_once=True):
            wait_for(
                "A run that finds them removed",
                lambda: stage.expired(gone, since) >= len(gone),
                RUN_SECONDS,
                lambda: (
                    f"{stage.expired(gone, since)} of {len(gone)} deliveries; {stage.judged(gone)}"
                ),
            )


def break_rows(stage: Stage) -> None:
    """A topic in no policy, one id on two shards, and work that was done without a time."""
    shop_a, shop_b = stage.producers["shop_a"], stage.producers["shop_b"]
    shop_a.make("mystery", 1, send=False, fault="broken_rows", detail="topic in no policy")
    both: dict[str, Any] = {
        "message_ids": ["one id, two shards"],
        "first_check": NOT_YET,
        "fault": "broken_rows",
        "detail": "one id on two shards",
    }
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
