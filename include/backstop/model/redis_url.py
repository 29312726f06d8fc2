"""What is right of a URL of Redis, for programs that give it to redis-py as it is."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

AS_URL = (
    "Write it as redis://user:password@host:6379/0 (rediss:// for TLS). In a password write @ : / ? # and % as %40 %3A %2F %3F %23 and"
    " %25."
)


def require_database(url: str) -> None:
    """Raises ValueError for a path that is no number: redis-py would take database 0 for it, unless the query names one (`db`)."""
    parts = urlsplit(url)
    database = parts.path.strip("/")
    if parts.scheme not in ("redis", "rediss") or "db" in parse_qs(parts.query):
        return
    if database and not database.isdecimal():
        raise ValueError(database)
