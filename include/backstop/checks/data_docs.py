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
from functools import cache, partial
from pathlib import Path
from typing import Any

from backstop.checks.suites import Check
from backstop.model.errors import AuditFailed

SITE = "data_docs"


def validate(
    suite_name: str,
    checks: Sequence[Check],
    batch: str,
    control_url: str,
    options: str,
    run_id: int,
    docs_folder: Path,
) -> tuple[Mapping[str, bool], str]:
    """Whether each check holds, by its name, and the site's index relative to `docs_folder`.

    `batch` is the query that `{batch}` stands for; `options` are libpq options of every connection. A check
    that cannot be run raises AuditFailed: it is not known to hold.
    """
    prepare()
    import great_expectations as gx
    from great_expectations.checkpoint import UpdateDataDocsAction
    from great_expectations.data_context.types.base import ProgressBarsConfig

    site = docs_folder / str(run_id) / suite_name
    _make_site(docs_folder, site)
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    for name in list(context.get_site_names()):
        context.delete_data_docs_site(name)
    context.add_data_docs_site(SITE, _site_settings(site))
    source = context.data_sources.add_postgres(
        "control",
        connection_string=_sqlalchemy_url(control_url),
        kwargs={"connect_args": {"options": options}},
    )
    rows = source.add_query_asset("run", query=" ".join(batch.split()))
    # All at once: each expectation that is added later writes the whole suite again.
    expectations = [
        gx.expectations.UnexpectedRowsExpectation(
            unexpected_rows_query=check.sql, description=check.must_hold, meta={"name": check.name}
        )
        for check in checks
    ]
    suite = context.suites.add(gx.ExpectationSuite(name=suite_name, expectations=expectations))
    checkpoint = context.checkpoints.add(
        gx.Checkpoint(
            name=suite_name,
            validation_definitions=[
                context.validation_definitions.add(
                    gx.ValidationDefinition(
                        name=suite_name,
                        data=rows.add_batch_definition_whole_table("run"),
                        suite=suite,
                    )
                )
            ],
            actions=[UpdateDataDocsAction(name=SITE, site_names=[SITE])],
            result_format="BOOLEAN_ONLY",
        )
    )
    outcome = checkpoint.run(run_id=gx.RunIdentifier(run_name=f"run-{run_id}"))
    held = {}
    for result in (found for run in outcome.run_results.values() for found in run.results):
        name = str(result.expectation_config.meta["name"])
        # Without an error: {"raised_exception": False}. An error of the query itself is keyed by the metric
        # instead.
        trouble = result.exception_info or {}
        if trouble.get("raised_exception", bool(trouble)):
            raise _not_run(suite_name, name, run_id)
        held[name] = bool(result.success)
    for check in checks:
        if check.name not in held:
            raise _not_run(suite_name, check.name, run_id)
    return held, str((site / "index.html").relative_to(docs_folder))


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
    importlib.import_module("great_expectations.checkpoint")
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
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(site)},
    }


def _sqlalchemy_url(url: str) -> str:
    """A bare postgresql:// would mean another driver to SQLAlchemy 2.1."""
    _, separator, rest = url.partition("://")
    return f"postgresql+psycopg2{separator}{rest}"


def _not_run(suite: str, check: str, run_id: int) -> AuditFailed:
    return AuditFailed(
        f"The check {check} of {suite} could not be run for run {run_id}.",
        kept="What it guards was not promoted.",
        next_step="See that the control database is up (`backstop check`), then clear this task.",
    )
