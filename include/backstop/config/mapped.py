"""What backstop.yaml says about message tables that other programs keep: which columns are what, and what their states mean.

A preset gives what a library's published schema says; whatever is written beside it wins. A column is written as its name, or
as `column.field.field` for a text in the JSON that the column holds.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from backstop.config.durations import Duration
from backstop.model.records import ID_HEADER

_Text = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00]+$")]
_States = tuple[_Text, ...]


CAPTURED_AT = "captured_at"
LAKES = ("iceberg", "parquet")
"""The dialects that Spark reads."""
_PARTS = re.compile(r"(?:(`[^`]+`|[^.`]+)\.)?(`[^`]+`|[^.`]+)")


def table_parts(name: str) -> tuple[str | None, str]:
    """(schema, table) of a name as the file has it: in backquotes a part may hold dots. ValueError for anything else."""
    found = _PARTS.fullmatch(name)
    if found is None:
        raise ValueError(name)
    schema, table = (part and part.strip("`") for part in found.groups())
    return schema, table


def _by_name(value: Any) -> Any:
    """A list of names is a mapping of each to itself."""
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return {name: name for name in value}
    return value


_Names = Annotated[
    dict[_Text, _Text],
    BeforeValidator(_by_name, json_schema_input_type=list[str] | dict[str, str]),
]

STUB_PRESETS: Mapping[str, Mapping[str, Any]] = {
    # Id is the header cap-msg-id; Added is the application's own local time. Succeeded rows go after a day.
    "cap": {
        "tables": ["cap.published"],
        "message_id": "Id",
        "topic": "Name",
        "created_at": "Added",
        "times": "local",
        "state": "StatusName",
        "sent": ["Succeeded"],
        "unsent": ["Scheduled", "Queued", "Delayed", "Failed"],
        "wire_header": "cap-msg-id",
        "kept": "24h",
        # Its retry job takes a Scheduled row; one that has expired would be deleted whatever its state is.
        "rearm": {"StatusName": "Scheduled", "Retries": 0, "ExpiresAt": None},
        "content": "Content.Value",
        "headers": "Content.Headers",
    },
    # A row is one event for one listener: `only` names the externalizer's listener_id, message_id what travels in the event.
    "modulith": {
        "tables": ["event_publication"],
        "topic": "event_type",
        "created_at": "publication_date",
        "times": "instant",
        "sent_when_set": "completion_date",
        # As if its send had failed: version 2 of the tables resubmits by the status. Version 1 has the date alone.
        "rearm": {"completion_date": None, "status": "FAILED"},
    },
    "modulith_archive": {
        "tables": ["event_publication", "event_publication_archive"],
        "topic": "event_type",
        "created_at": "publication_date",
        "times": "instant",
        "sent_when_set": "completion_date",
    },
    # `published` is written by the polling relay alone; one that reads the database's log leaves it 0.
    "eventuate": {
        "tables": ["eventuate.message"],
        "message_id": "id",
        "topic": "destination",
        "created_at": "creation_time",
        "times": "milliseconds",
        "state": "published",
        "sent": ["1"],
        "unsent": ["0"],
        "wire_header": "ID",
        "rearm": {"published": 0},
    },
    # Often inserted and deleted in one transaction: captured, and sent once the relay's slot is past it.
    "debezium": {
        "tables": ["outboxevent"],
        "message_id": "id",
        "topic": "aggregatetype",
        "created_at": "captured_at",
        "wire_header": "id",
    },
    # The practice that Backstop grew from: the offset is written when the broker has answered.
    "practice": {
        "tables": ["message_stub"],
        "message_id": "messageId",
        "created_at": "created",
        "times": "local",
        "sent_when_set": "offset",
        "rearm": {"offset": None},
        "content": "content",
        "changes": [],
    },
}
LOG_PRESETS: Mapping[str, Mapping[str, Any]] = {
    # A row for each receipt, under an id of its own; the message's stands in the headers. CAP itself retries Failed rows.
    "cap": {
        "tables": ["cap.received"],
        "message_id": "Content.Headers.cap-msg-id",
        "topic": "Name",
        "group": "Group",
        "received_at": "Added",
        "times": "local",
        "state": "StatusName",
        "done": ["Succeeded"],
        "working": ["Scheduled", "Queued", "Delayed", "Failed"],
        "kept": "24h",
    },
    "modulith": {
        "tables": ["event_publication"],
        "topic": "event_type",
        "group": "listener_id",
        "received_at": "publication_date",
        "done_at": "completion_date",
        "times": "instant",
        "done_when_set": "completion_date",
    },
    "modulith_archive": {
        "tables": ["event_publication", "event_publication_archive"],
        "topic": "event_type",
        "group": "listener_id",
        "received_at": "publication_date",
        "done_at": "completion_date",
        "times": "instant",
        "done_when_set": "completion_date",
    },
    # Written in the transaction of the work: that the row is there says that it is done. It names no topic.
    "eventuate": {
        "tables": ["eventuate.received_messages"],
        "message_id": "message_id",
        "ids": "unique_across_topics",
        "group": "consumer_id",
        "received_at": "creation_time",
        "times": "milliseconds",
    },
    # RocketMQDedupListener's: CONSUMING is whoever holds the message; its user's job deletes rows, a day after they were done.
    "dedup_listener": {
        "tables": ["t_rocketmq_dedup"],
        "message_id": "msg_uniq_key",
        "topic": "topic",
        "group": "application_name",
        "state": "status",
        "done": ["CONSUMED"],
        "working": ["CONSUMING"],
        "kept": "24h",
    },
}
_OTHERWISE: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "mysql": {
        # A dot in the name, not a schema.
        "cap": {"tables": ["`cap.{0}`"]},
        "modulith": {"tables": ["EVENT_PUBLICATION"]},
        "modulith_archive": {"tables": ["EVENT_PUBLICATION", "EVENT_PUBLICATION_ARCHIVE"]},
    },
    # An event is a document of its own there, and names its class.
    "mongodb": {
        "modulith": {
            "topic": "event._class",
            "created_at": "publicationDate",
            "sent_when_set": "completionDate",
            "group": "listenerId",
            "received_at": "publicationDate",
            "done_at": "completionDate",
            "done_when_set": "completionDate",
        },
        "practice": {"times": "instant", "changes": ["offset", "count", "status", "resendTime"]},
    },
}
"""What the same libraries name otherwise in other dialects; {0}: published, or received."""


_NOT_READ = frozenset({"rearm", "content", "headers"})
"""What says how a row is sent again: nothing is learned by it."""


class _Mapping(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    dialect: Literal["postgresql", "mysql", "mongodb", "iceberg", "parquet"] = Field(
        default="postgresql",
        description="what its server speaks; MariaDB: mysql; iceberg and parquet: a lake table, which Spark reads",
    )
    tables: tuple[_Text, ...] = Field(
        min_length=1,
        description="the table, as schema.table (MongoDB: database.collection; parquet: the directory below the connection's); an "
        "archive of it beside it; `in backquotes` where a name has a dot",
    )
    message_id: _Text = Field(description="the column of the id that travels with the message")
    topic: _Text | None = Field(
        default=None, description="the column of the topic; null: `topics` names the only one"
    )
    only: dict[_Text, _Text] = Field(
        default={}, description="columns and the value that a row must have there"
    )
    times: Literal["instant", "local", "milliseconds"] = Field(
        default="instant",
        description="what its times are: timestamp with time zone (MySQL: timestamp; MongoDB: date, ObjectId); timestamp without "
        "(MySQL: datetime; then `time_zone`); milliseconds since 1970",
    )
    time_zone: _Text | None = Field(
        default=None, description="the zone of times without one, for example Asia/Shanghai"
    )
    state: _Text | None = Field(default=None, description="the column of the state")
    kept: Duration | None = Field(
        default=None,
        description="for how long at least a finished row stays; null: it is never deleted",
    )

    delay: Duration | None = Field(
        default=None,
        description="lake tables: how long before the commit that brings it a row may have been written at most, clocks included",
    )

    @field_validator("tables")
    @classmethod
    def _has_at_most_a_schema(
        cls, tables: tuple[str, ...], given: ValidationInfo
    ) -> tuple[str, ...]:
        if given.data.get("dialect") in LAKES:
            return tables  # a path, or a name in nested namespaces
        for table in tables:
            try:
                table_parts(table)
            except ValueError:
                raise PydanticCustomError("table", "table, or schema.table") from None
        return tables

    @field_validator("time_zone")
    @classmethod
    def _is_a_zone(cls, zone: str | None) -> str | None:
        try:
            if zone is not None:
                ZoneInfo(zone)
        except (ValueError, OSError, KeyError):
            raise PydanticCustomError("zone", "a zone's name, as Europe/Berlin or UTC") from None
        return zone

    @model_validator(mode="after")
    def _local_times_have_a_zone(self) -> Self:
        if self.times == "local" and self.dialect == "mongodb":
            raise PydanticCustomError(
                "times", "instant or milliseconds: a date of MongoDB is an instant"
            )
        if self.times == "local" and self.time_zone is None:
            raise PydanticCustomError(
                "time_zone", "with times: local, `time_zone`: the zone that the application runs in"
            )
        return self

    @model_validator(mode="after")
    def _lake_says_its_delay(self) -> Self:
        if self.is_lake != (self.delay is not None):
            says = "with dialect iceberg or parquet, and with no other"
            raise PydanticCustomError("delay", says)
        if self.is_lake and len(self.tables) != 1:
            raise PydanticCustomError("tables", "one table: two have no snapshot in common")
        return self

    @property
    def is_lake(self) -> bool:
        """Whether it is a lake table: Spark reads its snapshots, and they are complete up to a time alone."""
        return self.dialect in LAKES

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits that change with anything that is mapped: what was learned by another mapping is not believed."""
        # What was learned before there were these settings stays known.
        without = {
            *_NOT_READ,
            *{"postgresql": ("dialect", "changes"), "mysql": ("changes",)}.get(self.dialect, ()),
            *(("delay",) if self.delay is None else ()),
            # Of an inbox without topics, what was learned before could be another topic's.
            *(("ids",) if self.topic is not None else ()),
        }
        text = json.dumps(self.model_dump(mode="json", exclude=without), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _with_preset(presets: Mapping[str, Mapping[str, Any]], given: Any, part: str) -> Any:
    """`part`: what the library calls this one of its tables in MySQL."""
    preset = given.get("preset") if isinstance(given, Mapping) else None
    if not isinstance(preset, str) or preset not in presets:
        return given
    dialect = given.get("dialect")
    otherwise = _OTHERWISE.get(dialect, {}) if isinstance(dialect, str) else {}
    if dialect == "mongodb" and preset not in otherwise:
        says = f"with dialect: mongodb one of {', '.join(sorted(presets.keys() & otherwise.keys()))}, or none"
        raise PydanticCustomError("preset", says)
    named = {
        name: [text.format(part) for text in value] if isinstance(value, list) else value
        for name, value in otherwise.get(preset, {}).items()
        if name in presets[preset]
    }
    return {**presets[preset], **named, **given}


class StubMapping(_Mapping):
    """A producer's message table. Nothing is ever written there but what `rearm` names, at that level."""

    preset: (
        Literal["cap", "modulith", "modulith_archive", "eventuate", "debezium", "practice"] | None
    ) = None
    topics: _Names = Field(
        min_length=1, description="its topics: a list, or their name -> the topic's name here"
    )
    created_at: _Text = Field(
        default=CAPTURED_AT,
        description="the column of when a row was inserted, never changed later; captured: always captured_at",
    )
    sent: _States = Field(
        default=(), description="states that are only set after the broker has answered"
    )
    unsent: _States = Field(default=(), description="states in which its relay may still send")
    sent_when_set: _Text | None = Field(
        default=None, description="in place of states: a column that is empty until it is sent"
    )
    changes: tuple[_Text, ...] = Field(
        default=(),
        description="MongoDB: fields of which one changes for good when a row is sent again, besides `sent_when_set`",
    )
    slot: _Text | None = Field(
        default=None,
        description="captured: the replication slot of the relay that reads the database's log; what it is past was sent",
    )
    deleted_when_sent: bool = Field(
        default=False, description="captured: its relay deletes a row once the broker has answered"
    )
    wire_header: _Text = Field(
        default=ID_HEADER, description="the header that carries the id with the message"
    )
    lookback: Duration = Field(
        default=timedelta(days=7), description="rows that were created earlier are not read"
    )
    rearm: dict[_Text, str | int | None] = Field(
        default={},
        description="level rearm: the columns, and the values, that make a sent row one that its own relay sends again",
    )
    content: _Text | None = Field(
        default=None,
        description="level publish: the column of what is published; `column.field` takes a part of its JSON, as it is written",
    )
    headers: _Text | None = Field(
        default=None,
        description="level publish: the column, or the part, with a JSON object of headers that travel with it",
    )

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, given: Any) -> Any:
        return _with_preset(STUB_PRESETS, given, "published")

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.topic is None and len(self.topics) != 1:
            raise PydanticCustomError("topics", "exactly one in `topics`, where no column names it")
        if self.sent and self.state is None:
            raise PydanticCustomError("state", "with `sent`, the column `state`")
        if self.changes and self.dialect != "mongodb":
            raise PydanticCustomError(
                "changes", "with dialect: mongodb alone; others keep a version"
            )
        if self.slot is not None and self.deleted_when_sent:
            raise PydanticCustomError("slot", "one of `slot` and `deleted_when_sent`")
        if self.is_captured and self.dialect != "postgresql":
            says = "captured tables in PostgreSQL alone: elsewhere map one whose rows stay"
            raise PydanticCustomError("dialect", says)
        if self.is_captured:
            names = [self.message_id, self.topic or "", *self.only]
            if any("." in name for name in names) or self.only or len(self.tables) != 1:
                says = "captured: one table, plain columns, no `only`: a trigger must never fail the application's transaction"
                raise PydanticCustomError("message_id", says)
            if self.sent or self.state or self.sent_when_set or self.created_at != CAPTURED_AT:
                raise PydanticCustomError("state", "captured: neither states nor `created_at`")
        if set(self.sent) & set(self.unsent):
            raise PydanticCustomError("sent", "each state in one of `sent` and `unsent`")
        # A path leads into a document, which is one column.
        paths = (self.message_id, self.topic, self.content, self.headers)
        fixed = {path.split(".")[0] for path in paths if path is not None}
        if touched := sorted(set(self.rearm) & {*fixed, self.created_at, *self.only}):
            says = (
                f"other columns than {', '.join(touched)}: "
                "what names a message, or is sent with it, is never changed"
            )
            raise PydanticCustomError("rearm", says)
        return self

    @property
    def is_captured(self) -> bool:
        """Whether its rows go when they are sent, so that a trigger keeps what Backstop reads."""
        return self.slot is not None or self.deleted_when_sent

    @property
    def rearms(self) -> bool:
        """Whether `rearm` makes a sent row unsent, by what the mapping says of its states."""
        if self.sent_when_set is not None:
            return self.sent_when_set in self.rearm and self.rearm[self.sent_when_set] is None
        return self.state is not None and str(self.rearm.get(self.state)) in self.unsent

    @property
    def reads_ids_on_the_wire(self) -> bool:
        """Whether brokers' adapters find the id of such a message, where it waits or died."""
        return self.wire_header == ID_HEADER

    @property
    def knows_when_sent(self) -> bool:
        """Whether a row ever says that the broker has it."""
        return bool(self.sent) or self.sent_when_set is not None or self.is_captured


class LogMapping(_Mapping):
    """A consumer's inbox: a row says that a group received, or did, a message. Nothing is ever written there."""

    preset: Literal["cap", "modulith", "modulith_archive", "eventuate", "dedup_listener"] | None = (
        None
    )
    topics: _Names = Field(
        default={}, description="their name -> the topic's name here; others are called the same"
    )
    ids: Literal["unique_across_topics"] | None = Field(
        default=None,
        description="of a group with several topics and no column `topic`: two messages of different topics never have the same id",
    )
    group: _Text | None = Field(
        default=None, description="the column of the group; null: all rows are of one group"
    )
    groups: dict[_Text, _Text] = Field(
        default={}, description="a group's name here -> theirs; others are called the same"
    )
    received_at: _Text | None = Field(default=None, description="the column of its first receipt")
    done_at: _Text | None = Field(default=None, description="the column of when it was done")
    done: _States = Field(default=(), description="states that say that the work is done")
    working: _States = Field(
        default=(), description="states in which it may still be done without a new copy"
    )
    failed: _States = Field(default=(), description="states in which nobody goes on with it")
    done_when_set: _Text | None = Field(
        default=None, description="in place of states: a column that is empty until it is done"
    )

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, given: Any) -> Any:
        return _with_preset(LOG_PRESETS, given, "received")

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.done or self.working or self.failed) and self.state is None:
            raise PydanticCustomError("state", "with `done`, the column `state`")
        if self.state is not None and not self.done:
            raise PydanticCustomError("done", "with `state`, the states that say done")
        if self.kept is not None and self.kept < timedelta(hours=1):
            raise PydanticCustomError("kept", "at least 1h: sooner, nothing is proved by absence")
        return self

    def topic_of(self, theirs: str) -> str | None:
        """A topic's name here, by what the table calls it; `None` if no topic here is called that there."""
        if theirs in self.topics:
            return self.topics[theirs]
        return None if theirs in self.topics.values() else theirs

    def names_of(self, topic: str) -> list[str]:
        """What the table calls a topic, by the same rule. Empty if that name is another topic's there and the mapping gives no other
        one: the table says nothing about this topic. Without a column for the topic, rows are found by id alone."""
        if self.topic is None:
            return [topic]
        return [
            theirs
            for theirs in dict.fromkeys([*self.topics, topic])
            if self.topic_of(theirs) == topic
        ]
