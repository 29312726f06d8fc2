"""What is in force."""

from pydantic import Field

from backstop.airflow.console import models as m
from backstop.airflow.console.parameters import (
    Routes,
    Visiting,
    asking_stores,
)
from backstop.airflow.console.visit import require
from backstop.config.settings import Settings

# No postponed annotations: FastAPI and Pydantic read them.


class Setting(m.Answer):
    """One setting of the policy, and which part of backstop.yaml it comes from."""

    name: str
    value: str
    source: str
    description: str


class Policies(m.Answer):
    """The effective policy of one topic and group."""

    topic: str
    group: str
    settings: list[Setting]


class EffectiveSettings(m.Answer):
    """What is in force."""

    version: str
    policies: list[Policies]


class SystemFinding(m.Answer):
    """One finding of `backstop check`."""

    subject: str
    good: bool
    says: str
    do: str = Field(description="what to do about it; empty where it is good")


class CheckedSystem(m.Answer):
    """What `backstop check` finds, asked from Airflow's server with the connections that it has."""

    good: bool
    findings: list[SystemFinding]


def show_settings(visited: Visiting) -> EffectiveSettings:
    """The policy in force for each topic and group, and which part of backstop.yaml each value comes from."""
    policies = [
        _policies(visited.settings, topic, group)
        for topic in visited.topics
        for group in visited.settings.groups_of(topic)
    ]
    return EffectiveSettings(version=visited.settings.version, policies=policies)


def check_system(visited: Visiting) -> CheckedSystem:
    """What `backstop check` finds: every store and broker is asked, with the connections of Airflow's server. For who sees every
    topic."""
    from backstop.airflow.control_room import READING
    from backstop.reports.check_system import find

    require(visited.check().why_not)
    known = visited.room.connections
    with asking_stores():
        found = list(find(visited.settings, known, lambda _: None, READING))
    return CheckedSystem(
        good=all(one.good for one in found),
        findings=[
            SystemFinding(
                subject=one.subject,
                good=one.good,
                says=known.hide(one.says),
                do="" if one.good else known.hide(one.do),
            )
            for one in found
        ],
    )


def _policies(settings: Settings, topic: str, group: str) -> Policies:
    """Made once for each version of the settings: there are a thousand lines of them where topics are many."""
    from backstop.reports.effective_policy import effective_policy

    if settings.version not in _made_policies:
        _made_policies.clear()
        _made_policies[settings.version] = {}
    known = _made_policies[settings.version]
    if (topic, group) not in known:
        lines = [Setting(**one) for one in effective_policy(settings, topic, group)]
        known[topic, group] = Policies(topic=topic, group=group, settings=lines)
    return known[topic, group]


_made_policies: dict[str, dict[tuple[str, str], Policies]] = {}


ROUTES: Routes = (
    ("GET", "/settings", show_settings),
    ("GET", "/check", check_system),
)
