"""Creates and deletes topics and groups, and removes what retention no longer keeps. Every step may be done
twice."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal
from uuid import uuid4

from redis.exceptions import ResponseError

from backstop.brokers.redis_streams.exchange import (
    ConnectionLost,
    Exchange,
    NotSent,
    Script,
    unavailable,
)
from backstop.brokers.redis_streams.keys import Keys
from backstop.brokers.redis_streams.read_progress import micros_of
from backstop.model.errors import ConfigurationError

CREATE_QUEUE = Script.load("create_queue")
TRIM = Script.load("entry_time", "trim")


class Creator:
    """Administers the topics of one adapter."""

    def __init__(self, exchange: Exchange, keys: Keys) -> None:
        self._exchange, self._keys = exchange, keys

    def create_topic(self, topic: str, queues: int, max_message_bytes: int | None) -> None:
        """Raises ConfigurationError for fewer queues than there are: their messages would be forgotten."""
        if queues < 1 or (max_message_bytes is not None and max_message_bytes < 1):
            raise ConfigurationError(
                f"The topic {topic!r} cannot have {queues} queues or a limit of {max_message_bytes} bytes.",
                unaffected="Nothing was changed.",
                next_step="Give at least one queue, and a limit of at least one byte or none.",
            )
        doing = f"creating the topic {topic!r}"
        present = self._present(topic, doing)
        if present is not None and present > queues:
            raise ConfigurationError(
                f"The topic {topic!r} has {present} queues and cannot be cut to {queues}.",
                unaffected="Nothing was changed.",
                next_step=f"Ask for {present} queues or more, or delete the topic when its messages may go.",
            )
        limit: Any = max_message_bytes
        if (
            limit is None and present is not None
        ):  # a queue that is added has the limit of the first
            [limit] = self._exchange.ask([("HGET", self._keys.life(topic, 0), "max_bytes")], doing)
        commands = [
            CREATE_QUEUE.call(
                (self._keys.stream(topic, queue), self._keys.life(topic, queue)),
                uuid4().hex,
                "" if limit is None else limit,
            )
            for queue in range(queues)
        ]
        self._exchange.ask(commands, doing)
        # A new queue serves the groups of the first one from its beginning, before anybody publishes to it.
        if present is not None and present < queues:
            for group in self.groups(topic):
                for queue in range(present, queues):
                    self._create_group(group, topic, queue, "0")
        self._exchange.ask([("HSET", self._keys.topic(topic), "queues", queues)], doing)

    def delete_topic(self, topic: str) -> None:
        """Deletes the messages and every group's place; the dead letters stay."""
        doing = f"deleting the topic {topic!r}"
        present = self._present(topic, doing) or 0
        keys = [self._keys.topic(topic)]
        groups = self.groups(topic) if present else []
        for queue in range(present):
            keys += [self._keys.stream(topic, queue), self._keys.life(topic, queue)]
            keys += [self._keys.held(topic, queue, group) for group in groups]
            keys += [self._keys.fence(topic, queue, group) for group in groups]
        self._exchange.ask([("DEL", *keys)], doing)

    def create_group(self, group: str, topic: str, at: Literal["start", "end"]) -> None:
        """A group that exists stays where it is."""
        doing = f"creating the group {group!r} of the topic {topic!r}"
        self.remember_group(group, [topic])
        present = self._present(topic, doing)
        if present is None:
            raise ConfigurationError(
                f"There is no topic {topic!r} for the group {group!r}.",
                unaffected="Nothing was changed.",
                next_step="Create the topic first.",
            )
        for queue in range(present):
            self._create_group(group, topic, queue, "0" if at == "start" else "$")

    def remember_group(self, group: str, topics: list[str]) -> None:
        """Notes where the group's dead letters may be; noted before there can be one.

        A full server refuses the note even of what is noted already: consumers could not begin, and empty it.
        """
        key, doing = self._keys.group(group), f"noting the group {group!r}"
        names = [topic.encode() for topic in topics]
        [known] = self._exchange.ask([("SMISMEMBER", key, *names)], doing)
        new = [name for name, is_known in zip(names, known, strict=True) if not is_known]
        if new:
            self._exchange.ask([("SADD", key, *new)], doing)

    def groups(self, topic: str) -> list[str]:
        """The groups of the topic, by name."""
        doing = f"listing the groups of the topic {topic!r}"
        [found] = self._exchange.ask([("XINFO", "GROUPS", self._keys.stream(topic, 0))], doing)
        return sorted(
            dict(zip(group[::2], group[1::2], strict=True))[b"name"].decode() for group in found
        )

    def trim(self, topic: str, before: datetime, passed: Mapping[int, tuple[str, int]]) -> int:
        """Removes what was stored before the instant, lies below the offset of its queue in `passed`, and was acknowledged by
        every group; returns how many messages went."""
        doing = f"removing old messages of the topic {topic!r}"
        commands = [
            TRIM.call(
                (self._keys.stream(topic, queue), self._keys.life(topic, queue)),
                micros_of(before),
                epoch,
                stays,
            )
            for queue, (epoch, stays) in passed.items()
        ]
        return sum(self._exchange.ask(commands, doing)) if commands else 0

    def _present(self, topic: str, doing: str) -> int | None:
        [queues] = self._exchange.ask([("HGET", self._keys.topic(topic), "queues")], doing)
        return None if queues is None else int(queues)

    def _create_group(self, group: str, topic: str, queue: int, start: str) -> None:
        command = ("XGROUP", "CREATE", self._keys.stream(topic, queue), group.encode(), start)
        [answer] = self._exchange.run([command])
        if isinstance(answer, NotSent | ConnectionLost) or (
            isinstance(answer, ResponseError) and "BUSYGROUP" not in str(answer)
        ):
            raise unavailable(f"creating the group {group!r} of the topic {topic!r}", _why(answer))


def _why(answer: Any) -> str:
    return answer.why if isinstance(answer, NotSent | ConnectionLost) else str(answer)
