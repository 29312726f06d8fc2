"""Errors for options of the command line that cannot be: unknown names, and what excludes one another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from backstop.model.errors import ConfigurationError

if TYPE_CHECKING:
    from backstop.config.settings import Settings  # `--help` is not to wait for it

LARGEST = 2**63 - 1
"""The largest number that an option for the database takes."""


def usage_error(
    what: str, next_step: str, unaffected: str = "Nothing was read."
) -> ConfigurationError:
    """The error to raise for a wrong use of the command line."""
    return ConfigurationError(what, unaffected=unaffected, next_step=next_step)


def require_known(option: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises ConfigurationError for an unknown value, which would otherwise look as if nothing were found."""
    names = [str(name) for name in known]
    for one in given:
        if one not in names:
            raise usage_error(
                f"{option} {one}: there is no such {option.removeprefix('--')}.",
                f"Name one of: {', '.join(names)}.",
            )


def explain_nothing(
    settings: Settings, topics: Iterable[str] = (), groups: Iterable[str] = ()
) -> None:
    """Call it when nothing was found: raises ConfigurationError for an unknown topic or group.

    Rows of a topic that left the settings are still found, without this check.
    """
    require_known("--topic", topics, settings.topics)
    require_known("--group", groups, settings.groups)
