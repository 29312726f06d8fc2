"""Another program's records in Redis: strings without expiry under a pattern, found by SCAN, looked at and
changed by Lua scripts.

Nothing is touched by looking: PTTL, OBJECT and TYPE do not touch, and GET is used only over a connection whose server agreed
not to count it (CLIENT NO-TOUCH, Redis 7.2). So the time for which nobody touched a key is the other program's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha1
from importlib.resources import files
from typing import Any, NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.retry import Retry

from backstop.model.errors import StoreUnavailable
from backstop.model.mask_secrets import mask_secrets
from backstop.model.records import Counts
from backstop.sweep.foreign.decide import Decision, Expiry, Held, Record
from backstop.sweep.foreign.read_keys import ReadKey
from backstop.sweep.foreign.records import Page, Seen

CONSUMING, CONSUMED = b"CONSUMING", b"CONSUMED"
"""What RocketMQDedupListener writes."""
SECONDS = 10.0
"""The limit of one answer; a page takes milliseconds."""
AT_ONCE = 1_000
"""Keys that one script looks at or changes: the server is held up for milliseconds."""


class _Script(NamedTuple):
    """A Lua script of the folder `lua`; its first lines say what its KEYS and ARGV are."""

    text: str
    sha: str


def _load(name: str) -> _Script:
    text = (files("backstop.sweep.foreign") / "lua" / f"{name}.lua").read_text(encoding="utf-8")
    return _Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


_LOOK, _SETTLE = _load("look"), _load("settle")


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
        self,
        name: str,
        url: str,
        keys: KeyFormat,
        *,
        untouched_for: timedelta,
        keep: timedelta,
        seconds: float = SECONDS,
    ) -> None:
        self._name, self._keys = name, keys
        # OBJECT IDLETIME counts whole seconds: rounded up, never early.
        self._untouched = -int(-untouched_for.total_seconds() // 1)
        self._keep = max(1, round(keep.total_seconds() * 1000))
        self._no_touch = False
        self._pool = redis.ConnectionPool.from_url(
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
        self._client: Any = redis.Redis(connection_pool=self._pool)

    def __repr__(self) -> str:
        return f"RedisRecords({self._name})"

    def close(self) -> None:
        self._pool.disconnect()

    def pages(self, place: str, size: int, *, only_stuck: bool = False) -> Iterator[Page]:
        cursor = place if place.isdigit() else "0"
        while True:
            self._connect()
            reads_value = self._keys.says_state and self._no_touch
            step = iter(
                self._run(
                    _LOOK,
                    (),
                    cursor,
                    self._keys.glob,
                    min(size, AT_ONCE),
                    "1" if reads_value else "0",
                    self._untouched if only_stuck else 0,
                )
            )
            cursor = next(step).decode()
            found = zip(step, step, step, strict=True)
            seen = [
                self._seen(key, idle, value if reads_value else None) for key, idle, value in found
            ]
            yield Page("" if cursor == "0" else cursor, size, seen)
            if cursor == "0":
                return

    def apply(self, decision: Decision, seen: Sequence[Seen], counts: Counts) -> None:
        says_state = self._keys.says_state
        arguments = (
            decision.value,
            CONSUMING if says_state else b"",
            self._untouched if decision is Decision.RECLAIM else b"",
            CONSUMED if says_state else b"",
            self._keep,
        )
        for start in range(0, len(seen), AT_ONCE):
            part = seen[start : start + AT_ONCE]
            answers = self._run(_SETTLE, [one.handle for one in part], *arguments)
            for one, answer in zip(part, answers, strict=True):
                counts.add(_outcome(decision, one, answer))

    def _seen(self, key: bytes, idle: int, value: bytes | None) -> Seen:
        try:
            text = key.decode()
        except UnicodeDecodeError:
            return Seen(repr(key), None, key)
        # No log can hold a NUL: asking about it would fail for the whole batch.
        readings = self._keys.read(text) if "\0" not in text else ()
        if not readings or value not in (None, CONSUMING, CONSUMED):
            return Seen(text, None, key)
        held = Held.UNSAID if value is None else Held(value.decode())
        untouched = None if idle < 0 else idle >= self._untouched
        return Seen(text, Record(readings, held, Expiry.NEVER, untouched), key)

    def _run(self, script: _Script, keys: Sequence[bytes], *arguments: object) -> list[Any]:
        """A script's answer. Raises StoreUnavailable."""
        try:
            answer: list[Any] = self._command("EVALSHA", script.sha, len(keys), *keys, *arguments)
        except NoScriptError:  # a server that restarted or failed over forgot it, and ran nothing
            self._ask("SCRIPT", "LOAD", script.text)
            answer = self._ask("EVALSHA", script.sha, len(keys), *keys, *arguments)
        return answer

    def _connect(self) -> None:
        """Open, so that it is known whether values may be read. Raises StoreUnavailable."""
        try:
            self._pool.release(self._pool.get_connection())
        except (RedisError, OSError) as error:
            raise self._unavailable(error) from None

    def _ask(self, *command: object) -> Any:
        """An answer. Raises StoreUnavailable."""
        try:
            return self._command(*command)
        except NoScriptError as error:
            raise self._unavailable(error) from None

    def _command(self, *command: object) -> Any:
        try:
            return self._client.execute_command(*command)
        except NoScriptError:
            raise
        except (RedisError, OSError) as error:
            raise self._unavailable(error) from None

    def _connected(self, connection: Any) -> None:
        connection.on_connect()
        connection.send_command("CLIENT", "NO-TOUCH", "ON")
        try:
            connection.read_response()
            self._no_touch = True
        except ResponseError:
            self._no_touch = (
                False  # older than Redis 7.2: values are read only by the script that changes them
            )

    def _unavailable(self, error: BaseException) -> StoreUnavailable:
        password = str(self._pool.connection_kwargs.get("password") or "")
        why = mask_secrets(f"{type(error).__name__}: {error}", [password])
        return StoreUnavailable(
            f"The Redis of foreign_leases.{self._name} did not answer: {why.rstrip('.')}.",
            unaffected="Nothing was freed or marked on its silence; what was done before it is counted.",
            next_step="Restart it, or correct its connection and its login's rights; the next sweep tries again.",
        )


def _outcome(decision: Decision, seen: Seen, answer: bytes) -> str:
    if answer == b"done":
        return decision.value
    if answer == b"moved_on" or (seen.record is not None and seen.record.held is not Held.UNSAID):
        return "moved_on"
    # Its value was not read before: it turns out to say that the work is done, or something nobody knows.
    return Decision.KEEP.value if answer == b"=" + CONSUMED else "unreadable"
