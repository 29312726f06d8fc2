"""The whole duty on a real broker: letters that real consumers made are drained, classified, decided, and their checks hold."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from backstop.brokers.open import open_broker
from backstop.checks.run import run_suite, run_suites
from backstop.decisions.decide import decide
from backstop.model.errors import AuditFailed, RunRefused
from backstop.model.records import Message
from backstop.runs.run import Run, open_run
from backstop.triage import run_once
from control_world import World, servers, world  # noqa: F401
from triage_world import cases, letters, look_now, requests, resend

POISON = "ValueError: the amount is not a number"
AWAY = "OperationalError: connection to server at 10.0.0.7, port 5432 failed: Connection refused"


def dies(world: World, errors: dict[str, str], group: str = "billing") -> None:
    """Each message is sent once and fails in the group until the broker gives up; then some time passes."""
    for message_id in errors:
        world.stub(message_id, sends=1)
        world.log(message_id, group, state="FAILED", moved="1 minute")
    with open_broker(world.settings, world.connections, "embedded") as broker:
        broker.publish(
            [
                Message("orders", message_id, b"{}", {"backstop-message-id": message_id})
                for message_id in errors
            ]
        )
        subscription = broker.subscribe(group, ["orders"], "worker")
        left, deadline = len(errors) * 5, time.monotonic() + 60
        while left and time.monotonic() < deadline:
            for one in subscription.fetch(100, timedelta(milliseconds=50)):
                subscription.hand_back(
                    one, after=timedelta(0), counts=True, error=errors[one.message.message_id]
                )
                left -= 1
        subscription.close()
        assert left == 0 and len(list(broker.dead_letters(group))) == len(errors)


def triage(world: World, docs: Path | None = None, **options: Any) -> dict[str, int]:
    def audit(run: Run, suites: Sequence[str]) -> None:
        assert docs is not None
        run_suites(suites, world.connections.url(world.settings.control), run.run_id, None, docs)

    return run_once.run_duty(
        world.settings, world.connections, audit=audit if docs else None, **options
    )


def test_letters_of_real_consumers_go_the_whole_way_and_every_check_holds(
    world: World, tmp_path: Path
) -> None:
    dies(world, {"poison": POISON, "away": AWAY, "false": AWAY})
    world.run(
        "consumer_billing",
        "UPDATE consumer_log SET state = 'CONSUMED', consumed_at = now() WHERE message_id = 'false'",
    )
    counts = triage(world, tmp_path)
    assert {
        name: counts.get(name) for name in ("stored", "escalated", "replaying", "discarded")
    } == {
        "stored": 3,
        "escalated": 1,
        "replaying": 1,
        "discarded": 1,
    }
    found = letters(world)
    assert {name: (one["state"], one["category"]) for name, one in found.items()} == {
        "poison": ("open", "poison"),
        "away": ("replaying", "transient"),
        "false": ("discarded", "already_confirmed"),
    }
    assert resend(world)["published"] == 1
    assert triage(world)["replayed"] == 1
    assert world.control(
        "SELECT counts ->> 'replayed' FROM run WHERE duty = 'triage' ORDER BY run_id DESC LIMIT 1"
    ) == [("1",)]
    ((case_id, fingerprint),) = world.control("SELECT case_id, subject FROM case_file")
    assert world.control("SELECT category FROM cause WHERE fingerprint = %s", (fingerprint,)) == [
        ("poison",)
    ]
    decide(world.conn, world.settings, world.connections, case_id, "discard", "ann", "a test", {})
    assert cases(world)[0][4] == "closed"
    assert world.control("SELECT suite, passed FROM data_check ORDER BY suite") == [
        ("causes", True),
        ("dead_letters_decided", True),
        ("dead_letters_drained", True),
    ]


def test_a_dry_run_of_the_duty_takes_nothing_from_the_broker(world: World) -> None:
    dies(world, {"m": POISON})
    triage(world, dry_run=True)
    assert letters(world) == {}
    with open_broker(world.settings, world.connections, "embedded") as broker:
        assert len(list(broker.dead_letters("billing"))) == 1


def test_a_second_run_of_the_same_scope_is_refused(world: World) -> None:
    open_run(world.conn, "triage", "*", world.settings)
    with pytest.raises(RunRefused):
        triage(world)


BROKEN = {
    "replaying_has_request": "DELETE FROM resend_request",
    "escalated_has_case": "UPDATE case_file SET state = 'closed', closed_at = now()",
    "case_has_alert": "UPDATE alert SET ended = 'given_up', ended_at = now(), delivered_at = NULL",
    "no_poison_by_machine": "UPDATE dead_letter SET category = 'poison' WHERE state = 'replaying'",
    "decided_or_waits": "UPDATE dead_letter SET decided_at = NULL WHERE state = 'open'",
    "discarded_has_proof": "UPDATE dead_letter SET proof = '{}' WHERE state = 'discarded'",
}


def test_each_check_of_what_was_decided_fails_when_it_is_broken(
    world: World, tmp_path: Path
) -> None:
    dies(world, {"poison": POISON, "away": AWAY, "false": AWAY})
    world.run(
        "consumer_billing",
        "UPDATE consumer_log SET state = 'CONSUMED', consumed_at = now() WHERE message_id = 'false'",
    )
    triage(world)
    assert len(requests(world)) == 1
    look_now(world)
    run = open_run(world.conn, "triage", "*", world.settings)
    world.control("UPDATE dead_letter SET closed_at = now() WHERE state = 'discarded'")
    for statement in BROKEN.values():
        world.control(statement)
    with pytest.raises(AuditFailed) as failed:
        run_suite(
            "dead_letters_decided",
            world.connections.url(world.settings.control),
            run.run_id,
            None,
            tmp_path,
        )
    assert {name for name in BROKEN if name in failed.value.what} == set(BROKEN)
