"""The demo's two faults of ordered consumption on real parts, without Airflow: a poisoned key and a rolling restart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from backstop.config.connections import Connections
from backstop.control.connection import connect
from backstop.decisions.decide import decide
from backstop.watch.run_once import run_once as watch
from backstop_lab.demo.accounting import run_checker
from backstop_lab.demo.choose_answer import choose_answer
from backstop_lab.demo.in_order import FOLLOWERS, POISONED, RESTARTED, in_order_beside
from backstop_lab.demo.run import write_config
from backstop_lab.demo.stage import BOOKKEEPERS, BOOKKEEPING, Stage
from backstop_lab.platform import Platform
from backstop_lab.shop.databases import change


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """After both faults, before anybody has answered."""
    folder: Path = tmp_path_factory.mktemp("in_order")
    platform = Platform(folder / "platform", write_config(folder / "backstop.yaml"))
    platform.start(airflow=False)
    made = Stage(platform, folder, seed=1)
    try:
        made.make_tables()
        made.start()
        with in_order_beside(made):
            pass
        yield made
    finally:
        made.stop()
        platform.stop()


def check(stage: Stage) -> dict[str, list[str]]:
    """What the checker finds of this group, by rule."""
    told = run_checker(stage.write_places(), stage.ledger.folder)
    return {
        problem["rule"]: problem["sample"]
        for problem in told["problems"]
        if problem["rule"] in ("effect out of order", "effect duplicated", "fault not dealt with")
    }


def test_workers_restarted_in_turn_do_nothing_twice_and_keep_the_order(stage: Stage) -> None:
    keys = stage.ledger.keys(RESTARTED)
    assert len(keys) >= BOOKKEEPERS
    owners = change(
        stage.stores[BOOKKEEPING],
        "SELECT count(DISTINCT worker) FROM effect WHERE consumer_group = %s",
        (BOOKKEEPING,),
    )
    assert owners[0][0] > BOOKKEEPERS, "workers of before and after the restarts had effects"
    problems = check(stage)
    assert set(problems) == {"fault not dealt with"}, problems
    assert [line.split()[0] for line in problems["fault not dealt with"]] == [POISONED]


def test_the_poisoned_key_waits_for_a_person_and_is_then_done_in_order(stage: Stage) -> None:
    keys = sorted(stage.ledger.keys(POISONED))
    assert len(keys) == 1 + FOLLOWERS
    assert stage.without_effect(BOOKKEEPING, keys) == set(keys), "nobody has answered yet"
    connections = Connections(resolver=stage.urls.get)
    watch(stage.settings, connections)
    [(case_id,)] = change(
        stage.control, "SELECT case_id FROM case_file WHERE kind = 'key_parked'", ()
    )
    answer = choose_answer(stage, case_id)
    assert answer is not None
    with closing(connect(stage.settings, connections)) as control:
        decide(control, stage.settings, connections, case_id, answer.option, "ann", answer.why, {})
    stage.done(BOOKKEEPING, keys, 240.0)
    watch(stage.settings, connections)
    assert check(stage) == {}


def test_an_effect_out_of_order_is_found(stage: Stage) -> None:
    """The checker itself: the last effect of a key is set before all others."""
    dsn = stage.stores[BOOKKEEPING]
    last = sorted(stage.ledger.keys(POISONED))[-1][1]
    moved = "UPDATE effect SET done_at = done_at {} interval '1 day' WHERE message_id = %s"
    change(dsn, moved.format("-"), (last,))
    try:
        assert set(check(stage)) == {"effect out of order"}
    finally:
        change(dsn, moved.format("+"), (last,))
