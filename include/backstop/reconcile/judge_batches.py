"""Evaluates the rule over what was held fast, in the executors, whole stubs at a time; nothing is read from outside here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backstop.reconcile.lookup import HELD, deliveries_of, tables_of
from backstop.verdicts import frames

if TYPE_CHECKING:
    import pyarrow as pa

    from backstop.verdicts.evaluate import Engine


@dataclass(frozen=True, slots=True)
class Rule:
    """What is the same for every delivery of a run: Arrow tables by the relations of verdict.sql and outcome.sql (all but
    stub, delivery, attempt and judged). They travel with the tasks."""

    tables: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JudgedBatch:
    """A batch of whole stubs, judged: Arrow tables with the columns of STUB and of JUDGED."""

    stubs: Any
    judged: Any


def judge_batches(
    rule: Rule, engine: Engine, batches: Iterator[pa.RecordBatch]
) -> Iterator[JudgedBatch]:
    """Packets of lookup.HELD -> judged, one table after the other."""
    for _, held in tables_of(batches, {HELD}):
        yield judge_held(rule, engine, held)


def judge_held(rule: Rule, engine: Engine, held: pa.Table) -> JudgedBatch:
    """One table of lookup.HELD -> judged."""
    import pyarrow.compute as pc

    stubs = held.drop_columns(["deliveries"])
    # These may be many: only those of these messages are given to the engine.
    mine = {
        name: rule.tables[name].filter(
            pc.is_in(rule.tables[name].column("message_id"), stubs.column("message_id"))
        )
        for name in ("waiting", "dead_letter", "decision")
    }
    judged = engine.run(
        "verdict",
        {
            **rule.tables,
            **mine,
            "attempt": _attempts(stubs),
            "delivery": deliveries_of(held),
        },
    )
    return JudgedBatch(stubs, judged)


def outcomes_of(rule: Rule, engine: Engine, batch: JudgedBatch) -> pa.Table:
    """What each stub of the batch becomes: rows of outcome.sql."""
    return engine.run("outcome", {**rule.tables, "stub": batch.stubs, "judged": batch.judged})


def _attempts(stubs: pa.Table) -> pa.Table:
    import pyarrow as pa

    from backstop.verdicts.evaluate import table

    lists = stubs.column("attempts").combine_chunks()
    each = lists.flatten()
    return pa.Table.from_struct_array(each) if len(each) else table(frames.ATTEMPT, [])
