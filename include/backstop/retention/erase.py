"""Erases the contents of named messages on request: in their stubs, their dead letters and their edits; ids and hashes stay.

    control: who asks, and why | each shard: the stub, if it is over | control: letters, edits, done

Cut short anywhere, it is asked for again and does the rest. A message that may still be sent is not erased: what would be sent
of it? Nor one whose dead letter waits, which may hold the only copy.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.errors import ConfigurationError, DecisionRefused
from backstop.named_sql import load
from backstop.records import Counts, Key, StubStatus
from backstop.runs.decision_log import append
from backstop.stores.open import open_stub_purge
from backstop.stores.purge import StubPurge

_SQL = load("backstop.retention", "erase.sql")
OVER = (StubStatus.CONFIRMED, StubStatus.VOIDED, StubStatus.NO_TAKER)
NOT_REACHED = (
    "the broker, until its retention drops the message, and its dead-letter queue",
    "what programs wrote in their own words: last_error of consumer logs, errors of attempts, requests and cases",
    "templates of causes and the evidence of cases, which come from the texts of many dead letters",
    "the message's id and, in its stub, its ordering key, tag and the fingerprint of its content",
    "Airflow's database: a content that was typed into a form to edit a message, until the task that asked received it",
    "exports, backups, alerts that were sent, and the consumers' own tables",
)
"""Said with every erasure."""


@dataclass(frozen=True, slots=True)
class Erased:
    """What was emptied of one message: place -> rows."""

    topic: str
    message_id: str
    places: dict[str, int]

    def __str__(self) -> str:
        found = ", ".join(f"{number} in {place}" for place, number in self.places.items() if number)
        return f"{self.message_id}: {found or 'nothing is stored of it'}"


def erase(
    settings: Settings, connections: Connections, control: Any, topic: str, ids: Sequence[str], who: str, why: str
) -> list[Erased]:
    """All of the ids or, where one may not be erased, none of them.

    Raises ConfigurationError without a reason or for an unknown topic, DecisionRefused for a message that is not over, and
    StoreUnavailable when a shard does not answer: the message might be there.
    """
    if topic not in settings.topics:
        raise _wrong(f"There is no topic {topic!r}.", f"Name one of: {', '.join(settings.topics)}.")
    if not (why.strip() and who.strip()):
        raise _wrong("An erasure needs who asks for it and why.", 'Say it: --by "..." --why "..."')
    keys = list(dict.fromkeys(Key(topic, message_id) for message_id in ids))
    with ExitStack() as stack:
        shards = {
            name: stack.enter_context(closing(open_stub_purge(settings, connections, name))) for name in settings.producers
        }
        for key in keys:
            _require_over(control, shards, key)
        return [_erase(control, shards, key, who, why) for key in keys]


def _erase(control: Any, shards: dict[str, StubPurge], key: Key, who: str, why: str) -> Erased:
    where = {"topic": key.topic, "message_id": key.message_id}
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["begin"], {**where, "who": who, "why": why})
    places = Counts({f"shard {name}": int(shard.erase(key)) for name, shard in shards.items()})
    for name, shard in shards.items():
        # It was over when it was asked about; somebody may have brought it back meanwhile (a restore).
        if not places[f"shard {name}"] and shard.standing(key) is not None:
            raise _refused(key, "it is not over any more")
    with control, control.cursor() as cursor:
        for place in ("dead_letter", "dead_letter_aside", "message_version", "proposal", "case_question"):
            cursor.execute(_SQL[place], where)
            places[place] = cursor.rowcount
        cursor.execute(_SQL["done"], {**where, "erased": json.dumps(places)})
        append(cursor, who, "erase", f"{key.message_id} of {key.topic}", why, places)
    return Erased(key.topic, key.message_id, dict(places))


def _require_over(control: Any, shards: dict[str, StubPurge], key: Key) -> None:
    for shard in shards.values():
        found = shard.standing(key)
        if found is not None and found[0] not in OVER:
            raise _refused(key, f"it is {found[0]} and may still be sent. Void it first (by its case), then ask again")
        if found is not None and found[1]:
            raise _refused(key, "a send of it is under way: wait until it has ended")
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["waiting_letters"], {"topic": key.topic, "message_id": key.message_id})
        number = cursor.fetchone()[0]
    if number:
        raise _refused(key, f"{number} of its dead letters are not decided: decide their case first")


def _refused(key: Key, why: str) -> DecisionRefused:
    return DecisionRefused(
        f"The message {key.message_id} of {key.topic} was not erased: {why}.",
        kept="Its content is as it was.",
        next_step=f"`backstop where {key.topic} {key.message_id}` tells where it is.",
    )


def _wrong(what: str, next_step: str) -> ConfigurationError:
    return ConfigurationError(what, kept="Nothing was erased.", next_step=next_step)
