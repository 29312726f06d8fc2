"""Let Great Expectations run a suite's checks on PostgreSQL and write its Data Docs: a static site a result.

Importing it takes seconds, so that happens inside the function. Results are BOOLEAN_ONLY: no value of a row
gets into the site. The context is ephemeral: nothing on disk holds the connection.
"""

from __future__ import annotations

import importlib
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import Any

from backstop.checks.suites import ALL_RUNS, Check, Suite
from backstop.model.errors import AuditFailed

SITE = "data_docs"
_TURN = Lock()
"""Held by the thread that runs Great Expectations, which has one current context in a process and is not made for several
threads. A thread gives up its turn while the database works for it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a suite's checks came out: whether each holds, by name, and the breaches of those that Great Expectations counts."""

    held: Mapping[str, bool]
    breaches: Mapping[str, tuple[int, list[dict[str, Any]]]]
    """By name: how many, and the ids of the first ones; an expectation over a whole table has one breach and no ids."""
    report: str
    """The site's index relative to the docs folder."""


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

    `batch` is the query that `{batch}` stands for; `options` are libpq options of every connection. A check
    that cannot be run raises AuditFailed: it is not known to hold. Threads may validate suites beside one another.
    """
    with _TURN, ExitStack() as opened:
        prepare()
        import great_expectations as gx
        from great_expectations.data_context.types.base import ProgressBarsConfig

        site = docs_folder / str(run_id) / suite_name
        _make_site(docs_folder, site)
        context = gx.get_context(mode="ephemeral")
        # After each thing that is added it writes all of its settings as YAML, which for this context nobody reads.
        context.variables.save = lambda: None
        context.variables.progress_bars = ProgressBarsConfig(globally=False)
        for name in list(context.get_site_names()):
            context.delete_data_docs_site(name)
        context.add_data_docs_site(SITE, _site_settings(site))
        source = context.data_sources.add_postgres(
            "control",
            connection_string=_sqlalchemy_url(control_url),
            kwargs={"connect_args": {"options": options}},
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
        opened.callback(engine.dispose)  # its connections end now, not when garbage is collected
        _give_columns_alone(engine, set(queries.values()))
        _give_up_turn_while_it_works(engine, context)
        definitions = {}
        for name in dict.fromkeys(check.rows for check in suite.checks):
            rows = source.add_query_asset(
                name, query=queries[name]
            ).add_batch_definition_whole_table(name)
            # All at once: each expectation that is added later writes the whole suite again.
            expectations = [
                _expectation(check, run_id, suite_name)
                for check in suite.checks
                if check.rows == name
            ]
            title = suite_name if name == ALL_RUNS else f"{suite_name}_{name}"
            made = context.suites.add(gx.ExpectationSuite(name=title, expectations=expectations))
            definitions[name] = context.validation_definitions.add(
                gx.ValidationDefinition(name=title, data=rows, suite=made)
            )
        # A checkpoint would write the index, and copy what all sites share, once for each set of rows.
        of_run = gx.RunIdentifier(run_name=f"run-{run_id}")
        results = [
            result
            for definition in definitions.values()
            for result in definition.run(result_format="BOOLEAN_ONLY", run_id=of_run).results
        ]
        context.build_data_docs(site_names=[SITE])
        held = {}
        for result in results:
            name = str(result.expectation_config.meta["name"])
            if _could_not_run(result):
                raise _not_run(suite_name, name, run_id)
            held[name] = bool(result.success)
        breaches = {}
        for check in suite.checks:
            if check.name not in held:
                raise _not_run(suite_name, check.name, run_id)
            if not held[check.name] and check.sql is None:
                rows = definitions[check.rows].batch_definition.get_batch()
                found = rows.validate(
                    _expectation(check, run_id, suite_name),
                    result_format={
                        "result_format": "SUMMARY",
                        "partial_unexpected_count": ids_kept,
                        "unexpected_index_column_names": list(suite.rows[check.rows].ids),
                    },
                )
                if _could_not_run(found):
                    raise _not_run(suite_name, check.name, run_id)
                breaches[check.name] = _breaches(found.result, suite.rows[check.rows].ids)
        return Outcome(held, breaches, str((site / "index.html").relative_to(docs_folder)))


def _expectation(check: Check, run_id: int, suite_name: str) -> Any:
    """The expectation as Great Expectations has it. AuditFailed when there is none of that name, or it does not take that."""
    from great_expectations.exceptions import GreatExpectationsError
    from great_expectations.expectations.registry import get_expectation_impl

    try:
        kind = get_expectation_impl(check.type) if check.sql is None else _no_rows()
        return kind(**check.kwargs, description=check.must_hold, meta={"name": check.name})
    except (GreatExpectationsError, ValueError, TypeError) as error:
        raise _not_run(suite_name, check.name, run_id, " ".join(str(error).split())) from error


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


def _give_columns_alone(engine: Any, queries: set[str]) -> None:
    """To learn the columns of a query Great Expectations selects its rows, all of them, into this process: it gets none."""
    from sqlalchemy import event

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def limit(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> tuple[str, Any]:
        return f"{statement} LIMIT 0" if statement in queries else statement, parameters


def _give_up_turn_while_it_works(engine: Any, context: Any) -> None:
    """While the database works on a statement of `engine`, another thread may have the turn, with a context of its own."""
    from great_expectations.data_context import set_context
    from sqlalchemy import event

    @event.listens_for(engine, "do_execute")
    def execute(cursor: Any, statement: str, parameters: Any, _: Any) -> bool:
        _TURN.release()
        try:
            cursor.execute(statement, parameters)
        finally:
            _TURN.acquire()
            set_context(context)
        return True  # it is executed


def _could_not_run(result: Any) -> bool:
    # Without an error: {"raised_exception": False}. An error of the query itself is keyed by the metric instead.
    trouble = result.exception_info or {}
    return bool(trouble.get("raised_exception", bool(trouble)))


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


def _sqlalchemy_url(url: str) -> str:
    """A bare postgresql:// would mean another driver to SQLAlchemy 2.1."""
    _, separator, rest = url.partition("://")
    return f"postgresql+psycopg2{separator}{rest}"


def _not_run(suite: str, check: str, run_id: int, why: str = "") -> AuditFailed:
    return AuditFailed(
        f"The check {check} of {suite} could not be run for run {run_id}{': ' if why else ''}{why.rstrip('.')}.",
        unaffected="What it guards was not promoted.",
        next_step="See that the control database is up (`backstop check`), and that the check names columns that there are; then"
        " clear this task.",
    )
