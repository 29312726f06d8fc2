"""The checker of a run under fire agrees with a world in which all is right, and with no world in which one thing is not."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from backstop.model.records import Counts, Key, Message
from backstop.runs.run import close_run, open_run
from backstop.sql.named import load
from backstop_lab.chaos import checker
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from backstop_lab.shop.ledger import Ledger
from system import System, build_template, system

BUSINESS = load("backstop_lab.shop", "business.sql")
GROUPS = ("billing", "shipping")
TOPICS = {"orders": list(GROUPS), "payments": list(GROUPS)}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Postgres, Valkey]]:
    with (
        Postgres(tmp_path_factory.mktemp("postgres")) as postgres,
        Valkey(tmp_path_factory.mktemp("valkey"), appendfsync="everysec") as valkey,
    ):
        build_template(
            postgres,
            {
                "producer": BUSINESS["make_business_order"],
                "consumer": BUSINESS["make_effect"],
            },
        )
        yield postgres, valkey


class World:
    """Five messages that every group worked on once, all confirmed."""

    def __init__(self, its: System, folder: Path) -> None:
        self.its, self.folder, self.ledger = its, folder, Ledger(folder / "ledger")
        for number in range(5):
            shard = "shop_a" if number % 2 else "shop_b"
            key = its.sent(f"{number}%:é'", shard=shard, status="confirmed")
            its.rows(shard, "INSERT INTO business_order VALUES (%s, %s, %s, 1)", number, *key)
            for group in GROUPS:
                its.rows(
                    f"{group}_db", "INSERT INTO effect VALUES (%s, %s, %s, 1, 1, 'w')", group, *key
                )
        for group in GROUPS:
            its.consume(group)
        self.key = Key("orders", "0%:é'")
        self.home = "shop_b"

    def publish(self, number: int, message_id: str | None = None) -> None:
        headers = {"backstop-send-number": str(number)}
        self.its.broker.publish(
            [Message("orders", message_id or self.key.message_id, b"{}", headers=headers)]
        )
        for group in GROUPS:
            self.its.pass_over(group)

    def second_send(self, first: str) -> None:
        self.publish(2)
        self.its.rows(
            self.home,
            "UPDATE message_stub SET send_count = 2 WHERE message_id = %s",
            self.key.message_id,
        )
        if first == "unknown":
            self.its.rows(
                self.home,
                "UPDATE send_attempt SET outcome = 'unknown', queue_id = NULL, queue_offset = NULL, queue_epoch = NULL"
                " WHERE message_id = %s",
                self.key.message_id,
            )
        self.its.rows(
            self.home,
            "INSERT INTO send_attempt (topic, message_id, send_number, requested_by, started_at, outcome)"
            " VALUES (%s, %s, 2, 'request 1', now(), 'sent')",
            *self.key,
        )

    def check(self, *, as_program: bool = False) -> dict[str, Any]:
        """The findings; `as_program`: as a run gets them, in a process that cannot import Backstop."""
        places = {
            "control": self.its.urls["control"],
            "producers": {name: self.its.urls[name] for name in ("shop_a", "shop_b")},
            "groups": {group: self.its.urls[f"{group}_db"] for group in GROUPS},
            "topics": TOPICS,
            "broker": self.its.urls["broker"],
            "late_after": 2.5,
            "events": str(self.folder / "events.jsonl"),
        }
        file = self.folder / "places.json"
        file.write_text(json.dumps(places))
        arguments = [str(file), str(self.ledger.folder)]
        if as_program:
            program = [sys.executable, "-I", checker.__file__, *arguments]
            done = subprocess.run(program, capture_output=True, text=True, check=False)
            assert done.returncode in (0, 1), done.stderr
            code, printed = done.returncode, done.stdout
        else:
            with redirect_stdout(StringIO()) as output:
                code = checker.main(arguments)
            printed = output.getvalue()
        told: dict[str, Any] = json.loads(printed)
        assert code == (0 if told["ok"] else 1)
        return told


@pytest.fixture
def world(servers: tuple[Postgres, Valkey], tmp_path: Path) -> Iterator[World]:
    with system(*servers) as its:
        yield World(its, tmp_path)


def in_hand(world: World) -> None:
    world.its.broker.publish(
        [Message("orders", world.key.message_id, b"{}", headers={"backstop-send-number": "2"})]
    )
    world.its.broker.subscribe("billing", ["orders"], "somebody").fetch(1, timedelta(seconds=1))


def skewed(world: World) -> None:
    world.its.rows(
        world.home, "UPDATE send_attempt SET started_at = started_at - interval '1 minute'"
    )


def failed_check(world: World, name: str = "sources_fresh") -> None:
    """A run whose data check of this name failed."""
    control = world.its.control()
    try:
        run = open_run(control, "reconcile", "*", world.its.settings)
        close_run(control, run, "failed", Counts())
    finally:
        control.close()
    world.its.rows(
        "control",
        "INSERT INTO data_check (run_id, suite, passed, expectations, failed)"
        " VALUES (%s, 'stub_contract', false, 2, jsonb_build_array(jsonb_build_object('name', %s)))",
        run.run_id,
        name,
    )


def event(victim: str) -> str:
    """A line of the events: this server's clock was wrong all the time."""
    return (
        json.dumps(
            {
                "what": "skew_clock",
                "victim": victim,
                "how": "-25",
                "since_wall": "2000-01-01T00:00:00+00:00",
                "wall": "2999-01-01T00:00:00+00:00",
            }
        )
        + "\n"
    )


BREAKS: dict[str, Callable[[World], object]] = {
    "send number published twice": lambda w: w.publish(1),
    "send number never handed out": lambda w: w.publish(7),
    "copy without a stub": lambda w: w.publish(1, "nobody's"),
    "copy stored after its time": skewed,
    "resend needless": lambda w: w.second_send("sent"),
    "resend needless after an unknown outcome": lambda w: w.second_send("unknown"),
    "log consumed without its effect": lambda w: w.its.rows(
        "billing_db", "DELETE FROM effect WHERE message_id = %s", w.key[1]
    ),
    "effect without its consumed log": lambda w: w.its.rows(
        "billing_db", "DELETE FROM consumer_log WHERE message_id = %s", w.key[1]
    ),
    "work begun and never ended": lambda w: w.its.rows(
        "billing_db", "UPDATE consumer_log SET state = 'CONSUMING' WHERE message_id = %s", w.key[1]
    ),
    "effect of a lease that was lost": lambda w: w.its.rows(
        "shipping_db", "UPDATE consumer_log SET fence = 2 WHERE message_id = %s", w.key[1]
    ),
    "effect duplicated": lambda w: w.its.rows(
        "shipping_db", "INSERT INTO effect SELECT * FROM effect LIMIT 1"
    ),
    "message still in somebody's hands": in_hand,
    "lost in the broker and not sent again": lambda w: w.ledger.append("lost_in_broker", [w.key]),
    "data check failed": failed_check,
    "stub unaccounted for": lambda w: w.its.rows(
        w.home, "UPDATE message_stub SET status = 'pending'"
    ),
}


def test_it_agrees_when_all_is_right(world: World) -> None:
    told = world.check(as_program=True)
    assert told["problems"] == [] and told["ok"]
    assert world.check() == told, "the program says what the other tests of it see"
    assert told["messages"] == 5 and told["copies"]["copies"] == 5


@pytest.mark.parametrize("rule", BREAKS)
def test_it_sees_one_thing_that_is_wrong(rule: str, world: World) -> None:
    BREAKS[rule](world)
    told = world.check()
    assert not told["ok"]
    assert rule in {problem["rule"] for problem in told["problems"]}


def test_a_late_copy_is_not_late_where_a_clock_was_wrong(world: World) -> None:
    skewed(world)
    told = world.check(as_program=True)
    assert not told["ok"] and world.check() == told
    (world.folder / "events.jsonl").write_text(event("shops"))
    assert world.check()["problems"] == []


def test_a_source_that_is_not_fresh_is_no_problem_where_a_clock_was_wrong(world: World) -> None:
    (world.folder / "events.jsonl").write_text(event("control"))
    failed_check(world)
    assert world.check()["problems"] == []
    failed_check(world, "reads_counted")
    [problem] = world.check()["problems"]
    assert problem["rule"] == "data check failed" and "reads_counted" in str(problem)


def test_it_imports_nothing_of_ours() -> None:
    for file in (
        Path(checker.__file__),
        *(Path(checker.__file__).parents[1] / "checker").glob("*.py"),
    ):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        named = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        named += [
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        ]
        assert not [name for name in named if name.split(".")[0] == "backstop"]
