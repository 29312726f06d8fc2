"""Writes the SELECT over another program's table in PostgreSQL: its columns by our names, its states in our words.

Names come from backstop.yaml and are quoted as identifiers; every value is a parameter. A `%` is doubled, because the text goes
through the driver's parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backstop.config.mapped import CAPTURED_AT, LogMapping, StubMapping, table_parts
from backstop.stores.mapped.states import log_kind, stub_state

CHECKS_JSON = 160_000
"""The server version that can say whether a text is JSON before it is read as such."""
_UNHELD = (
    r"(?<!\\)((?:\\\\)*)\\u0000",
    r"(?<!\\)((?:\\\\)*)\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})",
    r"(?<!\\)(?<!(?:^|[^\\])(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2})((?:\\\\)*)\\u[dD][c-fC-F][0-9a-fA-F]{2}",
)
"""Escapes in a JSON text, behind an even number of backslashes: a NUL, and either half of a surrogate pair without the other."""
_MICROS = (
    "CASE WHEN {at} IS NOT NULL THEN (extract(epoch FROM greatest(timestamptz '0001-01-01 00:00:00+00',"
    " least({at}, timestamptz '9000-01-01 00:00:00+00'))) * 1000000)::bigint END"
)
CAPTURED = "backstop_capture.captured_row"
"""Where the triggers of captured tables write; see capture_sql."""
_EARLIEST_MS, _LATEST_MS = -62_135_596_800_000, 221_845_392_000_000
"""The years 1 and 9000: to_timestamp refuses what lies far beyond."""


def table_of(name: str) -> str:
    """A table's name, quoted."""
    return ".".join(_quoted(part) for part in table_parts(name) if part is not None)


class _Words:
    """See states.Words."""

    def __init__(self, version: int) -> None:
        self._version = version

    def text(self, column: str) -> str:
        return _text(column, self._version)

    def is_set(self, column: str) -> str:
        return f"t.{_quoted(column)} IS NOT NULL"

    def one_of(self, text: str, values: str) -> str:
        return f"{_exact(text)} = ANY (%({values})s::text[])"


def stub_rows(mapping: StubMapping, version: int) -> str:
    """A SELECT of topic, message_id, created_at (microseconds), state and row_version; its parameters are `stub_values`."""
    if mapping.is_captured:
        return _captured_rows(mapping)
    state = stub_state(mapping, _Words(version))
    theirs = "%(only_topic)s::text" if mapping.topic is None else _text(mapping.topic, version)
    tables = [
        f"SELECT {theirs} AS theirs, {_text(mapping.message_id, version)} AS message_id,"
        f" {_instant(mapping, mapping.created_at)} AS created_at, {state} AS state, t.xmin::text AS row_version"
        f" FROM {table_of(table)} t{_only(mapping)}"
        for table in mapping.tables
    ]
    return (
        f"SELECT m.ours AS topic, r.message_id, {_MICROS.format(at='r.created_at')} AS created_at, r.state, r.row_version,"
        f" r.created_at AS created FROM ({' UNION ALL '.join(tables)}) r"
        f" JOIN unnest(%(theirs)s::text[], %(ours)s::text[]) AS m (theirs, ours) ON m.theirs = {_exact('r.theirs')}"
    )


CONTENT_KINDS = ("text", "character varying", "json", "jsonb", "bytea")
"""Types of a column whose values can be sent as they are written there, also under the name of a domain."""


def rows_to_send(mapping: StubMapping, table: str, version: int, *, content: bool) -> str:
    """A SELECT of topic, message_id, state, row_version, oid and ctid of the rows of messages in one table, then of their
    content, its type and their headers (nulls unless `content`); its parameters are `stub_values` and `topics`, `message_ids`.

    It writes bytea as the session does, which must be as hexadecimal digits.
    """
    # Headers in a text that cannot be read are not none: what is no object is refused.
    held, headers = (
        f"({_part(name, version, otherwise)})::text"
        if content and name is not None
        else "NULL::text"
        for name, otherwise in ((mapping.content, "NULL"), (mapping.headers, "'0'::json"))
    )
    kind = "NULL::text"
    if content and mapping.content is not None:
        kind = base_type(f"pg_typeof(t.{_quoted(mapping.content.split('.')[0])})")
    return (
        f"SELECT k.topic, k.message_id, {stub_state(mapping, _Words(version))} AS state, t.xmin::text AS row_version,"
        f" t.tableoid::bigint, t.ctid::text, {held}, {kind}, {headers}{_of_messages(mapping, table, version)}"
    )


def sizes_to_send(mapping: StubMapping, table: str, version: int) -> str:
    """A SELECT of topic, message_id and the bytes of the columns that hold content and headers, at least, of the rows of messages
    in one table; its parameters are those of `rows_to_send`."""
    held = dict.fromkeys(
        n.split(".")[0] for n in (mapping.content, mapping.headers) if n is not None
    )
    size = " + ".join(f"coalesce(octet_length(t.{_quoted(name)}::text), 0)" for name in held)
    return f"SELECT k.topic, k.message_id, ({size or '0'})::bigint{_of_messages(mapping, table, version)}"


def base_type(oid: str) -> str:
    """The name of a type; of a domain, of what it is made of."""
    return (
        f"(WITH RECURSIVE b (oid, base) AS (SELECT y.oid, y.typbasetype FROM pg_type y WHERE y.oid = {oid}"
        " UNION ALL SELECT y.oid, y.typbasetype FROM b JOIN pg_type y ON y.oid = b.base)"
        " SELECT format_type(b.oid, NULL) FROM b WHERE b.base = 0)"
    )


def visible_table(name: str) -> str:
    """The table of a quoted name; null: there is none, or its schema may not be used, for which to_regclass fails."""
    return (
        f"CASE WHEN cardinality(parse_ident({name})) = 1 OR EXISTS (SELECT 1 FROM pg_namespace s"
        f" WHERE s.nspname = (parse_ident({name}))[1] AND has_schema_privilege(s.oid, 'USAGE')) THEN to_regclass({name}) END"
    )


def _of_messages(mapping: StubMapping, table: str, version: int) -> str:
    theirs = "%(only_topic)s::text" if mapping.topic is None else _text(mapping.topic, version)
    message_id = _text(mapping.message_id, version)
    return (
        f" FROM {table_of(table)} t"
        " JOIN unnest(%(theirs)s::text[], %(ours)s::text[]) AS m (theirs, ours)"
        f" ON m.theirs = {_exact(theirs)}"
        " JOIN (SELECT DISTINCT * FROM unnest(%(topics)s::text[], %(message_ids)s::text[])) AS k (topic, message_id)"
        f" ON k.topic = m.ours AND k.message_id = {message_id} AND k.message_id = {_exact(message_id)}{_only(mapping)}"
    )


def rearm_rows(mapping: StubMapping, version: int) -> str:
    """An UPDATE that sets rows (`oids`, `ctids`) back, RETURNING their state; its parameters are `stub_values` and those of
    `rearm_values`."""
    sets = ", ".join(
        f"{_quoted(column)} = %(rearm_{place})s" for place, column in enumerate(mapping.rearm)
    )
    return (
        f"UPDATE {table_of(mapping.tables[0])} t SET {sets}"
        " FROM unnest(%(oids)s::bigint[], %(ctids)s::text[]) AS r (oid, ctid)"
        " WHERE t.ctid = r.ctid::tid AND t.tableoid = r.oid::oid"
        f" RETURNING {stub_state(mapping, _Words(version))}"
    )


def rearm_values(mapping: StubMapping) -> dict[str, Any]:
    return {f"rearm_{place}": value for place, value in enumerate(mapping.rearm.values())}


def _part(column: str, version: int, otherwise: str) -> str:
    """The column, or a part of its JSON as it is written there: keys keep their order, and numbers their digits. `otherwise`: of a
    text that cannot be read."""
    name, *path = column.split(".")
    if not path:
        return f"t.{_quoted(name)}"
    document = f"t.{_quoted(name)}::text"
    read = f"{document}::json #> ARRAY[{', '.join(map(_literal, path))}]"
    # The server checks the form of `json` alone, and then fails at a character that it cannot hold.
    readable = (
        f"{_mended(document)} = {document}"
        if version < CHECKS_JSON
        else f"pg_input_is_valid({document}, 'jsonb')"
    )
    return (
        f"CASE WHEN {document} IS NULL THEN NULL WHEN {readable} THEN {read} ELSE {otherwise} END"
    )


def _captured_rows(mapping: StubMapping) -> str:
    """The same over what the trigger kept. With a slot, a look of the control database finds out what it is past."""
    state, theirs = "'unsent'", "t.topic"
    if mapping.deleted_when_sent:
        there = f"SELECT 1 FROM {table_of(mapping.tables[0])} o WHERE o.{_quoted(mapping.message_id)}::text = t.message_id"
        state = f"CASE WHEN EXISTS ({there}) THEN 'unsent' ELSE 'sent' END"
    if mapping.topic is None:
        theirs = "%(only_topic)s::text"
    return (
        f"SELECT m.ours AS topic, r.message_id, {_MICROS.format(at='r.created_at')} AS created_at, r.state, r.row_version,"
        f" r.created_at AS created FROM (SELECT {theirs} AS theirs, t.message_id, t.captured_at AS created_at, {state} AS state,"
        f" t.xmin::text AS row_version FROM {CAPTURED} t WHERE t.source = %(source)s::text) r"
        f" JOIN unnest(%(theirs)s::text[], %(ours)s::text[]) AS m (theirs, ours) ON m.theirs = {_exact('r.theirs')}"
    )


def stub_values(mapping: StubMapping) -> dict[str, Any]:
    """The parameters of `stub_rows`."""
    return {
        "theirs": list(mapping.topics),
        "ours": list(mapping.topics.values()),
        "only_topic": next(iter(mapping.topics)),
        "sent": list(mapping.sent),
        "unsent": list(mapping.unsent),
        "source": mapping.tables[0],
        **_values(mapping.only, mapping.time_zone),
    }


def log_rows(mapping: LogMapping, version: int) -> str:
    """A SELECT of theirs (the topic), message_id, its_group, kind (see log_kind), received_at and done_at;
    its parameters are `log_values`."""
    kind = log_kind(mapping, _Words(version))
    theirs, group = (
        "NULL::text" if column is None else _text(column, version)
        for column in (mapping.topic, mapping.group)
    )
    received, done = (
        "NULL::timestamptz" if column is None else _instant(mapping, column)
        for column in (mapping.received_at, mapping.done_at)
    )
    return " UNION ALL ".join(
        f"SELECT {theirs} AS theirs, {_text(mapping.message_id, version)} AS message_id, {group} AS its_group, {kind} AS kind,"
        f" {received} AS received_at, {done} AS done_at FROM {table_of(table)} t{_only(mapping)}"
        for table in mapping.tables
    )


def log_values(mapping: LogMapping) -> dict[str, Any]:
    """The parameters of `log_rows`."""
    return {
        "done": list(mapping.done),
        "working": list(mapping.working),
        "failed": list(mapping.failed),
        **_values(mapping.only, mapping.time_zone),
    }


def tables_of(mapping: StubMapping | LogMapping) -> list[str]:
    """The tables that are read, quoted as the server takes names."""
    names = [table_of(name).replace("%%", "%") for name in mapping.tables]
    if not (isinstance(mapping, StubMapping) and mapping.is_captured):
        return names
    return [CAPTURED, *(names if mapping.deleted_when_sent else [])]


def columns_of(mapping: StubMapping | LogMapping) -> Sequence[str]:
    """The table's columns that are read, each once."""
    if isinstance(mapping, StubMapping) and mapping.is_captured:
        return ["source", "topic", "message_id", CAPTURED_AT]
    named = [mapping.message_id, mapping.topic, mapping.state, *mapping.only]
    if isinstance(mapping, StubMapping):
        named += [mapping.created_at, mapping.sent_when_set]
    else:
        named += [mapping.group, mapping.received_at, mapping.done_at, mapping.done_when_set]
    return list(dict.fromkeys(name.split(".")[0] for name in named if name is not None))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''").replace("%", "%%") + "'"


def _exact(text: str) -> str:
    """Compared by each character: a column's own collation may take other texts for the same. Beside the comparison that serves
    an index, not in its place."""
    return f'({text}) COLLATE "C"'


def _text(column: str, version: int) -> str:
    name, *path = column.split(".")
    if not path:
        return f"t.{_quoted(name)}::text"
    document, at = f"t.{_quoted(name)}::text", f"#>> ARRAY[{', '.join(map(_literal, path))}]"
    mended = _mended(document)
    # An id that was itself mended may be any: it has no text.
    read_mended = rf"substring({mended}::jsonb {at} FROM E'^[^\\x1a]*$')"
    if version < CHECKS_JSON:
        return f"CASE WHEN strpos({document}, E'\\\\u') = 0 THEN {document}::jsonb {at} ELSE {read_mended} END"
    # A row whose text is no JSON costs itself, not the statement.
    return (
        f"CASE WHEN pg_input_is_valid({document}, 'jsonb') THEN {document}::jsonb {at}"
        f" WHEN pg_input_is_valid({mended}, 'jsonb') THEN {read_mended} END"
    )


def _mended(document: str) -> str:
    """The JSON with U+001A in place of each character that PostgreSQL cannot hold, though anybody else reads the rest: a NUL, or half
    of a surrogate pair, as programs write a text that was cut."""
    for pattern in _UNHELD:
        written = pattern.replace("\\", "\\\\")
        document = rf"regexp_replace({document}, E'{written}', E'\\1\\\\u001a', 'g')"
    return document


def _instant(mapping: StubMapping | LogMapping, column: str) -> str:
    name = f"t.{_quoted(column)}"
    if mapping.times == "local":
        at = _bounded(f"{name}::timestamp", "timestamp '0001-01-01'", "timestamp '9000-01-01'")
        return f"CASE WHEN {name} IS NOT NULL THEN {at} AT TIME ZONE %(time_zone)s::text END"
    if mapping.times == "milliseconds":
        # As a numeric: no other type holds every number, and NaN, which it takes for the largest.
        at = _bounded(f"{name}::numeric", str(_EARLIEST_MS), str(_LATEST_MS))
        return f"CASE WHEN {name} IS NOT NULL THEN to_timestamp({at} / 1000.0) END"
    return f"{name}::timestamptz"


def _bounded(value: str, earliest: str, latest: str) -> str:
    """One time that is out of all bounds costs its own row's date, not the statement; of a null greatest and least say nothing."""
    return f"greatest({earliest}, least({value}, {latest}))"


def _only(mapping: StubMapping | LogMapping) -> str:
    wanted: list[str] = []
    for place, column in enumerate(mapping.only):
        text, value = f"t.{_quoted(column)}::text", f"%(only_{place})s::text"
        wanted += [f"{text} = {value}", f"{_exact(text)} = {value}"]
    return f" WHERE {' AND '.join(wanted)}" if wanted else ""


def _values(only: Mapping[str, str], time_zone: str | None) -> dict[str, Any]:
    return {
        "time_zone": time_zone,
        **{f"only_{place}": value for place, value in enumerate(only.values())},
    }
