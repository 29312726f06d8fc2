"""ActiveMQ Classic behind the broker protocol: the parts of this package put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Literal, Self

from backstop.brokers.activemq.drain import ActiveMQLetters
from backstop.brokers.activemq.jolokia import Jolokia
from backstop.brokers.activemq.measure_durability import measure_durability
from backstop.brokers.activemq.names import DEAD_LETTERS, RECEIVE_FROM, SEND_TO, Names
from backstop.brokers.activemq.publish import Publisher
from backstop.brokers.activemq.read_progress import ProgressReader
from backstop.brokers.activemq.receive import PREFETCH, ActiveMQSubscription
from backstop.brokers.activemq.session import Address, Pool
from backstop.brokers.activemq.unavailable import unavailable
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
from backstop.model.errors import ConfigurationError
from backstop.model.records import Message

MAX_MESSAGE_BYTES = 50 * 1024 * 1024
"""Half of what ActiveMQ's transports take by default (maxDataLength, 100 MB)."""


class ActiveMQ:
    """One broker over STOMP and Jolokia. Safe to share between threads; subscriptions and readers are not.

    `url`: stomp://user:password@host:61613?jolokia=... ; never shown. `groups`: the one group of each topic, where queues do
    not name their group. `delivery_limit`: deliveries by one consumer before it gives a message up (null: no limit).
    `send_timeout`: the whole time of one publish; `answer_timeout`: of one question, or one acknowledgement.
    `redelivery`: who makes a failed message wait: its `client`, or the `broker` (its plugin and scheduler).
    """

    def __init__(
        self,
        url: str,
        *,
        send_to: str = SEND_TO,
        receive_from: str = RECEIVE_FROM,
        dead_letters: str = ",".join(DEAD_LETTERS),
        groups: Mapping[str, str] | None = None,
        delivery_limit: int | None = 16,
        redelivery: Literal["client", "broker"] = "client",
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        prefetch: int = PREFETCH,
        connect_timeout: timedelta = timedelta(seconds=5),
        send_timeout: timedelta = timedelta(seconds=10),
        answer_timeout: timedelta = timedelta(seconds=30),
    ) -> None:
        letters = [name.strip() for name in dead_letters.split(",") if name.strip()]
        self._names = Names(send_to, receive_from, letters, dict(groups or {}))
        wrong = self._names.wrong()
        if wrong is None and redelivery not in ("client", "broker"):
            wrong = "redelivery must be client or broker"
        if wrong is None and min(max_message_bytes, prefetch, delivery_limit or 1) < 1:
            wrong = "max_message_bytes, prefetch and delivery_limit must be at least 1"
        if wrong is None and min(connect_timeout, send_timeout, answer_timeout) <= timedelta(0):
            wrong = "durations must be above zero"
        if wrong is not None:
            raise ConfigurationError(
                f"Invalid ActiveMQ options: {wrong}.",
                unaffected="Nothing was started.",
                next_step="Correct the broker's options; docs/brokers/activemq.md has examples.",
            )
        self._delivery_limit, self._redelivery, self._prefetch = (
            delivery_limit,
            redelivery,
            prefetch,
        )
        self._seconds = answer_timeout.total_seconds()
        address = Address.parse(url)
        self._pool = Pool(address, connect_timeout=connect_timeout.total_seconds())
        beans = Jolokia(address.jolokia, timeout=self._seconds) if address.jolokia else None
        self._reader = ProgressReader(
            self._pool,
            beans,
            self._names,
            seconds=self._seconds,
            broker_redelivers=redelivery == "broker",
        )
        self._watched = beans is not None
        # Looked for within the time of a publish.
        quick = (
            ProgressReader(
                self._pool,
                Jolokia(address.jolokia, timeout=send_timeout.total_seconds()),
                self._names,
                seconds=send_timeout.total_seconds(),
                broker_redelivers=False,
            )
            if address.jolokia
            else None
        )
        self._publisher = Publisher(
            self._pool,
            self._names,
            quick.there if quick else None,
            send_timeout=send_timeout.total_seconds(),
            max_bytes=max_message_bytes,
        )

    def __repr__(self) -> str:
        return (
            f"ActiveMQ(send_to={self._names.send_to!r}, receive_from={self._names.receive_from!r})"
        )

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
        by_broker = self._redelivery == "broker"
        return Capabilities(
            has_offsets=False,
            knows_queue_of_send=False,
            has_first_and_next_offset=False,
            has_time_at_offset=False,
            has_epochs=False,
            # What waits in the broker's scheduler is in no queue: only a grace as long as its redeliveries is safe then.
            progress_means=ProgressMeans.RECEIVED if by_broker else ProgressMeans.ACKNOWLEDGED,
            has_retry_queues=by_broker,
            has_retry_topic_per_group=True,
            redelivery_delay=None,
            delivery_limit=self._delivery_limit,
            settles_dead_letters_atomically=True,
            gives_dead_letter_cause=True,
            can_delay_redelivery=False,
            counts_deaths=False,
            redelivers_to_any=False,
            lists_retries=True,
            delays_messages=True,
        )

    def clock(self) -> datetime:
        return self._reader.clock()

    def publish(self, messages: Sequence[Message], *, group: str | None = None) -> list[Receipt]:
        """A group's own queue is its retry topic: a copy for one group reaches no other."""
        return self._publisher.publish(messages, group)

    def servers(self, topic: str) -> frozenset[str]:
        return frozenset()

    def queues(self, topic: str) -> list[QueueState]:
        return self._reader.queues(topic)

    def progress(self, topic: str, group: str) -> list[GroupPosition]:
        return self._reader.progress(topic, group)

    def passed_until(self, topic: str, offsets: Mapping[int, int]) -> dict[int, datetime]:
        """There are no offsets, so no time belongs to one."""
        raise unavailable(
            f"looking for times in {topic!r}",
            "it has no offsets: a group's progress cannot be logged here",
        )

    def delivered_until(self, topic: str) -> datetime:
        """Known only while nothing at all waits in the broker's scheduler: it does not say for which topic."""
        return self._reader.delivered_until()

    def retry_pending(self, topic: str, group: str) -> int:
        """What waits in the broker's scheduler, of whatever group: it does not tell whose. 0 where clients redeliver."""
        return self._reader.scheduled() if self._redelivery == "broker" else 0

    def list_retries(self, topic: str, group: str, since: Places | None = None) -> Retries:
        """What is in the group's queue; not by id while anything waits in the broker's scheduler, which does not tell whose."""
        return self._reader.in_queue(topic, group)

    def holders(self, topic: str, group: str) -> list[Holder]:
        return []

    def dead_letters(
        self, group: str, *, since: Mapping[str, str] | None = None
    ) -> Iterator[DeadLetterRef]:
        """`since` is not used: a browser sees a queue from its beginning."""
        return iter(self._reader.dead_letters(group))

    def dead_letter_queues(self, groups: Sequence[str]) -> list[str]:
        return self._reader.dead_letter_queues(set(groups))

    def open_dead_letters(self, queue: str) -> ActiveMQLetters:
        return ActiveMQLetters(self._pool, self._reader, self._names, queue, seconds=self._seconds)

    def durability(self, topics: Sequence[str]) -> list[Finding]:
        return measure_durability(self._reader, self._names, topics)

    def subscribe(self, group: str, topics: Sequence[str], consumer: str) -> ActiveMQSubscription:
        """One consumer; `consumer` is not used: the broker knows its connections."""
        return ActiveMQSubscription(
            self._pool,
            self._names,
            self._reader if self._watched else None,
            group=group,
            topics=topics,
            seconds=self._seconds,
            delivery_limit=self._delivery_limit,
            prefetch=self._prefetch,
        )

    def create_topic(self, topic: str, queues: int = 1) -> None:
        """Makes what the topic is sent to; there already: unchanged. Each group has one queue, whatever `queues` says."""
        kind, _, name = self._names.topic(topic).lstrip("/").partition("/")
        self._reader.jolokia.run(
            self._reader.jolokia.bean(), f"add{kind.capitalize()}(java.lang.String)", name
        )

    def create_group(self, group: str, topic: str, at: Literal["start", "end"] = "end") -> None:
        """Makes the group's queue, which gets every message from then on: what was sent before is kept for nobody, and
        `at` changes nothing about it. There already: unchanged."""
        beans = self._reader.jolokia
        beans.run(beans.bean(), "addQueue(java.lang.String)", self._names.queue(topic, group))

    def delete_topic(self, topic: str) -> None:
        """Deletes the topic and its groups' queues with all they hold; dead letters stay."""
        beans = self._reader.jolokia
        for queue in self._reader.group_queues(topic) if self._names.has_group else []:
            beans.run(beans.bean(), "removeQueue(java.lang.String)", queue)
        kind, _, name = self._names.topic(topic).lstrip("/").partition("/")
        beans.run(beans.bean(), f"remove{kind.capitalize()}(java.lang.String)", name)
        self._publisher.forget(topic)
