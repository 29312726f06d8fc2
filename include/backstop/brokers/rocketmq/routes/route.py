"""Where a topic's queues are: asked of the name servers, believed for some seconds.

A topic that is not there and a cluster that is away are two answers. A name server that has just started knows no broker yet,
so its "no such topic" counts only when it knew the brokers before and after it said so; and so does a route without one of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from backstop.brokers.rocketmq.message.names import queue_number
from backstop.brokers.rocketmq.wire.address import endpoint
from backstop.brokers.rocketmq.wire.codes import RequestCode, ResponseCode
from backstop.brokers.rocketmq.wire.exchange import only_answers
from backstop.brokers.rocketmq.wire.frames import Answer, Malformed, Request
from backstop.brokers.rocketmq.wire.pool import Pool
from backstop.brokers.rocketmq.wire.session import ConnectionLost, NotSent
from backstop.brokers.rocketmq.wire.unavailable import unavailable
from backstop.model.errors import ConfigurationError

BELIEVED_SECONDS = 10.0
MAX_QUEUES = 10_000
_READ, _WRITE = 4, 2
_CLUSTER = RequestCode.GET_BROKER_CLUSTER_INFO


class _Refused(Exception):
    """A name server that answered, and not with what it was asked for."""


class NoSuchTopic(Exception):
    """The name servers know the cluster, and no topic of this name."""


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue of a topic, and its master's address; null: the master is away."""

    number: int
    """Ours, as in Position.queue_id."""
    broker: str
    queue_id: int
    master: str | None
    readable: bool
    writable: bool


@dataclass(frozen=True, slots=True)
class Route:
    """All queues of a topic (RocketMQ's name), by their numbers."""

    topic: str
    queues: tuple[Queue, ...]
    masters: Mapping[str, str | None]
    """broker name -> address, of every broker that has a part of the topic."""
    missing: tuple[str, ...] = ()
    """Brokers of the settings that the name servers do not know now: whether they have a part of it is not known."""

    def writable(self) -> list[Queue]:
        return [queue for queue in self.queues if queue.writable]

    def readable(self) -> list[Queue]:
        return [queue for queue in self.queues if queue.readable]

    def complete(self, doing: str) -> list[tuple[Queue, str]]:
        """Every queue with its master. BrokerUnavailable when one master is away: a look never answers with less."""
        found = []
        for queue in self.queues:
            if queue.master is None:
                raise unavailable(doing, f"the master of the broker {queue.broker} is away")
            found.append((queue, queue.master))
        return found


class Routes:
    """The routes of one adapter. Safe to share between threads."""

    def __init__(
        self,
        pool: Pool,
        *,
        brokers: Sequence[str] | None,
        answer_timeout: float,
        removed: Collection[str] = (),
    ) -> None:
        """`brokers`: every broker name, in the order by which queues are numbered; null: topics lie on one broker only.
        `removed`: names that need not be known any more."""
        self._pool, self._seconds, self._removed = pool, answer_timeout, frozenset(removed)
        self.brokers = tuple(brokers) if brokers is not None else None
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, Route]] = {}

    def route(
        self,
        topic: str,
        *,
        deadline: float | None = None,
        fresh: bool = False,
        partial: bool = False,
    ) -> Route:
        """The route of a topic, by RocketMQ's name for it. Raises NoSuchTopic, BrokerUnavailable, ConfigurationError.

        With the option `brokers` each of them must be known to the name servers: the queues of one that is away would be
        missing, and nothing would say so. `partial`: then the route says so itself (`missing`).
        """
        if not fresh:
            with self._lock:
                read_at, known = self._known.get(topic, (float("-inf"), None))
            if (
                known is not None
                and time.monotonic() - read_at < BELIEVED_SECONDS
                and (partial or not known.missing)
            ):
                return known
        doing = f"looking for the topic {topic}"
        at = time.monotonic()
        try:
            answer, masters = self._ask(
                topic, doing, at + self._seconds if deadline is None else deadline
            )
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                self._all_there(masters, doing)
                self.forget(topic)
                raise NoSuchTopic(topic)
            if answer.code != ResponseCode.SUCCESS:
                raise unavailable(doing, answer.said())
            self._require_names(masters)
            if not partial:
                self._all_there(masters, doing)
            route = replace(self._read(topic, answer), missing=tuple(self._missing(masters)))
        except Malformed as error:
            raise unavailable(doing, str(error)) from error
        with self._lock:
            self._known[topic] = (at, route)
        return route

    def masters(self, *, deadline: float | None = None) -> dict[str, str | None]:
        """broker name -> its master's address, for every broker that the name servers know. Raises BrokerUnavailable."""
        doing = "looking for the brokers"
        by = time.monotonic() + self._seconds if deadline is None else deadline
        try:
            _, masters = self._ask(None, doing, by)
        except Malformed as error:
            raise unavailable(doing, str(error)) from error
        self._require_names(masters)
        self._all_there(masters, doing)
        return masters

    def servers(self, topic: str, *, deadline: float) -> frozenset[str]:
        """The names of all brokers that a look at the topic (RocketMQ's name) depends on, and of those that were removed.

        Several without the option `brokers`, or one that it does not name, are an answer here: they are to be remembered, and
        the look itself refuses them. Raises BrokerUnavailable.
        """
        doing = f"looking for the brokers of {topic}"
        try:
            answer, masters = self._ask(topic, doing, deadline)
            names = {name for name in masters if name in (self.brokers or (name,))}
            if answer.code == ResponseCode.SUCCESS:
                names |= {str(one["brokerName"]) for one in answer.json()["queueDatas"]}
        except (Malformed, KeyError, TypeError) as error:
            raise unavailable(doing, f"{type(error).__name__}: {error}") from error
        return frozenset(names) | self._removed

    def forget(self, topic: str) -> None:
        """Believe nothing about this topic that was read before."""
        with self._lock:
            self._known.pop(topic, None)

    def _ask(
        self, topic: str | None, doing: str, deadline: float
    ) -> tuple[Answer, dict[str, str | None]]:
        """(route, brokers with their masters) of the first name server that knows the topic, else of the first that answered."""
        said: list[str] = []
        found: tuple[Answer, dict[str, str | None]] | None = None
        servers = self._pool.address.namesrvs
        for place, server in enumerate(servers):
            share = (deadline - time.monotonic()) / (
                len(servers) - place
            )  # a silent one leaves time for the others
            by = time.monotonic() + share
            try:
                answer, masters = (
                    self._ask_one(server, topic, by)
                    if topic is not None
                    else self._ask_cluster(server, by)
                )
            except (ConnectionLost, NotSent, _Refused) as error:
                said.append(str(error))
                continue
            if answer.code == ResponseCode.SUCCESS:
                return answer, masters
            found = found or (answer, masters)
        if found is None or (said and found[0].code == ResponseCode.TOPIC_NOT_EXIST):
            # One that did not answer may be the one that knows it.
            raise unavailable(doing, "; ".join(said))
        return found

    def _ask_one(
        self, server: str, topic: str, deadline: float
    ) -> tuple[Answer, dict[str, str | None]]:
        """The topic's route and the brokers, as one name server knows them at one instant.

        It answers two requests in any order, and a broker may come or go between them. A route that names every broker leaves
        nothing out. For one that does not, those count as known that were so before it was read and after.
        """
        asked = [
            Request(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": True}
            ),
            Request(_CLUSTER),
        ]
        route, cluster = only_answers(self._pool.ask_many(server, asked, deadline))
        before = _masters(_good(server, cluster))
        if (
            route.code == ResponseCode.SUCCESS
            and _brokers_of(route) >= {*before, *(self.brokers or ())} - self._removed
        ):
            return route, before
        [route] = only_answers(self._pool.ask_many(server, asked[:1], deadline))
        _, after = self._ask_cluster(server, deadline)
        return route, {name: master for name, master in after.items() if name in before}

    def _ask_cluster(self, server: str, deadline: float) -> tuple[Answer, dict[str, str | None]]:
        [cluster] = only_answers(self._pool.ask_many(server, [Request(_CLUSTER)], deadline))
        return cluster, _masters(_good(server, cluster))

    def _all_there(self, masters: Mapping[str, str | None], doing: str) -> None:
        if not masters:
            raise unavailable(doing, "the name servers know no broker")
        missing = self._missing(masters)
        if missing:
            raise unavailable(
                doing, f"the name servers do not know the broker {', '.join(missing)}"
            )

    def _require_names(self, masters: Collection[str]) -> None:
        """Of several brokers each must be named: one that is away would be missed by nobody."""
        if self.brokers is None and len(masters) > 1:
            raise ConfigurationError(
                f"There are several brokers: {', '.join(sorted(masters))}.",
                unaffected="Nothing was sent, and nothing was decided.",
                next_step="Name all brokers of the cluster in the option `brokers`, in an order that never changes: the queues "
                "are numbered by it.",
            )

    def _missing(self, masters: Mapping[str, str | None]) -> list[str]:
        return [
            name for name in self.brokers or () if name not in masters and name not in self._removed
        ]

    def _read(self, topic: str, answer: Answer) -> Route:
        route = answer.json()
        try:
            masters = {one["brokerName"]: _master(one) for one in route["brokerDatas"]}
            parts = [
                (
                    one["brokerName"],
                    int(one["perm"]),
                    int(one["readQueueNums"]),
                    int(one["writeQueueNums"]),
                )
                for one in route["queueDatas"]
            ]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Malformed(
                f"a route that cannot be read: {type(error).__name__}: {error}"
            ) from error
        names = {name for name, _, _, _ in parts}
        if any(read > MAX_QUEUES or write > MAX_QUEUES for _, _, read, write in parts):
            raise Malformed(f"a broker with more than {MAX_QUEUES} queues of one topic")
        queues = [
            Queue(
                queue_number(name, queue, self.brokers),
                name,
                queue,
                masters.get(name),
                bool(perm & _READ) and queue < read,
                bool(perm & _WRITE) and queue < write,
            )
            for name, perm, read, write in parts
            for queue in range(max(read, write))
        ]
        return Route(
            topic,
            tuple(sorted(queues, key=lambda queue: queue.number)),
            {name: masters.get(name) for name in sorted(names)},
        )


def _good(server: str, answer: Answer) -> Answer:
    if answer.code != ResponseCode.SUCCESS:
        raise _Refused(f"{server}: {answer.said()}")
    return answer


def _brokers_of(route: Answer) -> set[str]:
    """The brokers that have a part of a topic."""
    try:
        return {one["brokerName"] for one in route.json()["queueDatas"]}
    except (KeyError, TypeError) as error:
        raise Malformed(f"a route that cannot be read: {type(error).__name__}: {error}") from error


def _master(broker: Mapping[str, Mapping[str, str]]) -> str | None:
    address = broker["brokerAddrs"].get("0")
    if address is None:
        return None
    try:
        return endpoint(address)
    except ConfigurationError as error:
        raise Malformed(f"the address of a broker: {address[:40]!r}") from error


def _masters(cluster: Answer) -> dict[str, str | None]:
    found = cluster.json()
    try:
        return {
            name: _master(broker) for name, broker in (found.get("brokerAddrTable") or {}).items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise Malformed(
            f"a list of brokers that cannot be read: {type(error).__name__}: {error}"
        ) from error
