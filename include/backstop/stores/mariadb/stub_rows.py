"""What rows of stubs and attempts in MariaDB say: as records, and as the tables of the rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from backstop.model.read_json import read_json
from backstop.model.records import EARLIEST, Attempt, Key, Message, Stub
from backstop.model.storable_text import escaped
from backstop.sql.connection import UNREADABLE
from backstop.stores.mariadb.keys import as_text, is_text, of_micros, to_micros, within_bounds
from backstop.stores.protocol import ATTEMPT_COLUMNS, STUB_COLUMNS
from backstop.stores.sent_headers import sent_headers

_KINDS = tuple(STUB_COLUMNS.values())[1:]
_NAMES = tuple(STUB_COLUMNS)[1:]
_TIMES = frozenset(
    (
        "next_check_at",
        "created_at",
        "first_seen_at",
        "judged_at",
        "deliver_at",
        "attempted_at",
        "sent_at",
        "attempt_deadline",
    )
)
_REQUIRED = frozenset(("next_check_at", "created_at"))
_ZERO_DATE = to_micros(EARLIEST)


def key_of(row: Sequence[Any]) -> Key:
    """Of a row that begins with its key."""
    return Key(as_text(row[0]), as_text(row[1]))


def stub_of(shard: str, row: Sequence[Any]) -> Stub:
    """Of the columns stub_columns and more_columns."""
    found: dict[str, Any] = dict(zip(_NAMES, row, strict=False))
    ordering_key, token, first_groups = row[len(_NAMES) :]
    for name in ("settled", "first_to_all"):  # which a Stub knows of the two others
        del found[name]
    found |= {name: of_micros(_micros_of(name, found[name])) for name in _TIMES}
    texts = ("tag", "broker", "queue_epoch", "first_broker", "first_queue_epoch")
    found |= {name: _text(found[name]) for name in ("topic", "message_id", *texts)}
    return Stub(
        shard=shard,
        **found,
        ordering_key=_text(ordering_key),
        attempt_token=token,
        first_groups=_groups(first_groups),
    )


def attempt_of(row: Sequence[Any]) -> Attempt:
    """Of a row of `attempts`."""
    (
        topic,
        message_id,
        number,
        groups,
        by,
        started,
        finished,
        outcome,
        queue,
        offset,
        epoch,
        error,
    ) = row
    return Attempt(
        topic=as_text(topic),
        message_id=as_text(message_id),
        send_number=number,
        groups=_groups(groups),
        requested_by=by,
        started_at=of_micros(started),  # type: ignore[arg-type]
        finished_at=of_micros(finished),
        outcome=outcome,
        queue_id=queue,
        queue_offset=offset,
        queue_epoch=_text(epoch),
        error=error,
    )


def message_of(row: Sequence[Any]) -> Message:
    """Of a row of content_columns. Raises StoreFailed for headers that cannot be read."""
    topic, message_id, content, document, tag, ordering_key, version = row
    key = Key(as_text(topic), as_text(message_id))
    return Message(
        *key,
        bytes(content),
        sent_headers(*key, document, version),
        _as_written(tag),
        _as_written(ordering_key),
    )


def stub_table(shard: str, rows: Sequence[Sequence[Any]]) -> Any:
    """An Arrow table of STUB_COLUMNS, of rows of stub_columns."""
    turned = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in _NAMES]
    keys = zip(turned[_NAMES.index("topic")], turned[_NAMES.index("message_id")], strict=True)
    states = zip(keys, turned[_NAMES.index("status")], strict=True)
    turned[_NAMES.index("status")] = [
        status if all(map(is_text, key)) else UNREADABLE for key, status in states
    ]
    for place, (name, kind) in enumerate(zip(_NAMES, _KINDS, strict=True)):
        if name in _TIMES:
            turned[place] = [_micros_of(name, value) for value in turned[place]]
        elif kind == "string":
            turned[place] = [_text(value) for value in turned[place]]
        elif kind == "boolean":
            turned[place] = [bool(value) for value in turned[place]]
    return _table([[shard] * len(rows), *turned], STUB_COLUMNS)


def attempt_table(rows: Sequence[Sequence[Any]]) -> Any:
    """An Arrow table of ATTEMPT_COLUMNS, of rows of attempt_columns: one row for each group that an attempt was addressed to."""
    flat = list(_each_group(rows))
    turned = [list(column) for column in zip(*flat, strict=True)] or [[] for _ in ATTEMPT_COLUMNS]
    return _table(turned, ATTEMPT_COLUMNS)


def _each_group(rows: Sequence[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    for (
        topic,
        message_id,
        number,
        groups,
        outcome,
        broker,
        queue,
        offset,
        epoch,
        began,
        ended,
    ) in rows:
        for group in _groups(groups) or (None,):
            yield (
                as_text(topic),
                as_text(message_id),
                number,
                group,
                outcome,
                _text(broker),
                queue,
                offset,
                _text(epoch),
                within_bounds(began),
                within_bounds(ended),
            )


def _table(columns: Sequence[Sequence[Any]], named: Any) -> Any:
    import pyarrow as pa  # which not every caller has

    from backstop.sql.arrow import arrow_schema

    schema = arrow_schema(named)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _groups(document: str | None) -> tuple[str, ...] | None:
    """The groups that a number was addressed to; None: all. What another program wrote that is no list of groups counts as all of
    them: one such row must not keep its shard from being read, and no group may be taken for one that got no copy."""
    if document is None:
        return None
    try:
        given = read_json(document)
    except ValueError:
        return None
    if not isinstance(given, list) or not all(isinstance(group, str) for group in given):
        return None
    return tuple(map(escaped, given))


def _micros_of(name: str, value: int | None) -> int | None:
    """A zero date, which a server keeps where a column takes no NULL, is the earliest instant there."""
    return within_bounds(value if value is not None or name not in _REQUIRED else _ZERO_DATE)


def _as_written(value: bytes | str | None) -> str | None:
    """For what is published: a NUL, which no table of ours could hold, goes out as the first copy had it."""
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return _text(value)


def _text(value: bytes | str | None) -> str | None:
    return None if value is None else as_text(value)
