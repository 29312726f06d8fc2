"""A mapped table whose topic moves to another broker: its rows do not say where their relay sent them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import redis

from backstop.brokers.open import open_broker
from backstop.brokers.redis_streams import Keys
from backstop.config.settings import Settings
from backstop.model.records import Key
from backstop.reconcile.run_once import run_once
from backstop.requests.ask import Ask, ask
from backstop.stores.open import open_mapped_stubs
from backstop.stores.protocol import Life, Scope
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from mapped_world import LIBRARIES, Mapped, make_mapped, settings_of
from rearm_world import make_repaired, repair_settings
from system import System, settings_dict, system

AHEAD, LOST, ASKED = (
    ("BACKLOGGED", "ahead_of_group"),
    ("LOST", "passed_over"),
    ("UNKNOWN", "new_epoch"),
)


@contextmanager
def mapped(postgres: Postgres, valkey: Valkey) -> Iterator[Mapped]:
    """A table of which a row was found done, so that absence counts."""
    library = LIBRARIES["cap"]
    with system(postgres, valkey, **settings_of(library, consumer={"kept": None})) as running:
        shop = make_mapped(postgres, running, library)
        done = shop.receive(shop.send(shop.promise()))
        shop.look()
        shop.prove(done)
        yield shop


def lag(running: System) -> None:
    """What the group has not taken from the topic's first broker is older than every row."""
    with redis.Redis.from_url(running.urls["broker"]) as server:
        at = datetime.now(UTC) - timedelta(minutes=30)
        server.xadd(
            Keys().stream("orders", 0),
            {"backstop-message-id": "waits"},
            id=f"{int(at.timestamp() * 1000)}-1",
        )


def move(shop: Mapped, *, removed: bool = False) -> None:
    """The topic is at another broker now, which is empty."""
    content = shop.system.settings.model_dump(mode="json", exclude_unset=True)
    embedded = settings_dict()["brokers"]["embedded"]
    second = {**embedded, "options": {**embedded["options"], "prefix": "second"}}
    content["brokers"] = {"second": second} if removed else {"embedded": embedded, "second": second}
    content["topics"]["orders"]["broker"] = "second"
    shop.system.settings = Settings.model_validate(content)
    with open_broker(shop.system.settings, shop.system.connections, "second") as broker:
        broker.create_topic("orders", 2)
        broker.create_group("billing", "orders", "start")


def two_days_later(shop: Mapped) -> None:
    """As if all that looks have met so far had been two days earlier."""
    for table, columns in (
        ("topic_broker", ("seen_from", "seen_until")),
        ("mapped_stub", ("committed_after", "first_seen_at", "state_seen_at", "last_seen_at")),
        ("mapped_look", ("mapped_at",)),
    ):
        earlier = ", ".join(f"{column} = {column} - interval '2 days'" for column in columns)
        shop.system.rows("control", f"UPDATE {table} SET {earlier}")


def state_drained(shop: Mapped) -> None:
    shop.system.rows(
        "control", "INSERT INTO drained_broker VALUES ('orders', 'embedded', 1, 'ann', 'w')"
    )


def judged_by_a_run(shop: Mapped, spark: Any) -> tuple[Any, dict[str, tuple[str, str]]]:
    """Its counts, and the verdict of each message that is not done; all of them are due again."""
    counts = run_once(shop.system.settings, shop.system.connections, lambda: spark, lambda *_: None)
    shop.system.rows(
        "control", "UPDATE mapped_stub SET next_check_at = now() - interval '1 minute'"
    )
    rows = shop.system.rows("control", "SELECT message_id, verdict, reason FROM open_delivery")
    return counts, {message_id: (verdict, reason) for message_id, verdict, reason in rows}


def test_a_row_that_was_sent_before_its_topic_moved_is_judged_where_it_went(
    postgres: Postgres, valkey: Valkey, spark: Any
) -> None:
    with mapped(postgres, valkey) as shop:
        lag(shop.system)
        lost = shop.send(shop.promise())
        shop.look()
        shop.a_minute_later()
        assert shop.judge(lost) == {lost: AHEAD}
        move(shop)
        assert shop.judge(lost) == {lost: AHEAD}, "before any run has seen the move"
        counts, found = judged_by_a_run(shop, spark)
        assert found == {lost: AHEAD} and "requests" not in counts
        assert shop.judge(lost) == {lost: AHEAD}
        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as stubs:
            assert stubs.lives(["orders", "other"]) == {
                "orders": {Life("embedded", None, None), Life("second", None, None)},
                "other": set(),
            }, "no queue of the new broker is taken for a first life meanwhile"

        move(shop, removed=True)
        assert shop.judge(lost) == {lost: ASKED}
        assert judged_by_a_run(shop, spark)[1] == {lost: ASKED}
        state_drained(shop)
        assert shop.judge(lost) == {lost: LOST}
        shop.system.rows("control", "DELETE FROM drained_broker")
        move(shop)
        shop.system.pass_over("billing")
        assert shop.judge(lost) == {lost: LOST}


def test_a_row_that_was_met_long_before_a_move_went_to_the_first_broker(
    postgres: Postgres, valkey: Valkey
) -> None:
    with mapped(postgres, valkey) as shop:
        old = shop.send(shop.promise())
        shop.look()
        two_days_later(shop)
        shop.look()
        move(shop)
        shop.look()
        around = shop.send(shop.promise())
        shop.look()
        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as stubs:
            rows = stubs.stub_table([Key("orders", one) for one in (old, around)]).to_pylist()
        found = {row["message_id"]: (row["broker"], row["first_to_all"]) for row in rows}
        assert found == {old: ("embedded", True), around: ("second", False)}


def test_a_row_that_is_met_around_a_move_may_have_gone_to_either_broker(
    postgres: Postgres, valkey: Valkey, spark: Any
) -> None:
    with mapped(postgres, valkey) as shop:
        lag(shop.system)
        unsent = shop.promise()
        shop.look()
        move(shop)
        # The one was met before and sent by whichever relay; the other was inserted since the last look.
        met, new = shop.send(unsent), shop.send(shop.promise())
        shop.look()
        later = shop.send(shop.promise())
        shop.look()
        shop.a_minute_later()
        found = dict.fromkeys((met, new, later), AHEAD)
        assert shop.judge(met, new, later) == found
        assert judged_by_a_run(shop, spark)[1] == found
        move(shop, removed=True)
        found = dict.fromkeys((met, new, later), ASKED)
        assert shop.judge(met, new, later) == found
        assert judged_by_a_run(shop, spark)[1] == found
        state_drained(shop)
        found = dict.fromkeys((met, new, later), LOST)
        assert shop.judge(met, new, later) == found

        # A day after the move each relay has found the new broker.
        shop.system.rows("control", "DELETE FROM drained_broker")
        two_days_later(shop)
        shop.look()
        last = shop.send(shop.promise())
        shop.look()
        shop.a_minute_later()
        assert shop.judge(last) == {last: LOST}
        assert judged_by_a_run(shop, spark)[1][last] == LOST


def test_a_move_is_known_although_nothing_was_open_then(
    postgres: Postgres, valkey: Valkey, spark: Any
) -> None:
    with mapped(postgres, valkey) as shop:
        move(shop, removed=True)
        assert judged_by_a_run(shop, spark)[1] == {}
        late = shop.send(shop.promise())
        shop.look()
        shop.a_minute_later()
        assert shop.judge(late) == {late: ASKED}, "an old instance of its relay may have sent it"


def test_no_number_is_handed_out_while_the_first_broker_may_deliver_the_row(
    postgres: Postgres, valkey: Valkey
) -> None:
    with system(postgres, valkey, **repair_settings("practice", "publish")) as running:
        shop = make_repaired(postgres, running, "practice", "publish")
        lost = shop.a_lost_one()
        lag(running)
        move(shop)
        with closing(running.control()) as control, control, control.cursor() as cursor:
            ask(cursor, [Ask("shop", "orders", lost, 2, None, "passed_over", "reconcile")], None)
        shop.resend()
        assert shop.handed_out() == {}, "it is judged again, by the first broker"
        assert shop.judge(lost) == {lost: AHEAD}


def test_number_one_is_where_the_topic_was_whatever_was_sent_later(
    postgres: Postgres, valkey: Valkey
) -> None:
    with system(postgres, valkey, **repair_settings("practice", "publish")) as running:
        shop = make_repaired(postgres, running, "practice", "publish")
        lost = shop.a_lost_one()
        shop.ask(lost)
        assert shop.resend()["published"] == 1
        move(shop)
        shop.look()
        with open_mapped_stubs(shop.system.settings, shop.system.connections, "shop") as stubs:
            assert stubs.stub_table([Key("orders", lost)]).num_rows == 1
            by_key = stubs.attempt_table([Key("orders", lost)]).to_pylist()
            shop.system.rows(
                "control", "UPDATE mapped_stub SET next_check_at = now() - interval '1 day'"
            )
            as_of = datetime.now(UTC) - timedelta(hours=1)
            with stubs.scan_due(as_of, Scope(), 1) as scan:
                by_scan = [
                    row
                    for part in scan.parts
                    for name, table in stubs.read_part(part, lambda name, table: (name, table))
                    if name == "attempts"
                    for row in table.to_pylist()
                ]
        for found in (by_key, by_scan):
            went_to = {(one["send_number"], one["broker"]) for one in found}
            assert went_to == {(1, "embedded"), (1, "second"), (2, "embedded")}
