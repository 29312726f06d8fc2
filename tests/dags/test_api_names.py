"""Other programs use the API by its names: a path, parameter or field that was there once stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from backstop.airflow.console.app import make_app
from backstop.reports.console import LISTS

KEPT = Path(__file__).with_name("console_api_names.txt")
"""One name a line, sorted: what this API has promised."""


def names_of(described: dict[str, Any]) -> Iterator[str]:
    """Every name that a caller may use: `GET /runs ?filter`, `POST /pauses < topic`, `GET /runs > items.phase.name`.

    An input that must be given is marked with an exclamation mark, because a call without it stops working.
    """
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            called = f"{method.upper()} {path}"
            yield called
            for one in operation.get("parameters", ()):
                yield f"{called} ?{one['name']}{'!' * one['required']}"
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if body is not None:
                yield from (
                    f"{called} < {name}" for name in fields(described, body["schema"], True)
                )
            answer = operation["responses"]["200"]["content"]["application/json"]
            yield from (f"{called} > {name}" for name in fields(described, answer["schema"], False))


def fields(
    described: dict[str, Any], schema: dict[str, Any], given: bool, met: tuple[str, ...] = ()
) -> Iterator[str]:
    """The names of a schema's fields, with those of the objects in them. `given`: by the caller."""
    if (reference := schema.get("$ref")) is not None:
        if reference not in met:
            named = described["components"]["schemas"][reference.rpartition("/")[2]]
            yield from fields(described, named, given, (*met, reference))
        return
    for inner in (*schema.get("anyOf", ()), *schema.get("allOf", ())):
        yield from fields(described, inner, given, met)
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(inner, dict):
            yield from fields(described, inner, given, met)
    for name, field in schema.get("properties", {}).items():
        must = given and name in schema.get("required", ())
        yield f"{name}{'!' * must}"
        yield from (f"{name}.{inner}" for inner in fields(described, field, given, met))


def qualifiers() -> Iterator[str]:
    """What a `filter` may name."""
    for name, listing in LISTS.items():
        yield from (f"filter of {name}: {qualifier}" for qualifier in listing.filters)


def test_the_api_keeps_every_name_that_it_has_promised() -> None:
    now = {*names_of(make_app().openapi()), *qualifiers()}
    kept = set(KEPT.read_text(encoding="utf-8").splitlines())
    gone, new = sorted(kept - now), sorted(now - kept)
    assert not gone, (
        f"The API no longer has {'; '.join(gone)}. Other programs read it: answer the old name beside the new one. If it has to go,"
        f" say under Migration in CHANGELOG.md what to use instead, and take its lines out of {KEPT.name}."
    )
    assert not new, (
        f"The API has new names. From now on they stay: add these lines to {KEPT.name}:\n"
        + "\n".join(new)
    )


def test_a_name_that_is_taken_away_or_becomes_required_is_seen() -> None:
    described = make_app().openapi()
    before = set(names_of(described))
    del described["components"]["schemas"]["Phase"]["properties"]["since"]
    described["paths"]["/runs"]["get"]["parameters"][0]["required"] = True
    name = described["paths"]["/runs"]["get"]["parameters"][0]["name"]
    assert before - set(names_of(described)) == {
        "GET /runs > items.phase.since",
        "GET /runs/{run_id} > phase.since",
        f"GET /runs ?{name}",
    }
