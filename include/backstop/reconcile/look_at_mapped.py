"""Looks at other programs' message tables before a run reads what is due: their rows, and what changed since the last look."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from datetime import timedelta
from tempfile import TemporaryFile
from typing import Any, cast

from backstop.config.connections import Connections
from backstop.config.kept import no_taker_kept, stubs_kept
from backstop.config.settings import Settings
from backstop.evidence.sources import Sources, guarded
from backstop.model.errors import StoreFailed, Unavailable
from backstop.model.records import Counts
from backstop.reconcile.count_due import control_now
from backstop.reconcile.quarantine import quarantine_left_out
from backstop.runs.run import Run, hold
from backstop.stores.open import open_mapped_logs, open_mapped_stubs


def look_at_mapped(
    settings: Settings, connections: Connections, control: Any, run: Run, sources: Sources
) -> Counts:
    """One look at each mapped table of a producer, kept in the control database with the run's token (RunLost); returns how many
    were looked at. One that does not answer is noted in `sources.unreachable`, and is not judged in this run."""
    counts = Counts()
    for name, store in settings.producers.items():
        if store.mapping is None:
            continue
        try:
            with (
                guarded(f"shard {name}", StoreFailed),
                closing(open_mapped_stubs(settings, connections, name)) as stubs,
                TemporaryFile() as rows,
            ):
                began_at = control_now(control)
                look = stubs.look(rows)
                ended_at = control_now(control)
                kept = _kept(settings, store.mapping.topics.values())
                at = {
                    topic: settings.topics[topic].broker
                    for topic in store.mapping.topics.values()
                    if topic in settings.topics
                }
                with control, control.cursor() as cursor:
                    hold(cursor, run)
                    left_out = stubs.remember(
                        cursor, look, rows, began_at, ended_at, run.as_of, run.run_id, kept, at
                    )
                quarantine_left_out(name, left_out or (), control, run)
            counts.add("mapped_tables_read")
        except Unavailable as error:
            sources.missed(f"shard {name}", error)
    return counts


def _kept(settings: Settings, topics: Iterable[str]) -> timedelta:
    """How long rows that are over are remembered: as long as the stubs of any of these topics."""
    of_topics = (
        max(stubs_kept(settings, topic), no_taker_kept(settings, topic))
        for topic in topics
        if topic in settings.topics
    )
    return max((settings.policy_for(None).stub_retention, *of_topics))


def prove_mapped_logs(
    settings: Settings,
    connections: Connections,
    control: Any,
    run: Run,
    by_verdict: list[dict[str, Any]],
) -> None:
    """Keeps, with the run's token, of which groups and topics a mapped log was found to hold work that is done (rows of
    judge_and_stage.COUNTED): from the next run on, absence there counts."""
    done: dict[str, list[str]] = {}
    for row in by_verdict:
        group = cast(str, row["consumer_group"])
        if (
            row["verdict"] == "CONFIRMED"
            and row["deliveries"]
            and not settings.keeps_own_log(group)
        ):
            done.setdefault(group, []).append(row["topic"])
    if not done:
        return
    with control, control.cursor() as cursor:
        hold(cursor, run)
        for group, topics in done.items():
            with closing(
                open_mapped_logs(settings, connections, settings.groups[group].store)
            ) as logs:
                logs.prove(cursor, group, topics)
