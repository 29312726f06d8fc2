"""Judges, where the logs are read, the stubs whose logs alone decide: every delivery is CONFIRMED.

The rule tests VOIDED and CONFIRMED before anything that is read after the logs. So verdict.sql runs over what is known by then,
with empty relations for the rest, and only its CONFIRMED is taken, only of stubs of which every delivery is. They go on as their
outcome; every other stub is held whole and judged on all the evidence (judge_batches.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backstop.reconcile.stage import STAGED_STUB
from backstop.sql.named import load

if TYPE_CHECKING:
    import pyarrow as pa

    from backstop.verdicts.evaluate import Engine

OUTCOME = tuple(name for name in STAGED_STUB if name not in ("run_id", "stage"))
DECIDES = ("instant", "policy", "decision", "no_taker")
"""The relations of verdict.sql and outcome.sql, beside stubs and deliveries, that a CONFIRMED delivery depends on."""
WORTH_PLANNING_TWICE = 2_000
"""Stubs of a run: with fewer, to plan the rule a second time costs more than to hold what it decides."""
_SQL = load("backstop.reconcile", "staged.sql")


@dataclass(frozen=True, slots=True)
class Proven:
    """Arrow tables: `outcomes` with the columns of OUTCOME, a stub each; `counted` with those of judge_and_stage.COUNTED;
    `rest`: the stubs that are not among them, as they were given."""

    outcomes: pa.Table
    counted: pa.Table
    rest: pa.Table


def judge_proven(
    tables: Mapping[str, Any], engine: Engine, stubs: pa.Table, delivery: pa.Table
) -> Proven | None:
    """Rows of STUB and of DELIVERY of all of them -> what is decided; `None`: nothing is. `tables`: the relations of DECIDES."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from backstop.verdicts.evaluate import RELATIONS, table

    # Only to save the rule's time where it could not say CONFIRMED; what it says counts.
    consumed = pc.and_(
        pc.fill_null(delivery.column("log_valid"), False),
        pc.fill_null(pc.equal(delivery.column("log_state"), "CONSUMED"), False),
    )
    open_ = delivery.filter(pc.invert(consumed)).column("stub_id")
    mine, rest = _split(stubs, delivery.column("stub_id"), open_)
    if not mine.num_rows:
        return None
    given = {
        name: tables[name] if name in tables else table(columns, [])
        for text in ("verdict", "outcome")
        for name, columns in RELATIONS[text].items()
        if name not in ("stub", "delivery", "judged")
    }
    given["decision"] = given["decision"].filter(
        pc.is_in(given["decision"].column("message_id"), mine.column("message_id"))
    )
    theirs = _without_copies(delivery if not rest.num_rows else _of(delivery, mine))
    judged = engine.run("verdict", {**given, "delivery": theirs})
    withheld = judged.filter(pc.not_equal(judged.column("verdict"), "CONFIRMED")).column("stub_id")
    if len(withheld):
        mine, others = _split(mine, mine.column("stub_id"), withheld)
        rest = pa.concat_tables([rest, others])
        judged = _of(judged, mine)
    if not mine.num_rows:
        return None
    outcomes = engine.run("outcome", {**given, "stub": mine, "judged": judged})
    return Proven(outcomes.select(OUTCOME), engine.query(_SQL["counted"], {"judged": judged}), rest)


def _without_copies(delivery: pa.Table) -> pa.Table:
    """As if nothing had been sent: where a copy is decides nothing here, and to find it out is half of the rule's work."""
    import pyarrow as pa

    for name, value in (("send_count", pa.scalar(0, pa.int32())), ("first_to_all", True)):
        place = delivery.column_names.index(name)
        delivery = delivery.set_column(place, name, pa.repeat(value, delivery.num_rows))
    return delivery


def _split(stubs: pa.Table, among: Any, not_among: Any) -> tuple[pa.Table, pa.Table]:
    """The stubs whose id is in one list and not in the other, and the rest."""
    import pyarrow.compute as pc

    ids = stubs.column("stub_id")
    chosen = pc.and_not(pc.is_in(ids, among), pc.is_in(ids, not_among))
    if pc.all(chosen).as_py():  # most of the time: nothing is copied
        return stubs, stubs.slice(0, 0)
    return stubs.filter(chosen), stubs.filter(pc.invert(chosen))


def _of(rows: pa.Table, stubs: pa.Table) -> pa.Table:
    import pyarrow.compute as pc

    return rows.filter(pc.is_in(rows.column("stub_id"), stubs.column("stub_id")))
