"""What waits for one channel, and what a channel is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class DueAlert:
    """One alert that a channel has not been told of."""

    alert_id: int
    key: str
    thread: str
    closing: bool
    severity: str
    title: str
    body: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    case_kind: str | None = None
    topic: str | None = None

    @property
    def kind(self) -> str:
        """The case's kind, or what else wrote the alert: watch, duty, channel."""
        return self.case_kind or self.key.partition("/")[0]


@dataclass(frozen=True, slots=True)
class AlertMessage:
    """What is sent at once: one alert, or a digest of many."""

    alerts: tuple[DueAlert, ...]

    @property
    def is_digest(self) -> bool:
        return len(self.alerts) > 1
