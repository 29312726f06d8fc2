"""Asks a group's logs what is true of messages whose lease stands somewhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backstop.model.errors import StoreUnavailable
from backstop.model.records import Key, LogState
from backstop.stores.leases import Leases, LeaseStanding
from backstop.sweep.decide import Truth


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What the log says, for how much longer a live lease holds, and the state as it is stored ('': no log). One for all messages
    that are answered alike at once."""

    truth: Truth
    seconds_left: float | None = None
    state: str = ""


UNREAD = Answer(Truth.UNREAD)


class GroupLog:
    """The logs of one group. A database that does not answer is asked once; from then on everything is UNREAD."""

    def __init__(self, group: str, leases: Leases) -> None:
        self.group = group
        self.missed: str | None = None
        self._leases = leases

    def ask(self, keys: Sequence[Key]) -> dict[Key, Answer]:
        """One answer for each key."""
        if self.missed is None:
            try:
                found = self._leases.standing(self.group, keys)
                said = {standing: _answer(standing) for standing in {None, *found.values()}}
                return {key: said[found.get(key)] for key in keys}
            except StoreUnavailable as error:
                self.missed = error.what
        return dict.fromkeys(keys, UNREAD)

    def standing(self, keys: Sequence[Key]) -> Mapping[Key, LeaseStanding]:
        """The same, raw; raises StoreUnavailable."""
        return self._leases.standing(self.group, keys)


def _answer(standing: LeaseStanding | None) -> Answer:
    if standing is None:
        return Answer(Truth.FREE)
    if standing.state == LogState.CONSUMED:
        return Answer(Truth.DONE, state=standing.state)
    truth = Truth.ALIVE if standing.is_alive else Truth.FREE
    return Answer(truth, standing.seconds_left, standing.state)
