"""Says what a mapping can prove and what it cannot, on the real table."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from backstop.brokers.protocol import Finding
from backstop.config.durations import written
from backstop.config.mapped import LogMapping, StubMapping
from backstop.stores.mapped.capture import function_of
from backstop.stores.mapped.columns import columns_of
from backstop.stores.mapped.table import Column, Table

if TYPE_CHECKING:
    from backstop.stores.mapped.stubs import LastLook

_AHEAD = timedelta(minutes=1)


def check_stubs(table: Table, mapping: StubMapping, last: LastLook | None) -> list[Finding]:
    """Of a producer's table: its columns, our privileges, its times, and what its rows prove."""
    at = table.subject
    key: list[str | None] = [mapping.message_id, mapping.topic]
    if mapping.is_captured:
        key = ["message_id", "topic"]
    findings = _common(table, mapping, [mapping.created_at], key)
    if mapping.is_captured:
        findings += _capture(table, mapping)
    if not findings[0].good or any(f.subject == f"{at}: types" for f in findings):
        return findings
    newest, seconds = table.newest(mapping)
    ahead = None if seconds is None else timedelta(seconds=seconds)
    findings.append(
        Finding(
            f"{at}: times",
            ahead is None or ahead <= _AHEAD,
            "no rows" if newest is None else f"the newest row is of {newest:%Y-%m-%d %H:%M:%S} UTC",
            ""
            if ahead is None or ahead <= _AHEAD
            else f"It lies {written(ahead)} ahead: correct mapping.time_zone, or the application's clock. No verdict rests on it.",
        )
    )
    if mapping.knows_when_sent:
        says = "a row says when it was sent: UNSENT, LOST and CONFIRMED can be told"
        findings.append(Finding(f"{at}: proves", True, says))
    else:
        says = "no row says that it was sent: only CONFIRMED can be told, and what is open becomes a case"
        findings.append(Finding(f"{at}: proves", True, says))
    changed = table.changed_by_a_send(mapping)
    if mapping.knows_when_sent and changed is not None:
        says = (
            f"a row that is sent again is noticed by a change of {', '.join(changed) or 'nothing'}: if none of these changes, "
            "a row that was set back and sent again between two looks looks untouched, and its second copy is not waited for"
        )
        findings.append(Finding(f"{at}: updates", True, says))
    if not mapping.reads_ids_on_the_wire:
        says = (
            f"the id travels in {mapping.wire_header}, which brokers' adapters do not read: while a message waits for another "
            "delivery, or an undecided dead letter has no id, nothing of its topic is called lost"
        )
        findings.append(Finding(f"{at}: ids on the wire", True, says))
    if mapping.kept is not None:
        says = f"sent rows stay {written(mapping.kept)}: a look must come sooner, or a message is never met"
        findings.append(Finding(f"{at}: rows kept", True, says))
    findings.append(check_last_look(at, last))
    return findings


def check_last_look(at: str, last: LastLook | None) -> Finding:
    """Of the newest look at a mapped table of any kind: bad where messages were left out of it."""
    if last is None:
        says = (
            "none yet: the next reconcile run looks; what it finds sent was sent no later than that"
        )
        return Finding(f"{at}: looks", True, says)
    says = f"{last.rows} rows at {last.ended_at:%Y-%m-%d %H:%M:%S} UTC"
    if not last.left_out:
        return Finding(f"{at}: looks", True, says)
    says += f", {last.left_out} left out: their topic or id is longer than the contract allows"
    return Finding(
        f"{at}: looks", False, says, "These messages cannot be followed; shorten their ids."
    )


def check_logs(table: Table, mapping: LogMapping) -> list[Finding]:
    """Of a consumer's inbox: its columns, our privileges, and what absence there proves."""
    at = table.subject
    times = [name for name in (mapping.received_at, mapping.done_at) if name is not None]
    key = [mapping.message_id, mapping.topic, mapping.group]
    findings = _common(table, mapping, times, key)
    says = (
        "its rows are never deleted"
        if mapping.kept is None
        else f"rows stay {written(mapping.kept)}: absence proves nothing of a message that is older (log_purged)"
    )
    findings.append(Finding(f"{at}: proves", True, says))
    findings.append(
        Finding(
            f"{at}: absence",
            True,
            "counts for a group and topic once one of its messages was found done there; until then they are UNKNOWN (log_purged)",
        )
    )
    return findings


def _common(
    table: Table, mapping: StubMapping | LogMapping, times: list[str], key: list[str | None]
) -> list[Finding]:
    at = table.subject
    tables, columns = table.tables(mapping), table.columns(mapping)
    missing = [
        f"{name}.{column}"
        for name in tables
        for column in columns_of(mapping)
        if (name, column) not in columns
    ]
    if missing:
        says = f"not there, or not to be read: {', '.join(missing)}"
        do = "Correct the mapping (names are as the database writes them), or GRANT SELECT on the table to this login."
        return [Finding(f"{at}: columns", False, says, do)]
    findings = [_types(table, mapping, columns, times)]
    may = table.writes(mapping)
    says = (
        ", ".join(f"{privilege} on {name}" for name, privilege in may) if may else "only to be read"
    )
    findings.append(
        Finding(
            f"{at}: privileges",
            not may,
            says,
            "Give Backstop a login that may only SELECT here, and at level rearm UPDATE the columns of mapping.rearm."
            if may
            else "",
        )
    )
    lags = table.may_lag(mapping)
    findings.append(
        Finding(
            f"{at}: primary",
            not lags,
            "may lag: a standby, or a table that a subscription, a foreign server or a REFRESH fills"
            if lags
            else "yes",
            "Name the database that the application writes to. If it is this one, drop the subscription."
            if lags
            else "",
        )
    )
    unique = table.is_unique(mapping, [name for name in key if name is not None])
    says = (
        "an index holds one row for one key"
        if unique
        else "no index holds one row for one key: "
        + (
            "a key of two rows is set aside"
            if isinstance(mapping, StubMapping)
            else "rows of one key are read together, each question reads the table"
        )
    )
    findings.append(Finding(f"{at}: keys", True, says))
    return findings


def _types(
    table: Table,
    mapping: StubMapping | LogMapping,
    columns: Mapping[tuple[str, str], Column],
    times: list[str],
) -> Finding:
    wrong = [
        f"{column} is {columns[name, column].kind}"
        for name in table.tables(mapping)
        for column in times
        if columns[name, column].kind not in table.instants[mapping.times]
    ]
    return Finding(
        f"{table.subject}: columns",
        not wrong,
        ", ".join(wrong) or f"there: {', '.join(columns_of(mapping))}",
        "Set mapping.times to what the column is." if wrong else "",
    )


def _capture(table: Table, mapping: StubMapping) -> list[Finding]:
    """Whether the trigger fires, and the relay's slot is there."""
    from backstop.stores.mapped.postgresql import PostgresTable  # where alone tables are captured

    assert isinstance(table, PostgresTable)
    at = table.subject
    found = table.trigger(mapping)
    wanted = function_of(mapping)
    fires = found in ([("O", wanted)], [("A", wanted)])
    says = "fires for each row"
    if not found:
        says = "is not there"
    elif not fires:
        says = (
            "is switched off"
            if found[0][1] == wanted
            else "is of an earlier version, or keeps other columns than mapped"
        )
    findings = [
        Finding(
            f"{at}: trigger",
            fires,
            f"backstop_capture on {mapping.tables[0]} {says}",
            "" if fires else "Let a DBA run what `backstop migrate --capture` prints.",
        )
    ]
    foreign = table.foreign_types(mapping)
    if foreign:
        findings.append(
            Finding(
                f"{at}: types",
                False,
                ", ".join(f"{column} is {kind}" for column, kind in foreign.items()),
                "Keep ids and topics in types of PostgreSQL's own: the owner of another type can have code of theirs run as this "
                "login when it looks. The trigger runs none.",
            )
        )
    if mapping.slot is not None:
        active = table.slot(mapping.slot)
        says = (
            "a relay reads it"
            if active
            else "is not there"
            if active is None
            else "no relay reads it"
        )
        do = "" if active else "Start the relay: until then nothing counts as sent."
        findings.append(Finding(f"{at}: slot {mapping.slot}", bool(active), says, do))
    return findings
