"""Names of ActiveMQ's destinations: what a topic is sent to, what a group receives from, where its dead letters lie.

Topics and groups may hold any character; ActiveMQ reads `*`, `>`, `,`, `?` and `:` in a destination's name as its own. So
what is not a letter, a digit or one of `-_.~` is percent-encoded, and in a group's name the dot too: it parts the name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

SEND_TO = "/topic/VirtualTopic.{topic}"
RECEIVE_FROM = "Consumer.{group}.VirtualTopic.{topic}"
DEAD_LETTERS = ("DLQ.{queue}", "ActiveMQ.DLQ")
_KIND = re.compile(r"^(?:/(queue|topic)/|(queue|topic)://)")


@dataclass(frozen=True, slots=True)
class Names:
    """The patterns of one broker. `wrong()` says what does not fit together."""

    send_to: str = SEND_TO
    receive_from: str = RECEIVE_FROM
    dead_letters: Sequence[str] = DEAD_LETTERS
    groups: Mapping[str, str] = field(default_factory=dict)
    """topic -> its one group, where the group is not a part of the queue's name."""

    def wrong(self) -> str | None:
        if (
            not self.send_to.startswith(("/queue/", "/topic/"))
            or self.send_to.count("{topic}") != 1
        ):
            return "send_to must begin with /queue/ or /topic/ and hold {topic} once"
        if self.receive_from.count("{topic}") != 1 or self.receive_from.count("{group}") > 1:
            return (
                "receive_from must hold {topic} once, and {group} once where groups share a topic"
            )
        if self.send_to.startswith("/queue/") and (
            self.send_to != f"/queue/{self.receive_from}" or self.has_group
        ):
            return "a topic sent to a queue is received from that queue, by one group: receive_from must be the same name"
        if self.send_to.startswith("/topic/") and not self.has_group:
            return "each group of a topic needs a queue of its own: receive_from must hold {group}"
        if not self.dead_letters or any(
            not name or "{topic}" in name or "{group}" in name for name in self.dead_letters
        ):
            return "dead_letters must name queues, by {queue} or in full"
        return None

    @property
    def has_group(self) -> bool:
        return "{group}" in self.receive_from

    def topic(self, topic: str) -> str:
        """Where copies for every group are sent to."""
        return self.send_to.replace("{topic}", encoded(topic))

    def queue(self, topic: str, group: str) -> str:
        """The queue that the group receives the topic from."""
        return self.receive_from.replace("{topic}", encoded(topic)).replace(
            "{group}", encoded(group).replace(".", "%2E")
        )

    def read_queue(self, queue: str) -> tuple[str | None, str | None]:
        """(topic, group) of a group's queue; nulls for a queue of somebody else's."""
        pattern = (
            re.escape(self.receive_from)
            .replace(r"\{topic\}", "(?P<topic>.+)")
            .replace(r"\{group\}", r"(?P<group>[^.]+)")
        )
        found = re.fullmatch(pattern, queue)
        if found is None:
            return None, None
        topic = unquote(found["topic"])
        return topic, unquote(found["group"]) if self.has_group else self.groups.get(topic)

    def dead_letter_queues(self, queue: str) -> list[str]:
        """Where what dies in this queue may lie; the first is where our own consumers put it."""
        return [pattern.replace("{queue}", queue) for pattern in self.dead_letters]

    def shared_dead_letter_queues(self) -> list[str]:
        return [pattern for pattern in self.dead_letters if "{queue}" not in pattern]

    def source_of_dead_letters(self, queue: str) -> str | None:
        """The queue whose dead letters this queue holds; null: those of several, or it is none."""
        for pattern in self.dead_letters:
            before, found, after = pattern.partition("{queue}")
            if (
                found
                and queue.startswith(before)
                and queue.endswith(after)
                and len(queue) > len(before) + len(after)
            ):
                return queue[len(before) : len(queue) - len(after)]
        return None


def encoded(name: str) -> str:
    return quote(name, safe="-_.~")


def bare(destination: str) -> str:
    """A destination without its kind: /queue/x, queue://x -> x."""
    return _KIND.sub("", destination)
