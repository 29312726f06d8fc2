"""`backstop check` finds two shards that are one database by the server and the tables, whatever addresses lead there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from backstop.brokers.protocol import Finding
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.reports.check_system import find
from backstop.stores.postgresql.stubs import PostgresStubs
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from maria_stubs import KIND, moved
from maria_world import maria_server
from mariadb import MariaDB
from system import System, settings_dict, system

__all__ = ["maria_server"]
BOTH = {"shop_a": {"connection": "shop_a"}, "shop_b": {"connection": "shop_b"}}


@pytest.fixture
def world(servers: tuple[Postgres, Valkey]) -> Iterator[System]:
    with system(*servers) as running:
        yield running


def databases(urls: Mapping[str, str], producers: Mapping[str, object]) -> list[Finding]:
    """What `check` says of the databases of shards."""
    settings = Settings.model_validate(settings_dict(producers=producers))
    found = find(settings, Connections(resolver=dict(urls).get), lambda _: None)
    return [one for one in found if one.subject.endswith(": database")]


def by_another_way(url: str) -> str:
    """The same database under another name of its host."""
    return url.replace("127.0.0.1", "localhost")


def test_two_databases_of_one_server_are_two(world: System) -> None:
    found = databases(world.urls, BOTH)
    assert [(one.subject, one.good) for one in found] == [
        ("shard shop_a: database", True),
        ("shard shop_b: database", True),
    ]


def test_one_database_in_postgresql_under_two_addresses_is_named(world: System) -> None:
    [one] = databases({**world.urls, "shop_b": by_another_way(world.urls["shop_a"])}, BOTH)
    assert (one.subject, one.good) == ("shard shop_a: database", False)
    assert "shop_b" in one.says and one.do


def test_one_database_in_mariadb_under_two_logins_is_named(
    world: System, maria_server: MariaDB
) -> None:
    with moved(world, maria_server, {}) as (there, made):
        assert [one.good for one in databases(there.urls, KIND)] == [True, True]
        name = made["shop_a"].name
        urls = {**there.urls, "shop_b": maria_server.admin_dsn(name)}
        [one] = databases(urls, KIND)
        assert (one.subject, one.good) == ("shard shop_a: database", False)
        assert "shop_b" in one.says


def test_an_overlay_is_apart_from_own_tables_and_one_with_another_overlay(world: System) -> None:
    url = world.urls["shop_a"]
    world.rows("shop_a", "CREATE SCHEMA backstop_overlay")
    with PostgresStubs("a", url, schema="backstop_overlay") as overlay:
        assert overlay.tables() is None, "not made yet"
        world.rows("shop_a", "CREATE TABLE backstop_overlay.message_stub ()")
        with (
            PostgresStubs("own", url) as own,
            PostgresStubs("b", by_another_way(url), schema="backstop_overlay") as another,
        ):
            assert overlay.tables() == another.tables() != own.tables()
            assert own.tables() is not None
