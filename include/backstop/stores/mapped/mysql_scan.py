"""Reads what an inbox in MySQL or MariaDB has done in one pass over the table, in ranges of its primary key.

Such a server exports no snapshot that several sessions could share, and none is needed: a row that says done is final, whenever it
is read, and what a scan misses is asked by key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from backstop.config.mapped import LogMapping
from backstop.sql.named import load
from backstop.stores.mapped.mysql_columns import Writer, as_text, quoted, utc_micros, zone_of
from backstop.stores.postgresql.scan import ROWS_OF_PART, parts_of
from backstop.stores.protocol import PART_COLUMNS

_SQL = load("backstop.stores.mapped", "mysql.sql")
_PIECE = 50_000
"""Rows of one Arrow table."""
T = TypeVar("T")


class KeyRange(NamedTuple):
    """One part: rows of the mapping's table number `place` whose `column` lies in [start, end); null: open, or the whole table.
    `since`: rows received earlier are not worth reading; `most`: it ends after so many."""

    groups: Mapping[str, str]
    """The group's name in the table -> here."""
    place: int
    column: str | None
    start: Any
    end: Any
    since: datetime
    most: int


def cut(
    cursor: Any,
    table: str,
    names: Mapping[str, str | None],
    place: int,
    groups: Mapping[str, str],
    since: datetime,
    rows: int,
    partitions: int,
) -> list[KeyRange]:
    """Ranges of about equal size, where one column is the primary key; else the whole table as one. One walk over the index."""
    cursor.execute(_SQL["primary_key"], names)
    key = [column for (column,) in cursor.fetchall()]
    number = parts_of(rows, partitions)
    most = max(2 * rows // number, 2 * ROWS_OF_PART)
    if number == 1 or len(key) != 1:
        return [KeyRange(groups, place, None, None, None, since, max(most, 2 * rows))]
    step = max(1, rows // number)
    cuts: list[Any] = [None]
    where: str = "TRUE"
    while len(cuts) < number:
        text = _SQL["next_cut"].format(key=quoted(key[0]), table=table, where=where)
        cursor.execute(text, {"after": cuts[-1], "step": step})
        found = cursor.fetchall()
        if not found:
            break
        cuts.append(found[0][0])
        where = f"t.{quoted(key[0])} > %(after)s"
    return [
        KeyRange(groups, place, key[0], start, end, since, most)
        for start, end in pairwise([*cuts, None])
    ]


def read_range(
    cursor: Any,
    mapping: LogMapping,
    table: str,
    writer: Writer,
    part: KeyRange,
    keep: Callable[[str, Any], T],
) -> list[T]:
    """What `keep` makes of each Arrow table of PART_COLUMNS["logs"]; the rows come as the server finds them."""
    import pyarrow as pa

    from backstop.sql.arrow import arrow_schema

    assert mapping.topic is not None
    zone, columns = zone_of(mapping), PART_COLUMNS["logs"]
    where = [f"({writer.kind()}) = 'done'", *writer.only()]
    if mapping.group is not None:
        where.append(writer.is_one_of(mapping.group, [*part.groups], "its_group"))
    if mapping.received_at is not None:
        where.append(writer.created_since(mapping.received_at, part.since, "since"))
    if part.column is not None:
        key = f"t.{quoted(part.column)}"
        for sign, name, at in ((">=", "start", part.start), ("<", "end", part.end)):
            if at is not None:
                writer.values[name] = at
                where.append(f"{key} {sign} %({name})s")
    writer.values["most"] = part.most
    words = {
        "topic": writer.exact(mapping.topic),
        "message_id": writer.exact(mapping.message_id),
        "its_group": "CAST('' AS BINARY)" if mapping.group is None else writer.exact(mapping.group),
        "done_at": f"COALESCE({writer.instant(mapping.done_at)}, {writer.instant(mapping.received_at)})",
        "table": table,
        "where": " AND ".join(where),
    }
    text = _SQL["done_in_range"]
    for word, value in words.items():
        text = text.replace("{" + word + "}", value)
    cursor.execute("SELECT UTC_TIMESTAMP(6)")
    ((now,),) = cursor.fetchall()
    latest = int(now.replace(tzinfo=UTC).timestamp() * 1_000_000)
    cursor.execute(text, writer.values)
    ours = topics_by_theirs(mapping)
    kept: list[T] = []
    rows: list[dict[str, Any]] = []
    for theirs, its_id, its_group, done_at in cursor:
        named, message_id, group = as_text(theirs), as_text(its_id), as_text(its_group)
        topic = None if named is None else ours(named)
        if topic and message_id is not None and group is not None and group in part.groups:
            at = min(utc_micros(done_at, zone) or latest, latest)
            rows.append(
                {
                    **dict.fromkeys(columns),
                    "consumer_group": part.groups[group],
                    "topic": topic,
                    "message_id": message_id,
                    "log_state": "CONSUMED",
                    "log_updated_at": at,
                    "log_consumed_at": at,
                }
            )
        if len(rows) == _PIECE:
            kept.append(keep("logs", pa.Table.from_pylist(rows, schema=arrow_schema(columns))))
            rows = []
    if rows:
        kept.append(keep("logs", pa.Table.from_pylist(rows, schema=arrow_schema(columns))))
    return kept


def topics_by_theirs(mapping: LogMapping) -> Callable[[str], str | None]:
    """A topic's name here, by what the table calls it; null for one that names_of gives to no topic."""
    renamed = set(mapping.topics.values())

    def ours(theirs: str) -> str | None:
        return mapping.topics.get(theirs, None if theirs in renamed else theirs)

    return ours
