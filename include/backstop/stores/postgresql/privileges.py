"""What each role must be able to do in our PostgreSQL stores; schema/*/privileges.sql grants it, `backstop check` looks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Need = tuple[str, str | None, str]
"""table, column or null for the whole table, privilege"""


@dataclass(frozen=True, slots=True)
class Needs:
    """Of one kind of database: what our own login needs, and what the services' role does."""

    schema: str
    duty: tuple[Need, ...]
    service_role: str
    service: tuple[Need, ...]


def _tables(names: Iterable[str], *privileges: str) -> tuple[Need, ...]:
    return tuple((name, None, privilege) for name in names for privilege in privileges)


def _updates(*columns: str) -> tuple[Need, ...]:
    return tuple(("message_stub", column, "UPDATE") for column in columns)


PRODUCER = Needs(
    "producer",
    duty=(
        *_tables(["message_stub"], "SELECT"),
        *_updates(
            "status",
            "send_count",
            "refusals",
            "max_sends",
            "next_check_at",
            "broker",
            "queue_id",
            "queue_offset",
            "queue_epoch",
            "broker_message_id",
            "first_seen_at",
            "judged_at",
            "attempted_at",
            "sent_at",
            "attempt_token",
            "attempt_deadline",
            "attempt_groups",
            "attempt_requested_by",
            "updated_at",
            "first_broker",
            "first_queue_id",
            "first_queue_offset",
            "first_queue_epoch",
            "first_groups",
            "content",
            "content_version",
            "headers",
            "message_key",
            "ordering_key",
            "erased_hash",
        ),
        *_tables(["message_stub"], "DELETE"),
        *_tables(["send_attempt"], "SELECT", "INSERT"),
        ("send_attempt", "error", "UPDATE"),
    ),
    service_role="backstop_app",
    service=(
        *_tables(["message_stub", "send_attempt"], "SELECT", "INSERT"),
        *_updates(
            "refusals",
            "broker",
            "queue_id",
            "queue_offset",
            "queue_epoch",
            "broker_message_id",
            "attempted_at",
            "sent_at",
            "attempt_token",
            "attempt_requested_by",
            "updated_at",
        ),
    ),
)
CONSUMER = Needs(
    "consumer",
    duty=(
        *_tables(["consumer_log", "consumer_log_floor"], "SELECT"),
        *(
            ("consumer_log", column, "UPDATE")
            for column in ("state", "updated_at", "lease_expires_at", "last_error", "payload_hash")
        ),
        *_tables(["consumer_log"], "DELETE"),
        *_tables(["consumer_log_floor"], "INSERT", "UPDATE"),
        *_tables(
            ["queue_owner", "group_member", "parking_full", "downstream_away", "consumer_books"],
            "SELECT",
        ),
        *_tables(["parked_key", "parked_message"], "SELECT", "UPDATE", "DELETE"),
        *_tables(["parked_discard"], "SELECT", "INSERT", "DELETE"),
    ),
    service_role="backstop_consumer",
    service=(
        *_tables(["consumer_log", "queue_owner"], "SELECT", "INSERT", "UPDATE"),
        *_tables(
            [
                "group_member",
                "parked_key",
                "parked_message",
                "parking_full",
                "downstream_away",
                "consumer_books",
            ],
            "SELECT",
            "INSERT",
            "UPDATE",
            "DELETE",
        ),
    ),
)
