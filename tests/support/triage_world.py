"""Dead letters as the drain and the classifier leave them, on top of the small system of control_world."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from backstop.config.load import from_mapping
from backstop.model.records import Counts
from backstop.resend.run_once import run_duty as resend_duty
from backstop.runs.run import close_run, open_run
from backstop.triage.decide.apply import decide_and_apply
from backstop.triage.decide.settle_replays import settle_replays
from control_world import World, written_settings
from letters import INSERT, values

CLASSIFY = """
    WITH c AS (
        INSERT INTO cause (fingerprint, template, shown, category, first_seen_at, last_seen_at)
        VALUES (%(fingerprint)s, 'ValueError: <*>', 'ValueError: <*>', %(category)s, now(), now())
        ON CONFLICT (fingerprint) DO UPDATE SET last_seen_at = now() RETURNING cause_id
    )
    UPDATE dead_letter SET cause_id = c.cause_id, category = %(category)s,
        classified_at = clock_timestamp(), classified_by = 'test'
    FROM c WHERE dead_letter_id = %(letter)s
"""


def letter(
    world: World,
    message_id: str | None,
    category: str | None = "transient",
    group: str | None = "billing",
    topic: str | None = "orders",
    *,
    fingerprint: str | None = None,
    invalid: str | None = None,
    **columns: Any,
) -> int:
    """One drained letter; without a category it is not classified."""
    ((number,),) = world.control(INSERT, values(message_id, group, topic, **columns))
    if invalid is not None:
        world.control(
            "UPDATE dead_letter SET invalid = %s WHERE dead_letter_id = %s", (invalid, number)
        )
    if category is not None:
        classify(world, number, category, fingerprint)
    return int(number)


def classify(world: World, number: int, category: str, fingerprint: str | None = None) -> None:
    world.control(
        CLASSIFY,
        {"letter": number, "category": category, "fingerprint": fingerprint or f"1:{category}"},
    )


def dead(
    world: World,
    message_id: str,
    category: str | None = "transient",
    group: str = "billing",
    **columns: Any,
) -> int:
    """A message that was sent once, failed in the group a minute ago, and is a letter now."""
    world.stub(message_id, sends=1)
    world.log(message_id, group, state="FAILED", moved="1 minute")
    return letter(world, message_id, category, group, **columns)


def triage(world: World, *, scope: str = "*", dry_run: bool = False, **options: Any) -> Counts:
    """Settles replays, decides and applies: a run without draining and classifying. One that was killed is taken over."""
    run = open_run(
        world.conn, "triage", scope, world.settings, dry_run=dry_run, dead_after=timedelta(0)
    )
    try:
        settled = settle_replays(world.settings, world.conn, run)
        return settled + decide_and_apply(
            world.settings, world.connections, world.conn, run, **options
        )
    finally:
        world.conn.rollback()
        close_run(world.conn, run, "done", Counts())


def resend(world: World) -> Counts:
    """What was asked for goes out."""
    return resend_duty(world.settings, world.connections)


def letters(world: World) -> dict[str | None, dict[str, Any]]:
    """Every letter by its message's id; the newest of several."""
    rows = world.control(
        "SELECT message_id, to_jsonb(d) - 'content' - 'headers' FROM dead_letter d ORDER BY dead_letter_id"
    )
    return {message_id: dict(row) for message_id, row in rows}


def states(world: World) -> dict[int, str]:
    return dict(world.control("SELECT dead_letter_id, state FROM dead_letter"))


def requests(world: World) -> list[tuple[Any, ...]]:
    return world.control(
        "SELECT message_id, send_number, groups, requested_by, state FROM resend_request ORDER BY message_id, send_number"
    )


def cases(world: World) -> list[tuple[Any, ...]]:
    return world.control(
        "SELECT topic, consumer_group, subject, severity, state FROM case_file ORDER BY case_id"
    )


def look_now(world: World) -> None:
    """Time passes: whatever waits is looked at again, and requests that were postponed are due."""
    world.control("UPDATE dead_letter SET look_at = now() WHERE state = 'open'")
    world.control(
        "UPDATE resend_request SET not_before = now() - interval '1 second' WHERE state = 'open'"
    )


def set_policy(world: World, **changes: Any) -> None:
    """Settings with another policy."""
    written = written_settings()
    written["policy"] |= changes
    world.settings = from_mapping(written)
