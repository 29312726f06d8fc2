"""Another program's records in Redis: strings without expiry under a pattern, found by SCAN, changed by one Lua script.

Nothing is touched by looking: PTTL, OBJECT and TYPE do not touch, and GET is sent only over a connection whose server agreed
not to count it (CLIENT NO-TOUCH, Redis 7.2). So the time for which nobody touched a key is the other program's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib.resources import files
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from backstop.errors import StoreUnavailable
from backstop.records import Counts
from backstop.sweep.foreign.decide import Decision, Expiry, Held, Record
from backstop.sweep.foreign.read_keys import ReadKey
from backstop.sweep.foreign.records import Page, Seen

CONSUMING, CONSUMED = b"CONSUMING", b"CONSUMED"
"""What RocketMQDedupListener writes."""
SECONDS = 10.0
"""The limit of one answer; a page takes milliseconds."""
_SETTLE = (files("backstop.sweep.foreign") / "lua" / "settle.lua").read_text(encoding="utf-8")
_OWN = 1
"""The reference count of a value that belongs to one key."""


@dataclass(frozen=True, slots=True)
class KeyFormat:
    """What a program's keys look like. `says_state`: its values are CONSUMING and CONSUMED; else a key says only that it is
    there."""

    glob: str
    read: ReadKey
    says_state: bool


class RedisRecords:
    """One server (not a cluster). Connected by the first call; for one thread at a time."""

    def __init__(
        self, name: str, url: str, keys: KeyFormat, *, untouched_for: timedelta, keep: timedelta, seconds: float = SECONDS
    ) -> None:
        self._name, self._keys = name, keys
        # OBJECT IDLETIME counts whole seconds: rounded up, never early.
        self._untouched = -int(-untouched_for.total_seconds() // 1)
        self._keep = max(1, round(keep.total_seconds() * 1000))
        self._no_touch = False
        self._client = redis.Redis(
            connection_pool=redis.ConnectionPool.from_url(
                url,
                max_connections=1,
                socket_connect_timeout=seconds,
                socket_timeout=seconds,
                retry=Retry(NoBackoff(), 0),
                health_check_interval=0,
                protocol=2,
                decode_responses=False,
                redis_connect_func=self._connected,
            )
        )

    def __repr__(self) -> str:
        return f"RedisRecords({self._name})"

    def close(self) -> None:
        self._client.connection_pool.disconnect()

    def pages(self, place: str, size: int) -> Iterator[Page]:
        cursor = int(place) if place.isdigit() else 0
        while True:
            cursor, keys = self._ask(("SCAN", cursor, "MATCH", self._keys.glob, "COUNT", size, "TYPE", "string"))[0]
            cursor = int(cursor)
            yield Page(str(cursor or ""), size, self._look(list(dict.fromkeys(keys))))
            if cursor == 0:
                return

    def apply(self, decision: Decision, seen: Sequence[Seen], counts: Counts) -> None:
        says_state = self._keys.says_state
        (sha,) = self._ask(("SCRIPT", "LOAD", _SETTLE))
        answers = self._ask(*(
            (
                "EVALSHA", sha, 1, one.handle, decision.value,
                CONSUMING if says_state else b"",
                self._untouched if decision is Decision.RECLAIM else b"",
                CONSUMED if says_state else b"",
                self._keep,
            )
            for one in seen
        ))  # fmt: skip
        for one, (what, *value) in zip(seen, answers, strict=True):
            counts.add(_outcome(decision, one, what, value))

    def _look(self, keys: Sequence[bytes]) -> list[Seen]:
        """Those of these keys that have no expiry; what vanished or expires by itself is not stuck."""
        ends = self._ask(*(("PTTL", key) for key in keys))
        forever = [key for key, end in zip(keys, ends, strict=True) if end == -1]
        reads_value = self._keys.says_state and self._no_touch
        questions: list[tuple[Any, ...]] = []
        for key in forever:
            questions += [("OBJECT", "IDLETIME", key), ("OBJECT", "REFCOUNT", key)]
            questions += [("GET", key)] if reads_value else []
        answers = self._ask(*questions)
        width = 3 if reads_value else 2
        found = []
        for index, key in enumerate(forever):
            idle, owners, *value = answers[index * width : (index + 1) * width]
            if owners is None or (reads_value and value == [None]):
                continue  # it vanished in between
            found.append(self._seen(key, idle, owners, value[0] if value else None))
        return found

    def _seen(self, key: bytes, idle: object, owners: object, value: bytes | None) -> Seen:
        try:
            text = key.decode()
        except UnicodeDecodeError:
            return Seen(repr(key), None, key)
        readings = self._keys.read(text)
        if not readings or value not in (None, CONSUMING, CONSUMED):
            return Seen(text, None, key)
        held = Held.UNSAID if value is None else Held(value.decode())
        # Small numbers are shared between all keys that hold one: their idle time is not this key's.
        untouched = idle >= self._untouched if isinstance(idle, int) and owners == _OWN else None
        return Seen(text, Record(readings, held, Expiry.NEVER, untouched), key)

    def _ask(self, *commands: tuple[Any, ...]) -> list[Any]:
        """One answer a command; a server that keeps no idle times answers null for them. Raises StoreUnavailable."""
        if not commands:
            return []
        pipe: Any = self._client.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        try:
            answers: list[Any] = pipe.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            raise self._unavailable(error) from None
        for index, answer in enumerate(answers):
            if isinstance(answer, ResponseError) and "LFU" in str(answer):
                answers[index] = None
            elif isinstance(answer, Exception):
                raise self._unavailable(answer) from None
        return answers

    def _connected(self, connection: Any) -> None:
        connection.on_connect()
        connection.send_command("CLIENT", "NO-TOUCH", "ON")
        try:
            connection.read_response()
            self._no_touch = True
        except ResponseError:
            self._no_touch = False  # older than Redis 7.2: values are read only by the script that changes them

    def _unavailable(self, error: BaseException) -> StoreUnavailable:
        why = f"{type(error).__name__}: {error}"
        password = self._client.connection_pool.connection_kwargs.get("password")
        if password:
            why = why.replace(str(password), "***")
        return StoreUnavailable(
            f"The Redis of foreign_leases.{self._name} did not answer: {why.rstrip('.')}.",
            kept="Nothing was freed or marked on its silence; what was done before it is counted.",
            next_step="Bring it back, or mend its connection and what its login may do; the next sweep looks again.",
        )


def _outcome(decision: Decision, seen: Seen, what: bytes, value: Sequence[bytes]) -> str:
    if what == b"done":
        return decision.value
    if what == b"moved_on" or (seen.record is not None and seen.record.held is not Held.UNSAID):
        return "moved_on"
    # Its value was not read before: it turns out to say that the work is done, or something nobody knows.
    return Decision.KEEP.value if list(value) == [CONSUMED] else "unreadable"
