"""A connection pooler that shares sessions is refused with a clear error; one that keeps them is used."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import psycopg2
import pytest

from backstop.control.connection import connect
from backstop.model.errors import StoreUnavailable
from backstop.schema.migrate import migrate
from backstop.sql.connection import PostgresConnection, read_url
from backstop_lab.servers.postgres import Postgres
from pooler import Pooler

ASKED = "SELECT current_setting('row_security'), current_setting('statement_timeout')"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with Postgres(tmp_path_factory.mktemp("pg")) as running:
        running.create_database("shop")
        found = read_url(running.admin_dsn("shop"))
        assert found is not None
        yield found


def through(pooler: Pooler, server: dict[str, str]) -> str:
    return f"postgresql://{server['user']}:{server['password']}@127.0.0.1:{pooler.port}/shop"


def control(url: str) -> Any:
    settings, connections = (
        SimpleNamespace(require_tls=False, control="backstop_control"),
        SimpleNamespace(url=lambda ref: url),
    )
    return connect(cast(Any, settings), cast(Any, connections))


def test_a_pooler_that_shares_sessions_loses_what_a_session_sets(server: dict[str, str]) -> None:
    """The harm, without our guard: the next transaction of the same connection does not have it."""
    with Pooler(server["host"], int(server["port"]), shared=True) as pooler:
        first, other = (
            psycopg2.connect(through(pooler, server)),
            psycopg2.connect(through(pooler, server)),
        )
        with first, first.cursor() as cursor:
            cursor.execute("SELECT set_config('row_security', 'off', false)")
        with other.cursor() as cursor:
            cursor.execute("SHOW row_security")  # somebody else has it now, and keeps the session
            assert cursor.fetchone() == ("off",)
            with first.cursor() as own:
                own.execute("SHOW row_security")
                assert own.fetchone() == ("on",)
        first.close()
        other.close()


def test_duties_refuse_a_pooler_that_shares_sessions_and_say_what_to_name(
    server: dict[str, str],
) -> None:
    with Pooler(server["host"], int(server["port"]), shared=True) as pooler:
        url = through(pooler, server)
        for ask in (
            lambda: PostgresConnection("shard shop_a", url).rows(ASKED),
            lambda: control(url),
            lambda: migrate(url, "producer"),
        ):
            with pytest.raises(StoreUnavailable, match="shares the server's sessions") as refused:
                ask()
            assert "pool_mode = session" in str(refused.value)
            assert server["password"] not in str(refused.value)


def test_a_pooler_that_keeps_sessions_is_used_and_so_is_the_server_itself(
    server: dict[str, str],
) -> None:
    with Pooler(server["host"], int(server["port"]), shared=False) as pooler:
        for url in (
            through(pooler, server),
            f"postgresql://{server['user']}:{server['password']}@127.0.0.1:{server['port']}/shop",
        ):
            connection = PostgresConnection("shard shop_a", url)
            assert [connection.rows(ASKED) for _ in range(2)] == [[("off", "1min")]] * 2
            connection.close()
            opened = control(url)
            assert opened.status == psycopg2.extensions.STATUS_READY, "no transaction is left open"
            opened.close()
