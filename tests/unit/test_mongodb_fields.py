"""What documents of another program's collection say, whatever types they have."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from bson import Binary, Decimal128, Int64, MaxKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS

from backstop.config.mapped import LogMapping, StubMapping
from backstop.stores.mapped.mongodb_fields import (
    Fields,
    comparable,
    forms_of,
    of_asked,
    text_of,
    value_of,
)

LOWER = "0f8fad5b-d9cb-469f-a165-70867728950e"
OBJECT_ID = "65f1a2b3c4d5e6f708192a3b"
AT = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("m-🚚", "m-🚚"),
        ("", ""),
        ("nul\0", None),
        ("\udcff", None),
        (7, "7"),
        (Int64(2**63 - 1), "9223372036854775807"),
        (42.0, "42"),
        (1.5, "1.5"),
        (float(2**53), None),
        (math.nan, None),
        (math.inf, None),
        (1e-7, None),
        (True, "true"),
        (ObjectId(OBJECT_ID), OBJECT_ID),
        (Binary.from_uuid(UUID(LOWER)), LOWER),
        (Binary(UUID(LOWER).bytes, 3), None),
        (b"x", None),
        (Decimal128("7"), None),
        (DatetimeMS(0), None),
        (Timestamp(1, 1), None),
        (Regex("x"), None),
        (MaxKey(), None),
        (["a"], None),
        ({"a": 1}, None),
        (None, None),
    ],
)
def test_a_value_has_the_text_that_every_program_writes_or_none(
    value: Any, text: str | None
) -> None:
    assert text_of(value) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("m-1", "m-1"),
        ("7", 7),
        ("007", 7),
        ("7", 7.0),
        ("7", Decimal128("7.0")),
        ("1.50", 1.5),
        (OBJECT_ID.upper(), ObjectId(OBJECT_ID)),
        (LOWER.upper(), Binary.from_uuid(UUID(LOWER))),
        ("true", True),
        ("a", ["b", "a"]),
    ],
)
def test_a_text_stands_for_each_value_that_a_program_may_keep_for_it(text: str, value: Any) -> None:
    asked = of_asked([text, "another"])
    assert [asked.get(one) for one in comparable(value) if one in asked] == [[text]]


def test_a_text_that_is_nothing_else_is_asked_for_as_a_text_alone() -> None:
    assert forms_of("m-1") == ["m-1"] and forms_of("1e3") == ["1e3"]
    assert comparable(math.nan) == [] and comparable({"a": 1}) == []


def test_an_id_that_is_kept_as_another_value_is_not_the_one_that_is_written() -> None:
    mapping = LogMapping.model_validate(
        {"dialect": "mongodb", "tables": ["inbox"], "message_id": "id"}
    )
    fields, asked = Fields(mapping), of_asked(["7", "007", LOWER, LOWER.upper()])
    assert fields.ids_of({"id": 7}, asked) == ("7", {"007"})
    assert fields.ids_of({"id": Binary.from_uuid(UUID(LOWER))}, asked) == (LOWER, {LOWER.upper()})
    assert fields.ids_of({"id": ["7"]}, asked) == (None, {"7"})
    assert fields.ids_of({}, asked) == (None, set())


def test_a_field_is_found_in_documents_and_in_arrays_of_them() -> None:
    document = {"a": {"b": {"c": 1}}, "list": [{"id": "x"}, {"id": "y"}, 7], "text": '{"b": 1}'}
    assert value_of(document, "a.b.c") == 1
    assert value_of(document, "list.id") == ["x", "y"]
    assert value_of(document, "text.b") is value_of(document, "a.x.c") is None


STUBS = {
    "dialect": "mongodb",
    "tables": ["stubs"],
    "message_id": "id",
    "topics": ["orders"],
    "created_at": "at",
    "sent_when_set": "offset",
    "changes": ["count"],
}


def stub_fields(**changes: Any) -> Fields:
    return Fields(StubMapping.model_validate({**STUBS, **changes}))


@pytest.mark.parametrize(
    ("times", "value", "at"),
    [
        ("instant", DatetimeMS(1_000), 1_000_000),
        ("instant", ObjectId("00000001" + "00" * 8), 1_000_000),
        ("instant", "2026-11-26", None),
        ("instant", 1_000, None),
        ("instant", DatetimeMS(-(2**63)), -62_135_596_800_000_000),
        ("instant", DatetimeMS(2**63 - 1), 221_845_392_000_000_000),
        ("milliseconds", Int64(1_000), 1_000_000),
        ("milliseconds", 1_000.5, 1_000_000),
        ("milliseconds", math.inf, None),
        ("milliseconds", True, None),
        ("milliseconds", DatetimeMS(1_000), None),
    ],
)
def test_a_time_is_one_of_the_mappings_kind(times: str, value: Any, at: int | None) -> None:
    assert stub_fields(times=times).micros({"at": value}, "at") == at


def test_times_are_compared_with_each_type_that_one_may_have() -> None:
    (date, object_id) = stub_fields().compared("at", "$gt", AT)["$or"]
    assert int(date["at"]["$gt"]) == AT.timestamp() * 1000
    assert object_id["at"]["$gt"].generation_time == AT
    assert str(object_id["at"]["$gt"]).endswith("ff" * 8), "none of that second is later"
    (long_ago, _) = stub_fields().not_before("at", AT - timedelta(days=400_000))["$and"]
    assert int(long_ago["at"]["$not"]["$lt"]) < 0


def test_a_version_changes_with_what_the_mapping_names_and_with_nothing_else() -> None:
    fields = stub_fields()
    document = {"id": "m", "at": DatetimeMS(1), "offset": 1, "count": 1, "content": "x"}
    row = fields.stub_row(document)
    assert row is not None and row[:4] == ("orders", "m", 1_000, "sent")
    assert fields.stub_row({**document, "content": "y"}) == row
    for changed in ({"count": 2}, {"offset": 2}, {"count": "1"}):
        other = fields.stub_row({**document, **changed})
        assert other is not None and other[4] != row[4]


def test_what_crosses_the_line_is_what_is_mapped_and_no_path_within_another() -> None:
    fields = stub_fields(message_id="doc.id", topic="doc", only={"kind": "order"})
    assert fields.projection() == {
        "_id": 0,
        "doc": 1,
        "kind": 1,
        "at": 1,
        "offset": 1,
        "count": 1,
    }
    assert stub_fields(message_id="_id").projection()["_id"] == 1


def test_a_part_of_a_compound_id_crosses_the_line_without_a_word_about_the_whole() -> None:
    fields = stub_fields(message_id="_id.messageId", topic="_id.topic")
    assert {path for path in fields.projection() if path.startswith("_id")} == {
        "_id.messageId",
        "_id.topic",
    }
    assert stub_fields(message_id="_id.messageId", created_at="_id").projection()["_id"] == 1
