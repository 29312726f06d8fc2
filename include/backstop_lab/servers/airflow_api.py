"""Ask a running Airflow over its REST API: unpause, trigger, wait, read; standard library only."""

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from backstop.model.errors import Unavailable

Json = dict[str, Any]
POLL_SECONDS = 0.25
READINGS = 3
"""How often a GET is sent before an api-server that accepts it and does not answer counts as unavailable."""
DAG_SECONDS = 600.0
"""How long a DAG may take to be parsed, on a busy machine as long as Airflow to start."""
FINISHED = frozenset({"success", "failed"})


class AirflowUnavailable(Unavailable):
    """Airflow's API did not answer, or not with what was asked for. `status` is the HTTP status, or None."""

    def __init__(
        self, what: str, *, unaffected: str, next_step: str, status: int | None = None
    ) -> None:
        super().__init__(what, unaffected=unaffected, next_step=next_step)
        self.status = status


class AirflowApi:
    """A client for one Airflow and one user; logs in by itself, and again when the token has run out."""

    def __init__(
        self, url: str, user: str, password: str, *, request_seconds: float = 120.0
    ) -> None:
        self.url = url.rstrip("/")
        self._user = user
        self._password = password
        self._request_seconds = request_seconds
        self._token: str | None = None
        # A proxy of the machine must never see what goes to the loopback.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def token(self) -> str:
        """A fresh access token for this user."""
        body = {"username": self._user, "password": self._password}
        answer = self._send("POST", "/auth/token", body, token=None)
        return str(answer["access_token"])

    def request(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Json:
        """One call under /api/v2; raises AirflowUnavailable with the status for anything but 2xx."""
        if self._token is None:
            self._token = self.token()
        try:
            return self._send(method, f"/api/v2{path}", body, self._token)
        except AirflowUnavailable as refused:
            if refused.status != 401:
                raise
        self._token = self.token()
        return self._send(method, f"/api/v2{path}", body, self._token)

    def healthy(self, *components: str) -> bool:
        """Whether each component ("metadatabase", "scheduler", "dag_processor") reports healthy; asks
        without login."""
        try:
            health = self._send("GET", "/api/v2/monitor/health", None, None)
        except AirflowUnavailable:
            return False  # not up yet; whoever waits knows the deadline
        return all(
            (health.get(component) or {}).get("status") == "healthy" for component in components
        )

    def dags(self) -> list[Json]:
        return list(self.request("GET", "/dags?limit=100")["dags"])

    def import_errors(self) -> list[Json]:
        return list(self.request("GET", "/importErrors?limit=100")["import_errors"])

    def unpause(self, dag: str, *, timeout: float = DAG_SECONDS) -> None:
        """Let the scheduler run a DAG, waiting until it has been parsed."""
        self._set_paused(dag, False, timeout)

    def pause(self, dag: str, *, timeout: float = DAG_SECONDS) -> None:
        self._set_paused(dag, True, timeout)

    def trigger(self, dag: str, conf: Mapping[str, object] | None = None) -> str:
        """Start a manual run; returns its run id."""
        body: Json = {"logical_date": None}
        if conf is not None:
            body["conf"] = dict(conf)
        return str(self.request("POST", f"/dags/{quoted(dag)}/dagRuns", body)["dag_run_id"])

    def dag_run(self, dag: str, run_id: str) -> Json:
        return self.request("GET", f"/dags/{quoted(dag)}/dagRuns/{quoted(run_id)}")

    def dag_runs(self, dag: str, *, limit: int = 100) -> list[Json]:
        """The DAG's newest runs, newest first."""
        path = f"/dags/{quoted(dag)}/dagRuns?limit={limit}&order_by=-run_after"
        return list(self.request("GET", path)["dag_runs"])

    def wait(self, dag: str, run_id: str, timeout: float) -> str:
        """The state in which the run ended ("success" or "failed"); AirflowUnavailable after `timeout`
        seconds."""
        deadline = time.monotonic() + timeout
        while (state := str(self.dag_run(dag, run_id)["state"])) not in FINISHED:
            if time.monotonic() > deadline:
                states = {
                    task["task_id"]: task["state"] for task in self.task_instances(dag, run_id)
                }
                raise AirflowUnavailable(
                    f"Run {run_id} of {dag} is {state} after {timeout:.0f} s ({states}).",
                    unaffected="It goes on in Airflow.",
                    next_step="Look at its tasks in the UI, or wait longer.",
                )
            time.sleep(POLL_SECONDS)
        return state

    def task_instances(self, dag: str, run_id: str) -> list[Json]:
        path = f"/dags/{quoted(dag)}/dagRuns/{quoted(run_id)}/taskInstances?limit=100"
        return list(self.request("GET", path)["task_instances"])

    def questions(self) -> list[Json]:
        """What waits for a person's answer, in every DAG."""
        path = "/dags/~/dagRuns/~/hitlDetails?response_received=false&limit=100"
        return list(self.request("GET", path)["hitl_details"])

    def answer(self, question: Json, option: str, inputs: Mapping[str, object]) -> None:
        """Answers in the name of this user; raises AirflowUnavailable with status 409 when somebody did so before."""
        task = question["task_instance"]
        path = f"/dags/{quoted(task['dag_id'])}/dagRuns/{quoted(task['dag_run_id'])}/taskInstances/{quoted(task['task_id'])}"
        # All fields of the form or none: a form that is half filled in fails the task when it goes on.
        fields = {name: field.get("value") for name, field in question["params"].items()}
        body = {"chosen_options": [option], "params_input": {**fields, **inputs}}
        self.request("PATCH", f"{path}/{task['map_index']}/hitlDetails", body)

    def task_log(self, dag: str, run_id: str, task: str, try_number: int = 1) -> str:
        """The text of one try of a task, one event a line."""
        path = f"/dags/{quoted(dag)}/dagRuns/{quoted(run_id)}/taskInstances/{quoted(task)}/logs/{try_number}"
        content = self.request("GET", f"{path}?full_content=true")["content"]
        return "\n".join(
            str(line.get("event", line)) if isinstance(line, dict) else str(line)
            for line in content
        )

    def _set_paused(self, dag: str, paused: bool, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            try:
                self.request("PATCH", f"/dags/{quoted(dag)}", {"is_paused": paused})
                return
            except AirflowUnavailable as refused:
                if refused.status != 404 or time.monotonic() > deadline:
                    raise
            time.sleep(POLL_SECONDS)

    def _send(
        self, method: str, path: str, body: Mapping[str, object] | None, token: str | None
    ) -> Json:
        headers = {"Accept": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        # Only a GET is asked again: of anything else nobody knows whether it was carried out.
        for last in [False] * (READINGS - 1) * (method == "GET") + [True]:
            try:
                with self._opener.open(request, timeout=self._request_seconds) as response:
                    text = response.read()
                break
            except urllib.error.HTTPError as refused:
                detail = refused.read().decode(errors="replace")[:500]
                raise _unavailable(
                    f"{method} {path} was answered with {refused.code}: {detail}", refused.code
                ) from refused
            except OSError as silent:
                if last or not isinstance(silent, TimeoutError):
                    raise _unavailable(
                        f"{method} {path} was not answered: {silent}", None
                    ) from silent
        return dict(json.loads(text) or {}) if text else {}


def _unavailable(what: str, status: int | None) -> AirflowUnavailable:
    return AirflowUnavailable(
        f"Airflow: {what}.",
        unaffected="Runs that are under way go on, and nothing was started by this call.",
        next_step="Check that Airflow is up (`make status`) and that the DAG has no import error.",
        status=status,
    )


def quoted(part: str) -> str:
    return urllib.parse.quote(part, safe="")
