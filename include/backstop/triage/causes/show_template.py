"""Says what is shown of a template: words that may be names of people or firms become slots.

Pure. Grouping never sees this: causes that differ only in such a word stay two. One text cannot tell a name from a word that no
list knows, so that both are taken out of what is shown; whoever may read contents finds the full text in the dead letter. A
name in lower case, or one that is also a common word and stands alone (`Mark`), is not recognised.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise

from backstop.triage.causes.find_patterns import NAME
from backstop.triage.causes.mask_slots import SLOT
from backstop.triage.causes.vocabulary import is_kind, is_known, labels, parts_of_word, technical

_PIECE = re.compile(r"<(?:\*|name|any)>|[^\W\d_](?:[\w$]|[.\-'’](?=\w))*")
_BETWEEN_NAMES = re.compile(r",? ")
_RUN = re.compile(r"<\*>(?:,? <\*>)+")
_IDENTIFIER = re.compile(r"[\w$.]+")
_HUMP = 3
"""Letters that a known part of an identifier has at least."""


@lru_cache(maxsize=16_384)
def shown(template: str) -> str:
    """The template without what may be a name."""
    pieces = list(_PIECE.finditer(template))
    hidden = [
        piece[0] == NAME or (not piece[0].startswith("<") and may_name_somebody(piece[0]))
        for piece in pieces
    ]
    beside = [
        _BETWEEN_NAMES.fullmatch(template, one.end(), next_.start()) is not None
        for one, next_ in pairwise(pieces)
    ]
    for at in range(1, len(pieces)):
        hidden[at] = hidden[at] or (
            hidden[at - 1] and beside[at - 1] and _like_a_name(pieces[at][0])
        )
    for at in range(len(pieces) - 2, -1, -1):
        hidden[at] = hidden[at] or (hidden[at + 1] and beside[at] and _like_a_name(pieces[at][0]))
    text, end = "", 0
    for piece, out in zip(pieces, hidden, strict=True):
        text += template[end : piece.start()] + (SLOT if out else piece[0])
        end = piece.end()
    return _RUN.sub(SLOT, text + template[end:])


def may_name_somebody(word: str) -> bool:
    """It is not all in lower case, and neither a known word, a type of error, a code, nor an identifier."""
    if is_kind(word):
        return False
    if "." in word:
        parts = word.split(".")
        return len(parts) == 2 and all(map(_unknown, parts))
    if word == word.lower() != word.upper():
        return False
    if not _unknown(word):
        return False
    parts = parts_of_word(word)
    return not (
        len(parts) > 1
        and _IDENTIFIER.fullmatch(word)
        and any(len(p) >= _HUMP and is_known(p.lower()) for p in parts)
    )


def _unknown(word: str) -> bool:
    if word.isupper() and ("_" in word or any(character.isdigit() for character in word)):
        return False  # a code: CARD_DECLINED, E1042
    parts = [word] if word.isupper() else parts_of_word(word)
    return not all(part.lower() in technical() or is_known(part.lower()) for part in parts)


def _like_a_name(word: str) -> bool:
    """A first name may also be a word: `Max Mustermann`."""
    return word.istitle() and word.isalpha() and not is_kind(word) and word.lower() not in labels()
