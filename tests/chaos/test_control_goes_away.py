"""The control database drops a duty's connections: it is said in our words, the run ends, and the next run need not wait."""

from __future__ import annotations

from typing import Any

import psycopg2
import pytest

from backstop.model.errors import StoreUnavailable
from backstop.reconcile.run_once import run_once as reconcile
from backstop.resend import run_once
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from system import System, system


def throw_out(world: System, admin: str) -> None:
    """Everybody who is connected to the control database."""
    connection = psycopg2.connect(admin)
    with connection, connection.cursor() as cursor:
        name = world.urls["control"].rpartition("/")[2]
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = %s",
            (name,),
        )
    connection.close()


def test_a_reconcile_that_loses_its_connection_says_so_and_the_next_run_goes_on(
    servers: tuple[Postgres, Valkey],
) -> None:
    with system(*servers) as world:
        world.sent("one")

        def start_spark() -> Any:
            throw_out(world, servers[0].admin_dsn())

        with pytest.raises(StoreUnavailable, match="control database") as raised:
            reconcile(world.settings, world.connections, start_spark, lambda run, suites: None)
        assert raised.value.exit_code == 3
        assert world.rows("control", "SELECT state FROM run") == [("incomplete",)]
        assert world.rows("control", "SELECT * FROM duty_lease") == []
        assert world.rows("shop_a", "SELECT status FROM message_stub") == [("pending",)]

        world.rows("shop_a", "UPDATE message_stub SET next_check_at = now() + interval '1 hour'")
        reconcile(world.settings, world.connections, start_spark, lambda run, suites: None)
        assert world.rows("control", "SELECT state FROM run ORDER BY run_id") == [
            ("incomplete",),
            ("done",),
        ]


def test_a_resend_that_loses_the_control_database_says_so(
    servers: tuple[Postgres, Valkey], monkeypatch: pytest.MonkeyPatch
) -> None:
    with system(*servers) as world:
        plain = run_once.prepare

        def thrown_out(*arguments: Any, **named: Any) -> Any:
            throw_out(world, servers[0].admin_dsn())
            return plain(*arguments, **named)

        monkeypatch.setattr(run_once, "prepare", thrown_out)
        with pytest.raises(StoreUnavailable, match="control database") as raised:
            run_once.run_duty(world.settings, world.connections)
        assert raised.value.exit_code == 3
        monkeypatch.undo()
        run_once.run_duty(world.settings, world.connections)
        assert world.rows("control", "SELECT state FROM run ORDER BY run_id") == [
            ("incomplete",),
            ("done",),
        ]


def test_a_run_that_did_everything_is_done_although_its_own_connection_was_dropped(
    servers: tuple[Postgres, Valkey], monkeypatch: pytest.MonkeyPatch
) -> None:
    with system(*servers) as world:
        plain = run_once.run_once

        def thrown_out(*arguments: Any, **named: Any) -> Any:
            throw_out(world, servers[0].admin_dsn())
            return plain(*arguments, **named)

        monkeypatch.setattr(run_once, "run_once", thrown_out)
        run_once.run_duty(world.settings, world.connections)
        assert world.rows("control", "SELECT state, error FROM run") == [("done", None)]
        assert world.rows("control", "SELECT * FROM duty_lease") == []
