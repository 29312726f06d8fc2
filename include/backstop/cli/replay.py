"""`backstop replay`: an incident's deliveries, planned and shown, then asked for: a canary first, or all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from backstop.cli import context, out
from backstop.cli.usage_errors import LARGEST
from backstop.config.instant import read_instant
from backstop.model.errors import ConfigurationError

if TYPE_CHECKING:
    from backstop.incidents.replay import Mode, Plan, Wanted


def replay(
    topic: Annotated[str | None, typer.Option("--topic", help="The topic.")] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", help="Created (dead letters: died) since, as 2026-11-21T02:00Z."),
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="... and before.")] = None,
    verdict: Annotated[
        list[str] | None,
        typer.Option("--verdict", help="LOST, UNSENT, STALLED or DEAD_LETTERED; may be repeated."),
    ] = None,
    cause: Annotated[
        list[int] | None,
        typer.Option("--cause", min=1, max=LARGEST, help="This cause; may be repeated."),
    ] = None,
    category: Annotated[
        str | None, typer.Option("--category", help="Only dead letters of this category.")
    ] = None,
    case: Annotated[
        int | None,
        typer.Option("--case", min=1, max=LARGEST, help="Only dead letters of this case."),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", help="Only for this consumer group.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, max=LARGEST, help="At most this many deliveries."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            help="Messages a second, below the topic's own limit, from when it is asked for:"
            " what a pause or the ramp held past its turn follows at the topic's limit.",
        ),
    ] = None,
    stored: Annotated[
        int | None,
        typer.Option("--plan", min=1, max=LARGEST, help="The number of a plan made before."),
    ] = None,
    canary: Annotated[bool, typer.Option("--canary", help="Request the first few only.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Request all of it.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Plan and show only; so it is without --canary or --full."),
    ] = False,
    approve: Annotated[
        str | None,
        typer.Option(
            "--approve",
            metavar="DIGEST",
            help="With --plan: yes to what was shown with this digest.",
        ),
    ] = None,
    by: Annotated[
        str | None, typer.Option("--by", help="Who; default: the name you are logged in with.")
    ] = None,
    why: Annotated[str, typer.Option("--why", help="The reason; it is kept with the plan.")] = "",
    as_json: out.Json = False,
) -> None:
    """Plan which deliveries of a window are sent again, show the plan, and request it: a canary, or all.

    The next resend runs send it, by their ramp and rate; each delivery is judged again first.
    """
    from backstop.control.speaker import speaker
    from backstop.incidents.replay import Wanted, run_incident

    if canary + full + dry_run > 1:
        raise _usage_error("--canary, --full and --dry-run exclude one another.", "Choose one.")
    if approve is not None and stored is None:
        raise _usage_error(
            "--approve approves a plan that was shown, and none is named.",
            "Plan first, then name it (--plan).",
        )
    mode: Mode = "canary" if canary else "full" if full else "dry_run"
    settings, known = context.load_settings(), context.connections()
    with context.control(settings, known) as conn:
        who = speaker(conn, by, out.who())
    wanted: Wanted | int
    if stored is not None:
        _refuse_choice(
            {
                "--topic": topic,
                "--from": start,
                "--to": end,
                "--verdict": verdict,
                "--cause": cause,
                "--category": category,
                "--case": case,
                "--group": group,
                "--limit": limit,
                "--rate": rate,
                "--why": why or None,
            }
        )
        wanted = stored
    elif topic is None:
        raise _usage_error(
            "Neither a topic nor a plan is named.", "Name the topic (--topic), or a plan (--plan)."
        )
    else:
        wanted = Wanted(
            topic=topic,
            who=who,
            why=why,
            start=None if start is None else read_instant("--from", start),
            end=None if end is None else read_instant("--to", end),
            verdicts=tuple(verdict or ()),
            causes=tuple(cause or ()),
            category=category,
            case=case,
            group=group,
            limit=limit,
            rate=rate,
        )
    with out.progress("replay"):
        # Shown before anything of it is asked for: who sees what they did not mean can still interrupt it.
        plan, counts = run_incident(
            settings,
            known,
            wanted,
            mode,
            who,
            approved=approve or False,
            show=(lambda _: None) if as_json else _show,
        )
    if as_json:
        out.document({"plan": plan, "counts": counts, "mode": mode})
        return
    out.line(
        "Nothing was asked for (dry run)." if mode == "dry_run" else f"Asked for ({mode}): {counts}"
    )
    if plan.to_ask:
        yes = f" --approve {plan.digest}" if plan.too_wide else ""
        out.line(
            f"  backstop replay --plan {plan.incident_id} {'--full' if mode == 'canary' else '--canary'}{yes}"
        )


def _show(plan: Plan) -> None:
    out.line(
        f"Plan {plan.incident_id}: {plan.total} deliveries of {plan.topic}, {plan.asked} asked for already",
        style="bold",
    )
    for name, number in plan.counts.items():
        out.line(f"  {number} to {name}")
    if plan.examples:
        out.line(f"  as {', '.join(plan.examples)}")
    for reason, number in sorted(plan.left_out.items()):
        out.line(f"  left out {number}: {reason}")
    if plan.total:
        out.line(f"  digest {plan.digest}")
    if plan.too_wide:
        out.line(f"  more than the blast radius: it needs --approve {plan.digest}", style="yellow")


def _refuse_choice(given: dict[str, object]) -> None:
    """A stored plan is asked for whole: an option that narrows it would be passed over."""
    if names := [name for name, value in given.items() if value is not None]:
        raise _usage_error(
            f"--plan takes no {', '.join(names)}: what is sent, and why, was stored with the plan.",
            "Leave them out, or make another plan without --plan.",
        )


def _usage_error(what: str, next_step: str) -> ConfigurationError:
    return ConfigurationError(what, unaffected="Nothing was started.", next_step=next_step)
