"""Reads the documents of another program's collection: its fields by our names, its values as texts, its states in our words.

A document's field may hold any type, and the next one's another. So a filter only narrows, by every value that an application may
keep for a text, and each document is compared here, by the text that its value is written as. An id that is kept as another value
than it is written (007 as the number 7) is not absent, and proves nothing.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from bson import Binary, Decimal128, Int64, ObjectId
from bson.binary import UUID_SUBTYPE
from bson.datetime_ms import DatetimeMS

from backstop.config.mapped import LogMapping, StubMapping
from backstop.model.records import LATEST
from backstop.stores.mapped.rows import EARLIEST_MICROS, EPOCH, MICROSECOND
from backstop.stores.mapped.table import StubRow

Document = Mapping[str, Any]
_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?[0-9]{1,40}(\.[0-9]{0,40})?")
_OBJECT_ID = re.compile("[0-9a-fA-F]{24}")
_EXACT = 2**53
"""A double holds each whole number below it."""
_SMALL, _LARGE = 1e-4, 1e15
"""Between them every language writes a double in the same way."""
_LATEST_MICROS = (LATEST - EPOCH) // MICROSECOND
_LATEST_SECOND = 2**32 - 1
_OTHER_TYPES = ["object", "array", "bool", "date", "timestamp", "regex", "decimal"]
"""Those besides null, of which no id is made."""
_KINDS = {
    DatetimeMS: "date",
    ObjectId: "objectId",
    str: "string",
    bool: "bool",
    float: "double",
    dict: "object",
    list: "array",
    bytes: "binData",
    Binary: "binData",
    Decimal128: "decimal",
}


def text_of(value: Any) -> str | None:
    """As every application writes it; null for what no id of ours can be."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            with suppress(UnicodeEncodeError):
                value.encode()
                return None if "\0" in value else value
            return None
        case int():
            return str(int(value))
        case float():
            if value.is_integer() and abs(value) < _EXACT:
                return str(int(value))
            return repr(value) if _SMALL <= abs(value) < _LARGE else None
        case ObjectId():
            return str(value)
        case Binary() if value.subtype == UUID_SUBTYPE and len(value) == 16:
            return str(UUID(bytes=bytes(value)))
    return None


def forms_of(text: str) -> list[Any]:
    """Every value that an application may keep for this text, whether it is written so or not."""
    forms: list[Any] = [text]
    if _WHOLE.fullmatch(text) and -(2**63) <= int(text) < 2**63:
        forms.append(Int64(text))
    elif _NUMBER.fullmatch(text):
        forms.append(float(text))
    if _OBJECT_ID.fullmatch(text):
        forms.append(ObjectId(text))
    if text in ("true", "false"):
        forms.append(text == "true")
    with suppress(ValueError):
        forms.append(Binary(UUID(text).bytes, UUID_SUBTYPE))
    return forms


def comparable(value: Any) -> list[Any]:
    """The value as the server takes it for equal: a number of any type, each element of an array."""
    match value:
        case list():
            return [one for element in value for one in comparable(element)]
        case bool() | str() | ObjectId():
            return [(type(value).__name__, value)]
        case Binary():
            return [("binary", bytes(value), value.subtype)]
        case Decimal128():
            return [("number", value.to_decimal())]
        case int() | float() if math.isfinite(value):
            return [("number", Decimal(value))]
    return []


def value_of(document: Any, path: str) -> Any:
    """Of a field, or a field of a field; of an array, a list. Null where there is none."""
    name, _, rest = path.partition(".")
    if isinstance(document, list):
        found = [value_of(one, path) for one in document]
        return [one for one in found if one is not None] or None
    value = document.get(name) if isinstance(document, Mapping) else None
    return value_of(value, rest) if rest else value


def any_of(field: str, texts: Iterable[str]) -> dict[str, Any]:
    """A filter that every document with one of these texts there passes, perhaps others, too."""
    return {field: {"$in": [form for text in texts for form in forms_of(text)]}}


def nameless(field: str) -> dict[str, Any]:
    """A filter for documents whose field has no text: none, or a value that text_of gives null for."""
    zeros, ones = (Binary(byte * 16, UUID_SUBTYPE) for byte in (b"\0", b"\xff"))
    double = [
        {field: {"$gte": float(_EXACT)}},
        {field: {"$lte": -float(_EXACT)}},
        {field: {"$gt": 0.0, "$lt": _SMALL}},
        {field: {"$gt": -_SMALL, "$lt": 0.0}},
        {field: math.nan},
    ]
    return {
        "$or": [
            {field: None},
            {field: {"$type": _OTHER_TYPES}},
            {"$and": [{field: {"$type": "double"}}, {"$or": double}]},
            {
                "$and": [
                    {field: {"$type": "binData"}},
                    {"$nor": [{field: {"$gte": zeros, "$lte": ones}}]},
                ]
            },
        ]
    }


def of_asked(texts: Iterable[str]) -> dict[Any, list[str]]:
    """comparable -> those of the asked texts for which such a value may stand."""
    found: dict[Any, list[str]] = {}
    for text in texts:
        for form in forms_of(text):
            for one in comparable(form):
                found.setdefault(one, []).append(text)
    return found


class Fields:
    """The fields of one collection of a mapping; `place`: which of its tables that is."""

    def __init__(self, mapping: StubMapping | LogMapping, place: int = 0) -> None:
        self._mapping, self._place = mapping, place
        self._is_milliseconds = mapping.times == "milliseconds"

    def projection(self) -> dict[str, int]:
        """What crosses the line of a document, which may have 16 MB."""
        paths = self.paths()
        whole = [path for path in paths if not any(path.startswith(f"{one}.") for one in paths)]
        named = dict.fromkeys(whole, 1)
        # A part of _id may not stand beside _id itself: MongoDB refuses the query (path collision).
        return named if any(path.startswith("_id.") for path in whole) else {"_id": 0, **named}

    def paths(self) -> list[str]:
        """All that is read, each once."""
        mapping = self._mapping
        named = [mapping.message_id, mapping.topic, mapping.state, *mapping.only]
        if isinstance(mapping, StubMapping):
            named += [mapping.created_at, mapping.sent_when_set, *mapping.changes]
        else:
            named += [mapping.group, mapping.received_at, mapping.done_at, mapping.done_when_set]
        return list(dict.fromkeys(name for name in named if name is not None))

    def with_ids(self, message_ids: Iterable[str]) -> dict[str, Any]:
        return any_of(self._mapping.message_id, message_ids)

    def ids_of(
        self, document: Document, asked: Mapping[Any, list[str]]
    ) -> tuple[str | None, set[str]]:
        """(the id that it is written as, those of the asked ids (of_asked) for which its value stands besides)."""
        value = value_of(document, self._mapping.message_id)
        stands_for = {text for one in comparable(value) for text in asked.get(one, ())}
        written = text_of(value)
        return written, stands_for - {written}

    def asked(self, message_ids: Iterable[str]) -> dict[Any, list[str]]:
        return of_asked(message_ids)

    def nameless(self) -> dict[str, Any]:
        """A filter for documents without an id, or a topic, that can be read."""
        named = [name for name in (self._mapping.message_id, self._mapping.topic) if name]
        return {"$or": [nameless(name) for name in named]}

    def only(self) -> list[dict[str, Any]]:
        return [any_of(field, [text]) for field, text in self._mapping.only.items()]

    def of_topics(self, theirs: Iterable[str]) -> list[dict[str, Any]]:
        """Filters for rows of these topics that `only` takes."""
        topic = self._mapping.topic
        return [*([] if topic is None else [any_of(topic, theirs)]), *self.only()]

    def of_group(self, theirs: Iterable[str]) -> list[dict[str, Any]]:
        assert isinstance(self._mapping, LogMapping)
        group = self._mapping.group
        return [*([] if group is None else [any_of(group, theirs)]), *self.only()]

    def may_be_of_group(self, theirs: Iterable[str]) -> list[dict[str, Any]]:
        """The same, and for documents whose group has no text."""
        assert isinstance(self._mapping, LogMapping)
        group = self._mapping.group
        if group is None:
            return self.only()
        return [{"$or": [any_of(group, theirs), nameless(group)]}, *self.only()]

    def text(self, document: Document, path: str | None) -> str | None:
        return None if path is None else text_of(value_of(document, path))

    def is_taken(self, document: Document) -> bool:
        """Whether `only` takes it, text by text."""
        return all(self.text(document, field) == text for field, text in self._mapping.only.items())

    def stub_row(self, document: Document) -> StubRow | None:
        """Null: of another topic, or not one of `only`."""
        mapping = self._mapping
        assert isinstance(mapping, StubMapping)
        theirs = next(iter(mapping.topics))
        if mapping.topic is not None:
            theirs = self.text(document, mapping.topic) or ""
        if theirs not in mapping.topics or not self.is_taken(document):
            return None
        return (
            mapping.topics[theirs],
            self.text(document, mapping.message_id),
            self.micros(document, mapping.created_at),
            self._state(document),
            self._version(document),
        )

    def kind(self, document: Document) -> str:
        """See states.log_kind."""
        mapping = self._mapping
        assert isinstance(mapping, LogMapping)
        if mapping.group is not None and self.text(document, mapping.group) is None:
            return "groupless"
        if mapping.done_when_set is not None:
            return "working" if value_of(document, mapping.done_when_set) is None else "done"
        if mapping.state is None:
            return "done"
        text = self.text(document, mapping.state)
        kinds = {"done": mapping.done, "working": mapping.working, "failed": mapping.failed}
        return next((kind for kind, texts in kinds.items() if text in texts), "unknown")

    def micros(self, document: Document, path: str | None) -> int | None:
        """Microseconds since 1970; null for none, and for a value that is no time of the mapping's kind."""
        found = None if path is None else self._milliseconds(value_of(document, path))
        return None if found is None else max(EARLIEST_MICROS, min(_LATEST_MICROS, found * 1000))

    def compared(self, field: str, sign: str, at: datetime) -> dict[str, Any]:
        """A filter for times beside an instant; `sign`: $lt, $lte, $gt or $gte."""
        return {"$or": [{field: {sign: bound}} for bound in self._bounds(sign, at)]}

    def not_before(self, field: str, at: datetime) -> dict[str, Any]:
        """A filter for times then or later, and for documents without a time."""
        return {"$and": [{field: {"$not": {"$lt": bound}}} for bound in self._bounds("$lt", at)]}

    def kinds(self, documents: Iterable[Document], path: str) -> list[str]:
        """The types that the field has in these, as MongoDB names them."""
        values = (value_of(document, path) for document in documents)
        return sorted({_kind(value) for value in values if value is not None})

    def set_later(self) -> set[str]:
        """The fields that a document may not have yet."""
        mapping = self._mapping
        if isinstance(mapping, StubMapping):
            return {name for name in (mapping.sent_when_set, *mapping.changes) if name}
        return {name for name in (mapping.done_at, mapping.done_when_set) if name}

    def written_once(self) -> set[str]:
        """The fields whose values never change: an index over them keeps each document in its place while it is read."""
        assert isinstance(self._mapping, StubMapping)
        mapping = self._mapping
        named = [mapping.message_id, mapping.topic, mapping.created_at, *mapping.only]
        return {name for name in named if name is not None}

    def _state(self, document: Document) -> str:
        mapping = self._mapping
        assert isinstance(mapping, StubMapping)
        if mapping.sent_when_set is not None:
            return "unsent" if value_of(document, mapping.sent_when_set) is None else "sent"
        if mapping.state is None:
            return "unsent"
        text = self.text(document, mapping.state)
        if text in mapping.sent:
            return "sent"
        return "unsent" if text in mapping.unsent else "unknown_state"

    def _version(self, document: Document) -> str:
        """A hash of what the mapping reads of the row besides its key: the server keeps no version that can be read."""
        mapping = self._mapping
        assert isinstance(mapping, StubMapping)
        named = [mapping.created_at, mapping.state, mapping.sent_when_set, *mapping.changes]
        kept = [value_of(document, name) for name in named if name is not None]
        return hashlib.sha256(repr((self._place, kept)).encode()).hexdigest()[:32]

    def _milliseconds(self, value: Any) -> int | None:
        match value:
            case DatetimeMS() if not self._is_milliseconds:
                return int(value)
            case ObjectId() if not self._is_milliseconds:
                return int(value.generation_time.timestamp()) * 1000
            case bool():
                return None
            case int() | float() if self._is_milliseconds and math.isfinite(value):
                return int(value)
        return None

    def _bounds(self, sign: str, at: datetime) -> Iterator[Any]:
        """The instant as each type has it. Comparison keeps to its type: one of another is neither less nor more."""
        micros = (at - EPOCH) // MICROSECOND
        if self._is_milliseconds:
            yield Int64(micros // 1000)
            return
        yield DatetimeMS(micros // 1000)
        second = max(0, min(_LATEST_SECOND, micros // 1_000_000))
        rest = (b"\xff" if sign in ("$gt", "$lte") else b"\0") * 8
        yield ObjectId(struct.pack(">I", second) + rest)


def _kind(value: Any) -> str:
    found = _KINDS.get(type(value))
    return found or ("int" if isinstance(value, int) else type(value).__name__)
