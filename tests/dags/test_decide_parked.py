"""A parked ordering key as a question in Airflow: its form, who may answer, and what an answer does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backstop.airflow import decide_case
from backstop.decisions.questions import choose
from control_world import World, servers, world  # noqa: F401
from parked_world import ParkedWorld


@pytest.fixture
def shop(world: World) -> ParkedWorld:
    written = json.loads(world.config.read_text())
    rules = [{"actions": ["discard_key"], "deciders": ["otto", "owen"]}]
    people = {"second_person": [], "deciders": ["olga"], "rules": rules}
    world.config.write_text(json.dumps(written | {"people": people}))
    return ParkedWorld(world)


def answered(
    shop: ParkedWorld, case_id: int, option: str, who: str, **inputs: Any
) -> dict[str, Any]:
    """The question of a case, answered by somebody, and applied."""
    choose(shop.world.conn, 10)
    ((run,),) = shop.world.control(
        "SELECT dag_run_id FROM case_question WHERE case_id = %s AND ended_at IS NULL", (case_id,)
    )
    decide_case.form_of(case_id, run)
    given = {
        "option": option,
        "inputs": {"why": "because", **inputs},
        "user_id": who,
        "user_name": who,
    }
    decide_case.receive_answer({"run_id": run}, given)
    return decide_case.apply_answer(case_id, run)


def test_a_parked_key_is_asked_about_and_released_by_the_answer(shop: ParkedWorld) -> None:
    case_id = shop.park("a-1", "a-2", failing="a-1")
    choose(shop.world.conn, 10)
    ((run,),) = shop.world.control(
        "SELECT dag_run_id FROM case_question WHERE case_id = %s", (case_id,)
    )
    form = decide_case.form_of(case_id, run)
    assert form["options"] == ["release", "edit_head", "discard_head", "discard_key", "leave"]
    assert set(form["params"]) == {"why", decide_case.CONTENT, decide_case.CONTENT_BASE64}, (
        "no list of messages"
    )
    assert f"backstop cases parked {case_id} --content" in form["body"]
    shop.failing = set()
    done = answered(shop, case_id, "edit_head", "olga", **{decide_case.CONTENT: "mended"})
    assert done["how"] == "applied", done
    shop.work(lambda: shop.effects() == ["a-1", "a-2"])


def test_who_may_not_decide_discards_no_key(shop: ParkedWorld) -> None:
    case_id = shop.park("a-1", "a-2", failing="a-1")
    assert "may not decide to discard_key" in answered(shop, case_id, "discard_key", "olga")["said"]
    assert shop.parked() == {"a": ["a-1", "a-2"]}
    assert answered(shop, case_id, "discard_key", "otto")["how"] == "applied"
    assert shop.world.control(
        "SELECT message_id, decided_by FROM delivery_decision ORDER BY 1"
    ) == [
        ("a-1", "otto"),
        ("a-2", "otto"),
    ]
