"""A rule of one's own for dead letters: which text means which category. A pattern that could hang is refused at load."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

PATTERN = 500
"""Characters of a pattern."""
_PARTS = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<open>\()|(?P<close>\))|(?P<choice>\|)|(?P<repeat>[*+]|\{\d*,\d*\}|\{\d{3,}\})"
)
REPEATS = 4
"""Repeats in one pattern: each more multiplies what a hostile text can cost."""


def _check_pattern(pattern: str) -> str:
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise PydanticCustomError("pattern", "a regular expression: {why}", {"why": str(error)}) from None
    if compiled.match("") and not pattern.startswith("^"):
        raise PydanticCustomError("pattern", "a regular expression that does not match every text")
    if could_hang(pattern):
        raise PydanticCustomError("pattern", "no repeat or choice inside a repeat, as in (a+)+, and few repeats: it could hang")
    return pattern


def could_hang(pattern: str) -> bool:
    """A group that holds a repeat or a choice is itself repeated, or there are too many repeats: matching a hostile text may
    cost more than anybody waits."""
    holds, repeats = [False], 0
    for found in _PARTS.finditer(pattern):
        if found["open"]:
            holds.append(False)
        elif found["close"] and len(holds) > 1:
            inside = holds.pop()
            if inside and pattern[found.end() : found.end() + 1] in ("*", "+", "{"):
                return True
            holds[-1] = holds[-1] or inside
        elif found["repeat"] or found["choice"]:
            holds[-1] = True
            repeats += found["repeat"] is not None
    return repeats > REPEATS


class DeadLetterRule(BaseModel):
    """`pattern` is a regular expression that is searched for; the first rule that finds its own decides."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[^\x00]+$")]
    category: Literal[
        "duplicate_suppressed", "busy_exhausted", "expired", "transient", "poison", "conflict", "unknown"
    ]  # fmt: skip
    pattern: Annotated[str, Field(min_length=1, max_length=PATTERN), AfterValidator(_check_pattern)]
    where: Literal["cause", "error", "any"] = Field(
        default="any", description="the broker's words (cause), the consumer's (error), or either"
    )

    def compiled(self) -> re.Pattern[str]:
        """As it is searched for."""
        return re.compile(self.pattern)

    def plain(self) -> dict[str, Any]:
        """As it was written."""
        return self.model_dump(mode="json")

