"""Who asks, and what they may do."""

from backstop.airflow.console import models as m
from backstop.airflow.console.parameters import (
    Routes,
    Visiting,
)
from backstop.decisions.actions import ACTIONS

# No postponed annotations: FastAPI and Pydantic read them.


class Topic(m.Answer):
    """A topic that the visitor sees, and what they may do with it."""

    topic: str
    team: str | None
    mode: str
    groups: list[str]
    actions: list[m.Action]


class Me(m.Answer):
    """Who asks, as Airflow knows them, and what they may do."""

    id: str
    name: str
    topics: list[Topic]
    actions: list[m.Action]


def show_me(visited: Visiting) -> Me:
    """Who you are to Airflow, the topics that you see, and what you may do with each."""
    teams = visited.settings.teams_by_topic()
    topics = []
    for topic in visited.topics:
        # Every answer that some case may take, by the kinds of cases that there are.
        answers = [name for name in ACTIONS if name not in ("approve", "reject")]
        may = [
            m.Action(
                name=f"answer_{name}",
                allowed=(why := visited.why_not_decide(name, topic)) is None,
                why_not=why,
            )
            for name in answers
        ]
        may += [
            visited.resend(topic, []),
            visited.plan_replay(topic),
            visited.pause(topic),
            visited.resume(topic),
            visited.read_contents(topic),
        ]
        topics.append(
            Topic(
                topic=topic,
                team=teams.get(topic),
                mode=visited.settings.topics[topic].mode,
                groups=list(visited.settings.groups_of(topic)),
                actions=may,
            )
        )
    runs = [
        m.Action(
            name=f"see_runs_of_{duty}",
            allowed=duty in seen,
            why_not=None if duty in seen else f"Airflow hides {duty}.",
        )
        for seen in [set(visited.duties())]
        for duty in ("reconcile", "resend", "sweep", "triage", "watch", "prove")
    ]
    return Me(
        id=visited.visitor.id,
        name=visited.visitor.name,
        topics=topics,
        actions=[*runs, visited.pause("*"), visited.resume("*"), visited.check()],
    )


ROUTES: Routes = (("GET", "/me", show_me),)
