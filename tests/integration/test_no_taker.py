"""Messages that no group owes are set aside with a case for their topic, and come back when a group takes them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from tests.integration import test_isolation
from tests.integration.test_isolation import reconcile

from backstop.config.settings import Settings
from backstop.model.errors import StoreUnavailable
from backstop.model.records import Counts, Key
from backstop.reconcile.promote import promote
from backstop.reconcile.revisit import revisit_cases
from backstop.reconcile.run_once import run_once
from backstop.runs.run import close_run, open_run
from backstop.stores.postgresql.audit import PostgresStubAudit
from backstop.stores.postgresql.stubs import PostgresStubs
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from system import System, build_template, settings_dict, system

OLD = timedelta(minutes=30)
"""Beyond the overdue horizon of twenty minutes, within the replay horizon of 45."""


def topics(**groups: Any) -> dict[str, Any]:
    return {"orders": {"broker": "embedded", "mode": "repair", "groups": groups}}


PAID = topics(billing={"tags": ["paid"]})


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with (
        Postgres(tmp_path_factory.mktemp("postgres")) as postgres,
        Valkey(tmp_path_factory.mktemp("valkey"), appendfsync="everysec") as valkey,
    ):
        build_template(postgres)
        with system(postgres, valkey, topics=PAID) as running:
            yield running


def configure(world: System, new_topics: dict[str, Any], **changes: Any) -> None:
    world.settings = Settings.model_validate(settings_dict(topics=new_topics, **changes))


def revisit(world: System) -> Counts:
    conn = world.control()
    run = open_run(conn, "reconcile", "*", world.settings)
    try:
        return revisit_cases(world.settings, world.connections, conn, run)
    finally:
        conn.rollback()
        close_run(conn, run, "done", Counts())
        conn.close()


def statuses(world: System) -> dict[str, str]:
    return dict(world.rows("shop_a", "SELECT message_id, status FROM message_stub"))


def cases(world: System) -> list[tuple[Any, ...]]:
    return world.rows(
        "control",
        "SELECT kind, topic, consumer_group, state, (evidence ->> 'messages')::int FROM case_file"
        " WHERE kind = 'no_taker'",
    )


def set_aside(world: System, **tags: str) -> None:
    reconcile(world, [world.stub(name, tag=tag, age=OLD) for name, tag in tags.items()])


def test_what_no_group_owes_has_one_case_for_its_topic_and_an_alert(world: System) -> None:
    set_aside(world, first="open", second="open")
    assert statuses(world) == {"first": "no_taker", "second": "no_taker"}
    assert cases(world) == [("no_taker", "orders", "*", "open", 2)]
    assert world.rows("control", "SELECT count(*) FROM alert") == [(1,)]
    set_aside(world, third="open")
    assert cases(world) == [("no_taker", "orders", "*", "open", 1)], "the case of the same cause"


def without_groups(world: System) -> list[Key]:
    """A message of a topic that no group takes, and one of another topic that its group did."""
    payments = {"broker": "embedded", "mode": "repair", "groups": ["billing"]}
    configure(world, topics() | {"payments": payments})
    world.broker.create_topic("payments", 1)
    world.broker.create_group("billing", "payments", at="start")
    keys = [world.sent("nobodys", age=OLD), world.sent("done", "payments", age=OLD)]
    world.log(keys[1])
    return keys


def test_a_topic_without_groups_has_its_own_case_and_stops_no_other_topic(world: System) -> None:
    reconcile(world, without_groups(world))
    assert statuses(world) == {"nobodys": "no_taker", "done": "confirmed"}
    assert cases(world) == [("no_taker", "orders", "*", "open", 1)]


def test_a_run_of_spark_judges_a_topic_without_groups_and_the_others(
    world: System, spark: Any
) -> None:
    """It records what it saw of both topics' queues."""
    without_groups(world)
    run_once(world.settings, world.connections, lambda: spark, lambda *_: None)
    assert statuses(world) == {"nobodys": "no_taker", "done": "confirmed"}
    assert cases(world) == [("no_taker", "orders", "*", "open", 1)]
    recorded = world.rows("control", "SELECT DISTINCT broker, topic FROM queue_epoch ORDER BY 2")
    assert recorded == [("embedded", "orders"), ("embedded", "payments")]


def test_it_is_pending_again_when_a_group_that_owes_it_is_configured(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_aside(world, mine="open", nobodys="lost")
    looked: list[str] = []
    whole = PostgresStubAudit.no_taker_between

    def counted(self: Any, topic: str, *arguments: Any) -> Any:
        looked.append(topic)
        return whole(self, topic, *arguments)

    monkeypatch.setattr(PostgresStubAudit, "no_taker_between", counted)
    assert "taken_up" not in revisit(world) and not looked, "its groups are as they were"
    configure(world, topics(billing={"tags": ["paid", "open"]}))
    assert revisit(world)["taken_up"] == 1
    assert statuses(world) == {"mine": "pending", "nobodys": "no_taker"}
    assert [case[3] for case in cases(world)] == ["open"], "one message is still nobody's"
    looked.clear()
    revisit(world)
    assert not looked, "the groups were looked at"
    world.rows("shop_a", "UPDATE message_stub SET next_check_at = now() WHERE status = 'pending'")
    reconcile(world, [Key("orders", "mine")])
    assert statuses(world)["mine"] == "pending"
    assert world.rows("control", "SELECT message_id, consumer_group FROM verdict") == [
        ("mine", "billing")
    ]
    configure(world, topics(billing={"tags": ["paid", "open", "lost"]}))
    revisit(world)
    assert statuses(world) == {"mine": "pending", "nobodys": "pending"}
    assert [case[3] for case in cases(world)] == ["closed"]
    assert world.rows("control", "SELECT count(*) FROM no_taker") == [(0,)]


def test_a_group_that_came_between_judgement_and_promotion_takes_up_what_was_set_aside(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of a run in Airflow is a process that reads the settings anew: what one judged, another promotes."""
    before = world.settings
    configure(world, topics(billing={"tags": ["paid", "open"]}))
    after, world.settings = world.settings, before
    with monkeypatch.context() as patched:
        patched.setattr(
            test_isolation,
            "promote",
            lambda _, connections, conn, run: promote(after, connections, conn, run),
        )
        set_aside(world, mine="open")
    assert statuses(world) == {"mine": "no_taker"}
    world.settings = after
    assert revisit(world)["taken_up"] == 1
    assert statuses(world) == {"mine": "pending"}


def test_settings_that_were_wrong_for_a_judgement_alone_leave_nothing_aside(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic has messages aside already, so that which groups it had is written down: by settings that never changed."""
    configure(world, topics(billing={"tags": ["paid", "open"]}))
    right = world.settings
    set_aside(world, nobodys="lost")
    configure(world, PAID)
    with monkeypatch.context() as patched:
        patched.setattr(
            test_isolation,
            "promote",
            lambda _, connections, conn, run: promote(right, connections, conn, run),
        )
        set_aside(world, mine="open")
    assert statuses(world) == {"mine": "no_taker", "nobodys": "no_taker"}
    world.settings = right
    assert revisit(world)["taken_up"] == 1
    assert statuses(world) == {"mine": "pending", "nobodys": "no_taker"}


def test_a_group_that_comes_later_takes_up_the_past_only_where_it_is_said(world: System) -> None:
    set_aside(world, mine="open")
    configure(world, topics(billing={"tags": ["paid"]}, shipping={}))
    revisit(world)
    assert statuses(world) == {"mine": "no_taker"}
    store = {"store": "shipping_db", "duplicates": "guard", "progress": "acknowledged"}
    configure(
        world,
        topics(billing={"tags": ["paid"]}, shipping={}),
        groups={
            "billing": {**store, "store": "billing_db"},
            "shipping": {**store, "active_from": "2020-01-01T00:00:00+00:00"},
        },
    )
    revisit(world)
    assert statuses(world) == {"mine": "pending"}


def test_a_shard_that_cannot_be_read_is_looked_at_by_the_next_run(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_aside(world, mine="open")
    configure(world, topics(billing={"tags": ["open"]}))
    with monkeypatch.context() as patched:
        patched.setattr(PostgresStubAudit, "no_taker_between", lambda *_: 1 / 0)
        with pytest.raises(StoreUnavailable, match="untaken stubs of shard shop_a"):
            revisit(world)
    assert statuses(world) == {"mine": "no_taker"}
    revisit(world)
    assert statuses(world) == {"mine": "pending"}


def test_what_a_run_set_aside_and_a_shard_has_not_heard_of_is_still_to_be_looked_at(
    world: System,
) -> None:
    set_aside(world, mine="open")
    world.rows(
        "control",
        "INSERT INTO staged_stub (run_id, stage, shard, topic, message_id, old_status, new_status, send_count, deliveries)"
        " SELECT run_id, stage, 'shop_b', 'orders', 'away', 'pending', 'no_taker', 0, 0 FROM run ORDER BY run_id DESC LIMIT 1",
    )
    configure(world, topics(billing={"tags": ["paid", "open"]}))
    assert revisit(world)["taken_up"] == 1
    assert [case[3] for case in cases(world)] == ["open"], "one of its messages is on its way"
    world.rows("control", "DELETE FROM staged_stub")
    revisit(world)
    assert [case[3] for case in cases(world)] == ["closed"]
    assert world.rows("control", "SELECT * FROM no_taker") == []


def test_a_shard_that_a_judgement_misses_is_looked_at_by_the_next_run(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: Any) -> Any:
        raise StoreUnavailable("too many clients", unaffected="", next_step="")

    set_aside(world, mine="open")
    configure(world, topics(billing={"tags": ["open"]}))
    with monkeypatch.context() as patched:
        patched.setattr(PostgresStubs, "stub_table", silent)
        with pytest.raises(StoreUnavailable, match="untaken stubs of shard shop_a"):
            revisit(world)
    assert statuses(world) == {"mine": "no_taker"}
    revisit(world)
    assert statuses(world) == {"mine": "pending"}
