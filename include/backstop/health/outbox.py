"""Writes the alert of a duty that fails: once, and again only after its next success."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from backstop.named_sql import load

_SQL = load("backstop.health", "queries.sql")


def note_failure(conn: Any, duty: str, title: str, body: str, facts: Mapping[str, str]) -> bool:
    """Stores the alert of a duty that fails and commits; false when it was written before, since the duty's last success.

    `facts`: names only, for channels that take fields.
    """
    with conn, conn.cursor() as cursor:
        cursor.execute(_SQL["last_success_of"], {"duty": duty})
        cursor.execute(_SQL["failure"], {
            "dedup_key": f"duty/{duty}/failed/{cursor.fetchone()[0]}", "severity": "warning", "title": title, "body": body,
            "facts": json.dumps(dict(facts)),
        })  # fmt: skip
        return bool(cursor.rowcount)
