"""Erasing one message on request: its contents everywhere they are kept, and nothing while it may still be sent."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import psycopg2
import pytest
from psycopg2.extras import Json
from tests.integration.test_isolation import reconcile

from backstop.config.settings import Settings
from backstop.decisions.decide import decide
from backstop.leases.lease import Acquired
from backstop.leases.parking import InOrder, park_again
from backstop.leases.queue_owner import OwnedQueue
from backstop.model.errors import ConfigurationError, DecisionRefused, Unavailable
from backstop.model.records import ID_BYTES, Key, Message
from backstop.requests.ask import ERASED
from backstop.resend.run_once import run_duty as resend
from backstop.restore.consumer import restore_consumer
from backstop.retention.erase import NOT_REACHED, Erased, erase
from backstop_lab.servers.ports import free_port
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from retention_world import emptied
from system import System, settings_dict, system

SECRET = b"name and address of a customer"


@pytest.fixture(scope="module")
def kept(servers: tuple[Postgres, Valkey]) -> Iterator[System]:
    with system(*servers) as made:
        yield made


@pytest.fixture
def world(kept: System) -> System:
    return emptied(kept)


def message(
    world: System,
    message_id: str,
    status: str = "confirmed",
    letter: str | None = "discarded",
    **columns: Any,
) -> Key:
    """A message whose content stands in its stub, a dead letter (and beside it), and an edit."""
    given = {
        "content": SECRET,
        "headers": Json({"customer": "anna"}),
        "message_key": "anna",
        "ordering_key": "anna's account",
        **columns,
    }
    key = world.stub(message_id, status=status, **given)
    world.rows(
        "control",
        """
        INSERT INTO run (duty, token, policy_version, code_version) VALUES ('triage', gen_random_uuid(), '', '');
        INSERT INTO drain_batch (run_id, broker, queue, letters, acknowledged_at)
        SELECT max(run_id), 'embedded', 'q', 1, now() FROM run;
        INSERT INTO message_version (shard, topic, message_id, content_version, content, written_by, why)
        VALUES ('shop_a', 'orders', %(id)s, 1, %(secret)s, 'bo', 'a typo');
        """.replace("%(id)s", f"'{message_id}'").replace("%(secret)s", f"'{SECRET.decode()}'"),
    )
    if letter:
        world.rows(
            "control",
            """
            INSERT INTO dead_letter (batch_id, broker, queue, broker_id, topic, message_id, headers, content, content_bytes,
                properties, error, cause_text, tag, invalid, state, closed_at, proof, decided_by)
            SELECT max(batch_id), 'embedded', 'q', %s, 'orders', %s, %s, %s, 30, %s, t, t, t, t, %s,
                CASE WHEN %s = 'discarded' THEN now() END, '{}', 'triage' FROM drain_batch, (VALUES (%s)) AS said (t) GROUP BY t
            """,
            message_id,
            message_id,
            b'{"customer": "anna"}',
            SECRET,
            Json({"k": "anna"}),
            letter,
            letter,
            f"bad: {SECRET!r}",
        )
        world.rows(
            "control",
            "INSERT INTO dead_letter_aside SELECT max(dead_letter_id), %s FROM dead_letter",
            SECRET,
        )
        world.rows(
            "control",
            """
            INSERT INTO cause (fingerprint, template, shown, category, first_seen_at, last_seen_at, dead_letters)
            VALUES ('f', 'payment for anna refused', 'payment for <*> refused', 'poison', now(), now(), 1)
            ON CONFLICT (fingerprint) DO UPDATE SET dead_letters = cause.dead_letters + 1;
            UPDATE dead_letter SET cause_id = (SELECT cause_id FROM cause), category = 'poison', classified_at = now()
            WHERE cause_id IS NULL;
            INSERT INTO case_file (kind, topic, consumer_group, subject, summary, evidence, state, closed_at)
            VALUES ('dead_letters', 'orders', 'billing', 'f', '', '{"template": "payment for anna refused"}', 'closed', now())""",
        )
    world.rows(
        "control",
        """
        INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by, state, error)
        VALUES ('shop_a', 'orders', %s, 2, 'LOST', 'test', 'refused', 'too large: anna')""",
        message_id,
    )
    world.rows(
        "shop_a",
        """
        INSERT INTO send_attempt (topic, message_id, send_number, requested_by, started_at, outcome, error)
        VALUES ('orders', %s, 1, 'test', now(), 'refused', 'too large: anna')""",
        message_id,
    )
    world.log(
        key,
        "billing",
        last_error="no such customer: anna",
        payload_hash=hashlib.sha256(SECRET).digest(),
    )
    return key


def ask(
    world: System, *ids: str, why: str = "asked to be forgotten", who: str = "anna"
) -> list[Erased]:
    control = world.control()
    try:
        return erase(world.settings, world.connections, control, "orders", ids, who, why)
    finally:
        control.close()


def everything(world: System) -> str:
    """All that the databases hold, as one text."""
    found = []
    for database in ("shop_a", "shop_b", "billing_db", "shipping_db", "control"):
        for (table,) in world.rows(
            database, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        ):
            found += world.rows(database, f"SELECT row_to_json(t)::text FROM {table} t")
    return "\n".join(row for (row,) in found)


@pytest.mark.parametrize("status", ["confirmed", "voided", "no_taker"])
def test_of_a_message_that_is_over_only_ids_hash_and_the_asking_are_left(
    world: System, status: str
) -> None:
    message(world, "m", status)
    for trace in (SECRET.hex(), "anna", "customer"):
        assert trace in everything(world)
    (erased,) = ask(world, "m", who="the data officer")
    assert {place: rows for place, rows in erased.places.items() if rows} == {
        "shard shop_a": 1,
        "attempts in shop_a": 1,
        "logs in billing_db": 1,
        "dead_letter": 1,
        "dead_letter_aside": 1,
        "cause": 1,
        "resend_request": 1,
        "message_version": 1,
    }
    for trace in (SECRET.hex(), SECRET.decode(), "anna", "customer"):
        assert trace not in everything(world), trace
    ((content, erased_hash, now),) = world.rows(
        "shop_a", "SELECT content, erased_hash, status FROM message_stub"
    )
    assert (bytes(content), len(erased_hash), now) == (b"", 32, status)
    assert bytes(erased_hash) != hashlib.sha256(SECRET).digest(), "a short content could be guessed"
    assert world.rows(
        "billing_db", "SELECT message_id, last_error, payload_hash, state FROM consumer_log"
    ) == [
        ("m", None, None, "CONSUMED"),
    ]
    assert world.rows(
        "control", "SELECT fingerprint, template, shown, dead_letters FROM cause"
    ) == [
        (f"erased-{cause}", "(erased)", "(erased)", 1)
        for (cause,) in world.rows("control", "SELECT cause_id FROM cause")
    ]
    ((asked_by, why, done, what),) = world.rows(
        "control", "SELECT asked_by, why, done_at IS NOT NULL, erased FROM erasure"
    )
    assert (asked_by, why, done, what) == (
        "the data officer",
        "asked to be forgotten",
        True,
        erased.places,
    )
    assert world.rows(
        "control",
        "SELECT message_id, state, content_bytes, invalid, cause_text, error, tag FROM dead_letter",
    ) == [
        ("m", "discarded", 30, "erased", "", "", None),
    ]


def test_other_messages_keep_their_contents_and_the_texts_that_they_share(world: System) -> None:
    message(world, "other")
    message(world, "m")
    ask(world, "m")
    ((content,),) = world.rows(
        "shop_a", "SELECT content FROM message_stub WHERE message_id = 'other'"
    )
    assert bytes(content) == SECRET
    assert world.rows("control", "SELECT template FROM cause") == [("payment for anna refused",)]
    assert world.rows(
        "billing_db", "SELECT message_id FROM consumer_log WHERE last_error IS NOT NULL"
    ) == [("other",)]


def test_an_ordering_key_stays_while_a_message_of_it_is_open(world: System) -> None:
    message(world, "m")
    world.stub("later", ordering_key="anna's account", status="pending")
    (erased,) = ask(world, "m")
    assert "its ordering key stays" in str(erased)
    world.rows("shop_a", "UPDATE message_stub SET status = 'confirmed' WHERE message_id = 'later'")
    (erased,) = ask(world, "m")
    assert "ordering key" not in str(erased)
    assert world.rows("shop_a", "SELECT message_id, ordering_key FROM message_stub ORDER BY 1") == [
        ("later", "anna's account"),
        ("m", None),
    ]


def test_a_cause_whose_text_comes_again_after_an_erasure_is_another_one(world: System) -> None:
    message(world, "m")
    ask(world, "m")
    assert world.rows("control", "SELECT subject, evidence ->> 'template' FROM case_file") == [
        (fingerprint, "(erased)")
        for (fingerprint,) in world.rows("control", "SELECT fingerprint FROM cause")
    ]


@pytest.mark.parametrize(
    ("status", "letter", "columns", "why"),
    [
        ("pending", None, {}, "void it first"),
        ("exhausted", None, {}, "void it first"),
        ("confirmed", "open", {}, "decide their case first"),
        ("confirmed", None, {"attempt_token": "00000000-0000-0000-0000-000000000001"}, "under way"),
    ],
)
def test_what_may_still_be_sent_or_waits_for_a_person_is_not_erased_nor_are_those_asked_for_with_it(
    world: System, status: str, letter: str | None, columns: dict[str, Any], why: str
) -> None:
    message(world, "over")
    message(world, "m", status, letter, **columns)
    with pytest.raises(DecisionRefused, match=f"(?i){why}"):
        ask(world, "over", "m")
    contents = world.rows("shop_a", "SELECT content FROM message_stub")
    assert [bytes(content) for (content,) in contents] == [SECRET, SECRET]


def test_an_erasure_that_was_cut_short_is_finished_by_asking_again_and_asking_twice_changes_nothing(
    world: System,
) -> None:
    message(world, "m")
    world.rows(
        "control",
        "INSERT INTO erasure (topic, message_id, asked_by, why) VALUES ('orders', 'm', 'anna', 'x')",
    )
    ask(world, "m")
    assert world.rows("control", "SELECT DISTINCT done_at IS NOT NULL FROM erasure") == [(True,)]
    before = world.rows("shop_a", "SELECT erased_hash FROM message_stub")
    ask(world, "m")
    assert world.rows("shop_a", "SELECT erased_hash FROM message_stub") == before


def test_a_message_with_the_longest_id_is_erased_everywhere(world: System) -> None:
    """The log of decisions takes no subject as long as such an id and its topic."""
    key = message(world, "x" * ID_BYTES)
    ask(world, key.message_id)
    assert SECRET.hex() not in everything(world)
    assert world.rows("control", "SELECT done_at IS NOT NULL FROM erasure") == [(True,)]
    assert world.rows("control", "SELECT details ->> 'subject' FROM decision_log") == [
        (f"{key.message_id} of orders",)
    ]


def test_a_reason_that_is_too_long_erases_nothing_and_says_so(world: System) -> None:
    message(world, "a")
    before = everything(world)
    with pytest.raises(DecisionRefused, match="at most 10,000"):
        ask(world, "a", why="w" * 10_001)
    assert everything(world) == before


def test_every_erasure_says_that_what_was_typed_into_airflow_stays_there() -> None:
    assert any("Airflow" in place and "form" in place for place in NOT_REACHED)


def test_every_erasure_says_that_dead_letters_without_a_topic_keep_their_content() -> None:
    assert any("dead letters" in place and "no topic" in place for place in NOT_REACHED)


def test_without_a_reason_a_topic_or_every_shard_nothing_is_erased(world: System) -> None:
    message(world, "m")
    with pytest.raises(ConfigurationError, match="why"):
        ask(world, "m", why=" ")
    world.urls["shop_b"] = f"postgresql://nobody@127.0.0.1:{free_port()}/none"
    with pytest.raises(Unavailable):
        ask(world, "m")
    assert world.rows("shop_a", "SELECT erased_hash FROM message_stub") == [(None,)]
    assert world.rows("control", "SELECT 1 FROM erasure") == []


def test_a_content_that_a_parked_key_keeps_goes_and_what_is_left_of_the_key_waits_on(
    world: System,
) -> None:
    for message_id in ("m", "other"):
        message(world, message_id, letter=None)
    world.rows(
        "billing_db",
        """
        INSERT INTO parked_key (consumer_group, topic, ordering_key, queue_id, state, messages, bytes, last_error)
        VALUES ('billing', 'orders', 'k', 0, 'PARKED', 2, 64, 'cannot read anna')
        """,
    )
    for message_id in ("m", "other"):
        world.rows(
            "billing_db",
            "INSERT INTO parked_message (consumer_group, topic, message_id, ordering_key, content, queue_id)"
            " VALUES ('billing', 'orders', %s, 'k', %s, 0)",
            message_id,
            SECRET,
        )
    key = "SELECT state, messages, bytes, last_error FROM parked_key"
    ask(world, "m")
    assert world.rows("billing_db", "SELECT message_id FROM parked_message") == [("other",)]
    assert world.rows("billing_db", key) == [("PARKED", 1, 32, None)]
    ask(world, "other")
    assert world.rows("billing_db", key) == [("RELEASING", 0, 0, None)], (
        "its queue's owner unparks it"
    )


def test_a_released_message_that_was_erased_and_fails_again_leaves_no_key_that_nobody_can_answer(
    world: System,
) -> None:
    message(world, "m", letter=None)
    token = str(uuid.uuid4())
    world.rows(
        "billing_db",
        """
        INSERT INTO parked_key (consumer_group, topic, ordering_key, queue_id, state, messages, bytes, last_error)
        VALUES ('billing', 'orders', 'k', 0, 'RELEASING', 1, 32, '');
        INSERT INTO parked_message (consumer_group, topic, message_id, ordering_key, content, queue_id)
        VALUES ('billing', 'orders', 'm', 'k', '', 0);
        INSERT INTO queue_owner (consumer_group, topic, queue_id, owner, fence, state, expires_at)
        VALUES ('billing', 'orders', 0, 'c', 7, 'OWNED', now() + interval '1 hour')
        """,
    )
    world.rows(
        "billing_db",
        "UPDATE consumer_log SET state = 'CONSUMING', owner_token = %s, fence = 3 WHERE consumer_group = 'billing'",
        token,
    )
    ask(world, "m")
    head = InOrder(
        OwnedQueue("billing", "orders", 0, 7), "k", Message("orders", "m", b""), cast(Any, None)
    )
    lease = Acquired("billing", "orders", "m", token, 3)
    with closing(psycopg2.connect(world.urls["billing_db"])) as connection, connection:
        park_again(connection, head, lease, "ValueError")
    assert world.rows("billing_db", "SELECT 1 FROM parked_key") == []


def status(world: System) -> str:
    ((found,),) = world.rows("shop_a", "SELECT status FROM message_stub")
    return str(found)


def cases(world: System) -> list[tuple[Any, ...]]:
    return world.rows(
        "control", "SELECT kind, consumer_group, state FROM case_file WHERE kind = 'refused'"
    )


def not_sent(world: System, key: Key, verdict: tuple[str, str, str]) -> None:
    """It is judged as lost, no copy goes out however often, and a person is asked once."""
    for _ in range(2):
        reconcile(world, [key])
        resend(world.settings, world.connections)
    reconcile(world, [key])
    assert world.consume("billing") == [] == world.consume("shipping"), "nothing was published"
    found = world.rows(
        "control",
        "SELECT consumer_group, verdict, reason FROM verdict ORDER BY run_id DESC LIMIT 1",
    )
    assert (found, status(world)) == ([verdict], "pending")
    assert world.rows("control", "SELECT state, error FROM resend_request") == [
        ("not_needed", ERASED)
    ]
    assert cases(world) == [("refused", "billing", "open")]
    with closing(world.control()) as control:
        ((case_id,),) = world.rows(
            "control", "SELECT case_id FROM case_file WHERE kind = 'refused'"
        )
        decide(control, world.settings, world.connections, case_id, "void", "ann", "it was erased")
    assert (status(world), cases(world)) == ("voided", [("refused", "billing", "closed")])


def test_an_erased_message_that_a_new_group_owes_is_not_sent_and_a_person_is_asked(
    world: System,
) -> None:
    def only(tag: str) -> Settings:
        groups = {"billing": {"tags": [tag]}}
        topics = {"orders": {"broker": "embedded", "mode": "repair", "groups": groups}}
        return Settings.model_validate(settings_dict(topics=topics))

    world.settings = only("paid")
    key = world.stub("m", tag="open", send_count=0, content=SECRET, age=timedelta(minutes=30))
    reconcile(world, [key])
    assert status(world) == "no_taker"
    ask(world, "m")
    world.settings = only("open")
    not_sent(world, key, ("billing", "UNSENT", "never_sent"))


def test_an_erased_message_whose_log_a_restore_lost_is_not_sent_and_not_called_done(
    world: System,
) -> None:
    key = world.sent("m", content=SECRET)
    assert world.consume("billing") and world.consume("shipping")
    reconcile(world, [key])
    assert status(world) == "confirmed"
    ask(world, "m")
    world.rows("billing_db", "DELETE FROM consumer_log")
    world.rows(
        "control", "INSERT INTO pause (topic, paused_by, why) VALUES ('*', 'ann', 'restored')"
    )
    with closing(world.control()) as control:
        since = datetime.now(UTC) - timedelta(hours=1)
        restored = restore_consumer(world.settings, world.connections, control, "billing_db", since)
    assert restored["reopened"] == 1
    world.rows("control", "DELETE FROM pause")
    not_sent(world, key, ("billing", "LOST", "passed_over"))
