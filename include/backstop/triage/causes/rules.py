"""Says of a dead letter's text which category of death it was: the rules are data, the first that matches decides.

Pure. Of a chain of errors the root speaks first: what wraps it often says less.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

import yaml

from backstop.config.dead_letter_rules import compiled
from backstop.model.records import Category
from backstop.triage.causes.fingerprint import VERSION
from backstop.triage.causes.screen import Screen

_ROOT = re.compile(r"Caused by: |nested exception is |---> ")
HEAD, TAIL = 4_096, 1_024
"""Characters of a text that the rules read."""
NO_RULE = "no-rule"
_REMEMBERED = 20_000


@dataclass(frozen=True, slots=True)
class Rule:
    """`where`: cause (the broker's words), error (the consumer's), any."""

    name: str
    category: Category
    pattern: str
    where: str


class Rules:
    """One's own rules and then the built-in ones. `version` changes with any of them, and with how texts are read."""

    def __init__(self, own: Sequence[Mapping[str, Any]] = ()) -> None:
        self.rules = (*map(_rule, own), *built_in())
        self.own = tuple(dict(rule) for rule in own)
        patterns = [compiled(rule["pattern"]) for rule in own]
        patterns += [re.compile(rule.pattern) for rule in built_in()]
        self._of_cause = _FirstMatch(self.rules, patterns, "cause")
        self._of_error = _FirstMatch(self.rules, patterns, "error")
        text = json.dumps([VERSION, [[r.name, r.category, r.pattern, r.where] for r in self.rules]])
        self.version = f"r{VERSION}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def __reduce__(self) -> tuple[Any, ...]:
        return Rules, (self.own,)  # compiled again where it arrives

    def categorise(self, cause: str, error: str) -> tuple[Category, str]:
        """The category of the text, and the name of the rule that said so; (unknown, NO_RULE) when none knows it."""
        cause, error = _bound(cause), _bound(error)
        roots = _root(cause), _root(error)
        for one, other in ((roots,) if any(roots) else ()) + ((cause, error),):
            found = [
                number
                for number in (self._of_cause.find(one), self._of_error.find(other))
                if number is not None
            ]
            if found:
                rule = self.rules[min(found)]
                return rule.category, rule.name
        return Category.UNKNOWN, NO_RULE


class _FirstMatch:
    """The first of the rules that read this part of a text, and match it."""

    def __init__(self, rules: Sequence[Rule], patterns: Sequence[Any], part: str) -> None:
        self._numbers = [n for n, rule in enumerate(rules) if rule.where in (part, "any")]
        self._patterns = [patterns[number] for number in self._numbers]
        self._screen = Screen([rules[number].pattern for number in self._numbers])
        self.find = lru_cache(maxsize=_REMEMBERED)(self._find)
        """Its number; null: none. Of an empty text, too."""

    def _find(self, text: str) -> int | None:
        for place in self._screen.may_match(text) if text else ():
            if self._patterns[place].search(text):
                return self._numbers[place]
        return None


def _root(text: str) -> str:
    """What stands behind the last "Caused by" of a chain; empty: it is none."""
    return _ROOT.split(text)[-1] if _ROOT.search(text) else ""


def _bound(text: str) -> str:
    text = text.encode(errors="replace").decode()  # no lone surrogates
    return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]}\n{text[-TAIL:]}"


@cache
def built_in() -> tuple[Rule, ...]:
    """The table that everybody has."""
    text = files("backstop.triage.causes").joinpath("rules.yaml").read_text(encoding="utf-8")
    return tuple(map(_rule, yaml.safe_load(text)))


def _rule(row: Mapping[str, Any]) -> Rule:
    return Rule(row["name"], Category(row["category"]), row["pattern"], row["where"])
