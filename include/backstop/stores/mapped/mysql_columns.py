"""Writes the SELECT over another program's table in MySQL or MariaDB: its columns by our names, its states in our words.

Such a server compares texts as their collation has it, without case or without spaces at the end. So a condition that an index
serves only narrows, and every text is compared as the bytes of its UTF-8 beside it. Names are quoted, every value is a parameter,
and a `%` is doubled, because the text goes through the driver's parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from backstop.config.mapped import LogMapping, StubMapping, table_parts
from backstop.model.records import EARLIEST, LATEST
from backstop.stores.mapped.forms import DIGITS, UUID, WHOLE
from backstop.stores.mapped.states import log_kind, stub_state

_LARGE = frozenset({"tinytext", "text", "mediumtext", "longtext", "json", "geometry"})
_BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_TIMES = frozenset({"timestamp", "datetime", "date"})
_HALVES = (
    r"(?<!\\)\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})",
    r"(?<!\\)(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}",
)
_MENDED = "X'EFBFBD'"
_INTEGERS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
"""Their bits."""
_CODECS = {
    "latin1": "cp1252",
    "ascii": "ascii",
    "latin2": "iso8859-2",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "greek": "iso8859-7",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "big5": "big5",
    "sjis": "shift_jis",
    "cp932": "cp932",
    "euckr": "euc_kr",
}
"""Character sets that cannot hold every text -> Python's codec. Of one that is not named, ASCII alone is known to be held."""
_LACKS = {
    "greek": "\u037a\u2018\u2019\u20ac\u20af",
    "big5": "\u02cd\u2574\uffe3",
    "sjis": "\xa5\u203e\uff3c",
    "cp932": "\x80\xa2\xa3\xac\u2016\u2212\u301c\uf8f0\uf8f1\uf8f2\uf8f3",
}
"""Characters of these codecs for which the server keeps a question mark (found by trying each on MariaDB 10.11)."""
_PLANE_0 = {"utf8": "utf-8", "utf8mb3": "utf-8", "ucs2": "utf-16-be"}
"""They end at U+FFFF."""
_UNICODE = {
    "utf8mb4": "utf-8",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    **_PLANE_0,
}
_WITHOUT_FRACTION = re.compile(r"decimal\([0-9]+,0\)")
_NO_TIME = "'1000-01-01'"
"""The server's zero dates lie before it, and so does no message."""
_EARLIEST_MS, _LATEST_MS = -62_135_596_800_000, 221_845_392_000_000
_EPOCH = datetime.fromtimestamp(0, UTC)
_DAY = timedelta(days=1)
FOLDS = timedelta(hours=3)
"""No clock that is set back repeats more than this: local times are read from so much earlier, then compared as instants."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column as the server describes it: `kind` without its length, `written` with it; `required`: never NULL."""

    name: str
    kind: str
    written: str
    charset: str | None
    length: int | None
    required: bool

    @property
    def is_text(self) -> bool:
        """Whether each of its values can be read as a text."""
        return self.kind not in _BYTES

    @property
    def is_matched(self) -> bool:
        """Whether `holds` knows of a text that a row may have there: then an index may be asked for it."""
        known = self.charset in _UNICODE or self.charset in _CODECS
        return self.kind in _INTEGERS or self.kind == "uuid" or (self.kind in _TEXTS and known)

    @property
    def is_whole(self) -> bool:
        """Whether its values are whole numbers."""
        return self.kind in _INTEGERS or (
            self.kind == "decimal" and _WITHOUT_FRACTION.match(self.written) is not None
        )

    def holds(self, text: str) -> bool:
        """Whether a row may have exactly this text there. A server that is not strict cuts or replaces what it cannot hold; of a
        type that is not known, nothing is known."""
        if self.is_whole:
            is_number = len(text) <= DIGITS and WHOLE.fullmatch(text) is not None
            return is_number and self._is_in_range(text)
        if self.kind == "uuid":
            return UUID.fullmatch(text) is not None
        if self.kind in _BYTES:
            size = len(text.encode(errors="replace"))
            return size == self.length if self.kind == "binary" else size <= (self.length or 0)
        if self.kind not in _TEXTS or (self.kind == "char" and text.endswith(" ")):
            return False
        charset = self.charset or ""
        if charset in _PLANE_0 and text and max(text) > "\uffff":
            return False
        try:
            encoded = text.encode(_UNICODE.get(charset) or _CODECS.get(charset, "ascii"))
        except UnicodeEncodeError:
            return False
        # The length of a kind of text is in bytes, that of a varchar in characters.
        size = len(text) if self.kind in ("char", "varchar") else len(encoded)
        is_short = self.length is None or size <= self.length
        return is_short and set(_LACKS.get(charset, "")).isdisjoint(text)

    def _is_in_range(self, text: str) -> bool:
        number, is_unsigned = int(text), "unsigned" in self.written or "zerofill" in self.written
        bits = _INTEGERS.get(self.kind)
        if bits is None:
            return not (is_unsigned and number < 0) and len(text.removeprefix("-")) <= int(
                self.written[len("decimal(") :].split(",")[0]
            )
        least, beyond = (0, 1 << bits) if is_unsigned else (-(1 << bits - 1), 1 << bits - 1)
        return least <= number < beyond


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``").replace("%", "%%") + "`"


def table_of(name: str) -> str:
    """A table's name, quoted."""
    return ".".join(quoted(part) for part in table_parts(name) if part is not None)


class Writer:
    """Expressions over one table `t` of a mapping; see states.Words. Raises KeyError for a column that is not there.

    `values` are the parameters of all that was written.
    """

    def __init__(
        self,
        mapping: StubMapping | LogMapping,
        types: Mapping[str, ColumnType],
        values: dict[str, Any],
        place: int,
    ) -> None:
        """`types`: by name in lower case, as the server compares them; `place`: which of the mapping's tables this is."""
        self._mapping, self._types, self._place, self.values = mapping, types, place, values
        states = (
            {"sent": mapping.sent, "unsent": mapping.unsent}
            if isinstance(mapping, StubMapping)
            else {"done": mapping.done, "working": mapping.working, "failed": mapping.failed}
        )
        values.update({name: _bytes(texts) for name, texts in states.items()})

    def type_of(self, column: str) -> ColumnType | None:
        """Null: it stands in JSON."""
        name, *path = column.split(".")
        its = self._types[name.lower()]
        return None if path else its

    def text(self, column: str) -> str:
        name, *path = column.split(".")
        its, value = self._types[name.lower()], f"t.{quoted(name)}"
        text = f"CONVERT({value} USING utf8mb4)"
        if path:
            mended = _mended(text)
            # A row whose text is no JSON costs itself, not the statement; an id that was itself mended may be any.
            return (
                f"CASE WHEN JSON_VALID({text}) THEN {_field(text, path)} WHEN JSON_VALID({mended})"
                f" AND INSTR(CAST({_field(mended, path)} AS BINARY), {_MENDED}) = 0 THEN {_field(mended, path)} END"
            )
        if its.kind == "bit" or "zerofill" in its.written:  # without the zeros before it
            return f"CAST({value} + 0 AS CHAR)"
        if its.kind in _BYTES:
            return f"CASE WHEN CAST({text} AS BINARY) = {value} THEN {text} END"
        return text

    def has_no_text(self, column: str) -> str:
        """Whether `text` is NULL; of a column that always has one but for NULL, so that an index serves."""
        its = self.type_of(column)
        value = f"t.{quoted(column)}" if its is not None and its.is_text else self.text(column)
        return f"{value} IS NULL"

    def exact(self, column: str) -> str:
        """The text as bytes, which are compared as they are."""
        return f"CAST({self.text(column)} AS BINARY)"

    def is_set(self, column: str) -> str:
        value = f"t.{quoted(column)}"
        its = self.type_of(column)
        if its is not None and its.kind in _TIMES:
            return f"COALESCE({value} >= {_NO_TIME}, FALSE)"
        return f"{value} IS NOT NULL"

    def one_of(self, text: str, values: str) -> str:
        return f"CAST({text} AS BINARY) IN %({values})s"

    def is_one_of(self, column: str, texts: Sequence[str], name: str) -> str:
        """Whether the column is exactly one of these texts; an index over it serves."""
        given = f"{name}_{self._place}_exact"
        self.values[given] = _bytes(texts)
        return f"({self.narrow(column, texts, name)} AND {self.exact(column)} IN %({given})s)"

    def narrow(self, column: str, texts: Sequence[str], name: str) -> str:
        """A condition that an index serves, and that every row with one of these texts meets, perhaps others, too."""
        name = f"{name}_{self._place}"  # another table may have other types
        its = self.type_of(column)
        if its is None or not its.is_matched:
            self.values[name] = _bytes(texts)
            return f"{self.exact(column)} IN %({name})s"
        held = [text for text in texts if its.holds(text)]
        self.values[name] = ([int(text) for text in held] if its.is_whole else held) or [None]
        return f"t.{quoted(column)} IN %({name})s"

    def only(self) -> list[str]:
        """The conditions of `only`."""
        conditions = []
        for place, (column, value) in enumerate(self._mapping.only.items()):
            self.values[f"only_{place}"] = value.encode()
            conditions.append(f"{self.exact(column)} = %(only_{place})s")
        return conditions

    def ours(self, names: Mapping[str, str]) -> str:
        """The topic's name here; `names`: theirs -> ours. NULL for any other."""
        column = self._mapping.topic
        if column is None:
            self.values["ours_0"] = next(iter(names.values()), "")
            return "%(ours_0)s"
        cases = []
        for place, (theirs, ours) in enumerate(names.items()):
            self.values |= {f"theirs_{place}": theirs.encode(), f"ours_{place}": ours}
            cases.append(f"WHEN %(theirs_{place})s THEN %(ours_{place})s")
        return f"CASE {self.exact(column)} {' '.join(cases)} END"

    def version(self) -> str:
        """A hash of every column but those of any length, which hold contents: the server keeps no version that can be read."""
        kept = [
            f"QUOTE(CAST(t.{quoted(its.name)} AS BINARY))"
            for its in self._types.values()
            if its.kind not in _LARGE | _BYTES
        ]
        return f"LEFT(SHA2(CONCAT_WS(',', {', '.join([str(self._place), *kept])}), 256), 32)"

    def instant(self, column: str | None) -> str:
        """Microseconds since 1970, of the wall clock where `times` are local; NULL for none and for a zero date."""
        return "NULL" if column is None else self.instant_of(f"t.{quoted(column)}")

    def instant_of(self, value: str) -> str:
        if self._mapping.times == "milliseconds":
            number = f"CAST({value} AS DECIMAL(38))"
            bound = f"GREATEST({_EARLIEST_MS}, LEAST({number}, {_LATEST_MS}))"
            return f"CAST({bound} * 1000 AS SIGNED)"
        micros = f"TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', {value})"
        return f"CASE WHEN {value} >= {_NO_TIME} THEN {micros} END"

    def created_since(self, column: str, start: datetime, name: str) -> str:
        """Whether a row was created then or later, or has no time; of local times some that are older, too."""
        value = f"t.{quoted(column)}"
        back = FOLDS if self._mapping.times == "local" else timedelta(0)
        self.values[name] = self.written(start - back)
        zero = "" if self._mapping.times == "milliseconds" else f" OR {value} < {_NO_TIME}"
        return f"({value} >= %({name})s OR {value} IS NULL{zero})"

    def compared(self, column: str, sign: str, at: datetime, name: str) -> str:
        """The column's time beside an instant; `sign`: an operator."""
        self.values[name] = self.written(at)
        return f"t.{quoted(column)} {sign} %({name})s"

    def written(self, at: datetime) -> Any:
        """The instant as the column has it."""
        if self._mapping.times == "milliseconds":
            return (at - _EPOCH) // timedelta(milliseconds=1)
        inner = max(EARLIEST + _DAY, min(LATEST - _DAY, at))
        return inner.astimezone(zone_of(self._mapping)).strftime("%Y-%m-%d %H:%M:%S.%f")

    def state(self) -> str:
        assert isinstance(self._mapping, StubMapping)
        return stub_state(self._mapping, self)

    def kind(self) -> str:
        assert isinstance(self._mapping, LogMapping)
        return log_kind(self._mapping, self)

    def changed_by_a_send(self) -> list[str]:
        """The columns of the hash whose values do not come back when a row is sent again."""
        mapping = self._mapping
        assert isinstance(mapping, StubMapping)
        known = (
            mapping.message_id,
            mapping.topic,
            mapping.created_at,
            mapping.state,
            *mapping.only,
        )
        names = {name.split(".")[0].lower() for name in known if name}
        return [
            its.name
            for name, its in self._types.items()
            if its.kind not in _LARGE | _BYTES and name not in names
        ]


def zone_of(mapping: StubMapping | LogMapping) -> ZoneInfo:
    """That of the column's times: the mapping's for local ones, else UTC, which our sessions are in."""
    return ZoneInfo((mapping.times == "local" and mapping.time_zone) or "UTC")


def utc_micros(micros: int | None, zone: ZoneInfo) -> int | None:
    """Microseconds of a wall clock in `zone` as microseconds since 1970; an hour that comes twice is the first of the two."""
    if micros is None or zone.key == "UTC":
        return micros
    wall = _EPOCH + timedelta(microseconds=micros)
    inner = max(EARLIEST + _DAY, min(LATEST - _DAY, wall))
    return (inner.replace(tzinfo=zone) - _EPOCH) // timedelta(microseconds=1)


def as_text(value: bytes | None) -> str | None:
    """Null also for what no id of ours can be: bytes that are no UTF-8, and a text with a NUL."""
    if value is None or b"\0" in value:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _bytes(texts: Sequence[str]) -> list[bytes | None]:
    """For IN, which takes no empty list: NULL is equal to nothing."""
    return [text.encode() for text in texts] or [None]


def _field(document: str, path: Sequence[str]) -> str:
    read = f"JSON_EXTRACT({document}, {_json_path(path)})"
    return f"CASE WHEN JSON_TYPE({read}) = 'NULL' THEN NULL ELSE JSON_UNQUOTE({read}) END"


def _mended(document: str) -> str:
    """The JSON with U+FFFD in place of each half of a surrogate pair without the other, as programs write a text that was cut: the
    server takes such a text for no JSON, though anybody else reads the rest. One right behind a backslash is left."""
    for pattern in _HALVES:
        text = f"CONVERT(X'{pattern.encode().hex()}' USING utf8mb4)"
        document = f"REGEXP_REPLACE({document}, {text}, CONVERT({_MENDED} USING utf8mb4))"
    return document


def _json_path(path: Sequence[str]) -> str:
    steps = "".join('."' + step.replace("\\", "\\\\").replace('"', '\\"') + '"' for step in path)
    return "'" + ("$" + steps).replace("\\", "\\\\").replace("'", "''").replace("%", "%%") + "'"
