"""Run Apache RocketMQ from its jars as our own children: a name server and a broker, on the loopback, over one folder.

An open port is not a registered broker (in half of the cold starts it registers ten seconds later), so a start ends when the
name server gives the route.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import disk_usage
from time import monotonic
from types import TracebackType
from typing import Any, Self

from backstop.brokers.rocketmq.wire.address import Address
from backstop.brokers.rocketmq.wire.codes import RequestCode, ResponseCode
from backstop.brokers.rocketmq.wire.frames import Answer, Field, Request
from backstop.brokers.rocketmq.wire.pool import Pool
from backstop.brokers.rocketmq.wire.session import ConnectionLost, NotSent
from backstop.model.private_file import write_private
from backstop_lab.servers.child import Child, LocalServerError, end_leftover
from backstop_lab.servers.compile_java import compiled
from backstop_lab.servers.fetch_rocketmq import HOME, installed, jars
from backstop_lab.servers.java import java as java_program
from backstop_lab.servers.ports import LOOPBACK, free_port
from backstop_lab.servers.share_classes import shared_classes

CLUSTER = "DefaultCluster"
START_SECONDS = 300.0
STOP_SECONDS = 60.0
ANSWER_SECONDS = 30.0
FULL_AT = 0.90
"""The part of the disk in use above which a broker accepts no message. No setting moves it."""
NO_REPLICAS = Path(__file__).with_name("NoReplicas.java")
"""The port for replicas is the only one that knows no bindAddress: with this nobody listens there."""
SERVICES = {"org.apache.rocketmq.store.ha.HAService": NO_REPLICAS.stem}
NAMES, BROKER = (
    "org.apache.rocketmq.namesrv.NamesrvStartup",
    "org.apache.rocketmq.broker.BrokerStartup",
)
NAMES_MEMORY = ("-Xms16m", "-Xmx64m")
BROKER_MEMORY = ("-Xms128m", "-Xmx256m", "-XX:MaxDirectMemorySize=256m")
WITHOUT_TLS = "-Dtls.server.mode=disabled"
"""Otherwise each of the two makes itself a key and a certificate at its start, which takes longer than the start itself."""
OPENED = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
)
SETTINGS = {
    "brokerClusterName": CLUSTER,
    "brokerId": "0",
    "brokerIP1": LOOPBACK,
    "brokerIP2": LOOPBACK,
    "bindAddress": LOOPBACK,
    "brokerRole": "ASYNC_MASTER",
    "flushDiskType": "ASYNC_FLUSH",
    "autoCreateTopicEnable": "false",
    "autoCreateSubscriptionGroup": "false",
    "mappedFileSizeCommitLog": "67108864",
    "mappedFileSizeConsumeQueue": "600000",
    "mappedFileSizeTimerLog": "1048576",
    "maxIndexNum": "100000",
    "maxHashSlotNum": "50000",
    "diskMaxUsedSpaceRatio": "99",
    # By default a disk that is more than 85 % full has each full file removed at once, whatever its reserved time and whoever
    # has still to read it: a developer's disk is often that full.
    "cleanFileForciblyEnable": "false",
    # The timer writes its whole wheel of 37 MB out each time: every second, as it does by default, takes a fifth of a core.
    # What it has not written out it reads again from its log.
    "timerFlushIntervalMs": "60000",
    # From its start to the first time it spins on a whole core; the default is 3 s.
    "transactionMetricFlushInterval": "200",
    "registerNameServerPeriod": "10000",
    "traceTopicEnable": "false",
    "enableCalcFilterBitMap": "false",
    "sendMessageThreadPoolNums": "2",
    "pullMessageThreadPoolNums": "4",
    "adminBrokerThreadPoolNums": "2",
    "waitTimeMillsInSendQueue": "10000",
    "waitTimeMillsInPullQueue": "20000",
    "waitTimeMillsInAckQueue": "20000",
    "osPageCacheBusyTimeOutMills": "20000",
}
"""Small, and patient: it shares a machine with everything else."""


class RocketMQServer:
    """One name server and one master. `port`: the name server's. `settings` are the broker's own, over SETTINGS."""

    name = "RocketMQ"

    def __init__(
        self, directory: Path, port: int | None = None, *, settings: Mapping[str, str] | None = None
    ) -> None:
        self.directory = directory.resolve()
        self.port = port or free_port()
        self.broker_name, self.broker_port, self._vip_port = "broker-a", free_port(), free_port()
        self.settings = {**SETTINGS, **(settings or {})}
        self._pool = Pool(Address.parse(self.url()), connect_timeout=ANSWER_SECONDS)
        self._names = Child("RocketMQ's name server", self.directory / "namesrv.log")
        self._broker = Child("RocketMQ's broker", self.directory / "broker.log")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def running(self) -> bool:
        return self._names.running and self._broker.running

    @property
    def pid(self) -> int | None:
        """The broker's."""
        return self._broker.pid

    @property
    def address(self) -> str:
        """The master's, as the routes name it."""
        return f"{LOOPBACK}:{self.broker_port}"

    def url(self) -> str:
        """The connection as backstop.yaml's reference names it."""
        return f"rocketmq://{LOOPBACK}:{self.port}"

    def for_duties(self) -> str:
        return self.url()

    def for_airflow(self) -> str:
        return self.url()

    def start(self) -> None:
        """Starts what does not run, over what an earlier life left; returns when the name server gives the broker's route."""
        if not installed():
            raise LocalServerError(
                f"RocketMQ is not at {HOME}.",
                unaffected="Nothing was started.",
                next_step="Run `make rocketmq`.",
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        _require_space(self.directory)
        if not self._names.running and not self._broker.running:
            self.end_leftovers()
        try:
            if not self._names.running:
                written = write_settings(
                    self.directory / "namesrv.conf", names_settings(self.directory, self.port)
                )
                java = command(self.directory, *NAMES_MEMORY, WITHOUT_TLS)
                self._launch("namesrv", self._names, [*java, NAMES, "-c", str(written)])
            if not self._broker.running:
                names = f"{LOOPBACK}:{self.port}"
                its = broker_settings(
                    self.directory, self.broker_name, self.broker_port, self._vip_port, names
                )
                written = write_settings(self.directory / "broker.conf", {**self.settings, **its})
                helper = compiled([NO_REPLICAS], SERVICES)
                java = command(
                    self.directory, *BROKER_MEMORY, *OPENED, WITHOUT_TLS, classes=[helper]
                )
                self._launch("broker", self._broker, [*java, BROKER, "-c", str(written)])
            self._broker.wait_until(self._registered, START_SECONDS)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """In order: it writes down everything."""
        self._broker.send(signal.SIGTERM)
        self._names.send(signal.SIGTERM)
        self._broker.finish(STOP_SECONDS)
        self._names.finish(STOP_SECONDS)

    def kill(self) -> None:
        """`kill -9` of both."""
        self._broker.kill()
        self._names.kill()

    def stall(self) -> None:
        """The broker takes connections and bytes, and does nothing."""
        self._broker.send(signal.SIGSTOP)

    def kill_broker(self) -> None:
        self._broker.kill()

    def end_leftovers(self) -> None:
        """End servers over this directory that outlived their supervisor."""
        for name in ("broker", "namesrv"):
            end_leftover(self.directory / f"{name}.pid", self.directory, signal.SIGTERM)

    def ask(
        self,
        code: int,
        ext: Mapping[str, Field] | None = None,
        body: bytes = b"",
        *,
        also: Sequence[int] = (),
    ) -> Answer:
        """One request of whoever runs it to the broker. LocalServerError when it says no."""
        answer = self._ask(self.address, Request(code, dict(ext or {}), body))
        if answer.code != ResponseCode.SUCCESS and answer.code not in also:
            raise _refused(f"The broker said {answer.said()} to request {code}")
        return answer

    def configure(self, **settings: object) -> None:
        """Changes settings of the running broker."""
        self.ask(
            RequestCode.UPDATE_BROKER_CONFIG,
            body="".join(f"{name}={value}\n" for name, value in settings.items()).encode(),
        )

    def route(self, topic: str) -> dict[str, Any]:
        """What the name server tells of a topic (or, by its own topic, of a broker). LocalServerError: nothing."""
        request = Request(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": True}
        )
        answer = self._ask(f"{LOOPBACK}:{self.port}", request)
        if answer.code != ResponseCode.SUCCESS:
            raise _refused(f"The name server said {answer.said()} about {topic}")
        found: dict[str, Any] = json.loads(answer.body)
        return found

    def _ask(self, to: str, request: Request) -> Answer:
        return self._pool.ask(to, request, monotonic() + ANSWER_SECONDS)

    def _registered(self) -> bool:
        try:
            self.configure(brokerPermission=6)  # it registers at once then
            masters = {
                one["brokerName"]: one["brokerAddrs"].get("0")
                for one in self.route(self.broker_name)["brokerDatas"]
            }
            if (
                self._ask(self.address, Request(RequestCode.GET_BROKER_RUNTIME_INFO)).code
                != ResponseCode.SUCCESS
            ):
                return (
                    False  # in its first second it cannot tell, and then it is of no use to a look
                )
        except (ConnectionLost, NotSent, LocalServerError):
            return False  # not up yet; the caller knows the deadline and whether the process lives
        return masters.get(self.broker_name) == self.address

    def _launch(self, name: str, child: Child, line: Sequence[str]) -> None:
        child.start(line, env=environment(self.directory), cwd=self.directory)
        (self.directory / f"{name}.pid").write_text(str(child.pid))


def names_settings(directory: Path, port: int) -> dict[str, str]:
    """What a name server is told."""
    return {
        "listenPort": str(port),
        "bindAddress": LOOPBACK,
        "kvConfigPath": f"{directory}/namesrv/kvConfig.json",
        "configStorePath": f"{directory}/namesrv/namesrv.properties",
    }


def broker_settings(
    directory: Path, name: str, port: int, vip_port: int, namesrv: str
) -> dict[str, str]:
    """What a broker is told beside SETTINGS."""
    return {
        "brokerName": name,
        "listenPort": str(port),
        "fastListenPort": str(vip_port),
        "namesrvAddr": namesrv,
        "storePathRootDir": f"{directory}/store",
        "storePathCommitLog": f"{directory}/store/commitlog",
        "haListenPort": str(free_port()),
    }


def command(directory: Path, *options: str, classes: Sequence[Path] = ()) -> list[str]:
    """Java up to the program; `classes`: folders behind the jars. The broker unpacks its native library below the directory, where
    it goes with the rest if the process is killed."""
    unpacked = directory / "tmp"
    unpacked.mkdir(parents=True, exist_ok=True)
    return [
        str(java_program()),
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-Xss512k",
        "-XX:-UsePerfData",
        *shared_classes("rocketmq"),
        *options,
        f"-Duser.home={directory}",
        f"-Djava.io.tmpdir={unpacked}",
        "-Drocketmq.log.level=WARN",
        "-cp",
        os.pathsep.join([*jars(), *map(str, classes)]),
    ]


def environment(directory: Path) -> dict[str, str]:
    return {**os.environ, "ROCKETMQ_HOME": str(directory)}


def write_settings(path: Path, settings: Mapping[str, str]) -> Path:
    """Anew at each start: the broker rewrites its own. Private: it may hold a password."""
    write_private(path, "".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


def _require_space(directory: Path) -> None:
    """As the broker itself reckons it. LocalServerError: it would start, and accept nothing."""
    _, used, free = disk_usage(directory)
    if used > FULL_AT * (used + free):
        raise LocalServerError(
            f"The disk of {directory} is {100 * used / (used + free):.0f} % full, and RocketMQ accepts no message on a disk that is "
            f"more than {100 * FULL_AT:.0f} % full.",
            unaffected="Nothing was started.",
            next_step="Free some of it, or choose a folder on another disk, then try again.",
        )


def _refused(what: str) -> LocalServerError:
    return LocalServerError(f"{what}.", unaffected="It was not changed.", next_step="Read its log.")
