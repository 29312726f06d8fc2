"""One system for a module of tests of retention and audit, emptied before each of them: cheaper than five databases a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backstop.config.connections import Connections
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from committed import empty
from system import ROLES, System, build_template


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Postgres, Valkey]]:
    with (
        Postgres(tmp_path_factory.mktemp("postgres")) as postgres,
        Valkey(tmp_path_factory.mktemp("valkey"), appendfsync="everysec") as valkey,
    ):
        build_template(postgres)
        yield postgres, valkey


def emptied(made: System) -> System:
    """The same databases without a row, and connections that nobody has resolved yet."""
    for database in ROLES:
        empty(made.urls[database])
    urls = dict(made.urls)
    return System(urls, made.settings, Connections(resolver=urls.get), made.broker)
