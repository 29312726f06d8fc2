"""Sends script calls to Redis, a batch in one write, and reads their answers.

redis-py packs every argument by itself, which costs more than the server's work; a batch is packed here. Nothing is
tried twice: a grant whose answer was lost must not be given again.
"""

from collections.abc import Sequence
from hashlib import sha1
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.exceptions import (
    AuthenticationError,
    NoScriptError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    SlotNotCoveredError,
)
from redis.retry import Retry

from backstop.model.errors import ConfigurationError, StoreUnavailable
from backstop.model.mask_secrets import mask_secrets
from backstop.model.redis_url import AS_URL, require_database

Call = tuple["Script", Sequence[bytes], Sequence[bytes]]
"""A script, its keys (of one hash tag) and its arguments."""
SOCKET_SECONDS = 2.0
ROUND = 64
"""Calls before their answers are read, so that neither side's buffers fill up."""
WRITE = 4


class Script:
    """A Lua script of the folder `lua`, behind what all of them share."""

    def __init__(self, name: str) -> None:
        folder = files("backstop.leases") / "lua"
        self.name = name
        self.text = "".join(
            (folder / f"{part}.lua").read_text(encoding="utf-8") for part in ("record", name)
        )
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest().encode()


class RedisExchange:
    """A server or a cluster (`cluster=True`), by its URL. Safe to share between threads.

    Raises ConfigurationError for a database that is not a number. Opened by the first call. Every failure is
    StoreUnavailable, which names no password; what a failed call did is unknown.
    """

    def __init__(self, url: str, *, cluster: bool = False, timeout: float = SOCKET_SECONDS) -> None:
        try:
            require_database(url)
        except ValueError:  # its text repeats what it could not read: a part of the password
            raise ConfigurationError(
                "The connection of the Redis that holds the leases is not a URL, or its database is not a number.",
                unaffected="No lease was asked for.",
                next_step=AS_URL,
            ) from None
        self._url, self._is_cluster = url, cluster
        self._options: dict[str, Any] = {
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "decode_responses": False,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
        }
        self._server: redis.Redis | None = None
        self._cluster: RedisCluster | None = None

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """The answer of each script call, in order. Raises StoreUnavailable."""
        return list(self._guarded(lambda: self._run(calls))) if calls else []

    def nodes(self) -> list[Any]:
        """A client for each primary: what SCAN has to be asked of. Raises StoreUnavailable."""

        def primaries() -> list[Any]:
            client: Any = self._client()
            if self._is_cluster:
                return [client.get_redis_connection(node) for node in client.get_primaries()]
            return [client]

        return list(self._guarded(primaries))

    def info(self, *sections: str) -> list[dict[str, Any]]:
        """What each primary says of itself in these sections of INFO. Raises StoreUnavailable."""
        nodes = self.nodes()
        return list(
            self._guarded(
                lambda: [
                    {
                        name: value
                        for section in sections
                        for name, value in node.info(section).items()
                    }
                    for node in nodes
                ]
            )
        )

    def close(self) -> None:
        for client in (self._server, self._cluster):
            if client is not None:
                client.close()
        self._server = self._cluster = None

    def _client(self) -> Any:  # redis-py's clients are not typed where it matters
        if self._is_cluster:
            if self._cluster is None:
                self._cluster = RedisCluster.from_url(self._url, **self._options)
            return self._cluster
        if self._server is None:
            self._server = redis.Redis.from_url(self._url, **self._options)
        return self._server

    def _run(self, calls: Sequence[Call]) -> list[Any]:
        client: Any = self._client()
        if not self._is_cluster:
            return _exchange(client.connection_pool, calls)
        # Each node gets its calls in one write.
        answers: list[Any] = [None] * len(calls)
        by_node: dict[str, list[int]] = {}
        for number, (_, keys, _) in enumerate(calls):
            by_node.setdefault(client.get_node_from_key(keys[0]).name, []).append(number)
        for name, numbers in by_node.items():
            node = client.get_node(node_name=name)
            found = _exchange(
                client.get_redis_connection(node).connection_pool, [calls[n] for n in numbers]
            )
            for number, answer in zip(numbers, found, strict=True):
                answers[number] = answer
        return answers

    def _guarded(self, ask: Any) -> Any:
        try:
            return ask()
        except (
            RedisError,
            RedisClusterException,
            SlotNotCoveredError,
            OSError,
            ValueError,
        ) as error:
            why = f"{type(error).__name__}: {error}".rstrip(". :")
            if self._is_cluster:  # after a failover its table of slots is old
                self.close()
            why = mask_secrets(why, [urlsplit(self._url).password or ""])
            said, next_step = "did not answer", "Restart it, or correct its connection"
            if isinstance(error, AuthenticationError):
                said = "refused the connection"
            elif isinstance(error, ResponseError):
                # It is full, a replica, or the login lacks a right; a slot that moves is over soon.
                said, next_step = "refused the call", "If this lasts, correct what its error names"
            raise StoreUnavailable(
                f"Redis, which holds the leases, {said}: {why}.",
                unaffected="Nothing was assumed from its silence.",
                next_step=f"{next_step}; work then resumes by itself.",
            ) from None


def _exchange(pool: Any, calls: Sequence[Call]) -> list[Any]:
    answers = _once(pool, calls)
    missing = [number for number, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
    if (
        missing
    ):  # a server that restarted or failed over forgot them; it certainly ran nothing of these
        for script in {calls[number][0] for number in missing}:
            redis.Redis(connection_pool=pool).script_load(script.text)
        again = _once(pool, [calls[number] for number in missing])
        for number, answer in zip(missing, again, strict=True):
            answers[number] = answer
    for answer in answers:
        if isinstance(answer, RedisError):
            raise answer
    return answers


def _once(pool: Any, calls: Sequence[Call]) -> list[Any]:
    connection = pool.get_connection()
    answers: list[Any] = []
    try:
        for at in range(0, len(calls), ROUND):
            sent = calls[at : at + ROUND]
            # A few at a time: the server is at work on the first while the next are packed.
            for start in range(0, len(sent), WRITE):
                packed = [_packed(*call) for call in sent[start : start + WRITE]]
                connection.send_packed_command([b"".join(packed)], check_health=False)
            for _ in sent:
                try:
                    answers.append(connection.read_response())
                except (
                    ResponseError
                ) as error:  # an answer like any other: those behind it must still be read
                    answers.append(error)
        if any(isinstance(answer, ReadOnlyError) for answer in answers):
            connection.disconnect()  # a demoted primary: its name leads to another server the next time
        return answers
    except BaseException:
        connection.disconnect()  # unread answers must not meet the next call
        raise
    finally:
        pool.release(connection)


def _packed(script: Script, keys: Sequence[bytes], arguments: Sequence[bytes]) -> bytes:
    words = [b"EVALSHA", script.sha, b"%d" % len(keys), *keys, *arguments]
    return b"*%d\r\n%b" % (
        len(words),
        b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words]),
    )
