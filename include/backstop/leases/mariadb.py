"""The log in MariaDB and MySQL; see log_table.LogTable.

There a statement does not say what it changed (MySQL has no RETURNING). So a lease is granted in two steps of one transaction: an
insert that leaves a log which is there alone, then a look at all of them, locked, which shows whose token each has. What may be
taken over is decided from that look: nobody changes a locked row before the commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any
from uuid import uuid4

from backstop.leases.lease import Acquired, Arrival
from backstop.model.errors import ContractBroken
from backstop.model.records import EPOCH_BYTES, GROUP_BYTES, ID_BYTES, TOPIC_BYTES
from backstop.sql.mariadb_keys import listed, with_keys
from backstop.sql.mariadb_run import fetch, run
from backstop.sql.named import load
from backstop.sql.run import Connection

_QUERIES = load("backstop.leases", "mariadb.sql")
_SQL = {
    name: with_keys(
        text.replace("{latest}", _QUERIES["latest"]).replace("{fenced}", _QUERIES["fenced"])
    )
    for name, text in _QUERIES.items()
}
_HOST_CHARACTERS = 255
_CHUNK = 500
"""Messages of one statement, which a server takes up to a limit of its own (max_allowed_packet)."""
_NO_SAVEPOINT = 1305
_ENDED = ("FAILED", "EXPIRED")
_Row = dict[str, Any]


class MariaLogTable:
    """See log_table.LogTable."""

    def begin(
        self,
        connection: Connection,
        group: str,
        arrivals: Sequence[Arrival],
        tokens: Sequence[str],
        lease_seconds: float,
        owner_host: str,
    ) -> Sequence[Mapping[str, Any]]:
        asked = _in_order(zip(arrivals, tokens, strict=True))
        lease = {"lease": round(lease_seconds * 1_000_000)}
        values = {
            arrival: {**_values(group, arrival, owner_host), **lease, "token": token}
            for arrival, token in asked
        }
        _insert(connection, "new_lease", list(values.values()))
        granted: list[Mapping[str, Any]] = []
        found = _locked(connection, group, list(values))
        for arrival, its in values.items():
            row = found.get(arrival)
            if row is None:
                continue  # purged in between
            if row["owner_token"] != its["token"]:
                if not _may_take_over(row, arrival):
                    continue
                row["fence"] = max(row["fence"] + 1, row["now_micros"])
                row["attempts"] += 1
                its |= {"fence": row["fence"], "attempts": row["attempts"]}
                its["conflicts"] = int(_is_other_content(row, arrival))
                row["micros_left"] = its["lease"]
                run(connection, _SQL["take_over"], its)
            granted.append(
                {
                    "topic": arrival.topic,
                    "message_id": arrival.message_id,
                    "token": its["token"],
                    "fence": row["fence"],
                    "attempts": row["attempts"],
                    "seconds_left": row["micros_left"] / 1_000_000,
                }
            )
        return granted

    def refused(
        self, connection: Connection, group: str, arrivals: Sequence[Arrival]
    ) -> Sequence[Mapping[str, Any]]:
        found = _locked(connection, group, arrivals)
        answers, stopped = [], []
        for arrival, row in found.items():
            outcome = _outcome(row, arrival)
            if outcome in ("DONE", "BUSY"):
                stopped.append(arrival)
            elif outcome == "CONFLICT":
                assert arrival.payload_hash is not None
                other = arrival.payload_hash.hex()
                text = f"CONFLICT: received with another content, sha256 {other}"
                values = _values(group, arrival, "") | {"error": text.encode()}
                run(connection, _SQL["conflict"], values)
            left = row["micros_left"]
            answers.append(
                {
                    "topic": arrival.topic,
                    "message_id": arrival.message_id,
                    "outcome": outcome,
                    "seconds_left": None if left is None else left / 1_000_000,
                }
            )
        for values, _ in _by_topic(group, stopped):
            run(connection, _SQL["stopped"], values)
        return answers

    def renew(
        self,
        connection: Connection,
        group: str,
        leases: Sequence[Acquired],
        lease_seconds: float,
    ) -> set[str]:
        values = {"lease": round(lease_seconds * 1_000_000)}
        return _fenced(connection, "renew", group, leases, values)

    def complete(self, connection: Connection, group: str, leases: Sequence[Acquired]) -> set[str]:
        return _fenced(connection, "complete", group, leases, {})

    def fail(self, connection: Connection, lease: Acquired, error: str) -> bool:
        values = {"error": error.encode()}
        return bool(_fenced(connection, "fail", lease.group, [lease], values))

    def give_back(self, connection: Connection, lease: Acquired, *, was_entered: bool) -> bool:
        values = {"not_entered": int(not was_entered)}
        return bool(_fenced(connection, "give_back", lease.group, [lease], values))

    def record_done(
        self, connection: Connection, group: str, arrival: Arrival, owner_host: str
    ) -> bool:
        values = _values(group, arrival, owner_host) | {"state": "CONSUMED", "error": None}
        return _record(connection, group, arrival, values, "take_end")

    def record_failure(
        self, connection: Connection, group: str, arrival: Arrival, error: str, owner_host: str
    ) -> bool:
        values = _values(group, arrival, owner_host) | {"state": "FAILED", "error": error.encode()}
        return _record(connection, group, arrival, values, "take_failure")

    def write_books(self, connection: Connection, values: Mapping[str, object]) -> None:
        given = {
            **values,
            **{name: str(values[name]).encode() for name in ("group", "member", "life")},
            "has_ended": int(bool(values["has_ended"])),
        }
        run(connection, _SQL["books"], given)
        kept = {**given, "kept": round(float(str(values["kept_seconds"])) * 1_000_000)}
        # By key, one at a time: a range would lock what other members write.
        for row in fetch(connection, _SQL["gone"], kept):
            run(connection, _SQL["forget"], {**given, "member": bytes(row["member"])})

    def server_life(self, connection: Connection) -> str:
        ((version,),) = (row.values() for row in fetch(connection, _SQL["version"], {}))
        status = (
            "information_schema.GLOBAL_STATUS"
            if "MariaDB" in _text(version)
            else "performance_schema.global_status"
        )
        (row,) = fetch(connection, _SQL["server_life"].replace("{status}", status), {})
        return _text(row["life"])

    def open_work(self, connection: Connection) -> None:
        run(connection, _SQL["open_work"], {})

    def close_work(self, connection: Connection) -> None:
        """A deadlock ends the whole transaction, and a statement of DDL commits it; the next statement begins another one."""
        try:
            run(connection, _SQL["close_work"], {})
        except Exception as error:
            if not error.args or error.args[0] != _NO_SAVEPOINT:
                raise
            raise ContractBroken(
                "The handler's transaction ended while it ran: by a deadlock that it caught, a commit or rollback of its own, or"
                " a statement that commits (DDL).",
                unaffected="The message is not done, and what the handler wrote since then was rolled back; after a commit of its"
                " own, what it wrote before is there.",
                next_step="Let the handler raise on a deadlock: the message comes again. Leave commit, rollback and DDL out of it.",
            ) from error


MARIADB = MariaLogTable()


def _may_take_over(row: _Row, arrival: Arrival, *, whatever_content: bool = False) -> bool:
    """As a value, what the PostgreSQL statement begin says in its WHERE."""
    if arrival.content_version < row["content_version"]:
        return False
    if row["state"] in _ENDED:
        return True
    has_ended = row["state"] == "CONSUMING" and bool(row["has_ended"])
    return has_ended and (whatever_content or not _is_other_content(row, arrival))


def _outcome(row: _Row, arrival: Arrival) -> str:
    """As a value, what the PostgreSQL statement refused says in its CASE."""
    if row["state"] == "PARKED":
        return "PARKED"
    if arrival.content_version < row["content_version"]:
        return "SUPERSEDED"
    both = row["payload_hash"] is not None and arrival.payload_hash is not None
    is_other = both and row["payload_hash"] != arrival.payload_hash
    if is_other and (
        row["state"] == "CONSUMED"
        or (row["state"] == "CONSUMING" and row["content_version"] == arrival.content_version)
    ):
        return "CONFLICT"
    return "DONE" if row["state"] == "CONSUMED" else "BUSY"


def _is_other_content(row: _Row, arrival: Arrival) -> bool:
    """One version, and two contents."""
    return (
        row["content_version"] == arrival.content_version
        and row["payload_hash"] is not None
        and arrival.payload_hash is not None
        and row["payload_hash"] != arrival.payload_hash
    )


def _record(
    connection: Connection, group: str, arrival: Arrival, values: _Row, taking: str
) -> bool:
    """An end without a lease; the token only tells whose row it is."""
    values["token"] = str(uuid4())
    _insert(connection, "new_end", [values])
    row = _locked(connection, group, [arrival]).get(arrival)
    if row is None or row["owner_token"] == values["token"]:
        return row is not None
    if not _may_take_over(row, arrival, whatever_content=taking == "take_failure"):
        return False
    if taking == "take_failure" and arrival.content_version == row["content_version"]:
        values["payload_hash"] = row["payload_hash"]  # only a newer version replaces what failed
    run(connection, _SQL[taking], values)
    return True


def _insert(connection: Connection, row: str, values: Sequence[_Row]) -> None:
    for at in range(0, len(values), _CHUNK):
        texts: list[str] = []
        given: _Row = {}
        for number, its in enumerate(values[at : at + _CHUNK]):
            texts.append(_SQL[row].replace(")s", f"_{number})s"))
            given |= {f"{name}_{number}": value for name, value in its.items()}
        run(connection, _SQL["insert"].replace("{rows}", ",\n".join(texts)), given)


def _locked(connection: Connection, group: str, arrivals: Sequence[Arrival]) -> dict[Arrival, _Row]:
    """In the order of the keys, which is everybody's."""
    found: dict[Arrival, _Row] = {}
    for values, asked in _by_topic(group, arrivals):
        by_id = {arrival.message_id.encode(): arrival for arrival in asked}
        for row in fetch(connection, _SQL["locked"], values):
            row["owner_token"] = None if row["owner_token"] is None else _text(row["owner_token"])
            row["state"] = _text(row["state"])
            if row["payload_hash"] is not None:
                row["payload_hash"] = bytes(row["payload_hash"])
            found[by_id[bytes(row["message_id"])]] = row
    return found


def _by_topic(
    group: str, arrivals: Sequence[Arrival]
) -> Iterator[tuple[dict[str, object], list[Arrival]]]:
    """The values of {of_keys} for some messages of each topic, and which these are."""
    in_order = [arrival for arrival, _ in _in_order((arrival, "") for arrival in arrivals)]
    for topic, of_topic in groupby(in_order, key=lambda arrival: arrival.topic):
        rest = list(of_topic)
        while rest:
            some, rest = rest[:_CHUNK], rest[_CHUNK:]
            ids = listed(arrival.message_id.encode() for arrival in some)
            yield {"group": group.encode(), "topic": topic.encode(), "ids": ids}, some


def _in_order(arrivals: Iterator[tuple[Arrival, str]]) -> list[tuple[Arrival, str]]:
    """All lock rows in one order, that of the index: two batches of the same messages wait for one another, and never both."""
    return sorted(arrivals, key=lambda one: (one[0].topic.encode(), one[0].message_id.encode()))


def _fenced(
    connection: Connection,
    statement: str,
    group: str,
    leases: Sequence[Acquired],
    more: Mapping[str, object],
) -> set[str]:
    """The tokens of the logs that were changed: each statement says of how many rows it was, and no more."""
    changed = set()
    for lease in sorted(leases, key=lambda one: (one.topic.encode(), one.message_id.encode())):
        values = {
            "group": group.encode(),
            "topic": lease.topic.encode(),
            "message_id": lease.message_id.encode(),
            "token": lease.token,
            **more,
        }
        if run(connection, _SQL[statement], values) == 1:
            changed.add(lease.token)
    return changed


def _values(group: str, arrival: Arrival, owner_host: str) -> _Row:
    """Raises ContractBroken for a key that the columns do not hold: a server that is not strict would cut it to another's."""
    position = arrival.position
    # A place whose epoch no column holds is no place: that only makes Backstop wait.
    if position is not None and len(position.epoch.encode()) > EPOCH_BYTES:
        position = None
    key = {"group": group, "topic": arrival.topic, "message_id": arrival.message_id}
    most = {"group": GROUP_BYTES, "topic": TOPIC_BYTES, "message_id": ID_BYTES}
    for name, text in key.items():
        if len(text.encode()) > most[name]:
            raise ContractBroken(
                f"The {name} {text[:40]!r} has {len(text.encode())} bytes, and a log holds {most[name]}.",
                unaffected="Nothing was written, and no lease was granted.",
                next_step="Use a shorter one.",
            )
    return {
        **{name: text.encode() for name, text in key.items()},
        "queue_id": position.queue_id if position else None,
        "queue_offset": position.offset if position else None,
        "queue_epoch": position.epoch.encode() if position else None,
        "payload_hash": arrival.payload_hash,
        "content_version": arrival.content_version,
        "host": owner_host[:_HOST_CHARACTERS].encode(errors="replace"),
    }


def _text(value: Any) -> str:
    """Drivers differ in what they make of a text in another character set than the connection's."""
    return value if isinstance(value, str) else bytes(value).decode()
