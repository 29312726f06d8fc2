"""The whole over a real ActiveMQ Classic: verdicts by time, and dead letters that its own clients made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from activemq import ActiveMQ as Server
from activemq_world import GROUP, TOPIC, Listener, World, resend, triage, until, world_of
from backstop.model.records import Counts
from backstop.reconcile.run_once import run_once
from backstop.runs.run import Run
from backstop_lab.chaos.tcp_proxy import Proxy
from backstop_lab.servers.postgres import Postgres


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("activemq")) as running:
        yield running


@pytest.fixture
def world(postgres: Postgres, server: Server) -> Iterator[World]:
    with world_of(postgres, server) as made:
        yield made


def reconcile(world: World, spark: Any) -> Counts:
    def no_audit(run: Run, suites: Sequence[str]) -> None:
        """The suites have tests of their own."""

    world.due()
    return run_once(world.settings, world.connections, lambda: spark, no_audit)


def test_a_message_is_backlogged_while_its_group_is_down_lost_when_it_is_taken_away_and_confirmed_when_consumed(
    world: World, spark: Any
) -> None:
    world.send("m")
    world.promise("never sent")
    reconcile(world, spark)
    assert world.verdicts() == {"m": "BACKLOGGED", "never sent": "UNSENT"}

    beans = world.server.jolokia()
    [shown] = beans.run(beans.queue_bean(world.queue), "browse()")
    assert (
        beans.run(
            beans.queue_bean(world.queue), "removeMessage(java.lang.String)", shown["JMSMessageID"]
        )
        is True
    )
    reconcile(world, spark)
    assert world.verdicts()["m"] == "LOST"
    requests = world.rows(
        "control", "SELECT message_id, send_number FROM resend_request ORDER BY message_id"
    )
    assert requests == [("m", 2), ("never sent", 1)]

    assert resend(world)["published"] == 2
    reconcile(world, spark)
    assert world.verdicts()["m"] == "BACKLOGGED", "the new copy is in the queue"
    assert sorted(world.consume()) == ["m", "never sent"]
    counts = reconcile(world, spark)
    assert counts["confirmed"] == 2
    assert world.rows("shop_a", "SELECT DISTINCT status FROM message_stub") == [("confirmed",)]


def test_a_message_in_a_consumers_hands_is_not_lost_however_long_it_works(
    world: World, spark: Any
) -> None:
    world.send("m")
    with world.broker.subscribe(GROUP, [TOPIC], "slow") as subscription:
        assert len(subscription.fetch(1, timedelta(seconds=10))) == 1
        reconcile(world, spark)
    assert world.verdicts() == {"m": "BACKLOGGED"}


def test_a_message_that_fails_again_and_again_hides_no_loss(world: World, spark: Any) -> None:
    """It waits in its client's hands or in the queue: its id is known, and the group is past the other one."""
    for message_id in ("poison", "lost"):
        world.send(message_id)
    with world.broker.subscribe(GROUP, [TOPIC], "failing") as subscription:
        got: dict[str, Any] = {}
        until(
            "both",
            lambda: (
                got.update(
                    {
                        one.message.message_id: one
                        for one in subscription.fetch(2, timedelta(seconds=1))
                    }
                )
                or len(got) == 2
            ),
        )
        subscription.acknowledge([got["lost"]])
        for _ in range(2):
            subscription.hand_back(got["poison"], after=timedelta(0), counts=True)
            until(
                "it comes again",
                lambda: (
                    got.update(
                        {
                            one.message.message_id: one
                            for one in subscription.fetch(1, timedelta(seconds=1))
                        }
                    )
                    or got["poison"].deliveries > 1
                ),
            )
            # What was acknowledged may still have been on its way to its log: so long the group is not past it.
            until(
                "the loss", lambda: (reconcile(world, spark), world.verdicts()["lost"] == "LOST")[1]
            )
            assert world.verdicts()["poison"] == "BACKLOGGED"
            assert world.rows("control", "SELECT message_id, send_number FROM resend_request") == [
                ("lost", 2)
            ]


@pytest.fixture
def link(server: Server) -> Iterator[Proxy]:
    proxy = Proxy()
    proxy.add("broker", server.openwire_port)
    yield proxy
    proxy.close()


def cut(link: Proxy) -> None:
    link.spoil("broker", "silence")
    link.mend("broker", cut=True)


def test_false_dead_letters_of_a_failover_client_are_discarded_with_proof_and_undone_ones_are_replayed_and_do_not_bounce(
    world: World, link: Proxy, tmp_path: Path
) -> None:
    listener = Listener(world, tmp_path, link.links["broker"].port)
    try:
        for number, (message_id, ends) in enumerate(
            {"good": "done", "bad": "fail", "gone": "abandon"}.items(), 1
        ):
            world.send(message_id)
            listener.hears(f"started {message_id}")
            cut(link)
            listener.hears("resumed", number + 1)  # the first one was the beginning
            listener.end(ends, message_id)
            listener.hears(("done " if ends == "done" else "failed ") + message_id)
            # It is given it again, and takes that for a duplicate, whatever became of the first: the broker buries it.
            until(f"the dead letter of {message_id}", lambda m=message_id: m in world.dead())
        logs = [world.log(message_id) for message_id in ("good", "bad", "gone")]
        assert logs == [("CONSUMED", 1), ("FAILED", 1), ("CONSUMING", 1)]
        assert world.depth() == 0

        # Time passes: no worker can still be at it.
        world.rows(
            "billing_db",
            "UPDATE consumer_log SET updated_at = now() - interval '1 minute', lease_expires_at = now() - interval '1 minute'",
        )
        counts = triage(world)
        assert (counts["stored"], counts["discarded"], counts["replaying"]) == (3, 1, 2)
        letters = world.rows(
            "control",
            "SELECT message_id, category, state, cause_text, proof FROM dead_letter ORDER BY message_id",
        )
        assert [row[:3] for row in letters] == [
            ("bad", "transient", "replaying"),
            ("gone", "duplicate_suppressed", "replaying"),
            ("good", "already_confirmed", "discarded"),
        ]
        assert all("Suppressing duplicate delivery on connection" in row[3] for row in letters)
        assert letters[2][4]["log"] == "CONSUMED"
        assert world.dead() == [], "what is stored has left the broker"

        # The same connection is still open: under a new broker id the copy is not taken for a duplicate.
        # Until max_send_duration after the first send the copy that died might still be on its way.
        until(
            "both replays",
            lambda: (
                resend(world)
                and world.rows(
                    "control",
                    "SELECT 1 FROM resend_request WHERE state = 'sent' HAVING count(*) = 2",
                )
            ),
        )
        for message_id in ("bad", "gone"):
            listener.end("done", message_id)
            listener.hears(f"done {message_id}")
            assert world.log(message_id) == ("CONSUMED", 2)
        until("the acknowledgements", lambda: world.depth() == 0)
        assert world.dead() == [], "no replay bounced"
        assert triage(world).get("stored", 0) == 0
        states = world.rows(
            "control", "SELECT state, count(*) FROM dead_letter GROUP BY state ORDER BY state"
        )
        assert states == [("discarded", 1), ("replayed", 2)]
    finally:
        listener.close()
