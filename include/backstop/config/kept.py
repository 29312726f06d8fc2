"""How long each kind of thing is kept, by topic, from the policy in force; refuses a policy that would forget too soon.

The settings are checked when they are loaded. It is asked again here, of the values that the purge is about to use: what is
purged too soon is done twice by the copy that comes after.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from backstop.config.constraints import broken_rules
from backstop.config.policy import Policy
from backstop.config.settings import Settings
from backstop.model.errors import ConfigurationError

_RULES = ("log_retention", "stub_retention", "control_retention", "dead_letter_retention")


def require_safe(settings: Settings) -> None:
    """Raises ConfigurationError when something would be purged while a copy of it may still come."""
    for topic, owner in settings.topics.items():
        for group in (None, *owner.groups):
            policy = settings.policy_for(topic, group)
            broken = [
                f"{name} must be {allowed}"
                for name, allowed in broken_rules(policy)
                if name in _RULES
            ]
            if broken:
                raise ConfigurationError(
                    f"The policy of {topic}{f' for {group}' if group else ''} would forget too soon: {'; '.join(broken)}.",
                    unaffected="Nothing was purged.",
                    next_step="Lengthen it in backstop.yaml; what is kept longer harms nothing.",
                )


def logs_kept(settings: Settings, group: str) -> dict[str, timedelta]:
    """By topic, how long the group's logs are kept."""
    return {
        topic: settings.policy_for(topic, group).log_retention
        for topic in settings.topics_of(group)
    }


def stubs_kept(settings: Settings, topic: str) -> timedelta:
    """How long the topic's closed stubs are kept: by the longest of its groups' policies."""
    return max(policy.stub_retention for policy in _policies(settings, topic))


def no_taker_kept(settings: Settings, topic: str) -> timedelta:
    """How old a stub without a taker must be: until then a group may come back to it."""
    return max(policy.replay_horizon for policy in _policies(settings, topic))


def control_kept(settings: Settings) -> timedelta:
    """How long the control database keeps what is over; its rows belong to runs over all topics."""
    return max(_or_stubs(policy.control_retention, policy) for policy in _all(settings))


def dead_letters_kept(settings: Settings) -> dict[str, timedelta]:
    """By topic, how long decided dead letters are kept; '' stands for letters of no configured topic."""
    return _by_topic(settings, "dead_letter_retention")


def contents_kept(settings: Settings) -> dict[str, timedelta]:
    """By topic, how long the content of what is over is kept, where that is less than the letter itself."""
    letters = dead_letters_kept(settings)
    return {
        topic: kept
        for topic, kept in _by_topic(settings, "content_retention").items()
        if kept < letters.get(topic, letters[""])
    }


def _by_topic(settings: Settings, name: str) -> dict[str, timedelta]:
    kept = {
        topic: max(_or_dead_letters(policy, name) for policy in _policies(settings, topic))
        for topic in settings.topics
    }
    return {**kept, "": max(_or_dead_letters(policy, name) for policy in _all(settings))}


def _or_dead_letters(policy: Policy, name: str) -> timedelta:
    """The setting, else what stands in for it: the letters' time for contents, the stubs' for letters."""
    letters = _or_stubs(policy.dead_letter_retention, policy)
    if name == "dead_letter_retention":
        return letters
    return letters if policy.content_retention is None else policy.content_retention


def _or_stubs(written_value: timedelta | None, policy: Policy) -> timedelta:
    return policy.stub_retention if written_value is None else written_value


def _policies(settings: Settings, topic: str) -> list[Policy]:
    return [settings.policy_for(topic, group) for group in (None, *settings.groups_of(topic))]


def _all(settings: Settings) -> Iterable[Policy]:
    return [
        settings.policy_for(),
        *(policy for topic in settings.topics for policy in _policies(settings, topic)),
    ]
