"""A promotion that is killed at any commit boundary is finished by the next run, and asks for nothing twice."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from backstop.reconcile.judge import judge
from backstop.reconcile.run_once import run_once
from backstop.runs.run import Run, open_run
from backstop.stores.protocol import Scope
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from forked import run_forked
from maria_stubs import KIND, moved
from maria_world import MariaDatabase, maria_server
from mariadb import MariaDB
from system import System, settings_dict, system

__all__ = ["maria_server"]
CHILD = Path(__file__).with_name("promote_killed_child.py")


def no_audit(run: Run, suites: Sequence[str]) -> None:
    """The suites have tests of their own."""


def statuses(world: System) -> dict[str, str]:
    found: dict[str, str] = {}
    for shard in ("shop_a", "shop_b"):
        found.update(dict(world.rows(shard, "SELECT message_id, status FROM message_stub")))
    return found


class InMariaDB(System):
    """The same with its shards in MariaDB."""

    databases: dict[str, MariaDatabase]

    def rows(self, database: str, query: str, *values: object) -> list[tuple[Any, ...]]:
        if database not in self.databases:
            return super().rows(database, query, *values)
        return [tuple(row.values()) for row in self.databases[database].run(query, values)]


CONFIRMED_BY_THEN = {
    "inside the control transaction": {"done-shop_a": False, "done-shop_b": False},
    "after the control commit": {"done-shop_a": False, "done-shop_b": False},
    "between two shards": {"done-shop_a": True, "done-shop_b": False},
    # The shards go on beside each other.
    "between two commits of one shard": {"done-shop_b": True},
    "after the last shard": {"done-shop_a": True, "done-shop_b": True},
}
"""Where it is killed; what is confirmed by then, and what is not."""


@pytest.mark.parametrize("boundary", CONFIRMED_BY_THEN)
@pytest.mark.parametrize("stubs_in", ["PostgreSQL", "MariaDB"])
def test_a_killed_promotion_is_finished_by_the_next_run(
    stubs_in: str,
    boundary: str,
    servers: tuple[Postgres, Valkey],
    maria_server: MariaDB,
    spark: Any,
    tmp_path: Path,
) -> None:
    with system(*servers) as world, ExitStack() as stack:
        for shard in ("shop_a", "shop_b"):
            world.sent(f"done-{shard}", shard=shard)
        world.consume("billing")
        world.consume("shipping")
        world.sent("lost", shard="shop_b")
        world.pass_over("billing")
        world.consume("shipping")
        producers: dict[str, Any] = {}
        if stubs_in == "MariaDB":
            there, databases = stack.enter_context(moved(world, maria_server, {}))
            world = InMariaDB(there.urls, there.settings, there.connections, there.broker)
            world.databases, producers = databases, {"producers": KIND}
        control = world.control()
        run = open_run(control, "reconcile", "*", world.settings)
        judge(spark, world.settings, world.connections, control, run, Scope())
        case = tmp_path / "case.json"
        case.write_text(
            json.dumps(
                {
                    "settings": settings_dict(**producers),
                    "urls": world.urls,
                    "run_id": run.run_id,
                    "token": run.token,
                    "boundary": boundary,
                }
            )
        )
        ended = run_forked(CHILD, str(case))
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        before = statuses(world)
        for stub, is_confirmed in CONFIRMED_BY_THEN[boundary].items():
            assert before[stub] == ("confirmed" if is_confirmed else "pending")
        assert before["lost"] == "pending"
        judged_at = "SELECT judged_at IS NULL FROM message_stub WHERE message_id = 'lost'"
        if boundary == "between two commits of one shard":
            assert world.rows("shop_b", judged_at) == [(True,)], "its commit came as well"

        run_once(
            world.settings, world.connections, lambda: spark, no_audit, dead_after=timedelta(0)
        )
        assert statuses(world) == {
            "done-shop_a": "confirmed",
            "done-shop_b": "confirmed",
            "lost": "pending",
        }
        asked = world.rows("control", "SELECT message_id, send_number, groups FROM resend_request")
        assert asked == [("lost", 2, ["billing"])]
        control.close()
