"""After a consumer's database was restored: what earlier runs confirmed since the backup is judged again.

    stubs confirmed or exhausted since the backup -> pending, due now | those whose right content is gone -> exhausted again

Their logs may be gone together with the work that they told of. What the database still shows as done is confirmed again;
the rest is lost by the rule, and a person is asked first when it is much.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.apply_apart import apply_apart
from backstop.evidence.sources import Sources
from backstop.model.errors import ConfigurationError, StoreFailed, Unavailable
from backstop.model.records import Counts, Key
from backstop.restore.hold import hold_again
from backstop.restore.paused import begin, end
from backstop.restore.refused import refused_rows
from backstop.stores.protocol import StubStore


def restore_consumer(
    settings: Settings, connections: Connections, control: Any, store: str, since: datetime
) -> Counts:
    """`since`: an instant before the backup was taken. Returns `reopened`: stubs of every topic that a group of this
    consumer database takes; and `not_held`: messages whose right content is gone (restore/hold.py) and that cannot be
    exhausted again before a send of them has ended, so that this has to be run again after it.

    Raises ConfigurationError for an unknown store, DecisionRefused unless everything is paused; Unavailable when a shard did
    not answer or refused a row, after every other shard and row was done.
    """
    if store not in settings.consumers:
        raise ConfigurationError(
            f"There is no consumer database {store!r}.",
            unaffected="Nothing was changed.",
            next_step=f"Name one of: {', '.join(settings.consumers)}.",
        )
    place = f"consumer {store}"
    begun = begin(control, place, since)
    groups = [name for name, group in settings.groups.items() if group.store == store]
    topics = sorted({topic for group in groups for topic in settings.topics_of(group)})
    counts = Counts(reopened=0)
    # The shards' clocks may differ from the one that `since` was read from.
    since = begun - max(settings.policy_for(topic).max_clock_skew for topic in settings.topics)
    missed: list[str] = []
    with Sources(settings, connections) as sources:
        for shard in settings.producers:
            refused: list[tuple[Key, StoreFailed]] = []
            try:
                stubs = sources.shard(shard)
                for keys in stubs.closed_since(topics, since):
                    apply_apart(keys, partial(_reopen, stubs, counts), refused)
                if under_way := hold_again(control, stubs, refused):
                    counts.add("not_held", under_way)
            except Unavailable as error:
                missed.append(f"shard {shard}: {error.what}")
            if refused:
                missed.append(f"shard {shard} refuses to change {refused_rows(refused)}")
    if missed:
        raise Unavailable(
            f"Not everything was done: {'; '.join(missed)}",
            unaffected=f"{counts['reopened']} stubs are due again; nothing was sent, and nothing goes out before the rest is done.",
            next_step="Bring back the shard, or find out what refuses the row (a trigger, a policy, another transaction), and run"
            " this again: it is safe to run twice.",
        )
    if not counts.get("not_held"):
        end(control, place, begun)
    return counts


def _reopen(stubs: StubStore, counts: Counts, keys: Sequence[Key]) -> None:
    counts.add("reopened", stubs.reopen(keys))
