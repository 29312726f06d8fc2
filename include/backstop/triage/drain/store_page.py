"""Stores one page of a dead-letter queue in one transaction; a page that is stored twice is stored once.

Only what this transaction committed may be acknowledged to the broker.
"""

from __future__ import annotations

import io
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Self

from psycopg2 import errors as pg

from backstop.brokers.protocol import DeadLetter
from backstop.model.records import Counts
from backstop.runs.run import Run, hold
from backstop.sql.array_literal import array_literal
from backstop.sql.named import load
from backstop.triage.drain.binary_rows import binary_aside, binary_rows, row_bodies
from backstop.triage.drain.redrain_match import Met, Stored, redrain_match
from backstop.triage.drain.storable import is_storable, make_storable

_SQL = load("backstop.triage.drain", "drain.sql")
_COPY_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Place:
    """One queue and one reading of it. `began`: the control database's clock before the reader was opened."""

    broker: str
    queue: str
    began: datetime
    aside_bytes: int


@dataclass(frozen=True, slots=True)
class ReadPage:
    """Dead letters of one queue in their order: as they were read, as the database can hold them, and the rows of these."""

    given: Sequence[DeadLetter]
    storable: Sequence[DeadLetter]
    bodies: Sequence[bytes]

    @classmethod
    def of(cls, letters: Sequence[DeadLetter], aside_bytes: int) -> Self:
        """Takes no database: it is done beside the storing of the page before."""
        storable = [letter if is_storable(letter) else make_storable(letter) for letter in letters]
        return cls(letters, storable, row_bodies(storable, aside_bytes))

    def part(self, start: int, end: int) -> ReadPage:
        """Some of them."""
        return ReadPage(self.given[start:end], self.storable[start:end], self.bodies[start:end])


class _New(NamedTuple):
    """What is stored, in the order of the queue: under which ids, the letters, and their rows."""

    names: Sequence[str]
    letters: Sequence[DeadLetter]
    bodies: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Page:
    """A page that is committed. `taken`: what the broker may now forget."""

    batch_id: int
    taken: Sequence[DeadLetter]
    counts: Counts
    looked: bool
    """It had to ask what was stored already."""


def store_page(
    control: Any,
    run: Run,
    place: Place,
    read: ReadPage,
    forgotten: Sequence[int],
    first_batch: int | None,
    look: bool = True,
) -> Page:
    """Stores what is new among these letters, in their order; marks the pages that the broker has forgotten; commits.

    `first_batch`: the first page of this reading. `look`: ask first what is stored already, which nearly always is nothing;
    else that is asked when the database objects. Raises RunLost when the run is not ours any more, psycopg2.DataError or
    ProgramLimitExceeded for a page that no database can hold.
    """
    try:
        with control, control.cursor() as cursor:
            hold(cursor, run)
            cursor.execute(_SQL["lock_queue"], {"broker": place.broker, "queue": place.queue})
            stored = _find(cursor, run, place, read.storable) if look else {}
            new, taken = _decide(place, read, stored, first_batch)
            cursor.execute(
                _SQL["insert_batch"],
                {
                    "run_id": run.run_id,
                    "broker": place.broker,
                    "queue": place.queue,
                    "letters": len(new.names),
                    "batches": array_literal(list(forgotten)),
                },
            )
            batch_id: int = cursor.fetchone()[0]
            asides = _copy(cursor, place, batch_id, new)
    except pg.UniqueViolation:
        if look:
            raise
        return store_page(control, run, place, read, forgotten, first_batch)
    counts = Counts()
    for count, number in {
        "read": len(read.given),
        "stored": len(new.names),
        "known": len(taken) - len(new.names),
        "left": len(read.given) - len(taken),
        "aside": asides,
        "invalid": sum(letter.invalid is not None for letter in new.letters),
    }.items():
        if number:
            counts.add(count, number)
    return Page(batch_id, taken, counts, look)


def _decide(
    place: Place,
    read: ReadPage,
    stored: dict[str, list[Stored]],
    first_batch: int | None,
) -> tuple[_New, Sequence[DeadLetter]]:
    """What is stored under which id, and what of the letters as they were given the broker may forget afterwards."""
    if not stored:
        names = [letter.broker_id for letter in read.storable]
        if len(set(names)) == len(names):  # as it is nearly always
            return _New(names, read.storable, read.bodies), read.given
    new: dict[str, tuple[DeadLetter, bytes]] = {}
    taken: list[DeadLetter] = []
    met_here = set[str]()
    for given, letter, body in zip(read.given, read.storable, read.bodies, strict=True):
        name = letter.broker_id
        met = Met.NEW
        # A broker's id is not always unique: a queue that several groups share has their copies under one id, and a program can
        # set ActiveMQ's. What differs in topic, group or message id is another letter.
        same = [
            one
            for one in stored.get(name, ())
            if _names(one) == _names(letter) and one.broker_id not in met_here
        ]
        if same and name not in new:
            met = redrain_match(letter, same[-1], place.began, first_batch)
            if met is Met.KNOWN:
                met_here.add(
                    same[-1].broker_id
                )  # a reader hands out each entry once: the next one is another
        if met is Met.NEW:
            if name in stored or name in new:
                name = _free(name, stored, new)
                [body] = row_bodies([letter._replace(broker_id=name)], place.aside_bytes)
            new[name] = letter, body
        if met is not Met.LEFT:
            taken.append(given)
    return _New(
        list(new), [letter for letter, _ in new.values()], [body for _, body in new.values()]
    ), taken


def _names(letter: DeadLetter | Stored) -> tuple[str | None, str | None, str | None]:
    return letter.topic, letter.group, letter.message_id


def _find(
    cursor: Any, run: Run, place: Place, letters: Iterable[DeadLetter]
) -> dict[str, list[Stored]]:
    """By the broker's own id, the letters that are stored under it, the first death first."""
    found: dict[str, list[Stored]] = {}
    wanted = {
        letter.broker_id: letter.broker_id for letter in letters
    }  # id as stored -> the broker's own
    while wanted:
        cursor.execute(
            _SQL["stored"],
            {
                "run_id": run.run_id,
                "broker": place.broker,
                "queue": place.queue,
                "ids": array_literal(list(wanted)),
            },
        )
        rows = [Stored(*row) for row in cursor.fetchall()]
        bases = [wanted[row.broker_id] for row in rows]
        for base, row in zip(bases, rows, strict=True):
            found.setdefault(base, []).append(row)
        wanted = {_numbered(base, len(found[base]) + 1): base for base in bases}
    return found


def _free(base: str, stored: Mapping[str, list[Stored]], new: Container[str]) -> str:
    number = len(stored.get(base, ())) + 1
    while _numbered(base, number) in new:
        number += 1
    return _numbered(base, number)


def _numbered(base: str, number: int) -> str:
    return base if number == 1 else f"{base}#{number}"


def _copy(cursor: Any, place: Place, batch_id: int, new: _New) -> int:
    """Returns how many contents were put aside."""
    if not new.names:
        return 0
    rows = binary_rows(batch_id, place.broker, place.queue, new.bodies)
    cursor.copy_expert(_SQL["copy_letters"], io.BytesIO(rows), _COPY_BYTES)
    asides = [
        (name, letter.content)
        for name, letter in zip(new.names, new.letters, strict=True)
        if len(letter.content) > place.aside_bytes
    ]
    if asides:
        cursor.execute(_SQL["ids_of_batch"], {"batch_id": batch_id})
        numbers = dict(cursor.fetchall())
        for name, content in asides:
            row = io.BytesIO(binary_aside(numbers[name], content))
            cursor.copy_expert(_SQL["copy_asides"], row, _COPY_BYTES)
    return len(asides)
