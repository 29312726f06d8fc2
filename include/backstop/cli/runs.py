"""`backstop runs`: what the duties did."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from backstop.cli import context, out
from backstop.cli.usage_errors import LARGEST, require_known
from backstop.control.read_rows import read
from backstop.duties import names

DUTIES = names()
app = typer.Typer(help="What the duties did: list, show.", no_args_is_help=True)


@app.command("list")
def list_them(
    duty: Annotated[
        str | None, typer.Option("--duty", help=f"Only this one of {', '.join(DUTIES)}.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=LARGEST)] = 20,
    as_json: out.Json = False,
) -> None:
    """List runs, the newest first."""
    require_known("--duty", [duty] if duty else [], DUTIES)
    rows = _read("runs", {"duty": duty, "run_id": None, "limit": limit})["runs"]
    if as_json:
        out.document(rows)
        return
    if not rows:
        out.line("No run yet.")
        return
    out.table(
        ["run", "duty", "scope", "state", "started", "seconds", "counts"],
        [
            [
                r["run_id"],
                r["duty"] + (" (dry)" if r["dry_run"] else ""),
                r["scope"],
                r["state"],
                r["started_at"],
                f"{(r['finished_at'] - r['started_at']).total_seconds():.1f}"
                if r["finished_at"]
                else None,
                ", ".join(f"{name} {n}" for name, n in sorted(r["counts"].items())),
            ]
            for r in rows
        ],
    )


@app.command("show")
def show_one(
    run_id: Annotated[int, typer.Argument(min=1, max=LARGEST, help="The run's number.")],
    as_json: out.Json = False,
) -> None:
    """Show one run: its counts, verdicts, requests, batches, data checks, and how long each phase took."""
    from backstop.model.errors import ConfigurationError

    more = ("verdict_counts", "requests_of_run", "batches_of_run", "data_checks")
    found = _read("runs", {"duty": None, "run_id": run_id, "limit": 1}, *more)
    if not found["runs"]:
        raise ConfigurationError(
            f"There is no run {run_id}.",
            unaffected="Nothing was changed.",
            next_step="See: backstop runs list",
        )
    run = found.pop("runs")[0]
    if as_json:
        out.document({**run, **found})
        return
    ended = (
        f"ended {out.cell(run['finished_at'])}"
        if run["finished_at"]
        else f"last heard of {out.cell(run['heartbeat_at'])}"
    )
    dry = ", dry run" if run["dry_run"] else ", asked for no resend" if run["no_send"] else ""
    out.line(f"Run {run_id}: {run['duty']} over {run['scope']}, {run['state']}{dry}", style="bold")
    by = f" by the login {run['opened_by']}" if run["opened_by"] else ""
    out.line(
        f"  started {out.cell(run['started_at'])}{by}, {ended}, judged as of {out.cell(run['as_of'])}"
    )
    out.line(f"  policy {run['policy_version']}, code {run['code_version']}, stage {run['stage']}")
    if run["phase"] and (run["finished_at"] is None or run["state"] == "abandoned"):
        done = " of ".join(str(n) for n in (run["phase_done"], run["phase_of"]) if n is not None)
        since = f" since {out.cell(run['phase_at'])}"
        out.line(f"  phase {run['phase']}{since}{f', done {done}' if done else ''}")
    if run["error"]:
        out.line(f"  {run['error']}", style="red")
    for title, values in (("counts", run["counts"]), ("seconds", run["phases"])):
        if values:
            out.line(
                f"  {title}: " + ", ".join(f"{name} {n}" for name, n in sorted(values.items()))
            )
    if found["verdict_counts"]:
        out.table(
            ["topic", "group", "verdict", "deliveries", "eligible", "newly"],
            [list(row.values()) for row in found["verdict_counts"]],
        )
    if found["requests_of_run"]:
        out.table(
            ["topic", "requests", "made", "closed"],
            [list(row.values()) for row in found["requests_of_run"]],
        )
    if found["batches_of_run"]:
        out.table(
            ["topic", "batch", "step", "released", "state", "case", "held by this run"],
            [list(row.values()) for row in found["batches_of_run"]],
        )
    for row in found["data_checks"]:
        says = "passed" if row["passed"] else "FAILED"
        out.line(
            f"  data check {row['suite']}: {says} ({row['expectations']} expectations) {row['report'] or ''}"
        )


def _read(name: str, parameters: dict[str, object], *more: str) -> dict[str, list[dict[str, Any]]]:
    from backstop.sql.named import load

    queries = load("backstop.reports", "runs.sql")
    settings = context.load_settings()
    with context.control(settings, context.connections()) as conn:
        return {query: read(conn, queries[query], parameters) for query in (name, *more)}
