"""What settings must satisfy together; each broken rule is a line `path: value; allowed: ...`.

A policy that breaks one could call a message lost that still comes, or send one again while its first copy lives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import get_args

from backstop.config.durations import written
from backstop.config.foreign import DedupListenerMysql, PlainKeys
from backstop.config.mapped import LogMapping
from backstop.config.people import TakesTwo
from backstop.config.policy import Policy
from backstop.config.settings import Settings

HIDDEN = "(not shown)"
"""Stands for a value that may hold a password."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, as it is printed: a URL never is."""

    path: str
    value: str
    allowed: str

    def __str__(self) -> str:
        value = HIDDEN if "://" in self.value else self.value
        return f"{self.path}: {value}; allowed: {self.allowed}"


def problems(settings: Settings) -> list[Problem]:
    """Everything that is wrong with settings of the right shape, each once."""
    found = [*_references(settings), *_redis_guards(settings)]
    for topic, topic_settings in settings.topics.items():
        known: list[str | None] = [
            group for group in topic_settings.groups if group in settings.groups
        ]
        for group in [None, *known]:
            policy = settings.policy_for(topic, group)
            for name, says in broken_rules(policy):
                found.append(_problem(settings, topic, group, name, policy, says))
            broker = settings.brokers.get(topic_settings.broker)
            limit = broker.options.get("delivery_limit") if broker is not None else None
            if (
                isinstance(limit, int)
                and (limit - policy.alert_attempts) * policy.retry_after < policy.sweep_interval
            ):
                says = f"so far below the broker's delivery_limit ({limit}) that a sweep looks before the broker gives up"
                found.append(_problem(settings, topic, group, "alert_attempts", policy, says))
            redelivers = broker.redelivers_for() if broker is not None else None
            if redelivers is not None:
                for name, says in broken_rules_of_redelivery(policy, redelivers):
                    found.append(_problem(settings, topic, group, name, policy, says))
    return list(dict.fromkeys(found))


def _references(settings: Settings) -> Iterator[Problem]:
    for name, broker in settings.brokers.items():
        longest = settings.shortest_send(name)
        written_limit = broker.send_timeout()
        if written_limit is not None and written_limit > longest:
            yield Problem(
                f"brokers.{name}.options.send_timeout",
                written(written_limit),
                f"at most max_send_duration of its topics ({written(longest)}): a later store would come after it was called lost",
            )
    if (
        settings.people.second_person
        and settings.people.deciders is not None
        and settings.people.number_of(settings.people.deciders) < 2
    ):
        yield Problem(
            "people.deciders",
            settings.people.deciders[0].id,
            f"two or more, or people.second_person without what takes two ({', '.join(settings.people.second_person)})",
        )
    if settings.schedule.on_demand:
        safety = settings.schedule.safety_interval
        for duty in ("reconcile", "resend", "sweep", "triage"):
            allowed = settings.watch.allowed_age.get(duty)
            if allowed is not None and allowed <= safety:
                says = f"more than schedule.safety_interval ({written(safety)}): an idle duty succeeds no more often"
                yield Problem(f"watch.allowed_age.{duty}", written(allowed), says)
    for place, rule in enumerate(settings.people.rules):
        takes_two = set(get_args(TakesTwo)) & set(settings.people.second_person)
        if settings.people.number_of(rule.deciders) < 2 and takes_two & set(
            rule.actions or takes_two
        ):
            yield Problem(
                f"people.rules.{place}.deciders",
                rule.deciders[0].id,
                "two or more for an action that takes two people (people.second_person)",
            )
        for topic in rule.topics:
            if topic not in settings.topics:
                yield Problem(
                    f"people.rules.{place}.topics",
                    topic,
                    f"some of topics: {', '.join(settings.topics)}",
                )
    taken: dict[str, str] = {}
    for place, team in enumerate(settings.teams):
        if any(team.name == other.name for other in settings.teams[:place]):
            yield Problem(f"teams.{place}.name", team.name, "a name that no other team has")
        for topic in team.topics:
            if topic not in settings.topics:
                yield Problem(
                    f"teams.{place}.topics", topic, f"some of topics: {', '.join(settings.topics)}"
                )
            elif taken.setdefault(topic, team.name) != team.name:
                yield Problem(
                    f"teams.{place}.topics", topic, f"a topic of one team: {taken[topic]} has it"
                )
            elif (
                team.role
                and settings.people.deciders is None
                and not any(topic in (rule.topics or [topic]) for rule in settings.people.rules)
            ):
                # Else whoever has the role could answer: it may edit the questions' DAG.
                says = "a topic that people.deciders or people.rules name somebody for, where the team has a role"
                yield Problem(f"teams.{place}.topics", topic, says)
    for group, owner in settings.groups.items():
        if owner.store not in settings.consumers:
            yield Problem(
                f"groups.{group}.store",
                owner.store,
                f"one of consumers: {', '.join(settings.consumers)}",
            )
        if owner.active_from and owner.active_until and owner.active_until <= owner.active_from:
            yield Problem(
                f"groups.{group}.active_until", str(owner.active_until), "after active_from"
            )
    for topic, topic_settings in settings.topics.items():
        if topic_settings.broker not in settings.brokers:
            yield Problem(
                f"topics.{topic}.broker",
                topic_settings.broker,
                f"one of brokers: {', '.join(settings.brokers)}",
            )
        for group, subscription in topic_settings.groups.items():
            begins = settings.groups[group].active_from if group in settings.groups else None
            if topic_settings.mode == "repair" and subscription.start_offsets and begins is None:
                # A message whose first place is not known is owed by when it was created.
                says = f"with groups.{group}.active_from, in mode repair"
                yield Problem(
                    f"topics.{topic}.groups.{group}.start_offsets", "no active_from", says
                )
            if group not in settings.groups:
                yield Problem(
                    f"topics.{topic}.groups", group, f"one of groups: {', '.join(settings.groups)}"
                )
    yield from _foreign_leases(settings)
    yield from _mapped(settings)
    # Two shards over one database would make every stub "one id on two shards".
    for shard, store in settings.producers.items():
        for other, theirs in settings.producers.items():
            if other == shard:
                break
            if theirs.connection == store.connection and not (store.mapping and theirs.mapping):
                yield Problem(
                    f"producers.{shard}.connection",
                    store.connection,
                    f"another one than that of {other}",
                )


def _foreign_leases(settings: Settings) -> Iterator[Problem]:
    for name, foreign in settings.foreign_leases.items():
        at = f"foreign_leases.{name}"
        if foreign.group not in settings.groups:
            yield Problem(
                f"{at}.group", foreign.group, f"one of groups: {', '.join(settings.groups)}"
            )
            continue
        store = settings.consumers.get(settings.groups[foreign.group].store)
        if store is not None and store.mapping is not None:
            says = "a group whose log is Backstop's own: a mapped log cannot say whether a lease may be taken back"
            yield Problem(f"{at}.group", foreign.group, says)
            continue
        taken = settings.topics_of(foreign.group)
        for topic in foreign.topics or ():
            if topic not in taken:
                yield Problem(
                    f"{at}.topics",
                    topic,
                    f"one of the topics of {foreign.group}: {', '.join(taken)}",
                )
        if not taken:
            yield Problem(f"{at}.group", foreign.group, "a group that takes at least one topic")
        if isinstance(foreign, DedupListenerMysql):
            continue
        topics = foreign.topics or taken
        if isinstance(foreign, PlainKeys) and not foreign.names_topic and len(topics) > 1:
            says = f"with {{topic}}, or one of these as the only topic: {', '.join(topics)}"
            yield Problem(f"{at}.pattern", foreign.pattern, says)
        # A handler works on a key without touching it: freed meanwhile, a second copy would begin beside it.
        policies = [settings.policy_for(topic, foreign.group) for topic in topics if topic in taken]
        longest = max(
            (policy.consume_timeout + policy.max_clock_skew for policy in policies),
            default=timedelta(0),
        )
        if isinstance(foreign, PlainKeys) and not foreign.success_deletes:
            # A key may say that the work is done: gone sooner, by either time, a copy that still comes would be done again.
            ways = [
                longest_way_back(settings.policy_for(topic, foreign.group))
                for topic in topics
                if topic in taken
            ]
            way = max(ways, default=timedelta(0))
            says = f"more than the longest way back ({written(way)}), or success_deletes: true where finished work has no key"
            for setting, length in (
                ("untouched_for", foreign.untouched_for),
                ("keep", foreign.keep),
            ):
                if length <= way:
                    yield Problem(f"{at}.{setting}", written(length), says)
        if foreign.untouched_for < longest:
            says = f"at least consume_timeout + max_clock_skew ({written(longest)})"
            yield Problem(f"{at}.untouched_for", written(foreign.untouched_for), says)


def _mapped(settings: Settings) -> Iterator[Problem]:
    """Tables of other programs: what is read of them may lead to a send only at a level that hands out numbers."""
    overlaid: dict[str, str] = {}
    for name, store in settings.producers.items():
        if store.mapping is None:
            continue
        at = f"producers.{name}.mapping"
        if (
            store.level != "observe"
            and (other := overlaid.setdefault(store.connection, name)) != name
        ):
            says = f"another one than that of {other}: its overlay would be the same tables"
            yield Problem(f"producers.{name}.connection", store.connection, says)
        for topic in store.mapping.topics.values():
            if topic not in settings.topics:
                says = f"some of topics: {', '.join(settings.topics)}"
                yield Problem(f"{at}.topics", topic, says)
            elif settings.topics[topic].mode == "repair" and not store.repairs:
                says = f"observe: {name} is a {store.kind} table of level {store.level}, which hands out no send numbers"
                yield Problem(f"topics.{topic}.mode", "repair", says)
            elif any(its.tags is not None for its in settings.topics[topic].groups.values()):
                says = f"groups that take every message: a row of {name} has no tag"
                yield Problem(f"topics.{topic}.groups", "tags", says)
            longest = settings.policy_for(topic if topic in settings.topics else None)
            if store.mapping.lookback <= longest.overdue_horizon:
                says = f"more than overdue_horizon ({written(longest.overdue_horizon)}), when a case is made of what is open"
                yield Problem(f"{at}.lookback", written(store.mapping.lookback), says)
    for name, log in settings.consumers.items():
        if log.mapping is None:
            continue
        # A name that is mistyped would leave the right one as it is, and no row of the group would be found.
        for field, named, known in (
            ("groups", log.mapping.groups, list(settings.groups)),
            ("topics", log.mapping.topics.values(), list(settings.topics)),
        ):
            for one in named:
                if one not in known:
                    says = f"some of {field}: {', '.join(known)}"
                    yield Problem(f"consumers.{name}.mapping.{field}", one, says)
        groups = [group for group, owner in settings.groups.items() if owner.store == name]
        if log.mapping.group is None and len(groups) > 1:
            says = "one group in this store, or the column `group`: a row of one would prove another's work"
            yield Problem(f"consumers.{name}.mapping", f"{len(groups)} groups", says)
        theirs = [log.mapping.groups.get(group, group) for group in groups]
        if len(set(theirs)) < len(theirs):
            says = "a name of its own for each group: a row of one would prove another's work"
            yield Problem(f"consumers.{name}.mapping.groups", ", ".join(sorted(theirs)), says)
        yield from _topics_of_log(settings, name, log.mapping, groups)
        for group in groups:
            if settings.groups[group].progress == "logged":
                says = "acknowledged or received: a mapped log has no offsets"
                yield Problem(f"groups.{group}.progress", "logged", says)
            if settings.groups[group].leases is not None:
                says = "none: the leases of a mapped log are not Backstop's"
                yield Problem(f"groups.{group}.leases", "given", says)
            for topic in settings.topics_of(group):
                policy = settings.policy_for(topic, group)
                yield from _late_lake(f"consumers.{name}.mapping.delay", log.mapping.delay, policy)
                why = _why_not(log.mapping, policy)
                if settings.topics[topic].mode == "repair" and why:
                    says = f"observe: the log of {group} is a mapped table ({why})"
                    yield Problem(f"topics.{topic}.mode", "repair", says)


def _topics_of_log(
    settings: Settings, name: str, mapping: LogMapping, groups: Sequence[str]
) -> Iterator[Problem]:
    """A row must be of one topic: else it would prove the work of another one's message with the same id."""
    at = f"consumers.{name}.mapping"
    for group in groups:
        topics = settings.topics_of(group)
        if mapping.topic is None and mapping.ids is None and len(topics) > 1:
            says = (
                f"one topic for {group}, the column `topic`, or `ids: unique_across_topics` if no two messages of different topics "
                "have one id: a row of one would prove another's work"
            )
            yield Problem(at, ", ".join(topics), says)
        for topic in topics:
            if not mapping.names_of(topic):
                says = f"what the table calls {topic} as well: its name {topic} is mapped to {mapping.topics[topic]}"
                yield Problem(f"{at}.topics", topic, says)


def _late_lake(at: str, delay: timedelta | None, policy: Policy) -> Iterator[Problem]:
    """What a lake denies is judged by progress that was recorded before its snapshot was complete."""
    most = (policy.progress_history - policy.redelivery_horizon) / 2
    if delay is not None and delay > most:
        says = f"at most half of progress_history less redelivery_horizon ({written(most)})"
        yield Problem(at, written(delay), says)


def _why_not(mapping: LogMapping, policy: Policy) -> str | None:
    """Why messages of a group with this log must not be sent again."""
    if mapping.is_lake:
        return "a lake cannot be asked again before a copy is sent"
    if mapping.dialect == "mongodb":
        return "collections in MongoDB are read for verdicts alone"
    if mapping.kept is not None and mapping.kept < policy.log_retention:
        return f"its rows stay {written(mapping.kept)}, and a copy can come for {written(policy.log_retention)}"
    return None


def longest_way_back(policy: Policy) -> timedelta:
    """How late a copy of a message can still come: by redelivery, by a resend, or replayed by hand."""
    p = policy
    return (
        p.replay_horizon
        + p.longest_delay
        + p.broker_retention
        + p.redelivery_horizon
        + p.max_clock_skew
    )


def _redis_guards(settings: Settings) -> Iterator[Problem]:
    for name, guard in settings.redis_guards.items():
        if name in settings.groups:
            yield Problem(
                f"redis_guards.{name}",
                name,
                "another name than any of groups: its leases are in one place",
            )
        policy = Policy().with_overrides(settings.policy, guard.policy)
        if guard.consumed_for <= longest_way_back(policy):
            yield Problem(
                f"redis_guards.{name}.consumed_for",
                written(guard.consumed_for),
                "more than replay_horizon + longest_delay + broker_retention + redelivery_horizon + max_clock_skew "
                f"({written(longest_way_back(policy))}): a later copy would be done again",
            )


def broken_rules(policy: Policy) -> Iterator[tuple[str, str]]:
    """(setting, what is allowed) for each rule that the policy breaks."""
    p = policy
    skew = p.max_clock_skew
    backoffs = sum(
        (p.backoff(n) * (1 + p.backoff_jitter) for n in range(1, p.max_sends)), timedelta(0)
    )
    rules: list[tuple[bool, str, str, timedelta]] = [
        (p.max_clock_skew < p.lease / 3, "max_clock_skew", "less than lease / 3", p.lease / 3),
        (p.max_send_duration > timedelta(0), "max_send_duration", "more than", timedelta(0)),
        (
            p.attempt_timeout > p.max_send_duration + skew,
            "attempt_timeout",
            "more than max_send_duration + max_clock_skew",
            p.max_send_duration + skew,
        ),
        (
            p.attempt_timeout < p.backoff_base,
            "attempt_timeout",
            "less than backoff_base",
            p.backoff_base,
        ),
        (
            p.backoff_base > p.attempt_timeout + skew,
            "backoff_base",
            "more than attempt_timeout + max_clock_skew",
            p.attempt_timeout + skew,
        ),
        (p.backoff_cap >= p.backoff_base, "backoff_cap", "at least backoff_base", p.backoff_base),
        (
            p.claim_timeout > p.attempt_timeout,
            "claim_timeout",
            "more than attempt_timeout",
            p.attempt_timeout,
        ),
        (
            p.first_check >= p.max_send_duration + p.longest_transaction,
            "first_check",
            "at least max_send_duration + longest_transaction",
            p.max_send_duration + p.longest_transaction,
        ),
        (p.consume_timeout >= p.lease, "consume_timeout", "at least lease", p.lease),
        (
            p.redelivery_horizon >= p.consume_timeout + skew,
            "redelivery_horizon",
            "at least consume_timeout + max_clock_skew + the broker's retry schedule",
            p.consume_timeout + skew,
        ),
        (
            p.progress_history
            > max(p.consume_timeout, p.redelivery_horizon) + 2 * p.reconcile_interval,
            "progress_history",
            "more than the largest settle grace + 2 reconcile_interval",
            max(p.consume_timeout, p.redelivery_horizon) + 2 * p.reconcile_interval,
        ),
        (p.recheck > timedelta(0), "recheck", "more than", timedelta(0)),
        (p.reconcile_interval > timedelta(0), "reconcile_interval", "more than", timedelta(0)),
        (p.watch_window > timedelta(0), "watch_window", "more than", timedelta(0)),
        (
            p.unknown_horizon > 2 * p.reconcile_interval,
            "unknown_horizon",
            "more than 2 reconcile_interval",
            2 * p.reconcile_interval,
        ),
        (
            p.queue_delay_cap < p.backlog_horizon,
            "queue_delay_cap",
            "less than backlog_horizon",
            p.backlog_horizon,
        ),
        (
            p.backlog_horizon > p.redelivery_horizon + p.queue_delay_cap,
            "backlog_horizon",
            "more than redelivery_horizon + queue_delay_cap",
            p.redelivery_horizon + p.queue_delay_cap,
        ),
        (
            p.backlog_horizon < p.broker_retention,
            "backlog_horizon",
            "less than broker_retention",
            p.broker_retention,
        ),
        (
            p.overdue_horizon >= max(p.unknown_horizon, p.backlog_horizon),
            "overdue_horizon",
            "at least unknown_horizon and backlog_horizon",
            max(p.unknown_horizon, p.backlog_horizon),
        ),
        (
            p.overdue_horizon < p.replay_horizon,
            "overdue_horizon",
            "less than replay_horizon",
            p.replay_horizon,
        ),
        (
            p.replay_horizon
            > p.overdue_horizon + backoffs + p.max_sends * p.queue_delay_cap + p.person_time,
            "replay_horizon",
            "more than overdue_horizon + the sum of backoffs + max_sends x queue_delay_cap + person_time",
            p.overdue_horizon + backoffs + p.max_sends * p.queue_delay_cap + p.person_time,
        ),
        (
            p.log_retention > longest_way_back(p),
            "log_retention",
            "more than replay_horizon + longest_delay + broker_retention + redelivery_horizon + max_clock_skew",
            longest_way_back(p),
        ),
        (
            p.untouched_for > p.redelivery_horizon,
            "untouched_for",
            "more than redelivery_horizon",
            p.redelivery_horizon,
        ),
        (
            p.leak_window > p.leak_sweeps * p.sweep_interval,
            "leak_window",
            "more than leak_sweeps x sweep_interval",
            p.leak_sweeps * p.sweep_interval,
        ),
        (
            p.stub_retention >= p.log_retention,
            "stub_retention",
            "at least log_retention",
            p.log_retention,
        ),
        # What was handed out must be known for as long as a restored stub may come back; null: as stub_retention.
        (
            p.control_retention is None or p.control_retention >= p.stub_retention,
            "control_retention",
            "at least stub_retention",
            p.stub_retention,
        ),
        # The loop guard counts a message's replays for as long as it may be replayed.
        (
            p.dead_letter_retention is None or p.dead_letter_retention >= p.log_retention,
            "dead_letter_retention",
            "at least log_retention",
            p.log_retention,
        ),
        (
            p.blast_window >= 3 * p.reconcile_interval,
            "blast_window",
            "at least 3 reconcile_interval",
            3 * p.reconcile_interval,
        ),
    ]
    for good, name, says, bound in rules:
        if not good:
            yield name, f"{says} ({written(bound)})"
    # A canary as large as the floor would be a batch that the blast radius never looks at.
    if p.canary >= p.blast_floor:
        yield "canary", f"less than blast_floor ({p.blast_floor}); 0: off"


def broken_rules_of_redelivery(
    policy: Policy, redelivers_for: timedelta
) -> Iterator[tuple[str, str]]:
    """The rules between a policy and how long its broker redelivers one message."""
    needed = redelivers_for + policy.consume_timeout + policy.max_clock_skew
    if policy.redelivery_horizon < needed:
        says = "at least the broker's retry schedule + consume_timeout + max_clock_skew"
        yield "redelivery_horizon", f"{says} ({written(needed)})"
    if redelivers_for <= policy.lease + policy.sweep_interval:
        # Otherwise the broker gives up on a message while a dead worker's lease still holds it: a false dead letter.
        says = "lease + sweep_interval less than the broker's tries x delay"
        yield "lease", f"{says} ({written(redelivers_for)})"


def _problem(
    settings: Settings, topic: str, group: str | None, name: str, policy: Policy, says: str
) -> Problem:
    value: timedelta | int = getattr(policy, name)
    shown = written(value) if isinstance(value, timedelta) else str(value)
    return Problem(_written_at(settings, topic, group, name), shown, says)


def _written_at(settings: Settings, topic: str, group: str | None, name: str) -> str:
    """Where the value in force was written; the most specific place wins, as in policy_for."""
    places: list[tuple[str, Policy]] = [
        ("policy", settings.policy),
        (f"topics.{topic}.policy", settings.topics[topic].policy),
    ]
    if group is not None:
        places.append((f"groups.{group}.policy", settings.groups[group].policy))
        places.append(
            (f"topics.{topic}.groups.{group}.policy", settings.topics[topic].groups[group].policy)
        )
    for place, policy in reversed(places):
        if name in policy.model_fields_set:
            return f"{place}.{name}"
    return f"policy.{name} (the default)"
