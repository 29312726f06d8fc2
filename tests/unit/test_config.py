"""backstop.yaml: what it may say, whose policy wins, and that every wrong value is named with what is allowed."""

from __future__ import annotations

import copy
import math
import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from backstop.checks.run import given_by
from backstop.config import json_schema
from backstop.config.durations import parse as parse_duration
from backstop.config.durations import written
from backstop.config.load import from_mapping, load, parse
from backstop.config.schedule import read_schedule
from backstop.config.settings import Policy, Settings
from backstop.model.errors import ConfigurationError

PROJECT = Path(__file__).resolve().parents[2]
SMALLEST: dict[str, Any] = {
    "control": "backstop_control",
    "brokers": {"main": {"kind": "redis_streams", "connection": "broker"}},
    "producers": {"shop": {"connection": "producer"}},
    "consumers": {"billing_db": {"connection": "consumer"}},
    "groups": {"billing": {"store": "billing_db"}, "shipping": {"store": "billing_db"}},
    "topics": {"orders": {"broker": "main", "groups": ["billing", "shipping"]}},
}


def changed(*changes: tuple[str, object]) -> dict[str, Any]:
    """The smallest configuration with values put at dotted paths."""
    content = copy.deepcopy(SMALLEST)
    for path, value in changes:
        place = content
        *folders, last = path.split("/")
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value
    return content


def refused(content: dict[str, Any]) -> list[str]:
    """The lines with which a configuration is refused."""
    with pytest.raises(ConfigurationError) as error:
        from_mapping(content)
    assert error.value.exit_code == 2
    return [line.strip() for line in error.value.what.splitlines()[1:] if line.strip()]


def test_a_new_topic_is_only_observed_and_a_group_that_says_nothing_takes_no_duplicates() -> None:
    settings = from_mapping(SMALLEST)
    assert settings.topics["orders"].mode == "observe"
    assert settings.groups["billing"].duplicates == "no"
    assert settings.groups["billing"].progress == "received"


def test_the_defaults_are_those_of_the_specification_and_keep_every_rule() -> None:
    policy = from_mapping(SMALLEST).policy_for("orders", "billing")
    minutes, hours, days = (
        (lambda n: timedelta(minutes=n)),
        (lambda n: timedelta(hours=n)),
        (lambda n: timedelta(days=n)),
    )
    assert policy.max_clock_skew == timedelta(seconds=5)
    assert policy.max_send_duration == timedelta(seconds=30)
    assert (policy.attempt_timeout, policy.claim_timeout, policy.first_check) == (
        minutes(2),
        minutes(5),
        minutes(2),
    )
    assert (policy.lease, policy.sweep_interval, policy.retry_after) == (
        minutes(1),
        minutes(0.5),
        minutes(1 / 6),
    )
    assert (policy.consume_timeout, policy.redelivery_horizon) == (minutes(15), hours(6))
    assert (policy.unknown_horizon, policy.backlog_horizon, policy.overdue_horizon) == (
        hours(1),
        hours(24),
        hours(48),
    )
    assert (policy.max_sends, policy.max_refusals) == (5, 20)
    assert (policy.backoff_base, policy.backoff_factor, policy.backoff_cap) == (
        minutes(3),
        2,
        hours(1),
    )
    assert (policy.replay_horizon, policy.log_retention, policy.stub_retention) == (
        days(7),
        days(21),
        days(21),
    )
    assert (policy.blast_share, policy.blast_floor, policy.blast_window) == (0.05, 50, hours(1))
    assert policy.rate_limit == 200


def test_the_embedded_configuration_is_valid_in_seconds_and_in_mode_repair() -> None:
    settings = load(PROJECT / "backstop.yaml")
    assert set(settings.topics) == {"orders", "payments", "refunds"}
    assert {topic.mode for topic in settings.topics.values()} == {"repair"}
    assert settings.groups_of("orders") == ("billing", "shipping")
    assert settings.topics_of("billing") == ("orders", "payments", "refunds")
    assert set(settings.connection_refs()) == {
        "backstop_control",
        "backstop_producer_a",
        "backstop_producer_b",
        "backstop_consumer_billing",
        "backstop_consumer_shipping",
        "backstop_broker",
        "backstop_leases",
    }
    assert settings.policy_for("orders", "billing").lease == timedelta(seconds=4)


def test_the_committed_json_schema_is_that_of_the_code() -> None:
    assert (PROJECT / "docs" / "backstop.schema.json").read_text() == json_schema.as_text()


def test_the_subscriptions_policy_wins_over_the_groups_the_topics_and_the_general_one() -> None:
    settings = from_mapping(
        changed(
            (
                "policy",
                {"max_sends": 6, "recheck": "1m", "rate_limit": 10, "blast_floor": 7, "canary": 5},
            ),
            ("topics/orders/policy", {"max_sends": 7, "recheck": "2m", "rate_limit": 20}),
            ("groups/billing/policy", {"max_sends": 8, "recheck": "3m"}),
            ("topics/orders/groups", {"billing": {"policy": {"max_sends": 9}}, "shipping": {}}),
        )
    )

    def said(policy: Policy) -> tuple[object, ...]:
        return (
            policy.max_sends,
            policy.recheck.total_seconds(),
            policy.rate_limit,
            policy.blast_floor,
            policy.max_refusals,
        )

    assert said(settings.policy_for("orders", "billing")) == (9, 180, 20, 7, 20)
    assert said(settings.policy_for("orders", "shipping")) == (7, 120, 20, 7, 20)
    assert said(settings.policy_for("orders")) == (7, 120, 20, 7, 20)
    assert said(settings.policy_for(None, "billing")) == (8, 180, 10, 7, 20)
    assert said(settings.policy_for()) == (6, 60, 10, 7, 20)


def test_an_override_written_with_the_defaults_own_value_still_overrides() -> None:
    settings = from_mapping(
        changed(("policy", {"max_sends": 9}), ("topics/orders/policy", {"max_sends": 5}))
    )
    assert settings.policy_for("orders").max_sends == 5


def test_no_policy_is_lent_to_a_topic_that_is_not_configured() -> None:
    with pytest.raises(ConfigurationError, match="refunds"):
        from_mapping(SMALLEST).policy_for("refunds", "billing")


def test_rules_between_settings_hold_for_a_topic_whatever_its_groups_say() -> None:
    """Retention and resends take the topic's own."""
    of_groups = {"attempt_timeout": "4m", "backoff_base": "5m", "first_check": "5m"}
    lines = refused(
        changed(
            ("topics/orders/policy", {"max_send_duration": "3m"}),
            ("groups/billing/policy", of_groups),
            ("groups/shipping/policy", of_groups),
        )
    )
    assert any("attempt_timeout" in line for line in lines), lines


def test_every_wrong_value_is_named_at_once_with_path_value_and_what_is_allowed() -> None:
    lines = refused(
        changed(
            ("topics/orders/mode", "fix"),
            ("policy", {"lease": "soon", "max_sends": 0, "bakcoff_base": "3s"}),
            ("groups/billing/progress", "guessed"),
            ("brokers/main/kind", "carrier_pigeon"),
            ("producers", {}),
        )
    )
    assert "topics.orders.mode: 'fix'; allowed: 'observe' or 'repair'" in lines
    assert any(
        line.startswith("policy.lease: 'soon'; allowed: a number with a unit") for line in lines
    )
    assert "policy.max_sends: 0; allowed: at least 1" in lines
    assert (
        "policy.bakcoff_base: no such setting; allowed: backoff_base (did you mean that?)" in lines
    )
    assert (
        "groups.billing.progress: 'guessed'; allowed: 'acknowledged', 'logged' or 'received'"
        in lines
    )
    assert (
        "brokers.main.kind: 'carrier_pigeon'; allowed: 'redis_streams', 'activemq', 'rocketmq'"
        in lines
    )
    assert len(lines) == 7


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        (
            "brokers/main",
            ["x"],
            "brokers.main: (not shown); allowed: a mapping, as {name: value} or {}",
        ),
        ("brokers/main/kind", None, "brokers.main.kind: null; allowed: text"),
        (
            "brokers/main/options",
            {"visibility": [1]},
            "brokers.main.options.visibility: (not shown); allowed: a number, a text, true or false",
        ),
        (
            "topics/orders/groups",
            "billing",
            "topics.orders.groups: 'billing'; allowed: a list of names, or a mapping with settings for each, as {billing: {}}",
        ),
        (
            "topics/orders/groups",
            {"billing": {"tags": "eu"}, "shipping": {}},
            "topics.orders.groups.billing.tags: (not shown); allowed: a list, as [value, value]",
        ),
        (
            "groups/billing/active_from",
            "2026-11-21",
            "groups.billing.active_from: '2026-11-21'; allowed: an instant with its zone, as 2026-11-21T02:00Z",
        ),
        ("policy/blast_share", 5, "policy.blast_share: 5; allowed: at most 1"),
        ("policy/rate_limit", 0, "policy.rate_limit: 0; allowed: more than 0"),
        (
            "retention/window",
            "1-5",
            "retention.window: '1-5'; allowed: two times of a day in UTC, as 01:00-05:00",
        ),
        ("alerts/timeout", "2h", "alerts.timeout: '2h'; allowed: 100ms to 1m"),
        ("people/deciders", [], "people.deciders: (not shown); allowed: at least one entry"),
        (
            "people/deciders",
            [7],
            'people.deciders.0: (not shown); allowed: an id as text, in quotes, or {id: "...", name: the login}',
        ),
        (
            "people/deciders",
            [{"id": 7, "name": "ann"}],
            "people.deciders.0.id: (not shown); allowed: text, in quotes",
        ),
        (
            "people/second_person",
            ["edits"],
            "people.second_person.0: 'edits'; allowed: 'edit', 'void', 'raise', 'discard', 'resend', 'replay', 'replay_sample', "
            "'edit_head', 'discard_head', 'discard_key' or 'full_replay'",
        ),
        (
            "producers/shop/level",
            "publish",
            "producers.shop.level: 'publish'; allowed: observe: `level` is for kind mapped alone; Backstop's own tables are repaired "
            "by topics.mode",
        ),
        (
            "foreign_leases",
            {"old": {"connection": "x", "group": "billing"}},
            "foreign_leases.old.kind: missing; allowed: one of dedup_listener_mysql, dedup_listener_redis, plain_keys",
        ),
        (
            "foreign_leases",
            {"old": {"kind": "plain", "connection": "x", "group": "billing"}},
            "foreign_leases.old.kind: 'plain'; allowed: one of dedup_listener_mysql, dedup_listener_redis, plain_keys",
        ),
    ],
)
def test_a_wrong_value_is_one_line_in_the_words_of_the_file(
    path: str, value: object, line: str
) -> None:
    """Not in Python's, nor a line for each type that would have fitted."""
    assert refused(changed((path, value))) == [line]


@pytest.mark.parametrize("written", ["0123", "{id: 0123}"])
def test_an_id_that_yaml_takes_for_a_number_is_not_shown_as_another_one(written: str) -> None:
    """It reads 0123 as 83."""
    text = f"{yaml.safe_dump(SMALLEST)}people: {{deciders: [{written}]}}\n"
    with pytest.raises(ConfigurationError) as error:
        parse(text)
    assert "people.deciders.0" in error.value.what and "in quotes" in error.value.what
    assert "83" not in str(error.value)


def test_no_for_duplicates_may_be_written_without_quotes() -> None:
    """YAML reads it as false."""
    text = yaml.safe_dump(SMALLEST).replace(
        "store: billing_db", "store: billing_db\n    duplicates: no"
    )
    assert "duplicates: no" in text
    assert {group.duplicates for group in parse(text).groups.values()} == {"no"}
    assert refused(changed(("groups/billing/duplicates", True)))


def test_names_must_be_those_of_something_configured() -> None:
    lines = refused(
        changed(
            ("groups/billing/store", "nowhere"),
            ("topics/orders/broker", "other"),
            ("topics/orders/groups", ["billing", "audit"]),
            ("producers/shop_b", {"connection": "producer"}),
        )
    )
    assert lines == [
        "groups.billing.store: nowhere; allowed: one of consumers: billing_db",
        "topics.orders.broker: other; allowed: one of brokers: main",
        "topics.orders.groups: audit; allowed: one of groups: billing, shipping",
        "producers.shop_b.connection: producer; allowed: another one than that of shop",
    ]


def test_a_topic_belongs_to_one_team_at_most() -> None:
    teams = [
        {"name": "a", "topics": ["orders"]},
        {"name": "b", "topics": ["orders", "other"]},
        {"name": "a", "topics": ["orders"]},
    ]
    assert refused(changed(("teams", teams))) == [
        "teams.1.topics: orders; allowed: a topic of one team: a has it",
        "teams.1.topics: other; allowed: some of topics: orders",
        "teams.2.name: a; allowed: a name that no other team has",
    ]
    assert from_mapping(changed(("teams", teams[:1]))).teams_by_topic() == {"orders": "a"}
    assert refused(changed(("teams", [{"name": "A b", "topics": ["orders"]}])))


def test_a_team_with_a_role_has_deciders_for_each_topic() -> None:
    """Its role may edit the questions' DAG: with nobody named, whoever has it could answer."""
    team = ("teams", [{"name": "a", "topics": ["orders"], "role": "team-a"}])
    says = (
        "a topic that people.deciders or people.rules name somebody for, where the team has a role"
    )
    assert refused(changed(team)) == [f"teams.0.topics: orders; allowed: {says}"]
    for people in (
        {"deciders": ["olga", "otto"]},
        {"rules": [{"deciders": ["olga", "otto"], "topics": ["orders"]}]},
    ):
        assert from_mapping(changed(team, ("people", people))).teams_by_topic() == {"orders": "a"}


BROKEN_RULES = {
    "max_clock_skew": {"max_clock_skew": "20s"},
    "attempt_timeout": {"attempt_timeout": "35s"},
    "backoff_base": {"backoff_base": "124s"},
    "backoff_cap": {"backoff_cap": "1m"},
    "claim_timeout": {"claim_timeout": "2m"},
    "first_check": {"first_check": "80s"},
    "consume_timeout": {"consume_timeout": "59s"},
    "redelivery_horizon": {"redelivery_horizon": "15m"},
    "progress_history": {"progress_history": "6h"},
    "unknown_horizon": {"unknown_horizon": "20m"},
    "queue_delay_cap": {"queue_delay_cap": "24h"},
    "backlog_horizon": {"backlog_horizon": "3d"},
    "overdue_horizon": {"overdue_horizon": "23h"},
    "replay_horizon": {"replay_horizon": "77h"},
    "log_retention": {"log_retention": "11d"},
    "stub_retention": {"stub_retention": "20d"},
    "control_retention": {"control_retention": "20d"},
    "dead_letter_retention": {"dead_letter_retention": "20d"},
    "blast_window": {"blast_window": "29m"},
    "recheck": {"recheck": 0},
    "max_send_duration": {"max_send_duration": 0},
    "reconcile_interval": {"reconcile_interval": 0},
    "canary": {"canary": 50},
    "watch_window": {"watch_window": 0},
}


@pytest.mark.parametrize("setting", BROKEN_RULES)
@pytest.mark.parametrize("mode", ["observe", "repair"])
def test_a_policy_that_breaks_a_rule_is_refused_where_it_was_written(
    setting: str, mode: str
) -> None:
    lines = refused(
        changed(("topics/orders/policy", BROKEN_RULES[setting]), ("topics/orders/mode", mode))
    )
    assert any(
        line.startswith(f"topics.orders.policy.{setting}: ") and "; allowed: " in line
        for line in lines
    ), lines


@pytest.mark.parametrize(
    ("setting", "boundary", "beyond"),
    [
        ("first_check", "90s", "89.9s"),
        ("consume_timeout", "1m", "59.9s"),
        ("attempt_timeout", "35.1s", "35s"),
        ("blast_window", "30m", "1799s"),
        ("unknown_horizon", "1201s", "20m"),
        ("stub_retention", "21d", "503h"),
        ("canary", 49, 50),
        ("log_retention", "1490406s", "1490405s"),
        ("progress_history", "22801s", "22800s"),
        ("backlog_horizon", "25201s", "7h"),
        ("untouched_for", "21601s", "6h"),
        ("leak_window", "91s", "90s"),
    ],
)
def test_a_rules_boundary_is_allowed_or_not_as_it_is_written(
    setting: str, boundary: str | int, beyond: str | int
) -> None:
    from_mapping(changed(("policy", {setting: boundary})))
    assert refused(changed(("policy", {setting: beyond})))[0].startswith(f"policy.{setting}: ")


def test_the_replay_horizon_covers_the_backoffs() -> None:
    policy = {"replay_horizon": "4650m", "backoff_cap": "3m"}
    from_mapping(changed(("policy", policy)))
    lines = refused(changed(("policy", {**policy, "backoff_cap": "1h"})))
    assert lines[0].startswith("policy.replay_horizon: "), lines


def test_the_overdue_horizon_covers_the_unknown_horizon() -> None:
    lines = refused(changed(("policy", {"unknown_horizon": "3d"})))
    assert any(line.startswith("policy.overdue_horizon (the default): ") for line in lines), lines


def test_repeated_failure_alerts_before_the_broker_gives_up() -> None:
    options = ("brokers/main/options", {"delivery_limit": 10, "visibility": "20s"})
    from_mapping(changed(options, ("policy", {"alert_attempts": 7})))
    lines = refused(changed(options, ("policy", {"alert_attempts": 8})))
    assert lines[0].startswith("policy.alert_attempts: 8; allowed: so far below"), lines


def test_a_duty_on_demand_may_be_as_old_as_its_safety_interval() -> None:
    from_mapping(changed(("watch", {"allowed_age": {"sweep": "46m"}})))
    for age in ("44m", "45m"):
        [line] = refused(changed(("watch", {"allowed_age": {"sweep": age}})))
        assert line.startswith(f"watch.allowed_age.sweep: {age}; allowed: more than schedule."), (
            line
        )


def test_a_group_that_ends_when_it_begins_is_refused() -> None:
    """It would owe nothing: its losses would never be seen."""
    begins, ends = "2026-01-02T00:00:00Z", "2026-01-02T00:00:01Z"
    from_mapping(
        changed(("groups/billing/active_from", begins), ("groups/billing/active_until", ends))
    )
    [line] = refused(
        changed(("groups/billing/active_from", begins), ("groups/billing/active_until", begins))
    )
    assert line.startswith("groups.billing.active_until: ")
    assert line.endswith("; allowed: after active_from")


def test_a_guard_in_redis_alone_outlasts_every_copy_and_has_its_own_name() -> None:
    def guard(name: str, consumed_for: str) -> dict[str, Any]:
        return changed(("redis_guards", {name: {"redis": "leases", "consumed_for": consumed_for}}))

    from_mapping(guard("mailer", "1490406s"))
    [line] = refused(guard("mailer", "1490405s"))
    assert line.startswith("redis_guards.mailer.consumed_for: 1490405s; allowed: more than")
    assert refused(guard("billing", "30d")) == [
        "redis_guards.billing: billing; allowed: another name than any of groups: its leases are in one place"
    ]


def test_foreign_leases_of_a_group_without_topics_are_refused() -> None:
    """Its keys would name no topic: nothing would be swept, and nobody would know."""
    old = {"kind": "dedup_listener_redis", "connection": "r", "group": "idle", "application": "a"}
    idle = ("groups/idle", {"store": "billing_db"})
    from_mapping(changed(idle))
    assert refused(changed(idle, ("foreign_leases/old", old))) == [
        "foreign_leases.old.group: idle; allowed: a group that takes at least one topic"
    ]


def test_a_rule_that_a_default_breaks_names_the_default() -> None:
    lines = refused(changed(("policy", {"lease": "10s"})))
    assert lines == [
        "policy.max_clock_skew (the default): 5s; allowed: less than lease / 3 (3.333333s)"
    ]


def test_a_rule_broken_for_everything_is_said_once() -> None:
    assert len(refused(changed(("policy", {"first_check": "1s"})))) == 1


def test_a_broker_that_gives_up_before_a_lease_is_over_is_refused() -> None:
    options = {"delivery_limit": 6, "visibility": "1s"}
    lines = refused(changed(("brokers/main/options", options)))
    assert lines == [
        "policy.lease (the default): 1m; allowed: lease + sweep_interval less than the broker's tries x delay (6s)"
    ]
    from_mapping(changed(("brokers/main/options", {"delivery_limit": 6, "visibility": 20})))


@pytest.mark.parametrize("page", ["redis-streams", "activemq", "rocketmq"])
def test_the_settings_on_a_brokers_page_are_accepted(page: str) -> None:
    text = (PROJECT / "docs" / "brokers" / f"{page}.md").read_text()
    written = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    ((name, broker),) = written["brokers"].items()
    content = changed(("brokers", {name: broker}), ("topics/orders/broker", name))
    assert from_mapping(content).brokers[name].kind == broker["kind"]


def test_the_redelivery_horizon_covers_the_brokers_whole_retry_schedule() -> None:
    lines = refused(changed(("brokers/main/retry_schedule", "350m")))
    assert lines[0].startswith(
        "policy.redelivery_horizon (the default): 6h; allowed: at least the broker's retry"
    )


def rocketmq(**changes: Any) -> dict[str, Any]:
    return {"main": {"kind": "rocketmq", "connection": "broker", **changes}}


def test_rocketmq_redelivers_by_its_delay_levels_without_being_told() -> None:
    settings = from_mapping(changed(("brokers", rocketmq())))
    assert settings.brokers["main"].redelivers_for() == timedelta(hours=4, minutes=45, seconds=40)
    three = from_mapping(changed(("brokers", rocketmq(options={"delivery_limit": 6}))))
    assert three.brokers["main"].redelivers_for() == timedelta(seconds=10 + 30 + 60 + 120 + 180)
    many = from_mapping(
        changed(
            ("brokers", rocketmq(options={"delivery_limit": 19})),
            ("policy/redelivery_horizon", "10h"),
            ("policy/untouched_for", "11h"),
        )
    )
    assert many.brokers["main"].redelivers_for() == timedelta(hours=8, minutes=45, seconds=40), (
        "the last level is repeated"
    )


def test_the_redelivery_horizon_covers_rocketmqs_levels() -> None:
    lines = refused(changed(("brokers", rocketmq()), ("policy/redelivery_horizon", "5h")))
    says = "policy.redelivery_horizon: 5h; allowed: at least the broker's retry schedule + consume_timeout + max_clock_skew"
    assert lines == [f"{says} (18045s)"]


def test_a_rocketmq_limit_that_is_over_before_a_lease_is_refused() -> None:
    lines = refused(changed(("brokers", rocketmq(options={"delivery_limit": 3}))))
    assert lines[1:] == [
        "policy.lease (the default): 1m; allowed: lease + sweep_interval less than the broker's tries x delay (40s)"
    ]
    from_mapping(changed(("brokers", rocketmq(options={"delivery_limit": 6}))))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("control: [", "line 1"),
        ("control: a\ncontrol: b\n", "'control' is written twice"),
        ("- a", "holds no settings"),
        ("", "holds no settings"),
        ("control: !!python/object:os.system x", "line 1"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_with_its_place(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        parse(text)


def test_what_several_entries_have_in_common_is_written_once_and_their_own_keys_win() -> None:
    settings = parse(
        yaml.safe_dump(SMALLEST)
        + "policy: &base {max_sends: 7}\n"
        + "redis_guards: {one: {redis: r, consumed_for: 30d, policy: {<<: *base, max_refusals: 3}}}\n"
    )
    guard = settings.redis_guards["one"].policy
    assert (guard.max_sends, guard.max_refusals) == (7, 3)
    with pytest.raises(ConfigurationError, match="'a' is written twice"):
        parse("x: &x {b: 1}\ny: {<<: *x, a: 1, a: 2}\n")
    # What was merged once is merged again by a mapping that stands less deep, and is read first.
    with pytest.raises(ConfigurationError) as caught:
        parse("a: &a {x: 2}\nt: {s: {p: &b {<<: *a, x: 1}}}\no: {<<: *b}\n")
    assert "control: missing" in str(caught.value), "nothing is written twice"


@pytest.mark.parametrize(
    ("setting", "value"),
    [("max_sends", 10**9), ("max_sends", 1_001), ("canary", 2**31), ("rate_limit", math.inf)],
)
def test_a_number_that_means_without_limit_is_refused_at_once(setting: str, value: float) -> None:
    """Each was taken: 10**9 sends are a sum that takes an hour, and what is infinite has no form in JSON, in which people's limits
    are kept."""
    [line] = refused(changed(("policy", {setting: value})))
    assert line.startswith(f"policy.{setting}: {value}; allowed: ")


def test_the_longest_durations_are_reckoned_with() -> None:
    longest = dict.fromkeys(("log_retention", "stub_retention", "broker_retention"), "36500d")
    lines = refused(changed(("policy", {**longest, "max_sends": 1_000, "backoff_cap": "36500d"})))
    assert any("policy.log_retention: 36500d; allowed: more than" in line for line in lines)


def test_a_duty_that_there_is_not_is_not_watched_in_place_of_the_one_that_was_meant() -> None:
    [line] = refused(changed(("watch", {"allowed_age": {"reconcil": "1h"}})))
    assert line.startswith("watch.allowed_age.reconcil: 'reconcil'; allowed: 'reconcile', ")


@pytest.mark.parametrize(
    "deciders", [["ann", "ann"], ["ann", " Ann"], [{"id": "7", "name": "ann"}, "ann"]]
)
def test_one_person_who_is_named_twice_is_not_two(deciders: list[Any]) -> None:
    """What takes two people could be proposed, and approved by nobody."""
    people = {"deciders": deciders, "rules": [{"deciders": [{"id": "7", "name": "ann"}, "bob"]}]}
    [line] = refused(changed(("people", people)))
    assert "people.deciders: " in line and "two or more" in line
    people = {"rules": [{"actions": ["edit"], "deciders": ["ann", "ANN"]}]}
    assert "people.rules.0.deciders: ann" in refused(changed(("people", people)))[0]


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        ({"safety_interval": 0}, "schedule.safety_interval: 0; allowed: at least 1s"),
        ({"watch_interval": "0.5s"}, "schedule.watch_interval: '0.5s'; allowed: at least 1s"),
        ({"on_demand": "false"}, "schedule.on_demand: 'false'; allowed: true or false"),
    ],
)
def test_a_schedule_that_dag_files_would_read_otherwise_is_refused(
    schedule: dict[str, Any], says: str
) -> None:
    [line] = refused(changed(("schedule", schedule)))
    assert line.startswith(says)


def test_a_schedule_may_use_what_another_section_names(tmp_path: Path) -> None:
    """DAG files read this section alone: an alias that they could not follow would end every DAG."""
    file = tmp_path / "backstop.yaml"
    file.write_text("policy: {recheck: &often 20m}\nschedule: {safety_interval: *often}\n")
    assert read_schedule(file) == {"safety_interval": "20m"}


def test_a_missing_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKSTOP_CONFIG", str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigurationError, match=r"none\.yaml"):
        load()


def test_the_version_changes_with_what_is_written_and_not_with_how() -> None:
    one, same = from_mapping(SMALLEST), from_mapping(dict(reversed(SMALLEST.items())))
    assert one.version == same.version
    assert len(one.version) == 12
    assert from_mapping(changed(("policy", {"max_sends": 6}))).version != one.version
    assert (
        from_mapping(changed(("policy", {"recheck": 60}))).version
        == from_mapping(changed(("policy", {"recheck": "1m"}))).version
    )


def test_settings_are_frozen_and_travel_to_executors() -> None:
    settings = from_mapping(changed(("topics/orders/policy", {"max_sends": 7})))
    with pytest.raises(ValueError, match="frozen"):
        settings.control = "other"
    there: Settings = pickle.loads(pickle.dumps(settings))
    assert there.version == settings.version
    assert there.policy_for("orders", "billing") == settings.policy_for("orders", "billing")


def test_start_offsets_without_active_from_are_refused_where_messages_are_resent() -> None:
    """What has no known place is owed by its creation, which nothing would bound."""
    starts = (
        "topics/orders/groups",
        {"billing": {"start_offsets": {3: {"offset": 17, "epoch": "e1"}}}},
    )
    lines = refused(changed(starts, ("topics/orders/mode", "repair")))
    assert any(
        line.startswith("topics.orders.groups.billing.start_offsets: no active_from; allowed: ")
        for line in lines
    ), lines
    from_mapping(changed(starts, ("topics/orders/mode", "observe")))


def test_what_must_be_fresh_may_be_as_old_as_the_skew_of_any_group_allows() -> None:
    given = given_by(from_mapping(changed(("groups/billing/policy", {"max_clock_skew": "15s"}))))
    assert given["clock_skew"] == timedelta(seconds=15)


@pytest.mark.parametrize("place", [{-1: 0}, {2**31: 0}, {3: 2**63}, {3: -1}])
def test_start_offsets_are_places_that_a_broker_can_have(place: dict[int, int]) -> None:
    offsets = {queue: {"offset": offset, "epoch": "e1"} for queue, offset in place.items()}
    (line,) = refused(changed(("topics/orders/groups", {"billing": {"start_offsets": offsets}})))
    assert line.startswith("topics.orders.groups.billing.start_offsets.")


def test_start_offsets_belong_to_one_epoch_of_a_queue() -> None:
    settings = from_mapping(
        yaml.safe_load(
            yaml.safe_dump(
                changed(
                    (
                        "topics/orders/groups",
                        {
                            "billing": {
                                "tags": ["eu"],
                                "start_offsets": {3: {"offset": 17, "epoch": "e1"}},
                            }
                        },
                    ),
                    ("groups/billing/active_from", "2026-01-01T00:00:00Z"),
                )
            )
        )
    )
    subscription = settings.topics["orders"].groups["billing"]
    assert subscription.tags == ("eu",)
    assert (subscription.start_offsets[3].offset, subscription.start_offsets[3].epoch) == (17, "e1")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("7d", 604800),
        ("500ms", 0.5),
        (1.5, 1.5),
        ("0.5h", 1800),
    ],
)
def test_a_duration_is_written_with_a_unit_or_in_seconds(text: object, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "wrong",
    [
        *("", "5", "-5s", -1, True, None, "5 years", "1e3s", []),
        *("99999999999999d", "36501d", 4e9, math.inf, math.nan, timedelta(days=36_501)),
    ],
)
def test_anything_else_is_no_duration(wrong: object) -> None:
    with pytest.raises(ValueError, match="a number with a unit"):
        parse_duration(wrong)


@given(st.integers(min_value=0, max_value=10**9))
def test_a_duration_that_is_printed_can_be_read_back(milliseconds: int) -> None:
    length = timedelta(milliseconds=milliseconds)
    assert parse_duration(written(length)) == length


def test_the_backoff_grows_to_its_cap_and_never_overflows() -> None:
    policy = Policy()
    assert [policy.backoff(n).total_seconds() for n in (1, 2, 3, 6, 10_000)] == [
        180,
        360,
        720,
        3600,
        3600,
    ]


def test_the_how_to_names_every_setting_of_the_policy_with_its_default() -> None:
    page = (PROJECT / "docs/how-to/configure.md").read_text()
    table = [line for line in page.splitlines() if line.startswith("| `")]
    defaults: dict[str, str] = {}
    for line in table:
        names, values = (cell.strip() for cell in line.split("|")[1:3])
        for name, value in zip(names.split(", "), values.split(", "), strict=False):
            defaults[name.strip("`")] = value
    for name, field in Policy.model_fields.items():
        value = getattr(Policy(), name)
        assert name in defaults, f"{name} ({field.description}) is not in the how-to"
        if value is None:  # another one stands in for it, and the page says which
            assert not defaults[name][0].isdigit(), name
            continue
        meant = (
            parse_duration(defaults[name])
            if isinstance(value, timedelta)
            else type(value)(defaults[name])
        )
        assert meant == value, name


def test_the_smallest_file_of_the_how_to_is_accepted() -> None:
    page = (PROJECT / "docs/how-to/configure.md").read_text()
    assert parse(page.split("```yaml\n")[1].split("```")[0]).topics["orders"].mode == "observe"


def test_a_publish_may_not_take_longer_than_the_rule_counts_on() -> None:
    (line,) = refused(changed(("brokers/main/options", {"send_timeout": 3600})))
    assert line.startswith(
        "brokers.main.options.send_timeout: 1h; allowed: at most max_send_duration"
    )
    from_mapping(changed(("brokers/main/options", {"send_timeout": 30})))


def test_alerts_are_watched_wherever_they_go_to_a_channel() -> None:
    posted = from_mapping(changed(("notify/url", "env:HOOK")))
    assert "deliver_alerts" in posted.watched_duties()
    assert "deliver_alerts" not in from_mapping(SMALLEST).watched_duties()
