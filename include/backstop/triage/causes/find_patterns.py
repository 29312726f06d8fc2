"""Finds what one text cannot tell: a place where many templates that agree in all else have different words.

Pure, and blind to the order of its input. What was found once is kept by its cause's template, with `<name>` or `<any>` in
that place, and is asked before anything is found again: a cause does not move. Careful on purpose: two causes in one would let
somebody replay a poison, one cause in two only costs them a second look.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from backstop.triage.causes.mask_slots import SLOT
from backstop.triage.causes.vocabulary import is_kind, may_be_name

NAME, ANY = "<name>", "<any>"
"""A place for names (words that no list knows, and slots), and one for any word at all."""
NAMES, WORDS = 3, 5
"""So many different names, or words, in one place make it a slot."""
NAMES_BESIDE, WORDS_BESIDE = 2, 3
"""So many are enough where another template, the same in all else, has a slot."""
_ANNOUNCES_WHAT = frozenset(
    {"reason", "code", "cause", "because", "error", "status", "outcome", "result"}
)
"""After these, a word says what happened: it is never a place."""
LONGEST, LONGEST_FOR_WORDS = 120, 60
"""Tokens: longer templates stay as they are, or only meet names."""
_CORE = re.compile(r"[^\W\d_][\w.\-$]*")
_MARK = re.compile(r"<\*>|<name>|<any>")
_SLOT_ALONE = re.compile(r"([^\w<>]*)(?:<\*>|<name>)([^\w<>]*)")

Tokens = tuple[str, ...]


class _Token(NamedTuple):
    before: str
    core: str
    after: str

    def with_core(self, core: str) -> str:
        return self.before + core + self.after


class Patterns:
    """Templates that were kept with a place for words, the oldest first."""

    def __init__(self, kept: Iterable[str]) -> None:
        self._by_length: dict[int, list[tuple[str, Tokens]]] = defaultdict(list)
        for template in kept:
            tokens = tuple(template.split(" "))
            self._by_length[len(tokens)].append((template, tokens))

    def match(self, template: str) -> str | None:
        """The oldest pattern that the template fits; null: none."""
        tokens = tuple(template.split(" "))
        for pattern, wanted in self._by_length.get(len(tokens), ()):
            if pattern != template and all(map(_fits, wanted, tokens)):
                return pattern
        return None


def is_pattern(template: str) -> bool:
    """It has a place that was found."""
    return NAME in template or ANY in template


def find_patterns(candidates: Mapping[str, str]) -> dict[str, str]:
    """Template -> category, of templates that no kept pattern fits; returns template -> pattern for those that make one.

    Templates of different categories never make a pattern together.
    """
    found: dict[str, str] = {}
    by_shape: dict[tuple[str, int], list[str]] = defaultdict(list)
    for template, category in sorted(candidates.items()):
        length = template.count(" ") + 1
        if 2 < length <= LONGEST and not is_pattern(template):
            by_shape[category, length].append(template)
    for templates in by_shape.values():
        named = dict(_by_names(templates))
        units = {template: named.get(template, template) for template in templates}
        words = dict(_by_words(sorted(set(units.values()))))
        found |= {
            template: words.get(unit, unit)
            for template, unit in units.items()
            if words.get(unit, unit) != template
        }
    return found


def _by_names(templates: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Templates that are one once every possible name is left out; each name's place then needs NAMES of them."""
    alike: dict[Tokens, list[list[_Token]]] = defaultdict(list)
    for template in templates:
        tokens = [_split(token) for token in template.split(" ")]
        open_to_names = {
            at
            for at, token in enumerate(tokens)
            if may_be_name(token.core) and not _says_what(tokens, at)
        }
        alike[
            tuple(
                t.with_core(NAME if at in open_to_names else t.core) for at, t in enumerate(tokens)
            )
        ].append(tokens)
    for skeleton, members in alike.items():
        places = [at for at, token in enumerate(skeleton) if NAME in token]
        if len(members) >= NAMES and places:
            yield from _settle(skeleton, members, places)


def _settle(
    skeleton: Tokens, members: list[list[_Token]], places: Collection[int]
) -> Iterator[tuple[str, str]]:
    values = {at: {tokens[at].core for tokens in members} for at in places}
    differ = {at: found for at, found in values.items() if len(found) > 1}
    if len(members) < NAMES or not differ:
        return
    fewest = min(differ, key=lambda at: (len(differ[at]), at))
    if len(differ[fewest]) < NAMES:
        for value in sorted(differ[fewest]):
            yield from _settle(
                skeleton, [tokens for tokens in members if tokens[fewest].core == value], places
            )
        return
    pattern = [
        token if at in differ else members[0][at].with_core(members[0][at].core)
        for at, token in enumerate(skeleton)
    ]
    if _says_enough(pattern, 2):
        for tokens in members:
            yield " ".join(token.with_core(token.core) for token in tokens), " ".join(pattern)


def _by_words(units: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Units that differ in one word, whatever word: that place needs WORDS of them; beside a slot fewer, names the fewest."""
    if not units or units[0].count(" ") >= LONGEST_FOR_WORDS:
        return
    rows = [unit.split(" ") for unit in units]
    split = [[_split(token) for token in tokens] for tokens in rows]
    enough: dict[Tokens, tuple[int, list[str]]] = {}
    for at in range(len(rows[0])):  # place by place, so that only one place's groups are in memory
        alike: dict[str, list[int]] = defaultdict(list)
        slots: dict[str, list[int]] = defaultdict(list)
        for number, tokens in enumerate(rows):
            part, found = split[number][at], alike
            if around := _SLOT_ALONE.fullmatch(tokens[at]):
                part, found = _Token(around[1], SLOT, around[2]), slots
            elif (
                not part.core
                or is_kind(part.core)
                or _MARK.search(tokens[at])
                or _says_what(split[number], at)
            ):
                continue
            found[" ".join((*tokens[:at], part.with_core(ANY), *tokens[at + 1 :]))].append(number)
        for pattern, members in alike.items():
            names = all(may_be_name(split[number][at].core) for number in members)
            needed = WORDS if pattern not in slots else NAMES_BESIDE if names else WORDS_BESIDE
            if len(members) >= needed:
                numbers = members + slots.get(pattern, [])
                enough[tuple(pattern.split(" "))] = needed, [units[number] for number in numbers]
    taken: set[str] = set()
    for kept, (needed, together) in sorted(
        enough.items(), key=lambda one: (-len(one[1][1]), one[0])
    ):
        fresh = [unit for unit in together if unit not in taken]
        if len(fresh) >= needed and _says_enough(kept, 3):
            taken.update(fresh)
            for unit in fresh:
                yield unit, " ".join(kept)


def _says_what(tokens: Sequence[_Token], at: int) -> bool:
    """It comes right after a word that announces what happened: `reason fraud`."""
    return at > 0 and tokens[at - 1].core.lower() in _ANNOUNCES_WHAT


def _says_enough(pattern: Sequence[str], words: int) -> bool:
    """So many words stay, and no fewer than there are places for words."""
    places = sum(1 for token in pattern if is_pattern(token))
    stay = sum(1 for token in pattern if not _MARK.search(token) and _CORE.search(token))
    return stay >= max(words, places)


@lru_cache(maxsize=65_536)
def _split(token: str) -> _Token:
    """The first word of a token, with what stands around it; none in a slot."""
    if token.startswith(SLOT):
        return _Token(token, "", "")
    found = _CORE.search(token)
    if found is None or SLOT in token[: found.start()]:
        return _Token(token, "", "")
    core = found[0].rstrip(".-")
    return _Token(token[: found.start()], core, token[found.start() + len(core) :])


def _fits(wanted: str, token: str) -> bool:
    if wanted == token:
        return True
    for mark in (NAME, ANY):
        if mark in wanted:
            before, _, after = wanted.partition(mark)
            core = (
                token[len(before) : len(token) - len(after) or None]
                if token.startswith(before) and token.endswith(after)
                else ""
            )
            if core == SLOT or (
                core
                and _CORE.fullmatch(core)
                and not is_kind(core)
                and (mark == ANY or may_be_name(core))
            ):
                return True
    return False
