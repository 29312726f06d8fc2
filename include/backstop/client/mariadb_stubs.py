"""The stubs of a producer in MariaDB and MySQL; see stub_table.StubTable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from backstop.model.records import Key
from backstop.sql.mariadb_keys import BYTES_OF_STATEMENT, listed, with_stubs
from backstop.sql.mariadb_run import fetch, run
from backstop.sql.named import load
from backstop.sql.run import Connection, is_in_transaction

_QUERIES = load("backstop.client", "mariadb_stubs.sql")
_SQL = {
    name: with_stubs(text.replace("{latest}", _QUERIES["latest"]))
    for name, text in _QUERIES.items()
}
_ROWS = 500
"""Messages of one statement, which a server takes up to a limit of its own (max_allowed_packet)."""
_IS_THERE = 1062
_TEXTS = ("topic", "message_id", "message_key", "tag", "ordering_key", "headers", "content_type")
_COLUMNS = {
    "topics": "topic",
    "message_ids": "message_id",
    "message_keys": "message_key",
    "tags": "tag",
    "ordering_keys": "ordering_key",
    "sequences": "sequence",
    "headers": "headers",
    "contents": "content",
    "content_types": "content_type",
    "deliver_at": "deliver_at",
    "tokens": "token",
}
_ENDS = {
    "topics": "topic",
    "message_ids": "message_id",
    "tokens": "token",
    "outcomes": "outcome",
    "queue_ids": "queue_id",
    "queue_offsets": "queue_offset",
    "queue_epochs": "queue_epoch",
    "broker_message_ids": "broker_message_id",
    "errors": "error",
    "max_send_seconds": "max_send",
}
_Row = dict[str, Any]


class MariaStubTable:
    """See stub_table.StubTable."""

    def record(self, connection: Connection, values: Mapping[str, Any]) -> set[Key]:
        terms = {
            "first_check": _micros(values["first_check_seconds"]),
            "attempt_timeout": _micros(values["attempt_timeout_seconds"]),
        }
        found = [_stored(row) | terms for row in _turned(values, _COLUMNS)]
        written: set[Key] = set()
        for some in _in_statements(sorted(found, key=_place)):
            try:
                _insert(connection, some)
            except Exception as error:
                # The statement is undone alone, and the transaction goes on, so that the caller hears which one it was.
                there = _there(connection, some) if error.args[:1] == (_IS_THERE,) else set()
                if not there:
                    raise
                return written | ({_key(row) for row in some} - there)
            written |= {_key(row) for row in some}
        return written

    def has_content(self, connection: Connection, key: Key, content: bytes) -> bool:
        values = {
            "topic": key.topic.encode(),
            "ids": listed([key.message_id.encode()]),
            "content": content,
        }
        found = fetch(connection, _SQL["has_content"], values)
        return bool(found and found[0]["same"])

    def look(
        self, connection: Connection, values: Mapping[str, Any]
    ) -> Sequence[Mapping[str, Any]]:
        in_transaction = is_in_transaction(connection)
        ((reported,),) = (row.values() for row in fetch(connection, _SQL["in_transaction"], {}))
        asked = list(zip(values["topics"], values["message_ids"], values["tokens"], strict=True))
        found: dict[Key, _Row] = {}
        for given, _ in _by_topic(Key(topic, message_id) for topic, message_id, _ in asked):
            for row in fetch(connection, _SQL["look"], given):
                found[Key(given["topic"].decode(), bytes(row["message_id"]).decode())] = row
        seen = []
        for topic, message_id, token in asked:
            stub = found.get(Key(topic, message_id))
            ours = stub is not None and _text(stub["status"]) == "pending"
            ours = ours and stub is not None and _text(stub["attempt_token"]) == token
            seen.append(
                {
                    "topic": topic,
                    "message_id": message_id,
                    "recorded": stub is not None,
                    "ours": ours,
                    "seconds_left": _seconds(stub, "micros_left"),
                    "early_seconds": max(_seconds(stub, "micros_early") or 0.0, 0.0) or None,
                    "in_transaction": in_transaction or bool(reported),
                }
            )
        return seen

    def settle(self, connection: Connection, values: Mapping[str, Any]) -> set[Key]:
        ends = {_key(row): row for row in map(_stored, _turned(values, _ENDS))}
        broker = values["broker"]
        settled: set[Key] = set()
        for given, keys in _by_topic(ends):
            held = {
                bytes(row["message_id"]).decode(): _text(row["attempt_token"])
                for row in fetch(connection, _SQL["hold"], given)
            }
            for key in keys:
                end = ends[key]
                if end["token"] is None or held.get(key.message_id) != end["token"]:
                    continue
                end["broker"] = None if broker is None else broker.encode()
                run(connection, _SQL["settle"], end)
                run(connection, _SQL["record_attempt"], end)
                settled.add(key)
        return settled


MARIADB = MariaStubTable()


def _insert(connection: Connection, some: Sequence[_Row]) -> None:
    texts: list[str] = []
    given: _Row = {}
    for number, its in enumerate(some):
        texts.append(_SQL["new_stub"].replace(")s", f"_{number})s"))
        given |= {f"{name}_{number}": value for name, value in its.items()}
    run(connection, _SQL["record"].replace("{rows}", ",\n".join(texts)), given)


def _there(connection: Connection, some: Sequence[_Row]) -> set[Key]:
    return {
        Key(given["topic"].decode(), bytes(row["message_id"]).decode())
        for given, _ in _by_topic(map(_key, some))
        for row in fetch(connection, _SQL["there"], given)
    }


def _in_statements(rows: Sequence[_Row]) -> Iterator[list[_Row]]:
    some: list[_Row] = []
    size = 0
    for row in rows:
        its = len(row["content"]) + len(row["headers"])
        if some and (len(some) == _ROWS or size + its > BYTES_OF_STATEMENT):
            yield some
            some, size = [], 0
        some.append(row)
        size += its
    if some:
        yield some


def _turned(values: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[_Row]:
    for row in zip(*(values[name] for name in names), strict=True):
        yield dict(zip(names.values(), row, strict=True))


def _stored(row: _Row) -> _Row:
    """As the columns have it."""
    found: _Row = {
        name: value.encode()
        if isinstance(value, str) and name not in ("token", "outcome")
        else value
        for name, value in row.items()
    }
    at = found.get("deliver_at")
    if isinstance(at, datetime):
        found["deliver_at"] = at.astimezone(UTC).replace(tzinfo=None)
    if "max_send" in found:
        found["max_send"] = _micros(found["max_send"])
    return found


def _by_topic(keys: Iterable[Key]) -> Iterator[tuple[_Row, list[Key]]]:
    """The values of {of_keys} for some messages of each topic, in the order in which everybody locks, and which these are."""
    for topic, of_topic in groupby(sorted(set(keys)), key=lambda key: key.topic):
        rest = list(of_topic)
        while rest:
            some, rest = rest[:_ROWS], rest[_ROWS:]
            ids = listed(key.message_id.encode() for key in some)
            yield {"topic": topic.encode(), "ids": ids}, some


def _key(row: _Row) -> Key:
    return Key(row["topic"].decode(), row["message_id"].decode())


def _place(row: _Row) -> tuple[bytes, bytes]:
    return row["topic"], row["message_id"]


def _seconds(stub: _Row | None, name: str) -> float | None:
    micros = None if stub is None else stub[name]
    return None if micros is None else micros / 1_000_000


def _text(value: Any) -> str | None:
    """Drivers differ in what they make of a text in another character set than the connection's."""
    return value if value is None or isinstance(value, str) else bytes(value).decode()


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)
