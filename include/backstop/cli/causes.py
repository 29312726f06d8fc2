"""`backstop dead-letters causes` and `try-rules`: what letters died of, and what other rules would make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from backstop.cli import context, out
from backstop.cli.usage_errors import LARGEST, explain_nothing, require_known
from backstop.model.records import Category

_WIDEST = 110
"""Characters of a template in a table."""


def causes(
    topic: Annotated[
        str | None, typer.Option("--topic", help="Count only open dead letters of this topic.")
    ] = None,
    category: Annotated[
        str | None, typer.Option("--category", help="Only causes of this category.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also causes without open dead letters.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=LARGEST)] = 50,
    as_json: out.Json = False,
) -> None:
    """List causes, those with the most open dead letters first."""
    from backstop.control.read_rows import read
    from backstop.sql.named import load

    require_known("--category", [category] if category else [], Category)
    query = load("backstop.triage.causes", "classify.sql")["causes"]
    settings, known = context.load_settings(), context.connections()
    with context.control(settings, known) as conn:
        rows = read(
            conn, query, {"topic": topic, "category": category, "all": everything, "limit": limit}
        )
    if not rows:
        explain_nothing(settings, [topic] if topic else [])
    if as_json:
        out.document(rows)
        return
    if not rows:
        out.line("No cause has open dead letters." if not everything else "No cause is known.")
        return
    out.table(
        ("cause", "category", "open", "letters", "first seen", "last seen", "what they died of"),
        [
            (
                *(
                    row[name]
                    for name in (
                        "cause_id",
                        "category",
                        "open",
                        "dead_letters",
                        "first_seen_at",
                        "last_seen_at",
                    )
                ),
                _short(row["template"]),
            )
            for row in rows
        ],
    )


def try_rules(
    file: Annotated[
        Path, typer.Argument(help="A backstop.yaml, or a file with `rules:` as under dead_letters.")
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", help="Only dead letters of this topic; may be repeated."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=LARGEST, help="How many open dead letters to read.")
    ] = 100_000,
    as_json: out.Json = False,
) -> None:
    """Show how a file's rules would classify the open dead letters. Changes nothing."""
    from backstop.triage.causes.try_rules import try_rules as try_them

    rules = _rules_in(file)
    settings, known = context.load_settings(), context.connections()
    with context.control(settings, known) as conn:
        trial = try_them(conn, settings, known, rules, topics=topic or None, limit=limit)
    if not trial.letters:
        explain_nothing(settings, topic or [])
    if as_json:
        out.document(trial)
        return
    out.line(
        f"{trial.letters} open dead letters, by {len(rules)} rules and the built-in ones; {trial.same} stay what they are."
    )
    if trial.waits:
        out.line(
            f"{trial.waits} could not be judged, because a log did not answer: {'; '.join(trial.away)}"
        )
    if trial.changes:
        out.table(
            ("from", "to", "letters", "for example", "what they died of"),
            [
                (
                    one.before,
                    one.after,
                    one.letters,
                    ", ".join(map(str, one.examples)),
                    _short(one.template),
                )
                for one in trial.changes
            ],
        )
    out.line(
        "Nothing was changed. Put the rules under dead_letters.rules: the next triage classifies open dead letters by them."
    )


def _rules_in(file: Path) -> list[dict[str, Any]]:
    """The rules of the file, checked as backstop.yaml is."""
    import yaml
    from pydantic import ValidationError

    from backstop.config.load import yaml_place
    from backstop.config.settings import DeadLetterSettings
    from backstop.model.errors import ConfigurationError

    kept, next_step = "Nothing was changed.", "Write the rules as in docs/how-to/causes.md."
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigurationError(
            f"{file} is not YAML: {yaml_place(error)}.", unaffected=kept, next_step=next_step
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{file} cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}.",
            unaffected=kept,
            next_step="Name a file with `rules:`, as in docs/how-to/causes.md.",
        ) from error
    if isinstance(content, dict) and isinstance(content.get("dead_letters"), dict):
        content = content["dead_letters"]
    if not isinstance(content, dict) or not isinstance(content.get("rules"), list):
        raise ConfigurationError(
            f"{file} has no list `rules`.", unaffected=kept, next_step=next_step
        )
    try:
        checked = DeadLetterSettings.model_validate({"rules": content["rules"]})
    except ValidationError as error:
        lines = "; ".join(
            f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()
        )
        raise ConfigurationError(
            f"{file}: {lines}.", unaffected=kept, next_step=next_step
        ) from None
    return [rule.plain() for rule in checked.rules]


def _short(template: str) -> str:
    return template if len(template) <= _WIDEST else f"{template[: _WIDEST - 3]}..."
