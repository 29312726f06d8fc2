"""Sends a batch of commands over one connection and tells, for each, whether it was answered, never sent, or
lost.

redis-py's pipeline raises for the whole batch when the connection breaks. Here the answers that came before
the break are kept: they are the difference between SENT and UNKNOWN.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha1
from importlib.resources import files
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.retry import Retry

from backstop.model.errors import BrokerUnavailable, ConfigurationError
from backstop.model.redis_url import AS_URL, require_database

Command = tuple[str | bytes | int, ...]
ROUND_BYTES = 8 * 1024 * 1024
"""Commands are written and their answers read in rounds of about this size, so that neither side's buffers
fill up."""


@dataclass(frozen=True, slots=True)
class NotSent:
    """No byte of the command left this process: the server certainly did not run it."""

    why: str
    refused: bool = False
    """The server answered, and let nobody in."""


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """The command may have left and no answer came: the server may have run it."""

    why: str


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script of the folder `lua`; its first lines say what its KEYS and ARGV are."""

    name: str
    text: str
    sha: str

    @classmethod
    def load(cls, *names: str) -> Script:
        """One script out of files, in order: a file of shared functions first, the script itself last."""
        folder = files("backstop.brokers.redis_streams") / "lua"
        text = "\n".join((folder / f"{name}.lua").read_text(encoding="utf-8") for name in names)
        return cls(names[-1], text, sha1(text.encode(), usedforsecurity=False).hexdigest())

    def call(self, keys: Sequence[str], *arguments: str | bytes | int) -> Command:
        return ("EVALSHA", self.sha, len(keys), *keys, *arguments)


class Exchange:
    """A pool of connections without retries. Safe to share between threads. `timeout`: the whole of one `run` or `ask`."""

    def __init__(
        self,
        url: str,
        *,
        connect_timeout: timedelta,
        timeout: timedelta,
        scripts: Sequence[Script],
    ) -> None:
        self.seconds = timeout.total_seconds()
        self._scripts = {script.sha: script for script in scripts}
        try:
            require_database(url)
            self._pool = redis.ConnectionPool.from_url(
                url,
                socket_connect_timeout=connect_timeout.total_seconds(),
                socket_timeout=self.seconds,
                retry=Retry(NoBackoff(), 0),
                health_check_interval=0,
                protocol=2,
                decode_responses=False,
            )
        except ValueError:  # its own text repeats what it could not read: a part of the password
            raise ConfigurationError(
                "The connection of a Redis Streams broker is not a URL of Redis, or its database or an option is not a number.",
                unaffected="Nothing was sent or read.",
                next_step=AS_URL,
            ) from None

    def close(self) -> None:
        self._pool.disconnect()

    def run(
        self, commands: Sequence[Command], *, blocking: float = 0.0, in_order: bool = False
    ) -> list[Any]:
        """One answer a command, in order: the reply, a ResponseError, NotSent or Lost. Never raises for the
        server.

        `blocking`: seconds that the commands may wait by themselves, on top of the timeout. `in_order`: scripts over the same keys
        run in this order or not at all.
        """
        answers = self._once(commands, blocking)
        unknown = [
            index for index, answer in enumerate(answers) if isinstance(answer, NoScriptError)
        ]
        if unknown and in_order:
            unknown = _not_overtaken(commands, answers)
        if unknown:  # a server that restarted or failed over forgot them; it certainly ran nothing
            needed = {str(commands[index][1]) for index in unknown}
            loads = [("SCRIPT", "LOAD", self._scripts[sha].text) for sha in sorted(needed)]
            again = self._once([*loads, *(commands[index] for index in unknown)], blocking)[
                len(loads) :
            ]
            for index, answer in zip(unknown, again, strict=True):
                answers[index] = answer
        return answers

    def ask(self, commands: Sequence[Command], doing: str, *, blocking: float = 0.0) -> list[Any]:
        """Every reply, or BrokerUnavailable: a look never answers with less than everything."""
        answers = self.run(commands, blocking=blocking)
        for answer in answers:
            error = no_answer(answer, doing)
            if error is not None:
                raise error
        return answers

    def _once(self, commands: Sequence[Command], blocking: float) -> list[Any]:
        answers: list[Any] = []
        deadline = time.monotonic() + self.seconds + blocking
        try:
            # The pool hands out only connections that are open and have no unread bytes: a failure here sent
            # nothing.
            connection: Any = self._pool.get_connection()
        except (RedisError, OSError) as error:
            return [NotSent(_say(error), refused=isinstance(error, AuthenticationError))] * len(
                commands
            )
        sent = 0
        try:
            for batch in _rounds(commands):
                if time.monotonic() >= deadline:
                    break
                packed = b"".join(map(_packed, batch))
                sent += len(batch)
                connection.send_packed_command([packed], check_health=False)
                for _ in batch:
                    answers.append(_read(connection, deadline))
            if any(isinstance(answer, ReadOnlyError) for answer in answers):
                # A failover left this connection at a demoted primary: the address may lead to another server by now.
                connection.disconnect()
        except (RedisError, OSError) as error:
            connection.disconnect()
            answers += [ConnectionLost(_say(error))] * (sent - len(answers))
        except BaseException:
            connection.disconnect()  # an interrupt in between: unread answers must not meet the next command
            raise
        finally:
            self._pool.release(connection)
        return answers + [
            NotSent("the connection broke, or the time was over, before it was sent")
        ] * (len(commands) - len(answers))


def _not_overtaken(commands: Sequence[Command], answers: Sequence[Any]) -> list[int]:
    """Places of scripts that the server did not know, and behind which it ran, or may have run, none over the same keys: another
    program may have loaded the script in between."""
    found: list[int] = []
    ran: set[Command] = set()
    for index in range(len(commands) - 1, -1, -1):
        _, _, number, *rest = commands[index]
        keys = tuple(rest[: int(number)])
        if not isinstance(answers[index], NoScriptError):
            ran.add(keys)
        elif keys not in ran:
            found.append(index)
    return found[::-1]


def no_answer(answer: Any, doing: str) -> BrokerUnavailable | None:
    """Why this is none; null: it is one."""
    if isinstance(answer, ResponseError):
        return unavailable(doing, str(answer), refused=True)
    if isinstance(answer, NotSent | ConnectionLost):
        refused = isinstance(answer, NotSent) and answer.refused
        return unavailable(doing, answer.why, refused=refused)
    return None


def unavailable(doing: str, why: str, *, refused: bool = False) -> BrokerUnavailable:
    """`refused`: the server answered, and does not allow it (a wrong password, a missing privilege)."""
    return BrokerUnavailable(
        f"The Redis Streams broker {'refused' if refused else 'did not answer while'} {doing}: {why.rstrip('.')}.",
        unaffected="Nothing was decided from its silence, and no message was lost by asking.",
        next_step="Check that the server runs, that topic and group exist and that the login may use their "
        "keys; then run this again.",
    )


def _read(connection: Any, deadline: float) -> Any:
    try:
        return connection.read_response(timeout=max(deadline - time.monotonic(), 0.001))
    except BusyLoadingError:
        return NotSent("the server is still loading its data")
    except ResponseError as error:
        return error


def _packed(command: Command) -> bytes:
    """The command as the protocol has it; redis-py's own way takes some 2 us for each argument."""
    words = [word if isinstance(word, bytes) else str(word).encode() for word in command]
    return b"*%d\r\n%b" % (
        len(words),
        b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words]),
    )


def _rounds(commands: Sequence[Command]) -> Iterator[Sequence[Command]]:
    start, size = 0, 0
    for index, command in enumerate(commands):
        weight = sum(len(part) if isinstance(part, str | bytes) else 8 for part in command)
        if index > start and size + weight > ROUND_BYTES:
            yield commands[start:index]
            start, size = index, 0
        size += weight
    if start < len(commands):
        yield commands[start:]


def _say(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
