"""Tells the words that messages are written in from names: a word says what happened, a name to whom.

Not in the list and without an ending of English verbs and adjectives: it may be a name. Names are only ever taken out where
more speaks for it (a label before it, or several of them in one place).
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from importlib.resources import files

_ENDINGS = (
    "ed",
    "ing",
    "ly",
    "able",
    "ible",
    "tion",
    "sion",
    "ment",
    "ness",
    "ful",
    "less",
    "ous",
    "ive",
    "ity",
    "ance",
    "ence",
    "ency",
    "ancy",
    "ure",
    "ism",
    "ized",
    "ised",
    "wise",
    "ward",
    "time",
    "'t",
    "n't",
)
_KIND = re.compile(
    r"(?:Exception|Error|Fault|Failure|Warning|Timeout|Interrupt|Abort|Panic)s?(?:\b|$|[_$])"
)
_LETTERS = re.compile(r"[^\W\d_]")
_CODE = re.compile(r"[A-Z][A-Z0-9_]+")
_PART = re.compile(r"[^\W\d_A-Z]+|[A-Z][^\W\d_A-Z]*")
"""The words of what is written together: DataNode, read-only, order_id."""


@cache
def labels() -> frozenset[str]:
    """Words that announce a name."""
    return _read("labels.txt")


@cache
def technical() -> frozenset[str]:
    """Abbreviations and products that are written with capitals and name nobody."""
    return _read("technical.txt")


@cache
def _words() -> frozenset[str]:
    return _read("words.txt")


def _read(name: str) -> frozenset[str]:
    text = files("backstop.triage.causes").joinpath(name).read_text(encoding="utf-8")
    return frozenset(
        word for line in text.splitlines() if not line.startswith("#") for word in line.split()
    )


@lru_cache(maxsize=65_536)
def may_be_name(word: str) -> bool:
    """It has letters, and a part that no list knows. Types of errors and codes in capitals are never names."""
    if not _LETTERS.search(word) or _KIND.search(word) or _CODE.fullmatch(word):
        return False
    return not all(is_known(part.lower()) for part in parts_of_word(word))


def is_kind(word: str) -> bool:
    """It names a type of error: two causes that differ in one are never the same."""
    return _KIND.search(word) is not None


def parts_of_word(word: str) -> list[str]:
    """DataNode: Data, Node."""
    return _PART.findall(word)


def is_known(word: str) -> bool:
    """A word in lower case that a list has, or that has an ending of English verbs and adjectives."""
    words = _words()
    return (
        len(word) < 2
        or word in words
        or (word.endswith("s") and (word[:-1] in words or word[:-2] in words))
        or (len(word) > 4 and word.endswith(_ENDINGS))
    )
