"""The view of the deliveries that a mass loss keeps for a person: what is in it, how it is read, and the upgrade that brings it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg2
import pytest

from backstop.schema.migrate import migrate
from backstop.schema.revisions import revisions, version_table
from backstop.sql.named import load
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey

CASES = {
    # message: kind, state, decision of its case; whether the delivery has settled; whether the view has it
    "asked": ("mass_loss", "open", None, False, True),
    "being answered": ("mass_loss", "open", "resend", False, True),
    "left": ("mass_loss", "decided", "leave", False, True),
    "resent": ("mass_loss", "decided", "resend", False, False),
    "discarded": ("mass_loss", "decided", "discard", False, False),
    "done": ("mass_loss", "open", None, True, False),
    "left and done": ("mass_loss", "decided", "leave", True, False),
    "left and over": ("mass_loss", "closed", "leave", False, False),
    "in a backlog": ("backlog", "open", None, False, False),
}
KEPT = sorted(message_id for message_id, (*_, kept) in CASES.items() if kept)


@pytest.fixture(scope="module")
def conn(servers: tuple[Postgres, Valkey]) -> Iterator[Any]:
    """A control database with these cases that was upgraded from the revision before the view."""
    name = "before_mass_loss_delivery"
    servers[0].create_database(name)
    url = servers[0].admin_dsn(name)
    earlier = {number: sql for number, sql in revisions("control").items() if number < "0056"}
    with closing(psycopg2.connect(url)) as old, old, old.cursor() as cursor:
        for statements in earlier.values():
            cursor.execute(statements)
        table = version_table("control")
        cursor.execute(f"CREATE TABLE {table} (version_num varchar(32) PRIMARY KEY)")
        cursor.execute(f"INSERT INTO {table} VALUES (%s)", (max(earlier),))
        for message_id, (kind, state, decision, settled, _) in CASES.items():
            cursor.execute(
                """
                WITH c AS (
                    INSERT INTO case_file (kind, topic, consumer_group, subject, summary, state, decision, decided_by, why,
                        decided_at, closed_at)
                    VALUES (%(kind)s, 'orders', 'billing', %(id)s, 's', %(state)s, %(decision)s, 'ann', 'because',
                        CASE WHEN %(state)s <> 'open' THEN now() END, CASE WHEN %(state)s = 'closed' THEN now() END)
                    RETURNING case_id)
                INSERT INTO case_member (case_id, shard, topic, message_id, consumer_group, settled_at)
                SELECT case_id, 'shop_a', 'orders', %(id)s, 'billing', CASE WHEN %(settled)s THEN now() END FROM c
                """,
                {
                    "kind": kind,
                    "id": message_id,
                    "state": state,
                    "decision": decision,
                    "settled": settled,
                },
            )
    assert migrate(url, "control")[0] == "0056"
    with closing(psycopg2.connect(url)) as connection:
        yield connection


def test_a_mass_loss_keeps_what_is_undecided_or_left_and_nothing_else(conn: Any) -> None:
    with conn, conn.cursor() as cursor:
        cursor.execute("SELECT topic, message_id, consumer_group FROM mass_loss_delivery")
        found = sorted(cursor.fetchall())
    assert found == [("orders", message_id, "billing") for message_id in KEPT]


REQUESTS = {"ids": [1]}


@pytest.mark.parametrize(
    ("package", "file", "name", "values"),
    [
        ("reconcile", "queries.sql", "eligible", {"run_id": 1, "topics": None, "groups": None}),
        (
            "resend",
            "queries.sql",
            "a_persons",
            {**REQUESTS, "topics": ["orders"], "groups": ["shipping"]},
        ),
        ("resend", "queries.sql", "held_groups", REQUESTS),
        ("resend", "ramp.sql", "close_a_persons", {"topic": "t", "why": "w", "run_id": 1}),
        ("reports", "messages.sql", "mass_losses", {"topic": "t", "message_ids": ["m"]}),
    ],
)
def test_members_of_a_large_mass_loss_are_found_by_an_index(
    conn: Any, package: str, file: str, name: str, values: dict[str, Any]
) -> None:
    """The planner inlines the view: otherwise each query would read every member of every mass loss."""
    with conn.cursor() as cursor:
        cursor.execute(
            "INSERT INTO case_member (case_id, shard, topic, message_id, consumer_group)"
            " SELECT case_id, 'shop_a', 'orders', 'many-' || n, 'billing' FROM case_file, generate_series(1, 20000) n"
            " WHERE subject = 'asked'"
        )
        cursor.execute("ANALYZE case_member, case_file")
        cursor.execute("EXPLAIN " + load(f"backstop.{package}", file)[name], values)
        plan = "\n".join(line for (line,) in cursor.fetchall())
    conn.rollback()
    assert "case_member" in plan
    assert "Seq Scan on case_member" not in plan, plan
    assert not re.search(r"Subquery Scan on (l|mass_loss_delivery)\b", plan), plan
