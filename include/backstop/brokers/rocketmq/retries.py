"""Counts what waits for a group outside the topic: in its retry topics, and scheduled on the way there.

A message that failed goes round: scheduled, in the retry topic, in a consumer's hands, scheduled again. So what is scheduled is
looked at before the retry topics and after them, and whatever was scheduled at any moment of the look counts: at worst one
message counts twice, and none that goes round is missed. What could not be read counts as waiting.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

from backstop.brokers.rocketmq.codes import Ask, Said
from backstop.brokers.rocketmq.frames import Request
from backstop.brokers.rocketmq.look import Looker
from backstop.brokers.rocketmq.names import encode_group, pop_retry_topics, retry_topic
from backstop.brokers.rocketmq.pool import Pool
from backstop.brokers.rocketmq.questions import read_stats
from backstop.brokers.rocketmq.require_answers import require_answers
from backstop.brokers.rocketmq.schedule import Schedule
from backstop.brokers.rocketmq.unavailable import unavailable
from backstop.errors import ContractBroken


class Retries:
    """Counts for one adapter. Safe to share between threads; they wait for each other."""

    def __init__(self, pool: Pool, looker: Looker, schedule: Schedule, *, seconds: float) -> None:
        self._pool, self._looker, self._schedule, self._seconds = pool, looker, schedule, seconds

    def pending(self, topic: str, group: str) -> int:
        """Messages that wait for the group, at most. BrokerUnavailable when a master does not answer.

        Every master is asked: a client that cannot hand a message back sends it to the retry topic of another one.
        """
        doing = f"looking for the retries of the group {group!r} of {topic!r}"
        deadline = time.monotonic() + self._seconds
        try:
            name, topics = encode_group(group), (retry_topic(group), *pop_retry_topics(group, topic))
        except ContractBroken as error:
            raise unavailable(doing, error.what) from error
        self._looker.find(topic, doing, deadline)  # of a topic that is not there nothing is known
        masters = self._looker.masters(doing, deadline)
        with self._schedule.lock:
            left = self._schedule.read(masters, doing, deadline)
            waiting = sum(self._depth(name, one, masters, doing, deadline) for one in topics)
            if not left:
                left = self._schedule.read(masters, doing, deadline, forget=False)
            scheduled = Counter(self._schedule.going_to(masters))
        return waiting + left + sum(scheduled[one] for one in topics)

    def _depth(self, group: str, topic: str, masters: Mapping[str, str], doing: str, deadline: float) -> int:
        """What is in the group's retry topic and not committed, on all masters that have it."""
        asked = [(address, Request(Ask.GET_TOPIC_STATS_INFO, {"topic": topic})) for address in masters.values()]
        answers = require_answers(self._pool, asked, deadline, doing, also=(Said.TOPIC_NOT_EXIST,))
        there = [
            (broker, address, queue_id, first, following)
            for (broker, address), answer in zip(masters.items(), answers, strict=True) if answer.code == Said.SUCCESS
            for queue_id, first, following in read_stats(answer, doing) if following > first
        ]  # fmt: skip
        committed = self._looker.committed(group, topic, [(b, a, q) for b, a, q, _, _ in there], doing, deadline)
        # A commit beyond the end is of another life of the topic.
        depth = 0
        for broker, _, queue_id, first, following in there:
            at = committed.get((broker, queue_id), first)
            depth += following - (first if at > following else max(at, first))
        return depth
