"""Where a proof that Airflow asked for is exported to: a folder of its own, under one that the platform chose."""

from __future__ import annotations

import os
from pathlib import Path


def proof_folder(run_id: int) -> Path:
    """$BACKSTOP_PROOFS/run-<id>, else build/proofs/run-<id>: nobody names a path in a form."""
    return Path(os.environ.get("BACKSTOP_PROOFS", "build/proofs")) / f"run-{run_id}"
