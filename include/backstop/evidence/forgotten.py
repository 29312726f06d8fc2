"""Dead letters that a restored control database has forgotten: drained since its backup, so that the broker has them no more either.

A delivery that was received, is not finished, and whose log nobody has touched since the restore may have one, which was perhaps left
to a person. So it counts as dead-lettered: no machine asks for it, sends it, or replays an older dead letter of it, and a copy to the
whole topic is kept from its group as from every dead-lettered one.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa

from backstop.model.records import Verdict
from backstop.sql.named import load
from backstop.verdicts.frames import instant

_SQL = load("backstop.evidence", "queries.sql")
FORGOTTEN = "forgotten"
"""The reason of such a delivery, which no dead letter stands for."""


def restored_at(cursor: Any) -> datetime | None:
    """Up to when logs count as touched before the control database was restored (restore/control.py); None: it never was."""
    cursor.execute(_SQL["control_restored"])
    found = cursor.fetchone()
    return None if found is None else found[0]


def is_forgotten(log_updated_at: datetime | None, restored: datetime | None) -> bool:
    """Whether the dead letter of an unfinished log may be forgotten."""
    return restored is not None and log_updated_at is not None and log_updated_at <= restored


def known_verdict(verdict: str, log_updated_at: int | None, restored: datetime | None) -> str:
    """The verdict of a delivery as decisions take it; `log_updated_at` in microseconds."""
    if verdict == Verdict.STALLED and is_forgotten(instant(log_updated_at), restored):
        return str(Verdict.DEAD_LETTERED)
    return verdict


def with_known_verdicts(judged: pa.Table, restored: datetime | None) -> pa.Table:
    """The rows of verdict.sql as decisions take them: a forgotten delivery is dead-lettered, not eligible, and says why."""
    if restored is None:
        return judged
    given = judged.column("verdict").to_pylist()
    touched = judged.column("log_updated_at").to_pylist()
    known = [known_verdict(*row, restored) for row in zip(given, touched, strict=True)]
    differs = [one != other for one, other in zip(known, given, strict=True)]
    columns = {
        "verdict": known,
        "reason": [
            FORGOTTEN if changed else reason
            for changed, reason in zip(differs, judged.column("reason").to_pylist(), strict=True)
        ],
        "eligible": [
            eligible and not changed
            for changed, eligible in zip(
                differs, judged.column("eligible").to_pylist(), strict=True
            )
        ],
    }
    for name, values in columns.items():
        place = judged.schema.get_field_index(name)
        field = judged.schema.field(place)
        judged = judged.set_column(place, field, pa.array(values, field.type))
    return judged
