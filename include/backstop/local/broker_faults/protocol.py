"""The faults that a broker itself can have in the demo, and the looks that only whoever runs it has.

Each method writes into the ledger what it really did, no more, no less. What a broker cannot have it names in `page`, with what
is done to it in that place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from backstop.local.faults import change
from backstop.local.ledger import Key, Ledger
from backstop.named_sql import load
from backstop.records import Message

_SQL = load("backstop.local", "business.sql")

SUPPRESSED_DONE, SUPPRESSED_UNDONE, EXPIRED = "suppressed_done", "suppressed_undone", "message_expired"
"""Letters that no handler refused: a client took a redelivery for a duplicate; the time to live was over."""
GIVEN_UP_DONE, GIVEN_UP_UNDONE = "given_up_done", "given_up_undone"
"""The same where a letter tells no cause: a client gave the message up."""
LOST, OFFSET_MOVED, TAKEN_OUT, FILES_REMOVED = "lost_in_broker", "offset_moved", "taken_out", "files_removed"
CUT_OFF = "cut_off"
"""Gone after the acknowledgement; and one group that will never see it: set past it, or it was taken out of the group's queue;
gone by the broker's retention before any group came to it. Cut off: gone with the broker in the send, and nobody knows."""
NOT_IN_TIME = "not_sent_in_time"
"""A producer that was too slow under load, or a broker that was too busy: Backstop sends. Nobody injected it; it counts."""

Make = Callable[[int], list[str]]
"""Has so many messages made and sent; their ids."""


@dataclass(frozen=True)
class FaultTools:
    """What faults of a broker work with, whatever broker it is."""

    ledger: Ledger
    producers: Mapping[str, str]
    """shard -> its database, to see what was promised and sent"""
    groups: Mapping[str, Sequence[str]]
    """topic -> the groups that owe its messages"""

    def messages(self, keys: Sequence[Key]) -> list[Message]:
        """These messages as they were sent first, in order, from their stubs."""
        found: dict[Key, Message] = {}
        for topic in {topic for topic, _ in keys}:
            values: Any = {"topic": topic, "message_ids": [message_id for its, message_id in keys if its == topic]}
            for dsn in self.producers.values():
                for _, message_id, content, headers, tag, key in change(dsn, _SQL["messages_of"], values):
                    found[topic, message_id] = Message(topic, message_id, bytes(content), headers, tag, key)
        return [found[key] for key in keys]

    def under_way(self, topic: str) -> int:
        """How many messages of a topic their producers have been sending for a while."""
        rows = [row for dsn in self.producers.values() for row in change(dsn, _SQL["under_way"], {"topic": topic})]
        return sum(int(number) for (number,) in rows)

    def copies(self) -> set[tuple[str, str, int]]:
        """(topic, message id, send number) of what Backstop has sent again, or may have."""
        return {(topic, mid, number) for dsn in self.producers.values()
                for topic, mid, number in change(dsn, _SQL["sent_again"], ())}  # fmt: skip


class BrokerFaults(Protocol):
    """Over one running broker, with an administrator's rights."""

    page: Sequence[str]
    """What its last page must say: what this broker cannot have, and what is done in that place. Empty: it has everything."""
    false_letters: tuple[str, str, str | None]
    """What letters that no handler refused died of: the work was done; it was not; its time was over (null: no such death)."""
    frozen_get_messages: bool
    """A worker that stands still may be handed messages all the same: to keep them from it, it must end."""

    removes_files: bool
    """Its retention removes what groups have not passed: `remove_by_retention` can be called."""

    def consumers_url(self) -> str:
        """The broker as consumers reach it, so that what producers are forbidden does not touch them."""
        ...

    def refuse(self, topic: str, topics: Collection[str]) -> None:
        """From now on producers and Backstop may look at `topic`, and store nothing in it."""
        ...

    def lose(self, topic: str, make: Make, burst: int, at_most: int) -> list[Key]:
        """Has `burst` messages made, and loses up to `at_most` of them that were acknowledged; nobody receives meanwhile."""
        ...

    def skip(self, topic: str, group: str, make: Make, burst: int, at_most: int) -> list[Key]:
        """Has `burst` messages made, of which one group will not see up to `at_most`; it receives nothing meanwhile."""
        ...

    def remove_by_retention(self, topic: str, make: Make, count: int) -> list[Key]:
        """Has `count` messages made, which the broker's retention removes; nobody receives meanwhile."""
        ...

    def deliver_again(self, topic: str, group: str, keys: Sequence[Key]) -> None:
        """Done messages come to the group again, as after a failover to a late replica."""
        ...

    def backlog(self, topic: str, group: str) -> int:
        """Above 0 while the group was not given, or has not acknowledged, something of the topic."""
        ...

    def letters_waiting(self, pairs: Iterable[tuple[str, str]]) -> int:
        """How many letters of these (topic, group) nobody has drained."""
        ...

    def nobody_waits(self) -> bool:
        """No worker that stands still would be handed the next message."""
        ...

    def bury_done(self, topic: str, group: str, keys: Sequence[Key]) -> None:
        """Dead letters of messages that the group has done."""
        ...

    def bury(self, topic: str, group: str, faults: Mapping[str, str]) -> None:
        """Message id -> what it is buried as: dead letters of messages that the group was never given and stays away from."""
        ...

    def drop_connections(self, pids: Collection[int]) -> None:
        """The broker gives up on these processes, which stand still, as it does in time: what they hold goes to others."""
        ...

    def close(self) -> None: ...


class BrokerServer(Protocol):
    """A broker of the embedded platform: a child process over one folder."""

    name: str

    @property
    def running(self) -> bool: ...

    port: int
    """Where clients reach it."""

    @property
    def pid(self) -> int | None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def end_leftovers(self) -> None: ...

    def url(self) -> str:
        """The connection's text, with an administrator's login."""
        ...

    def for_duties(self) -> str:
        """The connection as producers and Backstop have it."""
        ...

    def for_airflow(self) -> str:
        """The same as the value of AIRFLOW_CONN_..."""
        ...
