"""After a producer's database was restored: no send number that was handed out since the backup is handed out again.

    requests that took a number, since the backup -> stub: send count raised, each missing number recorded as unknown |
    messages that a person withdrew -> voided |

How those numbers ended is not known any more, so they count as copies that may be there: the message is sent again only when
every group is past the time at which they can have been stored. Safe to run twice.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.errors import ConfigurationError
from backstop.named_sql import load
from backstop.records import Counts, Key, Outcome
from backstop.restore.paused import require_quiet
from backstop.stores.protocol import Handed, StubStore
from backstop.verdicts.sources import Sources

_SQL = load("backstop.restore", "queries.sql")
_PAGE = 2_000


def restore_producer(settings: Settings, connections: Connections, control: Any, shard: str, since: datetime) -> Counts:
    """`since`: an instant before the backup was taken. Returns `recovered`, `numbers`, `raised`, `voided`.

    Raises ConfigurationError for an unknown shard, DecisionRefused unless everything is paused, StoreUnavailable.
    """
    if shard not in settings.producers:
        raise ConfigurationError(
            f"There is no shard {shard!r}.", kept="Nothing was changed.",
            next_step=f"Name one of: {', '.join(settings.producers)}.",
        )  # fmt: skip
    require_quiet(control)
    counts = Counts()
    with Sources(settings, connections) as sources:
        store = sources.shard(shard)
        shortest = min(settings.policy_for(topic).max_send_duration for topic in settings.topics)
        # First sends that were under way in the backup ended long ago: nobody will settle them any more.
        while recovered := store.recover(_PAGE, shortest.total_seconds()):
            counts.add("recovered", len(recovered))
        _raise_numbers(control, store, shard, since, counts)
        with control, control.cursor() as cursor:
            cursor.execute(_SQL["voided"], {"shard": shard})
            withdrawn = [Key(topic, message_id) for topic, message_id in cursor.fetchall()]
        for key in withdrawn:
            counts.add("voided", int(store.void(key)))
    return counts


def _raise_numbers(control: Any, store: StubStore, shard: str, since: datetime, counts: Counts) -> None:
    after = 0
    while True:
        with control, control.cursor() as cursor:
            cursor.execute(_SQL["handed_out"], {"shard": shard, "since": since, "after": after, "limit": _PAGE})
            rows = cursor.fetchall()
        if not rows:
            return
        after = rows[-1][0]
        handed = sorted(
            (Handed(Key(topic, message_id), number, groups, f"request {request_id}", at, Outcome(outcome))
             for request_id, topic, message_id, number, groups, at, outcome in rows),
            key=lambda one: (one.key, one.send_number),
        )  # fmt: skip
        counts.add("numbers", len(handed))
        counts.add("raised", len(store.raise_numbers(handed)))
