"""Says by one pass of RE2 over a text which of some patterns it may have, so that only these are searched for.

Python's `re` tries each pattern at each place; most texts have none of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import re2

_AROUND = re.compile(r"\(\?<?[=!][^()]*\)")
"""A look ahead or back. RE2 refuses it; without it a pattern finds more, never less. It is left out of what RE2 refuses alone: in a
pattern that RE2 reads, this is something else, such as the optional parenthesis of `\\(?=`."""
_READ_OTHERWISE = re.compile(r"[\x0b\x1c-\x1f]|\n\Z")
"""White space only to Python, and a line end before which only Python's `$` matches."""
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False  # a pattern that RE2 does not read is always searched for
_OPTIONS.max_mem = 64 * 2**20


class Screen:
    """The patterns are known by their places, from 0."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._set = re2.Set.SearchSet(_OPTIONS)
        self._every = tuple(range(len(patterns)))
        self._always: list[int] = []
        self._added: list[int] = []
        for number, pattern in enumerate(patterns):
            if self._reads(pattern) or self._reads(_AROUND.sub("", pattern)):
                self._added.append(number)
            else:
                self._always.append(number)
        # Every text has it: an answer without it is none.
        self._set.Add("")
        self._answered = len(self._added)
        self._set.Compile()

    def _reads(self, pattern: str) -> bool:
        """Whether RE2 does; it is one of the set then."""
        try:
            self._set.Add(pattern)
        except re2.error:
            return False
        return True

    def may_match(self, text: str) -> Sequence[int]:
        """In order. All of them for a text that RE2 and Python read differently: other letters than ASCII, rare white space."""
        if not text.isascii() or _READ_OTHERWISE.search(text):
            return self._every
        found = self._set.Match(text)
        if self._answered not in found:
            return self._every
        return sorted(
            [*self._always, *(self._added[number] for number in found if number < self._answered)]
        )
