"""Reads the logs that are lake tables: whole, of one snapshot, into packets. Nobody can ask them by key, so what is absent here is
absent in the snapshot, which counts for what was passed before it was complete (evidence.read)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from backstop.config.settings import Settings
from backstop.evidence.sources import Sources, guarded
from backstop.model.errors import StoreFailed, Unavailable
from backstop.reconcile.packets import (
    LOGS,
    PACKETS,
    Packet,
    by_bucket,
    limits,
    pack_rows,
    with_buckets,
)
from backstop.stores.lake.snapshot import explained
from backstop.stores.lake.stores import LakeLogs
from backstop.stores.protocol import PART_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

    from backstop.verdicts.evaluate import Engine


@dataclass(slots=True)
class Lakes:
    """`answered`: by group, whether its snapshot was read; `packets`: DataFrames of what was, held fast."""

    packets: list[Any] = field(default_factory=list)
    answered: dict[str, bool] = field(default_factory=dict)


def read_lakes(
    settings: Settings, sources: Sources, topics: Collection[str], buckets: int
) -> Lakes:
    """The logs of these topics' groups. A table that cannot be read is its own groups' alone, and noted in `sources`."""
    of_store: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for topic in sorted(topics):
        for group in settings.groups_of(topic):
            if settings.is_lake_log(group):
                of_store[settings.groups[group].store][group].append(topic)
    lakes = Lakes()
    for store, groups in of_store.items():
        subject = f"store {store}"
        try:
            with guarded(subject, StoreFailed), explained(subject, _table_of(settings, store)):
                rows = cast(LakeLogs, sources.logs_of(next(iter(groups)))).read_whole(groups)
                packets = rows.select(*PART_COLUMNS[LOGS]).mapInArrow(_packed(buckets), PACKETS)
                lakes.packets.append(packets.localCheckpoint(eager=True))
            answered = True
        except Unavailable as error:
            sources.missed(subject, error)
            answered = False
        lakes.answered.update(dict.fromkeys(groups, answered))
    return lakes


def _table_of(settings: Settings, store: str) -> str:
    mapping = settings.consumers[store].mapping
    assert mapping is not None
    return mapping.tables[0]


def _packed(buckets: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    given = {"dealt": limits(buckets, (), ())["dealt"]}

    def packets_of(engine: Engine, kind: str, rows: pa.Table) -> list[Packet]:
        return by_bucket(kind, with_buckets(kind, rows, given, engine))

    return pack_rows(LOGS, packets_of)
