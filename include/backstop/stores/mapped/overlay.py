"""The overlay: Backstop's own producer tables in a schema of their own, beside another program's table in its database.

    claim: their row locked, its version compared | number taken | their row set back     (one commit)
    their relay sends it, and sets its state
    settle: their row says sent, or is gone -> the number has ended

So a number is handed out once, and only for the row that was judged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from psycopg2.extensions import cursor as Cursor

from backstop.brokers.protocol import Finding
from backstop.config.mapped import StubMapping
from backstop.model.errors import StoreFailed
from backstop.model.read_json import read_json
from backstop.model.records import ID_HEADER, Key, Message, Outcome
from backstop.schema.revisions import head, revisions
from backstop.sql.connection import STATEMENT_TIMEOUT, PostgresConnection, columns
from backstop.sql.named import load
from backstop.stores.locked_rows import change_free, change_rows
from backstop.stores.mapped.columns import (
    CONTENT_KINDS,
    base_type,
    rearm_rows,
    rearm_values,
    rows_to_send,
    sizes_to_send,
    stub_values,
    table_of,
    tables_of,
    visible_table,
)
from backstop.stores.mapped.place import place
from backstop.stores.postgresql.stubs import PostgresStubs
from backstop.stores.protocol import Claim, Settlement

_SQL = load("backstop.stores.mapped", "overlay.sql")
SCHEMA = "backstop_overlay"
_FAR = 10 * 365 * 86_400.0
"""Seconds: a number that waits for somebody else's relay has no deadline of ours; what the row says ends it."""


class Numbered(NamedTuple):
    """What the overlay knows of a message; `parameters` names the columns as statements of the control database take them."""

    topic: str
    message_id: str
    status: str
    send_count: int
    refusals: int
    max_sends: int | None
    next_check_at: datetime
    attempted_at: datetime | None
    attempt_deadline: datetime | None
    """Null: its newest number has ended."""
    number_version: str | None
    """A hash of the version of their row when the newest number was handed out."""
    updated_at: datetime
    """When the row of the overlay was changed last, and so the latest instant at which its status was decided."""


def parameters(numbered: Sequence[Numbered]) -> dict[str, str]:
    """One array a column."""
    return columns(numbered, _PARAMETERS)


_PARAMETERS = (
    "numbered_topics",
    "numbered_ids",
    "statuses",
    "send_counts",
    "refusals",
    "max_sends",
    "next_checks",
    "attempted_ats",
    "attempt_deadlines",
    "number_versions",
    "updates",
)


def hashed(version: str) -> str:
    """A row's version as looks remember it."""
    return hashlib.md5(version.encode(), usedforsecurity=False).hexdigest()


class _Row(NamedTuple):
    """One of their rows."""

    topic: str
    message_id: str
    state: str
    version: str
    oid: int
    ctid: str
    content: str | None
    kind: str | None
    """The type of the content's column, never a domain."""
    headers: str | None


class Overlay:
    """See the module. `level`: overlay, publish or rearm. Every method raises StoreUnavailable."""

    def __init__(
        self,
        shard: str,
        url: str,
        mapping: StubMapping,
        level: str,
        patience: timedelta = STATEMENT_TIMEOUT,
    ) -> None:
        self.stubs = PostgresStubs(shard, url, patience, schema=SCHEMA)
        self._shard, self._mapping, self._level = shard, mapping, level
        self._topics = {"of_topics": list(mapping.topics.values())}
        self._connection = PostgresConnection(f"shard {shard}", url, statement_timeout=patience)

    def numbered(self, keys: Sequence[Key] | None = None) -> list[Numbered]:
        """The rows of the overlay, or those of some messages."""
        if keys is None:
            statement = f"{_SQL['numbered_columns']} {_SQL['of_topics']}"
            found = self._connection.rows(statement, self._topics)
        else:
            statement = f"{_SQL['numbered_columns']} {_SQL['of_keys']}"
            asked = self._connection.storable_keys(keys)
            found = self._connection.rows_of_keys(statement, asked, {})[0]
        return list(map(Numbered._make, found))

    def open(self) -> list[Numbered]:
        """The rows of messages that are open and have no number under way."""
        statement = f"{_SQL['numbered_columns']} {_SQL['of_topics']} {_SQL['open']}"
        found = self._connection.rows(statement, self._topics)
        return list(map(Numbered._make, found))

    def ended(self) -> str:
        """How numbers ended, as a JSON array."""
        ((found,),) = self._connection.rows(_SQL["ended"], self._topics)
        return str(found)

    def ensure(self, keys: Sequence[Key]) -> None:
        """A row for each of these messages; one commit."""
        values = columns(sorted(keys), ("topics", "message_ids"))
        self._connection.run(lambda cursor: cursor.execute(_SQL["ensure"], values))

    def claim(self, claims: Sequence[Claim], judged: Mapping[Key, str]) -> dict[Key, Message]:
        """See protocol.StubStore; only for rows that are sent, of the version that was judged (by key), and, to be published,
        with a content that can be."""

        def work(cursor: Cursor) -> dict[Key, Message]:
            rows = self._rows(cursor, [claim.key for claim in claims])
            mine = {
                key: row
                for key, row in rows.items()
                if row.state == "sent" and row.version == judged.get(key)
            }
            messages: dict[Key, Message] = {}
            if self._level == "publish":
                read = {key: self._message(row) for key, row in mine.items()}
                messages = {key: one for key, one in read.items() if isinstance(one, Message)}
                mine = {key: mine[key] for key in messages}
            wanted = [
                claim._replace(attempt_seconds=_FAR) if self._level == "rearm" else claim
                for claim in claims
                if claim.key in mine
            ]
            if not wanted:
                return {}
            keys = columns(sorted(mine), ("topics", "message_ids"))
            cursor.execute(_SQL["ensure"], keys)
            taken = self.stubs.claim_within(cursor, wanted)
            if not taken:
                return {}
            versions = [(*key, hashed(mine[key].version)) for key in sorted(taken)]
            names = ("topics", "message_ids", "versions")
            cursor.execute(_SQL["note_versions"], columns(versions, names))
            if self._level == "rearm":
                self._rearm(cursor, [mine[key] for key in sorted(taken)])
                return taken
            return {key: messages[key] for key in taken}

        return change_rows(
            f"shard {self._shard}",
            lambda longest: self._connection.run(work, lock_timeout=longest),
            lambda: self.stubs.held([claim.key for claim in claims]),
        )

    def unsendable(self, keys: Sequence[Key]) -> dict[Key, StoreFailed]:
        """See protocol.StubStore."""
        if self._level != "publish":
            return {}
        rows = self._connection.run(lambda cursor: self._rows(cursor, keys))
        read = {key: self._message(row) for key, row in rows.items() if row.state == "sent"}
        return {key: why for key, why in read.items() if isinstance(why, StoreFailed)}

    def sizes(self, keys: Sequence[Key], above: int) -> dict[Key, int]:
        """See protocol.StubStore: of what a claim reads, which is more than what is published."""
        if self._level != "publish":
            return {}
        values = {**stub_values(self._mapping), **columns(keys, ("topics", "message_ids"))}

        def work(cursor: Cursor) -> dict[Key, int]:
            found: dict[Key, int] = {}
            for table in self._mapping.tables:
                version = cursor.connection.server_version
                cursor.execute(sizes_to_send(self._mapping, table, version), values)
                for topic, message_id, size in cursor.fetchall():
                    key = Key(topic, message_id)
                    found[key] = found.get(key, 0) + size
            return {key: size for key, size in found.items() if size > above}

        return self._connection.run(work)

    def settle_rearmed(self, states: Callable[[Sequence[Key]], Mapping[Key, str]]) -> list[Key]:
        """Ends the numbers whose row does not wait for its relay any more; from now on looks date their copy. `states`: of the
        rows of some messages, as they are now; none: it is gone. Raises RowsLocked, after the others, for those that somebody holds."""
        waiting = [
            (Key(topic, message_id), number, token)
            for topic, message_id, number, token in self._connection.rows(
                _SQL["rearmed"], self._topics
            )
        ]
        if not waiting:
            return []
        found = states([key for key, _, _ in waiting])
        gone = "its row was deleted before a look met it as sent"
        ends = [
            Settlement(
                key,
                number,
                token,
                Outcome.SENT if key in found else Outcome.UNKNOWN,
                error=None if key in found else gone,
                max_send_seconds=0.0,
            )
            for key, number, token in waiting
            if found.get(key, "sent") == "sent"
        ]
        return sorted(change_free(ends, lambda one: one.key, self.stubs.settle))

    def check(self) -> list[Finding]:
        """Whether it is there, and everything that this login lacks for its level."""
        at, printed = (
            f"shard {self._shard}",
            "Let a DBA run what `backstop migrate --overlay` prints.",
        )
        missing = [needs for (needs,) in self._connection.rows(_SQL["missing"])]
        content = self._check_content() if self._level == "publish" else []
        if self._level == "rearm":
            values = {
                "table": table_of(self._mapping.tables[0]).replace("%%", "%"),
                "columns": list(self._mapping.rearm),
            }
            may_rearm = _SQL["may_rearm"].replace("{table}", visible_table("%(table)s::text"))
            missing += [
                f"UPDATE on {self._mapping.tables[0]}.{column}"
                for (column,) in self._connection.rows(may_rearm, values)
            ]
        findings = [
            *content,
            Finding(
                f"{at}: overlay privileges",
                not missing,
                f"missing: {', '.join(missing)}"
                if missing
                else f"all that level {self._level} needs",
                printed if missing else "",
            ),
        ]
        if any("backstop_overlay" in needs for needs in missing):
            return findings
        version = [str(one) for (one,) in self._connection.rows(_SQL["version"])]
        good = version == [head("producer")]
        says = f"revision {version[0] if version else 'none'}" + (
            "" if good else f", but this program needs {head('producer')}"
        )
        return [*findings, Finding(f"{at}: overlay", good, says, "" if good else printed)]

    def _check_content(self) -> list[Finding]:
        """Whether the columns that are published are there, to be read, and of a type whose value is what is sent."""
        named = {
            name.split(".")[0]: part
            for part, name in (
                ("headers", self._mapping.headers),
                ("content", self._mapping.content),
            )
            if name is not None
        }
        values = {"tables": tables_of(self._mapping), "columns": list(named)}
        text = _SQL["kinds"].replace("{table}", visible_table("n.name"))
        found = {
            (table, column): kind
            for table, column, kind in self._connection.rows(
                text.replace("{base_type}", base_type("a.atttypid")), values
            )
        }
        wrong = []
        for table in values["tables"]:
            for column, part in named.items():
                kind = found.get((table, column), "not there, or not to be read")
                whole = part == "content" and column == self._mapping.content
                if kind not in CONTENT_KINDS or (kind == "bytea" and not whole):
                    wrong.append(f"{table}.{column} is {kind}")
        return [
            Finding(
                f"shard {self._shard}: content",
                not wrong,
                "; ".join(wrong) or f"can be sent: {', '.join(named)}",
                f"Correct mapping.content and mapping.headers: they take {', '.join(CONTENT_KINDS)}, JSON no bytea; or GRANT SELECT."
                if wrong
                else "",
            )
        ]

    def close(self) -> None:
        self.stubs.close()
        self._connection.close()

    def _rows(self, cursor: Cursor, keys: Sequence[Key]) -> dict[Key, _Row]:
        """The one row of each message; to be set back, it is locked, and a row that somebody else is changing is left alone."""
        values = {**stub_values(self._mapping), **columns(keys, ("topics", "message_ids"))}
        found: dict[Key, list[_Row]] = {}
        # A row's content is read as text, whatever the role or the database says of bytea.
        cursor.execute("SET LOCAL bytea_output = 'hex'")
        for table in self._mapping.tables:
            text = rows_to_send(
                self._mapping,
                table,
                cursor.connection.server_version,
                content=self._level == "publish",
            )
            lock = " FOR UPDATE OF t SKIP LOCKED" if self._level == "rearm" else ""
            cursor.execute(text + lock, values)
            for row in map(_Row._make, cursor.fetchall()):
                found.setdefault(Key(row.topic, row.message_id), []).append(row)
        return {key: rows[0] for key, rows in found.items() if len(rows) == 1}

    def _rearm(self, cursor: Cursor, rows: Sequence[_Row]) -> None:
        values = {
            **stub_values(self._mapping),
            **rearm_values(self._mapping),
            **columns([(row.oid, row.ctid) for row in rows], ("oids", "ctids")),
        }
        cursor.execute(rearm_rows(self._mapping, cursor.connection.server_version), values)
        states = [state for (state,) in cursor.fetchall()]
        if states != ["unsent"] * len(rows):
            raise StoreFailed(
                f"The table of shard {self._shard} does not take `rearm`: {len(rows)} rows were to be set back, and "
                f"{states.count('unsent')} are unsent now.",
                unaffected="Nothing of it stayed: no number was handed out, no row was changed.",
                next_step="Look for a trigger of the table, or correct mapping.rearm; the next run tries again.",
            )

    def _message(self, row: _Row) -> Message | StoreFailed:
        """What a row is published as, or why it cannot be."""
        headers = _texts(row.headers)
        why = ""
        if row.kind not in CONTENT_KINDS:
            why = f"its column is {row.kind}, of which the value is not the content"
        elif row.content is None:
            why = "it is empty, not in the JSON where mapping.content says, or beside a NUL or half a character"
        elif headers is None:
            why = "its headers are no JSON object of text that can be sent"
        if why or row.content is None or headers is None:
            return StoreFailed(
                f"The content of {row.topic} {row.message_id} in shard {self._shard} cannot be sent: {why}.",
                unaffected="No number of it was handed out; other messages are sent.",
                next_step="Correct the row, mapping.content or mapping.headers, or withdraw the message; a later run tries again.",
            )
        content = bytes.fromhex(row.content[2:]) if row.kind == "bytea" else row.content.encode()
        if self._mapping.wire_header != ID_HEADER:
            headers[self._mapping.wire_header] = row.message_id
        return Message(row.topic, row.message_id, content, headers)


def overlay_sql(mapping: StubMapping, level: str, login: str) -> str:
    """What a DBA runs for the overlay of one table: one transaction, safe to run twice. `login`: the role that Backstop
    connects as."""
    role = _name(login)
    parts = ["BEGIN", place(SCHEMA), _SQL["begin"]]
    parts += [
        _SQL["revision"].replace("{revision}", revision).replace("{text}", text.rstrip())
        for revision, text in revisions("producer").items()
    ]
    parts.append(_SQL["grants"].replace("{login}", role))
    if level == "rearm":
        table = table_of(mapping.tables[0]).replace("%%", "%")
        changed = ", ".join(map(_name, mapping.rearm))
        parts.append(
            f"SET LOCAL search_path = DEFAULT;\nGRANT UPDATE ({changed}) ON {table} TO {role}"
        )
    return ";\n\n".join([*parts, "COMMIT"]) + ";\n" + _PURGE


_PURGE = (
    "-- Purge it with a job of your own, later than log_retention, for example daily:\n"
    f"-- DELETE FROM {SCHEMA}.message_stub WHERE status IN ('confirmed', 'voided') AND updated_at < now() - interval '21 days';\n"
)


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _texts(document: str | None) -> dict[str, str] | None:
    """Headers are text to text by contract; another program's number or list travels as its JSON, and a null not at all.
    None: they are no object, or no text."""
    try:
        given = read_json(document) if document else {}
        if given is None:
            return {}
        if not isinstance(given, dict):
            return None
        found = {
            name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for name, value in given.items()
            if value is not None
        }
        "".join([*found, *found.values()]).encode()  # half of a surrogate pair is no character
    except ValueError:
        return None
    return found
