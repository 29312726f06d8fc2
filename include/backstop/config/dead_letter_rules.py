"""A rule of one's own for dead letters: which text means which category.

Whoever can put text into an exception's message chooses what a pattern reads: it runs on RE2, which is linear in the text,
whatever the pattern is, and has neither references back nor looks around.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import re2
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

PATTERN = 500
"""Characters of a pattern."""
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False  # an error is told where the pattern is written
_OPTIONS.max_mem = 8 * 2**20


def compiled(pattern: str) -> Any:
    """As it is searched for: its `search` takes text that UTF-8 can hold. Raises re2.error."""
    return re2.compile(pattern, _OPTIONS)


def _check_pattern(pattern: str) -> str:
    try:
        matcher = compiled(pattern)
    except re2.error as error:
        why = (
            error.args[0].decode(errors="replace")
            if isinstance(error.args[0], bytes)
            else str(error)
        )
        raise PydanticCustomError(
            "pattern", "a regular expression as RE2 reads it: {why}", {"why": why}
        ) from None
    if matcher.match("") and not pattern.startswith("^"):
        raise PydanticCustomError("pattern", "a regular expression that does not match every text")
    return pattern


class DeadLetterRule(BaseModel):
    """`pattern` is a regular expression that is searched for; the first rule that finds its own decides."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[^\x00]+$")]
    category: Literal[
        "duplicate_suppressed",
        "busy_exhausted",
        "expired",
        "transient",
        "poison",
        "conflict",
        "unknown",
    ]
    pattern: Annotated[str, Field(min_length=1, max_length=PATTERN), AfterValidator(_check_pattern)]
    where: Literal["cause", "error", "any"] = Field(
        default="any", description="the broker's words (cause), the consumer's (error), or either"
    )

    def plain(self) -> dict[str, Any]:
        """As it was written."""
        return self.model_dump(mode="json")
