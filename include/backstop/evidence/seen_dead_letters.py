"""Remembers which dead letters of a queue were read before, so that each batch of a resend reads only those behind them.

A batch judges a few hundred messages, and the queue may hold a million letters that nobody drains. What is remembered only
rules out: when it may hold one of the messages asked about, the queue is read whole, because the letter may be gone by now.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping

from backstop.brokers.protocol import DeadLetterRef

MOST = 1_000_000
"""Ids that are remembered of one group, eight bytes each; those behind them are read again each time."""


class SeenDeadLetters:
    """The dead letters of one group in one broker, as far as one piece of work has read them."""

    def __init__(self) -> None:
        self._hashes = array("q")
        self._since: dict[str, str] = {}

    def since(self, ids: Collection[str]) -> Mapping[str, str]:
        """From where to read for these messages; everything is forgotten when an earlier letter may be one of theirs."""
        if not set(map(hash, ids)).isdisjoint(self._hashes):
            self._hashes, self._since = array("q"), {}
        return dict(self._since)

    def add(self, dead_letter: DeadLetterRef) -> None:
        """The next one that was read. One without a place cannot be skipped later, and is not remembered."""
        if dead_letter.place is None or len(self._hashes) >= MOST:
            return
        queue, entry = dead_letter.place
        self._since[queue] = entry
        if dead_letter.message_id is not None:
            self._hashes.append(hash(dead_letter.message_id))
