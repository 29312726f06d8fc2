"""Faults of RocketMQ, on the real server: a kill, an operator's resets, its own retention, a client that gives messages up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic

from backstop.brokers.rocketmq.adapter import RocketMQ
from backstop.brokers.rocketmq.message.names import encode_group, encode_topic, retry_topic
from backstop.brokers.rocketmq.message.properties import own_headers
from backstop.brokers.rocketmq.message.stored import Stored, read_stored
from backstop.brokers.rocketmq.routes.route import BELIEVED_SECONDS
from backstop.brokers.rocketmq.wire.codes import RequestCode, ResponseCode
from backstop.brokers.rocketmq.wire.requests import NOTHING_THERE, pull, read_stats
from backstop.model.records import ID_HEADER, SEND_HEADER, Message
from backstop_lab.faults.brokers.protocol import (
    CUT_OFF,
    FILES_REMOVED,
    GIVEN_UP_DONE,
    GIVEN_UP_UNDONE,
    LOST,
    OFFSET_MOVED,
    FaultTools,
    Make,
)
from backstop_lab.servers.rocketmq import RocketMQServer
from backstop_lab.shop.ledger import NOT_IN_TIME, Key
from backstop_lab.shop.wait_for import wait_for
from backstop_lab.shop.workers import demo_broken

WAIT_SECONDS = 60.0
FILLER = "filler"
FILLING = 200_000
"""Bytes of a message that is there to fill a file."""
COMMITS_LATE = {"commitIntervalCommitLog": 60_000, "commitCommitLogThoroughInterval": 60_000}
"""How long what was acknowledged stays in the process's own memory (milliseconds)."""
CUT = 3
"""Messages of the send in whose middle the broker is killed."""
READ_ONLY = 4
AT_ONCE = -1
"""The delay level of a message that a client gives up: it is a dead letter then."""


@dataclass(frozen=True)
class Copy:
    """One message where it lies."""

    queue: int
    message_id: str
    send_number: int
    stored: Stored


class RocketMQFaults:
    """Over the server of the platform, as an operator."""

    page: Sequence[str] = (
        "Messages are lost by kill -9 of a broker with asynchronous flush, in the middle of a send.",
        "Messages have no time to live: none expires unread. Its retention removes files instead.",
        "Letters tell no cause, so none is called a duplicate: a client gives messages up, done and not done.",
        "A worker that stands still keeps its queues until the broker has missed its signs of life for 45 s.",
    )
    false_letters: tuple[str, str, str | None] = (GIVEN_UP_DONE, GIVEN_UP_UNDONE, None)
    frozen_get_messages = True
    removes_files = True

    def __init__(self, server: RocketMQServer, tools: FaultTools, *, delivery_limit: int) -> None:
        self._server, self._tools, self._delivery_limit = server, tools, delivery_limit
        delay_levels = server.settings["messageDelayLevel"]
        self._broker = RocketMQ(
            server.url(), delivery_limit=delivery_limit, delay_levels=delay_levels
        )
        self._broker.create_topic(FILLER, 1)

    def close(self) -> None:
        self._broker.close()

    def consumers_url(self) -> str:
        return self._server.url()

    def refuse(self, topic: str, topics: Collection[str]) -> None:
        """The topic is made read-only. The broker itself does not hold to it, its clients do, by the route."""
        queues = len(self._ends(encode_topic(topic)))
        self._server.ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            {
                "topic": encode_topic(topic),
                "defaultTopic": "TBW102",
                "readQueueNums": queues,
                "writeQueueNums": queues,
                "perm": READ_ONLY,
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0,
                "order": False,
                "attributes": "",
            },
        )
        wait_for("A route that says so", lambda: self._permission(topic) == READ_ONLY, WAIT_SECONDS)
        # A time, for want of a condition: each client believes its own route, in its own process, and tells nobody since when.
        # A publish to try it would be one more message of the topic, and would show what this client believes alone.
        over = monotonic() + BELIEVED_SECONDS
        wait_for(
            "The end of what clients believe of the route", lambda: monotonic() > over, WAIT_SECONDS
        )

    def lose(self, topic: str, make: Make, burst: int, at_most: int) -> list[Key]:
        """The broker is killed in the middle of a send, while it holds the newest ones in its own memory: what is not there
        afterwards is lost, and of the send that was cut off nobody knows."""
        self._visible(topic, make(burst - at_most - CUT))
        self._server.configure(**COMMITS_LATE)
        before = self._tools.copies()
        ids = make(at_most)
        self._server.stall()
        with ThreadPoolExecutor(1) as pool:
            cut_off = pool.submit(make, CUT)
            wait_for(
                "Stubs whose send is under way",
                lambda: self._tools.under_way(topic) >= CUT,
                WAIT_SECONDS,
            )
            self._server.kill_broker()
            unknown = {(topic, message_id) for message_id in cut_off.result()}
        self._server.start()
        # What Backstop sent again at the same time may be lost, too.
        sent = {(topic, message_id, 1) for message_id in ids} | (self._tools.copies() - before)
        topics = {topic, *(its for its, _, _ in sent)}
        there = {
            (its, copy.message_id, copy.send_number)
            for its in topics
            for copy in self._everything(its)
        }
        lost = sorted((its, message_id) for its, message_id, _ in sent - there)
        if not lost:
            raise demo_broken(
                "The broker had written everything before it was killed.", "Run the demo again."
            )
        self._tools.ledger.append(LOST, lost)
        # What the producer itself knows not to have sent, it has written down.
        unknown -= {(its, message_id) for its, message_id, _ in there} | self._tools.ledger.keys(
            NOT_IN_TIME
        )
        self._tools.ledger.append(CUT_OFF, sorted(unknown))
        return lost

    def skip(self, topic: str, group: str, make: Make, burst: int, at_most: int) -> list[Key]:
        """An operator sets the group's offset past messages of one queue."""
        self._visible(topic, make(burst))
        for queue, waiting in self._waiting(topic, group).items():
            chosen = waiting[:at_most]
            if not chosen or any(copy.send_number > 1 for copy in chosen):
                continue  # a copy of a repair that is on its way: this fault is about first sends
            keys = [(topic, copy.message_id) for copy in chosen]
            self._tools.ledger.append(OFFSET_MOVED, keys, consumer_group=group)
            self._reset(topic, group, queue, chosen[-1].stored.offset + 1)
            return keys
        raise demo_broken(
            f"No message of {topic} was left to skip for {group}.", "Run the demo again."
        )

    def remove_by_retention(self, topic: str, make: Make, count: int) -> list[Key]:
        """The file that holds them is filled up, its reserved time is over, and it is removed as every hour on the hour."""
        copies = self._visible(topic, make(count))
        file = int(self._server.settings["mappedFileSizeCommitLog"])
        end = (max(copy.stored.physical_offset for copy in copies) // file + 1) * file
        self._fill_up_to(end)
        keys: list[Key] = []
        for its, groups in self._tools.groups.items():
            for group in groups:
                waiting = {
                    (its, copy.message_id)
                    for some in self._waiting(its, group).values()
                    for copy in some
                    if copy.stored.physical_offset < end
                }
                # What waits may be done: its acknowledgement was cut off, or it is a second copy.
                gone = sorted(self._tools.without_effect(group, sorted(waiting)))
                self._tools.ledger.append(FILES_REMOVED, gone, consumer_group=group)
                keys += gone
        self._server.configure(fileReservedTime=0)
        self._server.ask(329)  # what the hour of deleteWhen does
        last = {copy.queue: copy.stored.offset for copy in copies}
        wait_for(
            "The removal of the file",
            lambda: all(
                self._ends(encode_topic(topic))[queue][0] > at for queue, at in last.items()
            ),
            WAIT_SECONDS,
            lambda: str(self._ends(encode_topic(topic))),
        )
        self._server.configure(fileReservedTime=72)
        return keys

    def deliver_again(self, topic: str, group: str, keys: Sequence[Key]) -> None:
        """An operator sets the group back to before the oldest of these: all since then comes again."""
        oldest: dict[int, int] = {}
        ids = {message_id for _, message_id in keys}
        for copy in self._everything(topic, retries=False):
            if copy.message_id in ids:
                oldest[copy.queue] = min(
                    copy.stored.offset, oldest.get(copy.queue, copy.stored.offset)
                )
        for queue, offset in oldest.items():
            self._reset(topic, group, queue, offset)

    def backlog(self, topic: str, group: str) -> int:
        ends = {state.queue_id: state.next_offset for state in self._broker.queues(topic)}
        behind = sum(
            ends[at.queue_id] - at.next_offset
            for at in self._broker.progress(topic, group)
            if at.queue_id in ends
        )
        return behind + self._broker.retry_pending(topic, group)

    def letters_waiting(self, pairs: Iterable[tuple[str, str]]) -> int:
        return sum(
            1
            for group in sorted({group for _, group in pairs})
            for _ in self._broker.dead_letters(group)
        )

    def nobody_waits(self) -> bool:
        """Workers that must not be given anything have ended."""
        return True

    def bury_done(self, topic: str, group: str, keys: Sequence[Key]) -> None:
        """A client of the group gives up messages that others have done."""
        self._tools.ledger.append(GIVEN_UP_DONE, keys, consumer_group=group)
        ids = {message_id for _, message_id in keys}
        for copy in self._everything(topic, retries=False):
            if copy.message_id in ids and copy.send_number == 1:
                self._give_up(group, copy, AT_ONCE)

    def bury(self, topic: str, group: str, faults: Mapping[str, str]) -> None:
        """A client of the group takes what waits and gives it up; what it takes besides comes to the group again."""
        self._visible(topic, list(faults))
        for queue, waiting in self._waiting(topic, group).items():
            for copy in waiting:
                fault = faults.get(copy.message_id) if copy.send_number == 1 else None
                if fault is not None:
                    self._tools.ledger.append(
                        fault, [(topic, copy.message_id)], consumer_group=group
                    )
                self._give_up(group, copy, 1 if fault is None else AT_ONCE)
            if waiting:
                self._reset(topic, group, queue, waiting[-1].stored.offset + 1)

    def drop_connections(self, pids: Collection[int]) -> None:
        """Needs no help, only time: a member without signs of life is none any more."""

    def _give_up(self, group: str, copy: Copy, level: int) -> None:
        self._server.ask(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            {
                "offset": copy.stored.physical_offset,
                "group": encode_group(group),
                "delayLevel": level,
                "originMsgId": copy.stored.unique_key or copy.stored.store_id,
                "originTopic": copy.stored.topic,
                "unitMode": False,
                "maxReconsumeTimes": self._delivery_limit - 1,
            },
        )

    def _reset(self, topic: str, group: str, queue: int, offset: int) -> None:
        self._server.ask(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            {
                "topic": encode_topic(topic),
                "group": encode_group(group),
                "queueId": queue,
                "offset": offset,
                "timestamp": -1,
                "isForce": True,
            },
        )

    def _visible(self, topic: str, ids: Collection[str]) -> list[Copy]:
        """Their first copies, once all of them can be read."""
        found: list[Copy] = []

        def missing() -> int:
            every = self._everything(topic, retries=False)
            found[:] = [copy for copy in every if copy.message_id in ids and copy.send_number == 1]
            return len(set(ids) - {copy.message_id for copy in found})

        wait_for(
            "Messages that can be read",
            lambda: missing() == 0,
            WAIT_SECONDS,
            lambda: f"{missing()} messages",
        )
        return found

    def _waiting(self, topic: str, group: str) -> dict[int, list[Copy]]:
        """What the group has not passed, by queue."""
        at = {
            position.queue_id: position.next_offset
            for position in self._broker.progress(topic, group)
        }
        return {
            queue: list(self._read(encode_topic(topic), queue, offset))
            for queue, offset in at.items()
        }

    def _everything(self, topic: str, *, retries: bool = True) -> Iterator[Copy]:
        """Every copy that is stored, in the topic and, where wanted, on the way to a group that failed or was sent one."""
        names = [
            encode_topic(topic),
            *(retry_topic(group) for group in self._tools.groups[topic] if retries),
        ]
        for name in names:
            for queue, (first, _) in self._ends(name).items():
                yield from self._read(name, queue, first)

    def _read(self, name: str, queue: int, offset: int) -> Iterator[Copy]:
        while True:
            answer = self._server.ask(
                RequestCode.PULL_MESSAGE, pull(name, queue, offset, 32).ext, also=NOTHING_THERE
            )
            if answer.code != ResponseCode.SUCCESS:
                if max(offset, answer.number("nextBeginOffset")) >= answer.number("maxOffset"):
                    return
                offset = max(offset + 1, answer.number("nextBeginOffset"))
                continue
            for stored in read_stored(answer.body):
                offset = stored.offset + 1
                headers = own_headers(stored.properties)
                yield Copy(
                    queue, headers.get(ID_HEADER, ""), int(headers.get(SEND_HEADER, 1)), stored
                )

    def _ends(self, name: str) -> dict[int, tuple[int, int]]:
        """queue -> (first offset, next offset); empty: there is no such topic yet."""
        answer = self._server.ask(
            RequestCode.GET_TOPIC_STATS_INFO, {"topic": name}, also=(ResponseCode.TOPIC_NOT_EXIST,)
        )
        if answer.code != ResponseCode.SUCCESS:
            return {}
        return {
            queue: (first, following)
            for queue, first, following in read_stats(answer, "looking at its queues")
        }

    def _permission(self, topic: str) -> int:
        """What the name server tells of it."""
        [queues] = self._server.route(encode_topic(topic))["queueDatas"]
        return int(queues["perm"])

    def _fill_up_to(self, end: int) -> None:
        """Publishes until the log is written to there. A filling that did not go is tried again, within bounds."""
        filling = Message(FILLER, FILLER, b"x" * FILLING, {ID_HEADER: FILLER})
        deadline = monotonic() + WAIT_SECONDS
        while (at := self._filled_to()) < end:
            [receipt] = self._broker.publish([filling])
            if receipt.refused_for_good:
                raise demo_broken(
                    f"The broker refused what was to fill its log: {receipt.error}",
                    "Run the demo again.",
                )
            if monotonic() > deadline:
                raise demo_broken(
                    f"The log is written to {at} and not to {end} after {WAIT_SECONDS:.0f} s of filling; the last message was "
                    f"{receipt.outcome}{f' ({receipt.error})' if receipt.error else ''}.",
                    "Run the demo again.",
                )

    def _filled_to(self) -> int:
        """How far the log is written."""
        [(queue, (first, following))] = self._ends(FILLER).items()
        newest = list(self._read(FILLER, queue, max(first, following - 1)))
        return newest[-1].stored.physical_offset if newest else 0
