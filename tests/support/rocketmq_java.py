"""Drive RocketMQ's own Java clients as a process of ours: producer, push consumers (concurrent, ordered, POP), admin oracle.

One process may hold many clients; who wants to kill a consumer starts it in a `JavaPeer` of its own.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from backstop_lab.servers.share_classes import shared_classes
from compile_java import class_path, compiled, java
from rocketmq_server import OF_THE_SERVER, RocketMQ

SOURCES = sorted(
    set((Path(__file__).parents[1] / "java" / "rocketmq").glob("*.java")) - set(OF_THE_SERVER)
)
WAIT_SECONDS = 240.0


@dataclass(frozen=True)
class Seen:
    """A message as the Java library shows it."""

    topic: str
    broker: str | None
    queue: int
    offset: int
    physical: int
    offset_id: str
    uniq_key: str | None
    keys: str | None
    tags: str | None
    body: bytes
    properties: dict[str, str]
    retries: int
    born: int
    stored: int
    flags: int

    @classmethod
    def of(cls, shown: dict[str, Any]) -> Self:
        return cls(
            **{
                **{name: shown.get(name) for name in cls.__dataclass_fields__},
                "body": base64.b64decode(shown["body"]),
            }
        )


@dataclass
class JavaConsumer:
    """A push consumer in the other process. `begun` and `ended` grow as it says so; each entry is one message."""

    peer: JavaPeer
    name: str
    begun: list[Seen] = field(default_factory=list)
    ended: list[tuple[Seen, bool]] = field(default_factory=list)
    """(message, whether the listener succeeded)."""

    @property
    def done(self) -> list[Seen]:
        """What it consumed with success, in that order."""
        return [message for message, good in self.ended if good]

    def wait_until(
        self, what: str, holds: Callable[[JavaConsumer], Any], seconds: float = WAIT_SECONDS
    ) -> Any:
        return self.peer.until(
            f"{what} at {self.name} (begun {len(self.begun)}, ended {len(self.ended)})",
            lambda: holds(self),
            seconds,
        )

    def release(self, messages: int = 1) -> None:
        """Lets a consumer that was started with hold=True finish so many messages."""
        self.peer.ask("release", name=self.name, messages=messages)

    def heal(self) -> None:
        """From now on nothing fails and nothing is held."""
        self.peer.ask("heal", name=self.name)

    def close(self) -> None:
        """In order: it commits its offsets and leaves the group."""
        self.peer.ask("close", name=self.name)


class JavaPeer:
    """One JVM with RocketMQ's own client."""

    def __init__(
        self, server: RocketMQ, folder: Path, *, login: tuple[str, str] | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.server = server
        self._errors = folder / "stderr.log"
        login = login or server.login
        secret = {"ROCKETMQ_ACCESS": login[0], "ROCKETMQ_SECRET": login[1]} if login else {}
        tls = (
            [
                "-Dtls.enable=true",
                "-Dtls.test.mode.enable=false",
                "-Dtls.client.authServer=true",
                f"-Dtls.client.trustCertPath={server.ca}",
            ]
            if server.tls
            else []
        )
        descriptor = os.open(self._errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._process = subprocess.Popen(
            [
                str(java()),
                "-Xmx128m",
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                *shared_classes("rocketmq"),
                *tls,
                f"-Duser.home={folder}",
                f"-Drocketmq.client.logRoot={folder}",
                "-Drocketmq.client.rebalance.waitInterval=1000",
                "-Drocketmq.client.rebalance.minInterval=200",
                "-cp",
                class_path(compiled(SOURCES)),
                "Peer",
                server.namesrv,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=descriptor,
            text=True,
            encoding="utf-8",
            env={**os.environ, **secret},
            start_new_session=True,
        )
        os.close(descriptor)
        self._numbers, self._names = count(1), count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._consumers: dict[str, JavaConsumer] = {}
        self._news = threading.Condition()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """`kill -9`: nothing is committed, nobody is told."""
        self._process.kill()
        self._process.wait()
        self._thread.join(10)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def ask(self, do: str, *, seconds: float = WAIT_SECONDS, **values: Any) -> Any:
        """Carries out one order of Peer.java, and returns its answer."""
        number = next(self._numbers)
        with self._writing:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"n": number, "do": do, **values}) + "\n")
            self._process.stdin.flush()
        self.until(f"the answer to {do}", lambda: number in self._answers, seconds)
        answer = self._answers.pop(number)
        assert "error" not in answer, answer["error"]
        return answer.get("answer")

    # -- clients -------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        bodies: Sequence[bytes | Mapping[str, Any]],
        *,
        group: str = "java-producer",
        compress: int = 0,
        batch: bool = False,
        **each: Any,
    ) -> list[dict[str, Any]]:
        """Sends synchronously, one after the other (`batch`: as one batch). A body, or a mapping with `body` and any of keys,
        tags, sharding, queue, level, delay_ms, properties; `each` is for all of them. `compress`: from so many bytes
        on (0: never). Answers: status, broker, queue, offset, uniq_key, offset_id; or error."""
        messages = []
        for body in bodies:
            wanted = {
                "topic": topic,
                **each,
                **({"body": body} if isinstance(body, bytes) else body),
            }
            wanted["body"] = base64.b64encode(wanted["body"]).decode()
            messages.append(wanted)
        found = self.ask("send", group=group, compress=compress, batch=batch, messages=messages)
        assert isinstance(found, list)
        return found

    def consume(
        self,
        group: str,
        topics: str | Mapping[str, str],
        *,
        mode: str = "concurrent",
        name: str | None = None,
        fail: int = 0,
        fail_keys: Mapping[str, int] | None = None,
        hold: bool = False,
        limit: int = -1,
        batch: int = 1,
        level: int = 0,
        invisible_ms: int = 10_000,
    ) -> JavaConsumer:
        """Starts a push consumer: mode concurrent, ordered or pop; `topics`: one, or {topic: tag expression}. `fail`: how often
        each message fails (-1: always); `level`: the delay level of a failure (0: the server's next, -1: straight to the dead
        letters). POP asks for a group that nobody reads yet."""
        name = name or f"java-{self.pid}-{next(self._names)}"
        consumer = JavaConsumer(self, name)
        self._consumers[name] = consumer
        self.ask(
            "consume",
            name=name,
            group=group,
            topics={topics: "*"} if isinstance(topics, str) else dict(topics),
            mode=mode,
            fail=fail,
            fail_keys=dict(fail_keys or {}),
            hold=hold,
            limit=limit,
            batch=batch,
            level=level,
            invisible_ms=invisible_ms,
            broker=self.server.address,
        )
        return consumer

    # -- the oracle ----------------------------------------------------------------------------------------

    def offsets(self, topic: str) -> dict[tuple[str, int], tuple[int, int]]:
        """(broker name, queue) -> (first, next)."""
        return {
            (one["broker"], one["queue"]): (one["first"], one["next"])
            for one in self.ask("offsets", topic=topic)
        }

    def committed(self, group: str, topic: str) -> dict[tuple[str, int], int]:
        """(broker name, queue) -> next offset of the group, as the admin tool shows it (never committed: 0 or -1)."""
        found = self.ask("committed", group=group, topic=topic)
        return {
            (one["broker"], one["queue"]): one["committed"]
            for one in found
            if one["topic"] == topic
        }

    def reset(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Sets a group's offset by queue, as an operator does."""
        self.ask(
            "reset",
            broker=self.server.address,
            group=group,
            topic=topic,
            queue=queue,
            offset=offset,
        )

    def reset_to_time(self, group: str, topic: str, milliseconds: int) -> None:
        """Sets a group's offsets by time; its living clients are told."""
        self.ask("reset_to_time", group=group, topic=topic, time=milliseconds)

    def read(self, topic: str) -> list[Seen]:
        """Everything that is stored in a topic, read past our adapter."""
        return [Seen.of(one) for one in self.ask("read", topic=topic)]

    def letters(self, group: str) -> list[Seen]:
        return self.read(f"%DLQ%{group}")

    def view(self, topic: str, offset_id: str) -> Seen:
        return Seen.of(self.ask("view", topic=topic, id=offset_id))

    def by_uniq_key(self, topic: str, uniq_key: str) -> list[Seen]:
        return [Seen.of(one) for one in self.ask("by_uniq_key", topic=topic, id=uniq_key)]

    def clients(self, group: str) -> dict[str, str]:
        """client id -> language, of those that are connected."""
        return {one["client"]: one["language"] for one in self.ask("clients", group=group)}

    def locks(self, group: str, client: str) -> dict[tuple[str, str, int], tuple[bool, int]]:
        """(topic, broker name, queue) -> (locked, when last) as one consumer sees it."""
        found = self.ask("locks", group=group, client=client)
        return {
            (one["topic"], one["broker"], one["queue"]): (one["locked"], one["last_lock"])
            for one in found
        }

    # -- waiting -------------------------------------------------------------------------------------------

    def until(self, what: str, holds: Callable[[], Any], seconds: float = WAIT_SECONDS) -> Any:
        """Waits for a condition on what this process says; returns what the condition said."""
        deadline = time.monotonic() + seconds
        with self._news:
            while not (found := holds()):
                assert self._process.poll() is None, (
                    f"the Java client ended; see {self._errors}\n{self._last_errors()}"
                )
                left = deadline - time.monotonic()
                assert left > 0, (
                    f"{what} did not come within {seconds:.0f} s; see {self._errors}\n{self._last_errors()}"
                )
                self._news.wait(min(left, 0.5))
        return found

    def _last_errors(self) -> str:
        return "\n".join(self._errors.read_text(errors="replace").splitlines()[-15:])

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("> "):
                continue  # the library's own
            said = json.loads(line[2:])
            with self._news:
                if "n" in said:
                    self._answers[said["n"]] = said
                else:
                    consumer = self._consumers[said["consumer"]]
                    for shown in map(Seen.of, said["messages"]):
                        if said["event"] == "begun":
                            consumer.begun.append(shown)
                        else:
                            consumer.ended.append((shown, said["good"]))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()
