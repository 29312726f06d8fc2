"""What is said of a new content before it is sent: JSON, the topic's schema, the shape of others; and nothing it cannot know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backstop.config.content_schema import content_schema
from backstop.config.settings import Settings
from backstop.model.errors import ConfigurationError
from backstop.triage.decide.check_content import MOST, check_content

OTHERS = [
    json.dumps({"order": n, "lines": [{"sku": "s", "count": 1}], "note": None}).encode()
    for n in range(4)
]
SCHEMA = {
    "type": "object",
    "required": ["order"],
    "properties": {"order": {"type": "integer"}, "lines": {"type": "array"}},
}


def said(new: bytes, old: bytes | None = b"{}", beside: Any = OTHERS, schema: Any = None) -> Any:
    checked = check_content(new, old, beside, schema)
    return [(one.severity, one.where, one.what) for one in checked.findings]


@pytest.mark.parametrize(
    ("new", "findings"),
    [
        (b'{"order": 9, "lines": [{"sku": "s", "count": 2}], "note": null}', []),
        (
            b'{"order": 9, "lines": [], "note": null}',
            [("$.lines[]", "is missing; all 4 others have it")],
        ),
        (
            b'{"order": "9", "lines": [{"sku": "s", "count": 1.5}], "note": null, "more": {"a": 1}}',
            [
                ("$.more", "is in none of the 4 others"),
                ("$.order", "is a text; in the others a number"),
            ],
        ),
        (
            b'{"order": true, "note": null}',
            [
                ("$.lines", "is missing; all 4 others have it"),
                ("$.order", "is a boolean; in the others a number"),
            ],
        ),
        (
            b"[]",
            [
                ("$", "is a list; in the others an object"),
                ("$.lines", "is missing; all 4 others have it"),
                ("$.note", "is missing; all 4 others have it"),
                ("$.order", "is missing; all 4 others have it"),
            ],
        ),
    ],
)
def test_without_a_schema_a_content_is_compared_with_the_shape_of_others(
    new: bytes, findings: list[tuple[str, str]]
) -> None:
    assert said(new) == [("warning", where, what) for where, what in findings]


@pytest.mark.parametrize(
    ("new", "part"),
    [
        (b'{"order": 1', "is not JSON"),
        (b"\xff", "is not JSON"),
        (b'{"order": NaN}', "NaN is no number in JSON"),
        (b'{"a": 1, "a": 2}', 'the key "a" stands twice'),
        (b"[" * 100_000, "is not JSON"),
        (b"", "is empty"),
    ],
)
def test_what_is_not_json_where_json_is_expected_is_an_error(new: bytes, part: str) -> None:
    ((severity, where, what),) = said(new)
    assert (severity, where) == ("error", "") and part in what


def test_a_topic_of_other_formats_is_not_asked_for_json() -> None:
    assert said(b"<xml/>", b"<old/>", [b"<a/>", b"<b/>", b"<c/>"]) == []
    assert check_content(b"<xml/>", b"<old/>", [b"<a/>"], None).compared_with == ()


def test_of_few_others_no_shape_is_made() -> None:
    assert said(b'{"x": 1}', b"{}", OTHERS[:2]) == []


def test_the_schema_says_where_it_is_broken_and_the_shape_is_not_asked() -> None:
    assert said(b'{"order": 1}', schema=SCHEMA) == []
    assert sorted(said(b'{"lines": {}}', schema=SCHEMA)) == [
        ("error", "$", "'order' is a required property"),
        ("error", "$.lines", "{} is not of type 'array'"),
    ]
    many = {"type": "array", "items": {"type": "string"}}
    assert len(said(json.dumps(list(range(50))).encode(), schema=many)) == MOST + 1


def test_a_schema_that_refers_to_another_address_fetches_nothing() -> None:
    ((severity, _, what),) = said(b"[]", schema={"$ref": "http://127.0.0.1:1/other.json"})
    assert severity == "error" and "not in its file" in what


def test_the_same_content_is_named_and_halves_of_characters_break_nothing() -> None:
    assert said(b"{}", b"{}", []) == [("warning", "", "The content is the same as before.")]
    for schema in (None, {"additionalProperties": False}):
        for _, where, what in said(b'{"\\ud800": 1}', schema=schema):
            assert (where + what).encode()


def settings_with(schema: str) -> Settings:
    return Settings.model_validate(
        {
            "control": "c",
            "brokers": {"b": {"kind": "redis_streams", "connection": "b"}},
            "producers": {"a": {"connection": "a"}},
            "consumers": {"s": {"connection": "s"}},
            "groups": {"g": {"store": "s", "duplicates": "guard", "progress": "acknowledged"}},
            "topics": {"orders": {"broker": "b", "groups": ["g"], "content_schema": schema}},
        }
    )


@pytest.mark.parametrize("text", [None, "{", "[]", '{"type": 7}'])
def test_a_file_that_is_no_schema_is_named_with_what_to_do(
    tmp_path: Path, text: str | None
) -> None:
    file = tmp_path / "orders.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigurationError, match="content_schema"):
        content_schema(settings_with(str(file)), "orders")
    file.write_text(json.dumps(SCHEMA))
    assert content_schema(settings_with(str(file)), "orders") == SCHEMA
    assert content_schema(settings_with(str(file)), "other") is None
