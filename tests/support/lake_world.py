"""Lake tables of another program on disk: an outbox and an inbox, of which each commit shows what the program had written by then."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import sleep
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backstop.model.errors import Unavailable
from backstop.reconcile.run_once import run_once
from backstop.stores.lake.snapshot import iceberg_name, iceberg_table
from system import System, system

OUTBOX = "id string, topic string, state string, created timestamp, content string"
INBOX = "id string, topic string, grp string, state string, at timestamp"
PRODUCER: Mapping[str, Any] = {
    "message_id": "id",
    "topic": "topic",
    "topics": ["orders"],
    "created_at": "created",
    "state": "state",
    "sent": ["sent"],
    "unsent": ["new"],
    "delay": "0s",
}
CONSUMER: Mapping[str, Any] = {
    "message_id": "id",
    "topic": "topic",
    "group": "grp",
    "state": "state",
    "done": ["done"],
    "working": ["begun"],
    "failed": ["failed"],
    "received_at": "at",
    "delay": "0s",
}
OWN = {"shop_a": {"connection": "shop_a"}}


@dataclass
class Lake:
    """A system whose producer `shop` and consumer `billing_db` are lake tables, or one of them."""

    system: System
    spark: Any
    dialect: str
    folder: Path
    outbox: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    inbox: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    numbers: int = 100
    by_spark: bool = False
    """Whether the program writes by Spark; else by Arrow, and what it wrote is added to Iceberg's table, which takes no job."""

    @property
    def url(self) -> str:
        return self.folder.as_uri()

    def promise(self, state: str = "new", topic: str = "orders") -> str:
        self.numbers += 1
        message_id = f"m:{self.numbers}'{{%\\é"
        self.outbox[message_id] = (message_id, topic, state, datetime.now(UTC), "{}")
        return message_id

    def send(self, message_id: str, state: str = "sent") -> str:
        row = self.outbox[message_id]
        self.outbox[message_id] = (*row[:2], state, *row[3:])
        return message_id

    def sent(self) -> str:
        return self.promise("sent")

    def receive(self, message_id: str, state: str = "done", group: str | None = "billing") -> str:
        self.inbox[message_id] = (message_id, "orders", group, state, datetime.now(UTC))
        return message_id

    def commit(self, *names: str) -> None:
        """What the program has written so far, in tables of these names."""
        for name in names or ("outbox", "inbox"):
            rows = list((self.outbox if name == "outbox" else self.inbox).values())
            self.write(name, rows, OUTBOX if name == "outbox" else INBOX)

    def write(self, name: str, rows: list[tuple[Any, ...]], schema: str) -> None:
        if self.by_spark:
            self._write_by_spark(name, rows, schema)
            return
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType

        fields = to_arrow_schema(StructType.fromDDL(schema))
        columns = zip(*rows, strict=True) if rows else [()] * len(fields)
        data = pa.table(
            [pa.array(column, one.type) for column, one in zip(columns, fields, strict=True)],
            fields,
        )
        if self.dialect == "parquet":
            folder = self.folder / "theirs" / name
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            pq.write_table(data, folder / "part-0.parquet")
            (folder / "_SUCCESS").touch()
        else:
            self._add_to_iceberg(name, data, schema)

    def _add_to_iceberg(self, name: str, data: pa.Table, schema: str) -> None:
        table = self.table(name)
        if not (
            self.spark.catalog.tableExists(table)
            and self.spark.table(table).columns == data.column_names
        ):
            self.spark.sql(f"CREATE OR REPLACE TABLE {table} ({schema}) USING iceberg")
        its = iceberg_table(self.url, f"theirs.{name}", self.spark)
        iceberg = self.spark._jvm.org.apache.iceberg
        numbered = [
            one.with_metadata({"PARQUET:field_id": str(its.schema().findField(one.name).fieldId())})
            for one in data.schema
        ]
        file = self.folder / "theirs" / name / "data" / f"{uuid4()}.parquet"
        file.parent.mkdir(exist_ok=True)
        pq.write_table(data.cast(pa.schema(numbered)), file)
        added = (
            iceberg.DataFiles.builder(its.spec())
            .withPath(file.as_uri())
            .withFormat("parquet")
            .withFileSizeInBytes(file.stat().st_size)
            .withRecordCount(data.num_rows)
            .build()
        )
        every_row = iceberg.expressions.Expressions.alwaysTrue()
        its.newOverwrite().overwriteByRowFilter(every_row).addFile(added).commit()
        its.newAppend().commit()  # see _write_by_spark

    def _write_by_spark(self, name: str, rows: list[tuple[Any, ...]], schema: str) -> None:
        frame = self.spark.createDataFrame(rows, schema).coalesce(1)
        if self.dialect == "parquet":
            frame.write.mode("overwrite").parquet(str(self.folder / "theirs" / name))
            return
        table = self.table(name)
        present = self.spark.catalog.tableExists(table) and self.spark.table(table).columns
        if present == frame.columns:
            from pyspark.sql.functions import lit

            frame.writeTo(table).overwrite(lit(True))
        else:
            frame.writeTo(table).using("iceberg").createOrReplace()
        # Both are overwrites, as an UPDATE is: the empty append says that the program has written.
        frame.limit(0).writeTo(table).append()

    def table(self, name: str) -> str:
        return iceberg_name(self.url, f"theirs.{name}", self.spark)

    def run(self) -> None:
        """A run of reconcile, with everything due. Whatever the run before met as sent is stored by now."""
        while self.system.rows(
            "control",
            "SELECT 1 FROM mapped_stub WHERE state_seen_at > clock_timestamp() - interval '1 second'",
        ):
            sleep(0.05)
        self.system.rows("control", "UPDATE mapped_stub SET next_check_at = created_at")
        self.system.rows(
            "control",
            "UPDATE mapped_look SET began_at = began_at - interval '1 hour', ended_at = ended_at - interval '1 hour'",
        )
        run_once(self.system.settings, self.system.connections, lambda: self.spark, lambda *_: None)

    def run_without(self) -> str:
        """A run that something does not answer; what it says of it."""
        with pytest.raises(Unavailable) as error:
            self.run()
        return str(error.value)

    def verdicts(self) -> dict[str, tuple[str, str]]:
        """id -> (verdict, reason), as the last run judged what is open; (status, "") of what is not."""
        closed = self.system.rows(
            "control", "SELECT message_id, status FROM mapped_stub WHERE status <> 'pending'"
        )
        found = self.system.rows("control", "SELECT message_id, verdict, reason FROM open_delivery")
        return {one: (status, "") for one, status in closed} | {
            one: (verdict, reason) for one, verdict, reason in found
        }


@contextmanager
def lake(
    servers: tuple[Any, Any],
    spark: Any,
    dialect: str,
    folder: Path,
    producer: Mapping[str, Any] | None = None,
    consumer: Mapping[str, Any] | None = None,
    shards: Mapping[str, Any] | None = None,
    also: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Iterator[Lake]:
    """`producer`, `consumer`: what their mappings have otherwise; `shards`, `also`: more producers, more consumers."""
    folder.mkdir()
    prefix = "theirs." if dialect == "iceberg" else "theirs/"
    shared = {"dialect": dialect}
    outbox = {**PRODUCER, **shared, "tables": [f"{prefix}outbox"], **(producer or {})}
    inbox = {**CONSUMER, **shared, "tables": [f"{prefix}inbox"], **(consumer or {})}
    parts: dict[str, Any] = {
        "policy": {"max_send_duration": "0.1s", "max_clock_skew": "0.3s"},
        "producers": {
            "shop": {"kind": "mapped", "connection": "lake", "mapping": outbox},
            **(shards or {}),
        },
        "consumers": {
            "billing_db": {"kind": "mapped", "connection": "lake", "mapping": inbox},
            **(also or {}),
        },
        "groups": {"billing": {"store": "billing_db", "progress": "acknowledged"}},
        "topics": {"orders": {"broker": "embedded", "groups": ["billing"], "mode": "observe"}},
        **changes,
    }
    with system(*servers, **parts) as running:
        made = Lake(running, spark, dialect, folder)
        running.urls["lake"] = made.url
        yield made
