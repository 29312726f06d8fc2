"""Says what a lake table can prove and what it cannot, on its newest snapshot."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from backstop.brokers.protocol import Finding
from backstop.config.durations import written
from backstop.config.mapped import LogMapping, StubMapping
from backstop.stores.mapped.check import check_last_look
from backstop.stores.mapped.columns import columns_of

if TYPE_CHECKING:
    from backstop.stores.lake.table import LakeTable
    from backstop.stores.mapped.stubs import LastLook


def check_lake_stubs(
    lake: LakeTable, mapping: StubMapping, last: LastLook | None, now: datetime
) -> list[Finding]:
    """Of a producer's lake table."""
    findings = _common(lake, mapping, now)
    says = (
        "a row says when it was sent: UNSENT, LOST and CONFIRMED can be told"
        if mapping.knows_when_sent
        else "no row says that it was sent: only CONFIRMED can be told, and what is open becomes a case"
    )
    findings.append(Finding(f"{lake.subject}: proves", True, says))
    says = "a row that a later snapshot lacks stays as it was last met, and is never called lost for that"
    findings.append(Finding(f"{lake.subject}: rows that go", True, says))
    says = (
        "a row of which any column changes counts as sent again: leave out columns that each load fills (a time of loading, a batch "
        f"number), or no message is called lost or overdue until its row is older than {written(mapping.lookback)}"
    )
    findings.append(Finding(f"{lake.subject}: updates", True, says))
    if not mapping.reads_ids_on_the_wire:
        says = (
            f"the id travels in {mapping.wire_header}, which brokers' adapters do not read: while a message waits for another "
            "delivery, or an undecided dead letter has no id, nothing of its topic is called lost"
        )
        findings.append(Finding(f"{lake.subject}: ids on the wire", True, says))
    findings.append(check_last_look(lake.subject, last))
    return findings


def check_lake_logs(lake: LakeTable, mapping: LogMapping, now: datetime) -> list[Finding]:
    """Of a consumer's lake table."""
    findings = _common(lake, mapping, now)
    says = (
        "its rows are never deleted"
        if mapping.kept is None
        else f"rows stay {written(mapping.kept)}: absence proves nothing of a message that is older (log_purged)"
    )
    findings.append(Finding(f"{lake.subject}: proves", True, says))
    says = (
        "counts for what a group had passed when the snapshot was complete, and for a group and topic of which one message was "
        "found done there; what came later waits for the next snapshot"
    )
    findings.append(Finding(f"{lake.subject}: absence", True, says))
    return findings


def _common(lake: LakeTable, mapping: StubMapping | LogMapping, now: datetime) -> list[Finding]:
    snapshot = lake.refresh()
    wrong = lake.misfits(mapping)
    return [
        Finding(
            f"{lake.subject}: columns",
            not wrong,
            "; ".join(wrong) or f"there: {', '.join(columns_of(mapping))}",
            "Correct the mapping; names are as the table has them." if wrong else "",
        ),
        _age(lake, mapping, snapshot.written_at, now),
        Finding(
            f"{lake.subject}: repair",
            True,
            "never: a lake table is only observed, and mode repair is refused for its topics",
        ),
    ]


def _age(
    lake: LakeTable, mapping: StubMapping | LogMapping, written_at: datetime | None, now: datetime
) -> Finding:
    at = f"{lake.subject}: snapshot"
    assert mapping.delay is not None
    if written_at is None:
        says = "no append to it is kept: it proves what it has, and denies nothing"
        do = (
            "Let its writer append, without rows if it uses MERGE or INSERT OVERWRITE, and keep the snapshot "
            "of its last append."
        )
        if mapping.dialect == "parquet":
            says = "a job writes below it, or wrote after its _SUCCESS: it proves what it has, and denies nothing"
            do = "Only append, by jobs that write the directory's own _SUCCESS; use Iceberg for what is rewritten."
        return Finding(at, False, says, do)
    ahead = written_at - now
    if ahead > timedelta(minutes=1):
        return Finding(
            at,
            False,
            f"committed {written(ahead)} ahead of the control database's clock",
            "Synchronise the clock of whoever commits to the lake (NTP); until then it is not read.",
        )
    until = written_at - mapping.delay
    says = (
        f"rows were committed at {written_at:%Y-%m-%d %H:%M:%S} UTC; with a delay of {written(mapping.delay)} it is complete"
        f" until {until:%Y-%m-%d %H:%M:%S} UTC"
    )
    return Finding(at, True, says)
