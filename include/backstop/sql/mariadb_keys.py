"""Finds logs in MariaDB by their whole keys, for statements that lock.

Of `message_id IN (...)` the server may make a walk over all of a topic, which would wait for what others have in work and lock it.
So the ids are a table, as hexadecimal in a list of JSON, and each row is looked up by its primary key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

OF_KEYS = (
    "JSON_TABLE(%(ids)s, '$[*]' COLUMNS (id varchar(2048) CHARACTER SET ascii PATH '$')) k"
    " STRAIGHT_JOIN consumer_log l FORCE INDEX (PRIMARY)"
    " ON l.consumer_group = %(group)s AND l.topic = %(topic)s AND l.message_id = UNHEX(k.id)"
)
"""What stands for {of_keys} in a statement, with the log as `l`."""


def with_keys(statement: str) -> str:
    return statement.replace("{of_keys}", OF_KEYS)


def listed(ids: Iterable[bytes]) -> str:
    """The value of `ids`."""
    return json.dumps([one.hex() for one in ids])
