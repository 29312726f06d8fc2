"""What a test knows of another program's tables on one server: how they are made, filled, changed and mapped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

EXTERNALIZER = "org.example.Externalizer"
LISTENER = "org.example.Billing.on"
Statement = str | Callable[..., Any]
"""SQL, or what is called with a database of MongoDB and the values."""
CAP_ACTS = {
    "state": 'UPDATE {published} SET "StatusName" = %(state)s WHERE "Id" = %(id)s',
    "delete": 'DELETE FROM {published} WHERE "Id" = %(id)s',
    "received state": 'UPDATE {received} SET "StatusName" = %(state)s, "Added" = "Added" - {two_hours} WHERE "Id" = %(id)s + 7000',
    "received group": 'UPDATE {received} SET "Group" = %(group)s WHERE "Id" = %(id)s + 7000',
    "received topic": 'UPDATE {received} SET "Name" = %(topic)s WHERE "Id" = %(id)s + 7000',
    "received content": 'UPDATE {received} SET "Content" = %(content)s WHERE "Id" = %(id)s + 7000',
    "nameless": "INSERT INTO {received} VALUES (%(id)s, 'v1', 'orders', %(group)s, 'no json', 50, now(), NULL, 'Failed')",
    "all far ahead": """UPDATE {published} SET "Added" = '2999-12-31'""",
    "all two hours older": """UPDATE {published} SET "Added" = "Added" - {two_hours}""",
}
"""What else the other program does, or its people: of the library cap."""


@dataclass(frozen=True)
class Library:
    """How one library's tables are made, filled and mapped."""

    tables: Statement
    producer: Mapping[str, Any]
    consumer: Mapping[str, Any]
    promise: Statement
    """Inserts a row that is not sent: %(id)s."""
    send: Statement
    """Marks it sent."""
    receive: Statement
    """What the consumer has at receipt; empty: nothing before it is done."""
    finish: Statement
    """What it has when the work is done."""
    id_of: Callable[[int], str] = str
    words: Mapping[str, str] = field(default_factory=dict)
    """What a test's own statements name in braces, as this server has it."""
    server: str = "postgresql"
    acts: Mapping[str, Statement] = field(default_factory=lambda: CAP_ACTS)
    wrong_clock: Mapping[str, Any] = field(default_factory=lambda: {"time_zone": "UTC"})
    """What a producer's mapping says where its rows lie eight hours ahead."""
