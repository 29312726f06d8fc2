"""Reads the key by which proofs are signed: a file that is named in the settings, readable by its owner alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from backstop.config.settings import Settings
from backstop.model.errors import ConfigurationError


def signing_key(settings: Settings) -> bytes | None:
    """The private key's PEM; null when none is configured. Raises ConfigurationError when others may read it, or nobody can."""
    if settings.prove is None:
        return None
    path = Path(settings.prove.signing_key)
    try:
        with path.open("rb") as file:
            # The open file is looked at, not the path, so that nobody can put another in its place in between.
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode) or facts.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise _unfit(path, "others than its owner may read it", f"chmod 600 {path}")
            if facts.st_uid != os.geteuid():
                raise _unfit(
                    path,
                    "it belongs to another user, who could change it",
                    "Give it to the user of this process.",
                )
            return file.read()
    except OSError as error:
        raise _unfit(
            path,
            f"it cannot be read ({type(error).__name__})",
            "Name a file that this process may read.",
        ) from error


def _unfit(path: Path, why: str, next_step: str) -> ConfigurationError:
    return ConfigurationError(
        f"prove.signing_key: {path}: {why}.",
        unaffected="Nothing was signed, and no proof was written.",
        next_step=next_step,
    )
