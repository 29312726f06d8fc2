"""What backstop.yaml says about the idempotency records of other programs: where they are, and how their keys are read."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator
from pydantic_core import PydanticCustomError

from backstop.config.connection_ref import ConnectionRef
from backstop.config.durations import Duration

_Text = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00]+$")]
_PLACEHOLDER = re.compile(r"\{[^{}]*\}|[{}]")
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)
_LONGER_THAN_ANY_WAY_BACK = timedelta(days=18)
"""More than the longest way back that the default policy allows: a key may be all that stops a later copy."""


class _Foreign(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    connection: ConnectionRef = Field(
        description="its store: an Airflow connection id, or env:NAME"
    )
    group: _Text = Field(
        description="the consumer group that keeps these records; its log can prove the work done"
    )
    topics: tuple[_Text, ...] | None = Field(
        default=None,
        description="the topics that its keys may name; null: all that the group takes",
        min_length=1,
    )
    keep: Duration = Field(
        default=_DAY,
        description="how long a record that was repaired stays: the other program's own time for done work",
    )
    walk: Annotated[int, Field(ge=1, strict=True)] = Field(
        default=500_000, description="records of its store that one call walks past at most"
    )


class DedupListenerMysql(_Foreign):
    """RocketMQDedupListener's table t_rocketmq_dedup, in MySQL or MariaDB."""

    kind: Literal["dedup_listener_mysql"]
    application: _Text = Field(
        description="the application name that the program was given, often its consumer group"
    )


class DedupListenerRedis(_Foreign):
    """RocketMQDedupListener's keys MSGDEDUP:APPLICATION:TOPIC[:TAG]:KEY, in Redis."""

    kind: Literal["dedup_listener_redis"]
    application: _Text = Field(
        description="the application name that the program was given, often its consumer group"
    )
    tags: tuple[Annotated[str, StringConstraints(max_length=200)], ...] = Field(
        default=("",),
        description='the tags that its messages carry; "": messages without a tag',
        min_length=1,
    )
    untouched_for: Duration = Field(
        default=_HOUR,
        description="a consuming key without expiry is freed when nobody has touched it for so long",
    )


class PlainKeys(_Foreign):
    """Keys of SETNX without expiry, in Redis: that a key is there is all it says."""

    kind: Literal["plain_keys"]
    pattern: _Text = Field(description='what a key looks like, for example "dedup:{topic}:{id}"')
    keep: Duration = Field(
        default=_LONGER_THAN_ANY_WAY_BACK,
        description="how long a key stays whose work the log proves done",
    )
    untouched_for: Duration = Field(
        default=_LONGER_THAN_ANY_WAY_BACK,
        description="a key that no log explains is freed when nobody has touched it for so long",
    )
    success_deletes: bool = Field(
        default=False,
        description="true: the program deletes the key of finished work; false: a key may also mean done",
    )

    @field_validator("pattern")
    @classmethod
    def _has_an_id_and_fixed_text(cls, pattern: str) -> str:
        found = _PLACEHOLDER.findall(pattern)
        fixed = _PLACEHOLDER.sub("", pattern)
        if (
            sorted(found) not in (["{id}"], ["{id}", "{topic}"])
            or not fixed.strip(":")
            or "}{" in pattern
        ):
            raise PydanticCustomError(
                "pattern",
                "fixed text with {id} once and {topic} at most once, something between them: dedup:{topic}:{id}",
            )
        return pattern

    @property
    def names_topic(self) -> bool:
        """Whether a key says which topic it belongs to."""
        return "{topic}" in self.pattern


ForeignSettings = Annotated[
    DedupListenerMysql | DedupListenerRedis | PlainKeys, Field(discriminator="kind")
]

FOREIGN_KINDS: dict[str, type[BaseModel]] = {
    "dedup_listener_mysql": DedupListenerMysql,
    "dedup_listener_redis": DedupListenerRedis,
    "plain_keys": PlainKeys,
}
