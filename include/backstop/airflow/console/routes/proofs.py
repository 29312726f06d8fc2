"""What was proved of a window."""

from datetime import datetime
from typing import Annotated

from fastapi import HTTPException
from pydantic import Field

from backstop.airflow.console import models as m
from backstop.airflow.console.parameters import (
    After,
    Filter,
    Id,
    Limit,
    Routes,
    Visiting,
    page_of,
)
from backstop.airflow.console.visit import NOT_FOUND
from backstop.reports.console import filter_text, read_page, read_rows

# No postponed annotations: FastAPI and Pydantic read them.


class Proof(m.Answer):
    """What a proof of a window answered."""

    run: int
    topic: str
    window_from: datetime
    window_to: datetime
    answer: str
    sentence: str
    deliveries: int
    digest: str
    proved_at: datetime


class ProofCount(m.Answer):
    """A proof's deliveries of one kind."""

    group: str
    standing: str
    verdict: str
    reason: str
    deliveries: int


class WholeProof(Proof):
    """A proof with its counts."""

    counts: list[ProofCount]
    manifest: str | None = Field(
        description="manifest.json of the export; null: Airflow's server does not share its folder"
    )
    signature: str | None = Field(
        description="manifest.sig, an Ed25519 signature of the manifest; null: it is not signed"
    )


def list_proofs(
    visited: Visiting, filter: Filter = "", after: After = None, limit: Limit = 50
) -> m.Page[Proof]:
    """Proofs whose data check has passed, the newest first. Filters: topic, run."""
    return page_of(visited, "proofs", Proof, filter, after, limit)


def show_proof(visited: Visiting, run_id: Annotated[int, Id]) -> WholeProof:
    """One proof: its answer in a sentence, its counts, the digest by which an export of it is known again, and the signature."""
    from backstop.reconcile.proof_folder import proof_folder
    from backstop.reconcile.sign_proof import read_signed

    page = read_page(visited.conn, "proofs", visited.sight, filter_text(run=run_id))
    if not page.rows:
        raise HTTPException(404, NOT_FOUND)
    counts = [
        ProofCount(**one)
        for one in read_rows(visited.conn, "proof_counts", visited.sight, run_id=run_id)
    ]
    manifest, signature = read_signed(proof_folder(run_id), page.rows[0]["digest"]) or (None, None)
    return WholeProof(**page.rows[0], counts=counts, manifest=manifest, signature=signature)


ROUTES: Routes = (
    ("GET", "/proofs", list_proofs),
    ("GET", "/proofs/{run_id}", show_proof),
)
