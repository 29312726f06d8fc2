"""The duty prove: judge every message of a window, keep the proof and export it; publish it once it is checked. It changes nothing
else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.config.signing_key import signing_key
from backstop.control.connection import connect
from backstop.model.errors import AuditFailed, StoreUnavailable, Unavailable
from backstop.model.records import Counts
from backstop.reconcile.answer_proof import Answer
from backstop.reconcile.count_due import control_now
from backstop.reconcile.prove import Proof, counts_of, prove, window_of
from backstop.reconcile.sign_proof import publish
from backstop.runs.duty import Check, Duty, RunCheck, Step, Work, walk_duty
from backstop.runs.run import hold
from backstop.runs.scope import name_of
from backstop.sql.named import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SQL = load("backstop.reconcile", "queries.sql")


class ProofIncomplete(StoreUnavailable):
    """A proof that says of itself that something could not be read."""


@dataclass(frozen=True, slots=True)
class ProveInput:
    """`start_spark` null: to publish takes none. `folder` null: nothing is exported. `proofs`: the one that was made."""

    start_spark: Callable[[], SparkSession] | None
    folder: Path | None
    formats: Sequence[str] = ()
    say: Callable[[str], None] = lambda _: None
    proofs: list[Proof] = field(default_factory=list)


def prove_window(work: Work[ProveInput]) -> Counts:
    """Proves the window that the run's scope names."""
    given = work.input
    assert given.start_spark is not None
    proof = prove(
        given.start_spark(), *work.parts, folder=given.folder, formats=given.formats, say=given.say
    )
    given.proofs.append(proof)
    return counts_of(proof)


def publish_proof(work: Work[ProveInput]) -> None:
    """Signs the export of a checked proof, then lets people see the proof; done twice it changes nothing.

    Errors: RunLost; AuditFailed for a proof whose data check has not passed, whatever a task's colour says; ConfigurationError when
    the export is not here, or cannot be signed.
    """
    with work.control, work.control.cursor() as cursor:
        hold(cursor, work.run)
        cursor.execute(_SQL["publish_proof"], {"run_id": work.run.run_id})
        found = cursor.fetchone()
        if found is None:
            raise AuditFailed(
                f"The data check of the proof of run {work.run.run_id} has not passed, so the proof is not published.",
                unaffected="Nothing of producers or consumers was touched; the proof is unsigned and is shown to nobody.",
                next_step="Read what the check found (`backstop runs show`), then prove again.",
            )
        if work.input.folder is not None:
            publish(work.input.folder, found[0], signing_key(work.settings))


def unproven(work: Work[ProveInput]) -> Unavailable | None:
    """The proof's own sentence, where not everything could be read."""
    with work.control, work.control.cursor() as cursor:
        cursor.execute(
            _SQL["incomplete_proof"],
            {"run_id": work.run.run_id, "incomplete": str(Answer.INCOMPLETE)},
        )
        found = cursor.fetchone()
    if found is None:
        return None
    return ProofIncomplete(
        found[0],
        unaffected="What was read is in the proof.",
        next_step="Bring back what did not answer, or name a window that is still kept; then prove again.",
    )


PROVE = Duty(
    "prove",
    steps=(Step("prove", prove_window), Check("proof"), Step("publish", publish_proof)),
    people=lambda _, dry_run: False,  # others rely on it, so nobody writes one by SQL
    instead="Start the DAG prove, or run it with the duties' login. `backstop prove --verify` needs neither.",
    unread=unproven,
    unaffected="Nothing was changed.",
    next_step="Bring it back, then prove again.",
)


def scope_now(control: Any, settings: Settings, topic: str, start: datetime, end: datetime) -> str:
    """The scope of a proof: the window that can be proven now. ConfigurationError as `window_of`."""
    window = window_of(settings, topic, start, end, control_now(control))
    return name_of([topic], window.start, window.end)


def run_proof(
    settings: Settings,
    connections: Connections,
    start_spark: Callable[[], SparkSession],
    audit: RunCheck,
    topic: str,
    start: datetime,
    end: datetime,
    *,
    folder: Path | None,
    formats: Sequence[str],
    say: Callable[[str], None] = lambda _: None,
) -> Proof:
    """The whole duty in this process, as `walk_duty`. A proof that is incomplete is returned like any other."""
    with closing(connect(settings, connections)) as control:
        scope = scope_now(control, settings, topic, start, end)
    given = ProveInput(start_spark, folder, formats, say)
    with suppress(ProofIncomplete):
        walk_duty(PROVE, settings, connections, given, scope=scope, check=audit)
    return given.proofs[0]
