"""Adapters of others: found by their entry point, opened as ours are, and refused by name when they are not installed."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from backstop.brokers.open import open_broker
from backstop.config.connections import Connections
from backstop.config.load import from_mapping
from backstop.errors import ConfigurationError
from system import settings_dict

MODULE = """
class Carrier:
    def __init__(self, url, **options):
        self.url, self.options = url, options
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with an adapter of the kind `carrier`, and one that would take the place of ours."""
    (tmp_path / "carrier_adapter.py").write_text(MODULE)
    info = tmp_path / "carrier-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[backstop.brokers]\ncarrier = carrier_adapter:Carrier\nactivemq = carrier_adapter:Carrier\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "carrier_adapter", raising=False)


def opened(kind: str, **options: Any) -> Any:
    written = settings_dict()
    [name] = written["brokers"]
    written["brokers"][name] = {"kind": kind, "connection": "carrier_url", "options": options}
    return open_broker(from_mapping(written), Connections(resolver={"carrier_url": "carrier://here"}.get), name)


def test_an_installed_adapter_gets_its_url_its_options_and_its_topics_with_their_groups(installed: None) -> None:
    carrier = opened("carrier", send_timeout="900ms", loft="red")
    assert (carrier.url, carrier.options["loft"]) == ("carrier://here", "red")
    assert carrier.options["send_timeout"] == timedelta(milliseconds=900)
    assert set(carrier.options["topics"]["orders"]) == {"billing", "shipping"}
    assert opened("carrier").options["send_timeout"] > timedelta(0), "one is always given"


def test_a_name_of_ours_stays_ours(installed: None) -> None:
    with pytest.raises(ConfigurationError, match="loft"):
        opened("activemq", loft="red")


def test_a_kind_that_nobody_installed_is_refused_with_what_there_is(installed: None) -> None:
    with pytest.raises(ConfigurationError, match="'pigeon'; allowed: 'redis_streams', 'activemq', 'rocketmq', 'carrier'"):
        opened("pigeon")
