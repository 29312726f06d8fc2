"""Faults of the embedded broker, by Redis's own commands, as an administrator."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import redis

from backstop.brokers.redis_streams import Keys
from backstop.brokers.redis_streams.exchange import Script
from backstop.model.records import ID_HEADER, SEND_HEADER
from backstop_lab.faults.brokers.protocol import (
    EXPIRED,
    LOST,
    OFFSET_MOVED,
    SUPPRESSED_DONE,
    SUPPRESSED_UNDONE,
    SUPPRESSING,
    Make,
)
from backstop_lab.shop.ledger import Key, Ledger
from backstop_lab.shop.workers import demo_broken

CAUSES = {
    SUPPRESSED_DONE: SUPPRESSING,
    SUPPRESSED_UNDONE: SUPPRESSING,
    EXPIRED: "java.lang.Throwable: Message Expired. Expiration:17000000{n}",
}
CLIENT = "another client"
# After bury.lua. KEYS 1 stream, 2 life, 3 held, 4 dead | ARGV 1 group, 2 entry, 3 deliveries, 4 cause, 5 topic, 6 queue
BURY = "\nbury(ARGV[2], tonumber(ARGV[3]), ARGV[4], '', ARGV[5], ARGV[6])\nreturn redis.call('XLEN', KEYS[4])"


# KEYS 1 stream | ARGV 1.. ids of entries. One script, so that nothing is delivered between look and deletion.
LOSE = """
local delivered, names = 0, {}
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  for i = 1, #group, 2 do
    if group[i] == 'name' then names[#names + 1] = group[i + 1] end
    if group[i] == 'last-delivered-id' then
      delivered = math.max(delivered, tonumber(string.match(group[i + 1], '^%d+')))
    end
  end
end
-- In the hands of a group that was moved back meanwhile.
local function in_hand(id)
  for _, name in ipairs(names) do
    if redis.call('XPENDING', KEYS[1], name, id, id, 1)[1] then return true end
  end
end
local gone = {}
for _, id in ipairs(ARGV) do
  if tonumber(string.match(id, '^%d+')) > delivered and not in_hand(id) and redis.call('XDEL', KEYS[1], id) == 1 then
    gone[#gone + 1] = id
  end
end
return gone
"""
# KEYS 1 stream | ARGV 1 group, 2 id. Moves the group to an id ahead of it, and tells what it will never see.
SKIP = """
local delivered = '0-0'
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local name, last = nil, nil
  for i = 1, #group, 2 do
    if group[i] == 'name' then name = group[i + 1] end
    if group[i] == 'last-delivered-id' then last = group[i + 1] end
  end
  if name == ARGV[1] then delivered = last end
end
if tonumber(string.match(delivered, '^%d+')) >= tonumber(string.match(ARGV[2], '^%d+')) then return {} end
local skipped = redis.call('XRANGE', KEYS[1], '(' .. delivered, ARGV[2])
redis.call('XGROUP', 'SETID', KEYS[1], ARGV[1], ARGV[2])
return skipped
"""
Entry = tuple[int, str, str, int]
"""queue, entry id, message id, send number"""


class RedisStreamsFaults:
    """`url` is an administrator's. It can have every fault, so the page need not say anything."""

    page: Sequence[str] = ()
    false_letters: tuple[str, str, str | None] = (SUPPRESSED_DONE, SUPPRESSED_UNDONE, EXPIRED)
    frozen_get_messages = False
    removes_files = False

    def __init__(self, url: str, ledger: Ledger) -> None:
        self._url, self._ledger = url, ledger
        self._server: Any = redis.Redis.from_url(url, decode_responses=True)
        self._keys = Keys()
        self._bury = Script.load("bury").text + BURY

    def close(self) -> None:
        self._server.close()

    def consumers_url(self) -> str:
        """Makes the consumers' own login."""
        password = secrets.token_urlsafe(24)
        self._server.acl_setuser(
            "consumers",
            enabled=True,
            reset=True,
            passwords=[f"+{password}"],
            keys=["*"],
            channels=["*"],
            categories=["+@all"],
        )
        parts = urlsplit(self._url)
        address = f"consumers:{quote(password, '')}@{parts.hostname}:{parts.port}"
        return urlunsplit((parts.scheme, address, parts.path, "", ""))

    def refuse(self, topic: str, topics: Collection[str]) -> None:
        """By the access list of the login that producers and Backstop have."""
        allowed = [
            f"~{self._keys.topic(other).removesuffix('topic')}*"
            for other in topics
            if other != topic
        ]
        self._server.execute_command(
            "ACL",
            "SETUSER",
            "default",
            "resetkeys",
            *allowed,
            f"~{self._keys.prefix}:group:*",
            "(+@all -xadd ~*)",
        )

    def lose(self, topic: str, make: Make, burst: int, at_most: int) -> list[Key]:
        """Entries are deleted before any group was given them."""
        return self.delete_undelivered(LOST, topic, make(burst), at_most)

    def delete_undelivered(
        self, fault: str, topic: str, ids: Sequence[str], at_most: int
    ) -> list[Key]:
        """Deletes entries that no group has been given yet; the messages it really lost, in the ledger."""
        lost: list[Key] = []
        by_queue: dict[int, dict[str, str]] = {}
        for queue, entry, message_id, number in self._entries(topic, set(ids)):
            if number == 1:
                by_queue.setdefault(queue, {})[entry] = message_id
        for queue, entries in by_queue.items():
            # The newest of the burst: nobody has them, as long as every worker stands still.
            chosen = list(entries)[-(at_most - len(lost)) :] if at_most > len(lost) else []
            gone = (
                self._server.eval(LOSE, 1, self._keys.stream(topic, queue), *chosen)
                if chosen
                else []
            )
            lost += [(topic, entries[entry]) for entry in gone]
        if not lost:
            raise demo_broken(
                f"No entry of {topic} could be lost: all were delivered already.",
                "Run the demo again.",
            )
        self._ledger.append(fault, lost)
        return lost

    def undelivered(self, topic: str) -> list[str]:
        """The ids of first sends that no group has been given yet, oldest first."""
        found: list[str] = []
        for queue in range(self._queues(topic)):
            stream = self._keys.stream(topic, queue)
            given = max(
                int(group["last-delivered-id"].partition("-")[0])
                for group in self._server.xinfo_groups(stream)
            )
            ahead = [read_entry(fields) for _, fields in self._server.xrange(stream, f"({given}-0")]
            found += [message_id for message_id, number in ahead if number == 1]
        return found

    def skip(self, topic: str, group: str, make: Make, burst: int, at_most: int) -> list[Key]:
        """The group is moved past messages of one queue."""
        ids = make(burst)
        for queue in sorted({queue for queue, _, _, _ in self._entries(topic, set(ids))}):
            waiting = self._waiting(topic, queue, group)[:at_most]
            if not waiting or any(number > 1 for _, number in waiting):
                continue  # a copy of a repair that is on its way: this fault is about first sends
            stream = self._keys.stream(topic, queue)
            skipped = self._server.eval(SKIP, 1, stream, group, waiting[-1][0])
            keys = [(topic, read_entry(fields)[0]) for _, fields in skipped]
            if keys:
                self._ledger.append(OFFSET_MOVED, keys, consumer_group=group)
                return keys
        raise demo_broken(
            f"No message of {topic} was left to skip for {group}.", "Run the demo again."
        )

    def remove_by_retention(self, topic: str, make: Make, count: int) -> list[Key]:
        """Not here: its retention trims what every group has passed, and nothing else."""
        raise NotImplementedError

    def deliver_again(self, topic: str, group: str, keys: Sequence[Key]) -> None:
        """Moves the group back before the oldest of these: all since then comes again."""
        oldest: dict[int, str] = {}
        for queue, entry, _, _ in self._entries(topic, {message_id for _, message_id in keys}):
            oldest.setdefault(queue, entry)
        for queue, entry in oldest.items():
            stream = self._keys.stream(topic, queue)
            before = self._server.xrevrange(stream, max=f"({entry}", count=1)
            self._server.xgroup_setid(stream, group, before[0][0] if before else "0-0")

    def newest_done(self, topic: str, group: str, at_most: int) -> list[Key]:
        """The newest first sends of each queue that the group has acknowledged, in an unbroken row, oldest first."""
        found: list[Key] = []
        for queue in range(self._queues(topic)):
            stream = self._keys.stream(topic, queue)
            [given] = [
                one["last-delivered-id"]
                for one in self._server.xinfo_groups(stream)
                if one["name"] == group
            ]
            row: list[Key] = []
            for entry, fields in self._server.xrevrange(stream, max=given, count=at_most):
                message_id, number = read_entry(fields)
                if number > 1 or self._server.xpending_range(stream, group, entry, entry, 1):
                    break
                row.insert(0, (topic, message_id))
            found += row
        return found

    def bury_done(self, topic: str, group: str, keys: Sequence[Key]) -> None:
        """Their redelivery after a failover was taken for a duplicate, and given up."""
        for queue, entry, message_id, number in self._entries(
            topic, {message_id for _, message_id in keys}
        ):
            if number == 1:
                self._bury_one(SUPPRESSED_DONE, (topic, message_id), group, queue, entry)

    def bury(self, topic: str, group: str, faults: Mapping[str, str]) -> None:
        """A client of the group takes them from the broker. What it is given besides comes to the group again."""
        for queue in range(self._queues(topic)):
            stream = self._keys.stream(topic, queue)
            taken = self._server.xreadgroup(group, CLIENT, {stream: ">"}, count=1000)
            for _, entries in taken:
                for entry, fields in entries:
                    message_id, number = read_entry(fields)
                    if number == 1 and message_id in faults:
                        self._bury_one(faults[message_id], (topic, message_id), group, queue, entry)
        for fault in set(faults.values()):
            if not self._ledger.keys(fault):
                raise demo_broken(
                    f"No message of {topic} could be buried as {fault}.", "Run the demo again."
                )

    def nobody_waits(self) -> bool:
        """A worker that was frozen while it waited would be handed the next message all the same, until its wait is over."""
        return int(self._server.info("clients")["blocked_clients"]) == 0

    def letters_waiting(self, pairs: Iterable[tuple[str, str]]) -> int:
        return sum(int(self._server.xlen(self._keys.dead(topic, group))) for topic, group in pairs)

    def drop_connections(self, pids: Collection[int]) -> None:
        """Needs no help: what is not acknowledged in time goes to another worker."""

    def backlog(self, topic: str, group: str) -> int:
        """Messages that the group was not given yet or has not acknowledged; deleted entries do not count."""
        left = 0
        for queue in range(self._queues(topic)):
            stream = self._keys.stream(topic, queue)
            [found] = [one for one in self._server.xinfo_groups(stream) if one["name"] == group]
            # The server's own count is none after a deletion, and then one entry tells that it is not the end.
            ahead = self._server.xrange(stream, f"({found['last-delivered-id']}", count=1)
            left += int(found["pending"]) + (int(found.get("lag") or 1) if ahead else 0)
        return left

    def _bury_one(self, fault: str, key: Key, group: str, queue: int, entry: str) -> None:
        """By the broker's own burial (bury.lua): such a letter looks as every other one does."""
        topic = key[0]
        stream = self._keys.stream(topic, queue)
        keys = (
            stream,
            self._keys.life(topic, queue),
            self._keys.held(topic, queue, group),
            self._keys.dead(topic, group),
        )
        self._ledger.append(fault, [key], consumer_group=group)
        cause = CAUSES[fault].format(n=entry.partition("-")[0])
        self._server.eval(
            self._bury,
            len(keys),
            *keys,
            group,
            entry,
            0 if fault == EXPIRED else 1,
            cause,
            topic,
            queue,
        )

    def _queues(self, topic: str) -> int:
        return int(self._server.hget(self._keys.topic(topic), "queues"))

    def _entries(self, topic: str, ids: set[str]) -> Iterator[Entry]:
        for queue in range(self._queues(topic)):
            last = self._server.xrevrange(
                self._keys.stream(topic, queue), count=max(1000, 2 * len(ids))
            )
            for entry, fields in reversed(last):
                message_id, number = read_entry(fields)
                if message_id in ids:
                    yield queue, entry, message_id, number

    def _waiting(self, topic: str, queue: int, group: str) -> list[tuple[str, int]]:
        """Entry id and send number of what the group was not given yet, oldest first."""
        stream = self._keys.stream(topic, queue)
        [last] = [
            g["last-delivered-id"] for g in self._server.xinfo_groups(stream) if g["name"] == group
        ]
        return [
            (entry, read_entry(fields)[1])
            for entry, fields in self._server.xrange(stream, f"({last}")
        ]


def read_entry(fields: Any) -> tuple[str, int]:
    """(message id, send number) of an entry, whose fields come as a mapping or as a flat list."""
    found = (
        fields if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=True))
    )
    headers = json.loads(found["headers"])
    return headers[ID_HEADER], int(headers.get(SEND_HEADER, 1))
