"""A live Airflow runs both duties over real databases, a real broker and real Spark: what it does, shows and
never tells."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg2
import pytest
import redis

from backstop.brokers.open import open_broker
from backstop.client import SendPolicy, record
from backstop.config.connections import Connections
from backstop.config.load import load
from backstop.leases import guard
from backstop.leases.front import Front
from backstop.leases.lease import Acquired, Arrival
from backstop.leases.redis_exchange import RedisExchange
from backstop.leases.redis_records import RedisKeys
from backstop.runs.scope import name_of
from backstop.schema.prepare import prepare
from backstop_lab.platform import Platform

SECONDS = 600.0
"""For one run on a busy machine; a quiet one takes half a minute."""
pytestmark = pytest.mark.timeout(900)
QUICK = SendPolicy(timedelta(seconds=2), timedelta(seconds=2), timedelta(seconds=1))
"""As backstop.yaml has it for the embedded platform."""
IDS = tuple(f"order-{number}" for number in range(3))
PAYLOAD = b"payload-91c2 of a customer"


class CommandLines(threading.Thread):
    """Reads the command line of every process of one platform, again and again, while Airflow and Spark
    work."""

    def __init__(self, home: Path) -> None:
        super().__init__(daemon=True)
        self.seen: set[str] = set()
        self.done = threading.Event()
        self._ours = f"AIRFLOW_HOME={home}".encode()

    @property
    def spark(self) -> list[str]:
        """Those of Spark's JVMs."""
        return [command for command in self.seen if "org.apache.spark" in command]

    def run(self) -> None:
        while not self.done.wait(0.2):
            for file in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    if self._ours not in (file.parent / "environ").read_bytes():
                        continue
                    self.seen.add(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
                except OSError:
                    continue  # it has ended


class Live:
    """The platform, and what the tests ask it."""

    def __init__(self, platform: Platform) -> None:
        self.platform, self.api = platform, platform.airflow.api
        self.settings = load(platform.config)
        self.connections = Connections(resolver=platform.connections().get)

    def rows(self, database: str, query: str, *values: object) -> list[tuple[Any, ...]]:
        connection = psycopg2.connect(self.platform.dsn(database))
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(query, values)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def promise(self, *ids: str) -> None:
        """Stubs whose send is left to Backstop."""
        connection = psycopg2.connect(self.platform.dsn("producer_a"))
        with connection:
            for message_id in ids:
                record(connection, "orders", PAYLOAD, message_id=message_id, policy=QUICK, send=False)
        connection.close()

    def run(self, duty: str, **form: object) -> tuple[str, dict[str, str]]:
        """Triggers a run by hand and waits: Airflow's id of it, and each task's state (and the run's own
        under "")."""
        run_id = self.api.trigger(duty, form)
        state = self.api.wait(duty, run_id, SECONDS)
        tasks = {str(task["task_id"]): str(task["state"]) for task in self.api.task_instances(duty, run_id)}
        return run_id, {**tasks, "": state}

    def get(self, path: str, *, stranger: bool = False) -> tuple[int, str]:
        request = urllib.request.Request(self.platform.airflow.url + path)
        if not stranger:
            request.add_header("Cookie", f"_token={self.api.token()}")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def published(self) -> int:
        """Entries ever stored in the topic's queues."""
        with open_broker(self.settings, self.connections, "embedded") as broker:
            return sum(queue.next_offset for queue in broker.queues("orders"))

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {SECONDS:.0f} s"
            time.sleep(0.5)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    root = tmp_path_factory.mktemp("live")
    platform = Platform(root)
    try:
        platform.start(airflow=False)
        prepare(load(platform.config), platform.connections())
        platform.airflow.env.update(
            platform.environment()
            | {
                "BACKSTOP_RECONCILE_SCHEDULE": "none",
                "BACKSTOP_RESEND_SCHEDULE": "none",
                "BACKSTOP_SWEEP_SCHEDULE": "none",
                "BACKSTOP_WATCH_SCHEDULE": "none",
                "BACKSTOP_RETRY_SECONDS": "1",
                "BACKSTOP_SPARK_FROM": "1",
                "BACKSTOP_DOCS_FOLDER": str(root / "docs"),
            }
        )
        platform.airflow.start()
        ready = Live(platform)
        for duty in ("reconcile", "resend", "sweep", "watch"):
            ready.api.unpause(duty)
        yield ready
    finally:
        platform.stop()


def test_what_is_lost_is_found_asked_for_and_sent_and_no_secret_is_told(live: Live) -> None:
    commands = CommandLines(live.platform.airflow.home)
    commands.start()

    # Nothing is due: open cases are judged again, the run is recorded, and neither Spark nor Great Expectations starts.
    _, tasks = live.run("reconcile")
    assert {name for name, state in tasks.items() if state != "skipped"} == {"", "open_run", "revisit", "close_run"}
    assert {state for state in tasks.values() if state != "skipped"} == {"success"}
    assert live.rows("control", "SELECT state, counts FROM run") == [("done", {"due": 0})]
    assert commands.spark == []

    # Three promises that nobody sent: reconcile asks for them once first_check is over, and wakes resend.
    live.promise(*IDS)
    due = "SELECT 1 FROM message_stub WHERE next_check_at <= clock_timestamp() {} HAVING count(*) = %s"
    live.wait_for(lambda: bool(live.rows("producer_a", due.format(""), len(IDS))), "the promises to be due")
    live.run("reconcile")  # sees them for the first time
    seen = due.format("AND first_seen_at + interval '4 s' <= clock_timestamp()")
    live.wait_for(lambda: bool(live.rows("producer_a", seen, len(IDS))), "the end of their first check")
    run_id, tasks = live.run("reconcile")
    assert {name: state for name, state in tasks.items() if state != "success"} == {"wake": "skipped"}
    assert live.rows("control", "SELECT count(*) FROM resend_request") == [(len(IDS),)]
    live.wait_for(lambda: live.rows("control", "SELECT DISTINCT state FROM resend_request") == [("sent",)], "the resend")
    assert live.published() == len(IDS)
    live.wait_for(lambda: [str(run["state"]) for run in live.api.dag_runs("resend")][:1] == ["success"], "resend's end")
    assert {run["run_type"] for run in live.api.dag_runs("resend")} == {"asset_triggered"}

    # Every audit left its row and its site; the button leads there, for readers only.
    control_run = live.rows("control", "SELECT max(run_id) FROM run WHERE duty = 'reconcile' AND stage > 0")[0][0]
    suites = live.rows("control", "SELECT suite FROM data_check WHERE run_id = %s AND passed", control_run)
    assert {suite for (suite,) in suites} == {"stubs_at_the_door", "logs_at_the_door", "verdicts", "requests"}
    links = live.api.request("GET", f"/dags/reconcile/dagRuns/{urllib.request.quote(run_id)}/taskInstances/audit_judged/links")[
        "extra_links"
    ]
    assert links["What this run did"].endswith(f"/backstop/runs/{control_run}")
    docs = {links[f"Data Docs: {suite}"].split("/")[-1] for suite in ("stubs_at_the_door", "logs_at_the_door", "verdicts")}
    assert docs == {"stubs_at_the_door", "logs_at_the_door", "verdicts"}
    for link in links.values():
        assert live.get(urlsplit(link).path)[0] == 200
        assert live.get(urlsplit(link).path, stranger=True)[0] == 401
    assert "UNSENT" in live.get(f"/backstop/runs/{control_run}")[1]

    # No secret on a command line, in a log, a rendered template, an XCom or a page; no payload either.
    commands.done.set()
    commands.join()
    assert commands.spark, "Spark was never seen"
    secrets = [urlsplit(url).password for url in live.platform.connections().values()]
    told = {f"command {number}": text for number, text in enumerate(commands.seen)}
    for file in live.platform.airflow.home.rglob("*"):
        if file.is_file() and file.suffix in (".log", ".txt", ".out"):
            told[str(file)] = file.read_text(errors="replace")
    for table in (
        "xcom",
        "rendered_task_instance_fields",
        "dag_run",
        "serialized_dag",
        "log",
        "task_instance",
    ):
        told[table] = json.dumps(live.rows("airflow", f"SELECT to_jsonb(t) FROM {table} AS t"), default=str)
    told["page"] = live.get(f"/backstop/runs/{control_run}")[1]
    for page in (live.platform.root / "docs").rglob("*.html"):
        told[str(page)] = page.read_text()
    for secret in filter(None, secrets):
        assert [where for where, text in told.items() if secret in text] == []
    assert [where for where, text in told.items() if "payload-91c2" in text] == []


def test_a_lease_that_ended_is_swept_by_spark_and_checked_and_then_nothing_is_started(live: Live) -> None:
    with psycopg2.connect(live.platform.dsn("consumer_billing")) as connection:
        begun = guard.begin_many(connection, "billing", [Arrival("orders", "stuck"), Arrival("orders", "done")], owner_host="h-1")
    connection.close()
    front = Front(RedisExchange(live.platform.connections()["backstop_leases"]), "billing", owner_host="h-1")
    front.held([(lease, Arrival("orders", lease.message_id)) for lease in begun if isinstance(lease, Acquired)])
    front.close()
    leases = redis.Redis.from_url(live.platform.connections()["backstop_leases"])
    for index in RedisKeys("billing").expiry:  # an hour passes
        for name in leases.zrange(index, 0, -1):
            leases.zincrby(index, -3_600_000, name)
            record = leases.get(name) or b""
            leases.set(name, record[:1] + b"%013d" % (int(record[1:14]) - 3_600_000) + record[14:], keepttl=True)
    leases.close()
    live.rows("consumer_billing", "UPDATE consumer_log SET lease_expires_at = now() - interval '1 s' WHERE message_id = 'stuck'")
    live.rows("consumer_billing", "UPDATE consumer_log SET state = 'CONSUMED', consumed_at = now() WHERE message_id = 'done'")
    _, tasks = live.run("sweep", dry_run=False)
    assert {name: state for name, state in tasks.items() if state != "success"} == {"wake": "skipped"}
    assert live.rows("consumer_billing", "SELECT message_id, state FROM consumer_log WHERE message_id IN ('stuck', 'done')"
                     " ORDER BY 1") == [("done", "CONSUMED"), ("stuck", "EXPIRED")]  # fmt: skip
    # The lease in the database and what stood in front of it; what is done was corrected by the bucket's part or by the sample's.
    counted = "SELECT owner_host, decision, sum(leases)::int FROM sweep_count GROUP BY 1, 2 ORDER BY 2"
    assert live.rows("control", counted) == [("h-1", "RECLAIM", 2), ("h-1", "REPAIR", 1)]
    checks = live.rows("control", "SELECT suite, passed FROM data_check WHERE suite LIKE 'leases%%' ORDER BY 1")
    assert checks == [("leases_after", True), ("leases_before", True)]
    _, tasks = live.run("sweep")
    assert (tasks["open_run"], tasks["sweep"], tasks[""]) == ("skipped", "skipped", "success")


def test_a_dry_run_with_a_shard_away_judges_the_other_promotes_nothing_and_ends_red(live: Live) -> None:
    live.promise("order-dry")
    due = "SELECT 1 FROM message_stub WHERE message_id = 'order-dry' AND next_check_at <= clock_timestamp()"
    live.wait_for(lambda: bool(live.rows("producer_a", due)), "the stub to be due")
    requests = live.rows("control", "SELECT count(*) FROM resend_request")
    admin = psycopg2.connect(live.platform.postgres.admin_dsn())
    admin.autocommit = True
    try:
        with admin.cursor() as cursor:
            cursor.execute("ALTER DATABASE producer_b ALLOW_CONNECTIONS false")
        _, tasks = live.run("reconcile", dry_run=True, topic="orders")
        _, watched = live.run("watch")
    finally:
        with admin.cursor() as cursor:
            cursor.execute("ALTER DATABASE producer_b ALLOW_CONNECTIONS true")
        admin.close()
    assert {tasks[name] for name in ("judge", "audit_judged")} == {"success"}
    assert {tasks[name] for name in ("promote", "audit_requests")} == {"skipped"}
    assert tasks["close_run"] == tasks[""] == "failed"
    # What a watch wrote before it failed is told, too; its run stays red.
    assert watched == {"watch": "failed", "wake": "success", "ended": "upstream_failed", "": "failed"}
    ((run_id, scope, dry_run, state, error),) = live.rows(
        "control", "SELECT run_id, scope, dry_run, state, error FROM run WHERE duty = 'reconcile' ORDER BY run_id DESC LIMIT 1"
    )
    assert (scope, dry_run, state) == (name_of(["orders"]), True, "incomplete")
    assert "shop_b" in error
    assert live.rows("control", "SELECT * FROM verdict_count WHERE run_id = %s", run_id) == []
    assert live.rows("control", "SELECT count(*) FROM resend_request") == requests
