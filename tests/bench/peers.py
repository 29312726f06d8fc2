"""The peers of the reconcile benchmarks: the Spark job that everybody would write first, and SQL by hand in one database."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.world import GROUPS, SHARDS, World

PARTITIONS = 8
CONSUME_TIMEOUT = "15 minutes"


def obvious_spark_job(spark: SparkSession, here: World) -> int:
    """Reads whole tables, joins, decides in one `when` chain, counts, writes what is neither CONFIRMED nor WAITING."""
    as_of = f.current_timestamp()
    stubs = None
    for shard in SHARDS:
        columns = "topic, message_id, status, next_check_at, sent_at, queue_id, queue_offset"
        every = _read(spark, here, shard, "message_stub", columns)
        one = every.where("status = 'pending'").where(f.col("next_check_at") <= as_of)
        stubs = one if stubs is None else stubs.union(one)
    assert stubs is not None
    progress = _read(
        spark,
        here,
        "control",
        "progress",
        "consumer_group, topic, queue_id, next_offset",
        by="queue_id",
    )
    judged = None
    for group in GROUPS:
        columns = "topic, message_id, state, lease_expires_at, updated_at"
        logs = _read(spark, here, f"{group}_db", "consumer_log", columns)
        joined = (
            stubs.join(logs, ["topic", "message_id"], "left")
            .withColumn("consumer_group", f.lit(group))
            .join(f.broadcast(progress), ["consumer_group", "topic", "queue_id"], "left")
        )
        there = f.col("state").isNotNull()
        verdict = (
            f.when(f.col("state") == "CONSUMED", "CONFIRMED")
            .when(
                there
                & (
                    (f.col("lease_expires_at") > as_of)
                    | (f.col("updated_at") + f.expr(f"INTERVAL {CONSUME_TIMEOUT}") > as_of)
                ),
                "IN_PROGRESS",
            )
            .when(~there & (f.col("next_check_at") > as_of), "WAITING")
            .when(f.col("queue_offset") >= f.col("next_offset"), "BACKLOGGED")
            .when(there, "STALLED")
            .when(f.col("sent_at").isNull(), "UNSENT")
            .when(f.col("queue_offset") < f.col("next_offset"), "LOST")
            .otherwise("UNKNOWN")
        )
        one = joined.select("topic", "message_id", "consumer_group", verdict.alias("verdict"))
        judged = one if judged is None else judged.union(one)
    assert judged is not None
    judged.cache()
    counts = judged.groupBy("topic", "consumer_group", "verdict").count().collect()
    here.sql("control", "DROP TABLE IF EXISTS naive_verdict")
    judged.where("verdict NOT IN ('CONFIRMED', 'WAITING')").write.jdbc(
        _jdbc(here, "control"), "naive_verdict", properties=_login(here)
    )
    judged.unpersist()
    return sum(row["count"] for row in counts)


def _read(
    spark: SparkSession,
    here: World,
    database: str,
    table: str,
    columns: str,
    by: str = "message_id",
) -> DataFrame:
    chunk = f"mod(abs(hashtext({by}::text)), {PARTITIONS})"
    return spark.read.jdbc(
        _jdbc(here, database),
        f"(SELECT {columns}, {chunk} AS chunk FROM {table}) AS whole",
        predicates=[f"chunk = {n}" for n in range(PARTITIONS)],
        properties={**_login(here), "fetchsize": "10000"},
    ).drop("chunk")


def _jdbc(here: World, database: str) -> str:
    return f"jdbc:postgresql://127.0.0.1:{here.postgres.port}/{database}"


def _login(here: World) -> dict[str, str]:
    from psycopg2.extensions import parse_dsn

    parts: dict[str, Any] = parse_dsn(here.url("control"))
    return {"user": parts["user"], "password": parts["password"], "driver": "org.postgresql.Driver"}


SQL_BY_HAND = """
create temp table judged on commit drop as
select s.topic, s.message_id, g.consumer_group,
       case when l.state = 'CONSUMED' then 'CONFIRMED'
            when l.message_id is not null and (l.lease_expires_at > %(as_of)s
                or l.updated_at + %(consume_timeout)s > %(as_of)s) then 'IN_PROGRESS'
            when l.message_id is null and s.next_check_at > %(as_of)s then 'WAITING'
            when s.queue_offset >= p.settled then 'BACKLOGGED'
            when l.message_id is not null then 'STALLED'
            when s.sent_at is null then 'UNSENT'
            when s.queue_offset < p.settled then 'LOST'
            else 'UNKNOWN' end as verdict
from message_stub s
join topic_group g using (topic)
left join consumer_log l on l.consumer_group = g.consumer_group and l.topic = s.topic and l.message_id = s.message_id
left join progress p on p.consumer_group = g.consumer_group and p.topic = s.topic and p.queue_id = s.queue_id
where s.status = 'pending' and s.next_check_at <= %(as_of)s
"""


def sql_by_hand(here: World, *, hashjoin: bool) -> int:
    """The limit: everything in one database, the verdicts, their counts, and the write of what is open."""
    import psycopg2

    connection = psycopg2.connect(here.url("one"))
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL enable_hashjoin = {'on' if hashjoin else 'off'}")
            cursor.execute("SELECT clock_timestamp(), interval '15 minutes'")
            as_of, timeout = cursor.fetchone()
            cursor.execute(SQL_BY_HAND, {"as_of": as_of, "consume_timeout": timeout})
            cursor.execute(
                "SELECT topic, consumer_group, verdict, count(*) FROM judged GROUP BY 1, 2, 3"
            )
            counts = cursor.fetchall()
            cursor.execute("DROP TABLE IF EXISTS open_verdict")
            cursor.execute(
                "CREATE TABLE open_verdict AS SELECT * FROM judged WHERE verdict NOT IN ('CONFIRMED', 'WAITING')"
            )
        return int(sum(row[3] for row in counts))
    finally:
        connection.close()
