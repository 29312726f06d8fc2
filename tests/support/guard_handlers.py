"""The effects of the guard's fault tests, in each of the three ways of doing work once."""

from __future__ import annotations

from typing import Any

import psycopg2

from backstop.client import Row
from client_world import GROUP

TABLES = """
CREATE TABLE downstream (message_id text PRIMARY KEY, fence bigint NOT NULL, applied integer NOT NULL DEFAULT 1);
CREATE TABLE account (message_id text PRIMARY KEY, applied integer NOT NULL DEFAULT 0)
"""


def insert_effect(connection: Any, message: Any, work: Any) -> None:
    """One more row each time: whatever is done twice shows."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO effect VALUES (%s, %s, %s, %s)",
            (message.topic, message.message_id, GROUP, work.fence),
        )


def apply_under_fence(dsn: str, message: Any, work: Any) -> None:
    """Another system, which refuses a fence that is not greater than the last one that it saw. `applied` counts."""
    connection = psycopg2.connect(dsn)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO downstream (message_id, fence) VALUES (%s, %s) ON CONFLICT (message_id) DO UPDATE"
                " SET fence = excluded.fence, applied = downstream.applied + 1 WHERE downstream.fence < excluded.fence",
                (message.message_id, work.fence),
            )
    finally:
        connection.close()


def apply_under_lock(connection: Any, message: Any) -> Row:
    """The business row is locked, looked at, and changed only when it was not."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT applied FROM account WHERE message_id = %s FOR UPDATE", (message.message_id,)
        )
        (applied,) = cursor.fetchone()
        if applied:
            return Row.ALREADY
        cursor.execute(
            "UPDATE account SET applied = applied + 1 WHERE message_id = %s", (message.message_id,)
        )
        cursor.execute(
            "INSERT INTO effect VALUES (%s, %s, %s, 0)", (message.topic, message.message_id, GROUP)
        )
    return Row.APPLIED
