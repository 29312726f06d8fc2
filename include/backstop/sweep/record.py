"""Writes what a sweep found and did into the control database; every function needs the run to be ours."""

from __future__ import annotations

from typing import Any

from backstop.model.records import ID_BYTES, TOPIC_BYTES
from backstop.runs.run import Run, add_counts, hold
from backstop.sql.array_literal import array_literal
from backstop.sql.named import load
from backstop.sweep.count_ended import Counted
from backstop.sweep.tally import Tally, TallyKey

_SQL = load("backstop.sweep", "queries.sql")
DIFFERS_KEPT = 1000
"""Of one part: enough to look into; the counts say how many there are."""


def record_look(control: Any, run: Run, moment: str, counted: Counted) -> None:
    """What was found `before` or `after` the run; commits."""
    with control, control.cursor() as cursor:
        hold(cursor, run)
        if moment == "before":
            cursor.execute(_SQL["drop_idle"])
            cursor.execute(_SQL["drop_old"])
        for place in counted.places:
            cursor.execute(
                _SQL["look"],
                {
                    "run_id": run.run_id,
                    "moment": moment,
                    "place": place.place,
                    "expired": place.leases,
                    "oldest_end": place.oldest,
                    "overdue": place.overdue,
                    "without_time": place.without_time,
                },
            )
        for name, goes_on in counted.goes_on.items():
            cursor.execute(_SQL["goes_on"], {"place": name, "goes_on": goes_on})


def record_tally(control: Any, run: Run, tally: Tally) -> None:
    """What one part decided and did, added to the run's counts; commits."""
    lines, examples = _recordable(tally)
    differs = [
        one
        for one in tally.differs
        if max(
            len(one.topic.encode(errors="replace")), len(one.message_id.encode(errors="replace"))
        )
        <= ID_BYTES
    ][:DIFFERS_KEPT]
    with control, control.cursor() as cursor:
        hold(cursor, run)
        if lines:
            cursor.execute(
                _SQL["add_lines"],
                {
                    "run_id": run.run_id,
                    "places": _texts(line.place for line in lines),
                    "groups": _texts(line.group for line in lines),
                    "topics": _texts(line.topic for line in lines),
                    "hosts": _texts(line.host for line in lines),
                    "decisions": _texts(line.decision for line in lines),
                    "leases": array_literal(list(lines.values())),
                    "examples": _texts(examples[line] for line in lines),
                },
            )
        if differs:
            cursor.execute(
                _SQL["add_differs"],
                {
                    "run_id": run.run_id,
                    "places": _texts(d.place for d in differs),
                    "groups": _texts(d.group for d in differs),
                    "topics": _texts(d.topic for d in differs),
                    "message_ids": _texts(d.message_id for d in differs),
                    "redis": _texts(d.in_redis for d in differs),
                    "database": _texts(d.in_database for d in differs),
                    "repaired": array_literal([d.repaired for d in differs]),
                },
            )
        for place, goes_on in tally.goes_on.items():
            cursor.execute(_SQL["goes_on"], {"place": place, "goes_on": goes_on})
    add_counts(control, run, tally.counts)


def _recordable(tally: Tally) -> tuple[dict[TallyKey, int], dict[TallyKey, str]]:
    """The lines and their examples, with names that the table's key holds: a log's host and topic may be of any length."""
    lines: dict[TallyKey, int] = {}
    examples: dict[TallyKey, str] = {}
    for line, number in tally.lines.items():
        short = line._replace(topic=_cut(line.topic), host=_cut(line.host))
        lines[short] = lines.get(short, 0) + number
        examples.setdefault(short, tally.examples[line])
    return lines, examples


def _cut(name: str) -> str:
    return name.encode(errors="replace")[:TOPIC_BYTES].decode(errors="ignore")


def places(control: Any) -> dict[str, str]:
    """Where each walk goes on."""
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["places"])
        return dict(cursor.fetchall())


def _texts(values: Any) -> str:
    # What no database can hold came from another program's store; the record is about it, not it.
    return array_literal(
        [value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode() for value in values]
    )
