"""Sweeps the records of one entry of `foreign_leases`: walk, ask the log, decide, apply by compare-and-set."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from backstop.model.errors import Unavailable
from backstop.model.records import Counts, Key
from backstop.sweep.foreign.decide import Decision, Expiry, Held, Record, decide, keys_of
from backstop.sweep.foreign.protocol import ForeignDecision, LogStanding, StatesOf
from backstop.sweep.foreign.records import Page, Records, Seen

BATCH = 1_000
"""Records that are decided at once: one question to the log."""
_UNREADABLE = "its key, its value or its row is not what this program writes"
_SILENCE = "the log did not answer: nothing is freed on its silence"


class _Span(NamedTuple):
    """A page, by the places where it begins and ends."""

    begins: str
    ends: str


class SweptRecords:
    """`ForeignLeases` over any store."""

    def __init__(self, name: str, group: str, records: Records, *, walk: int) -> None:
        self.name, self.group = name, group
        self.done = Counts()
        self._records, self._walk = records, walk
        self._place = self._started = ""
        # Seen by a call that then had reached its limit, each with the page that it is on: decided first by the next call.
        self._left: deque[tuple[Seen, _Span]] = deque()

    def __repr__(self) -> str:
        return f"SweptRecords({self.name}, {self.group})"

    @property
    def place(self) -> str:
        """Where the next call goes on: what was seen and not yet decided is not behind it.

        Unless one page alone was more than the limit: its rest waits for the next round, else no call would get past it.
        """
        if not self._left:
            return self._place
        page = self._left[0][1]
        return page.begins if page.begins != self._started else page.ends

    @place.setter
    def place(self, place: str) -> None:
        self._left.clear()
        self._place = place

    def close(self) -> None:
        self._records.close()

    def count(self, at_most: int) -> int:
        found, end = 0, self.place
        for _, page in self._pages(self.place, BATCH, only_stuck=True):
            end = page.place
            found += sum(
                1 for seen in page.seen if seen.record is not None and _looks_stuck(seen.record)
            )
            if found >= at_most:
                return at_most
        if not found:
            self.place = end
        return found

    def sweep(
        self,
        states_of: StatesOf,
        *,
        limit: int,
        dry_run: bool,
        tell: Callable[[ForeignDecision], None] | None = None,
    ) -> Counts:
        self.done = Counts()
        for begins, batch in self._batches(limit):
            silence: Unavailable | None = None
            says: dict[Key, LogStanding] = {}
            try:
                if asked := keys_of([seen.record for seen in batch if seen.record is not None]):
                    says = dict(states_of(asked))
            except Unavailable as error:
                silence = error
            decided: dict[Decision, list[Seen]] = {decision: [] for decision in Decision}
            for seen in batch:
                if seen.record is None:
                    self.done.add("unreadable")
                    self._tell(tell, seen, "unreadable", _UNREADABLE)
                    continue
                decision, why = (
                    (Decision.KEEP, _SILENCE) if silence is not None else decide(seen.record, says)
                )
                decided[decision].append(seen)
                self._tell(tell, seen, decision.value, why)
            self.done.add("looked", len(batch))
            self._apply(decided, dry_run)
            if silence is not None:
                self.place = begins
                raise silence  # what a database did not answer is not asked of it for every further batch
        return self.done

    def _apply(self, decided: dict[Decision, list[Seen]], dry_run: bool) -> None:
        for decision, seen in decided.items():
            if not seen:
                continue
            if dry_run or decision is Decision.KEEP:
                self.done.add(decision.value, len(seen))
            else:
                self._records.apply(decision, seen, self.done)

    def _batches(self, limit: int) -> Iterator[tuple[str, Sequence[Seen]]]:
        """Where it begins, and the batch: what is left of the last call, then what is found on; `limit` in all."""
        # Half of the limit, so that a page that is seen again, after its place was put back, leaves room for the next.
        pages = self._pages(self._place, max(1, min(BATCH, limit // 2)))
        allowed, self._started = limit, self._where()
        while allowed > 0:
            wanted = min(BATCH, allowed)
            while len(self._left) < wanted and (found := next(pages, None)) is not None:
                begins, page = found
                self._left.extend((seen, _Span(begins, page.place)) for seen in page.seen)
                self._place = page.place
            begins = self._where()
            batch = [self._left.popleft()[0] for _ in range(min(wanted, len(self._left)))]
            if not batch:
                return
            allowed -= len(batch)
            yield begins, batch

    def _where(self) -> str:
        return self._left[0][1].begins if self._left else self._place

    def _pages(
        self, place: str, size: int, *, only_stuck: bool = False
    ) -> Iterator[tuple[str, Page]]:
        """Where it begins, and the page: pages up to `walk` records."""
        walked = 0
        for page in self._records.pages(place, size, only_stuck=only_stuck):
            yield place, page
            place = page.place
            walked += page.walked
            if walked >= self._walk:
                return

    def _tell(
        self, tell: Callable[[ForeignDecision], None] | None, seen: Seen, decision: str, why: str
    ) -> None:
        if tell is None:
            return
        topic, message_id = seen.record.readings[0] if seen.record is not None else ("", seen.text)
        tell(ForeignDecision(self.name, self.group, topic, message_id, decision, why))


def _looks_stuck(record: Record) -> bool:
    """Whether a sweep would free it if the log said nothing of it; not known whether it is untouched counts as such."""
    if record.held is Held.CONSUMED or record.expiry is Expiry.LATER:
        return False
    return record.expiry is Expiry.PAST or record.untouched is not False
