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
from backstop.records import StubStatus
from backstop.runs.run import Run, hold
from backstop.verdicts.frames import micros

_SQL = load("backstop.reconcile", "queries.sql")
_BATCH = 5_000
OPEN = (StubStatus.PENDING, StubStatus.EXHAUSTED)
"""What a run over due stubs may meet."""

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

    Broken: no id, no topic, a topic that no policy names, an unknown status, more refusals than sends, or one id on two
    shards (which of the two promises is the real one, a machine cannot know).
    """
    topics = list(settings.topics)
    reason = (
        f.when(f.trim(f.coalesce("message_id", f.lit(""))) == "", "no_message_id")
        .when(f.trim(f.coalesce("topic", f.lit(""))) == "", "no_topic")
        .when(~f.col("topic").isin(topics), "topic_without_policy")
        .when(f.coalesce(~f.col("status").isin(*map(str, statuses)), f.lit(True)), "unknown_status")
        .when(f.coalesce(f.col("send_count") < f.col("refusals"), f.lit(True)), "more_refusals_than_sends")
        .when(f.col("created_at").isNull() | f.col("next_check_at").isNull(), "no_time")
    )
    checked = stubs.withColumn("broken", reason)
    if len(settings.producers) > 1:
        # Hashes first: comparing eight bytes a row is cheap, and a shared hash is then looked at by its real key.
        hashed = checked.withColumn("key_hash", f.xxhash64("topic", "message_id"))
        shared = hashed.groupBy("key_hash").agg(f.count("*").alias("rows")).where("rows > 1").select("key_hash")
        shared = shared.localCheckpoint(eager=True)
        if not shared.isEmpty():
            twice = (
                hashed.join(f.broadcast(shared), "key_hash")
                .groupBy("topic", "message_id").agg(f.count("*").alias("copies")).where("copies > 1")
            )  # fmt: skip
            checked = checked.join(f.broadcast(twice), ["topic", "message_id"], "left").withColumn(
                "broken", f.coalesce("broken", f.when(f.col("copies") > 1, "on_two_shards"))
            )
    kinds = checked.groupBy("shard", "topic", f.isnull("broken").alias("sound")).agg(
        f.count("*").alias("rows"), f.collect_set("broker").alias("brokers")
    ).collect()
    read = [Read(kind["shard"], kind["topic"], kind["sound"], kind["rows"], tuple(kind["brokers"])) for kind in kinds]
    broken = checked.where("broken IS NOT NULL")
    rows = [] if all(one.sound for one in read) else [
        (f"shard {row['shard']}", _row_key(row["topic"], row["message_id"]), row["broken"], row["topic"],
         row["message_id"], None)
        for row in broken.collect()
    ]  # fmt: skip
    _write(control, run, rows)
    # They stay pending, and are looked at again from time to time: somebody may mend the policy or the row.
    again = micros(run.as_of + settings.policy_for(None).unknown_horizon)
    staged = broken.select(
        "shard", "topic", "message_id", f.col("status").alias("old_status"), f.col("status").alias("new_status"),
        "send_count", f.lit(0).alias("deliveries"), f.lit(again).alias("next_look_at"),
    )  # fmt: skip
    sound = checked.where("broken IS NULL").select(*stubs.columns)
    return sound, staged, read


def quarantine_logs(deliveries: DataFrame, settings: Settings, control: Any, run: Run) -> None:
    """Log rows that break their contract; their deliveries are still judged: something is there, so it waits."""
    broken = deliveries.where("log_broken IS NOT NULL").select("consumer_group", "topic", "message_id", "log_broken")
    rows = (
        (f"store {settings.groups[row['consumer_group']].store}",
         _row_key(row["consumer_group"], row["topic"], row["message_id"]), row["log_broken"], row["topic"],
         row["message_id"], row["consumer_group"])
        for row in broken.collect()
    )  # fmt: skip
    _write(control, run, rows)


def _row_key(*parts: str | None) -> str:
    # Ids may contain any separator: lengths in front make the joined text unique.
    return "".join(f"{len(part)}:{part}" for part in (part or "" for part in parts))


def _write(control: Any, run: Run, rows: Iterable[Broken]) -> None:
    for batch in _batches(iter(rows)):
        with control, control.cursor() as cursor:
            hold(cursor, run)
            execute_values(cursor, _SQL["quarantine"], [(*row, run.run_id) for row in batch], page_size=_BATCH)


def _batches(rows: Iterator[Broken]) -> Iterator[list[Broken]]:
    while batch := list(islice(rows, _BATCH)):
        yield batch
