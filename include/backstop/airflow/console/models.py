"""What several pages of the API answer, by name and type; the rest stands with its page. A name stays: other programs read it."""

from datetime import datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

# No postponed annotations: FastAPI and Pydantic read them.
Row = TypeVar("Row")


class Answer(BaseModel):
    """Anything that the API answers."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Page(Answer, Generic[Row]):
    """One page of a list."""

    items: list[Row]
    next: str | None = Field(description="`after` of the next page; null: this is the last one")


class Rows(Answer):
    """Where the rows are that a number counts."""

    list: str = Field(description="the list's path below /backstop/api/v1")
    filter: str


class Problem(Answer):
    """Why a request was not answered."""

    what: str
    unaffected: str
    next_step: str


class Action(Answer):
    """Something that the visitor may do, or not, and how."""

    name: str
    allowed: bool
    why_not: str | None
    method: str = Field(
        default="",
        description="how it is asked for; empty: the entry only says whether it is allowed",
    )
    href: str = ""
    body: dict[str, Any] = Field(
        default={}, description="what is sent; the caller fills in `why` where it is empty"
    )


class Pause(Answer):
    """A pause in force; topic `*`: everything."""

    topic: str
    paused_at: datetime
    paused_by: str
    why: str


class TimelineEvent(Answer):
    """Something that happened to a message."""

    at: datetime
    kind: str
    group: str | None
    text: str
    details: dict[str, Any]


class MessageDelivery(Answer):
    """One group's part in a message."""

    group: str
    owed: bool
    verdict: str | None
    reason: str | None
    evidence: str
    next_step: str | None
    log: dict[str, Any] | None


class Story(Answer):
    """Where is my message?"""

    topic: str
    message_id: str
    found: bool
    sentence: str
    shards: list[str]
    stub: dict[str, Any] | None
    deliveries: list[MessageDelivery]
    timeline: list[TimelineEvent]
    attempts: list[dict[str, Any]]
    requests: list[dict[str, Any]]
    dead_letters: list[dict[str, Any]]
    cases: list[dict[str, Any]]
    decisions: list[dict[str, Any]]
    quarantine: list[dict[str, Any]]
    anomalies: list[dict[str, Any]]
    searched: list[str]
    unreachable: dict[str, str] = Field(
        description="what did not answer: it is never taken as `not there`"
    )
    actions: list[Action]


class Form(Answer):
    """Where Airflow takes the answer: PATCH with `chosen_options` and `params_input`."""

    href: str
    page: str
    options: list[str]
    fields: list[str]


class DeadLetterRow(Answer):
    """A dead letter in the list."""

    dead_letter: int
    broker: str
    queue: str
    topic: str | None
    group: str | None
    message_id: str | None
    state: str
    category: str | None
    cause: int | None
    classified_by: str | None
    decision: str | None
    reason: str | None
    decided_by: str | None
    decided_at: datetime | None
    case: int | None
    deliveries: int | None
    content_bytes: int
    died_at: datetime | None
    drained_at: datetime
    invalid: bool


class Changed(Answer):
    """Whether something was changed."""

    changed: bool


class WhyRead(BaseModel):
    """Why a content is read; it is kept with who read it."""

    model_config = ConfigDict(extra="forbid")
    why: str = Field(default="", max_length=10_000, pattern=r"^[^\x00]*$")
