"""One PostgreSQL for every test of the checker; each gets the small world as it should be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest

from backstop_lab.servers.postgres import Postgres
from checker_world import BUSINESS, ROLES, SCHEMA, World


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with Postgres(tmp_path_factory.mktemp("postgres")) as server:
        for name, role in ROLES.items():
            server.create_database(f"shop_{name}")
            connection = psycopg2.connect(server.admin_dsn(f"shop_{name}"))
            with connection, connection.cursor() as cursor:
                for file in sorted((SCHEMA / role).glob("0*.sql")):
                    cursor.execute(file.read_text())
                if role == "producer":
                    cursor.execute(BUSINESS["make_business_order"])
                if role == "consumer":
                    cursor.execute(BUSINESS["make_effect"])
            connection.close()
        yield server


@pytest.fixture
def world(postgres: Postgres, tmp_path: Path) -> Iterator[World]:
    made = World(postgres, tmp_path)
    made.make()
    yield made
    made.close()
