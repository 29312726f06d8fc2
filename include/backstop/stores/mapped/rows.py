"""What every dialect that reads rows in our own process does with them: chunks of keys, instants, the text of a look, parts of a scan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple, TypeVar

from backstop.config.mapped import LogMapping
from backstop.model.records import EARLIEST, LATEST, Key
from backstop.stores.mapped.table import StubRow
from backstop.stores.protocol import PART_COLUMNS, Scan

_KEYS, _BYTES = 10_000, 2**20
"""Of one statement, which a server takes up to a limit of its own (MySQL: max_allowed_packet; MongoDB: 16 MB)."""
EPOCH = datetime.fromtimestamp(0, UTC)
MICROSECOND = timedelta(microseconds=1)
EARLIEST_MICROS = (EARLIEST - EPOCH) // MICROSECOND
_PIECE = 50_000
"""Rows of one Arrow table."""
T = TypeVar("T")


class KeyRange(NamedTuple):
    """One part of a scan: rows of the mapping's table number `place` whose `column` lies in [start, end); null: open, or the whole
    table. `since`: rows received earlier are not worth reading; `most`: it ends after so many."""

    groups: Mapping[str, str]
    """The group's name in the table -> here."""
    place: int
    column: str | None
    start: Any
    end: Any
    since: datetime
    most: int


def groups_by_theirs(mapping: LogMapping, groups: Mapping[str, Any]) -> dict[str, str]:
    """A group's name here, by what the table calls it; "" where all rows are of one group."""
    return {
        mapping.groups.get(group, group) if mapping.group is not None else "": group
        for group in groups
    }


def plan_scan(
    mapping: LogMapping,
    groups: Mapping[str, datetime],
    worth: Mapping[str, float],
    counted: Sequence[int],
    ranges: Callable[[str, int, Mapping[str, str], datetime, int], list[KeyRange]],
) -> Scan:
    """One pass for all groups over the parts that `ranges` cuts of a table (its name and place, the groups, since when its rows are
    worth reading, how many it has); without a part where the tables have more rows (`counted`) than a pass is `worth`."""
    theirs, total, since = groups_by_theirs(mapping, groups), sum(counted), min(groups.values())
    parts: list[KeyRange] = []
    if total < sum(worth[group] for group in groups):
        for place, (table, rows) in enumerate(zip(mapping.tables, counted, strict=True)):
            parts += ranges(table, place, theirs, since, rows)
    share = total // len(groups)
    return Scan(parts, total if parts else 0, estimates=dict.fromkeys(groups, share))


def chunks(keys: Sequence[Key]) -> Iterator[list[Key]]:
    """The keys of one statement each."""
    chunk: list[Key] = []
    size = 0
    for key in keys:
        length = len(key.message_id.encode())
        if chunk and (len(chunk) == _KEYS or size + length > _BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(key)
        size += length
    if chunk:
        yield chunk


def copy_line(row: StubRow) -> bytes:
    """As COPY takes it: NULL is empty, the empty text is quoted."""
    fields = ("" if value is None else '"' + str(value).replace('"', '""') + '"' for value in row)
    return (",".join(fields) + "\n").encode()


def instant(micros: int | None) -> datetime | None:
    if micros is None:
        return None
    return max(EARLIEST, min(LATEST, EPOCH + timedelta(microseconds=micros)))


def past(micros: int | None, now: datetime) -> int:
    """The instant, or now where there is none, or one to come."""
    latest = (now - EPOCH) // MICROSECOND
    return latest if micros is None else max(EARLIEST_MICROS, min(latest, micros))


def log_row(
    key: Key, state: str, broken: str | None, updated: int, received: int, copies: int
) -> dict[str, Any]:
    """All rows of a key in an inbox as one: LOG_COLUMNS, received_at and copies."""
    return {
        "topic": key.topic,
        "message_id": key.message_id,
        "log_state": state,
        "log_broken": broken,
        "lease_expires_at": None,
        "log_updated_at": updated,
        "log_consumed_at": updated if state == "CONSUMED" else None,
        "received_at": received,
        "copies": copies,
    }


def keep_done(
    mapping: LogMapping,
    part: KeyRange,
    found: Iterable[tuple[str | None, str | None, str | None, int | None]],
    now: datetime,
    keep: Callable[[str, Any], T],
) -> list[T]:
    """What `keep` makes of each Arrow table of PART_COLUMNS["logs"]; `found`: topic, id and group of each finished row as they are
    named there, and when it was done."""
    import pyarrow as pa  # which not every caller has

    from backstop.sql.arrow import arrow_schema

    columns, ours, latest = PART_COLUMNS["logs"], cache(mapping.topic_of), past(None, now)
    kept: list[T] = []
    rows: list[dict[str, Any]] = []
    for theirs, message_id, group, done_at in found:
        topic = None if theirs is None else ours(theirs)
        if topic and message_id is not None and group is not None and group in part.groups:
            at = min(done_at or latest, latest)
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
