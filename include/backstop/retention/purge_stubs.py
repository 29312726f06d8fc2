"""Takes away the stubs that are confirmed, voided or without a taker for longer than they are kept, their attempts with them."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from backstop.config.connections import Connections
from backstop.config.kept import no_taker_kept, stubs_kept
from backstop.config.settings import Settings
from backstop.evidence.apply_apart import apply_apart
from backstop.evidence.sources import open_guarded
from backstop.model.errors import StoreFailed, Unavailable
from backstop.model.records import Counts
from backstop.retention.held import held
from backstop.retention.pace import Pace
from backstop.stores.open import open_stub_purge
from backstop.stores.purge import FIRST_STUB, OldStub, StubPurge


def purge_stubs(
    settings: Settings,
    connections: Connections,
    control: Any,
    pace: Pace,
    missed: dict[str, str],
    *,
    dry_run: bool = False,
) -> Counts:
    """Every shard's, topic by topic; a shard that did not answer is put into `missed`."""
    counts = Counts()
    for shard in settings.own_producers():
        subject = f"shard {shard}"
        try:
            with closing(
                open_guarded(subject, open_stub_purge, settings, connections, shard)
            ) as stubs:
                for topic in settings.topics:
                    refused: list[tuple[OldStub, StoreFailed]] = []
                    counts += _of_topic(settings, stubs, topic, control, pace, refused, dry_run)
                    if refused:
                        named = f"{len(refused)} stubs of {topic} in {subject}"
                        missed[named] = refused[0][1].what
        except Unavailable as error:
            missed[subject] = error.what
    return counts


def _of_topic(
    settings: Settings,
    stubs: StubPurge,
    topic: str,
    control: Any,
    pace: Pace,
    refused: list[tuple[OldStub, StoreFailed]],
    dry_run: bool,
) -> Counts:
    """A stub that its database refuses to delete is added to `refused`, and holds up no other."""
    counts = Counts()
    kept, no_taker = (
        stubs_kept(settings, topic).total_seconds(),
        no_taker_kept(settings, topic).total_seconds(),
    )
    after, rows = FIRST_STUB, settings.retention.step_rows
    while True:
        if pace.is_over():
            counts.add("unfinished")
            return counts
        with pace.step():
            page = stubs.old_stubs(topic, kept, no_taker, after, rows)
            busy = held(control, [stub.key for stub in page])
            over = [stub for stub in page if stub.key not in busy]
            counts.add("stubs_still_needed", len(busy))
            if over:
                gone = len(over) if dry_run else sum(apply_apart(over, stubs.purge_stubs, refused))
                counts.add("stubs", gone)
        if len(page) < rows:
            return counts
        after = (page[-1].moved, page[-1].key.message_id)
