"""Rows of drained dead letters, as the drain would have stored them."""

from __future__ import annotations

import uuid
from typing import Any

INSERT = """
    WITH r AS (
        INSERT INTO run (duty, token, policy_version, code_version, state, finished_at)
        VALUES ('triage', gen_random_uuid(), '-', '-', 'done', clock_timestamp()) RETURNING run_id
    ), b AS (
        INSERT INTO drain_batch (run_id, broker, queue, letters, acknowledged_at)
        SELECT run_id, 'embedded', %(queue)s, 1, clock_timestamp() FROM r RETURNING batch_id
    )
    INSERT INTO dead_letter (batch_id, broker, queue, broker_id, consumer_group, topic, message_id, headers, content,
        content_bytes, cause_text, error, deliveries, died_at, state, shard, send_number, proof, decided_by, closed_at)
    SELECT batch_id, 'embedded', %(queue)s, %(broker_id)s, %(group)s, %(topic)s, %(message_id)s, '{}', 'content', 7,
        %(cause)s, %(error)s, 5, clock_timestamp() - %(age)s::interval, %(state)s,
        CASE WHEN %(state)s IN ('replaying', 'replayed') THEN 'shop_a' END,
        CASE WHEN %(state)s IN ('replaying', 'replayed') THEN %(send_number)s END,
        CASE WHEN %(state)s = 'discarded' THEN '{"log": "CONSUMED"}'::jsonb END,
        CASE WHEN %(state)s = 'discarded' THEN 'triage' END,
        CASE WHEN %(state)s IN ('replayed', 'discarded') THEN clock_timestamp() END
    FROM b RETURNING dead_letter_id
"""


def values(
    message_id: str | None,
    group: str | None = "billing",
    topic: str | None = "orders",
    *,
    state: str = "open",
    age: str = "1 minute",
    send_number: int = 2,
    cause: str = "delivery limit",
    error: str = "boom",
) -> dict[str, Any]:
    """What INSERT takes; `age`: how long ago it died."""
    return {
        "message_id": message_id,
        "group": group,
        "topic": topic,
        "state": state,
        "age": age,
        "send_number": send_number,
        "cause": cause,
        "error": error,
        "queue": f"{topic}/{group}",
        "broker_id": uuid.uuid4().hex,
    }
