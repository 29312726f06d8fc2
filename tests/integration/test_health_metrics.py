"""The state of the duties as a scraper reads it, and the one notifier: on a real control database, over real HTTP."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from backstop.cases.open import open_case
from backstop.reports.metrics import read_families, render
from backstop.runs.run import close_run, open_run
from control_world import World, servers, world  # noqa: F401


def run_of(world: World, duty: str, state: Any = "done") -> None:
    close_run(world.conn, open_run(world.conn, duty, "*", world.settings), state, {})


class Samples(dict[tuple[str, ...], float]):
    """Values by the metric's name and its labels' values, in whatever order these are named."""

    def __getitem__(self, key: tuple[str, ...]) -> float:
        return super().__getitem__((key[0], *sorted(key[1:])))


def samples(text: str, read: Any = read_text) -> Samples:
    return Samples(
        {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in read(text)
            for sample in family.samples
        }
    )


def test_each_duty_says_when_it_last_succeeded_and_one_that_never_did_says_zero(
    world: World,
) -> None:
    run_of(world, "reconcile")
    run_of(world, "reconcile", "failed")
    world.stub("m-1")
    assert main_says(["run", "watch"]) == 0
    text, content_type = render(world.conn, world.settings)
    assert content_type.startswith("text/plain")
    found = samples(text.decode())
    ((succeeded, failed),) = world.control(
        "SELECT extract(epoch FROM max(finished_at) FILTER (WHERE state = 'done'))::float8,"
        " extract(epoch FROM max(finished_at) FILTER (WHERE state = 'failed'))::float8 FROM run WHERE duty = 'reconcile'"
    )
    assert found["backstop_duty_last_success_timestamp_seconds", "reconcile", "*"] == pytest.approx(
        succeeded
    )
    assert found["backstop_duty_last_failure_timestamp_seconds", "reconcile", "*"] == pytest.approx(
        failed
    )
    assert found["backstop_duty_last_success_timestamp_seconds", "resend", "*"] == 0.0
    assert found["backstop_duty_last_success_timestamp_seconds", "watch", "*"] > succeeded
    due = found["backstop_oldest_due_stub_timestamp_seconds", "shop_a"]
    assert found[
        "backstop_duty_last_success_timestamp_seconds", "watch", "*"
    ] - due == pytest.approx(60, abs=30)
    assert found["backstop_group_waiting_messages", "orders", "billing"] == 0
    openmetrics, content_type = render(
        world.conn, world.settings, "application/openmetrics-text; version=1.0.0"
    )
    assert content_type.startswith("application/openmetrics-text")
    assert samples(openmetrics.decode(), read_openmetrics).keys() == found.keys()


def test_the_watch_counts_how_long_each_store_and_broker_took_to_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(server: str, outcome: str) -> float:
        found = samples(render(world.conn, world.settings)[0].decode())
        return found.get(("backstop_store_answer_seconds_count", *sorted((server, outcome))), 0.0)

    assert main_says(["run", "watch"]) == 0
    first = answers("shard shop_a", "answered")
    assert first > 0 and answers("broker embedded", "answered") > 0
    assert answers("shard shop_a", "failed") == 0
    assert main_says(["run", "watch"]) == 0
    assert answers("shard shop_a", "answered") > first
    monkeypatch.setenv("AIRFLOW_CONN_BACKSTOP_PRODUCER_A", "postgresql://x:y@127.0.0.1:1/gone")
    assert main_says(["run", "watch"]) == 3
    assert answers("shard shop_a", "failed") > 0
    assert answers("shard shop_b", "failed") == 0


def test_cases_requests_and_alerts_that_wait_are_counted_whatever_their_names_hold(
    world: World,
) -> None:
    world.run(
        "control",
        """INSERT INTO case_file (kind, topic, summary) VALUES ('mass_loss', E'or"d\\\\er\\ns', 'x')""",
    )
    world.run(
        "control",
        """INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by)
        SELECT 'shop_a', 'orders', 'm-' || n, 1, 'r', 'test' FROM generate_series(1, 3) n""",
    )
    found = samples(render(world.conn, world.settings)[0].decode())
    assert found["backstop_open_cases", "mass_loss", 'or"d\\er\ns', "*", "warning"] == 1
    assert found["backstop_open_requests", "orders", "open"] == 3


def test_how_full_the_control_database_is_can_be_read_and_is_told_before_it_is_full(
    world: World,
) -> None:
    world.control("""
        INSERT INTO run (duty, token, policy_version, code_version) VALUES ('triage', gen_random_uuid(), '', '');
        INSERT INTO drain_batch (run_id, broker, queue, letters) SELECT max(run_id), 'embedded', 'q', 1 FROM run;
        INSERT INTO dead_letter (batch_id, broker, queue, broker_id, consumer_group, headers, content_bytes)
        SELECT max(batch_id), 'embedded', 'q', '1', 'billing', '{}', 4500000000 FROM drain_batch""")
    found = samples(render(world.conn, world.settings)[0].decode())
    assert found["backstop_dead_letters_kept_bytes", "billing"] == 4500000000 + 1024
    assert found["backstop_dead_letters_limit_bytes", "group"] == 5 * 1024**3
    assert found["backstop_control_database_bytes",] > 1_000_000
    assert found["backstop_control_table_bytes", "dead_letter"] > 0
    assert (
        0
        < found["backstop_control_server_connections",]
        <= found["backstop_control_server_max_connections",]
    )
    assert main_says(["run", "watch"]) == 0
    assert world.control("SELECT rule, consumer_group, severity FROM watch_finding") == [
        ("dead_letters_kept", "billing", "warning"),
    ]
    world.control("UPDATE dead_letter SET emptied_at = now()")
    assert main_says(["run", "watch"]) == 0
    assert world.control("SELECT over_at IS NOT NULL FROM watch_finding") == [(True,)]


def test_the_command_writes_a_whole_file_for_the_textfile_collector(
    world: World, tmp_path: Path, capsys: Any
) -> None:
    run_of(world, "reconcile")
    file = tmp_path / "backstop.prom"
    assert main_says(["metrics", "--to", str(file)]) == 0
    assert ("backstop_duty_allowed_age_seconds", "reconcile") in samples(file.read_text())
    beside = [
        entry.name
        for entry in tmp_path.iterdir()
        if entry.suffix == ".prom" or entry.name.startswith(".")
    ]
    assert beside == ["backstop.prom"]
    assert main_says(["metrics"]) == 0
    assert "backstop_duty_last_success_timestamp_seconds" in capsys.readouterr().out


HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to"


def alert_rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((HOW_TO / "watch-rules.yaml").read_text())["groups"]
    return list(group["rules"])


def test_every_alert_rule_asks_for_metrics_that_there_are_and_each_is_described(
    world: World,
) -> None:
    families = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in read_families(world.conn, world.settings)
    } | {"backstop_airflow_dag_import_errors"}  # Airflow's page adds it
    asked = {
        re.sub("_(bucket|count|sum)$", "", name)
        for rule in alert_rules()
        for name in re.findall("backstop_[a-z_]+", rule["expr"])
    }
    assert asked - families == set()
    described = set(re.findall("`(backstop_[a-z_]+)`", (HOW_TO / "watch.md").read_text()))
    assert families - described == set()


def test_an_idle_watch_is_not_silent_to_the_alert_rules(world: World) -> None:
    (silent,) = (rule for rule in alert_rules() if rule["alert"] == "BackstopWatchSilent")
    (limit,) = re.findall(r"> (\d+)$", silent["expr"])
    assert int(limit) >= 2 * world.settings.schedule.watch_interval.total_seconds()


def main_says(arguments: list[str]) -> int:
    from backstop.cli.app import run_app

    return run_app(arguments)


# The page.


TOKEN = "t0ken-of-at-least-16"


@pytest.fixture
def scrape(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from contextlib import contextmanager

    from fastapi.testclient import TestClient

    from backstop.airflow import metrics

    @contextmanager
    def room() -> Iterator[Any]:
        yield SimpleNamespace(control=world.conn, settings=world.settings)

    # Airflow's own connections are tried in tests/dags; here the environment has them.
    monkeypatch.setattr(metrics, "control_room", room)
    monkeypatch.setattr(metrics, "url_from_airflow", lambda _: None)
    monkeypatch.setattr(
        metrics, "import_errors", lambda: {"backstop_airflow_dag_import_errors": ("x", 2.0)}
    )
    monkeypatch.setattr(metrics, "KEPT_SECONDS", 0.0)
    monkeypatch.setattr(metrics, "_kept", metrics._Kept())
    with TestClient(metrics.make_app()) as client:
        yield lambda **headers: client.get("/metrics", headers=headers)


def with_settings(world: World, **more: Any) -> None:
    world.config.write_text(json.dumps({**json.loads(world.config.read_text()), **more}))


def test_the_metrics_are_for_who_has_the_token_and_closed_without_one(
    world: World, scrape: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert scrape(Authorization=f"Bearer {TOKEN}").status_code == 403, "no token is set"
    with_settings(world, metrics={"token": "env:METRICS"})
    assert scrape(Authorization=f"Bearer {TOKEN}").status_code == 403, "its connection is not known"
    for useless in ("http://:short@x", "http://x", "http://:@x"):
        monkeypatch.setenv("METRICS", useless)
        assert scrape(Authorization="Bearer short").status_code == 403
        assert scrape(Authorization="Bearer ").status_code == 403
    monkeypatch.setenv("METRICS", f"http://:{TOKEN}@metrics")
    assert scrape().status_code == 401
    for wrong in ("Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer", TOKEN):
        assert scrape(Authorization=wrong).status_code == 401
    answer = scrape(Authorization=f"Bearer {TOKEN}")
    assert answer.status_code == 200
    assert samples(answer.text)[("backstop_airflow_dag_import_errors",)] == 2.0
    asked = scrape(
        Authorization=f"Bearer {TOKEN}", Accept="application/openmetrics-text;version=1.0.0"
    )
    assert asked.headers["content-type"].startswith("application/openmetrics-text")
    world.config.write_text("not: [settings")
    assert scrape(Authorization=f"Bearer {TOKEN}").status_code == 403


def test_requests_without_the_token_read_no_settings_and_ask_no_connection(
    world: World, scrape: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backstop.airflow import metrics

    read = []
    monkeypatch.setattr(metrics, "KEPT_SECONDS", 60.0)
    monkeypatch.setattr(metrics, "token", lambda: read.append(1) or TOKEN)
    assert {scrape(Authorization="Bearer wrong").status_code for _ in range(20)} == {401}
    assert scrape(Authorization=f"Bearer {TOKEN}").status_code == 200
    assert read == [1]


# The notifier.


class Hook:
    def __init__(self) -> None:
        self.taken: list[dict[str, str]] = []
        self.answers = 204
        self.refuses = ""
        hook = self

        class Taker(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = 422 if hook.refuses and body.get("key") == hook.refuses else hook.answers
                if answer < 300:
                    hook.taken.append(body)
                self.send_response(answer)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Taker)


@pytest.fixture
def hook(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    made = Hook()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("HOOK", f"http://127.0.0.1:{made.server.server_port}/hook")
    with_settings(world, notify={"url": "env:HOOK"})
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def failure(duty: str = "reconcile", run: str = "scheduled__1") -> dict[str, Any]:
    return {
        "dag": SimpleNamespace(dag_id=duty),
        "run_id": run,
        "ti": SimpleNamespace(task_id="judge"),
    }


def test_a_duty_that_goes_on_failing_is_told_once_and_again_after_its_next_success(
    world: World, hook: Hook
) -> None:
    from backstop.airflow import notify

    for number in range(3):
        notify.tell_failure(failure(run=f"scheduled__{number}"))
    notify.tell_failure(failure("resend"))
    assert [notice["duty"] for notice in hook.taken] == ["reconcile", "resend"]
    run_of(world, "reconcile")
    notify.tell_failure(failure())
    assert [notice["duty"] for notice in hook.taken] == ["reconcile", "resend", "reconcile"]
    assert world.control("SELECT count(*) FROM alert WHERE delivered_at IS NULL") == [(0,)]


def test_the_next_failure_of_a_dag_without_runs_is_told_as_a_new_one(
    world: World, hook: Hook
) -> None:
    from backstop.airflow import notify

    notify.tell_failure(failure("clean_airflow"))
    notify.note_well(failure("clean_airflow"))
    world.control("UPDATE alert SET created_at = created_at - interval '10 days' RETURNING 1")
    notify.tell_failure(failure("clean_airflow", run="scheduled__2"))
    told = world.control("SELECT severity, title FROM alert ORDER BY created_at")
    assert told == [("warning", "The duty clean_airflow failed")] * 2


def test_alerts_of_cases_are_told_too_and_the_gravest_first_however_old_they_are(
    world: World, hook: Hook
) -> None:
    from backstop.airflow import notify
    from backstop.config.load import load

    for kind, severity in (
        ("overdue", "warning"),
        ("mass_loss", "critical"),
        ("exhausted", "critical"),
        ("stalled", "warning"),
    ):
        with world.conn, world.conn.cursor() as cur:
            open_case(
                cur,
                kind=kind,
                topic="orders",
                group="billing",
                subject="",
                severity=severity,
                summary=kind,
                evidence={},
                members=[("shop_a", "orders", "m", "billing")],
                run_id=None,
            )
    # Nobody could be told for two days.
    old = "UPDATE alert SET created_at = now() - interval '2 days' WHERE body LIKE ANY (%s)"
    world.control(old, (["stalled%", "exhausted%"],))
    assert notify.tell_unsaid(load(), world.connections, world.conn) == 4
    assert [(one["severity"], one["text"].split(". ")[1]) for one in hook.taken] == [
        ("critical", "mass_loss"),
        ("critical", "exhausted"),
        ("warning", "overdue"),
        ("warning", "stalled"),
    ]


def test_what_the_webhook_did_not_take_is_told_by_the_next_watch(world: World, hook: Hook) -> None:
    from backstop.airflow import notify

    hook.answers = 503
    notify.tell_failure(failure())
    world.run(
        "control",
        "INSERT INTO alert (dedup_key, severity, title, body) VALUES ('watch/1/critical', 'critical', 'T', 'B')",
    )
    world.run(
        "control",
        "INSERT INTO alert (dedup_key, severity, title, body) VALUES ('case/1', 'critical', 'T', 'B')",
    )
    from backstop.config.load import load

    assert notify.tell_unsaid(load(), world.connections, world.conn) == 0
    hook.answers = 204
    hook.refuses = "watch/1/critical"
    assert notify.tell_unsaid(load(), world.connections, world.conn) == 2
    hook.refuses = ""
    assert notify.tell_unsaid(load(), world.connections, world.conn) == 1
    assert notify.tell_unsaid(load(), world.connections, world.conn) == 0
    assert [notice.get("key") for notice in hook.taken] == [
        "case/1",
        "duty/reconcile/failed/0",
        "watch/1/critical",
    ]


def test_without_the_control_database_a_failure_is_told_all_the_same(
    world: World, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backstop.airflow import notify

    monkeypatch.setenv("AIRFLOW_CONN_BACKSTOP_CONTROL", "postgresql://nobody@127.0.0.1:1/gone")
    notify.tell_failure(failure())
    assert len(hook.taken) == 1
