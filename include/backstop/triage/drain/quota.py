"""Bounds what dead letters may take of the control database: what does not fit stays in the broker, and a case says so.

A control database that is full stops every duty. So the drain stops first, of one group where one group floods, and all the
others go on. Dead letters that stay in the broker are still read as evidence there; nothing is lost by it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from backstop.brokers.protocol import DeadLetter
from backstop.cases.close import close_by_cause
from backstop.cases.open import open_case
from backstop.config.settings import Settings
from backstop.control.kept_bytes import EVERYTHING, ROW_BYTES, read_kept_bytes
from backstop.model.records import Counts
from backstop.runs.run import Run, hold
from backstop.sql.named import load

_SQL = load("backstop.triage.drain", "quota.sql")
KIND, SUBJECT = "quota_full", "kept bytes"
NO_GROUP, SUBJECT_OF_NO_GROUP = "", "kept bytes of no known group"
"""Dead letters of no known group have one share together, and a case of their own."""
_OVER_AT = 0.9
"""A case closes when less than this share is used, so that it does not come and go."""


_NAMED = 5
"""So many queues a case names, those with the most first."""
_LIMITS_OF_BROKERS = {
    "rocketmq": "RocketMQ removes it with its files (fileReservedTime), and it is no evidence any more",
    "activemq": "of a queue that groups share, ActiveMQ lists maxBrowsePageSize: beyond it these groups become UNKNOWN",
}
"""What the broker's own limits do to what stays there."""


class Queue(NamedTuple):
    """A dead-letter queue."""

    broker: str
    queue: str


@dataclass(slots=True)
class Quota:
    """What is kept, by group (NO_GROUP: of no known one), and what may be."""

    total: int
    each: int
    used: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    full: set[str] = field(default_factory=set)
    """Groups of which something did not fit; '*': of all."""
    left: dict[str, Counter[Queue]] = field(default_factory=lambda: defaultdict(Counter))
    """What did not fit, by group as in `full`: how many were read in which queue."""
    unread: set[Queue] = field(default_factory=set)
    """Queues that were not read to their end, so that more than these may be left there."""

    def fitting(self, letters: Sequence[DeadLetter], queue: Queue) -> list[DeadLetter]:
        """Those that fit, in their order; after the first one of a group that does not, none of that group does."""
        sizes: dict[str, int] = {}
        for letter in letters:
            group = letter.group or NO_GROUP
            sizes[group] = sizes.get(group, 0) + len(letter.content) + ROW_BYTES
        kept = sum(self.used.values())
        if (
            not self.full
            and kept + sum(sizes.values()) <= self.total
            and all(self.used[group] + size <= self.each for group, size in sizes.items())
        ):
            for group, size in sizes.items():
                self.used[group] += size
            return list(letters)
        fits = []
        for letter in letters:
            group, size = letter.group or NO_GROUP, len(letter.content) + ROW_BYTES
            if kept + size > self.total:
                self.full.add(EVERYTHING)
            elif self.used[group] + size > self.each:
                self.full.add(group)
            if full := {EVERYTHING, group} & self.full:
                self.left[EVERYTHING if EVERYTHING in full else group][queue] += 1
                continue
            self.used[group] += size
            kept += size
            fits.append(letter)
        return fits

    def is_over(self, group: str) -> bool:
        """Little enough is used of what was full."""
        if group == EVERYTHING:
            return sum(self.used.values()) < self.total * _OVER_AT
        return self.used[group] < self.each * _OVER_AT


def read_quota(cursor: Any, settings: Settings) -> Quota:
    """In the caller's transaction."""
    quota = Quota(settings.dead_letters.kept_bytes, settings.dead_letters.group_kept_bytes)
    for group, used in read_kept_bytes(cursor).items():
        quota.used[NO_GROUP if group == EVERYTHING else group] += used
    return quota


def tell_quota(control: Any, run: Run, settings: Settings, quota: Quota) -> Counts:
    """One case for each share that is full, and one for all of them; closes those that have space again. Commits."""
    counts = Counts()
    with control, control.cursor() as cursor:
        hold(cursor, run)
        for group in sorted(quota.full):
            limit = quota.total if group == EVERYTHING else quota.each
            used = sum(quota.used.values()) if group == EVERYTHING else quota.used[group]
            setting = "kept_bytes" if group == EVERYTHING else "group_kept_bytes"
            whose = {EVERYTHING: "all groups", NO_GROUP: "no known group"}.get(group, group)
            open_case(
                cursor,
                kind=KIND,
                topic=EVERYTHING,
                group=group or EVERYTHING,
                subject=SUBJECT if group else SUBJECT_OF_NO_GROUP,
                severity="critical",
                summary=f"Dead letters of {whose} take {used} of {limit} bytes of"
                f" the control database: further ones stay in the broker until space is free. {_left(settings, quota, group)}."
                f" Decide their cases, shorten how long decided ones are kept, or raise dead_letters.{setting}",
                evidence={
                    "kept_bytes": used,
                    "limit_bytes": limit,
                    "left": [
                        {**one._asdict(), "dead_letters": number, "at_least": one in quota.unread}
                        for one, number in quota.left[group].most_common()
                    ],
                },
                members=[],
                run_id=run.run_id,
            )
            counts.add("quotas_full")
        cursor.execute(_SQL["full"], {"kind": KIND})
        still = {
            (KIND, topic, group, subject)
            for topic, group, subject in cursor.fetchall()
            for share in [NO_GROUP if subject == SUBJECT_OF_NO_GROUP else group]
            if share in quota.full or not quota.is_over(share)
        }
        counts.add(
            "quotas_over",
            close_by_cause(cursor, KIND, still, "there is space again, and the drain goes on"),
        )
    return Counts({name: number for name, number in counts.items() if number})


def _left(settings: Settings, quota: Quota, group: str) -> str:
    """Where they are, how many at least, and what may become of them there."""
    queues = quota.left[group].most_common()
    named = [
        f"{'at least ' if one in quota.unread else ''}{number} in {one.queue} of {one.broker}"
        for one, number in queues
    ]
    more = [f"and in {len(named) - _NAMED} more queues"] * (len(named) > _NAMED)
    kinds = dict.fromkeys(settings.brokers[one.broker].kind for one, _ in queues)
    limits = [
        f". Act soon: {_LIMITS_OF_BROKERS[kind]}" for kind in kinds if kind in _LIMITS_OF_BROKERS
    ]
    return f"Left there: {', '.join(named[:_NAMED] + more)}{''.join(limits)}"
