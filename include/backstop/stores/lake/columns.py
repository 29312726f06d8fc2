"""Writes the SELECT over a lake table in Spark's SQL: its columns by our names, its states in our words.

Names come from backstop.yaml and are quoted as identifiers, values as literals. A brace is doubled, because the text goes through
the formatter of `SparkSession.sql`, which puts the rows in place of {rows}.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from backstop.config.mapped import LogMapping, StubMapping
from backstop.stores.mapped.states import LOG_OF_ROWS, log_kind, stub_state

_EARLIEST, _LATEST = -62_135_596_800_000_000, 221_845_392_000_000_000
"""The years 1 and 9000, in microseconds."""
_UNHASHED = ("map", "variant")
"""Types without an order, for which Spark has no hash, wherever in a type they stand."""
INSTANTS: Mapping[str, Sequence[str]] = {
    "instant": ("timestamp",),
    "local": ("timestamp_ntz",),
    "milliseconds": ("bigint",),
}
"""A mapping's `times` -> the types of Spark that fit it."""


class Writer:
    """Expressions over the rows `t`; see states.Words. `schema`: what Spark says of the table's columns."""

    def __init__(self, mapping: StubMapping | LogMapping, schema: Any) -> None:
        self._mapping = mapping
        self._types = {field.name: field.dataType for field in schema.fields}

    def text(self, column: str) -> str:
        """Null for text that no database of ours can hold."""
        name, *path = column.split(".")
        read = f"t.{quoted(name)}"
        if type_of(self._types, column) is None:
            read = f"get_json_object(CAST({read} AS STRING), {_json_path(path)})"
        elif path:
            read = ".".join((read, *map(quoted, path)))
        text = f"CAST({read} AS STRING)"
        return f"CASE WHEN is_valid_utf8({text}) AND instr({text}, char(0)) = 0 THEN {text} END"

    def is_no_text(self, column: str) -> str:
        """Whether it is not there, or no text in JSON: a number there may be an id that is written otherwise elsewhere."""
        if type_of(self._types, column) is not None:
            return f"({self.text(column)}) IS NULL"
        name, *path = column.split(".")
        value = f"try_variant_get(try_parse_json(CAST(t.{quoted(name)} AS STRING)), {_json_path(path)}, 'variant')"
        return f"(({self.text(column)}) IS NULL OR NOT (schema_of_variant({value}) <=> 'STRING'))"

    def is_set(self, column: str) -> str:
        return f"t.{quoted(column)} IS NOT NULL"

    def one_of(self, text: str, values: str) -> str:
        named = getattr(self._mapping, values)
        return f"({text}) IN ({', '.join(map(literal, named))})" if named else "FALSE"

    def micros(self, column: str | None) -> str:
        """Microseconds since 1970."""
        if column is None:
            return "CAST(NULL AS BIGINT)"
        at = f"t.{quoted(column)}"
        if self._mapping.times == "milliseconds":
            at = f"least(greatest({at}, {_EARLIEST // 1000}), {_LATEST // 1000}) * 1000"
            return f"CASE WHEN t.{quoted(column)} IS NOT NULL THEN {at} END"
        if self._mapping.times == "local":
            at = f"to_utc_timestamp(CAST({at} AS TIMESTAMP), {literal(self._mapping.time_zone or 'UTC')})"
        read = f"unix_micros({at})"
        return f"CASE WHEN t.{quoted(column)} IS NOT NULL THEN least(greatest({read}, {_EARLIEST}), {_LATEST}) END"

    def wanted(self) -> str:
        """The rows that the mapping is about."""
        where = [
            f"({self.text(column)}) = {literal(value)}"
            for column, value in self._mapping.only.items()
        ]
        return " AND ".join(where) or "TRUE"

    def version(self) -> str:
        """Changes with any value of the row, but for maps and arrays of them."""
        parts = [
            part
            for name, kind in self._types.items()
            for part in _hashable(f"t.{quoted(name)}", kind)
        ]
        return f"CAST(xxhash64({', '.join(parts)}) AS STRING)"


def type_of(types: Mapping[str, Any], column: str) -> Any | None:
    """What Spark says of a column, or of a field of a struct; null: it stands in JSON."""
    name, *path = column.split(".")
    its = types[name]
    for step in path:
        if its.typeName() != "struct":
            return None
        its = next((field.dataType for field in its.fields if field.name == step), None)
        if its is None:
            return None
    return its


def stub_rows(mapping: StubMapping, schema: Any) -> str:
    """A SELECT of topic, message_id, created_at, state and row_version."""
    writer = Writer(mapping, schema)
    topic = (
        literal(next(iter(mapping.topics.values())))
        if mapping.topic is None
        else _ours(writer.text(mapping.topic), mapping.topics)
    )
    return (
        f"SELECT * FROM (SELECT {topic} AS topic, {writer.text(mapping.message_id)} AS message_id,"
        f" {writer.micros(mapping.created_at)} AS created_at, {stub_state(mapping, writer)} AS state,"
        f" {writer.version()} AS row_version FROM {{rows}} t WHERE {writer.wanted()}) WHERE topic IS NOT NULL"
    )


def log_rows(mapping: LogMapping, schema: Any, groups: Mapping[str, Sequence[str]]) -> str:
    """A SELECT of consumer_group, the columns of LOG_COLUMNS, received_at and copies: all rows of a key as one; done by any of them is
    done. `groups`: each group with the topics that are asked for."""
    writer = Writer(mapping, schema)
    kind, received = log_kind(mapping, writer), writer.micros(mapping.received_at)
    done_at = writer.micros(mapping.done_at)
    now = "unix_micros(current_timestamp())"
    branches = [
        f"SELECT {literal(group)} AS consumer_group, {_topic(mapping, writer, topics)} AS topic,"
        f" {writer.text(mapping.message_id)} AS message_id, {kind} AS kind, {received} AS received_at, {done_at} AS done_at"
        f" FROM {{rows}} t WHERE {writer.wanted()}{_may_be_of_group(mapping, writer, group)}"
        for group, topics in groups.items()
    ]
    return (
        f"SELECT consumer_group, topic, message_id, {LOG_OF_ROWS},"
        " CAST(NULL AS BIGINT) AS lease_expires_at, updated_at AS log_updated_at,"
        " CASE WHEN done THEN updated_at END AS log_consumed_at, received_at, copies FROM (SELECT consumer_group, topic, message_id,"
        " bool_or(kind = 'done') AS done, bool_or(kind = 'unknown') AS is_unknown, bool_or(kind = 'groupless') AS is_groupless,"
        " bool_or(kind = 'working') AS working,"
        f" least({now}, max(coalesce(done_at, received_at, {now}))) AS updated_at,"
        f" least({now}, min(coalesce(received_at, done_at, {now}))) AS received_at, count(*) AS copies"
        f" FROM ({' UNION ALL '.join(branches)}) WHERE topic IS NOT NULL AND message_id IS NOT NULL"
        " GROUP BY consumer_group, topic, message_id) g"
    )


def nameless_rows(mapping: LogMapping, schema: Any, group: str) -> str:
    """A SELECT of one row where the group, or no group that can be read, has a row whose id or topic is no text: it may be of any
    message."""
    writer = Writer(mapping, schema)
    names = [mapping.message_id, *([] if mapping.topic is None else [mapping.topic])]
    missing = " OR ".join(writer.is_no_text(name) for name in names)
    return f"SELECT 1 FROM {{rows}} t WHERE {writer.wanted()}{_may_be_of_group(mapping, writer, group)} AND ({missing}) LIMIT 1"


def quoted(name: str) -> str:
    """An identifier."""
    return "`" + _braced(name.replace("`", "``")) + "`"


def literal(text: str) -> str:
    """A text."""
    return "'" + _braced(text.replace("\\", "\\\\").replace("'", "\\'")) + "'"


def _json_path(path: Sequence[str]) -> str:
    return literal("$" + "".join(f"['{step}']" for step in path))


def _hashable(read: str, kind: Any) -> Iterator[str]:
    """The expression, or those of its fields, of which Spark makes a hash."""
    if _has_hash(kind):
        yield read
    elif kind.typeName() == "struct":
        for field in kind.fields:
            yield from _hashable(f"{read}.{quoted(field.name)}", field.dataType)


def _has_hash(kind: Any) -> bool:
    if kind.typeName() == "struct":
        return all(_has_hash(field.dataType) for field in kind.fields)
    if kind.typeName() == "array":
        return _has_hash(kind.elementType)
    return kind.typeName() not in _UNHASHED


def _braced(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _ours(theirs: str, topics: Mapping[str, str]) -> str:
    cases = " ".join(f"WHEN {literal(name)} THEN {literal(ours)}" for name, ours in topics.items())
    return f"CASE ({theirs}) {cases} END"


def _topic(mapping: LogMapping, writer: Writer, topics: Sequence[str]) -> str:
    if mapping.topic is None:  # found by id alone
        return f"explode(array({', '.join(map(literal, topics))}))"
    by_theirs = {theirs: topic for topic in topics for theirs in mapping.names_of(topic)}
    return _ours(writer.text(mapping.topic), by_theirs) if by_theirs else "CAST(NULL AS STRING)"


def _may_be_of_group(mapping: LogMapping, writer: Writer, group: str) -> str:
    """Of the group's rows, and of those whose group cannot be read."""
    if mapping.group is None:
        return ""
    its = f"({writer.text(mapping.group)})"
    return f" AND ({its} = {literal(mapping.groups.get(group, group))} OR {its} IS NULL)"
