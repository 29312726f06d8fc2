"""Fetch the Spark runtime of Apache Iceberg, once, for the tests of lake tables (`make iceberg`)."""

from __future__ import annotations

from pathlib import Path

from backstop_lab.run_main import run_main
from backstop_lab.servers.fetch_from_maven import Artifact, Wanted, fetch_or_say_why
from backstop_lab.setup import KEPT

VERSION = "1.12.0"
JAR = Artifact(
    "org.apache.iceberg",
    "iceberg-spark-runtime-4.1_2.13",
    VERSION,
    "",
    "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
)
HOME = KEPT / "iceberg" / VERSION
WANTED = Wanted("Iceberg for Spark", VERSION, [JAR], HOME, mark=".complete", marked=JAR.sha256)


def jar() -> Path:
    """For `spark.jars`."""
    return HOME / JAR.file


def installed() -> bool:
    return WANTED.is_there()


if __name__ == "__main__":
    run_main(lambda: fetch_or_say_why(WANTED))
