"""What a worker asks the guard, and what the guard answers: values, whatever holds the leases."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import NamedTuple

from backstop.model.errors import ContractBroken, LeaseLost
from backstop.model.records import Key, Position

LEASE = timedelta(seconds=60)
RETRY_AFTER = timedelta(seconds=10)
SHORTEST_RETRY = timedelta(milliseconds=50)
"""A lease that ends this instant is not asked for in a tight loop."""
ERROR_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class Arrival:
    """One copy in a worker's hands: what `begin` needs to know of it."""

    topic: str
    message_id: str
    payload_hash: bytes | None = None
    content_version: int = 1
    position: Position | None = None
    """The original one, in a queue of the topic itself."""
    resent: bool = False
    """Backstop sent it because the database knew of no end: only the database may call it done."""

    @property
    def key(self) -> Key:
        return Key(self.topic, self.message_id)


class Acquired(NamedTuple):
    """The lease is ours: process the message, then `complete` or `fail`. `fence` grows with every grant, also
    across a purge or a restore of the record."""

    group: str
    topic: str
    message_id: str
    token: str
    fence: int
    attempts: int = 1
    """How often the message was begun, this time included."""

    @property
    def key(self) -> Key:
        return Key(self.topic, self.message_id)


@dataclass(frozen=True, slots=True)
class Busy:
    """Another worker holds it: never acknowledge; let it come again after this long."""

    retry_after: timedelta


@dataclass(frozen=True, slots=True)
class Done:
    """The group has done this work: acknowledge."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """A newer version of the content is known: acknowledge."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """The same id came with another content: stored, nothing applied; do not acknowledge."""


@dataclass(frozen=True, slots=True)
class Parked:
    """Its ordering key waits for a person: neither process nor acknowledge."""


Begun = Acquired | Busy | Done | Superseded | Conflict | Parked


def payload_hash(content: bytes) -> bytes:
    """By which two copies of one id are told apart: SHA-256 of the content, 32 bytes."""
    return sha256(content).digest()


def retry_in(seconds_left: float | None, longest: timedelta) -> timedelta:
    """When the lease ends, but within the policy's retry_after: its holder may finish sooner."""
    if seconds_left is None:
        return longest
    return max(SHORTEST_RETRY, min(longest, timedelta(seconds=seconds_left)))


def refuse_repeated(arrivals: Sequence[Arrival]) -> None:
    """Raises ContractBroken when a key is there twice."""
    if len({(arrival.topic, arrival.message_id) for arrival in arrivals}) < len(arrivals):
        raise ContractBroken(
            "One batch holds two copies of a message.",
            unaffected="No lease was asked for.",
            next_step="Begin the second copy when the first has ended.",
        )


def error_text(error: str, connection: object = None) -> str:
    """As it is stored: cut to ERROR_CHARACTERS, without what a database cannot hold. `connection`: to the one that shall hold it; in
    another encoding than UTF-8 what is not ASCII is escaped."""
    text = error.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
    if not text.isascii() and _has_another_encoding(connection):
        text = text.encode("ascii", "backslashreplace").decode()
    return text[:ERROR_CHARACTERS]


def _has_another_encoding(connection: object) -> bool:
    """Whether the server or the session is not in UTF-8, as far as the driver tells (psycopg2 and psycopg 3 do)."""
    inner = getattr(connection, "dbapi_connection", None) or connection  # SQLAlchemy's pool
    ask = getattr(getattr(inner, "info", None), "parameter_status", None)
    return callable(ask) and any(
        ask(name) not in (None, "UTF8") for name in ("server_encoding", "client_encoding")
    )


def lost(lease: Acquired, verb: str) -> LeaseLost:
    """The error of a lease that is not ours any more."""
    return LeaseLost(
        f"The lease of {lease.message_id!r} in {lease.topic!r} for {lease.group!r} (fence {lease.fence}) "
        f"could not be {verb}: another worker took it over, or the work has ended.",
        unaffected="The record is as its present owner left it.",
        next_step="Roll back, do not acknowledge: the broker delivers it again.",
    )
