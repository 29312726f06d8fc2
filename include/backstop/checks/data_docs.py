"""Let Great Expectations run a suite's checks on PostgreSQL and write its Data Docs: a static site a result.

Importing it takes seconds, so that happens inside the function. Results are BOOLEAN_ONLY: no value of a row
gets into the site. The context is ephemeral: nothing on disk holds the connection.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from backstop.checks.suites import ALL_RUNS, Check, Suite

if TYPE_CHECKING:
    import psycopg2

log = logging.getLogger(__name__)

SITE = "data_docs"
_NOWHERE = "postgresql+psycopg2://user@host/database"
"""Every part of it is replaced by those of the connection (`_server`)."""
_TURN = Lock()
"""Held by the thread that runs Great Expectations, which has one current context in a process and is not made for several
threads. A thread gives up its turn while the database works for it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a suite's checks came out: whether each that ran holds, by name, and the breaches of those that Great Expectations
    counts."""

    held: Mapping[str, bool]
    not_run: Mapping[str, str]
    """Why a check could not be run, by name; "" where the reason might show a value."""
    breaches: Mapping[str, tuple[int, list[dict[str, Any]]]]
    """By name: how many, and the ids of the first ones; an expectation over a whole table has one breach and no ids."""
    report: str | None
    """The site's index relative to the docs folder; None: it could not be written."""


def validate(
    suite_name: str,
    suite: Suite,
    batch: str,
    control_url: str,
    options: str,
    run_id: int,
    docs_folder: Path,
    ids_kept: int,
) -> Outcome:
    """Runs every check, those over one set of rows together: Great Expectations counts all breaches of single rows in one scan.

    `batch` is the query that `{batch}` stands for; `control_url` may name several servers; `options` are libpq options of every
    connection. One check that cannot be run leaves the others as they are. Threads may validate suites beside one another.
    """
    with _TURN, ExitStack() as opened:
        prepare()
        import great_expectations as gx
        from great_expectations.data_context.types.base import ProgressBarsConfig

        site = docs_folder / str(run_id) / suite_name
        is_written = _write(partial(_make_site, docs_folder, site))
        context = gx.get_context(mode="ephemeral")
        # After each thing that is added it writes all of its settings as YAML, which for this context nobody reads.
        context.variables.save = lambda: None
        context.variables.progress_bars = ProgressBarsConfig(globally=False)
        for name in list(context.get_site_names()):
            context.delete_data_docs_site(name)
        if is_written:
            context.add_data_docs_site(SITE, _site_settings(site))
        source = context.data_sources.add_postgres(
            "control",
            connection_string=_NOWHERE,
            kwargs={"connect_args": _server(control_url) | {"options": options}},
        )
        one_run = " ".join(batch.split())
        queries = {
            ALL_RUNS: one_run,
            **{
                name: rows.sql.replace("{batch}", f"({one_run})")
                for name, rows in suite.rows.items()
            },
        }
        engine = source.get_execution_engine().engine
        # Their connections end now, not when garbage is collected: those that run the checks, and those that looked at the query.
        opened.callback(engine.dispose)
        opened.callback(source.get_engine().dispose)
        for one in (engine, source.get_engine()):
            _lift_transaction_limit(one)
        _give_columns_alone(engine, set(queries.values()))
        refusals = _give_up_turn_while_it_works(engine, context)
        made, not_run = _expectations(suite.checks)
        definitions = {}
        for name in dict.fromkeys(check.rows for check in suite.checks):
            rows = source.add_query_asset(
                name, query=queries[name]
            ).add_batch_definition_whole_table(name)
            title = suite_name if name == ALL_RUNS else f"{suite_name}_{name}"
            # All at once: each expectation that is added later writes the whole suite again.
            its = [
                made[check.name]
                for check in suite.checks
                if check.rows == name and check.name in made
            ]
            added = context.suites.add(gx.ExpectationSuite(name=title, expectations=its))
            definitions[name] = context.validation_definitions.add(
                gx.ValidationDefinition(name=title, data=rows, suite=added)
            )
        # A checkpoint would write the index, and copy what all sites share, once for each set of rows.
        of_run = gx.RunIdentifier(run_name=f"run-{run_id}")
        held = {
            str(result.expectation_config.meta["name"]): bool(result.success)
            for definition in definitions.values()
            for result in definition.run(result_format="BOOLEAN_ONLY", run_id=of_run).results
            if not _could_not_run(result)
        }
        if is_written:
            is_written = _write(partial(context.build_data_docs, site_names=[SITE]))
        # Several are counted by one statement, and one that the server refuses takes the others with it: each is run alone. Not
        # after anything else, such as a limit of time, which would only be met again.
        is_refused = all(_is_refused(error) for error in refusals)

        def run_alone(check: Check, result_format: Any) -> Any:
            rows = definitions[check.rows].batch_definition.get_batch()
            return rows.validate(_expectation(check), result_format=result_format)

        breaches = {}
        for check in suite.checks:
            if check.name in not_run:
                continue
            if check.name not in held:
                refusals.clear()
                found = run_alone(check, "BOOLEAN_ONLY") if is_refused else None
                if found is None or _could_not_run(found):
                    not_run[check.name] = "" if found is None else _why(found, refusals)
                    continue
                held[check.name] = bool(found.success)
            if not held[check.name] and check.sql is None:
                shown = {
                    "result_format": "SUMMARY",
                    "partial_unexpected_count": ids_kept,
                    "unexpected_index_column_names": list(suite.rows[check.rows].ids),
                }
                found = run_alone(check, shown)
                if _could_not_run(found):
                    not_run[check.name] = ""
                    continue
                breaches[check.name] = _breaches(found.result, suite.rows[check.rows].ids)
        report = str((site / "index.html").relative_to(docs_folder)) if is_written else None
        return Outcome(held, not_run, breaches, report)


def _expectations(checks: Sequence[Check]) -> tuple[dict[str, Any], dict[str, str]]:
    """Each expectation as Great Expectations has it, by name; and why there is none, where it knows none of that name, or it does
    not take those arguments."""
    from great_expectations.exceptions import GreatExpectationsError

    made: dict[str, Any] = {}
    not_made: dict[str, str] = {}
    for check in checks:
        try:
            made[check.name] = _expectation(check)
        except (GreatExpectationsError, ValueError, TypeError) as error:
            not_made[check.name] = " ".join(str(error).split())
    return made, not_made


def _expectation(check: Check) -> Any:
    from great_expectations.expectations.registry import get_expectation_impl

    kind = get_expectation_impl(check.type) if check.sql is None else _no_rows()
    return kind(**check.kwargs, description=check.must_hold, meta={"name": check.name})


@cache
def _no_rows() -> Any:
    """Great Expectations' own expectation over a query, which reads the rows and then counts them in a second query: here it only
    counts them."""
    from great_expectations.expectations.core import UnexpectedRowsExpectation

    class NoUnexpectedRows(UnexpectedRowsExpectation):  # type: ignore[misc]
        metric_dependencies = ("unexpected_rows_query.row_count",)

        def _validate(self, metrics: dict[str, Any], *_: Any, **__: Any) -> dict[str, bool]:
            return {"success": metrics["unexpected_rows_query.row_count"] == 0}

    return NoUnexpectedRows


def _lift_transaction_limit(engine: Any) -> None:
    """Of each connection that is handed out: the first may have been made before."""
    from sqlalchemy import event

    from backstop.sql.connection import lift_transaction_limit

    @event.listens_for(engine, "checkout")
    def lift(connection: Any, *_: Any) -> None:
        lift_transaction_limit(connection)


def _give_columns_alone(engine: Any, queries: set[str]) -> None:
    """To learn the columns of a query Great Expectations selects its rows, all of them, into this process: it gets none."""
    from sqlalchemy import event

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def limit(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> tuple[str, Any]:
        return f"{statement} LIMIT 0" if statement in queries else statement, parameters


def _give_up_turn_while_it_works(engine: Any, context: Any) -> list[psycopg2.Error]:
    """While the database works on a statement of `engine`, another thread may have the turn, with a context of its own. Returns a
    list of the errors that the database gives from now on."""
    import psycopg2
    from great_expectations.data_context import set_context
    from sqlalchemy import event

    errors: list[psycopg2.Error] = []

    @event.listens_for(engine, "do_execute")
    def execute(cursor: Any, statement: str, parameters: Any, _: Any) -> bool:
        _TURN.release()
        try:
            cursor.execute(statement, parameters)
        except psycopg2.Error as error:
            errors.append(error)
            raise
        finally:
            _TURN.acquire()
            set_context(context)
        return True  # it is executed

    return errors


def _could_not_run(result: Any) -> bool:
    # Without an error: {"raised_exception": False}. An error of the query itself is keyed by the metric instead.
    trouble = result.exception_info or {}
    return bool(trouble.get("raised_exception", bool(trouble)))


def _is_refused(error: psycopg2.Error) -> bool:
    """Whether the statement itself is wrong: its names and types (class 42), or a value that is not of a type (class 22)."""
    return (error.pgcode or "")[:2] in ("22", "42")


def _why(result: Any, refusals: Sequence[psycopg2.Error]) -> str:
    """Why it could not be run. Nothing that may have a row's value in it: errors of class 42 name columns and types alone."""
    if refusals:
        if (refusals[-1].pgcode or "").startswith("42"):
            return refusals[-1].diag.message_primary or ""
        return "a value is not of the type that it is compared with"
    found = re.search(r'The column "[^"]*" in BatchData does not exist', str(result.exception_info))
    return found.group().replace(" in BatchData", "") if found else ""


def _breaches(result: Mapping[str, Any], ids: Sequence[str]) -> tuple[int, list[dict[str, Any]]]:
    """Ids alone: Great Expectations gives the value that breaks the rule as well."""
    rows = result.get("partial_unexpected_index_list") or []
    return int(result.get("unexpected_count") or 1), [
        {name: row.get(name) for name in ids} for row in rows
    ]


@cache
def prepare() -> None:
    """Import Great Expectations and compile its pages, once in a process; processes that are forked afterwards have both.

    Compiling the pages takes longer than running a suite and filling them in.
    """
    os.environ["GX_ANALYTICS_ENABLED"] = (
        "false"  # read at the import: nothing is reported to anyone
    )
    # It logs each field of each expectation that has no value; Airflow stores every line of a task.
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    importlib.import_module("great_expectations")
    from great_expectations.render.view import view
    from jinja2 import Environment
    from jinja2.bccache import Bucket, BytecodeCache

    class Compiled(BytecodeCache):
        def __init__(self) -> None:
            self._code: dict[tuple[str, str], Any] = {}

        def load_bytecode(self, bucket: Bucket) -> None:
            bucket.code = self._code.get((bucket.key, bucket.checksum))

        def dump_bytecode(self, bucket: Bucket) -> None:
            self._code[bucket.key, bucket.checksum] = bucket.code

    # A view makes an environment of its own, and a site has three views.
    view.Environment = partial(Environment, bytecode_cache=Compiled())
    environment = view.DefaultJinjaPageView().env
    for name in environment.list_templates(extensions=["j2"]):
        environment.get_template(name)


def _make_site(docs_folder: Path, site: Path) -> None:
    """An empty site whose 4 MB of fonts and images are shared by all sites."""
    shared = docs_folder / "static"
    shared.mkdir(parents=True, exist_ok=True)
    if site.exists():
        shutil.rmtree(site)
    site.mkdir(parents=True)
    (site / "static").symlink_to(Path("..") / ".." / "static", target_is_directory=True)


def _site_settings(site: Path) -> dict[str, Any]:
    return {
        "class_name": "SiteBuilder",
        "show_how_to_buttons": False,
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        # The page of a result shows every expectation of its suite: pages of the suites alone would double the site.
        "site_section_builders": {"expectations": "None", "profiling": "None"},
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(site)},
    }


def _write(write: Callable[[], object]) -> bool:
    """Whether it could be written. A report shows a result, and is none: without one the checks stand as they came out."""
    try:
        write()
    except OSError as error:
        log.error(
            "backstop: this data check has no report: %s", error.strerror or type(error).__name__
        )
        return False
    return True


def _server(url: str) -> dict[str, str | None]:
    """What psycopg2 takes to connect. SQLAlchemy reads no URL of several servers, and libpq does."""
    from psycopg2.extensions import parse_dsn

    named = {name: str(value) for name, value in parse_dsn(url).items()}
    # Not read-write: the session is set to read.
    return dict.fromkeys(("user", "host", "dbname")) | named | {"target_session_attrs": "primary"}
