"""One system for a module of tests of retention and audit, emptied before each of them: cheaper than five databases a test."""

from __future__ import annotations

from backstop.config.connections import Connections
from committed import empty
from system import ROLES, System


def emptied(made: System) -> System:
    """The same databases without a row, and connections that nobody has resolved yet."""
    for database in ROLES:
        empty(made.urls[database])
    urls = dict(made.urls)
    return System(urls, made.settings, Connections(resolver=urls.get), made.broker)
