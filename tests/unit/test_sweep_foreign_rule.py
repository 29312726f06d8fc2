"""Foreign idempotency records: the truth table of the decision, how keys are read, and what the settings refuse."""

from __future__ import annotations

from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from backstop.config.constraints import longest_way_back
from backstop.config.load import from_mapping
from backstop.model.errors import ConfigurationError
from backstop.model.records import Key, LogState
from backstop.sweep.foreign.decide import Decision, Expiry, Held, Record, decide, keys_of
from backstop.sweep.foreign.protocol import LogStanding
from backstop.sweep.foreign.read_keys import dedup_listener_key, plain_glob, plain_key
from foreign_world import content, opened

K = Key("orders", "m-1")
KEEP, REPAIR, RECLAIM = Decision.KEEP, Decision.REPAIR, Decision.RECLAIM
FREE = {
    "no row": None,
    "failed": LogStanding("FAILED", False),
    "expired": LogStanding("EXPIRED", False),
    "lease over": LogStanding("CONSUMING", False),
    "parked": LogStanding("PARKED", False),
}
DONE, AT_WORK = LogStanding("CONSUMED", False), LogStanding("CONSUMING", True)

# held, expiry, untouched -> the decision when the log says: done, a live lease, anything that leaves the message free
TABLE: list[tuple[Held, Expiry, bool | None, tuple[Decision, Decision, Decision]]] = [
    *(
        (Held.CONSUMED, expiry, untouched, (KEEP, KEEP, KEEP))
        for expiry, untouched in product(Expiry, (True, False, None))
    ),
    *(
        (held, Expiry.LATER, untouched, (KEEP, KEEP, KEEP))
        for held, untouched in product((Held.CONSUMING, Held.UNSAID), (True, False, None))
    ),
    *(
        (held, Expiry.PAST, untouched, (REPAIR, KEEP, RECLAIM))
        for held, untouched in product((Held.CONSUMING, Held.UNSAID), (True, False, None))
    ),
    *(
        (held, Expiry.NEVER, True, (REPAIR, KEEP, RECLAIM))
        for held in (Held.CONSUMING, Held.UNSAID)
    ),
    *(
        (held, Expiry.NEVER, untouched, (REPAIR, KEEP, KEEP))
        for held, untouched in product((Held.CONSUMING, Held.UNSAID), (False, None))
    ),
]


def test_the_table_names_every_record_once() -> None:
    rows = [row[:3] for row in TABLE]
    assert sorted(map(str, rows)) == sorted(map(str, product(Held, Expiry, (True, False, None))))


@pytest.mark.parametrize(("held", "expiry", "untouched", "expected"), TABLE)
def test_a_record_is_kept_repaired_or_freed_by_the_table(
    held: Held,
    expiry: Expiry,
    untouched: bool | None,
    expected: tuple[Decision, Decision, Decision],
) -> None:
    record = Record((K,), held, expiry, untouched)
    assert decide(record, {K: DONE})[0] is expected[0]
    assert decide(record, {K: AT_WORK})[0] is expected[1]
    for name, standing in FREE.items():
        assert decide(record, {} if standing is None else {K: standing})[0] is expected[2], name


def test_every_state_of_a_log_is_known_to_the_rule_and_any_other_frees_nothing() -> None:
    stuck = Record((K,), Held.CONSUMING, Expiry.PAST, None)
    for state in LogState:
        assert "not known" not in decide(stuck, {K: LogStanding(state, False)})[1]
    assert decide(stuck, {K: LogStanding("consumed", False)})[0] is KEEP


def test_a_key_of_two_readings_is_changed_only_when_the_log_says_the_same_of_both() -> None:
    other = Key("orders", "eu:m-1")
    record = Record((K, other), Held.CONSUMING, Expiry.NEVER, True)
    assert decide(record, {})[0] is RECLAIM
    assert decide(record, {K: DONE, other: DONE})[0] is REPAIR
    assert decide(record, {K: DONE})[0] is KEEP
    assert decide(record, {other: AT_WORK})[0] is KEEP
    assert keys_of([record, record]) == [K, other]


def test_the_log_is_not_asked_about_what_is_kept_anyway() -> None:
    assert (
        keys_of(
            [
                Record((K,), Held.CONSUMED, Expiry.NEVER, True),
                Record((K,), Held.CONSUMING, Expiry.LATER, True),
            ]
        )
        == []
    )


def test_a_dedup_listeners_key_is_read_by_application_and_known_topics_and_its_id_may_hold_colons() -> (
    None
):
    read = dedup_listener_key("app:1", ["orders", "orders:eu"], [""])
    assert read("MSGDEDUP:app:1:orders:a:b:") == (Key("orders", "a:b:"),)
    assert read("MSGDEDUP:app:1:orders:eu:7") == (Key("orders", "eu:7"), Key("orders:eu", "7"))
    for foreign in (
        "MSGDEDUP:app:2:orders:1",
        "MSGDEDUP:app:1:other:1",
        "MSGDEDUP:app:1:orders:",
        "MSGDEDUP:app:1:orders",
    ):
        assert read(foreign) == ()


def test_a_tag_is_taken_off_only_when_it_is_known() -> None:
    tagged = dedup_listener_key("a", ["orders"], ["eu", "us"])
    assert tagged("MSGDEDUP:a:orders:eu:1:2") == (Key("orders", "1:2"),)
    assert tagged("MSGDEDUP:a:orders:1") == ()
    both = dedup_listener_key("a", ["orders"], ["", "eu"])
    assert both("MSGDEDUP:a:orders:eu:1") == (Key("orders", "eu:1"), Key("orders", "1"))
    assert both("MSGDEDUP:a:orders:1") == (Key("orders", "1"),)


def test_a_pattern_is_read_as_fixed_text_with_topic_and_id_in_their_places() -> None:
    read = plain_key("dedup.{topic}.{id}*", ["orders"])
    assert read("dedup.orders.a.b\n*") == (Key("orders", "a.b\n"),)
    assert read("dedupXorders.a*") == read("dedup.other.a*") == read("dedup.orders.*") == ()
    assert plain_key("{id}/done?", ["orders"])("x/done?") == (Key("orders", "x"),)
    assert plain_glob("a*[{topic}]?:{id}") == r"a\*\[*\]\?:*"


def lines(name: str, **more: Any) -> str:
    with pytest.raises(ConfigurationError) as error:
        from_mapping(content(name, **more))
    return error.value.what


@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        (
            "table",
            {"group": "shipping"},
            "foreign_leases.table.group: shipping; allowed: one of groups: billing",
        ),
        (
            "table",
            {"topics": ["ordres"]},
            "foreign_leases.table.topics: ordres; allowed: one of the topics of billing",
        ),
        (
            "plain",
            {"pattern": "dedup:{id}"},
            "foreign_leases.plain.pattern: dedup:{id}; allowed: with {topic}",
        ),
        ("plain", {"pattern": "dedup:{topic}"}, "fixed text with {id} once"),
        ("plain", {"pattern": "{topic}:{id}"}, "fixed text with {id} once"),
        ("plain", {"pattern": "dedup:{topic}{id}"}, "something between them"),
        ("plain", {"pattern": "dedup:{id}:{date}"}, "fixed text with {id} once"),
        (
            "plain",
            {"untouched_for": "15m"},
            "untouched_for: 15m; allowed: at least consume_timeout + max_clock_skew (905s)",
        ),
        ("keys", {"untouched_for": "1m"}, "untouched_for: 1m; allowed: at least consume_timeout"),
        (
            "plain",
            {"success_deletes": False, "untouched_for": "30d", "keep": "1d"},
            "foreign_leases.plain.keep: 1d; allowed: more than the longest way back",
        ),
        (
            "plain",
            {"success_deletes": False, "untouched_for": "1d", "keep": "30d"},
            "foreign_leases.plain.untouched_for: 1d; allowed: more than the longest way back",
        ),
        (
            "keys",
            {"connection": "redis://:secret@host"},
            "foreign_leases.keys.connection: (not shown)",
        ),
        (
            "plain",
            {"patern": "x"},
            "foreign_leases.plain.patern: no such setting; allowed: pattern (did you mean that?)",
        ),
        (
            "table",
            {"untouched_for": "1h"},
            "foreign_leases.table.untouched_for: no such setting; allowed: connection, group",
        ),
        ("keys", {"kind": "setnx"}, "dedup_listener_mysql"),
    ],
)
def test_settings_that_would_sweep_the_wrong_records_are_refused_with_their_place(
    name: str, more: dict[str, Any], says: str
) -> None:
    what = lines(name, **more)
    assert says in what
    assert "secret" not in what


def test_a_plain_key_of_done_work_stays_for_longer_than_any_copy_needs_to_return() -> None:
    settings = from_mapping(content("plain", success_deletes=False, untouched_for="30d"))
    (foreign,) = settings.foreign_leases.values()
    assert foreign.keep > longest_way_back(settings.policy_for("orders", "billing"))


def test_where_finished_work_has_no_key_a_repaired_one_may_go_sooner() -> None:
    settings = from_mapping(content("plain", success_deletes=True, keep="1d"))
    assert settings.foreign_leases["plain"].keep == timedelta(days=1)


def test_one_topic_needs_no_place_in_the_pattern() -> None:
    settings = from_mapping(content("plain", pattern="dedup:{id}", topics=["orders"]))
    assert "legacy" in settings.connection_refs()


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("table", "redis://h/0"),
        ("table", "mysql://u:secret@h"),
        ("keys", "mysql://u:secret@h/db"),
        ("plain", "https://h"),
    ],
)
def test_a_connection_to_another_kind_of_server_is_refused_without_its_password(
    name: str, url: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        opened(name, url)
    assert "secret" not in str(error.value)
