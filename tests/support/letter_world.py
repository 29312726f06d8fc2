"""Dead letters in the databases of the tests: rows before, causes and categories after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from backstop.checks.run import run_suite
from backstop.control.connection import connect
from backstop.model.records import Counts
from backstop.runs.run import Run
from backstop.triage.causes.classify import classify_dead_letters
from backstop.triage.causes.promote_causes import promote_causes
from resend_world import TOPIC, World

GROUP = "billing"
LIMIT, FAILED = "delivery limit", "handler failed"
KEY_ERROR = "KeyError: 'total'"


def letter(
    world: World,
    message_id: str | None,
    cause: str = FAILED,
    error: str = "",
    *,
    topic: str | None = TOPIC,
    group: str | None = GROUP,
    invalid: str | None = None,
    died: str = "2026-11-21 10:00:00+00",
) -> int:
    ((run_id,),) = world.sql(
        "control",
        """
        INSERT INTO run (duty, scope, token, policy_version, code_version, state, finished_at)
        VALUES ('triage', 'before', gen_random_uuid(), 'p', 'c', 'done', now()) RETURNING run_id""",
    )
    ((batch,),) = world.sql(
        "control",
        """
        INSERT INTO drain_batch (run_id, broker, queue, letters, acknowledged_at) VALUES (%s, 'embedded', 'q', 1, now())
        RETURNING batch_id""",
        [run_id],
    )
    ((found,),) = world.sql(
        "control",
        """
        INSERT INTO dead_letter (batch_id, broker, queue, broker_id, consumer_group, topic, message_id, headers, content,
            content_bytes, cause_text, error, died_at, invalid)
        VALUES (%s, 'embedded', 'q', gen_random_uuid()::text, %s, %s, %s, '{}', '', 0, %s, %s, %s, %s)
        RETURNING dead_letter_id""",
        [batch, group, topic, message_id, cause, error, died, invalid],
    )
    return int(found)


def log(
    world: World,
    message_id: str,
    state: str,
    *,
    group: str = GROUP,
    error: str | None = None,
    conflicts: int = 0,
) -> None:
    world.sql(
        f"consumer_{group}",
        """
        INSERT INTO consumer_log (consumer_group, topic, message_id, state, consumed_at, updated_at, last_error, conflicts)
        VALUES (%s, %s, %s, %s, CASE WHEN %s = 'CONSUMED' THEN now() END, now(), %s, %s)""",
        [group, TOPIC, message_id, state, state, error, conflicts],
    )


@contextmanager
def triage(world: World, *topics: str) -> Iterator[tuple[Any, Run]]:
    with world.run(*topics, duty="triage") as run:
        control = connect(world.settings, world.connections)
        try:
            yield control, run
        finally:
            control.close()


def classify(world: World, *topics: str, audit: Path | None = None) -> Counts:
    with triage(world, *topics) as (control, run):
        counts = classify_dead_letters(control, world.settings, world.connections, run)
        if audit is not None:
            run_suite("causes", world.urls["backstop_control"], run.run_id, None, audit)
        return counts + promote_causes(control, run)


def categories(world: World) -> dict[str, str]:
    return dict(world.sql("control", "SELECT message_id, category FROM dead_letter ORDER BY 1"))


def causes(world: World) -> dict[str, tuple[str, int]]:
    """Template -> category and count, of causes that have letters."""
    rows = world.sql(
        "control", "SELECT template, category, dead_letters FROM cause WHERE dead_letters > 0"
    )
    assert len({template for template, _, _ in rows}) == len(rows)
    return {template: (category, count) for template, category, count in rows}


def counts_are_right(world: World) -> bool:
    ((wrong,),) = world.sql(
        "control",
        """SELECT count(*) FROM cause c WHERE c.dead_letters <>
        (SELECT count(*) FROM dead_letter d WHERE d.cause_id = c.cause_id)""",
    )
    return bool(wrong == 0)


def rule(name: str, category: str, pattern: str, where: str = "any") -> Mapping[str, str]:
    return {"name": name, "category": category, "pattern": pattern, "where": where}
