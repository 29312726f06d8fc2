"""Faults of ordered consumption, beside the rest of the story: a poisoned key, and workers restarted in turn under traffic."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from backstop_lab.demo.stage import BOOKINGS, BOOKKEEPING, Stage
from backstop_lab.shop.databases import change
from backstop_lab.shop.demand import LOCKED
from backstop_lab.shop.ledger import NOT_IN_TIME, Key
from backstop_lab.shop.wait_for import wait_for
from backstop_lab.shop.workers import OrderedGroup

ACCOUNTS, FOLLOWERS, BURST = 12, 3, 12
POISONED, RESTARTED = "poisoned_key", "rolling_restart"
BETWEEN_BURSTS = 0.3
STEP_SECONDS = 300.0
SHOP = "shop_a"


@contextmanager
def in_order_beside(stage: Stage) -> Iterator[None]:
    """Tells this part of the story in a thread of its own; `stage.watch` raises what it raised. Waits for its end."""
    if stage.ordered is None:
        yield
        return
    story = _Story(stage, stage.ordered)
    stage.add_beside(story.check)
    story.thread.start()
    try:
        yield
        wait_for("The restarts in turn", story.is_over, 2 * STEP_SECONDS)
    finally:
        story.stop.set()
        story.thread.join()
    story.check()


class _Story:
    def __init__(self, stage: Stage, group: OrderedGroup) -> None:
        self._stage, self._group = stage, group
        self._numbers = count()
        self._error: BaseException | None = None
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def is_over(self) -> bool:
        self._stage.watch()
        return not self.thread.is_alive()

    def _run(self) -> None:
        try:
            self._poison_a_key()
            self._restart_in_turn()
        except BaseException as error:  # noqa: BLE001 - raised again by `check`, in the thread that can act
            self._error = error

    def _poison_a_key(self) -> None:
        """The entries of a locked account: the first fails each time, the others wait behind it; all other accounts go on."""
        self._wait("Owners of all queues", lambda: self._owners() == self._group.members())
        poisoned = self._make([LOCKED] * (1 + FOLLOWERS))
        others = self._burst()
        self._stage.ledger.append(POISONED, poisoned, consumer_group=BOOKKEEPING)
        self._wait("The parked key", lambda: self._parked() == len(poisoned))
        self._wait("The other keys", lambda: not self._stage.without_effect(BOOKKEEPING, others))

    def _restart_in_turn(self) -> None:
        """Each worker ends in order and starts again, while entries of all accounts come."""
        over, sent = threading.Event(), list[Key]()
        errors: list[BaseException] = []

        def send() -> None:
            try:
                while not over.wait(BETWEEN_BURSTS):
                    sent.extend(self._burst())
            except BaseException as error:  # noqa: BLE001 - raised again below
                errors.append(error)

        def more_than(number: int) -> Callable[[], bool]:
            return lambda: len(sent) > number or bool(errors)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            for worker in self._group.workers:
                self._wait("Traffic", more_than(len(sent)))
                self._group.restart(worker)
                self._wait(
                    f"The share of {worker.name}", lambda: self._owners() == self._group.members()
                )
        finally:
            over.set()
            sender.join()
        if errors:
            raise errors[0]
        self._stage.ledger.append(RESTARTED, sent, consumer_group=BOOKKEEPING)
        self._wait("All entries", lambda: not self._stage.without_effect(BOOKKEEPING, sent))

    def _wait(self, what: str, done: Callable[[], bool]) -> None:
        def is_done() -> bool:
            self._group.check()
            return self.stop.is_set() or done()

        wait_for(what, is_done, STEP_SECONDS)

    def _burst(self) -> list[Key]:
        return self._make([f"account-{next(self._numbers) % ACCOUNTS}" for _ in range(BURST)])

    def _make(self, accounts: list[str]) -> list[Key]:
        """What was really sent; a send that was too slow is left to Backstop, as everywhere in the demo."""
        ids = self._stage.producers[SHOP].make(
            BOOKINGS,
            len(accounts),
            bodies=[json.dumps({"amount": 1 + n}) for n in range(len(accounts))],
            ordering_keys=accounts,
            tell=True,
        )
        late = self._stage.ledger.keys(NOT_IN_TIME)
        return [key for i in ids if (key := (BOOKINGS, i)) not in late]

    def _owners(self) -> set[str]:
        """The names of members, each with its process id, that own a queue."""
        found = change(
            self._stage.stores[BOOKKEEPING],
            "SELECT DISTINCT owner FROM queue_owner WHERE consumer_group = %s AND owner IS NOT NULL",
            (BOOKKEEPING,),
        )
        return {str(owner) for (owner,) in found}

    def _parked(self) -> int:
        [(number,)] = change(
            self._stage.stores[BOOKKEEPING],
            "SELECT count(*) FROM parked_message WHERE consumer_group = %s",
            (BOOKKEEPING,),
        )
        return int(number)
