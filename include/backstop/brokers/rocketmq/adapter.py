"""RocketMQ behind the broker protocol: the parts of this package put together."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Literal, Self

from backstop.brokers.protocol import (
    Capabilities,
    DeadLetterRef,
    Finding,
    GroupPosition,
    Holder,
    Places,
    ProgressMeans,
    QueueState,
    Receipt,
    Retries,
)
from backstop.brokers.rocketmq.consumer.receive import RocketMQSubscription
from backstop.brokers.rocketmq.consumer.receive_owned import OwnedRocketMQSubscription
from backstop.brokers.rocketmq.dead_letters.drain import DRAIN_GROUP, Drain, RocketMQLetters
from backstop.brokers.rocketmq.inspect.check_config import WantedTopic
from backstop.brokers.rocketmq.inspect.clock import Clock
from backstop.brokers.rocketmq.inspect.locks import holders
from backstop.brokers.rocketmq.inspect.measure_durability import ConfigReader
from backstop.brokers.rocketmq.inspect.read_progress import ProgressReader
from backstop.brokers.rocketmq.inspect.retries import RetryReader
from backstop.brokers.rocketmq.inspect.schedule import Schedule
from backstop.brokers.rocketmq.producer.publish import Publisher
from backstop.brokers.rocketmq.routes.create import Creator
from backstop.brokers.rocketmq.routes.route import Routes
from backstop.brokers.rocketmq.wire.address import Address
from backstop.brokers.rocketmq.wire.pool import Pool
from backstop.config.rocketmq_delay_levels import DELAY_LEVELS, DELIVERIES, parse_levels
from backstop.model.errors import ConfigurationError
from backstop.model.records import Message

PULL_BATCH = 32
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""What a broker takes by default (maxMessageSize)."""


class RocketMQ:
    """One cluster, found by its name servers. Safe to share between threads; subscriptions and readers are not.

    `url`: rocketmq://access:secret@namesrv:9876,namesrv:9876?tls=true ; never shown. `brokers`: the names of all masters, in the
    order by which queues are numbered, separated by commas; null: topics lie on one broker. `removed`: those that are gone for good,
    separated by commas. `wanted`: what the settings reckon with.
    `delay_levels`: the brokers' messageDelayLevel. `delivery_limit`: deliveries to one group, the first one too, before a message
    is a dead letter. `send_timeout`: the whole time of one publish; `answer_timeout`: of one look, or one acknowledgement.
    """

    def __init__(
        self,
        url: str,
        *,
        brokers: str | None = None,
        removed: str = "",
        wanted: Mapping[str, WantedTopic] | None = None,
        drain_group: str = DRAIN_GROUP,
        delivery_limit: int = DELIVERIES,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        pull_batch: int = PULL_BATCH,
        delay_levels: str = DELAY_LEVELS,
        connect_timeout: timedelta = timedelta(seconds=5),
        send_timeout: timedelta = timedelta(seconds=10),
        answer_timeout: timedelta = timedelta(seconds=30),
    ) -> None:
        names = None if brokers is None else [name.strip() for name in brokers.split(",")]
        wrong = None
        if names is not None and (not all(names) or len(set(names)) < len(names)):
            wrong = "brokers must name each master once, separated by commas"
        elif min(max_message_bytes, pull_batch, delivery_limit) < 1:
            wrong = "max_message_bytes, pull_batch and delivery_limit must be at least 1"
        elif min(connect_timeout, send_timeout, answer_timeout) <= timedelta(0):
            wrong = "durations must be above zero"
        try:
            self._levels = parse_levels(delay_levels)
        except ValueError as error:
            wrong = f"delay_levels: {error}"
        if wrong is not None:
            raise ConfigurationError(
                f"Invalid RocketMQ options: {wrong}.",
                unaffected="Nothing was started.",
                next_step="Correct the broker's options; docs/brokers/rocketmq.md has examples.",
            )
        self._delivery_limit, self._pull_batch, self._wanted = (
            delivery_limit,
            pull_batch,
            wanted or {},
        )
        self._seconds = seconds = answer_timeout.total_seconds()
        self._pool = Pool(Address.parse(url), connect_timeout=connect_timeout.total_seconds())
        gone = [name.strip() for name in removed.split(",")]
        self._routes = Routes(
            self._pool, brokers=names, answer_timeout=seconds, removed=gone if removed else ()
        )
        clock = Clock(self._pool)
        schedule = Schedule(self._pool, clock, self._levels)
        self._reader = ProgressReader(self._pool, self._routes, clock, schedule, seconds=seconds)
        self._retries = RetryReader(self._pool, self._reader, schedule, seconds=seconds)
        self._drain = Drain(
            self._pool,
            self._routes,
            seconds=seconds,
            drain_group=drain_group,
            pull_batch=pull_batch,
        )
        self._publisher = Publisher(
            self._pool,
            self._routes,
            self._reader,
            send_timeout=send_timeout.total_seconds(),
            max_bytes=max_message_bytes,
        )
        self._surveyor = ConfigReader(
            self._pool,
            self._routes,
            self._wanted,
            levels=delay_levels,
            max_bytes=max_message_bytes,
            seconds=seconds,
        )
        self._creator = Creator(
            self._pool, self._routes, seconds=seconds, retries=delivery_limit - 1
        )

    def __repr__(self) -> str:
        return f"RocketMQ(name servers {', '.join(self._pool.address.namesrvs)})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._pool.close()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            has_offsets=True,
            knows_queue_of_send=True,
            has_first_and_next_offset=True,
            has_time_at_offset=True,
            has_epochs=False,
            progress_means=ProgressMeans.ACKNOWLEDGED,
            has_retry_queues=True,
            has_retry_topic_per_group=True,
            redelivery_delay=None,
            delivery_limit=self._delivery_limit,
            settles_dead_letters_atomically=False,
            gives_dead_letter_cause=False,
            can_delay_redelivery=True,
            counts_deaths=False,
            redelivers_to_any=False,
            marks_redelivered=False,
            acknowledges_each=False,
            knows_pending=False,
            lists_retries=True,
            lists_retries_together=True,
            delays_messages=True,
            tells_holders=True,
        )

    def clock(self) -> datetime:
        return self._reader.clock()

    def publish(self, messages: Sequence[Message], *, group: str | None = None) -> list[Receipt]:
        """A copy for one group goes to its retry topic, which its consumers read beside the topic: it has no position.

        Refused while the group consumes in order, or while that cannot be looked for.
        """
        return self._publisher.publish(messages, group)

    def servers(self, topic: str) -> frozenset[str]:
        return self._reader.servers(topic)

    def queues(self, topic: str) -> list[QueueState]:
        return self._reader.queues(topic)

    def progress(self, topic: str, group: str) -> list[GroupPosition]:
        return self._reader.progress(topic, group)

    def passed_until(self, topic: str, offsets: Mapping[int, int]) -> dict[int, datetime]:
        return self._reader.passed_until(topic, offsets)

    def delivered_until(self, topic: str) -> datetime:
        return self._reader.delivered_until(topic)

    def retry_pending(self, topic: str, group: str) -> int:
        return self._retries.pending(topic, group)

    def list_retries(self, topic: str, group: str, since: Places | None = None) -> Retries:
        return self._retries.listed(topic, group, since)

    def list_retries_together(
        self, wanted: Mapping[tuple[str, str], Places | None]
    ) -> dict[tuple[str, str], Retries]:
        return self._retries.listed_together(wanted)

    def holders(self, topic: str, group: str) -> list[Holder]:
        return holders(
            self._pool,
            self._reader,
            self._routes.brokers,
            topic,
            group,
            time.monotonic() + self._seconds,
        )

    def dead_letters(
        self, group: str, *, since: Mapping[str, str] | None = None
    ) -> Iterator[DeadLetterRef]:
        return self._drain.letters(group, since or {})

    def dead_letter_queues(self, groups: Sequence[str]) -> list[str]:
        return self._drain.queues(groups)

    def open_dead_letters(self, queue: str) -> RocketMQLetters:
        return self._drain.open(queue)

    def durability(self, topics: Sequence[str]) -> list[Finding]:
        return self._surveyor.survey(topics)

    def subscribe(
        self,
        group: str,
        topics: Sequence[str],
        consumer: str,
        *,
        tags: Mapping[str, Sequence[str]] | None = None,
    ) -> RocketMQSubscription:
        """One consumer of the group, beside those of other programs: queues are shared out as Java's clients do it.

        `tags`: the group's filter, by topic; null: the one of the settings that this was opened with, else every message. All
        consumers of a group must have the same topics and tags, or RocketMQ skips messages.
        """
        return RocketMQSubscription(
            self._pool,
            self._routes,
            group=group,
            topics=topics,
            consumer=consumer,
            seconds=self._seconds,
            delivery_limit=self._delivery_limit,
            pull_batch=self._pull_batch,
            levels=self._levels,
            tags=self._tags(group, topics) if tags is None else tags,
        )

    def subscribe_owned(
        self, group: str, topics: Sequence[str], consumer: str
    ) -> OwnedRocketMQSubscription:
        """One consumer of the group over the queues that RocketMQ allots to it and that it owns, for an OrderedConsumer."""
        inner = RocketMQSubscription(
            self._pool,
            self._routes,
            group=group,
            topics=topics,
            consumer=consumer,
            seconds=self._seconds,
            delivery_limit=self._delivery_limit,
            pull_batch=self._pull_batch,
            levels=self._levels,
            tags=self._tags(group, topics),
            in_order=True,
        )
        return OwnedRocketMQSubscription(inner, topics, self._routes.brokers)

    def _tags(self, group: str, topics: Sequence[str]) -> dict[str, Sequence[str]]:
        """The group's filter in the settings, by topic."""
        subscriptions = {
            topic: self._wanted[topic].groups.get(group)
            for topic in topics
            if topic in self._wanted
        }
        return {
            topic: one.tags
            for topic, one in subscriptions.items()
            if one is not None and one.tags is not None
        }

    def create_topic(self, topic: str, queues: int = 4) -> None:
        """Makes it with so many queues on each master; queues can be added."""
        self._creator.topic(topic, queues)

    def create_group(self, group: str, topic: str, at: Literal["start", "end"] = "end") -> None:
        """Makes it, and says where it begins in the topic's queues. What is there stays."""
        self._creator.group(group, topic, at)

    def delete_topic(self, topic: str) -> None:
        """Deletes the topic with all it holds; retry and dead-letter queues of its groups stay."""
        self._creator.delete_topic(topic)
