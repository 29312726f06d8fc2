"""One embedded system over one folder: PostgreSQL with its databases, a broker (Valkey), a Valkey for leases, Airflow; and
MariaDB, if producers and consumers have their databases there.

Ports and passwords are kept in `state.json` (0600), so that stopping and starting again loses nothing. Run
as a module it is `make up`, `make down`, `make status` and `make shell`.
"""

import fcntl
import json
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from backstop.model.errors import ConfigurationError
from backstop.model.private_file import write_private
from backstop_lab.broker_kinds import EMBEDDED, KINDS
from backstop_lab.servers.airflow import Airflow
from backstop_lab.servers.broker_server import BrokerServer
from backstop_lab.servers.mariadb import MariaDB
from backstop_lab.servers.ports import LOOPBACK, free_port, is_taken
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey

PROJECT = Path(__file__).resolve().parents[2]
DEFAULT_ROOT = PROJECT / "build" / "platform"
AIRFLOW_DATABASE = "airflow"
STORES = ("producer_a", "producer_b", "consumer_billing", "consumer_shipping")
"""Databases of producers and consumers."""
BACKSTOP_DATABASES = ("control", *STORES)
SERVERS = ("postgres", "valkey", "leases", "airflow", "mariadb")
POSTGRESQL, MARIADB = "postgresql", "mariadb"
"""Kinds of backstop.yaml: the server that has the databases of producers and consumers."""


def prepare(platform: "Platform") -> None:
    """Make the running databases ready for Backstop, before Airflow starts: schemas, roles, the broker's
    groups.

    Called at every start, so what it does must be safe to do twice.
    """
    from backstop.config.load import load
    from backstop.schema.prepare import prepare as make_ready

    make_ready(load(platform.config), platform.connections())


@dataclass
class State:
    """What must be the same at the next start: a port for each server, a password for each database's
    owner."""

    ports: dict[str, int] = field(default_factory=dict)
    passwords: dict[str, str] = field(default_factory=dict)
    broker: str = EMBEDDED
    stores: str = POSTGRESQL

    @classmethod
    def load(cls, path: Path) -> "State":
        state = cls(**json.loads(path.read_text())) if path.exists() else cls()
        for server in SERVERS:
            if state.ports.get(server) is None:
                state.ports[server] = free_port()
        for database in (AIRFLOW_DATABASE, *BACKSTOP_DATABASES):
            state.passwords.setdefault(database, secrets.token_urlsafe(24))
        return state

    def save(self, path: Path) -> None:
        write_private(path, json.dumps(asdict(self), indent=2))


class Platform:
    """One embedded system; `start` it, or use it as a context manager (which starts everything, Airflow too).

    `root` holds all its data. `config` is the backstop.yaml that every process of it reads. Only one
    process may
    run a platform over a root: a second `start` raises ConfigurationError. `broker` is a kind of backstop.yaml; None: the one
    that the root has, or the embedded one; `stores`, POSTGRESQL or MARIADB, likewise. `airflow_settings` go into the environment
    of Airflow's processes.
    """

    def __init__(
        self,
        root: Path,
        config: Path | None = None,
        broker: str | None = None,
        *,
        stores: str | None = None,
        airflow_settings: Mapping[str, str] | None = None,
        parallelism: int = 4,
        triggerer: bool = False,
    ) -> None:
        self.root = root.resolve()
        self.config = (config or PROJECT / "backstop.yaml").resolve()
        self.root.mkdir(parents=True, exist_ok=True)
        self._turn: IO[str] | None = None
        self._asked, self._asked_stores = broker, stores
        self._airflow_settings, self._parallelism = dict(airflow_settings or {}), parallelism
        self._triggerer = triggerer
        self._load()

    def _load(self) -> None:
        self._state = State.load(self.root / "state.json")
        ports = self._state.ports
        self.postgres = Postgres(self.root / "postgres", ports["postgres"])
        self.stores = self._state.stores = self._asked_stores or self._state.stores
        self.mariadb = (
            MariaDB(self.root / "mariadb", ports["mariadb"]) if self.stores == MARIADB else None
        )
        self.broker_kind = self._state.broker = self._asked or self._state.broker
        self.broker: BrokerServer = KINDS[self.broker_kind].make_server(self.root, ports["valkey"])
        # Apart from the broker, because it may be flushed at any time: the database knows everything that it knows.
        self.leases = Valkey(self.root / "leases", ports["leases"], durable=False)
        self.airflow = Airflow(
            self.root / "airflow",
            PROJECT / "dags",
            PROJECT / "plugins",
            self.dsn(AIRFLOW_DATABASE),
            self._airflow_settings,
            ports["airflow"],
            parallelism=self._parallelism,
            triggerer=self._triggerer,
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, *, airflow: bool = True, say: Callable[[str], None] = lambda _: None) -> None:
        """Servers, databases and owners, `prepare`, then Airflow; on an error everything is stopped again.

        `say` is called with what starts next.
        """
        self._take_turn()
        try:
            self.end_leftovers()
            self._move_from_taken_ports()
            self._state.save(self.root / "state.json")
            for server in self.database_servers():
                say(server.name)
                server.start()
            for database, password in self._state.passwords.items():
                self.server_of(database).make_database(database, password)
            say(f"{self.broker.name}, and the Valkey of the leases")
            self.broker.start()
            self.leases.start()
            say("schemas, topics and groups")
            prepare(self)
            if airflow:
                say("Airflow")
                self.airflow.env.update(self.environment())
                self.airflow.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop in the order in which they use one another; nothing is deleted."""
        try:
            self.airflow.stop()
            self.leases.stop()
            self.broker.stop()
            for server in self.database_servers():
                server.stop()
        finally:
            if self._turn is not None:
                self._turn.close()  # the lock goes with it
                self._turn = None

    @property
    def turn_file(self) -> Path:
        """Locked while a platform over this root runs; holds the process id of who runs it."""
        return self.root / "supervisor.pid"

    def connections(self) -> dict[str, str]:
        """Connection id -> URI: postgresql:// or mysql:// for the databases, the broker's and the leases' own.
        They hold passwords."""
        databases = {f"backstop_{name}": self.dsn(name) for name in BACKSTOP_DATABASES}
        return {
            **databases,
            "backstop_broker": self.broker.url(),
            "backstop_leases": self.leases.url(),
        }

    def dsn(self, database: str) -> str:
        """The URI of one database as its owner."""
        return self.server_of(database).dsn(database, self._state.passwords[database], database)

    def server_of(self, database: str) -> Postgres | MariaDB:
        """The server that has a database."""
        return self.mariadb if self.mariadb is not None and database in STORES else self.postgres

    def database_servers(self) -> list[Postgres | MariaDB]:
        """All that this platform runs."""
        return [self.postgres, *([self.mariadb] if self.mariadb is not None else [])]

    def environment(self) -> dict[str, str]:
        """What every process that works for this platform needs: connections in Airflow's form, Spark, our
        settings."""
        bin_folder = Path(sys.executable).parent
        environment = {
            "BACKSTOP_CONFIG": str(self.config),
            "PYTHONPATH": str(PROJECT / "include"),
            # `spark-submit` must be this environment's, and its workers must take this interpreter.
            "PATH": f"{bin_folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": LOOPBACK,
            # Jobs of seconds on a small machine: the second compiler and a parallel collector cost more than they give
            # (measured on 2 cores: 14 instead of 29 CPU seconds for a first run over a few stubs).
            "SPARK_SUBMIT_OPTS": " ".join(
                ("-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", *shared_classes())
            ),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(
                {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}
            ),
            "AIRFLOW_CONN_BACKSTOP_BROKER": self.broker.for_airflow(),
            "AIRFLOW_CONN_BACKSTOP_LEASES": self.leases.for_airflow(),
        }
        for name in BACKSTOP_DATABASES:
            environment[f"AIRFLOW_CONN_BACKSTOP_{name.upper()}"] = json.dumps(
                self._database_connection(name)
            )
        java_home = PROJECT / ".local" / "java_home"
        if java_home.exists():
            environment["JAVA_HOME"] = java_home.read_text().strip()
        return environment

    def clear(self) -> None:
        """Ends servers that a killed supervisor left over this root; ConfigurationError while one is alive."""
        self._take_turn()
        try:
            self.end_leftovers()
        finally:
            self.stop()

    def end_leftovers(self) -> None:
        """End servers over this root that outlived their supervisor. Call it only when no supervisor is
        alive."""
        for server in (self.airflow, self.leases, self.broker, *self.database_servers()):
            server.end_leftovers()

    def _database_connection(self, name: str) -> dict[str, Any]:
        return {
            "conn_type": "postgres" if self.server_of(name) is self.postgres else "mysql",
            "host": LOOPBACK,
            "port": self.server_of(name).port,
            "schema": name,
            "login": name,
            "password": self._state.passwords[name],
        }

    def _take_turn(self) -> None:
        turn = self.turn_file.open("a+")
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            turn.close()
            raise ConfigurationError(
                f"A platform over {self.root} is already running.",
                unaffected="It was not disturbed.",
                next_step="Use it, or stop it with `make down`.",
            ) from None
        turn.truncate(0)
        turn.write(str(os.getpid()))
        turn.flush()
        self._turn = turn

    def _move_from_taken_ports(self) -> None:
        """Another program may have taken a port while we were down; whoever asks later gets the new one."""
        taken = [server for server in SERVERS if is_taken(self._state.ports[server])]
        for server in taken:
            self._state.ports[server] = free_port()
        if taken:
            self._state.save(self.root / "state.json")
            self._load()


def shared_classes() -> tuple[str, ...]:
    """Java options that take Spark's classes from the archive that set-up has made; none when there is no archive.

    One that does not fit (another Java, other jars) is left aside by Java itself, without a word. Spark splits its options at
    spaces, so that a path with one cannot be passed on.
    """
    archive = PROJECT / ".local" / "spark.jsa"
    if not archive.exists() or " " in str(archive):
        return ()
    return f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"
