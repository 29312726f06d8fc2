"""Keep passwords out of texts that people read."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SHORT = 8


def mask_secrets(text: str, secrets: Iterable[str]) -> str:
    """The text with each secret replaced by ***.

    A short secret, or one of letters alone, may be a part of other words (`shop` of `shop_a`): it is replaced only where it
    stands by itself, so that the message stays readable. Any other is replaced wherever it occurs.
    """
    for secret in sorted(filter(None, set(secrets)), key=len, reverse=True):  # one may contain another
        pattern = re.escape(secret)
        if secret.isalpha() or len(secret) < _SHORT:
            before = r"(?<!\w)" if re.match(r"\w", secret) else ""
            after = r"(?!\w)" if re.search(r"\w$", secret) else ""
            pattern = before + pattern + after
        text = re.sub(pattern, "***", text)
    return text
