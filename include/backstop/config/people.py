"""Who may decide what: people of the whole platform, rules for single actions and topics, and teams that see their own cases."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Any, Literal
from unicodedata import normalize

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from backstop.config.durations import Duration

Action = Literal[
    "leave",
    "discard",
    "void",
    "raise",
    "resend",
    "go_on",
    "give_up",
    "replay",
    "replay_sample",
    "edit",
    "accept",
    "drained",
    "release",
    "edit_head",
    "discard_head",
    "discard_key",
]
"""What a person may decide; backstop.decisions.actions says what each does. A list of ids is a `resend`, an incident a
`replay`."""
TakesTwo = Literal[
    "edit",
    "void",
    "raise",
    "discard",
    "resend",
    "replay",
    "replay_sample",
    "edit_head",
    "discard_head",
    "discard_key",
]
"""Answers to a case that the policy may have two people give."""
_Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00]+$")]


class Decider(BaseModel):
    """One person. Written as plain text it is the id alone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: _Name = Field(
        description="by which Airflow's auth manager knows the user: a number in FAB's, a login in its simple one"
    )
    name: _Name | None = Field(
        default=None,
        description="the login, by which Airflow knows who triggered a run; null: as the id where ids are logins, else unknown",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, int):
            says = 'an id as text, in quotes, or {id: "...", name: the login}'
            raise PydanticCustomError("decider", "{says}", {"says": says})
        return {"id": value} if isinstance(value, str) else value


class DeciderRule(BaseModel):
    """Who alone may decide these actions in these topics."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    actions: tuple[Action, ...] = Field(default=(), description="empty: every action")
    topics: tuple[_Name, ...] = Field(default=(), description="empty: every topic")
    deciders: tuple[Decider, ...] = Field(min_length=1, description="ids, or {id, name}")


TEAM = r"^[a-z0-9][a-z0-9_-]{0,63}$"


class Team(BaseModel):
    """People who see the questions of their topics in a DAG of their own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=TEAM)] = Field(description="the DAG is decide_case__<name>")
    topics: tuple[_Name, ...] = Field(min_length=1, description="each is of one team at most")
    role: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        default=None,
        description="the role of FAB that may read the DAG and answer there; null: nothing is added",
    )


class PeopleSettings(BaseModel):
    """Who decides cases in Airflow, and how many are asked about at once."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    deciders: tuple[Decider, ...] | None = Field(
        default=None,
        min_length=1,
        description="the Airflow users who may decide, as ids or {id, name}; null: whoever Airflow lets answer (its simple auth "
        "manager: role op), and what is triggered by hand needs somebody's yes",
    )
    rules: tuple[DeciderRule, ...] = Field(
        default=(),
        description="who may decide single actions and topics; the first that fits decides, before `deciders`",
    )
    second_person: tuple[Literal[TakesTwo, "full_replay"], ...] = Field(
        default=("edit", "void", "full_replay", "raise", "edit_head"),
        description="what one person proposes and another approves; full_replay: all of an incident; raise: beyond raise_alone;"
        " edit_head, discard_head, discard_key: of a parked ordering key",
    )
    raise_alone: Annotated[int, Field(ge=0, le=100, strict=True)] = Field(
        default=10,
        description="so many more sends of a message one person may allow alone, with what was allowed beyond the policy before",
    )
    proposals_lapse_after: Duration = Field(
        default=timedelta(days=3),
        description="a proposal that nobody approved or rejected by then ends, and a new content in it is forgotten",
    )
    questions: Annotated[int, Field(ge=0, le=200, strict=True)] = Field(
        default=10,
        description="cases asked about at once, the most severe first; critical ones twice as many; 0: only by command line",
    )

    def who_may(self, action: str, topic: str) -> tuple[Decider, ...] | None:
        """Those who alone may decide this; null: nobody was named."""
        for rule in self.rules:
            if (not rule.actions or action in rule.actions) and (
                not rule.topics or topic in rule.topics
            ):
                return rule.deciders
        return self.deciders

    def is_same(self, one: str, other: str) -> bool:
        """Whether two names are one person's: alike, or the id and the name of one decider."""
        return self._known_as(one) == self._known_as(other)

    def number_of(self, deciders: Iterable[Decider]) -> int:
        """How many people these are."""
        return len({self._known_as(one.id) for one in deciders})

    def _known_as(self, name: str) -> str:
        name = _folded(name)
        for decider in (
            *(self.deciders or ()),
            *(one for rule in self.rules for one in rule.deciders),
        ):
            if name in (_folded(decider.id), _folded(decider.name or decider.id)):
                return _folded(decider.id)
        return name


def _folded(name: str) -> str:
    """Airflow and a database may write one name with other code points."""
    return normalize("NFKC", name).strip().casefold()
