"""One connection to RocketMQ, many requests in flight: each gets an honest end, and nothing outlives its deadline."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from backstop.brokers.rocketmq.wire.address import Address
from backstop.brokers.rocketmq.wire.codes import RequestCode, ResponseCode
from backstop.brokers.rocketmq.wire.exchange import WINDOW, ask_many
from backstop.brokers.rocketmq.wire.frames import ANSWER, Command, Reader, Request, encode
from backstop.brokers.rocketmq.wire.pool import Pool
from backstop.brokers.rocketmq.wire.session import ConnectionLost, NotSent, Session
from backstop.model.errors import ConfigurationError

SOON, LONG = 0.3, 30.0
Script = Callable[["Peer", socket.socket], None]


class Peer:
    """A server that does what its script says with each connection. It speaks the protocol by the code under test, whose bytes
    test_rocketmq_frames.py holds to those written by hand."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.to = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.over = threading.Event()
        self.took: list[Command] = []
        self.connections, self.ended = 0, 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            self._script(self, connection)
        self.ended += 1

    def requests(self, connection: socket.socket) -> Iterator[Command]:
        reader = Reader()
        while data := connection.recv(65536):
            reader.feed(data)
            while (command := reader.next()) is not None:
                self.took.append(command)
                yield command

    def close(self) -> None:
        self.over.set()
        self._listener.close()


def answer(command: Command, code: int = 0, **ext: str) -> bytes:
    return encode(Request(code, ext, command.body), command.opaque, flag=ANSWER)


def echo(peer: Peer, connection: socket.socket) -> None:
    for command in peer.requests(connection):
        connection.sendall(answer(command))


def silence(peer: Peer, connection: socket.socket) -> None:
    for _ in peer.requests(connection):
        pass


def deafness(peer: Peer, connection: socket.socket) -> None:
    """Takes the connection, and not one byte."""
    peer.over.wait(60)


@pytest.fixture
def peer() -> Iterator[Callable[[Script], Peer]]:
    peers: list[Peer] = []

    def start(script: Script) -> Peer:
        peers.append(Peer(script))
        return peers[-1]

    yield start
    for one in peers:
        one.close()


def address(to: str) -> Address:
    return Address.parse(f"rocketmq://{to}")


def session(peer: Peer, **more: Callable[[Command], Request | None]) -> Session:
    return Session(address(peer.to), peer.to, deadline=soon(LONG), **more)


def soon(seconds: float = SOON) -> float:
    return time.monotonic() + seconds


def some(number: int, size: int = 10) -> list[Request]:
    return [
        Request(RequestCode.SEND_MESSAGE_V2, {"e": place}, b"%d " % place + b"x" * size)
        for place in range(number)
    ]


def test_an_answer_goes_to_its_request_however_they_are_mixed(
    peer: Callable[[Script], Peer],
) -> None:
    def backwards(server: Peer, connection: socket.socket) -> None:
        held: list[Command] = []
        for command in server.requests(connection):
            held.append(command)
            if len(held) == WINDOW or command.ext["e"] == "999":
                for one in reversed(held):
                    connection.sendall(answer(one))
                held.clear()

    with_one = session(peer(backwards))
    requests = some(1000)
    results = ask_many(with_one, requests, soon(LONG))
    assert [result.body for result in results if isinstance(result, Command)] == [
        request.body for request in requests
    ]
    assert with_one.idle()


def test_answers_that_come_byte_by_byte_are_whole(peer: Callable[[Script], Peer]) -> None:
    def slowly(server: Peer, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for command in server.requests(connection):
            for byte in answer(command):
                connection.sendall(bytes([byte]))

    results = ask_many(session(peer(slowly)), some(20), soon(LONG))
    assert [type(result) for result in results] == [Command] * 20


def test_never_more_are_in_flight_than_the_window(peer: Callable[[Script], Peer]) -> None:
    seen: list[int] = []

    def in_rounds(server: Peer, connection: socket.socket) -> None:
        held: list[Command] = []
        connection.settimeout(0.1)
        reader = Reader()
        while True:
            try:
                data = connection.recv(65536)
            except TimeoutError:
                seen.append(len(held))
                for one in held:
                    connection.sendall(answer(one))
                held.clear()
                continue
            if not data:
                return
            reader.feed(data)
            while (command := reader.next()) is not None:
                held.append(command)

    results = ask_many(session(peer(in_rounds)), some(50), soon(LONG), window=20)
    assert all(isinstance(result, Command) for result in results)
    assert max(seen) == 20


def test_of_one_lane_only_one_is_under_way_and_lanes_do_not_wait_for_each_other(
    peer: Callable[[Script], Peer],
) -> None:
    open_lanes: set[str] = set()
    together: list[int] = []
    wrong: list[str] = []

    def watch(server: Peer, connection: socket.socket) -> None:
        reader, held = Reader(), list[Command]()
        while data := connection.recv(65536):
            reader.feed(data)
            while (command := reader.next()) is not None:
                lane = command.ext["lane"]
                if lane in open_lanes:
                    wrong.append(lane)
                open_lanes.add(lane)
                held.append(command)
            together.append(len(held))
            while held:
                one = held.pop()
                open_lanes.discard(one.ext["lane"])
                server.took.append(one)
                connection.sendall(answer(one))

    server = peer(watch)
    requests = [
        Request(1, {"lane": place % 4, "place": place}, lane=place % 4) for place in range(80)
    ]
    results = ask_many(session(server), requests, soon(LONG))
    assert all(isinstance(result, Command) for result in results) and not wrong
    assert max(together) > 1
    for lane in range(4):
        places = [int(one.ext["place"]) for one in server.took if one.ext["lane"] == str(lane)]
        assert places == sorted(places) and len(places) == 20


@pytest.mark.parametrize("behaviour", [silence, deafness])
@pytest.mark.parametrize("size", [10, 3_000_000], ids=["small", "large"])
def test_a_server_that_does_not_answer_costs_no_more_than_the_deadline(
    peer: Callable[[Script], Peer], behaviour: Script, size: int
) -> None:
    server = peer(behaviour)
    with_one = session(server)
    begun = time.monotonic()
    results = ask_many(with_one, some(20, size), soon())
    assert time.monotonic() - begun < SOON + 20
    assert all(isinstance(result, ConnectionLost | NotSent) for result in results)
    with_one.close()
    server.over.set()
    if behaviour is silence:
        wait_until(
            lambda: (
                len(server.took) >= sum(isinstance(result, ConnectionLost) for result in results)
            )
        )
        executed = {command.body for command in server.took}
        for request, result in zip(some(20, size), results, strict=True):
            assert not (isinstance(result, NotSent) and request.body in executed)
    else:
        assert (size < 100) == all(isinstance(result, ConnectionLost) for result in results), (
            "large ones do not fit into the socket"
        )
        assert isinstance(results[-1], ConnectionLost if size < 100 else NotSent)


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("answered", [0, 1, 137, 999])
def test_a_connection_cut_amid_a_thousand_requests_gives_each_an_honest_end(
    peer: Callable[[Script], Peer], answered: int
) -> None:
    def cut(server: Peer, connection: socket.socket) -> None:
        for number, command in enumerate(server.requests(connection)):
            if number == answered:
                return
            connection.sendall(answer(command))

    server = peer(cut)
    with_one = session(server)
    results = ask_many(with_one, some(1000), soon(LONG))
    taken = {command.body for command in server.took}
    for request, result in zip(some(1000), results, strict=True):
        if isinstance(result, Command):
            assert result.body == request.body
        elif isinstance(result, NotSent):
            assert request.body not in taken
    answers = [isinstance(result, Command) for result in results]
    assert answers == sorted(answers, reverse=True) and sum(answers) <= answered
    assert sum(isinstance(result, ConnectionLost) for result in results) >= 1
    if answered < 800:
        assert isinstance(results[-1], NotSent), "beyond the window nothing was written"
    assert with_one.broken and not with_one.idle()
    assert isinstance(with_one.conclude(with_one.start([Request(1)])[0]), NotSent)


def test_answers_that_came_before_the_connection_broke_count(
    peer: Callable[[Script], Peer],
) -> None:
    def answer_and_leave(server: Peer, connection: socket.socket) -> None:
        for command in server.requests(connection):
            connection.sendall(answer(command))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return  # with a reset

    for _ in range(20):
        server = peer(answer_and_leave)
        with_one = session(server)
        [first] = with_one.start([Request(1, {}, b"a")])
        wait_until(lambda: server.ended == 1)  # noqa: B023
        results = with_one.start([Request(1, {}, b"b" * 1000)])
        assert with_one.collect(soon(LONG))[first].body == b"a", (
            "writing into the broken connection must not hide it"
        )
        assert isinstance(with_one.conclude(results[0]), ConnectionLost | NotSent)


def test_a_request_that_timed_out_is_lost_and_its_late_answer_goes_to_nobody(
    peer: Callable[[Script], Peer],
) -> None:
    def late(server: Peer, connection: socket.socket) -> None:
        for command in server.requests(connection):
            if command.body == b"slow":
                server.over.wait(LONG)
            connection.sendall(answer(command))

    server = peer(late)
    with_one = session(server)
    with pytest.raises(ConnectionLost, match="in time"):
        with_one.ask(Request(1, {}, b"slow"), soon())
    server.over.set()
    assert with_one.ask(Request(1, {}, b"quick"), soon(LONG)).body == b"quick"
    wait_until(with_one.idle)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        bytes(100),
        struct.pack(">ii", 8, 2 << 24) + bytes(4),
    ],
)
def test_a_server_of_another_kind_is_told_at_once(
    peer: Callable[[Script], Peer], garbage: bytes
) -> None:
    def speak(server: Peer, connection: socket.socket) -> None:
        next(server.requests(connection))
        connection.sendall(garbage)
        server.over.wait(LONG)

    begun = time.monotonic()
    with pytest.raises(ConnectionLost, match="remoting protocol"):
        session(peer(speak)).ask(Request(1), soon(LONG))
    assert time.monotonic() - begun < LONG / 2


def test_what_the_broker_asks_gets_an_answer_and_what_it_tells_gets_none(
    peer: Callable[[Script], Peer],
) -> None:
    heard: list[int] = []
    answers: list[Command] = []

    def push(server: Peer, connection: socket.socket) -> None:
        requests = server.requests(connection)
        first = next(requests)
        connection.sendall(
            encode(Request(40), 1, flag=2) + encode(Request(307), 2) + encode(Request(309), 3)
        )
        answers.extend([next(requests), next(requests)])
        connection.sendall(answer(first))
        server.over.wait(LONG)

    def hear(command: Command) -> Request | None:
        heard.append(command.code)
        return (
            Request(ResponseCode.SUCCESS, {}, b"running")
            if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO
            else None
        )

    with_one = session(peer(push), on_push=hear)
    assert with_one.ask(Request(1), soon(LONG)).code == 0
    assert heard == [40, 307, 309]
    assert [(one.opaque, one.code, one.flag, one.body) for one in answers] == [
        (2, 0, 1, b"running"),
        (3, 3, 1, b""),
    ]
    assert with_one.idle()


def test_collect_comes_back_for_an_answer_or_a_push_and_else_at_the_deadline(
    peer: Callable[[Script], Peer],
) -> None:
    go = [threading.Event(), threading.Event()]

    def by_word(server: Peer, connection: socket.socket) -> None:
        requests = server.requests(connection)
        first, second = next(requests), next(requests)
        go[0].wait(LONG)
        connection.sendall(encode(Request(40), 1, flag=2))
        go[1].wait(LONG)
        connection.sendall(answer(second) + answer(first))
        server.over.wait(LONG)

    with_one = session(peer(by_word), on_push=lambda command: None)
    first, second = with_one.start([Request(1, {}, b"1"), Request(1, {}, b"2")])
    assert with_one.collect(soon(0.05)) == {}
    go[0].set()
    begun = time.monotonic()
    assert with_one.collect(soon(LONG)) == {}
    assert time.monotonic() - begun < LONG / 2
    go[1].set()
    came: dict[int, Command] = {}
    while len(came) < 2:
        came |= with_one.collect(soon(LONG))
    assert (came[first].body, came[second].body) == (b"1", b"2")


def test_the_numbers_of_requests_begin_again_before_they_are_too_large_for_java(
    peer: Callable[[Script], Peer],
) -> None:
    with_one = session(peer(echo))
    with_one._last_opaque = 2**31 - 3
    results = ask_many(with_one, some(5), soon(LONG))
    assert [result.opaque for result in results if isinstance(result, Command)] == [
        2**31 - 2,
        2**31 - 1,
        1,
        2,
        3,
    ]


def test_nobody_there_is_not_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        to = f"127.0.0.1:{listener.getsockname()[1]}"
    pool = Pool(address(to), connect_timeout=1)
    results = pool.ask_many(to, some(3), soon(LONG))
    assert [type(result) for result in results] == [NotSent] * 3
    with pytest.raises(NotSent):
        pool.ask(to, Request(1), soon(-1))


def test_a_pool_asks_several_servers_at_once_and_one_that_is_silent_takes_nothing_from_the_others(
    peer: Callable[[Script], Peer],
) -> None:
    servers = [peer(echo), peer(silence), peer(echo)]
    pool = Pool(address(servers[0].to), connect_timeout=5)
    asked = [(servers[place % 3].to, request) for place, request in enumerate(some(90))]
    for seconds in (1.0, 5.0, 20.0):
        begun = time.monotonic()
        results = pool.ask_all(asked, soon(seconds))
        assert time.monotonic() - begun < seconds + 20
        if all(isinstance(result, Command) for result in results[::3] + results[2::3]):
            break  # a second may be too little for the other two on a busy machine
    assert [type(result) for result in results] == [Command, ConnectionLost, Command] * 30
    assert all(
        result.body == asked[place][1].body
        for place, result in enumerate(results)
        if isinstance(result, Command)
    )
    pool.close()


def test_a_pool_uses_a_connection_again_and_never_one_that_is_over_or_has_something_on_its_way(
    peer: Callable[[Script], Peer],
) -> None:
    def until_told(server: Peer, connection: socket.socket) -> None:
        for command in server.requests(connection):
            if command.body == b"never":
                continue
            connection.sendall(answer(command))
            if command.body == b"last":
                return

    server = peer(until_told)
    pool = Pool(address(server.to), connect_timeout=5)
    for _ in range(5):
        assert pool.ask(server.to, Request(1), soon(LONG)).code == 0
    assert server.connections == 1
    with pytest.raises(ConnectionLost):
        pool.ask(server.to, Request(1, {}, b"never"), soon(0.1))
    assert pool.ask(server.to, Request(1), soon(LONG)).code == 0
    assert server.connections == 2
    pool.ask(server.to, Request(1, {}, b"last"), soon(LONG))
    wait_until(lambda: server.ended == 2)
    for _ in range(20):
        assert pool.ask(server.to, Request(1), soon(LONG)).code == 0
    assert server.connections == 3
    pool.close()


def test_a_pool_is_shared_by_threads(peer: Callable[[Script], Peer]) -> None:
    server = peer(echo)
    pool = Pool(address(server.to), connect_timeout=5)
    wrong: list[object] = []

    def work(who: int) -> None:
        for turn in range(30):
            body = b"%d %d" % (who, turn)
            results = pool.ask_many(
                server.to, [Request(1, {}, body + b" %d" % n) for n in range(20)], soon(LONG)
            )
            wrong.extend(
                r
                for n, r in enumerate(results)
                if not (isinstance(r, Command) and r.body == body + b" %d" % n)
            )

    threads = [threading.Thread(target=work, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and server.connections <= 8
    pool.close()


@pytest.mark.parametrize(
    ("url", "servers", "login", "tls"),
    [
        ("rocketmq://a:1", ("a:1",), None, False),
        ("rocketmq://a", ("a:9876",), None, False),
        ("rocketmq://a:1,b:2;c/", ("a:1", "b:2", "c:9876"), None, False),
        (
            "rocketmq://me:s%3A%2F%40@[::1]:1,10.0.0.1:2?tls=true&ca=%2Fca.pem&check_names=false",
            ("[::1]:1", "10.0.0.1:2"),
            ("me", "s:/@"),
            True,
        ),
    ],
)
def test_an_address_names_servers_login_and_tls(
    url: str, servers: tuple[str, ...], login: tuple[str, str] | None, tls: bool
) -> None:
    found = Address.parse(url)
    assert (found.namesrvs, found.tls) == (servers, tls)
    assert (None if found.login is None else (found.login.access, found.login.secret)) == login
    if tls:
        assert (found.ca, found.check_names) == ("/ca.pem", False)
    assert "s:/@" not in repr(found)


@pytest.mark.parametrize(
    "url",
    [
        "stomp://a:1",
        "rocketmq://",
        "rocketmq://a:0",
        "rocketmq://a:65536",
        "rocketmq://a:b",
        "rocketmq://a,,b",
        "rocketmq://me@a",
        "rocketmq://me:@a",
        "rocketmq://:s3cret@a",
        "rocketmq://me:s3cret@a/x",
        "rocketmq://me:s3cret@a?tls=yes",
        "rocketmq://me:s3cret@a?what=1",
        "rocketmq://me:s3cret@a?ca=x",
        "rocketmq://me:s3cret@a?tls=true&tls=true",
        "rocketmq://me:s3cret@a b:1",
        "rocketmq://me:s3cret@a#x",
        "rocketmq://me:s3cret@[::1:1",
        "a:1",
        "",
    ],
)
def test_an_address_that_is_none_is_refused_and_never_shown(url: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Address.parse(url)
    assert "s3cret" not in f"{raised.value!r} {raised.value} {raised.value.__context__!r}"


def test_certificates_that_cannot_be_read_are_refused_when_the_broker_is_opened() -> None:
    with pytest.raises(ConfigurationError):
        Pool(Address.parse("rocketmq://a:1?tls=true&ca=/no/such/file"), connect_timeout=1)


def test_a_forked_child_does_not_speak_into_its_parents_connections(
    peer: Callable[[Script], Peer],
) -> None:
    server = peer(echo)
    pool = Pool(address(server.to), connect_timeout=5)
    assert pool.ask(server.to, Request(1), soon(LONG)).code == 0
    child = os.fork()
    if child == 0:
        os._exit(
            0 if pool.ask(server.to, Request(1, {}, b"child"), soon(LONG)).body == b"child" else 1
        )
    assert os.waitpid(child, 0)[1] == 0
    assert pool.ask(server.to, Request(1), soon(LONG)).code == 0
    assert server.connections == 2
    pool.close()


def test_a_server_that_nobody_can_connect_to_leaves_time_for_the_others(
    peer: Callable[[Script], Peer],
) -> None:
    good = peer(echo)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        held = [socket.socket() for _ in range(4)]
        for one in (
            held
        ):  # the queue of those who wait to be taken is full: further ones get no answer at all
            one.setblocking(False)
            with suppress(BlockingIOError):
                one.connect(("127.0.0.1", port))
        pool = Pool(address(good.to), connect_timeout=60)
        asked = [(f"127.0.0.1:{port}", Request(1)), (good.to, Request(1))]
        for seconds in (2.0, 20.0):
            results = pool.ask_all(asked, soon(seconds))
            if isinstance(results[1], Command):
                break  # else the machine stood still while the first one took its share
        for one in held:
            one.close()
    assert [type(result) for result in results] == [NotSent, Command]
    pool.close()
