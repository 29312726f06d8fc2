"""Bury messages that no handler refused: as a client that takes a redelivery for a duplicate does, and as a broker whose time
to live is over. Each function writes into the ledger what it really buried.

The broker's own burial is used (bury.lua): such a letter looks as every other one does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import redis

from backstop.brokers.redis_streams import Keys
from backstop.brokers.redis_streams.exchange import Script
from backstop.local.faults import read_entry
from backstop.local.ledger import Key, Ledger
from backstop.local.workers import demo_broken

SUPPRESSED_DONE, SUPPRESSED_UNDONE, EXPIRED = "suppressed_done", "suppressed_undone", "message_expired"
CAUSES = {
    # As ActiveMQ writes them: the number of a consumer differs from one letter to the next.
    SUPPRESSED_DONE: "java.lang.Throwable: Suppressing duplicate delivery on connection, consumer ID:shop-36565-1699-{n}:1:1:1",
    SUPPRESSED_UNDONE: "java.lang.Throwable: Suppressing duplicate delivery on connection, consumer ID:shop-36565-1699-{n}:1:1:1",
    EXPIRED: "java.lang.Throwable: Message Expired. Expiration:17000000{n}",
}
CLIENT = "another client"
# After bury.lua. KEYS 1 stream, 2 life, 3 held, 4 dead | ARGV 1 group, 2 entry, 3 deliveries, 4 cause, 5 topic, 6 queue
BURY = "\nbury(ARGV[2], tonumber(ARGV[3]), ARGV[4], '', ARGV[5], ARGV[6])\nreturn redis.call('XLEN', KEYS[4])"


class Gravedigger:
    """Over the broker's own port, as an administrator."""

    def __init__(self, url: str, ledger: Ledger) -> None:
        self._ledger, self._keys = ledger, Keys()
        self._server: Any = redis.Redis.from_url(url, decode_responses=True)
        self._bury = Script.load("bury").text + BURY

    def close(self) -> None:
        self._server.close()

    def suppress_done(self, topic: str, group: str, ids: Sequence[str]) -> None:
        """The group has done these; their redelivery after a failover was taken for a duplicate, and given up."""
        for queue, entry, message_id in self._entries(topic, set(ids)):
            self._one(SUPPRESSED_DONE, (topic, message_id), group, queue, entry)

    def take_away(self, topic: str, group: str, faults: dict[str, str]) -> None:
        """Message id -> what it is buried as; the group stands still, and has been given none of them.

        A client of the group takes them from the broker. What it is given besides comes to the group again.
        """
        fault_of = {(topic, message_id): fault for message_id, fault in faults.items()}
        for queue in range(int(self._server.hget(self._keys.topic(topic), "queues"))):
            stream = self._keys.stream(topic, queue)
            taken = self._server.xreadgroup(group, CLIENT, {stream: ">"}, count=1000)
            for _, entries in taken:
                for entry, fields in entries:
                    message_id, number = read_entry(fields)
                    if number == 1 and (topic, message_id) in fault_of:
                        self._one(fault_of[topic, message_id], (topic, message_id), group, queue, entry)
        for fault in set(faults.values()):
            if not self._ledger.keys(fault):
                raise demo_broken(f"No message of {topic} could be buried as {fault}.", "Run the demo again.")

    def waiting_clients(self) -> int:
        """How many connections the broker would hand the next message to, also when their process stands still."""
        return int(self._server.info("clients")["blocked_clients"])

    def unread(self, pairs: Iterable[tuple[str, str]]) -> int:
        """How many letters lie in the dead-letter queues of these (topic, group)."""
        return sum(int(self._server.xlen(self._keys.dead(topic, group))) for topic, group in pairs)

    def _one(self, fault: str, key: Key, group: str, queue: int, entry: str) -> None:
        topic = key[0]
        stream = self._keys.stream(topic, queue)
        keys = (stream, self._keys.life(topic, queue), self._keys.held(topic, queue, group), self._keys.dead(topic, group))
        self._ledger.append(fault, [key], consumer_group=group)
        cause = CAUSES[fault].format(n=entry.partition("-")[0])
        self._server.eval(self._bury, len(keys), *keys, group, entry, 0 if fault == EXPIRED else 1, cause, topic, queue)

    def _entries(self, topic: str, ids: set[str]) -> Iterable[tuple[int, str, str]]:
        for queue in range(int(self._server.hget(self._keys.topic(topic), "queues"))):
            for entry, fields in self._server.xrevrange(self._keys.stream(topic, queue), count=1000):
                message_id, number = read_entry(fields)
                if number == 1 and message_id in ids:
                    yield queue, entry, message_id
