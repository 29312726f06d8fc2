"""The same jobs on a cluster of separate processes: the same rows, no secret on the way, and executors that die."""

from __future__ import annotations

import re
import tarfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import redis
from cluster_world import Cluster, Submitter, passwords

from backstop.config.connections import Connections
from backstop.leases import guard
from backstop.leases.front import Front
from backstop.leases.lease import Arrival
from backstop.leases.redis_exchange import RedisExchange
from backstop.leases.redis_records import RedisKeys
from backstop.model.records import Counts, Key
from backstop.runs.run import close_run, open_run
from backstop.sweep.run_once import run_duty as run_sweep
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from lease_records import end_records
from resend_world import OTHER, TOPIC, World, ids, servers, world  # noqa: F401
from system import System, build_template, settings_dict, system

pytestmark = pytest.mark.nightly

LEASES = 20
MANY = 21_000
"""Stubs of which nine of ten are done: so many that logs are scanned and meet the stubs by bucket, as after an outage."""
PROVEN = 2 * MANY * 9 // 10
"""Of their deliveries, those that the scan proves."""
STAGED = (
    "SELECT shard, topic, message_id, consumer_group, verdict, reason, eligible, send_count, case_kind FROM staged_verdict"
    " WHERE run_id = %s ORDER BY 1, 2, 3, 4"
)
OUTCOMES = (
    "SELECT shard, topic, message_id, old_status, new_status, send_count, deliveries FROM staged_stub"
    " WHERE run_id = %s ORDER BY 1, 2, 3"
)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A system with something of most verdicts, in two shards, and much that is done; no job of these tests changes it."""
    with (
        Postgres(tmp_path_factory.mktemp("postgres")) as postgres,
        Valkey(tmp_path_factory.mktemp("valkey"), appendfsync="everysec") as valkey,
    ):
        build_template(postgres)
        with system(postgres, valkey) as made:
            for number in range(60):
                made.sent(f"m:{number}%'ü", shard="shop_a" if number % 2 else "shop_b")
            made.consume("billing")
            made.pass_over("shipping")
            for number in range(20):
                made.sent(f"later-{number}")
            made.stub("never", send_count=0)
            made.stub("twice", send_count=2)  # whose attempts are read beside it
            made.stub("old", topic="payments", age=timedelta(minutes=30))
            add_many(made)
            yield made


def add_many(made: System) -> None:
    """Copies of a stub that both groups have passed, and of its logs but for every tenth."""
    made.log(Key("orders", "m:0%'ü"), "shipping")
    copied = "content, headers, send_count, created_at, next_check_at, first_seen_at, attempted_at, attempt_deadline, sent_at, broker"
    made.rows(
        "shop_b",
        f"INSERT INTO message_stub (topic, message_id, queue_id, queue_offset, queue_epoch, {copied})"
        f" SELECT topic, 'many-' || n, queue_id, queue_offset, queue_epoch, {copied}"
        " FROM message_stub, generate_series(1, %s) AS n WHERE message_id = %s",
        MANY,
        "m:0%'ü",
    )
    for group in ("billing", "shipping"):
        made.rows(
            f"{group}_db",
            "INSERT INTO consumer_log (consumer_group, topic, message_id, state, first_received_at, updated_at, consumed_at)"
            " SELECT consumer_group, topic, 'many-' || n, state, first_received_at, updated_at, consumed_at"
            " FROM consumer_log, generate_series(1, %s) AS n WHERE message_id = %s AND mod(n, 10) > 0",
            MANY,
            "m:0%'ü",
        )
        made.rows(f"{group}_db", "ANALYZE consumer_log")


def holds_any(file: Path, secrets: Collection[str]) -> bool:
    content = file.read_bytes()
    return any(secret.encode() in content for secret in secrets)


def judge(submitter: Submitter, made: System, during: Callable[[Any], None] | None = None) -> int:
    """One run of the job in the system, closed by hand as failed, because nothing is promoted here; returns the run's id."""
    control = made.control()
    try:
        run = open_run(control, "reconcile", "*", made.settings, dry_run=True)
        try:
            if during is None:
                said = submitter.run("reconcile", run, settings_dict(), made.urls)
                assert int(re.findall(r"proven_by_scan (\d+)", said)[0]) >= PROVEN
            else:
                with submitter.submitted("reconcile", run, settings_dict(), made.urls) as job:
                    during(job)
        finally:
            close_run(control, run, "failed", Counts())
        return run.run_id
    finally:
        control.close()


def judge_here(spark: Any, made: System) -> int:
    """As `judge`, by the threads of this process."""
    from spark_jobs.reconcile import run as job

    control = made.control()
    try:
        run = open_run(control, "reconcile", "*", made.settings, dry_run=True)
        try:
            counts = job(
                spark.newSession(), made.settings, Connections(resolver=made.urls.get), run
            )
            assert counts["proven_by_scan"] >= PROVEN
        finally:
            close_run(control, run, "failed", Counts())
        return run.run_id
    finally:
        control.close()


@pytest.fixture(scope="module")
def by_threads(judged: System, spark: Any) -> tuple[list[Any], list[Any]]:
    """What local[2] stages."""
    run_id = judge_here(spark, judged)
    return judged.rows("control", STAGED, run_id), judged.rows("control", OUTCOMES, run_id)


def test_reconcile_stages_the_same_rows_on_a_standalone_cluster_and_shows_no_secret(
    judged: System,
    by_threads: tuple[list[Any], list[Any]],
    masters: dict[str, Any],
    cluster: Cluster,
    events: Path,
    tmp_path: Path,
) -> None:
    submitter = Submitter(
        masters["standalone"], tmp_path, cluster.secret, (*passwords(judged.urls), cluster.secret)
    )
    run_id = judge(submitter, judged)
    assert {row[4] for row in by_threads[0]} >= {"LOST", "BACKLOGGED", "UNSENT"}
    assert judged.rows("control", STAGED, run_id) == by_threads[0]
    assert judged.rows("control", OUTCOMES, run_id) == by_threads[1]
    assert len(submitter.secrets) == 3
    assert submitter.seen == set(), "a password on a command line"
    shown = [
        path
        for folder in (events, cluster.folder, tmp_path)
        for path in folder.rglob("*")
        if path.is_file()
    ]
    kept = b"".join(path.read_bytes() for path in shown if path.is_relative_to(events))
    assert b"SparkListenerEnvironmentUpdate" in kept, "Spark kept no events that can be read"
    assert b"spark.driver.bindAddress" not in kept, (
        "no executor of another machine could reach the driver"
    )
    leaks = [
        str(path)
        for path in shown
        if path.suffix not in {".so", ".gz"} and holds_any(path, submitter.secrets)
    ]
    assert leaks == []


@pytest.mark.soak
def test_reconcile_stages_the_same_rows_on_local_cluster(
    judged: System, by_threads: tuple[list[Any], list[Any]], masters: dict[str, Any], tmp_path: Path
) -> None:
    run_id = judge(Submitter(masters["local-cluster"], tmp_path), judged)
    assert judged.rows("control", STAGED, run_id) == by_threads[0]
    assert judged.rows("control", OUTCOMES, run_id) == by_threads[1]


@pytest.mark.parametrize(
    ("database", "table", "lost_executors"),
    [
        pytest.param("shop_a", "send_attempt", 2, id="stub_scan", marks=pytest.mark.soak),
        pytest.param("billing_db", "consumer_log", 2, id="logs"),
        pytest.param("billing_db", "consumer_log", 1, id="one_in_logs", marks=pytest.mark.soak),
        pytest.param("control", "staged_part", 2, id="staging", marks=pytest.mark.soak),
        pytest.param("control", "staged_part", 1, id="one_in_staging"),
    ],
)
def test_an_executor_lost_in_any_pass_stages_the_right_rows_or_none_and_the_next_run_is_right(
    judged: System,
    by_threads: tuple[list[Any], list[Any]],
    beside: dict[str, Any],
    cluster: Cluster,
    spark: Any,
    tmp_path: Path,
    database: str,
    table: str,
    lost_executors: int,
) -> None:
    """A table that is locked holds the executors in the pass that reads or writes it. What was read before and lies in them is
    gone with them: the run fails. The first pass has read nothing yet: its tasks run again."""
    submitter = Submitter(beside, tmp_path, cluster.secret)
    ended = []

    def kill_while_they_wait(job: Any) -> None:
        with ExitStack() as opened:
            holder = held_for_executors(judged, database, table, job, opened)
            assert len(cluster.kill_executors(lost_executors)) == lost_executors
            holder.rollback()
            ended.append(job.wait())
        if table == "send_attempt":
            assert ended == [0], job.text()[-4000:]
        elif lost_executors == 2:
            assert ended != [0], "what was read before was read again"
        assert ended == [0] or "CHECKPOINT" in job.text().upper(), job.text()[-4000:]

    lost = judge(submitter, judged, kill_while_they_wait)
    right = ended == [0]
    staged = judged.rows("control", STAGED, lost), judged.rows("control", OUTCOMES, lost)
    counts = judged.rows("control", "SELECT stage FROM run WHERE run_id = %s", lost)
    assert counts == [(1 if right else 0,)], "a stage counts once it is whole"
    if right or lost_executors == 2:
        assert staged == (by_threads if right else ([], []))
    else:  # what the other executor staged may stand: the run has failed, and nothing is promoted
        assert all(set(some) <= set(whole) for some, whole in zip(staged, by_threads, strict=True))
        assert len(set(staged[1])) == len(staged[1]) < len(by_threads[1])
    again = judge_here(spark, judged)
    assert judged.rows("control", STAGED, again) == by_threads[0]


def held_for_executors(made: System, database: str, table: str, job: Any, opened: ExitStack) -> Any:
    """A connection that has locked the table, and executors wait for it. The driver asks logs first, for the planner's estimate: it gets
    its turn, and the lock is taken again before anybody else comes, because who waits is served in order."""
    holder = opened.enter_context(closing(psycopg2.connect(made.urls[database])))
    hold_back(holder, table)
    while True:
        wait_for(lambda: bool(waiting_for(made, database, table)) or not job.running, 300)
        assert job.running, job.text()[-4000:]
        asking = [query for _, query in waiting_for(made, database, table)]
        if table != "consumer_log" or all(query.startswith("COPY") for query in asking):
            return holder
        following = opened.enter_context(closing(psycopg2.connect(made.urls[database])))
        taking = threading.Thread(target=hold_back, args=(following, table))
        taking.start()
        pid = following.get_backend_pid()
        wait_for(lambda pid=pid: pid in dict(waiting_for(made, database, table)), 60)
        holder.rollback()
        taking.join()
        holder = following


@pytest.mark.soak
def test_resend_sends_each_number_once_on_a_standalone_cluster(
    world: World,
    masters: dict[str, Any],
    cluster: Cluster,
    tmp_path: Path,
) -> None:
    asked(world, 100)
    with world.run() as run:
        Submitter(masters["standalone"], tmp_path, cluster.secret).run(
            "resend", run, world.written, world.urls
        )
    assert everything_went_once(world, 100)


@pytest.mark.soak
def test_resend_sends_each_number_once_on_local_cluster(
    world: World, masters: dict[str, Any], tmp_path: Path
) -> None:
    asked(world, 100)
    with world.run() as run:
        Submitter(masters["local-cluster"], tmp_path).run("resend", run, world.written, world.urls)
    assert everything_went_once(world, 100)


def test_an_executor_killed_while_publishing_sends_no_number_twice_and_leaves_nothing_behind(
    world: World, beside: dict[str, Any], cluster: Cluster, tmp_path: Path
) -> None:
    world.set("resend", to={"batch_size": 20})
    world.set("policy", "rate_limit", to=100)
    asked(world, 500)
    submitter = Submitter(beside, tmp_path, cluster.secret)
    with world.run() as run, submitter.submitted("resend", run, world.written, world.urls) as job:
        wait_for(lambda: len(world.published()) > 100 or not job.running, 300)
        killed = cluster.kill_executors(1)
        before = len(world.published())
        assert killed and 100 < before < 900, (killed, before, job.text()[-4000:])
        job.wait()
        assert "Lost executor" in job.text() or "ExecutorLostFailure" in job.text()
    never_twice(world)
    world.expire_claims()
    world.set("policy", "rate_limit", to=2000)
    world.resend()
    never_twice(world)
    assert set(world.requests()) <= {"sent", "not_needed", "unknown"}, world.requests()
    assert world.sql(
        "producer_a", "SELECT count(*) FROM message_stub WHERE attempt_token IS NOT NULL"
    ) == [(0,)]


def test_executors_lost_in_each_pass_of_a_sweep_leave_every_lease_taken_back_once(
    world: World, beside: dict[str, Any], cluster: Cluster, tmp_path: Path
) -> None:
    """A lock on the log holds them first where a database takes back its leases, then where the log is asked about what ended in
    Redis, whose records the lost executors had scanned; in between the driver waits to write what the first pass did. A statement
    whose executor is gone may still lock rows, which a task that runs again skips: the next sweep takes those back."""
    world.sql("control", "TRUNCATE sweep_count, sweep_look, sweep_sample, sweep_place CASCADE")
    names = [f"stuck-{number}" for number in range(LEASES)]
    ended_leases(world, [*names, "done"])
    world.sql(
        "consumer_billing",
        "UPDATE consumer_log SET state = 'CONSUMED', consumed_at = now() WHERE message_id = 'done'",
    )
    world.consume("held", "billing", state="CONSUMING")
    world.sql(
        "consumer_billing",
        "UPDATE consumer_log SET lease_expires_at = now() + interval '1 hour' WHERE message_id = 'held'",
    )
    log, counts = world.urls["backstop_consumer_billing"], world.urls["backstop_control"]
    submitter = Submitter(beside, tmp_path, cluster.secret)
    with (
        closing(psycopg2.connect(log)) as holder,
        closing(psycopg2.connect(counts)) as between,
        world.run(duty="sweep") as run,
    ):
        hold_back(between, "sweep_count")
        hold_back(holder, "consumer_log")
        with submitter.submitted("sweep", run, world.written, world.urls) as job:

            def someone_waits(database: str, table: str, but: Collection[int] = ()) -> set[int]:
                wait_for(
                    lambda: bool(waiting(world, database, table) - {*but}) or not job.running, 300
                )
                assert job.running, job.text()[-4000:]
                return waiting(world, database, table)

            lost = someone_waits("consumer_billing", "consumer_log")
            assert cluster.kill_executors(2)
            someone_waits("consumer_billing", "consumer_log", but=lost)  # its task runs again
            holder.rollback()
            someone_waits("control", "sweep_count")
            hold_back(holder, "consumer_log")
            between.rollback()
            someone_waits("consumer_billing", "consumer_log")
            assert cluster.kill_executors(2)
            holder.rollback()
            assert job.wait() == 0, job.text()[-4000:]
        assert job.text().count("Lost executor") >= 2, job.text()[-4000:]
    run_sweep(world.settings, world.connections)
    assert dict(world.sql("consumer_billing", "SELECT message_id, state FROM consumer_log")) == {
        **dict.fromkeys(names, "EXPIRED"),
        "done": "CONSUMED",
        "held": "CONSUMING",
    }
    keys, leases = RedisKeys("billing"), redis.Redis.from_url(world.urls["backstop_leases"])
    assert [name for index in keys.expiry for name in leases.zrange(index, 0, -1)] == []
    counted = "SELECT decision, sum(leases)::int FROM sweep_count GROUP BY 1 ORDER BY 1"
    assert world.sql("control", counted) == [("RECLAIM", 2 * LEASES), ("REPAIR", 1)]


def ended_leases(made: World, names: list[str]) -> None:
    """Leases of billing that ended a second ago, in its log and in Redis."""
    connection = psycopg2.connect(made.urls["backstop_consumer_billing"])
    arrivals = [Arrival(TOPIC, name) for name in names]
    with closing(connection), connection:
        begun = guard.begin_many(
            connection, "billing", arrivals, lease_seconds=60, owner_host="host-1"
        )
    leases = made.urls["backstop_leases"]
    front = Front(RedisExchange(leases), "billing", lease=timedelta(minutes=10))
    front.held([(one, arrival) for one, arrival in zip(begun, arrivals, strict=True)])
    assert end_records(redis.Redis.from_url(leases), "billing") == len(names)
    made.sql(
        "consumer_billing",
        "UPDATE consumer_log SET lease_expires_at = clock_timestamp() - interval '1 second'",
    )


def hold_back(connection: Any, table: str) -> None:
    """Whoever reads or changes the table from now on waits."""
    with connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")


def waiting(made: World, database: str, table: str) -> set[int]:
    """The server's processes that wait for the table."""
    found = made.sql(
        database,
        "SELECT pid FROM pg_locks WHERE NOT granted AND relation = %s::regclass"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        [table],
    )
    return {pid for (pid,) in found}


def asked(made: World, number: int) -> None:
    for shard in "ab":
        made.stubs(ids(number, shard), shard=shard)
        made.ask(ids(number, shard), shard=shard)


def everything_went_once(made: World, number: int) -> bool:
    expected = {(i, "1"): 1 for shard in "ab" for i in ids(number, shard)}
    return made.copies(TOPIC) == expected and made.requests() == {"sent": 2 * number}


def never_twice(made: World) -> None:
    """No (message, send number) is in the broker twice, and no message more often than its stub counts."""
    copies = made.copies(TOPIC)
    assert [key for key, count in copies.items() if count > 1] == []
    counted = dict(made.sql("producer_a", "SELECT message_id, send_count FROM message_stub"))
    counted |= dict(made.sql("producer_b", "SELECT message_id, send_count FROM message_stub"))
    assert [key for key in copies if counted[key[0]] < int(key[1])] == []


def waiting_for(made: System, database: str, table: str) -> list[tuple[int, str]]:
    """The server's processes that wait for the table, and what each of them asks."""
    return made.rows(
        database,
        "SELECT l.pid, a.query FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted AND l.relation = %s::regclass"
        " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        table,
    )


def wait_for(holds: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.05)


def test_the_archive_has_the_drivers_of_every_kind_of_store(packed: Path) -> None:
    with tarfile.open(packed) as archive:
        inside = {
            name.partition("site-packages/")[2].partition("/")[0] for name in archive.getnames()
        }
    assert {"psycopg2", "pymysql", "pymongo"} <= inside
