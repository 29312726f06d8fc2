"""Says when dead letters near what they may take of the control database: before the drain leaves further ones in the broker."""

from __future__ import annotations

from collections.abc import Mapping

from backstop.config.settings import Settings
from backstop.control.kept_bytes import EVERYTHING
from backstop.watch.samples import Answer, Finding

RULE = "dead_letters_kept"
WARN = 0.8
"""Of what they may take."""
_OVER_AT = 0.7


def judge_size(settings: Settings, kept: Mapping[str, int]) -> list[Answer]:
    """One answer for all groups together and one for each. Pure."""
    limits = settings.dead_letters
    answers = [_judged(EVERYTHING, sum(kept.values()), limits.kept_bytes, "kept_bytes")]
    answers += [
        _judged(group, kept.get(group, 0), limits.group_kept_bytes, "group_kept_bytes")
        for group in settings.groups
    ]
    return [answer for answer in answers if answer is not None]


def _judged(group: str, kept: int, limit: int, setting: str) -> Answer | None:
    if kept < limit * WARN:
        return Answer(RULE, EVERYTHING, group, None) if kept < limit * _OVER_AT else None
    whose = "Dead letters" if group == EVERYTHING else f"{group}'s dead letters"
    return Answer(
        RULE,
        EVERYTHING,
        group,
        Finding(
            "critical" if kept >= limit else "warning",
            f"{whose} near what they may take of the control database",
            f"{kept} of {limit} bytes (dead_letters.{setting}). Beyond it they stay in the broker, until its own limits, and nobody"
            " can decide about them. Do: decide their cases, shorten how long decided ones are kept, or give the database more space"
            f" and raise dead_letters.{setting}.",
        ),
    )
