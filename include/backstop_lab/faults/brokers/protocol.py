"""The faults that a broker itself can have in the demo, and the looks that only whoever runs it has.

Each fault has the name that stands in the ledger, and each method writes there what it really did, no more, no less. What a
broker cannot have it names in `page`, with what is done to it in that place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from backstop.model.records import Message
from backstop_lab.shop.databases import change, statements
from backstop_lab.shop.ledger import Key, Ledger

SUPPRESSED_DONE = "suppressed_done"
"""A done message is buried by a client that took its redelivery for a duplicate."""
SUPPRESSED_UNDONE = "suppressed_undone"
"""The same of a message that the group was never given: the client was wrong."""
EXPIRED = "message_expired"
"""A message that the group was never given is buried because its time to live was over."""
GIVEN_UP_DONE = "given_up_done"
"""A done message is given up by a client of the group, in a letter that tells no cause."""
GIVEN_UP_UNDONE = "given_up_undone"
"""The same of a message that the group was never given."""
LOST = "lost_in_broker"
"""An acknowledged message is removed from the broker, or lost with it, before any group is given it."""
OFFSET_MOVED = "offset_moved"
"""One group is set past a message; the others get it."""
TAKEN_OUT = "taken_out"
"""Another program acknowledges a message in one group's queue; the others get it."""
FILES_REMOVED = "files_removed"
"""The broker's retention removes a message that one group has not done."""
CUT_OFF = "cut_off"
"""The broker is killed in the middle of a send: the message is gone, and its producer does not know."""

SUPPRESSING = "java.lang.Throwable: Suppressing duplicate delivery on connection, consumer ID:shop-36565-1699-{n}:1:1:1"
"""The cause of letters of suppressed messages, as ActiveMQ's Java client on a failover connection writes it. `n`: the number of a
consumer, which differs from one letter to the next."""

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
    without_effect: Callable[[str, Sequence[Key]], set[Key]]
    """Those of these messages that a group has not done."""

    def messages(self, keys: Sequence[Key]) -> list[Message]:
        """These messages as they were sent first, in order, from their stubs."""
        found: dict[Key, Message] = {}
        for topic in {topic for topic, _ in keys}:
            values: Any = {
                "topic": topic,
                "message_ids": tuple(message_id for its, message_id in keys if its == topic),
            }
            for dsn in self.producers.values():
                for _, message_id, content, headers, tag, key in change(
                    dsn, statements(dsn)["messages_of"], values
                ):
                    named = json.loads(headers) if isinstance(headers, str) else headers
                    found[topic, message_id] = Message(
                        topic, message_id, bytes(content), named, tag, key
                    )
        return [found[key] for key in keys]

    def under_way(self, topic: str) -> int:
        """How many messages of a topic their producers have been sending for a while."""
        rows = [
            row
            for dsn in self.producers.values()
            for row in change(dsn, statements(dsn)["under_way"], {"topic": topic})
        ]
        return sum(int(number) for (number,) in rows)

    def copies(self) -> set[tuple[str, str, int]]:
        """(topic, message id, send number) of what Backstop has sent again, or may have."""
        return {
            (topic, mid, number)
            for dsn in self.producers.values()
            for topic, mid, number in change(dsn, statements(dsn)["sent_again"], ())
        }


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
        """Has `count` messages made, which the broker's retention removes with what lies before them; nobody receives meanwhile.

        Returns one key for each delivery that this takes away: more than `count`, and a message of several groups several times.
        """
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
