"""Sets broken rows aside: counted and shown once per (store, row, reason), never judged and never dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from psycopg2.extras import execute_values
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from backstop.config.settings import Settings
from backstop.named_sql import load
from backstop.reconcile.row_key import row_key
from backstop.records import ID_BYTES, TOPIC_BYTES, StubStatus
from backstop.runs.run import Run, hold
from backstop.stores.postgresql_connection import UNREADABLE
from backstop.stores.protocol import EARLIEST, LAST_NUMBER, LATEST
from backstop.verdicts.frames import micros

_SQL = load("backstop.reconcile", "queries.sql")
_BATCH = 5_000
OPEN = (StubStatus.PENDING, StubStatus.EXHAUSTED)
"""What a run over due stubs may meet."""

TOO_LONG = "key_too_long"
"""No key of the control database holds such a row: its quarantine is all that is written about it."""

Broken = tuple[str, str, str, str | None, str | None, str | None]
"""store, row_key, reason, topic, message_id, consumer_group"""


@dataclass(frozen=True, slots=True)
class Read:
    """How many stubs of one shard and topic were read, sound or broken."""

    shard: str
    topic: str
    sound: bool
    rows: int
    brokers: tuple[str, ...] = ()
    """Where their newest copies went, as recorded."""


def quarantine_stubs(
    stubs: DataFrame, settings: Settings, control: Any, run: Run, statuses: Sequence[StubStatus] = OPEN
) -> tuple[DataFrame, DataFrame, list[Read]]:
    """(stubs that keep their contract, broken ones as columns of staged_stub, what was read).

    The broken are written to `quarantine`.

    Broken: a topic or id longer than the contract allows, no id, no topic, a topic that no policy names, an unknown status,
    more refusals than sends, an instant that is infinite or in the year 9999 (no horizon would ever come), or one id on two
    shards (which of the two promises is the real one, a machine cannot know).
    """
    topics = list(settings.topics)
    too_long = (f.octet_length("message_id") > ID_BYTES) | (f.octet_length("topic") > TOPIC_BYTES)
    earliest, latest = f.lit(micros(EARLIEST)), f.lit(micros(LATEST))
    reason = (
        f.when(too_long, TOO_LONG)
        .when(f.col("status") == UNREADABLE, "not_utf8")
        .when(f.trim(f.coalesce("message_id", f.lit(""))) == "", "no_message_id")
        .when(f.trim(f.coalesce("topic", f.lit(""))) == "", "no_topic")
        .when(~f.col("topic").isin(topics), "topic_without_policy")
        .when(f.coalesce(~f.col("status").isin(*map(str, statuses)), f.lit(True)), "unknown_status")
        .when(f.coalesce(f.col("send_count") < f.col("refusals"), f.lit(True)), "more_refusals_than_sends")
        .when(f.col("send_count") >= LAST_NUMBER, "no_number_left")
        .when(f.coalesce(f.col("created_at") <= earliest, f.lit(True)) | f.col("next_check_at").isNull(), "no_time")
        .when(f.greatest("created_at", "next_check_at", "attempted_at", "deliver_at") >= latest, "no_time")
        .when(f.coalesce(f.col("attempted_at") <= earliest, f.lit(False)), "no_time")
    )
    checked = _mark_shared_ids(stubs.withColumn("broken", reason))
    kinds = checked.groupBy("shard", "topic", f.isnull("broken").alias("sound")).agg(
        f.count("*").alias("rows"), f.collect_set("broker").alias("brokers")
    ).collect()
    read = [Read(kind["shard"], kind["topic"], kind["sound"], kind["rows"], tuple(kind["brokers"])) for kind in kinds]
    broken = checked.where("broken IS NOT NULL")
    rows = [] if all(one.sound for one in read) else [
        (f"shard {row['shard']}", row_key(row["topic"], row["message_id"]), row["broken"], row["topic"],
         row["message_id"], None)
        for row in broken.collect()
    ]  # fmt: skip
    _write(control, run, rows)
    # They stay pending, and are looked at again from time to time: somebody may mend the policy or the row.
    again = micros(run.as_of + settings.policy_for(None).unknown_horizon)
    staged = broken.where(f.col("broken") != TOO_LONG).select(
        "shard", "topic", "message_id", f.col("status").alias("old_status"), f.col("status").alias("new_status"),
        "send_count", f.lit(0).alias("deliveries"), f.lit(again).alias("next_look_at"),
    )  # fmt: skip
    sound = checked.where("broken IS NULL").select(*stubs.columns)
    return sound, staged, read


def _mark_shared_ids(checked: DataFrame) -> DataFrame:
    """Every row once, broken where several shards have its id.

    Each range of the due index is read by a statement of its own, so that a stub which moves between two ranges meanwhile is
    read twice: its newer version stays.
    """
    # Hashes first: comparing eight bytes a row is cheap, and a shared hash is then looked at by its real key.
    hashed = checked.withColumn("key_hash", f.xxhash64("topic", "message_id"))
    shared = hashed.groupBy("key_hash").agg(f.count("*").alias("rows")).where("rows > 1").select("key_hash")
    shared = shared.localCheckpoint(eager=True)
    if shared.isEmpty():
        return checked
    newest = (
        hashed.join(f.broadcast(shared), "key_hash")
        .groupBy("shard", "topic", "message_id")
        .agg(f.max_by("stub_id", f.struct("send_count", "next_check_at", "stub_id")).alias("newest"))
        .localCheckpoint(eager=True)
    )  # fmt: skip
    shards = newest.groupBy("topic", "message_id").agg(f.count("*").alias("shards")).where("shards > 1")
    return (
        checked.join(f.broadcast(newest), ["shard", "topic", "message_id"], "left")
        .where("newest IS NULL OR newest = stub_id")
        .join(f.broadcast(shards), ["topic", "message_id"], "left")
        .withColumn("broken", f.coalesce("broken", f.when(f.col("shards") > 1, "on_two_shards")))
        .drop("newest", "shards")
    )  # fmt: skip


def quarantine_logs(deliveries: DataFrame, settings: Settings, control: Any, run: Run) -> None:
    """Log rows that break their contract; their deliveries are still judged: something is there, so it waits."""
    broken = deliveries.where("log_broken IS NOT NULL").select("consumer_group", "topic", "message_id", "log_broken")
    rows = (
        (f"store {settings.groups[row['consumer_group']].store}",
         row_key(row["consumer_group"], row["topic"], row["message_id"]), row["log_broken"], row["topic"],
         row["message_id"], row["consumer_group"])
        for row in broken.collect()
    )  # fmt: skip
    _write(control, run, rows)


def _write(control: Any, run: Run, rows: Iterable[Broken]) -> None:
    for batch in _batches(iter(rows)):
        with control, control.cursor() as cursor:
            hold(cursor, run)
            execute_values(cursor, _SQL["quarantine"], [(*row, run.run_id) for row in batch], page_size=_BATCH)


def _batches(rows: Iterator[Broken]) -> Iterator[list[Broken]]:
    while batch := list(islice(rows, _BATCH)):
        yield batch
