"""A person's edit: both versions are kept, the new one is what is sent, and a crash at any commit leaves nothing unknown."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from backstop.brokers.open import open_broker
from backstop.client.read_headers import read_headers
from backstop.control.connection import connect
from backstop.decisions.decide import Decided, decide
from backstop.leases.guard import Acquired, begin
from backstop.model.errors import DecisionRefused
from backstop.stores.postgresql.stubs import PostgresStubs
from backstop.triage.decide import answer as subject
from control_world import World, servers, world  # noqa: F401
from triage_world import dead, letter, letters, requests, resend, triage


class Killed(BaseException):
    """The process ends here."""


def asked(world: World) -> int:
    triage(world)
    ((case_id,),) = world.control("SELECT max(case_id) FROM case_file")
    return int(case_id)


def edited(world: World, case_id: int, content: bytes, who: str = "ann", **options: Any) -> Decided:
    given = {"message_ids": ["m"], "content": content, **options}
    return decide(
        world.conn, world.settings, world.connections, case_id, "edit", who, "mended", given
    )


def versions(world: World) -> list[tuple[int, bytes, str]]:
    rows = world.control(
        "SELECT content_version, content, written_by FROM message_version ORDER BY content_version"
    )
    return [(version, bytes(content), who) for version, content, who in rows]


def content_now(world: World) -> tuple[bytes, int]:
    ((content, version),) = world.run(
        "producer_a", "SELECT content, content_version FROM message_stub WHERE message_id = 'm'"
    )
    return bytes(content), version


def test_an_edit_keeps_both_versions_and_the_copy_that_goes_out_carries_the_new_one(
    world: World,
) -> None:
    dead(world, "m", "poison")
    case_id = asked(world)
    done = edited(world, case_id, b"better")
    assert (done.counts["content_version"], done.counts["replaying"]) == (2, 1)
    assert versions(world) == [(1, b"content", "the producer"), (2, b"better", "ann")]
    assert content_now(world) == (b"better", 2)
    assert resend(world)["published"] == 1
    with open_broker(world.settings, world.connections, "embedded") as broker:
        subscription = broker.subscribe("billing", ["orders"], "test")
        (received,) = subscription.fetch(10, timedelta(milliseconds=20))
        subscription.close()
    assert received.message.content == b"better"
    assert received.message.headers["backstop-content-version"] == "2"
    arrival = read_headers(received).arrival
    with connect_to(world, "consumer_billing") as consumer:
        begun = begin(
            consumer,
            "billing",
            "orders",
            "m",
            payload_hash=arrival.payload_hash,
            content_version=arrival.content_version,
        )
    assert isinstance(begun, Acquired), "the failed log takes the newer version"


def connect_to(world: World, database: str) -> Any:
    import psycopg2

    return psycopg2.connect(world.postgres.admin_dsn(database))


def test_an_edit_is_of_one_message_and_needs_its_content(world: World) -> None:
    dead(world, "m", "poison")
    dead(world, "n", "poison")
    case_id = asked(world)
    with pytest.raises(DecisionRefused, match="content of one message"):
        edited(world, case_id, b"x", message_ids=["m", "n"])
    with pytest.raises(DecisionRefused, match="content of one message"):
        decide(
            world.conn,
            world.settings,
            world.connections,
            case_id,
            "edit",
            "ann",
            "mended",
            {"message_ids": ["m"]},
        )
    assert versions(world) == []


@pytest.mark.parametrize(
    "boundary", ["before the producer", "in the producer's commit", "after the producer"]
)
def test_an_edit_that_is_cut_short_is_finished_by_the_same_answer(
    world: World, boundary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead(world, "m", "poison")
    case_id = asked(world)

    def die(*_: Any) -> Any:
        raise Killed

    real = PostgresStubs.replace_content

    def die_after(*arguments: Any) -> Any:
        assert real(*arguments)
        raise Killed

    with monkeypatch.context() as patch:
        if boundary == "before the producer":
            patch.setattr(PostgresStubs, "replace_content", die)
        elif boundary == "in the producer's commit":
            patch.setattr(PostgresStubs, "replace_content", die_after)
        else:
            patch.setattr(subject, "_finish", die)
        with pytest.raises(Killed):
            edited(world, case_id, b"better")
    world.conn.close()
    world.conn = connect(world.settings, world.connections)
    kept = versions(world)
    assert kept[0] == (1, b"content", "the producer"), "the old one is kept before it is replaced"
    assert letters(world)["m"]["state"] == "open" and requests(world) == []
    assert edited(world, case_id, b"better").counts["replaying"] == 1
    assert (content_now(world), [v[:2] for v in versions(world)]) == (
        (b"better", 2),
        [(1, b"content"), (2, b"better")],
    )


def test_an_edit_that_was_only_planned_gives_way_to_the_next_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead(world, "m", "poison")
    case_id = asked(world)

    def die(*_: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(PostgresStubs, "replace_content", die)
        with pytest.raises(Killed):
            edited(world, case_id, b"first try")
    world.conn.close()
    world.conn = connect(world.settings, world.connections)
    edited(world, case_id, b"second try", who="bob")
    assert versions(world) == [(1, b"content", "the producer"), (2, b"second try", "bob")]
    assert content_now(world) == (b"second try", 2)


def test_of_two_edits_at_once_one_is_refused_and_the_kept_version_is_what_is_sent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead(world, "m", "poison")
    world.log("m", "shipping", state="FAILED", moved="1 minute")
    letter(world, "m", "poison", "shipping")
    triage(world)
    (first,), (second,) = world.control("SELECT case_id FROM case_file ORDER BY case_id")
    real, here = PostgresStubs.replace_content, threading.Event()

    def wait_for_the_other(*arguments: Any) -> bool:
        here.set()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%message_version%%'"
        deadline = time.monotonic() + 60
        while world.control(waiting) == [(0,)]:
            assert time.monotonic() < deadline, "the other one does not wait for the row"
        return real(*arguments)

    monkeypatch.setattr(PostgresStubs, "replace_content", wait_for_the_other)
    ended: dict[str, object] = {}

    def person(who: str, case_id: int) -> None:
        conn = connect(world.settings, world.connections)
        given = {"message_ids": ["m"], "content": who.encode()}
        try:
            ended[who] = decide(
                conn, world.settings, world.connections, case_id, "edit", who, "mended", given
            )
        except DecisionRefused as error:
            ended[who] = error
        finally:
            conn.close()

    ann = threading.Thread(target=person, args=("ann", first))
    ann.start()
    assert here.wait(60)
    bob = threading.Thread(target=person, args=("bob", second))
    bob.start()
    ann.join(90)
    bob.join(90)
    assert isinstance(ended["ann"], Decided) and isinstance(ended["bob"], DecisionRefused), ended
    assert content_now(world) == (b"ann", 2)
    assert versions(world)[1] == (2, b"ann", "ann")


def test_an_erased_message_is_not_edited_and_no_version_of_it_is_kept(world: World) -> None:
    dead(world, "m", "poison")
    case_id = asked(world)
    world.run("producer_a", "UPDATE message_stub SET content = '', erased_hash = 'salted'")
    with pytest.raises(DecisionRefused, match="was erased on request"):
        edited(world, case_id, b"better")
    assert (versions(world), content_now(world)) == ([], (b"", 1))


def test_a_message_whose_send_is_under_way_is_not_edited(world: World) -> None:
    dead(world, "m", "poison")
    case_id = asked(world)
    world.run(
        "producer_a",
        "UPDATE message_stub SET attempt_token = gen_random_uuid(), attempt_deadline = now() + interval '1h'",
    )
    with pytest.raises(DecisionRefused, match="under way"):
        edited(world, case_id, b"better")
    assert content_now(world) == (b"content", 1)
