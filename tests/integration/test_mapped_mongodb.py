"""What only MongoDB does: values of any type, no snapshot, no schema, members of a set of which one is the primary.

The server speaks MongoDB's protocol, and plays the members' answers; MongoDB itself is untried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryFile
from typing import Any
from uuid import UUID

import pytest
from bson import Binary, Decimal128, Int64, ObjectId
from pymongo import monitoring

from backstop.client import record
from backstop.config.mapped import LogMapping, StubMapping
from backstop.evidence.sources import Sources
from backstop.model.errors import ContractBroken, StoreUnavailable
from backstop.model.records import Key
from backstop.reconcile.look_at_mapped import look_at_mapped
from backstop.runs.run import close_run, open_run
from backstop.sql.connection import PostgresConnection
from backstop.stores.mapped.mongodb import MongoTable
from backstop.stores.mapped.mongodb_connection import MongoConnection
from backstop.stores.open import open_mapped_logs, open_mapped_stubs
from backstop.stores.postgresql import scan
from backstop_lab.servers.mongodb import MongoServer
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from mapped_world import ON_MONGODB, Mapped, connect_mongodb, make_mapped, settings_of
from system import System, system

Open = Callable[..., Any]
LOWER = "0f8fad5b-d9cb-469f-a165-70867728950e"
OBJECT_ID = "65f1a2b3c4d5e6f708192a3b"
CONNECT_TIMEOUT = "backstop.stores.mapped.mongodb_connection.CONNECT_TIMEOUT"


@pytest.fixture(scope="module")
def mongodb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MongoServer]:
    with MongoServer(tmp_path_factory.mktemp("mongodb")) as server:
        yield server


@pytest.fixture
def mapped(postgres: Postgres, valkey: Valkey, mongodb: MongoServer) -> Open:
    @contextmanager
    def opened(name: str, **changes: Any) -> Iterator[Mapped]:
        library = ON_MONGODB[name]
        with system(postgres, valkey, **settings_of(library, **changes)) as running:
            yield make_mapped(mongodb, running, library)

    return opened


@contextmanager
def played(server: MongoServer, **answers: Any) -> Iterator[Callable[..., None]]:
    """The server answers these commands so, until the end; what is given may be called with others."""
    with closing(connect_mongodb(server, "admin")) as client:

        def play(**others: Any) -> None:
            client.admin.command("playAnswers", others)

        play(**answers)
        try:
            yield play
        finally:
            play()


def primary(server: MongoServer, election: int = 1) -> dict[str, Any]:
    return {
        "setName": "rs0",
        "me": server.address,
        "hosts": [server.address],
        "primary": server.address,
        "setVersion": 1,
        "electionId": ObjectId(f"7fffffff{election:016x}"),
        "isWritablePrimary": True,
        "ismaster": True,
        "secondary": False,
    }


def settled(shop: Mapped, done: str) -> None:
    """A look, and a group that is past all that it saw; absence counts."""
    shop.look()
    shop.a_minute_later()
    shop.system.pass_over("billing")
    shop.prove(done)


def remembered(shop: Mapped) -> dict[str, str]:
    return dict(shop.system.rows("control", "SELECT message_id, state FROM mapped_stub"))


def test_an_id_is_found_as_whatever_value_each_side_keeps_it(mapped: Open) -> None:
    kept = {
        "m-1": "m-1",
        "42": 42.0,
        "43": "43",
        str(2**62): Int64(2**62),
        OBJECT_ID: ObjectId(OBJECT_ID),
        LOWER: Binary.from_uuid(UUID(LOWER)),
        "1.5": 1.5,
    }
    logged = {**kept, "m-1": "m-1", "43": 43, OBJECT_ID: OBJECT_ID, LOWER: LOWER}
    with mapped("practice", consumer={"kept": None}) as shop:
        for value in kept.values():
            shop.run(shop.library.promise, id=value)
            shop.run(shop.library.send, id=value)
        for value in logged.values():
            shop.run(shop.library.receive, id=value)
            shop.run(shop.library.finish, id=value)
        shop.run(shop.library.promise, id="lost")
        shop.send("lost")
        settled(shop, "m-1")
        found = shop.judge(*kept, "lost")
        assert found.pop("lost") == ("LOST", "passed_over")
        assert {*found} == {*kept} and {*found.values()} == {("CONFIRMED", "consumed")}


def test_an_id_is_a_part_of_a_compound_id(mapped: Open) -> None:
    compound = {"message_id": "_id.messageId"}
    with mapped("practice", producer=compound, consumer={**compound, "kept": None}) as shop:
        stubs, inbox = (shop.owner[shop.database][name] for name in ("message_stub", "inbox"))
        now = datetime.now(UTC)
        for one in ("done", "lost"):
            id = {"messageId": one, "part": 1}
            stubs.insert_one({"_id": id, "created": now, "offset": 1, "count": 1, "content": "{}"})
        inbox.insert_one({"_id": {"messageId": "done"}, "state": "done", "at": now})
        settled(shop, "done")
        assert shop.judge("done", "lost") == {
            "done": ("CONFIRMED", "consumed"),
            "lost": ("LOST", "passed_over"),
        }


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("007", 7),
        (LOWER.upper(), Binary.from_uuid(UUID(LOWER))),
        (OBJECT_ID.upper(), ObjectId(OBJECT_ID)),
        ("m-1", ["m-1", "m-2"]),
        ("8", Decimal128("8")),
    ],
)
def test_an_id_that_the_log_keeps_as_another_value_is_not_absent(
    mapped: Open, written: str, kept: Any
) -> None:
    with mapped("practice", consumer={"kept": None}) as shop:
        for one in ("good", written):
            shop.run(shop.library.promise, id=one)
            shop.run(shop.library.send, id=one)
        shop.receive("good")
        settled(shop, "good")
        shop.run(shop.library.receive, id=kept)
        with open_mapped_logs(shop.system.settings, shop.system.connections, "billing_db") as logs:
            (row,) = logs.log_table("billing", [Key("orders", written)]).to_pylist()
        assert row["log_broken"] == "an id that is kept as another value than it is written"
        assert shop.judge(written)[written] != ("LOST", "passed_over")


@pytest.mark.parametrize(
    "kept",
    [
        None,
        {"a": 1},
        ["m-1"],
        True,
        datetime(2026, 1, 1),
        Decimal128("7"),
        1e300,
        float("nan"),
        1e-9,
        Binary(b"x" * 16, 3),
        b"x",
    ],
)
def test_a_log_document_whose_id_has_no_text_may_be_any_message(mapped: Open, kept: Any) -> None:
    with mapped("practice", consumer={"kept": None}) as shop:
        done, lost = shop.receive(shop.send(shop.promise())), shop.send(shop.promise())
        settled(shop, done)
        for readable in (7, 7.5, Int64(2**60), ObjectId(), Binary.from_uuid(UUID(LOWER)), ""):
            shop.run(shop.library.receive, id=readable)
        assert shop.judge(lost) == {lost: ("LOST", "passed_over")}
        shop.run(shop.library.receive, id=kept)
        assert shop.judge(lost) == {lost: ("UNKNOWN", "log_purged")}


@pytest.mark.parametrize(
    ("value", "is_group"),
    [
        (None, False),
        (["billing.v1", "shipping.v1"], False),
        ({"name": "billing.v1"}, False),
        (1e300, False),
        (7, True),
        ("Billing.V1", True),
    ],
)
def test_a_group_that_is_no_text_may_be_any_group(mapped: Open, value: Any, is_group: bool) -> None:
    with mapped("cap", consumer={"kept": None}) as shop:
        done, odd = (shop.receive(shop.send(shop.promise())) for _ in range(2))
        shop.act("received group", id=int(odd), group=value)
        settled(shop, done)
        verdict = ("LOST", "passed_over") if is_group else ("IN_PROGRESS", "lease_without_expiry")
        assert shop.judge(done, odd) == {done: ("CONFIRMED", "consumed"), odd: verdict}


def test_odd_documents_cost_only_themselves(mapped: Open) -> None:
    with mapped("practice", consumer={"kept": None}) as shop:
        done, twice = shop.receive(shop.send(shop.promise())), shop.send(shop.promise())
        shop.run(shop.library.promise, id=twice)
        stubs = shop.owner[shop.database].message_stub
        now = datetime.now(UTC)
        stubs.insert_many(
            [
                {},
                {"messageId": None, "created": None},
                {"messageId": "nul\0", "created": now},
                {"messageId": "x" * 1025, "created": datetime(2999, 1, 1)},
                {"messageId": "text", "created": "2026-11-26"},
                {"messageId": "never"},
                {"messageId": "large", "created": now, "content": "x" * (15 * 2**20)},
            ]
        )
        shop.run(lambda database: database.inbox.insert_one({"message_id": "z" * 2**20}))
        odd = ["it's", '"', "{a,b}", "$where", "a.b", "\u202ertl", "líne\nbreak", "NULL", " ", "\\"]
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
        assert states[twice] == "not_unique"
        assert {states[one] for one in ("text", "never", "large")} == {"unsent"}
        assert "" in states, "an id that is no text stands for no message"
        assert shop.system.rows("control", "SELECT left_out FROM mapped_look") == [(1,)]


def test_a_time_may_be_that_of_the_object_id(mapped: Open) -> None:
    with mapped("practice", producer={"created_at": "_id"}) as shop:
        old = ObjectId.from_datetime(datetime.now(UTC) - timedelta(days=8))
        shop.run(lambda database: database.message_stub.insert_one({"_id": old, "messageId": "o"}))
        before = datetime.now(UTC) - timedelta(seconds=2)
        message_id = shop.promise()
        shop.look()
        ((found, at),) = shop.system.rows(
            "control", "SELECT message_id, created_at FROM mapped_stub"
        )
        assert found == message_id, "a document before the window is left out"
        assert before <= at <= datetime.now(UTC)


def test_a_document_that_moves_to_the_archive_meanwhile_is_never_missed(
    mapped: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mapped("practice", producer={"tables": ["message_stub", "archive"]}) as shop:
        database = shop.owner[shop.database]
        database.create_collection("archive")
        moved, stays = shop.send(shop.promise()), shop.promise()
        shop.look()
        assert remembered(shop) == {moved: "sent", stays: "unsent"}
        read = MongoTable._made
        asked: list[str] = []

        def move(table: MongoTable, server: Any, mapping: Any) -> str:
            made = read(table, server, mapping)
            if not asked:
                asked.append(moved)
                document = database.message_stub.find_one_and_delete({"messageId": moved})
                database.archive.insert_one(document)
            return made

        monkeypatch.setattr(MongoTable, "_made", move)
        shop.look()
        assert remembered(shop) == {moved: "sent", stays: "unsent"}


def test_a_look_walks_an_index_whose_keys_never_change(mapped: Open) -> None:
    walked: list[Any] = []

    class Hints(monitoring.CommandListener):
        def started(self, event: monitoring.CommandStartedEvent) -> None:
            if event.command_name == "find" and "hint" in event.command:
                walked.append(dict(event.command["hint"]))

        def succeeded(self, event: Any) -> None: ...

        def failed(self, event: Any) -> None: ...

    monitoring.register(Hints())
    with mapped("practice") as shop:
        stubs = shop.owner[shop.database].message_stub
        shop.promise()
        shop.look()
        stubs.create_index([("created", 1), ("status", 1)])
        stubs.create_index([("created", -1)], sparse=True)
        shop.look()
        assert walked == [{"_id": 1}, {"_id": 1}]
        stubs.create_index([("created", 1), ("messageId", 1)])
        shop.look()
        assert walked[2:] == [{"created": 1, "messageId": 1}]


def test_a_collection_that_is_gone_or_made_anew_denies_nothing(
    mapped: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mapped("practice", consumer={"kept": None}) as shop:
        done, lost = shop.receive(shop.send(shop.promise())), shop.send(shop.promise())
        settled(shop, done)
        database, keys = shop.owner[shop.database], [Key("orders", lost)]
        with open_mapped_logs(shop.system.settings, shop.system.connections, "billing_db") as logs:
            lineage = logs.lineage()
            assert logs.log_table("billing", keys).num_rows == 0 and logs.continues(lineage)
            from backstop.stores.mapped import mongodb as module

            read = module.logs_of

            def made_anew(*arguments: Any) -> Any:
                database.drop_collection("inbox")
                database.create_collection("inbox")
                return read(*arguments)

            monkeypatch.setattr(module, "logs_of", made_anew)
            with pytest.raises(StoreUnavailable, match="created again while they were read"):
                logs.log_table("billing", keys)
            monkeypatch.setattr(module, "logs_of", read)
            assert not logs.continues(lineage)
            database.drop_collection("inbox")
            with pytest.raises(StoreUnavailable, match="has no table inbox"):
                logs.log_table("billing", keys)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            {"isWritablePrimary": False, "ismaster": False, "secondary": True},
            "No primary|not a primary",
        ),
        ({"msg": "isdbgrid"}, "a router"),
        ({"topologyVersion": None}, "does not say since when it runs"),
        ({"electionId": None}, "by which election"),
    ],
)
def test_a_server_that_may_lag_or_does_not_say_which_it_is_denies_nothing(
    mapped: Open, mongodb: MongoServer, answer: dict[str, Any], says: str
) -> None:
    with mapped("practice", consumer={"kept": None}) as shop:
        done, lost = shop.receive(shop.send(shop.promise())), shop.send(shop.promise())
        settled(shop, done)
        keys = [Key("orders", lost)]
        with open_mapped_logs(shop.system.settings, shop.system.connections, "billing_db") as logs:
            assert logs.log_table("billing", keys).num_rows == 0
            # Under the open connection, as a failover does it.
            with (
                played(mongodb, hello={**primary(mongodb), **answer}),
                pytest.raises(StoreUnavailable, match=says) as caught,
            ):
                logs.log_table("billing", keys)
            assert caught.value.unaffected and caught.value.next_step
            assert logs.log_table("billing", keys).num_rows == 0


def test_of_a_set_the_primary_is_asked_what_a_majority_has(
    mapped: Open, mongodb: MongoServer
) -> None:
    seen: list[tuple[str, Any]] = []

    class Reads(monitoring.CommandListener):
        def started(self, event: monitoring.CommandStartedEvent) -> None:
            if event.command_name in ("hello", "find", "listCollections"):
                seen.append((event.command_name, event.command.get("readConcern")))

        def succeeded(self, event: Any) -> None: ...

        def failed(self, event: Any) -> None: ...

    monitoring.register(Reads())
    with (
        mapped("practice", consumer={"kept": None}) as shop,
        played(mongodb, hello=primary(mongodb)) as play,
    ):
        done, lost = shop.receive(shop.send(shop.promise())), shop.send(shop.promise())
        settled(shop, done)
        assert shop.judge(lost) == {lost: ("LOST", "passed_over")}
        with open_mapped_logs(shop.system.settings, shop.system.connections, "billing_db") as logs:
            seen.clear()
            logs.log_table("billing", [Key("orders", lost)])
            assert [(name, concern and concern["level"]) for name, concern in seen] == [
                ("hello", None),
                ("find", "linearizable"),
                ("listCollections", None),
                ("find", "majority"),
                ("listCollections", None),
                ("hello", None),
            ]
            lineage = logs.lineage()
            assert "rs0" in lineage and logs.continues(lineage)
            play(hello=primary(mongodb, election=2))
            assert not logs.continues(lineage), "what was confirmed may have been rolled back"


def test_an_election_while_it_was_read_counts_for_nothing(mongodb: MongoServer) -> None:
    connection = MongoConnection("shard shop", mongodb.url("shop"))
    with closing(connection), played(mongodb, hello=primary(mongodb)) as play:
        with pytest.raises(StoreUnavailable, match="another server became primary"):
            connection.run(lambda _: play(hello=primary(mongodb, election=2)))
        assert connection.run(lambda server: server.replica_set) == "rs0"


def missed_by_a_look(running: System) -> list[str]:
    """What a run's look could not read."""
    with closing(running.control()) as control:
        run = open_run(control, "reconcile", "*", running.settings)
        with Sources(running.settings, running.connections) as sources:
            counts = look_at_mapped(running.settings, running.connections, control, run, sources)
            missed = [*sources.unreachable]
        close_run(control, run, "done", counts)
    return missed


def test_a_restart_forgets_what_looks_would_have_met_and_what_a_scan_confirmed(
    postgres: Postgres,
    valkey: Valkey,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CONNECT_TIMEOUT, timedelta(seconds=2))
    library = ON_MONGODB["practice"]
    with (
        MongoServer(tmp_path_factory.mktemp("restarted")) as server,
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
        with open_mapped_logs(running.settings, running.connections, "billing_db") as logs:
            lineage = logs.lineage()
            server.stop()
            with pytest.raises(StoreUnavailable):
                logs.continues(lineage)
            assert missed_by_a_look(running) == ["shard shop"], "and nothing else fails with it"
            server.start()
            shop.run(library.tables)
            assert not logs.continues(lineage)
        second = shop.promise()
        shop.look()
        assert not known_since(second)
        third = shop.promise()
        shop.look()
        assert known_since(third)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mongodb://me:s3cret-never-shown@127.0.0.1:1/shop", "did not answer"),
        ("mongodb://me:s3cret-never-shown@127.0.0.1:1/", "names no database"),
        ("mongodb://me:s3cret-never-shown@127.0.0.1:1/shop?loadBalanced=true", "load balancer"),
        ("mongodb://me:s3cret-never-shown@h:x/shop", "is not understood"),
        ("postgresql://me:s3cret-never-shown@127.0.0.1:1/shop", "is not a MongoDB database"),
    ],
)
def test_what_keeps_it_from_answering_is_said_without_the_password(
    url: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CONNECT_TIMEOUT, timedelta(seconds=0.2))
    connection = MongoConnection("shard shop", url)
    with pytest.raises(StoreUnavailable, match=says) as caught:
        connection.run(lambda server: server.now)
    assert "s3cret" not in str(caught.value) + repr(connection)
    assert caught.value.unaffected and caught.value.next_step


def test_a_refusal_says_what_the_login_needs(mapped: Open, mongodb: MongoServer) -> None:
    refusal = {"ok": 0, "code": 13, "codeName": "Unauthorized", "errmsg": "not authorized on shop"}
    with mapped("practice") as shop:
        with (
            open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as stubs,
            played(mongodb, listCollections=refusal),
            TemporaryFile() as rows,
            pytest.raises(StoreUnavailable, match="refused: not authorized") as caught,
        ):
            stubs.look(rows)
        assert "role read" in caught.value.next_step


def test_check_says_what_the_mapping_can_and_cannot_prove(
    mapped: Open, mongodb: MongoServer
) -> None:
    def findings(shop: Mapped) -> dict[str, tuple[bool, str]]:
        with (
            open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as stubs,
            open_mapped_logs(shop.system.settings, shop.system.connections, "billing_db") as logs,
        ):
            return {one.subject: (one.good, one.says) for one in [*stubs.check(), *logs.check()]}

    def login(*actions: str) -> dict[str, Any]:
        of = {"db": "", "collection": "message_stub"}
        return {
            "authenticatedUsers": [{"user": "look", "db": "admin"}],
            "authenticatedUserPrivileges": [{"resource": of, "actions": ["find", *actions]}],
        }

    with mapped("practice") as shop:
        assert findings(shop)["shard shop: privileges"][1].startswith("everything")
        with played(mongodb, connectionStatus={"authInfo": login()}) as play:
            found = findings(shop)
            assert all(good for good, _ in found.values()), found
            shop.promise()
            shop.receive(shop.promise())
            found = findings(shop)
            assert all(good for good, _ in found.values()), found
            assert "of offset, count, status, resendTime:" in found["shard shop: updates"][1]
            assert "no index holds one row" in found["shard shop: keys"][1]
            shop.owner[shop.database].message_stub.create_index("messageId", unique=True)
            assert "an index holds one row" in findings(shop)["shard shop: keys"][1]
            play(connectionStatus={"authInfo": login("update", "listIndexes")})
            assert findings(shop)["shard shop: privileges"] == (False, "update on message_stub")
            database = shop.owner[shop.database]
            database.message_stub.insert_one({"messageId": "m", "created": "2026-11-26"})
            assert findings(shop)["shard shop: columns"] == (False, "created is date, string")
    with mapped("practice", producer={"message_id": "id"}) as shop:
        shop.promise()
        found = findings(shop)["shard shop: columns"]
        assert found == (False, "not there, or not to be read: message_stub.id")


def test_a_scan_by_ranges_of_the_id_finds_what_is_done_and_nothing_else(
    mapped: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "FEW_ROWS", 0)
    with mapped("cap", consumer={"kept": None}) as shop:
        done = {shop.receive(shop.promise()) for _ in range(25)}
        for _ in range(5):
            shop.receive(shop.promise(), done=False)
        other = shop.receive(shop.promise())
        received = shop.owner[shop.database].received
        received.update_one({"Id": int(other) + 7000}, {"$set": {"Group": "Billing.V1"}})
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


def test_nothing_is_recorded_or_guarded_in_mongodb(mongodb: MongoServer) -> None:
    with closing(connect_mongodb(mongodb, "shop")) as client:
        for given in (client, client["shop"]):
            with pytest.raises(ContractBroken, match="MongoDB is only read"):
                record(given, "orders", b"x", message_id="m")
    with closing(PostgresConnection("shard shop", mongodb.url("shop"))) as connection:
        with pytest.raises(StoreUnavailable, match="MongoDB is only read") as caught:
            connection.rows("SELECT 1")
        assert "kind: mapped" in caught.value.next_step


def test_mongodb_without_its_driver_says_how_to_install_it(
    mongodb: MongoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pymongo", None)
    mapping = {"dialect": "mongodb", "tables": ["t"], "message_id": "id"}
    table = MongoTable("shard shop", mongodb.url("shop"))
    asks: list[Callable[[], object]] = [
        table.clock,
        lambda: table.lineage(LogMapping.model_validate(mapping)),
        lambda: table.rows_of_keys(
            StubMapping.model_validate({**mapping, "topics": ["orders"]}), [Key("orders", "m")]
        ),
    ]
    for ask in asks:
        with pytest.raises(StoreUnavailable, match="PyMongo is not installed") as caught:
            ask()
        assert "backstop-mq[mongodb]" in caught.value.next_step
