"""Says of a dead letter's text which category of death it was: the rules are data, the first that matches decides.

Pure. Of a chain of errors the root speaks first: what wraps it often says less.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from backstop.config.dead_letter_rules import compiled
from backstop.model.records import Category
from backstop.triage.causes.fingerprint import VERSION

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
        self._compiled: list[tuple[Rule, Any]] = [
            (rule, compiled(rule.pattern)) for rule in map(_rule, own)
        ]
        self._compiled += [(rule, re.compile(rule.pattern)) for rule in built_in()]
        text = json.dumps([VERSION, [[r.name, r.category, r.pattern, r.where] for r in self.rules]])
        self.version = f"r{VERSION}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        self._known: dict[tuple[str, str], tuple[Category, str]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Rules, (self.own,)  # compiled again where it arrives

    def categorise(self, cause: str, error: str) -> tuple[Category, str]:
        """The category of the text, and the name of the rule that said so; (unknown, NO_RULE) when none knows it."""
        known = self._known.get((cause, error))
        if known is None:
            known = self._say(_bound(cause), _bound(error))
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[cause, error] = known
        return known

    def _say(self, cause: str, error: str) -> tuple[Category, str]:
        roots = tuple(
            _ROOT.split(text)[-1] if _ROOT.search(text) else "" for text in (cause, error)
        )
        for one, other in ((roots,) if any(roots) else ()) + ((cause, error),):
            for rule, pattern in self._compiled:
                read = (
                    (one,)
                    if rule.where == "cause"
                    else (other,)
                    if rule.where == "error"
                    else (one, other)
                )
                if any(text and pattern.search(text) for text in read):
                    return rule.category, rule.name
        return Category.UNKNOWN, NO_RULE


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
