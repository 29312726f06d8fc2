"""Record the promise to send in the transaction of the business change: both are there, or neither.

`record` never commits. Its `Recorded` goes to `send` after the commit; if that never happens, Backstop sends.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from backstop.client.check_message import (
    CONTENT_TYPE_HEADER,
    MAX_CONTENT_BYTES,
    check_content,
    check_headers,
    check_key,
    check_optional,
    check_sequence,
    check_text,
    refuse_blank,
)
from backstop.client.stub_table import stub_table
from backstop.leases.guard import new_tokens
from backstop.model.errors import ConfigurationError, ContractBroken
from backstop.model.records import ORDERING_KEY_BYTES, Key, Message
from backstop.sql.run import Connection, is_in_autocommit, is_in_transaction

UNTYPED = "application/octet-stream"
_WRITE = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class SendPolicy:
    """The settings of backstop.yaml that a producer needs; they must be the same for the topic there.

    Raises ConfigurationError when an attempt could end before its send.
    """

    first_check: timedelta = timedelta(minutes=2)
    """Backstop looks at the stub no sooner: at least a send and the longest business transaction."""
    attempt_timeout: timedelta = timedelta(minutes=2)
    """After this an attempt without an outcome counts as unknown, and may be followed by another."""
    max_send_duration: timedelta = timedelta(seconds=30)
    """From the look before the send to the broker client's last try."""
    longest_delay: timedelta = timedelta(days=7)
    """The farthest that `deliver_at` may lie ahead: logs and broker keep what they know for no longer."""

    def __post_init__(self) -> None:
        if not timedelta(0) < self.max_send_duration < self.attempt_timeout or (
            self.first_check < self.max_send_duration
        ):
            raise ConfigurationError(
                f"max_send_duration {self.max_send_duration}, attempt_timeout {self.attempt_timeout} and "
                f"first_check {self.first_check} do not fit together.",
                unaffected="Nothing was written.",
                next_step="Choose 0 < max_send_duration < attempt_timeout, and at most first_check.",
            )


DEFAULT_POLICY = SendPolicy()


@dataclass(frozen=True, slots=True)
class NewMessage:
    """What `record_many` writes a stub for; the fields are those of `record`."""

    topic: str
    message_id: str
    content: bytes
    tag: str | None = None
    ordering_key: str | None = None
    sequence: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = UNTYPED
    deliver_at: datetime | None = None
    message_key: str | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """The handle for `send`. `token` is the attempt's; null when Backstop is to send the message."""

    message: Message
    token: str | None
    policy: SendPolicy


def record(
    connection: Connection,
    topic: str,
    content: bytes,
    *,
    message_id: str,
    tag: str | None = None,
    ordering_key: str | None = None,
    sequence: int | None = None,
    headers: Mapping[str, str] | None = None,
    content_type: str = UNTYPED,
    deliver_at: datetime | None = None,
    message_key: str | None = None,
    policy: SendPolicy = DEFAULT_POLICY,
    send: bool = True,
    max_content_bytes: int = MAX_CONTENT_BYTES,
) -> Recorded:
    """Write one stub in the caller's open transaction, and hand out send number 1 to the caller.

    `message_id` is a business key, unique in the topic forever (order id plus event). `send=False` leaves
    the send to Backstop, after `first_check`. A `deliver_at` (aware) in the future needs `send=False`, or a
    broker client of the application's own that schedules: `send` refuses it. Beyond `longest_delay` it is refused here.

    Raises ContractBroken for values that are not allowed and for an id that is recorded already; the caller's
    transaction must then be rolled back. What the driver raises passes through.
    """
    new = NewMessage(
        topic,
        message_id,
        content,
        tag,
        ordering_key,
        sequence,
        headers or {},
        content_type,
        deliver_at,
        message_key,
    )
    (recorded,) = record_many(
        connection, [new], policy=policy, send=send, max_content_bytes=max_content_bytes
    )
    return recorded


def record_many(
    connection: Connection,
    messages: Iterable[NewMessage],
    *,
    policy: SendPolicy = DEFAULT_POLICY,
    send: bool = True,
    max_content_bytes: int = MAX_CONTENT_BYTES,
) -> list[Recorded]:
    """Write many stubs together; as `record`, all or none."""
    batch = list(messages)
    for new in batch:
        _check(new, policy, max_content_bytes)
    _refuse_repeated(batch)
    if not batch:
        return []
    _refuse_autocommit(connection)
    # One token for all: an attempt is known by its message and its token.
    token = new_tokens(1)[0] if send else None
    recorded = [Recorded(_to_send(new), token, policy) for new in batch]
    written = stub_table(connection).record(connection, _columns(batch, recorded, policy))
    if len(written) < len(batch):
        raise _recorded_before(
            connection, [n for n in batch if Key(n.topic, n.message_id) not in written]
        )
    return recorded


def _to_send(new: NewMessage) -> Message:
    # The stub stores the headers as they travel, so that a copy sent again is the same copy.
    headers = dict(new.headers)
    if new.content_type != UNTYPED:
        headers.setdefault(CONTENT_TYPE_HEADER, new.content_type)
    return Message(new.topic, new.message_id, new.content, headers, new.tag, new.ordering_key)


def _columns(
    batch: Sequence[NewMessage], recorded: Sequence[Recorded], policy: SendPolicy
) -> dict[str, Any]:
    return {
        "topics": [new.topic for new in batch],
        "message_ids": [new.message_id for new in batch],
        "message_keys": [new.message_key for new in batch],
        "tags": [new.tag for new in batch],
        "ordering_keys": [new.ordering_key for new in batch],
        "sequences": [new.sequence for new in batch],
        "headers": [_WRITE(r.message.headers) if r.message.headers else "{}" for r in recorded],
        "contents": [new.content for new in batch],
        "content_types": [new.content_type for new in batch],
        "deliver_at": [new.deliver_at for new in batch],
        "tokens": [r.token for r in recorded],
        "first_check_seconds": policy.first_check.total_seconds(),
        "attempt_timeout_seconds": policy.attempt_timeout.total_seconds(),
    }


def _check(new: NewMessage, policy: SendPolicy, max_content_bytes: int) -> None:
    check_key(new.topic, new.message_id)
    refuse_blank("topic", new.topic)
    refuse_blank("message_id", new.message_id)
    check_content(new.content, max_content_bytes)
    check_headers(new.headers)
    check_text("content_type", new.content_type)
    check_optional("ordering_key", new.ordering_key, ORDERING_KEY_BYTES)
    check_optional("tag", new.tag)
    check_optional("message_key", new.message_key)
    check_sequence(new.sequence)
    if new.deliver_at is None:
        return
    if new.deliver_at.utcoffset() is None:
        raise ContractBroken(
            f"deliver_at of {new.message_id!r} has no time zone.",
            unaffected="Nothing was written or sent.",
            next_step="Give an aware datetime, in UTC for example.",
        )
    if new.deliver_at > datetime.now(UTC) + policy.longest_delay:
        raise ContractBroken(
            f"deliver_at of {new.message_id!r} is {new.deliver_at}, more than longest_delay ({policy.longest_delay}) ahead.",
            unaffected="Nothing was written or sent.",
            next_step="Record it later, or raise longest_delay in the policy of the topic and here, with log_retention.",
        )


def _refuse_repeated(batch: Sequence[NewMessage]) -> None:
    seen: set[Key] = set()
    for new in batch:
        key = Key(new.topic, new.message_id)
        if key in seen:
            raise ContractBroken(
                f"The batch holds {new.message_id!r} of {new.topic!r} twice.",
                unaffected="Nothing was written or sent.",
                next_step="Record every message once, under an id of its own.",
            )
        seen.add(key)


def _refuse_autocommit(connection: Connection) -> None:
    """A stub that commits by itself promises a business change that may never come, or comes without it."""
    if is_in_autocommit(connection) and not is_in_transaction(connection):
        raise ContractBroken(
            "The connection is in autocommit, so that the stub would not be in the business transaction.",
            unaffected="Nothing was written or sent.",
            next_step="Switch autocommit off, and commit the business change and the stub together.",
        )


def _recorded_before(connection: Connection, again: Sequence[NewMessage]) -> ContractBroken:
    first = again[0]
    key = Key(first.topic, first.message_id)
    is_same = stub_table(connection).has_content(connection, key, first.content)
    same = "the same content" if is_same else "another content"
    more = f" (and {len(again) - 1} more of this batch)" if len(again) > 1 else ""
    return ContractBroken(
        f"{first.message_id!r} of {first.topic!r} was recorded before, with {same}{more}.",
        unaffected="The stub that is there is unchanged, and Backstop answers for it.",
        next_step="Roll this transaction back: the same content means the request was done already; another "
        "content needs an id of its own.",
    )
