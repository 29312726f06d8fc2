"""Submit a duty's Spark job with the provider's hook: secrets in a private file, the master checked,
leftovers removed.

A thin operator of our own instead of the provider's, because that one takes half a second to import in every
DAG file, and its `durable` mode turns a cleared task green without running it again.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import stat
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator

from backstop.airflow.control_room import url_from_airflow
from backstop.airflow.links import RunLink
from backstop.airflow.steps import SOMETHING_AWAY

AWAY = 3
"""How a job ends when a store or broker did not answer, and it did all else (errors.Unavailable)."""
SECRETS = "connections.json"
_PACKAGE = Path(__file__).resolve().parents[1]
JOBS = next(
    folder / "spark_jobs"
    for folder in (_PACKAGE, _PACKAGE.parents[1])
    if (folder / "spark_jobs").is_dir()
)
"""In the installed package, or in the source tree."""

log = logging.getLogger(__name__)


def spark_from() -> int:
    """From how much on triage, resend and sweep start Spark ($BACKSTOP_SPARK_FROM, 2000 letters, requests or leases).

    Less is done in the task's own process, sooner than a Java runtime starts.
    """
    return int(os.environ.get("BACKSTOP_SPARK_FROM") or 2000)


class SparkDutyOperator(BaseOperator):
    """Runs spark_jobs/<duty>.py for an opened run, in client mode, on the master of `conn_id`.

    The command line carries the run's id and its fencing token only. Connections go by a file of mode 0600 in
    a private folder, in memory where the machine has such a place. The driver removes the file when it has read it; what a
    killed task left is removed by the next one.
    """

    template_fields: Sequence[str] = ("opened",)
    operator_extra_links = (RunLink(),)
    ui_color = "#f7d5b5"

    def __init__(
        self,
        *,
        duty: str,
        opened: Any,
        conn_id: str = "spark_default",
        conf: Mapping[str, str] | None = None,
        here: Callable[[Any, Any], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """`here`: does the same in the task's own process, when less is due than `spark_from`."""
        super().__init__(**kwargs)
        self.duty = duty
        self.here = here
        self.opened = opened
        self.conn_id = conn_id
        self.conf = dict(conf or {})
        self._hook: Any = None

    def execute(self, context: Any) -> None:
        """Submit and wait; the job's own exit code decides. Raises ConfigurationError when the master is not
        as meant, AirflowSkipException when nothing is due."""
        if isinstance(self.opened, str):  # HANDED
            self.opened = json.loads(self.opened)
        if self.opened["due"] is None:
            from airflow.sdk.exceptions import AirflowSkipException

            log.info(
                "backstop: nothing is due"
            )  # the log of a skipped task does not show its reason
            raise AirflowSkipException("nothing is due")
        if self.here is not None and int(self.opened["due"]) < spark_from():
            log.info("backstop: %s", self.here(self.opened, context["ti"]))
            return
        remove_left_over()
        private = private_folder()
        with held(private):
            try:
                self._submit(private)
            except Exception:
                if self._exit_code() == AWAY:
                    context["ti"].xcom_push(
                        key=SOMETHING_AWAY, value="the log of the task names what did not answer"
                    )
                raise
            finally:
                # While it is locked: else another task takes it for left over, and both remove it.
                shutil.rmtree(private)

    def _submit(self, private: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="backstop-code-") as code:
            self._hook = self._prepare(private, Path(code))
            # To the driver alone: as `env_vars` the provider would make them arguments, on YARN and Kubernetes.
            self._hook.submit(
                str(JOBS / f"{self.duty}.py"),
                env={**os.environ, **job_environment(private / SECRETS, archives_of(self.conn_id))},
            )

    def on_kill(self) -> None:
        """Ends the driver that this task started; one that lives on is fenced by its token."""
        if self._hook is not None:
            self._hook.on_kill()

    def _exit_code(self) -> int | None:
        """The job's own exit code, which spark-submit passes on in client mode; null: it never ran."""
        return getattr(getattr(self._hook, "_submit_sp", None), "returncode", None)

    def _prepare(self, private: Path, code: Path) -> Any:
        from backstop.config.connections import Connections, write_secrets_file
        from backstop.config.load import load

        check_master(self.conn_id)
        connections, settings = Connections(resolver=url_from_airflow), load()
        named = [ref for ref in settings.connection_refs() if not ref.startswith("env:")]
        write_secrets_file(private / SECRETS, connections.known(named))
        return client_hook(
            conn_id=self.conn_id,
            conf=with_compiler(
                {
                    "spark.speculation": "false",
                    **heap_of(self.conn_id, lakes=settings.has_lakes()),
                    **settings_of(self.conn_id),
                    **self.conf,
                },
                self.duty,
                self.opened["due"],
            ),
            name=f"backstop {self.duty}",
            py_files=None if runs_here(self.conn_id) else pack_code(code),
            archives=archives_of(self.conn_id),
            application_args=[
                "--run-id",
                str(self.opened["run_id"]),
                "--token",
                str(self.opened["token"]),
            ],
            deploy_mode="client",
        )


_IN_MEMORY = Path("/dev/shm")
_PREFIX = "backstop-secrets-"


def secrets_place() -> Path:
    """Where files go that no disk should keep: memory, where there is such a folder."""
    return _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def private_folder() -> Path:
    """A new one, which nobody else may enter."""
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=secrets_place()))  # mode 0700


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """For as long as this process lives the folder is not left over: the kernel gives a lock back whatever ends its holder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def remove_left_over() -> None:
    """Folders of ours that nobody holds: their tasks were killed before they could remove them."""
    for folder in secrets_place().glob(f"{_PREFIX}*"):
        try:
            facts = folder.lstat()
            # A younger one may be about to be held.
            if (
                facts.st_uid != os.geteuid()
                or not stat.S_ISDIR(facts.st_mode)
                or time.time() - facts.st_mtime < 60
            ):
                continue
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # another task removed it
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(folder, ignore_errors=True)
            log.warning(
                "backstop: removed the connections that a killed task had left in %s", folder
            )
        finally:
            os.close(descriptor)


def client_hook(**options: Any) -> Any:
    """The provider's hook, which on Kubernetes looks for the exit code of a driver pod; our driver is the child itself."""
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    class ClientHook(SparkSubmitHook):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self._is_kubernetes = False

    try:
        return ClientHook(**options)
    except (NameError, RuntimeError) as error:  # how the provider says that it lacks another one
        from backstop.model.errors import ConfigurationError

        raise ConfigurationError(
            "A Spark master on Kubernetes needs Airflow's Kubernetes provider, which is not installed.",
            unaffected="Nothing was read or changed.",
            next_step="Install apache-airflow-providers-cncf-kubernetes, or name another master.",
        ) from error


def check_master(conn_id: str) -> None:
    """Refuse a connection that the provider would silently take for YARN: a missing one, or a URI not
    encoded."""
    from airflow.sdk import BaseHook

    from backstop.model.errors import ConfigurationError

    try:
        connection = BaseHook.get_connection(conn_id)
    except Exception as error:
        raise ConfigurationError(
            f"Airflow has no connection {conn_id}, and Spark would be sent to a YARN that nobody named.",
            unaffected="Nothing was read or changed.",
            next_step=f"Define it, as in AIRFLOW_CONN_{conn_id.upper()}={EXAMPLE}.",
        ) from error
    host = connection.host or ""
    if connection.conn_type != "yarn" and not host.startswith(
        ("local", "yarn", "spark://", "k8s://")
    ):
        raise ConfigurationError(
            f"The connection {conn_id} names no Spark master (host {host!r}).",
            unaffected="Nothing was read or changed.",
            next_step=f"Write it as JSON (a URI must be encoded): AIRFLOW_CONN_{conn_id.upper()}={EXAMPLE}.",
        )
    if connection.extra_dejson.get("deploy-mode", "client") != "client":
        raise ConfigurationError(
            f"The connection {conn_id} asks for deploy mode {connection.extra_dejson['deploy-mode']}.",
            unaffected="Nothing was read or changed.",
            next_step='Use "deploy-mode": "client": the driver reads a file beside the task.',
        )


WORTH_OPTIMISING = 500_000
"""From so much on Spark's JVM works for minutes, and code that its second compiler made is repaid."""
STEP_OF = {"classify": "triage"}
"""Jobs that are one step of a duty of another name."""
JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")


def with_compiler(conf: Mapping[str, str], duty: str, due: int) -> dict[str, str]:
    """The settings with the compiler that Spark's JVM gets for so much work: the quick one alone, or both. What the connection
    says of Java goes before it. A duty that does not count what is due leaves it to Java."""
    from backstop.duties import duty_named

    if duty_named(STEP_OF.get(duty, duty)).due is None:
        return dict(conf)
    level = 4 if due >= WORTH_OPTIMISING else 1
    return {
        **conf,
        **{
            name: f"-XX:TieredStopAtLevel={level} {conf.get(name, '')}".strip()
            for name in JAVA_OPTIONS
        },
    }


EXAMPLE = """'{"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}'"""


def runs_here(conn_id: str) -> bool:
    """Whether the executors are threads of the driver (local-cluster's are processes, as on other machines)."""
    from airflow.sdk import BaseHook

    host = BaseHook.get_connection(conn_id).host or ""
    return host == "local" or host.startswith("local[")


def heap_of(conn_id: str, *, lakes: bool) -> dict[str, str]:
    """The bound of a driver whose threads are the executors, where the connection's `conf` names none."""
    from airflow.sdk import BaseHook

    from backstop.spark.session import heap_for

    return heap_for(BaseHook.get_connection(conn_id).host or "", lakes=lakes)


def archives_of(conn_id: str) -> str | None:
    """The packed environment that the connection's extra `archives` names, `file#name`; null: executors have the libraries."""
    from airflow.sdk import BaseHook

    named = BaseHook.get_connection(conn_id).extra_dejson.get("archives")
    return None if not named else named if "#" in named else f"{named}#environment"


def settings_of(conn_id: str) -> dict[str, str]:
    """Spark's settings from the connection's extras `conf` and `namespace`. They become arguments: no place for a secret."""
    from airflow.sdk import BaseHook

    extra = BaseHook.get_connection(conn_id).extra_dejson
    namespace = {"spark.kubernetes.namespace": extra["namespace"]} if extra.get("namespace") else {}
    return {**namespace, **{name: str(value) for name, value in (extra.get("conf") or {}).items()}}


def job_environment(secrets: Path, archives: str | None = None) -> dict[str, str]:
    """What the driver needs beside the task's environment. A path, never a secret.

    With a packed environment executors take its interpreter: the archive is unpacked in their working folder.
    """
    import backstop

    if archives is None:
        executor_python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    else:
        executor_python = f"./{archives.partition('#')[2]}/bin/python"
    beside = Path(sys.executable).parent
    path = os.environ.get("PATH", os.defpath)
    return {
        "BACKSTOP_SECRETS_FILE": str(secrets),
        "BACKSTOP_SECRETS_ONCE": "1",  # the driver alone reads it, and removes it
        "PYTHONPATH": os.pathsep.join(
            filter(None, [source_root(backstop), os.environ.get("PYTHONPATH")])
        ),
        "PYSPARK_PYTHON": executor_python,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # This environment's spark-submit goes before another one on the machine.
        "PATH": f"{beside}{os.pathsep}{path}" if (beside / "spark-submit").exists() else path,
    }


def source_root(package: Any) -> str:
    """The folder that holds the package backstop."""
    return str(Path(package.__file__).resolve().parent.parent)


def pack_code(private: Path) -> str:
    """Our code as a zip for executors elsewhere (their environment holds the libraries)."""
    import backstop

    root, packed = Path(source_root(backstop)), private / "backstop.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as out:
        for file in sorted((root / "backstop").rglob("*")):
            if file.suffix == ".pyc" or not file.is_file():
                continue
            inside = file.relative_to(root)
            out.write(file, inside)
            if file.suffix == ".py" and (compiled := Path(cache_from_source(str(file)))).is_file():
                # Else each Python worker compiles all that it imports. One of an older source is not taken.
                out.write(compiled, inside.with_suffix(".pyc"))
    return str(packed)
