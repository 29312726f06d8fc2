"""`backstop dead-letters`: what died of what, the letters, one with everything, and all of them in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from backstop.cli import causes, context, out
from backstop.cli.usage_errors import LARGEST, explain_nothing, require_known, usage_error
from backstop.config.instant import read_instant
from backstop.model.records import Category, DeadLetterState

if TYPE_CHECKING:
    from backstop.reports.letters import LetterFilter

app = typer.Typer(help="Dead letters: list, show, export, causes, rules.", no_args_is_help=True)
app.command("causes")(causes.causes)
app.command("try-rules")(causes.try_rules)

Topic = Annotated[str | None, typer.Option("--topic", help="Only this topic.")]
Group = Annotated[str | None, typer.Option("--group", help="Only this consumer group.")]
States = Annotated[
    list[str] | None,
    typer.Option("--state", help="Only this state; may be repeated. Default: open and replaying."),
]
Every = Annotated[bool, typer.Option("--all", help="In every state.")]
CategoryName = Annotated[str | None, typer.Option("--category", help="Only this category.")]
Cause = Annotated[
    int | None, typer.Option("--cause", min=1, max=LARGEST, help="Only of this cause.")
]
Case = Annotated[int | None, typer.Option("--case", min=1, max=LARGEST, help="Only of this case.")]
Since = Annotated[str | None, typer.Option("--since", help="Died since, as 2026-11-21T02:00Z.")]
_TEXT_CHARACTERS = 2000
_HEX_BYTES = 256
_CAUSES = 20


@app.command("list")
def list_them(
    topic: Topic = None,
    group: Group = None,
    state: States = None,
    every: Every = False,
    category: CategoryName = None,
    cause: Cause = None,
    case: Case = None,
    since: Since = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=LARGEST, help="How many dead letters to list.")
    ] = 20,
    as_json: out.Json = False,
) -> None:
    """List causes, then dead letters, the newest first; undecided ones by default."""
    from backstop.reports.letters import count_by_cause, list_letters

    wanted = _wanted(topic, group, state, every, category, cause, case, since)
    settings = context.load_settings()
    with context.control(settings, context.connections()) as conn:
        counts, letters = count_by_cause(conn, wanted, _CAUSES), list_letters(conn, wanted, limit)
    if not letters:
        explain_nothing(settings, [topic] if topic else [], [group] if group else [])
    if as_json:
        out.document({"causes": counts, "letters": letters})
        return
    if not letters:
        out.line("No such dead letter.")
        return
    out.table(
        ["cause", "category", "letters", "first", "last", "what they died of"],
        [
            [
                c["cause_id"],
                c["category"],
                c["letters"],
                c["first_at"],
                c["last_at"],
                c["template"] or "not classified yet",
            ]
            for c in counts
        ],
    )
    out.table(
        [
            "letter",
            "topic",
            "group",
            "message",
            "state",
            "category",
            "decision",
            "why",
            "case",
            "died",
        ],
        [
            [
                one["dead_letter_id"],
                one["topic"],
                one["consumer_group"],
                one["message_id"],
                one["state"],
                one["category"],
                one["decision"],
                one["reason"] or one["invalid"],
                one["case_id"],
                one["died_at"] or one["drained_at"],
            ]
            for one in letters
        ],
    )


@app.command("show")
def show_one(
    dead_letter_id: Annotated[
        int, typer.Argument(min=1, max=LARGEST, help="The dead letter's number.")
    ],
    raw: Annotated[
        bool, typer.Option("--raw", help="Write the content to stdout as it is, and nothing else.")
    ] = False,
    as_json: out.Json = False,
) -> None:
    """Show one dead letter: where and why it died, what was decided, its headers and content."""
    from backstop.reports.letters import show_letter

    settings = context.load_settings()
    with context.control(settings, context.connections()) as conn:
        letter = show_letter(conn, dead_letter_id)
        # Headers and errors may quote a content that was purged. With --raw nothing of it is shown.
        if letter["content"] is not None or not raw:
            context.note_reading(
                conn,
                f"dead letter {dead_letter_id}",
                {"topic": letter["topic"], "id": letter["message_id"]},
            )
    headers, content = letter.pop("headers"), letter.pop("content")
    if raw:
        if content is None:
            raise usage_error(
                f"The content of dead letter {dead_letter_id} was purged.",
                "The producer's stub may still have it: `backstop where`.",
                unaffected="Nothing was written.",
            )
        out.content(content)
        return
    if as_json:
        out.document(
            {
                **letter,
                "headers": _as_text(headers),
                "content": None if content is None else _as_text(content),
            }
        )
        return
    out.line(
        f"Dead letter {dead_letter_id}: {letter['topic'] or '?'} {letter['message_id'] or '?'}",
        style="bold",
    )
    for name, value in letter.items():
        if name not in ("dead_letter_id", "template", "cause_text", "error") and value not in (
            None,
            "",
            {},
        ):
            out.line(f"  {name}: {out.cell(value)}")
    for name in ("template", "cause_text", "error"):
        for number, text in enumerate((letter[name] or "").splitlines()):
            out.line(f"  {name}: {text}" if number == 0 else f"    {text}")
    out.line(f"  headers: {_as_text(headers)}")
    if content is None:
        out.line("  content: purged by the retention policy")
        return
    text = _as_text(content)
    cut = len(text) > _TEXT_CHARACTERS or text.startswith("hex ")
    out.line(f"  content ({letter['content_bytes']} bytes{'; whole with --raw' if cut else ''}):")
    for shown in text[:_TEXT_CHARACTERS].splitlines():
        out.line(f"    {shown}")


@app.command("compare")
def compare(
    dead_letter_id: Annotated[
        int, typer.Argument(min=1, max=LARGEST, help="The dead letter's number.")
    ],
    content_file: Annotated[
        str,
        typer.Option("--content-file", help="A file with the new content; - reads it from stdin."),
    ],
    as_json: out.Json = False,
) -> None:
    """Compare a new content with the topic's JSON Schema, or with other contents of the topic, before an edit sends it.

    Ends with 1 if it breaks JSON or the schema.
    """
    from backstop.cli.cases import read_content
    from backstop.evidence.sources import Sources
    from backstop.reports.check_content import check_new_content
    from backstop.reports.letters import show_letter

    settings, known = context.load_settings(), context.connections()
    with context.control(settings, known) as conn:
        letter = show_letter(conn, dead_letter_id)
        topic, message_id = letter["topic"], letter["message_id"]
        if topic is None or message_id is None:
            raise usage_error(
                f"Dead letter {dead_letter_id} names no message: it has no content to change.",
                "Answer its case, or discard it.",
                unaffected="Nothing was read.",
            )
        content = read_content(content_file)
        subject = f"dead letter {dead_letter_id}"
        context.note_reading(conn, subject, {"topic": topic, "id": message_id})
    with Sources(settings, known) as sources:
        checked = check_new_content(sources, topic, message_id, content)
    if as_json:
        out.document(checked)
    else:
        for one in checked.findings:
            colour = "red" if one.severity == "error" else "yellow"
            out.line(f"{one.severity}: {f'{one.where} ' if one.where else ''}{one.what}", colour)
        out.line(f"Compared with: {', '.join(checked.compared_with) or 'the old content alone'}.")
    if any(one.severity == "error" for one in checked.findings):
        raise typer.Exit(1)


@app.command("export")
def export(
    output: Annotated[
        Path,
        typer.Option("--output", help="The file; only you may read it, because it holds payloads."),
    ],
    form: Annotated[str, typer.Option("--format", help="jsonl or parquet.")] = "jsonl",
    topic: Topic = None,
    group: Group = None,
    state: States = None,
    every: Every = False,
    category: CategoryName = None,
    cause: Cause = None,
    case: Case = None,
    since: Since = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, max=LARGEST, help="At most so many, the oldest.")
    ] = None,
    as_json: out.Json = False,
) -> None:
    """Write dead letters with headers and contents to a file, the oldest first."""
    from backstop.reports.export_letters import FORMATS, export_letters

    require_known("--format", [form], FORMATS)
    if not output.parent.is_dir():
        raise usage_error(
            f"There is no folder {output.parent}.", "Make it first, or name another file."
        )
    if output.is_dir():
        raise usage_error(f"{output} is a folder.", "Name a file.")
    if output.exists():
        raise usage_error(
            f"{output} exists already.",
            "Name a new file, or remove this one first.",
            unaffected="It was not touched.",
        )
    wanted = _wanted(topic, group, state, every, category, cause, case, since)
    settings = context.load_settings()
    try:
        with (
            context.control(settings, context.connections()) as conn,
            out.progress(f"writing {output}"),
        ):
            said = {
                "topic": topic,
                "group": group,
                "cause": cause,
                "case": case,
                "since": since,
                "limit": limit,
            }
            context.note_reading(
                conn,
                "dead letters",
                {name: value for name, value in said.items() if value is not None},
            )
            written = export_letters(conn, wanted, form, output, limit)
    except OSError as error:
        raise usage_error(
            f"{output} cannot be written: {error.strerror or error}.",
            "Name a place where you may write, with room for it.",
            unaffected="Nothing is there under this name.",
        ) from error
    if not written:
        explain_nothing(settings, [topic] if topic else [], [group] if group else [])
    if as_json:
        out.document({"written": written, "file": str(output)})
        return
    out.line(f"Wrote {written} dead letters to {output}.")


def _wanted(
    topic: str | None,
    group: str | None,
    states: list[str] | None,
    every: bool,
    category: str | None,
    cause: int | None,
    case: int | None,
    since: str | None,
) -> LetterFilter:
    from backstop.reports.letters import UNDECIDED, LetterFilter

    require_known("--state", states or [], DeadLetterState)
    require_known("--category", [category] if category else [], Category)
    wanted = None if every else states or UNDECIDED
    return LetterFilter(
        topic,
        group,
        wanted,
        category,
        cause,
        case,
        None if since is None else read_instant("--since", since),
    )


def _as_text(value: bytes) -> str:
    """As text where it is one, else the beginning in hexadecimal digits."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\x00"
    if "\x00" not in text:
        return text
    more = f" and {len(value) - _HEX_BYTES} bytes more" if len(value) > _HEX_BYTES else ""
    return f"hex {value[:_HEX_BYTES].hex(' ', 4)}{more}"
