"""A Spark session is refused where tasks would carry connections past nobody knows whom."""

from __future__ import annotations

import pytest

from backstop.model.errors import ConfigurationError
from backstop.spark.session import heap_for, start_session


@pytest.mark.parametrize("master", ["spark://127.0.0.1:1", "yarn", "k8s://https://127.0.0.1:1"])
def test_a_master_elsewhere_without_a_secret_is_refused_before_anything_starts(
    master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("_SPARK_AUTH_SECRET", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    with pytest.raises(ConfigurationError, match="nothing says that it authenticates") as refused:
        start_session("t", master)
    assert "_SPARK_AUTH_SECRET" in refused.value.next_step


@pytest.mark.parametrize(
    ("master", "heap"),
    [("local", "512m"), ("local[1]", "512m"), ("local[2]", "576m"), ("local[8]", "960m")],
)
def test_the_jvm_of_a_session_on_this_machine_is_bounded_by_its_cores(
    master: str, heap: str
) -> None:
    assert heap_for(master, lakes=False) == {"spark.driver.memory": heap}


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "spark://127.0.0.1:7077", "yarn"])
def test_executors_elsewhere_leave_the_driver_to_spark(master: str) -> None:
    assert heap_for(master, lakes=False) == {}


def test_where_spark_reads_the_rows_of_a_lake_its_own_bound_stays() -> None:
    assert heap_for("local[2]", lakes=True) == {}
