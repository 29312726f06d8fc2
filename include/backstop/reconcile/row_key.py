"""The key of a row in `quarantine` and `anomaly`, as one text."""

from __future__ import annotations

from hashlib import sha256

_KEY_BYTES = 2000
"""Of a row's key as text; with store and reason within what one index entry holds (2,704 bytes)."""


def row_key(*parts: str | None) -> str:
    """One text for a row's key; the SHA-256 of it where no index could hold it."""
    # Ids may contain any separator: lengths in front make the joined text unique.
    joined = "".join(f"{len(part)}:{part}" for part in (part or "" for part in parts))
    return (
        joined
        if len(joined.encode()) <= _KEY_BYTES
        else f"sha256:{sha256(joined.encode()).hexdigest()}"
    )
