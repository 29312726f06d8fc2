"""Lake tables as stores of stubs and of logs: what one of their snapshots may prove, and up to when it may deny.

Let S be the commit of the newest data in a snapshot less the writer's declared delay: whatever was done by S is in it. So a log
that it lacks counts only for what a group had passed by S (evidence.read), and everything later waits for a later snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from backstop.brokers.protocol import Finding
from backstop.config.durations import written
from backstop.config.mapped import LogMapping, StubMapping
from backstop.model.errors import StoreUnavailable
from backstop.model.records import EARLIEST, Key
from backstop.sql.connection import PostgresConnection, columns
from backstop.stores.lake.check import check_lake_logs, check_lake_stubs
from backstop.stores.lake.snapshot import explained
from backstop.stores.lake.table import LakeTable
from backstop.stores.mapped.logs import MappedLogs
from backstop.stores.mapped.stubs import _SQL, LOOK_AGAIN, ZONES, MappedStubs
from backstop.stores.protocol import STUB_COLUMNS, Scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EPOCH = datetime.fromtimestamp(0, EARLIEST.tzinfo)
_AHEAD = timedelta(minutes=1)
"""A snapshot that was committed later than this from now is not dated by a clock that can be trusted."""
_SOON = timedelta(minutes=1)
_MET = {
    "topic": "string",
    "message_id": "string",
    "row_version": "string",
    "seen_at": "bigint",
    "went_to": "string",
    "met_at": "bigint",
}


class LakeStubs(MappedStubs):
    """A lake table as a store of stubs. Runs look at its snapshots and remember what they met, as of any mapped table; by key they
    answer from what is remembered. A row that is gone from a later snapshot stays as it was last met."""

    _by_key = "of_remembered_keys"

    def __init__(
        self, shard: str, url: str, control_url: str, mapping: StubMapping, doubt: timedelta
    ) -> None:
        self._lake = LakeTable(f"shard {shard}", url, mapping)
        super().__init__(shard, url, control_url, mapping, doubt, table=self._lake)

    @property
    def _look_again(self) -> timedelta:
        """Nobody can count what is new without Spark: as often as the writer says that it writes."""
        assert self._mapping.delay is not None
        return min(LOOK_AGAIN, max(self._mapping.delay, _SOON))

    def clock(self) -> datetime:
        """The control database's: a lake has none, and its rows are dated by our looks."""
        return _now(self._control)

    def known_until(self, topic: str, as_of: datetime) -> datetime | None:
        """Null: how far the snapshot of the last look went, who runs no Spark cannot see."""
        return None if topic in self._mapping.topics.values() else as_of

    @contextmanager
    def scan_window(
        self, topic: str, start: datetime, end: datetime, partitions: int
    ) -> Iterator[Scan]:
        """All rows of the window, as the newest snapshot has them: where it is complete up to the window's end."""
        if topic not in self._mapping.topics.values():
            yield Scan([], 0)
            return
        self._lake.refresh()
        until = complete_until(self._lake, self._mapping, self._control)
        if until < end:
            raise StoreUnavailable(
                f"The newest snapshot of shard {self._shard} is complete until {until:%Y-%m-%d %H:%M:%S} UTC, and the window ends later.",
                unaffected="Nothing was proved without it.",
                next_step="Prove a window that ends earlier, or once the lake's writer has committed again.",
            )
        if self._mapping.kept is not None and start < self.clock() - self._mapping.kept:
            raise StoreUnavailable(
                f"Shard {self._shard} keeps rows {written(self._mapping.kept)}: some of the window may be gone.",
                unaffected="Nothing was proved without it.",
                next_step="Prove a later window, or leave out mapping.kept if its rows are never deleted.",
            )
        values = {"store": self._shard, "topic": topic, "start": start}
        met = self._control.copy(_SQL["remembered_sent"], values, _MET)
        ((has_moved,),) = self._control.rows(_SQL["has_moved"], values)
        rows = self._promises(self._lake.window(self._mapping, topic, start, end), met, has_moved)
        with explained(f"shard {self._shard}", self._mapping.tables[0]):
            held = rows.localCheckpoint(eager=True)
            number = held.count()
        yield Scan([], number, frame=held)

    def check(self) -> list[Finding]:
        return check_lake_stubs(self._lake, self._mapping, self.last_look(), self.clock())

    def _met(self, keys: Sequence[Key]) -> dict[str, Any]:
        return {
            **self._known,
            **columns(keys, ("topics", "message_ids")),
        }

    def _promises(self, rows: DataFrame, met: Any, has_moved: bool) -> DataFrame:
        """Rows of a window as STUB_COLUMNS: sent no later than the snapshot was committed, or than a look met them so (`met`), or
        under way; two of a key: nobody's. Of a topic that has moved, a row that may have gone to one of several brokers is taken
        for under way."""
        from pyspark.sql import functions as f

        assert self._mapping.delay is not None
        at = _micros(self._lake.snapshot().committed_at + self._mapping.delay)
        later = _micros(self.clock() + timedelta(days=1))
        one = rows.groupBy("topic", "message_id").agg(
            f.min("created_at").alias("created_at"),
            f.when(f.count("*") > 1, f.lit("not_unique")).otherwise(f.min("state")).alias("state"),
            f.md5(f.min("row_version")).alias("row_version"),
        )
        looks = rows.sparkSession.createDataFrame(met)
        is_sent = f.col("state") == "sent"
        one = one.join(looks, ["topic", "message_id", "row_version"], "left").withColumns(
            {
                "sent_by": f.least(f.col("seen_at"), f.lit(at)),
                "is_sent": is_sent & f.col("went_to").isNotNull() if has_moved else is_sent,
            }
        )
        doubt, zones = (length // timedelta(microseconds=1) for length in (self._doubt, ZONES))
        given = {
            "shard": f.lit(self._shard),
            "topic": f.col("topic"),
            "message_id": f.col("message_id"),
            "status": f.expr("CASE WHEN state IN ('sent', 'unsent') THEN 'pending' ELSE state END"),
            "send_count": f.lit(1),
            "refusals": f.lit(0),
            "next_check_at": f.col("created_at"),
            "created_at": f.col("created_at") - doubt,
            "first_seen_at": f.lit(at),
            "attempted_at": f.col("sent_by"),
            "sent_at": f.expr("CASE WHEN is_sent THEN sent_by END"),
            "attempt_deadline": f.expr(f"CASE WHEN is_sent THEN sent_by ELSE {later}L END"),
            "settled": f.col("is_sent"),
            "broker": f.col("went_to"),
            "first_to_all": f.lit(True),
            "created_latest": f.least(f.col("met_at"), f.col("created_at") + zones),
        }
        return one.select(
            *(
                given.get(name, f.lit(None)).cast(kind).alias(name)
                for name, kind in STUB_COLUMNS.items()
            )
        )


class LakeLogs(MappedLogs):
    """A lake table as a store of logs. It is read whole, of one snapshot, by Spark; by key by a filter over the same snapshot."""

    def __init__(self, store: str, url: str, control_url: str, mapping: LogMapping) -> None:
        self._lake = LakeTable(f"store {store}", url, mapping)
        self._of: datetime | None = None
        self._refused: StoreUnavailable | None = None
        super().__init__(store, url, control_url, mapping, table=self._lake)

    def clock(self) -> datetime:
        """The control database's: a lake has none."""
        return _now(self._control)

    def complete_until(self, as_of: datetime) -> datetime:
        """S: whatever was done by then is in the snapshot that all of the judgement at `as_of` reads."""
        if self._of != as_of:
            self._of, self._refused = as_of, None
            try:
                self._lake.refresh()
            except StoreUnavailable as error:  # each further wait would tell nothing new
                self._refused = error
        if self._refused is not None:
            raise self._refused
        return min(as_of, complete_until(self._lake, self._mapping, self._control))

    def count_received(self, group: str, start: datetime, end: datetime) -> dict[str, int]:
        """None: who counts runs no Spark."""
        return {}

    def read_whole(self, groups: Mapping[str, Sequence[str]]) -> DataFrame:
        """PART_COLUMNS["logs"]: every row of these groups (with the topics that are asked for), in whatever state."""
        rows = self._lake.logs(self._mapping, groups)
        return rows.drop("received_at", "copies")

    def check(self) -> list[Finding]:
        return check_lake_logs(self._lake, self._mapping, self.clock())


def complete_until(
    lake: LakeTable, mapping: StubMapping | LogMapping, control: PostgresConnection
) -> datetime:
    """Up to when the snapshot in hand is complete; long ago, where no append is kept. StoreUnavailable when it was committed in
    the future."""
    written_at = lake.snapshot().written_at
    assert mapping.delay is not None
    if written_at is None:
        return _EPOCH
    now = _now(control)
    if written_at > now + _AHEAD:
        raise StoreUnavailable(
            f"{lake.subject[:1].upper()}{lake.subject[1:]}: its newest snapshot is of {written_at:%Y-%m-%d %H:%M:%S} UTC,"
            f" {written(written_at - now)} ahead of the control database.",
            unaffected="Nothing was decided without it: what it lacks would count as absent too early.",
            next_step="Synchronise the clock of whoever commits to the lake (NTP).",
        )
    return min(written_at, now) - mapping.delay


def _now(control: PostgresConnection) -> datetime:
    ((now,),) = control.rows(_SQL["clock"])
    return now  # type: ignore[no-any-return]


def _micros(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)
