"""`backstop run`: a duty from end to end, without Airflow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backstop.cli import context, out
from backstop.cli.usage_errors import usage_error
from backstop.config.instant import read_instant

if TYPE_CHECKING:
    from backstop.resend.run_once import Listing
    from backstop.runs.run import Run

app = typer.Typer(
    help="Run a duty without Airflow: reconcile, resend, sweep, triage, watch and others.",
    no_args_is_help=True,
)

Topics = Annotated[
    list[str] | None, typer.Option("--topic", help="Only this topic; may be repeated.")
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Change nothing outside the run itself; show what would be done."
    ),
]


@app.command()
def reconcile(
    topic: Topics = None,
    start: Annotated[
        str | None, typer.Option("--from", help="Only stubs created since, as 2026-11-21T02:00Z.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="... and before.")] = None,
    dry_run: DryRun = False,
    no_send: Annotated[
        bool,
        typer.Option(
            "--no-send", help="Promote verdicts, cases and statuses, and request no resend."
        ),
    ] = False,
    local_spark: Annotated[
        bool,
        typer.Option(
            "--local-spark", help="Spark on this machine, whatever $BACKSTOP_SPARK_MASTER says."
        ),
    ] = False,
    docs: Annotated[
        Path, typer.Option("--docs", help="Where the reports of the data checks go.")
    ] = Path("build/data-docs"),
    as_json: out.Json = False,
) -> None:
    """Judge everything that is due, promote what passed its checks: confirmed stubs, requests, cases.

    With --topic, --from or --to only what is due of these, beside the scheduled run over everything. Spark starts only when
    something is due. Ends with 3 when a store or broker did not answer: the rest was judged.
    """
    from backstop.reconcile.run_once import run_once
    from backstop.stores.protocol import Scope

    settings, known = context.load_settings(), context.connections()
    _require_topics(settings.topics, topic)
    since = None if start is None else read_instant("--from", start)
    before = None if end is None else read_instant("--to", end)
    last: list[int] = []
    check = context.data_checks(settings, known, docs)

    def start_spark() -> Any:
        from backstop.spark.session import start_session

        return start_session(
            "backstop reconcile", "local[*]" if local_spark else None, lakes=settings.has_lakes()
        )

    def audit(run: Run, suites: Sequence[str]) -> None:
        last.append(run.run_id)
        check(run, suites)

    with out.progress("reconcile") as say:
        counts = run_once(
            settings,
            known,
            start_spark,
            audit,
            scope=Scope(topic or None, since, before),
            dry_run=dry_run,
            no_send=no_send,
            say=say,
        )
    if as_json:
        out.document(
            {
                "counts": counts,
                "run_id": last[0] if last else None,
                "dry_run": dry_run,
                "no_send": no_send,
            }
        )
    else:
        out.line(
            f"reconcile{' (dry run)' if dry_run else ' (asked for no resend)' if no_send else ''}: {counts}"
        )
        if last:
            out.line(f"  backstop runs show {last[0]}")


@app.command()
def resend(
    topic: Topics = None,
    dry_run: DryRun = False,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="At most this many requests.")
    ] = None,
    ids: Annotated[
        str | None,
        typer.Option("--ids", help="Only the ids of this file, one a line; - reads them here."),
    ] = None,
    id_: Annotated[
        list[str] | None, typer.Option("--id", help="Only this id; may be repeated.")
    ] = None,
    why: Annotated[str, typer.Option("--why", help="With ids: the reason.")] = "",
    by: Annotated[
        str | None,
        typer.Option("--by", help="With ids: who; default: the name you are logged in with."),
    ] = None,
    as_json: out.Json = False,
) -> None:
    """Send what was requested and still fits: claim, publish, settle, until nothing is due.

    With --ids or --id only these messages of the one --topic, requested or not.
    """
    from backstop.control.speaker import speaker
    from backstop.resend.ask_for_ids import Listed
    from backstop.resend.run_once import Planned, run_duty
    from backstop.runs.scope import name_of

    if (why or by) and ids is None and not id_:
        raise usage_error(
            "--why and --by go with --ids or --id.",
            "Name the messages, or leave both out to send whatever was requested.",
            unaffected="Nothing was started.",
        )
    settings, known = context.load_settings(), context.connections()
    _require_topics(settings.topics, topic)
    scope = name_of(topic)
    planned: list[Planned] = []
    listed: list[Listed] = []
    with context.control(settings, known) as conn:
        listing = _listing(topic, ids, id_, speaker(conn, by, out.who()), why)
    with out.progress("resend"):
        counts = run_duty(
            settings,
            known,
            scope=scope,
            dry_run=dry_run,
            limit=limit,
            tell=planned.append,
            listing=listing,
            tell_listed=listed.append,
        )
    if as_json:
        found = {} if listing is None else {"listed": listed}
        out.document({"counts": counts, "dry_run": dry_run, "planned": planned, **found})
        return
    out.line(f"resend{' (dry run)' if dry_run else ''}: {counts}")
    for what in listed:
        out.line(f"  {what}")
    for one in planned:
        out.line(f"  {one}")


@app.command()
def sweep(
    group: Annotated[
        list[str] | None, typer.Option("--group", help="Only this consumer group; may be repeated.")
    ] = None,
    dry_run: DryRun = False,
    audit: Annotated[
        bool, typer.Option("--audit", help="Run the data checks before and after, as the DAG does.")
    ] = False,
    docs: Annotated[
        Path, typer.Option("--docs", help="Where the reports of the data checks go.")
    ] = Path("build/data-docs"),
    as_json: out.Json = False,
) -> None:
    """Take back leases of workers that died, and correct Redis where it disagrees with the database.

    Ends with 3 when a database or Redis did not answer: the others were swept.
    """
    from backstop.sweep.run_once import run_duty
    from backstop.sweep.tally import SweepDecision

    settings, known = context.load_settings(), context.connections()
    told: list[SweepDecision] = []

    with out.progress("sweep"):
        counts = run_duty(
            settings,
            known,
            groups=group,
            dry_run=dry_run,
            tell=told.append if dry_run else None,
            audit=context.data_checks(settings, known, docs) if audit else None,
        )
    if as_json:
        planned = [
            {**one.line._asdict(), "message_id": one.message_id, "why": one.why} for one in told
        ]
        out.document({"counts": counts, "dry_run": dry_run, "planned": planned})
        return
    out.line(f"sweep{' (dry run)' if dry_run else ''}: {counts}")
    for one in told:
        out.line(f"  {one}")


@app.command()
def retention(
    now: Annotated[
        bool, typer.Option("--now", help="Also outside the window of backstop.yaml.")
    ] = False,
    dry_run: DryRun = False,
    docs: Annotated[
        Path | None,
        typer.Option("--docs", help="The reports of data checks; those of purged runs go, too."),
    ] = None,
    as_json: out.Json = False,
) -> None:
    """Purge finished rows in small steps, inside its window: logs, stubs, dead letters, old control rows.

    Ends with 3 when something did not answer: what could not be asked for stays.
    """
    from backstop.retention.run_once import run_duty

    settings, known = context.load_settings(), context.connections()
    with out.progress("retention"):
        counts = run_duty(settings, known, now=now, dry_run=dry_run, reports=docs)
    if as_json:
        out.document({"counts": counts, "dry_run": dry_run})
    else:
        out.line(f"retention{' (dry run)' if dry_run else ''}: {counts}")


@app.command()
def triage(
    topic: Topics = None,
    dry_run: DryRun = False,
    audit: Annotated[
        bool, typer.Option("--audit", help="Run the data checks at each step, as the DAG does.")
    ] = False,
    docs: Annotated[
        Path, typer.Option("--docs", help="Where the reports of the data checks go.")
    ] = Path("build/data-docs"),
    as_json: out.Json = False,
) -> None:
    """Drain dead-letter queues, find causes, discard what is proven done, replay what is safe, ask people.

    A dry run shows the decisions about stored dead letters. Ends with 3 when something did not answer: the
    rest was done.
    """
    from backstop.triage.decide.apply import Decided
    from backstop.triage.run_once import run_duty

    settings, known = context.load_settings(), context.connections()
    _require_topics(settings.topics, topic)
    told: list[Decided] = []

    with out.progress("triage"):
        counts = run_duty(
            settings,
            known,
            topics=topic,
            dry_run=dry_run,
            tell=told.append,
            audit=context.data_checks(settings, known, docs) if audit else None,
        )
    if as_json:
        out.document({"counts": counts, "dry_run": dry_run, "planned": [str(one) for one in told]})
        return
    out.line(f"triage{' (dry run)' if dry_run else ''}: {counts}")
    for one in told:
        out.line(f"  {one}")


@app.command()
def audit(
    day: Annotated[
        str | None, typer.Option("--day", help="The day (UTC), as 2026-11-21; default: yesterday.")
    ] = None,
    docs: Annotated[
        Path, typer.Option("--docs", help="Where the reports of the data checks go.")
    ] = Path("build/data-docs"),
    as_json: out.Json = False,
) -> None:
    """Check the invariants of all databases for one day; changes nothing.

    Ends with 5 when something does not hold, with 3 when something did not answer.
    """
    from datetime import date

    from backstop.audit.run_once import run_duty
    from backstop.model.errors import ConfigurationError

    settings, known = context.load_settings(), context.connections()
    try:
        chosen = None if day is None else date.fromisoformat(day)
    except ValueError:
        raise ConfigurationError(
            f"{day!r} is not a date.",
            unaffected="Nothing was started.",
            next_step="Write it as 2026-11-21.",
        ) from None

    said: list[str] = []
    check = context.data_checks(settings, known, docs)
    with out.progress("audit"):
        counts = run_duty(settings, known, day=chosen, tell=said.append, audit=check)
    if as_json:
        out.document({"counts": counts, "decisions": said[0] if said else None})
    else:
        out.line(f"audit: {counts}")
        for line in said:
            out.line(f"  {line}")


@app.command()
def watch(as_json: out.Json = False) -> None:
    """Check once for backlogs, silent groups and overdue duties; write alerts, and send the heartbeat.

    Ends with 1 when a duty is overdue, with 3 when something (the heartbeat's URL too) did not answer.
    """
    from backstop.watch.run_once import run_once

    watched = run_once(context.load_settings(), context.connections())
    if as_json:
        out.document({"counts": watched.counts, "overdue": watched.overdue})
    else:
        out.line(f"watch: {watched.counts}")
        for sentence in watched.overdue.values():
            out.line(f"  {sentence}", style="red")
    if watched.overdue:
        raise typer.Exit(1)


def _listing(
    topic: list[str] | None, path: str | None, named: list[str] | None, who: str, why: str
) -> Listing | None:
    from backstop.model.errors import ConfigurationError
    from backstop.model.id_list import read_id_list
    from backstop.resend.ask_for_ids import read_ids
    from backstop.resend.run_once import Listing

    if path is None and not named:
        return None
    if not topic or len(topic) != 1:
        raise ConfigurationError(
            "A list of ids takes exactly one topic.",
            unaffected="Nothing was started.",
            next_step="Name it once: --topic TOPIC.",
        )
    text = "" if path is None else read_id_list(path)
    return Listing(topic[0], read_ids(text, named or ()), who, why)


def _require_topics(known: Any, named: list[str] | None) -> None:
    from backstop.model.errors import ConfigurationError

    if unknown := [name for name in named or () if name not in known]:
        raise ConfigurationError(
            f"There is no topic {', '.join(map(repr, unknown))}.",
            unaffected="Nothing was started.",
            next_step=f"Name some of: {', '.join(known)}.",
        )
