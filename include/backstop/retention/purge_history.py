"""Takes away what the control database remembers of messages whose stubs are over: requests, decisions, withdrawals, edits.

A producer's database that is restored may bring a stub back; what was done to it is then asked of these tables. So a request
goes when its stub is closed, and what a person decided only when no producer has the message any more.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from backstop.config.connections import Connections
from backstop.config.kept import contents_kept, control_kept
from backstop.config.settings import Settings
from backstop.evidence.sources import Sources
from backstop.model.errors import Unavailable
from backstop.model.records import Counts, Key
from backstop.retention.held import held
from backstop.retention.pace import Pace
from backstop.retention.purge_logs import still_open
from backstop.runs.run import Run, hold
from backstop.sql.named import load

_SQL = load("backstop.retention", "control.sql")
DECISIONS = ("delivery_decision", "withdrawal", "message_version")


def purge_history(
    settings: Settings,
    connections: Connections,
    control: Any,
    run: Run,
    pace: Pace,
    missed: dict[str, str],
) -> Counts:
    """A shard that does not answer is put into `missed`: of no message it is known then whether it is over."""
    before = run.as_of - control_kept(settings)
    rows = settings.retention.step_rows
    counts = Counts()
    with Sources(settings, connections) as sources:
        counts += _requests(control, run, pace, sources, before, rows, missed)
        for table in DECISIONS:
            counts += _by_key(
                control,
                run,
                pace,
                rows,
                table,
                _SQL[f"old_{table}"],
                _SQL[f"delete_{table}"],
                {"before": before},
                lambda keys: _gone(sources, keys, missed),
            )
        kept = {
            topic: run.as_of - length for topic, length in contents_kept(settings).items() if topic
        }
        if kept:
            counts += _by_key(
                control,
                run,
                pace,
                rows,
                "versions_emptied",
                _SQL["full_versions"],
                _SQL["empty_versions"],
                {"kept_topics": list(kept), "instants": list(kept.values())},
                lambda keys: _over(control, sources, keys, missed),
            )
    return counts


def _requests(
    control: Any,
    run: Run,
    pace: Pace,
    sources: Sources,
    before: datetime,
    rows: int,
    missed: dict[str, str],
) -> Counts:
    counts, after = Counts(), ("-infinity", 0)
    while True:
        if pace.is_over():
            counts.add("unfinished")
            return counts
        with pace.step():
            with control, control.cursor() as cursor:
                where = {
                    "before": before,
                    "after_at": after[0],
                    "after_id": after[1],
                    "limit": rows,
                }
                cursor.execute(_SQL["old_requests"], where)
                page = cursor.fetchall()
            over = _over(
                control, sources, list(dict.fromkeys(Key(*row[2:]) for row in page)), missed
            )
            if over is None:
                return counts
            ids = [row[1] for row in page if Key(*row[2:]) in over]
            counts.add(
                "requests",
                _apply(
                    control, run, _SQL["delete_requests"], {"ids": ids, "before": before}, len(ids)
                ),
            )
        if len(page) < rows:
            return counts
        after = (page[-1][0], page[-1][1])


def _by_key(
    control: Any,
    run: Run,
    pace: Pace,
    rows: int,
    name: str,
    find: str,
    change: str,
    values: dict[str, Any],
    choose: Callable[[list[Key]], set[Key] | None],
) -> Counts:
    counts, after = Counts(), Key("", "")
    while True:
        if pace.is_over():
            counts.add("unfinished")
            return counts
        with pace.step():
            with control, control.cursor() as cursor:
                cursor.execute(
                    find,
                    {
                        **values,
                        "after_topic": after.topic,
                        "after_id": after.message_id,
                        "limit": rows,
                    },
                )
                page = [Key(*row) for row in cursor.fetchall()]
            chosen = choose(page)
            if chosen is None:
                return counts
            keys = [key for key in page if key in chosen]
            asked = {
                **values,
                "topics": [key.topic for key in keys],
                "message_ids": [key.message_id for key in keys],
            }
            counts.add(name, _apply(control, run, change, asked, len(keys)))
        if len(page) < rows:
            return counts
        after = page[-1]


def _apply(control: Any, run: Run, change: str, values: dict[str, Any], number: int) -> int:
    if not number or run.dry_run:
        return number
    with control, control.cursor() as cursor:
        hold(cursor, run)
        cursor.execute(change, values)
        changed: int = cursor.rowcount
    return changed


def _over(
    control: Any, sources: Sources, keys: list[Key], missed: dict[str, str]
) -> set[Key] | None:
    """Those whose stub is closed or gone, and that nobody is busy with; null: a shard did not answer."""
    open_ones = still_open(sources, keys, missed)
    return None if open_ones is None else set(keys) - open_ones - held(control, keys)


def _gone(sources: Sources, keys: list[Key], missed: dict[str, str]) -> set[Key] | None:
    """Those that no shard has any more; null: a shard did not answer."""
    left = set(keys)
    for name in sources.settings.producers:
        if not left:
            break
        try:
            left -= set(sources.shard(name).stubs(left))
        except Unavailable as error:
            missed[f"shard {name}"] = error.what
            return None
    return left
