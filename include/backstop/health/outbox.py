"""Writes the alert of a duty that fails: once, and again only after its next success; of what a person began, for each run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from backstop.named_sql import load

_SQL = load("backstop.health", "queries.sql")
EACH_RUN = frozenset({"decide_case", "replay_incident", "prove"})
"""DAGs whose runs are a person's: each failed one is told, because no later one makes up for it."""


def note_failure(conn: Any, duty: str, title: str, body: str, facts: Mapping[str, str]) -> bool:
    """Stores the alert of a duty that fails and commits; false when it was written before, since the duty's last success.

    `facts`: names only, for channels that take fields.
    """
    with conn, conn.cursor() as cursor:
        if duty in EACH_RUN:
            since = str(facts.get("run", ""))
        else:
            cursor.execute(_SQL["last_success_of"], {"duty": duty})
            since = str(cursor.fetchone()[0])
        cursor.execute(_SQL["failure"], {
            "dedup_key": f"duty/{duty}/failed/{since}", "severity": "warning", "title": title, "body": body,
            "facts": json.dumps(dict(facts)),
        })  # fmt: skip
        return bool(cursor.rowcount)
