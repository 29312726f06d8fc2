"""The checker agrees when everything came out right, and with no world in which one thing did not."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from checker_world import CHECKER, World


def test_it_agrees_when_everything_came_out_right(world: World) -> None:
    code, told = world.check(as_program=True)
    assert told["problems"] == []
    assert (code, told["ok"]) == (0, True)
    assert world.check() == (code, told), "the program says what the other tests of it see"
    assert told["effects"]["billing"] == {
        "owed": 18,
        "expected": 16,
        "exactly_once": 16,
        "missing": 0,
        "duplicated": 0,
        "unexpected": 0,
    }
    assert told["verdicts"]["adds_up"]
    assert sum(told["verdicts"]["final"].values()) == told["verdicts"]["deliveries"] == 36
    assert {fault: one["found"] for fault, one in told["faults"].items()} == dict.fromkeys(
        (
            "lost_in_broker",
            "refused",
            "mass_loss",
            "lease_killed",
            "worker_woken_late",
            "leases_flushed",
        ),
        1,
    )


def test_as_a_program_it_ends_with_1_when_something_is_wrong(world: World) -> None:
    world.sql("billing", "DELETE FROM effect WHERE message_id LIKE 'plain:3%'")
    code, told = world.check(as_program=True)
    assert (code, told["ok"]) == (1, False)
    assert world.check() == (code, told)


Break = Callable[[World], object]
BROKEN: dict[str, tuple[str, Break]] = {
    "one effect is deleted": (
        "effect missing",
        lambda w: w.sql("billing", "DELETE FROM effect WHERE message_id LIKE 'plain:3%'"),
    ),
    "one effect is doubled": (
        "effect duplicated",
        lambda w: w.sql(
            "shipping", "INSERT INTO effect SELECT * FROM effect WHERE message_id = 'lost'"
        ),
    ),
    "one effect belongs to a message that nobody promised": (
        "effect unexpected",
        lambda w: w.sql(
            "shipping", "INSERT INTO effect VALUES ('shipping', 'orders', 'nobody', 1, 1, 'w')"
        ),
    ),
    "a refused message has an effect": (
        "effect unexpected",
        lambda w: w.effect("refunds", "refused"),
    ),
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
            "shop_a", "UPDATE message_stub SET status = 'pending' WHERE message_id LIKE 'plain:2%'"
        ),
    ),
    "an exhausted stub has no case": (
        "stub unaccounted for",
        lambda w: w.sql("control", "DELETE FROM case_member WHERE message_id = 'refused'"),
    ),
    "a stub is only in a case in which it has settled": (
        "stub unaccounted for",
        lambda w: (
            w.sql(
                "control", "UPDATE case_member SET settled_at = now() WHERE message_id = 'refused'"
            ),
            w.sql(
                "shop_b", "UPDATE message_stub SET status = 'pending' WHERE message_id = 'refused'"
            ),
        ),
    ),
    "one stub is gone": (
        "business row without exactly one stub",
        lambda w: w.sql("shop_b", "DELETE FROM message_stub WHERE message_id LIKE 'plain:1%'"),
    ),
    "one stub promises what no business row says": (
        "stub without a business row",
        lambda w: w.sql("shop_b", "DELETE FROM business_order WHERE message_id LIKE 'plain:1%'"),
    ),
    "an injected loss was never found": (
        "fault not dealt with",
        lambda w: w.sql(
            "control", "UPDATE verdict SET verdict = 'BACKLOGGED' WHERE message_id = 'lost'"
        ),
    ),
    "an injected loss was never repaired": (
        "fault not dealt with",
        lambda w: w.sql("shop_a", "DELETE FROM send_attempt WHERE message_id = 'lost'"),
    ),
    "a run counted more verdicts than it kept": (
        "a run's counts differ from its verdicts",
        lambda w: w.sql(
            "control", "UPDATE verdict_count SET deliveries = 9 WHERE verdict = 'LOST'"
        ),
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
        lambda w: w.sql(
            "billing", "UPDATE consumer_log SET state = 'EXPIRED' WHERE message_id = 'flushed'"
        ),
    ),
    "the work of a killed holder was never begun again": (
        "fault not dealt with",
        lambda w: w.sql(
            "billing", "UPDATE consumer_log SET attempts = 1 WHERE message_id = 'held'"
        ),
    ),
    "the work of a late worker stands": (
        "fault not dealt with",
        lambda w: w.sql("shipping", "UPDATE effect SET fence = 1 WHERE message_id = 'late'"),
    ),
    "the work of a late worker stands beside the other's": (
        "effect duplicated",
        lambda w: w.sql(
            "shipping", "INSERT INTO effect VALUES ('shipping', 'orders', 'late', 1, 1, 'w')"
        ),
    ),
    "a worker stood still and never woke up": (
        "fault not dealt with",
        lambda w: w.ledger.append(
            "worker_woken_late",
            [("orders", "late")],
            consumer_group="shipping",
            detail="shipping-2 stood still with fence 2",
        ),
    ),
    "after a flush a group's database was not asked": (
        "fault not dealt with",
        lambda w: w.sql(
            "shipping",
            "UPDATE consumer_log SET duplicates_stopped = 0 WHERE message_id = 'flushed'",
        ),
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
    "a case has no alert": (
        "case without an alert",
        lambda w: w.sql("control", "DELETE FROM alert"),
    ),
    "an attempt is beyond the numbers handed out": (
        "attempt beyond the numbers handed out",
        lambda w: w.sql(
            "shop_a", "UPDATE message_stub SET send_count = 1 WHERE message_id = 'lost'"
        ),
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
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and node.level == 0
            else []
        )
    }


def test_it_imports_nothing_of_backstop() -> None:
    files = sorted(CHECKER.glob("*.py"))
    assert len(files) > 3
    assert set().union(*map(imported_by, files)) - set(sys.stdlib_module_names) == {
        "psycopg2",
        "pymysql",
    }
    # And nothing does so for it: isolated, with whatever it pulls in.
    ours = "[name for name in sys.modules if name.startswith('backstop')]"
    code = (
        f"import sys; sys.path.append({str(CHECKER.parent)!r}); import checker.check; print({ours})"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
