"""A consumer without order refuses to work beside ordered ones of its group: it would take messages out of their order."""

import time
from collections.abc import Collection

from backstop.client.keep_connection import KeptConnection
from backstop.leases import queue_owner
from backstop.model.errors import ConfigurationError, StoreUnavailable
from backstop.sql.run import speaks_mysql

LOOK_AGAIN = 5.0
"""Seconds between two looks for ordered consumers that came later."""


class OrderedPeers:
    """Looks for ordered consumers of one group. Not shared between threads."""

    def __init__(self, store: KeptConnection, group: str) -> None:
        self._store, self._group = store, group
        self._looked_at: dict[str, float] = {}
        """By topic, monotonic."""

    def refuse(self, topics: Collection[str]) -> None:
        """Raises ConfigurationError where one of the topics has a living ordered consumer of the group. A database that is away
        is asked again: it grants no lease either."""
        now = time.monotonic()
        asked = sorted(t for t in topics if now - self._looked_at.get(t, -LOOK_AGAIN) >= LOOK_AGAIN)
        if not asked:
            return
        try:
            with self._store.short_transaction() as connection:
                # In MariaDB and MySQL nobody consumes in order.
                ordered = (
                    []
                    if speaks_mysql(connection)
                    else queue_owner.ordered_topics(connection, self._group, asked)
                )
        except StoreUnavailable:
            return
        if ordered:
            raise ConfigurationError(
                f"The group {self._group!r} consumes {', '.join(map(repr, ordered))} in order: this consumer does not keep it.",
                unaffected="It took nothing more; the ordered consumers go on.",
                next_step="Make it an OrderedConsumer, or give it a group of its own.",
            )
        self._looked_at.update(dict.fromkeys(asked, now))
