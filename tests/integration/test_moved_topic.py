"""A topic that moves to another broker: its copies are judged where they went to, and asked about when that broker is gone."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from backstop.brokers.open import open_broker
from backstop.brokers.redis_streams import Keys, RedisStreams
from backstop.cases.open import open_case
from backstop.config.load import from_mapping
from backstop.decisions.decide import decide
from backstop.due.probes import probes_of
from backstop.evidence.judge_by_key import Judge
from backstop.model.errors import BrokerUnavailable, DecisionRefused
from backstop.model.records import Key, Message, Outcome
from backstop.reconcile.promote import promote
from backstop.reconcile.revisit import revisit_cases
from backstop.runs.run import open_run
from backstop.runs.scope import name_of
from backstop.triage.count_due import count_due
from backstop.triage.drain.drain import drain_all
from control_world import World, servers, world, written_settings  # noqa: F401


def moved_settings() -> dict[str, Any]:
    """Every topic at the broker `second`, with `embedded` still configured."""
    content = written_settings()
    embedded = content["brokers"]["embedded"]
    content["brokers"]["second"] = {
        **embedded,
        "options": {**embedded["options"], "prefix": "second"},
    }
    for topic in content["topics"].values():
        topic["broker"] = "second"
    return content


def verdicts(world: World, content: dict[str, Any], message_id: str) -> set[tuple[str, str, bool]]:
    with Judge(from_mapping(content), world.connections, world.conn) as judge:
        return {
            (str(one.verdict), one.reason, one.eligible)
            for one in judge.judge([Key("orders", message_id)])
        }


def test_a_copy_is_judged_by_the_broker_that_it_went_to(world: World) -> None:
    moved = moved_settings()
    removed = moved_settings()
    del removed["brokers"]["embedded"]
    with open_broker(from_mapping(moved), world.connections, "second") as second:
        second.create_topic("orders", 2)
        for group in ("billing", "shipping"):
            second.create_group(group, "orders", "start")
    with open_broker(world.settings, world.connections, "embedded") as old:
        (receipt,) = old.publish([Message("orders", "acknowledged", b"{}")])
        assert receipt.outcome is Outcome.SENT and receipt.position is not None
        at = receipt.position
    for message_id in ("acknowledged", "unknown"):
        world.stub(message_id, sends=1)
    world.run("producer_a", "UPDATE message_stub SET broker = 'embedded'")
    world.run(
        "producer_a",
        """
        UPDATE message_stub SET sent_at = attempted_at, queue_id = %s, queue_offset = %s, queue_epoch = %s
        WHERE message_id = 'acknowledged'""",
        (at.queue_id, at.offset, at.epoch),
    )
    # Nobody has taken it from the old broker yet, and the new one is empty.
    assert verdicts(world, moved, "acknowledged") == {("BACKLOGGED", "ahead_of_group", False)}
    assert verdicts(world, moved, "unknown") == {("UNSENT", "not_stored", True)}, (
        "the old broker is past that instant"
    )
    for message_id in ("acknowledged", "unknown"):
        assert verdicts(world, removed, message_id) == {("UNKNOWN", "new_epoch", False)}
    # A person states that nothing comes from there any more: each copy is judged by the time of the topic's broker.
    for case_id, content in ((1, moved), (1, removed)):
        settings = from_mapping(content)
        with world.conn, world.conn.cursor() as cur:
            open_case(
                cur,
                kind="new_epoch",
                topic="orders",
                group="billing",
                subject="",
                severity="critical",
                summary="s",
                evidence={},
                members=[("shop_a", "orders", "acknowledged", "billing")],
                run_id=None,
            )
        for wrong in ("second", "nowhere", None):
            with pytest.raises(DecisionRefused, match="other brokers: embedded"):
                decide(
                    world.conn,
                    settings,
                    world.connections,
                    case_id,
                    "drained",
                    "ann",
                    "it is gone",
                    {"broker": wrong},
                )
        if content is moved:
            with pytest.raises(DecisionRefused, match=r"is in backstop\.yaml"):
                decide(
                    world.conn,
                    settings,
                    world.connections,
                    case_id,
                    "drained",
                    "ann",
                    "it is gone",
                    {"broker": "embedded"},
                )
            # A row that somebody wrote by hand does not outweigh what that broker itself says either.
            world.control("INSERT INTO drained_broker VALUES ('orders', 'embedded', 1, 'ann', 'w')")
            assert verdicts(world, content, "acknowledged") == {
                ("BACKLOGGED", "ahead_of_group", False)
            }
            world.control("DELETE FROM drained_broker")
            continue
        decide(
            world.conn,
            settings,
            world.connections,
            case_id,
            "drained",
            "ann",
            "it is gone",
            {"broker": "embedded"},
        )
        assert verdicts(world, content, "acknowledged") == {("LOST", "passed_over", True)}
        assert verdicts(world, content, "unknown") == {("UNSENT", "not_stored", True)}
        world.control("DELETE FROM drained_broker")
    # Back at that broker, the topic's copies are judged there again.
    world.control("INSERT INTO drained_broker VALUES ('orders', 'embedded', 1, 'ann', 'w')")
    run = open_run(world.conn, "reconcile", "*", world.settings)
    revisit_cases(world.settings, world.connections, world.conn, run)
    assert world.control("SELECT * FROM drained_broker") == []


def test_of_each_broker_the_last_look_that_found_no_retry_waiting_is_kept(world: World) -> None:
    """A group has had messages to take again at the broker that its topic left for longer than history is kept."""
    world.control(
        """
        WITH r AS (INSERT INTO run (duty, scope, token, dry_run, policy_version, code_version)
            VALUES ('reconcile', '*', gen_random_uuid(), false, '', '') RETURNING run_id)
        INSERT INTO progress_history (consumer_group, broker, topic, queue_id, epoch, next_offset, passed_until, retry_pending,
            recorded_at, run_id)
        SELECT 'billing', broker, 'orders', 0, 'e', 1, now(), waiting, now() - hours * interval '1 hour', run_id
        FROM r, (VALUES ('embedded', 0, 901), ('embedded', 0, 900), ('embedded', 7, 899), ('embedded', 7, 0),
            ('second', 0, 900), ('second', 0, 0)) AS v (broker, waiting, hours)"""
    )
    run = open_run(world.conn, "reconcile", "*", world.settings)
    promote(world.settings, world.connections, world.conn, run)
    kept = world.control(
        "SELECT broker, retry_pending, round(extract(epoch FROM now() - recorded_at) / 3600)::int"
        " FROM progress_history ORDER BY 1, 3 DESC"
    )
    assert kept == [("embedded", 0, 900), ("embedded", 7, 0), ("second", 0, 0)]


class OneMaster(RedisStreams):
    """A broker of several servers, of which only m1 is known now."""

    def servers(self, topic: str) -> frozenset[str]:
        return frozenset({"m1"})


@pytest.mark.parametrize("topics", [None, ["orders"]])
def test_what_died_at_the_broker_that_a_topic_left_is_found_and_stored_once(
    world: World, topics: list[str] | None
) -> None:
    settings, queue = from_mapping(moved_settings()), Keys().dead("orders", "billing")
    url = world.connections.url("backstop_broker")
    run = open_run(world.conn, "triage", name_of(topics), settings)
    with redis.Redis.from_url(url) as server, OneMaster(url) as one_of_two:
        server.xadd(queue, {"origin-topic": "orders", "origin-group": "billing"})
        assert count_due(settings, world.connections, world.conn, run).queues == (queue,)
        looked_at = {probe.name for probe in probes_of(settings, world.connections)}
        assert {"broker embedded", "broker second"} <= looked_at
        world.control(
            "INSERT INTO broker_server VALUES ('embedded', 'redis_streams', 'orders', 'm2')"
        )
        with pytest.raises(BrokerUnavailable, match="embedded does not name m2 any more"):
            drain_all(
                settings, world.connections, world.conn, run, brokers={"embedded": one_of_two}
            )
        assert server.xlen(queue) == 1
        world.control("DELETE FROM broker_server")
        counts = drain_all(settings, world.connections, world.conn, run)
        assert (counts["stored"], server.xlen(queue)) == (1, 0)
    stored = world.control("SELECT broker, queue, consumer_group FROM dead_letter")
    assert stored == [("embedded", queue, "billing")]
