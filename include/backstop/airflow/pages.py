"""The read-only pages under /backstop: what a run did, the Data Docs of its audits, and cases. Each is for who may read the
DAG that shows the same.

Nothing here changes anything. Text from the database is escaped; pages carry no script.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import FileResponse, HTMLResponse, Response

from backstop.airflow.access import Visitor, reader, visitor_of
from backstop.airflow.answer_errors import answer_errors
from backstop.airflow.control_room import Room, docs_folder, reading_room
from backstop.airflow.decide_case import DAG, dag_for
from backstop.runs.run import DEAD_AFTER
from backstop.sql.named import load

DAG_OF_RUNS = "reconcile"
"""What runs did is of every team: those pages are for who may read this DAG."""
LIMIT = 200
"""Rows of a table on a page; the last line says that there are more."""

STYLE = """
body { font: 14px/1.4 sans-serif; margin: 2em } table { border-collapse: collapse }
td, th { border: 1px solid #ccc; padding: .2em .6em; text-align: left; vertical-align: top }
"""

_STYLES = "https://maxcdn.bootstrapcdn.com https://cdnjs.cloudflare.com https://unpkg.com https://cdn.jsdelivr.net"
"""Where Great Expectations' pages take their styles and fonts from."""

# No script runs, not even the Data Docs' own, which come from other hosts: these pages share Airflow's origin
# and cookie.
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'self' 'unsafe-inline' {_STYLES}; "
    f"img-src 'self' data:; font-src 'self' {_STYLES} data:; frame-ancestors 'self'; base-uri 'none'; "
    "form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-store",
}

_SQL = load("backstop.reports", "pages.sql")
OF_RUN = (
    ("Verdicts", "verdicts_of_run"),
    ("Requests asked for", "requests_made_by_run"),
    ("Requests closed", "requests_closed_by_run"),
    ("Cases opened", "cases_opened_by_run"),
    ("Planned to be replayed", "deliveries_planned_by_run"),
    ("Not read to the end", "incomplete_reads_of_run"),
    ("Put into quarantine", "quarantined_by_run"),
)
"""Headings of a run's page, each with its query."""
OF_CASE = (
    ("Deliveries", "deliveries_of_case"),
    ("Dead letters", "dead_letters_of_case"),
    ("Notes", "notes_of_case"),
    ("Questions to people", "questions_of_case"),
)


@contextmanager
def _reading() -> Iterator[tuple[Room, Any]]:
    """The settings and a cursor that only reads, for a short time: by the login of console.reader where there is one."""
    with reading_room() as room, room.control, room.control.cursor() as cursor:
        yield room, cursor


def make_app() -> FastAPI:
    """The application that Airflow mounts; without a reader every path is refused."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(reader())])
    answer_errors(app, _error_page)
    of_runs = [Depends(require_reader_of_runs)]
    app.get("/me")(show_visitor)
    app.get("/console.js")(show_console)
    app.get("/runs", dependencies=of_runs)(list_runs)
    app.get("/runs/{run_id}", dependencies=of_runs)(show_run)
    app.get("/runs/{run_id}/checks/{suite}", dependencies=of_runs)(show_checks)
    app.get("/cases")(list_cases)
    app.get("/cases/{case_id}")(show_case)
    app.get("/docs/{path:path}", dependencies=of_runs)(show_docs)
    return app


Asking = Annotated[Visitor, Depends(visitor_of)]


def require_reader_of_runs(visitor: Asking) -> None:
    """403 for who may not read the DAG whose runs these are."""
    if not visitor.may_read(DAG_OF_RUNS):
        raise HTTPException(403, f"This page is for those who may read the DAG {DAG_OF_RUNS}.")


def show_visitor(visitor: Asking) -> Response:
    """How Airflow knows who looks: what `people.deciders` takes."""
    line = f"{{id: {json.dumps(visitor.id)}, name: {json.dumps(visitor.name)}}}"
    return page(
        "You",
        f"<p>For <code>people.deciders</code> in backstop.yaml: <code>{escape(line)}</code></p>",
    )


def show_console() -> Response:
    """The console's script, which Airflow's own page loads; none of these pages does."""
    from backstop.airflow.plugin import BUNDLE

    return FileResponse(
        BUNDLE,
        media_type="text/javascript",
        headers={
            "Cache-Control": "private, max-age=86400",
            "X-Content-Type-Options": "nosniff",
        },
    )


def list_runs() -> Response:
    """The newest runs, each with its page."""
    with _reading() as (_, cursor):
        cursor.execute(_SQL["newest_runs"], {"dead_after": DEAD_AFTER})
        rows = [row_of(cursor, row) for row in cursor.fetchall()]
    for row in rows:
        row["run"] = Link(f"runs/{row['run']}", str(row["run"]))
    return page(
        "Runs", f"<p>{Link('cases', 'Open cases and causes of dead letters')}</p>{table(rows)}"
    )


def list_cases(visitor: Asking) -> Response:
    """Open cases, the most severe first, and what dead letters died of, the latest first."""
    with _reading() as (room, cursor):
        of_teams = list(room.settings.teams_by_topic())
        readable = [topic for topic in of_teams if visitor.may_read(dag_for(room.settings, topic))]
        cursor.execute(
            _SQL["open_cases"],
            {
                "limit": LIMIT + 1,
                "of_teams": of_teams,
                "readable": readable,
                "others": visitor.may_read(DAG),
            },
        )
        cases = [row_of(cursor, row) for row in cursor.fetchall()]
        for case in cases:
            case["case"] = Link(f"cases/{case['case']}", str(case["case"]))
        body = table(cases)
        if visitor.may_read(DAG_OF_RUNS):
            cursor.execute(_SQL["causes"], {"limit": LIMIT + 1})
            body += "<h2>Causes of dead letters</h2>" + table(
                [row_of(cursor, row) for row in cursor.fetchall()]
            )
    return page("Open cases", body)


def show_case(case_id: int, visitor: Asking) -> Response:
    """One case: its evidence, deliveries, letters, notes and questions. No content of a message."""
    with _reading() as (room, cursor):
        cursor.execute(_SQL["case"], {"case_id": case_id})
        found = cursor.fetchone()
        case = row_of(cursor, found) if found is not None else None
        if case is None or not visitor.may_read(dag_for(room.settings, case["topic"])):
            raise HTTPException(404, "There is no such case.")
        sections = []
        for title, query in OF_CASE:
            cursor.execute(_SQL[query], {"case_id": case_id, "limit": LIMIT + 1})
            sections.append((title, [row_of(cursor, row) for row in cursor.fetchall()]))
    facts = [
        {"what": name, "value": value} for name, value in case.items() if value not in (None, {})
    ]
    body = table(facts) + "".join(
        f"<h2>{escape(title)}</h2>{table(rows)}" for title, rows in sections if rows
    )
    return page(f"Case {case_id}: {case['kind']}, {case['state']}", body)


def show_run(run_id: int) -> Response:
    """Counts, verdicts by topic and group, requests, cases, data checks of one run."""
    with _reading() as (_, cursor):
        cursor.execute(_SQL["run"], {"run_id": run_id, "dead_after": DEAD_AFTER})
        found = cursor.fetchone()
        if found is None:
            raise HTTPException(404, "There is no such run.")
        run = row_of(cursor, found)
        cursor.execute(_SQL["checks_of_run"], {"run_id": run_id})
        checks = [row_of(cursor, row) for row in cursor.fetchall()]
        sections = []
        for title, query in OF_RUN:
            cursor.execute(_SQL[query], {"run_id": run_id, "limit": LIMIT + 1})
            sections.append((title, [row_of(cursor, row) for row in cursor.fetchall()]))
    for check in checks:
        check.pop("held")
        check["report"] = Link(f"{run_id}/checks/{quote(check['suite'], safe='')}", "Data Docs")
        check["failed"] = ", ".join(
            f"{broken['name']} ({broken['count']})" for broken in check["failed"]
        )
    facts = [
        {"what": name, "value": value} for name, value in run.items() if value not in (None, {})
    ]
    body = table(facts) + "<h2>Data checks</h2>" + table(checks)
    body += "".join(f"<h2>{escape(title)}</h2>{table(rows)}" for title, rows in sections if rows)
    return page(f"Run {run['run_id']}: {run['duty']}, {run['state']}", body)


def show_checks(run_id: int, suite: str) -> Response:
    """One suite over one run: what each check demands and how it came out; of those that failed, the rows that break them, by id.

    The index of the Data Docs is drawn by a script, which does not run here; the page of the result itself is plain HTML.
    """
    from backstop.checks.suites import SUITES

    with _reading() as (_, cursor):
        cursor.execute(_SQL["checks_of_run"], {"run_id": run_id})
        kept = next(
            (
                row
                for row in (row_of(cursor, row) for row in cursor.fetchall())
                if row["suite"] == suite
            ),
            None,
        )
    if kept is None:
        raise HTTPException(404, "This run has no such data check.")
    failed = {broken["name"]: broken for broken in kept["failed"]}
    rows = [
        {
            "check": name,
            "must hold": broken.get("must_hold"),
            "result": f"FAILED: {broken['count']} rows",
        }
        for name, broken in failed.items()
    ] + [
        {"check": name, "must hold": text, "result": "holds"}
        for name, text in (kept["held"] or {}).items()
    ]
    body = (
        f"<p>{Link(f'../../{run_id}', f'Run {run_id}')}, checked at {shown(kept['checked_at'])}</p>"
        + table(rows)
    )
    if kept["held"] is None:  # from before their names were kept
        body += f"<p>{kept['expectations'] - len(failed)} others held.</p>"
    for name, broken in failed.items():
        found = broken.get("ids") or []
        columns = list(dict.fromkeys(column for one in found for column in one))
        body += f"<h2>{escape(name)}</h2><p>{escape(broken.get('must_hold') or '')}</p>"
        body += table([{column: one.get(column) for column in columns} for one in found])
        if broken["count"] > len(found):
            body += f"<p>The first {len(found)} of {broken['count']}.</p>"
    folder = docs_folder().resolve()
    report = folder / str(run_id) / suite / "validations"
    for page_of_result in sorted(report.glob("**/*.html")) if suite in SUITES else []:
        target = quote(str(page_of_result.relative_to(folder)))
        body += (
            f"<p>{Link(f'../../../docs/{target}', 'The result as Great Expectations shows it')}</p>"
        )
    return page(
        f"Data check {suite} of run {run_id}: {'passed' if kept['passed'] else 'FAILED'}", body
    )


def show_docs(path: str) -> Response:
    """A file of the Data Docs. Whatever lies outside their folder, or is not a plain file, is not found."""
    folder = docs_folder().resolve()
    try:
        wanted = (folder / path).resolve(strict=True)
    except (OSError, ValueError) as error:  # ValueError: a null byte
        raise HTTPException(404, "There is no such page.") from error
    if not wanted.is_relative_to(folder) or not wanted.is_file():
        raise HTTPException(404, "There is no such page.")
    return FileResponse(wanted, headers=HEADERS)


class Link:
    """A link to another of our pages."""

    def __init__(self, target: str, text: str) -> None:
        self.target, self.text = target, text

    def __str__(self) -> str:
        return f'<a href="{escape(self.target)}">{escape(self.text)}</a>'


def row_of(cursor: Any, row: tuple[Any, ...]) -> dict[str, Any]:
    """A row by the names of its columns."""
    return {column.name: value for column, value in zip(cursor.description, row, strict=True)}


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as an HTML table, every value escaped."""
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    lines = [
        "<tr>" + "".join(f"<td>{shown(value)}</td>" for value in row.values()) + "</tr>"
        for row in rows[:LIMIT]
    ]
    more = f"<p>Only the first {LIMIT} are shown.</p>" if len(rows) > LIMIT else ""
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>{more}"


def shown(value: Any) -> str:
    """One value as HTML."""
    if isinstance(value, Link):
        return str(value)
    if value is None:
        return ""
    if isinstance(value, dict | list):
        return escape(json.dumps(value, sort_keys=True, default=str))
    return escape(f"{value:%Y-%m-%d %H:%M:%S}" if hasattr(value, "strftime") else str(value))


def _error_page(status: int, what: str, unaffected: str, next_step: str) -> HTMLResponse:
    parts = "".join(f"<p>{escape(part)}</p>" for part in (what, unaffected, next_step) if part)
    return page("This page cannot be shown", parts, status)


def page(title: str, body: str, status: int = 200) -> HTMLResponse:
    """A whole page."""
    head = f"<meta charset='utf-8'><title>{escape(title)}</title><style>{STYLE}</style>"
    text = f"<!doctype html><html lang='en'>{head}<h1>{escape(title)}</h1>{body}</html>"
    return HTMLResponse(text, status, headers=HEADERS)
