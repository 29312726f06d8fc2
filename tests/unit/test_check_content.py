"""What is said of a new content before it is sent: JSON, the topic's schema, the shape of others; and nothing it cannot know."""

from __future__ import annotations

import json
import sys
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
        (b'{"price": -1e400}', "too large for most programs: -1e400"),
        (b'{"price": 1%s}' % (b"0" * 5_000), "too large for most programs: 1000"),
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


@pytest.mark.parametrize(
    ("number", "step"), [(b"1e400", 0.01), (b"1" + b"0" * 400, 0.01), (b"1.5", 10**400)]
)
def test_a_number_that_no_arithmetic_takes_is_an_error_also_beside_a_schema(
    number: bytes, step: float
) -> None:
    schema = {"properties": {"price": {"multipleOf": step}}}
    ((severity, _, what),) = said(b'{"price": %s}' % number, schema=schema)
    assert severity == "error" and "too large" in what


def test_a_schema_that_refers_to_another_address_fetches_nothing() -> None:
    ((severity, _, what),) = said(b"[]", schema={"$ref": "http://127.0.0.1:1/other.json"})
    assert severity == "error" and "not in its file" in what


def test_the_same_content_is_named_and_halves_of_characters_break_nothing() -> None:
    assert said(b"{}", b"{}", []) == [("warning", "", "The content is the same as before.")]
    for schema in (None, {"additionalProperties": False}):
        for _, where, what in said(b'{"\\ud800": 1}', schema=schema):
            assert (where + what).encode()


def calls_for(new: bytes) -> int:
    """How many functions of Python and of C a comparison calls: its work, whatever the machine does besides."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event.endswith("call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        check_content(new, b"{}", OTHERS, None)
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("above", ["new", "order"])
def test_the_work_of_a_comparison_grows_as_the_content_does(above: str) -> None:
    def content(keys: int) -> bytes:
        inner = {f"key-{number}": number for number in range(keys)}
        return json.dumps({"order": 1, "lines": [], "note": None, above: inner}).encode()

    assert calls_for(content(2_000)) < 3 * calls_for(content(1_000))


def test_a_new_key_is_named_once_and_nothing_beneath_it() -> None:
    inner = {f"key-{number}": number for number in range(50_000)}
    new = json.dumps({"order": 1, "lines": [{"sku": "s", "count": 1}], "note": None, "a": inner})
    assert said(new.encode()) == [("warning", "$.a", "is in none of the 4 others")]


def test_keys_that_begin_alike_or_hold_a_dot_are_places_of_their_own() -> None:
    long = "k" * 400
    others = [json.dumps({f"{long}-1": 1, f"{long}-2": "", "a.b": 1, "a": {"b": ""}}).encode()] * 3
    assert said(others[0], beside=others) == []
    new = json.dumps({f"{long}-1": "", f"{long}-2": "", "a.b": "", "a": {"b": ""}}).encode()
    assert [(where[-3:], what) for _, where, what in said(new, beside=others)] == [
        ("a.b", "is a text; in the others a number"),
        ("kk…", "is a text; in the others a number"),
    ]


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
