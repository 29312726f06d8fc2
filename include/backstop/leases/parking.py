"""Park an ordering key: its failed head and the followers wait for a person, their contents kept; its queue goes on.

Order of locks in every function: the key's row, the queue's fence, the log. A key without a row is not parked; who parks
it holds the queue's fence, so the next owner of the queue sees it. Nothing here commits.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from backstop.leases import guard, queue_owner
from backstop.leases.lease import (
    LEASE,
    RETRY_AFTER,
    Acquired,
    Arrival,
    Begun,
    Busy,
    error_text,
    lost,
    payload_hash,
    retry_in,
)
from backstop.leases.queue_owner import OwnedQueue
from backstop.model.errors import BackstopError, DecisionRefused
from backstop.model.records import Message, Position
from backstop.sql.named import load
from backstop.sql.run import Connection, rows

_QUERIES = load("backstop.leases", "parking.sql")
_SQL = {
    name: text.replace("{unowned}", _QUERIES["unowned"])
    for name, text in _QUERIES.items()
    if name != "unowned"
}
CRASHED = "Its worker ended, or lost its lease, each time it was tried."
EXPIRED_HEAD = "Its worker ended, or lost its lease, while the message was released."


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a group and topic; at a limit the queue stops, and nothing is dropped."""

    keys: int = 1000
    messages: int = 1000
    """Of one key."""
    bytes: int = 16 * 1024 * 1024
    """Of one key."""


@dataclass(frozen=True, slots=True)
class InOrder:
    """A message at the head of its lane: what beginning, parking and keeping it need."""

    queue: OwnedQueue
    key: str
    message: Message
    arrival: Arrival


@dataclass(frozen=True, slots=True)
class Kept:
    """Its key is parked: the message is logged PARKED and its content kept: acknowledge."""


@dataclass(frozen=True, slots=True)
class Full:
    """Its key is parked and a limit is reached: nothing was changed, the queue stops."""

    reached: str


@dataclass(frozen=True, slots=True)
class NotOwner:
    """The queue has another owner: nothing was changed."""


InOrderBegun = Begun | Kept | Full | NotOwner


class ParkingFull(BackstopError):
    """A limit is reached: nothing was parked."""

    def __init__(self, reached: str) -> None:
        super().__init__(
            f"No further ordering key can be parked: the limit of {reached} is reached.",
            unaffected="Nothing was dropped; the queue stands at this message.",
            next_step="Answer the parked keys' cases, or raise the limit.",
        )
        self.reached = reached

    def __reduce__(self) -> tuple[object, ...]:
        return ParkingFull, (self.reached,)


def begin_in_order(
    connection: Connection,
    group: str,
    heads: Sequence[InOrder],
    limits: Limits,
    *,
    lease: timedelta = LEASE,
    owner_host: str | None = None,
    retry_after: timedelta = RETRY_AFTER,
) -> list[InOrderBegun]:
    """Asks for the leases of messages whose lane they head, each key and message once; keeps those of parked keys."""
    parked = _lock_keys(connection, group, [(head.queue.topic, head.key) for head in heads])
    owned = queue_owner.held(connection, {head.queue for head in heads})
    answers: dict[int, InOrderBegun] = {}
    free: list[int] = []
    for place, head in enumerate(heads):
        key = parked.get((head.queue.topic, head.key))
        if head.queue not in owned:
            answers[place] = NotOwner()
        elif key is None:
            free.append(place)
        else:
            answers[place] = _keep_follower(
                connection, group, head, key, limits, owner_host, retry_after
            )
    begun = guard.begin_many(
        connection,
        group,
        [heads[place].arrival for place in free],
        lease_seconds=lease.total_seconds(),
        owner_host=owner_host,
        retry_after=retry_after,
    )
    answers.update(zip(free, begun, strict=True))
    return [answers[place] for place in range(len(heads))]


def complete(connection: Connection, head: InOrder, lease: Acquired) -> None:
    """The head is done, as the last statement of the transaction of its effects: one round trip for its queue and its log.

    Raises QueueLost or LeaseLost: the transaction must roll back.
    """
    queue = head.queue
    values = {**_fenced(lease), **_queue(queue), "idle": queue_owner.idle_limit()}
    if not rows(connection, _SQL["complete"], values):
        queue_owner.compare(connection, queue)
        raise lost(lease, "completed")


def park(
    connection: Connection, head: InOrder, lease: Acquired, error: str | None, limits: Limits
) -> None:
    """The head failed too often: its key waits for a person. `error`: null: it was begun too often, and the log may have an error.

    Raises ParkingFull, QueueLost or LeaseLost; the caller's transaction must roll back then.
    """
    if error is None:
        recorded = rows(connection, _SQL["recorded_error"], _fenced(lease))
        error = recorded[0]["last_error"] if recorded else CRASHED
    group, text = lease.group, error_text(error, connection)
    parked = _lock_keys(connection, group, [(head.queue.topic, head.key)])
    queue_owner.compare(connection, head.queue)
    size = _size(head.message)
    key = parked.get((head.queue.topic, head.key))
    while key is None and not _park_key(connection, group, head, text, limits):
        # Queues were added, and the owner of the key's other queue parked it since it was looked for.
        parked = _lock_keys(connection, group, [(head.queue.topic, head.key)])
        key = parked.get((head.queue.topic, head.key))
    if key is not None and (reached := _reached(key, size, limits)):
        raise ParkingFull(reached)
    if not rows(connection, _SQL["park_log"], {**_fenced(lease), "error": text}):
        raise lost(lease, "parked")
    _keep(connection, group, head, size)


def _park_key(
    connection: Connection, group: str, head: InOrder, error: str, limits: Limits
) -> bool:
    rows(connection, _SQL["lock_parking"], _key(group, head))
    (counted,) = rows(connection, _SQL["count_keys"], _key(group, head))
    if counted["keys"] >= limits.keys:
        raise ParkingFull("keys")
    values = {**_key(group, head), "queue_id": head.queue.queue_id, "error": error}
    return bool(rows(connection, _SQL["park_key"], values))


def releasing(
    connection: Connection, group: str, owned: Sequence[OwnedQueue], limit: int
) -> list[tuple[OwnedQueue, str]]:
    """The keys of these queues whose release a person has answered."""
    if not owned:
        return []
    values = {
        "group": group,
        "topics": [q.topic for q in owned],
        "queues": [q.queue_id for q in owned],
        "limit": limit,
    }
    queues = {(q.topic, q.queue_id): q for q in owned}
    found = rows(connection, _SQL["releasing"], values)
    return [(queues[row["topic"], row["queue_id"]], row["ordering_key"]) for row in found]


def begin_released(
    connection: Connection,
    queue: OwnedQueue,
    key: str,
    *,
    lease: timedelta = LEASE,
    owner_host: str | None = None,
    retry_after: timedelta = RETRY_AFTER,
) -> tuple[InOrder, Acquired] | Busy | None:
    """The lease of a released key's head; None when the key is not being released any more. Raises QueueLost.

    A head that was released and whose worker ended is parked again: a person decides once more.
    """
    named = {"group": queue.group, "topic": queue.topic, "key": key}
    parked = _lock_keys(connection, queue.group, [(queue.topic, key)])
    queue_owner.compare(connection, queue)
    if (queue.topic, key) not in parked or parked[queue.topic, key]["state"] != "RELEASING":
        return None
    found = rows(connection, _SQL["head"], named)
    if not found:
        rows(connection, _SQL["unpark"], named)
        return None
    head = _read_head(queue, key, found[0])
    message = {"group": queue.group, "topic": queue.topic, "message_id": head.message.message_id}
    for log in rows(connection, _SQL["head_log"], message):
        if (
            log["state"] == "CONSUMED"
        ):  # its copy was done by another program: nothing is left to do
            _drop(connection, queue.group, head)
            return Busy(timedelta(0))
        if log["state"] == "CONSUMING" and (log["seconds_left"] is None or log["seconds_left"] > 0):
            return Busy(retry_in(log["seconds_left"], retry_after))
        if log["state"] != "PARKED":
            rows(connection, _SQL["park_expired"], message)
            rows(connection, _SQL["park_again"], {**named, "error": EXPIRED_HEAD})
            return None
    (token,) = guard.new_tokens(1)
    values = {
        **_log(queue.group, head),
        "token": token,
        "lease_seconds": lease.total_seconds(),
        "owner_host": owner_host,
    }
    granted = rows(connection, _SQL["begin_head"], values)
    if (
        not granted
    ):  # its log was purged, and somebody who does not keep the order has just begun a copy
        return Busy(retry_after)
    (row,) = granted
    return head, Acquired(
        queue.group,
        queue.topic,
        head.message.message_id,
        row["token"],
        row["fence"],
        row["attempts"],
    )


def complete_released(connection: Connection, head: InOrder, lease: Acquired) -> None:
    """The released head is done, in the transaction of its effects; the key is unparked when nothing is left of it.

    Raises QueueLost or LeaseLost: the transaction must roll back.
    """
    _lock_keys(connection, lease.group, [(head.queue.topic, head.key)])
    queue_owner.compare(connection, head.queue)
    guard.complete(connection, lease)
    _drop(connection, lease.group, head)


def park_again(connection: Connection, head: InOrder, lease: Acquired, error: str) -> None:
    """The released head failed: it is the parked head again, unless it was erased meanwhile and nothing is left to park. Raises
    QueueLost or LeaseLost."""
    text = error_text(error, connection)
    _lock_keys(connection, lease.group, [(head.queue.topic, head.key)])
    queue_owner.compare(connection, head.queue)
    if not rows(connection, _SQL["park_log"], {**_fenced(lease), "error": text}):
        raise lost(lease, "parked")
    key = _key(lease.group, head)
    rows(connection, _SQL["park_again"], {**key, "error": text})
    rows(connection, _SQL["unpark"], key)


def set_back(connection: Connection, lease: Acquired, error: str | None, *, released: bool) -> bool:
    """The message could not be tried for no fault of its own: no attempt is counted. False: the lease is not ours."""
    state = "PARKED" if released else "FAILED" if error else "EXPIRED"
    values = {
        **_fenced(lease),
        "state": state,
        "error": None if error is None else error_text(error, connection),
    }
    return bool(rows(connection, _SQL["set_back"], values))


def stop_queue(connection: Connection, queue: OwnedQueue, key: str, reached: str) -> None:
    """Records that the queue stands still at a message of this key, because a limit is reached; nothing if it has another owner."""
    rows(connection, _SQL["stop_queue"], {**_queue(queue), "key": key, "reached": reached})


def go_on(connection: Connection, queue: OwnedQueue) -> None:
    """The queue moves again; nothing if it has another owner, who says itself that it stands."""
    rows(connection, _SQL["go_on"], _queue(queue))


def say_away(connection: Connection, group: str, topic: str, member: str, error: str) -> None:
    """Records that this consumer parks nothing and waits: what its handlers need is away."""
    rows(
        connection,
        _SQL["say_away"],
        {"group": group, "topic": topic, "member": member, "error": error_text(error, connection)},
    )


def say_back(connection: Connection, group: str, member: str) -> None:
    """What the handlers need is back, or the consumer stops."""
    rows(connection, _SQL["say_back"], {"group": group, "member": member})


def answer_retry(
    connection: Connection,
    group: str,
    topic: str,
    key: str,
    by: str,
    content: bytes | None = None,
    *,
    head: str | None = None,
) -> None:
    """Releases the key, head first; with `content`, the head's content is replaced before. Raises DecisionRefused.

    `head`: the message that the person saw at the head; null: any.
    """
    named = {"group": group, "topic": topic, "key": key}
    _lock_keys(connection, group, [(topic, key)])
    found = rows(connection, _SQL["head"], named)
    _require_head(topic, key, found, head)
    answer = "retry" if content is None else "edit"
    values = {**named, "answer": answer, "by": by, "states": ["PARKED"]}
    if not rows(connection, _SQL["answered"], values):
        raise _not_parked(topic, key)
    if content is not None:
        message = {"group": group, "topic": topic, "message_id": found[0]["message_id"]}
        rows(connection, _SQL["edit_head"], {**message, "content": content})
        more = len(content) - len(bytes(found[0]["content"]))
        rows(connection, _SQL["count_message"], {**named, "number": 0, "bytes": more})


def answer_discard(
    connection: Connection,
    group: str,
    topic: str,
    key: str,
    by: str,
    *,
    whole_key: bool = False,
    head: str | None = None,
    until: int | None = None,
    why: str = "",
    case_id: int | None = None,
) -> list[str]:
    """Discards the head and releases the rest, or discards the key's messages up to the number `until` (null: all that it has
    now) and releases what came later; the ids discarded. Raises DecisionRefused.

    Also of a key that is being released, unless a worker has its head: that one's effects may be there already. Their logs stay
    PARKED: copies that come again are acknowledged. Who discarded what stands in
    `parked_discard`, until the watch has moved it to the control database.
    """
    named = {"group": group, "topic": topic, "key": key}
    parked = _lock_keys(connection, group, [(topic, key)])
    found = rows(connection, _SQL["head"], named)
    is_releasing = (topic, key) in parked and parked[topic, key]["state"] == "RELEASING"
    # Of a key that is being released other heads were shown before: what is left of what was shown is discarded.
    _require_head(topic, key, found, None if is_releasing and whole_key else head)
    if is_releasing:
        _require_idle(connection, group, topic, key, found[0]["message_id"])
    answer = "discard key" if whole_key else "discard head"
    states = ["PARKED", "RELEASING"]
    rows(connection, _SQL["answered"], {**named, "answer": answer, "by": by, "states": states})
    discarded: list[str] = []
    while found and (until is None or found[0]["number"] <= until):
        message = {"group": group, "topic": topic, "message_id": found[0]["message_id"]}
        rows(
            connection,
            _SQL["keep_discard"],
            {**message, "key": key, "by": by, "why": why, "case_id": case_id},
        )
        _take_out(connection, message, key)
        discarded.append(found[0]["message_id"])
        if not whole_key:
            break
        found = rows(connection, _SQL["head"], named)
    rows(connection, _SQL["unpark"], named)
    return discarded


def _require_head(topic: str, key: str, found: Sequence[dict[str, Any]], head: str | None) -> None:
    if not found:
        raise _not_parked(topic, key)
    if head is not None and found[0]["message_id"] != head:
        raise DecisionRefused(
            f"The head of the ordering key {key!r} of {topic!r} is {found[0]['message_id']!r} now, not {head!r}.",
            unaffected="Nothing was changed.",
            next_step="Look at the key again and decide on what it is now.",
        )


def _require_idle(connection: Connection, group: str, topic: str, key: str, head: str) -> None:
    """The head of a key that is being released is in nobody's hands. Whoever begins it needs the key's lock, which is ours."""
    message = {"group": group, "topic": topic, "message_id": head}
    found = rows(connection, _SQL["head_state"], message)
    if found and found[0]["state"] != "PARKED":
        raise DecisionRefused(
            f"The head {head!r} of the ordering key {key!r} of {topic!r} is being processed: its log is {found[0]['state']}.",
            unaffected="Nothing was changed; the release goes on.",
            next_step="Decide again when it has ended: then what is left can be discarded. If its consumer died, start another one: it"
            " parks the key again.",
        )


def _keep_follower(
    connection: Connection,
    group: str,
    head: InOrder,
    key: dict[str, Any],
    limits: Limits,
    owner_host: str | None,
    retry_after: timedelta,
) -> InOrderBegun:
    size = _size(head.message)
    values = {**_log(group, head), "owner_host": owner_host}
    reached = _reached(key, size, limits)
    if reached and rows(connection, _SQL["is_unowned"], values)[0]["is_unowned"]:
        return Full(reached)
    if reached or not rows(connection, _SQL["log_follower"], values):
        # It has a log already: done, parked, or in somebody's hands.
        known = guard.refused_many(connection, group, [head.arrival], retry_after)
        return known.get(head.arrival.key, Busy(retry_after))
    _keep(connection, group, head, size)
    key["messages"] += 1
    key["bytes"] += size
    return Kept()


def _keep(connection: Connection, group: str, head: InOrder, size: int) -> None:
    values = {
        **_log(group, head),
        "key": head.key,
        "content": head.message.content,
        "headers": json.dumps(dict(head.message.headers)),
        "tag": head.message.tag,
    }
    rows(connection, _SQL["keep"], values)
    rows(connection, _SQL["count_message"], {**_key(group, head), "number": 1, "bytes": size})


def _drop(connection: Connection, group: str, head: InOrder) -> None:
    message = {"group": group, "topic": head.queue.topic, "message_id": head.message.message_id}
    _take_out(connection, message, head.key)
    rows(connection, _SQL["unpark"], _key(group, head))


def _take_out(connection: Connection, message: dict[str, str], key: str) -> None:
    for removed in rows(connection, _SQL["remove"], message):
        values = {"group": message["group"], "topic": message["topic"], "key": key}
        rows(
            connection, _SQL["count_message"], {**values, "number": -1, "bytes": -removed["bytes"]}
        )


def _lock_keys(
    connection: Connection, group: str, keys: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], dict[str, Any]]:
    values = {
        "group": group,
        "topics": [topic for topic, _ in keys],
        "keys": [key for _, key in keys],
        "idle": queue_owner.idle_limit(),
    }
    return {
        (row["topic"], row["ordering_key"]): row
        for row in rows(connection, _SQL["lock_keys"], values)
    }


def _read_head(queue: OwnedQueue, key: str, row: dict[str, Any]) -> InOrder:
    content = bytes(row["content"])
    message = Message(
        queue.topic, row["message_id"], content, json.loads(row["headers"]), row["tag"], key
    )
    position = None
    if row["queue_offset"] is not None:
        position = Position(row["queue_id"], row["queue_offset"], row["queue_epoch"])
    arrival = Arrival(
        queue.topic, row["message_id"], payload_hash(content), row["content_version"], position
    )
    return InOrder(queue, key, message, arrival)


def _reached(key: dict[str, Any], size: int, limits: Limits) -> str | None:
    if key["messages"] >= limits.messages:
        return "messages"
    return "bytes" if key["bytes"] + size > limits.bytes else None


def _size(message: Message) -> int:
    return len(message.content) + len(json.dumps(dict(message.headers)).encode())


def _queue(queue: OwnedQueue) -> dict[str, object]:
    return {
        "group": queue.group,
        "topic": queue.topic,
        "queue_id": queue.queue_id,
        "fence": queue.fence,
    }


def _key(group: str, head: InOrder) -> dict[str, object]:
    return {"group": group, "topic": head.queue.topic, "key": head.key}


def _log(group: str, head: InOrder) -> dict[str, object]:
    position = head.arrival.position
    return {
        "group": group,
        "topic": head.queue.topic,
        "message_id": head.message.message_id,
        "queue_id": head.queue.queue_id,
        "queue_offset": position.offset if position else None,
        "queue_epoch": position.epoch if position else None,
        "payload_hash": head.arrival.payload_hash,
        "content_version": head.arrival.content_version,
    }


def _fenced(lease: Acquired) -> dict[str, object]:
    return {
        "group": lease.group,
        "topic": lease.topic,
        "message_id": lease.message_id,
        "token": lease.token,
    }


def _not_parked(topic: str, key: str) -> DecisionRefused:
    return DecisionRefused(
        f"The ordering key {key!r} of {topic!r} is not parked, or its messages are being released.",
        unaffected="Nothing was changed.",
        next_step="List the parked keys again and decide on what they are now.",
    )
