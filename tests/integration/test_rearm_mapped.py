"""A lost message in another program's table is set back once, and its own relay sends it; and whatever forbids that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2
import pytest

from backstop.config.mapped import StubMapping
from backstop.evidence.recover_attempts import recover_attempts
from backstop.evidence.sources import Sources
from backstop.model.records import Counts, Key
from backstop.restore.producer import restore_producer
from backstop.stores import locked_rows
from backstop.stores.mapped.capture import capture_sql
from backstop.stores.mapped.overlaid import OverlaidStubs
from backstop.stores.mapped.overlay import overlay_sql
from backstop.stores.open import open_mapped_stubs
from backstop.stores.protocol import Claim, StubOutcome
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from mapped_world import DEBEZIUM
from rearm_world import REARMED, Repaired, make_repaired, repair_settings, run_as_dba
from store_world import reopen
from system import build_template, system


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with Postgres(tmp_path_factory.mktemp("postgres")) as server:
        build_template(server)
        yield server


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with Valkey(tmp_path_factory.mktemp("valkey"), appendfsync="everysec") as server:
        yield server


Open = Callable[..., Any]


@pytest.fixture
def repaired(postgres: Postgres, valkey: Valkey) -> Open:
    @contextmanager
    def opened(name: str = "cap", level: str = "rearm", **changes: Any) -> Iterator[Repaired]:
        with system(postgres, valkey, **repair_settings(name, level, **changes)) as running:
            yield make_repaired(postgres, running, name, level)

    return opened


def claim_of(message_id: str, token: str, number: int = 2) -> Claim:
    return Claim(Key("orders", message_id), number, token, None, "request 1", 2.0, 3.0, 4, 3, False)


TOKEN = "00000000-0000-0000-0000-000000000001"


@pytest.mark.parametrize("name", REARMED)
def test_a_lost_message_is_set_back_once_and_its_own_relay_sends_it(
    repaired: Open, name: str
) -> None:
    with repaired(name) as shop:
        lost, under_way = shop.a_lost_one(), shop.promise()
        shop.ask(lost)
        assert shop.resend()["rearmed"] == 1
        assert shop.handed_out() == {lost: (2, True)}
        written = shop.theirs()

        # While it waits for its relay, however long, nothing else happens to it.
        for _ in range(2):
            shop.look()
            shop.a_minute_later()
            assert shop.judge(lost)[lost] == ("BACKLOGGED", "ahead_of_group")
            shop.ask(lost, number=3)
            assert "rearmed" not in shop.resend()
            assert shop.handed_out() == {lost: (2, True)}, "it has not ended"
        assert shop.theirs() == written

        assert sorted(shop.relay()) == sorted([lost, under_way])
        assert sorted(shop.deliver()) == sorted([lost, under_way])
        shop.resend()
        assert shop.outcomes(lost) == [(1, "sent"), (2, "sent")]
        assert shop.handed_out() == {lost: (2, False)}
        assert (lost, 2, "sent") in shop.requests()
        shop.look()
        assert shop.judge(lost)[lost] == ("CONFIRMED", "consumed")
        assert shop.relay() == [], "it was set back once"


def test_a_held_row_of_the_overlay_keeps_no_other_number_from_ending_and_is_named(
    repaired: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locked_rows, "LOCK_TIMEOUT", timedelta(seconds=0.2))
    with repaired() as shop:
        done = shop.receive(shop.send(shop.promise()))
        shop.look()
        held, free = sorted(shop.send(shop.promise()) for _ in range(2))
        shop.look()
        shop.a_minute_later()
        shop.system.pass_over("billing")
        shop.prove(done)
        shop.judge(held, free)
        shop.ask(held, free)
        assert shop.resend()["rearmed"] == 2
        assert sorted(shop.relay()) == [held, free]
        with (
            closing(psycopg2.connect(shop.owner)) as theirs,
            theirs.cursor() as cursor,
            Sources(shop.system.settings, shop.system.connections) as sources,
        ):
            cursor.execute(
                "SELECT 1 FROM backstop_overlay.message_stub WHERE message_id = %s FOR UPDATE",
                (held,),
            )
            missed = recover_attempts(sources).missed()
            assert "Another transaction holds 1 row" in missed["1 attempts of shard shop"]
            assert shop.handed_out() == {held: (2, True), free: (2, False)}
            theirs.rollback()
            assert recover_attempts(sources).missed() == {}
        assert shop.handed_out() == {held: (2, False), free: (2, False)}


def test_a_request_that_their_relay_carried_out_stays_for_the_groups_that_it_was_made_for(
    repaired: Open,
) -> None:
    with repaired() as shop:
        lost = shop.a_lost_one()
        shop.ask(lost)
        shop.system.rows("control", "UPDATE resend_request SET groups = '{billing}'")
        assert shop.resend()["rearmed"] == 1
        assert shop.relay() == [lost]
        earlier = "UPDATE resend_request SET updated_at = updated_at - interval '1 minute'"
        shop.system.rows(
            "control", earlier
        )  # as if the worker had been gone for longer than a send may take
        shop.resend()
        found = shop.system.rows("control", "SELECT state, groups FROM resend_request")
        assert found == [("sent", ["billing"])]


def test_a_copy_that_is_lost_again_is_set_back_again_within_the_budget(repaired: Open) -> None:
    with repaired(policy={"max_sends": 2}) as shop:
        lost = shop.a_lost_one()
        shop.ask(lost)
        assert shop.resend()["rearmed"] == 1
        assert shop.relay(lose=True) == [lost]
        shop.resend()
        assert shop.outcomes(lost) == [(1, "sent"), (2, "sent")]
        shop.look()
        assert shop.judge(lost)[lost][0] in ("BACKLOGGED", "WAITING")
        shop.a_minute_later()
        shop.system.pass_over("billing")
        assert shop.judge(lost)[lost] == ("EXHAUSTED", "sends_used")
        shop.ask(lost, number=3)
        assert "rearmed" not in shop.resend()

        # A person allows one more.
        with Sources(shop.system.settings, shop.system.connections) as sources:
            assert sources.shard("shop").raise_max_sends(Key("orders", lost), 3)
        assert shop.judge(lost)[lost] == ("LOST", "passed_over")
        shop.ask(lost, number=3)
        assert shop.resend()["rearmed"] == 1
        assert shop.relay() == [lost] and shop.handed_out() == {lost: (3, True)}


def test_what_a_person_withdraws_is_never_set_back(repaired: Open) -> None:
    with repaired() as shop:
        lost, under_way = shop.a_lost_one(), shop.promise()
        with Sources(shop.system.settings, shop.system.connections) as sources:
            store = sources.shard("shop")
            assert not store.void(Key("orders", under_way)), "its relay may still send it"
            assert store.void(Key("orders", lost))
        assert shop.judge(lost)[lost] == ("VOIDED", "stub_voided")
        shop.ask(lost)
        assert "rearmed" not in shop.resend()
        shop.look()
        assert shop.system.rows(
            "control", "SELECT status FROM mapped_stub WHERE message_id = %s", lost
        ) == [("voided",)]
        assert lost not in shop.relay()


CHANGES = {
    "their person sends it again": 'UPDATE cap.published SET "StatusName" = \'Scheduled\' WHERE "Id" = %(id)s',
    "any column changes": 'UPDATE cap.published SET "Retries" = "Retries" + 1 WHERE "Id" = %(id)s',
    "it is deleted": 'DELETE FROM cap.published WHERE "Id" = %(id)s',
}


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_a_row_that_its_program_changes_after_it_was_judged_is_left_alone(
    repaired: Open, change: str
) -> None:
    with repaired() as shop:
        lost = shop.a_lost_one()
        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as store:
            store.stub_table([Key("orders", lost)])
            shop.run(CHANGES[change], id=int(lost))
            written = shop.shown()
            assert store.claim([claim_of(lost, TOKEN)]) == {}
            assert shop.shown() == written, "no number, and their row as they left it"
        # Judged anew, it waits for the copy that may be under way, or is a person's to decide.
        shop.ask(lost)
        assert "rearmed" not in shop.resend()


def test_a_row_that_nobody_judged_is_left_alone(repaired: Open) -> None:
    with repaired() as shop:
        lost = shop.a_lost_one()
        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as store:
            assert store.claim([claim_of(lost, TOKEN)]) == {}


def test_a_row_in_their_own_transaction_is_left_alone(repaired: Open) -> None:
    with repaired() as shop:
        lost = shop.a_lost_one()
        with (
            open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as store,
            closing(psycopg2.connect(shop.owner)) as theirs,
            theirs.cursor() as cursor,
        ):
            store.stub_table([Key("orders", lost)])
            cursor.execute('SELECT 1 FROM cap.published WHERE "Id" = %s FOR UPDATE', (int(lost),))
            assert store.claim([claim_of(lost, TOKEN)]) == {}
            theirs.rollback()
            assert set(store.claim([claim_of(lost, TOKEN)])) == {Key("orders", lost)}


def test_two_workers_at_once_set_a_row_back_once(repaired: Open) -> None:
    with repaired() as shop:
        lost = shop.a_lost_one()
        stores = [
            open_mapped_stubs(shop.system.settings, shop.system.connections, "shop")
            for _ in range(4)
        ]
        for store in stores:
            store.stub_table([Key("orders", lost)])
        together, taken = threading.Barrier(len(stores)), []

        def work(number: int) -> None:
            together.wait()
            token = f"00000000-0000-0000-0000-00000000000{number}"
            taken.extend(stores[number].claim([claim_of(lost, token)]))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(stores))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for store in stores:
            store.close()
        assert taken == [Key("orders", lost)]
        assert shop.handed_out() == {lost: (2, True)} and shop.relay() == [lost]


def test_a_copy_that_would_reach_a_group_that_takes_none_is_a_persons_to_decide(
    repaired: Open,
) -> None:
    """Also where the broker can send to one group alone: their relay cannot."""
    changes = repair_settings("cap")
    changes["consumers"]["shipping_db"] = {"connection": "shipping_db"}
    changes["groups"]["shipping"] = {"store": "shipping_db", "progress": "acknowledged"}
    changes["topics"]["orders"]["groups"] = ["billing", "shipping"]
    with repaired(**{name: changes[name] for name in ("consumers", "groups", "topics")}) as shop:
        lost = shop.a_lost_one()
        shop.system.log(Key("orders", lost), "shipping")
        written = shop.shown()
        shop.ask(lost)
        assert "rearmed" not in shop.resend()
        assert shop.shown() == written
        assert shop.system.rows("control", "SELECT state, error FROM resend_request") == [
            ("not_needed", "no_route")
        ]


def test_a_row_that_is_gone_is_a_persons_to_decide(repaired: Open) -> None:
    with repaired() as shop:
        lost = shop.a_lost_one()
        shop.run('DELETE FROM cap.published WHERE "Id" = %(id)s', id=int(lost))
        shop.look()
        shop.a_minute_later()
        assert shop.judge(lost)[lost] == ("EXHAUSTED", "sends_used")
        with Sources(shop.system.settings, shop.system.connections) as sources:
            assert not sources.shard("shop").raise_max_sends(Key("orders", lost), 9)
        shop.ask(lost)
        assert "rearmed" not in shop.resend()


def test_a_row_that_is_deleted_while_it_waits_ends_its_number(repaired: Open) -> None:
    with repaired() as shop:
        lost = shop.a_lost_one()
        shop.ask(lost)
        shop.resend()
        shop.run('DELETE FROM cap.published WHERE "Id" = %(id)s', id=int(lost))
        shop.resend()
        assert shop.outcomes(lost) == [(1, "sent"), (2, "unknown")]
        shop.look()
        assert shop.judge(lost)[lost][0] in ("BACKLOGGED", "WAITING"), (
            "it may have been sent before"
        )


def decide(shop: Repaired, message_id: str, status: str) -> None:
    """What a run decided of a message whose newest number is 2."""
    ((as_of,),) = shop.system.rows("control", "SELECT clock_timestamp()")
    outcome = StubOutcome(Key("orders", message_id), "pending", status, 2, None)
    with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as store:
        assert store.promote([outcome], as_of) == 1


def test_what_is_confirmed_while_its_number_waits_is_closed_when_it_ends(repaired: Open) -> None:
    with repaired() as shop:
        lost = shop.a_lost_one()
        shop.ask(lost)
        shop.resend()
        shop.look()
        shop.receive(lost)  # its first copy was there after all
        assert shop.judge(lost)[lost] == ("CONFIRMED", "consumed")
        decide(shop, lost, "confirmed")
        status = "SELECT status FROM backstop_overlay.message_stub"
        shop.resend()
        assert shop.run(status) == [("pending",)], "its relay may still send it"
        assert shop.relay() == [lost]
        shop.resend()
        assert shop.run(status) == [("confirmed",)], "the purge may take it"
        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as store:
            assert store.lives(["orders"]) == {"orders": set()}


def test_what_only_the_overlay_had_confirmed_is_judged_again_after_its_log_was_restored(
    repaired: Open,
) -> None:
    """A promotion commits in the overlay first. Here its worker died before it got to what looks remember."""
    with repaired() as shop:
        lost = shop.a_copy_lost_again()
        ((as_of,),) = shop.system.rows("control", "SELECT clock_timestamp()")
        confirmed = StubOutcome(Key("orders", lost), "pending", "confirmed", 2, None)
        before = "UPDATE mapped_stub SET updated_at = updated_at - interval '1 hour'"
        status = "SELECT status FROM mapped_stub WHERE message_id = %s"
        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as store:
            assert isinstance(store, OverlaidStubs)
            assert store._overlay.stubs.promote([confirmed], as_of) == 1
            shop.system.rows("control", before)
            shop.look()
            assert shop.system.rows("control", status, lost) == [("confirmed",)]
            reopen(store, ["orders"], datetime.now(UTC) + timedelta(minutes=30))
            assert shop.system.rows("control", status, lost) == [("confirmed",)], "before that"
            reopen(store, ["orders"], datetime.now(UTC) - timedelta(minutes=30))
            store.recover(100)
        assert shop.system.rows("control", status, lost) == [("pending",)]
        assert shop.run("SELECT status FROM backstop_overlay.message_stub") == [("pending",)]


def test_a_row_that_was_given_up_and_comes_back_is_sent_again(repaired: Open) -> None:
    with repaired() as shop:
        lost = shop.a_copy_lost_again()
        where = 'FROM cap.published WHERE "Id" = %(id)s'
        shop.run(f"CREATE TABLE kept_row AS SELECT * {where}", id=int(lost))
        shop.run(f"DELETE {where}", id=int(lost))
        shop.look()
        shop.a_minute_later()
        assert shop.judge(lost)[lost] == ("EXHAUSTED", "sends_used")
        decide(shop, lost, "exhausted")
        shop.resend()
        assert shop.judge(lost)[lost] == ("EXHAUSTED", "given_up")

        shop.run("INSERT INTO cap.published SELECT * FROM kept_row")
        shop.look()
        shop.a_minute_later()
        shop.a_minute_later()
        shop.ask(lost, number=3)
        assert shop.resend()["rearmed"] == 1
        assert shop.relay() == [lost] and shop.handed_out() == {lost: (3, True)}


def test_a_store_of_another_table_beside_the_same_overlay_leaves_its_numbers_alone(
    repaired: Open,
) -> None:
    with repaired() as shop:
        lost = shop.a_lost_one()
        shop.ask(lost)
        shop.resend()
        shop.run("CREATE TABLE parcel (id text, sent_at timestamptz, created timestamptz)")
        run_as_dba(shop, f"GRANT SELECT, UPDATE ON parcel TO {shop.database}")
        parcels = StubMapping(
            tables=["parcel"],
            message_id="id",
            topics=["parcels"],
            created_at="created",
            sent_when_set="sent_at",
            rearm={"sent_at": None},
        )
        urls = shop.system.urls
        with OverlaidStubs("other", urls["shop"], urls["control"], parcels, level="rearm") as other:
            assert other.recover(100) == []
        assert shop.handed_out() == {lost: (2, True)}, "its relay has not sent it"
        assert shop.relay() == [lost]
        shop.resend()
        assert shop.outcomes(lost) == [(1, "sent"), (2, "sent")]


def test_a_trigger_that_keeps_the_row_as_it_is_costs_no_number(repaired: Open) -> None:
    with repaired() as shop:
        lost = shop.a_lost_one()
        shop.run(
            "CREATE FUNCTION stay() RETURNS trigger LANGUAGE plpgsql AS"
            ' $$ BEGIN NEW."StatusName" = OLD."StatusName"; RETURN NEW; END $$;'
            " CREATE TRIGGER stay BEFORE UPDATE ON cap.published FOR EACH ROW EXECUTE FUNCTION stay()"
        )
        shop.ask(lost)
        with pytest.raises(Exception, match="does not take `rearm`"):
            shop.resend()
        assert shop.handed_out() == {} and shop.relay() == []


def restore(shop: Repaired) -> Counts:
    """Everything is paused, the shard is restored to an hour ago, and everything goes on."""
    shop.system.rows(
        "control", "INSERT INTO pause (topic, paused_by, why) VALUES ('*', 'me', 'restored')"
    )
    shop.system.rows("control", "DELETE FROM duty_lease")
    with closing(shop.system.control()) as control:
        ((since,),) = shop.system.rows("control", "SELECT now() - interval '1 hour'")
        restored = restore_producer(
            shop.system.settings, shop.system.connections, control, "shop", since
        )
    shop.system.rows("control", "DELETE FROM pause")
    return restored


def test_an_overlay_that_was_restored_hands_no_number_out_twice(repaired: Open) -> None:
    with repaired() as shop:
        lost = shop.a_copy_lost_again()
        # A dump of the overlay from before, beside their table as it is.
        shop.run("DELETE FROM backstop_overlay.message_stub")
        shop.look()
        shop.a_minute_later()
        written = shop.theirs()
        for number in (2, 3):
            shop.ask(lost, number=number)
            assert "rearmed" not in shop.resend()
        assert shop.theirs() == written and shop.relay() == []
        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as store:
            (bad,) = [one for one in store.check() if not one.good]
            assert bad.subject == "shard shop: overlay numbers"
            assert "1 numbers" in bad.says and "backstop restore producer shop" in bad.do

        shop.system.rows(
            "control",
            "UPDATE resend_request SET claim_deadline = now() - interval '1 s' WHERE state = 'claimed'",
        )
        restored = restore(shop)
        assert restored["raised"] == 1
        assert shop.handed_out() == {lost: (2, False)}
        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as store:
            assert all(one.good for one in store.check())


def test_an_overlay_that_was_restored_sends_nothing_that_was_withdrawn(repaired: Open) -> None:
    with repaired() as shop:
        lost = shop.a_copy_lost_again()
        shop.run(
            "CREATE TABLE kept_stub AS SELECT * FROM backstop_overlay.message_stub;"
            " CREATE TABLE kept_attempt AS SELECT * FROM backstop_overlay.send_attempt"
        )
        with Sources(shop.system.settings, shop.system.connections) as sources:
            assert sources.shard("shop").void(Key("orders", lost))
        shop.look()
        shop.run(
            "DELETE FROM backstop_overlay.message_stub;"
            " INSERT INTO backstop_overlay.message_stub SELECT * FROM kept_stub;"
            " INSERT INTO backstop_overlay.send_attempt SELECT * FROM kept_attempt"
        )
        for _ in range(2):
            assert shop.judge(lost)[lost] == ("VOIDED", "stub_voided")
            shop.look()
            shop.a_minute_later()
        shop.ask(lost, number=3)
        assert "rearmed" not in shop.resend()
        assert shop.relay() == []
        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as store:
            (bad,) = [one for one in store.check() if not one.good]
            assert "1 withdrawals" in bad.says and "backstop restore producer shop" in bad.do

        shop.system.rows(
            "control",
            """
            WITH decided AS (
                INSERT INTO case_file (kind, topic, summary) VALUES ('exhausted', 'orders', 'given up') RETURNING case_id)
            INSERT INTO withdrawal (shard, topic, message_id, case_id, decided_by, why, applied_at)
            SELECT 'shop', 'orders', %s, case_id, 'olga', 'not wanted', now() FROM decided
            """,
            lost,
        )
        assert restore(shop)["voided"] == 1
        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as store:
            assert all(one.good for one in store.check())


def test_a_number_that_waits_for_its_relay_delays_no_restore(repaired: Open) -> None:
    waits = {
        "backoff_cap": "1h",
        "replay_horizon": "12h",
        "person_time": "10m",
        "log_retention": "30d",
        "stub_retention": "30d",
    }
    with repaired(policy=waits) as shop:
        lost = shop.a_lost_one()
        shop.ask(lost)
        shop.resend()
        shop.system.rows(
            "control",
            "UPDATE resend_request SET claim_deadline = now() - interval '1 s', updated_at = now() - interval '1 minute'",
        )
        shop.resend()  # its relay is down: it is looked at again in an hour
        until = "SELECT state, claim_deadline > now() + interval '50 minutes' FROM resend_request"
        assert shop.system.rows("control", until) == [("claimed", True)]
        restore(shop)
        assert shop.handed_out() == {lost: (2, True)}
        assert shop.relay() == [lost]
        shop.resend()
        assert (lost, 2, "sent") in shop.requests()
        assert shop.system.rows("control", "SELECT error FROM resend_request") == [(None,)]


def test_the_login_may_do_what_its_level_needs_and_nothing_else(repaired: Open) -> None:
    with repaired() as shop:
        assert shop.can_write('UPDATE cap.published SET "Retries" = 0')
        assert not shop.can_write('UPDATE cap.published SET "Content" = NULL')
        assert not shop.can_write("DELETE FROM cap.published")
        assert not shop.can_write("UPDATE cap.received SET \"StatusName\" = 'Succeeded'")
        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as store:
            assert [one for one in store.check() if not one.good] == []
        lost = shop.a_lost_one()
        shop.run(
            f'REVOKE UPDATE ("Retries", "ExpiresAt") ON cap.published FROM {shop.database};'
            f" REVOKE INSERT ON backstop_overlay.send_attempt FROM {shop.database}"
        )
        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as store:
            (bad,) = [one for one in store.check() if not one.good]
        for missing in ("send_attempt", "cap.published.Retries", "cap.published.ExpiresAt"):
            assert missing in bad.says, "every reason is named"
        shop.ask(lost)
        with pytest.raises(Exception, match="denied"):
            shop.resend()
        assert shop.handed_out() == {} and shop.relay() == []


PREPARED = {
    "backstop_overlay": ("backstop_producer_version", "version_num varchar(32) PRIMARY KEY"),
    "backstop_capture": (
        "captured_row",
        "source text, topic text, message_id text, captured_at timestamptz",
    ),
}


@pytest.mark.parametrize("schema", sorted(PREPARED))
def test_a_dba_runs_nothing_that_the_application_prepared(postgres: Postgres, schema: str) -> None:
    name, app = f"of_{schema}", f"app_{schema}"
    postgres.create_database(name)
    table, fields = PREPARED[schema]
    trap = f"""
        SET ROLE {app}; CREATE SCHEMA {schema}; CREATE TABLE {schema}.{table} ({fields});
        CREATE FUNCTION {schema}.up() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN ALTER ROLE {app} SUPERUSER; RETURN NEW; END $$;
        CREATE TRIGGER up BEFORE INSERT ON {schema}.{table} FOR EACH ROW EXECUTE FUNCTION {schema}.up(); RESET ROLE"""
    mapped = {
        "backstop_overlay": overlay_sql(
            StubMapping(preset="cap", topics=["orders"], time_zone="UTC"), "rearm", app
        ),
        "backstop_capture": capture_sql(StubMapping.model_validate(DEBEZIUM.producer), app),
    }[schema]
    with closing(psycopg2.connect(postgres.admin_dsn(name))) as dba, dba.cursor() as cursor:
        dba.autocommit = True
        cursor.execute(
            f"CREATE ROLE {app} LOGIN; GRANT ALL ON DATABASE {name} TO {app}; "
            " CREATE TABLE outboxevent (id uuid, aggregatetype text);"
            ' CREATE SCHEMA cap; CREATE TABLE cap.published ("StatusName" text, "Retries" int, "ExpiresAt" timestamp)'
        )
        for prepared, says in (
            (trap, f"the schema belongs to {app}"),
            (
                f"{trap}; ALTER SCHEMA {schema} OWNER TO current_user",
                f"table {schema}.{table} belongs to {app}",
            ),
            (
                f"CREATE SCHEMA {schema}; GRANT CREATE ON SCHEMA {schema} TO {app}",
                f"{app} may create in it",
            ),
        ):
            cursor.execute(prepared)
            with pytest.raises(psycopg2.Error, match=says):
                cursor.execute(mapped)
            dba.rollback()
            cursor.execute(f"ROLLBACK; DROP SCHEMA {schema} CASCADE")
        for _ in range(2):
            cursor.execute(mapped)
        cursor.execute("SELECT rolsuper FROM pg_roles WHERE rolname = %s", (app,))
        assert cursor.fetchall() == [(False,)]


def test_a_copy_by_backstop_has_their_content_and_their_header(repaired: Open) -> None:
    with repaired(level="publish") as shop:
        content = '{"Headers": {"cap-msg-id": "?", "cap-msg-name": "orders", "n": 1}, "Value": {"b": 1.50,  "a": "\u00fc"}}'
        lost = shop.a_lost_one()
        assert not shop.can_write('UPDATE cap.published SET "Retries" = 0'), "it only reads there"
        shop.run(
            'UPDATE cap.published SET "Content" = %(content)s WHERE "Id" = %(id)s',
            content=content,
            id=int(lost),
        )
        shop.look()
        shop.a_minute_later()
        written = shop.theirs()
        shop.ask(lost)
        assert shop.resend()["published"] == 1
        assert shop.theirs() == written
        (copy,) = shop.system.consume("billing")
        assert copy.key == Key("orders", lost)
        assert copy.content.decode() == '{"b": 1.50,  "a": "\u00fc"}', "as it is written there"
        assert (copy.headers["cap-msg-id"], copy.headers["n"]) == (lost, "1")
        assert shop.outcomes(lost) == [(1, "sent"), (2, "sent")]
        shop.look()
        shop.a_minute_later()
        assert shop.judge(lost)[lost] == ("LOST", "passed_over")

        # Sent again by a person on the library's own page: that copy is under way, and no number is spent.
        shop.run(CHANGES["their person sends it again"], id=int(lost))
        assert shop.judge(lost)[lost] == ("BACKLOGGED", "ahead_of_group")
        shop.look()
        assert shop.judge(lost)[lost] == ("BACKLOGGED", "ahead_of_group")
        shop.ask(lost, number=3)
        assert "published" not in shop.resend()


def test_at_level_overlay_nothing_is_sent(repaired: Open) -> None:
    observe = {"orders": {"broker": "embedded", "groups": ["billing"], "mode": "observe"}}
    with repaired(level="overlay", topics=observe) as shop:
        lost = shop.a_lost_one()
        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as store:
            store.stub_table([Key("orders", lost)])
            assert store.claim([claim_of(lost, TOKEN)]) == {}
            assert store.void(Key("orders", lost))
        assert shop.judge(lost)[lost] == ("VOIDED", "stub_voided")


def test_a_mass_loss_of_one_group_is_not_sent_to_it_by_a_request_for_another(
    repaired: Open,
) -> None:
    """A relay of their own sends to every group, and a guard whose log is lost does the work again."""
    changes = repair_settings("cap")
    changes["consumers"]["shipping_db"] = {"connection": "shipping_db"}
    changes["groups"]["shipping"] = {
        "store": "shipping_db",
        "progress": "acknowledged",
        "duplicates": "guard",
    }
    changes["topics"]["orders"]["groups"] = ["billing", "shipping"]
    with repaired(**{name: changes[name] for name in ("consumers", "groups", "topics")}) as shop:
        lost = shop.a_lost_one()
        shop.system.rows(
            "control",
            "WITH c AS (INSERT INTO case_file (kind, topic, consumer_group, summary) VALUES ('mass_loss', 'orders', 'shipping', 's')"
            " RETURNING case_id) INSERT INTO case_member (case_id, shard, topic, message_id, consumer_group)"
            " SELECT case_id, 'shop', 'orders', %s, 'shipping' FROM c",
            lost,
        )
        shop.ask(lost)
        shop.system.rows("control", "UPDATE resend_request SET groups = '{billing}'")
        assert "rearmed" not in shop.resend()
        assert shop.requests() == [(lost, 2, "not_needed")]
