"""RocketMQDedupListener's table on a real MariaDB: what is freed, marked done or left alone, and that its owner always wins."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from backstop.config.connections import Connections
from backstop.config.load import from_mapping
from backstop.model.errors import StoreUnavailable
from backstop.model.records import Key
from backstop.sweep.foreign.mysql_records import SQL, MysqlRecords
from backstop.sweep.foreign.open import open_foreign
from backstop.sweep.foreign.sweep_records import SweptRecords
from backstop_lab.servers.ports import free_port
from foreign_world import HOUR, Log, content, decisions, done, opened
from mariadb import PASSWORD, MariaDB

# As its README has it.
TABLE = """
CREATE TABLE t_rocketmq_dedup (
  application_name varchar(255) NOT NULL, topic varchar(255) NOT NULL, tag varchar(16) NOT NULL,
  msg_uniq_key varchar(255) NOT NULL, status varchar(16) NOT NULL, expire_time bigint(20) NOT NULL,
  UNIQUE KEY uniq_key (application_name, topic, tag, msg_uniq_key) USING BTREE
) ENGINE=InnoDB DEFAULT CHARSET=utf8 ROW_FORMAT=COMPACT
"""
SKEW = 5_000
ROW = "application_name = %s AND topic = %s AND tag = %s AND msg_uniq_key = %s"


class Table:
    """The table, and what the other program does with it."""

    def __init__(self, server: MariaDB) -> None:
        self.server = server
        self.connection = server.connect()

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def now(self) -> int:
        return int(self.run("SELECT FLOOR(UNIX_TIMESTAMP(SYSDATE(3)) * 1000)")[0][0])

    def put(
        self,
        message_id: str,
        *,
        ago: int = HOUR * 1000,
        status: str = "CONSUMING",
        topic: str = "orders",
        tag: str = "",
        application: str = "billing-app",
    ) -> None:
        """A row whose time was over so many milliseconds ago."""
        self.run(
            "INSERT INTO t_rocketmq_dedup VALUES (%s, %s, %s, %s, %s, %s)",
            application,
            topic,
            tag,
            message_id,
            status,
            self.now() - ago,
        )

    def rows(self) -> dict[str, str]:
        return dict(
            self.run("SELECT msg_uniq_key, status FROM t_rocketmq_dedup ORDER BY msg_uniq_key")
        )

    def takes(self, message_id: str, tag: str = "") -> bool:
        """Whether the program's next delivery processes the message: its insert meets no row."""
        try:
            self.put(message_id, ago=-60_000, tag=tag)
        except self.server.connect().IntegrityError:
            return False
        return True

    def acknowledges(self, message_id: str) -> bool:
        """Whether the program's next delivery is taken for done: the row is there, CONSUMED and not over."""
        question = f"SELECT status FROM t_rocketmq_dedup WHERE {ROW} AND expire_time > %s"
        return self.run(question, "billing-app", "orders", "", message_id, self.now()) == [
            ("CONSUMED",)
        ]

    def finishes(self, message_id: str) -> None:
        """The owner's mark: it asks neither for a state nor for an owner."""
        self.run(
            f"UPDATE t_rocketmq_dedup SET status = 'CONSUMED', expire_time = %s WHERE {ROW}",
            self.now() + 24 * HOUR * 1000,
            "billing-app",
            "orders",
            "",
            message_id,
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    with MariaDB(tmp_path_factory.mktemp("mariadb")) as server:
        connection = server.connect()
        with connection.cursor() as cursor:
            cursor.execute(TABLE)
            # What docs/how-to/foreign-leases.md grants, and nothing else.
            cursor.execute(
                "GRANT SELECT, UPDATE, DELETE ON dedup.t_rocketmq_dedup TO sweeper@'127.0.0.1'"
            )
        connection.close()
        yield server


@pytest.fixture
def table(server: MariaDB) -> Iterator[Table]:
    table = Table(server)
    table.run("TRUNCATE t_rocketmq_dedup")
    yield table
    table.connection.close()


def sweep(table: Table, log: Callable[..., Any], **more: Any) -> dict[str, int]:
    leases = opened("table", table.server.url(), **more)
    try:
        return dict(leases.sweep(log, limit=1000, dry_run=False))
    finally:
        leases.close()


def test_an_expired_row_is_freed_so_that_the_next_delivery_is_processed(table: Table) -> None:
    table.put("m-1")
    assert not table.takes("m-1")
    assert sweep(table, Log()) == {"looked": 1, "reclaim": 1}
    assert table.takes("m-1")


def test_a_row_that_has_not_expired_or_not_longer_ago_than_clocks_differ_is_not_touched(
    table: Table,
) -> None:
    table.put("alive", ago=-HOUR * 1000)
    table.put("within the skew", ago=10_000)
    policy = {
        "max_clock_skew": "2m",
        "lease": "10m",
        "attempt_timeout": "5m",
        "claim_timeout": "10m",
        "backoff_base": "10m",
    }
    settings = from_mapping({**content("table"), "policy": policy})
    leases = open_foreign(settings, Connections({"legacy": table.server.url()}.get), "table")
    counts = leases.sweep(done("alive", "within the skew"), limit=1000, dry_run=False)
    leases.close()
    assert dict(counts) == {}
    assert set(table.rows().values()) == {"CONSUMING"}


def test_the_equal_instant_counts_as_expired_and_the_millisecond_before_does_not(
    table: Table,
) -> None:
    table.put("m-1")
    ((expires,),) = table.run("SELECT expire_time FROM t_rocketmq_dedup")
    records = MysqlRecords(
        "table",
        table.server.url(),
        application="billing-app",
        topics=["orders"],
        skew=timedelta(milliseconds=SKEW),
        keep=timedelta(days=1),
    )
    leases = SweptRecords("table", "billing", records, walk=1000)
    for now, counts in ((expires + SKEW - 1, {}), (expires + SKEW, {"looked": 1, "reclaim": 1})):
        records._rows(f"SET SESSION timestamp = {now // 1000}.{now % 1000:03}", {})
        assert dict(leases.sweep(Log(), limit=10, dry_run=False)) == counts
    leases.close()


def test_a_row_whose_work_the_log_proves_done_is_marked_done_for_as_long_as_its_program_keeps_it(
    table: Table,
) -> None:
    table.put("m-1")
    before = table.now()
    assert sweep(table, done("m-1"), keep="2h") == {"looked": 1, "repair": 1}
    ((expires,),) = table.run("SELECT expire_time FROM t_rocketmq_dedup")
    assert before + 2 * HOUR * 1000 <= expires <= table.now() + 2 * HOUR * 1000
    assert table.acknowledges("m-1")
    assert sweep(table, done("m-1")) == {}


def test_done_rows_stay_even_when_their_time_is_over(table: Table) -> None:
    table.put("m-1", status="CONSUMED")
    assert sweep(table, Log()) == {}
    assert table.rows() == {"m-1": "CONSUMED"}


def test_a_row_whose_message_a_live_lease_holds_is_kept(table: Table) -> None:
    table.put("m-1")
    assert sweep(table, Log({Key("orders", "m-1"): ("CONSUMING", True)})) == {
        "looked": 1,
        "keep": 1,
    }
    assert sweep(table, Log({Key("orders", "m-1"): ("CONSUMING", False)})) == {
        "looked": 1,
        "reclaim": 1,
    }


def test_an_owner_that_finishes_between_the_look_and_the_delete_keeps_its_row(table: Table) -> None:
    table.put("m-1")
    table.put("m-2")
    assert sweep(table, Log(meanwhile=lambda: table.finishes("m-1"))) == {
        "looked": 2,
        "moved_on": 1,
        "reclaim": 1,
    }
    assert table.rows() == {"m-1": "CONSUMED"}


def test_a_row_that_was_taken_anew_since_the_look_is_another_row(table: Table) -> None:
    table.put("m-1")

    def taken_anew() -> None:
        table.run("DELETE FROM t_rocketmq_dedup")
        table.put("m-1", ago=2 * HOUR * 1000)  # expired as well, and not the one that was looked at

    assert sweep(table, Log(meanwhile=taken_anew)) == {"looked": 1, "moved_on": 1}
    marked = Log(meanwhile=lambda: table.run("UPDATE t_rocketmq_dedup SET status = 'CONSUMED'"))
    assert sweep(table, marked) == {"looked": 1, "moved_on": 1}
    assert table.rows() == {"m-1": "CONSUMED"}


def test_a_row_that_vanished_since_the_look_is_counted_as_moved_on(table: Table) -> None:
    table.put("m-1")
    assert sweep(table, Log(meanwhile=lambda: table.run("DELETE FROM t_rocketmq_dedup"))) == {
        "looked": 1,
        "moved_on": 1,
    }


def test_an_owner_whose_transaction_is_still_open_wins(table: Table) -> None:
    table.put("m-1")
    owner = Table(table.server)
    owner.run("BEGIN")
    owner.finishes("m-1")
    counts: list[dict[str, int]] = []
    thread = threading.Thread(target=lambda: counts.append(sweep(table, Log())))
    thread.start()
    waiting = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    while table.run(waiting) == [(0,)] and thread.is_alive():
        time.sleep(0.15)  # the server shows the same answer to whoever asks more often
    owner.run("COMMIT")
    thread.join(120)
    owner.connection.close()
    assert counts == [{"looked": 1, "moved_on": 1}]
    assert table.rows() == {"m-1": "CONSUMED"}


def test_a_row_that_its_owner_holds_locked_does_not_hold_up_the_others(table: Table) -> None:
    for number in range(7):
        table.put(f"m-{number}")
    owner = Table(table.server)
    owner.run("BEGIN")
    owner.finishes("m-3")
    assert sweep(table, Log()) == {"looked": 7, "reclaim": 6, "moved_on": 1}
    owner.run("COMMIT")
    owner.connection.close()
    assert table.rows() == {"m-3": "CONSUMED"}


def test_a_locked_table_is_a_store_that_does_not_answer(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backstop.sweep.foreign.mysql_records.MOST_LOCKED", 1)
    for number in range(4):
        table.put(f"m-{number}")
    owner = Table(table.server)
    owner.run("BEGIN")
    owner.run("SELECT * FROM t_rocketmq_dedup FOR UPDATE")
    with pytest.raises(StoreUnavailable, match="Lock wait"):
        sweep(table, Log())
    owner.run("ROLLBACK")
    owner.connection.close()
    assert len(table.rows()) == 4


def test_two_sweeps_at_once_free_each_row_once(table: Table) -> None:
    for number in range(400):
        table.put(f"m-{number}")
    both = threading.Barrier(2)
    counts: list[dict[str, int]] = []
    threads = [
        threading.Thread(
            target=lambda: counts.append(sweep(table, Log(meanwhile=lambda: both.wait(120))))
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert sum(one.get("reclaim", 0) for one in counts) == 400
    assert sum(one.get("moved_on", 0) for one in counts) == 400
    assert table.rows() == {}


def test_nothing_is_freed_when_the_log_does_not_answer(table: Table) -> None:
    table.put("m-1")
    away = StoreUnavailable(
        "The database of billing_db did not answer.", unaffected="-", next_step="-"
    )
    leases = opened("table", table.server.url())
    with pytest.raises(StoreUnavailable, match="billing_db"):
        leases.sweep(Log(error=away), limit=10, dry_run=False)
    assert dict(leases.done) == {"looked": 1, "keep": 1}
    assert table.rows() == {"m-1": "CONSUMING"}
    assert dict(leases.sweep(Log(), limit=10, dry_run=False)) == {"looked": 1, "reclaim": 1}
    # In the middle of a table, too, what the log said nothing of is looked at again, and not left for the next round.
    for number in range(20):
        table.put(f"m-{number:02}")
    assert dict(leases.sweep(Log(), limit=8, dry_run=False)) == {"looked": 8, "reclaim": 8}
    place = leases.place
    with pytest.raises(StoreUnavailable):
        leases.sweep(Log(error=away), limit=8, dry_run=False)
    assert place
    assert leases.place == place
    assert dict(leases.sweep(Log(), limit=100, dry_run=False)) == {"looked": 12, "reclaim": 12}
    leases.close()


def test_rows_that_the_program_would_not_write_are_counted_and_never_touched(table: Table) -> None:
    table.put("other state", status="WORKING")
    table.put("other case of the state", status="consuming")
    table.put("other case of the topic", topic="Orders")
    table.put("", tag="without an id")
    table.put("no log holds a\0")
    table.put("other application", application="shipping-app")
    table.put("other topic", topic="invoices")
    before = table.rows()
    assert sweep(table, done(*before)) == {"looked": 5, "unreadable": 5}
    assert table.rows() == before


def test_ids_with_any_text_are_asked_about_and_freed_as_they_are(table: Table) -> None:
    ids = ["a:b", "it's", 'say "x"', "50%", "%s", "back\\slash", "line\nbreak", "日本", "{seen}"]
    for message_id in ids:
        table.put(message_id)
    log = Log()
    assert sweep(table, log) == {"looked": len(ids), "reclaim": len(ids)}
    assert sorted(log.asked) == sorted(Key("orders", message_id) for message_id in ids)
    assert table.rows() == {}


def test_a_tag_is_part_of_the_row_but_not_of_the_message(table: Table) -> None:
    table.put("m-1", tag="eu")
    table.put("m-1", tag="us", ago=-60_000)
    log = Log()
    assert sweep(table, log) == {"looked": 1, "reclaim": 1}
    assert log.asked == [Key("orders", "m-1")]
    assert table.run("SELECT tag FROM t_rocketmq_dedup") == [("us",)]


def test_a_dry_run_lists_what_it_would_do_and_changes_nothing(table: Table) -> None:
    table.put("free me")
    table.put("done")
    table.put("odd", status="?")
    before = table.rows()
    told: list[Any] = []
    leases = opened("table", table.server.url())
    assert leases.count(100) == 2
    assert leases.count(1) == 1
    counts = leases.sweep(done("done"), limit=10, dry_run=True, tell=told.append)
    assert dict(counts) == {"looked": 3, "repair": 1, "reclaim": 1, "unreadable": 1}
    assert decisions(told) == {
        ("orders", "free me"): "reclaim",
        ("orders", "done"): "repair",
        ("", "billing-app orders  odd"): "unreadable",
    }
    assert {(one.where, one.group) for one in told} == {("table", "billing")}
    assert table.rows() == before
    leases.close()


def test_a_large_table_is_walked_in_steps_and_from_the_place_where_the_last_process_stopped(
    table: Table,
) -> None:
    for topic in ("refunds", "orders"):
        values = [
            (
                "billing-app",
                topic,
                "" if n % 2 else "eu",
                f"m-{n:04}",
                "CONSUMED" if n % 3 else "CONSUMING",
            )
            for n in range(300)
        ]
        with table.connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO t_rocketmq_dedup VALUES (%s, %s, %s, %s, %s, 1)", values
            )
    log, place, calls = Log({}), "", 0
    while calls == 0 or place:
        records = MysqlRecords(
            "table",
            table.server.url(),
            application="billing-app",
            topics=["orders", "refunds"],
            skew=timedelta(0),
            keep=timedelta(days=1),
            page=40,
        )
        leases = SweptRecords("table", "billing", records, walk=100)
        leases.place = place
        counts = leases.sweep(log, limit=17, dry_run=True)
        assert counts.get("looked", 0) <= 17
        place, calls = leases.place, calls + 1
        leases.close()
        assert calls < 40
    assert calls > 12
    # Every row that is stuck, in both topics and all tags; some twice, where a call's limit cut a page.
    assert set(log.asked) == {
        Key(topic, f"m-{n:04}") for topic in ("orders", "refunds") for n in range(0, 300, 3)
    }


def test_a_count_that_finds_nothing_goes_on_where_it_stopped(table: Table) -> None:
    values = [
        ("billing-app", "orders", "", f"m-{n:04}", "CONSUMED" if n < 250 else "CONSUMING")
        for n in range(260)
    ]
    with table.connection.cursor() as cursor:
        cursor.executemany("INSERT INTO t_rocketmq_dedup VALUES (%s, %s, %s, %s, %s, 1)", values)
    records = MysqlRecords(
        "table",
        table.server.url(),
        application="billing-app",
        topics=["orders"],
        skew=timedelta(0),
        keep=timedelta(days=1),
        page=50,
    )
    leases = SweptRecords("table", "billing", records, walk=100)
    assert [leases.count(1000) for _ in range(4)] == [0, 0, 10, 10]
    assert json.loads(leases.place) == ["orders", "", "m-0199"]
    assert dict(leases.sweep(Log(), limit=1000, dry_run=False)) == {"looked": 10, "reclaim": 10}
    leases.close()


def test_a_page_reads_no_more_rows_than_a_page_has(table: Table) -> None:
    values = [("billing-app", "orders", "eu", f"m-{n:05}") for n in range(20_000)]
    with table.connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO t_rocketmq_dedup VALUES (%s, %s, %s, %s, 'CONSUMED', 1)", values
        )
    where = {
        "application": "billing-app",
        "topic": "orders",
        "tag": "eu",
        "id": "m-09999",
        "end_tag": "eu",
        "end_id": "m-10499",
        "offset": 499,
        "skew": 0,
        "at_most": 1000,
        "from_start": False,
        "to_end": False,
    }
    for name in ("page_end", "stuck"):
        with table.connection.cursor() as cursor:
            cursor.execute("FLUSH STATUS")
            cursor.execute(SQL[name], where)
            cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%%'")
            read = {what: int(number) for what, number in cursor.fetchall()}
        assert 400 < sum(read.values()) < 700, (name, read)
        with table.connection.cursor() as cursor:
            cursor.execute("FLUSH STATUS")
            cursor.execute(SQL[name], {**where, "from_start": True})
            cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%%'")
            read = {what: int(number) for what, number in cursor.fetchall()}
        assert sum(read.values()) < (700 if name == "page_end" else 11_000), (name, read)


def refused(table: Table, url: str) -> StoreUnavailable:
    leases = opened("table", url)
    with pytest.raises(StoreUnavailable) as error:
        leases.sweep(Log(), limit=10, dry_run=False)
    with pytest.raises(StoreUnavailable):
        leases.count(10)
    leases.close()
    assert PASSWORD not in str(error.value)
    assert "foreign_leases.table" in error.value.what
    assert error.value.unaffected
    assert error.value.next_step
    return error.value


def test_a_server_that_is_away_or_refuses_says_so_in_three_parts_and_without_a_password(
    table: Table,
) -> None:
    url = table.server.url()
    refused(table, url.replace(str(table.server.port), str(free_port())))
    refused(table, url.replace("sweeper", "nobody"))
    refused(table, url.replace("/dedup", "/other"))


def test_a_login_that_may_not_delete_frees_nothing_and_what_it_could_do_is_counted(
    table: Table,
) -> None:
    table.put("done")
    table.put("free me")
    table.run("REVOKE DELETE ON dedup.t_rocketmq_dedup FROM sweeper@'127.0.0.1'")
    try:
        leases = opened("table", table.server.url())
        with pytest.raises(StoreUnavailable, match="DELETE"):
            leases.sweep(done("done"), limit=10, dry_run=False)
        assert dict(leases.done) == {"looked": 2, "repair": 1}
        leases.close()
    finally:
        table.run("GRANT DELETE ON dedup.t_rocketmq_dedup TO sweeper@'127.0.0.1'")
    assert table.rows() == {"done": "CONSUMED", "free me": "CONSUMING"}


def test_a_server_that_goes_away_in_the_middle_frees_nothing_more(tmp_path: Path) -> None:
    with MariaDB(tmp_path / "own") as server:
        table = Table(server)
        table.run(TABLE)
        table.run("GRANT ALL ON dedup.* TO sweeper@'127.0.0.1'")
        table.put("m-1")
        leases = opened("table", server.url())
        with pytest.raises(StoreUnavailable):
            leases.sweep(Log(meanwhile=server.stop), limit=10, dry_run=False)
        server.start()
        assert Table(server).rows() == {"m-1": "CONSUMING"}
        assert dict(leases.sweep(Log(), limit=10, dry_run=False)) == {"looked": 1, "reclaim": 1}
        leases.close()
