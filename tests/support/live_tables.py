"""Spring Modulith and Eventuate Tram themselves: one JVM each, which makes the library's tables and writes in them as it does.

See ModulithShop.java and EventuateShop.java for what each order does. Here stands what they have in common for a test.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import psycopg2

import backstop_lab.servers
from activemq_world import until
from backstop.config.mapped import StubMapping
from backstop.model.records import Message, Outcome
from backstop.stores.mapped.overlay import overlay_sql
from backstop_lab.servers.compile_java import compiled
from backstop_lab.servers.fetch_from_maven import Wanted
from backstop_lab.servers.fetch_message_tables import EVENTUATE_TRAM, SPRING_MODULITH
from backstop_lab.servers.java import java
from backstop_lab.servers.ports import LOOPBACK
from backstop_lab.servers.postgres import Postgres
from backstop_lab.setup import KEPT
from mapped_library import Library
from mapped_world import Mapped, connect_mariadb, make_mapped
from mariadb import PASSWORD, MariaDB
from rearm_world import Repaired, run_as_dba
from system import System

ANSWER_SECONDS = 300.0
LISTENERS = {
    "module-listener": "EventExternalizerModuleListener",
    "delegating": "DelegatingEventExternalizer",
}
"""How an application of Modulith declares its broker -> the class in the listener_id of what it sends: since 2.1, and before."""
ON_MODULITH = {
    ("modulith", "postgresql"): "module-listener",
    ("modulith", "mariadb"): "delegating",
    ("modulith_archive", "postgresql"): "delegating",
    ("modulith_archive", "mariadb"): "module-listener",
    ("modulith_version_1", "postgresql"): "module-listener",
    ("modulith_version_1", "mariadb"): "delegating",
}
PRESETS = {"modulith_version_1": "modulith"}
"""Forms of a library's tables that share a preset -> the preset."""
LIVE = (*ON_MODULITH, ("eventuate", "postgresql"), ("eventuate", "mariadb"))
"""(form, server) of each live library; a form is a preset, or one of PRESETS."""
REARMED_LIVE = (
    ("modulith", "postgresql"),
    ("modulith_version_1", "postgresql"),
    ("eventuate", "postgresql"),
)
"""Those whose rows can be set back."""


class JavaShop:
    """One JVM with a library and our program beside it, which carries out one order a line."""

    def __init__(self, library: Wanted, main: str, folder: Path) -> None:
        assert library.is_there(), (
            f"{library.name} is not at {library.home}: run `make message-tables`"
        )
        folder.mkdir(parents=True, exist_ok=True)
        source = Path(backstop_lab.servers.__path__[0]) / f"{main}.java"
        jars = sorted(str(jar) for jar in library.home.glob("*.jar"))
        [driver] = (KEPT / "jars").glob("postgresql-*.jar")
        classes = compiled([source], libraries=jars)
        self._log = folder / "stderr.log"
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [
                    str(java()),
                    "-Xmx256M",
                    "-XX:TieredStopAtLevel=1",
                    "-XX:+UseSerialGC",
                    f"-Djava.io.tmpdir={folder}",
                    "-cp",
                    os.pathsep.join([*jars, str(driver), str(classes)]),
                    f"org.example.{main}",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def ask(self, *order: str) -> list[str]:
        """Carries out one order, and returns the words of its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        late = threading.Timer(ANSWER_SECONDS, self._process.kill)
        late.start()
        try:
            self._process.stdin.write(" ".join(order) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline().split()
        finally:
            late.cancel()
        assert answer[:1] == ["done"], f"{order[0]}: {answer}\n{self._log.read_text()[-3000:]}"
        return answer[1:]


def modulith(folder: Path) -> JavaShop:
    return JavaShop(SPRING_MODULITH, "ModulithShop", folder)


def eventuate(folder: Path) -> JavaShop:
    return JavaShop(EVENTUATE_TRAM, "EventuateShop", folder)


class Live(Repaired):
    """See Repaired; the library itself writes, sends and takes note of what was received."""

    java: JavaShop

    def a_minute_later(self) -> None:
        if self.level == "observe":
            Mapped.a_minute_later(self)  # there is no overlay
        else:
            super().a_minute_later()

    def _publish(self, sent: list[str], *, lose: bool) -> None:
        for message_id in sent:
            if not lose:
                (receipt,) = self.system.broker.publish([Message("orders", message_id, b"{}")])
                assert receipt.outcome is Outcome.SENT


class LiveModulith(Live):
    """The registry of Spring Modulith; the broker answers when the test says so."""

    def promise(self) -> str:
        self.numbers += 1
        self.java.ask("place", self.database, f"order-{self.numbers}")
        return f"order-{self.numbers}"

    def roll_back(self) -> str:
        self.java.ask("roll-back", self.database, "order-99")
        return "order-99"

    def send(self, message_id: str) -> str:
        self.java.ask("answer", self.database, message_id)
        self._until_complete("OrderPlaced", message_id)
        return message_id

    def receive(self, message_id: str, *, done: bool = True) -> str:
        assert done, "a listener of Modulith is done, or not yet"
        self.java.ask("receive", self.database, message_id)
        self._until_complete("OrderReceived", message_id)
        return message_id

    def relay(self, *, lose: bool = False) -> list[str]:
        """Its incomplete publications are submitted again, as by a scheduled job."""
        self.java.ask("sent", self.database)
        # Version 1 of its tables has no status: whatever is incomplete is submitted again, also what is under way.
        has_status = "status" in self.producer.rearm
        waits = "status = 'FAILED'" if has_status else "completion_date IS NULL"
        due_again = f"SELECT count(*) FROM event_publication WHERE {waits}"
        ((due,),) = self.run(due_again)
        self.java.ask("resubmit", self.database)
        sent: list[str] = []

        def all_sent() -> bool:
            sent.extend(self.java.ask("sent", self.database))
            return len(sent) >= due and (not has_status or self.run(due_again) == [(0,)])

        until("what was submitted again is sent", all_sent, ANSWER_SECONDS)
        self._publish(sent, lose=lose)
        for message_id in sent:
            self.send(message_id)
        return sent

    @property
    def producer(self) -> StubMapping:
        mapping = self.system.settings.producers["shop"].mapping
        assert mapping is not None
        return mapping

    def _until_complete(self, event: str, message_id: str) -> None:
        said = (
            "SELECT count(*) FROM {table} WHERE event_type = %(event)s AND serialized_event LIKE %(id)s"
            " AND completion_date IS NOT NULL"
        )
        tables = ["event_publication"]
        if self.preset == "modulith_archive":
            tables.append("event_publication_archive")
        on_mariadb = isinstance(self.owner, MariaDB)
        asked = [said.replace("{table}", name.upper() if on_mariadb else name) for name in tables]
        values = {"event": f"org.example.{event}", "id": f'%"{message_id}"%'}
        until(
            f"{event} {message_id} is complete",
            lambda: any(self.run(one, **values) != [(0,)] for one in asked),
            ANSWER_SECONDS,
        )


class LiveEventuate(Live):
    """The producer, the polling relay and the duplicate detection of Eventuate Tram."""

    def promise(self) -> str:
        (message_id,) = self.java.ask("place", self.database)
        return message_id

    def roll_back(self) -> str:
        (message_id,) = self.java.ask("roll-back", self.database)
        return message_id

    def send(self, message_id: str) -> str:
        assert message_id in self.java.ask("relay", self.database)
        return message_id

    def receive(self, message_id: str, *, done: bool = True) -> str:
        assert done, "its row and the work are one transaction"
        self.java.ask("receive", self.database, message_id)
        return message_id

    def relay(self, *, lose: bool = False) -> list[str]:
        sent = self.java.ask("relay", self.database)
        self._publish(sent, lose=lose)
        return sent


def live_library(form: str, server: Postgres | MariaDB, java: JavaShop) -> Library:
    """How the library makes its tables there, and the mappings, as docs/how-to/existing-tables.md writes them."""
    preset = PRESETS.get(form, form)
    on_mariadb = isinstance(server, MariaDB)
    dialect = {"dialect": "mysql"} if on_mariadb else {}
    if preset == "eventuate":
        producer: Mapping[str, Any] = {"topics": ["orders"]}
        consumer: Mapping[str, Any] = {"groups": {"billing": "billing-consumer"}}
    else:
        transport = ON_MODULITH[form, "mariadb" if on_mariadb else "postgresql"]
        listener = f"org.springframework.modulith.events.support.{LISTENERS[transport]}"
        producer = {
            "only": {"listener_id": f"{listener}.externalize(java.lang.Object)"},
            "message_id": "serialized_event.orderId",
            "topics": {"org.example.OrderPlaced": "orders"},
        }
        consumer = {
            "message_id": "serialized_event.orderId",
            "topics": {"org.example.OrderReceived": "orders"},
            "groups": {"billing": "org.example.Billing.on(org.example.OrderReceived)"},
        }
        if form == "modulith_version_1":
            producer["rearm"] = {"completion_date": None}
    return Library(
        tables=_makes_tables(form, server, java),
        producer={"preset": preset, **dialect, **producer},
        consumer={"preset": preset, **dialect, **consumer},
        promise="",
        send="",
        receive="",
        finish="",
        server="mariadb" if on_mariadb else "postgresql",
    )


def _makes_tables(form: str, server: Postgres | MariaDB, java: JavaShop) -> Callable[[str], None]:
    def make(database: str) -> None:
        preset = PRESETS.get(form, form)
        schema = "eventuate" if preset == "eventuate" else database
        if isinstance(server, MariaDB):
            if preset == "eventuate":
                with closing(connect_mariadb(server, database)) as made, made.cursor() as cursor:
                    cursor.execute("CREATE DATABASE eventuate CHARACTER SET utf8mb4")
            url = f"jdbc:mariadb://{LOOPBACK}:{server.port}/{schema}"
            login = ["admin", PASSWORD]
        else:
            owner = urlsplit(server.admin_dsn(database))
            assert owner.username and owner.password
            login = [unquote(owner.username), unquote(owner.password)]
            url = f"jdbc:postgresql://{LOOPBACK}:{server.port}/{database}"
            if preset == "eventuate":
                with closing(psycopg2.connect(server.admin_dsn(database))) as connection:
                    connection.autocommit = True
                    connection.cursor().execute("CREATE SCHEMA eventuate")
                url += "?currentSchema=eventuate"
        kinds = {"modulith": ["update"], "modulith_archive": ["archive"]}.get(preset, [])
        if kinds:
            on = "mariadb" if isinstance(server, MariaDB) else "postgresql"
            kinds += [ON_MODULITH[form, on], "2" if form == preset else "1"]
        java.ask("open", database, url, *login, *kinds)

    return make


def make_live(
    server: Postgres | MariaDB, running: System, library: Library, java: JavaShop
) -> Live:
    """As make_mapped; at level rearm with the overlay that a DBA makes."""
    made = make_mapped(server, running, library)
    shop = running.settings.producers["shop"]
    if shop.level != "observe":
        assert shop.mapping is not None
        run_as_dba(made, overlay_sql(shop.mapping, shop.level, made.database))
    kind = LiveEventuate if library.producer["preset"] == "eventuate" else LiveModulith
    live = kind(running, library, made.database, made.owner)
    live.java, live.level = java, shop.level
    return live
