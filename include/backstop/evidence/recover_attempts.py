"""Recovers attempts that nobody settled in time, in every shard: every resend run and every reconcile run begins with it.

A stub past its `attempt_deadline` loses its token, and its attempt is recorded as unknown. Without it a producer that died
between publish and settle would leave a message that can neither be confirmed nor withdrawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from backstop.evidence.apply_apart import apply_apart
from backstop.evidence.sources import Sources
from backstop.model.errors import RowsLocked, StoreFailed, Unavailable
from backstop.model.records import Key
from backstop.stores.protocol import StubStore

_BATCH = 1_000


class Recovered(NamedTuple):
    """How many attempts were recovered, the shards that failed, and of each other shard the rows that it refused to change."""

    attempts: int
    failed: Mapping[str, Unavailable]
    refused: Mapping[str, Sequence[tuple[Key, StoreFailed]]]

    def missed(self) -> dict[str, str]:
        """What was not recovered, and why, as a run reports it."""
        return {f"attempts of shard {name}": error.what for name, error in self.failed.items()} | {
            f"{len(rows)} attempts of shard {name}": rows[0][1].what
            for name, rows in self.refused.items()
        }


def recover_attempts(sources: Sources) -> Recovered:
    """Each shard by itself, and each row that its shard refuses: neither keeps any other attempt from being recovered."""
    settings = sources.settings
    shortest = min(settings.policy_for(topic).max_send_duration for topic in settings.topics)
    attempts, failed, refused = (
        0,
        dict[str, Unavailable](),
        dict[str, list[tuple[Key, StoreFailed]]](),
    )
    for name in settings.producers:
        rows: list[tuple[Key, StoreFailed]] = []
        try:
            attempts += recover_apart(sources.shard(name), shortest.total_seconds(), rows)
        except Unavailable as error:
            failed[name] = error
        if rows:
            refused[name] = rows
    return Recovered(attempts, failed, refused)


def recover_apart(store: StubStore, seconds: float, refused: list[tuple[Key, StoreFailed]]) -> int:
    """How many attempts of one shard were recovered; rows that it refuses to change are added to `refused`."""
    attempts = 0
    try:
        while found := store.recover(_BATCH, seconds):
            attempts += len(found)
    except StoreFailed as error:
        if isinstance(
            error, RowsLocked
        ):  # perhaps of numbers that a relay ends, which `late` does not name
            refused += [(Key(*key), error) for key in sorted(error.keys)]
        # A row is at fault, or all of them: by key it shows.
        after = Key("", "")
        while keys := store.late(after, _BATCH):
            recover = partial(store.recover_of, max_send_seconds=seconds)
            attempts += sum(map(len, apply_apart(keys, recover, refused)))
            after = keys[-1]
    return attempts
