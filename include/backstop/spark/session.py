"""Starts the Spark session of a job: under spark-submit with what the connection says, else on this machine alone."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from backstop.model.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    from backstop.config.settings import Settings


HEAP_MIB, HEAP_OF_CORE_MIB = 448, 64


def heap_for(master: str, *, lakes: bool) -> dict[str, str]:
    """The setting that bounds the JVM whose threads are the executors; none for another master, nor where Spark itself reads rows.

    Only packets pass our jobs' JVM, a few for each core at a time, and what was read waits on the disk where it does not fit: the
    bound holds whatever is due. Java fills a larger heap before it collects anything.
    """
    found = re.fullmatch(r"local(?:\[(\d+|\*)\])?", master)
    if found is None or lakes:
        return {}
    cores = (os.cpu_count() or 1) if found[1] == "*" else int(found[1] or 1)
    return {"spark.driver.memory": f"{HEAP_MIB + cores * HEAP_OF_CORE_MIB}m"}


def start_session(name: str, master: str | None = None, *, lakes: bool = False) -> SparkSession:
    """A session with UTC, one shuffle partition a core on this machine, and side effects never run twice by speculation.

    `master` and `lakes` (whether Spark itself will read tables of a lake) count only outside spark-submit, whose own settings
    win. Raises ConfigurationError when Java is missing.
    """
    # Workers would otherwise take the system's interpreter, which has none of our libraries.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.appName(name)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        # A judgement's rows are packets, few and large: compiling its plans costs seconds of every run and saves nothing.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        # The number of tasks is ours, by how much is due: to plan each stage again changes nothing, and costs a job for each.
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
        # Packed tables are rows of megabytes.
        .config("spark.sql.execution.arrow.maxBytesPerBatch", str(64 * 2**20))
        .config("spark.speculation", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    submitted = _submitted_conf() if _submitted() else None
    if submitted is None or not submitted.contains("spark.ui.enabled"):
        # The driver's page listens on every address, asks nobody who they are, and can end our tasks.
        builder = builder.config("spark.ui.enabled", "false")
    if submitted is not None:
        master = str(submitted.get("spark.master", "local[*]"))
    else:
        master = master or os.environ.get(
            "BACKSTOP_SPARK_MASTER", f"local[{min(os.cpu_count() or 2, 8)}]"
        )
        builder = builder.master(master)
        for setting, value in heap_for(master, lakes=lakes).items():
            builder = builder.config(setting, value)
    if secret := os.environ.get("_SPARK_AUTH_SECRET"):
        # Executors get connections inside their tasks: between machines that must not be readable. The name is Spark's own;
        # its workers read it, too, and hand it to executors off every command line.
        builder = (
            builder.config("spark.authenticate", "true")
            .config("spark.authenticate.secret", secret)
            .config("spark.network.crypto.enabled", "true")
        )
    elif not master.startswith("local") and not (
        submitted is not None
        and str(submitted.get("spark.authenticate", "false")).lower() == "true"
    ):
        raise ConfigurationError(
            f"Spark's master is {master}, and nothing says that it authenticates: tasks carry the databases' connections.",
            unaffected="Nothing was read or changed.",
            next_step="Set _SPARK_AUTH_SECRET, or spark.authenticate=true for the cluster (docs/how-to/spark-clusters.md).",
        )
    if master.startswith("local"):
        # Executors elsewhere must reach the driver; these are beside it.
        builder = (
            builder.config("spark.sql.shuffle.partitions", str(os.cpu_count() or 2))
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
        )
    if re.fullmatch(r"local(\[.*\])?", master):
        # Its workers are processes of this machine, which has our code.
        builder = builder.config("spark.python.daemon.module", "backstop.spark.python_daemon")
    try:
        session = builder.getOrCreate()
    except Exception as error:
        # Spark reports a missing Java as a plain RuntimeError of its launcher.
        if "JAVA" in str(error).upper():
            raise ConfigurationError(
                "Spark could not start: no Java runtime was found.",
                unaffected="Nothing was read or changed.",
                next_step="Install Java 17 (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME.",
            ) from error
        raise
    return session


def start_for_lakes(settings: Settings) -> None:
    """A session for what is asked of lake tables, where there are any: it is asked nowhere else than in a process with one."""
    if settings.has_lakes():
        with suppress(ImportError):  # the table's own error says what is missing
            start_session("backstop", lakes=True)


def _submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ or "spark.master" in os.environ.get(
        "PYSPARK_SUBMIT_ARGS", ""
    )


def _submitted_conf() -> SparkConf:
    """What spark-submit was given, and the cluster's own settings; only its own process knows."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return SparkConf()
