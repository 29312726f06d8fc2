"""Reads the log rows of owed deliveries by key, group by group; a store that does not answer is never "no row".

Another error than silence is the group's alone: the other groups of the store are still asked.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from backstop.evidence.sources import Sources
from backstop.model.errors import StoreFailed, Unavailable
from backstop.model.records import Key
from backstop.verdicts import frames
from backstop.verdicts.evaluate import table


def read_logs(sources: Sources, owed: pa.Table, away: set[str]) -> tuple[pa.Table, pa.Table]:
    """Rows of OWED -> (rows of FOUND_LOG, rows of ANSWERED). A store in `away` is not asked again: each further wait for its
    time-out would tell nothing new. One that does not answer is added, and noted in `sources.unreachable`."""
    by_group = {
        group: list(map(Key, *(mine.column(name).to_pylist() for name in ("topic", "message_id"))))
        for group in pc.unique(owed.column("consumer_group")).to_pylist()
        for mine in [owed.filter(pc.equal(owed.column("consumer_group"), group))]
    }
    logs = [table(frames.FOUND_LOG, [])]
    answered: list[frames.Row] = []
    for group, keys in by_group.items():
        store = sources.settings.groups[group].store
        is_answered = store not in away
        if is_answered:
            try:
                found = sources.logs_of(group).log_table(group, keys)
                logs.append(
                    found.add_column(
                        0, "consumer_group", pa.array([group] * found.num_rows, pa.string())
                    )
                )
            except StoreFailed as error:
                is_answered = False
                sources.missed(f"store {store}", error)
            except Unavailable as error:
                is_answered = False
                away.add(store)
                sources.missed(f"store {store}", error)
        answered.append({"consumer_group": group, "answered": is_answered})
    return pa.concat_tables(logs), table(frames.ANSWERED, answered)
