"""What the DAGs of dags/ have in common: their arguments, the fields of their forms, data checks, the end of a run.

A DAG file is a runbook and its wiring. What the tasks of a DAG do is in the module of this package with the DAG's name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, dag, task

from backstop.airflow import steps
from backstop.airflow.links import DataDocsLink, RunLink
from backstop.airflow.notify import tell_failure

HANDED = "{{ ti.xcom_pull(task_ids='open_run') | tojson }}"
"""The opened run as a template, for a task with a trigger rule of its own: no such task may directly follow a set-up, and a
template makes no dependency."""


def backstop_dag(
    runbook: str | None,
    *,
    max_active_runs: int = 1,
    default_args: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Callable[[Callable[..., None]], Callable[..., Any]]:
    """Airflow's `@dag` with what every DAG here has. `runbook`: the docstring of its file."""
    return dag(
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=max_active_runs,
        default_args={"owner": "backstop", **(default_args or {})},
        on_failure_callback=tell_failure,
        tags=["backstop"],
        doc_md=runbook,
        **arguments,
    )


def duty_dag(
    runbook: str | None,
    *,
    retries: int = 1,
    task_timeout: timedelta = timedelta(minutes=15),
    **arguments: Any,
) -> Callable[[Callable[..., None]], Callable[..., Any]]:
    """The same for a DAG that opens a run and closes it."""
    default_args = {
        "retries": retries,
        "retry_delay": retry_delay(),
        "execution_timeout": task_timeout,
    }
    return backstop_dag(runbook, default_args=default_args, **arguments)


def retry_delay() -> timedelta:
    """The pause before a failed task is tried again: $BACKSTOP_RETRY_SECONDS, 10."""
    return timedelta(seconds=float(os.environ.get("BACKSTOP_RETRY_SECONDS", "10")))


def one_of_all(title: str, description: str) -> Param:
    """The field for one topic or group; empty: all."""
    return Param(None, type=["null", "string"], minLength=1, title=title, description=description)


def instant(title: str, description: str) -> Param:
    """The field for an end of a window; empty: open."""
    return Param(
        None, type=["null", "string"], format="date-time", title=title, description=description
    )


def switch(title: str, description: str) -> Param:
    """A box to tick."""
    return Param(False, type="boolean", title=title, description=description)


def with_links(done: Any, *more: Any) -> Any:
    """Gives a task the button that shows its run, and `more`. By the name of its argument `opened` a button finds the run."""
    done.operator.operator_extra_links = (RunLink(), *more)
    return done


def check(task_id: str, suite: str, opened: Any, says: str, **options: Any) -> Any:
    """A task that runs one suite of data checks over the run. `says`: its description in Airflow."""
    checked = run_check.override(task_id=task_id, doc_md=says, **options)(
        suite=suite, opened=opened
    )
    return with_links(checked, DataDocsLink())


@task
def run_check(suite: str, opened: Any) -> str:
    return steps.check(suite, json.loads(opened) if isinstance(opened, str) else opened)


@task(retries=2)
def close_run(opened: dict[str, Any], **context: Any) -> dict[str, Any]:
    """Tear-down: done, incomplete or failed."""
    return steps.close(opened, steps.ended(context))


def tear_down(closed: Any, opened: Any) -> Any:
    """Makes a task the one that closes the run: last, whatever happens, and it alone decides whether the DAG run is red."""
    closed.as_teardown(setups=opened, on_failure_fail_dagrun=True)
    return with_links(closed)
