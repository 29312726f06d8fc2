"""A refused setting never shows what may be a password, wherever in the file it was written."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from backstop.config.connection_ref import ConnectionRef
from backstop.config.load import from_mapping
from backstop.config.settings import Settings
from backstop.model.errors import ConfigurationError

SCHEMA = Settings.model_json_schema()
SECRET = "s3cr3t"
URL = f"redis://me:{SECRET}@host/0"
SMALLEST: dict[str, Any] = {
    "control": "control",
    "brokers": {"main": {"kind": "redis_streams", "connection": "broker"}},
    "producers": {"shop": {"connection": "producer"}},
    "consumers": {"billing_db": {"connection": "consumer"}},
    "groups": {"billing": {"store": "billing_db"}},
    "topics": {"orders": {"broker": "main", "groups": ["billing"]}},
}
Put = Callable[[Any], Any]


def places(node: dict[str, Any], put: Put) -> Iterator[tuple[dict[str, Any], Put]]:
    """Each place of the settings, by their JSON schema: what may stand there, and how a value gets there."""
    if "$ref" in node:
        node = SCHEMA["$defs"][node["$ref"].rpartition("/")[2]]
    yield node, put
    for variant in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from places(variant, put)
    properties = node.get("properties", {})
    chosen = {name: one["const"] for name, one in properties.items() if "const" in one}
    for name, child in properties.items():
        yield from places(child, partial(_put_property, put, chosen, name))
    by_key = [node.get("additionalProperties"), *node.get("patternProperties", {}).values()]
    for child in (child for child in by_key if isinstance(child, dict)):
        yield from places(child, lambda value: put({"0": value}))
    if "items" in node:
        yield from places(node["items"], lambda value: put([value]))


def _put_property(put: Put, chosen: dict[str, Any], name: str, value: Any) -> Any:
    return put({**chosen, name: value})


def dotted(put: Put) -> str:
    """The place's path as errors name it, without the kind that chose a model."""
    value, path = put(...), []
    while value is not ...:
        name, value = (0, value[0]) if isinstance(value, list) else list(value.items())[-1]
        path.append(str(name))
    return ".".join(path) or "(the file)"


def error_of(content: dict[str, Any]) -> str:
    """What a configuration is refused with; empty if it is accepted."""
    try:
        from_mapping(content)
    except ConfigurationError as error:
        return str(error)
    return ""


EVERYWHERE = list(places(SCHEMA, lambda value: value))
PATTERN = next(its.pattern for its in ConnectionRef.__metadata__ if hasattr(its, "pattern"))  # type: ignore[attr-defined]
CONNECTIONS = [put for node, put in EVERYWHERE if node.get("pattern") == PATTERN]


def test_every_connection_of_the_settings_is_found() -> None:
    names = {dotted(put).rpartition(".")[2] for put in CONNECTIONS}
    assert names >= {"control", "connection", "redis", "url", "fail_url", "token", "otlp", "reader"}
    written = {dotted(put) for node, put in EVERYWHERE if "env:" in str(node.get("pattern"))}
    assert written == {dotted(put) for put in CONNECTIONS}


@pytest.mark.parametrize("put", CONNECTIONS, ids=map(dotted, CONNECTIONS))
def test_what_is_written_in_place_of_a_connection_is_refused_and_never_shown(put: Put) -> None:
    for given in (
        URL,
        f"host=db user=me password={SECRET}",
        {"conn_type": "redis", "password": SECRET},
        [SECRET],
    ):
        content = put(given)
        says = error_of({**SMALLEST, **content})
        assert f"{dotted(put)}: (not shown); allowed: an Airflow connection id, or env:" in says
        assert "never a URL or a password" in says
        assert SECRET not in says


def test_a_url_is_never_shown_wherever_it_is_written() -> None:
    """Also in place of what holds a connection, as a key, and beside a kind that is not known."""
    for _, put in EVERYWHERE:
        for given in (URL, [URL], {URL: None}, {URL: URL}, {"kind": URL, "connection": URL}):
            content = put(given)
            if isinstance(content, dict):
                assert SECRET not in error_of({**SMALLEST, **content}), dotted(put)


def test_text_in_place_of_what_holds_a_connection_is_never_shown() -> None:
    holders = {dotted(put).rpartition(".")[0]: put for put in CONNECTIONS}
    shown = []
    for path in holders:
        names = path.split(".")
        for end in range(1, len(names) + 1):
            content: Any = f"host=db password={SECRET}"
            for name in reversed(names[:end]):
                content = {name: content}
            if SECRET in error_of({**SMALLEST, **content}):
                shown.append(".".join(names[:end]))
    assert shown == []


@pytest.mark.parametrize(
    ("place", "setting"), [("groups.billing", "store"), ("topics.orders", "broker")]
)
def test_a_url_in_place_of_a_name_is_not_shown(place: str, setting: str) -> None:
    content = copy.deepcopy(SMALLEST)
    section, name = place.split(".")
    content[section][name][setting] = URL
    says = error_of(content)
    assert f"{place}.{setting}: (not shown); allowed: one of " in says
    assert SECRET not in says


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ({}, "missing"),
        ({"kind": "other"}, "'other'"),
        ({"kind": {"password": SECRET}}, "(not shown)"),
    ],
)
def test_of_a_mapping_that_is_refused_as_a_whole_only_its_kind_is_shown(
    kind: dict[str, Any], shown: str
) -> None:
    theirs = {"connection": f"host=db password={SECRET}", **kind}
    says = error_of({**SMALLEST, "foreign_leases": {"theirs": theirs}})
    assert f"foreign_leases.theirs.kind: {shown}; allowed: one of " in says
    assert SECRET not in says
