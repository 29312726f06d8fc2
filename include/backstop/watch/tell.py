"""Writes what the rules answered into the outbox: one alert when it begins, one when it worsens, one when it is over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from backstop.model.records import Counts
from backstop.sql.named import load
from backstop.watch.samples import Answer

_SQL = load("backstop.watch", "queries.sql")


def tell(cursor: Any, answers: Iterable[Answer]) -> Counts:
    """In the caller's transaction, which holds the run: two watches at once would wait for each other here.

    Counts `found` (holding now), `begun`, `worsened` and `over`.
    """
    counts = Counts(found=0)
    for answer in answers:
        where = {"rule": answer.rule, "topic": answer.topic, "group": answer.group}
        cursor.execute(_SQL["lock_finding"], where)
        open_one = cursor.fetchone()
        finding = answer.finding
        if finding is None:
            if open_one is not None:
                cursor.execute(_SQL["over"], {"finding_id": open_one[0]})
                (title,) = cursor.fetchone()
                _alert(cursor, open_one[0], "over", "info", f"Over: {title}", answer.over)
                counts.add("over")
            continue
        counts.add("found")
        said = {"severity": finding.severity, "title": finding.title, "body": finding.body}
        if open_one is None:
            cursor.execute(_SQL["open_finding"], {**where, **said, "yardstick": finding.yardstick})
            _alert(cursor, cursor.fetchone()[0], **said, step=finding.severity)
            counts.add("begun")
        else:
            cursor.execute(_SQL["still_so"], {"finding_id": open_one[0], **said})
            if finding.severity == "critical" and open_one[1] != "critical":
                _alert(cursor, open_one[0], **said, step="critical")
                counts.add("worsened")
    return counts


def read_yardsticks(cursor: Any) -> dict[tuple[str, str, str], float]:
    """(rule, topic, group) of each open finding that has one -> what was usual when it began."""
    cursor.execute(_SQL["yardsticks"])
    return {(rule, topic, group): yardstick for rule, topic, group, yardstick in cursor.fetchall()}


def _alert(cursor: Any, finding_id: int, step: str, severity: str, title: str, body: str) -> None:
    cursor.execute(
        _SQL["alert"],
        {
            "dedup_key": f"watch/{finding_id}/{step}",
            "severity": severity,
            "title": title,
            "body": body,
        },
    )
