"""What the restore commands take into account: when a stub was closed, what is staged, who is at work, how a number ended.

The database "goes back" by giving its rows what they had; no page is followed here (tests/restore does).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from backstop.model.errors import ConfigurationError, DecisionRefused
from backstop.model.records import Counts
from backstop.reconcile.promote import promote
from backstop.restore.consumer import restore_consumer
from backstop.restore.paused import begin, end
from backstop.restore.producer import restore_producer
from backstop.runs.run import Run, close_run, open_run
from control_world import SHARDS, World, servers, world  # noqa: F401

HOUR = timedelta(hours=1)


@pytest.fixture
def quiet(world: World) -> World:
    """A system in which everything is paused."""
    world.control("INSERT INTO pause (topic, paused_by, why) VALUES ('*', 'ann', 'restored')")
    return world


def consumer(world: World, since: datetime) -> Counts:
    return restore_consumer(world.settings, world.connections, world.conn, "billing_db", since)


def producer(world: World, since: datetime) -> Counts:
    return restore_producer(world.settings, world.connections, world.conn, "shop_a", since)


COMMANDS = [pytest.param(consumer, id="consumer"), pytest.param(producer, id="producer")]


def statuses(world: World) -> dict[str, str]:
    return dict(world.run(SHARDS["shop_a"], "SELECT message_id, status FROM message_stub"))


def closed(
    world: World, message_id: str, status: str, *, written: datetime, judged: datetime
) -> None:
    """A stub that a run closed: it judged as of an instant, and promoted later."""
    world.stub(message_id, sends=1, status=status)
    world.run(
        SHARDS["shop_a"],
        "UPDATE message_stub SET updated_at = %s, judged_at = %s WHERE message_id = %s",
        (written, judged, message_id),
    )


def test_a_restored_consumer_has_judged_again_what_was_closed_since_by_when_it_was_written(
    quiet: World,
) -> None:
    since = datetime.now(UTC) - HOUR
    skew = quiet.settings.policy_for("orders").max_clock_skew
    closed(quiet, "confirmed", "confirmed", written=since + HOUR / 2, judged=since + HOUR / 2)
    # Its logs were read before the backup and may have been written into it, or after: the run promoted after the backup.
    closed(
        quiet,
        "judged before, promoted since",
        "confirmed",
        written=since + HOUR / 2,
        judged=since - HOUR,
    )
    # It was exhausted by a log of FAILED that is gone, or because of a log of CONSUMED that is back.
    closed(quiet, "exhausted", "exhausted", written=since + HOUR / 2, judged=since + HOUR / 2)
    closed(
        quiet,
        "by a clock that is behind",
        "confirmed",
        written=since - skew / 2,
        judged=since - skew / 2,
    )
    closed(quiet, "before the backup", "confirmed", written=since - HOUR, judged=since - HOUR)
    closed(quiet, "withdrawn since", "voided", written=since + HOUR / 2, judged=since + HOUR / 2)
    assert consumer(quiet, since)["reopened"] == 4
    assert statuses(quiet) == {
        "confirmed": "pending",
        "judged before, promoted since": "pending",
        "exhausted": "pending",
        "by a clock that is behind": "pending",
        "before the backup": "confirmed",
        "withdrawn since": "voided",
    }


def unfinished(world: World) -> list[Any]:
    return world.control("SELECT subject FROM watermark WHERE starts_with(subject, 'restore ')")


@pytest.mark.parametrize("restore", COMMANDS)
def test_a_restore_from_an_instant_that_lies_ahead_is_refused_and_not_called_done(
    quiet: World, restore: Callable[[World, datetime], Counts]
) -> None:
    """A wrong year: nothing was written since, so nothing would be put back, and sending could go on."""
    with pytest.raises(ConfigurationError, match="lies ahead"):
        restore(quiet, datetime.now(UTC) + timedelta(days=365))
    assert unfinished(quiet) == []


@pytest.mark.parametrize("restore", COMMANDS)
@pytest.mark.parametrize("hours", [0, 14])
def test_a_restore_from_the_earliest_instant_there_is_looks_at_everything_and_ends(
    quiet: World, restore: Callable[[World, datetime], Counts], hours: int
) -> None:
    since = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=hours)))
    closed(quiet, "m", "confirmed", written=datetime.now(UTC) - HOUR, judged=datetime.now(UTC))
    restore(quiet, since)
    assert unfinished(quiet) == []
    assert statuses(quiet) == {"m": "pending" if restore is consumer else "confirmed"}


def test_a_restore_that_ends_leaves_one_from_an_earlier_instant_unfinished(quiet: World) -> None:
    """Two people, and the second found that the backup is older than the first had thought."""
    now = datetime.now(UTC)
    first = begin(quiet.conn, "producer shop_a", now - HOUR)
    second = begin(quiet.conn, "producer shop_a", now - 2 * HOUR)
    end(quiet.conn, "producer shop_a", first)
    assert unfinished(quiet) == [("restore producer shop_a",)]
    end(quiet.conn, "producer shop_a", second)
    assert unfinished(quiet) == []


def half_promoted(world: World, message_id: str) -> None:
    """A run that wrote its answers and died before this stub was told of them."""
    run = open_run(world.conn, "reconcile", "*", world.settings)
    world.control(
        "INSERT INTO verdict_count VALUES (%s, 'orders', 'billing', 'CONFIRMED', 1, 0, 1)",
        (run.run_id,),
    )
    world.control(
        """
        INSERT INTO staged_stub (run_id, stage, shard, topic, message_id, old_status, new_status, send_count, deliveries)
        SELECT run_id, stage, 'shop_a', 'orders', %s, 'pending', 'confirmed', 1, 1 FROM run WHERE run_id = %s
        """,
        (message_id, run.run_id),
    )
    close_run(world.conn, run, "failed", {})


@pytest.mark.parametrize("restore", [None, *COMMANDS])
def test_what_was_decided_before_a_restore_is_not_promoted_after_it(
    quiet: World, restore: Callable[[World, datetime], Counts] | None
) -> None:
    quiet.stub("m", sends=1)
    half_promoted(quiet, "m")
    if restore is not None:
        restore(quiet, datetime.now(UTC) - HOUR)
    run: Run = open_run(quiet.conn, "reconcile", "*", quiet.settings)
    promote(quiet.settings, quiet.connections, quiet.conn, run)
    assert statuses(quiet) == {"m": "confirmed" if restore is None else "pending"}


@pytest.mark.parametrize("restore", COMMANDS)
@pytest.mark.parametrize("duty", ["reconcile", "resend"])
def test_a_restore_waits_for_runs_that_are_alive(
    quiet: World, restore: Callable[[World, datetime], Counts], duty: str
) -> None:
    since = datetime.now(UTC) - HOUR
    closed(quiet, "m", "confirmed", written=since + HOUR / 2, judged=since + HOUR / 2)
    run = open_run(quiet.conn, duty, "*", quiet.settings)
    with pytest.raises(DecisionRefused, match=f"Runs are alive: {duty} {run.run_id}"):
        restore(quiet, since)
    assert statuses(quiet) == {"m": "confirmed"}
    quiet.control("UPDATE duty_lease SET heartbeat_at = clock_timestamp() - interval '3 minutes'")
    restore(quiet, since)


def request(
    world: World, message_id: str, state: str, *, updated: str, deadline: str | None = None
) -> None:
    world.control(
        """
        INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by, state, claim_token,
            claim_deadline, updated_at)
        VALUES ('shop_a', 'orders', %(id)s, 2, 'lost', 'reconcile', %(state)s,
            CASE WHEN %(state)s = 'claimed' THEN gen_random_uuid() END, now() + %(deadline)s::interval,
            now() + %(updated)s::interval)
        """,
        {"id": message_id, "state": state, "updated": updated, "deadline": deadline},
    )


def attempts(world: World, message_id: str) -> list[tuple[Any, ...]]:
    query = "SELECT send_number, outcome, started_at FROM send_attempt WHERE message_id = %s ORDER BY send_number"
    return world.run(SHARDS["shop_a"], query, (message_id,))


def test_a_claim_of_any_age_may_have_taken_its_number_until_it_ended(quiet: World) -> None:
    quiet.stub("m", sends=1)
    request(quiet, "m", "claimed", updated="-3 hours", deadline="-2 minutes")
    assert producer(quiet, datetime.now(UTC) - HOUR)["raised"] == 1
    stub = quiet.stub_now("m")
    ((deadline,),) = quiet.control("SELECT claim_deadline FROM resend_request")
    assert stub["send_count"] == 2
    # The copy may have gone out as late as the claim allowed, and no earlier instant would wait for it long enough.
    assert attempts(quiet, "m")[1:] == [(2, "unknown", deadline)]
    assert datetime.fromisoformat(stub["attempted_at"]) >= deadline


def test_a_number_that_the_broker_refused_stays_refused_and_counts(quiet: World) -> None:
    quiet.stub("refused", sends=1)
    quiet.stub("sent", sends=1)
    for state in ("refused", "sent"):
        request(quiet, state, state, updated="-10 minutes")
    assert producer(quiet, datetime.now(UTC) - HOUR)["raised"] == 2
    found = {
        name: (quiet.stub_now(name)["refusals"], attempts(quiet, name)[1][1])
        for name in ("refused", "sent")
    }
    assert found == {"refused": (1, "refused"), "sent": (0, "unknown")}


def test_a_number_that_was_handed_out_by_a_clock_that_is_behind_is_raised(quiet: World) -> None:
    since = datetime.now(UTC) - HOUR
    quiet.stub("m", sends=1)
    request(quiet, "m", "sent", updated="-1 hour")
    skew = quiet.settings.policy_for("orders").max_clock_skew
    quiet.control("UPDATE resend_request SET updated_at = %s", (since - skew / 2,))
    assert producer(quiet, since)["raised"] == 1
