"""Finds the messages that a text names: their id, their key, their ordering key, or their id at the broker; in the control
database and on every shard.

Ids and keys are looked up by index, which costs the same however many messages there are. A broker's id has no index on a shard,
because each send would pay for it: it is looked for among the messages of the last day, and only where nothing else has the text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from backstop.evidence.sources import Sources
from backstop.model.errors import Unavailable
from backstop.model.storable_text import fits
from backstop.reports.console import Sight, read_rows

MOST = 50
"""Messages that one shard names for one key."""
SENT_WITHIN = timedelta(days=1)
"""How old a message may be that is found on a shard by its broker's id."""


@dataclass(slots=True)
class FoundMessages:
    """`places`: (topic, message id) -> where it was found. `unreachable`: what could not be searched, and why; it is never taken as
    "not there"."""

    places: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    searched: list[str] = field(default_factory=list)
    unreachable: dict[str, str] = field(default_factory=dict)


def find_messages(
    control: Any,
    sources: Sources,
    sight: Sight,
    topics: Sequence[str],
    text: str,
) -> FoundMessages:
    """`topics`: those that are searched, which the asker may see. Each statement on a shard takes 5 s at most, in a mapped table as
    long as `sources` lets it."""
    found, producers = FoundMessages(), sources.settings.producers
    if fits(text):
        for row in read_rows(control, "messages", sight, text=text, topics=list(topics)):
            found.places[row["topic"], row["message_id"]].append(row["found_in"])
    found.searched.append("control database")
    for shard in producers:
        _search_shard(found, sources, shard, topics, text)
    if not found.places:
        for shard in producers:
            _search_sends(found, sources, shard, topics, text)
    return found


def _search_shard(
    found: FoundMessages, sources: Sources, shard: str, topics: Sequence[str], text: str
) -> None:
    subject = f"shard {shard}"
    try:
        store = sources.shard(shard)
        named = store.named(topics, text, MOST)
    except Unavailable as error:
        found.unreachable[subject] = error.what
        return
    found.searched.append(subject)
    for key, named_by in named:
        place = subject if named_by == "id" else f"{subject}, by {named_by}"
        found.places[key.topic, key.message_id].append(place)


def _search_sends(
    found: FoundMessages, sources: Sources, shard: str, topics: Sequence[str], text: str
) -> None:
    if f"shard {shard}" in found.unreachable:
        return
    subject = f"broker ids of the last day on shard {shard}"
    try:
        store = sources.shard(shard)
        sent = store.sent_as(topics, text, store.clock() - SENT_WITHIN, MOST)
    except Unavailable as error:
        found.unreachable[subject] = error.what
        return
    found.searched.append(subject)
    for key, named_by in sent:
        found.places[key.topic, key.message_id].append(f"shard {shard}, by {named_by}")
