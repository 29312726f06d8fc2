"""A small end state of the demo, by SQL: everything came out right, until a test breaks one thing."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg2

from backstop.sql.named import load
from backstop_lab.checker import check
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.receive_alerts import Received
from backstop_lab.shop.ledger import Ledger

SCHEMA = Path(__file__).resolve().parents[2] / "include" / "backstop" / "schema"
CHECKER = Path(__file__).resolve().parents[2] / "include" / "backstop_lab" / "checker"
SHARDS, GROUPS = ("shop_a", "shop_b"), ("billing", "shipping")
ROLES = {
    "control": "control",
    **dict.fromkeys(SHARDS, "producer"),
    **dict.fromkeys(GROUPS, "consumer"),
}
TABLES = {
    "control": "resend_request, case_member, alert, alert_message, case_file, verdict, verdict_count, quarantine, data_check,"
    " delivery_decision, message_version, dead_letter, drain_batch, run",
    "producer": "business_order, send_attempt, message_stub",
    "consumer": "effect, consumer_log",
}
BUSINESS = load("backstop_lab.shop", "business.sql")


class World:
    """A small shop after a demo: five plain messages, one lost and repaired, one refused, one mass loss, one for each fault of a
    lease."""

    def __init__(self, postgres: Postgres, folder: Path) -> None:
        self.urls = {name: postgres.admin_dsn(f"shop_{name}") for name in ROLES}
        self.folder = folder
        self._connections: dict[str, Any] = {}
        self.ledger = Ledger(folder / "ledger")
        self.received = Received(folder / "received")

    def cursor(self, database: str) -> Any:
        """Every statement is its own transaction; one connection serves them all."""
        if database not in self._connections:
            self._connections[database] = psycopg2.connect(self.urls[database])
            self._connections[database].autocommit = True
        return self._connections[database].cursor()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def sql(self, database: str, statement: str, *parameters: object) -> int:
        with self.cursor(database) as cursor:
            cursor.execute(statement, parameters or None)
            changed: int = cursor.rowcount
        return changed

    def value(self, database: str, statement: str, *parameters: object) -> Any:
        with self.cursor(database) as cursor:
            cursor.execute(statement, parameters)
            [(value,)] = cursor.fetchall()
        return value

    def check(self, *, as_program: bool = False) -> tuple[int, dict[str, Any]]:
        """The exit code and the findings of the checker; `as_program`: in a process of its own, as `make demo` runs it."""
        places = {
            "control": self.urls["control"],
            "producers": {shard: self.urls[shard] for shard in SHARDS},
            "groups": {group: self.urls[group] for group in GROUPS},
            "received": str(self.received.folder),
            "topics": {"orders": list(GROUPS), "payments": list(GROUPS), "refunds": list(GROUPS)},
        }
        file = self.folder / "places.json"
        file.write_text(json.dumps(places))
        arguments = [str(file), str(self.ledger.folder)]
        if as_program:
            program = [sys.executable, "-I", str(CHECKER), *arguments]
            done = subprocess.run(program, capture_output=True, text=True, check=False)
            assert done.returncode in (0, 1), done.stderr
            return done.returncode, json.loads(done.stdout)
        with redirect_stdout(StringIO()) as printed:
            code = check.main(arguments)
        return code, json.loads(printed.getvalue())

    def message(
        self, shard: str, number: int, topic: str, message_id: str, status: str = "confirmed"
    ) -> None:
        self.sql(
            shard, "INSERT INTO business_order VALUES (%s, %s, %s, 1)", number, topic, message_id
        )
        self.sql(
            shard,
            "INSERT INTO message_stub (topic, message_id, content, status, send_count, next_check_at)"
            " VALUES (%s, %s, '', %s, 3, now())",
            topic,
            message_id,
            status,
        )

    def effect(self, topic: str, message_id: str) -> None:
        for group in GROUPS:
            self.sql(
                group, "INSERT INTO effect VALUES (%s, %s, %s, 1, 1, 'w')", group, topic, message_id
            )

    def log(self, message_id: str, fence: int, duplicates_stopped: int = 0) -> None:
        """Done by both groups under this fence, as the database logged it and as the effects say."""
        for group in GROUPS:
            self.sql(
                group,
                "INSERT INTO effect VALUES (%s, 'orders', %s, 1, %s, 'w')",
                group,
                message_id,
                fence,
            )
            self.sql(
                group,
                "INSERT INTO consumer_log (consumer_group, topic, message_id, state, consumed_at, lease_expires_at, fence,"
                " attempts, duplicates_stopped) VALUES (%s, 'orders', %s, 'CONSUMED', now(), now(), %s, %s, %s)",
                group,
                message_id,
                fence,
                fence,
                duplicates_stopped,
            )

    def attempt(
        self,
        shard: str,
        topic: str,
        message_id: str,
        number: int,
        outcome: str,
        group: str | None = None,
    ) -> None:
        self.sql(
            shard,
            "INSERT INTO send_attempt (topic, message_id, send_number, requested_by, started_at, outcome, groups)"
            " VALUES (%s, %s, %s, 'r', now(), %s, %s)",
            topic,
            message_id,
            number,
            outcome,
            [group] if group else None,
        )

    def verdict(self, topic: str, message_id: str, group: str, verdict: str) -> None:
        self.sql(
            "control",
            "INSERT INTO verdict (run_id, shard, topic, message_id, consumer_group, verdict, reason, eligible,"
            " send_count, evidence) SELECT max(run_id), 'shop_a', %s, %s, %s, %s, 'r', true, 1, '{}' FROM run",
            topic,
            message_id,
            group,
            verdict,
        )
        self.sql(
            "control",
            "INSERT INTO verdict_count SELECT max(run_id), %s, %s, %s, 1, 1, 0 FROM run ON CONFLICT"
            " (run_id, topic, consumer_group, verdict)"
            " DO UPDATE SET deliveries = verdict_count.deliveries + 1",
            topic,
            group,
            verdict,
        )

    def case(
        self, kind: str, topic: str, message_id: str, group: str = "*", answer: str | None = None
    ) -> int:
        """A case that people were told of; with an answer it is closed, and they were told that too."""
        decisions = [{"action": answer, "by": "ann", "why": "w"}] if answer else []
        case_id = self.value(
            "control",
            "WITH c AS (INSERT INTO case_file (kind, topic, consumer_group, subject, summary, evidence, state, closed_at)"
            " VALUES (%s, %s, %s, %s, 's', %s, %s, CASE WHEN %s THEN now() END) RETURNING case_id)"
            " INSERT INTO case_member (case_id, shard, topic, message_id, consumer_group)"
            " SELECT case_id, 'shop_a', %s, %s, %s FROM c RETURNING case_id",
            kind,
            topic,
            group,
            message_id,
            json.dumps({"decisions": decisions}),
            "closed" if answer else "open",
            bool(answer),
            topic,
            message_id,
            group,
        )
        self.alert(case_id, f"case/{case_id}", f"Case {case_id}: {kind} in {topic}")
        if answer:
            self.alert(
                case_id, f"case/{case_id}/closed", f"Case {case_id} closed: {kind} in {topic}"
            )
        return case_id

    def alert(self, case_id: int, key: str, title: str) -> None:
        """Written, sent to both channels, and received."""
        self.sql(
            "control",
            "INSERT INTO alert (case_id, dedup_key, severity, title, body, delivered_at) VALUES (%s, %s, 'info', %s, 'b', now())",
            case_id,
            key,
            title,
        )
        for way in ("mail", "post"):
            self.sql("control", "INSERT INTO alert_message (channel, alerts) VALUES (%s, 1)", way)
            self.received.keep(way, f"[info] {title}", "b")

    def dead(
        self, fault: str, message_id: str, group: str, state: str, send_number: int | None = None
    ) -> None:
        """A letter of orders, drained and ended, and the ledger's line about its death."""
        self.ledger.append(fault, [("orders", message_id)], consumer_group=group)
        self.sql(
            "control",
            "WITH b AS (INSERT INTO drain_batch (run_id, broker, queue, letters, acknowledged_at)"
            " SELECT max(run_id), 'embedded', 'q', 1, now() FROM run RETURNING batch_id)"
            " INSERT INTO dead_letter (batch_id, broker, queue, broker_id, topic, message_id, consumer_group, headers,"
            " content_bytes, state, closed_at, proof, decided_by, shard, send_number)"
            " SELECT batch_id, 'embedded', 'q', %s, 'orders', %s, %s, '', 0, %s, now(), %s, 'triage', 'shop_a', %s FROM b",
            f"{message_id}-{group}",
            message_id,
            group,
            state,
            "{}" if state == "discarded" else None,
            send_number,
        )

    def give_up(self, topic: str, message_id: str, group: str) -> None:
        self.sql(
            "control",
            "INSERT INTO delivery_decision (topic, message_id, consumer_group, decision, decided_by, why)"
            " VALUES (%s, %s, %s, 'discard', 'ann', 'w')",
            topic,
            message_id,
            group,
        )

    def done(self, group: str, message_id: str, version: int = 1) -> None:
        self.sql(
            group, "INSERT INTO effect VALUES (%s, 'orders', %s, 1, 1, 'w')", group, message_id
        )
        self.sql(
            group,
            "INSERT INTO consumer_log (consumer_group, topic, message_id, state, consumed_at, content_version)"
            " VALUES (%s, 'orders', %s, 'CONSUMED', now(), %s)",
            group,
            message_id,
            version,
        )

    def make_deaths(self) -> None:
        """One message for each way to die; what is no JSON kills both groups."""
        for number, (fault, group, answer) in enumerate(
            (
                ("suppressed_done", "billing", None),
                ("suppressed_undone", "shipping", None),
                ("dependency_down", "shipping", None),
                ("message_expired", "shipping", "replay"),
                ("field_missing", "shipping", "edit"),
                ("rule_refused", "billing", "replay"),
            )
        ):
            self.message("shop_a", 30 + number, "orders", fault)
            for one in GROUPS:
                self.done(one, fault, 2 if (fault, one) == ("field_missing", group) else 1)
            if fault == "suppressed_done":
                self.dead(fault, fault, group, "discarded")
                continue
            self.attempt("shop_a", "orders", fault, 2, "sent", group)
            self.dead(fault, fault, group, "replayed", 2)
            if answer:
                self.case("dead_letters", "orders", fault, group, answer)
        for version in (1, 2):
            self.sql(
                "control",
                "INSERT INTO message_version (shard, topic, message_id, content_version, content, written_by, why)"
                " VALUES ('shop_a', 'orders', 'field_missing', %s, '', 'ann', 'w')",
                version,
            )
        self.message("shop_a", 40, "orders", "not_json")
        for group in GROUPS:
            self.dead("not_json", "not_json", group, "discarded")
            self.case("dead_letters", "orders", "not_json", group, "discard")
            self.give_up("orders", "not_json", group)
            self.sql(
                group,
                "INSERT INTO consumer_log (consumer_group, topic, message_id, state)"
                " VALUES (%s, 'orders', 'not_json', 'FAILED')",
                group,
            )

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
        self.message("shop_a", 12, "payments", "deleted")
        self.effect("payments", "deleted")
        self.case("mass_loss", "payments", "deleted", answer="discard")
        self.give_up("payments", "deleted", "billing")
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
        self.ledger.append(
            "lease_killed", [("orders", "held")], consumer_group="billing", detail="fence 1"
        )
        for detail in ("shipping-1 stood still with fence 1", "shipping-1 woke up with fence 1"):
            self.ledger.append(
                "worker_woken_late", [("orders", "late")], consumer_group="shipping", detail=detail
            )
        self.ledger.append("leases_flushed", [("orders", "flushed")])
        self.ledger.append("lost_in_broker", [("orders", "lost")])
        self.ledger.append("refused", [("refunds", "refused")])
        self.ledger.append("mass_loss", [("payments", "deleted")], consumer_group="billing")
        self.make_deaths()
