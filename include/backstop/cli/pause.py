"""`backstop pause` and `resume`: stop and go on sending, honoured between two batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from backstop.cli import context, out
from backstop.reports.read import read

Topic = Annotated[str | None, typer.Argument(help="The topic; or --all.")]
All = Annotated[bool, typer.Option("--all", help="Every topic.")]
By = Annotated[
    str | None, typer.Option("--by", help="Who; default: the name you are logged in with.")
]


def pause(
    topic: Topic = None,
    everything: All = False,
    why: Annotated[
        str, typer.Option("--why", help="The reason, for those who find it paused.")
    ] = "",
    by: By = None,
    as_json: out.Json = False,
) -> None:
    """Stop sending a topic, or everything, between two batches. Verdicts and cases go on."""
    from backstop.control.decision_log import append
    from backstop.control.speaker import speaker
    from backstop.model.errors import ConfigurationError
    from backstop.sql.named import load

    if not why.strip():
        raise ConfigurationError(
            "A pause needs a reason.", kept="Nothing was paused.", next_step='Say it: --why "..."'
        )
    queries = load("backstop.cli", "queries.sql")
    settings = context.load_settings()
    name = _name(settings.topics, topic, everything)
    with context.control(settings, context.connections()) as conn:
        who = speaker(conn, by, out.who())
        with conn, conn.cursor() as cursor:
            cursor.execute(queries["pause"], {"topic": name, "who": who, "why": why})
            changed = cursor.rowcount == 1
            append(cursor, who, "pause", name, why, {"changed": changed})
        says = "is paused" if changed else "was already paused"
        _show(conn, queries["paused"], as_json, changed, f"{_said(name)} {says}.")


def resume(topic: Topic = None, everything: All = False, as_json: out.Json = False) -> None:
    """Resume sending a topic; --all lifts every pause."""
    from backstop.control.decision_log import append
    from backstop.control.speaker import speaker
    from backstop.restore.paused import require_finished
    from backstop.sql.named import load

    queries = load("backstop.cli", "queries.sql")
    settings = context.load_settings()
    name = _name(settings.topics, topic, everything)
    with context.control(settings, context.connections()) as conn:
        who = speaker(conn, None, out.who())
        with conn, conn.cursor() as cursor:
            require_finished(cursor)
            cursor.execute(queries["resume_all" if name == "*" else "resume"], {"topic": name})
            changed = cursor.rowcount > 0
            append(cursor, who, "resume", name, "", {"changed": changed})
        says = "goes on" if changed else "was not paused"
        _show(conn, queries["paused"], as_json, changed, f"{_said(name)} {says}.")


def _name(known: Iterable[str], topic: str | None, everything: bool) -> str:
    from backstop.model.errors import ConfigurationError

    if everything == (topic is not None):
        raise ConfigurationError(
            "It is not clear what is meant.",
            kept="Nothing was changed.",
            next_step="Name one topic, or give --all.",
        )
    if topic is None:
        return "*"
    names = list(known)
    if topic not in names:
        raise ConfigurationError(
            f"There is no topic {topic!r}.",
            kept="Nothing was changed.",
            next_step=f"Name one of: {', '.join(names)}.",
        )
    return topic


def _said(name: str) -> str:
    return "Everything" if name == "*" else f"Topic {name}"


def _show(conn: Any, query: str, as_json: bool, changed: bool, sentence: str) -> None:
    rows = read(conn, query, {})
    if as_json:
        out.document({"changed": changed, "paused": rows})
        return
    out.line(sentence)
    for row in rows:
        out.line(
            f"  paused: {_said(row['topic'])}, by {row['paused_by']} at {out.cell(row['paused_at'])}: {row['why']}"
        )
