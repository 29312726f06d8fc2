"""What a person withdrew stays withdrawn when the producer's database comes back from a backup, and nothing else does.

The database "goes back" by giving its stubs the status that they had.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from backstop.cases.open import open_case
from backstop.cli.app import run_app
from backstop.decisions.decide import decide
from backstop.model.errors import BackstopError
from backstop.model.records import Counts
from backstop.reconcile.revisit import revisit_cases
from backstop.restore.paused import begin
from backstop.restore.producer import restore_producer
from backstop.runs.run import open_run
from control_world import SHARDS, World, servers, world  # noqa: F401


def overdue(world: World, *message_ids: str) -> int:
    with world.conn, world.conn.cursor() as cur:
        return open_case(
            cur,
            kind="overdue",
            topic="orders",
            group="billing",
            subject="",
            severity="warning",
            summary="s",
            evidence={},
            members=[("shop_a", "orders", i, "billing") for i in message_ids],
            run_id=None,
        )


def decided(world: World, case_id: int, action: str, **options: Any) -> None:
    decide(
        world.conn, world.settings, world.connections, case_id, action, "ann", "because", options
    )


def withdrawals(world: World) -> list[tuple[Any, ...]]:
    return world.control(
        "SELECT message_id, applied_at IS NOT NULL FROM withdrawal ORDER BY message_id"
    )


def restored(world: World) -> Counts:
    """The shard is as it was before anything was withdrawn, and the page's command is run."""
    world.run(SHARDS["shop_a"], "UPDATE message_stub SET status = 'pending', attempt_token = NULL")
    world.control(
        "INSERT INTO pause (topic, paused_by, why) VALUES ('*', 'ann', 'restored') ON CONFLICT DO NOTHING"
    )
    since = datetime.now(UTC) - timedelta(hours=1)
    return restore_producer(world.settings, world.connections, world.conn, "shop_a", since)


def statuses(world: World) -> dict[str, str]:
    return dict(world.run(SHARDS["shop_a"], "SELECT message_id, status FROM message_stub"))


def cut_short(world: World, case_id: int, at: str) -> None:
    """The decision to void dies at this message: its stub cannot be changed."""
    world.run(
        SHARDS["shop_a"],
        f"""
        CREATE FUNCTION no_void() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.message_id = '{at}' THEN RAISE 'the disk is full' USING ERRCODE = '53100'; END IF; RETURN NEW; END $$;
        CREATE TRIGGER no_void BEFORE UPDATE ON message_stub FOR EACH ROW EXECUTE FUNCTION no_void()""",
    )
    try:
        with pytest.raises(BackstopError):
            decided(world, case_id, "void")
    finally:
        world.run(SHARDS["shop_a"], "DROP FUNCTION no_void CASCADE")


def test_a_withdrawal_is_restored_though_its_case_stayed_open_for_others(world: World) -> None:
    world.stub("sending", sends=2, under_way=True)
    world.stub("free", sends=2)
    decided(world, overdue(world, "sending", "free"), "void")
    assert withdrawals(world) == [("free", True)]
    assert restored(world)["voided"] == 1
    assert statuses(world) == {"free": "voided", "sending": "pending"}


def test_what_was_confirmed_before_the_decision_is_not_voided_by_a_restore(world: World) -> None:
    world.stub("done", sends=1)
    world.stub("open", sends=1)
    case_id = overdue(world, "done", "open")
    world.log("done", "billing")
    world.log("done", "shipping")
    world.run(
        SHARDS["shop_a"], "UPDATE message_stub SET status = 'confirmed' WHERE message_id = 'done'"
    )
    decided(world, case_id, "void")
    assert world.control("SELECT state, decision FROM case_file") == [("closed", "void")]
    assert restored(world)["voided"] == 1
    assert statuses(world) == {"done": "pending", "open": "voided"}


def test_a_withdrawal_is_restored_though_the_rest_of_its_case_was_decided_otherwise(
    world: World,
) -> None:
    world.stub("a", sends=1)
    world.stub("b", sends=1)
    case_id = overdue(world, "a", "b")
    decided(world, case_id, "void", message_ids=["a"])
    decided(world, case_id, "discard")
    assert restored(world)["voided"] == 1
    assert statuses(world) == {"a": "voided", "b": "pending"}


def test_a_decision_that_was_cut_short_is_looked_up_by_the_next_one_whatever_it_says(
    world: World,
) -> None:
    world.stub("a", sends=1)
    world.stub("b", sends=1)
    case_id = overdue(world, "a", "b")
    cut_short(world, case_id, at="b")
    assert statuses(world) == {"a": "voided", "b": "pending"}
    assert withdrawals(world) == [("a", False), ("b", False)]
    decided(world, case_id, "leave")
    assert withdrawals(world) == [("a", True)]
    assert restored(world)["voided"] == 1
    assert statuses(world) == {"a": "voided", "b": "pending"}


def test_of_a_decision_that_was_cut_short_the_next_reconcile_run_writes_down_what_the_stubs_say(
    world: World,
) -> None:
    world.stub("a", sends=1)
    world.stub("b", sends=1)
    cut_short(world, overdue(world, "a", "b"), at="b")
    run = open_run(world.conn, "reconcile", "*", world.settings)
    revisit_cases(world.settings, world.connections, world.conn, run)
    assert withdrawals(world) == [("a", False), ("b", False)], "somebody may be at it"
    world.control("UPDATE withdrawal SET begun_at = now() - interval '2 hours'")
    revisit_cases(world.settings, world.connections, world.conn, run)
    assert withdrawals(world) == [("a", True)]


def test_nobody_sends_before_a_restore_that_was_cut_short_is_done(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    world.stub("a", sends=1)
    decided(world, overdue(world, "a"), "void")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("backstop.restore.producer._withdraw_again", killed)
        with pytest.raises(KeyboardInterrupt):
            restored(world)
    ((begun,),) = world.control(
        "SELECT reached FROM watermark WHERE subject = 'restore producer shop_a'"
    )
    assert run_app(["resume", "--all"]) == 6
    said = capfd.readouterr()
    assert "backstop restore producer shop_a --since" in said.out + said.err
    assert world.control("SELECT topic FROM pause") == [("*",)] and statuses(world) == {
        "a": "pending"
    }
    # Whoever finishes it goes back as far as who began it.
    assert begin(world.conn, "producer shop_a", datetime.now(UTC)) == begun
    assert (
        restore_producer(
            world.settings, world.connections, world.conn, "shop_a", datetime.now(UTC)
        )["voided"]
        == 1
    )
    assert world.control("SELECT subject FROM watermark") == []
    assert run_app(["resume", "--all"]) == 0 and statuses(world) == {"a": "voided"}


def test_of_a_decision_that_was_cut_short_a_restore_leaves_alone_what_is_done_meanwhile(
    world: World,
) -> None:
    for message_id in ("a", "b", "c"):
        world.stub(message_id, sends=1)
    cut_short(world, overdue(world, "a", "b", "c"), at="b")
    for group in ("billing", "shipping"):
        world.log("c", group)
    counts = restored(world)
    assert (counts["voided"], counts["not_voided"]) == (2, 0)
    assert statuses(world) == {"a": "voided", "b": "voided", "c": "pending"}


def test_a_restore_says_what_it_could_not_withdraw_again(world: World) -> None:
    world.stub("a", sends=1)
    decided(world, overdue(world, "a"), "void")
    assert restored(world)["voided"] == 1
    world.run(
        SHARDS["shop_a"],
        "UPDATE message_stub SET status = 'pending', attempt_token = gen_random_uuid(),"
        " attempt_deadline = now() + interval '1 hour'",
    )
    counts = restore_producer(
        world.settings, world.connections, world.conn, "shop_a", datetime.now(UTC)
    )
    assert (counts["voided"], counts["not_voided"]) == (0, 1)
