"""The checker agrees when everything came out right, and with no world in which one thing did not."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from backstop.local.ledger import Ledger
from backstop.local.postgres import Postgres
from backstop.named_sql import load

SCHEMA = Path(__file__).resolve().parents[2] / "include" / "backstop" / "schema"
CHECKER = Path(__file__).resolve().parents[2] / "include" / "backstop" / "local" / "checker"
SHARDS, GROUPS = ("shop_a", "shop_b"), ("billing", "shipping")
ROLES = {"control": "control", **dict.fromkeys(SHARDS, "producer"), **dict.fromkeys(GROUPS, "consumer")}
TABLES = {
    "control": "resend_request, case_member, alert, case_file, verdict, verdict_count, quarantine, data_check,"
    " run",
    "producer": "business_order, send_attempt, message_stub",
    "consumer": "effect, consumer_log",
}
BUSINESS = load("backstop.local", "business.sql")


class World:
    """A small shop after a demo: five plain messages, one lost and repaired, one refused, one mass loss, one for each fault of a
    lease."""

    def __init__(self, postgres: Postgres, folder: Path) -> None:
        self.urls = {name: postgres.admin_dsn(f"shop_{name}") for name in ROLES}
        self.folder = folder
        self.ledger = Ledger(folder / "ledger")

    def sql(self, database: str, statement: str, *parameters: object) -> int:
        connection = psycopg2.connect(self.urls[database])
        with connection, connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            changed: int = cursor.rowcount
        connection.close()
        return changed

    def check(self) -> tuple[int, dict[str, Any]]:
        """The exit code and the findings of the checker as `make demo` runs it."""
        places = {
            "control": self.urls["control"],
            "producers": {shard: self.urls[shard] for shard in SHARDS},
            "groups": {group: self.urls[group] for group in GROUPS},
            "topics": {"orders": list(GROUPS), "payments": list(GROUPS), "refunds": list(GROUPS)},
        }
        (self.folder / "places.json").write_text(json.dumps(places))
        done = subprocess.run(
            [sys.executable, "-I", str(CHECKER), str(self.folder / "places.json"), str(self.ledger.folder)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode in (0, 1), done.stderr
        return done.returncode, json.loads(done.stdout)

    def message(
        self, shard: str, number: int, topic: str, message_id: str, status: str = "confirmed"
    ) -> None:
        self.sql(shard, "INSERT INTO business_order VALUES (%s, %s, %s, 1)", number, topic, message_id)
        self.sql(
            shard,
            "INSERT INTO message_stub (topic, message_id, content, status, send_count, next_check_at)"
            " VALUES (%s, %s, '', %s, 3, now())",
            topic, message_id, status,
        )  # fmt: skip

    def effect(self, topic: str, message_id: str) -> None:
        for group in GROUPS:
            self.sql(group, "INSERT INTO effect VALUES (%s, %s, %s, 1, 1, 'w')", group, topic, message_id)

    def log(self, message_id: str, fence: int, duplicates_stopped: int = 0) -> None:
        """Done by both groups under this fence, as the database logged it and as the effects say."""
        for group in GROUPS:
            self.sql(group, "INSERT INTO effect VALUES (%s, 'orders', %s, 1, %s, 'w')", group, message_id, fence)
            self.sql(
                group,
                "INSERT INTO consumer_log (consumer_group, topic, message_id, state, consumed_at, lease_expires_at, fence,"
                " attempts, duplicates_stopped) VALUES (%s, 'orders', %s, 'CONSUMED', now(), now(), %s, %s, %s)",
                group, message_id, fence, fence, duplicates_stopped,
            )  # fmt: skip

    def attempt(self, shard: str, topic: str, message_id: str, number: int, outcome: str) -> None:
        self.sql(
            shard,
            "INSERT INTO send_attempt (topic, message_id, send_number, requested_by, started_at, outcome)"
            " VALUES (%s, %s, %s, 'r', now(), %s)",
            topic, message_id, number, outcome,
        )  # fmt: skip

    def verdict(self, topic: str, message_id: str, group: str, verdict: str) -> None:
        self.sql(
            "control",
            "INSERT INTO verdict (run_id, shard, topic, message_id, consumer_group, verdict, reason, eligible,"
            " send_count, evidence) SELECT max(run_id), 'shop_a', %s, %s, %s, %s, 'r', true, 1, '{}' FROM run",
            topic, message_id, group, verdict,
        )  # fmt: skip
        self.sql(
            "control",
            "INSERT INTO verdict_count SELECT max(run_id), %s, %s, %s, 1, 1, 0 FROM run ON CONFLICT"
            " (run_id, topic, consumer_group, verdict)"
            " DO UPDATE SET deliveries = verdict_count.deliveries + 1",
            topic, group, verdict,
        )  # fmt: skip

    def case(self, kind: str, topic: str, message_id: str) -> None:
        self.sql(
            "control",
            "WITH c AS (INSERT INTO case_file (kind, topic, summary) VALUES (%s, %s, 's') RETURNING case_id),"
            " m AS (INSERT INTO case_member (case_id, shard, topic, message_id)"
            "       SELECT case_id, 'shop_a', %s, %s FROM c)"
            " INSERT INTO alert (case_id, dedup_key, severity, title, body)"
            " SELECT case_id, %s, 'info', 't', 'b' FROM c",
            kind, topic, topic, message_id, kind + message_id,
        )  # fmt: skip

    def make(self) -> None:
        for database, role in ROLES.items():
            self.sql(database, f"TRUNCATE {TABLES[role]} CASCADE")
        self.sql(
            "control",
            "INSERT INTO run (duty, token, policy_version, code_version)"
            " VALUES ('reconcile', gen_random_uuid(), 'p', 'c')",
        )
        for number in range(5):
            self.message(SHARDS[number % 2], number, "orders", f"plain:{number}%é'")
            self.effect("orders", f"plain:{number}%é'")
        self.message("shop_a", 10, "orders", "lost")
        self.effect("orders", "lost")
        self.attempt("shop_a", "orders", "lost", 2, "sent")
        self.message("shop_b", 11, "refunds", "refused", "exhausted")
        self.case("exhausted", "refunds", "refused")
        self.attempt("shop_b", "refunds", "refused", 2, "refused")
        self.message("shop_a", 12, "payments", "deleted", "pending")
        self.effect("payments", "deleted")
        self.case("mass_loss", "payments", "deleted")
        for group in GROUPS:
            self.verdict("orders", "lost", group, "LOST")
            self.verdict("refunds", "refused", group, "EXHAUSTED")
        self.verdict("payments", "deleted", "billing", "LOST")
        self.sql(
            "shipping",
            "INSERT INTO consumer_log (consumer_group, topic, message_id, state, consumed_at)"
            " VALUES ('shipping', 'payments', 'deleted', 'CONSUMED', now())",
        )
        for number, (message_id, fence) in enumerate((("held", 2), ("late", 2), ("flushed", 1))):
            self.message("shop_b", 20 + number, "orders", message_id)
            self.log(message_id, fence, duplicates_stopped=1 if message_id == "flushed" else 0)
        self.ledger.append("lease_killed", [("orders", "held")], consumer_group="billing", detail="fence 1")
        for detail in ("shipping-1 stood still with fence 1", "shipping-1 woke up with fence 1"):
            self.ledger.append("worker_woken_late", [("orders", "late")], consumer_group="shipping", detail=detail)
        self.ledger.append("leases_flushed", [("orders", "flushed")])
        self.ledger.append("lost_in_broker", [("orders", "lost")])
        self.ledger.append("refused", [("refunds", "refused")])
        self.ledger.append("mass_loss", [("payments", "deleted")], consumer_group="billing")


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with Postgres(tmp_path_factory.mktemp("postgres")) as server:
        for name, role in ROLES.items():
            server.create_database(f"shop_{name}")
            connection = psycopg2.connect(server.admin_dsn(f"shop_{name}"))
            with connection, connection.cursor() as cursor:
                for file in sorted((SCHEMA / role).glob("0*.sql")):
                    cursor.execute(file.read_text())
                if role == "producer":
                    cursor.execute(BUSINESS["make_business_order"])
                if role == "consumer":
                    cursor.execute(BUSINESS["make_effect"])
            connection.close()
        yield server


@pytest.fixture
def world(postgres: Postgres, tmp_path: Path) -> World:
    made = World(postgres, tmp_path)
    made.make()
    return made


def test_it_agrees_when_everything_came_out_right(world: World) -> None:
    code, told = world.check()
    assert told["problems"] == []
    assert (code, told["ok"]) == (0, True)
    assert told["effects"]["billing"] == {
        "owed": 11, "expected": 10, "exactly_once": 10, "missing": 0, "duplicated": 0, "unexpected": 0,
    }  # fmt: skip
    assert told["verdicts"]["adds_up"]
    assert sum(told["verdicts"]["final"].values()) == told["verdicts"]["deliveries"] == 22
    assert {fault: one["found"] for fault, one in told["faults"].items()} == dict.fromkeys(
        ("lost_in_broker", "refused", "mass_loss", "lease_killed", "worker_woken_late", "leases_flushed"), 1
    )


Break = Callable[[World], object]
BROKEN: dict[str, tuple[str, Break]] = {
    "one effect is deleted": (
        "effect missing",
        lambda w: w.sql("billing", "DELETE FROM effect WHERE message_id LIKE 'plain:3%%'"),
    ),
    "one effect is doubled": (
        "effect duplicated",
        lambda w: w.sql("shipping", "INSERT INTO effect SELECT * FROM effect WHERE message_id = 'lost'"),
    ),
    "one effect belongs to a message that nobody promised": (
        "effect unexpected",
        lambda w: w.sql("shipping", "INSERT INTO effect VALUES ('shipping', 'orders', 'nobody', 1, 1, 'w')"),
    ),
    "a refused message has an effect": ("effect unexpected", lambda w: w.effect("refunds", "refused")),
    "one resend is needless": (
        "resend needless",
        lambda w: w.attempt("shop_a", "orders", "plain:0%é'", 2, "sent"),
    ),
    "a lost message is sent again once more than it was lost": (
        "resend needless",
        lambda w: w.attempt("shop_a", "orders", "lost", 3, "sent"),
    ),
    "a message of the mass loss is sent again": (
        "resend needless",
        lambda w: w.attempt("shop_a", "payments", "deleted", 2, "sent"),
    ),
    "one stub is unaccounted for": (
        "stub unaccounted for",
        lambda w: w.sql(
            "shop_a", "UPDATE message_stub SET status = 'pending' WHERE message_id LIKE 'plain:2%%'"
        ),
    ),
    "an exhausted stub has no case": (
        "stub unaccounted for",
        lambda w: w.sql("control", "DELETE FROM case_member WHERE message_id = 'refused'"),
    ),
    "one stub is gone": (
        "business row without exactly one stub",
        lambda w: w.sql("shop_b", "DELETE FROM message_stub WHERE message_id LIKE 'plain:1%%'"),
    ),
    "one stub promises what no business row says": (
        "stub without a business row",
        lambda w: w.sql("shop_b", "DELETE FROM business_order WHERE message_id LIKE 'plain:1%%'"),
    ),
    "an injected loss was never found": (
        "fault not dealt with",
        lambda w: w.sql("control", "UPDATE verdict SET verdict = 'BACKLOGGED' WHERE message_id = 'lost'"),
    ),
    "an injected loss was never repaired": (
        "fault not dealt with",
        lambda w: w.sql("shop_a", "DELETE FROM send_attempt WHERE message_id = 'lost'"),
    ),
    "a run counted more verdicts than it kept": (
        "a run's counts differ from its verdicts",
        lambda w: w.sql("control", "UPDATE verdict_count SET deliveries = 9 WHERE verdict = 'LOST'"),
    ),
    "a lease was left behind": (
        "work begun and never ended",
        lambda w: w.sql(
            "shipping",
            "UPDATE consumer_log SET state = 'CONSUMING', lease_expires_at = now() - interval '1 hour' WHERE message_id = 'held'",
        ),
    ),
    "a lease was given back and nobody has taken it since": (
        "work begun and never ended",
        lambda w: w.sql("billing", "UPDATE consumer_log SET state = 'EXPIRED' WHERE message_id = 'flushed'"),
    ),
    "the work of a killed holder was never begun again": (
        "fault not dealt with",
        lambda w: w.sql("billing", "UPDATE consumer_log SET attempts = 1 WHERE message_id = 'held'"),
    ),
    "the work of a late worker stands": (
        "fault not dealt with",
        lambda w: w.sql("shipping", "UPDATE effect SET fence = 1 WHERE message_id = 'late'"),
    ),
    "the work of a late worker stands beside the other's": (
        "effect duplicated",
        lambda w: w.sql("shipping", "INSERT INTO effect VALUES ('shipping', 'orders', 'late', 1, 1, 'w')"),
    ),
    "a worker stood still and never woke up": (
        "fault not dealt with",
        lambda w: w.ledger.append(
            "worker_woken_late", [("orders", "late")], consumer_group="shipping", detail="shipping-2 stood still with fence 2"
        ),
    ),
    "after a flush a group's database was not asked": (
        "fault not dealt with",
        lambda w: w.sql("shipping", "UPDATE consumer_log SET duplicates_stopped = 0 WHERE message_id = 'flushed'"),
    ),
    "a check of the data failed": (
        "data check failed",
        lambda w: w.sql(
            "control",
            "INSERT INTO data_check (run_id, suite, passed, expectations, failed)"
            """ SELECT max(run_id), 'verdicts', false, 1, '[{"name": "adds_up"}]' FROM run""",
        ),
    ),
    "the sweep met work that was done without a time, and nobody had broken it": (
        "data check failed",
        lambda w: w.sql(
            "control",
            "INSERT INTO data_check (run_id, suite, passed, expectations, failed)"
            """ SELECT max(run_id), 'leases_before', false, 1, '[{"name": "done_has_a_time"}]' FROM run""",
        ),
    ),
    "a request is still open": (
        "resend request not closed",
        lambda w: w.sql(
            "control",
            "INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by)"
            " VALUES ('shop_a', 'orders', 'lost', 3, 'r', 'r')",
        ),
    ),
    "a case has no alert": ("case without an alert", lambda w: w.sql("control", "DELETE FROM alert")),
    "an attempt is beyond the numbers handed out": (
        "attempt beyond the numbers handed out",
        lambda w: w.sql("shop_a", "UPDATE message_stub SET send_count = 1 WHERE message_id = 'lost'"),
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_it_disagrees_when(what: str, world: World) -> None:
    rule, break_it = BROKEN[what]
    break_it(world)
    code, told = world.check()
    assert (code, told["ok"]) == (1, False)
    assert rule in {problem["rule"] for problem in told["problems"]}, told["problems"]


def imported_by(file: Path) -> set[str]:
    """The first name of everything that it imports from elsewhere."""
    return {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(file.read_text()))
        for name in (
            [alias.name for alias in node.names] if isinstance(node, ast.Import)
            else [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
        )
    }  # fmt: skip


def test_it_imports_nothing_of_backstop() -> None:
    files = sorted(CHECKER.glob("*.py"))
    assert len(files) > 3
    assert set().union(*map(imported_by, files)) - set(sys.stdlib_module_names) == {"psycopg2"}
    # And nothing does so for it: isolated, with whatever it pulls in.
    ours = "[name for name in sys.modules if name.startswith('backstop')]"
    code = f"import sys; sys.path.append({str(CHECKER.parent)!r}); import checker.check; print({ours})"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
