"""A purge that is killed at any commit is finished by the next one, and a purge beside a judgement makes nothing look lost."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backstop.evidence.judge_by_key import Judge
from backstop.model.records import Key
from backstop.retention.run_once import run_duty
from backstop.stores.open import open_log_purge
from backstop.stores.purge import FIRST_LOG
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from forked import run_forked
from resend_world import Hooked, once
from system import System, build_template, settings_dict, system

CHILD = Path(__file__).with_name("purge_killed_child.py")
RETENTION = {"step_rows": 4, "busy_share": 1.0}
BOUNDARIES = (
    "between the floor and the delete",
    "after a step of logs",
    "after a step of stubs",
    "before the requests",
    "after a step of the control database",
)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Postgres, Valkey]]:
    with (
        Postgres(tmp_path_factory.mktemp("postgres")) as postgres,
        Valkey(tmp_path_factory.mktemp("valkey")) as valkey,
    ):
        build_template(postgres)
        yield postgres, valkey


def fill(world: System) -> datetime:
    """Ten messages that are over, two that are open, and what Backstop remembers of them; returns when the newest log moved."""
    newest = datetime.now(UTC) - timedelta(days=2)
    for number in range(12):
        shard = ("shop_a", "shop_b")[number % 2]
        then = newest - timedelta(hours=11 - number)
        status = "pending" if number < 2 else "confirmed"
        key = world.stub(
            f"m{number}", shard=shard, age=timedelta(days=4), status=status, updated_at=then
        )
        for group in ("billing", "shipping"):
            world.log(
                key, group, "CONSUMED", first_received_at=then, updated_at=then, consumed_at=then
            )
        world.rows(
            "control",
            """
            INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by, state, updated_at)
            VALUES (%s, %s, %s, 1, 'LOST', 'test', 'sent', %s)""",
            shard,
            *key,
            then,
        )
        world.rows(
            "control",
            """
            INSERT INTO run (duty, scope, token, state, finished_at, policy_version, code_version)
            VALUES ('resend', %s, gen_random_uuid(), 'done', %s, '', '')""",
            f'["{number}"]',
            then,
        )
    return newest


def seen(world: System) -> dict[str, Any]:
    return {
        **{
            db: sorted(world.rows(db, "SELECT message_id FROM consumer_log"))
            for db in ("billing_db", "shipping_db")
        },
        **{
            db: sorted(world.rows(db, "SELECT message_id FROM message_stub"))
            for db in ("shop_a", "shop_b")
        },
        "requests": sorted(world.rows("control", "SELECT message_id FROM resend_request")),
        "runs": world.rows("control", "SELECT count(*) FROM run WHERE duty = 'resend'"),
    }


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_killed_purge_is_finished_by_the_next_one(
    boundary: str, servers: tuple[Postgres, Valkey], tmp_path: Path
) -> None:
    with system(*servers, retention=RETENTION) as world:
        newest = fill(world)
        case = tmp_path / "case.json"
        settings = settings_dict(retention=RETENTION)
        case.write_text(
            json.dumps({"settings": settings, "urls": world.urls, "boundary": boundary})
        )
        ended = run_forked(CHILD, str(case))
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        left = {i for (i,) in world.rows("billing_db", "SELECT message_id FROM consumer_log")}
        if boundary == "between the floor and the delete":
            assert len(left) == 12
            assert world.rows("billing_db", "SELECT 1 FROM consumer_log_floor") == [], (
                "floor and delete are one"
            )
        elif boundary == "after a step of logs":
            assert len(left) == 10, "a step looks at four, of which two are open"
        for gone in set(range(12)) - {int(i[1:]) for i in left}:
            ((floor,),) = world.rows("billing_db", "SELECT log_floor FROM consumer_log_floor")
            assert floor >= newest - timedelta(hours=11 - gone), (
                "nothing is gone that the floor does not tell"
            )

        run_duty(world.settings, world.connections, now=True, dead_after=timedelta(0))
        after = seen(world)
        assert (
            after["billing_db"] == after["shipping_db"] == [("m0",), ("m1",)] == after["requests"]
        )
        assert (after["shop_a"], after["shop_b"], after["runs"]) == ([("m0",)], [("m1",)], [(0,)])
        assert world.rows("billing_db", "SELECT log_floor FROM consumer_log_floor") == [(newest,)]


def test_a_message_whose_log_is_purged_while_it_is_judged_is_unknown_and_never_lost(
    servers: tuple[Postgres, Valkey],
) -> None:
    with system(*servers) as world:
        key = world.sent("m")
        for group in ("billing", "shipping"):
            world.pass_over(group)
            world.log(key, group)

        def purge_now() -> None:
            """The stub is closed and its logs are purged, after this judgement has read the stub and before it reads logs."""
            world.rows("shop_a", "UPDATE message_stub SET status = 'confirmed'")
            purge = open_log_purge(world.settings, world.connections, "billing_db")
            page, _ = purge.old_logs("billing", {"orders": 1.0}, FIRST_LOG, 10)
            assert purge.purge_logs("billing", page) == 1
            purge.close()

        control = world.control()
        with Judge(world.settings, world.connections, control) as judge:
            assert {
                one.consumer_group: str(one.verdict) for one in judge.judge([key])
            } == dict.fromkeys(("billing", "shipping"), "CONFIRMED")
            logs_of = judge.sources.logs_of
            hooks = {"log_table before": once(purge_now)}
            judge.sources.logs_of = lambda group: Hooked(logs_of(group), hooks)  # type: ignore[method-assign]
            judged = {
                one.consumer_group: (str(one.verdict), one.reason)
                for one in judge.judge([Key("orders", "m")])
            }
        control.close()
        assert judged["billing"] == ("UNKNOWN", "log_purged")
        assert judged["shipping"][0] == "CONFIRMED"
