"""Removes from brokers that remove nothing by themselves what every group has passed for certain."""

from __future__ import annotations

from typing import Any, cast

from backstop.brokers.protocol import Trimmer
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.evidence import Readings
from backstop.evidence.read import read_groups
from backstop.evidence.sources import Sources
from backstop.model.errors import Unavailable
from backstop.model.records import Counts
from backstop.retention.pace import Pace


def trim_queues(
    settings: Settings,
    connections: Connections,
    control: Any,
    pace: Pace,
    missed: dict[str, str],
    *,
    dry_run: bool = False,
) -> Counts:
    """Each topic's queues below the settled progress of all its groups, in the life that is accepted.

    What was received and may still come again is not settled, so that no judgement finds a copy below the queue's beginning
    that it would have waited for. What did not answer is put into `missed`, and its messages stay.
    """
    counts = Counts()
    with Sources(settings, connections) as sources:
        for topic, its in settings.topics.items():
            if dry_run or pace.is_over():
                break
            if "retention" not in settings.brokers[its.broker].options:
                continue
            if any(settings.is_lake_log(group) for group in its.groups):
                # Up to when such a log can deny only a process with Spark can say.
                counts.add("topics_not_trimmed")
                continue
            try:
                broker = sources.broker(its.broker)
                with pace.step():
                    with control, control.cursor() as cursor:
                        cursor.execute("SELECT clock_timestamp()")
                        looks = read_groups(
                            sources, cursor, cursor.fetchone()[0], [topic], to_judge=False
                        )
                    removed = cast(Trimmer, broker).trim(topic, _settled(settings, looks, topic))
                counts.add("broker_messages", removed)
            except Unavailable as error:
                missed[f"broker {its.broker}"] = error.what
        missed.update(sources.unreachable)
    return counts


def _settled(settings: Settings, looks: Readings, topic: str) -> dict[int, tuple[str, int]]:
    """For each queue that every group has got on in: its epoch, and the first offset that one of them has not passed."""
    # One that has ended too: it still owes what was created before.
    groups = [looks.groups[topic, group] for group in settings.topics[topic].groups]
    return {
        queue_id: (queue.epoch, min(look.settled[queue_id].next_offset for look in groups))
        for queue_id, queue in looks.queues.get(topic, {}).items()
        if queue.accepted and groups and all(queue_id in look.settled for look in groups)
    }
