"""A consumer database in MariaDB as the duties see it: its schema, privileges and check, its sweep and its retention."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pymysql
import pytest
import yaml

from backstop.cli.app import run_app
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.leases import guard
from backstop.leases.lease import Acquired, Arrival, Busy
from backstop.model.errors import ConfigurationError, LeaseLost, StoreUnavailable
from backstop.model.records import EARLIEST, LATEST, Key
from backstop.schema import mariadb as schema
from backstop.schema.migrate import current, grant, head, migrate
from backstop.stores.mariadb.books import MariaBooks
from backstop.stores.mariadb.leases import MariaLeases
from backstop.stores.mariadb.logs import MariaLogs
from backstop.stores.mariadb.purge import MariaLogPurge
from backstop.stores.open import open_leases, open_log_purge, open_log_store, open_parking
from backstop.stores.purge import FIRST_LOG
from backstop.sweep.open_stores import OpenStores
from backstop.sweep.parts import parts_of
from backstop.sweep.sweep_database import sweep_database
from backstop.sweep.sweep_part import sweep_part, untouched_seconds
from backstop.sweep.tally import Tally
from maria_world import (
    MariaDatabase,
    connect_to,
    maria,
    maria_consumer,
    maria_database,
    maria_server,
)
from mariadb import MariaDB
from system import settings_dict

__all__ = ["maria", "maria_consumer", "maria_server"]
GROUP, TOPIC = "billing", "orders"
STORES = {
    "billing_db": {"kind": "mariadb", "connection": "billing_db"},
    "shipping_db": {"connection": "shipping_db"},
}
DUTY = "d0-it"


def settings_of(**changes: Any) -> Settings:
    return Settings.model_validate(settings_dict(consumers=STORES, **changes))


def connections_of(maria: MariaDatabase) -> Connections:
    return Connections(resolver={"billing_db": maria.dsn}.get)


def begun(maria: MariaDatabase, names: list[str], host: str = "host-1") -> list[Acquired]:
    with closing(maria.connect()) as connection:
        answers = guard.begin_many(
            connection, GROUP, [Arrival(TOPIC, name) for name in names], owner_host=host
        )
        connection.commit()
    return [answer for answer in answers if isinstance(answer, Acquired)]


def states(maria: MariaDatabase) -> dict[str, str]:
    found = maria.run("SELECT message_id, state FROM consumer_log ORDER BY message_id")
    return {row["message_id"]: row["state"] for row in found}


@pytest.fixture
def leases(maria: MariaDatabase) -> Iterator[MariaLeases]:
    with MariaLeases("billing_db", maria.dsn) as opened:
        yield opened


def duty_url(maria: MariaDatabase) -> str:
    """A login that has the role of the duties, and nothing else."""
    grant(maria.dsn, "consumer")
    for statement in (
        f"CREATE OR REPLACE USER duty@'127.0.0.1' IDENTIFIED BY '{DUTY}'",
        "GRANT backstop_duty TO duty@'127.0.0.1'",
        "SET DEFAULT ROLE backstop_duty FOR duty@'127.0.0.1'",
    ):
        maria.run(statement)
    return f"mysql://duty:{DUTY}@127.0.0.1:{maria.server.port}/{maria.name}"


def test_a_migration_is_safe_to_run_twice_and_after_one_that_was_cut_off(
    maria_server: MariaDB,
) -> None:
    with maria_database(maria_server) as database:
        assert current(database.dsn, "consumer") == head("mariadb_consumer")
        assert migrate(database.dsn, "consumer") == []
        database.run("DROP TABLE backstop_consumer_version")
        database.run("DROP TABLE consumer_books")  # it ended between two of its statements
        assert migrate(database.dsn, "consumer") == ["0001"]
        assert database.run("SELECT * FROM consumer_books") == []
        database.run("UPDATE backstop_consumer_version SET version_num = '9999'")
        with pytest.raises(StoreUnavailable, match="9999"):
            migrate(database.dsn, "consumer")


def test_the_printed_schema_is_the_same_one(maria_server: MariaDB) -> None:
    with maria_database(maria_server) as database, closing(maria_server.connect()) as admin:
        tables = [row["Tables"] for row in _tables(database)]
        made = {table: _shape(database, table) for table in tables if table != "effect"}
        with admin.cursor() as cursor:
            cursor.execute("CREATE DATABASE printed")
            try:
                cursor.execute("USE printed")
                for statement in schema._statements(schema.as_sql("consumer")):
                    cursor.execute(statement)
                printed = MariaDatabase(maria_server, "printed")
                assert {table: _shape(printed, table) for table in made} == made
            finally:
                cursor.execute("DROP DATABASE printed")


def _tables(database: MariaDatabase) -> list[dict[str, Any]]:
    return database.run(
        "SELECT TABLE_NAME AS Tables FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE()"
    )


def _shape(database: MariaDatabase, table: str) -> str:
    return str(database.one(f"SHOW CREATE TABLE {table}")["Create Table"])


def test_the_command_migrates_by_the_settings_and_prints_the_schema_for_a_dba(
    maria_server: MariaDB,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = settings_dict(consumers={"billing_db": STORES["billing_db"]})
    given["groups"]["shipping"]["store"] = "billing_db"
    (tmp_path / "backstop.yaml").write_text(yaml.safe_dump(given))
    monkeypatch.setenv("BACKSTOP_CONFIG", str(tmp_path / "backstop.yaml"))
    with maria_database(maria_server) as database:
        for table in ("consumer_log", "consumer_books", "backstop_consumer_version"):
            database.run(f"DROP TABLE {table}")
        monkeypatch.setenv("AIRFLOW_CONN_BILLING_DB", database.dsn)
        assert run_app(["migrate", "--role", "consumer"]) == 0
        assert "applied 0001" in capsys.readouterr().out
        assert current(database.dsn, "consumer") == "0001"
        assert run_app(["migrate", "--role", "consumer", "--database", database.dsn]) == 0
        assert "nothing to do" in capsys.readouterr().out
        assert run_app(["migrate", "--grants", "--role", "consumer"]) == 0
        assert "roles and privileges granted" in capsys.readouterr().out
        granted = database.run("SHOW GRANTS FOR backstop_consumer")
        here = str(database.one("SELECT DATABASE() AS name")["name"])
        assert any(f"`{here}`.`consumer_log`" in str(row) for row in granted), granted
    assert run_app(["migrate", "--grants", "--sql", "--kind", "mariadb"]) == 0
    printed = capsys.readouterr().out
    assert schema.grants_sql("consumer").strip() in printed
    assert schema.grants_sql("producer").strip() in printed
    assert run_app(["migrate", "--sql", "--kind", "mariadb"]) == 0
    printed = capsys.readouterr().out
    assert schema.as_sql("consumer").strip() in printed
    assert schema.as_sql("producer").strip() in printed
    assert run_app(["migrate", "--sql", "--kind", "mariadb", "--role", "control"]) != 0
    assert "PostgreSQL alone" in " ".join(capsys.readouterr().err.split())


def test_the_control_tables_are_refused_there(maria: MariaDatabase) -> None:
    with pytest.raises(ConfigurationError, match="PostgreSQL alone"):
        migrate(maria.dsn, "control")


def test_ordering_there_is_refused_with_what_is_there(maria: MariaDatabase) -> None:
    with pytest.raises(ConfigurationError, match="no ordering key is parked"):
        open_parking(settings_of(), connections_of(maria), "billing_db")


def test_the_check_is_content_with_a_sound_database_and_names_what_is_missing(
    maria: MariaDatabase, maria_server: MariaDB
) -> None:
    with closing(maria_server.connect()) as admin, admin.cursor() as cursor:
        cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
        with MariaLogs("billing_db", duty_url(maria)) as logs:
            assert [finding for finding in logs.check() if not finding.good] == []
            cursor.execute(f"REVOKE DELETE ON {maria.name}.consumer_log FROM backstop_duty")
            cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
        with MariaLogs("billing_db", duty_url_as_it_is(maria)) as logs:
            bad = {finding.subject: finding.says for finding in logs.check() if not finding.good}
    assert set(bad) == {"store billing_db: privileges", "store billing_db: durability"}
    assert "DELETE on consumer_log" in bad["store billing_db: privileges"]


def duty_url_as_it_is(maria: MariaDatabase) -> str:
    return f"mysql://duty:{DUTY}@127.0.0.1:{maria.server.port}/{maria.name}"


def test_the_sweep_takes_back_what_ended_and_the_token_stays_its_holders(
    maria: MariaDatabase, leases: MariaLeases
) -> None:
    ended = begun(maria, ["a", "b"], "host-1") + begun(maria, ["c"], "host-2")
    (alive,) = begun(maria, ["alive"])
    for lease in ended:
        maria.end_lease(GROUP, TOPIC, lease.message_id, 60)
    assert leases.count([GROUP], 10, 30.0)[::2] == (3, 3)
    assert leases.count([GROUP], 2, 90.0)[::2] == (2, 0)
    assert leases.count(["another"], 10, 30.0) == (0, None, 0)
    taken = sorted(leases.take_back([GROUP], 10), key=lambda one: str(one.owner_host))
    assert [(one.owner_host, one.leases, one.message_id) for one in taken] == [
        ("host-1", 2, "a"),
        ("host-2", 1, "c"),
    ]
    expired = dict.fromkeys(["a", "b", "c"], "EXPIRED")
    assert states(maria) == {**expired, "alive": "CONSUMING"}
    with closing(maria.connect()) as connection:
        guard.complete(connection, ended[0])
        assert isinstance(guard.begin(connection, GROUP, TOPIC, "b"), Acquired)
        with pytest.raises(LeaseLost):
            guard.complete(connection, ended[1])
        guard.renew(connection, alive)
        connection.commit()
    assert leases.take_back([GROUP], 10) == []


def test_the_sweep_skips_what_a_worker_has_in_its_hands(
    maria: MariaDatabase, leases: MariaLeases
) -> None:
    held, free = begun(maria, ["held", "free"])
    for lease in (held, free):
        maria.end_lease(GROUP, TOPIC, lease.message_id, 60)
    with closing(maria.connect()) as connection:
        guard.complete(connection, held)
        assert [one.leases for one in leases.take_back([GROUP], 10)] == [1]
        # No gap is locked either: a lease that begins now does not wait for the sweep.
        connection.commit()
    assert states(maria) == {"free": "EXPIRED", "held": "CONSUMED"}


def test_a_sweep_and_a_purge_beside_workers_meet_no_deadlock_and_lose_no_end(
    maria: MariaDatabase, leases: MariaLeases
) -> None:
    """Leases end at once, so that the sweep takes each from under its worker, who completes it all the same."""
    stop, errors = threading.Event(), []

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)
                raise

        return run

    def worker(first: int) -> None:
        with closing(maria.connect()) as connection:
            for at in range(first, first + 120, 10):
                arrivals = [Arrival(TOPIC, f"m-{n:03}") for n in range(at, at + 10)]
                answers = guard.begin_many(connection, GROUP, arrivals, lease_seconds=0.0)
                connection.commit()
                for lease in reversed(answers):
                    assert isinstance(lease, Acquired)
                    guard.complete(connection, lease)
                    connection.commit()

    def sweeper() -> None:
        while not stop.is_set():
            leases.take_back([GROUP], 100)

    def purger() -> None:
        with closing(MariaLogPurge("billing_db", maria.dsn)) as purge:
            while not stop.is_set():
                purge.purge_logs("another", purge.old_logs(GROUP, {TOPIC: 0.0}, FIRST_LOG, 100)[0])

    workers = [Thread(target=guarded(partial(worker, first))) for first in (0, 120)]
    duties = [Thread(target=guarded(duty)) for duty in (sweeper, purger)]
    for thread in (*workers, *duties):
        thread.start()
    for thread in workers:
        thread.join()
    stop.set()
    for thread in duties:
        thread.join()
    assert errors == []
    assert set(states(maria).values()) == {"CONSUMED"} and len(states(maria)) == 240


@pytest.mark.parametrize("end", ["NULL", "'9999-12-31'"])
def test_a_sweep_of_one_place_is_whole_and_a_dry_run_takes_nothing(
    maria: MariaDatabase, end: str
) -> None:
    settings, connections = settings_of(), connections_of(maria)
    for lease in begun(maria, ["a", "b"]):
        maria.end_lease(GROUP, TOPIC, lease.message_id, 60)
    begun(maria, ["endless", "young"])
    maria.run(
        f"UPDATE consumer_log SET lease_expires_at = {end} WHERE message_id IN ('endless', 'young')"
    )
    maria.run("UPDATE consumer_log SET updated_at = '2020-01-01' WHERE message_id = 'endless'")
    (part,) = (part for part in parts_of(settings, ["billing"]) if part.kind == "database")
    with OpenStores(settings, connections) as stores:
        seen = sweep_part(stores, part, None, "", limit=100, dry_run=True)
    assert set(states(maria).values()) == {"CONSUMING"} and seen.missed == {}
    with OpenStores(settings, connections) as stores:
        done = sweep_part(stores, part, None, "", limit=100, dry_run=False)
    assert done.missed == {} and done.counts == seen.counts
    assert states(maria) == {
        "a": "EXPIRED",
        "b": "EXPIRED",
        "endless": "EXPIRED",
        "young": "CONSUMING",
    }
    still = "COALESCE(lease_expires_at > UTC_TIMESTAMP(6), TRUE)"
    assert maria.one(f"SELECT message_id FROM consumer_log WHERE {still}") == {
        "message_id": "young"
    }


def test_a_lease_that_moved_since_it_was_seen_is_not_taken_back(
    maria: MariaDatabase, leases: MariaLeases
) -> None:
    for lease in begun(maria, ["renewed", "ended", "taken"]):
        maria.end_lease(GROUP, TOPIC, lease.message_id, 60)
    seen, _ = leases.settle([GROUP], {GROUP: 60.0}, 10, False, None)
    assert len(seen) == 3
    maria.end_lease(GROUP, TOPIC, "renewed", 30)
    begun(maria, ["taken"])
    assert leases.reclaim(seen) == [(GROUP, TOPIC, "ended")]
    assert states(maria) == {"ended": "EXPIRED", "renewed": "CONSUMING", "taken": "CONSUMING"}


def test_what_the_logs_say_by_key_and_what_fails_again_and_again(
    maria: MariaDatabase, leases: MariaLeases
) -> None:
    _, done, ended = begun(maria, ["alive", "done", "ended"])
    with closing(maria.connect()) as connection:
        guard.complete(connection, done)
        connection.commit()
    maria.end_lease(GROUP, TOPIC, ended.message_id, 60)
    keys = [Key(TOPIC, name) for name in ("alive", "done", "ended", "absent")]
    found = leases.standing(GROUP, keys)
    assert {key.message_id: (said.state, said.is_alive) for key, said in found.items()} == {
        "alive": ("CONSUMING", True),
        "done": ("CONSUMED", False),
        "ended": ("CONSUMING", False),
    }
    left = found[keys[0]].seconds_left
    assert left is not None and 50 < left <= 60 and found[keys[2]].seconds_left is None
    maria.run(
        "UPDATE consumer_log SET attempts = 4, last_error = 'it broke' WHERE message_id <> 'done'"
    )
    failing = leases.failing({(GROUP, TOPIC): (3, 3600.0)}, 10)
    assert sorted((one.message_id, one.attempts, one.error) for one in failing) == [
        ("alive", 4, "it broke"),
        ("ended", 4, "it broke"),
    ]
    assert leases.failing({(GROUP, TOPIC): (5, 3600.0), ("x", TOPIC): (3, 1.0)}, 10) == []


def old_logs(maria: MariaDatabase, number: int) -> None:
    with closing(maria.connect()) as connection:
        for n in range(number):
            lease = guard.begin(connection, GROUP, TOPIC, f"m-{n:02}")
            assert isinstance(lease, Acquired)
            guard.complete(connection, lease)
        connection.commit()
    maria.run(
        "UPDATE consumer_log SET updated_at = UTC_TIMESTAMP(6) - INTERVAL 2 DAY,"
        " first_received_at = '2030-01-01' - INTERVAL 20 YEAR"
    )


def test_a_purge_raises_the_floor_first_and_leaves_what_moved_or_is_held(
    maria: MariaDatabase,
) -> None:
    old_logs(maria, 7)
    purge = MariaLogPurge("billing_db", duty_url(maria))
    seen, place = purge.old_logs(GROUP, {TOPIC: 3600.0}, FIRST_LOG, 5)
    assert [log.key.message_id for log in seen] == [f"m-{n:02}" for n in range(5)]
    assert place is not None and all(log.is_old for log in seen)
    rest, last = purge.old_logs(GROUP, {TOPIC: 3600.0}, place, 5)
    assert [log.key.message_id for log in rest] == ["m-05", "m-06"] and last is None
    assert purge.old_logs(GROUP, {"other": 3600.0}, FIRST_LOG, 1)[0][0].is_old is False
    maria.run("UPDATE consumer_log SET updated_at = UTC_TIMESTAMP(6) WHERE message_id = 'm-01'")
    newest = maria.one("SELECT MAX(updated_at) AS at FROM consumer_log WHERE message_id <> 'm-01'")
    with closing(maria.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT * FROM consumer_log WHERE consumer_group = 'billing' AND topic = 'orders'"
            " AND message_id = 'm-02' FOR UPDATE"
        )
        held = [log for log in [*seen, *rest] if log.key.message_id != "m-02"]
        assert purge.purge_logs(GROUP, [*held, seen[2]]) == 5
    assert list(states(maria)) == ["m-01", "m-02"]
    with MariaLogs("billing_db", maria.dsn) as logs:
        assert logs.floor(GROUP) == newest["at"]
        assert purge.purge_logs(GROUP, [seen[2]]) == 1
        assert logs.floor(GROUP) == newest["at"], "it never falls"
    purge.close()


def test_an_erasure_empties_what_handlers_said_and_keeps_what_tells_open_copies_apart(
    maria: MariaDatabase,
) -> None:
    hashed = guard.payload_hash(b"a")
    with closing(maria.connect()) as connection:
        for name in ("done", "open"):
            lease = guard.begin(connection, GROUP, TOPIC, name, payload_hash=hashed)
            assert isinstance(lease, Acquired)
            if name == "done":
                guard.complete(connection, lease)
            else:
                guard.fail(connection, lease, "ann@example.org")
        connection.commit()
    purge = MariaLogPurge("billing_db", duty_url(maria))
    assert [purge.erase(Key(TOPIC, name), [GROUP]) for name in ("done", "open", "x")] == [1, 1, 0]
    purge.close()
    rows = maria.run("SELECT payload_hash, last_error FROM consumer_log ORDER BY message_id")
    assert rows == [
        {"payload_hash": None, "last_error": None},
        {"payload_hash": hashed, "last_error": None},
    ]


def test_the_duties_do_all_of_theirs_with_their_own_role_and_workers_work_is_not_theirs(
    maria: MariaDatabase,
) -> None:
    url = duty_url(maria)
    settings, connections = settings_of(), Connections(resolver={"billing_db": url}.get)
    old_logs(maria, 3)
    for lease in begun(maria, ["a"]):
        maria.end_lease(GROUP, TOPIC, lease.message_id, 60)
    with open_leases(settings, connections, "billing_db") as leases:
        untouched = untouched_seconds(settings, "billing_db", None)
        tally = Tally(None)
        sweep_database(leases, "place", untouched, tally, limit=10, dry_run=False)
    with open_log_store(settings, connections, "billing_db") as logs:
        assert logs.logs(GROUP, [Key(TOPIC, "a")])[Key(TOPIC, "a")].state == "EXPIRED"
        scan = logs.scan_done({GROUP: EARLIEST}, {GROUP: 1e9}, 2)
        assert scan is not None
        parts = [logs.read_part(part, lambda _, table: table.num_rows) for part in scan.parts]
        assert sum(sum(part) for part in parts) == 3
        assert logs.continues(logs.lineage()) and not logs.continues("another")
        assert logs.count_received(GROUP, EARLIEST, LATEST) == {TOPIC: 4}
    with closing(open_log_purge(settings, connections, "billing_db")) as purge:
        seen, _ = purge.old_logs(GROUP, {TOPIC: 60.0}, FIRST_LOG, 10)
        assert purge.purge_logs(GROUP, [log for log in seen if log.is_old]) == 3
    books = MariaBooks("billing_db", url)
    assert books.books([GROUP]) == [] and books.books([]) == []
    books.close()
    with closing(connect_to(url)) as connection, connection.cursor() as cursor:
        for refused in (
            "INSERT INTO consumer_log (consumer_group, topic, message_id) VALUES ('a', 'b', 'c')",
            "UPDATE consumer_log SET owner_token = NULL",
            "DELETE FROM consumer_log_floor",
        ):
            with pytest.raises(pymysql.MySQLError) as caught:
                cursor.execute(refused)
            assert caught.value.args[0] in (1142, 1143)


def test_a_server_that_is_set_to_read_only_is_not_believed(
    maria: MariaDatabase, maria_server: MariaDB
) -> None:
    begun(maria, ["a"])
    url = duty_url(maria)
    with (
        closing(maria_server.connect()) as admin,
        admin.cursor() as cursor,
        MariaLogs("billing_db", url) as logs,
        MariaLeases("billing_db", url) as leases,
    ):
        assert len(logs.logs(GROUP, [Key(TOPIC, "a")])) == 1
        cursor.execute("SET GLOBAL read_only = 1")
        try:
            for ask in (
                lambda: logs.logs(GROUP, [Key(TOPIC, "a")]),
                lambda: leases.take_back([GROUP], 1),
            ):
                with pytest.raises(StoreUnavailable):
                    ask()
        finally:
            cursor.execute("SET GLOBAL read_only = 0")
        assert len(logs.logs(GROUP, [Key(TOPIC, "a")])) == 1


def test_a_key_that_is_no_utf8_is_shown_and_matches_nothing(maria: MariaDatabase) -> None:
    with closing(maria.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO consumer_log (consumer_group, topic, message_id, state, first_received_at, updated_at, consumed_at)"
            " VALUES ('billing', 'orders', x'ff00', 'CONSUMED', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)),"
            " ('billing', 'orders', x'6100', 'CONSUMED', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))"
        )
        connection.commit()
    now = datetime.now(UTC)
    with MariaLogs("billing_db", maria.dsn) as logs:
        found = logs.received_between(GROUP, now - timedelta(1), now + timedelta(1), 10)
        assert {one.message_id for one in found} == {"\\xff00", "\\x6100"}
        asked = ("\\xff00", "\xff", "\\x6100", "a", "a\0")
        assert logs.logs(GROUP, [Key(TOPIC, one) for one in asked]) == {}


def test_a_nul_beside_a_key_is_shown_and_gets_no_further(
    maria: MariaDatabase, leases: MariaLeases
) -> None:
    begun(maria, ["m"])
    maria.end_lease(GROUP, TOPIC, "m", 60)
    maria.run(
        "UPDATE consumer_log SET owner_host = 'host\\0', last_error = 'bad \\0 byte', attempts = 4"
    )
    with MariaLogs("billing_db", maria.dsn) as logs:
        (log,) = logs.logs(GROUP, [Key(TOPIC, "m")]).values()
    assert (log.owner_host, log.last_error) == ("host\\x00", "bad \\x00 byte")
    (failing,) = leases.failing({(GROUP, TOPIC): (3, 3600.0)}, 10)
    assert failing.error == "bad \\x00 byte"
    (seen,), _ = leases.settle([GROUP], {}, 10, False, None)
    assert seen.owner_host == "host\\x00"
    (taken,) = leases.take_back([GROUP], 10)
    assert taken.owner_host == "host\\x00"


def test_a_lease_of_a_far_future_is_no_reason_to_fail(
    maria: MariaDatabase, leases: MariaLeases
) -> None:
    begun(maria, ["a"])
    maria.run("UPDATE consumer_log SET lease_expires_at = '9999-12-31 23:59:59.999999'")
    assert leases.take_back([GROUP], 10) == []
    with closing(maria.connect()) as connection:
        answer = guard.begin(connection, GROUP, TOPIC, "a")
        assert isinstance(answer, Busy) and answer.retry_after == timedelta(seconds=10)
