"""Looks at topics, groups and dead letters: how much by Jolokia, what by a browser over STOMP, nothing removed.

A group has no offsets here, only a queue: its progress is a time, that of the oldest message still in the queue.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from backstop.brokers.activemq.decode import own_headers, ref_of, stored_at
from backstop.brokers.activemq.frames import Frame, encode
from backstop.brokers.activemq.jolokia import QUEUE_ATTRIBUTES, Jolokia, in_bean
from backstop.brokers.activemq.names import Names, encoded
from backstop.brokers.activemq.session import Lost, NotSent, Pool, said
from backstop.brokers.activemq.unavailable import unavailable
from backstop.brokers.protocol import DeadLetterRef, GroupPosition, QueueState, Retries
from backstop.records import id_in

QUEUE_ID = 0
"""A topic has one queue for each group: seen from the topic it is one, without offsets and without epochs."""
OLDEST = 100
OLDEST_BYTES = 4 * 1024 * 1024
"""How much of the front of a queue is looked at for the oldest message. The broker stamps in the order of arrival; what a
transaction stores later than it was stamped is at most `max_send_duration` older than what lies before it, and by so much
the rule waits."""
LISTED = 400
"""A queue with fewer messages is listed: a browser gets no more, unless maxBrowsePageSize says so."""
ATTEMPTS = 5
_CLOCK = "/temp-queue/backstop.clock"
_LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)


class Looker:
    """Reads for one adapter; every method raises BrokerUnavailable rather than leave something out."""

    def __init__(
        self, pool: Pool, jolokia: Jolokia | None, names: Names, *, seconds: float, broker_redelivers: bool
    ) -> None:
        self._pool, self._beans, self._names, self._seconds = pool, jolokia, names, seconds
        self._broker_redelivers = broker_redelivers
        self._stamps: bool | None = None

    @property
    def jolokia(self) -> Jolokia:
        if self._beans is None:
            raise unavailable("looking", "the connection names no Jolokia, and STOMP alone knows no queues")
        return self._beans

    def clock(self) -> datetime:
        """The broker's time: what it writes on a message to a queue that only this connection has."""
        stamped = self.stamp({})
        if stamped is None:
            raise unavailable("reading its clock", "a message came back without a time")
        return stamped

    def stamp(self, headers: dict[str, str]) -> datetime | None:
        """The time on a message that was sent to the broker and came back; nothing is stored."""
        doing = "reading its clock"
        with self._session(doing) as session:
            deadline = time.monotonic() + self._seconds
            number = session.number()
            session.write(
                encode("SUBSCRIBE", {"destination": _CLOCK, "id": number, "ack": "auto"})
                + encode("SEND", {"destination": _CLOCK, "persistent": "false", **headers}, number.encode()),
                deadline,
            )
            while True:
                frame = session.read(deadline)
                if frame is None or frame.command == "ERROR":
                    raise Lost(said(frame) if frame else "no answer came in time")
                if frame.command == "MESSAGE" and frame.body == number.encode():
                    break
            receipt = session.number()
            session.ask(encode("UNSUBSCRIBE", {"id": number, "receipt": receipt}), receipt, deadline)
            return stored_at(frame)

    def stamps(self) -> bool:
        """Whether the broker writes its own time on every message: one that came with a time does not keep it."""
        if self._stamps is None:
            stamped = self.stamp({"timestamp": str(int(_LONG_AGO.timestamp() * 1000))})
            self._stamps = stamped is not None and stamped > _LONG_AGO + timedelta(days=1)
        return self._stamps

    def there(self, topic: str) -> bool:
        """Whether the broker has what the topic is sent to, or a queue of one of its groups."""
        kind, _, name = self._names.topic(topic).lstrip("/").partition("/")
        bean = self.jolokia.bean(f"destinationType={kind.capitalize()}", f"destinationName={in_bean(name)}")
        if self.jolokia.read(bean, ("Name",)) is not None:
            return True
        return self._names.has_group and bool(self.group_queues(topic))

    def group_queues(self, topic: str) -> list[str]:
        """The queues of the topic's groups."""
        pattern = in_bean(self._names.receive_from.replace("{topic}", encoded(topic))).replace("{group}", "*")
        found = self.jolokia.read(self.jolokia.bean("destinationType=Queue", f"destinationName={pattern}"), ("Name",)) or {}
        return [one["Name"] for one in found.values() if self._names.read_queue(one["Name"])[0] == topic]

    def queues(self, topic: str) -> list[QueueState]:
        if not self.there(topic):
            raise unavailable(f"looking for the topic {topic!r}", "there is no such topic")
        return [QueueState(QUEUE_ID, "", None, 0, self.clock())]

    def progress(self, topic: str, group: str) -> list[GroupPosition]:
        queue = self._names.queue(topic, group)
        doing = f"looking at the group {group!r} of {topic!r}"
        self._waiting_in_scheduler(doing)
        if not self.stamps():
            raise unavailable(
                doing, "messages keep the time that their clients wrote, and a clock that is ahead would make one that waits "
                "look passed: add <timeStampingBrokerPlugin/> to the broker's plugins"
            )  # fmt: skip
        for _ in range(ATTEMPTS):
            before = self.clock()
            size, held, _ = self._depth(queue, doing)
            if size == 0:
                return [GroupPosition(QUEUE_ID, "", 0, before, held)]
            times = [stored_at(frame) for frame in self._browse(queue, OLDEST, doing)[0]]
            known = [one for one in times if one is not None]
            if len(known) < len(times):
                raise unavailable(doing, "a message carries no time")
            if known:
                return [GroupPosition(QUEUE_ID, "", 0, min(*known, before), held)]
            # They were consumed between the two looks, or it could not show them: look again.
        raise unavailable(doing, "its queue holds messages that a browser does not get (is its memory full?)")

    def in_queue(self, topic: str, group: str) -> Retries:
        """What the group has not acknowledged, and how far it is but for that. Call it after `progress`, which looks whether
        times can be relied on.

        Whatever was stored when the time was read is acknowledged, a dead letter, or in the queue when that is browsed.
        """
        queue = self._names.queue(topic, group)
        doing = f"looking at what the group {group!r} of {topic!r} has not acknowledged"
        before = self.clock()
        for _ in range(ATTEMPTS):
            size, held, came = self._depth(queue, doing)
            frames, ended = self._browse(queue, LISTED, doing) if 0 < size < LISTED else ([], size == 0)
            if size >= LISTED:
                break
            # What is acknowledged in a transaction is not shown, and may come back: what came meanwhile must not stand in for it.
            if ended and len(frames) >= size + self._depth(queue, doing)[2] - came:
                # Last, because what fails meanwhile goes there.
                if scheduled := self._waiting_in_scheduler(doing):
                    return Retries(scheduled, None, {})
                ids = frozenset(found for frame in frames if (found := id_in(own_headers(frame))))
                return Retries(0, ids, {}, [GroupPosition(QUEUE_ID, "", 0, before, held)])
        return Retries(self._waiting_in_scheduler(doing), None, {})

    def _waiting_in_scheduler(self, doing: str) -> int:
        """Raises where clients are said to redeliver: then it is not known whose they are, nor when they come."""
        waiting = self.scheduled()
        if waiting and not self._broker_redelivers:
            raise unavailable(
                doing, f"{waiting} messages wait in its scheduler, and it does not say whose: with a redelivery plugin or "
                "delayed messages the option `redelivery` must say `broker`"
            )  # fmt: skip
        return waiting

    def scheduled(self) -> int:
        """Messages that wait in the broker's scheduler, whoever they are for."""
        found = self.jolokia.read(self.jolokia.bean("service=JobScheduler", "name=JMS"), ("ScheduledMessageCount",))
        return int(found["ScheduledMessageCount"]) if found else 0

    def dead_letter_queues(self, groups: set[str]) -> list[str]:
        """Dead-letter queues of these groups that are there: own ones by their name, shared ones always."""
        if not groups:
            return []
        there = self.jolokia.queues()
        wanted = [name for name in self._names.shared_dead_letter_queues() if name in there]
        for name in sorted(there):
            source = self._names.source_of_dead_letters(name)
            if source is not None and name not in wanted:
                topic, group = self._names.read_queue(source)
                if topic is not None and (group is None or group in groups):
                    wanted.append(name)
        return wanted

    def dead_letters(self, group: str) -> list[DeadLetterRef]:
        """Those of this group, and in a shared queue those of which no group is known."""
        found: list[DeadLetterRef] = []
        for queue in self.dead_letter_queues({group}):
            found += [ref for ref in self._read_dead(queue) if ref.group in (None, group)]
        return found

    def _read_dead(self, queue: str) -> list[DeadLetterRef]:
        doing = f"reading the dead letters in {queue!r}"
        before, *_ = self._depth(queue, doing)
        frames, ended = self._browse(queue, None, doing)
        if not ended or len(frames) < before:
            # Fewer than there were: taken meanwhile by who stored them first, or not shown.
            after, *_ = self._depth(queue, doing)
            if not ended or len(frames) < min(before, after):
                raise unavailable(
                    doing, f"a browser got {len(frames)} of {min(before, after)}: raise maxBrowsePageSize for this queue, or "
                    "let triage drain it"
                )  # fmt: skip
        return [ref_of(frame, self._names, queue) for frame in frames]

    def depth(self, queue: str) -> tuple[int, int, int] | None:
        """(messages, of these in consumers' hands, messages that ever came); null: there is no such queue."""
        found = self.jolokia.read(self.jolokia.queue_bean(queue), QUEUE_ATTRIBUTES)
        return None if found is None else (int(found["QueueSize"]), int(found["InFlightCount"]), int(found["EnqueueCount"]))

    def _depth(self, queue: str, doing: str) -> tuple[int, int, int]:
        found = self.depth(queue)
        if found is None:
            raise unavailable(doing, f"there is no queue {queue!r}")
        return found

    def _browse(self, queue: str, limit: int | None, doing: str) -> tuple[list[Frame], bool]:
        """The first messages of a queue, those in consumers' hands included, and whether these are all it shows."""
        deadline = time.monotonic() + self._seconds
        frames: list[Frame] = []
        try:
            session = self._pool.new()  # closed after it: what else is on its way must meet nobody
        except NotSent as error:
            raise unavailable(doing, str(error)) from error
        try:
            session.write(
                encode("SUBSCRIBE", {"destination": f"/queue/{queue}", "id": "1", "ack": "auto", "browser": "true"}), deadline
            )
            size = 0
            while limit is None or not frames or (len(frames) < limit and size < OLDEST_BYTES):
                frame = session.read(deadline)
                if frame is None:
                    raise unavailable(doing, f"no end came in time after {len(frames)} messages")
                if frame.command == "ERROR":
                    raise unavailable(doing, said(frame))
                if frame.headers.get("browser") == "end":
                    return frames, True
                frames.append(frame)
                size += len(frame.body)
            return frames, False
        except Lost as error:
            raise unavailable(doing, str(error)) from error
        finally:
            session.close()

    @contextmanager
    def _session(self, doing: str) -> Iterator[Any]:
        """A session for questions; given back only after all went well."""
        try:
            session = self._pool.take()
        except NotSent as error:
            raise unavailable(doing, str(error)) from error
        try:
            yield session
        except Lost as error:
            session.close()
            raise unavailable(doing, str(error)) from error
        except BaseException:
            session.close()
            raise
        self._pool.give_back(session)
