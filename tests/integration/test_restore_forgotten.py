"""What a restored database has forgotten and the others know: numbers under a send, reopened requests, edits, drained dead letters.

A database "goes back" by giving its rows what they had. Published copies are counted at the broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from backstop.cli.app import run_app
from backstop.config.load import from_mapping
from backstop.decisions.decide import decide
from backstop.model.errors import (
    ConfigurationError,
    DecisionRefused,
    StoreFailed,
    StoreUnavailable,
    Unavailable,
)
from backstop.model.records import Counts
from backstop.requests.ask import Ask
from backstop.requests.ask import ask as ask_for_sends
from backstop.restore.consumer import restore_consumer
from backstop.restore.control import restore_control
from backstop.restore.pause import resume
from backstop.restore.producer import restore_producer
from backstop.schema.migrate import grant
from backstop.stores.postgresql.stubs import PostgresStubs
from control_world import GROUPS, SHARDS, World, servers, world, written_settings  # noqa: F401
from triage_world import dead, look_now, requests, resend, triage

HOUR = timedelta(hours=1)
FORGET_SENDS = """
    DELETE FROM send_attempt WHERE send_number > 1;
    UPDATE message_stub SET send_count = 1, attempt_token = NULL, attempt_groups = NULL, attempt_requested_by = NULL,
        attempted_at = now() - interval '1 minute', next_check_at = now() - interval '1 minute'
"""


def pause(world: World) -> None:
    world.control(
        "INSERT INTO pause (topic, paused_by, why) VALUES ('*', 'ann', 'restored') ON CONFLICT DO NOTHING"
    )


def restored(world: World, since: datetime | None = None) -> Counts:
    pause(world)
    since = since or datetime.now(UTC) - HOUR
    return restore_producer(world.settings, world.connections, world.conn, "shop_a", since)


def ask(world: World, message_id: str, state: str = "open") -> None:
    world.control(
        "INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by, state)"
        " VALUES ('shop_a', 'orders', %s, 2, 'lost', 'case 1', %s)",
        (message_id, state),
    )


def copies(world: World, message_id: str) -> int:
    """How often the broker has it."""
    server = redis.Redis.from_url(
        world.connections.url(world.settings.brokers["embedded"].connection)
    )
    return sum(
        message_id in str(fields)
        for name in server.scan_iter("backstop:*:queue:*")
        if server.type(name) == b"stream"
        for _, fields in server.xrange(name)
    )


def sends(world: World, message_id: str) -> int:
    return int(world.stub_now(message_id)["send_count"])


def unfinished(world: World) -> int:
    ((number,),) = world.control(
        "SELECT count(*) FROM watermark WHERE starts_with(subject, 'restore ')"
    )
    return int(number)


def test_a_number_that_a_send_under_way_hides_is_raised_before_the_restore_is_done(
    world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    world.stub("m", sends=1, under_way=True)
    ask(world, "m", "sent")
    pause(world)
    since = (datetime.now(UTC) - HOUR).isoformat()
    assert run_app(["restore", "producer", "shop_a", "--since", since]) == 0
    assert "not_raised" in (said := capfd.readouterr().out) and "Not finished" in said
    assert (sends(world, "m"), unfinished(world)) == (1, 1)
    with pytest.raises(DecisionRefused, match="not all of what others know"):
        resume(world.conn, world.settings, "*", "ann")
    world.run(SHARDS["shop_a"], "UPDATE message_stub SET attempt_deadline = now()")
    counts = restored(world)
    assert (counts["recovered"], counts["raised"], counts.get("not_raised")) == (1, 1, None)
    assert (sends(world, "m"), unfinished(world)) == (2, 0)


def test_a_number_below_a_send_that_ends_during_the_restore_is_raised_before_it_is_done(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stub("m", sends=1, under_way=True)
    ask(world, "m", "sent")
    raise_numbers = PostgresStubs.raise_numbers

    def settled_just_after(store: PostgresStubs, handed: Any) -> Any:
        raised = raise_numbers(store, handed)
        world.run(SHARDS["shop_a"], "UPDATE message_stub SET attempt_token = NULL")
        return raised

    with monkeypatch.context() as patch:
        patch.setattr(PostgresStubs, "raise_numbers", settled_just_after)
        assert restored(world)["not_raised"] == 1
    assert (sends(world, "m"), unfinished(world)) == (1, 1)
    assert restored(world)["raised"] == 1
    assert (sends(world, "m"), unfinished(world)) == (2, 0)


def test_nothing_is_sent_when_a_pause_is_lifted_by_sql_while_a_restore_is_unfinished(
    world: World,
) -> None:
    world.stub("other", sends=1)
    ask(world, "other")
    world.stub("m", sends=1, under_way=True)
    ask(world, "m", "sent")
    assert restored(world)["not_raised"] == 1
    grant(world.postgres.admin_dsn("control"), "control")
    world.control("SET ROLE backstop_person; DELETE FROM pause; RESET ROLE")
    assert world.control("SELECT * FROM pause") == []
    assert "published" not in resend(world) and copies(world, "other") == 0
    assert requests(world)[-1][-1] == "open", "it waits"
    world.run(SHARDS["shop_a"], "UPDATE message_stub SET attempt_deadline = now()")
    restored(world)
    world.control("DELETE FROM pause")
    assert resend(world)["published"] == 1 and copies(world, "other") == 1


def test_a_number_that_a_failover_lost_and_a_recovery_opened_again_is_published_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stub("m", sends=1)
    ask(world, "m")
    since = datetime.now(UTC)

    def dies(*_: Any) -> Any:
        raise StoreUnavailable("It went away.", unaffected="-", next_step="-")

    with monkeypatch.context() as patch, pytest.raises(Unavailable):
        patch.setattr(PostgresStubs, "settle", dies)
        resend(world)
    assert copies(world, "m") == 1 and requests(world)[0][-1] == "claimed"
    # The standby that takes over has never heard of number 2. A run that nobody stopped recovers before anybody pauses.
    world.run(SHARDS["shop_a"], FORGET_SENDS)
    world.control(
        "UPDATE resend_request SET claim_deadline = now(), not_before = now() + interval '1 hour'"
    )
    world.control("UPDATE duty_lease SET heartbeat_at = now() - interval '1 hour'")
    world.control("INSERT INTO pause (topic, paused_by, why) VALUES ('payments', 'ann', 'w')")
    resend(world)
    assert requests(world)[0][-1] == "open"
    counts = restored(world, since)
    assert (counts["numbers"], counts["raised"]) == (1, 1)
    assert requests(world)[0][-1] == "unknown" and sends(world, "m") == 2
    resume(world.conn, world.settings, "*", "ann")
    look_now(world)
    resend(world)
    assert copies(world, "m") == 1


def test_a_request_that_was_opened_again_before_the_backup_keeps_its_number(world: World) -> None:
    world.stub("m", sends=1)
    ask(world, "m")
    world.control("UPDATE resend_request SET reopened_at = now() - interval '2 hours'")
    assert "numbers" not in restored(world)
    assert requests(world)[0][-1] == "open" and sends(world, "m") == 1


@pytest.fixture
def odd(world: World) -> Iterator[None]:
    """Another program's trigger: the shard answers, and refuses every change of the row `odd`."""
    world.run(
        SHARDS["shop_a"],
        """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON message_stub FOR EACH ROW WHEN (NEW.message_id = 'odd')
            EXECUTE FUNCTION refuse()
        """,
    )
    yield
    world.run(SHARDS["shop_a"], "DROP FUNCTION IF EXISTS refuse CASCADE")


def test_a_row_that_its_database_refuses_to_change_keeps_no_other_from_being_restored(
    world: World, odd: None
) -> None:
    for name in ("a", "odd", "withdrawn", "z"):
        world.stub(name, sends=1)
        ask(world, name, "sent")
    world.control(
        """
        INSERT INTO message_version (shard, topic, message_id, content_version, content, written_by, why)
        SELECT 'shop_a', 'orders', m, 2, 'better'::bytea, 'ann', 'w' FROM unnest(ARRAY['odd', 'z']) m;
        INSERT INTO case_file (kind, topic, summary, state, closed_at) VALUES ('exhausted', 'orders', '', 'closed', now());
        INSERT INTO withdrawal (shard, topic, message_id, case_id, decided_by, why, applied_at)
        SELECT 'shop_a', 'orders', m, case_id, 'ann', 'w', now() FROM case_file, unnest(ARRAY['odd', 'withdrawn']) m
        """
    )
    found = "SELECT message_id, send_count, content_version, status FROM message_stub ORDER BY 1"
    with pytest.raises(StoreFailed, match=r"1 row, such as odd of orders: .*not this one"):
        restored(world)
    others = [("a", 2, 1, "pending"), ("withdrawn", 2, 1, "voided"), ("z", 2, 2, "pending")]
    assert world.run(SHARDS["shop_a"], found) == [
        others[0],
        ("odd", 1, 1, "pending"),
        *others[1:],
    ]
    assert unfinished(world) == 1
    world.run(SHARDS["shop_a"], "DROP TRIGGER refuse ON message_stub")
    counts = restored(world)
    assert (counts["raised"], counts["edited"], counts["voided"]) == (1, 1, 1)
    assert world.run(SHARDS["shop_a"], found)[1] == ("odd", 2, 2, "voided")
    assert unfinished(world) == 0


def status_of_each(world: World) -> dict[str, str]:
    return dict(world.run(SHARDS["shop_a"], "SELECT message_id, status FROM message_stub"))


def test_a_row_that_its_database_refuses_to_reopen_keeps_no_other_from_it(
    world: World, odd: None, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "odd", "z"):
        world.stub(name, sends=1, status="confirmed")
    pause(world)
    since = (datetime.now(UTC) - HOUR).isoformat()
    assert run_app(["restore", "consumer", "billing_db", "--since", since]) == 3
    said = capfd.readouterr().err
    assert "shard shop_a refuses to change 1 row, such as odd of orders: " in said
    assert "not this one" in said and "2 stubs are due again" in said
    assert status_of_each(world) == {"a": "pending", "odd": "confirmed", "z": "pending"}
    assert unfinished(world) == 1
    world.run(SHARDS["shop_a"], "DROP TRIGGER refuse ON message_stub")
    assert run_app(["restore", "consumer", "billing_db", "--since", since]) == 0
    assert "reopened 1" in capfd.readouterr().out
    assert (status_of_each(world)["odd"], unfinished(world)) == ("pending", 0)


@pytest.mark.parametrize("does", ["RETURN NULL", "NEW.status := OLD.status; RETURN NEW"])
def test_a_row_that_a_trigger_keeps_closed_without_an_error_leaves_the_restore_unfinished(
    world: World, odd: None, capfd: pytest.CaptureFixture[str], does: str
) -> None:
    world.run(
        SHARDS["shop_a"],
        "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN {does}; END $$",
    )
    for name in ("a", "b", "odd", "z"):
        world.stub(name, sends=1, status="confirmed")
    pause(world)
    since = (datetime.now(UTC) - HOUR).isoformat()
    restore = ["restore", "consumer", "billing_db", "--since", since]
    assert run_app(restore) == 3
    said = capfd.readouterr().err
    assert "1 row, such as odd of orders: " in said and "without an error" in said
    assert "3 stubs are due again" in said
    assert status_of_each(world) == {
        "a": "pending",
        "b": "pending",
        "odd": "confirmed",
        "z": "pending",
    }
    assert unfinished(world) == 1
    world.run(SHARDS["shop_a"], "DROP TRIGGER refuse ON message_stub")
    assert run_app(restore) == 0
    assert "reopened 1" in capfd.readouterr().out
    assert (status_of_each(world)["odd"], unfinished(world)) == ("pending", 0)


def test_a_message_that_its_database_refuses_to_hold_keeps_no_other_from_being_held(
    world: World, odd: None
) -> None:
    for name in ("odd", "z"):
        world.stub(name, sends=1)
    world.control(
        """
        WITH c AS (
            INSERT INTO case_file (kind, topic, subject, summary)
            VALUES ('exhausted', 'orders', 'restored content', '') RETURNING case_id)
        INSERT INTO case_member (case_id, shard, topic, message_id, consumer_group)
        SELECT case_id, 'shop_a', 'orders', m, '*' FROM c, unnest(ARRAY['odd', 'z']) m"""
    )
    pause(world)
    since = datetime.now(UTC) - HOUR
    with pytest.raises(Unavailable, match=r"1 row, such as odd of orders: .*not this one"):
        restore_consumer(world.settings, world.connections, world.conn, "billing_db", since)
    assert status_of_each(world) == {"odd": "pending", "z": "exhausted"}
    assert unfinished(world) == 1


@pytest.mark.parametrize("state", ["sent", "refused", "unknown"])
def test_a_message_that_is_recorded_again_after_a_restore_gets_the_numbers_of_its_lost_life(
    world: World, state: str
) -> None:
    """Its stub was recorded after the backup: nothing is left whose number could be raised."""
    ask(world, "m", state)
    world.stub("kept", sends=1)
    ask(world, "kept", state)
    restored(world)
    assert [row[-1] for row in requests(world)] == [state, "not_needed"]
    assert sends(world, "kept") == 2
    world.stub("m", sends=1)
    again = Ask("shop_a", "orders", "m", 2, None, "lost", "reconcile")
    with world.conn, world.conn.cursor() as cursor:
        assert ask_for_sends(cursor, [again], None) == {"reopened": 1}


def control_restored(world: World) -> None:
    pause(world)
    restore_control(world.settings, world.conn)
    world.control("DELETE FROM pause")


def ask_for(world: World, message_id: str, groups: list[str] | None, requested_by: str) -> None:
    ask(world, message_id)
    world.control(
        "UPDATE resend_request SET groups = %s, requested_by = %s WHERE message_id = %s",
        (groups, requested_by, message_id),
    )


@pytest.mark.parametrize("requested_by", ["reconcile", "triage", "person ann (incident 7)"])
def test_a_request_of_a_restored_control_database_does_not_send_what_died_since(
    world: World, requested_by: str
) -> None:
    world.stub("m", sends=1)
    world.log("m", "billing", state="FAILED", moved="2 minutes")
    world.log("m", "shipping")
    ask_for(world, "m", ["billing"], requested_by)
    control_restored(world)
    assert "published" not in resend(world) and copies(world, "m") == 0
    ((state, error),) = world.control("SELECT state, error FROM resend_request")
    assert state == "not_needed" and "billing DEAD_LETTERED (forgotten)" in error
    # A person looked at it, or its group has tried it since.
    world.control("UPDATE resend_request SET state = 'open', requested_by = 'case 1'")
    assert resend(world)["published"] == 1 and copies(world, "m") == 1


def test_a_request_for_another_group_is_kept_from_one_whose_dead_letter_is_forgotten(
    world: World,
) -> None:
    written = written_settings()
    written["groups"]["billing"]["duplicates"] = "declared_safe"
    world.settings = from_mapping(written)
    world.stub("m", sends=1)
    world.log("m", "billing", state="FAILED", moved="2 minutes")
    ask_for(world, "m", ["shipping"], "reconcile")
    control_restored(world)
    assert "published" not in resend(world) and copies(world, "m") == 0
    assert world.control("SELECT state, error FROM resend_request") == [("not_needed", "no_route")]
    world.control("DELETE FROM watermark; UPDATE resend_request SET state = 'open', error = NULL")
    assert resend(world)["published"] == 1


def test_a_dead_letter_of_a_restored_control_database_is_replayed_by_a_person_only(
    world: World,
) -> None:
    """A newer one of its delivery was perhaps left to a person."""
    dead(world, "m", "transient")
    dead(world, "tried since", "transient")
    control_restored(world)
    # Restored half a minute ago: one log was touched before that, the other since.
    world.control("UPDATE watermark SET reached = now() - interval '30 seconds'")
    world.run(
        GROUPS["billing"],
        "UPDATE consumer_log SET updated_at = now() - interval '10 seconds' WHERE message_id = 'tried since'",
    )
    counts = triage(world)
    assert (counts["escalated"], counts["replaying"]) == (1, 1)
    found = "SELECT message_id, state, reason FROM dead_letter WHERE reason = 'forgotten'"
    assert world.control(found) == [("m", "open", "forgotten")]
    assert "m" not in {message_id for message_id, *_ in requests(world)}
    ((case_id,),) = world.control("SELECT case_id FROM case_file")
    options = {"message_ids": ["m"]}
    decide(
        world.conn,
        world.settings,
        world.connections,
        case_id,
        "replay",
        "ann",
        "compared",
        options,
    )
    assert ("m", 2, ["billing"], f"case {case_id}", "open") in requests(world)


def edited(world: World, content: bytes = b"better") -> None:
    triage(world)
    ((case_id,),) = world.control("SELECT max(case_id) FROM case_file WHERE kind = 'dead_letters'")
    options = {"message_ids": ["m"], "content": content}
    decide(
        world.conn,
        world.settings,
        world.connections,
        case_id,
        "edit",
        "ann",
        "corrected",
        options,
    )


def content_now(world: World) -> tuple[bytes, int, str]:
    ((content, version, status),) = world.run(
        SHARDS["shop_a"],
        "SELECT content, content_version, status FROM message_stub WHERE message_id = 'm'",
    )
    return bytes(content), version, status


def forget_edit(world: World) -> None:
    world.run(SHARDS["shop_a"], "UPDATE message_stub SET content = 'content', content_version = 1")
    world.run(SHARDS["shop_a"], FORGET_SENDS)


def test_a_content_that_a_person_replaced_is_the_messages_again_after_a_restore(
    world: World,
) -> None:
    dead(world, "m", "poison")
    edited(world)
    assert resend(world)["published"] == 1
    forget_edit(world)
    counts = restored(world)
    assert (counts["raised"], counts["edited"], unfinished(world)) == (1, 1, 0)
    assert content_now(world) == (b"better", 2, "pending")
    assert "edited" not in restored(world), "safe to run twice"


def test_an_edit_waits_for_the_send_that_is_under_way_in_the_restored_database(
    world: World,
) -> None:
    dead(world, "m", "poison")
    edited(world)
    forget_edit(world)
    world.run(
        SHARDS["shop_a"],
        "UPDATE message_stub SET attempt_token = gen_random_uuid(), attempt_deadline = now() + interval '1 hour'",
    )
    assert restored(world)["not_edited"] == 1
    assert (content_now(world)[:2], unfinished(world)) == ((b"content", 1), 1)


def test_of_an_edit_that_was_only_planned_the_restore_asks_when_it_was_begun(world: World) -> None:
    """Begun within the lost time: carried out, as the person wanted. Refused, or older than that: never the message's content."""
    world.stub("m", sends=1)
    plan = (
        "INSERT INTO message_version (shard, topic, message_id, content_version, content, written_by, why, written_at,"
        " carried_out) VALUES ('shop_a', 'orders', 'm', 2, 'planned', 'ann', 'w', now() - %s::interval, %s)"
    )
    for age, carried_out, becomes in (
        ("3 hours", None, b"content"),
        ("1 minute", False, b"content"),
        ("1 minute", None, b"planned"),
    ):
        world.control("DELETE FROM message_version")
        world.control(plan, (age, carried_out))
        restored(world)
        assert content_now(world)[0] == becomes, (age, carried_out)


def test_a_replaced_content_that_is_kept_no_longer_holds_its_message_for_a_person(
    world: World,
) -> None:
    dead(world, "m", "poison")
    edited(world)
    forget_edit(world)
    world.control("UPDATE message_version SET content = '', emptied_at = now()")
    counts = restored(world)
    assert (counts["content_gone"], unfinished(world)) == (1, 0)
    assert content_now(world) == (b"content", 1, "exhausted")
    found = "SELECT kind, subject, state FROM case_file WHERE kind <> 'dead_letters'"
    assert world.control(found) == [("exhausted", "restored content", "open")]


@pytest.mark.parametrize("decided", [None, "leave"])
def test_a_message_that_is_held_for_a_person_is_held_after_a_consumer_was_restored_too(
    world: World, decided: str | None
) -> None:
    dead(world, "m", "poison")
    edited(world)
    forget_edit(world)
    world.control("UPDATE message_version SET content = '', emptied_at = now()")
    restored(world)
    if decided is not None:
        world.control(
            "UPDATE case_file SET state = 'decided', decision = %s, decided_by = 'ann', decided_at = now(), why = 'w'"
            " WHERE subject = 'restored content'",
            (decided,),
        )
    since = datetime.now(UTC) - HOUR
    counts = restore_consumer(world.settings, world.connections, world.conn, "billing_db", since)
    assert (counts["reopened"], unfinished(world)) == (1, 0)
    assert content_now(world) == (b"content", 1, "exhausted")


def test_a_message_with_a_send_under_way_is_held_before_the_restore_is_done(
    world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    dead(world, "m", "poison")
    edited(world)
    forget_edit(world)
    world.control("UPDATE message_version SET content = '', emptied_at = now()")
    under_way = """
        UPDATE message_stub SET attempt_token = gen_random_uuid(), attempt_deadline = now() + interval '1 hour'
    """
    ended = "UPDATE message_stub SET attempt_token = NULL, attempt_deadline = now()"
    world.run(SHARDS["shop_a"], under_way)
    counts = restored(world)
    assert (counts["not_edited"], counts.get("content_gone"), unfinished(world)) == (1, None, 1)
    found = "SELECT 1 FROM case_file WHERE subject = 'restored content'"
    assert content_now(world)[2] == "pending" and world.control(found) == []
    world.run(SHARDS["shop_a"], ended)
    counts = restored(world)
    assert (counts.get("not_edited"), counts["content_gone"], unfinished(world)) == (None, 1, 0)
    assert content_now(world)[2] == "exhausted" and world.control(found) == [(1,)]
    # Somebody made it pending, and a person's send of it is under way while a consumer's database is restored.
    world.run(SHARDS["shop_a"], under_way + ", status = 'pending'")
    since = (datetime.now(UTC) - HOUR).isoformat()
    assert run_app(["restore", "consumer", "billing_db", "--since", since]) == 0
    assert "not_held" in (said := capfd.readouterr().out) and "Not finished" in said
    assert unfinished(world) == 1
    world.run(SHARDS["shop_a"], ended)
    assert run_app(["restore", "consumer", "billing_db", "--since", since]) == 0
    assert content_now(world)[2] == "exhausted" and unfinished(world) == 0


def test_a_version_that_was_carried_out_is_not_replaced_by_an_edit_of_a_database_that_forgot_it(
    world: World,
) -> None:
    dead(world, "m", "poison")
    edited(world)
    forget_edit(world)
    world.control(
        "UPDATE dead_letter SET state = 'open', shard = NULL, send_number = NULL, decision = NULL; DELETE FROM resend_request"
    )
    with pytest.raises(DecisionRefused, match="version 2 was carried out before"):
        edited(world, b"another")
    assert content_now(world)[:2] == (b"content", 1)
    kept = "SELECT content, carried_out FROM message_version WHERE content_version = 2"
    ((content, carried_out),) = world.control(kept)
    assert (bytes(content), carried_out) == (b"better", True)


def test_a_restore_raises_numbers_where_spark_cannot_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_java(_: Any) -> None:
        raise ConfigurationError("Spark could not start.", unaffected="-", next_step="-")

    monkeypatch.setattr("backstop.spark.session.start_for_lakes", no_java)
    world.stub("m", sends=1)
    ask(world, "m", "sent")
    pause(world)
    since = (datetime.now(UTC) - HOUR).isoformat()
    assert run_app(["restore", "producer", "shop_a", "--since", since]) == 0
    assert sends(world, "m") == 2
