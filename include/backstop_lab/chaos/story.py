"""Everything that is known about one message, from every database and the broker, and what was going on around it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import psycopg2.extras

from backstop_lab.chaos.stage import Stage

AROUND = 12.0
"""Seconds before the message was made."""
TABLES = {
    "message_stub": "SELECT topic, message_id, status, send_count, refusals, next_check_at, broker, queue_id, queue_offset,"
    " created_at, first_seen_at, attempted_at, sent_at, attempt_token, attempt_deadline, updated_at FROM message_stub",
    "send_attempt": "SELECT * FROM send_attempt",
    "consumer_log": "SELECT * FROM consumer_log",
    "effect": "SELECT * FROM effect",
    "resend_request": "SELECT * FROM resend_request",
    "verdict": "SELECT v.*, r.as_of, r.state AS run_state FROM verdict v JOIN run r USING (run_id)",
}
HOMES = {
    "message_stub": ("shop_a", "shop_b"),
    "send_attempt": ("shop_a", "shop_b"),
    "consumer_log": ("billing", "shipping"),
    "effect": ("billing", "shipping"),
    "resend_request": ("control",),
    "verdict": ("control",),
}


def tell(stage: Stage, topic: str, message_id: str) -> str:
    """The message's rows, table by table, and the events from a little before it was made until it was done with."""
    lines = [f"--- {topic} {message_id}"]
    made: datetime | None = None
    for name, query in TABLES.items():
        for database in HOMES[name]:
            for row in rows(
                stage.urls[database],
                f"{query} WHERE topic = %s AND message_id = %s",
                (topic, message_id),
            ):
                made = row.get("created_at") if name == "message_stub" else made
                lines.append(f"{database} {name}: {said(row)}")
    for event in stage.record.events():
        wall = datetime.fromisoformat(event.get("since_wall") or event["wall"])
        if made is None or -AROUND < (wall - made).total_seconds() < 6 * AROUND:
            lines.append(f"event: {json.dumps(event)}")
    return "\n".join(lines)


def rows(dsn: str, query: str, parameters: tuple[object, ...]) -> list[dict[str, Any]]:
    connection = psycopg2.connect(dsn, connect_timeout=10)
    try:
        with connection.cursor(cursor_factory=psycopg2.extras.RealDictCursor) as cursor:
            cursor.execute(query, parameters)
            return [dict(row) for row in cursor.fetchall()]
    finally:
        connection.close()


def said(row: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name}={value}"
        for name, value in row.items()
        if value is not None and name not in ("content", "headers")
    )
