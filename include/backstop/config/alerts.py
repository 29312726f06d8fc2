"""What backstop.yaml says about alerts: the channels, when an undecided case is told again, and how much is too much."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from backstop.config.connection_ref import ConnectionRef
from backstop.config.durations import Duration

Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
"""From the mildest to the gravest."""
NOTIFY = "notify"
"""The channel that `notify.url` makes."""

CHANNEL = r"^[A-Za-z0-9_.\-]{1,60}$"
_Channel = Annotated[str, Field(pattern=CHANNEL)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ChannelSettings(_Frozen):
    """One way to one reader: a mailing list, a chat room, an on-call service, a program."""

    url: ConnectionRef = Field(
        description="a connection that holds the URL, in Apprise's form unless `kind` says webhook"
    )
    at_least: Severity = Field(default="warning", description="milder alerts are not sent here")
    kind: Literal["apprise", "webhook"] = Field(
        default="apprise",
        description="`webhook`: the alert's fields are posted as JSON to an http(s) URL",
    )


class EscalateSettings(_Frozen):
    """By the case's severity, how long after it was opened an undecided case is told again, one step more severe each time."""

    info: tuple[Duration, ...] = ()
    warning: tuple[Duration, ...] = (timedelta(hours=4), timedelta(hours=24))
    critical: tuple[Duration, ...] = (timedelta(minutes=30), timedelta(hours=2), timedelta(hours=8))

    @field_validator("info", "warning", "critical")
    @classmethod
    def _ascend(cls, steps: tuple[timedelta, ...]) -> tuple[timedelta, ...]:
        if any(later <= earlier for earlier, later in pairwise((timedelta(0), *steps))):
            raise PydanticCustomError("steps", "steps each longer than the one before")
        return steps


class AlertsSettings(_Frozen):
    """Who is told, and how often."""

    channels: dict[_Channel, ChannelSettings] = Field(default={}, description="by name")
    escalate: EscalateSettings = EscalateSettings()
    digest_above: Annotated[int, Field(ge=1, le=1000, strict=True)] = Field(
        default=20, description="more alerts than this that wait for one channel become one message"
    )
    messages_an_hour: Annotated[int, Field(ge=2, le=3600, strict=True)] = Field(
        default=30,
        description="to one channel at most; the second half of them are digests, spread over the hour",
    )
    give_up_after: Duration = Field(
        default=timedelta(hours=24),
        description="older alerts that another channel took are not tried again; an alert that no channel took is never too old",
    )
    timeout: Duration = Field(
        default=timedelta(seconds=10),
        description="of connecting and of each answer; one message may take three times as long",
    )
    none_wanted: bool = Field(
        default=False,
        description="true: no alerts are wanted, and deliver_alerts succeeds without a channel",
    )

    @field_validator("channels")
    @classmethod
    def _not_ours(cls, channels: dict[str, ChannelSettings]) -> dict[str, ChannelSettings]:
        if NOTIFY in channels:
            raise PydanticCustomError("channel", "the name `notify` belongs to notify.url")
        return channels

    @field_validator("timeout")
    @classmethod
    def _some_time(cls, timeout: timedelta) -> timedelta:
        if not timedelta(seconds=0.1) <= timeout <= timedelta(minutes=1):
            raise PydanticCustomError("timeout", "100ms to 1m")
        return timeout
