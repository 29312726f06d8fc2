"""Reads an instant that a person typed."""

from __future__ import annotations

from datetime import datetime

from backstop.model.errors import ConfigurationError


def read_instant(option: str, text: str) -> datetime:
    """`text` as ISO 8601 with its zone; ConfigurationError names the option and says how to write it."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise _usage_error(
            f"{option}: {text!r} is not a time.", "Write it as 2026-11-21T02:00Z."
        ) from None
    if instant.tzinfo is None:
        read = instant.isoformat()  # as it was understood: a day alone, or one with a zone, is read otherwise than it was meant
        raise _usage_error(
            f"{option}: {text!r} has no time zone.", f"Write {read}Z for UTC, or {read}+01:00."
        )
    return instant


def _usage_error(what: str, next_step: str) -> ConfigurationError:
    return ConfigurationError(what, unaffected="Nothing was read.", next_step=next_step)
