"""Asks every rule about every topic and group that was looked at."""

from __future__ import annotations

from collections.abc import Mapping

from backstop.config.policy import Policy
from backstop.config.settings import Settings
from backstop.evidence.sources import Sources
from backstop.watch import rules
from backstop.watch.sample_groups import History, lag
from backstop.watch.samples import Answer, Limits

Yardsticks = Mapping[tuple[str, str, str], float]
"""(rule, topic, group) of a finding that is open -> what was usual when it began."""


def judge(sources: Sources, history: History, yardsticks: Yardsticks) -> list[Answer]:
    """The rules' answers; a rule that cannot tell gives none."""
    settings = sources.settings
    answers: list[Answer | None] = []
    for topic, looks in history.topics.items():
        if topic not in settings.topics or not looks:
            continue
        limits = limits_of(settings, settings.policy_for(topic))
        capabilities = sources.broker(settings.topics[topic].broker).capabilities
        if capabilities.has_offsets and capabilities.knows_queue_of_send:
            answers.append(
                rules.offsets_stopped(
                    topic, looks, limits, yardsticks.get(("offsets_stopped", topic, "*"))
                )
            )
        answers.append(rules.stubs_stopped(topic, looks, limits))
    for (topic, group), seen in history.groups.items():
        if topic not in settings.topics or group not in settings.topics[topic].groups or not seen:
            continue
        limits = limits_of(settings, settings.policy_for(topic, group))
        stored = history.topics.get(topic, [])
        sent_again = [
            look.resent
            for look in stored
            if look.taken_at > seen[-1].taken_at - 2 * limits.window - limits.lag
        ]
        resent = (
            None
            if any(number is None for number in sent_again)
            else sum(number or 0 for number in sent_again)
        )
        filtered = settings.topics[topic].groups[group].tags is not None
        answers.append(rules.backlog_age(topic, group, seen, limits))
        if settings.groups[group].progress != "logged":
            # Progress that is derived from the logs cannot go on without them: such a group stands still.
            usual = yardsticks.get(("logging_stopped", topic, group))
            answers.append(
                rules.logging_stopped(topic, group, seen, resent, filtered, limits, usual)
            )
        if stored and stored[-1].taken_at == seen[-1].taken_at:
            answers.append(rules.group_stands(topic, group, stored, seen, limits))
    return [answer for answer in answers if answer is not None]


def limits_of(settings: Settings, policy: Policy) -> Limits:
    return Limits(
        retention=policy.broker_retention,
        retention_warn=policy.retention_warn,
        window=policy.watch_window,
        floor=policy.watch_floor,
        lag=lag(settings),
        consume_timeout=policy.consume_timeout,
    )
