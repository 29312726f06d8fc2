"""Run Apache RocketMQ from its jars as our own children: a name server and a broker, on the loopback, over one folder.

An open port is not a registered broker (in half of the cold starts it registers ten seconds later), so a start ends when the name
server gives the route. Names here are RocketMQ's own; the adapter's encoding is not the harness's business.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import pytest

from backstop_lab.servers.child import Child
from backstop_lab.servers.fetch_rocketmq import HOME, installed
from backstop_lab.servers.ports import LOOPBACK, free_port, is_taken
from backstop_lab.servers.rocketmq import (
    BROKER,
    BROKER_MEMORY,
    CLUSTER,
    NAMES,
    NAMES_MEMORY,
    NO_REPLICAS,
    OPENED,
    SERVICES,
    START_SECONDS,
    WITHOUT_TLS,
    broker_settings,
    command,
    environment,
    names_settings,
    write_settings,
)
from backstop_lab.servers.rocketmq import SETTINGS as LOCAL_SETTINGS
from compile_java import compiled
from rocketmq_admin import Answer, Refused, ask
from rocketmq_tls import write_certificates
from stand_still import stand_still

LOGIN = ("backstop", "s3cret-of/Backstop@never:shown")
"""Who may do everything on a server with access control."""
_JAVA = Path(__file__).parents[1] / "java" / "rocketmq"
OF_THE_SERVER = (NO_REPLICAS, _JAVA / "LoopbackProxy.java")
"""What keeps each of its ports on the loopback."""
SETTINGS = {
    **LOCAL_SETTINGS,
    "reviveScanTime": "1000",
    "popFromRetryProbability": "100",
    "messageDelayLevel": "1s 1s 1s 2s 2s 5s 10s 30s 1m 2m 5m 10m 20m 30m 1h 2h 3h 4h",
}
"""Small, patient on a busy machine, and quick to deliver again; the delays from the sixth level on grow as the server's do."""
LOSES_WHEN_KILLED = {
    "transientStorePoolEnable": "true",
    "transientStorePoolSize": "3",
    "mappedFileSizeCommitLog": "16777216",
    "commitIntervalCommitLog": "2000",
    "commitCommitLogLeastPages": "4096",
    "commitCommitLogThoroughInterval": "2000",
}
"""Asynchronous flush that really loses what was acknowledged last: the pages of a plain one outlive the process."""
RETENTION_AT_ONCE = {
    "fileReservedTime": "0",
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "20000",
    "cleanResourceInterval": "200",
    "deletePhysicFilesInterval": "1",
    "deleteConsumeQueueFilesInterval": "1",
    "maxMessageSize": "262144",
    "deleteWhen": "00;01;02;03;04;05;06;07;08;09;10;11;12;13;14;15;16;17;18;19;20;21;22;23",
}
"""Whole files of 1 MiB are removed as soon as they are full, from the broker's second minute on, when its cleaner begins."""


class RocketMQ:
    """One name server and one master. `settings` are the broker's own, over SETTINGS."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "broker-a",
        joins: RocketMQ | None = None,
        acl: bool = False,
        tls: bool = False,
        proxy: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`joins`: a server whose name server this broker registers at, beside that one's own broker. `tls`: a certificate of an
        authority at `ca`; without it the server takes no TLS. `proxy`: with the gRPC proxy in the broker's process."""
        if not installed():
            pytest.fail(
                f"RocketMQ is not at {HOME}, and these tests need a real one: make rocketmq",
                pytrace=False,
            )
        self.base, self.name, self._joins = directory.resolve(), name, joins
        self.port, self._vip_port = free_port(), free_port()
        self.grpc_port = free_port() if proxy else None
        self.namesrv_port = joins.namesrv_port if joins else free_port()
        self.login = LOGIN if acl else None
        self.settings = {**SETTINGS, **(settings or {})}
        self.tls = tls
        self.base.mkdir(parents=True, exist_ok=True)
        self._names = Child("RocketMQ's name server", self.base / "namesrv.log")
        self._broker = Child("RocketMQ's broker", self.base / "broker.log")

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
        return self._broker.running and (self._joins is not None or self._names.running)

    @property
    def namesrv(self) -> str:
        return f"{LOOPBACK}:{self.namesrv_port}"

    @property
    def address(self) -> str:
        """The master's, as the routes name it."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The broker's."""
        return self._broker.pid

    @property
    def namesrv_pid(self) -> int | None:
        return self._names.pid

    @property
    def ca(self) -> Path:
        return self.base / "tls" / "ca.pem"

    def url(
        self,
        access: str | None = None,
        secret: str | None = None,
        *,
        port: int | None = None,
        tls: bool | None = None,
    ) -> str:
        """The connection as backstop.yaml's reference names it; `port`: of the name server."""
        if access is None and self.login is not None:
            access, secret = self.login
        login = (
            f"{quote(access, safe='')}:{quote(secret or '', safe='')}@"
            if access is not None
            else ""
        )
        more = f"?tls=true&ca={quote(str(self.ca))}" if (self.tls if tls is None else tls) else ""
        return f"rocketmq://{login}{LOOPBACK}:{port or self.namesrv_port}{more}"

    # -- life ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts what does not run, over what an earlier life left; returns when the name server gives the broker's route."""
        if self._joins is None and not self._names.running:
            self._launch_namesrv()
        if not self._broker.running:
            self._launch_broker()
        try:
            self._broker.wait_until(self._ready, START_SECONDS)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """`kill -9` of both."""
        self._broker.kill()
        self._names.kill()

    def kill_broker(self) -> None:
        self._broker.kill()

    def kill_namesrv(self) -> None:
        self._names.kill()

    def restart_namesrv(self) -> None:
        """The name server forgets all routes, and the broker tells them again."""
        self._names.kill()
        self._launch_namesrv()
        self._names.wait_until(self._registered, START_SECONDS)

    def stall(self, *, namesrv: bool = True) -> None:
        """The server takes connections and bytes, and does nothing."""
        for child in (self._broker, *([self._names] if namesrv else [])):
            if child.pid is not None:
                stand_still(child.pid)

    def wake(self) -> None:
        self._broker.send(signal.SIGCONT)
        self._names.send(signal.SIGCONT)

    # -- administration, past the adapter --------------------------------------------------------------------

    def ask(
        self,
        code: int,
        ext: dict[str, Any] | None = None,
        body: bytes = b"",
        *,
        ok: tuple[int, ...] = (0,),
    ) -> Answer:
        """One request to the broker."""
        return ask(self.port, code, ext, body, ok=ok, login=self.login)

    def ask_namesrv(
        self, code: int, ext: dict[str, Any] | None = None, *, ok: tuple[int, ...] = (0,)
    ) -> Answer:
        return ask(self.namesrv_port, code, ext, ok=ok)

    def create_topic(self, topic: str, queues: int = 4, *, kind: str = "", perm: int = 6) -> None:
        """`kind`: NORMAL, FIFO, DELAY, TRANSACTION; only the gRPC proxy looks at it."""
        self.ask(
            17,
            {
                "topic": topic,
                "defaultTopic": "TBW102",
                "readQueueNums": queues,
                "writeQueueNums": queues,
                "perm": perm,
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0,
                "order": False,
                "attributes": f"+message.type={kind}" if kind else "",
            },
        )
        self.until(f"the route of {topic}", lambda: self.name in self.brokers_of(topic))

    def delete_topic(self, topic: str) -> None:
        self.ask(215, {"topic": topic})
        self.ask_namesrv(216, {"topic": topic, "clusterName": CLUSTER})

    def create_group(
        self, group: str, *, retry_max: int = 16, ordered: bool = False, from_first: bool = True
    ) -> None:
        body = json.dumps(
            {
                "groupName": group,
                "consumeEnable": True,
                "consumeFromMinEnable": from_first,
                "consumeBroadcastEnable": False,
                "consumeMessageOrderly": ordered,
                "retryQueueNums": 1,
                "retryMaxTimes": retry_max,
                "brokerId": 0,
                "whichBrokerWhenConsumeSlowly": 1,
                "notifyConsumerIdsChangedEnable": True,
            }
        ).encode()
        self.ask(200, body=body)

    def create_user(self, name: str, password: str, allowed: Mapping[str, Sequence[str]]) -> None:
        """With access control: a user and its rights, as {"Topic:orders": ["Pub", "Sub", "Get"], "Group:*": ["Sub"]}."""
        self.ask(
            3001,
            {"username": name},
            json.dumps({"username": name, "password": password, "userType": "Normal"}).encode(),
        )
        policies = [
            {
                "policyType": "Custom",
                "entries": [
                    {"resource": resource, "actions": list(actions), "decision": "Allow"}
                    for resource, actions in allowed.items()
                ],
            }
        ]
        subject = f"User:{name}"
        self.ask(
            3006,
            {"subject": subject},
            json.dumps({"subject": subject, "policies": policies}).encode(),
        )

    def knows(self, topic: str) -> bool:
        return bool(self.brokers_of(topic))

    def brokers_of(self, topic: str) -> dict[str, str]:
        """broker name -> master, of the topic's route; empty: the name server knows no such topic."""
        found = self.ask_namesrv(105, {"topic": topic, "acceptStandardJsonOnly": True}, ok=(0, 17))
        if found.code == 17:
            return {}
        return {
            one["brokerName"]: one["brokerAddrs"]["0"]
            for one in json.loads(found.body)["brokerDatas"]
            if "0" in one["brokerAddrs"]
        }

    def until(self, what: str, holds: Callable[[], Any], seconds: float = START_SECONDS) -> Any:
        """Waits for a condition; returns what it said."""
        deadline = time.monotonic() + seconds
        while not (found := holds()):
            assert time.monotonic() < deadline, f"{what} did not come within {seconds:.0f} s"
            time.sleep(0.05)
        return found

    def configure(self, **settings: object) -> None:
        """Changes settings of the running broker."""
        self.ask(25, body="".join(f"{name}={value}\n" for name, value in settings.items()).encode())

    def register_now(self) -> None:
        self.configure(brokerPermission=6)

    def delete_expired_files(self) -> None:
        """What the hour of `deleteWhen` does; with RETENTION_AT_ONCE all full files go."""
        self.ask(329)

    # -- the parts -------------------------------------------------------------------------------------------

    def _registered(self) -> bool:
        try:
            self.register_now()
            return self.brokers_of(self.name).get(self.name) == self.address
        except (OSError, Refused):
            return False  # not up yet; the caller knows the deadline and whether the process lives

    def _ready(self) -> bool:
        # In its first second it cannot tell about itself, and then it is of no use to a look.
        return (
            self._registered()
            and self.ask(28, ok=(0, 1)).code == 0
            and (self.grpc_port is None or is_taken(self.grpc_port))
        )

    def _launch_namesrv(self) -> None:
        written = write_settings(
            self.base / "namesrv.conf", names_settings(self.base, self.namesrv_port)
        )
        line = [*self._java(*NAMES_MEMORY), NAMES, "-c", str(written)]
        self._names.start(line, env=environment(self.base), cwd=self.base)

    def _launch_broker(self) -> None:
        settings = {
            **self.settings,
            **broker_settings(self.base, self.name, self.port, self._vip_port, self.namesrv),
        }
        if self.login is not None:
            access, secret = self.login
            settings |= {
                "authenticationEnabled": "true",
                "authorizationEnabled": "true",
                "authenticationProvider": "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider",
                "authenticationMetadataProvider": "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider",
                "authorizationProvider": "org.apache.rocketmq.auth.authorization.provider.DefaultAuthorizationProvider",
                "authorizationMetadataProvider": "org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider",
                "initAuthenticationUser": json.dumps({"username": access, "password": secret}),
                "innerClientAuthenticationCredentials": json.dumps(
                    {"accessKey": access, "secretKey": secret}
                ),
            }
        written = write_settings(self.base / "broker.conf", settings)
        java = self._java(*BROKER_MEMORY, *OPENED, classes=[compiled(OF_THE_SERVER, SERVICES)])
        program = [BROKER, "-c", str(written)]
        if self.grpc_port is not None:
            proxy = self.base / "proxy.json"
            proxy.write_text(
                json.dumps(
                    {
                        "rocketMQClusterName": CLUSTER,
                        "namesrvAddr": self.namesrv,
                        "localServeAddr": LOOPBACK,
                        "grpcServerPort": self.grpc_port,
                        "grpcThreadPoolNums": 4,
                        "grpcThreadPoolQueueCapacity": 1000,
                        "minInvisibleTimeMillsForRecv": 1000,
                        "enableProxyAutoRenew": False,
                    }
                )
            )
            program = [
                "org.apache.rocketmq.proxy.LoopbackProxy",
                "-pm",
                "local",
                "-n",
                self.namesrv,
                "-bc",
                str(written),
                "-pc",
                str(proxy),
            ]
        self._broker.start([*java, *program], env=environment(self.base), cwd=self.base)

    def _java(self, *options: str, classes: Sequence[Path] = ()) -> list[str]:
        tls = (
            [f"-Dtls.config.file={self._tls_settings()}", "-Dtls.test.mode.enable=false"]
            if self.tls
            else [WITHOUT_TLS]
        )
        return command(self.base, *options, *tls, classes=classes)

    def _tls_settings(self) -> Path:
        certificate, key = write_certificates(self.base / "tls")
        return write_settings(
            self.base / "tls.properties",
            {
                "tls.test.mode.enable": "false",
                "tls.server.mode": "permissive",
                "tls.server.need.client.auth": "none",
                "tls.server.certPath": str(certificate),
                "tls.server.keyPath": str(key),
            },
        )
