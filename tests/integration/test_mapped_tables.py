"""Message tables of other programs on PostgreSQL, MariaDB and MongoDB alike: what a mapped row proves, and what it never proves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2
import pytest

from backstop.config.mapped import LogMapping, StubMapping
from backstop.config.settings import Settings
from backstop.model.errors import RunLost, StoreUnavailable
from backstop.model.records import EARLIEST, LATEST, Key
from backstop.stores.mapped import forms, mongodb_connection
from backstop.stores.mapped.columns import CHECKS_JSON, _part, _text
from backstop.stores.mapped.logs import MappedLogs
from backstop.stores.mapped.postgresql import PostgresTable
from backstop.stores.mapped.stubs import MappedStubs
from backstop.stores.open import open_mapped_logs, open_mapped_stubs, open_stub_audit
from backstop.stores.protocol import Claim, Scope, StubOutcome
from backstop_lab.servers.mongodb import MongoServer
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from mapped_world import SERVERS, Mapped, make_mapped, settings_of
from mariadb import MariaDB
from store_world import reopen
from system import system


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    with MariaDB(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


@pytest.fixture(scope="module")
def mongodb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MongoServer]:
    with MongoServer(tmp_path_factory.mktemp("mongodb")) as server:
        yield server


Open = Callable[..., Any]


@pytest.fixture(params=sorted(SERVERS))
def mapped(
    request: pytest.FixtureRequest,
    postgres: Postgres,
    valkey: Valkey,
    mariadb: MariaDB,
    mongodb: MongoServer,
) -> Open:
    @contextmanager
    def opened(name: str, **changes: Any) -> Iterator[Mapped]:
        library = SERVERS[request.param][name]
        if changes.get("producer") == "wrong clock":
            changes["producer"] = library.wrong_clock
        with system(postgres, valkey, **settings_of(library, **changes)) as running:
            servers = {"mariadb": mariadb, "mongodb": mongodb}
            yield make_mapped(servers.get(library.server, postgres), running, library)

    return opened


on_postgresql = pytest.mark.parametrize("mapped", ["postgresql"], indirect=True)
on_mariadb = pytest.mark.parametrize("mapped", ["mariadb"], indirect=True)


@pytest.mark.parametrize(
    ("mapped", "name"),
    [(server, name) for server, libraries in SERVERS.items() for name in sorted(libraries)],
    indirect=["mapped"],
)
def test_each_preset_tells_lost_rolled_back_under_way_and_done_apart(
    mapped: Open, name: str
) -> None:
    with mapped(name, consumer={"kept": None}) as shop:
        before = shop.receive(shop.send(shop.promise()))
        shop.look()
        lost, under_way = shop.send(shop.promise()), shop.promise()
        done, begun = shop.send(shop.promise()), shop.send(shop.promise())
        rolled_back = shop.roll_back()
        shop.receive(done)
        shop.receive(begun, done=False)
        shop.look()
        shop.a_minute_later()
        written = shop.shown()

        shop.system.pass_over("billing")
        found = shop.judge(before, lost, under_way, done, begun, rolled_back)
        assert found.pop(before) == found.pop(done) == ("CONFIRMED", "consumed")
        assert found.pop(under_way) == ("BACKLOGGED", "ahead_of_group")
        if shop.library.receive:
            assert found.pop(begun) == ("IN_PROGRESS", "lease_without_expiry")
        else:
            assert found.pop(begun) == found[lost]
        assert found == {lost: ("UNKNOWN", "log_purged")}, "nothing was found done there before"

        shop.prove(done)
        assert shop.judge(lost, under_way, rolled_back) == {
            lost: ("LOST", "passed_over"),
            under_way: ("BACKLOGGED", "ahead_of_group"),
        }
        assert shop.shown() == written, "nothing may be written in the other program's tables"


UNDER_WAY, PAST = ("unsent", "paused"), ("sent", "gone_sent", "gone_unsent")
LOGGED = ("none", "working", "odd", "groupless", "failed", "done")


def verdict_of(row: str, log: str, a_minute_later: bool) -> str:
    """The truth table of a row and of its log, once the group has passed all that was stored."""
    if log == "done":
        return "CONFIRMED"
    if log in ("working", "odd", "groupless"):  # somebody may finish it, or has, without a new copy
        return "IN_PROGRESS"
    if row in UNDER_WAY or not a_minute_later:  # a copy may be stored later than what was passed
        return "BACKLOGGED"
    if log == "failed":
        return "STALLED"
    return "UNSENT" if row == "gone_unsent" else "LOST"


def test_the_truth_table_holds_for_each_state_of_a_row_and_of_its_log(mapped: Open) -> None:
    states = {"working": ["Scheduled"], "failed": ["Failed"], "kept": None}
    slowly = {"max_send_duration": "20s", "attempt_timeout": "25s", "claim_timeout": "30s"}
    with mapped("cap", consumer=states, policy=slowly) as shop:
        made = {shop.promise(): (row, log) for row in (*UNDER_WAY, *PAST) for log in LOGGED}
        for message_id, (row, log) in made.items():
            if row in ("sent", "gone_sent"):
                shop.send(message_id)
            elif row == "paused":
                shop.act("state", id=int(message_id), state="Paused")
            if log != "none":
                shop.receive(message_id, done=log in ("done", "groupless"))
            if log == "groupless":
                shop.act("received group", id=int(message_id), group=None)
            if log in ("odd", "failed"):
                shop.act("received state", id=int(message_id), state=log.capitalize())
        shop.look()
        for message_id, (row, _) in made.items():
            if row.startswith("gone"):
                shop.act("delete", id=int(message_id))
        shop.look()
        shop.system.pass_over("billing")
        shop.prove(next(one for one, (_, log) in made.items() if log == "done"))
        found = shop.judge(*made)
        for one, (row, log) in made.items():
            verdict = verdict_of(row, log, a_minute_later=False)
            # No copy is known, and it was met a moment ago: a long transaction commits late.
            unsent = verdict == "BACKLOGGED" and not row.endswith("_sent") and row != "sent"
            assert found[one][0] in ({verdict, "WAITING"} if unsent else {verdict}), (row, log)
        shop.a_minute_later()
        found = shop.judge(*made)
        assert {made[one]: found[one][0] for one in made} == {
            kind: verdict_of(*kind, a_minute_later=True) for kind in made.values()
        }


def test_what_was_sent_before_the_first_look_is_not_lost_where_logs_are_deleted(
    mapped: Open,
) -> None:
    with mapped("cap", consumer={"kept": "24h"}) as shop:
        done, old = shop.receive(shop.send(shop.promise())), shop.send(shop.promise())
        shop.look()
        new = shop.send(shop.promise())
        shop.look()
        shop.a_minute_later()
        shop.system.pass_over("billing")
        shop.prove(done)
        assert shop.judge(old, new) == {
            old: ("UNKNOWN", "log_purged"),
            new: ("LOST", "passed_over"),
        }


def taken_over() -> None:
    raise RunLost("taken over", unaffected="", next_step="")


@on_postgresql
def test_the_audit_finds_what_was_forgotten_of_a_mapped_table(mapped: Open) -> None:
    with mapped("cap") as shop:
        forgotten, _ = shop.promise(), shop.promise()
        shop.look()
        shop.system.rows(
            "control",
            "UPDATE mapped_stub SET created_at = created_at - interval '3 days', first_seen_at = first_seen_at - interval '3 days',"
            " state_seen_at = state_seen_at - interval '3 days', next_check_at = next_check_at - interval '3 days'"
            " WHERE message_id = %s",
            forgotten,
        )
        since, first = datetime.now(UTC) - timedelta(days=2), Key("", "")
        with closing(
            open_stub_audit(shop.system.settings, shop.system.connections, "shop")
        ) as audit:
            mine = Key("orders", forgotten)
            until = datetime.now(UTC) + timedelta(days=9)
            assert audit.never_looked_at(since, until, 10) == [mine]
            assert audit.overdue({"orders": since, "payments": since}, first, 10) == [mine]
            assert audit.overdue({"orders": since}, mine, 10) == []
            shop.system.rows("control", "UPDATE mapped_stub SET judged_at = now()")
            assert audit.never_looked_at(since, until, 10) == []
            assert mine in audit.never_looked_at(since, since - timedelta(days=9), 10)
            with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as stubs:
                done = StubOutcome(mine, "pending", "confirmed", 1, None)
                with pytest.raises(RunLost):
                    stubs.promote([done], datetime.now(UTC), before_commit=taken_over)
                assert stubs.promote([done], datetime.now(UTC)) == 1
            assert audit.overdue({"orders": since}, first, 10) == []


def test_a_log_that_may_be_deleted_by_now_denies_nothing(mapped: Open) -> None:
    with mapped("cap", consumer={"kept": "24h"}) as shop:
        done = shop.receive(shop.send(shop.promise()))
        shop.look()
        new = shop.send(shop.promise())
        shop.look()
        shop.a_minute_later()
        shop.system.pass_over("billing")
        shop.prove(done)
        shop.system.rows(
            "control",
            "UPDATE mapped_stub SET committed_after = committed_after - interval '23h 58m'",
        )
        assert shop.judge(new) == {new: ("UNKNOWN", "log_purged")}


def test_a_row_that_was_touched_since_waits_for_another_copy(mapped: Open) -> None:
    with mapped("cap", consumer={"kept": None}) as shop:
        done, lost = shop.receive(shop.send(shop.promise())), shop.send(shop.promise())
        shop.look()
        shop.a_minute_later()
        shop.system.pass_over("billing")
        shop.prove(done)
        assert shop.judge(lost)[lost][0] == "LOST"
        # A person sends it again on the library's own page, and its relay is done before anybody looks.
        shop.act("state", id=int(lost), state="Scheduled")
        assert shop.judge(lost)[lost] == ("BACKLOGGED", "ahead_of_group")
        shop.send(lost)
        assert shop.judge(lost)[lost] == ("BACKLOGGED", "ahead_of_group")
        shop.look()
        assert shop.judge(lost)[lost] == ("BACKLOGGED", "ahead_of_group")
        shop.a_minute_later()
        assert shop.judge(lost)[lost][0] == "LOST"


def test_a_row_that_is_gone_counts_from_when_it_was_missed(mapped: Open) -> None:
    with mapped("cap", consumer={"kept": None}) as shop:
        done = shop.receive(shop.send(shop.promise()))
        sent, unsent = shop.send(shop.promise()), shop.promise()
        shop.look()
        shop.a_minute_later()
        shop.system.pass_over("billing")
        shop.prove(done)
        for one in (sent, unsent):
            shop.act("delete", id=int(one))
        waits = ("BACKLOGGED", "ahead_of_group")
        assert shop.judge(sent) == {sent: waits}
        assert shop.judge(unsent)[unsent][0] in ("WAITING", "BACKLOGGED")
        shop.look()
        shop.a_minute_later()
        assert shop.judge(sent, unsent) == {
            sent: ("LOST", "passed_over"),
            unsent: ("UNSENT", "not_stored"),
        }


def test_a_mistaken_mapping_makes_nothing_look_lost(mapped: Open) -> None:
    """The id of the inbox's own rows in place of the message's: nothing is ever found, and so nothing is ever denied."""
    with mapped("cap", consumer={"kept": None, "message_id": "Id"}) as shop:
        done, lost = shop.receive(shop.send(shop.promise())), shop.send(shop.promise())
        shop.look()
        shop.a_minute_later()
        shop.system.pass_over("billing")
        shop.prove(done, lost)
        # As if the topic's ids had been found in another group's log.
        shop.system.rows(
            "control",
            "UPDATE mapped_stub SET status = 'confirmed', updated_at = now() WHERE message_id = %s",
            done,
        )
        assert shop.judge(lost) == {lost: ("UNKNOWN", "log_purged")}


def test_a_producers_mistaken_id_makes_nothing_look_lost(mapped: Open) -> None:
    """Where the log is Backstop's own, whose absence counts otherwise."""
    own = {"consumers": {"billing_db": {"connection": "billing_db"}}}
    with mapped("cap", producer={"message_id": "Version"}, **own) as shop:
        message_id = shop.send(shop.promise())
        shop.system.log(Key("orders", message_id))
        shop.look()
        shop.a_minute_later()
        shop.system.pass_over("billing")
        shop.prove("v1")
        assert shop.judge("v1") == {"v1": ("UNKNOWN", "log_purged")}


@pytest.mark.parametrize("restored", [False, True])
def test_what_another_mapping_met_proves_nothing_of_a_mistaken_one(
    mapped: Open, restored: bool
) -> None:
    own = {"consumers": {"billing_db": {"connection": "billing_db"}}}
    with mapped("cap", **own) as shop:
        done = shop.send(shop.promise())
        shop.look()
        shop.system.log(Key("orders", done))
        if restored:
            shop.prove(done)
        of_column(shop, "Version")
        shop.look()
        if restored:
            assert reopened(shop) == 1
        shop.a_minute_later()
        shop.system.pass_over("billing")
        shop.prove(done)  # by a run of the mistaken mapping
        assert shop.judge("v1") == {"v1": ("UNKNOWN", "log_purged")}


def test_what_a_mistaken_mapping_met_is_not_lost_when_it_is_corrected(mapped: Open) -> None:
    """No row ever had such an id."""
    own = {"consumers": {"billing_db": {"connection": "billing_db"}}}
    with mapped("cap", producer={"message_id": "Version"}, **own) as shop:
        done = shop.send(shop.promise())
        shop.system.log(Key("orders", done))
        shop.look()
        of_column(shop, shop.library.producer.get("message_id", "Id"))
        shop.look()
        shop.look()
        shop.a_minute_later()
        shop.system.pass_over("billing")
        shop.prove(done)
        assert shop.judge(done, "v1") == {
            done: ("CONFIRMED", "consumed"),
            "v1": ("BACKLOGGED", "ahead_of_group"),
        }


def test_a_key_that_two_rows_had_by_a_mistaken_mapping_is_not_set_aside_any_more(
    mapped: Open,
) -> None:
    own = {"consumers": {"billing_db": {"connection": "billing_db"}}}
    with mapped("cap", producer={"message_id": "Version"}, **own) as shop:
        for _ in range(2):
            shop.send(shop.promise())
        shop.look()
        states = "SELECT state FROM mapped_stub WHERE message_id = 'v1'"
        assert shop.system.rows("control", states) == [("not_unique",)]
        of_column(shop, shop.library.producer.get("message_id", "Id"))
        shop.look()
        assert shop.system.rows("control", states) == [("unsent",)]


def test_what_a_log_had_confirmed_is_lost_with_it_whatever_maps_the_table_since(
    mapped: Open,
) -> None:
    """The application deleted the row; then the mapping was changed, and the consumer's database restored."""
    own = {"consumers": {"billing_db": {"connection": "billing_db"}}}
    with mapped("cap", **own) as shop:
        shop.look()  # what this one does not meet is known to be new
        lost, done = shop.send(shop.promise()), shop.send(shop.promise())
        for one in (lost, done):
            shop.system.log(Key("orders", one))
        shop.look()
        shop.system.pass_over("billing")
        shop.prove(lost)
        shop.act("delete", id=int(lost))
        shop.look()
        change(shop, "only", {"Version": "v1"})
        shop.look()
        shop.system.rows("billing_db", "DELETE FROM consumer_log WHERE message_id = %s", lost)
        assert reopened(shop) == 1
        shop.look()
        shop.a_minute_later()
        shop.prove(done)
        shop.system.pass_over("billing")
        assert shop.judge(lost, done) == {
            lost: ("LOST", "passed_over"),
            done: ("CONFIRMED", "consumed"),
        }


def of_column(shop: Mapped, column: str) -> None:
    """The producer's ids are read from another column from now on."""
    change(shop, "message_id", column)


def change(shop: Mapped, name: str, value: Any) -> None:
    """The producer's mapping, from now on."""
    content = shop.system.settings.model_dump(mode="json", exclude_unset=True)
    content["producers"]["shop"]["mapping"][name] = value
    shop.system.settings = Settings.model_validate(content)


def reopened(shop: Mapped) -> int:
    """As after a restore of the consumer's database."""
    with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as stubs:
        return reopen(stubs, ["orders"], datetime.now(UTC) - timedelta(hours=1))


def test_no_verdict_rests_on_the_tables_own_clock_and_zone(mapped: Open) -> None:
    """A zone, or a clock, that is eight hours off: rows lie in the future. `check` says so."""
    with mapped("cap", consumer={"kept": None}, producer="wrong clock") as shop:
        done, under_way = shop.receive(shop.send(shop.promise())), shop.promise()
        shop.look()
        lost = shop.send(shop.promise())
        shop.look()
        shop.a_minute_later()
        shop.system.pass_over("billing")
        shop.prove(done)
        assert shop.judge(done, lost, under_way) == {
            done: ("CONFIRMED", "consumed"),
            lost: ("LOST", "passed_over"),
            under_way: ("BACKLOGGED", "ahead_of_group"),
        }
        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as stubs:
            bad = {finding.subject: finding.do for finding in stubs.check() if not finding.good}
        # The server in the place of MongoDB has no logins, of which one could only read.
        bad.pop("shard shop: privileges" if shop.library.server == "mongodb" else "", None)
        assert [*bad] == ["shard shop: times"] and "time_zone" in bad["shard shop: times"]


def joins(shop: Mapped, group: str) -> None:
    """Another group takes the topic from now on."""
    content = shop.system.settings.model_dump(mode="json", exclude_unset=True)
    content["groups"][group] = {
        **content["groups"]["billing"],
        "active_from": datetime.now(UTC).isoformat(),
    }
    content["topics"]["orders"]["groups"] = ["billing", group]
    shop.system.settings = Settings.model_validate(content)
    shop.system.broker.create_group(group, "orders", at="start")


def test_a_group_owes_what_may_have_been_committed_since_it_joined(mapped: Open) -> None:
    """A row is committed between two looks, of which the group joins in between; or it may be of any age, as after a restart."""
    with mapped("cap", consumer={"kept": "24h"}) as shop:
        before = shop.send(shop.promise())
        shop.look()
        joins(shop, "ledger")
        between = shop.send(shop.promise())
        assert owing(shop, between) == {"billing", "ledger"}, "before any look has met it"
        shop.look()
        restarted(shop)
        after = shop.send(shop.promise())
        shop.look()
        assert owing(shop, between) == owing(shop, after) == {"billing", "ledger"}
        assert owing(shop, before) == {"billing"}
        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as stubs:
            latest = {
                one: stubs.stubs([Key("orders", one)])[Key("orders", one)].created_latest
                for one in (before, between, after)
            }
        met = dict(shop.system.rows("control", "SELECT message_id, first_seen_at FROM mapped_stub"))
        assert latest == met


@on_postgresql
def test_a_row_that_a_wider_window_meets_first_is_no_newer_than_its_own_time_says(
    mapped: Open,
) -> None:
    with mapped("cap", consumer={"kept": "24h"}) as shop:
        shop.look()
        joins(shop, "ledger")
        old = shop.send(shop.promise())
        shop.run('UPDATE cap.published SET "Added" = "Added" - interval \'3 days\'')
        restarted(shop)
        shop.look()
        assert owing(shop, old) == {"billing"}


def owing(shop: Mapped, message_id: str) -> set[str]:
    return {one.consumer_group for one in shop.judged(message_id)}


def restarted(shop: Mapped) -> None:
    """As if the producer's server were another one since the last look."""
    shop.system.rows("control", "UPDATE mapped_look SET server = 'another life'")


@on_postgresql
def test_rows_that_break_the_mapping_cost_only_themselves(mapped: Open) -> None:
    with mapped("practice", consumer={"kept": None}) as shop:
        shop.run(
            'ALTER TABLE message_stub DROP CONSTRAINT message_stub_pkey, ALTER "messageId" DROP NOT NULL,'
            ' ALTER "messageId" TYPE text'
        )
        done, twice = shop.receive(shop.send(shop.promise())), shop.send(shop.promise())
        shop.run(
            'INSERT INTO message_stub SELECT * FROM message_stub WHERE "messageId" = %(id)s',
            id=twice,
        )
        shop.run(
            "INSERT INTO message_stub (\"messageId\", created) VALUES (NULL, NULL), (repeat('x', 5000), now())"
        )
        shop.run(
            "UPDATE message_stub SET created = 'infinity' WHERE \"messageId\" = %(id)s", id=done
        )
        odd = ["it's", '"', "{a,b}", "a%(x)s", "\u202ertl", "líne\nbreak", "NULL", " "]
        for one in odd:
            shop.run(shop.library.promise, id=one)
            shop.send(one)
        shop.receive(odd[0])
        shop.look()
        shop.a_minute_later()
        shop.system.pass_over("billing")
        shop.prove(done)
        found = shop.judge(done, twice, *odd)
        assert found[done] == found[odd[0]] == ("CONFIRMED", "consumed")
        assert found[twice] == ("BACKLOGGED", "ahead_of_group")
        assert {found[one] for one in odd[1:]} == {("LOST", "passed_over")}
        states = shop.system.rows("control", "SELECT message_id, state FROM mapped_stub")
        assert (twice, "not_unique") in states and ("", "unsent") in states
        assert shop.system.rows("control", "SELECT left_out FROM mapped_look") == [(1,)]
        # As much of it is kept as shows that it is too long.
        assert shop.system.rows(
            "control", "SELECT reason, length(message_id), row_key LIKE 'sha256:%%' FROM quarantine"
        ) == [("key_too_long", 1025, True)]


@on_postgresql
def test_a_second_row_of_a_message_that_was_done_is_set_aside(mapped: Open) -> None:
    """Unless it is gone by the next look: a row on its way to an archive may be met in both tables."""
    with mapped("practice", consumer={"kept": None}) as shop:
        shop.run("ALTER TABLE message_stub DROP CONSTRAINT message_stub_pkey")
        twice = shop.receive(shop.send(shop.promise()))
        key = Key("orders", twice)
        remembered = "SELECT state, status, next_check_at <= now() FROM mapped_stub"
        shop.look()
        shop.prove(twice)
        again = 'INSERT INTO message_stub SELECT * FROM message_stub WHERE "messageId" = %(id)s'
        one_less = "DELETE FROM message_stub WHERE ctid IN (SELECT ctid FROM message_stub LIMIT 1)"
        for _ in range(2):
            shop.run(again, id=twice)
            shop.a_minute_later()
            shop.look()
            assert shop.system.rows("control", remembered) == [("not_unique", "confirmed", True)]
            shop.run(one_less)
            shop.look()
            assert shop.system.rows("control", remembered) == [("sent", "confirmed", True)]

        shop.run(again, id=twice)
        for _ in range(3):
            shop.a_minute_later()
            shop.look()
        assert shop.system.rows("control", remembered) == [("not_unique", "pending", True)]
        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as stubs:
            assert stubs.stubs([key])[key].status == "not_unique", "which no run judges"
        shop.run(one_less)
        shop.look()
        assert shop.judge(twice) == {twice: ("CONFIRMED", "consumed")}
        shop.prove(twice)
        assert shop.system.rows("control", remembered)[0][:2] == ("sent", "confirmed")


@on_postgresql
@pytest.mark.parametrize("time", ["1e30", "'NaN'", "'Infinity'"])
def test_a_number_that_is_no_time_costs_only_its_own_date(mapped: Open, time: str) -> None:
    with mapped("eventuate", consumer={"kept": None}) as shop:
        shop.run("ALTER TABLE eventuate.message ALTER creation_time TYPE numeric")
        good, odd, old = (shop.send(shop.promise()) for _ in range(3))
        dated = "UPDATE eventuate.message SET creation_time = {} WHERE id = %(id)s"
        shop.run(dated.format(time), id=odd)
        shop.run(dated.format("-1e30"), id=old)
        shop.look()
        found = shop.system.rows("control", "SELECT message_id, state FROM mapped_stub ORDER BY 1")
        assert found == [(good, "sent"), (odd, "sent")], "the third lies before the window"
        assert set(shop.judge(good, odd, old)) == {good, odd, old}


@on_postgresql
@pytest.mark.parametrize("time", ["294276-12-31 23:59:59", "4713-01-01 BC", "infinity"])
def test_a_local_time_at_the_end_of_all_times_costs_only_its_own_date(
    mapped: Open, time: str
) -> None:
    with mapped("practice", consumer={"kept": None}) as shop:
        good, odd = shop.send(shop.promise()), shop.send(shop.promise())
        for zone in ("Asia/Tokyo", "America/New_York"):
            shop.run(
                'UPDATE message_stub SET created = %(time)s WHERE "messageId" = %(id)s',
                time=time,
                id=odd,
            )
            of_zone(shop, zone)
            shop.look()
            met = {m for (m,) in shop.system.rows("control", "SELECT message_id FROM mapped_stub")}
            assert good in met
            assert set(shop.judge(good, odd)) == {good, odd}


@on_postgresql
def test_an_instant_at_the_end_of_all_times_hides_nothing_that_check_says(mapped: Open) -> None:
    dated = {
        "infinity": "9000-01-01",
        "250000-01-01 00:00+00": "9000-01-01",
        "-infinity": "no rows",
        "4713-01-01 BC": "no rows",
    }
    with mapped("modulith") as shop:
        shop.send(shop.promise())
        for time, says in dated.items():
            shop.run("UPDATE event_publication SET publication_date = %(time)s", time=time)
            with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as stubs:
                found = {one.subject: one for one in stubs.check()}
            times = found["shard shop: times"]
            assert says in times.says and times.good is (says == "no rows")
            assert "shard shop: privileges" in found and "shard shop: looks" in found


def of_zone(shop: Mapped, zone: str) -> None:
    """The producer's times are of another zone from now on."""
    content = shop.system.settings.model_dump(mode="json", exclude_unset=True)
    content["producers"]["shop"]["mapping"]["time_zone"] = zone
    shop.system.settings = Settings.model_validate(content)


def test_a_log_row_without_a_readable_id_may_be_any_message(mapped: Open) -> None:
    with mapped("cap", consumer={"kept": None}) as shop:
        done, lost = shop.receive(shop.send(shop.promise())), shop.send(shop.promise())
        shop.look()
        shop.a_minute_later()
        shop.system.pass_over("billing")
        shop.prove(done)
        shop.act("nameless", id=1, group="shipping.v1")
        assert shop.judge(done, lost)[lost] == ("LOST", "passed_over")
        shop.act("nameless", id=2, group="billing.v1")
        assert shop.judge(done, lost) == {
            done: ("CONFIRMED", "consumed"),
            lost: ("UNKNOWN", "log_purged"),
        }


@on_postgresql
def test_a_table_that_a_subscription_fills_denies_nothing(mapped: Open) -> None:
    """It takes writes, and so looks like the primary."""
    with mapped("practice", consumer={"kept": None}) as shop:
        done, late = shop.receive(shop.send(shop.promise())), shop.send(shop.promise())
        shop.look()
        shop.a_minute_later()
        shop.system.pass_over("billing")
        shop.prove(done)
        assert shop.judge(late) == {late: ("LOST", "passed_over")}
        subscribe(shop, "inbox")
        assert shop.judge(done, late) == {
            done: ("CONFIRMED", "consumed"),
            late: ("UNKNOWN", "log_purged"),
        }
        with open_mapped_logs(shop.system.settings, shop.system.connections, "billing_db") as logs:
            (bad,) = [one for one in logs.check() if not one.good]
        assert bad.subject == "store billing_db: primary" and "subscription" in bad.says


def subscribe(shop: Mapped, table: str) -> None:
    """As where replication fills the table: a subscription that does not run, to this very database."""
    shop.run(f"CREATE PUBLICATION those FOR TABLE {table}")
    shop.run(
        "CREATE SUBSCRIPTION these CONNECTION %(url)s PUBLICATION those"
        " WITH (slot_name = NONE, create_slot = false, enabled = false, copy_data = false)",
        url=shop.owner,
    )


MAY_LAG = {
    "CREATE TABLE {t} (LIKE inbox)": False,
    "CREATE VIEW {t} AS SELECT * FROM inbox": False,
    "CREATE TABLE {t} (LIKE inbox) PARTITION BY LIST (state);"
    " CREATE TABLE part PARTITION OF {t} DEFAULT": False,
    "CREATE TABLE {t} (LIKE inbox);"
    " CREATE RULE also AS ON INSERT TO {t} DO ALSO INSERT INTO filled VALUES (NEW.*)": False,
    "CREATE FOREIGN TABLE {t} (message_id text) SERVER elsewhere": True,
    "CREATE MATERIALIZED VIEW {t} AS SELECT * FROM inbox": True,
    "CREATE VIEW {t} AS SELECT * FROM filled": True,
    "CREATE VIEW v AS SELECT * FROM filled;"
    " CREATE VIEW {t} AS SELECT * FROM inbox NATURAL JOIN v": True,
    "CREATE TABLE {t} (LIKE inbox) PARTITION BY LIST (state);"
    " ALTER TABLE {t} ATTACH PARTITION filled DEFAULT": True,
}
"""What an inbox may be, beside a table `filled` that a subscription fills -> whether it may lag."""


@on_postgresql
def test_what_may_lag_is_known_also_through_views_and_partitions(mapped: Open) -> None:
    with mapped("practice") as shop, closing(PostgresTable("billing_db", shop.owner)) as table:
        shop.run(
            "CREATE FOREIGN DATA WRAPPER a_wrapper; CREATE SERVER elsewhere FOREIGN DATA WRAPPER a_wrapper;"
            " CREATE TABLE filled (LIKE inbox)"
        )
        subscribe(shop, "filled")
        for place, (made, lags) in enumerate(MAY_LAG.items()):
            shop.run(made.replace("{t}", f"t{place}"))
            mapping = LogMapping(tables=[f"t{place}"], message_id="message_id")
            assert table.may_lag(mapping) is lags, made


CUT = r'{"Headers": {"cap-msg-id": "%s"}, "Value": "a\u0000b \ud83d"}'
"""As a program writes a text with a NUL, or one that was cut within an emoji. PostgreSQL's jsonb holds neither."""


@pytest.mark.parametrize("mapped", ["postgresql", "mariadb"], indirect=True)
def test_an_odd_character_in_a_payload_hides_no_id(mapped: Open) -> None:
    with mapped("cap", consumer={"kept": None}) as shop:
        done, odd, lost = (shop.send(shop.promise()) for _ in range(3))
        shop.receive(done)
        shop.receive(odd)
        shop.act("received content", id=int(odd), content=CUT % odd)
        shop.look()
        shop.a_minute_later()
        shop.system.pass_over("billing")
        shop.prove(done)
        assert shop.judge(done, odd, lost) == {
            done: ("CONFIRMED", "consumed"),
            odd: ("CONFIRMED", "consumed"),
            lost: ("LOST", "passed_over"),
        }
        # What stands in the id itself is another matter: whose row it is nobody knows.
        shop.act("received content", id=int(odd), content=CUT % r"o\ud83d")
        assert shop.judge(lost) == {lost: ("UNKNOWN", "log_purged")}


DOCUMENTS = {
    r'{"id": "plain", "v": "\u00e9"}': "plain",
    r'{"id": "a", "v": "x\u0000y\u0000\u0000"}': "a",
    r'{"id": "b", "v": "\\\\u0000 \\\\\u0000"}': "b",
    r'{"id": "\\u0000", "v": 1}': r"\u0000",
    r'{"id": "c", "v": "\ud83d"}': "c",
    r'{"id": "d", "v": "\ude00 \uD83D\uD83D\uDE00\uDE00"}': "d",
    r'{"id": "e\ud83d\ude00", "v": "\u0000"}': "e\U0001f600",
    r'{"id": "f\ud83d\ude00", "v": 1}': "f\U0001f600",
    r'{"id": "g\u0000", "v": 1}': None,
    r'{"id": "h\ud83d", "v": 1}': None,
    r'{"id": "i", "v": "\\ud83d\ude00"}': "i",
    r'{"id": "j", "v": "\\\ud83d\ude00 \\\\ud83d\ude00"}': "j",
    r'{"v": "\u0000"}': None,
}
NO_JSON = {"{": None, "": None, r'{"id": "\u00zz"}': None}


@pytest.mark.parametrize("version", [130_000, 180_000])
def test_an_id_is_read_out_of_any_json(postgres: Postgres, version: int) -> None:
    expected = DOCUMENTS if version < CHECKS_JSON else {**DOCUMENTS, **NO_JSON}
    with (
        closing(psycopg2.connect(postgres.admin_dsn())) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT current_setting('server_version_num')::int")
        if cursor.fetchone()[0] < version:
            version = CHECKS_JSON
        cursor.execute("CREATE TEMP TABLE d (doc text)")
        cursor.executemany("INSERT INTO d VALUES (%s)", [(one,) for one in expected])
        for plain in ("on", "off"):
            cursor.execute(f"SET standard_conforming_strings = {plain}")
            cursor.execute(f"SELECT t.doc, {_text('doc.id', version)} FROM d t")
            assert dict(cursor.fetchall()) == expected
            cursor.execute(f"SELECT t.doc, {_part('doc.v', version, 'NULL')} IS NOT NULL FROM d t")
            sendable = {doc for doc, is_there in cursor.fetchall() if is_there}
            assert {DOCUMENTS[one] for one in sendable} == {"plain", r"\u0000", "f\U0001f600"}


def test_a_state_that_nobody_named_proves_nothing(mapped: Open) -> None:
    with mapped("cap", consumer={"kept": None}) as shop:
        done, odd, logged = (shop.send(shop.promise()) for _ in range(3))
        shop.receive(done)
        shop.receive(logged, done=False)
        shop.act("state", id=int(odd), state="Paused")
        shop.act("received state", id=int(logged), state="Paused")
        shop.look()
        shop.a_minute_later()
        shop.system.pass_over("billing")
        shop.prove(done)
        assert shop.judge(odd, logged) == {
            odd: ("BACKLOGGED", "ahead_of_group"),
            logged: ("IN_PROGRESS", "lease_without_expiry"),
        }
        with open_mapped_logs(shop.system.settings, shop.system.connections, "billing_db") as logs:
            (row,) = logs.log_table("billing", [Key("orders", logged)]).to_pylist()
        assert row["log_broken"] == "a state that the mapping does not name"


def test_a_log_row_without_a_group_costs_its_id_alone(mapped: Open) -> None:
    """Any group may have done it."""
    with mapped("cap", consumer={"kept": None}) as shop:
        done, twice, odd, lost = (shop.send(shop.promise()) for _ in range(4))
        for one in (done, twice, odd):
            shop.receive(one)
        shop.run(COPY_OF_RECEIVED[shop.library.server], id=int(twice))
        for one in (twice, odd):
            shop.act("received group", id=int(one), group=None)
        shop.look()
        shop.a_minute_later()
        shop.system.pass_over("billing")
        shop.prove(done)
        keys = [Key("orders", one) for one in (done, twice, odd, lost)]
        with opened_logs(shop) as logs:
            found = {row["message_id"]: row for row in logs.log_table("billing", keys).to_pylist()}
            assert done_by_scan(logs) in (None, {keys[0], keys[1]})
        assert {one: row["log_state"] for one, row in found.items()} == {
            done: "CONSUMED",
            twice: "CONSUMED",
            odd: "",
        }
        assert found[odd]["log_broken"] == "a row without a group that can be read"
        assert shop.judge(done, twice, odd, lost) == {
            done: ("CONFIRMED", "consumed"),
            twice: ("CONFIRMED", "consumed"),
            odd: ("IN_PROGRESS", "lease_without_expiry"),
            lost: ("LOST", "passed_over"),
        }
        shop.act("nameless", id=1, group=None)
        assert shop.judge(lost) == {lost: ("UNKNOWN", "log_purged")}, "it may be any message"


COPY_OF_RECEIVED: dict[str, Any] = {
    "postgresql": 'INSERT INTO cap.received SELECT "Id" + 90000, "Version", "Name", "Group", "Content", "Retries", "Added",'
    ' "ExpiresAt", "StatusName" FROM cap.received WHERE "Id" = %(id)s + 7000',
    "mariadb": 'INSERT INTO {received} SELECT "Id" + 90000, "Version", "Name", "Group", "Content", "Retries", "Added",'
    ' "ExpiresAt", "StatusName" FROM {received} WHERE "Id" = %(id)s + 7000',
    "mongodb": lambda database, id: database.received.insert_one(
        {**database.received.find_one({"Id": id + 7000}, {"_id": 0}), "Id": id + 97000}
    ),
}


THEIR_TOPICS = ("orders", "orders_v2", "refunds", "old")


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        ({}, {"orders": "orders", "orders_v2": "orders_v2", "refunds": "refunds", "old": "old"}),
        ({"orders": "orders_v2"}, {"orders": "orders_v2", "refunds": "refunds", "old": "old"}),
        (
            {"orders": "orders_v2", "orders_v2": "orders"},
            {"orders": "orders_v2", "orders_v2": "orders", "refunds": "refunds", "old": "old"},
        ),
        (
            {"old": "orders", "orders": "orders_v2"},
            {"old": "orders", "orders": "orders_v2", "refunds": "refunds"},
        ),
        (
            {"old": "orders", "orders": "orders"},
            {"old": "orders", "orders": "orders", "orders_v2": "orders_v2", "refunds": "refunds"},
        ),
    ],
)
def test_a_row_is_of_the_one_topic_that_the_mapping_gives_its_name(
    mapped: Open, topics: dict[str, str], expected: dict[str, str]
) -> None:
    """By key in whatever order, and by a scan. `expected`: a topic's name there -> here; of any other a row proves nothing."""
    with mapped("cap") as shop:
        rows = {theirs: shop.receive(shop.promise()) for theirs in THEIR_TOPICS}
        for theirs, message_id in rows.items():
            shop.act("received topic", id=int(message_id), topic=theirs)
        true = {Key(ours, rows[theirs]) for theirs, ours in expected.items()}
        keys = [Key(ours, one) for ours in THEIR_TOPICS for one in rows.values()]
        with opened_logs(shop, topics=topics) as logs:
            for asked in (keys, keys[::-1], *([key] for key in keys)):
                found = {
                    Key(r["topic"], r["message_id"])
                    for r in logs.log_table("billing", asked).to_pylist()
                }
                assert found == true & set(asked), asked
            assert done_by_scan(logs) in (None, true)


@pytest.mark.parametrize("orders_first", [True, False])
def test_a_topic_whose_name_is_another_ones_there_is_never_lost(
    mapped: Open, orders_first: bool
) -> None:
    with mapped("cap") as shop:
        message_id = shop.receive(shop.promise())
        keys = [Key("orders", message_id), Key("orders_v2", message_id)]
        with opened_logs(shop, topics={"orders": "orders_v2"}, kept=None) as logs:
            with closing(shop.system.control()) as control, control, control.cursor() as cursor:
                logs.prove(cursor, "billing", ["orders", "orders_v2"])
            found = logs.log_table("billing", keys if orders_first else keys[::-1]).to_pylist()
            assert [row["topic"] for row in found] == ["orders_v2"]
            assert logs.floor("billing", "orders") == LATEST, "its absence proves nothing"
            assert logs.floor("billing", "orders_v2") == EARLIEST


def test_ids_that_are_unique_across_topics_are_found_by_id_alone(mapped: Open) -> None:
    with mapped("practice") as shop:
        order, refund, absent = (shop.promise() for _ in range(3))
        for one in (order, refund):
            shop.receive(one)
        keys = [Key("orders", order), Key("refunds", refund), Key("refunds", absent)]
        with opened_logs(shop, ids="unique_across_topics") as logs:
            for asked in (keys, keys[::-1]):
                found = logs.log_table("billing", asked).to_pylist()
                assert {Key(row["topic"], row["message_id"]) for row in found} == set(keys[:2])
                assert {row["log_state"] for row in found} == {"CONSUMED"}


@contextmanager
def opened_logs(shop: Mapped, **mapping: Any) -> Iterator[MappedLogs]:
    """The library's inbox, mapped as no settings with several topics need allow."""
    url, control = shop.system.urls["shop"], shop.system.urls["control"]
    given = LogMapping.model_validate({**shop.library.consumer, **mapping})
    with MappedLogs("billing_db", url, control, given) as logs:
        yield logs


def done_by_scan(logs: MappedLogs) -> set[Key] | None:
    """What one pass over the table finds done; null where this kind of server is asked by key alone."""
    since = datetime.now(UTC) - timedelta(hours=24)
    scan = logs.scan_done({"billing": since}, {"billing": 1e6}, 2)
    if scan is None:
        return None
    tables = [
        table for part in scan.parts for table in logs.read_part(part, lambda _, found: found)
    ]
    return {Key(row["topic"], row["message_id"]) for table in tables for row in table.to_pylist()}


@on_postgresql
@pytest.mark.parametrize(
    ("kind", "good", "odd"),
    [
        ("uuid", "0f8fad5b-d9cb-469f-a165-70867728950e", "0F8FAD5B-D9CB-469F-A165-70867728950E"),
        ("its_id", "0f8fad5b-d9cb-469f-a165-70867728950e", "0F8FAD5B-D9CB-469F-A165-70867728950E"),
        ("character(8)", "m-1", "m-1 "),
        ("character varying(3)", "m-1", "m-1 "),
    ],
)
def test_an_id_that_the_column_cannot_hold_as_written_is_not_absent(
    mapped: Open, kind: str, good: str, odd: str
) -> None:
    with mapped("practice", consumer={"kept": None}) as shop:
        shop.run("CREATE DOMAIN its_id AS uuid")
        shop.run(f"ALTER TABLE inbox ALTER message_id TYPE {kind} USING message_id::{kind}")
        for one in (good, odd):
            shop.run(shop.library.promise, id=one)
            shop.send(one)
        shop.receive(good)
        shop.look()
        shop.a_minute_later()
        shop.system.pass_over("billing")
        shop.prove(good)
        assert shop.judge(good, odd) == {
            good: ("CONFIRMED", "consumed"),
            odd: ("IN_PROGRESS", "lease_without_expiry"),
        }


@on_postgresql
@pytest.mark.parametrize(
    ("kind", "text", "is_absent"),
    [
        ("numeric(20,0)", "7", True),
        ("numeric(20,0)", "007", False),
        ("numeric(20,2)", "7", False),
        ("numeric", "7", False),
        ("inet", "10.0.0.1", False),
    ],
)
def test_of_a_type_that_may_change_an_id_none_is_absent(
    mapped: Open, kind: str, text: str, is_absent: bool
) -> None:
    with mapped("practice", consumer={"kept": None}) as shop:
        shop.run(f"ALTER TABLE inbox ALTER message_id TYPE {kind} USING message_id::{kind}")
        with open_mapped_logs(shop.system.settings, shop.system.connections, "billing_db") as logs:
            found = logs.log_table("billing", [Key("orders", text)]).to_pylist()
        assert [row["log_broken"] for row in found] == (
            []
            if is_absent
            else [f"an id that a column of type {kind} cannot hold as it is written"]
        )


@pytest.mark.parametrize(
    ("text", "holds"),
    [("7", True), ("m-007", True), ("", True), ("007", False), ("1.50", False), ("1e3", False)],
)
def test_a_number_in_json_may_stand_for_an_id_that_is_written_otherwise(
    text: str, holds: bool
) -> None:
    assert forms.in_json(text) is holds


def test_the_scan_and_the_key_tell_the_same_of_each_row(mapped: Open) -> None:
    with mapped("cap") as shop:
        ids = [shop.promise() for _ in range(5)]
        shop.send(ids[0])
        shop.look()
        shop.send(ids[1])
        ids.append(shop.send(shop.promise()))
        shop.act("delete", id=int(ids[2]))
        shop.look()
        later = datetime.now(UTC)
        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as stubs:
            shop.system.rows(
                "control", "UPDATE mapped_look SET began_at = '2100-01-01', ended_at = '2100-01-01'"
            )
            with stubs.scan_due(later, Scope(), 1) as scan:
                rows = [
                    row
                    for part in scan.parts
                    for table in stubs.read_part(part, lambda _, table: table)
                    for row in table.to_pylist()
                ]
            by_key = stubs.stub_table([Key("orders", one) for one in ids]).to_pylist()
            assert stubs.stub_table([]).num_rows == 0
        assert len(rows) == 6

        def settled(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
            # An unsent row is under way until a day from now, whenever that is asked.
            return sorted(
                (
                    {**row, "attempt_deadline": row["settled"] and row["attempt_deadline"]}
                    for row in found
                ),
                key=lambda row: str(row["message_id"]),
            )

        assert settled(rows) == settled(by_key)


def test_a_dead_letter_without_an_id_holds_back_what_it_may_be(mapped: Open) -> None:
    with mapped("cap", consumer={"kept": None}) as shop:
        done, lost = shop.receive(shop.send(shop.promise())), shop.send(shop.promise())
        shop.look()
        shop.a_minute_later()
        shop.system.pass_over("billing")
        shop.prove(done)
        assert shop.judge(lost)[lost][0] == "LOST"
        shop.system.rows(
            "control",
            "WITH b AS (INSERT INTO drain_batch (run_id, broker, queue, letters, acknowledged_at)"
            " SELECT max(run_id), 'embedded', 'q', 1, now() FROM run RETURNING batch_id)"
            " INSERT INTO dead_letter (batch_id, broker, queue, broker_id, topic, consumer_group, headers, content_bytes, invalid)"
            " SELECT batch_id, 'embedded', 'q', 'x', 'orders', 'billing', '', 0, 'it has no header' FROM b",
        )
        assert shop.judge(lost)[lost] == ("UNKNOWN", "dlq_not_read")


def test_silence_is_never_no_row_and_shows_no_password(
    mapped: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    # MongoDB's driver looks for a server until this is over, however often it is refused.
    monkeypatch.setattr(mongodb_connection, "CONNECT_TIMEOUT", timedelta(seconds=0.3))
    with mapped("practice") as shop:
        stub_mapping = StubMapping.model_validate(shop.library.producer)
        log_mapping = LogMapping.model_validate(shop.library.consumer)
        url = f"{stub_mapping.dialect}://backstop:s3cret-never-shown@127.0.0.1:1/gone"
        control = shop.system.urls["control"]
        stubs = MappedStubs("shop", url, control, stub_mapping)
        logs = MappedLogs("billing_db", url, control, log_mapping)
        keys, at = [Key("orders", "m")], datetime.now(UTC)
        asks: list[Callable[[], object]] = [
            stubs.clock,
            lambda: stubs.stub_table(keys),
            lambda: stubs.count_due(at, Scope(), 1),
            lambda: stubs.scan_due(at, Scope(), 1),
            lambda: stubs.scan_window("orders", at, at, 1),
            logs.clock,
            lambda: logs.log_table("billing", keys),
            lambda: logs.logs("billing", keys),
            lambda: logs.floor("billing"),
        ]
        for ask in asks:
            with pytest.raises(StoreUnavailable) as caught:
                ask()
            assert caught.value.unaffected and caught.value.next_step
            assert "s3cret" not in str(caught.value) + repr(stubs) + repr(logs)


def test_a_window_of_another_topic_is_proved_without_it(mapped: Open) -> None:
    with mapped("cap") as shop:
        now = datetime.now(UTC)
        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as stubs:
            with stubs.scan_window("parcels", now, now, 1) as scan:
                assert (scan.parts, scan.rows) == ([], 0)
            with pytest.raises(StoreUnavailable, match="is a mapped table"):
                stubs.scan_window("orders", now, now, 1)


def test_no_number_is_ever_handed_out_and_nothing_is_withdrawn(mapped: Open) -> None:
    with mapped("cap") as shop:
        message_id = shop.promise()
        shop.look()
        written, key = shop.shown(), Key("orders", message_id)
        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as stubs:
            claim = Claim(key, 2, "t", None, "request 1", 1, 1, 5, 5, False)
            assert stubs.claim([claim]) == {} and not stubs.void(key)
            assert not stubs.replace_content(key, 1, b"x") and not stubs.raise_max_sends(key, 9)
        assert shop.shown() == written


def test_a_look_that_was_overtaken_changes_nothing(mapped: Open) -> None:
    """A run that was stopped between its read and its write wakes up after another has looked."""
    from tempfile import TemporaryFile

    with mapped("cap") as shop:
        message_id = shop.promise()
        with (
            open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as stubs,
            TemporaryFile() as rows,
            closing(shop.system.control()) as control,
        ):
            began = datetime.now(UTC)
            old = stubs.look(rows)
            shop.send(message_id)
            shop.look()
            with control, control.cursor() as cursor:
                late = datetime.now(UTC)
                kept = shop.system.settings.policy_for(None).stub_retention
                again = stubs.remember(cursor, old, rows, began, late, late, 1, kept, {})
                assert again is None
        assert shop.system.rows("control", "SELECT state FROM mapped_stub") == [("sent",)]


def due(shop: Mapped) -> int:
    with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as stubs:
        return stubs.count_due(datetime.now(UTC), Scope(), 100)


def test_no_row_hides_a_later_one_and_an_old_look_is_due_by_itself(mapped: Open) -> None:
    """A row dated far ahead, and rows that committed late, would otherwise leave the table without a look for good."""
    with mapped("cap", consumer={"kept": None}) as shop:
        assert due(shop) == 1, "nobody has looked at it yet"
        ahead = shop.promise()
        shop.act("all far ahead")
        shop.look()
        shop.system.rows("control", "UPDATE mapped_stub SET status = 'confirmed'")
        assert due(shop) == 0, f"{ahead} was met, and is not new for ever"
        shop.a_minute_later()
        shop.promise()
        assert due(shop) == 1
        shop.look()
        shop.system.rows("control", "UPDATE mapped_stub SET status = 'confirmed'")
        assert due(shop) == 0
        shop.system.rows(
            "control",
            "UPDATE mapped_look SET began_at = began_at - interval '41 min', ended_at = ended_at - interval '41 min'",
        )
        shop.act("all two hours older")
        assert due(shop) == 1, "what committed late is met by a look alone"
