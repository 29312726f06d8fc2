"""Erases the contents of named messages on request: in their stubs, their dead letters and their edits; ids and hashes stay.

    control: who asks, and why | each shard: the stub, if it is over | each consumer database: its logs
    | control: dead letters, causes that are theirs alone, edits, done

Cut short anywhere, it is asked for again and does the rest. A message that may still be sent is not erased: what would be sent
of it? Nor one whose dead letter waits, which may hold the only copy. If an erased one is owed again (a new group, a restored
database), no number of it is handed out: a case of kind `refused` asks a person.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.control.decision_log import append, require_short
from backstop.control.speaker import person
from backstop.model.errors import ConfigurationError, DecisionRefused
from backstop.model.records import Counts, Key, StubStatus
from backstop.sql.named import load
from backstop.stores.open import open_log_purge, open_stub_purge
from backstop.stores.purge import LogPurge, StubPurge

_SQL = load("backstop.retention", "erase.sql")
OVER = (StubStatus.CONFIRMED, StubStatus.VOIDED, StubStatus.NO_TAKER)
_PLACES = (
    "dead_letter",
    "dead_letter_aside",
    "cause",
    "resend_request",
    "message_version",
    "proposal",
    "case_question",
)
"""In the control database, in this order."""
NOT_REACHED = (
    "the broker, until its retention drops the message, and its dead-letter queue",
    "dead letters that have no topic or no id, because it could not be read: find them with `backstop dead-letters list`",
    "templates of causes that other messages' dead letters have, too, and the cases about them: their texts say the same",
    "summaries and notes of cases, and cases about its ordering key, until retention takes them",
    "the message's id and, in its stub, its tag; its ordering key while another message of it is open; the fingerprint of its"
    " content in a log whose work is not done",
    "Airflow's database: a content that was typed into a form to edit a message, until the task that asked received it",
    "another program's table that is mapped: nothing is sent from its row any more, but the row is that program's to empty",
    "exports, backups, alerts that were sent, and the consumers' own tables",
)
"""Said with every erasure."""


@dataclass(frozen=True, slots=True)
class Erased:
    """What was emptied of one message: place -> rows."""

    topic: str
    message_id: str
    places: dict[str, int]

    keeps_ordering_key: bool = False
    """In its stub: another message of the key is open, and its place is decided by it."""

    def __str__(self) -> str:
        found = ", ".join(f"{number} in {place}" for place, number in self.places.items() if number)
        later = "; its ordering key stays while a message of it is open: erase it again afterwards"
        return f"{self.message_id}: {found or 'nothing is stored of it'}{later if self.keeps_ordering_key else ''}"


def erase(
    settings: Settings,
    connections: Connections,
    control: Any,
    topic: str,
    ids: Sequence[str],
    who: str,
    why: str,
) -> list[Erased]:
    """All of the ids or, where one may not be erased, none of them.

    Raises ConfigurationError without a reason, for an unknown topic or for a person's own login, DecisionRefused for a message
    that is not over or too long a name or reason, and StoreUnavailable when a database does not answer: the message might be there.
    """
    if topic not in settings.topics:
        raise _wrong(f"There is no topic {topic!r}.", f"Name one of: {', '.join(settings.topics)}.")
    if not (why.strip() and who.strip()):
        raise _wrong("An erasure needs who asks for it and why.", 'Say it: --by "..." --why "..."')
    require_short(who, why)
    if (login := person(control)) is not None:
        raise _wrong(
            f"The login {login} does not erase: that takes the duties' login, in the database of every producer and consumer.",
            f"Run it with the duties' login, and say who asks: --by {login}",
        )
    keys = list(dict.fromkeys(Key(topic, message_id) for message_id in ids))
    with ExitStack() as stack:
        shards = {
            name: stack.enter_context(closing(open_stub_purge(settings, connections, name)))
            for name in settings.own_producers()
        }
        logs = {
            name: stack.enter_context(closing(open_log_purge(settings, connections, name)))
            for name in settings.own_consumers()
        }
        groups = {
            name: [group for group, its in settings.groups.items() if its.store == name]
            for name in settings.own_consumers()
        }
        for key in keys:
            _require_over(control, shards, key)
        return [
            _erase(
                control, shards, [(name, logs[name], groups[name]) for name in logs], key, who, why
            )
            for key in keys
        ]


def _erase(
    control: Any,
    shards: dict[str, StubPurge],
    logs: Sequence[tuple[str, LogPurge, list[str]]],
    key: Key,
    who: str,
    why: str,
) -> Erased:
    where = {"topic": key.topic, "message_id": key.message_id}
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["begin"], {**where, "who": who, "why": why})
    places, keeps = Counts(), False
    for name, shard in shards.items():
        stub = shard.erase(key)
        places[f"shard {name}"] = int(stub is not None)
        if stub is not None:
            keeps = keeps or stub.keeps_ordering_key
            places[f"attempts in {name}"] = stub.attempts
    for name, shard in shards.items():
        # It was over when it was asked about; somebody may have brought it back meanwhile (a restore).
        if not places[f"shard {name}"] and shard.standing(key) is not None:
            raise _refused(key, "it is open again")
    for name, store, its_groups in logs:
        places[f"logs in {name}"] = store.erase(key, its_groups)
    with control, control.cursor() as cursor:
        cursor.execute(_SQL["hold_causes"], where)
        for place in _PLACES:
            cursor.execute(_SQL[place], where)
            places[place] = cursor.rowcount
        cursor.execute(_SQL["done"], {**where, "erased": json.dumps(places)})
        append(cursor, who, "erase", f"{key.message_id} of {key.topic}", why, places)
    return Erased(key.topic, key.message_id, dict(places), keeps)


def _require_over(control: Any, shards: dict[str, StubPurge], key: Key) -> None:
    for shard in shards.values():
        found = shard.standing(key)
        if found is not None and found[0] not in OVER:
            raise _refused(
                key,
                f"it is {found[0]} and may still be sent. Void it first (by its case), then ask again",
            )
        if found is not None and found[1]:
            raise _refused(key, "a send of it is under way: wait until it has ended")
    with control, control.cursor() as cursor:
        cursor.execute(
            _SQL["waiting_dead_letters"], {"topic": key.topic, "message_id": key.message_id}
        )
        number = cursor.fetchone()[0]
    if number:
        raise _refused(
            key, f"{number} of its dead letters are not decided: decide their case first"
        )


def _refused(key: Key, why: str) -> DecisionRefused:
    return DecisionRefused(
        f"The message {key.message_id} of {key.topic} was not erased: {why}.",
        unaffected="Its content is as it was.",
        next_step=f"`backstop where {key.topic} {key.message_id}` shows where it is.",
    )


def _wrong(what: str, next_step: str) -> ConfigurationError:
    return ConfigurationError(what, unaffected="Nothing was erased.", next_step=next_step)
