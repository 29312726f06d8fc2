"""Buttons on a task: what its run did, and the Data Docs of its audit. Light: DAG files import it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

PREFIX = "/backstop"
"""Where the read-only pages are mounted."""


class RunLink(BaseOperatorLink):
    """Counts, verdicts, requests, cases and data checks of the run that the task worked for."""

    @property
    def name(self) -> str:
        """The button's text."""
        return "What this run did"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The page of the run, or no link while the task knows no run."""
        run_id = run_id_of(operator)
        return "" if run_id is None else f"{base_url()}{PREFIX}/runs/{run_id}"


class DataDocsLink(BaseOperatorLink):
    """What the suite that the task ran found, with the rows that break it; of a task with several, that of `suite`."""

    def __init__(self, suite: str | None = None) -> None:
        self.suite = suite

    @property
    def name(self) -> str:
        """The button's text."""
        return "Data Docs" if self.suite is None else f"Data Docs: {self.suite}"

    @property
    def xcom_key(self) -> str:
        """Where Airflow keeps the address: one place for each button."""
        return f"_link_{type(self).__name__}" + ("" if self.suite is None else f"_{self.suite}")

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The page of the suite's result, or no link while the task knows no run."""
        run_id = run_id_of(operator)
        suite = self.suite or arguments_of(operator).get("suite")
        if run_id is None or not suite:
            return ""
        return f"{base_url()}{PREFIX}/runs/{run_id}/checks/{quote(str(suite))}"


def arguments_of(operator: Any) -> dict[str, Any]:
    """A TaskFlow task's arguments as they were rendered, or an operator's fields of the same names."""
    if hasattr(operator, "op_kwargs"):
        return dict(operator.op_kwargs)
    return {
        name: getattr(operator, name) for name in ("opened", "suite") if hasattr(operator, name)
    }


def run_id_of(operator: Any) -> int | None:
    """The run of a task that was handed one by `open_run`."""
    opened = arguments_of(operator).get("opened")
    if isinstance(opened, str) and opened.startswith("{") and not opened.startswith("{{"):
        opened = json.loads(opened)
    return int(opened["run_id"]) if isinstance(opened, dict) and "run_id" in opened else None


def base_url() -> str:
    """The UI's address; empty when it is not configured, which leaves a path on the same host."""
    from airflow.sdk import conf

    return str(conf.get("api", "base_url", fallback="") or "").rstrip("/")
