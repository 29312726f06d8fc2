"""Looks up where the messages of dead letters were in their topic.

A consumer that pushes leaves the broker's own id of the original. An ordered one leaves the producer's id in its place, and for
one that POPs it is the id of the last retry: then the producer's id leads to the original, by the broker's index. What the
broker has removed, and what two messages of the topic could be, has no position: it is never guessed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from backstop.brokers.rocketmq.message.epoch import EPOCH
from backstop.brokers.rocketmq.message.names import queue_number
from backstop.brokers.rocketmq.message.read_dead_letter import encoded
from backstop.brokers.rocketmq.message.stored import Stored, read_store_id, read_stored
from backstop.brokers.rocketmq.routes.route import NoSuchTopic, Routes
from backstop.brokers.rocketmq.wire.codes import RequestCode, ResponseCode
from backstop.brokers.rocketmq.wire.exchange import only_answers
from backstop.brokers.rocketmq.wire.frames import Answer, Malformed, Request
from backstop.brokers.rocketmq.wire.pool import Pool
from backstop.brokers.rocketmq.wire.session import ConnectionLost, NotSent
from backstop.brokers.rocketmq.wire.unavailable import unavailable
from backstop.model.errors import ConfigurationError
from backstop.model.records import Position

AT_ONCE, BYTES_AT_ONCE = 512, 8 * 1024 * 1024
"""Each look-up answers with the whole message."""
_FOR_EVER = 2**62


@dataclass(frozen=True, slots=True)
class Dead:
    """One letter whose origin is wanted: its topic (ours; null: not known), the broker that has it, and the entry."""

    topic: str | None
    broker: str
    master: str
    stored: Stored


class Origins:
    """Looks for one adapter. Safe to share between threads."""

    def __init__(self, pool: Pool, routes: Routes, *, seconds: float) -> None:
        self._pool, self._routes, self._seconds = pool, routes, seconds

    def find(self, letters: Sequence[Dead]) -> list[Position | None]:
        """The position of each; null where there is none to be found. Raises BrokerUnavailable."""
        try:
            return [position for some in _parts(letters) for position in self._find(some)]
        except (ConnectionLost, NotSent, Malformed) as error:
            raise unavailable("looking for what dead letters were", str(error)) from error

    def _find(self, letters: Sequence[Dead]) -> list[Position | None]:
        deadline = time.monotonic() + self._seconds
        found: dict[int, Position | None] = {}
        asked: list[tuple[int, tuple[str, Request]]] = []
        for place, letter in enumerate(letters):
            physical = _original(letter.stored)
            if physical is not None:
                asked.append(
                    (
                        place,
                        (
                            letter.master,
                            Request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": physical}),
                        ),
                    )
                )
        for (place, _), answer in zip(
            asked, self._ask([one for _, one in asked], deadline), strict=True
        ):
            letter = letters[place]
            for one in _messages(answer) or ():
                if _is_original(one, letter):
                    found[place] = self._position(letter.broker, one)
        asked = []
        brokers: list[str] = []
        for place, letter in enumerate(letters):
            if place in found or not letter.stored.unique_key:
                continue
            for broker, master in self._masters(letter, deadline):
                brokers.append(broker)
                asked.append(
                    (
                        place,
                        (
                            master,
                            Request(
                                RequestCode.QUERY_MESSAGE,
                                {
                                    "topic": encoded(letter.topic or ""),
                                    "key": letter.stored.unique_key,
                                    "maxNum": 64,
                                    "beginTimestamp": 0,
                                    "endTimestamp": _FOR_EVER,
                                    "_UNIQUE_KEY_QUERY": "true",
                                },
                            ),
                        ),
                    )
                )
        places: dict[int, set[Position | None]] = {}
        for (place, _), broker, answer in zip(
            asked, brokers, self._ask([one for _, one in asked], deadline), strict=True
        ):
            # A topic that this login may not read, or that is gone, tells no origin: its letter is drained all the same.
            if answer.code not in (
                ResponseCode.SUCCESS,
                ResponseCode.QUERY_NOT_FOUND,
                ResponseCode.NO_PERMISSION,
                ResponseCode.TOPIC_NOT_EXIST,
            ):
                raise unavailable("looking for what dead letters were", answer.said())
            its = places.setdefault(place, set())
            messages = None if answer.code == ResponseCode.NO_PERMISSION else _messages(answer)
            if messages is None:
                its.add(None)  # what this broker has may be the original as well
            its.update(
                self._position(broker, one)
                for one in messages or ()
                if _is_original(one, letters[place])
            )
        for place, positions in places.items():
            # A producer that tried again stored its message twice under one id: which of them died here, nothing says.
            found[place] = next(iter(positions)) if len(positions) == 1 else None
        return [found.get(place) for place in range(len(letters))]

    def _ask(self, asked: Sequence[tuple[str, Request]], deadline: float) -> list[Answer]:
        return only_answers(self._pool.ask_all(asked, deadline)) if asked else []

    def _masters(self, letter: Dead, deadline: float) -> list[tuple[str, str]]:
        """Where the letter's topic is; nowhere: there is none, or its queues have no numbers in our settings."""
        name = encoded(letter.topic) if letter.topic is not None else None
        if name is None:
            return []
        try:
            route = self._routes.route(name, deadline=deadline)
        except (NoSuchTopic, ConfigurationError):
            return []
        found = []
        for broker, master in route.masters.items():
            if master is None:
                raise unavailable(
                    "looking for what dead letters were",
                    f"the master of the broker {broker} is away",
                )
            found.append((broker, master))
        return found

    def _position(self, broker: str, one: Stored) -> Position | None:
        try:
            return Position(
                queue_number(broker, one.queue_id, self._routes.brokers), one.offset, EPOCH
            )
        except ConfigurationError:
            return None


def _parts(letters: Sequence[Dead]) -> Iterator[Sequence[Dead]]:
    begin = size = 0
    for place, letter in enumerate(letters):
        if place > begin and (
            place - begin >= AT_ONCE or size + len(letter.stored.body) > BYTES_AT_ONCE
        ):
            yield letters[begin:place]
            begin, size = place, 0
        size += len(letter.stored.body)
    if letters:
        yield letters[begin:]


def _original(stored: Stored) -> int | None:
    """The place of the original in its broker's store, where the consumer left it."""
    written = stored.properties.get("ORIGIN_MESSAGE_ID", "")
    if written == stored.unique_key:
        return None
    store_id = read_store_id(written)
    return None if store_id is None else store_id[1]


def _messages(answer: Answer) -> list[Stored] | None:
    """None where they cannot be read: a place may hold anything by now, and a letter is drained also when another message that
    its index names cannot be understood; it has no position then."""
    try:
        return read_stored(answer.body) if answer.code == ResponseCode.SUCCESS else []
    except Malformed:
        return None


def _is_original(one: Stored, letter: Dead) -> bool:
    if letter.topic is None or one.topic != encoded(letter.topic):
        return False
    if letter.stored.unique_key is None:
        return one.unique_key is None and (one.born_at, one.body) == (
            letter.stored.born_at,
            letter.stored.body,
        )
    return one.unique_key == letter.stored.unique_key
