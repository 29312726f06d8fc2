"""Write what only the owner may read: passwords and the state that holds them, mode 0600 from the first
byte on."""

import os
import secrets
from pathlib import Path


def write_private(path: Path, text: str, owner: tuple[int, int] | None = None) -> None:
    """Replace a file at once, so that a crash leaves the old one or the new one; `owner` is (uid, gid)."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        if owner is not None:
            os.fchown(file.fileno(), *owner)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read_or_generate(path: Path, length: int = 24) -> str:
    """The secret kept in a file, generated at the first call (`length` random bytes, URL-safe)."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, secrets.token_urlsafe(length))
    return path.read_text(encoding="utf-8")
