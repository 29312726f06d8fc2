"""The demo starts a duty when it would find something to do, and only then: on real databases, beside a list for an Airflow."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backstop_lab.demo import call_for_runs
from backstop_lab.demo.call_for_runs import CallForRuns
from backstop_lab.demo.hold_up import judge_old_traffic
from backstop_lab.demo.stage import CALLED, RunsWanted, Stage
from control_world import GROUPS, SHARDS, World, servers, world  # noqa: F401


class WrittenAirflow:
    """Notes which DAGs were started; `running` ones have a run under way."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.running: set[str] = set()

    def dag_runs(self, dag: str, *, limit: int) -> list[dict[str, str]]:
        return [{"state": "running" if dag in self.running else "success"}]

    def trigger(self, dag: str) -> None:
        self.started.append(dag)


class Story:
    """A demo's stage over the databases of `world`, which has come to the point where it waits for runs."""

    def __init__(self, world: World) -> None:
        self.airflow, self.letters = WrittenAirflow(), 0
        self.stage = cast(
            Stage,
            SimpleNamespace(
                control=world.postgres.admin_dsn("control"),
                settings=world.settings,
                topics={"orders": list(GROUPS)},
                shards={
                    shard: world.postgres.admin_dsn(database) for shard, database in SHARDS.items()
                },
                stores={
                    group: world.postgres.admin_dsn(database) for group, database in GROUPS.items()
                },
                broker_faults=SimpleNamespace(letters_waiting=lambda groups: self.letters),
                platform=SimpleNamespace(airflow=SimpleNamespace(api=self.airflow)),
            ),
        )
        self.wait_for(*CALLED)
        self.is_up = True
        self.calls = CallForRuns(self.stage, lambda: self.is_up)

    def wait_for(self, *duties: str, at_once: bool = False) -> None:
        self.stage.runs_wanted = RunsWanted(duties, at_once)

    def look(self) -> list[str]:
        """What one look starts."""
        self.airflow.started = []
        self.calls.look()
        return self.airflow.started


@pytest.fixture
def story(world: World, monkeypatch: pytest.MonkeyPatch) -> Story:
    monkeypatch.setattr(call_for_runs, "LOOK_SECONDS", 0.0)
    # There was a sweep: the first one is called for whatever it finds.
    world.control(
        "INSERT INTO run (duty, scope, token, state, finished_at, policy_version, code_version)"
        " VALUES ('sweep', '', gen_random_uuid(), 'done', now(), '', '')"
    )
    return Story(world)


def ask_for_a_send(world: World, message_id: str) -> None:
    world.control(
        "INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by, state, not_before)"
        " VALUES ('shop_a', 'orders', %s, 2, 'LOST', 'test', 'open', now() - interval '1 second')",
        (message_id,),
    )


def open_case(world: World, kind: str, message_id: str) -> None:
    world.control(
        "WITH c AS (INSERT INTO case_file (kind, topic, summary) VALUES (%s, 'orders', 's') RETURNING case_id)"
        " INSERT INTO case_member (case_id, shard, topic, message_id) SELECT case_id, 'shop_a', 'orders', %s FROM c",
        (kind, message_id),
    )


def test_nothing_starts_when_nothing_is_to_be_done_or_airflow_is_not_up(
    world: World, story: Story
) -> None:
    assert story.look() == []
    world.stub("due")
    story.is_up = False
    assert story.look() == []


def test_due_stubs_call_for_one_reconcile_run(world: World, story: Story) -> None:
    world.stub("due")
    assert story.look() == ["reconcile"]
    story.airflow.running = {"reconcile"}
    assert story.look() == []


def test_a_run_that_has_opened_is_not_called_for_again(world: World, story: Story) -> None:
    world.stub("due")
    world.control(
        "INSERT INTO run (duty, scope, token, policy_version, code_version) VALUES ('reconcile', '', gen_random_uuid(), '', '')"
    )
    assert story.look() == []


def test_what_a_person_decides_or_a_send_was_asked_for_is_not_judged_again(
    world: World, story: Story
) -> None:
    for message_id in ("asked about", "asked for"):
        world.stub(message_id)
    open_case(world, "unknown", "asked about")
    ask_for_a_send(world, "asked for")
    assert "reconcile" not in story.look()


def test_a_run_waits_for_stubs_that_become_due_in_a_moment(world: World, story: Story) -> None:
    world.stub("due")
    world.stub("soon", shard="shop_b")
    world.run("producer_b", "UPDATE message_stub SET next_check_at = now() + interval '5 seconds'")
    assert story.look() == []
    world.run("producer_b", "UPDATE message_stub SET next_check_at = now() + interval '1 minute'")
    assert story.look() == ["reconcile"]


def test_a_run_waits_for_repairs_unless_the_story_waits_for_the_run(
    world: World, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stub("due")
    ask_for_a_send(world, "another")
    assert story.look() == []
    story.wait_for("reconcile", at_once=True)
    assert story.look() == ["reconcile"]
    story.wait_for("reconcile")
    monkeypatch.setitem(call_for_runs.PATIENCE, "reconcile", 0.0)
    assert story.look() == ["reconcile"]


def test_duties_that_the_story_does_not_wait_for_are_not_started(
    world: World, story: Story
) -> None:
    world.stub("due")
    story.letters = 1
    story.wait_for()
    assert story.look() == []
    story.wait_for("triage")
    assert story.look() == ["triage"]


def test_dead_letters_call_for_triage(story: Story) -> None:
    story.letters = 1
    assert story.look() == ["triage"]


def test_what_a_task_should_have_started_is_started_after_a_while(
    world: World, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_for_a_send(world, "lost")
    assert story.look() == []
    monkeypatch.setitem(call_for_runs.PATIENCE, "resend", 0.0)
    assert story.look() == ["resend"]


def test_an_ended_lease_calls_for_a_sweep_also_while_another_store_is_away(
    world: World, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(call_for_runs.PATIENCE, "sweep", 0.0)
    cast(Any, story.stage).stores["billing"] += "_that_is_away"
    world.log("held", "shipping", state="CONSUMING", moved="1 minute")
    assert story.look() == ["sweep"]


def test_what_nobody_foresaw_is_done_after_a_minute(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert story.look() == []
    monkeypatch.setattr(call_for_runs, "LONGEST", 0.0)
    assert story.look() == ["reconcile", "triage", "sweep"]


def test_the_age_of_what_is_due_is_that_of_its_oldest_stub(world: World, story: Story) -> None:
    assert Stage.oldest_due(story.stage) == 0.0
    world.stub("done long ago", status="confirmed", age="9 minutes")
    world.stub("older", shard="shop_b", age="5 minutes")
    world.stub("newer", age="1 minute")
    assert 300.0 <= Stage.oldest_due(story.stage) < 330.0


def test_old_traffic_is_judged_before_its_store_goes_away() -> None:
    ages, runs, wanted = [100.0, 100.0, 100.0], [0, 1], []

    def wants_runs(*duties: str, at_once: bool) -> Any:
        wanted.append((duties, at_once))
        return nullcontext()

    stage = SimpleNamespace(
        now=lambda: None,
        oldest_due=lambda: ages.pop(),
        judged_since=lambda begun: runs.pop(0),
        wants_runs=wants_runs,
        settings=SimpleNamespace(
            policy_for=lambda topic: SimpleNamespace(unknown_horizon=timedelta(minutes=2))
        ),
    )
    judge_old_traffic(cast(Stage, stage))
    assert (len(ages), runs, wanted) == (1, [], [(("reconcile",), True)])
    ages[:] = [40.0]
    judge_old_traffic(cast(Stage, stage))
    assert ages == []


def test_a_parked_key_without_a_case_and_a_case_without_its_key_call_for_the_watch(
    world: World, story: Story
) -> None:
    store = next(iter(GROUPS.values()))
    world.run(
        store,
        "INSERT INTO parked_key (consumer_group, topic, ordering_key, queue_id, state, messages, bytes)"
        " VALUES ('billing', 'orders', 'k', 0, 'PARKED', 1, 2)",
    )
    assert story.look() == ["watch"]
    world.control(
        "INSERT INTO case_file (kind, topic, consumer_group, subject, summary)"
        " VALUES ('key_parked', 'orders', 'billing', 'k', 's')"
    )
    story.wait_for("watch")
    assert story.look() == [], "a person decides"
    world.run(store, "DELETE FROM parked_key")
    assert story.look() == ["watch"]
    world.control("UPDATE case_file SET state = 'closed', closed_at = now()")
    assert story.look() == []
