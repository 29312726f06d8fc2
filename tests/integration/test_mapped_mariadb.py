"""What only MySQL and MariaDB do: collations that fold, zero dates, sizes, servers set to read only, no version of a row."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryFile
from typing import Any

import pytest

from backstop.config.mapped import LogMapping
from backstop.model.errors import StoreUnavailable
from backstop.model.records import Key
from backstop.sql.mysql import MysqlConnection
from backstop.stores.mapped import forms, mysql
from backstop.stores.mapped.mysql_columns import _CODECS, ColumnType, Writer
from backstop.stores.open import open_mapped_logs, open_mapped_stubs
from backstop.stores.postgresql import scan
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from mapped_world import ON_MARIADB, Mapped, connect_mariadb, make_mapped, settings_of
from mariadb import PASSWORD, MariaDB
from system import system

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    with MariaDB(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


@pytest.fixture
def mapped(postgres: Postgres, valkey: Valkey, mariadb: MariaDB) -> Open:
    @contextmanager
    def opened(name: str, **changes: Any) -> Iterator[Mapped]:
        library = ON_MARIADB[name]
        with system(postgres, valkey, **settings_of(library, **changes)) as running:
            yield make_mapped(mariadb, running, library)

    return opened


def settled(shop: Mapped, done: str) -> None:
    """A look, and a group that is past all that it saw; absence counts."""
    shop.look()
    shop.a_minute_later()
    shop.system.pass_over("billing")
    shop.prove(done)


def remembered(shop: Mapped) -> dict[str, str]:
    return dict(shop.system.rows("control", "SELECT message_id, state FROM mapped_stub"))


def test_ids_are_compared_as_written_where_the_collation_takes_them_for_the_same(
    mapped: Open,
) -> None:
    with mapped("practice", consumer={"kept": None}) as shop:
        shop.run('ALTER TABLE message_stub MODIFY "messageId" varchar(64) COLLATE utf8mb4_bin')
        ids = ["A-1", "a-1", "ä-1", "a–1", "🚚", "🚛"]
        for one in ids:
            shop.run(shop.library.promise, id=one)
            shop.send(one)
        shop.receive("A-1")
        shop.receive("🚚")
        settled(shop, "A-1")
        found = shop.judge(*ids)
        assert {one for one in ids if found[one] == ("CONFIRMED", "consumed")} == {"A-1", "🚚"}
        assert {found[one] for one in ids[1:4] + ids[5:]} == {("LOST", "passed_over")}
        # A space at its end makes another id of it, too, whatever the collation says.
        assert shop.judge("A-1 ") == {}


def test_odd_rows_cost_only_themselves(mapped: Open) -> None:
    with mapped("practice", consumer={"kept": None}) as shop:
        shop.run(
            'ALTER TABLE message_stub DROP PRIMARY KEY, MODIFY "messageId" varchar(2000) COLLATE utf8mb4_bin NULL'
        )
        done, twice = shop.receive(shop.send(shop.promise())), shop.send(shop.promise())
        shop.run(
            'INSERT INTO message_stub SELECT * FROM message_stub WHERE "messageId" = %(id)s',
            id=twice,
        )
        undated = 'INSERT INTO message_stub ("messageId", created) VALUES (%(id)s, %(at)s)'
        for message_id, at in (
            (None, None),
            ("nul\0", None),
            ("x" * 1025, "2999-01-01"),
            ("zero", "0000-00-00"),
            ("half", "2026-00-00"),
            ("never", None),
        ):
            shop.run(undated, id=message_id, at=at)
        odd = ["it's", '"', "{a,b}", "a%(x)s", "\u202ertl", "líne\nbreak", "NULL", " ", "\\", "`"]
        for one in odd:
            shop.run(shop.library.promise, id=one)
            shop.send(one)
        shop.receive(odd[0])
        settled(shop, done)
        found = shop.judge(done, twice, *odd)
        assert found[done] == found[odd[0]] == ("CONFIRMED", "consumed")
        assert found[twice] == ("BACKLOGGED", "ahead_of_group")
        assert {found[one] for one in odd[1:]} == {("LOST", "passed_over")}
        states = remembered(shop)
        assert states[twice] == "not_unique" and states["zero"] == states["never"] == "unsent"
        assert "" in states, "an id that is no text stands for no message"
        assert shop.system.rows("control", "SELECT left_out FROM mapped_look") == [(1,)]


def test_a_zero_date_is_no_date(mapped: Open) -> None:
    """Its column is not NULL, and yet nothing was completed."""
    with mapped("modulith", consumer={"kept": None}) as shop:
        shop.run(
            "ALTER TABLE EVENT_PUBLICATION MODIFY COMPLETION_DATE TIMESTAMP(6) NOT NULL DEFAULT 0"
        )
        done, under_way = (shop.promise() for _ in range(2))
        shop.run("UPDATE EVENT_PUBLICATION SET COMPLETION_DATE = 0")
        shop.send(done)
        shop.look()
        assert remembered(shop) == {done: "sent", under_way: "unsent"}


@pytest.mark.parametrize("value", [None, b"\xff", b"Billing.V1"])
def test_a_group_that_is_no_text_may_be_any_group(mapped: Open, value: bytes | None) -> None:
    with mapped("cap", consumer={"kept": None}) as shop:
        shop.run('ALTER TABLE {received} MODIFY "Group" varbinary(200) NULL')
        done, odd = (shop.receive(shop.send(shop.promise())) for _ in range(2))
        shop.act("received group", id=int(odd), group=value)
        settled(shop, done)
        is_group = value == b"Billing.V1"
        verdict = ("LOST", "passed_over") if is_group else ("IN_PROGRESS", "lease_without_expiry")
        assert shop.judge(done, odd) == {done: ("CONFIRMED", "consumed"), odd: verdict}


def test_numbers_as_ids_are_whole_beyond_what_a_float_holds(mapped: Open) -> None:
    with mapped("cap", consumer={"kept": None}) as shop:
        shop.run('ALTER TABLE {published} MODIFY "Id" bigint unsigned NOT NULL')
        first, second = 2**64 - 1, 2**64 - 2
        for one in (first, second):
            shop.run(shop.library.promise, id=one)
            shop.send(str(one))
        shop.run(shop.library.receive.replace("%(id)s + 7000", "1"), id=first)
        shop.run("UPDATE {received} SET \"StatusName\" = 'Succeeded'")
        settled(shop, str(first))
        assert shop.judge(str(first), str(second), f"0{first}", "x", "") == {
            str(first): ("CONFIRMED", "consumed"),
            str(second): ("LOST", "passed_over"),
        }


@pytest.mark.parametrize(
    ("column", "odd"),
    [
        ("varchar(8) CHARACTER SET utf8mb4", "nine char"),
        ("varchar(20) CHARACTER SET latin1", "m-🚚"),
        ("varchar(20) CHARACTER SET utf8mb3", "m-🚚"),
        ("char(20) CHARACTER SET utf8mb4", "m-1 "),
        ("varchar(20) CHARACTER SET koi8r", "m-🚚"),
        ("varchar(20) CHARACTER SET cp932", "m-\u301c"),
        ("tinytext CHARACTER SET utf8mb4", "\u6771" * 86),
        ("int", "01"),
        ("int(8) zerofill", "007"),
        ("decimal(20,0)", "007"),
        ("binary(8)", "order-9"),
        ("uuid", "0F8FAD5B-D9CB-469F-A165-70867728950E"),
    ],
)
def test_an_id_that_the_log_may_have_cut_or_changed_is_not_absent(
    mapped: Open, column: str, odd: str
) -> None:
    """A server that is not strict keeps something else, and says nothing."""
    good = {
        "varchar(20) CHARACTER SET koi8r": "m-1",
        "varchar(20) CHARACTER SET cp932": "m-\u6771",
        "int": "7",
        "int(8) zerofill": "7",
        "decimal(20,0)": "7",
        "binary(8)": "order-10",
        "uuid": "0f8fad5b-d9cb-469f-a165-70867728950e",
    }.get(column, "m-é")
    with mapped("practice", consumer={"kept": None}) as shop:
        shop.run('ALTER TABLE message_stub MODIFY "messageId" varchar(90) COLLATE utf8mb4_bin')
        shop.run(f"ALTER TABLE inbox DROP INDEX message_id, MODIFY message_id {column}")
        for one in (good, odd):
            shop.run(shop.library.promise, id=one)
            shop.send(one)
        shop.receive(good)
        settled(shop, good)
        assert shop.judge(good, odd) == {
            good: ("CONFIRMED", "consumed"),
            odd: ("IN_PROGRESS", "lease_without_expiry"),
        }
        with open_mapped_logs(shop.system.settings, shop.system.connections, "billing_db") as logs:
            (row,) = logs.log_table("billing", [Key("orders", odd)]).to_pylist()
        assert row["log_broken"].startswith("an id that a column of type ")


@pytest.mark.parametrize(
    ("column", "text", "holds"),
    [
        ("tinyint", "128", False),
        ("tinyint unsigned", "255", True),
        ("bigint unsigned", "-1", False),
        ("decimal(5,2)", "7", False),
        ("double", "7", False),
        ("datetime", "2026-01-01 00:00:00", False),
        ("varbinary(4)", "1234", True),
        ("varbinary(4)", "12345", False),
        ("enum('a')", "a", False),
        ("decimal(3,0)", "999", True),
        ("decimal(3,0)", "1000", False),
        ("bigint", "9" * 5000, False),
    ],
)
def test_of_a_type_that_may_change_an_id_none_is_known(column: str, text: str, holds: bool) -> None:
    kind = column.split("(")[0].split()[0]
    assert ColumnType("id", kind, column, None, 4, True).holds(text) is holds


def test_each_character_that_a_column_is_said_to_hold_is_kept_by_the_server(
    mariadb: MariaDB,
) -> None:
    """Python's codecs and the server's tables of the same name differ; what the server lacks it keeps as a question mark."""
    letters = [chr(code) for code in range(0x80, 0x10000) if not 0xD800 <= code < 0xE000]
    changed = {}
    with closing(connect_mariadb(mariadb, "dedup")) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = '', character_set_client = utf8mb4")
        for charset in _CODECS:
            its = ColumnType("id", "varchar", "varchar(9)", charset, 9, True)
            held = "".join(letter for letter in letters if its.holds(letter))
            cursor.execute(
                f"SELECT CAST(CONVERT(CONVERT(%s USING {charset}) USING utf8mb4) AS BINARY)",
                (held,),
            )
            ((kept,),) = cursor.fetchall()
            changed[charset] = {
                one for one, other in zip(held, kept.decode(), strict=True) if one != other
            }
            assert len(held) > 100 or charset == "ascii", "a column that is said to hold little"
    assert changed == {charset: set() for charset in _CODECS}


@pytest.mark.parametrize(
    ("charset", "text", "holds"),
    [
        ("utf8mb4", "\u6771" * 85, True),
        ("utf8mb4", "\u6771" * 86, False),
        ("utf32", "a" * 63, True),
        ("utf32", "a" * 64, False),
        ("latin1", "\xe9" * 255, True),
    ],
)
def test_the_length_of_a_kind_of_text_is_in_bytes(charset: str, text: str, holds: bool) -> None:
    assert ColumnType("id", "tinytext", "tinytext", charset, 255, True).holds(text) is holds


def test_names_in_a_character_set_that_is_not_known_are_compared_as_written() -> None:
    """No index is asked for them, and none is left out."""
    mapping = LogMapping.model_validate(
        {"dialect": "mysql", "tables": ["inbox"], "message_id": "id", "topic": "topic"}
        | {"received_at": "at", "times": "instant"}
    )
    values: dict[str, Any] = {}
    its = ColumnType("topic", "varchar", "varchar(40)", "koi8r", 40, True)
    condition = Writer(mapping, {"topic": its}, values, 0).narrow("topic", ["заказы"], "named")
    assert condition.startswith("CAST(") and values["named_0"] == ["заказы".encode()]


def test_a_whole_number_that_the_server_makes_a_fraction_of_is_not_absent() -> None:
    texts = (str(2**64 - 1), str(2**64), "9" * 5000)
    assert [forms.in_json(text, most=2**64 - 1) for text in texts] == [True, False, False]


def test_an_id_in_json_is_read_as_json_has_it(mapped: Open) -> None:
    with mapped("modulith", consumer={"kept": None}) as shop:
        event = (
            "INSERT INTO EVENT_PUBLICATION (ID, LISTENER_ID, EVENT_TYPE, SERIALIZED_EVENT, PUBLICATION_DATE)"
            " VALUES (UUID(), %(listener)s, 'org.example.OrderPlaced', %(event)s, NOW(6))"
        )
        listener = shop.library.producer["only"]["listener_id"]
        for text in (
            r'{"orderId": "\ud83d\ude9a-\u00e9-\"x\""}',
            '{"orderId": null}',
            '{"orderId": 42}',
            "no json",
            '{"other": 1}',
        ):
            shop.run(event, listener=listener, event=text)
        shop.look()
        assert remembered(shop) == {'🚚-é-"x"': "unsent", "42": "unsent", "": "not_unique"}


def test_local_times_are_read_in_the_mappings_zone(mapped: Open) -> None:
    with mapped("cap") as shop:
        before = datetime.now(UTC) - timedelta(seconds=2)
        message_id = shop.promise()
        old = shop.promise()
        shop.run(
            'UPDATE {published} SET "Added" = "Added" - INTERVAL 170 HOUR WHERE "Id" = %(id)s',
            id=int(old),
        )
        shop.look()
        ((found, at),) = shop.system.rows(
            "control", "SELECT message_id, created_at FROM mapped_stub"
        )
        assert found == message_id, "a row before the window is left out"
        assert before <= at <= datetime.now(UTC)


def test_a_table_that_was_made_anew_or_a_server_that_started_anew_forgets_what_looks_would_have_met(
    postgres: Postgres, valkey: Valkey, tmp_path_factory: pytest.TempPathFactory
) -> None:
    library = ON_MARIADB["practice"]
    with (
        MariaDB(tmp_path_factory.mktemp("restarted")) as server,
        system(postgres, valkey, **settings_of(library)) as running,
    ):
        shop = make_mapped(server, running, library)

        def known_since(message_id: str) -> bool:
            ((at,),) = shop.system.rows(
                "control",
                "SELECT committed_after FROM mapped_stub WHERE message_id = %s",
                message_id,
            )
            return at is not None

        shop.look()
        first = shop.promise()
        shop.look()
        assert known_since(first)
        # A second apart: the server keeps no finer instant of it.
        made = "SELECT CREATE_TIME < NOW() FROM information_schema.TABLES WHERE TABLE_NAME = 'message_stub'"
        while shop.run(made) != [(1,)]:
            time.sleep(0.05)
        shop.run("CREATE TABLE copied LIKE message_stub")
        shop.run("DROP TABLE message_stub")
        shop.run("RENAME TABLE copied TO message_stub")
        second = shop.promise()
        shop.look()
        assert not known_since(second)
        third = shop.promise()
        shop.look()
        assert known_since(third)
        server.stop()
        server.start()
        fourth = shop.promise()
        shop.look()
        assert not known_since(fourth)


def test_a_server_that_is_read_only_or_copies_another_denies_nothing(
    mapped: Open, mariadb: MariaDB
) -> None:
    with mapped("cap", consumer={"kept": None}) as shop:
        done, lost = shop.receive(shop.send(shop.promise())), shop.send(shop.promise())
        settled(shop, done)
        keys = [Key("orders", lost)]
        with open_mapped_logs(shop.system.settings, shop.system.connections, "billing_db") as logs:
            assert logs.log_table("billing", keys).num_rows == 0
            # Under the open connection, as a switch-over does it.
            with as_admin(mariadb) as run:
                run("SET GLOBAL read_only = ON")
                try:
                    with pytest.raises(StoreUnavailable, match="read_only") as caught:
                        logs.log_table("billing", keys)
                    assert "writes to" in caught.value.next_step
                finally:
                    run("SET GLOBAL read_only = OFF")
                assert logs.log_table("billing", keys).num_rows == 0
                run("CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=1, MASTER_USER='x'")
                run("START SLAVE")
                try:
                    with pytest.raises(StoreUnavailable, match="replica"):
                        logs.log_table("billing", keys)
                finally:
                    run("STOP SLAVE")
                    run("RESET SLAVE ALL")
            assert logs.log_table("billing", keys).num_rows == 0


def test_no_setting_of_the_server_cuts_an_answer_short(mapped: Open, mariadb: MariaDB) -> None:
    with mapped("cap") as shop, as_admin(mariadb) as run:
        ids = [shop.promise() for _ in range(5)]
        run("SET GLOBAL sql_select_limit = 2")
        try:
            shop.look()
        finally:
            run("SET GLOBAL sql_select_limit = DEFAULT")
        assert remembered(shop).keys() == set(ids)


def test_a_question_ends_whether_the_server_is_slow_or_the_table_locked(
    mapped: Open, mariadb: MariaDB
) -> None:
    with mapped("cap") as shop:
        url, second = shop.system.urls["shop"], timedelta(seconds=1)
        with closing(MysqlConnection("shard shop", url, statement_timeout=second)) as connection:
            began = time.monotonic()
            with pytest.raises(StoreUnavailable, match="shard shop did not answer"):
                connection.rows("SELECT COUNT(*) FROM seq_1_to_100000 a, seq_1_to_100000 b")
            with closing(connect_mariadb(mariadb, shop.database)) as other:
                other.cursor().execute('LOCK TABLES "cap.published" WRITE')
                with pytest.raises(StoreUnavailable):
                    connection.rows("SELECT COUNT(*) FROM `cap.published`")
                # A close does not wait until the server has let go of the lock.
                other.cursor().execute("UNLOCK TABLES")
            assert time.monotonic() - began < 60, "the one takes minutes, the other waits for ever"
            assert connection.rows("SELECT COUNT(*) FROM `cap.published`") == [(0,)]


def test_a_connection_that_was_idle_and_is_gone_is_opened_again(
    mapped: Open, mariadb: MariaDB
) -> None:
    with mapped("cap") as shop:
        connection = MysqlConnection("shard shop", shop.system.urls["shop"])
        with closing(connection), as_admin(mariadb) as run:
            ((number,),) = connection.rows("SELECT CONNECTION_ID()")
            run(f"KILL {number}")
            ((again,),) = connection.rows("SELECT CONNECTION_ID()")
            assert again != number


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("wrong-password", "refused the connection"),
        ("?ssl_verify_cert=1", "SSL is required"),
        ("not a url", "is not a MySQL database"),
    ],
)
def test_what_keeps_it_from_answering_is_said_without_the_password(
    mapped: Open, change: str, says: str
) -> None:
    with mapped("cap") as shop:
        url = shop.system.urls["shop"]
        secret = url.split(":")[2].split("@")[0]
        url = {"wrong-password": url.replace(secret, "wr0ng-never-shown"), "not a url": secret}.get(
            change, url + change
        )
        connection = MysqlConnection("shard shop", url)
        with pytest.raises(StoreUnavailable, match=says) as caught:
            connection.rows("SELECT 1")
        text = str(caught.value) + repr(connection)
        assert PASSWORD not in text and secret not in text and "wr0ng" not in text


def test_check_says_what_the_mapping_can_and_cannot_prove(mapped: Open) -> None:
    def findings(shop: Mapped) -> dict[str, tuple[bool, str]]:
        with (
            open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as stubs,
            open_mapped_logs(shop.system.settings, shop.system.connections, "billing_db") as logs,
        ):
            return {one.subject: (one.good, one.says) for one in [*stubs.check(), *logs.check()]}

    with mapped("eventuate") as shop:
        shop.promise()
        found = findings(shop)
        assert all(good for good, _ in found.values()), found
        assert "an index holds one row for one key" in found["shard shop: keys"][1]
        assert "by a change of message_partition:" in found["shard shop: updates"][1]
        shop.run(f"GRANT UPDATE ON eventuate.message TO {shop.database}@'127.0.0.1'")
        assert findings(shop)["shard shop: privileges"] == (
            False,
            "UPDATE on `eventuate`.`message`",
        )
    with mapped("cap", producer={"message_id": "MessageId", "times": "instant"}) as shop:
        found = findings(shop)
        assert found["shard shop: columns"] == (
            False,
            "not there, or not to be read: `cap.published`.MessageId",
        )
    with mapped("cap", producer={"times": "instant"}) as shop:
        assert findings(shop)["shard shop: columns"] == (False, "Added is datetime")


def test_a_look_is_of_one_instant(mapped: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """What commits while a look reads is the next look's, in each of its tables."""
    with (
        mapped("modulith_archive") as shop,
        open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as stubs,
        TemporaryFile() as rows,
    ):
        first = shop.promise()
        asked = mysql.server_of

        def moved_meanwhile(cursor: Any) -> str:
            shop.send(first)
            shop.promise()
            return asked(cursor)

        monkeypatch.setattr(mysql, "server_of", moved_meanwhile)
        stubs.look(rows)
        rows.seek(0)
        (line,) = rows.read().decode().splitlines()
        topic, message_id, _, state, _ = line.split(",")
        assert (topic, message_id, state) == ('"orders"', f'"{first}"', '"unsent"')


def test_a_scan_by_ranges_of_the_key_finds_what_is_done_and_nothing_else(
    mapped: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "FEW_ROWS", 0)
    with mapped("cap", consumer={"kept": None}) as shop:
        done = {shop.receive(shop.promise()) for _ in range(25)}
        for _ in range(5):
            shop.receive(shop.promise(), done=False)
        other = shop.receive(shop.promise())
        shop.run(
            'UPDATE {received} SET "Group" = %(group)s WHERE "Id" = %(id)s + 7000',
            group="Billing.V1",
            id=int(other),
        )
        shop.run("ANALYZE TABLE {received}")
        since, worth = {"billing": datetime.now(UTC) - timedelta(hours=1)}, {"billing": 1e6}
        with open_mapped_logs(shop.system.settings, shop.system.connections, "billing_db") as logs:
            found = logs.scan_done(since, worth, 4)
            assert found is not None and len(found.parts) == 4 and found.rows == 31
            rows = [
                row
                for part in found.parts
                for table in logs.read_part(part, lambda _, table: table)
                for row in table.to_pylist()
            ]
            assert sorted(row["message_id"] for row in rows) == sorted(done)
            keys = [Key("orders", message_id) for message_id in sorted(done)]
            by_key = {row["message_id"]: row for row in logs.log_table("billing", keys).to_pylist()}
            for row in rows:
                assert row.pop("consumer_group") == "billing" and row == by_key[row["message_id"]]
            few = logs.scan_done(since, {"billing": 3.0}, 4)
            assert few is not None and few.parts == [], "asking for each key costs less"


def test_what_a_scan_confirmed_lapses_with_the_servers_life(
    postgres: Postgres, valkey: Valkey, tmp_path_factory: pytest.TempPathFactory
) -> None:
    library = ON_MARIADB["cap"]
    with (
        MariaDB(tmp_path_factory.mktemp("lapsed")) as server,
        system(postgres, valkey, **settings_of(library)) as running,
    ):
        shop = make_mapped(server, running, library)
        with open_mapped_logs(running.settings, running.connections, "billing_db") as logs:
            lineage = logs.lineage()
            shop.receive(shop.promise())
            assert logs.continues(lineage)
            # A server knows its start by the second, and this one starts in less.
            uptime = "SELECT VARIABLE_VALUE > 1 FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'UPTIME'"
            while shop.run(uptime) != [(1,)]:
                time.sleep(0.05)
            server.stop()
            with pytest.raises(StoreUnavailable):
                logs.continues(lineage)
            server.start()
            assert not logs.continues(lineage)


@contextmanager
def as_admin(server: MariaDB) -> Iterator[Callable[[str], None]]:
    with closing(connect_mariadb(server, "dedup")) as connection, connection.cursor() as cursor:
        yield lambda statement: (cursor.execute(statement), None)[1]
