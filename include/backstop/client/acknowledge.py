"""What this consumer is done with, until its broker has heard of it: acknowledged, or made a dead letter."""

import time
from datetime import timedelta

from backstop.brokers.owned import OwnedSubscription
from backstop.brokers.protocol import Received
from backstop.client.finished import FinishedOffsets
from backstop.model.errors import BrokerUnavailable
from backstop.model.log_limit import LimitedLog

SILENT_AFTER = 1.0
"""Seconds: what failed later than this was not refused."""


class Acknowledgements:
    """Of one consumer. Not shared between threads."""

    def __init__(
        self,
        subscription: OwnedSubscription,
        finished: FinishedOffsets,
        retry_after: timedelta,
        limited: LimitedLog,
    ) -> None:
        self._subscription, self._finished, self._limited = subscription, finished, limited
        self._retry_after = retry_after.total_seconds()
        self._done: list[Received] = []
        self._unusable: list[tuple[Received, str]] = []
        """To become dead letters, and why."""
        self._refused: dict[str, float] = {}
        """Topics whose acknowledgement was refused while others' were accepted: when (monotonic) each is sent again."""
        self._bury_at = float("-inf")
        """Monotonic: before it, no broker is asked again to take a dead letter that one refused."""

    def done(self, received: Received) -> None:
        """Nothing is to be done with it any more."""
        self._done.append(received)

    def unusable(self, received: Received, why: str) -> None:
        """It is to become a dead letter, and is not finished before it is one."""
        self._unusable.append((received, why))

    def send(self) -> None:
        """Sends all of it to the broker; a topic that it refuses holds up no other. Raises BrokerUnavailable when none was accepted. What
        was not accepted is sent again."""
        if self._done:
            self._acknowledge()
        if time.monotonic() < self._bury_at:
            return
        for _ in range(len(self._unusable)):
            received, error = self._unusable.pop(0)
            began = time.monotonic()
            try:
                is_buried = self._subscription.bury(received, error)
            except BrokerUnavailable as refused:  # it holds up no other message
                self._unusable.append((received, error))
                self._bury_at = time.monotonic() + self._retry_after
                self._limited.warning(str(refused))
                if time.monotonic() - began > SILENT_AFTER:
                    break  # it was not refused: nothing else is asked of the broker in this round
                continue
            if is_buried:  # else it comes again, and must not be taken for finished then
                self._finished.add(received)

    def _acknowledge(self) -> None:
        by_topic: dict[str, list[Received]] = {}
        for one in self._done:
            by_topic.setdefault(one.message.topic, []).append(one)
        heard, errors = False, dict[str, BrokerUnavailable]()
        for topic, some in by_topic.items():
            began = time.monotonic()
            if began < self._refused.get(topic, float("-inf")):
                continue
            try:
                self._subscription.acknowledge(some)
            except BrokerUnavailable as error:
                errors[topic] = error
                if time.monotonic() - began > SILENT_AFTER:
                    break  # it was not refused: nothing else is asked of the broker in this round
                continue
            heard = True
            by_topic[topic] = []
            self._refused.pop(topic, None)
        self._done = [one for some in by_topic.values() for one in some]
        for topic, refused in errors.items():
            if not heard and topic not in self._refused:
                raise refused
            self._refused[topic] = time.monotonic() + self._retry_after
            self._limited.warning(str(refused))
