"""A database of the version before, with many stubs and producers at work, is brought to today's schema."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

from backstop.model.errors import StoreUnavailable
from backstop.schema.build_indexes import build_indexes, indexes_of
from backstop.schema.change_tables import change_tables, changes_of
from backstop.schema.migrate import current, head, migrate
from backstop.schema.revisions import revisions
from backstop_lab.servers.postgres import Postgres

COMING = sorted(revisions("producer"))[1:]
"""What a database of version 0.1.0 has still to get."""
LONGEST_STALL = 2.0
"""Seconds that a producer's transaction may wait, on a machine of two cores that also builds the index."""
TRIES = 5
"""A machine that stands still for seconds makes one migration stall its producers, but not all."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with Postgres(tmp_path_factory.mktemp("upgrade")) as server:
        yield server


def run(url: str, statement: str, values: Any = None) -> list[tuple[Any, ...]]:
    connection = psycopg2.connect(url)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement, values)
            return list(cursor.fetchall()) if cursor.description else []
    finally:
        connection.close()


def before(server: Postgres, name: str, stubs: int) -> str:
    """A producer database as version 0.1.0 made it, with so many stubs."""
    server.create_database(name)
    url = server.admin_dsn(name)
    run(url, revisions("producer")["0001"])
    run(url, "CREATE TABLE backstop_producer_version (version_num varchar(32) PRIMARY KEY)")
    run(url, "INSERT INTO backstop_producer_version VALUES ('0001')")
    run(
        url,
        """
        INSERT INTO message_stub (topic, message_id, content, status, send_count, next_check_at, created_at, ordering_key)
        SELECT 'orders', md5(n::text), decode(repeat('ab', 300), 'hex'), 'confirmed', 1, now(), now() - n * interval '1 s',
            CASE WHEN n %% 2 = 0 THEN 'key ' || n / 10 END
        FROM generate_series(1, %s) n""",
        (stubs,),
    )
    return url


class Producer(threading.Thread):
    """Records stubs, one transaction each, until it is stopped; remembers the longest."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url, self._ended = url, threading.Event()
        self.longest, self.recorded = 0.0, 0

    def run(self) -> None:
        connection = psycopg2.connect(self._url)
        while not self._ended.is_set():
            begun = time.monotonic()
            with connection, connection.cursor() as cursor:
                cursor.execute(
                    "INSERT INTO message_stub (topic, message_id, content, next_check_at) VALUES ('live', %s, 'x', now())",
                    (f"{id(self)} {self.recorded}",),
                )
            self.longest = max(self.longest, time.monotonic() - begun)
            self.recorded += 1
        connection.close()

    def end(self) -> None:
        self._ended.set()
        self.join()


@pytest.mark.parametrize("stubs", [200_000, pytest.param(3_000_000, marks=pytest.mark.soak)])
def test_producers_go_on_while_millions_of_stubs_are_indexed(server: Postgres, stubs: int) -> None:
    longest: list[float] = []
    while not longest or (longest[-1] >= LONGEST_STALL and len(longest) < TRIES):
        longest.append(stall_while_indexing(server, f"many_{stubs}_{len(longest)}", stubs))
    assert longest[-1] < LONGEST_STALL, longest


def stall_while_indexing(server: Postgres, name: str, stubs: int) -> float:
    """The longest transaction of two producers while the database of so many stubs is migrated."""
    url = before(server, name, stubs)
    producers = [Producer(url) for _ in range(2)]
    for producer in producers:
        producer.start()
    begun = time.monotonic()
    assert migrate(url, "producer") == COMING
    took = time.monotonic() - begun
    for producer in producers:
        producer.end()
    longest, recorded = max(p.longest for p in producers), sum(p.recorded for p in producers)
    print(
        f"{stubs} stubs: migrated in {took:.1f} s, {recorded} recorded meanwhile, the longest in {longest:.2f} s"
    )
    assert recorded > 0
    assert run(url, "SELECT count(*) FROM message_stub") == [(stubs + recorded,)]
    assert current(url, "producer") == head("producer")
    return longest


def test_a_reader_that_leaves_its_transaction_open_holds_up_the_migration_and_no_producer(
    server: Postgres,
) -> None:
    longest: list[float] = []
    while not longest or (longest[-1] >= LONGEST_STALL and len(longest) < TRIES):
        longest.append(stall_behind_a_reader(server, f"read_{len(longest)}"))
    assert longest[-1] < LONGEST_STALL, longest


def stall_behind_a_reader(server: Postgres, name: str) -> float:
    """The longest transaction of three producers while a migration waits for a reader to end."""
    url = before(server, name, 1_000)
    reader = psycopg2.connect(url)
    reader.cursor().execute("SELECT count(*) FROM message_stub")
    producers = [Producer(url) for _ in range(3)]
    for producer in producers:
        producer.start()
    applied: list[list[str]] = []
    migration = threading.Thread(target=lambda: applied.append(migrate(url, "producer")))
    migration.start()
    tried = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'ALTER TABLE%'"
    times, waits = 0, False
    deadline = time.monotonic() + 300
    while times < 3 and time.monotonic() < deadline:  # it has tried, given way, and tried again
        now = run(url, tried) == [(1,)]
        times, waits = times + (now and not waits), now
        time.sleep(0.02)
    assert times == 3 and applied == [] and current(url, "producer") == "0001"
    reader.close()
    migration.join(300)
    for producer in producers:
        producer.end()
    assert applied == [COMING]
    assert all(producer.recorded for producer in producers)
    return max(producer.longest for producer in producers)


def test_the_key_leaves_room_from_now_on_and_nobody_at_work_is_waited_for(server: Postgres) -> None:
    url = before(server, "room", 10)
    earlier = {
        revision: sql for revision, sql in revisions("producer").items() if revision < "0008"
    }
    for sql in list(earlier.values())[1:]:
        run(url, sql)
    run(url, "UPDATE backstop_producer_version SET version_num = %s", (max(earlier),))
    producer = psycopg2.connect(url)
    producer.cursor().execute(
        "INSERT INTO message_stub (topic, message_id, content, next_check_at) VALUES ('live', 'open', 'x', now())"
    )
    coming = [revision for revision in COMING if revision > max(earlier)]
    assert migrate(url, "producer") == coming and coming[0] == "0008"
    producer.commit()
    producer.close()
    options = "SELECT reloptions FROM pg_class WHERE oid = 'message_stub_pkey'::regclass"
    assert run(url, options) == [(["fillfactor=50"],)]


def test_a_change_that_never_gets_its_moment_is_told_and_made_the_next_time(
    server: Postgres,
) -> None:
    url = before(server, "never", 10)
    reader, changer = psycopg2.connect(url), psycopg2.connect(url)
    changer.autocommit = True
    reader.cursor().execute("SELECT count(*) FROM message_stub")
    with pytest.raises(StoreUnavailable, match="message_stub was in use") as caught:
        coming = list(revisions("producer").values())[1:]
        change_tables(changer, coming, wait_seconds=0.1, pause_seconds=0.1, patience_seconds=0.5)
    assert "pg_stat_activity" in caught.value.next_step
    changer.close()
    reader.close()
    assert migrate(url, "producer") == COMING


@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_each_change_of_a_table_in_use_can_be_told_from_its_absence(role: str) -> None:
    for sql in list(revisions(role).values())[1:]:
        for change in changes_of(sql):
            change.question()
        # A table that the revision itself makes is not in use yet.
        for table in re.findall(r"^CREATE TABLE (\w+) \(", sql, flags=re.MULTILINE):
            own = (
                rf"^CREATE TABLE {table} \([^;]+;|^CREATE INDEX \w+ ON {table} [^;]+;"
                rf"|^COMMENT ON (TABLE {table}|COLUMN {table}\.\w+) IS '[^']+';"
            )
            sql = re.sub(own, "", sql, flags=re.MULTILINE)
        without = re.sub(
            # An index that gets a fillfactor lets everybody go on who reads and writes.
            r"^--.*$|^(CREATE INDEX IF NOT EXISTS|ALTER TABLE|UPDATE) [^;]+;"
            r"|^ALTER INDEX \w+ SET \(fillfactor = \d+\);",
            "",
            sql,
            flags=re.MULTILINE,
        )
        assert without.strip() == "", "a statement of a kind that may lock a table in use"


def test_an_index_that_was_interrupted_is_built_again(server: Postgres) -> None:
    url = before(server, "interrupted", 100)
    (index, *_) = indexes_of(revisions("producer")["0002"])
    run(url, index.statement())
    run(
        url, "UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass", (index.name,)
    )
    migrate(url, "producer")
    names = [index.name for index in indexes_of(revisions("producer")["0002"])]
    valid = run(
        url,
        "SELECT bool_and(indisvalid), count(*) FROM pg_index WHERE indexrelid::regclass::text = ANY (%s)",
        (names,),
    )
    assert valid == [(True, len(names))]


def test_an_index_waits_for_an_open_transaction_for_a_limited_time_and_is_built_the_next_time(
    server: Postgres,
) -> None:
    url = before(server, "held_up", 100)
    sql = revisions("producer")["0002"]
    forgotten, builder = psycopg2.connect(url), psycopg2.connect(url)
    builder.autocommit = True
    forgotten.cursor().execute("UPDATE message_stub SET tag = 'x' WHERE message_id = md5('1')")
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"message_stub_order waited 0\.5 s") as caught:
        build_indexes(builder, "backstop_producer_version", [sql], lock_seconds=0.5)
    assert time.monotonic() - begun < 60 and "pg_stat_activity" in caught.value.next_step
    builder.close()
    run(
        url,
        "INSERT INTO message_stub (topic, message_id, content, next_check_at) VALUES ('live', 'm', 'x', now())",
    )
    assert current(url, "producer") == "0001"
    forgotten.rollback()
    assert migrate(url, "producer") == COMING
    valid = "SELECT bool_and(indisvalid) FROM pg_index WHERE indrelid = 'message_stub'::regclass"
    assert run(url, valid) == [(True,)]
    forgotten.close()


def test_a_migration_does_not_wait_for_ever_for_one_that_stands_still(server: Postgres) -> None:
    url = before(server, "stands_still", 1)
    other, builder = psycopg2.connect(url), psycopg2.connect(url)
    builder.autocommit = True
    other.cursor().execute(
        "SELECT pg_advisory_lock(hashtextextended('backstop_producer_version', 1))"
    )
    with pytest.raises(StoreUnavailable, match="Another migration"):
        build_indexes(
            builder, "backstop_producer_version", [revisions("producer")["0002"]], turn_seconds=0.3
        )
    other.close()
    builder.close()


def test_two_migrations_at_once_wait_for_each_other_and_never_for_ever(server: Postgres) -> None:
    url = before(server, "at_once", 20_000)
    applied: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: applied.append(migrate(url, "producer"))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert sorted(applied) == [[], [], COMING]


def test_open_messages_that_were_resent_before_the_upgrade_keep_the_place_and_groups_of_number_1(
    server: Postgres,
) -> None:
    url = before(server, "resent", 1)
    for message_id, sends in (("resent", 2), ("first to one", 1), ("to all", 1)):
        run(
            url,
            """
            INSERT INTO message_stub (topic, message_id, content, send_count, next_check_at, sent_at, broker, queue_id,
                queue_offset, queue_epoch)
            VALUES ('orders', %s, 'x', %s, now(), now(), 'main', 0, 200, 'e')""",
            (message_id, sends),
        )
        run(
            url,
            """
            INSERT INTO send_attempt (topic, message_id, send_number, groups, requested_by, started_at, outcome, queue_id,
                queue_offset, queue_epoch)
            SELECT 'orders', %s, n, CASE WHEN %s = 'first to one' THEN ARRAY['billing'] END, 'x', now(), 'sent', 0, n * 50, 'e'
            FROM generate_series(1, %s) n""",
            (message_id, message_id, sends),
        )
    migrate(url, "producer")
    found = run(
        url,
        """
        SELECT message_id, first_broker, first_queue_id, first_queue_offset, first_queue_epoch, first_groups
        FROM message_stub WHERE status = 'pending' ORDER BY message_id""",
    )
    assert found == [
        ("first to one", None, None, None, None, ["billing"]),
        ("resent", "main", 0, 50, "e", None),
        ("to all", None, None, None, None, None),
    ]


def test_a_database_made_anew_is_the_same_as_one_that_was_upgraded(server: Postgres) -> None:
    upgraded = before(server, "upgraded", 10)
    migrate(upgraded, "producer")
    server.create_database("anew")
    anew = server.admin_dsn("anew")
    migrate(anew, "producer")
    structure = (
        "SELECT indexdef FROM pg_indexes WHERE tablename = 'message_stub' ORDER BY indexname"
    )
    assert run(upgraded, structure) == run(anew, structure)
