"""A live Airflow runs both duties over real databases, a real broker and real Spark: what it does, shows and
never tells."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import psycopg2
import pytest
import redis

from backstop.brokers.open import open_broker
from backstop.client import SendPolicy, record
from backstop.leases import guard
from backstop.leases.front import Front
from backstop.leases.lease import Acquired, Arrival
from backstop.leases.redis_exchange import RedisExchange
from backstop.leases.redis_records import RedisKeys
from backstop.runs.scope import name_of
from live_people import Live

pytestmark = pytest.mark.timeout(900)
TOPIC = "payments"
"""Of these tests alone."""
QUICK = SendPolicy(timedelta(seconds=2), timedelta(seconds=2), timedelta(seconds=1))
"""As backstop.yaml has it for the embedded platform."""
IDS = tuple(f"payment-{number}" for number in range(3))
"""Enough for Spark (live_people.py)."""
PAYLOAD = b"payload-91c2 of a customer"


class CommandLines(threading.Thread):
    """Reads the command line of every process of one platform, again and again, while Airflow and Spark
    work."""

    def __init__(self, home: Path) -> None:
        super().__init__(daemon=True)
        self.seen: set[str] = set()
        self.done = threading.Event()
        self._ours = f"AIRFLOW_HOME={home}".encode()

    def spark(self, duty: str) -> list[str]:
        """Those of Spark's JVMs that work for the duty."""
        return [
            command
            for command in self.seen
            if "org.apache.spark" in command and f"spark_jobs/{duty}.py" in command
        ]

    def run(self) -> None:
        while not self.done.wait(0.5):
            for file in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    if self._ours not in (file.parent / "environ").read_bytes():
                        continue
                    self.seen.add(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
                except OSError:
                    continue  # it has ended


@pytest.fixture(scope="module", autouse=True)
def nothing_is_open(people: Live) -> None:
    people.forget_cases()


def promise(people: Live, *ids: str) -> None:
    """Stubs of five minutes ago whose send was left to Backstop, and whose first check is over."""
    connection = psycopg2.connect(people.platform.dsn("producer_a"))
    with connection, connection.cursor() as cursor:
        for message_id in ids:
            record(connection, TOPIC, PAYLOAD, message_id=message_id, policy=QUICK, send=False)
        cursor.execute(
            """UPDATE message_stub SET created_at = created_at - interval '5 min', first_seen_at = created_at - interval '5 min',
                   next_check_at = created_at - interval '4 min'
               WHERE topic = %s AND message_id = ANY(%s)""",
            (TOPIC, list(ids)),
        )
    connection.close()


def get(people: Live, path: str, *, stranger: bool = False) -> tuple[int, str]:
    request = urllib.request.Request(people.platform.airflow.url + path)
    if not stranger:
        request.add_header("Cookie", f"_token={people.api.token()}")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def published(people: Live) -> int:
    """Entries ever stored in the topic's queues."""
    with open_broker(people.settings, people.connections, "embedded") as broker:
        return sum(queue.next_offset for queue in broker.queues(TOPIC))


def test_what_is_lost_is_found_asked_for_and_sent_and_no_secret_is_told(people: Live) -> None:
    commands = CommandLines(people.platform.airflow.home)
    commands.start()

    # Nothing is due: open cases are judged again, the run is recorded, and neither Spark nor Great Expectations starts.
    tasks = people.run("reconcile", topic=TOPIC)
    assert {name for name, state in tasks.items() if state != "skipped"} == {
        "",
        "open_run",
        "revisit",
        "close_run",
    }
    assert {state for state in tasks.values() if state != "skipped"} == {"success"}
    last = "SELECT state, counts FROM run WHERE duty = 'reconcile' ORDER BY run_id DESC LIMIT 1"
    assert people.rows(last) == [("done", {"due": 0})]
    assert commands.spark("reconcile") == []

    # Three promises that nobody sent: reconcile asks for them, and wakes resend.
    ((resends,),) = people.airflow("SELECT count(*) FROM dag_run WHERE dag_id = 'resend'")
    promise(people, *IDS)
    run_id, tasks = people.run_named("reconcile", topic=TOPIC)
    assert {name: state for name, state in tasks.items() if state != "success"} == {
        "wake": "skipped"
    }
    requested = "SELECT state FROM resend_request WHERE topic = %s"
    assert len(people.rows(requested, TOPIC)) == len(IDS)
    people.wait_for(lambda: set(people.rows(requested, TOPIC)) == {("sent",)}, "the resend")
    assert published(people) == len(IDS)
    woken = "SELECT run_type, state FROM dag_run WHERE dag_id = 'resend' ORDER BY id OFFSET %s"
    people.wait_for(
        lambda: {state for _, state in people.airflow(woken, resends)} == {"success"},
        "resend's end",
    )
    assert {kind for kind, _ in people.airflow(woken, resends)} == {"asset_triggered"}

    # Every audit left its row and its site; the button leads there, for readers only.
    control_run = people.rows("SELECT max(run_id) FROM run WHERE duty = 'reconcile' AND stage > 0")[
        0
    ][0]
    suites = people.rows("SELECT suite FROM data_check WHERE run_id = %s AND passed", control_run)
    assert {suite for (suite,) in suites} == {
        "stub_contract",
        "log_contract",
        "verdicts",
        "requests",
    }
    # Its Spark job wrote what it was doing.
    phase = "SELECT phase IS NOT NULL AND phase_at BETWEEN started_at AND finished_at FROM run WHERE run_id = %s"
    assert people.rows(phase, control_run) == [(True,)]
    links = people.api.request(
        "GET",
        f"/dags/reconcile/dagRuns/{urllib.request.quote(run_id)}/taskInstances/audit_judged/links",
    )["extra_links"]
    assert links["What this run did"].endswith(f"/backstop/runs/{control_run}")
    docs = {
        links[f"Data Docs: {suite}"].split("/")[-1]
        for suite in ("stub_contract", "log_contract", "verdicts")
    }
    assert docs == {"stub_contract", "log_contract", "verdicts"}
    for link in links.values():
        assert get(people, urlsplit(link).path)[0] == 200
        assert get(people, urlsplit(link).path, stranger=True)[0] == 401
    assert "UNSENT" in get(people, f"/backstop/runs/{control_run}")[1]

    # No secret on a command line, in a log, a rendered template, an XCom or a page; no payload either.
    commands.done.set()
    commands.join()
    assert commands.spark("reconcile"), "Spark was never seen"
    secrets = [urlsplit(url).password for url in people.platform.connections().values()]
    told = {f"command {number}": text for number, text in enumerate(commands.seen)}
    for file in people.platform.airflow.home.rglob("*"):
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
        told[table] = json.dumps(
            people.airflow(f"SELECT to_jsonb(t) FROM {table} AS t"), default=str
        )
    told["page"] = get(people, f"/backstop/runs/{control_run}")[1]
    for page in (people.platform.root / "docs").rglob("*.html"):
        told[str(page)] = page.read_text()
    for secret in filter(None, secrets):
        assert [where for where, text in told.items() if secret in text] == []
    assert [where for where, text in told.items() if "payload-91c2" in text] == []


def test_a_lease_that_ended_is_swept_by_spark_and_checked_and_then_nothing_is_started(
    people: Live,
) -> None:
    with psycopg2.connect(people.platform.dsn("consumer_billing")) as connection:
        arrivals = [Arrival("orders", name) for name in ("stuck", "stuck-2", "done")]
        begun = guard.begin_many(connection, "billing", arrivals, owner_host="h-1")
    connection.close()
    front = Front(
        RedisExchange(people.platform.connections()["backstop_leases"]), "billing", owner_host="h-1"
    )
    front.held(
        [
            (lease, Arrival("orders", lease.message_id))
            for lease in begun
            if isinstance(lease, Acquired)
        ]
    )
    front.close()
    leases = redis.Redis.from_url(people.platform.connections()["backstop_leases"])
    for index in RedisKeys("billing").expiry:  # an hour passes
        for name in leases.zrange(index, 0, -1):
            leases.zincrby(index, -3_600_000, name)
            record = leases.get(name) or b""
            leases.set(
                name,
                record[:1] + b"%013d" % (int(record[1:14]) - 3_600_000) + record[14:],
                keepttl=True,
            )
    leases.close()
    people.rows(
        "UPDATE consumer_log SET lease_expires_at = now() - interval '1 s' WHERE message_id IN ('stuck', 'stuck-2')",
        database="consumer_billing",
    )
    people.rows(
        "UPDATE consumer_log SET state = 'CONSUMED', consumed_at = now() WHERE message_id = 'done'",
        database="consumer_billing",
    )
    # A dry run skips the checks of what it did not write, and not the sweep itself.
    tasks = people.run("sweep", dry_run=True)
    skipped = {name for name, state in tasks.items() if state == "skipped"}
    assert skipped == {"audit_before", "audit_after", "wake"}
    assert set(tasks.values()) == {"success", "skipped"}
    swept = "SELECT message_id, state FROM consumer_log WHERE message_id IN ('stuck', 'stuck-2', 'done') ORDER BY 1"
    assert dict(people.rows(swept, database="consumer_billing"))["stuck"] == "CONSUMING"
    run_id, tasks = people.run_named("sweep", dry_run=False)
    assert {name: state for name, state in tasks.items() if state != "success"} == {
        "wake": "skipped"
    }
    assert "spark-submit" in people.api.task_log("sweep", run_id, "sweep")
    assert people.rows(swept, database="consumer_billing") == [
        ("done", "CONSUMED"),
        ("stuck", "EXPIRED"),
        ("stuck-2", "EXPIRED"),
    ]
    # The lease in the database and what stood in front of it; what is done was corrected by the bucket's part or by the sample's.
    counted = (
        "SELECT owner_host, decision, sum(leases)::int FROM sweep_count GROUP BY 1, 2 ORDER BY 2"
    )
    assert people.rows(counted) == [("h-1", "RECLAIM", 4), ("h-1", "REPAIR", 1)]
    checks = people.rows(
        "SELECT suite, passed FROM data_check WHERE suite LIKE 'leases%%' ORDER BY 1"
    )
    assert checks == [("leases_after", True), ("leases_before", True)]
    tasks = people.run("sweep")
    assert (tasks["open_run"], tasks["sweep"], tasks[""]) == ("skipped", "skipped", "success")


def test_a_dry_run_with_a_shard_away_judges_the_other_promotes_nothing_and_ends_red(
    people: Live,
) -> None:
    promise(people, "payment-dry")
    requests = people.rows("SELECT count(*) FROM resend_request WHERE topic = %s", TOPIC)
    admin = psycopg2.connect(people.platform.postgres.admin_dsn())
    admin.autocommit = True
    try:
        with admin.cursor() as cursor:
            cursor.execute("ALTER DATABASE producer_b ALLOW_CONNECTIONS false")
        tasks = people.run("reconcile", dry_run=True, topic=TOPIC)
        watched = people.run("watch")
    finally:
        with admin.cursor() as cursor:
            cursor.execute("ALTER DATABASE producer_b ALLOW_CONNECTIONS true")
        admin.close()
    assert {tasks[name] for name in ("judge", "audit_judged")} == {"success"}
    assert {tasks[name] for name in ("promote", "audit_requests")} == {"skipped"}
    assert tasks["close_run"] == tasks[""] == "failed"
    # What a watch wrote before it failed is told, too; its run stays red.
    assert watched == {
        "watch": "failed",
        "wake": "success",
        "ended": "upstream_failed",
        "": "failed",
    }
    ((run_id, scope, dry_run, state, error),) = people.rows(
        "SELECT run_id, scope, dry_run, state, error FROM run WHERE duty = 'reconcile' ORDER BY run_id DESC LIMIT 1"
    )
    assert (scope, dry_run, state) == (name_of([TOPIC]), True, "incomplete")
    assert "shop_b" in error
    assert people.rows("SELECT * FROM verdict_count WHERE run_id = %s", run_id) == []
    assert people.rows("SELECT count(*) FROM resend_request WHERE topic = %s", TOPIC) == requests
