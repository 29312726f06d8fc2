"""The changes of stubs in MariaDB, each within the caller's transaction: hold the rows that are as the change wants them, then write
these alone.

A statement there does not say which rows it changed (MySQL has no RETURNING, and counts none that it left as it was).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from backstop.model.records import Key, Outcome
from backstop.sql.connection import storable_keys
from backstop.sql.mariadb_keys import BYTES_OF_STATEMENT, ROWS_OF_STATEMENT, listed, with_stubs
from backstop.sql.named import load
from backstop.stores.kept_closed import kept_closed
from backstop.stores.mariadb.keys import by_topic, naive, to_micros
from backstop.stores.protocol import Claim, Handed, Settlement, StubOutcomes

_TEXT_BYTES, _ERROR_LENGTH = 2_048, 2_000
_HEX = f"varchar({2 * _TEXT_BYTES}) CHARACTER SET ascii"
"""Of a text: JSON escapes differ between servers."""
_ERROR = f"varchar({2 * 4 * _ERROR_LENGTH}) CHARACTER SET ascii"
_WORD = "varchar(36) CHARACTER SET ascii COLLATE ascii_bin"
_CLAIM = {
    "send_number": "integer",
    "token": _WORD,
    "requested_by": _HEX,
    "attempt_lasts": "bigint",
    "next_check": "bigint",
    "max_sends": "integer",
    "max_refusals": "integer",
    "only_when_due": "integer",
    "broker": _HEX,
}
_SETTLEMENT = {
    "send_number": "integer",
    "token": _WORD,
    "outcome": _WORD,
    "queue_id": "integer",
    "queue_offset": "bigint",
    "queue_epoch": _HEX,
    "broker": _HEX,
    "broker_message_id": _HEX,
    "error": _ERROR,
    "max_send": "bigint",
}
_OUTCOME = {
    "old_status": _WORD,
    "new_status": _WORD,
    "send_count": "integer",
    "next_look": "bigint",
}
_HANDED = {
    "most": "integer",
    "last_at": "bigint",
    "refused": "integer",
}
_GIVEN = {
    **dict.fromkeys(("hold_claims", "claim"), _CLAIM),
    **dict.fromkeys(("hold_settlements", "settle", "record_settled"), _SETTLEMENT),
    **dict.fromkeys(("hold_promoted", "promote"), _OUTCOME),
    **dict.fromkeys(("hold_below", "raise_numbers", "count_numbers"), _HANDED),
}
_TEXTS = load("backstop.stores.mariadb", "stubs.sql")
SQL = {
    name: with_stubs(text.replace("{created}", _TEXTS["created"]), **_GIVEN.get(name, {}))
    for name, text in _TEXTS.items()
}
Rows = Mapping[Key, Mapping[str, Any]]


def recover(
    cursor: Any, keys: Iterable[Key], max_send_seconds: float, *, skip_locked: bool = False
) -> list[Key]:
    """Attempts of these messages whose deadline is over lose their token and are recorded as unknown; which these are, in key order."""
    hold = f"{SQL['hold_late']} {SQL['skip_locked']}" if skip_locked else SQL["hold_late"]
    found: list[Key] = []
    for values, by_id in by_topic(list(keys)):
        given = {**values, "ids": listed(by_id)}
        if held := _held(cursor, hold, given):
            given |= {"ids": listed(held), "max_send": _micros(max_send_seconds)}
            for statement in ("date_late", "record_late", "end_attempts"):
                cursor.execute(SQL[statement], given)
            found += [by_id[one] for one in held]
    return found


def held(cursor: Any, keys: Iterable[Key]) -> set[Key]:
    """Those of these messages whose row another transaction holds; the others are locked until this one ends."""
    found: set[Key] = set()
    for values, by_id in by_topic(list(keys)):
        given = {**values, "ids": listed(by_id)}
        there = _held(cursor, SQL["present"], given)
        free = _held(cursor, f"{SQL['hold_any']} {SQL['skip_locked']}", given)
        found |= {by_id[one] for one in {*there} - {*free}}
    return found


def claim(cursor: Any, claims: Sequence[Claim]) -> list[Sequence[Any]]:
    """Rows of content_columns of the messages whose number was handed out; each key once."""
    rows = {one.key: _claimed(one) for one in claims}
    groups = {one.key: _groups(one.groups) for one in claims}
    recover(cursor, rows, 0.0)
    found: list[Sequence[Any]] = []
    for held in _hold(cursor, "hold_claims", rows):
        cursor.execute(SQL["keep_first"], held)
        for to_groups, given in _by_groups(held["keys"], rows, groups):
            cursor.execute(SQL["claim"], {**given, "to_groups": to_groups})
        cursor.execute(f"SELECT {SQL['content_columns']} {SQL['of_keys']}", held)
        found += cursor.fetchall()
    return found


def settle(cursor: Any, settlements: Sequence[Settlement]) -> set[Key]:
    """The keys whose attempt was still the caller's."""
    changed: set[Key] = set()
    rest = list(settlements)
    while rest:
        rows: dict[Key, Mapping[str, Any]] = {}
        again = []  # of two ends of one message the token decides which counts
        for one in rest:
            if one.key in rows:
                again.append(one)
            else:
                rows[one.key] = _settled(one)
        for held in _hold(cursor, "hold_settlements", rows):
            for statement in ("settle", "record_settled", "end_attempts"):
                cursor.execute(SQL[statement], held)
            changed |= held["keys"]
        rest = again
    return changed


def promote(
    cursor: Any,
    outcomes: StubOutcomes,
    values: Mapping[str, Any],
    before_commit: Callable[[], None] | None,
) -> int:
    """How many rows still were as judged. `values`: as_of and own_as_of."""
    rows = {
        one.key: {
            "old_status": str(one.old_status),
            "new_status": str(one.new_status),
            "send_count": one.send_count,
            "next_look": None if one.next_look_at is None else to_micros(one.next_look_at),
        }
        for one in outcomes
    }
    recover(cursor, rows, 0.0)
    moved = 0
    for held in _hold(cursor, "hold_promoted", rows, values):
        cursor.execute(SQL["promote"], {**held, **values})
        moved += len(held["keys"])
    if before_commit is not None:
        before_commit()
    return moved


def change_one(cursor: Any, key: Key, hold: str, write: str, values: Mapping[str, Any]) -> bool:
    """Whether the message was as the statement `hold` wants it, and so was written."""
    for given, by_id in by_topic([key]):
        both = {**values, **given, "ids": listed(by_id)}
        if _held(cursor, SQL[hold], both):
            cursor.execute(SQL[write], both)
            return True
    return False


def raise_numbers(cursor: Any, handed: Sequence[Handed]) -> set[Key]:
    """The keys whose send_count is higher now; each number that is above it is recorded."""
    of: dict[Key, list[Handed]] = {}
    for one in handed:
        of.setdefault(one.key, []).append(one)
    keys = storable_keys(of)
    rows: dict[Key, dict[str, Any]] = {
        key: {
            "most": max(one.send_number for one in of[key]),
            "last_at": to_micros(max(one.at for one in of[key])),
        }
        for key in keys
    }
    groups = {
        key: next((_groups(one.groups) for one in of[key] if one.send_number == 1), None)
        for key in keys
    }
    raised: set[Key] = set()
    for values, by_id in _batches(rows):
        cursor.execute(SQL["hold_below"], values)
        counts = {by_id[bytes(message_id)]: count for message_id, count in cursor.fetchall()}
        for key, count in counts.items():
            new = [one for one in of[key] if one.send_number > count]
            rows[key]["refused"] = sum(one.outcome is Outcome.REFUSED for one in new)
            for one in new:
                cursor.execute(SQL["record_handed"], _handed(one))
        for to_groups, given in _by_groups(counts, rows, groups):
            for statement in ("keep_first", "raise_numbers", "count_numbers"):
                cursor.execute(SQL[statement], {**given, "to_groups": to_groups})
        raised |= counts.keys()
    return raised


def reopen(cursor: Any, keys: Sequence[Key]) -> int:
    """How many of these are pending and due again."""
    number = 0
    for values, by_id in by_topic(keys):
        if held := _held(cursor, SQL["hold_closed"], {**values, "ids": listed(by_id)}):
            given = {**values, "ids": listed(held)}
            cursor.execute(SQL["reopen"], given)
            if closed := _held(cursor, SQL["hold_closed"], given):
                raise kept_closed(len(closed))
            number += len(held)
    return number


def rows_of_keys(cursor: Any, statement: str, keys: Iterable[Key], **more: Any) -> Iterator[Any]:
    """The rows of a statement over {of_keys}, for all of these."""
    for values, by_id in by_topic(list(keys)):
        cursor.execute(statement, {**values, **more, "ids": listed(by_id)})
        yield from cursor.fetchall()


def _hold(
    cursor: Any, hold: str, rows: Rows, more: Mapping[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """Batch by batch what a statement needs to write the rows that `hold` found and locked: topic, ids, rows; and which keys."""
    for values, by_id in _batches(rows):
        held = _held(cursor, SQL[hold], {**values, **(more or {})})
        if held:
            keys = {by_id[one] for one in held}
            for given, _ in _batches({key: rows[key] for key in keys}):
                yield {**given, "keys": keys}


def _by_groups(
    keys: Iterable[Key], rows: Rows, groups: Mapping[Key, bytes | None]
) -> Iterator[tuple[bytes | None, dict[str, Any]]]:
    """The values of statements over {given} for these keys, by the groups that their number goes to: few lists, of any length."""
    of: dict[bytes | None, dict[Key, Mapping[str, Any]]] = {}
    for key in keys:
        of.setdefault(groups[key], {})[key] = rows[key]
    for to_groups, its in of.items():
        for given, _ in _batches(its):
            yield to_groups, given


def _held(cursor: Any, hold: str, values: Mapping[str, Any]) -> list[bytes]:
    cursor.execute(hold, values)
    return [bytes(row[0]) for row in cursor.fetchall()]


def _batches(rows: Rows) -> Iterator[tuple[dict[str, Any], dict[bytes, Key]]]:
    """The values of statements over {given} for some rows of one topic, in the order of keys, and whose key each id is."""
    by_id: dict[bytes, Key] = {}
    texts: list[str] = []
    size, topic = 0, ""

    def batch() -> tuple[dict[str, Any], dict[bytes, Key]]:
        given = {"topic": topic.encode(), "ids": listed(by_id), "rows": f"[{','.join(texts)}]"}
        return given, by_id

    for key in sorted(storable_keys(rows)):
        text = json.dumps({"id": key.message_id.encode().hex(), **rows[key]})
        is_full = len(texts) == ROWS_OF_STATEMENT or size + len(text) > BYTES_OF_STATEMENT
        if texts and (key.topic != topic or is_full):
            yield batch()
            by_id, texts, size = {}, [], 0
        topic, size = key.topic, size + len(text)
        by_id[key.message_id.encode()] = key
        texts.append(text)
    if texts:
        yield batch()


def _claimed(one: Claim) -> dict[str, Any]:
    return {
        "send_number": one.send_number,
        "token": one.token,
        "requested_by": _hex(one.requested_by),
        "attempt_lasts": _micros(one.attempt_seconds),
        "next_check": _micros(one.next_check_seconds),
        "max_sends": one.max_sends,
        "max_refusals": one.max_refusals,
        "only_when_due": int(one.only_when_due),
        "broker": _hex(one.broker),
    }


def _settled(one: Settlement) -> dict[str, Any]:
    # A copy that the broker did not acknowledge has no place, whatever the caller believes; nor has one whose epoch no column
    # holds, which only makes Backstop wait.
    at = one.position if one.outcome is Outcome.SENT else None
    if at is not None and len(at.epoch.encode()) > _TEXT_BYTES:
        at = None
    return {
        "send_number": one.send_number,
        "token": one.token,
        "outcome": str(one.outcome),
        "queue_id": at.queue_id if at else None,
        "queue_offset": at.offset if at else None,
        "queue_epoch": _hex(at.epoch) if at else None,
        "broker": _hex(one.broker),
        "broker_message_id": _hex(one.broker_message_id),
        "error": None
        if one.error is None
        else one.error[:_ERROR_LENGTH].replace("\x00", "\ufffd").encode(errors="replace").hex(),
        "max_send": None if one.max_send_seconds is None else _micros(one.max_send_seconds),
    }


def _handed(one: Handed) -> dict[str, Any]:
    return {
        "topic": one.key.topic.encode(),
        "message_id": one.key.message_id.encode(),
        "send_number": one.send_number,
        "groups": _groups(one.groups),
        "requested_by": one.requested_by.encode(),
        "at": naive(one.at),
        "outcome": str(one.outcome),
    }


def _groups(groups: Sequence[str] | None) -> bytes | None:
    return None if groups is None else json.dumps(list(groups), ensure_ascii=False).encode()


def _hex(text: str | None) -> str | None:
    """None also for a text that no column of {given} can store: the server would silently read it as NULL."""
    encoded = None if text is None else text.encode(errors="replace")
    return None if encoded is None or len(encoded) > _TEXT_BYTES else encoded.hex()


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)
