"""Stores one page of a dead-letter queue in one transaction; a page that is stored twice is stored once.

Only what this transaction committed may be acknowledged to the broker.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from backstop.array_literal import array_literal
from backstop.brokers.protocol import DeadLetter
from backstop.dead_letters.met_again import Met, Stored, met_again
from backstop.dead_letters.storable import is_storable, make_storable
from backstop.named_sql import load
from backstop.records import Counts
from backstop.runs.run import Run, hold

_SQL = load("backstop.dead_letters", "drain.sql")
_COPY_BYTES = 1024 * 1024
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


@dataclass(frozen=True, slots=True)
class Place:
    """One queue and one reading of it. `began`: the control database's clock before the reader was opened."""

    broker: str
    queue: str
    began: datetime
    aside_bytes: int


@dataclass(frozen=True, slots=True)
class Page:
    """A page that is committed. `taken`: what the broker may now forget."""

    batch_id: int
    taken: list[DeadLetter]
    counts: Counts


def store_page(
    control: Any, run: Run, place: Place, letters: Sequence[DeadLetter], acknowledged: Sequence[int], first_batch: int | None
) -> Page:
    """Stores what is new among these letters, in their order; marks earlier pages that were acknowledged meanwhile; commits.

    `first_batch`: the first page of this reading. Raises RunLost when the run is not ours any more, psycopg2.DataError or
    ProgramLimitExceeded for a page that no database can hold.
    """
    ours = [letter if is_storable(letter) else make_storable(letter) for letter in letters]
    with control, control.cursor() as cursor:
        hold(cursor, run)
        cursor.execute(_SQL["lock_queue"], {"broker": place.broker, "queue": place.queue})
        new: list[tuple[str, DeadLetter]] = []
        taken: list[DeadLetter] = []
        stored = _find(cursor, place, ours)
        here: set[str] = set()
        for given, letter in zip(letters, ours, strict=True):
            base = letter.broker_id
            if base in here:
                met, name = Met.NEW, _free(base, stored, here)
            elif base not in stored:
                met, name = Met.NEW, base
            else:
                met, name = met_again(letter, stored[base][-1], place.began, first_batch), _free(base, stored, here)
            if met is Met.NEW:
                here.add(name)
                new.append((name, letter))
            if met is not Met.LEFT:
                taken.append(given)
        cursor.execute(_SQL["insert_batch"], {
            "run_id": run.run_id, "broker": place.broker, "queue": place.queue, "letters": len(new),
        })  # fmt: skip
        batch_id: int = cursor.fetchone()[0]
        asides = _copy(cursor, place, batch_id, new)
        if acknowledged:
            cursor.execute(_SQL["mark_acknowledged"], {"batches": array_literal(list(acknowledged))})
    counts = Counts()
    for count, number in {
        "read": len(letters), "stored": len(new), "known": len(taken) - len(new), "left": len(letters) - len(taken),
        "aside": asides, "invalid": sum(letter.invalid is not None for _, letter in new),
    }.items():  # fmt: skip
        if number:
            counts.add(count, number)
    return Page(batch_id, taken, counts)


def _find(cursor: Any, place: Place, letters: Iterable[DeadLetter]) -> dict[str, list[Stored]]:
    """By the broker's own id, the letters that are stored under it, the first death first."""
    found: dict[str, list[Stored]] = {}
    wanted = {letter.broker_id: letter.broker_id for letter in letters}  # id as stored -> the broker's own
    while wanted:
        cursor.execute(_SQL["stored"], {"broker": place.broker, "queue": place.queue, "ids": array_literal(list(wanted))})
        rows = [Stored(*row) for row in cursor.fetchall()]
        bases = [wanted[row.broker_id] for row in rows]
        for base, row in zip(bases, rows, strict=True):
            found.setdefault(base, []).append(row)
        wanted = {_numbered(base, len(found[base]) + 1): base for base in bases}
    return found


def _free(base: str, stored: dict[str, list[Stored]], here: set[str]) -> str:
    number = len(stored.get(base, ())) + 1
    while _numbered(base, number) in here:
        number += 1
    return _numbered(base, number)


def _numbered(base: str, number: int) -> str:
    return base if number == 1 else f"{base}#{number}"


def _copy(cursor: Any, place: Place, batch_id: int, new: Sequence[tuple[str, DeadLetter]]) -> int:
    """Returns how many contents were put aside."""
    if not new:
        return 0
    head = f"{batch_id}\t{_text(place.broker)}\t{_text(place.queue)}\t"
    asides: dict[str, bytes] = {}
    lines: list[bytes] = []
    for name, letter in new:
        aside = len(letter.content) > place.aside_bytes
        if aside:
            asides[name] = letter.content
        lines.append(_line(head, name, letter, aside))
    cursor.copy_expert(_SQL["copy_letters"], io.BytesIO(b"".join(lines)), _COPY_BYTES)
    if asides:
        cursor.execute(_SQL["ids_of_batch"], {"batch_id": batch_id})
        numbers = dict(cursor.fetchall())
        for name, content in asides.items():
            line = b"%d\t\\\\x%b\n" % (numbers[name], content.hex().encode())
            cursor.copy_expert(_SQL["copy_asides"], io.BytesIO(line), _COPY_BYTES)
    return len(asides)


def _line(head: str, name: str, letter: DeadLetter, aside: bool) -> bytes:
    try:
        line = _written(head, name, letter, aside)
        encoded = line.encode()
    except UnicodeEncodeError:
        encoded = b"\x00"
    if b"\x00" in encoded or b"\\\\u0000" in encoded:
        return _written(head, name, make_storable(letter), aside).encode()
    return encoded


def _written(head: str, name: str, letter: DeadLetter, aside: bool) -> str:
    at = letter.position
    place = "\\N\t\\N\t\\N" if at is None else f"{at.queue_id}\t{at.offset}\t{_text(at.epoch)}"
    content = "\\N" if aside else f"\\\\x{letter.content.hex()}"
    properties = _text(json.dumps(dict(letter.properties), ensure_ascii=False)) if letter.properties else "{}"
    deliveries = "\\N" if letter.deliveries is None else letter.deliveries
    died = "\\N" if letter.died_at is None else letter.died_at.isoformat()
    return (
        f"{head}{_text(name)}\t{_text(letter.group)}\t{_text(letter.topic)}\t{_text(letter.message_id)}\t{place}\t"
        f"{_text(letter.tag)}\t{_text(letter.partition_key)}\t\\\\x{letter.headers.hex()}\t{content}\t{len(letter.content)}\t"
        f"{'t' if aside else 'f'}\t{properties}\t{_text(letter.cause)}\t{_text(letter.error)}\t{deliveries}\t{died}\t"
        f"{_text(letter.invalid)}\n"
    )


def _text(value: str | None) -> str:
    return "\\N" if value is None else value.translate(_ESCAPES)
