"""`backstop cases`: what a person must decide, deciding it, and what people write about it."""

from __future__ import annotations

import sys
from contextlib import closing
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backstop.cli import context, out
from backstop.cli.usage_errors import LARGEST, explain_nothing, require_known, usage_error

if TYPE_CHECKING:
    from backstop.config.connections import Connections
    from backstop.config.settings import Settings

app = typer.Typer(help="What a person must decide: list, show, decide, note.", no_args_is_help=True)

CaseId = Annotated[int, typer.Argument(min=1, max=LARGEST, help="The case's number.")]


@app.command("list")
def list_them(
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Only this kind.")] = None,
    state: Annotated[str, typer.Option("--state", help="open, decided or closed.")] = "open",
    every: Annotated[bool, typer.Option("--all", help="In every state.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=LARGEST)] = 100,
    as_json: out.Json = False,
) -> None:
    """List cases, the newest first; open ones by default."""
    from backstop.decisions.actions import KINDS
    from backstop.decisions.list_cases import STATES, list_cases

    require_known("--state", [state], STATES)
    require_known("--kind", [kind] if kind else [], KINDS)
    settings = context.load_settings()
    with context.control(settings, context.connections()) as conn:
        cases = list_cases(
            conn, state=None if every else state, topic=topic, kind=kind, limit=limit
        )
    if not cases:
        explain_nothing(settings, [topic] if topic else [])
    if as_json:
        out.document([_as_document(case) for case in cases])
    elif not cases:
        out.line("No case." if every else f"No {state} case.")
    else:
        out.table(
            ["case", "kind", "topic", "group", "state", "open", "of", "since", "summary"],
            [
                [
                    c.case_id,
                    c.kind,
                    c.topic,
                    c.consumer_group,
                    c.state,
                    c.open_members,
                    c.members,
                    c.opened_at,
                    c.summary,
                ]
                for c in cases
            ],
        )


@app.command("show")
def show_one(
    case_id: CaseId,
    members: Annotated[
        int, typer.Option("--members", min=0, max=LARGEST, help="How many deliveries to list.")
    ] = 20,
    as_json: out.Json = False,
) -> None:
    """Show one case: why it was opened, its deliveries, what can be decided, what was."""
    from backstop.decisions.actions import ACTIONS
    from backstop.decisions.list_cases import show
    from backstop.decisions.note import notes_of
    from backstop.decisions.propose import proposed

    settings = context.load_settings()
    with context.control(settings, context.connections()) as conn:
        case, looks = show(conn, case_id, members)
        notes, waits = notes_of(conn, case_id), proposed(conn, case_id)
    if as_json:
        out.document(
            {
                **_as_document(case),
                "deliveries": looks,
                "notes": notes,
                "proposed": str(waits) if waits else None,
            }
        )
        return
    out.line(
        f"Case {case.case_id} ({case.kind}, {case.severity}, {case.state}): {case.summary}",
        style="bold",
    )
    out.line(
        f"  opened {out.cell(case.opened_at)} by run {out.cell(case.opened_by_run)}, last seen {out.cell(case.last_seen_at)}"
        + (f", came back {case.reopened} times" if case.reopened else "")
    )
    for name, value in case.evidence.items():
        if name != "decisions":
            out.line(f"  {name}: {value}")
    for entry in case.evidence.get("decisions", []):
        out.line(f"  {entry['at']} {entry['by']} decided to {entry['action']}: {entry['why']}")
        out.line(
            f"    did: {', '.join(f'{name} {n}' for name, n in entry['did'].items()) or 'nothing else'}"
        )
    for note in notes:
        out.line(f"  {out.cell(note.written_at)} {note.written_by} noted: {note.note}")
    if case.state == "open" and case.decision:
        out.line(
            f"  {case.decided_by} began to {case.decision} and did not finish; deciding again is safe",
            style="yellow",
        )
    out.line(f"  {case.open_members} of {case.members} deliveries are still open")
    if looks:
        out.table(
            ["message", "group", "shard", "last verdict", "reason", "run", "settled"],
            [
                [
                    m.message_id,
                    m.consumer_group,
                    m.shard,
                    m.verdict,
                    m.reason,
                    m.run_id,
                    m.settled_at,
                ]
                for m in looks
            ],
        )
    if waits is not None:
        out.line(f"  proposal {waits.proposal_id}: {waits}", style="yellow")
    for action in case.actions:
        out.line(f"  backstop cases decide {case.case_id} {action} --why ...   {ACTIONS[action]}")


@app.command("decide")
def decide_one(
    case_id: CaseId,
    action: Annotated[str, typer.Argument(help="What to do; `cases show` lists what fits.")],
    why: Annotated[str, typer.Option("--why", help="The reason; it is kept with the case.")],
    by: Annotated[
        str | None, typer.Option("--by", help="Who; default: the name you are logged in with.")
    ] = None,
    more: Annotated[
        int | None,
        typer.Option("--more", min=1, max=100, help="For raise: how many more sends; default: 1."),
    ] = None,
    message: Annotated[
        list[str] | None, typer.Option("--message", help="Only this message id; may be repeated.")
    ] = None,
    letter: Annotated[
        list[int] | None,
        typer.Option(
            "--letter", min=1, max=LARGEST, help="Only this dead letter; may be repeated."
        ),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option("--sample", min=1, max=10_000, help="For replay_sample: how many deliveries."),
    ] = None,
    content_file: Annotated[
        str | None,
        typer.Option(
            "--content-file", help="For edit: a file with the new content; - reads it from stdin."
        ),
    ] = None,
    broker: Annotated[
        str | None, typer.Option("--broker", help="For drained: the broker that the topic left.")
    ] = None,
    proposal: Annotated[
        int | None,
        typer.Option(
            "--proposal", min=1, max=LARGEST, help="For approve: the proposal that you read."
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only say which deliveries the decision would fit now."),
    ] = False,
    as_json: out.Json = False,
) -> None:
    """Decide a case. The present state is read again first; a decision that does not fit it is refused."""
    from backstop.control.speaker import speaker
    from backstop.decisions.decide import decide
    from backstop.spark.session import start_for_lakes
    from backstop.triage.decide.answer import REASONS_SHOWN

    if dry_run and (message or letter or sample is not None):
        raise usage_error(
            "--dry-run is about a whole case: it takes no --message, --letter or --sample.",
            "Leave them out, or read one message: backstop where TOPIC ID",
        )
    settings, known = context.load_settings(), context.connections()
    start_for_lakes(settings)
    if dry_run:
        _preview(settings, known, case_id, action, as_json)
        return
    options: dict[str, Any] = {}
    if more is not None:
        options["more"] = more
    if message:
        options["message_ids"] = message
    if letter:
        options["letters"] = letter
    if sample is not None:
        options["sample"] = sample
    if broker is not None:
        options["broker"] = broker
    if proposal is not None:
        options["proposal"] = proposal
    if content_file is not None:
        options["content"] = read_content(content_file)
    with (
        context.control(settings, known) as conn,
        out.progress(f"case {case_id}: reading the present state"),
    ):
        decided = decide(
            conn, settings, known, case_id, action, speaker(conn, by, out.who()), why, options
        )
    if as_json:
        out.document(decided)
        return
    if decided.again:
        out.line(f"Case {case_id} was decided so before; nothing was changed.")
        return
    out.line(f"Case {case_id}: {action}: {decided.counts}.")
    for sentence in decided.left_out[:REASONS_SHOWN]:
        out.line(f"  left out: {sentence}")
    if len(decided.left_out) > REASONS_SHOWN:
        out.line(f"  and {len(decided.left_out) - REASONS_SHOWN} more")
    if decided.left_out:
        out.line("The case stays open for what was left out.")


def _preview(
    settings: Settings, known: Connections, case_id: int, action: str, as_json: bool
) -> None:
    from backstop.decisions.decide import preview
    from backstop.evidence.sources import Sources
    from backstop.triage.decide.answer import COUNTED

    with (
        context.control(settings, known) as conn,
        Sources(settings, known) as sources,
        out.progress(f"case {case_id}: reading the present state"),
    ):
        found = preview(conn, sources, case_id, action)
    if as_json:
        out.document(found)
    elif found is None:
        out.line(f"{action} is about case {case_id} as such: no delivery of it is read for it.")
    else:
        out.line(
            f"Case {case_id}: {action} fits {found.fits} of {found.read} read"
            f" ({f'more than {COUNTED:,}' if found.open > COUNTED else found.open} open);"
            f" {found.done} are done already. Nothing was changed."
        )
        for sentence in found.left_out:
            out.line(f"  would be left out: {sentence}")


@app.command("proposed")
def show_proposed(
    case_id: CaseId,
    diff: Annotated[
        bool,
        typer.Option(
            "--diff", help="The dead letter's content as it is now beside it, line by line."
        ),
    ] = False,
) -> None:
    """Write a proposed new content to stdout, unchanged; the rest of the proposal goes to stderr."""
    from backstop.decisions.list_cases import show
    from backstop.decisions.propose import proposed
    from backstop.model.errors import DecisionRefused
    from backstop.reports.proposed_edit import ContentBefore, contents_before

    settings, known = context.load_settings(), context.connections()
    old: list[ContentBefore] = []
    with context.control(settings, known) as conn:
        waits = proposed(conn, case_id)
        if waits is not None and waits.content is not None:
            context.note_reading(conn, f"case {case_id}", {"proposal": waits.proposal_id})
            if diff:
                case, _ = show(conn, case_id, members=0)
                old = contents_before(conn, settings, known, case, waits)
    if waits is None:
        raise DecisionRefused(
            f"Nothing is proposed of case {case_id}.",
            unaffected="Nothing was changed.",
            next_step=f"See: backstop cases show {case_id}",
        )
    print(out.printable(f"proposal {waits.proposal_id}: {waits}"), file=sys.stderr)
    if waits.content is None:
        return
    if not diff:
        out.content(waits.content)
        return
    if not old:
        raise DecisionRefused(
            "There is no undecided dead letter or parked message to compare with.",
            unaffected="Nothing was changed.",
            next_step=f"See the new content alone: backstop cases proposed {case_id}",
        )
    for one in old:
        before, now = (_lines(content) for content in (one.content or b"", waits.content))
        whose = "the head" if one.dead_letter is None else f"dead letter {one.dead_letter}"
        name = f"{whose}, {one.message_id}"
        for changed in unified_diff(
            before, now, name, f"proposal {waits.proposal_id}", lineterm=""
        ):
            out.line(changed)


@app.command("parked")
def show_parked(
    case_id: CaseId,
    content: Annotated[
        bool,
        typer.Option("--content", help="Write the head's content to stdout, and nothing else."),
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=LARGEST, help="How many messages to list.")
    ] = 100,
    as_json: out.Json = False,
) -> None:
    """Show what a parked ordering key holds now: its messages in the order of their release."""
    from backstop.decisions.list_cases import show
    from backstop.evidence.sources import open_guarded
    from backstop.model.errors import DecisionRefused
    from backstop.stores.open import open_parking

    settings, known = context.load_settings(), context.connections()
    with context.control(settings, known) as conn:
        case, _ = show(conn, case_id, members=0)
        if case.kind != "key_parked" or case.consumer_group not in settings.groups:
            raise DecisionRefused(
                f"Case {case_id} is not about a parked key of a group in backstop.yaml.",
                unaffected="Nothing was changed.",
                next_step="See: backstop cases list --kind key_parked",
            )
        store, key = (
            settings.groups[case.consumer_group].store,
            (case.consumer_group, case.topic, case.subject),
        )
        with closing(
            open_guarded(f"store {store}", open_parking, settings, known, store)
        ) as parked:
            present = parked.parked_key(*key)
            messages = parked.messages(*key, limit)
            head = parked.head_content(*key) if content else None
        if head is not None:
            context.note_reading(conn, f"case {case_id}", {"topic": case.topic, "id": head[0]})
    if head is not None:
        out.content(head[1])
    elif as_json:
        out.document(
            {"key": present and present._asdict(), "messages": [one._asdict() for one in messages]}
        )
    elif present is None:
        out.line(f"The key {case.subject!r} of {case.topic} is not parked any more.")
    else:
        out.line(
            f"{present.key!r} of {present.topic} in {present.group}: {present.state}, {present.messages} messages,"
            f" {present.bytes} bytes, since {out.cell(present.parked_at)}"
        )
        out.table(
            ["message", "bytes", "version", "queue", "offset", "parked"],
            [
                [m.message_id, m.bytes, m.content_version, m.queue_id, m.queue_offset, m.parked_at]
                for m in messages
            ],
        )


def _lines(content: bytes) -> list[str]:
    return content.decode(errors="backslashreplace").splitlines()


@app.command("note")
def note_one(
    case_id: CaseId,
    text: Annotated[str, typer.Option("--text", help="What there is to say.")],
    by: Annotated[
        str | None, typer.Option("--by", help="Who; default: the name you are logged in with.")
    ] = None,
) -> None:
    """Write a note to a case; it is shown with it."""
    from backstop.control.speaker import speaker
    from backstop.decisions.note import add_note

    settings = context.load_settings()
    with context.control(settings, context.connections()) as conn:
        add_note(conn, case_id, speaker(conn, by, out.who()), text)
    out.line(f"Noted with case {case_id}.")


def read_content(path: str) -> bytes:
    """Never an argument: others on the machine see arguments, and shells keep them."""
    from backstop.model.errors import ConfigurationError

    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"The content cannot be read: {error}.",
            unaffected="Nothing was changed.",
            next_step="Name a file that is there.",
        ) from None


def _as_document(case: Any) -> dict[str, Any]:
    shown: dict[str, Any] = out.plain(case)
    return {**shown, "actions": list(case.actions)}
