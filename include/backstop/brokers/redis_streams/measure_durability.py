"""Measures what the server promises to keep across a crash against what Backstop relies on: facts, one a
line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from backstop.brokers.protocol import Finding
from backstop.brokers.redis_streams.exchange import ConnectionLost, Exchange, NotSent, unavailable
from backstop.brokers.redis_streams.keys import Keys

_SETTINGS = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy", "min-replicas-to-write")


def measure_durability(exchange: Exchange, keys: Keys, topics: Sequence[str]) -> list[Finding]:
    """Settings, role, the state of the append-only file, and that each topic is there. BrokerUnavailable if
    away."""
    answers = exchange.run(
        [
            *(("CONFIG", "GET", name) for name in _SETTINGS),
            ("INFO", "replication"),
            ("INFO", "persistence"),
            *(("HGET", keys.topic(topic), "queues") for topic in topics),
        ]
    )
    for answer in answers:
        if isinstance(answer, NotSent | ConnectionLost):
            raise unavailable("reading its settings", answer.why)
    count = len(_SETTINGS)
    settings = {
        name: None if isinstance(answer, ResponseError) or len(answer) < 2 else answer[1].decode()
        for name, answer in zip(_SETTINGS, answers, strict=False)
    }
    findings = [_persistence(settings), *_eviction(settings)]
    findings += _replication(_info(answers[count]), settings["min-replicas-to-write"])
    findings.append(_last_write(_info(answers[count + 1])))
    for topic, answer in zip(topics, answers[count + 2 :], strict=True):
        there = isinstance(answer, bytes)
        findings.append(
            Finding(
                f"topic {topic}",
                there,
                f"{answer.decode()} queues"
                if there
                else f"it is not there ({answer or 'no such topic'})",
                "" if there else "Create the topic, or let this login read its keys.",
            )
        )
    return findings


def _persistence(settings: dict[str, str | None]) -> Finding:
    file, sync = settings["appendonly"], settings["appendfsync"]
    subject = "append-only file"
    if file is None or sync is None:
        return _unread(subject)
    if file == "yes" and sync == "always":
        return Finding(
            subject, True, "appendonly yes, appendfsync always: an acknowledged message is on disk"
        )
    return Finding(
        subject,
        False,
        f"appendonly {file}, appendfsync {sync}: a crash may lose messages that were acknowledged",
        "Set appendonly yes and appendfsync always; until then such losses are found as LOST and sent again.",
    )


def _eviction(settings: dict[str, str | None]) -> list[Finding]:
    subject, policy, limit = "eviction", settings["maxmemory-policy"], settings["maxmemory"]
    if policy is None or limit is None:
        return [_unread(subject)]
    says = f"maxmemory {limit}, maxmemory-policy {policy}"
    if limit == "0":
        return [
            Finding(
                subject,
                False,
                f"{says}: a server that takes all memory is ended by the operating system, and may not start again",
                "Set maxmemory to three quarters of what its machine or container has, and maxmemory-policy noeviction.",
            )
        ]
    if policy == "noeviction":
        return [Finding(subject, True, f"{says}: a full server refuses messages and forgets none")]
    return [
        Finding(
            subject,
            False,
            f"{says}: a full server may drop a whole queue",
            "Set maxmemory-policy noeviction.",
        )
    ]


def _replication(info: dict[str, str] | None, needed: str | None) -> list[Finding]:
    subject = "replication"
    if info is None:
        return [_unread(subject)]
    role, replicas = info.get("role", "unknown"), info.get("connected_slaves", "0")
    if role != "master":
        return [
            Finding(
                subject,
                False,
                f"role {role}: this server takes no messages, and its progress may be behind",
                "Connect to the primary.",
            )
        ]
    says = f"primary with {replicas} replicas, min-replicas-to-write {needed or 'unknown'}"
    if replicas == "0":
        return [Finding(subject, True, f"{says}: the messages are on this one server's disk")]
    return [
        Finding(
            subject,
            True,
            f"{says}; copies are asynchronous: a failover may lose acknowledged messages",
        )
    ]


def _last_write(info: dict[str, str] | None) -> Finding:
    subject = "last write of the append-only file"
    if info is None:
        return _unread(subject)
    state = info.get("aof_last_write_status", "unknown")
    if state == "ok":
        return Finding(subject, True, "ok")
    return Finding(subject, False, state, "See the server's log and its disk.")


def _info(answer: Any) -> dict[str, str] | None:
    if not isinstance(answer, bytes):
        return None
    lines = (line.partition(":") for line in answer.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


def _unread(subject: str) -> Finding:
    return Finding(
        subject,
        False,
        "this login may not read it, so it is not known",
        "Let it run CONFIG GET and INFO, or check the server by hand.",
    )
