"""`backstop cases`: what a person must decide, and deciding it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from backstop.cli import context, out

app = typer.Typer(help="What a person must decide: list, show, decide.", no_args_is_help=True)

CaseId = Annotated[int, typer.Argument(help="The case's number.")]


@app.command("list")
def list_them(
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Only this kind.")] = None,
    state: Annotated[str, typer.Option("--state", help="open, decided or closed.")] = "open",
    every: Annotated[bool, typer.Option("--all", help="In every state.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1)] = 100,
    as_json: out.Json = False,
) -> None:
    """List cases, the newest first; open ones unless told otherwise."""
    from backstop.cases.look import list_cases

    settings = context.load_settings()
    with context.control(settings, context.connections()) as conn:
        cases = list_cases(conn, state=None if every else state, topic=topic, kind=kind, limit=limit)
    if as_json:
        out.document([_as_document(case) for case in cases])
    elif not cases:
        out.line("No case." if every else f"No {state} case.")
    else:
        out.table(
            ["case", "kind", "topic", "group", "state", "open", "of", "since", "summary"],
            [[c.case_id, c.kind, c.topic, c.consumer_group, c.state, c.open_members, c.members, c.opened_at, c.summary]
             for c in cases],
        )  # fmt: skip


@app.command("show")
def show_one(
    case_id: CaseId,
    members: Annotated[int, typer.Option("--members", min=0, help="How many deliveries to list.")] = 20,
    as_json: out.Json = False,
) -> None:
    """Show one case: why it was opened, its deliveries, what can be decided, what was."""
    from backstop.cases.actions import ACTIONS
    from backstop.cases.look import show

    settings = context.load_settings()
    with context.control(settings, context.connections()) as conn:
        case, looks = show(conn, case_id, members)
    if as_json:
        out.document({**_as_document(case), "deliveries": looks})
        return
    out.line(f"Case {case.case_id} ({case.kind}, {case.severity}, {case.state}): {case.summary}", style="bold")
    out.line(
        f"  opened {out.cell(case.opened_at)} by run {out.cell(case.opened_by_run)}, last seen {out.cell(case.last_seen_at)}"
    )
    for name, value in case.evidence.items():
        if name != "decisions":
            out.line(f"  {name}: {value}")
    for entry in case.evidence.get("decisions", []):
        out.line(f"  {entry['at']} {entry['by']} decided to {entry['action']}: {entry['why']}")
        out.line(f"    did: {', '.join(f'{name} {n}' for name, n in entry['did'].items()) or 'nothing else'}")
    if case.state == "open" and case.decision:
        out.line(f"  {case.decided_by} began to {case.decision} and did not finish; deciding again is safe", style="yellow")
    out.line(f"  {case.open_members} of {case.members} deliveries are still open")
    if looks:
        out.table(
            ["message", "group", "shard", "last verdict", "reason", "run", "settled"],
            [[m.message_id, m.consumer_group, m.shard, m.verdict, m.reason, m.run_id, m.settled_at] for m in looks],
        )
    for action in case.actions:
        out.line(f"  backstop cases decide {case.case_id} {action} --why ...   {ACTIONS[action]}")


@app.command("decide")
def decide_one(
    case_id: CaseId,
    action: Annotated[str, typer.Argument(help="What to do; `cases show` lists what fits.")],
    why: Annotated[str, typer.Option("--why", help="The reason; it is kept with the case.")],
    by: Annotated[str | None, typer.Option("--by", help="Who; default: the name you are logged in with.")] = None,
    more: Annotated[int, typer.Option("--more", min=1, max=100, help="For raise: how many more sends.")] = 1,
    message: Annotated[list[str] | None, typer.Option("--message", help="Only this message id; may be repeated.")] = None,
    as_json: out.Json = False,
) -> None:
    """Decide a case. The present state is read again first; a decision that does not fit it is refused."""
    from backstop.cases.decide import decide

    settings, known = context.load_settings(), context.connections()
    options: dict[str, Any] = {"more": more}
    if message:
        options["message_ids"] = message
    with context.control(settings, known) as conn, out.progress(f"case {case_id}: reading the present state"):
        decided = decide(conn, settings, known, case_id, action, by or out.who(), why, options)
    if as_json:
        out.document(decided)
        return
    if decided.again:
        out.line(f"Case {case_id} was decided so before; nothing was changed.")
        return
    out.line(f"Case {case_id}: {action}: {decided.counts}.")
    for sentence in decided.left_out[:20]:
        out.line(f"  left out: {sentence}")
    if len(decided.left_out) > 20:
        out.line(f"  and {len(decided.left_out) - 20} more")
    if decided.left_out:
        out.line("The case stays open for what was left out.")


def _as_document(case: Any) -> dict[str, Any]:
    shown: dict[str, Any] = out.plain(case)
    return {**shown, "actions": list(case.actions)}
