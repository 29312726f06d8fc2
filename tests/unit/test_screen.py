"""What RE2 leaves out, Python's `re` would not have found."""

from __future__ import annotations

import random
import re

import pytest

from backstop.model.records import Category
from backstop.triage.causes import mask_slots
from backstop.triage.causes.rules import Rules, built_in
from backstop.triage.causes.screen import Screen
from log_templates import HELD_OUT, texts

PATTERNS = [
    *(rule.pattern for rule in built_in()),
    mask_slots._KEPT.pattern,
    mask_slots._TIME.pattern,
    mask_slots._CHANGED.pattern,
    r"limit\s+\d+$",
    r"(?<!not )found(?! here)",
]
SEARCHED = [re.compile(pattern) for pattern in PATTERNS]
PIECES = (
    "limit  7",
    "limit\x1c7",
    "limit\v7\n",
    "found",
    "not found here",
    "delivery limit",
    "expired\n",
    "HTTP 404",
    "ЕRROR ٤٠٤",
    "K",
    "12:30:01 UTC",
    "PT5M",
    "from OPEN to CLOSED",
    "reconsumed 12 times",
    " ",
    "\n",
    ".",
    "",
)


def test_a_screen_leaves_out_no_pattern_that_matches() -> None:
    screen, dice = Screen(PATTERNS), random.Random(21)
    lines = "\n".join(text for _, text in texts(HELD_OUT, 2, 7))
    matched = 0
    for _ in range(2_000):
        at = dice.randrange(len(lines))
        text = "".join(
            (lines[at : at + dice.randrange(80)], *dice.choices(PIECES, k=dice.randrange(4)))
        )
        found = {number for number, one in enumerate(SEARCHED) if one.search(text)}
        assert found <= set(screen.may_match(text)), text
        matched += len(found)
    assert matched > 500


@pytest.mark.parametrize("text", ["naïve", "limit\x1c7", "delivery limit\n"])
def test_a_text_that_re2_reads_differently_may_have_every_pattern(text: str) -> None:
    assert list(Screen(PATTERNS).may_match(text)) == list(range(len(PATTERNS)))


@pytest.mark.parametrize("text", ["status=503", "status(=503)"])
def test_what_only_resembles_a_look_around_is_part_of_the_pattern(text: str) -> None:
    own = {"name": "own", "category": "poison", "pattern": r"status\(?=5\d\d\)?", "where": "any"}
    assert Rules([own]).categorise(text, "") == (Category.POISON, "own")


def test_most_patterns_are_left_out_in_the_order_of_the_rest() -> None:
    screen = Screen(["b.d", "x", "(?!never)a", r"(a)\1"])
    # RE2 reads no reference back: such a pattern is always searched for.
    assert list(screen.may_match("abcd")) == [0, 2, 3]
    assert list(screen.may_match("q")) == [3]
