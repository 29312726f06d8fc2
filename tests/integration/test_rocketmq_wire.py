"""The wire to a real RocketMQ: logins, TLS, cuts and silence, and what other clients stored; the rest stands on this."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from backstop.brokers.rocketmq.message.properties import message_of, properties_of, write_properties
from backstop.brokers.rocketmq.message.stored import Stored, read_stored
from backstop.brokers.rocketmq.routes.route import NoSuchTopic, Route, Routes
from backstop.brokers.rocketmq.wire.address import Address, split_endpoint
from backstop.brokers.rocketmq.wire.codes import RequestCode, ResponseCode
from backstop.brokers.rocketmq.wire.frames import Command, Login, Request
from backstop.brokers.rocketmq.wire.pool import Pool
from backstop.brokers.rocketmq.wire.session import ConnectionLost, NotSent, Session
from backstop.model.errors import BrokerUnavailable
from backstop.model.records import Message
from rocketmq_java import JavaPeer
from rocketmq_server import RocketMQ
from rocketmq_tls import write_certificates

pytestmark = pytest.mark.other_broker

LONG = 30.0
TOPIC = "wire"
QUEUES = 4


def soon(seconds: float = LONG) -> float:
    return time.monotonic() + seconds


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """Behind logins, with TLS for who asks for it. A slow machine must not make it refuse what waits 200 ms in its queue."""
    patient = {"waitTimeMillsInSendQueue": "30000"}
    with RocketMQ(tmp_path_factory.mktemp("rocketmq"), acl=True, tls=True, settings=patient) as one:
        one.create_topic(TOPIC, QUEUES)
        yield one


@pytest.fixture(params=[False, True], ids=["plain", "TLS"])
def address(request: pytest.FixtureRequest, server: RocketMQ) -> Address:
    return Address.parse(server.url(tls=request.param))


@pytest.fixture
def pool(address: Address) -> Iterator[Pool]:
    one = Pool(address, connect_timeout=10)
    yield one
    one.close()


def send(message_id: str, queue: int, size: int = 100) -> Request:
    message = Message(TOPIC, message_id, message_id.encode() + b"x" * size)
    fields = {
        "a": "P",
        "b": TOPIC,
        "c": "TBW102",
        "d": 4,
        "e": queue,
        "f": 0,
        "g": int(time.time() * 1000),
        "h": 0,
        "i": write_properties(properties_of(message)),
        "j": 0,
        "k": False,
        "m": False,
    }
    return Request(RequestCode.SEND_MESSAGE_V2, fields, message.content, lane=queue)


def read_all(
    pool: Pool, broker: str, topic: str = TOPIC, queues: int = QUEUES
) -> dict[tuple[int, int], Stored]:
    found: dict[tuple[int, int], Stored] = {}
    for queue in range(queues):
        offset = 0
        while True:
            pull = Request(
                RequestCode.PULL_MESSAGE,
                {
                    "consumerGroup": "TOOLS_CONSUMER",
                    "topic": topic,
                    "queueId": queue,
                    "queueOffset": offset,
                    "maxMsgNums": 32,
                    "sysFlag": 4,
                    "commitOffset": 0,
                    "suspendTimeoutMillis": 0,
                    "subscription": "*",
                    "subVersion": 0,
                    "expressionType": "TAG",
                },
            )
            answer = pool.ask(broker, pull, soon())
            if answer.code != ResponseCode.SUCCESS:
                assert answer.code in (
                    ResponseCode.PULL_NOT_FOUND,
                    ResponseCode.PULL_OFFSET_MOVED,
                ), answer.said()
                break
            for stored in read_stored(answer.body):
                found[stored.queue_id, stored.offset] = stored
            offset = answer.number("nextBeginOffset")
    return found


def test_what_was_sent_is_read_back_by_a_login_over_either_connection(
    server: RocketMQ, pool: Pool
) -> None:
    routes = Routes(pool, brokers=None, answer_timeout=10)
    route = routes.route(TOPIC)
    assert [(queue.number, queue.master) for queue in route.queues] == [
        (n, server.address) for n in range(QUEUES)
    ]
    sent = [f"login-{place} {pool.address.tls}" for place in range(40)]
    answers = pool.ask_many(
        server.address, [send(one, place % QUEUES) for place, one in enumerate(sent)], soon()
    )
    stored = read_all(pool, server.address)
    for one, answer in zip(sent, answers, strict=True):
        assert isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS, str(answer)
        found = stored[answer.number("queueId"), answer.number("queueOffset")]
        assert (found.unpack()[0], found.store_host) == (one.encode() + b"x" * 100, server.address)
        assert answer.ext["msgId"] == found.store_id


def test_a_wrong_secret_or_none_is_refused_in_an_answer_that_does_not_hold_it(
    server: RocketMQ, address: Address
) -> None:
    for login in (
        Login("backstop", "s3cret-that-is-wrong"),
        Login("nobody", "s3cret-that-is-wrong"),
        None,
    ):
        with_it = Pool(replace(address, login=login), connect_timeout=10)
        answer = with_it.ask(server.address, send("refused", 0), soon())
        assert answer.code != ResponseCode.SUCCESS
        assert "s3cret" not in answer.said()
        with_it.close()
    good = Pool(address, connect_timeout=10)
    assert not [one for one in read_all(good, server.address).values() if b"refused" in one.body]
    good.close()


def test_every_kind_of_request_is_signed_as_the_broker_signs_it(
    server: RocketMQ, pool: Pool
) -> None:
    """Fields that are empty, hold any character or are many, with and without a body, long ones too."""
    requests = [
        Request(RequestCode.GET_BROKER_RUNTIME_INFO),
        Request(RequestCode.GET_BROKER_CONFIG),
        Request(RequestCode.GET_TOPIC_CONFIG, {"topic": TOPIC}),
        Request(
            RequestCode.QUERY_CONSUMER_OFFSET,
            {"consumerGroup": "g", "topic": TOPIC, "queueId": 0, "setZeroIfNotFound": False},
        ),
        Request(
            RequestCode.QUERY_MESSAGE,
            {
                "topic": TOPIC,
                "key": "ü 😀",
                "maxNum": 1,
                "beginTimestamp": 0,
                "endTimestamp": 2**62,
                "_UNIQUE_KEY_QUERY": "true",
            },
        ),
        Request(
            RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": 0, "Zz": "", "AA": "x" * 5000}
        ),
        send("größe 😀 \u2028", 1, 1_000_000),
    ]
    for answer in pool.ask_many(server.address, requests, soon()):
        assert isinstance(answer, Command), str(answer)
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND), answer.said()


def test_a_server_of_another_authority_is_not_spoken_to(server: RocketMQ, tmp_path: Path) -> None:
    write_certificates(tmp_path / "other")
    other = replace(Address.parse(server.url(tls=True)), ca=str(tmp_path / "other" / "ca.pem"))
    unknown = replace(other, ca=None)
    for address in (other, unknown):
        with pytest.raises(NotSent, match="CERTIFICATE_VERIFY_FAILED"):
            Pool(address, connect_timeout=10).ask(server.address, send("no", 0), soon())


def test_a_certificate_must_name_the_host_unless_that_is_switched_off(server: RocketMQ) -> None:
    """The name servers hand out addresses, and certificates seldom name those."""
    port = split_endpoint(server.address)[1]
    strict = Address.parse(server.url(tls=True))
    to = f"127.0.0.2:{port}"
    with Cut(server.address, host="127.0.0.2") as way:
        with pytest.raises(NotSent, match="CERTIFICATE_VERIFY_FAILED"):
            Pool(strict, connect_timeout=10).ask(
                way.to, Request(RequestCode.GET_BROKER_RUNTIME_INFO), soon()
            )
        lax = Pool(replace(strict, check_names=False), connect_timeout=10)
        assert (
            lax.ask(way.to, Request(RequestCode.GET_BROKER_RUNTIME_INFO), soon()).code
            == ResponseCode.SUCCESS
        )
        lax.close()
    assert to != way.to


class Cut:
    """A way to the server that ends after so many bytes towards it, or back; both ends see a closed connection."""

    def __init__(
        self, to: str, *, there: int | None = None, back: int | None = None, host: str = "127.0.0.1"
    ) -> None:
        self._target, self._limits = split_endpoint(to), (there, back)
        self._listener = socket.create_server((host, 0))
        self.to = f"{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Cut:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            for source, sink, limit in ((near, far, self._limits[0]), (far, near, self._limits[1])):
                threading.Thread(
                    target=self._carry, args=(source, sink, limit), daemon=True
                ).start()

    @staticmethod
    def _carry(source: socket.socket, sink: socket.socket, limit: int | None) -> None:
        with suppress(OSError):
            carried = 0
            while data := source.recv(65536):
                rest = len(data) if limit is None else limit - carried
                sink.sendall(data[:rest])
                carried += len(data)
                if rest < len(data):
                    break
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    "where",
    [{"there": 100_000}, {"there": 300_000}, {"back": 30_000}, {"back": 100_000}],
    ids=["early there", "late there", "early back", "late back"],
)
def test_a_connection_cut_amid_a_thousand_requests_gives_each_its_answer_or_lost_or_not_sent(
    server: RocketMQ, pool: Pool, where: dict[str, int]
) -> None:
    name = f"cut {where} {pool.address.tls}"
    ids = [f"{name} {place}" for place in range(1000)]
    with Cut(server.address, **where) as way:
        results = pool.ask_many(
            way.to,
            [replace(send(one, place % QUEUES), lane=None) for place, one in enumerate(ids)],
            soon(),
        )
    # The broker may still be storing what came before the cut: what is sent after it to each queue is behind all of that.
    ends = pool.ask_many(
        server.address, [send(f"{name} end", queue) for queue in range(QUEUES)], soon()
    )
    assert all(isinstance(end, Command) and end.code == ResponseCode.SUCCESS for end in ends)
    stored = read_all(pool, server.address)
    there = {one.properties["backstop-message-id"] for one in stored.values()}
    kinds = [type(result) for result in results]
    assert (
        kinds.count(Command) > 10 and kinds.count(ConnectionLost) > 0 and kinds.count(NotSent) > 100
    ), "the cut is in the middle"
    for one, result in zip(ids, results, strict=True):
        if isinstance(result, Command):
            assert result.code == ResponseCode.SUCCESS
            found = stored[result.number("queueId"), result.number("queueOffset")]
            assert found.properties["backstop-message-id"] == one
        elif isinstance(result, NotSent):
            assert one not in there


def test_a_stalled_broker_loses_what_was_written_at_the_deadline_and_its_connection_is_not_used_again(
    server: RocketMQ, pool: Pool
) -> None:
    assert (
        pool.ask(server.address, Request(RequestCode.GET_BROKER_RUNTIME_INFO), soon()).code
        == ResponseCode.SUCCESS
    )
    server.stall(namesrv=False)
    try:
        begun = time.monotonic()
        results = pool.ask_many(
            server.address,
            [send(f"stalled {place}", place % QUEUES) for place in range(200)],
            soon(1.0),
        )
        took = time.monotonic() - begun
        with pytest.raises((ConnectionLost, NotSent)):  # a new TLS connection cannot even be made
            pool.ask(server.address, Request(RequestCode.GET_BROKER_RUNTIME_INFO), soon(1.0))
    finally:
        server.wake()
    assert 0.9 < took < 6
    assert [type(result) for result in results] == [ConnectionLost] * QUEUES + [NotSent] * (
        200 - QUEUES
    ), "one in each lane"
    assert (
        pool.ask(server.address, Request(RequestCode.GET_BROKER_RUNTIME_INFO), soon()).code
        == ResponseCode.SUCCESS
    )


def test_while_a_name_server_starts_again_no_topic_is_called_missing(server: RocketMQ) -> None:
    routes = Routes(
        Pool(Address.parse(server.url(tls=False)), connect_timeout=10),
        brokers=None,
        answer_timeout=2,
    )
    saw: list[Route | BrokerUnavailable | NoSuchTopic] = []
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            try:
                saw.append(routes.route(TOPIC, fresh=True))
            except (BrokerUnavailable, NoSuchTopic) as error:
                saw.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        server.restart_namesrv()
    finally:
        over.set()
        thread.join()
    assert not [one for one in saw if isinstance(one, NoSuchTopic)]
    assert any(isinstance(one, BrokerUnavailable) for one in saw)
    assert len(routes.route(TOPIC, fresh=True).queues) == QUEUES
    with pytest.raises(NoSuchTopic):
        routes.route("nobody-made-this")


@pytest.mark.parametrize("kind", ["ZLIB", "LZ4", "ZSTD"])
def test_what_javas_producer_compressed_is_unpacked(
    server: RocketMQ, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Drocketmq.message.compressType={kind}")
    topic = f"compressed-{kind}"
    server.create_topic(topic, 1)
    content = "größer ".encode() * 3000
    with JavaPeer(server, tmp_path / "java") as java:
        # Its first send has 3 s for a cold JVM, the route and a connection; on a busy machine that is not enough.
        by = soon(120)
        while "error" in (
            answer := java.send(topic, [{"body": content, "tags": "t", "keys": "k"}], compress=100)[
                0
            ]
        ):
            assert time.monotonic() < by, answer
    pool = Pool(Address.parse(server.url()), connect_timeout=10)
    stored, *_ = read_all(pool, server.address, topic, 1).values()
    pool.close()
    assert len(stored.body) < len(content) / 10 and stored.sys_flag & 1
    assert stored.sys_flag >> 8 & 7 == {"LZ4": 1, "ZSTD": 2, "ZLIB": 3}[kind]
    message = message_of(stored, topic)
    assert message is not None and (message.content, message.tag) == (content, "t")


def test_a_consumers_connection_hears_who_joins_its_group(
    server: RocketMQ, address: Address
) -> None:
    server.create_group("hears")
    heard: list[Command] = []

    def heartbeat(client: str) -> Request:
        body = (
            f'{{"clientID":"{client}","consumerDataSet":[{{"groupName":"hears","consumeType":"CONSUME_ACTIVELY",'
            '"messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","unitMode":false,'
            f'"subscriptionDataSet":[{{"topic":"{TOPIC}","subString":"*","subVersion":1}}]}}],"producerDataSet":[]}}'
        )
        return Request(RequestCode.HEART_BEAT, {}, body.encode())

    first = session(server, address, on_push=lambda push: heard.append(push))
    assert first.ask(heartbeat("one"), soon()).code == ResponseCode.SUCCESS
    heard.clear()
    second = session(server, address)
    assert second.ask(heartbeat("two"), soon()).code == ResponseCode.SUCCESS
    while not heard:
        first.collect(soon())
    assert (
        heard[0].code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        and heard[0].ext["consumerGroup"] == "hears"
    )
    ids = first.ask(
        Request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "hears"}), soon()
    )
    assert sorted(ids.json()["consumerIdList"]) == ["one", "two"]
    first.close()
    second.close()


def session(server: RocketMQ, address: Address, **more: Callable[[Command], None]) -> Session:
    return Session(address, server.address, deadline=soon(), context=address.context(), **more)
