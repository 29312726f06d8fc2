"""Starts the Spark session of a job: under spark-submit with what the connection says, else on this machine alone."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from backstop.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_CLASS = "org.postgresql.Driver"


def start_session(name: str, master: str | None = None) -> SparkSession:
    """A session with UTC, one shuffle partition a core on this machine, and side effects never run twice by speculation.

    `master` counts only outside spark-submit, whose own setting wins. The JDBC driver comes from $BACKSTOP_JDBC_JAR when
    spark-submit was not given it. Raises ConfigurationError when Java or the driver is missing.
    """
    # Workers would otherwise take the system's interpreter, which has none of our libraries.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.appName(name)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
        .config("spark.speculation", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    submitted = "spark.master" in _submitted()
    if not submitted:
        master = master or os.environ.get("BACKSTOP_SPARK_MASTER", f"local[{min(os.cpu_count() or 2, 8)}]")
        builder = builder.master(master)
        jar = os.environ.get("BACKSTOP_JDBC_JAR")
        if jar:
            builder = builder.config("spark.jars", jar)
    if (master or "local").startswith("local"):
        builder = (
            builder.config("spark.sql.shuffle.partitions", str(os.cpu_count() or 2))
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
        )
    try:
        session = builder.getOrCreate()
    except Exception as error:
        # Spark reports a missing Java as a plain RuntimeError of its launcher.
        if "JAVA" in str(error).upper():
            raise ConfigurationError(
                "Spark could not start: no Java runtime was found.",
                kept="Nothing was read or changed.",
                next_step="Install Java 17 (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME.",
            ) from error
        raise
    _require_driver(session)
    return session


def _submitted() -> str:
    return os.environ.get("PYSPARK_SUBMIT_ARGS", "") + os.environ.get("SPARK_SUBMIT_OPTS", "") + (
        "spark.master" if os.environ.get("PYSPARK_GATEWAY_PORT") else ""
    )


def _require_driver(session: SparkSession) -> None:
    jars = session.conf.get("spark.jars", "") or ""
    packages = session.conf.get("spark.jars.packages", "") or ""
    if "postgresql" not in jars and "postgresql" not in packages:
        raise ConfigurationError(
            "Spark has no PostgreSQL driver: neither spark.jars nor spark.jars.packages names one.",
            kept="Nothing was read or changed.",
            next_step="Set BACKSTOP_JDBC_JAR to the driver's file, or pass it with the Spark connection.",
        )
