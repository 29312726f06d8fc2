"""Reads every stub of a window and what each group's logs say of it.

Judges every delivery by the one rule, verdict.sql.
Writes the proof to the control database, and its deliveries to the folder of the run; the DAG checks both, then publishes them.
"""

from __future__ import annotations

from contextlib import closing

from pyspark.sql import SparkSession

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.control.connection import connect
from backstop.model.records import Counts
from backstop.reconcile.proof_folder import proof_folder
from backstop.reconcile.prove import counts_of, prove
from backstop.runs.run import Run
from backstop.spark.job import main_of


def run(spark: SparkSession, settings: Settings, connections: Connections, run: Run) -> Counts:
    """Proves the run's window; returns the counts by standing."""
    folder = proof_folder(run.run_id)
    with closing(connect(settings, connections)) as control:
        proof = prove(
            spark,
            settings,
            connections,
            control,
            run,
            folder=folder,
            say=lambda at: print(at, flush=True),
        )
    print(f"backstop: exported to {folder}; the data check comes next.", flush=True)
    return counts_of(proof)


if __name__ == "__main__":
    main_of("prove", run)
