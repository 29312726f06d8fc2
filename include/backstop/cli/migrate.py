"""`backstop migrate`: brings the databases to the schema of this version, or prints the SQL for a DBA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from backstop.cli import context, out

if TYPE_CHECKING:
    from backstop.config.settings import Settings


def migrate(
    role: Annotated[
        str | None, typer.Option("--role", help="control, producer or consumer; default: all.")
    ] = None,
    as_sql: Annotated[
        bool, typer.Option("--sql", help="Only print the SQL, for a DBA to run.")
    ] = False,
    kind: Annotated[
        str,
        typer.Option(
            "--kind",
            help="With --sql: for which server; mariadb has the tables of producer and consumer.",
        ),
    ] = "postgresql",
    grants: Annotated[
        bool,
        typer.Option(
            "--grants",
            help="In place of the tables: the roles, and the least privileges of each; with --sql only printed.",
        ),
    ] = False,
    capture: Annotated[
        bool,
        typer.Option(
            "--capture",
            help="Only print the triggers of captured tables (kind: captured), for a DBA to run.",
        ),
    ] = False,
    overlay: Annotated[
        bool,
        typer.Option(
            "--overlay",
            help="Only print the tables and grants of mapped producers above level observe, for a DBA to run.",
        ),
    ] = False,
    database: Annotated[
        str | None,
        typer.Option(
            "--database",
            help="Only this one, without backstop.yaml: a URL, or env:NAME for the one in $NAME.",
        ),
    ] = None,
    as_json: out.Json = False,
) -> None:
    """Bring each database to the schema of this version. Safe to run again, and by several at once."""
    from backstop.cli.set_up import (
        GRANTED,
        ROLES,
        grant_one,
        migrate_one,
        name_of,
        sql_of,
        text_of_migration,
    )
    from backstop.model.errors import ConfigurationError

    if role is not None and role not in ROLES:
        raise ConfigurationError(
            f"There is no database role {role!r}.",
            unaffected="Nothing was changed.",
            next_step=f"Use one of: {', '.join(ROLES)}.",
        )

    if capture or overlay:
        _print_for_dba("captured" if capture else "overlaid", as_json)
        return
    roles = ROLES if role is None else (role,)
    if as_sql:
        both = ("producer", "consumer")
        wanted = both if kind == "mariadb" and role is None else roles
        texts = {name: sql_of(name, kind, grants) for name in wanted}
        if as_json:
            out.document(texts)
        else:
            for name, text in texts.items():
                print(f"-- Backstop: the {name} database\n{text.rstrip()}\n")
        return
    known = context.connections()
    done: list[dict[str, object]] = []

    def one(label: str, name: str | None, reference: str) -> str:
        """Migrates one database, or grants; what was done, as a line."""
        if grants:
            grant_one(known, name, reference)
            done.append({"database": label, "role": name, "granted": True})
            return GRANTED
        applied = migrate_one(known, name, reference)
        done.append({"database": label, "role": name, "applied": applied})
        return text_of_migration(applied)

    if database is not None:
        said = one(name_of(database), role, database)
        if not as_json:
            out.line(f"{role}: {said}")
    else:
        chosen = [found for found in databases(context.load_settings()) if found[0] in roles]
        for *_, ref in chosen:
            known.url(ref)  # an unknown connection is refused before any database is changed
        with out.progress("granting" if grants else "migrating") as say:
            for name, store, ref in chosen:
                say(store)
                said = one(store, name, ref)
                if not as_json:
                    out.line(f"{store} ({name}): {said}")
    if as_json:
        out.document(done)


def _print_for_dba(what: Literal["captured", "overlaid"], as_json: bool) -> None:
    """The SQL for each such table of another program, by its shard."""
    from urllib.parse import parse_qsl, unquote, urlsplit

    from backstop.model.errors import ConfigurationError
    from backstop.stores.mapped.capture import capture_sql
    from backstop.stores.mapped.overlay import overlay_sql

    settings, known = context.load_settings(), context.connections()
    texts = {}
    for name, store in settings.producers.items():
        if store.mapping is None:
            continue
        parts = urlsplit(known.url(store.connection))
        login = dict(parse_qsl(parts.query)).get("user") or unquote(
            parts.username or "backstop_look"
        )
        if what == "captured" and store.kind == "captured":
            texts[name] = capture_sql(store.mapping, login)
        elif what == "overlaid" and store.level != "observe":
            texts[name] = overlay_sql(store.mapping, store.level, login)
    if not texts:
        needed = {
            "captured": "`kind: captured` with `slot` or `deleted_when_sent`",
            "overlaid": "`level: overlay`, `publish` or `rearm` beside `kind: mapped`",
        }
        raise ConfigurationError(
            f"backstop.yaml names no {what} table.",
            unaffected="Nothing was printed or changed.",
            next_step=f"Write {needed[what]} under producers.",
        )
    if as_json:
        out.document(texts)
        return
    for name, text in texts.items():
        print(f"-- Backstop: the tables of {name}\n{text}")


def databases(settings: Settings) -> list[tuple[str, str, str]]:
    """(role, name, connection) of every database that has tables of Backstop's own."""
    return [
        ("control", "control", settings.control),
        *(
            ("producer", name, settings.producers[name].connection)
            for name in settings.own_producers()
        ),
        *(
            ("consumer", name, settings.consumers[name].connection)
            for name in settings.own_consumers()
        ),
    ]
