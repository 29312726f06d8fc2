"""One cluster, one packed environment, one PostgreSQL and one broker for all tests of this folder: each costs seconds."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cluster_world import Cluster

from backstop.spark.pack_environment import pack
from backstop_lab.servers.ports import LOOPBACK


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = tmp_path_factory.mktemp("packed") / "executors.tar.gz"
    assert pack(archive) > 100
    return archive


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark writes what its pages show."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="session")
def conf(events: Path) -> dict[str, object]:
    """Spark's settings of every job here."""
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file:{events}",
        "spark.ui.enabled": "false",
        "spark.eventLog.compress": "false",  # else a secret in it would not be seen
        "spark.executor.memory": "1g",
        # As the drivers: jobs of seconds, and an executor that is killed is started again.
        "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
    }


@pytest.fixture(scope="session")
def masters(
    cluster: Cluster, packed: Path, conf: dict[str, object]
) -> dict[str, dict[str, object]]:
    """Airflow's Spark connection for each kind of master; only the executors' place differs."""
    elsewhere = {"conf": conf, "archives": str(packed)}
    return {
        "standalone": {**standalone(cluster), "extra": elsewhere},
        "local-cluster": {
            "conn_type": "spark",
            "host": "local-cluster[2,1,1024]",
            "extra": elsewhere,
        },
    }


@pytest.fixture(scope="session")
def beside(cluster: Cluster, conf: dict[str, object]) -> dict[str, object]:
    """The standalone cluster for tests of what dies in it: its executors find the libraries on this machine, and unpack nothing each
    time that they are started."""
    return {**standalone(cluster), "extra": {"conf": conf}}


def standalone(cluster: Cluster) -> dict[str, object]:
    return {"conn_type": "spark", "host": f"spark://{LOOPBACK}", "port": cluster.port}
