"""Refuses what a person typed and nothing has: a name, a number beyond what the database counts to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from backstop.model.errors import ConfigurationError

if TYPE_CHECKING:
    from backstop.config.settings import Settings  # `--help` is not to wait for it

LARGEST = 2**63 - 1
"""Of every number that goes to the database."""


def misused(what: str, next_step: str, kept: str = "Nothing was read.") -> ConfigurationError:
    """The error to raise."""
    return ConfigurationError(what, kept=kept, next_step=next_step)


def require_known(option: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises ConfigurationError for a value that this option cannot have: it would find nothing, as if all were well."""
    names = [str(name) for name in known]
    for one in given:
        if one not in names:
            raise misused(
                f"{option} {one}: there is no such {option.removeprefix('--')}.",
                f"Name one of: {', '.join(names)}.",
            )


def explain_nothing(
    settings: Settings, topics: Iterable[str] = (), groups: Iterable[str] = ()
) -> None:
    """To be asked when nothing was found: raises ConfigurationError for a topic or group that there is not.

    What is stored of one that left the settings is found, and then nobody asks.
    """
    require_known("--topic", topics, settings.topics)
    require_known("--group", groups, settings.groups)
