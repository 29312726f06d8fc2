"""Routes of RocketMQ: a topic that is not there, a cluster that is away, and what a name server cannot know."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from backstop.brokers.rocketmq.routes.route import NoSuchTopic, Routes
from backstop.brokers.rocketmq.wire.address import Address
from backstop.brokers.rocketmq.wire.codes import RequestCode
from backstop.brokers.rocketmq.wire.frames import ANSWER, Request, encode
from backstop.brokers.rocketmq.wire.pool import Pool
from backstop.model.errors import BrokerUnavailable, ConfigurationError
from unit.test_rocketmq_session import Peer

A, B = "10.0.0.1:10911", "10.0.0.2:10911"
Queues = dict[str, tuple[int, int, int]]
"""broker -> (permissions, queues to read, queues to write)"""


class Names:
    """A name server: brokers it knows with their addresses, and topics by broker."""

    def __init__(
        self, brokers: dict[str, str | None], topics: dict[str, Queues], *, dialect: bool = False
    ) -> None:
        self.brokers, self.topics, self.dialect = brokers, topics, dialect
        self.asked = 0
        self.code = 0
        self.raw: bytes | None = None
        self.answered = 0
        self.then: dict[int, tuple[dict[str, str | None], dict[str, Queues]]] = {}
        """after so many answers -> the brokers and topics that it knows from then on"""

    def __call__(self, peer: Peer, connection: socket.socket) -> None:
        for command in peer.requests(connection):
            if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
                self.asked += 1
                code, body = self._route(command.ext["topic"])
            else:
                code, body = (
                    0,
                    {
                        "brokerAddrTable": {name: self._data(name) for name in self.brokers},
                        "clusterAddrTable": {},
                    },
                )
            written = json.dumps(body).encode() if self.raw is None else self.raw
            if self.dialect:
                written = written.replace(b'"0": ', b"0:").replace(b'"1": ', b"1:")
            self.answered += 1
            self.brokers, self.topics = self.then.get(self.answered, (self.brokers, self.topics))
            connection.sendall(
                encode(Request(self.code or code, {}, written), command.opaque, flag=ANSWER)
            )

    def _route(self, topic: str) -> tuple[int, dict[str, Any]]:
        parts = self.topics.get(topic)
        if parts is None:
            return 17, {}
        queues = [
            {"brokerName": name, "perm": perm, "readQueueNums": read, "writeQueueNums": write}
            for name, (perm, read, write) in parts.items()
        ]
        return 0, {
            "queueDatas": queues,
            "brokerDatas": [self._data(name) for name in parts],
            "filterServerTable": {},
        }

    def _data(self, name: str) -> dict[str, Any]:
        address = self.brokers.get(name)
        return {
            "brokerName": name,
            "cluster": "c",
            "brokerAddrs": {"1": "10.9.9.9:1"} if address is None else {"0": address},
        }


Start = Callable[..., Routes]


@pytest.fixture
def start() -> Iterator[Start]:
    peers: list[Peer] = []

    def routes(
        *servers: Callable[[Peer, socket.socket], None],
        brokers: list[str] | None = None,
        seconds: float = 5.0,
        removed: list[str] | None = None,
    ) -> Routes:
        some = [Peer(server) for server in servers]
        peers.extend(some)
        address = Address.parse("rocketmq://" + ",".join(peer.to for peer in some))
        return Routes(
            Pool(address, connect_timeout=2),
            brokers=brokers,
            answer_timeout=seconds,
            removed=removed or (),
        )

    yield routes
    for peer in peers:
        peer.close()


def silent(peer: Peer, connection: socket.socket) -> None:
    peer.over.wait(60)


def away(peer: Peer, connection: socket.socket) -> None:
    return


@pytest.mark.parametrize("dialect", [False, True])
def test_queues_are_numbered_by_the_settings_order_of_the_brokers(
    start: Start, dialect: bool
) -> None:
    names = Names({"b": B, "a": A}, {"t": {"b": (6, 1, 2), "a": (4, 2, 2)}}, dialect=dialect)
    route = start(names, brokers=["a", "b"]).route("t")
    assert [
        (q.number, q.broker, q.queue_id, q.master, q.readable, q.writable) for q in route.queues
    ] == [
        (0, "a", 0, A, True, False),
        (1, "a", 1, A, True, False),
        (10_000, "b", 0, B, True, True),
        (10_001, "b", 1, B, False, True),
    ]
    assert [q.number for q in route.readable()] == [0, 1, 10_000]
    assert [q.number for q in route.writable()] == [10_000, 10_001]
    assert [master for _, master in route.complete("looking")] == [A, A, B, B]


def test_without_the_option_one_broker_is_numbered_as_it_numbers_itself_and_two_are_refused(
    start: Start,
) -> None:
    assert [
        q.number for q in start(Names({"b": B}, {"one": {"b": (6, 2, 2)}})).route("one").queues
    ] == [0, 1]
    routes = start(Names({"a": A, "b": B}, {"one": {"b": (6, 2, 2)}}))
    # Also for a topic that lies on one: of a second one that is away nobody would know.
    with pytest.raises(ConfigurationError, match="brokers"):
        routes.route("one")
    with pytest.raises(ConfigurationError, match="brokers"):
        routes.masters()


def test_a_broker_that_the_option_does_not_name_is_refused(start: Start) -> None:
    with pytest.raises(ConfigurationError, match="'b'"):
        start(
            Names({"a": A, "b": B}, {"t": {"a": (6, 1, 1), "b": (6, 1, 1)}}), brokers=["a"]
        ).route("t")


def test_a_topic_that_is_not_there_is_not_a_server_that_is_away(start: Start) -> None:
    with pytest.raises(NoSuchTopic):
        start(Names({"a": A}, {})).route("t")
    for server in (silent, away, Names({}, {})):
        with pytest.raises(BrokerUnavailable):
            start(server, seconds=0.5).route("t")


def test_a_name_server_that_has_just_started_does_not_take_a_topic_away(start: Start) -> None:
    """Its brokers tell it of themselves seconds later, one by one."""
    with pytest.raises(BrokerUnavailable, match="know no broker"):
        start(Names({}, {})).route("t")
    half = Names({"a": A}, {"t": {"a": (6, 1, 1)}})
    for topic in ("t", "other"):
        with pytest.raises(BrokerUnavailable, match="b"):
            start(half, brokers=["a", "b"]).route(topic)


def test_a_broker_that_comes_between_two_answers_takes_no_topic_away(start: Start) -> None:
    on_both: Queues = {"a": (6, 1, 1), "b": (6, 1, 1)}
    alone = Names({}, {})
    alone.then[1] = {"a": A}, {"t": {"a": (6, 1, 1)}}
    assert len(start(alone).route("t").queues) == 1
    second = Names({"a": A}, {"t": {"a": (6, 1, 1)}})
    second.then[1] = {"a": A, "b": B}, {"t": on_both}
    assert len(start(second, brokers=["a", "b"]).route("t").queues) == 2


@pytest.mark.parametrize("answers", [2, 3])
def test_a_broker_that_goes_between_two_answers_is_not_left_out(start: Start, answers: int) -> None:
    """Its part of the topic is gone from the route, and the list of the brokers was made a moment before."""
    names = Names({"a": A, "b": B}, {"t": {"a": (6, 1, 1)}})
    names.then[answers] = {"a": A}, {"t": {"a": (6, 1, 1)}}
    with pytest.raises(BrokerUnavailable, match="b"):
        start(names, brokers=["a", "b"]).route("t")
    known = Names({"a": A, "b": B}, {"t": {"a": (6, 1, 1)}})
    known.then[answers] = {"a": A}, {"t": {"a": (6, 1, 1)}}
    assert start(known, brokers=["a", "b"]).route("t", partial=True).missing == ("b",)


def test_a_topic_may_lie_on_some_of_the_brokers(start: Start) -> None:
    route = start(Names({"a": A, "b": B}, {"t": {"a": (6, 1, 1)}}), brokers=["a", "b"]).route("t")
    assert [queue.broker for queue in route.queues] == ["a"] and route.missing == ()


def test_the_topic_is_there_when_one_name_server_knows_it_and_missing_only_when_all_answered(
    start: Start,
) -> None:
    knows, not_yet = Names({"a": A}, {"t": {"a": (6, 1, 1)}}), Names({"a": A}, {})
    for servers in ((not_yet, knows), (away, knows), (silent, knows)):
        for seconds in (2.0, 20.0):  # no time is left for the second where the machine stood still
            with suppress(BrokerUnavailable):
                found = start(*servers, seconds=seconds).route("t").queues
                break
        assert len(found) == 1
    with pytest.raises(NoSuchTopic):
        start(not_yet, not_yet).route("t")
    for servers in ((not_yet, away), (away, not_yet), (silent, not_yet)):
        with pytest.raises(BrokerUnavailable):
            start(*servers, seconds=1.0).route("t")


def test_silent_name_servers_cost_no_more_than_the_deadline(start: Start) -> None:
    routes = start(silent, silent, silent, seconds=1.0)
    begun = time.monotonic()
    with pytest.raises(BrokerUnavailable):
        routes.route("t")
    assert time.monotonic() - begun < 15


def test_a_master_that_is_away_is_told_and_no_look_goes_on_without_it(start: Start) -> None:
    route = start(
        Names({"a": A, "b": None}, {"t": {"a": (6, 1, 1), "b": (6, 1, 1)}}), brokers=["a", "b"]
    ).route("t")
    assert route.masters == {"a": A, "b": None}
    with pytest.raises(BrokerUnavailable, match="broker b"):
        route.complete("looking")


def test_a_route_is_believed_for_a_while_unless_it_is_forgotten_or_asked_anew(start: Start) -> None:
    names = Names({"a": A}, {"t": {"a": (6, 1, 1)}})
    routes = start(names)
    for _ in range(5):
        assert len(routes.route("t").queues) == 1
    assert names.asked == 1
    names.topics["t"] = {"a": (6, 3, 3)}
    assert len(routes.route("t", fresh=True).queues) == 3
    names.topics["t"] = {"a": (6, 4, 4)}
    routes.forget("t")
    assert len(routes.route("t").queues) == 4
    assert names.asked == 3
    del names.topics["t"]
    for fresh in (True, False):
        with pytest.raises(NoSuchTopic):
            routes.route("t", fresh=fresh)


def test_the_masters_of_the_cluster_are_told(start: Start) -> None:
    assert start(Names({"a": A, "b": None}, {}), brokers=["a", "b"]).masters() == {
        "a": A,
        "b": None,
    }
    with pytest.raises(BrokerUnavailable):
        start(Names({"a": A}, {}), brokers=["a", "b"]).masters()


def servers(routes: Routes, topic: str) -> set[str]:
    return set(routes.servers(topic, deadline=time.monotonic() + 5))


def test_all_brokers_of_a_topic_are_named_also_those_that_a_look_refuses(start: Start) -> None:
    both = Names({"a": A, "b": None}, {"t": {"a": (6, 1, 1)}, "u": {"b": (6, 1, 1)}})
    assert servers(start(both), "t") == servers(start(both), "absent") == {"a", "b"}
    # The option names the brokers of one cluster of several; a topic that has come to another one depends on that, too.
    assert servers(start(both, brokers=["a"]), "t") == {"a"}
    assert servers(start(both, brokers=["a"]), "u") == {"a", "b"}
    assert servers(start(Names({}, {})), "t") == set(), "a name server that has just started"
    with pytest.raises(BrokerUnavailable):
        start(away, seconds=0.5).servers("t", deadline=time.monotonic() + 1)


def test_a_broker_that_was_removed_is_waited_for_no_more_and_keeps_its_number(start: Start) -> None:
    names = Names({"a": A, "c": B}, {"t": {"a": (6, 1, 1), "c": (6, 1, 1)}})
    with pytest.raises(BrokerUnavailable, match="b"):
        start(names, brokers=["a", "b", "c"]).route("t")
    routes = start(names, brokers=["a", "b", "c"], removed=["b"])
    assert [q.number for q in routes.route("t").queues] == [0, 20_000]
    assert routes.masters() == {"a": A, "c": B}
    assert servers(routes, "t") == {"a", "b", "c"}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b"3",
        b'{"queueDatas":3,"brokerDatas":3}',
        b"\xff",
        b'{"queueDatas":[{"brokerName":"a"}],"brokerDatas":[],"brokerAddrTable":{"a":{"brokerAddrs":{}}}}',
        b'{"queueDatas":[],"brokerDatas":[{"brokerName":"a","brokerAddrs":{"0":7}}],"brokerAddrTable":{"a":{"brokerAddrs":{"0":7}}}}',
        b'{"queueDatas":[],"brokerDatas":[{"brokerName":"a","brokerAddrs":[]}],"brokerAddrTable":{"a":{"brokerAddrs":{}}}}',
        b'{"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":2000000000,"writeQueueNums":1}],'
        b'"brokerDatas":[{"brokerName":"a","brokerAddrs":{}}],"brokerAddrTable":{"a":{"brokerAddrs":{}}}}',
    ],
)
def test_a_route_that_cannot_be_read_is_no_answer(start: Start, raw: bytes) -> None:
    names = Names({"a": A}, {"t": {}})
    names.raw = raw
    with pytest.raises(BrokerUnavailable):
        start(names).route("t")


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b"null", b"3", b'{"queueDatas":3}', b'{"queueDatas":[{}]}', b"\xff"]
)
def test_brokers_that_cannot_be_read_are_no_answer(start: Start, raw: bytes) -> None:
    names = Names({"a": A}, {"t": {}})
    names.raw = raw
    with pytest.raises(BrokerUnavailable):
        servers(start(names), "t")


def test_a_name_server_that_refuses_is_no_answer(start: Start) -> None:
    names = Names({"a": A}, {"t": {"a": (6, 1, 1)}})
    names.code = 16
    with pytest.raises(BrokerUnavailable, match="NO_PERMISSION"):
        start(names).route("t")
