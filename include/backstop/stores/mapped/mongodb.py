"""Other programs' collections in MongoDB; see table.Table.

A look needs no snapshot: it walks an index whose keys never change, so that each document that is there all the while is met, and
once. What stands between documents and rows is in `mongodb_fields`, which server is asked in `mongodb_connection`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from backstop.config.mapped import LogMapping, StubMapping, table_parts
from backstop.model.errors import StoreUnavailable
from backstop.model.records import Key
from backstop.sql.connection import BULK_TIMEOUT, STATEMENT_TIMEOUT
from backstop.stores.mapped.mongodb_connection import MongoConnection, Server
from backstop.stores.mapped.mongodb_logs import (
    all_of,
    done_rows,
    find,
    is_of_group,
    logs_of,
    may_be_of_group,
    ranges_of,
    tables_of,
)
from backstop.stores.mapped.rows import (
    EPOCH,
    MICROSECOND,
    KeyRange,
    chunks,
    copy_line,
    instant,
    keep_done,
    plan_scan,
)
from backstop.stores.mapped.table import Column, Look, StubRow, missing_table
from backstop.stores.protocol import Scan

if TYPE_CHECKING:
    from backstop.stores.mapped.mongodb_fields import Fields

_SAMPLE = 100
"""Of the newest documents: what types a field has."""
_NOTHING_YET = "no value yet"
_WRITES = frozenset({"insert", "update", "remove", "dropCollection", "anyAction"})
_EVERYTHING = "everything (it asks for no login)"
Mapped = StubMapping | LogMapping
T = TypeVar("T")


class MongoTable:
    """See table.Table."""

    instants: Mapping[str, Sequence[str]] = {
        "instant": ("date", "objectId", _NOTHING_YET),
        "milliseconds": ("int", "double", _NOTHING_YET),
    }

    def __init__(self, subject: str, url: str, patience: timedelta = STATEMENT_TIMEOUT) -> None:
        self.subject, self._url = subject, url
        self._connection = MongoConnection(subject, url, statement_timeout=patience)

    def clock(self) -> datetime:
        return self._connection.run(lambda server: server.now)

    def look(self, mapping: StubMapping, into: BinaryIO) -> Look:
        def read(server: Server, life: str) -> Look:
            window_from = server.now - mapping.lookback
            first = (window_from - EPOCH) // MICROSECOND
            into.seek(0)
            into.truncate()
            for table, fields in tables_of(mapping):
                where = [
                    fields.not_before(mapping.created_at, window_from),
                    *fields.of_topics(mapping.topics),
                ]
                collection = server.collection(table)
                found = collection.find(all_of(where), fields.projection())
                for document in found.hint(_still_index(collection, fields, mapping.created_at)):
                    row = fields.stub_row(document)
                    if row is not None and (row[2] is None or row[2] >= first):
                        into.write(copy_line(row))
            return Look(life, window_from)

        return self._in_bulk(read, mapping)

    def rows_of_keys(
        self, mapping: StubMapping, keys: Sequence[Key]
    ) -> tuple[Sequence[StubRow], str | None]:
        asked = set(keys)

        def read(server: Server) -> list[StubRow]:
            found: list[StubRow] = []
            for table, fields in tables_of(mapping):
                for chunk in chunks(keys):
                    ids = fields.with_ids(dict.fromkeys(key.message_id for key in chunk))
                    where = [ids, *fields.of_topics(mapping.topics)]
                    for document in find(server, table, fields, where):
                        row = fields.stub_row(document)
                        if row is not None and row[:2] in asked:
                            found.append(row)
            return found

        return self._read(read, mapping), None

    def count_newer(
        self,
        mapping: StubMapping,
        window_from: datetime,
        newest_at: datetime | None,
        topics: Sequence[str] | None,
        limit: int,
    ) -> int:
        wanted = [
            theirs for theirs, ours in mapping.topics.items() if topics is None or ours in topics
        ]

        def count(server: Server) -> int:
            number, soon = 0, server.now + timedelta(minutes=1)
            for table, fields in tables_of(mapping):
                at = mapping.created_at
                where = [
                    *fields.of_topics(wanted),
                    fields.compared(at, "$gte", window_from),
                    fields.compared(at, "$lte", soon),
                ]
                if newest_at is not None:
                    where.append(fields.compared(at, "$gt", newest_at))
                number += server.collection(table).count_documents(all_of(where), limit=limit)
            return number

        return min(limit, self._read(count, mapping)) if wanted else 0

    def newest(self, mapping: StubMapping) -> tuple[datetime | None, float | None]:
        def ask(server: Server) -> tuple[datetime | None, float | None]:
            found: list[datetime] = []
            for table, fields in tables_of(mapping):
                at = mapping.created_at
                for kind in (
                    ("number",) if mapping.times == "milliseconds" else ("date", "objectId")
                ):
                    where = [{at: {"$type": kind}}, *fields.of_topics(mapping.topics)]
                    newest = find(server, table, fields, where).sort(at, -1).limit(1)
                    times = (instant(fields.micros(document, at)) for document in newest)
                    found += [time for time in times if time is not None]
            newest_of_all = max(found, default=None)
            ahead = None if newest_of_all is None else newest_of_all - server.now
            return newest_of_all, None if ahead is None else ahead.total_seconds()

        return self._read(ask, mapping)

    def log_table(
        self, mapping: LogMapping, group: str, keys: Sequence[Key], wanted: Mapping[str, str]
    ) -> Any:
        import pyarrow as pa  # which not every caller has

        from backstop.sql.arrow import arrow_schema

        def read(server: Server) -> list[dict[str, Any]]:
            asked = chunks(list(dict.fromkeys(keys)))
            return [row for chunk in asked for row in logs_of(server, mapping, group, chunk)]

        rows = self._read(read, mapping) if keys else []
        shown = [{name: row[name] for name in wanted} for row in rows]
        return pa.Table.from_pylist(shown, schema=arrow_schema(wanted))

    def cannot_hold(self, mapping: LogMapping, message_ids: Sequence[str]) -> Mapping[str, str]:
        return {}  # a field holds every text; what stands for one as another value is found with its row

    def has_nameless(self, mapping: LogMapping, group: str) -> bool:
        theirs = mapping.groups.get(group, group)

        def ask(server: Server) -> bool:
            return any(
                may_be_of_group(fields, document, mapping, theirs)
                for table, fields in tables_of(mapping)
                for document in find(
                    server, table, fields, [fields.nameless(), *fields.may_be_of_group([theirs])]
                )
            )

        return self._read(ask, mapping)

    def count_received(
        self, mapping: LogMapping, group: str, start: datetime, end: datetime
    ) -> Mapping[str | None, int]:
        at, theirs = mapping.received_at, mapping.groups.get(group, group)

        def ask(server: Server) -> Mapping[str | None, int]:
            found: dict[str | None, int] = {}
            if at is None:
                return found
            for table, fields in tables_of(mapping):
                between = [fields.compared(at, "$gte", start), fields.compared(at, "$lt", end)]
                where = [*between, *fields.of_group([theirs])]
                for document in find(server, table, fields, where):
                    if is_of_group(fields, document, mapping, theirs):
                        topic = fields.text(document, mapping.topic)
                        found[topic] = found.get(topic, 0) + 1
            return found

        return self._read(ask, mapping)

    def scan_done(
        self,
        mapping: LogMapping,
        groups: Mapping[str, datetime],
        worth: Mapping[str, float],
        partitions: int,
    ) -> Scan | None:
        """One pass for all groups, in ranges of _id. Null where rows name no topic: each would stand for a message of every topic."""
        if mapping.topic is None:
            return None

        def plan(server: Server) -> Scan:
            counted = [
                server.collection(table).estimated_document_count() for table in mapping.tables
            ]
            return plan_scan(
                mapping,
                groups,
                worth,
                counted,
                lambda table, place, theirs, since, rows: ranges_of(
                    server.collection(table), place, theirs, since, rows, partitions
                ),
            )

        return self._read(plan, mapping)

    def read_part(
        self, mapping: LogMapping, part: KeyRange, keep: Callable[[str, Any], T]
    ) -> list[T]:
        def read(server: Server, _: str) -> list[T]:
            table, fields = tables_of(mapping)[part.place]
            where = fields.of_group(part.groups)
            if mapping.received_at is not None:
                where.append(fields.not_before(mapping.received_at, part.since))
            # Ids of another type lie in no range: they are asked by key.
            bounds = (("$gte", part.start), ("$lt", part.end))
            where += [{"_id": {sign: bound}} for sign, bound in bounds if bound is not None]
            found = find(server, table, fields, where).hint([("_id", 1)]).limit(part.most)
            return keep_done(mapping, part, done_rows(found, fields, mapping), server.now, keep)

        return self._in_bulk(read, mapping)

    def lineage(self, mapping: LogMapping) -> str:
        return self._of_these(self._connection, lambda _, life: life, mapping)

    def tables(self, mapping: Mapped) -> Sequence[str]:
        return mapping.tables

    def columns(self, mapping: Mapped) -> Mapping[tuple[str, str], Column]:
        """What the newest documents have. A field that only some documents get may be in none of them yet."""

        def ask(server: Server) -> Mapping[tuple[str, str], Column]:
            found: dict[tuple[str, str], Column] = {}
            for table, fields in tables_of(mapping):
                sample = list(
                    server.collection(table)
                    .find({}, fields.projection())
                    .sort("_id", -1)
                    .limit(_SAMPLE)
                )
                for path in fields.paths():
                    kinds = fields.kinds(sample, path)
                    if kinds or not sample or path in fields.set_later():
                        its = Column(", ".join(kinds) or _NOTHING_YET, False)
                        found |= {(table, path): its, (table, path.split(".")[0]): its}
            return found

        return self._read(ask, mapping)

    def writes(self, mapping: Mapped) -> Sequence[tuple[str, str]]:
        def ask(server: Server) -> Sequence[tuple[str, str]]:
            status = server.client.admin.command("connectionStatus", showPrivileges=True)
            known = status["authInfo"]
            if not known["authenticatedUsers"]:
                return [(table, _EVERYTHING) for table in mapping.tables]
            found = []
            for table in mapping.tables:
                database, collection = server.database(table).name, table_parts(table)[1]
                for privilege in known["authenticatedUserPrivileges"]:
                    of = privilege["resource"]
                    if of.get("anyResource") or (
                        of.get("db") in ("", database) and of.get("collection") in ("", collection)
                    ):
                        found += [(table, action) for action in _WRITES & {*privilege["actions"]}]
            return sorted(set(found))

        return self._read(ask, mapping)

    def may_lag(self, mapping: Mapped) -> bool:
        return False  # a connection refuses such a server

    def is_unique(self, mapping: Mapped, columns: Sequence[str]) -> bool:
        def ask(server: Server) -> bool:
            indexes = server.collection(mapping.tables[0]).index_information().values()
            return any(
                {name for name, _ in index["key"]} <= {*columns}
                for index in indexes
                if (index.get("unique") or index["key"] == [("_id", 1)])
                and "partialFilterExpression" not in index
            )

        return self._read(ask, mapping)

    def changed_by_a_send(self, mapping: StubMapping) -> Sequence[str] | None:
        named = [mapping.sent_when_set, *mapping.changes]
        return list(dict.fromkeys(name for name in named if name is not None))

    def close(self) -> None:
        self._connection.close()

    def _read(self, work: Callable[[Server], T], mapping: Mapped) -> T:
        return self._of_these(self._connection, lambda server, _: work(server), mapping)

    def _in_bulk(self, work: Callable[[Server, str], T], mapping: Mapped) -> T:
        reader = MongoConnection(self.subject, self._url, statement_timeout=BULK_TIMEOUT)
        try:
            return self._of_these(reader, work, mapping)
        finally:
            reader.close()

    def _of_these(
        self, connection: MongoConnection, work: Callable[[Server, str], T], mapping: Mapped
    ) -> T:
        """What `work` returns of the server and of its life with these collections: a collection that is not there has no documents,
        and says so without an error. Raises StoreUnavailable."""

        def read(server: Server) -> T:
            made = self._made(server, mapping)
            result = work(server, f"{server.life} {made}")
            if self._made(server, mapping) != made:
                raise StoreUnavailable(
                    f"Collections of {self.subject} were created again while they were read.",
                    unaffected="Nothing was decided by what was read.",
                    next_step="The next run reads them again.",
                )
            return result

        return connection.run(read, table=mapping.tables[0])

    def _made(self, server: Server, mapping: Mapped) -> str:
        """What tells the collections from others of their names. Raises StoreUnavailable."""
        made = []
        for table in mapping.tables:
            name = table_parts(table)[1]
            listed = server.database(table).list_collections(filter={"name": name})
            found = [one for one in listed if one["name"] == name]
            if not found:
                raise missing_table(self.subject, mapping.tables)
            if found[0].get("type", "collection") != "collection":
                raise StoreUnavailable(
                    f"{table} of {self.subject} is a {found[0]['type']}, not a collection.",
                    unaffected="Nothing was decided without it.",
                    next_step="Map the collection that the application writes to.",
                )
            made.append(str(found[0]["info"]["uuid"]))
        return " ".join(made)


def _still_index(collection: Any, fields: Fields, created_at: str) -> list[tuple[str, Any]]:
    """An index in which no document moves while it is walked, and that has each of them: over the time of creation, else over _id."""
    for index in collection.index_information().values():
        names = [name for name, _ in index["key"]]
        whole = not {"sparse", "partialFilterExpression", "hidden"} & {*index}
        plain = all(direction in (1, -1) for _, direction in index["key"])
        if names[0] == created_at and whole and plain and {*names} <= fields.written_once():
            return list(index["key"])
    return [("_id", 1)]
