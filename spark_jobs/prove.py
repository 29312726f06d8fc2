"""Reads every stub of a window and what each group's logs say of it.

Judges every delivery by the one rule, verdict.sql.
Writes the proof to the control database, and its deliveries with a signed manifest to the folder of the run.
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession

from backstop.config.connections import Connections
from backstop.config.load import load
from backstop.config.settings import Settings
from backstop.reconcile.proof_folder import proof_folder
from backstop.reconcile.prove import counts_of, prove
from backstop.records import Counts
from backstop.runs.control import connect
from backstop.runs.job import main_of
from backstop.runs.run import Run, find, keep_alive
from backstop.runs.spark_session import start_session


def run(spark: SparkSession, settings: Settings, connections: Connections, run: Run) -> Counts:
    """Proves the run's window; returns the counts by standing."""
    control = connect(settings, connections)
    try:
        with keep_alive(lambda: connect(settings, connections), run):
            folder = proof_folder(run.run_id)
            proof = prove(spark, settings, connections, control, run, folder=folder, say=lambda at: print(at, flush=True))
        print(f"backstop: {proof.sentence} Exported to {folder}.", flush=True)
        return counts_of(proof)
    finally:
        control.close()


def main(arguments: argparse.Namespace) -> Counts:
    """What spark-submit runs: the run was opened by the DAG, and its token fences every write."""
    settings, connections = load(), Connections()
    control = connect(settings, connections)
    try:
        found = find(control, arguments.run_id, arguments.token)
    finally:
        control.close()
    # A session may start slowly, or wait for executors: the run is not dead meanwhile.
    with keep_alive(lambda: connect(settings, connections), found):
        spark = start_session("backstop prove")
    return run(spark, settings, connections, found)


if __name__ == "__main__":
    main_of(main)
