"""Redis in front of the database: answers DONE and BUSY early, and is told what the database has committed.

It never grants. Whatever it does not know, or knows differently (another content, another version), is the database's to
answer; so is a resent copy's end, because Backstop only resends what the database does not know to be done. A Redis that is
empty, evicted or away costs a question to the database, which is counted, and nothing else.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from backstop.leases.lease import LEASE, RETRY_AFTER, Acquired, Arrival, Busy, Done, retry_in
from backstop.leases.redis_exchange import Call, RedisExchange, Script
from backstop.leases.redis_guard import CALL
from backstop.leases.redis_records import RedisKeys, encoded, hash_text, milliseconds, read_record
from backstop.model.errors import ContractBroken, StoreUnavailable
from backstop.model.records import Counts

log = logging.getLogger(__name__)

CONSUMED_FOR = timedelta(days=1)
"""How long DONE is remembered in front: beyond it the database answers, as it does for every resent copy."""
HELD_LEASES = 10
"""For how many leases a held record stays, unless it is renewed or ends."""
ASK_AGAIN = 1.0
"""Seconds for which a Redis that did not answer is left alone, at least."""
ASK_AGAIN_TIMES = 10
"""And so many times as long as its silence took: one that hangs costs workers a tenth of their time at most."""
_LOOK, _NOTE = Script("look"), Script("note")
Granted = tuple[Acquired, Arrival]


class Front:
    """The front of one group. Safe to share between threads; no method raises for a Redis that is away.

    `counts` says what it did: `front_done` and `front_busy` were answered by it, `front_asked` went to the database,
    `front_away` is how often Redis did not answer, and `front_unread` what stood there and could not be read.
    """

    def __init__(
        self,
        exchange: RedisExchange,
        group: str,
        *,
        lease: timedelta = LEASE,
        retry_after: timedelta = RETRY_AFTER,
        consumed_for: timedelta = CONSUMED_FOR,
        owner_host: str | None = None,
    ) -> None:
        self.group, self.lease = group, lease
        self.counts = Counts()
        self._exchange = exchange
        self._keys = RedisKeys(group)
        self._host = encoded(owner_host or socket.gethostname())
        self._retry_after = retry_after
        self._lease_ms = milliseconds(lease)
        # Long enough for a sweep to find it, and gone by itself when no sweep runs.
        self._held_for = b"%d" % (HELD_LEASES * milliseconds(lease))
        self._done_for = b"%d" % milliseconds(consumed_for)
        self._lock = threading.Lock()
        self._away_until = 0.0

    def look(self, arrivals: Sequence[Arrival]) -> list[Done | Busy | None]:
        """What can be answered without the database, in order; null: ask it."""
        answers: list[Done | Busy | None] = [None] * len(arrivals)
        places, calls = self._calls(
            _LOOK, [(a.topic, a.message_id) for a in arrivals], lambda numbers: []
        )
        for numbers, (now, records) in zip(places, self._run(calls), strict=False):
            for number, record in zip(numbers, records, strict=True):
                if record is not None:
                    answers[number] = self._read(record, arrivals[number], now)
        for answer in answers:
            self._count(
                "front_asked"
                if answer is None
                else "front_done"
                if isinstance(answer, Done)
                else "front_busy"
            )
        return answers

    def held(self, told: Sequence[Granted]) -> None:
        """The database granted and committed these leases."""
        self._note(b"C", self._held_for, told)

    def done(self, told: Sequence[Granted]) -> None:
        """The database committed the end of this work."""
        self._note(b"D", self._done_for, told)

    def free(self, told: Sequence[Granted]) -> None:
        """The database released these: failed, or given back."""
        self._note(b"E", self._held_for, told)

    def drain_counts(self) -> Counts:
        """The counts since the last call."""
        with self._lock:
            counts, self.counts = self.counts, Counts()
        return counts

    def close(self) -> None:
        self._exchange.close()

    def _read(self, text: bytes, arrival: Arrival, now: int) -> Done | Busy | None:
        try:
            record = read_record(text)
        except ContractBroken as error:
            self._count("front_unread")
            log.warning("%s", error)
            return None
        ours = hash_text(arrival.payload_hash)
        same = "-" in (ours, record.payload_hash or "-") or ours == record.payload_hash
        if record.content_version != arrival.content_version or not same:
            return None
        if record.state == "D" and not arrival.resent:
            return Done()
        # An end further away than a lease is of a clock that was set back since: it says nothing about now.
        if record.state == "C" and now < record.ends <= now + self._lease_ms:
            return Busy(retry_in((record.ends - now) / 1000, self._retry_after))
        return None

    def _note(self, state: bytes, kept: bytes, told: Sequence[Granted]) -> None:
        noted = [
            f"{lease.fence:016d}{lease.attempts:04d}{lease.token.replace('-', '')}"
            f"|{arrival.content_version}|{hash_text(arrival.payload_hash)}|{self._host}".encode()
            for lease, arrival in told
        ]
        _, calls = self._calls(
            _NOTE,
            [(lease.topic, lease.message_id) for lease, _ in told],
            lambda numbers: [state, b"%d" % self._lease_ms, kept, *[noted[n] for n in numbers]],
        )
        self._run(calls)

    def _calls(
        self,
        script: Script,
        messages: Sequence[tuple[str, str]],
        arguments: Callable[[list[int]], list[bytes]],
    ) -> tuple[list[list[int]], list[Call]]:
        places: list[list[int]] = []
        calls: list[Call] = []
        for bucket, numbers, keys in self._keys.in_buckets(messages, CALL):
            places.append(numbers)
            calls.append((script, [self._keys.expiry[bucket], *keys], arguments(numbers)))
        return places, calls

    def _run(self, calls: Sequence[Call]) -> list[Any]:
        """The answers; none when Redis is away, or was a moment ago."""
        asked_at = time.monotonic()
        if not calls or asked_at < self._away_until:
            return []
        try:
            return self._exchange.run(calls)
        except StoreUnavailable as error:
            now = time.monotonic()
            self._away_until = now + max(ASK_AGAIN, ASK_AGAIN_TIMES * (now - asked_at))
            self._count("front_away")
            log.warning("%s The database answers meanwhile.", error)
            return []

    def _count(self, name: str) -> None:
        with self._lock:
            self.counts.add(name)
