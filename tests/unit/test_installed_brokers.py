"""Adapters of others: found by their entry point, opened as ours are, and refused by name when they are not installed."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from backstop.brokers.open import open_broker
from backstop.brokers.protocol import Broker
from backstop.config.connections import Connections
from backstop.config.load import from_mapping
from backstop.config.settings import Settings
from backstop.evidence.sources import Sources
from backstop.model.errors import BrokerUnavailable, ConfigurationError
from system import settings_dict

METHODS = [
    *(name for name in vars(Broker) if not name.startswith("_") and name != "capabilities"),
    "__enter__",
    "__exit__",
]
MODULE = """
class Carrier:
    def __init__(self, url, **options):
        self.url, self.options = url, options

    @property
    def capabilities(self):
        raise TimeoutError("it asks its cluster what it can do")

for method in METHODS:
    setattr(Carrier, method, lambda self, *arguments: None)
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with an adapter of the kind `carrier`, and one that would take the place of ours."""
    (tmp_path / "carrier_adapter.py").write_text(MODULE.replace("METHODS", repr(METHODS)))
    info = tmp_path / "carrier-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[backstop.brokers]\ncarrier = carrier_adapter:Carrier\nactivemq = carrier_adapter:Carrier\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "carrier_adapter", raising=False)


def carrier_settings(kind: str, **options: Any) -> tuple[Settings, Connections]:
    written = settings_dict()
    written["brokers"]["embedded"] = {"kind": kind, "connection": "carrier_url", "options": options}
    return from_mapping(written), Connections(resolver={"carrier_url": "carrier://here"}.get)


def opened(kind: str, **options: Any) -> Any:
    return open_broker(*carrier_settings(kind, **options), "embedded")


def test_an_installed_adapter_gets_its_url_its_options_and_its_topics_with_their_groups(
    installed: None,
) -> None:
    carrier = opened("carrier", send_timeout="900ms", loft="red")
    assert (carrier.url, carrier.options["loft"]) == ("carrier://here", "red")
    assert carrier.options["send_timeout"] == timedelta(milliseconds=900)
    assert set(carrier.options["topics"]["orders"]) == {"billing", "shipping"}
    assert opened("carrier").options["send_timeout"] > timedelta(0), "one is always given"


@pytest.mark.parametrize("method", ["servers", "dead_letter_queues", "__enter__"])
def test_an_adapter_without_a_method_of_the_protocol_is_refused_by_name(
    installed: None, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    opened("carrier")
    monkeypatch.delattr(sys.modules["carrier_adapter"].Carrier, method)
    with pytest.raises(
        ConfigurationError, match=rf"brokers\.\w+: the adapter for 'carrier' has no {method}"
    ):
        opened("carrier")


def test_what_an_adapter_raises_where_it_says_what_it_can_do_stops_nothing_else(
    installed: None,
) -> None:
    settings, connections = carrier_settings("carrier")
    with (
        Sources(settings, connections) as sources,
        pytest.raises(BrokerUnavailable, match="embedded failed: TimeoutError"),
    ):
        _ = sources.broker("embedded").capabilities


def test_a_name_of_ours_stays_ours(installed: None) -> None:
    with pytest.raises(ConfigurationError, match="loft"):
        opened("activemq", loft="red")


def test_a_kind_that_nobody_installed_is_refused_with_what_there_is(installed: None) -> None:
    with pytest.raises(
        ConfigurationError,
        match="'pigeon'; allowed: 'redis_streams', 'activemq', 'rocketmq', 'carrier'",
    ):
        opened("pigeon")
