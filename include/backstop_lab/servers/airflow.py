"""Run Airflow as children of ours: api-server, scheduler, dag-processor, perhaps a triggerer, on the embedded PostgreSQL.

`airflow standalone` is slower, larger, and leaves its children behind when it is ended.
"""

import base64
import json
import os
import secrets
import signal
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg2

from backstop.model.private_file import write_private
from backstop_lab.servers.airflow_api import AirflowApi
from backstop_lab.servers.child import Child, LocalServerError, end_leftover
from backstop_lab.servers.ports import LOOPBACK, free_port

ADMIN = "admin"
START_SECONDS = 600.0
"""Half a minute on two idle cores; a machine that is busy with other work is no reason to give up."""
ASK_SECONDS = 0.25
"""Between two questions whether it is ready: the api-server answers each with the core that the others need to start."""
STOP_SECONDS = 15.0
MIGRATE_SECONDS = 300.0


class Airflow:
    """One Airflow over one home folder, which gets its secrets (0600), `logs/` and the login.

    `database_url` is a `postgresql://` URI of a database of its own; `env` goes to every
    process (connections, BACKSTOP_CONFIG, ...). `triggerer`: without it nobody looks for due work, and duties run on their schedules alone.
    """

    def __init__(
        self,
        home: Path,
        dags_folder: Path,
        plugins_folder: Path,
        database_url: str,
        env: Mapping[str, str],
        port: int | None = None,
        *,
        parallelism: int = 4,
        triggerer: bool = False,
    ) -> None:
        self.home = home.resolve()
        self.port = port if port is not None else free_port()
        self.url = f"http://{LOOPBACK}:{self.port}"
        self._dags_folder = dags_folder.resolve()
        self._plugins_folder = plugins_folder.resolve()
        self._database_url = database_url
        self.env = dict(env)
        self._parallelism = parallelism
        self.users = {ADMIN: "admin"}
        """Login name -> role of Airflow's simple auth manager; set before `start`."""
        self._api: AirflowApi | None = None
        commands = {**COMMANDS, "triggerer": TRIGGERER} if triggerer else COMMANDS
        self._commands = commands
        self._children = {
            name: Child(f"Airflow's {name}", self.home / f"{name}.log") for name in commands
        }

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

    @property
    def password(self) -> str:
        """The generated password of the user `admin`."""
        return str(json.loads((self.home / "passwords.json").read_text())[ADMIN])

    @property
    def api(self) -> AirflowApi:
        """The REST client, logged in as `admin`."""
        if self._api is None:
            self._api = AirflowApi(self.url, ADMIN, self.password)
        return self._api

    def api_of(self, user: str) -> AirflowApi:
        """The REST client, logged in as another of `users`."""
        return AirflowApi(
            self.url, user, str(json.loads((self.home / "passwords.json").read_text())[user])
        )

    @property
    def running(self) -> bool:
        """Whether all processes live."""
        return all(child.running for child in self._children.values())

    @property
    def ready(self) -> bool:
        """Whether all processes run and report healthy."""
        components = [
            "metadatabase",
            "scheduler",
            "dag_processor",
            *(["triggerer"] if "triggerer" in self._commands else []),
        ]
        return self.running and AirflowApi(self.url, ADMIN, "").healthy(*components)

    def waits_for_an_answer(self, dag: str, run: str, task: str, try_number: int) -> bool:
        """Whether the scheduler has heard that this try has asked and left its worker: Airflow loses an answer that comes before,
        and asks again."""
        about = f"TaskInstance Finished: dag_id={dag}, task_id={task}, run_id={run}, "
        how = (", state=awaiting_input, ", f", try_number={try_number}, ")
        lines = (self.home / "scheduler.log").read_text(errors="replace").splitlines()
        return any(about in line and all(one in line for one in how) for line in lines)

    def start(self) -> None:
        """Prepare, start all processes, return when they are ready."""
        settings = self.prepare()
        try:
            for name, command in self._commands.items():
                arguments = [word.format(host=LOOPBACK, port=self.port) for word in command]
                self._children[name].start(
                    [sys.executable, "-m", *arguments], env=settings, cwd=self.home
                )
                (self.home / f"{name}.pid").write_text(str(self._children[name].pid))
            self._children["api-server"].wait_until(
                self._ready_or_ended, START_SECONDS, ASK_SECONDS
            )
        except BaseException:
            self.stop()
            raise

    def prepare(self) -> dict[str, str]:
        """Make the home with its secrets, migrate when that is due; returns the environment of every Airflow process."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.home.chmod(0o700)
        self._make_secrets()
        self.end_leftovers()
        settings = self.settings()
        self._migrate(settings)
        return settings

    def stop(self) -> None:
        """End all of them, running tasks too; whatever does not end in time is killed."""
        for child in self._children.values():
            child.send(signal.SIGTERM)
        for child in self._children.values():
            child.finish(STOP_SECONDS)

    def end_leftovers(self) -> None:
        """End processes of this home that outlived their supervisor."""
        for name in (*COMMANDS, "triggerer"):
            end_leftover(self.home / f"{name}.pid", self.home, signal.SIGTERM)

    def kill(self) -> None:
        for child in self._children.values():
            child.kill()

    def settings(self) -> dict[str, str]:
        """The environment of every Airflow process: the whole configuration, no file of the user's is
        read."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        secret = json.loads((self.home / "secrets.json").read_text())
        return {
            **kept,
            **DEFAULTS,
            **self.env,
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": sqlalchemy_url(self._database_url),
            "AIRFLOW_CONN_AIRFLOW_DB": self._database_url,
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": str(self._parallelism),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self._dags_folder),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(self._plugins_folder),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__FERNET_KEY": secret["fernet_key"],
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(
                f"{name}:{role}" for name, role in self.users.items()
            ),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.home / "passwords.json"),
            "AIRFLOW__API__HOST": LOOPBACK,
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__SECRET_KEY": secret["secret_key"],
            "AIRFLOW__API_AUTH__JWT_SECRET": secret["jwt_secret"],
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.home / "logs"),
            "PYTHONUNBUFFERED": "1",
        }

    def _make_secrets(self) -> None:
        if not (self.home / "secrets.json").exists():
            made = {
                "fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
                "secret_key": secrets.token_urlsafe(32),
                "jwt_secret": secrets.token_urlsafe(64),
            }
            write_private(self.home / "secrets.json", json.dumps(made))
        file = self.home / "passwords.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        if set(self.users) - set(known):
            write_private(
                file, json.dumps({name: secrets.token_urlsafe(12) for name in self.users} | known)
            )

    def _migrate(self, settings: Mapping[str, str]) -> None:
        """`airflow db migrate` takes seconds even when nothing is due, so a marker of the version skips
        it."""
        marker = self.home / "migrated.txt"
        wanted = version("apache-airflow")
        if marker.exists() and marker.read_text() == wanted and self._has_tables():
            return
        migration = Child("Airflow's database migration", self.home / "migrate.log")
        migration.start(
            [sys.executable, "-m", PROCESS, "db", "migrate"], env=settings, cwd=self.home
        )
        try:
            ended = migration.wait(MIGRATE_SECONDS)
        finally:
            if migration.running:  # it has a session of its own, which Ctrl-C does not reach
                migration.kill()
        if not ended or migration.returncode != 0:
            raise LocalServerError(
                f"`airflow db migrate` {'failed' if ended else 'did not end'}:\n{migration.last_lines()}",
                unaffected="Backstop's own databases were not touched.",
                next_step=f"Read {migration.log}, then start again.",
            )
        marker.write_text(wanted)

    def _has_tables(self) -> bool:
        connection = psycopg2.connect(self._database_url, connect_timeout=10)
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT to_regclass('public.alembic_version') IS NOT NULL")
                row = cursor.fetchone()
                return bool(row and row[0])
        finally:
            connection.close()

    def _ready_or_ended(self) -> bool:
        for child in self._children.values():
            if not child.running:
                raise LocalServerError(
                    f"{child.name} ended while Airflow was starting:\n{child.last_lines()}",
                    unaffected="Runs and their history are in its database.",
                    next_step=f"Read {child.log}, then start again.",
                )
        return self.ready


DEFAULTS = {
    # A DAG file that is changed is parsed at once, whatever these say: the dag-processor compares times of modification. Parsing
    # all of them every few seconds takes half a core.
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "30",
    # On a busy machine the api-server takes its time. With 5 s, Airflow's default, tasks give up, ask again, and fail.
    "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
    # A parsing that it gives up, after 50 s or 30, takes the file's DAGs away until the next one.
    "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "300",
    "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",
    # Of a process that has just ended Airflow may hear only when its next heartbeat is due. With 5 s, Airflow's default, a
    # quarter of all tasks kept their worker for 5 s more, and what was skipped or failed was told so much later.
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
    # For those who wait for each task. Half of it, and the scheduler alone takes a third of a core by looking.
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
}
"""Settings that `env` may replace."""
CALM = {
    # The scheduler asks its database once a second, and an idle one needs little of a core.
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "1",
    # Whoever pauses a DAG finds it paused after the next start.
    "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    "BACKSTOP_CLEAN_SCHEDULE": "40 2 * * *",
}
"""For a platform that stays up: it needs little, its DAGs run from the first start on, and its history is cleaned each night."""

PROCESS = "backstop_lab.servers.airflow_process"
# The scheduler serves no logs: everything is on one disk, and that server would listen on every address.
COMMANDS = {
    "api-server": (
        PROCESS,
        "api-server",
        "--host",
        "{host}",
        "--port",
        "{port}",
        "--workers",
        "1",
    ),
    "scheduler": ("backstop_lab.servers.airflow_scheduler", "--skip-serve-logs"),
    "dag-processor": (PROCESS, "dag-processor"),
}
TRIGGERER = (PROCESS, "triggerer", "--skip-serve-logs")


def sqlalchemy_url(url: str) -> str:
    """The driver is named, because SQLAlchemy 2.1 takes a bare `postgresql://` for psycopg 3."""
    return url.replace("postgresql://", "postgresql+psycopg2://", 1)
