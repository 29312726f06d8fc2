"""A mapped table with an overlay: people withdraw and allow more sends; at the levels publish and rearm, numbers are handed out.

What looks remember stays in the control database; the overlay alone decides who has a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any, BinaryIO

from backstop.brokers.protocol import Finding
from backstop.config.mapped import StubMapping
from backstop.model.errors import RowsLocked, StoreFailed
from backstop.model.records import Attempt, Key, Message
from backstop.sql.connection import STATEMENT_TIMEOUT
from backstop.stores.locked_rows import change_free
from backstop.stores.mapped.overlay import Overlay, hashed, parameters
from backstop.stores.mapped.stubs import _SQL, ZONES, MappedStubs
from backstop.stores.mapped.table import Look, StubRow
from backstop.stores.protocol import Claim, Handed, Life, Settlement, StubOutcome

_MOST_JUDGED = 100_000
"""Messages of which the last answer outlives the next question: several times what is judged at once."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """A message as the last question by key read it."""

    version: str | None
    """Of its row; null: it is gone, or there are two."""
    send_count: int
    dated: bool
    """Whether the newest number's own attempt dates it: its row is as it was when the number was handed out."""


class OverlaidStubs(MappedStubs):
    """See stores.protocol.StubStore. A claim is for the row that this very object judged by key."""

    _by_looks_alone = False

    def __init__(
        self,
        shard: str,
        url: str,
        control_url: str,
        mapping: StubMapping,
        doubt: timedelta = ZONES,
        level: str = "overlay",
        patience: timedelta = STATEMENT_TIMEOUT,
    ) -> None:
        super().__init__(shard, url, control_url, mapping, doubt, patience)
        self._overlay = Overlay(shard, url, mapping, level, patience)
        self._judged: dict[Key, _Judged] = {}
        self._look: dict[str, Any] = {}
        self.repairs = level in ("publish", "rearm")

    def look(self, into: BinaryIO) -> Look:
        look = super().look(into)
        # After the rows: a number that is handed out in between leaves a row that was not met as it is now.
        self._look = {**parameters(self._overlay.numbered()), "attempts": self._overlay.ended()}
        return look

    def _remember_more(self, values: dict[str, Any]) -> Sequence[str]:
        values |= self._look
        return ("remember_numbers", "remember_attempts")

    def stub_table(self, keys: Sequence[Key]) -> Any:
        # The oldest answers go, and never one to this question: its attempts and its claims come soon after it.
        for key in list(islice(self._judged, max(0, len(self._judged) - _MOST_JUDGED))):
            del self._judged[key]
        return super().stub_table(keys)

    def _numbered(self, keys: Sequence[Key], met: Sequence[StubRow]) -> dict[str, Any]:
        numbered = self._overlay.numbered(keys)
        by_key = {Key(one.topic, one.message_id): one for one in numbered}
        rows: dict[Key, list[StubRow]] = {}
        for row in met:
            rows.setdefault(Key(row[0] or "", row[1] or ""), []).append(row)
        for key in keys:
            self._judged.pop(key, None)
            one = by_key.get(key)
            if key not in rows and one is None:
                continue
            (_, _, _, state, version), *more = rows.get(key) or [(None, None, None, "", None)]
            self._judged[key] = _Judged(
                None if more else version,
                1 if one is None else one.send_count,
                one is not None
                and one.attempt_deadline is None
                and state == "sent"
                and not more
                and hashed(version or "") == one.number_version,
            )
        return parameters(numbered)

    def attempt_table(self, keys: Sequence[Key]) -> Any:
        """Of messages that `stub_table` has read: of numbers before the newest that it met, and of that one where its own attempt
        dates it; number 1 as looks date it."""
        from backstop.sql.arrow import concat  # needs pyarrow, which not every caller has

        found = self._overlay.stubs.attempt_table(keys)
        names = ("topic", "message_id", "send_number")
        rows = zip(*(found.column(name).to_pylist() for name in names), strict=True)
        kept = [
            number > 1
            and (one := self._judged.get(Key(topic, message_id))) is not None
            and (number < one.send_count or (number == one.send_count and one.dated))
            for topic, message_id, number in rows
        ]
        return concat([super().attempt_table(keys), found.filter(kept) if kept else found])

    def attempts(self, keys: Iterable[Key]) -> dict[Key, list[Attempt]]:
        return self._overlay.stubs.attempts(keys)

    def lives(self, topics: Sequence[str]) -> dict[str, set[Life]]:
        met = super().lives(topics)
        return {
            topic: lives | met[topic] for topic, lives in self._overlay.stubs.lives(topics).items()
        }

    def contents(self, keys: Iterable[Key]) -> dict[Key, Message]:
        return {}

    def promote(
        self,
        outcomes: Sequence[StubOutcome],
        as_of: datetime,
        own_as_of: datetime | None = None,
        before_commit: Callable[[], None] | None = None,
    ) -> int:
        if outcomes:
            self._overlay.stubs.promote(outcomes, as_of, own_as_of, before_commit)
        return super().promote(outcomes, as_of, own_as_of, before_commit)

    def closed_since(self, topics: Sequence[str], since: datetime) -> Iterator[list[Key]]:
        """Also what the overlay alone has closed; each message once or twice."""
        yield from self._overlay.stubs.closed_since(topics, since)
        yield from super().closed_since(topics, since)

    def reopen(self, keys: Sequence[Key]) -> int:
        self._overlay.stubs.reopen(keys)
        return super().reopen(keys)

    def claim(self, claims: Sequence[Claim]) -> dict[Key, Message]:
        if not self.repairs or not claims:
            return {}
        judged = {
            claim.key: one.version
            for claim in claims
            if (one := self._judged.get(claim.key)) is not None and one.version is not None
        }
        return self._overlay.claim(claims, judged)

    def unsendable(self, keys: Iterable[Key]) -> dict[Key, StoreFailed]:
        return self._overlay.unsendable(list(keys))

    def sizes(self, keys: Iterable[Key], above: int = -1) -> dict[Key, int]:
        return self._overlay.sizes(list(keys), above)

    def settle(self, settlements: Sequence[Settlement]) -> set[Key]:
        return self._overlay.stubs.settle(settlements)

    def recover(self, limit: int, max_send_seconds: float | None = None) -> list[Key]:
        try:
            settled = self._overlay.settle_rearmed(self._states)
        except RowsLocked:
            self._catch_up()  # what else is past its deadline is recovered by key
            raise
        settled += self._overlay.stubs.recover(limit, max_send_seconds)
        self._catch_up()
        return settled

    def late(self, after: Key, limit: int) -> list[Key]:
        return self._overlay.stubs.late(after, limit)

    def recover_of(self, keys: Sequence[Key], max_send_seconds: float) -> list[Key]:
        return self._overlay.stubs.recover_of(keys, max_send_seconds)

    def raise_numbers(self, handed: Sequence[Handed]) -> set[Key]:
        known = self.stubs({one.key for one in handed})
        mine = [one for one in handed if one.key in known]
        if not mine:
            return set()
        self._overlay.ensure([one.key for one in mine])
        return self._overlay.stubs.raise_numbers(mine)

    def void(self, key: Key) -> bool:
        """Never while its own relay may still send it: nobody could hold that back. What looks remember as withdrawn is withdrawn
        again: the overlay may have been restored."""
        stub = self.stubs([key]).get(key)
        if stub is None or (
            stub.status != "voided" and (stub.attempt_token is not None or stub.status not in _OPEN)
        ):
            return False
        self._overlay.ensure([key])
        return self._overlay.stubs.void(key)

    def raise_max_sends(self, key: Key, max_sends: int) -> bool:
        """Not of a row that is gone: there is nothing to send."""
        stub = self.stubs([key]).get(key)
        judged = self._judged.get(key)
        if stub is None or judged is None or judged.version is None or stub.status not in _OPEN:
            return False
        self._overlay.ensure([key])
        return self._overlay.stubs.raise_max_sends(key, max_sends)

    def tables(self) -> str | None:
        return self._overlay.stubs.tables()

    def check(self) -> list[Finding]:
        findings = [*super().check(), *self._overlay.check()]
        if not all(one.good for one in findings if "overlay" in one.subject):
            return findings
        values = {"store": self.shard, **parameters(self._overlay.numbered())}
        ((numbers, withdrawals),) = self._control.rows(_SQL["behind"], values)
        behind = numbers or withdrawals
        says = "knows every number that was handed out"
        do = ""
        if behind:
            says = (
                f"was restored: it does not know of {numbers} numbers that were handed out, and of {withdrawals} withdrawals. "
                "No number is handed out again, and nothing that was withdrawn is sent"
            )
            do = f"Run `backstop restore producer {self.shard} --since` an instant before the backup."
        return [*findings, Finding(f"shard {self.shard}: overlay numbers", not behind, says, do)]

    def close(self) -> None:
        super().close()
        self._overlay.close()

    def _catch_up(self) -> None:
        """Moves overlay rows to what looks remember: a message was confirmed while its number was under way, which its row could
        not take; a row came back that was given up when it was gone."""
        values = {"store": self.shard, **parameters(self._overlay.open())}
        moved = [
            (StubOutcome(Key(topic, message_id), old, new, number, None), now)
            for topic, message_id, old, new, number, now in self._control.rows(
                _SQL["overtaken"], values
            )
        ]
        if moved:
            promote = partial(self._overlay.stubs.promote, as_of=max(now for _, now in moved))
            change_free([one for one, _ in moved], lambda one: one.key, promote)

    def _states(self, keys: Sequence[Key]) -> dict[Key, str]:
        rows, _ = self._theirs.rows_of_keys(self._mapping, keys)
        states: dict[Key, str] = {}
        for topic, message_id, _, state, _ in rows:
            key = Key(topic or "", message_id or "")
            states[key] = "not_unique" if key in states else state
        return states


_OPEN = frozenset({"pending", "exhausted"})
