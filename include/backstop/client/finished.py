"""Which of the messages that come are finished already, without asking the log: a filter, and never a proof.

Its answers are exact: a message is known by its place and its id together. Memory is bounded; what it does not know, the log
answers. It holds only while the consumer database is the one that the logs were committed to: whoever asks it first compares
`queue_owner.server_life`, and forgets everything when that changed or the database was away.
"""

import json
from collections import OrderedDict
from collections.abc import Sequence

from backstop.brokers.owned import Queue
from backstop.brokers.protocol import Received
from backstop.client.done_set import DoneSet
from backstop.leases.lease import payload_hash
from backstop.model.read_json import read_json
from backstop.model.records import EPOCH_BYTES, ID_BYTES
from backstop.model.storable_text import fits

MOST_NOTED = 10_000
"""Of finished messages above an unfinished one so many are known; the log answers for all others."""
MOST_LIVES = 4
"""Epochs of one queue: a foreign program may write another one into each entry; of the oldest the log answers."""
_Life = tuple[str, int, str]
"""A topic, one of its queues, and an epoch of that."""


class FinishedOffsets:
    """The finished offsets of the queues that one consumer owns. Not shared between threads.

    For each queue and epoch: a DoneSet, and whose the finished offsets above its watermark were. Another message at such an
    offset is another life's.
    """

    def __init__(self) -> None:
        self._sets: dict[_Life, DoneSet] = {}
        self._ids: dict[_Life, dict[int, str]] = {}
        self._fetched: dict[_Life, int] = {}
        """The highest offset that was fetched."""
        self._lives: dict[Queue, list[_Life]] = {}
        """Of each queue that was fetched from, the one met last at the end."""

    def fetched(self, received: Received) -> None:
        """It came. Fetches are in order: between two messages nothing is ours. One that goes back makes what was finished
        doubtful."""
        if received.position is None:
            return
        life, offset = _life(received), received.position.offset
        before = self._fetched.get(life)
        lives = self._lives.setdefault(life[:2], [])
        if not lives or lives[-1] != life:
            self._meet(lives, life)
        if before is None or offset <= before:
            self._sets[life] = DoneSet(offset)
            if before is not None:
                self._ids.pop(life, None)
        else:
            self._sets[life].add_range(before + 1, offset)
        self._fetched[life] = offset

    def add(self, received: Received, *, is_certain: bool = True) -> None:
        """The consumer is done with it, as far as the log or the dead letters know. Not `is_certain`: the database may have
        become an older self since; then only that nothing is open there is noted. So it is with a foreign id or epoch that no
        database holds: the list for the next owner could not be stored."""
        if received.position is None or (done := self._sets.get(life := _life(received))) is None:
            return
        done.add(received.position.offset)
        if not (
            is_certain
            and fits(received.message.message_id, ID_BYTES)
            and fits(received.position.epoch, EPOCH_BYTES)
        ):
            return
        ids = self._ids.setdefault(life, {})
        ids[received.position.offset] = received.message.message_id
        if len(ids) > MOST_NOTED:
            ids = self._ids[life] = self._above_watermark(life)
            if len(ids) > MOST_NOTED // 2:
                ids.clear()  # the log answers

    def knows(self, received: Received) -> bool:
        """This message is finished."""
        position, message = received.position, received.message
        if position is None:
            return False
        ids = self._ids.get((message.topic, position.queue_id, position.epoch))
        return ids is not None and ids.get(position.offset) == message.message_id

    def gaps(self, queue: Queue) -> int:
        """How many intervals of unfinished offsets the queue has."""
        return max((self._sets[life].gaps for life in self._lives.get(queue, ())), default=0)

    def size(self) -> int:
        """Everything that is kept: intervals, and offsets with an id."""
        return sum(done.gaps for done in self._sets.values()) + sum(map(len, self._ids.values()))

    def saved(self, queue: Queue) -> str | None:
        """What the next owner may receive again, because a broker keeps one place of a queue: the messages done above it.
        Whoever read nothing of the queue keeps what it adopted."""
        lives = self._lives.get(queue) or [life for life in self._ids if life[:2] == queue]
        found = {life[2]: self._above_watermark(life) for life in lives}
        found = {epoch: ids for epoch, ids in found.items() if ids}
        # Not escaped: of an escape jsonb asks for a conversion, which a database in SQL_ASCII has not.
        return json.dumps(found, ensure_ascii=False) if found else None

    def adopt(self, queue: Queue, saved: str | None) -> None:
        """What the owner before has saved."""
        for epoch, ids in read_json(saved or "{}").items():
            self._ids[(*queue, epoch)] = {int(offset): whose for offset, whose in ids.items()}

    def leave(self, queue: Queue) -> None:
        """The queue is its next owner's."""
        for life in [*self._lives.pop(queue, ()), *(one for one in self._ids if one[:2] == queue)]:
            self._leave(life)

    def _leave(self, life: _Life) -> None:
        self._sets.pop(life, None)
        self._ids.pop(life, None)
        self._fetched.pop(life, None)

    def _meet(self, lives: list[_Life], life: _Life) -> None:
        if life in lives:
            lives.remove(life)
        lives.append(life)
        while len(lives) > MOST_LIVES:
            self._leave(lives.pop(0))

    def forget(self) -> None:
        """The consumer database may be an older self of its own: the log answers for each message."""
        self._ids.clear()

    def _above_watermark(self, life: _Life) -> dict[int, str]:
        done, ids = self._sets.get(life), self._ids.get(life, {})
        if done is None:  # nothing of it was read
            return dict(ids)
        return {offset: whose for offset, whose in ids.items() if offset >= done.watermark}


class FinishedDeliveries:
    """The messages that one consumer finished last, where the broker has no offsets. Not shared between threads.

    By the producer's id and its own number of the message. Consumers of a group share what a producer sends, so that what one
    of them finishes has as many gaps as messages: the newest are kept, each with its id and content.
    """

    def __init__(self, most: int = MOST_NOTED) -> None:
        self._most = most
        self._done: OrderedDict[tuple[str, int], tuple[str, str, bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._done)

    def add(self, received: Sequence[Received]) -> None:
        """The log has their end."""
        for one in received:
            if one.sequence is not None:
                self._done[one.sequence] = _identity(one)
                self._done.move_to_end(one.sequence)
        while len(self._done) > self._most:
            self._done.popitem(last=False)

    def knows(self, received: Received) -> bool:
        """This message, with this content, is finished."""
        known = None if received.sequence is None else self._done.get(received.sequence)
        return known is not None and known == _identity(received)

    def forget(self) -> None:
        """The consumer database may be an older self of its own: the log answers for each message."""
        self._done.clear()


def _identity(received: Received) -> tuple[str, str, bytes]:
    message = received.message
    return message.topic, message.message_id, payload_hash(message.content)


def _life(received: Received) -> _Life:
    assert received.position is not None
    return received.message.topic, received.position.queue_id, received.position.epoch
