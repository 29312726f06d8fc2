"""`backstop pause` and `resume`: stop and go on sending, honoured between two batches."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from backstop.cli import context, out

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
    from backstop.control.speaker import speaker
    from backstop.restore import pause as sends

    settings = context.load_settings()
    name = _name(topic, everything)
    with context.control(settings, context.connections()) as conn:
        changed = sends.pause(conn, settings.topics, name, speaker(conn, by, out.who()), why)
        says = "is paused" if changed else "was already paused"
        _show(sends.paused(conn), as_json, changed, f"{_said(name)} {says}.")


def resume(topic: Topic = None, everything: All = False, as_json: out.Json = False) -> None:
    """Resume sending a topic; --all lifts every pause."""
    from backstop.restore import pause as sends

    settings = context.load_settings()
    name = _name(topic, everything)
    with context.control(settings, context.connections()) as conn:
        changed = sends.resume(conn, settings, name, out.who())
        says = "goes on" if changed else "was not paused"
        _show(sends.paused(conn), as_json, changed, f"{_said(name)} {says}.")


def _name(topic: str | None, everything: bool) -> str:
    from backstop.model.errors import ConfigurationError

    if everything == (topic is not None):
        raise ConfigurationError(
            "Both a topic and --all are given."
            if everything
            else "Neither a topic nor --all is given.",
            unaffected="Nothing was changed.",
            next_step="Give one of them.",
        )
    return "*" if topic is None else topic


def _said(name: str) -> str:
    return "Everything" if name == "*" else f"Topic {name}"


def _show(rows: list[dict[str, Any]], as_json: bool, changed: bool, sentence: str) -> None:
    if as_json:
        out.document({"changed": changed, "paused": rows})
        return
    out.line(sentence)
    for row in rows:
        out.line(
            f"  paused: {_said(row['topic'])}, by {row['paused_by']} at {out.cell(row['paused_at'])}: {row['why']}"
        )
