"""Finds the dead letters of a topic that were there before a step of its ramp, which the step therefore did not cause."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from backstop.evidence.judge_by_key import Judged
from backstop.model.errors import Unavailable
from backstop.model.records import Verdict
from backstop.resend.claim import Worker
from backstop.sql.named import load

_SQL = load("backstop.resend", "queries.sql")
_New = set[tuple[str | None, str]]
"""(group, message id) of dead letters since the step; without a group: of every group."""


class EarlierDeadLetters:
    """The dead letters of a topic's groups; read once, and only when a message of the step has one."""

    def __init__(self, worker: Worker, topic: str, released_at: datetime) -> None:
        """`released_at`: when the step was released, by the control database's clock."""
        self._worker, self._topic = worker, topic
        self._since = released_at - worker.policy(topic).max_clock_skew
        self._asked = False
        self._new: _New | None = None

    def groups(self, judged: Sequence[Judged]) -> set[str] | None:
        """Groups of one message whose dead letters are all from before the step; None: not known, because the broker did not
        answer.

        A dead letter of unknown time, or within the clocks' tolerance, counts as new: an unnecessary stop only asks a person.
        """
        dead = {
            one.consumer_group: one.message_id
            for one in judged
            if one.verdict is Verdict.DEAD_LETTERED
        }
        if not dead:
            return set()
        if not self._asked:
            self._asked, self._new = True, self._read()
        new = self._new
        if new is None:
            return None
        return {
            group
            for group, message_id in dead.items()
            if not {(group, message_id), (None, message_id)} & new
        }

    def _read(self) -> _New | None:
        name, new = self._worker.broker_name(self._topic), _New()
        try:
            for group in self._worker.settings.groups_of(self._topic):
                for letter in self._worker.judge.sources.broker(name).dead_letters(group):
                    recent = letter.died_at is None or letter.died_at >= self._since
                    if (
                        letter.message_id is not None
                        and letter.topic in (None, self._topic)
                        and recent
                    ):
                        new.add((letter.group, letter.message_id))
        except Unavailable as error:
            self._worker.miss(f"broker {name}", error.what)
            return None
        # The queues first, then what was drained from them: a dead letter that moves meanwhile is seen at least once.
        with self._worker.control, self._worker.control.cursor() as cursor:
            cursor.execute(
                _SQL["stored_dead_letters_since"], {"topic": self._topic, "since": self._since}
            )
            new.update(cursor.fetchall())
        return new
