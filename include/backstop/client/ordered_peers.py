"""A consumer without order refuses to work beside ordered ones of its group: it would take messages out of their order."""

import time
from collections.abc import Collection, Sequence

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
        self._can_be_ordered = False
        """The database is of a release in which consumers work in order; it is asked until it is."""

    def refuse(self, topics: Collection[str]) -> None:
        """Raises ConfigurationError where one of the topics has a living ordered consumer of the group. A database that is away
        is asked again: it grants no lease either."""
        now = time.monotonic()
        asked = sorted(t for t in topics if now - self._looked_at.get(t, -LOOK_AGAIN) >= LOOK_AGAIN)
        if not asked:
            return
        try:
            ordered = self._ordered_topics(asked)
        except StoreUnavailable:
            self._can_be_ordered = False  # it may come back as an older one
            return
        if ordered:
            raise ConfigurationError(
                f"The group {self._group!r} consumes {', '.join(map(repr, ordered))} in order: this consumer does not keep it.",
                unaffected="It took nothing more; the ordered consumers go on.",
                next_step="Make it an OrderedConsumer, or give it a group of its own.",
            )
        self._looked_at.update(dict.fromkeys(asked, now))

    def _ordered_topics(self, topics: Sequence[str]) -> list[str]:
        if not self._can_be_ordered:
            with self._store.one_statement() as connection:
                # In MariaDB and MySQL nobody consumes in order.
                self._can_be_ordered = not speaks_mysql(connection) and queue_owner.has_members(
                    connection
                )
        if not self._can_be_ordered:
            return []
        with self._store.one_statement() as connection:
            return queue_owner.ordered_topics(connection, self._group, topics)
