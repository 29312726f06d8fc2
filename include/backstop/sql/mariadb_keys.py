"""Finds logs and stubs in MariaDB by their whole keys, for statements that lock.

Of `message_id IN (...)` the server may make a walk over all of a topic, which would wait for what others have in work and lock it.
So the ids are a table, as hexadecimal in a list of JSON, and each row is looked up by its primary key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

ROWS_OF_STATEMENT, BYTES_OF_STATEMENT = 5_000, 2**20
"""At most, of what one statement names: a server takes up to a limit of its own (max_allowed_packet)."""
_LOGS = (
    "JSON_TABLE(%(ids)s, '$[*]' COLUMNS (id varchar(2048) CHARACTER SET ascii PATH '$')) k"
    " STRAIGHT_JOIN consumer_log l FORCE INDEX (PRIMARY)"
    " ON l.consumer_group = %(group)s AND l.topic = %(topic)s AND l.message_id = UNHEX(k.id)"
)
"""What stands for {of_keys} in a statement on logs, with the log as `l`."""
_STUBS = (
    "JSON_TABLE(%({rows})s, '$[*]' COLUMNS ({columns})) g"
    " STRAIGHT_JOIN message_stub s FORCE INDEX (PRIMARY) ON s.topic = %(topic)s AND s.message_id = UNHEX(g.id)"
)
_ID = "id varchar(2048) CHARACTER SET ascii PATH '{path}'"


def with_keys(statement: str) -> str:
    """A statement on logs, whose {of_keys} are the ids of `listed`."""
    return statement.replace("{of_keys}", _LOGS)


def with_stubs(statement: str, **columns: str) -> str:
    """A statement on stubs: {of_keys} are the ids of `listed`, with the stub as `s`; {given} the same with `columns` (name -> SQL
    type) beside each, as `g`, of the objects of `rows`."""
    of_keys = _STUBS.format(rows="ids", columns=_ID.format(path="$"))
    more = [f"{name} {kind} PATH '$.{name}'" for name, kind in columns.items()]
    given = _STUBS.format(rows="rows", columns=", ".join([_ID.format(path="$.id"), *more]))
    return statement.replace("{of_keys}", of_keys).replace("{given}", given)


def listed(ids: Iterable[bytes]) -> str:
    """The value of `ids`."""
    return json.dumps([one.hex() for one in ids])
