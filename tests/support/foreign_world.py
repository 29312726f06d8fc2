"""What the tests of foreign records share: settings with one entry of each kind, and a log that answers what a test says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backstop.config.connections import Connections
from backstop.config.load import from_mapping
from backstop.model.records import Key
from backstop.sweep.foreign.open import open_foreign
from backstop.sweep.foreign.protocol import ForeignDecision, ForeignLeases, LogStanding

HOUR = 3600
KINDS: dict[str, dict[str, Any]] = {
    "table": {"kind": "dedup_listener_mysql", "application": "billing-app"},
    "keys": {
        "kind": "dedup_listener_redis",
        "application": "billing-app",
        "tags": ["", "eu", "us"],
    },
    "plain": {
        "kind": "plain_keys",
        "pattern": "dedup:{topic}:{id}",
        "untouched_for": "1h",
        "success_deletes": True,
    },
}


def content(name: str, **more: Any) -> dict[str, Any]:
    """backstop.yaml as plain values, with one entry of `foreign_leases`."""
    return {
        "control": "backstop_control",
        "brokers": {"main": {"kind": "redis_streams", "connection": "broker"}},
        "producers": {"shop": {"connection": "producer"}},
        "consumers": {"billing_db": {"connection": "consumer"}},
        "groups": {"billing": {"store": "billing_db"}},
        "topics": {
            topic: {"broker": "main", "groups": ["billing"]} for topic in ("orders", "refunds")
        },
        "foreign_leases": {
            name: {"connection": "legacy", "group": "billing", **KINDS[name], **more}
        },
    }


def opened(name: str, url: str, **more: Any) -> ForeignLeases:
    return open_foreign(from_mapping(content(name, **more)), Connections({"legacy": url}.get), name)


class Log:
    """The group's log: what it says, who was asked about, and what happens meanwhile at the other program."""

    def __init__(
        self,
        rows: Mapping[Key, tuple[str, bool]] | None = None,
        *,
        meanwhile: Callable[[], object] | None = None,
        error: Exception | None = None,
    ) -> None:
        self._rows, self._meanwhile, self._error = dict(rows or {}), meanwhile, error
        self.asked: list[Key] = []

    def __call__(self, keys: Sequence[Key]) -> Mapping[Key, LogStanding]:
        self.asked += keys
        if self._meanwhile is not None:
            self._meanwhile()
        if self._error is not None:
            raise self._error
        return {key: LogStanding(*self._rows[key]) for key in keys if key in self._rows}


def done(*message_ids: str, topic: str = "orders") -> Log:
    return Log({Key(topic, message_id): ("CONSUMED", False) for message_id in message_ids})


def decisions(told: Sequence[ForeignDecision]) -> dict[tuple[str, str], str]:
    return {(one.topic, one.message_id): one.decision for one in told}
