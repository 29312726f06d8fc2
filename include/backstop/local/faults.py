"""Break things on purpose, exactly: each function writes into the ledger what it really did, no more, no less.

Broker faults go to the server by its own commands, store faults by SQL, as a careless hand or a crash would.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg2
import redis
from psycopg2 import sql

from backstop.brokers.redis_streams import Keys
from backstop.local.ledger import Key, Ledger
from backstop.local.workers import demo_broken
from backstop.records import ID_HEADER, SEND_HEADER

# KEYS 1 stream | ARGV 1.. ids of entries. One script, so that nothing is delivered between look and deletion.
LOSE = """
local delivered = 0
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  for i = 1, #group, 2 do
    if group[i] == 'last-delivered-id' then
      delivered = math.max(delivered, tonumber(string.match(group[i + 1], '^%d+')))
    end
  end
end
local gone = {}
for _, id in ipairs(ARGV) do
  if tonumber(string.match(id, '^%d+')) > delivered and redis.call('XDEL', KEYS[1], id) == 1 then
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


class BrokerFaults:
    """What can be done to the broker behind everybody's back. `url` is an administrator's."""

    def __init__(self, url: str, ledger: Ledger) -> None:
        self._url, self._ledger = url, ledger
        self._server: Any = redis.Redis.from_url(url, decode_responses=True)
        self._keys = Keys()

    def close(self) -> None:
        self._server.close()

    def consumers_login(self) -> str:
        """Makes the consumers' own login, so that what producers are forbidden does not touch them: its URL."""
        password = secrets.token_urlsafe(24)
        self._server.acl_setuser(
            "consumers", enabled=True, reset=True, passwords=[f"+{password}"], keys=["*"], channels=["*"],
            categories=["+@all"],
        )  # fmt: skip
        parts = urlsplit(self._url)
        address = f"consumers:{quote(password, '')}@{parts.hostname}:{parts.port}"
        return urlunsplit((parts.scheme, address, parts.path, "", ""))

    def refuse(self, topic: str, topics: Collection[str]) -> None:
        """From now on the login of producers and of Backstop may look at `topic`, and store nothing in it."""
        allowed = [f"~{self._keys.topic(other).removesuffix('topic')}*" for other in topics if other != topic]
        self._server.execute_command(
            "ACL",
            "SETUSER",
            "default",
            "resetkeys",
            *allowed,
            f"~{self._keys.prefix}:group:*",
            "(+@all -xadd ~*)",
        )

    def lose(self, fault: str, topic: str, ids: Sequence[str], at_most: int) -> list[Key]:
        """Deletes entries that no group has been given yet; the messages it really lost, in the ledger."""
        lost: list[Key] = []
        by_queue: dict[int, dict[str, str]] = {}
        for queue, entry, message_id, number in self._entries(topic, set(ids)):
            if number == 1:
                by_queue.setdefault(queue, {})[entry] = message_id
        for queue, entries in by_queue.items():
            # The newest of the burst: nobody has them, as long as every worker stands still.
            chosen = list(entries)[-(at_most - len(lost)) :] if at_most > len(lost) else []
            gone = self._server.eval(LOSE, 1, self._keys.stream(topic, queue), *chosen) if chosen else []
            lost += [(topic, entries[entry]) for entry in gone]
        if not lost:
            raise demo_broken(f"No entry of {topic} could be lost: all were delivered already.", "Run the demo again.")
        self._ledger.append(fault, lost)
        return lost

    def undelivered(self, topic: str) -> list[str]:
        """The ids of first sends that no group has been given yet, oldest first."""
        found: list[str] = []
        for queue in range(self._queues(topic)):
            stream = self._keys.stream(topic, queue)
            given = max(int(group["last-delivered-id"].partition("-")[0]) for group in self._server.xinfo_groups(stream))
            ahead = [read_entry(fields) for _, fields in self._server.xrange(stream, f"({given}-0")]
            found += [message_id for message_id, number in ahead if number == 1]
        return found

    def move_offset(self, fault: str, topic: str, group: str, ids: Sequence[str], at_most: int) -> list[Key]:
        """Moves a group past up to `at_most` messages of one queue; what it skipped, in the ledger."""
        for queue in sorted({queue for queue, _, _, _ in self._entries(topic, set(ids))}):
            waiting = self._waiting(topic, queue, group)[:at_most]
            if not waiting or any(number > 1 for _, number in waiting):
                continue  # a copy of a repair that is on its way: this fault is about first sends
            stream = self._keys.stream(topic, queue)
            skipped = self._server.eval(SKIP, 1, stream, group, waiting[-1][0])
            keys = [(topic, read_entry(fields)[0]) for _, fields in skipped]
            if keys:
                self._ledger.append(fault, keys, consumer_group=group)
                return keys
        raise demo_broken(f"No message of {topic} was left to skip for {group}.", "Run the demo again.")

    def deliver_again(self, topic: str, group: str, keys: Sequence[Key]) -> None:
        """Moves a group back before the oldest of these, as a failover to a late replica does: all since then comes again."""
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
            [given] = [one["last-delivered-id"] for one in self._server.xinfo_groups(stream) if one["name"] == group]
            row: list[Key] = []
            for entry, fields in self._server.xrevrange(stream, max=given, count=at_most):
                message_id, number = read_entry(fields)
                if number > 1 or self._server.xpending_range(stream, group, entry, entry, 1):
                    break
                row.insert(0, (topic, message_id))
            found += row
        return found

    def backlog(self, topic: str, group: str) -> int:
        """Messages that the group was not given yet or has not acknowledged; deleted entries do not count."""
        left = 0
        for queue in range(self._queues(topic)):
            stream = self._keys.stream(topic, queue)
            [found] = [one for one in self._server.xinfo_groups(stream) if one["name"] == group]
            # One is enough to know that it is not the end; a count of all would read all.
            ahead = self._server.xrange(stream, f"({found['last-delivered-id']}", count=1)
            left += int(found["pending"]) + len(ahead)
        return left

    def _queues(self, topic: str) -> int:
        return int(self._server.hget(self._keys.topic(topic), "queues"))

    def _entries(self, topic: str, ids: set[str]) -> Iterator[Entry]:
        for queue in range(self._queues(topic)):
            last = self._server.xrevrange(self._keys.stream(topic, queue), count=max(1000, 2 * len(ids)))
            for entry, fields in reversed(last):
                message_id, number = read_entry(fields)
                if message_id in ids:
                    yield queue, entry, message_id, number

    def _waiting(self, topic: str, queue: int, group: str) -> list[tuple[str, int]]:
        """Entry id and send number of what the group was not given yet, oldest first."""
        stream = self._keys.stream(topic, queue)
        [last] = [g["last-delivered-id"] for g in self._server.xinfo_groups(stream) if g["name"] == group]
        return [(entry, read_entry(fields)[1]) for entry, fields in self._server.xrange(stream, f"({last}")]


def flush_leases(url: str) -> int:
    """Empties the Redis in front of the leases; how many keys went, in one transaction with it."""
    with redis.Redis.from_url(url) as server:
        [keys, _] = server.pipeline(transaction=True).dbsize().flushall().execute()
    return int(keys)


def read_entry(fields: Any) -> tuple[str, int]:
    """(message id, send number) of an entry, whose fields come as a mapping or as a flat list."""
    found = fields if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=True))
    headers = json.loads(found["headers"])
    return headers[ID_HEADER], int(headers.get(SEND_HEADER, 1))


def delete_logs(dsn: str, group: str, keys: Sequence[Key], ledger: Ledger, fault: str) -> None:
    """By hand, in the consumer's own database: logs of work that was done. What was there is in the ledger."""
    deleted = change(
        dsn,
        "DELETE FROM consumer_log WHERE consumer_group = %s AND state = 'CONSUMED'"
        " AND (topic, message_id) IN (SELECT * FROM unnest(%s::text[], %s::text[]))"
        " RETURNING topic, message_id",
        (group, [topic for topic, _ in keys], [message_id for _, message_id in keys]),
    )
    ledger.append(fault, [(topic, message_id) for topic, message_id in deleted], consumer_group=group)


def break_logs(dsn: str, group: str, keys: Sequence[Key], ledger: Ledger, fault: str) -> None:
    """Legacy rows: the constraint is gone, and work that was done carries no time."""
    change(dsn, "ALTER TABLE consumer_log DROP CONSTRAINT IF EXISTS consumer_log_consumed_has_time", ())
    broken = change(
        dsn,
        "UPDATE consumer_log SET consumed_at = NULL WHERE consumer_group = %s AND state = 'CONSUMED'"
        " AND (topic, message_id) IN (SELECT * FROM unnest(%s::text[], %s::text[]))"
        " RETURNING topic, message_id",
        (group, [topic for topic, _ in keys], [message_id for _, message_id in keys]),
    )
    ledger.append(
        fault, [(topic, message_id) for topic, message_id in broken], consumer_group=group,
        detail="consumed without a time",
    )  # fmt: skip


def make_due_at_once(dsns: Sequence[str], keys: Sequence[Key]) -> None:
    """The same next look for these stubs on every shard, so that one run sees all of them."""
    [(instant,)] = change(dsns[0], "SELECT clock_timestamp() + interval '1 second'", ())
    for dsn in dsns:
        change(
            dsn,
            "UPDATE message_stub SET next_check_at = %s"
            " WHERE (topic, message_id) IN (SELECT * FROM unnest(%s::text[], %s::text[])) RETURNING topic",
            (instant, [topic for topic, _ in keys], [message_id for _, message_id in keys]),
        )


@contextmanager
def store_away(admin_dsn: str, database: str) -> Iterator[None]:
    """The database accepts nobody, and whoever was connected is thrown out; open again at the end."""
    allow(admin_dsn, database, False)
    try:
        yield
    finally:
        allow(admin_dsn, database, True)


def allow(admin_dsn: str, database: str, allowed: bool) -> None:
    connection = psycopg2.connect(admin_dsn, connect_timeout=10)
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}").format(sql.Identifier(database), sql.Literal(allowed))
            )
            if not allowed:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
                    (database,),
                )
    finally:
        connection.close()


def change(dsn: str, statement: str, parameters: tuple[object, ...]) -> list[tuple[Any, ...]]:
    """One statement, committed; its rows if it gives any."""
    connection = psycopg2.connect(dsn, connect_timeout=10)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            return list(cursor.fetchall()) if cursor.description else []
    finally:
        connection.close()
