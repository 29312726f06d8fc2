"""Reads an inbox in MongoDB: the rows of some keys as one log each, and what is done in one pass over ranges of _id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from backstop.config.mapped import LogMapping, StubMapping
from backstop.model.records import Key
from backstop.stores.mapped.mongodb_connection import Server
from backstop.stores.mapped.rows import KeyRange, log_row, past
from backstop.stores.mapped.states import NO_GROUP, NO_STATE
from backstop.stores.postgresql.scan import ROWS_OF_PART, parts_of

if TYPE_CHECKING:
    from backstop.stores.mapped.mongodb_fields import Document, Fields

Mapped = StubMapping | LogMapping


def tables_of(mapping: Mapped) -> list[tuple[str, Fields]]:
    from backstop.stores.mapped.mongodb_fields import Fields  # which needs PyMongo

    return [(table, Fields(mapping, place)) for place, table in enumerate(mapping.tables)]


def all_of(where: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"$and": [*where]} if where else {}


def find(server: Server, table: str, fields: Fields, where: Sequence[Mapping[str, Any]]) -> Any:
    return server.collection(table).find(all_of(where), fields.projection())


def is_of_group(fields: Fields, document: Document, mapping: LogMapping, theirs: str) -> bool:
    return fields.is_taken(document) and (
        mapping.group is None or fields.text(document, mapping.group) == theirs
    )


def may_be_of_group(fields: Fields, document: Document, mapping: LogMapping, theirs: str) -> bool:
    """The same, or its group cannot be read."""
    if mapping.group is None or fields.text(document, mapping.group) is not None:
        return is_of_group(fields, document, mapping, theirs)
    return fields.is_taken(document)


def logs_of(
    server: Server, mapping: LogMapping, group: str, keys: Sequence[Key]
) -> list[dict[str, Any]]:
    """One group's rows by key, all of a key as one; done by any of them is done. A key that is absent from it has no row."""
    theirs = mapping.groups.get(group, group)
    names = {
        name: topic
        for topic in dict.fromkeys(key.topic for key in keys)
        for name in mapping.names_of(topic)
    }
    ids = list(dict.fromkeys(key.message_id for key in keys))
    found: dict[tuple[str, str], list[tuple[str, int | None, int | None]]] = {}
    odd: set[tuple[str, str]] = set()
    for table, fields in tables_of(mapping):
        asked = fields.asked(ids)
        where = [fields.with_ids(ids), *fields.may_be_of_group([theirs])]
        if mapping.topic is not None:
            where += fields.of_topics(names)
        for document in find(server, table, fields, where):
            topic = ""
            if mapping.topic is not None:
                topic = names.get(fields.text(document, mapping.topic) or "", "")
            is_asked = may_be_of_group(fields, document, mapping, theirs)
            if not is_asked or (mapping.topic and not topic):
                continue
            written, besides = fields.ids_of(document, asked)
            odd |= {(topic, text) for text in besides}
            if written is not None:
                done_at = fields.micros(document, mapping.done_at)
                received_at = fields.micros(document, mapping.received_at)
                row = fields.kind(document), done_at, received_at
                found.setdefault((topic, written), []).append(row)
    answer = []
    for key in keys:
        place = ("" if mapping.topic is None else key.topic, key.message_id)
        if place in found:
            answer.append(_as_one(key, found[place], server.now))
        elif place in odd:
            why = "an id that is kept as another value than it is written"
            now = past(None, server.now)
            answer.append(log_row(key, "", why, now, now, 1))
    return answer


def _as_one(
    key: Key, rows: Sequence[tuple[str, int | None, int | None]], now: datetime
) -> dict[str, Any]:
    """In state: CONSUMING without a lease's end wherever somebody may still finish it without a new copy."""
    kinds = {kind for kind, _, _ in rows}
    broken = NO_STATE if "unknown" in kinds else NO_GROUP if "groupless" in kinds else None
    if "done" in kinds:
        state, broken = "CONSUMED", None
    else:
        state = "" if broken else "FAILED" if kinds == {"failed"} else "CONSUMING"
    updated = [at for _, done, received in rows if (at := done or received) is not None]
    first = [at for _, done, received in rows if (at := received or done) is not None]
    return log_row(
        key,
        state,
        broken,
        past(max(updated, default=None), now),
        past(min(first, default=None), now),
        len(rows),
    )


def ranges_of(
    collection: Any,
    place: int,
    groups: Mapping[str, str],
    since: datetime,
    rows: int,
    partitions: int,
) -> list[KeyRange]:
    """Ranges of _id of about equal size: one walk over its index."""
    number = parts_of(rows, partitions)
    step, most = max(1, rows // number), max(2 * rows // number, 2 * ROWS_OF_PART)
    cuts: list[Any] = []
    while len(cuts) < number - 1:
        after = {"_id": {"$gt": cuts[-1]}} if cuts else {}
        found = list(collection.find(after, {"_id": 1}).sort("_id", 1).skip(step).limit(1))
        if not found:
            break
        cuts.append(found[0]["_id"])
    return [
        KeyRange(groups, place, "_id", start, end, since, most)
        for start, end in zip([None, *cuts], [*cuts, None], strict=True)
    ]


def done_rows(
    documents: Any, fields: Fields, mapping: LogMapping
) -> Iterator[tuple[str | None, str | None, str | None, int | None]]:
    """Topic, id and group of each finished row, and when it was done."""
    for document in documents:
        if fields.kind(document) == "done" and fields.is_taken(document):
            done_at = fields.micros(document, mapping.done_at)
            yield (
                fields.text(document, mapping.topic),
                fields.text(document, mapping.message_id),
                "" if mapping.group is None else fields.text(document, mapping.group),
                done_at or fields.micros(document, mapping.received_at),
            )
