"""Records what a run saw of queues and groups, for settled progress, rates and epochs of later runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from backstop.evidence.evidence import Readings
from backstop.evidence.require_servers import record_servers
from backstop.runs.run import Run
from backstop.sql.named import load

_SQL = load("backstop.evidence", "queries.sql")


def record_looks(cursor: Any, run: Run, looks: Readings) -> None:
    """Queues, epochs, progress and its history; an offset that went back within an epoch is a REGRESSION.

    What was seen stays true whether or not the run is promoted later. Progress carries the instant after it was read, never
    the start of the run: a settle grace counted from an earlier instant would be shorter than it says.
    """
    for other in looks.others:
        record_looks(cursor, run, other)
    record_servers(cursor, looks.servers)
    for topic in looks.queues:
        for queue_id, queue in looks.lives(topic).items():
            where = {
                "broker": looks.brokers[topic],
                "topic": topic,
                "queue_id": queue_id,
                "epoch": queue.epoch,
                "run_id": run.run_id,
            }
            cursor.execute(_SQL["end_epoch"], where)
            cursor.execute(
                _SQL["record_epoch"],
                {
                    **where,
                    "accepted": queue.accepted,
                    "first_offset": queue.state.first_offset,
                    "next_offset": queue.state.next_offset,
                    "read_at": queue.state.read_at,
                },
            )
    for topic, delays in looks.delivered.items():
        cursor.execute(
            _SQL["record_delay_look"],
            {
                "broker": looks.brokers[topic],
                "topic": topic,
                "recorded_at": delays.recorded_at,
                "delivered_until": delays.delivered_until,
            },
        )
    for look in looks.groups.values():
        for queue_id, progress in look.live.items():
            seen = {
                "group": look.group,
                "broker": look.broker,
                "topic": look.topic,
                "queue_id": queue_id,
                "epoch": progress.epoch,
                "next_offset": progress.next_offset,
                "passed_until": progress.passed_until,
                "retry_pending": look.retry_pending or 0,
                "recorded_at": look.read_at,
                "run_id": run.run_id,
            }
            cursor.execute(_SQL["record_regression"], seen)
            cursor.execute(_SQL["record_progress"], seen)
            cursor.execute(_SQL["record_history"], seen)
        if look.retry_places:
            cursor.execute(
                _SQL["record_retry_place"],
                {
                    "group": look.group,
                    "broker": look.broker,
                    "topic": look.topic,
                    "recorded_at": look.read_at,
                    "places": as_json(look.retry_places),
                },
            )


def as_json(value: Mapping[str, object]) -> str:
    """JSON text for a jsonb parameter."""
    return json.dumps(value, default=str, sort_keys=True)
