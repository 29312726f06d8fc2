"""Reads what an inbox in MySQL or MariaDB has done in one pass over the table, in ranges of its primary key.

Such a server exports no snapshot that several sessions could share, and none is needed: a row that says done is final, whenever it
is read, and what a scan misses is asked by key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, TypeVar

from backstop.config.mapped import LogMapping
from backstop.sql.named import load
from backstop.stores.mapped.mysql_columns import Writer, as_text, quoted, utc_micros, zone_of
from backstop.stores.mapped.rows import KeyRange, keep_done
from backstop.stores.postgresql.scan import ROWS_OF_PART, parts_of

_SQL = load("backstop.stores.mapped", "mysql.sql")
T = TypeVar("T")


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
    assert mapping.topic is not None
    zone = zone_of(mapping)
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
    cursor.execute(text, writer.values)
    found = (
        (as_text(theirs), as_text(its_id), as_text(its_group), utc_micros(done_at, zone))
        for theirs, its_id, its_group, done_at in cursor
    )
    return keep_done(mapping, part, found, now.replace(tzinfo=UTC), keep)
