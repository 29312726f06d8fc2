"""What sets up tables and topics from a URL alone: with `pip install backstop-mq`, without settings and without any extra.

`backstop migrate --role ... --database ...` and `backstop topics create TOPIC --broker ...` come here, whatever is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

from backstop.config.connections import Connections
from backstop.model.errors import BackstopError, ConfigurationError

ROLES = ("control", "producer", "consumer")
GRANTED = "roles and privileges granted"
URL = "A URL, or env:NAME for the one in $NAME, which no list of processes shows."


def url_of(known: Connections, reference: str) -> str:
    """A URL as it is; "env:NAME" and connection ids resolved."""
    return known.given(reference) if "://" in reference else known.url(reference)


def name_of(database: str) -> str:
    """What to call a database that a URL names: its host and name. Nothing else of the URL, which may hold a password anywhere."""
    if "://" not in database:
        return database
    try:
        parts = urlsplit(database)
    except ValueError:
        return ""  # connecting says that it is not a URL
    return f"{parts.hostname or ''}/{parts.path.rpartition('/')[2]}"


def migrate_one(known: Connections, role: str | None, database: str) -> list[str]:
    """Brings one database to the newest schema of a role; the revisions applied."""
    from backstop.schema.migrate import migrate

    return migrate(url_of(known, database), _given(role))


def grant_one(known: Connections, role: str | None, database: str) -> None:
    """Makes the roles of one database and grants each its least privileges."""
    from backstop.schema.migrate import grant

    grant(url_of(known, database), _given(role))


def _given(role: str | None) -> str:
    if role is None:
        raise ConfigurationError(
            "--database needs the role of that database.",
            unaffected="Nothing was changed.",
            next_step=f"Add --role with one of: {', '.join(ROLES)}.",
        )
    return role


def sql_of(role: str, kind: str, grants: bool = False) -> str:
    """The whole schema of a database role for a kind of server, or its grants. Raises ConfigurationError for a kind that has none."""
    from backstop.schema import mariadb
    from backstop.schema.migrate import as_sql, grants_sql

    if kind == "mariadb":
        return mariadb.grants_sql(role) if grants else mariadb.as_sql(role)
    if kind != "postgresql":
        raise ConfigurationError(
            f"There are no tables for {kind!r}.",
            unaffected="Nothing was printed or changed.",
            next_step="Use --kind postgresql or --kind mariadb.",
        )
    return grants_sql(role) if grants else as_sql(role)


def create_one(
    known: Connections,
    topics: Sequence[str],
    groups: Sequence[str],
    broker: str,
    queues: int | None,
) -> None:
    """Creates topics, each with these groups, at the broker of a URL."""
    from backstop.brokers.create_topics import create_topics, open_by_url

    adapter = open_by_url(url_of(known, broker))
    try:
        create_topics(adapter, dict.fromkeys(topics, groups), queues)
    finally:
        adapter.close()


def text_of_migration(applied: Sequence[str]) -> str:
    return f"applied {', '.join(applied)}" if applied else "nothing to do"


def run_without_platform(arguments: Sequence[str]) -> int:
    """The two commands where the extra `platform` is not installed; returns the exit code."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="backstop",
        description='Tables and topics. All other commands: pip install "backstop-mq[platform]"',
    )
    commands = parser.add_subparsers(dest="command", required=True)
    migrate = commands.add_parser("migrate", help="bring a database to the schema of this version")
    migrate.add_argument("--role", choices=ROLES, required=True)
    where = migrate.add_mutually_exclusive_group(required=True)
    where.add_argument("--database", help=URL)
    where.add_argument("--sql", action="store_true", help="only print the SQL, for a DBA to run")
    migrate.add_argument("--kind", default="postgresql", help="with --sql: for which server")
    migrate.add_argument(
        "--grants",
        action="store_true",
        help="in place of the tables: the roles, and the least privileges of each",
    )
    create = (
        commands.add_parser("topics")
        .add_subparsers(dest="what", required=True)
        .add_parser("create")
    )
    create.add_argument("topics", nargs="+", metavar="TOPIC")
    create.add_argument(
        "--group", action="append", default=[], help="a consumer group; may be repeated"
    )
    create.add_argument("--broker", required=True, help=URL)
    create.add_argument(
        "--queues",
        type=int,
        help="4 for a new topic; one that is there keeps its number, or gets more",
    )
    asked = parser.parse_args(arguments)
    known = Connections()
    try:
        if asked.command == "topics":
            create_one(known, asked.topics, asked.group, asked.broker, asked.queues)
            print(f"{', '.join(asked.topics)}: created, or there already")
        elif asked.sql:
            print(sql_of(asked.role, asked.kind, asked.grants), end="")
        elif asked.grants:
            grant_one(known, asked.role, asked.database)
            print(f"{asked.role}: {GRANTED}")
        else:
            print(
                f"{asked.role}: {text_of_migration(migrate_one(known, asked.role, asked.database))}"
            )
    except BackstopError as error:
        print(
            known.hide(
                f"backstop: {error.what}\n  unaffected: {error.unaffected}\n  next: {error.next_step}"
            ),
            file=sys.stderr,
        )
        return error.exit_code
    return 0
