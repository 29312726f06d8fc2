"""Faults of ActiveMQ Classic: by its management beans, and by clients of other programs."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import count
from typing import Any

from backstop.brokers.activemq import ActiveMQ
from backstop.brokers.activemq.decode import CAUSE, ORIGIN, headers_of
from backstop.brokers.activemq.frames import encode
from backstop.brokers.activemq.jolokia import QUEUE_ATTRIBUTES
from backstop.brokers.activemq.names import Names
from backstop.brokers.activemq.session import Address, Session
from backstop.brokers.protocol import Received
from backstop.model.records import Message
from backstop_lab.faults.brokers.protocol import (
    EXPIRED,
    LOST,
    SUPPRESSED_DONE,
    SUPPRESSED_UNDONE,
    SUPPRESSING,
    TAKEN_OUT,
    FaultTools,
    Make,
)
from backstop_lab.faults.brokers.sockets import local_ports
from backstop_lab.servers.activemq import ActiveMQServer
from backstop_lab.shop.ledger import Key
from backstop_lab.shop.wait_for import wait_for
from backstop_lab.shop.workers import demo_broken

WAIT_SECONDS = 60.0
LIFE_MILLISECONDS = 1000
"""How long a message is given that is to expire."""
DUTIES_WRITE = (
    '<authorizationEntry {kind}=">" read="{read}" write="writers,duties" admin="writers"/>'
)
ONE = '<authorizationEntry {kind}="{name}" read="{read}" write="writers,duties" admin="writers"/>'
READ = {"queue": "all", "topic": "writers"}
OF_TOPIC = {"queue": "Consumer.*.VirtualTopic.{topic}", "topic": "VirtualTopic.{topic}"}

_Frame = tuple[str, dict[str, str], Message]
"""Where to, headers beside the message's own, and the message."""


class ActiveMQFaults:
    """Over the server of the platform, as who runs it."""

    page: Sequence[str] = (
        "It has no offsets to move: another program takes messages out of a group's queue.",
        "A queue cannot be read again: done messages come once more as second copies.",
        "A worker that stands still keeps its messages until the broker is told to end its connection.",
        "Suppressed duplicates are written into the dead-letter queue as a Java client does; a time to live really ends.",
    )
    false_letters: tuple[str, str, str | None] = (SUPPRESSED_DONE, SUPPRESSED_UNDONE, EXPIRED)
    frozen_get_messages = True
    removes_files = False

    def __init__(self, server: ActiveMQServer, tools: FaultTools) -> None:
        self._server, self._tools, self._names = server, tools, Names()
        self._broker = ActiveMQ(server.url())
        self._numbers = count(1)

    def close(self) -> None:
        self._broker.close()

    def consumers_url(self) -> str:
        """The login that also makes queues: a consumer of ours writes to its dead-letter queue."""
        return self._server.url()

    def refuse(self, topic: str, topics: Collection[str]) -> None:
        """By its authorization, which it reads when it starts: it is stopped in order and started again."""
        written = self._server.configuration
        for kind, read in READ.items():
            whole = DUTIES_WRITE.format(kind=kind, read=read)
            assert whole in written, "activemq.xml grants the duties otherwise"
            # Rights add up: what one entry grants, another cannot take away.
            others = [
                ONE.format(kind=kind, name=OF_TOPIC[kind].format(topic=one), read=read)
                for one in topics
                if one != topic
            ]
            written = written.replace(
                whole, "\n".join([whole.replace("writers,duties", "writers"), *others])
            )
        self._server.configuration = written
        self._server.stop()
        self._server.start()
        for one in topics:
            self._broker.create_topic(
                one
            )  # a topic without subscribers is forgotten; the queues are not

    def lose(self, topic: str, make: Make, burst: int, at_most: int) -> list[Key]:
        """Removed from every group's queue by management, before anybody received them."""
        ids = make(burst)[-at_most:]
        for group in self._tools.groups[topic]:
            held = self._look(topic, group, ids)
            queue = self._server.jolokia().queue_bean(self._names.queue(topic, group))
            for received in held:
                if not self._server.jolokia().run(
                    queue, "removeMessage(java.lang.String)", received.broker_id
                ):
                    raise demo_broken(
                        f"{received.broker_id} could not be removed.", "Run the demo again."
                    )
        lost = [(topic, message_id) for message_id in ids]
        self._tools.ledger.append(LOST, lost)
        return lost

    def skip(self, topic: str, group: str, make: Make, burst: int, at_most: int) -> list[Key]:
        """Another program is started over the group's queue by mistake, and acknowledges what it gets."""
        ids = make(burst)[:at_most]
        keys = [(topic, message_id) for message_id in ids]
        self._tools.ledger.append(TAKEN_OUT, keys, consumer_group=group)
        self._look(topic, group, ids, acknowledge=True)
        return keys

    def remove_by_retention(self, topic: str, make: Make, count: int) -> list[Key]:
        """Not here: it keeps what was not received."""
        raise NotImplementedError

    def deliver_again(self, topic: str, group: str, keys: Sequence[Key]) -> None:
        """As second copies in the group's queue, as a producer makes them that sends again after a lost connection."""
        messages = self._tools.messages(keys)
        if any(receipt.error for receipt in self._broker.publish(messages, group=group)):
            raise demo_broken("Second copies could not be sent.", "Run the demo again.")

    def backlog(self, topic: str, group: str) -> int:
        return self._depth(self._names.queue(topic, group))

    def letters_waiting(self, pairs: Iterable[tuple[str, str]]) -> int:
        groups = {group for _, group in pairs}
        return sum(self._depth(queue) for queue in self._broker.dead_letter_queues(sorted(groups)))

    def nobody_waits(self) -> bool:
        """Workers that must not be given anything have ended."""
        return True

    def bury_done(self, topic: str, group: str, keys: Sequence[Key]) -> None:
        """Their redelivery was taken for a duplicate by a Java client on a failover connection."""
        self._tools.ledger.append(SUPPRESSED_DONE, keys, consumer_group=group)
        queue = self._names.queue(topic, group)
        self._send(self._letters(queue, self._tools.messages(keys)))

    def bury(self, topic: str, group: str, faults: Mapping[str, str]) -> None:
        """Taken from the queue, and written to the dead-letter queue; or put back with a time to live that ends."""
        queue = self._names.queue(topic, group)
        expired = self._expired(queue)
        for fault in sorted(set(faults.values())):
            ids = [message_id for message_id, its in faults.items() if its == fault]
            self._tools.ledger.append(
                fault, [(topic, message_id) for message_id in ids], consumer_group=group
            )
            messages = [
                received.message for received in self._look(topic, group, ids, acknowledge=True)
            ]
            if fault == EXPIRED:
                expires = {"expires": str(int(time.time() * 1000) + LIFE_MILLISECONDS)}
                self._send([(f"/queue/{queue}", expires, message) for message in messages])
            else:
                self._send(self._letters(queue, messages))
        wanted = expired + sum(fault == EXPIRED for fault in faults.values())
        wait_for(
            "The end of messages' time to live",
            lambda: self._expired(queue) >= wanted,
            WAIT_SECONDS,
            lambda: f"{wanted - self._expired(queue)} messages",
        )

    def drop_connections(self, pids: Collection[int]) -> None:
        """A connection that stands still is never given up: our STOMP client promises no sign of life. So it is told to."""
        beans = self._server.jolokia()
        every = (
            "connector=clientConnectors",
            "connectorName=stomp",
            "connectionViewType=remoteAddress",
            "connectionName=*",
        )
        ports = {port for pid in pids for port in local_ports(pid)}
        for name, one in (beans.read(beans.bean(*every), ("RemoteAddress",)) or {}).items():
            if int(str(one["RemoteAddress"]).rpartition(":")[2]) in ports:
                beans.run(name, "stop()")

    def _look(
        self, topic: str, group: str, ids: Collection[str], *, acknowledge: bool = False
    ) -> list[Received]:
        """These messages in the group's queue, as another consumer gets them; whatever it does not acknowledge goes back."""
        found: dict[str, Received] = {}
        subscription = self._broker.subscribe(group, [topic], "another program")
        try:
            deadline = time.monotonic() + WAIT_SECONDS
            while len(found) < len(ids):
                if time.monotonic() > deadline:
                    raise demo_broken(
                        f"Only {len(found)} of {len(ids)} messages lie in {group}'s queue.",
                        "Run the demo again.",
                    )
                for received in subscription.fetch(100, timedelta(seconds=1)):
                    if received.message.message_id in ids:
                        found[received.message.message_id] = received
            if acknowledge:
                subscription.acknowledge(list(found.values()))
        finally:
            subscription.close()
        return [found[message_id] for message_id in ids]

    def _letters(self, queue: str, messages: Sequence[Message]) -> list[_Frame]:
        """As a client writes one that gives a message up, with its cause."""
        to = f"/queue/{self._names.dead_letter_queues(queue)[0]}"
        return [
            (
                to,
                {ORIGIN: f"queue://{queue}", CAUSE: SUPPRESSING.format(n=next(self._numbers))},
                message,
            )
            for message in messages
        ]

    def _send(self, frames: Sequence[_Frame]) -> None:
        session = Session(Address.parse(self._server.url()), connect_timeout=WAIT_SECONDS)
        try:
            for to, more, message in frames:
                receipt = session.number()
                headers = {
                    "destination": to,
                    "persistent": "true",
                    "receipt": receipt,
                    **headers_of(message),
                    **more,
                }
                session.ask(
                    encode("SEND", headers, message.content),
                    receipt,
                    time.monotonic() + WAIT_SECONDS,
                )
        finally:
            session.close()

    def _depth(self, queue: str) -> int:
        found = self._attributes(queue, *QUEUE_ATTRIBUTES)
        return int(found["QueueSize"]) if found else 0

    def _expired(self, queue: str) -> int:
        return int(self._attributes(queue, "ExpiredCount")["ExpiredCount"])

    def _attributes(self, queue: str, *names: str) -> dict[str, Any]:
        beans = self._server.jolokia()
        found: dict[str, Any] = beans.read(beans.queue_bean(queue), names) or {}
        return found
