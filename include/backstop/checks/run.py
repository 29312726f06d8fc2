"""Audit one step of a run: run its suites, keep the results, and raise when something does not hold.

Great Expectations runs the checks and writes the Data Docs; the ids of what breaks a check are looked up
apart from it, because its own results may carry whole values.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backstop.checks.suites import OF_A_STAGE, Check, Suite, suite_of, with_own
from backstop.config.settings import Settings
from backstop.model.errors import (
    AuditFailed,
    BackstopError,
    ConfigurationError,
    RunLost,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection

    from backstop.checks.data_docs import Outcome

OWN_EXPECTATIONS = "own_expectations"
"""The check that fails where a team's expectations cannot be used."""
IDS_KEPT = 20
"""Enough to start looking; the count says how many there are."""

BATCH = """
    SELECT r.run_id, coalesce(nullif(current_setting('backstop.stage'), '')::integer, r.stage) AS stage,
        r.started_at, r.as_of,
        current_setting('backstop.repair_topics')::jsonb AS repair_topics,
        current_setting('backstop.clock_skew')::float8 AS clock_skew
    FROM run AS r
    WHERE r.run_id = current_setting('backstop.run_id')::bigint
"""
"""The run being audited, as one row. Its values come with the connection, so that no value is put into SQL
text."""

KEPT = {
    "stub_contract": "No verdict of this run was promoted and nothing was sent; stubs are untouched.",
    "log_contract": "No verdict of this run was promoted and nothing was sent; logs are untouched.",
    "verdicts": "No verdict of this run was promoted and no resend was asked for; the next run judges again.",
    "requests": "Verdicts and requests are promoted and each resend is judged again before it goes out.",
    "proof": "Nothing of producers or consumers was touched, and this proof's answer was not published.",
    "leases_before": "No lease was taken back by this run. A message that is delivered again takes an expired lease by itself.",
    "leases_after": "What was taken back is free for the next worker; the rest is as it was, and the database decides.",
    "dead_letters_drained": "What was drained is stored; what is stored is classified and decided all the same.",
    "causes": "This run gave no dead letter a cause; dead letters and payloads are stored, and the next run classifies again.",
    "dead_letters_decided": "Dead letters, requests and cases stay as they are; every replay is judged again before it goes out.",
    "audit": "Nothing was changed: an audit only reads. Violations are recorded by id, and people were alerted.",
    "attempts": "Every stub and its attempts are kept; each number is published at most once.",
}


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """How one suite ended. `held`: what must hold, and does, by the check's name; `failed`: for each broken check its name, the
    count of breaches and some of their ids. One that could not be run is broken once, and says why."""

    suite: str
    passed: bool
    held: Mapping[str, str]
    failed: tuple[dict[str, Any], ...]
    report: str | None
    """The Data Docs page of this result, relative to the docs folder; None: it could not be written."""


def run_suites(
    suite_names: Sequence[str],
    control_url: str,
    run_id: int,
    stage: int | None,
    docs_folder: str | Path,
    *,
    repair_topics: Collection[str] = (),
    clock_skew: timedelta = timedelta(seconds=5),
    own: Path | None = None,
) -> tuple[SuiteResult, ...]:
    """Run SUITES side by side over what `run_id` staged as `stage` (null: its present one) or wrote, and keep each, in this order,
    as a data_check row and as Data Docs. Every suite runs to its end, whatever becomes of the others.

    `control_url` is a postgresql:// URL; `docs_folder` gets `<run_id>/<suite>/index.html`.
    `repair_topics` are the topics in mode repair, for the suite `requests`; `clock_skew`: by how much clocks may differ, for
    what must be fresh; `own`: the folder with expectations of the platform's team. Zero rows pass.
    Errors: AuditFailed when a check does not hold (the row and the report are kept), RunLost when there is no
    such run, StoreUnavailable when the control database does not answer; of several suites one error says what each found.
    """
    import psycopg2

    from backstop.sql.connection import lift_transaction_limit

    options = session_options(run_id, stage, repair_topics, clock_skew)
    docs = Path(docs_folder).resolve()
    results: list[SuiteResult] = []
    errors: list[Exception] = []
    try:
        connection = psycopg2.connect(
            control_url, options=options, connect_timeout=10, target_session_attrs="primary"
        )
    except psycopg2.OperationalError as error:
        raise _away(", ".join(suite_names)) from error
    with closing(connection), ThreadPoolExecutor(max_workers=len(suite_names)) as threads:
        try:
            lift_transaction_limit(connection)
            _find_run(connection, run_id, keeps_stage=not set(suite_names).isdisjoint(OF_A_STAGE))
        except psycopg2.OperationalError as error:
            raise _away(", ".join(suite_names)) from error
        found = [
            threads.submit(_validate, name, own, control_url, options, run_id, docs)
            for name in suite_names
        ]
        for name, validated in zip(suite_names, found, strict=True):
            try:
                results.append(_keep_result(connection, run_id, name, *validated.result()))
            except Exception as error:  # noqa: BLE001 - whatever it is, the other suites are kept
                errors.append(error)
                with suppress(psycopg2.Error):
                    connection.rollback()
    if errors:
        raise _as_one(errors)
    return tuple(results)


def run_suite(
    suite_name: str,
    control_url: str,
    run_id: int,
    stage: int | None,
    docs_folder: str | Path,
    **given: Any,
) -> SuiteResult:
    """One suite, as `run_suites`."""
    (result,) = run_suites((suite_name,), control_url, run_id, stage, docs_folder, **given)
    return result


def _validate(
    suite_name: str, own: Path | None, control_url: str, options: str, run_id: int, docs: Path
) -> tuple[Suite, ConfigurationError | None, Outcome]:
    """Our checks run also where what a team adds to them cannot be used; that is kept beside their results."""
    from backstop.checks.data_docs import validate

    suite, refused = suite_of(suite_name), None
    try:
        suite = with_own(suite_name, own)
    except ConfigurationError as error:
        refused = error
    # What a check may do is read: a team's own are run with our login.
    read_only = f"{options} -c default_transaction_read_only=on"
    return (
        suite,
        refused,
        validate(suite_name, suite, BATCH, control_url, read_only, run_id, docs, IDS_KEPT),
    )


def _keep_result(
    connection: Connection,
    run_id: int,
    suite_name: str,
    suite: Suite,
    refused: ConfigurationError | None,
    found: Outcome,
) -> SuiteResult:
    """Keeps how the suite ended, and raises AuditFailed unless all of it ran and holds."""
    import psycopg2

    try:
        failed = [
            _broken(check.name, f"{check.must_hold}; {_not_run(found.not_run[check.name])}")
            if check.name in found.not_run
            else _broken(check.name, check.must_hold, *found.breaches[check.name])
            if check.name in found.breaches
            else _breaches(connection, check)
            for check in suite.checks
            if not found.held.get(check.name)
        ]
        if refused is not None:
            failed.append(_broken(OWN_EXPECTATIONS, refused.what.rstrip(".")))
        held = {check.name: check.must_hold for check in suite.checks if found.held.get(check.name)}
        result = SuiteResult(suite_name, not failed, held, tuple(failed), found.report)
        connection.commit()  # the looks for breaches only read
        _keep(connection, run_id, result)
    except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
        raise _away(suite_name) from error
    if failed:
        row = f"data_check, run {run_id}"
        where = f"the report {found.report} (or {row})" if found.report else row
        next_step = [f"Read {where}, then run the duty again."]
        if found.not_run:
            next_step.append(
                "A check that could not be run names a column that is not there, or a value of another type; or the control"
                " database was away (`backstop check`)."
            )
        raise AuditFailed(
            f"The data check {suite_name} of run {run_id} failed: "
            + "; ".join(f"{f['name']} ({f['count']}): {f['must_hold']}" for f in failed)
            + ".",
            unaffected=KEPT[suite_name],
            next_step=" ".join([*next_step, *([refused.next_step] if refused else [])]),
        )
    return result


def _not_run(why: str) -> str:
    return f"it could not be run{': ' if why else ''}{why.rstrip('.')}"


def _as_one(errors: Sequence[Exception]) -> Exception:
    """The only error, or one that says what each of them says. An error that is none of ours comes first, with notes of ours."""
    if len(errors) == 1:
        return errors[0]
    ours = [error for error in errors if isinstance(error, BackstopError)]
    for error in errors:
        if not isinstance(error, BackstopError):
            for other in ours:
                error.add_note(other.what)
            return error
    kind = next((type(error) for error in ours if isinstance(error, AuditFailed)), type(ours[0]))
    what, unaffected, next_step = (
        " ".join(dict.fromkeys(getattr(error, part) for error in ours))
        for part in ("what", "unaffected", "next_step")
    )
    return kind(what, unaffected=unaffected, next_step=next_step)


def given_by(settings: Settings) -> dict[str, Any]:
    """What `run_suite` takes from the settings."""
    return {
        "repair_topics": settings.repaired(),
        # A store is read where the skew of one of its groups allows its clock.
        "clock_skew": max(
            settings.policy_for(topic, group).max_clock_skew
            for topic in settings.topics
            for group in (None, *settings.groups_of(topic))
        ),
        "own": None if settings.data_checks is None else Path(settings.data_checks.expectations),
    }


def session_options(
    run_id: int,
    stage: int | None,
    repair_topics: Collection[str],
    clock_skew: timedelta = timedelta(seconds=5),
) -> str:
    """libpq options that carry the run's values as settings of the session."""
    settings = {
        "backstop.run_id": str(int(run_id)),
        "backstop.stage": "" if stage is None else str(int(stage)),
        "backstop.repair_topics": json.dumps(sorted(repair_topics)),
        "backstop.clock_skew": str(clock_skew.total_seconds()),
        "application_name": "backstop-quality",
        "timezone": "UTC",
        "client_encoding": "UTF8",
        "statement_timeout": "300s",
        "row_security": "off",
    }
    return " ".join(f"-c {name}={_escaped(value)}" for name, value in settings.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


def _find_run(connection: Connection, run_id: int, *, keeps_stage: bool) -> None:
    """Raises RunLost when there is no such run. `keeps_stage`: from now on its stage stays what it is: what is checked is promoted."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE run SET stage_checked = true WHERE run_id = %s"
            if keeps_stage
            else "SELECT FROM run WHERE run_id = %s",
            (run_id,),
        )
        if cursor.rowcount == 0:
            raise RunLost(
                f"There is no run {run_id} to audit.",
                unaffected="Nothing was promoted for it.",
                next_step="Look at `backstop runs list`, then start the duty again.",
            )
    connection.commit()  # it waits for the suites outside of a transaction


def _breaches(connection: Connection, check: Check) -> dict[str, Any]:
    """The count of breaches and the ids of the first ones: ids are all that a check selects."""
    query = str(check.sql).replace("{batch}", f"({BATCH})")
    with connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION READ ONLY")
        cursor.execute(f"SELECT count(*) FROM ({query}) AS breach")
        row = cursor.fetchone()
        cursor.execute(f"SELECT to_jsonb(breach) FROM ({query}) AS breach LIMIT {IDS_KEPT:d}")
        ids = [found for (found,) in cursor.fetchall()]
    return _broken(check.name, check.must_hold, row[0] if row else 0, ids)


def _broken(
    name: str, must_hold: str, count: int = 1, ids: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    return {"name": name, "must_hold": must_hold, "count": count, "ids": list(ids)}


def _keep(connection: Connection, run_id: int, result: SuiteResult) -> None:
    """One row for each suite of a run: a retried audit replaces its own."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO data_check (run_id, suite, passed, expectations, held, failed, report)
            VALUES (%s, %s, %s, %s, %s, %s, %s)
            ON CONFLICT (run_id, suite) DO UPDATE SET
                passed = excluded.passed, expectations = excluded.expectations, held = excluded.held,
                failed = excluded.failed, report = excluded.report, checked_at = clock_timestamp()
            """,
            (
                run_id,
                result.suite,
                result.passed,
                len(result.held) + len(result.failed),
                json.dumps(result.held),
                json.dumps(result.failed),
                result.report,
            ),
        )
    connection.commit()


def _away(suite: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"The control database did not answer during the data check {suite}.",
        unaffected="What was staged is kept, and nothing was promoted on the strength of a check that did not run.",
        next_step="See that the control database is up (`backstop check`), then clear this task.",
    )
