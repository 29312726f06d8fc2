"""A Spark session is refused where tasks would carry connections past nobody knows whom."""

from __future__ import annotations

import pytest

from backstop.model.errors import ConfigurationError
from backstop.spark.session import start_session


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
