"""After a consumer's database was restored: what earlier runs confirmed since the backup is judged again.

    stubs confirmed or exhausted since the backup -> pending, due now | those whose right content is gone -> exhausted again

Their logs may be gone together with the work that they told of. What the database still shows as done is confirmed again;
the rest is lost by the rule, and a person is asked first when it is much.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.sources import Sources
from backstop.model.errors import ConfigurationError, Unavailable
from backstop.model.records import Counts
from backstop.restore.hold import hold_again
from backstop.restore.paused import begin, end


def restore_consumer(
    settings: Settings, connections: Connections, control: Any, store: str, since: datetime
) -> Counts:
    """`since`: an instant before the backup was taken. Returns `reopened`: stubs of every topic that a group of this
    consumer database takes; and `not_held`: messages whose right content is gone (restore/hold.py) and that cannot be
    exhausted again before a send of them has ended, so that this has to be run again after it.

    Raises ConfigurationError for an unknown store, DecisionRefused unless everything is paused; Unavailable when a shard did
    not answer, after the others were done.
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
    counts = Counts()
    # The shards' clocks may differ from the one that `since` was read from.
    since = begun - max(settings.policy_for(topic).max_clock_skew for topic in settings.topics)
    with Sources(settings, connections) as sources:
        for shard in settings.producers:
            try:
                stubs = sources.shard(shard)
                counts.add("reopened", stubs.reopen(topics, since))
                if under_way := hold_again(control, stubs):
                    counts.add("not_held", under_way)
            except Unavailable as error:
                sources.missed(f"shard {shard}", error)
        missed = dict(sources.unreachable)
    if missed:
        raise Unavailable(
            f"Not every shard was done: {'; '.join(f'{name}: {why}' for name, why in sorted(missed.items()))}",
            unaffected=f"{counts.get('reopened', 0)} stubs of the others are due again; nothing was sent.",
            next_step="Bring it back, or find out which row it refuses to change and why (a trigger, a policy), and run this again:"
            " it is safe to run twice.",
        )
    if not counts.get("not_held"):
        end(control, place, begun)
    return counts
