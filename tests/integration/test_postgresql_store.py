"""What is PostgreSQL's own about its stores: plans that follow what is due, lost and silent servers, and
Spark's reader."""

from __future__ import annotations

import json
import os
import random
import signal
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2
import pytest

from backstop.model.errors import StoreUnavailable
from backstop.model.records import Key
from backstop.sql.connection import PostgresConnection
from backstop.sql.named import load
from backstop.stores.postgresql import scan as postgresql_scan
from backstop.stores.postgresql.logs import PostgresLogs
from backstop.stores.postgresql.stubs import PostgresStubs
from backstop.stores.protocol import Scope
from backstop.verdicts.frames import micros
from backstop_lab.servers.child import descendants
from store_world import PostgresWorld

HISTORY, DUE = 100_000, 500


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresWorld]:
    world = PostgresWorld(tmp_path_factory.mktemp("store"))
    world.start()
    yield world
    world.stop()


@pytest.fixture(scope="module")
def never_analysed(running: PostgresWorld) -> PostgresWorld:
    """100,000 confirmed messages that were sent twice, and 500 due ones, half of them sent twice; no
    statistics."""
    for database, table in (
        ("producer", "message_stub"),
        ("producer", "send_attempt"),
        ("consumer", "consumer_log"),
    ):
        running.run(database, f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
    running.run(
        "producer",
        "INSERT INTO message_stub (topic, message_id, content, next_check_at, status, send_count)"
        " SELECT 'orders', status || n, 'content', now() - n * interval '1 second', status,"
        "   CASE WHEN status = 'confirmed' THEN 2 ELSE 1 + n %% 2 END"
        " FROM (SELECT 'confirmed' AS status, n FROM generate_series(1, %s) n"
        "   UNION ALL SELECT 'pending', n FROM generate_series(1, %s) n) s",
        (HISTORY, DUE),
    )
    running.run(
        "producer",
        "INSERT INTO send_attempt (topic, message_id, send_number, requested_by, started_at, outcome)"
        " SELECT topic, message_id, n, 'producer', now(), 'unknown'"
        " FROM message_stub, generate_series(1, send_count) n",
    )
    running.run(
        "consumer",
        "INSERT INTO consumer_log (consumer_group, topic, message_id, state, consumed_at, queue_id,"
        " queue_offset, queue_epoch)"
        " SELECT 'billing', 'orders', 'confirmed' || n, 'CONSUMED', now(), n %% 8, n, 'e'"
        " FROM generate_series(1, %s) n",
        (HISTORY,),
    )
    return running


@pytest.fixture(scope="module")
def with_history(never_analysed: PostgresWorld) -> tuple[PostgresWorld, datetime]:
    """The same with statistics, and an instant at which the 500 are due."""
    never_analysed.run("producer", "VACUUM ANALYZE message_stub")
    never_analysed.run("producer", "VACUUM ANALYZE send_attempt")
    return never_analysed, datetime.now(UTC)


@pytest.mark.parametrize(
    "name",
    [
        "stubs",
        "attempts",
        "contents",
        "sizes",
        "claim",
        "settle",
        "promote",
        "stub_columns of_keys",
        "attempt_columns attempts_of_keys",
        "logs",
    ],
)
def test_what_is_asked_by_key_goes_through_the_primary_key_even_without_statistics(
    never_analysed: PostgresWorld, name: str
) -> None:
    many = 1000
    values: dict[str, Any] = {
        "topics": ["orders"],
        "message_ids": ["confirmed7"],
        "send_numbers": [2],
        "requested_by": ["r"],
        "next_check_seconds": [1.0],
        "queue_ids": [0],
        "queue_offsets": [1],
        "broker_message_ids": [None],
        "places": [0],
        "old_statuses": ["pending"],
        "new_statuses": ["confirmed"],
        "send_counts": [2],
        "next_looks": [None],
    }
    values = {key: value * many for key, value in values.items()} | {
        "group": "billing",
        "shard": "shop",
        "as_of": datetime.now(UTC),
        "own_as_of": datetime.now(UTC),
        "above": 4096,
        "terms": json.dumps(
            [{"place": 0, "token": str(uuid.uuid4()), "outcome": "sent", "only_when_due": True}]
        ),
    }
    database, file = ("consumer", "logs.sql") if name == "logs" else ("producer", "stubs.sql")
    queries = load("backstop.stores.postgresql", file)
    if name == "logs":
        statement = f"SELECT {queries['rule_columns']}, {queries['broken']} {queries['of_keys']}"
    else:
        statement = " ".join(queries[part] for part in name.split())
    before = f"{queries['by_key']};" if name in ("claim", "settle", "promote") else ""
    nodes = plan_nodes(never_analysed, statement, values, database=database, before=before)
    ours = [
        node
        for node in nodes
        if node.get("Relation Name") in ("message_stub", "send_attempt", "consumer_log")
    ]
    assert ours and not [node for node in ours if node["Node Type"] == "Seq Scan"]
    used = {node["Index Name"] for node in nodes if "Index Name" in node}
    assert used <= {"message_stub_pkey", "send_attempt_pkey", "consumer_log_pkey"} and used


def plan_nodes(
    world: PostgresWorld,
    statement: str,
    values: Any = None,
    *,
    database: str = "producer",
    before: str = "",
) -> list[dict[str, Any]]:
    """Every node of the plan; executed unless there are values (of a statement that would change
    something)."""
    how = "FORMAT JSON" if values else "ANALYZE, FORMAT JSON"
    ((plan,),) = [
        row.values() for row in world.run(database, f"{before} EXPLAIN ({how}) {statement}", values)
    ]
    waiting, nodes = [plan[0]["Plan"]], []
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        waiting += node.get("Plans", [])
    return nodes


def rows_touched(nodes: list[dict[str, Any]], table: str) -> float:
    return sum(
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        for node in nodes
        if node.get("Relation Name") == table
    )


def test_what_a_scan_reads_follows_what_is_due_and_not_history(
    with_history: tuple[PostgresWorld, datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, as_of = with_history
    monkeypatch.setattr(postgresql_scan, "FEW_ROWS", 0)
    with world.stubs() as store, store.scan_due(as_of, Scope(topics=["orders"]), 4) as scan:
        parts = scan.parts
    read = 0.0
    for part in parts:
        nodes = plan_nodes(world, part.statements["stubs"])
        assert {node.get("Index Name") for node in nodes if "Index Name" in node} == {
            "message_stub_due"
        }
        assert not [node for node in nodes if node["Node Type"] == "Seq Scan"]
        read += rows_touched(nodes, "message_stub")
        nodes = plan_nodes(world, part.statements["attempts"])
        assert not [node for node in nodes if node["Node Type"] == "Seq Scan"]
        assert rows_touched(nodes, "message_stub") <= DUE
        assert rows_touched(nodes, "send_attempt") <= 2 * DUE
    assert len(parts) == 4
    assert read == DUE  # each part reads its own range, and nothing else


def test_finding_what_is_due_and_what_was_left_under_way_reads_no_history(
    with_history: tuple[PostgresWorld, datetime],
) -> None:
    world, as_of = with_history
    with world.stubs() as store:
        took: list[float] = []
        while not took or (took[-1] >= 1 and len(took) < 10):  # a machine may stand still once
            started = time.monotonic()
            assert store.count_due(as_of, Scope(), 10_000) == DUE
            assert store.recover(100) == []
            took.append(time.monotonic() - started)
        assert took[-1] < 1
    nodes = plan_nodes(
        world,
        "SELECT 1 FROM message_stub WHERE attempt_token IS NOT NULL AND attempt_deadline <= statement_timestamp()",
    )
    assert [node.get("Index Name") for node in nodes if "Index Name" in node] == [
        "message_stub_under_way"
    ]


def test_each_due_stub_is_read_once_through_the_scan(
    with_history: tuple[PostgresWorld, datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, _ = with_history
    monkeypatch.setattr(postgresql_scan, "FEW_ROWS", 0)
    odd = ["it's ?", 'a "b" {fn now()}', "back\\slash", "per%cent:x", "emoji-🚚", "line\nend"]
    for topic in odd:
        world.put_stub(
            topic=topic, message_id=topic, next_check_at=datetime.now(UTC) - timedelta(hours=1)
        )
    try:
        with world.stubs() as store:
            parts = world.read(store.scan_due(datetime.now(UTC), Scope(topics=[*odd, "orders"]), 3))
        rows = [row for part in parts for row in part]
    finally:
        world.run("producer", "DELETE FROM message_stub WHERE topic <> 'orders'")
    assert len(rows) == DUE + len(odd)
    assert {row["topic"] for row in rows} == {*odd, "orders"}
    assert len({(row["topic"], row["message_id"]) for row in rows}) == len(rows)
    assert all(isinstance(row["next_check_at"], int) for row in rows)


def test_instants_are_read_to_the_microsecond_by_whichever_arithmetic(
    never_analysed: PostgresWorld,
) -> None:
    """Doubles within two centuries, numeric outside of them: both ends, and instants drawn from inside and beyond."""
    draw = random.Random(41)
    ends = [datetime(1900, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)]
    beside = [end + timedelta(microseconds=by) for end in ends for by in (-1, 0, 1)]
    span = ends[1] - ends[0]
    drawn = [ends[0] + draw.random() * 1.1 * span for _ in range(20_000)]
    instants = dict(enumerate([*beside, *drawn]))
    never_analysed.run(
        "consumer",
        "INSERT INTO consumer_log (consumer_group, topic, message_id, state, consumed_at, lease_expires_at, updated_at)"
        " SELECT 'instants', 'orders', n, 'CONSUMED', at, at, at FROM unnest(%s::text[], %s::timestamptz[]) AS r (n, at)",
        ([str(number) for number in instants], list(instants.values())),
    )
    with PostgresLogs("billing_db", never_analysed.server.admin_dsn("consumer")) as logs:
        found = logs.log_table("instants", [Key("orders", str(number)) for number in instants])
    never_analysed.run("consumer", "DELETE FROM consumer_log WHERE consumer_group = 'instants'")
    rows = found.to_pylist()
    assert len(rows) == len(instants)
    names = ("lease_expires_at", "log_updated_at", "log_consumed_at")
    assert [
        row
        for row in rows
        if {row[name] for name in names} != {micros(instants[int(row["message_id"])])}
    ] == []


def test_rows_that_row_level_security_would_hide_are_refused(running: PostgresWorld) -> None:
    server, secret = running.server, running.server.create_role("tenant")
    running.put_stub()
    running.run(
        "producer",
        "GRANT CONNECT ON DATABASE producer TO tenant; GRANT SELECT ON message_stub TO tenant;"
        " ALTER TABLE message_stub ENABLE ROW LEVEL SECURITY",
    )
    try:
        with (
            PostgresStubs("shop_a", server.dsn("tenant", secret, "producer")) as store,
            pytest.raises(StoreUnavailable, match="would be affected by row-level security"),
        ):
            store.scan_due(datetime.now(UTC), Scope(), 1).__enter__()
    finally:
        running.run("producer", "ALTER TABLE message_stub DISABLE ROW LEVEL SECURITY")


def test_a_restarted_server_is_asked_again_without_an_error(running: PostgresWorld) -> None:
    with running.stubs() as stubs, running.logs() as logs:
        stubs.clock(), logs.clock()
        running.stop()
        with pytest.raises(StoreUnavailable):
            stubs.stubs([Key("orders", "m-1")])
        running.server.start()
        assert stubs.clock() and logs.clock()  # `logs` held a connection that died meanwhile


def test_a_session_that_the_server_ended_is_a_store_that_did_not_answer(
    running: PostgresWorld,
) -> None:
    def stand_still(cursor: Any) -> None:
        cursor.execute("SELECT set_config('idle_in_transaction_session_timeout', '50', true)")
        mine = [cursor.connection.info.backend_pid]
        deadline = time.monotonic() + 60
        while running.run("producer", "SELECT 1 FROM pg_stat_activity WHERE pid = %s", mine):
            assert time.monotonic() < deadline, "the server did not end the session"
            time.sleep(0.02)
        cursor.execute("SELECT 1")

    with closing(
        PostgresConnection("shard shop_a", running.server.admin_dsn("producer"))
    ) as connection:
        # Whether the reason of the server, or only the end of the connection, comes first is a matter of time.
        with pytest.raises(StoreUnavailable, match=r"idle-in-transaction|closed the connection"):
            connection.run(stand_still)
        assert connection.rows("SELECT 1") == [(1,)]


def test_a_server_that_freezes_is_told_after_a_bounded_time(running: PostgresWorld) -> None:
    connection = PostgresConnection(
        "shard shop_a",
        running.server.admin_dsn("producer"),
        statement_timeout=timedelta(seconds=1),
        grace=1.0,
    )

    def answers() -> list[Any]:
        """A busy server may take longer than the limit; any other failure is one."""
        deadline = time.monotonic() + 60
        while True:
            asked = time.monotonic()
            try:
                return connection.rows("SELECT 1")
            except StoreUnavailable:
                if not asked + 0.9 < time.monotonic() < deadline:
                    raise

    answers()
    with pytest.raises(StoreUnavailable, match="shop_a"):
        connection.rows("SELECT pg_sleep(30)")  # the server's own limit
    answers()
    assert running.server.pid is not None
    frozen = [running.server.pid, *descendants(running.server.pid)]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        with pytest.raises(StoreUnavailable, match="shop_a"):
            connection.rows("SELECT 1")
        assert time.monotonic() - started < 60
    finally:
        for pid in reversed(frozen):
            os.kill(pid, signal.SIGCONT)
    assert answers() == [(1,)]
    connection.close()


def test_a_statement_beyond_a_limit_of_the_server_is_refused_and_the_connection_stays(
    running: PostgresWorld,
) -> None:
    connection = PostgresConnection("shard shop_a", running.server.admin_dsn("producer"))
    before = connection.rows("SELECT pg_backend_pid()")
    with pytest.raises(StoreUnavailable, match="refused: index row"):
        connection.rows(
            "INSERT INTO message_stub (topic, message_id, content, next_check_at, schema_version) SELECT 'orders',"
            " string_agg(md5(n::text), ''), '', now(), 1 FROM generate_series(1, 200) n RETURNING topic"
        )
    assert connection.rows("SELECT pg_backend_pid()") == before
    connection.close()


def test_a_commit_that_no_synchronous_standby_confirmed_is_not_called_done(
    running: PostgresWorld,
) -> None:
    """Somebody cancels the wait, and the server only warns: a failover may lose what was written."""
    url = running.server.admin_dsn("producer")
    connection = PostgresConnection("shard shop_a", url)
    running.put_stub(message_id="not replicated")
    owner = psycopg2.connect(url)
    owner.autocommit = True

    def write() -> list[tuple[Any, ...]]:
        return connection.rows(
            "UPDATE message_stub SET tag = 'x' WHERE message_id = 'not replicated' RETURNING tag"
        )

    with owner.cursor() as cursor, ThreadPoolExecutor() as threads:
        try:
            cursor.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            cursor.execute("SELECT pg_reload_conf()")
            given_up = time.monotonic() + 120
            while connection.rows("SHOW synchronous_standby_names") != [("nobody",)]:
                assert time.monotonic() < given_up
            writing = threads.submit(write)
            cancelled: list[Any] = []
            while not cancelled:
                assert time.monotonic() < given_up
                cursor.execute(
                    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
                )
                cancelled = cursor.fetchall()
            with pytest.raises(StoreUnavailable, match="synchronous standby"):
                writing.result()
            assert connection.rows(
                "SELECT tag FROM message_stub WHERE message_id = 'not replicated'"
            ) == [("x",)]
        finally:
            cursor.execute("ALTER SYSTEM RESET synchronous_standby_names")
            cursor.execute("SELECT pg_reload_conf()")
            cursor.execute("SET synchronous_commit = local")
            cursor.execute("DELETE FROM message_stub WHERE message_id = 'not replicated'")
    owner.close()
    connection.close()


def test_a_store_whose_tables_are_missing_is_silent_not_empty(running: PostgresWorld) -> None:
    running.server.create_database("bare")
    with PostgresLogs("billing_db", running.server.admin_dsn("bare")) as logs:
        with pytest.raises(StoreUnavailable, match="refused"):
            logs.logs("billing", [Key("orders", "m-1")])
        version, privileges = logs.check()[:2]
    assert not version.good and "backstop migrate" in version.do
    assert not privileges.good and "SELECT on consumer_log" in privileges.says


@pytest.mark.parametrize(
    "url", ["postgresql://u:pa/ss@127.0.0.1:5432/x", "postgresql://u:p@ss@127.0.0.1/x", "::"]
)
def test_a_password_with_bare_signs_in_it_is_not_shown_by_the_driver_either(url: str) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        PostgresConnection("shard shop_a", url).rows("SELECT 1")
    assert (
        "pa/ss" not in str(caught.value)
        and "ss@" not in str(caught.value)
        and '"pa"' not in str(caught.value)
    )
