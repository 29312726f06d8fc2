"""Evaluates the rule in PostgreSQL, for a few deliveries at a time: at the claim, and for "where is my message?"."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from backstop.verdicts import frames
from backstop.verdicts.frames import Columns, Row

_TYPES = {"string": "text", "int": "int", "bigint": "bigint", "boolean": "boolean", "double": "double precision"}


def relation(name: str, columns: Columns) -> str:
    """A common table expression that reads the parameter `name`, a JSON array of objects."""
    typed = ", ".join(f"{column} {_TYPES[kind]}" for column, kind in columns.items())
    return f"{name} AS MATERIALIZED (SELECT * FROM jsonb_to_recordset(%({name})s::jsonb) AS r({typed}))"


def _select(cursor: Any, ctes: Sequence[str], body: str, inputs: Mapping[str, Sequence[Row]]) -> list[Row]:
    # A literal % in the portable text would be read as a parameter; there is none, and a test holds that.
    cursor.execute(
        f"WITH {', '.join(ctes)} SELECT * FROM ({body}) AS answer",
        {name: json.dumps(rows) for name, rows in inputs.items()},
    )
    names = [column.name for column in cursor.description]
    return [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]


_OWED_INPUTS = {
    "stub": frames.STUB, "policy": frames.POLICY, "group_tag": frames.GROUP_TAG, "start_offset": frames.START_OFFSET,
}  # fmt: skip
_RULE_INPUTS = {
    "instant": frames.INSTANT, "delivery": frames.DELIVERY, "attempt": frames.ATTEMPT, "policy": frames.POLICY,
    "group_state": frames.GROUP_STATE, "shard_state": frames.SHARD_STATE, "progress": frames.PROGRESS,
    "dead_letter": frames.DEAD_LETTER, "decision": frames.DECISION,
}  # fmt: skip
_OUTCOME_INPUTS = {
    "instant": frames.INSTANT, "stub": frames.STUB, "judged": frames.JUDGED, "no_taker": frames.NO_TAKER,
}  # fmt: skip


def owed(cursor: Any, inputs: Mapping[str, Sequence[Row]]) -> list[Row]:
    """deliveries.sql over rows of stub, policy, group_tag and start_offset -> rows of OWED."""
    return _run(cursor, "deliveries", _OWED_INPUTS, inputs)


def judge(cursor: Any, inputs: Mapping[str, Sequence[Row]]) -> list[Row]:
    """verdict.sql -> rows of JUDGED, one for each delivery given."""
    return _run(cursor, "verdict", _RULE_INPUTS, inputs)


def outcome(cursor: Any, inputs: Mapping[str, Sequence[Row]]) -> list[Row]:
    """outcome.sql -> one row for each stub given."""
    return _run(cursor, "outcome", _OUTCOME_INPUTS, inputs)


def _run(cursor: Any, name: str, relations: Mapping[str, Columns], inputs: Mapping[str, Sequence[Row]]) -> list[Row]:
    ctes = [relation(table, columns) for table, columns in relations.items()]
    return _select(cursor, ctes, frames.portable_sql(name), {table: inputs[table] for table in relations})
