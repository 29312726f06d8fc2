"""What the tasks of the DAG `clean_airflow` do: runs, logs and sessions of Airflow that are older than a limit go."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import task

from backstop.airflow.control_room import log_errors

CONNECTION = "airflow_db"
"""Airflow's own database, which tasks may not reach otherwise."""
SHORTEST = timedelta(days=2)
"""A run that is cleared within a day acts for who triggered it; its row must still be there."""
KINDS = {"postgres": "postgresql+psycopg2", "mysql": "mysql+mysqldb"}
# Airflow points these nowhere in a task's process.
BLOCKED = (
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN",
    "AIRFLOW__CORE__SQL_ALCHEMY_CONN",
    "_AIRFLOW_PROCESS_CONTEXT",
)
log = logging.getLogger(__name__)


def before() -> datetime:
    """What is older goes: $BACKSTOP_CLEAN_KEEP, 30 days."""
    from backstop.config.durations import ALLOWED, parse
    from backstop.model.errors import ConfigurationError

    text = os.environ.get("BACKSTOP_CLEAN_KEEP") or "30d"
    try:
        keep = parse(text)
    except ValueError:
        keep = timedelta(0)
    if keep < SHORTEST:
        raise ConfigurationError(
            f"BACKSTOP_CLEAN_KEEP is {text!r}.",
            unaffected="Nothing was deleted.",
            next_step=f"Write two days or more: {ALLOWED}.",
        )
    return datetime.now(UTC) - keep


@task(execution_timeout=timedelta(hours=4))
@log_errors
def clean_database(params: dict[str, Any]) -> None:
    """Airflow's tables."""
    limit = before()
    command = [
        sys.executable,
        "-m",
        "airflow",
        "db",
        "clean",
        "--clean-before-timestamp",
        limit.isoformat(),
        "--yes",
        "--skip-archive",
        "--batch-size",
        "10000",
        "--error-on-cleanup-failure",
    ]
    command += ["--dry-run"] if params["dry_run"] else []
    environment = {name: value for name, value in os.environ.items() if name not in BLOCKED}
    child = subprocess.Popen(
        command,
        env=environment | {BLOCKED[0]: database_url()},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    with child:
        for line in child.stdout or ():
            if line.strip():
                log.info("%s", line.rstrip())
    if child.returncode:
        raise RuntimeError(
            f"`airflow db clean` ended with {child.returncode}: some tables still have what is older than {limit}"
        )


def database_url() -> str:
    """The connection as SQLAlchemy takes it."""
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError

    from backstop.model.errors import ConfigurationError

    try:
        connection = BaseHook.get_connection(CONNECTION)
    except (AirflowNotFoundException, AirflowRuntimeError):
        connection = None
    kind = KINDS.get(connection.conn_type or "") if connection else None
    if connection is None or kind is None:
        raise ConfigurationError(
            f"The connection {CONNECTION} is none to Airflow's own database.",
            unaffected="Nothing was deleted.",
            next_step=f"Define it (AIRFLOW_CONN_{CONNECTION.upper()}), with PostgreSQL or MySQL.",
        )
    return f"{kind}://{connection.get_uri().partition('://')[2]}"


@task(execution_timeout=timedelta(hours=1))
@log_errors
def clean_logs(params: dict[str, Any]) -> int:
    """Airflow's files."""
    from airflow.sdk import conf

    limit, deleted = before().timestamp(), 0
    root = Path(str(conf.get("logging", "base_log_folder")))
    for folder, _, files in os.walk(root, topdown=False):
        for file in (Path(folder, name) for name in files):
            if not file.is_symlink() and _is_older(file, limit):
                deleted += 1
                if not params["dry_run"]:
                    file.unlink(missing_ok=True)
        if not params["dry_run"] and Path(folder) != root and _is_older(Path(folder), limit):
            try:
                if not os.listdir(folder):
                    os.rmdir(folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                    raise
    log.info("backstop: %s files of logs are older than %s", deleted, before())
    return deleted


def _is_older(path: Path, limit: float) -> bool:
    """Not one that is gone: a worker that sends its logs elsewhere takes them away at any moment."""
    try:
        return path.stat().st_mtime < limit
    except FileNotFoundError:
        return False
