"""Cuts what is due into ranges over the due index, as a table that Spark reads over JDBC, one partition a
range."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any
from urllib.parse import quote, urlencode

from psycopg2.extensions import cursor as Cursor

from backstop.errors import ConfigurationError
from backstop.named_sql import load
from backstop.stores.postgresql_connection import PostgresConnection, readable
from backstop.stores.protocol import Scan

_SQL = load("backstop.stores", "postgresql_stubs.sql")
DRIVER = "org.postgresql.Driver"
FETCH_SIZE = 10_000
"""Rows of one round trip; the driver would otherwise hold a whole partition in memory."""
_SOCKET_SECONDS = 300
_CARRIED = {"sslmode": "sslmode", "sslrootcert": "sslrootcert", "sslcert": "sslcert", "sslkey": "sslkey"}
"""Connection parameters that libpq and the JDBC driver both know."""


def scan(
    connection: PostgresConnection, statement: str, columns: Mapping[str, str], bounds: str, values: Mapping[str, Any],
    partitions: int,
) -> Scan:  # fmt: skip
    """A Scan over `statement`, which takes `values` and has `columns` and a column cut_at; `bounds` gives the cuts. Raises
    StoreUnavailable.

    Spark takes text, not parameters: the driver's own quoting puts the values in, on the connection they are
    for.
    """

    def render(cursor: Cursor) -> tuple[str, list[str]]:
        cuts: list[str] = []
        if partitions > 1:
            fractions = [number / partitions for number in range(partitions)]
            cursor.execute(bounds, {"fractions": fractions, **values})
            (found,) = cursor.fetchone() or (None,)
            # A cut at the first instant would leave a partition without rows.
            cuts = [cut for cut in dict.fromkeys(found or []) if cut != found[0]]
        # Ends are open: whatever becomes due between the cuts and the read belongs to some range.
        ends = ["-infinity", *cuts, "infinity"]
        ranges = [cursor.mogrify(_SQL["range"], {"start": start, "end": end}).decode() for start, end in pairwise(ends)]
        whole = readable(cursor, statement, {**columns, "cut_at": "timestamptz"})
        return cursor.mogrify(whole, values).decode(), ranges

    table, predicates = connection.run(render)
    parameters = connection.parameters()
    return Scan(
        format="jdbc",
        options={
            "url": _jdbc_url(connection.subject, parameters),
            "dbtable": f"({table}) AS cut",
            "driver": DRIVER,
            "fetchsize": str(FETCH_SIZE),
            # As every other session of a store: rows that a policy hides must not look like rows that are not there.
            "sessionInitStatement": "SET row_security = off",
        },
        secret_options={name: parameters[name] for name in ("user", "password") if name in parameters},
        predicates=predicates,
    )


def _jdbc_url(subject: str, parameters: Mapping[str, str]) -> str:
    hosts = parameters.get("host", "localhost").split(",")
    ports = parameters.get("port", "5432").split(",")
    if any(host.startswith("/") for host in hosts):
        raise ConfigurationError(
            f"The connection of {subject} is a unix socket, which Spark cannot use.",
            kept="Nothing was read.",
            next_step="Name the host and port in it.",
        )
    ports = ports * len(hosts) if len(ports) == 1 else ports
    where = ",".join(
        f"{f'[{host}]' if ':' in host else host or 'localhost'}:{port or '5432'}" for host, port in zip(hosts, ports, strict=True)
    )
    extra = {
        "targetServerType": "primary",
        "connectTimeout": "10",
        "socketTimeout": str(_SOCKET_SECONDS),
        "ApplicationName": "backstop",
        **{name: parameters[libpq] for libpq, name in _CARRIED.items() if libpq in parameters},
    }
    return f"jdbc:postgresql://{where}/{quote(parameters.get('dbname', ''), safe='')}?{urlencode(extra)}"
