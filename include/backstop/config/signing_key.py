"""Reads the key by which proofs are signed: a file that is named in the settings, readable by its owner alone."""

from __future__ import annotations

import stat
from pathlib import Path

from backstop.config.settings import Settings
from backstop.errors import ConfigurationError


def signing_key(settings: Settings) -> bytes | None:
    """The private key's PEM; null when none is configured. Raises ConfigurationError when others may read it, or nobody can."""
    if settings.prove is None:
        return None
    path = Path(settings.prove.signing_key)
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise _unfit(path, "others than its owner may read it", f"chmod 600 {path}")
        return path.read_bytes()
    except OSError as error:
        raise _unfit(path, f"it cannot be read ({type(error).__name__})", "Name a file that this process may read.") from error


def _unfit(path: Path, why: str, next_step: str) -> ConfigurationError:
    return ConfigurationError(
        f"prove.signing_key: {path}: {why}.", kept="Nothing was signed, and no proof was written.", next_step=next_step
    )
