"""What a person gave up is neither asked for by the machine nor counted against what it may ask for."""

from __future__ import annotations

from typing import Any

import pytest

from backstop.config.load import from_mapping
from backstop.reconcile.promote import promote
from backstop.records import Counts
from backstop.runs.run import Run, open_run
from control_world import World, servers, world, written_settings  # noqa: F401

FLOOR = 5


@pytest.fixture
def careful(world: World) -> World:
    """A system that asks a person from the fifth delivery on."""
    written = written_settings()
    written["policy"] |= {"blast_share": 0.1, "blast_floor": FLOOR, "canary": 0}
    world.settings = from_mapping(written)
    return world


def lost(world: World, *message_ids: str, given_up: bool) -> None:
    """Messages of which number 1 was lost; of number 2 a person said that nobody shall send it."""
    for message_id in message_ids:
        world.stub(message_id, sends=1)
        if given_up:
            world.control("""
                INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by, state, given_up_by)
                VALUES ('shop_a', 'orders', %s, 2, 'lost', 'reconcile', 'not_needed', 1)""", (message_id,))  # fmt: skip


def promoted(world: World, *message_ids: str) -> Counts:
    """A run that judged them LOST for billing, promoted."""
    run: Run = open_run(world.conn, "reconcile", "*", world.settings)
    world.control("""
        INSERT INTO staged_verdict (run_id, stage, shard, topic, message_id, consumer_group, verdict, reason, eligible,
            send_count, evidence)
        SELECT run_id, stage, 'shop_a', 'orders', i, 'billing', 'LOST', 'no_log', true, 1, '{}'
        FROM run, unnest(%s::text[]) AS i WHERE run_id = %s""", (list(message_ids), run.run_id))  # fmt: skip
    return promote(world.settings, world.connections, world.conn, run)


def members(world: World) -> list[tuple[Any, ...]]:
    return world.control("SELECT c.kind, m.message_id FROM case_member m JOIN case_file c USING (case_id) ORDER BY 1, 2")


@pytest.fixture
def decided(careful: World) -> World:
    careful.control(
        "INSERT INTO case_file (kind, topic, summary, state, decision, decided_by, decided_at, why)"
        " VALUES ('ramp_stopped', 'orders', 's', 'closed', 'give_up', 'ann', now(), 'w')"
    )
    return careful


def test_what_was_given_up_makes_no_mass_loss_and_no_request(decided: World) -> None:
    names = [f"given-up-{n}" for n in range(FLOOR * 2)]
    lost(decided, *names, given_up=True)
    counts = promoted(decided, *names)
    assert members(decided) == [] and "already_asked" not in counts
    assert decided.control("SELECT DISTINCT state, send_number FROM resend_request") == [("not_needed", 2)]


def test_what_was_given_up_does_not_hold_back_what_was_not(decided: World) -> None:
    given_up, others = [f"given-up-{n}" for n in range(FLOOR)], [f"other-{n}" for n in range(FLOOR - 1)]
    lost(decided, *given_up, given_up=True)
    lost(decided, *others, given_up=False)
    promoted(decided, *given_up, *others)
    assert members(decided) == []
    asked = decided.control("SELECT message_id FROM resend_request WHERE state = 'open' ORDER BY 1")
    assert [message_id for (message_id,) in asked] == others


def test_a_mass_loss_asks_nobody_again_about_what_was_given_up(decided: World) -> None:
    others = [f"other-{n}" for n in range(FLOOR)]
    lost(decided, "given-up", given_up=True)
    lost(decided, *others, given_up=False)
    promoted(decided, "given-up", *others)
    assert members(decided) == [("mass_loss", name) for name in others]
