"""Pulls from this consumer's queues: at once while they give messages, else by a pull that the broker holds until one comes.

So a consumer that waits costs nothing, and what comes is there at once.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Collection, Mapping

from backstop.brokers.rocketmq.consumer.in_hand import InHand
from backstop.brokers.rocketmq.consumer.share_queues import QueueShare
from backstop.brokers.rocketmq.message.names import RETRY
from backstop.brokers.rocketmq.message.properties import tag_of
from backstop.brokers.rocketmq.message.stored import Stored, read_stored
from backstop.brokers.rocketmq.wire.codes import RequestCode, ResponseCode
from backstop.brokers.rocketmq.wire.frames import Answer, Malformed, Request
from backstop.brokers.rocketmq.wire.lines import Lines
from backstop.brokers.rocketmq.wire.questions import SUBSCRIPTION, SUSPEND
from backstop.brokers.rocketmq.wire.unavailable import unavailable
from backstop.model.errors import BrokerUnavailable
from backstop.model.log_limit import LimitedLog

log = logging.getLogger(__name__)

SUSPEND_SECONDS = 15.0
LATE_SECONDS = 5.0
"""The broker looks only every 5 s whether a pull that it holds is to be answered."""
MOST_IN_HAND = 10_000
MOST_BYTES_IN_HAND = 64 * 1024 * 1024
"""A consumer that holds more takes nothing new until something is acknowledged."""


class Puller:
    """The pulls of one consumer. Not shared between threads."""

    def __init__(
        self,
        lines: Lines,
        share: QueueShare,
        group: str,
        filters: Mapping[str, str],
        tags: Mapping[str, Collection[str]],
        *,
        batch: int,
        seconds: float,
    ) -> None:
        """Topics are RocketMQ's; `filters` as subscribed to, `tags`: the same as tags, where not every message is wanted."""
        self._lines, self._share, self._group, self._filters, self._tags = (
            lines,
            share,
            group,
            filters,
            tags,
        )
        self._batch, self._seconds = batch, seconds
        self._turn = 0
        self._limited = LimitedLog(log)
        self._problem: BrokerUnavailable | None = None
        """What the first queue said that could not be read since the last `pull`."""

    def pull(self, room: int) -> None:
        """Until `room` messages wait to be handed out, or every queue was asked and is empty.

        Raises BrokerUnavailable when a queue could not be read and no other one has anything.
        """
        ready = deque(hand for hand in self.in_turn() if hand.pulling is None)
        while (
            ready
            and room > (waiting := sum(hand.fresh for hand in self._share.hands.values()))
            and self._may_take()
        ):
            some = [ready.popleft() for _ in range(min(len(ready), room - waiting))]
            number = min(self._batch, max(1, (room - waiting) // len(some)))
            requests = [(hand.queue.broker, self._request(hand, number)) for hand in some]
            for hand, answer in zip(some, self._share.ask(requests, "receiving"), strict=True):
                try:
                    more = self._read(hand, answer)
                except BrokerUnavailable as error:
                    self._problem = self._problem or error
                    continue  # it is asked again by the next call; the others go on
                if more:
                    ready.append(hand)
                else:
                    self._hold(hand, min(self._batch, room))
        problem, self._problem = self._problem, None
        if problem is not None:
            if not any(hand.fresh for hand in self._share.hands.values()):
                raise problem
            self._limited.warning(str(problem))

    def pull_of(self, hand: InHand, room: int) -> None:
        """Until `room` messages of this queue wait to be handed out, or it is empty. Raises BrokerUnavailable."""
        while hand.pulling is None and room > hand.fresh and self._may_take():
            number = min(self._batch, room - hand.fresh)
            [answer] = self._share.ask(
                [(hand.queue.broker, self._request(hand, number))], "receiving"
            )
            if not self._read(hand, answer):
                self._hold(hand, min(self._batch, room))

    def arrived(self) -> None:
        """Takes the answers to pulls that were held. Raises BrokerUnavailable."""
        self._lines.pump()
        now = time.monotonic()
        for hand in list(self._share.hands.values()):
            if hand.pulling is None:
                continue
            answer = self._lines.taken(hand.queue.broker, hand.pulling)
            if answer is not None:
                hand.pulling = None
                if hand.pulling_from == hand.next_offset:
                    try:
                        self._read(hand, answer)
                    except BrokerUnavailable as error:
                        self._problem = self._problem or error
            elif now > hand.pulling_until:
                self._lines.give_up(hand.queue.broker, "did not answer a pull that it held")

    def in_turn(self) -> list[InHand]:
        """What comes again first; then all others, beginning at another one each time, so that none starves."""
        hands = list(self._share.hands.values())
        again = [hand for hand in hands if hand.queue.topic.startswith(RETRY)]
        first = [hand for hand in hands if not hand.queue.topic.startswith(RETRY)]
        self._turn = (self._turn + 1) % max(1, len(first))
        return again + first[self._turn :] + first[: self._turn]

    def _may_take(self) -> bool:
        hands = self._share.hands.values()
        return (
            sum(hand.size for hand in hands) < MOST_IN_HAND
            and sum(hand.bytes for hand in hands) < MOST_BYTES_IN_HAND
        )

    def _request(self, hand: InHand, number: int, *, suspend: bool = False) -> Request:
        return Request(
            RequestCode.PULL_MESSAGE,
            {
                "consumerGroup": self._group,
                "topic": hand.queue.topic,
                "queueId": hand.queue.number,
                "queueOffset": hand.next_offset,
                "maxMsgNums": number,
                "commitOffset": 0,
                "sysFlag": SUBSCRIPTION | (SUSPEND if suspend else 0),
                "suspendTimeoutMillis": int(SUSPEND_SECONDS * 1000) if suspend else 0,
                "subscription": self._filters[hand.queue.topic],
                "subVersion": self._share.version,
                "expressionType": "TAG",
            },
        )

    def _hold(self, hand: InHand, number: int) -> None:
        hand.pulling = self._lines.start(
            hand.queue.broker, self._request(hand, number, suspend=True)
        )
        hand.pulling_from = hand.next_offset
        hand.pulling_until = time.monotonic() + SUSPEND_SECONDS + LATE_SECONDS + self._seconds

    def _read(self, hand: InHand, answer: Answer) -> bool:
        """Whether the queue may have more at once."""
        doing = f"receiving from {hand.queue.topic}"
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return False
        try:
            if answer.code == ResponseCode.SUCCESS:
                found = read_stored(answer.body)
                hand.pulled(
                    [one for one in found if self._is_for(hand, one)],
                    answer.number("nextBeginOffset"),
                )
                return True
            if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
                hand.skip_to(answer.number("nextBeginOffset"))
                return True
            if answer.code == ResponseCode.PULL_OFFSET_MOVED:
                self._moved(hand, answer)
                return True
        except Malformed as error:
            raise unavailable(doing, str(error)) from error
        self._share.refresh(hand.queue.topic)
        raise unavailable(doing, f"{hand.queue.broker} says {answer.said()}")

    def _moved(self, hand: InHand, answer: Answer) -> None:
        """The place is not one of the queue's, or somebody set the group's offset."""
        to, first = answer.number("nextBeginOffset"), answer.number("minOffset")
        if hand.next_offset < first and to == first:
            log.warning(
                "%s begins at %d: what lay from %d to it is not there any more.",
                hand.queue,
                first,
                hand.next_offset,
            )
            hand.skip_to(to)
            return
        log.warning(
            "The group's place in %s is %d now, it was %d.", hand.queue, to, hand.next_offset
        )
        hand.move(to, committed=None)
        self._share.forgot = True
        self._share.commit(
            [hand]
        )  # at once: the broker still has the old place, and would lead the next consumer there

    def _is_for(self, hand: InHand, stored: Stored) -> bool:
        """The broker compares the hashes of tags; the tag itself is for the consumer to compare."""
        tags = self._tags.get(hand.queue.topic)
        return tags is None or tag_of(stored.properties) in tags
