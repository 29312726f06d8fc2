"""Redis Streams (Redis 7.0, Valkey) behind the broker protocol: the parts of this package put together."""

from __future__ import annotations

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
from backstop.brokers.redis_streams import (
    create,
    drain,
    publish,
    read_progress,
    receive,
    receive_owned,
)
from backstop.brokers.redis_streams.exchange import Exchange
from backstop.brokers.redis_streams.keys import Keys
from backstop.brokers.redis_streams.measure_durability import measure_durability
from backstop.model.errors import ConfigurationError
from backstop.model.records import Message, Outcome

_SCRIPTS = (
    create.CREATE_QUEUE,
    create.TRIM,
    publish.PUBLISH,
    read_progress.LOOK_QUEUE,
    read_progress.LOOK_GROUP,
    read_progress.LOOK_PENDING,
    read_progress.LOOK_TIME,
    read_progress.READ_DEAD,
    receive.REDELIVER,
    receive.HAND_BACK,
    receive.ACKNOWLEDGE,
    receive.LEAVE,
    receive_owned.READ_OWNED,
)


class RedisStreams:
    """One stream a queue, several queues a topic, dense offsets. Safe to share between threads; subscriptions
    are not.

    `url`: redis://[user]:password@host:port/database; never shown. `delivery_limit`: deliveries of one
    message to one group before it becomes a dead letter (null: no limit). `visibility`: how long an
    unacknowledged message stays with its consumer. `send_timeout`: the whole time of one publish, after which
    the server stores nothing of it any more; `answer_timeout`: of one question, or one acknowledgement.
    """

    def __init__(
        self,
        url: str,
        *,
        delivery_limit: int | None = 16,
        visibility: timedelta = timedelta(seconds=60),
        connect_timeout: timedelta = timedelta(seconds=5),
        send_timeout: timedelta = timedelta(seconds=10),
        answer_timeout: timedelta = timedelta(seconds=10),
        retention: timedelta | None = None,
        prefix: str = "backstop",
    ) -> None:
        wrong = [
            f"{name} {value}"
            for name, value in {
                "visibility": visibility,
                "connect_timeout": connect_timeout,
                "send_timeout": send_timeout,
                "answer_timeout": answer_timeout,
                "retention": retention,
            }.items()
            if value is not None and value <= timedelta(0)
        ]
        if wrong or (delivery_limit is not None and delivery_limit < 1):
            raise ConfigurationError(
                f"Invalid Redis Streams options: {', '.join(wrong) or f'delivery_limit {delivery_limit}'}.",
                unaffected="Nothing was started.",
                next_step="Use durations above zero, and a delivery limit of at least 1 or none.",
            )
        self._delivery_limit, self._visibility, self._retention = (
            delivery_limit,
            visibility,
            retention,
        )
        self._keys = Keys(prefix)
        self._sending, self._asking = (
            Exchange(url, connect_timeout=connect_timeout, timeout=one, scripts=_SCRIPTS)
            for one in (send_timeout, answer_timeout)
        )
        self._publisher = publish.Publisher(self._sending, self._keys)
        self._reader = read_progress.ProgressReader(self._asking, self._keys)
        self._drain = drain.Drain(self._asking, self._keys)
        self._creator = create.Creator(self._asking, self._keys)

    def __repr__(self) -> str:
        return f"RedisStreams(delivery_limit={self._delivery_limit}, visibility={self._visibility})"

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
        self._sending.close()
        self._asking.close()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            has_offsets=True,
            knows_queue_of_send=True,
            has_first_and_next_offset=True,
            has_time_at_offset=True,
            has_epochs=True,
            progress_means=ProgressMeans.ACKNOWLEDGED,
            has_retry_queues=False,
            has_retry_topic_per_group=False,
            redelivery_delay=self._visibility,
            delivery_limit=self._delivery_limit,
            settles_dead_letters_atomically=True,
            gives_dead_letter_cause=True,
            can_delay_redelivery=True,
            lists_retries=True,
        )

    def clock(self) -> datetime:
        return self._reader.clock()

    def publish(self, messages: Sequence[Message], *, group: str | None = None) -> list[Receipt]:
        if group is not None:
            # Never to the topic instead: that would reach every group.
            refused = Receipt(
                Outcome.REFUSED,
                error="Redis Streams has no retry topic for one group: nothing was sent",
                refused_for_good=True,
            )
            return [refused] * len(messages)
        return self._publisher.publish(messages)

    def servers(self, topic: str) -> frozenset[str]:
        return frozenset()

    def queues(self, topic: str) -> list[QueueState]:
        return self._reader.queues(topic)

    def progress(self, topic: str, group: str) -> list[GroupPosition]:
        return self._reader.progress(topic, group)

    def passed_until(self, topic: str, offsets: Mapping[int, int]) -> dict[int, datetime]:
        return self._reader.passed_until(topic, offsets)

    def retry_pending(self, topic: str, group: str) -> int:
        """Always 0: what waits for redelivery stays in its own queue, where progress does not pass it."""
        return 0

    def list_retries(self, topic: str, group: str, since: Places | None = None) -> Retries:
        """What the group has received and not acknowledged in the topic's own queues."""
        return self._reader.in_hand(topic, group)

    def lag(self, topic: str, group: str) -> dict[int, int]:
        """For each queue, the messages from the group's next offset to the queue's, in flight included."""
        positions = self._reader.progress(topic, group)
        states = {state.queue_id: state.next_offset for state in self._reader.queues(topic)}
        return {
            p.queue_id: max(0, states[p.queue_id] - p.next_offset)
            for p in positions
            if p.queue_id in states
        }

    def holders(self, topic: str, group: str) -> list[Holder]:
        return []

    def dead_letters(
        self, group: str, *, since: Mapping[str, str] | None = None
    ) -> Iterator[DeadLetterRef]:
        return self._reader.dead_letters(group, since or {})

    def dead_letter_queues(self, groups: Sequence[str]) -> list[str]:
        """One a group and topic that the group ever took, also when the topic is gone. Letters of a group that nobody
        names are not found: this server has no list of all groups."""
        return self._drain.queues(groups)

    def open_dead_letters(self, queue: str) -> drain.RedisDeadLetters:
        return self._drain.open(queue)

    def durability(self, topics: Sequence[str]) -> list[Finding]:
        return measure_durability(self._asking, self._keys, topics)

    def subscribe(
        self, group: str, topics: Sequence[str], consumer: str
    ) -> receive.RedisSubscription:
        """One consumer; `consumer` is its name, unique among the group's living consumers."""
        self._creator.remember_group(group, list(topics))
        return receive.RedisSubscription(
            self._asking,
            self._keys,
            self._reader,
            group=group,
            topics=topics,
            consumer=consumer,
            visibility=self._visibility,
            delivery_limit=self._delivery_limit,
        )

    def subscribe_owned(
        self, group: str, topics: Sequence[str], consumer: str
    ) -> receive_owned.OwnedRedisSubscription:
        """One consumer that reads only queues that it owns; `consumer` is unique among the group's living consumers."""
        self._creator.remember_group(group, list(topics))
        return receive_owned.OwnedRedisSubscription(
            self._asking, self._keys, self._reader, group=group, topics=topics, consumer=consumer
        )

    def create_topic(
        self, topic: str, queues: int = 1, *, max_message_bytes: int | None = None
    ) -> None:
        """Creates the topic, or adds queues to it, and sets its limit on content and headers together; None: as it is."""
        self._creator.create_topic(topic, queues, max_message_bytes)
        self._publisher.forget(topic)

    def delete_topic(self, topic: str) -> None:
        """Deletes a topic's messages and its groups' places; their dead letters stay."""
        self._creator.delete_topic(topic)
        self._publisher.forget(topic)

    def create_group(self, group: str, topic: str, at: Literal["start", "end"] = "end") -> None:
        """The group takes the topic from its first message still there, or from the next one. Existing:
        unchanged."""
        self._creator.create_group(group, topic, at)

    def groups(self, topic: str) -> list[str]:
        """The names of the topic's groups."""
        return self._creator.groups(topic)

    def trim(self, topic: str, passed: Mapping[int, tuple[str, int]]) -> int:
        """As the protocol has it; without the option `retention` nothing goes."""
        if self._retention is None:
            return 0
        return self._creator.trim(topic, self._reader.clock() - self._retention, passed)
