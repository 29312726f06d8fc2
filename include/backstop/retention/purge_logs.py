"""Takes away the logs that are older than they are kept and whose stub is not open; the group's log floor moves first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from functools import partial
from typing import Any

from backstop.config.connections import Connections
from backstop.config.kept import logs_kept
from backstop.config.settings import Settings
from backstop.evidence.apply_apart import apply_apart
from backstop.evidence.sources import Sources, open_guarded
from backstop.model.errors import StoreFailed, Unavailable
from backstop.model.records import Counts, Key, StubStatus
from backstop.retention.held import held
from backstop.retention.pace import Pace
from backstop.stores.open import open_log_purge
from backstop.stores.purge import FIRST_LOG, LogPlace, LogPurge, OldLog

OPEN = (StubStatus.PENDING, StubStatus.EXHAUSTED)


def purge_logs(
    settings: Settings,
    connections: Connections,
    control: Any,
    pace: Pace,
    missed: dict[str, str],
    *,
    dry_run: bool = False,
) -> Counts:
    """Every group's, store by store; what did not answer is put into `missed`, and its logs stay."""
    counts = Counts()
    with Sources(settings, connections) as sources:
        for group, owner in settings.groups.items():
            kept = logs_kept(settings, group)
            if not kept or not settings.keeps_own_log(group):
                continue
            subject = f"store {owner.store}"
            try:
                with closing(
                    open_guarded(subject, open_log_purge, settings, connections, owner.store)
                ) as logs:
                    counts += _of_group(logs, group, kept, sources, control, pace, missed, dry_run)
            except Unavailable as error:
                missed[subject] = error.what
    return counts


def _of_group(
    logs: LogPurge,
    group: str,
    kept: Mapping[str, timedelta],
    sources: Sources,
    control: Any,
    pace: Pace,
    missed: dict[str, str],
    dry_run: bool,
) -> Counts:
    counts, rows = Counts(), sources.settings.retention.step_rows
    seconds = {topic: length.total_seconds() for topic, length in kept.items()}
    place: LogPlace | None = FIRST_LOG
    while place is not None:
        if pace.is_over():
            counts.add("unfinished")
            return counts
        with pace.step():
            page, place = logs.old_logs(group, seconds, place, rows)
            counts += _one_page(
                logs, group, [log for log in page if log.is_old], sources, control, missed, dry_run
            )
    return counts


def _one_page(
    logs: LogPurge,
    group: str,
    old: Sequence[OldLog],
    sources: Sources,
    control: Any,
    missed: dict[str, str],
    dry_run: bool,
) -> Counts:
    counts = Counts()
    keys = [log.key for log in old]
    open_ones = still_open(sources, keys, missed)
    if open_ones is None:
        counts.add("logs_not_asked_for", len(old))
        return counts
    busy = open_ones | held(control, [key for key in keys if key not in open_ones])
    over = [log for log in old if log.key not in busy]
    counts.add("logs_still_needed", len(old) - len(over))
    if over:
        refused: list[tuple[OldLog, StoreFailed]] = []
        purge = partial(logs.purge_logs, group)
        counts.add("logs", len(over) if dry_run else sum(apply_apart(over, purge, refused)))
        for log, error in refused[:1]:
            missed[f"logs of {group}, such as {log.key.message_id} of {log.key.topic}"] = error.what
    return counts


def still_open(sources: Sources, keys: Sequence[Key], missed: dict[str, str]) -> set[Key] | None:
    """Those whose stub is pending, exhausted or under way, in any shard; null when a shard did not answer: the stub of any
    of them might be there, and open."""
    found: set[Key] = set()
    for name in sources.settings.producers if keys else ():
        try:
            stubs = sources.shard(name).stubs(keys)
        except Unavailable as error:
            missed[f"shard {name}"] = error.what
            return None
        found |= {
            key
            for key, stub in stubs.items()
            if stub.status in OPEN or stub.attempt_token is not None
        }
    return found
