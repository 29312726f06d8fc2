"""Which messages each start offset covers: a group owes nothing that was stored below it, in the life of the queue that it names.

A broker may give two lives of a queue one epoch: RocketMQ calls each "0", also after the topic was deleted and created again,
and every server that is restored from an older copy goes on under the same name. Offsets then begin again below the start
offset, and say nothing. So a start offset holds at the broker where this epoch of the queue was first seen, for what was sent
before a second life was possible; of all else the place is not known, and `created_at` decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from backstop.config.settings import Settings
from backstop.sql.named import load
from backstop.verdicts.frames import Row, micros

_SQL = load("backstop.evidence", "queries.sql")


def read_start_offsets(cursor: Any, settings: Settings, topics: Iterable[str]) -> list[Row]:
    """Rows of frames.START_OFFSET."""
    started = {
        topic: its
        for topic, its in settings.topics.items()
        if topic in set(topics)
        and any(subscription.start_offsets for subscription in its.groups.values())
    }
    if not started:
        return []
    cursor.execute(_SQL["lives_of_queues"], {"topics": sorted(started)})
    lives: dict[tuple[str, int, str], list[tuple[str, str, Any]]] = {}
    for topic, queue_id, broker, epoch, read_at in cursor.fetchall():
        lives.setdefault((topic, queue_id, epoch.partition("~")[0]), []).append(
            (broker, epoch, read_at)
        )
    rows: list[Row] = []
    for topic, its in started.items():
        for group, subscription in its.groups.items():
            for queue_id, start in subscription.start_offsets.items():
                known = lives.get((topic, queue_id, start.epoch), [(its.broker, start.epoch, None)])
                at, first, last_seen = known[0]
                is_only_one = all(broker != at for broker, _, _ in known[1:])
                if first == start.epoch and (is_only_one or last_seen is not None):
                    rows.append(
                        {
                            "topic": topic,
                            "consumer_group": group,
                            "broker": at,
                            "queue_id": queue_id,
                            "epoch": start.epoch,
                            "start_offset": start.offset,
                            "only_until": None if is_only_one else micros(last_seen),
                        }
                    )
    return rows
