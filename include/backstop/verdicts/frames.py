"""The relations that the portable SQL reads and writes: their columns and types, in both engines' words.

An instant is microseconds since 1970 in UTC (bigint), so that both engines compare and add plain integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from backstop.model.records import EARLIEST, LATEST
from backstop.sql.named import read_sql
from backstop.stores.protocol import ATTEMPT_COLUMNS, LOG_COLUMNS, STUB_COLUMNS

if TYPE_CHECKING:
    from backstop.config.settings import Policy, Settings

Row = dict[str, object]
Columns = Mapping[str, str]

STUB: Final[Columns] = {"stub_id": "bigint", **STUB_COLUMNS}
ATTEMPT: Final[Columns] = ATTEMPT_COLUMNS
LOG: Final[Columns] = {
    "log_answered": "boolean",
    "log_found": "boolean",
    "log_valid": "boolean",
    "log_broken": "string",
    "log_state": "string",
    "lease_expires_at": "bigint",
    "log_updated_at": "bigint",
    "log_consumed_at": "bigint",
}
"""What a delivery's log row says; `log_answered`: the primary answered for this key in this run;
`log_broken`: how the row breaks its contract."""

FOUND_LOG: Final[Columns] = {"consumer_group": "string", **LOG_COLUMNS}
"""A group's log rows, as the stores give them; the input of delivery.sql."""
ANSWERED: Final[Columns] = {"consumer_group": "string", "answered": "boolean"}
"""Whether the primary answered for every key of the group that was asked for."""
OWED: Final[Columns] = {
    "stub_id": "bigint",
    "shard": "string",
    "topic": "string",
    "message_id": "string",
    "consumer_group": "string",
    "status": "string",
    "send_count": "int",
    "refusals": "int",
    "max_sends": "int",
    "next_check_at": "bigint",
    "created_at": "bigint",
    "first_seen_at": "bigint",
    "judged_at": "bigint",
    "deliver_at": "bigint",
    "attempted_at": "bigint",
    "sent_at": "bigint",
    "attempt_deadline": "bigint",
    "settled": "boolean",
    "broker": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "queue_epoch": "string",
    "first_to_all": "boolean",
}
"""The output of deliveries.sql."""
DELIVERY: Final[Columns] = {**OWED, **LOG}

DURATIONS: Final = (
    "max_clock_skew",
    "max_send_duration",
    "attempt_timeout",
    "first_check",
    "consume_timeout",
    "redelivery_horizon",
    "recheck",
    "unknown_horizon",
    "backlog_horizon",
    "overdue_horizon",
    "replay_horizon",
    "queue_delay_cap",
)
POLICY: Final[Columns] = {
    "topic": "string",
    "consumer_group": "string",
    "broker": "string",
    "every_tag": "boolean",
    "active_from": "bigint",
    "active_until": "bigint",
    "duplicates": "string",
    "max_sends": "int",
    "max_refusals": "int",
    **dict.fromkeys(DURATIONS, "bigint"),
}
GROUP_TAG: Final[Columns] = {"topic": "string", "consumer_group": "string", "tag": "string"}
START_OFFSET: Final[Columns] = {
    "topic": "string",
    "consumer_group": "string",
    "broker": "string",
    "queue_id": "int",
    "epoch": "string",
    "start_offset": "bigint",
    "only_until": "bigint",
}
INSTANT: Final[Columns] = {"as_of": "bigint"}
GROUP_STATE: Final[Columns] = {
    "topic": "string",
    "consumer_group": "string",
    "broker": "string",
    "removed": "boolean",
    "lives_accepted": "boolean",
    "passed_until": "bigint",
    "log_floor": "bigint",
    "clock_good": "boolean",
    "offsets_read": "boolean",
    "retry_read": "boolean",
    "dead_letters_read": "boolean",
}
SHARD_STATE: Final[Columns] = {
    "shard": "string",
    "clock_good": "boolean",
    "attempts_read": "boolean",
}
PROGRESS: Final[Columns] = {
    "topic": "string",
    "consumer_group": "string",
    "broker": "string",
    "queue_id": "int",
    "epoch": "string",
    "epoch_accepted": "boolean",
    "settled_offset": "bigint",
    "first_offset": "bigint",
    "next_offset": "bigint",
    "previous_next_offset": "bigint",
    "previous_read_at": "bigint",
    "rate": "double",
}
DEAD_LETTER: Final[Columns] = {
    "topic": "string",
    "message_id": "string",
    "consumer_group": "string",
}
WAITING: Final[Columns] = {"topic": "string", "message_id": "string", "consumer_group": "string"}
"""What the broker will deliver to a group again, or later."""
DELAY_LOOK: Final[Columns] = {
    "topic": "string",
    "broker": "string",
    "due_after": "bigint",
    "due_until": "bigint",
    "seen_at": "bigint",
}
"""By when what was due in an interval had left a broker's delay storage for certain."""
DECISION: Final[Columns] = {"topic": "string", "message_id": "string", "consumer_group": "string"}
NO_TAKER: Final[Columns] = {
    "topic": "string",
    "overdue_horizon": "bigint",
    "replay_horizon": "bigint",
}

JUDGED: Final[Columns] = {
    "stub_id": "bigint",
    "shard": "string",
    "topic": "string",
    "message_id": "string",
    "consumer_group": "string",
    "status": "string",
    "send_count": "int",
    "refusals": "int",
    "budget": "int",
    "verdict": "string",
    "reason": "string",
    "eligible": "boolean",
    "case_kind": "string",
    "next_look_at": "bigint",
    "newly": "boolean",
    "received": "boolean",
    "log_state": "string",
    "log_updated_at": "bigint",
    "lease_expires_at": "bigint",
    "copies": "bigint",
    "copies_ahead": "bigint",
    "acknowledged": "boolean",
    "queue_id": "int",
    "copy_offset": "bigint",
    "settled_offset": "bigint",
    "passed_until": "bigint",
    "missing": "string",
}
"""The output of verdict.sql."""
EVIDENCE: Final = (
    "received",
    "log_state",
    "log_updated_at",
    "lease_expires_at",
    "copies",
    "copies_ahead",
    "acknowledged",
    "queue_id",
    "copy_offset",
    "settled_offset",
    "passed_until",
    "missing",
    "send_count",
    "refusals",
    "budget",
)
"""The columns of JUDGED that are kept as a verdict's evidence."""


def portable_sql(name: str) -> str:
    """The text of `deliveries`, `delivery`, `verdict` or `outcome`, for either engine."""
    return read_sql("backstop.verdicts", f"{name}.sql")


def micros(instant: datetime | None) -> int | None:
    """An aware datetime as microseconds since 1970, exactly (no float on the way)."""
    if instant is None:
        return None
    return (instant - _EPOCH) // _MICROSECOND


def instant(value: int | None) -> datetime | None:
    """The inverse of `micros`. An instant that no stored row can hold (see EARLIEST and LATEST) becomes the nearest one that it
    can: an odd row never fails a batch."""
    return (
        None
        if value is None
        else _EPOCH + timedelta(microseconds=min(max(value, _EARLIEST), _LATEST))
    )


def duration(length: timedelta) -> int:
    """A duration in microseconds."""
    return length // _MICROSECOND


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_EARLIEST: Final = (EARLIEST - _EPOCH) // timedelta(microseconds=1)
_LATEST: Final = (LATEST - _EPOCH) // timedelta(microseconds=1)


OwedFrom = Mapping[tuple[str, str], datetime | None]
"""By (topic, group): from when the group owes what is created, where backstop.yaml says nothing; null: it owes everything."""


def policy_rows(settings: Settings, owed_from: OwedFrom, topics: set[str]) -> list[Row]:
    """One row of POLICY for each of these topics and each of its groups."""
    rows: list[Row] = []
    for topic, topic_settings in settings.topics.items():
        if topic not in topics:
            continue
        for group, subscription in topic_settings.groups.items():
            policy, owner = settings.policy_for(topic, group), settings.groups[group]
            rows.append(
                {
                    "topic": topic,
                    "consumer_group": group,
                    "broker": topic_settings.broker,
                    "every_tag": subscription.tags is None,
                    "active_from": micros(owner.active_from or owed_from[topic, group]),
                    "active_until": micros(owner.active_until),
                    "duplicates": str(owner.duplicates),
                    "max_sends": policy.max_sends,
                    "max_refusals": policy.max_refusals,
                    **policy_durations(policy),
                }
            )
    return rows


def policy_durations(policy: Policy) -> Row:
    """The durations that the rule uses, in microseconds."""
    return {name: duration(getattr(policy, name)) for name in DURATIONS}


def group_tag_rows(settings: Settings) -> list[Row]:
    """The tags of the groups that filter."""
    return [
        {"topic": topic, "consumer_group": group, "tag": tag}
        for topic, topic_settings in settings.topics.items()
        for group, subscription in topic_settings.groups.items()
        for tag in subscription.tags or ()
    ]


def no_taker_rows(settings: Settings) -> list[Row]:
    """After how long a stub that no group owes is set aside, for each topic."""
    policies = {topic: settings.policy_for(topic) for topic in settings.topics}
    return [
        {
            "topic": topic,
            "overdue_horizon": duration(policy.overdue_horizon),
            "replay_horizon": duration(policy.replay_horizon),
        }
        for topic, policy in policies.items()
    ]
