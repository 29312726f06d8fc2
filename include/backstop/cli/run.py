"""`backstop run`: a duty from end to end, without Airflow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backstop.cli import context, out

if TYPE_CHECKING:
    from backstop.runs.run import Run

app = typer.Typer(help="Run a duty without Airflow: reconcile, resend, watch.", no_args_is_help=True)

Topics = Annotated[list[str] | None, typer.Option("--topic", help="Only this topic; may be repeated.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing outside the run itself; show what would be done.")]


@app.command()
def reconcile(
    topic: Topics = None,
    dry_run: DryRun = False,
    local_spark: Annotated[
        bool, typer.Option("--local-spark", help="Spark on this machine, whatever $BACKSTOP_SPARK_MASTER says.")
    ] = False,
    docs: Annotated[Path, typer.Option("--docs", help="Where the reports of the data checks go.")] = Path("build/data-docs"),
    as_json: out.Json = False,
) -> None:
    """Judge everything that is due, promote what passed its checks: confirmed stubs, requests, cases.

    Spark starts only when something is due. Ends with 3 when a store or broker did not answer: the rest was judged.
    """
    from backstop.reconcile.run_once import run_once
    from backstop.stores.protocol import Scope

    settings, known = context.load_settings(), context.connections()
    _require_topics(settings.topics, topic)
    last: list[int] = []

    def start_spark() -> Any:
        from backstop.runs.spark_session import start_session

        return start_session("backstop reconcile", "local[*]" if local_spark else None)

    def audit(run: Run, suite: str) -> None:
        from backstop.quality.audit import run_suite

        last.append(run.run_id)
        repair = [name for name, its in settings.topics.items() if its.mode == "repair"]
        run_suite(suite, known.url(settings.control), run.run_id, None, docs, repair_topics=repair)

    with out.progress("reconcile") as say:
        counts = run_once(settings, known, start_spark, audit, scope=Scope(topics=topic or None), dry_run=dry_run, say=say)
    if as_json:
        out.document({"counts": counts, "run_id": last[0] if last else None, "dry_run": dry_run})
    else:
        out.line(f"reconcile{' (dry run)' if dry_run else ''}: {counts}")
        if last:
            out.line(f"  backstop runs show {last[0]}")


@app.command()
def resend(
    topic: Topics = None,
    dry_run: DryRun = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many requests.")] = None,
    as_json: out.Json = False,
) -> None:
    """Send what requests ask for and what still fits: claim, publish, settle, until nothing is due."""
    from backstop.resend.work import Planned, run_duty
    from backstop.runs.scope import name_of

    settings, known = context.load_settings(), context.connections()
    _require_topics(settings.topics, topic)
    scope = name_of(topic)
    planned: list[Planned] = []
    with out.progress("resend"):
        counts = run_duty(settings, known, scope=scope, dry_run=dry_run, limit=limit, tell=planned.append)
    if as_json:
        out.document({"counts": counts, "dry_run": dry_run, "planned": planned})
        return
    out.line(f"resend{' (dry run)' if dry_run else ''}: {counts}")
    for one in planned:
        out.line(f"  {one}")


@app.command()
def watch(as_json: out.Json = False) -> None:
    """Look once for losses that are coming and for duties that are overdue; alert, and send the heartbeat.

    Ends with 1 when a duty is overdue, with 3 when something (the heartbeat's URL too) did not answer.
    """
    from backstop.health.watch import run_once

    watched = run_once(context.load_settings(), context.connections())
    if as_json:
        out.document({"counts": watched.counts, "overdue": watched.overdue})
    else:
        out.line(f"watch: {watched.counts}")
        for sentence in watched.overdue.values():
            out.line(f"  {sentence}", style="red")
    if watched.overdue:
        raise typer.Exit(1)


def _require_topics(known: Any, named: list[str] | None) -> None:
    from backstop.errors import ConfigurationError

    if unknown := [name for name in named or () if name not in known]:
        raise ConfigurationError(
            f"There is no topic {', '.join(map(repr, unknown))}.", kept="Nothing was started.",
            next_step=f"Name some of: {', '.join(known)}.",
        )  # fmt: skip
