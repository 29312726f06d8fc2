"""Hands out dead letters whole, a bounded page at a time, and removes those that are stored elsewhere.

A dead-letter queue is one stream, named by its key. See read_dead_letter.py for what becomes of an entry that is no message.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from types import TracebackType
from typing import Self
from urllib.parse import unquote

from backstop.brokers.protocol import LETTER_PAGE_BYTES, DeadLetter
from backstop.brokers.redis_streams.exchange import Exchange, unavailable
from backstop.brokers.redis_streams.keys import Keys
from backstop.brokers.redis_streams.read_dead_letter import read_dead_letters
from backstop.model.errors import BrokerUnavailable, ConfigurationError

REMOVED_AT_ONCE = 1000
FIRST_AT_ONCE, MOST_AT_ONCE = 4, 64
"""Entries of one reply: few at first, because large ones show their size only when they are here; twice as many each time while they
are small, so that those up to LETTER_PAGE_BYTES / MOST_AT_ONCE never exceed a page. Behind small ones, one reply can hold
MOST_AT_ONCE larger ones."""
TEXT_BYTES = 48
"""What each text takes in memory beside its bytes: an entry of many small fields is large, too."""


class Drain:
    """Finds the dead-letter queues of one adapter, and opens readers of them."""

    def __init__(self, exchange: Exchange, keys: Keys) -> None:
        self._exchange, self._keys = exchange, keys
        self._name = re.compile(re.escape(keys.prefix) + r":\{([^{}:]+)\}:dead:([^{}:]+)")

    def queues(self, groups: Sequence[str]) -> list[str]:
        """Every stream that may hold letters of these groups, of all topics that they ever took."""
        names = sorted(set(groups))
        doing = "looking for dead-letter queues"
        if not names:
            return []
        answers = self._exchange.ask(
            [("SMEMBERS", self._keys.group(group)) for group in names], doing
        )
        try:
            topics = [sorted(topic.decode() for topic in answer) for answer in answers]
        except UnicodeDecodeError as error:
            raise unavailable(
                doing, "a group's set of topics holds a name that is not UTF-8"
            ) from error
        return [
            self._keys.dead(topic, group)
            for group, its in zip(names, topics, strict=True)
            for topic in its
        ]

    def open(self, queue: str) -> RedisDeadLetters:
        """Raises ConfigurationError for a name that is no dead-letter queue of this adapter."""
        found = self._name.fullmatch(queue)
        if found is None:
            raise ConfigurationError(
                f"{queue!r} is not a dead-letter queue of this Redis Streams broker.",
                unaffected="Nothing was read or removed.",
                next_step="Use a name that its list of dead-letter queues gives.",
            )
        return RedisDeadLetters(self._exchange, queue, unquote(found[1]), unquote(found[2]))


class RedisDeadLetters:
    """One reader: from the first entry to the one that was the last when it was opened, so that it ends while others
    fill the queue."""

    def __init__(self, exchange: Exchange, queue: str, topic: str, group: str) -> None:
        self._exchange, self._queue, self._topic, self._group = exchange, queue, topic, group
        [last] = exchange.ask([("XREVRANGE", queue, "+", "-", "COUNT", 1)], f"opening {queue}")
        self._end: bytes | None = last[0][0] if last else None
        self._from = "-"
        self._at_once = FIRST_AT_ONCE
        self._ahead: list[DeadLetter] = []
        """Read and not handed out."""
        self._sizes: list[int] = []
        """Of their entries."""

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
        self._end = None
        self._ahead, self._sizes = [], []

    def read(self, limit: int) -> list[DeadLetter]:
        """Fewer than `limit` where they are large, none at the end."""
        while (
            self._end is not None
            and len(self._ahead) < limit
            and sum(self._sizes) < LETTER_PAGE_BYTES
        ):
            try:
                if not self._read_ahead(self._end):
                    break
            except BrokerUnavailable:
                # What came before is handed out, so that a reply too large to come in time does not keep it in the queue for ever.
                self._at_once = max(1, self._at_once // 4)
                if not self._ahead:
                    raise
                break
        fit = max(1, bisect_right(list(accumulate(self._sizes)), LETTER_PAGE_BYTES))
        page = self._ahead[: min(limit, fit)]
        del self._ahead[: len(page)], self._sizes[: len(page)]
        return page

    def _read_ahead(self, end: bytes) -> bool:
        """One reply more; false at the end."""
        command = ("XRANGE", self._queue, self._from, end, "COUNT", self._at_once)
        [entries] = self._exchange.ask([command], f"reading {self._queue}")
        if not entries:
            return False
        sizes = [len(b"".join(fields)) + len(fields) * TEXT_BYTES for _, fields in entries]
        self._ahead += read_dead_letters(self._queue, self._topic, self._group, entries)
        self._sizes += sizes
        self._from = f"({self._ahead[-1].broker_id}"
        fit = LETTER_PAGE_BYTES // max(sizes)
        self._at_once = max(1, min(2 * self._at_once, fit, MOST_AT_ONCE))
        return True

    def acknowledge(self, letters: Sequence[DeadLetter]) -> None:
        ids = [letter.broker_id for letter in letters]
        commands = [
            ("XDEL", self._queue, *ids[at : at + REMOVED_AT_ONCE])
            for at in range(0, len(ids), REMOVED_AT_ONCE)
        ]
        if commands:
            self._exchange.ask(commands, f"removing what is stored from {self._queue}")
