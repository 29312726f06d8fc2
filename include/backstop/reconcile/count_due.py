"""Counts what is due, in milliseconds: with nothing due, neither Spark nor the data checks start."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.sources import Sources
from backstop.model.errors import StoreUnavailable, Unavailable
from backstop.sql.named import load
from backstop.stores.protocol import Scope

_SQL = load("backstop.reconcile", "queries.sql")
LIMIT = 10_000_000
"""Counting stops here: more than this and the exact number changes nothing."""


@dataclass(frozen=True, slots=True)
class DueCount:
    """Stubs due for each shard, and the shards that did not answer."""

    by_shard: dict[str, int] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Due stubs on all shards that answered."""
        return sum(self.by_shard.values())

    def require_reachable(self) -> None:
        """Raises StoreUnavailable when a shard did not answer: nothing is known of it, so the run must not look well."""
        if self.unreachable:
            raise StoreUnavailable(
                f"{'; '.join(f'{name} ({why})' for name, why in sorted(self.unreachable.items()))}: not counted.",
                unaffected="Its stubs stay as they are and nothing of them is resent; the other shards are not affected.",
                next_step="Bring the database back; the next run judges its stubs.",
            )


def count_due(
    settings: Settings, connections: Connections, as_of: datetime, scope: Scope | None = None
) -> DueCount:
    """How many stubs are due at `as_of` on each shard."""
    count = DueCount()
    with Sources(settings, connections) as sources:
        for name in settings.producers:
            try:
                count.by_shard[name] = sources.shard(name).count_due(as_of, scope or Scope(), LIMIT)
            except Unavailable as error:
                sources.missed(f"shard {name}", error)
        count.unreachable.update(sources.unreachable)
    return count


def any_to_revisit(control: Any) -> bool:
    """Whether an open case has messages that may have settled by themselves, or a withdrawal was cut short."""
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["any_to_revisit"])
        return bool(cursor.fetchone()[0])


def control_now(control: Any) -> datetime:
    """The control database's clock, which every instant of a run comes from."""
    with control, control.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]  # type: ignore[no-any-return]
