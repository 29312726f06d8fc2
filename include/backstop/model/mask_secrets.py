"""Keep passwords and contents out of texts that people read."""

from __future__ import annotations

import re
from collections.abc import Iterable

from backstop.model.storable_text import escaped

_SHORT = 8


def mask_secrets(text: str, secrets: Iterable[str]) -> str:
    """The text with each secret replaced by ***.

    A short secret, or one of letters alone, may be a part of other words (`shop` of `shop_a`): it is replaced only where it
    stands by itself, so that the message stays readable. Any other is replaced wherever it occurs.
    """
    for secret in sorted(
        filter(None, set(secrets)), key=len, reverse=True
    ):  # one may contain another
        pattern = re.escape(secret)
        if secret.isalpha() or len(secret) < _SHORT:
            before = r"(?<!\w)" if re.match(r"\w", secret) else ""
            after = r"(?!\w)" if re.search(r"\w$", secret) else ""
            pattern = before + pattern + after
        text = re.sub(pattern, "***", text)
    return text


def drop_details(error: BaseException) -> str:
    """The error's text, such as a database can hold it, without what a database quoted: DETAIL and CONTEXT hold whole rows, and
    so contents.

    It also changes the error and every other one of its chain: whoever logs it later shows no more than their first lines. Errors
    that something replaced (`from None`) are forgotten.
    """
    rest, seen = [error], set[int]()
    while rest:
        one = rest.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        # The driver's errors, without importing it here: not everybody who masks a text has a database.
        if hasattr(one, "pgerror") and hasattr(one, "diag"):
            one.args = tuple(str(one).strip().splitlines()[:1])
        if isinstance(one, BaseExceptionGroup):
            rest += one.exceptions
        if one.__suppress_context__:
            one.__context__ = None
        rest += [before for before in (one.__cause__, one.__context__) if before is not None]
    return escaped(str(error))
