"""What one request works with: who asks, what they may see and do, and a connection that only reads.

Everything about permission that the API asks is here; Airflow's own answers come with the visitor (backstop.airflow.access).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from fastapi import HTTPException, Request

from backstop.airflow import control_room as control
from backstop.airflow.access import Visitor
from backstop.airflow.console.models import Action
from backstop.airflow.control_room import Room, control_room, reading_room
from backstop.airflow.decide_case import DAG, dag_for
from backstop.airflow.deciders import may_decide, may_trigger
from backstop.airflow.links import base_url
from backstop.duties import names
from backstop.model.id_list import fits_a_line
from backstop.reports.console import Sight
from backstop.reports.filters import NONE

RESEND, REPLAY = "resend", "replay_incident"
READ_ONLY = ("GET", "HEAD", "OPTIONS")
NOT_FOUND = "There is nothing of that name here, or it belongs to another team."


class Visit:
    """The visitor, the settings, and a connection to the control database for as long as the request lasts."""

    def __init__(self, visitor: Visitor, room: Room) -> None:
        self.visitor, self.room, self.settings = visitor, room, room.settings
        teams = self.settings.teams_by_topic()
        others = visitor.may_read(DAG)
        # Asked once for each DAG: some auth managers ask a database each time.
        dags = {topic: dag_for(self.settings, topic) for topic in teams}
        may_read = {dag: visitor.may_read(dag) for dag in set(dags.values())}
        readable = [topic for topic, dag in dags.items() if may_read[dag]]
        everything = others and len(readable) == len(teams)
        self.sight = Sight() if everything else Sight(list(teams), readable, others)
        self._asked: dict[tuple[object, ...], bool] = {}
        self.topics = [topic for topic in self.settings.topics if self.sight.sees(topic)]

    @property
    def conn(self) -> Any:
        """The connection that reads."""
        return self.room.control

    def require_sees(self, topic: str | None) -> None:
        """404 for what belongs to another team."""
        if not self.sight.sees(topic):
            raise HTTPException(404, NOT_FOUND)

    def duties(self) -> list[str]:
        """The duties whose runs Airflow shows the visitor: those of a duty are for who may read its DAG."""
        return [duty for duty in DUTIES if self.visitor.may_read(DAG_OF.get(duty, duty))]

    def _ask(self, key: tuple[object, ...], question: Callable[[], bool]) -> bool:
        """Airflow's answer, asked for once in a request: some auth managers ask a database each time."""
        if key not in self._asked:
            self._asked[key] = question()
        return self._asked[key]

    def may_answer(self, dag: str) -> bool:
        """Whether Airflow lets the visitor answer what runs of this DAG ask."""
        return self._ask(("answer", dag), lambda: self.visitor.may_answer(dag))

    def may_run(self, dag: str) -> bool:
        """Whether Airflow lets the visitor start runs of this DAG."""
        return self._ask(("run", dag), lambda: self.visitor.may_run(dag))

    def why_not_decide(self, action: str, topic: str) -> str | None:
        """Why the visitor may not answer a case of the topic so; null: they may."""
        if not self.sight.sees(topic):
            return NOT_FOUND
        dag = dag_for(self.settings, topic)
        if not self.may_answer(dag):
            return f"Airflow does not let you answer what {dag} asks."
        # The answer depends on who is named, which is the same for most actions and topics.
        named = self.settings.people.who_may(action, topic)
        if not self._ask(
            ("decide", named), lambda: may_decide(self.settings, self.visitor.id, action, topic)
        ):
            return f"`people` in backstop.yaml names others who may {action} in {topic}, or your role is below op."
        return None

    def why_not_run(self, dag: str, action: str, topic: str) -> str | None:
        """Why the visitor may not start a run of this DAG that acts on the topic in their name; null: they may."""
        if not self.may_run(dag):
            return f"Airflow does not let you start runs of {dag}."
        named = self.settings.people.who_may(action, topic)
        if not self._ask(
            ("trigger", named), lambda: may_trigger(self.settings, self.visitor.name, action, topic)
        ):
            return f"`people` in backstop.yaml does not name you for {action} in {topic}."
        return None

    def why_not_pause(self, topic: str) -> str | None:
        """Why the visitor may not pause a topic, or everything (`*`); null: they may."""
        if topic == "*" and len(self.topics) < len(self.settings.topics):
            return "Everything is more than your team's topics."
        if not self.may_run(RESEND):
            return f"Airflow does not let you start runs of {RESEND}."
        return None

    def why_not_resume(self, topic: str) -> str | None:
        """Why the visitor may not go on with a topic, or everything (`*`); null: they may. Whoever may start runs can stop sends;
        what was stopped goes out again when somebody says so who may decide that it does."""
        if why_not := self.why_not_pause(topic):
            return why_not
        for one in self.topics if topic == "*" else [topic]:
            named = self.settings.people.who_may("resend", one)
            if not self._ask(
                ("decide", named),
                partial(may_decide, self.settings, self.visitor.id, "resend", one),
            ):
                return f"`people` in backstop.yaml names others who may resend in {one}, or your role is below op."
        return None

    def why_not_read(self, topic: str | None) -> str | None:
        """Why the visitor may not read contents of the topic; null: they may. Whoever may change a content may read it."""
        return self.why_not_decide("edit", topic or "*")

    def resend(self, topic: str, message_ids: list[str]) -> Action:
        """How the visitor asks for sends of these messages: a run of the DAG in their name."""
        why_not = self.why_not_run(RESEND, "resend", topic)
        if why_not is None and not self.settings.is_repaired(topic):
            why_not = f"{topic} is in mode observe, in which nothing is ever sent."
        if why_not is None and not all(map(fits_a_line, message_ids)):
            why_not = "An id with a line break cannot be given in a list; answer its case instead."
        body = {
            "logical_date": None,
            "conf": {"topic": topic, "ids": "\n".join(message_ids), "why": ""},
        }
        return Action(
            name="resend",
            allowed=why_not is None,
            why_not=why_not,
            method="POST",
            href=f"/api/v2/dags/{RESEND}/dagRuns",
            body=body,
        )

    def plan_replay_of(self, wanted: Mapping[str, Any]) -> Action:
        """The same for all dead letters that a filter matches, as it was read."""
        topic = wanted["topic"]
        why_not = None
        if topic is None:
            why_not = "Name one topic in the filter: a plan is of one topic."
        elif topic == "*" or wanted["group"] == "*":
            why_not = "A plan is of messages whose topic and group are known."
        elif wanted["state"] != "open":
            why_not = "Only open dead letters are sent again: filter by state:open."
        elif wanted["id"] is not None:
            why_not = "For one message, open it and resend it there, or answer its case."
        elif wanted["cause"] == 0 or wanted["category"] == NONE:
            why_not = (
                "Leave cause:none and category:none out: triage classifies a dead letter first."
            )
        if why_not is not None:
            return Action(name="plan_replay", allowed=False, why_not=why_not)
        since = None if wanted["since"] is None else datetime.now(UTC) - wanted["since"]
        return self.plan_replay(
            topic,
            group=wanted["group"],
            causes=None if wanted["cause"] is None else [wanted["cause"]],
            category=wanted["category"],
            case=wanted["case"],
            **{"from": None if since is None else since.isoformat()},
        )

    def why_not_approve(self, topic: str) -> str | None:
        """Why the visitor may not say yes or no to a plan of the topic; null: they may."""
        if not self.may_answer(REPLAY):
            return f"Airflow does not let you answer what {REPLAY} asks."
        named = self.settings.people.who_may("replay", topic)
        if not self._ask(
            ("decide", named),
            lambda: may_decide(self.settings, self.visitor.id, "replay", topic),
        ):
            return f"`people` in backstop.yaml names others who may replay {topic}, or your role is below op."
        return None

    def plan_replay(self, topic: str, **wanted: object) -> Action:
        """How the visitor has a replay of all dead letters that match planned, shown and approved. In mode `full` the plan is always
        shown; with `canary` a few within the blast radius go at once where the visitor may decide that."""
        why_not = (
            None if self.may_run(REPLAY) else f"Airflow does not let you start runs of {REPLAY}."
        )
        if why_not is None and not self.settings.is_repaired(topic):
            why_not = f"{topic} is in mode observe, in which nothing is ever sent."
        conf = {
            "topic": topic,
            "verdicts": ["DEAD_LETTERED"],
            "mode": "full",
            "why": "",
            **{name: value for name, value in wanted.items() if value is not None},
        }
        return Action(
            name="plan_replay",
            allowed=why_not is None,
            why_not=why_not,
            method="POST",
            href=f"/api/v2/dags/{REPLAY}/dagRuns",
            body={"logical_date": None, "conf": conf},
        )

    def pause(self, topic: str) -> Action:
        """Whether the visitor may pause."""
        why_not = self.why_not_pause(topic)
        return Action(
            name="pause",
            allowed=why_not is None,
            why_not=why_not,
            method="POST",
            href="/backstop/api/v1/pauses",
            body={"topic": topic, "why": ""},
        )

    def resume(self, topic: str) -> Action:
        """Whether the visitor may end a pause."""
        why_not = self.why_not_resume(topic)
        return Action(
            name="resume",
            allowed=why_not is None,
            why_not=why_not,
            method="POST",
            href="/backstop/api/v1/pauses/end",
            body={"topic": topic},
        )

    def check(self) -> Action:
        """Whether the visitor may have the whole installation checked."""
        why_not = None
        if len(self.topics) < len(self.settings.topics) or self.sight.of_teams is not None:
            why_not = "The findings are about every team's stores, brokers and topics."
        return Action(
            name="check",
            allowed=why_not is None,
            why_not=why_not,
            method="GET",
            href="/backstop/api/v1/check",
        )

    def check_edit(self, topic: str, dead_letter: int) -> Action:
        """Whether the visitor may have a new content compared before they send it."""
        why_not = self.why_not_read(topic)
        return Action(
            name="check_edit",
            allowed=why_not is None,
            why_not=why_not,
            method="POST",
            href=f"/backstop/api/v1/dead-letters/{dead_letter}/check",
            body={"content": ""},
        )

    def read_contents(self, topic: str | None, dead_letter: int | None = None) -> Action:
        """Whether the visitor may read contents."""
        why_not = self.why_not_read(topic)
        href = "" if dead_letter is None else f"/backstop/api/v1/dead-letters/{dead_letter}/content"
        method = "POST" if href else ""
        return Action(
            name="read_contents", allowed=why_not is None, why_not=why_not, method=method, href=href
        )


DUTIES = names()
DAG_OF = {"incident": REPLAY}
"""The DAG of a duty that has another name."""


@contextmanager
def visit(visitor: Visitor) -> Iterator[Visit]:
    """The reading connection is given back at the end, for the next visit."""
    with reading_room() as room:
        yield Visit(visitor, room)


@contextmanager
def writing() -> Iterator[Room]:
    """For what changes something, or reads contents: the duties' login, as the tasks that people start have. Its statements end as
    early as those of pages."""
    from backstop.control.connection import limit_statements

    with control_room() as room:
        limit_statements(room.control, control.READING)
        yield room


def require(why_not: str | None) -> None:
    """403 with the reason, where there is one."""
    if why_not is not None:
        raise HTTPException(403, why_not)


def same_origin(request: Request) -> None:
    """403 for a change that another site's page asked for with the visitor's cookie; 415 for one that is no JSON.

    A page of another origin can send neither this content type nor a false Origin without asking first, and nothing here answers
    such a question. Who sends a token of their own instead of the cookie is not a page.
    """
    if request.method in READ_ONLY:
        return
    if (
        request.headers.get("content-type", "").partition(";")[0].strip().lower()
        != "application/json"
    ):
        raise HTTPException(415, "Send application/json.")
    if request.headers.get("authorization", "").lower().startswith("bearer "):
        return
    origin = request.headers.get("origin")
    if request.headers.get(
        "sec-fetch-site", "same-origin"
    ) != "same-origin" or origin not in _own_origins(request):
        raise HTTPException(403, "This request comes from another site.")


def _own_origins(request: Request) -> set[str]:
    host = request.headers.get("host", "")
    own = {f"{request.url.scheme}://{host}"} if host else set()
    if configured := base_url():
        parts = urlsplit(configured)
        own.add(f"{parts.scheme}://{parts.netloc}")
    return own
