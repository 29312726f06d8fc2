"""Bounds what dead letters may take of the control database: what does not fit stays in the broker, and a case says so.

A control database that is full stops every duty. So the drain stops first, of one group where one group floods, and all the
others go on. Dead letters that stay in the broker are still read as evidence there; nothing is lost by it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from backstop.brokers.protocol import DeadLetter
from backstop.cases.close import close_by_cause
from backstop.cases.open import open_case
from backstop.config.settings import Settings
from backstop.named_sql import load
from backstop.records import Counts
from backstop.runs.kept_bytes import EVERYTHING, ROW_BYTES, read_kept_bytes
from backstop.runs.run import Run, hold

_SQL = load("backstop.dead_letters", "quota.sql")
KIND, SUBJECT = "quota_full", "kept bytes"
_OVER_AT = 0.9
"""A case closes when less than this share is used, so that it does not come and go."""


@dataclass(slots=True)
class Quota:
    """What is kept, by group ('*': of no known group), and what may be."""

    total: int
    each: int
    used: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    full: set[str] = field(default_factory=set)
    """Groups of which something did not fit; '*': of all."""

    def fitting(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Those that fit, in their order; after the first one of a group that does not, none of that group does."""
        fits, kept = [], sum(self.used.values())
        for letter in letters:
            group, size = letter.group or EVERYTHING, len(letter.content) + ROW_BYTES
            if kept + size > self.total:
                self.full.add(EVERYTHING)
            elif group != EVERYTHING and self.used[group] + size > self.each:
                self.full.add(group)
            if EVERYTHING in self.full or group in self.full:
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
    quota.used.update(read_kept_bytes(cursor))
    return quota


def tell_quota(control: Any, run: Run, quota: Quota) -> Counts:
    """One case for each group that is full, and one for all of them; closes those that have space again. Commits."""
    counts = Counts()
    with control, control.cursor() as cursor:
        hold(cursor, run)
        for group in sorted(quota.full):
            limit = quota.total if group == EVERYTHING else quota.each
            used = sum(quota.used.values()) if group == EVERYTHING else quota.used[group]
            setting = "kept_bytes" if group == EVERYTHING else "group_kept_bytes"
            open_case(
                cursor, kind=KIND, topic=EVERYTHING, group=group, subject=SUBJECT, severity="critical",
                summary=f"Dead letters of {'all groups' if group == EVERYTHING else group} take {used} of {limit} bytes of"
                " the control database: further ones stay in the broker until space is free. Decide their cases, shorten"
                f" how long decided ones are kept, or raise dead_letters.{setting}",
                evidence={"kept_bytes": used, "limit_bytes": limit}, members=[], run_id=run.run_id,
            )  # fmt: skip
            counts.add("quotas_full")
        cursor.execute(_SQL["full"], {"kind": KIND})
        still = {
            (KIND, topic, group, subject) for topic, group, subject in cursor.fetchall()
            if group in quota.full or not quota.is_over(group)
        }  # fmt: skip
        counts.add("quotas_over", close_by_cause(cursor, KIND, still, "there is space again, and the drain goes on"))
    return Counts({name: number for name, number in counts.items() if number})
