"""Reads topics, groups' progress and dead letters: depths by Jolokia, messages by a browser over STOMP. Nothing is removed.

A group has no offsets here, only a queue: its progress is a time, that of the oldest message still in the queue.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from backstop.brokers.activemq.decode import own_headers, ref_of, stored_at
from backstop.brokers.activemq.frames import Frame, encode
from backstop.brokers.activemq.jolokia import QUEUE_ATTRIBUTES, Jolokia, in_bean
from backstop.brokers.activemq.names import Names, encoded
from backstop.brokers.activemq.session import ConnectionLost, NotSent, Pool, said
from backstop.brokers.activemq.unavailable import unavailable
from backstop.brokers.protocol import DeadLetterRef, GroupPosition, QueueState, Retries
from backstop.model.records import id_in

QUEUE_ID = 0
"""A topic has one queue for each group: seen from the topic it is one, without offsets and without epochs."""
OLDEST = 100
OLDEST_BYTES = 4 * 1024 * 1024
"""How much of the front of a queue is searched for the oldest message. The broker stamps in the order of arrival; what a
transaction stores later than it was stamped is at most `max_send_duration` older than what lies before it, and by so much
the rule waits."""
LISTED = 400
"""A queue with fewer messages is listed: a browser gets no more, unless maxBrowsePageSize says so."""
ATTEMPTS = 5
TRANSFORMED = "transformation"
"""The header of a message that the broker may have turned into a text."""
_BROKERS_ID = re.compile(r"(?s).+(?::-?[0-9]{1,18}){3}")
"""The broker's id of a message: its connection, session, producer and that one's number of it. Asked for another text, it fails."""
_HIDES = "timestamp"
_AGES = [timedelta(seconds=n) for n in (1, 10, 60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400)]
_START = datetime(1970, 1, 1, tzinfo=UTC)
_CLOCK = "/temp-queue/backstop.clock"
_LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)


class ProgressReader:
    """Reads for one adapter; every method raises BrokerUnavailable rather than leave something out."""

    def __init__(
        self,
        pool: Pool,
        jolokia: Jolokia | None,
        names: Names,
        *,
        seconds: float,
        broker_redelivers: bool,
    ) -> None:
        self._pool, self._beans, self._names, self._seconds = pool, jolokia, names, seconds
        self._broker_redelivers = broker_redelivers
        self._stamps: bool | None = None

    @property
    def jolokia(self) -> Jolokia:
        if self._beans is None:
            raise unavailable(
                "looking", "the connection names no Jolokia, and STOMP alone knows no queues"
            )
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
                + encode(
                    "SEND",
                    {"destination": _CLOCK, "persistent": "false", **headers},
                    number.encode(),
                ),
                deadline,
            )
            while True:
                frame = session.read(deadline)
                if frame is None or frame.command == "ERROR":
                    raise ConnectionLost(said(frame) if frame else "no answer came in time")
                if frame.command == "MESSAGE" and frame.body == number.encode():
                    break
            receipt = session.number()
            session.ask(
                encode("UNSUBSCRIBE", {"id": number, "receipt": receipt}), receipt, deadline
            )
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
        bean = self.jolokia.bean(
            f"destinationType={kind.capitalize()}", f"destinationName={in_bean(name)}"
        )
        if self.jolokia.read(bean, ("Name",)) is not None:
            return True
        if self._names.has_group and self.group_queues(topic):
            return True
        self._require_alive(f"looking for the topic {topic!r}")
        return False

    def group_queues(self, topic: str) -> list[str]:
        """The queues of the topic's groups."""
        pattern = in_bean(self._names.receive_from.replace("{topic}", encoded(topic))).replace(
            "{group}", "*"
        )
        found = (
            self.jolokia.read(
                self.jolokia.bean("destinationType=Queue", f"destinationName={pattern}"), ("Name",)
            )
            or {}
        )
        return [
            one["Name"] for one in found.values() if self._names.read_queue(one["Name"])[0] == topic
        ]

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
                doing,
                "messages keep the time that their clients wrote, and a clock that is ahead would make one that waits "
                "look passed: add <timeStampingBrokerPlugin/> to the broker's plugins",
            )
        found: list[GroupPosition] | None = None
        for _ in range(ATTEMPTS):
            before = self.clock()
            size, held, came = self._depth(queue, doing)
            if size == 0:
                return [GroupPosition(QUEUE_ID, "", 0, before, held)]
            frames, ended = self._browse(queue, LISTED if size < LISTED else OLDEST, doing)
            left, _, have_come = self._depth(queue, doing)
            if not frames or (ended and len(frames) < left):
                continue  # consumed between the two looks, acknowledged in a transaction that is open, or not shown
            if not ended and self._is_by_priority(queue):
                raise unavailable(
                    doing,
                    "its queue delivers by priority (prioritizedMessages), and is longer than a browser shows: its oldest message "
                    "may be anywhere in it",
                )
            oldest = min(self._oldest(queue, frames, before, doing), before)
            found = [GroupPosition(QUEUE_ID, "", 0, oldest, held)]
            if not ended or len(frames) >= size + have_come - came:
                return (
                    found  # each message that was there is among them, or the front of a long queue
                )
        if found is not None:
            return (
                found  # of a queue that is consumed all the time: as many were shown as were left
            )
        raise unavailable(
            doing,
            "its queue holds messages that a browser does not get (a transaction that acknowledges them is open, its "
            "memory is full, or maxBrowsePageSize is below 400)",
        )

    def _oldest(self, queue: str, frames: list[Frame], before: datetime, doing: str) -> datetime:
        """When the oldest of them was stored, or earlier.

        A property named `timestamp`, which clients in Java may write, stands in place of the broker's time. Such messages are
        found by a selector, which knows both.
        """
        oldest = before
        if self._browse(queue, 1, doing, f"{_HIDES} IS NOT NULL")[0]:
            frames = self._browse(queue, LISTED, doing, f"{_HIDES} IS NULL")[0]
            for age in _AGES:
                oldest = before - age
                since = int((oldest - _START).total_seconds() * 1000)
                if not self._browse(
                    queue, 1, doing, f"{_HIDES} IS NOT NULL AND JMSTimestamp < {since}"
                )[0]:
                    break
            else:
                raise unavailable(
                    doing,
                    f"a message older than {_AGES[-1]} has a property {_HIDES!r}, which hides its time",
                )
        times = [stored_at(frame) for frame in frames]
        if None in times:
            raise unavailable(doing, "a message carries no time")
        return min([oldest, *(one for one in times if one is not None)])

    def _is_by_priority(self, queue: str) -> bool:
        """Whether newer messages may stand before older ones."""
        found = self.jolokia.read(self.jolokia.queue_bean(queue), ("PrioritizedMessages",))
        return found is None or found["PrioritizedMessages"] is not False

    @staticmethod
    def shows_content(frame: Frame) -> bool:
        """Whether that is certain without asking the broker: bytes, and texts that are not empty."""
        return not frame.text or (bool(frame.body) and TRANSFORMED not in frame.headers)

    def whole(self, queue: str, frame: Frame) -> bool:
        """Whether the frame shows the message's content.

        STOMP shows bytes and texts. A JMS map, object or stream message has no body there, or one that the broker made of it. A
        text may be empty, too: the broker tells which it is.
        """
        if self.shows_content(frame):
            return True
        broker_id = frame.headers.get("message-id", "")
        if not _BROKERS_ID.fullmatch(broker_id):
            return False  # a property of this name stands in place of it: the broker cannot be asked for this one
        shown = self.jolokia.run(
            self.jolokia.queue_bean(queue), "getMessage(java.lang.String)", broker_id
        )
        return isinstance(shown, dict) and "Text" in shown

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
            frames, ended = (
                self._browse(queue, LISTED, doing) if 0 < size < LISTED else ([], size == 0)
            )
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
                doing,
                f"{waiting} messages wait in its scheduler, and it does not say whose: with a redelivery plugin or "
                "delayed messages the option `redelivery` must say `broker`",
            )
        return waiting

    def scheduled(self) -> int:
        """Messages that wait in the broker's scheduler, whoever they are for."""
        found = self.jolokia.read(
            self.jolokia.bean("service=JobScheduler", "name=JMS"), ("ScheduledMessageCount",)
        )
        return int(found["ScheduledMessageCount"]) if found else 0

    def delivered_until(self) -> datetime:
        """The broker's time, when nothing waits in its scheduler; else long ago."""
        now = self.clock()
        return _START if self.scheduled() else now

    def dead_letter_queues(self, groups: set[str]) -> list[str]:
        """Dead-letter queues of these groups that are there: own ones by their name, shared ones always."""
        if not groups:
            return []
        there = self.jolokia.queues()
        self._require_alive("looking for dead-letter queues")
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
        for _ in range(ATTEMPTS):
            before, _, came = self._depth(queue, doing)
            frames, _ = self._browse(queue, None, doing)
            after, _, have_come = self._depth(queue, doing)
            if len(frames) >= before + have_come - came:
                return [ref_of(frame, self._names, queue) for frame in frames]
            # Some were taken meanwhile by who stores them, or are not shown: those that were shown may be the ones taken.
        raise unavailable(
            doing,
            f"a browser got {len(frames)} of {before} dead letters, {after} are left: raise maxBrowsePageSize for this "
            "queue, or let triage drain it",
        )

    def _require_alive(self, doing: str) -> None:
        """To be asked after the beans: a broker that stops ends its connectors first, then one bean after the other, and Jolokia
        last. What is not there counts only while it takes a connection."""
        try:
            self._pool.new().close()
        except NotSent as error:
            raise unavailable(doing, str(error)) from error

    def depth(self, queue: str) -> tuple[int, int, int] | None:
        """(messages, of these in consumers' hands, messages that ever came); null: there is no such queue."""
        found = self.jolokia.read(self.jolokia.queue_bean(queue), QUEUE_ATTRIBUTES)
        return (
            None
            if found is None
            else (int(found["QueueSize"]), int(found["InFlightCount"]), int(found["EnqueueCount"]))
        )

    def _depth(self, queue: str, doing: str) -> tuple[int, int, int]:
        found = self.depth(queue)
        if found is None:
            raise unavailable(doing, f"there is no queue {queue!r}")
        return found

    def _browse(
        self, queue: str, limit: int | None, doing: str, selector: str | None = None
    ) -> tuple[list[Frame], bool]:
        """The first messages of a queue, those in consumers' hands included, and whether these are all it shows."""
        deadline = time.monotonic() + self._seconds
        frames: list[Frame] = []
        try:
            session = self._pool.new()  # closed after it: what else is on its way must meet nobody
        except NotSent as error:
            raise unavailable(doing, str(error)) from error
        try:
            session.write(
                encode(
                    "SUBSCRIBE",
                    {
                        "destination": f"/queue/{queue}",
                        "id": "1",
                        "ack": "auto",
                        "browser": "true",
                        **({"selector": selector} if selector else {}),
                    },
                ),
                deadline,
            )
            size = 0
            while limit is None or not frames or (len(frames) < limit and size < OLDEST_BYTES):
                frame = session.read(deadline)
                if frame is None:
                    raise unavailable(doing, f"no end came in time after {len(frames)} messages")
                if frame.command == "ERROR":
                    raise unavailable(doing, said(frame))
                if (
                    frame.headers.get("browser") == "end" and "expires" not in frame.headers
                ):  # as each message has
                    return frames, True
                frames.append(frame)
                size += len(frame.body)
            return frames, False
        except ConnectionLost as error:
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
        except ConnectionLost as error:
            session.close()
            raise unavailable(doing, str(error)) from error
        except BaseException:
            session.close()
            raise
        self._pool.give_back(session)
