"""Every built-in rule with a text that it knows and one that only looks like it; one's own rules, which come first."""

from __future__ import annotations

import time

import pytest
import yaml

from backstop.config.load import from_mapping
from backstop.config.settings import Settings
from backstop.model.errors import ConfigurationError
from backstop.model.records import Category
from backstop.triage.causes.rules import NO_RULE, Rules, built_in
from control_world import PROJECT

C, E = "cause", "error"
ACTIVEMQ = "java.lang.Throwable: Delivery[3] exceeds redelivery policy limit:RedeliveryPolicy {destination = queue://x}"
TABLE: dict[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "activemq-suppressed": (
        (
            C,
            "java.lang.Throwable: Suppressing duplicate delivery on connection, consumer ID:h-1-2-3:1:1:1",
        ),
        (E, "Suppressing the output of a duplicate"),
    ),
    "activemq-from-store": (
        (C, "duplicate from store for queue://orders"),
        (C, "duplicate copied from a store"),
    ),
    "activemq-paged-in": (
        (C, "duplicate paged in from cursor for queue://orders"),
        (C, "paged in from cursor"),
    ),
    "duplicate-dropped": (
        (E, "Duplicate message was discarded"),
        (E, "duplicate order in one message"),
    ),
    "conflict": (
        (E, "'m' in 'orders' came with another content than before"),
        (E, "the content came with another box"),
    ),
    "activemq-expired": (
        (C, "java.lang.Throwable: Message Expired. Expiration:1700000000123"),
        (E, "The card in the message expired."),
    ),
    "expired": ((C, "expired"), (E, "the session has expired")),
    "broken-contract": (
        (E, "ContractBroken: the message has no id"),
        (E, "Contract 12 is broken off"),
    ),
    "not-json": (
        (E, "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
        (E, "no value: line 1 of the json"),
    ),
    "not-readable": (
        (E, "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff"),
        (E, "psycopg2.errors.SerializationFailure: try again"),
    ),
    "not-valid": (
        (E, "pydantic.ValidationError: 2 validation errors for Order"),
        (E, "the server is not validated"),
    ),
    "too-large": (
        (E, "RecordTooLargeException: The message is 3 bytes"),
        (E, "the hole is too large"),
    ),
    "constraint": (
        (E, 'psycopg2.errors.UniqueViolation: duplicate key value violates unique constraint "a"'),
        (E, "it violates good taste"),
    ),
    "value-refused": (
        (E, "ERROR: value too long for type character varying(3)"),
        (E, "it took too long"),
    ),
    "http-refused": (
        (E, "requests.exceptions.HTTPError: 404 Client Error: Not Found for url: http://x"),
        (E, "order 404 is odd"),
    ),
    "grpc-refused": (
        (E, "StatusRuntimeException: INVALID_ARGUMENT: no"),
        (E, "an invalid argument was had"),
    ),
    "python-error": ((E, "KeyError: 'total'"), (E, "MonkeyErrors: 3")),
    "java-error": (
        (E, "java.lang.NullPointerException"),
        (E, "java.lang.Exception: a pointer to null"),
    ),
    "dotnet-error": ((E, "System.NullReferenceException: no"), (E, "a null reference was set")),
    "node-go-error": ((E, "panic: runtime error: index out of range [5]"), (E, "do not panic")),
    "refused-connection": ((E, "[Errno 111] Connection refused"), (E, "the bank refused the card")),
    "no-address": ((E, "java.net.UnknownHostException: db"), (E, "unknown host of the party")),
    "deadlock": ((E, "ERROR: deadlock detected"), (E, "the talks are in a deadlock")),
    "lost-race": (
        (E, "could not serialize access due to concurrent update"),
        (E, "could not serialize the order"),
    ),
    "timeout": (
        (E, "java.net.SocketTimeoutException: Read timed out"),
        (E, "no setting 'timeout' is known"),
    ),
    "http-away": ((E, "HTTP 503 from the bank"), (E, "503 orders are odd")),
    "grpc-away": ((E, "StatusRuntimeException: UNAVAILABLE"), (E, "the article is unavailable")),
    "throttled": ((E, "ThrottlingException: Rate exceeded"), (E, "the exchange rate is odd")),
    "pool-empty": (
        (E, "HikariPool-1 - Connection is not available"),
        (E, "the pool is closed today"),
    ),
    "moving": ((E, "FATAL: the database system is starting up"), (E, "the system is moving")),
    "backstop-away": (
        (E, "StoreUnavailable: the database did not answer"),
        (E, "the store is closed"),
    ),
    "no-space": (
        (E, "OSError: [Errno 28] No space left on device"),
        (E, "no space left in the title"),
    ),
    "embedded-limit": ((C, "delivery limit"), (E, "delivery limit")),
    "rocketmq-limit": ((C, "reconsumed 17 times"), (C, "reconsumed 1 times")),
    "activemq-limit": (
        (C, f"{ACTIVEMQ}, cause:null"),
        (C, f"{ACTIVEMQ}, cause:java.lang.Exception: boom"),
    ),
    "other-limits": ((C, "maxReceiveCount exceeded"), (E, "maximum delivery attempts reached")),
    "busy": ((E, "Busy: held by another worker"), (E, "Busybody")),
}


def said(rules: Rules, where: str, text: str) -> tuple[Category, str]:
    return rules.categorise(text, "") if where == C else rules.categorise("", text)


@pytest.mark.parametrize("rule", built_in(), ids=lambda rule: rule.name)
def test_a_built_in_rule_knows_its_text_and_not_a_near_miss(rule: object) -> None:
    name = rule.name  # type: ignore[attr-defined]
    known, miss = TABLE[name]
    assert said(Rules(), *known) == (rule.category, name)  # type: ignore[attr-defined]
    assert said(Rules(), *miss)[1] != name


def test_every_built_in_rule_is_in_the_table_once_and_every_category_has_one() -> None:
    names = [rule.name for rule in built_in()]
    assert sorted(names) == sorted(TABLE) and len(set(names)) == len(names)
    assert {rule.category for rule in built_in()} == set(Category) - {
        Category.ALREADY_CONFIRMED,
        Category.UNKNOWN,
    }


@pytest.mark.parametrize(
    ("cause", "error", "category"),
    [
        ("handler failed", "", Category.UNKNOWN),
        ("handler failed", "Declined: it is Sunday", Category.UNKNOWN),
        ("delivery limit", "KeyError: 'x'", Category.POISON),
        (
            "delivery limit",
            "ConnectionRefusedError: [Errno 111] Connection refused",
            Category.TRANSIENT,
        ),
        (
            f"{ACTIVEMQ}, cause:java.net.ConnectException: Connection refused",
            "",
            Category.TRANSIENT,
        ),
        (f"{ACTIVEMQ}, cause:java.lang.IllegalStateException: no rate", "", Category.POISON),
        (
            "",
            "org.x.HandlingException: it failed\nCaused by: java.net.ConnectException: Connection refused",
            Category.TRANSIENT,
        ),
        (
            "",
            "java.lang.IllegalStateException: x; nested exception is java.net.SocketTimeoutException: Read timed out",
            Category.TRANSIENT,
        ),
        (
            "",
            "io.grpc.StatusRuntimeException: RESOURCE_EXHAUSTED: gRPC message exceeds maximum size 4: 5",
            Category.POISON,
        ),
        ("", "HTTP 401 from the bank", Category.UNKNOWN),
        ("", "HTTP 500 from the bank", Category.UNKNOWN),
        ("", "", Category.UNKNOWN),
    ],
)
def test_the_error_says_more_than_the_limit_and_the_root_of_a_chain_more_than_what_wraps_it(
    cause: str, error: str, category: Category
) -> None:
    assert Rules().categorise(cause, error)[0] == category


def own(
    category: str = "expired", pattern: str = "Key.rror", where: str = "any", name: str = "mine"
) -> dict[str, str]:
    return {"name": name, "category": category, "pattern": pattern, "where": where}


def test_rules_of_ones_own_come_first_and_the_first_of_them_wins() -> None:
    rules = Rules([own(), own("poison", name="second")])
    assert rules.categorise("", "KeyError: 'x'") == (Category.EXPIRED, "mine")
    assert Rules([own(where="cause")]).categorise("", "KeyError: 'x'") == (
        Category.POISON,
        "python-error",
    )
    assert Rules([own(where="cause")]).categorise("KeyError", "") == (Category.EXPIRED, "mine")
    assert Rules([own("unknown")]).categorise("", "KeyError: 'x'") == (Category.UNKNOWN, "mine")
    assert Rules().categorise("", "never heard of") == (Category.UNKNOWN, NO_RULE)


def test_the_version_moves_with_every_rule_and_with_nothing_else() -> None:
    assert Rules().version == Rules([]).version
    versions = {
        Rules(given).version
        for given in ([], [own()], [own("poison")], [own(), own(name="b")], [own(name="b"), own()])
    }
    assert len(versions) == 5


@pytest.mark.parametrize(
    "text",
    [
        "a" * 10**6,
        "exceeds redelivery policy limit" * 9_999,
        "Unexpected token " * 9_999,
        "violates " * 9_999,
        "connection to server at " * 9_999,
        "Caused by: " * 99_999,
        "invalid character " * 9_999,
    ],
)
def test_the_built_in_rules_read_hostile_text_quickly(text: str) -> None:
    began = time.process_time()
    Rules().categorise(text, text)
    assert time.process_time() - began < 1


def configured(**rule: object) -> Settings:
    content = yaml.safe_load((PROJECT / "backstop.yaml").read_text())
    content["dead_letters"] = {"rules": [{**own(), **rule}]}
    return from_mapping(content)


def test_rules_are_read_from_the_settings() -> None:
    (rule,) = configured(category="transient").dead_letters.rules
    assert rule.plain() == own("transient")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pattern", "("),
        ("pattern", r"(a)\1"),
        ("pattern", "a(?=b)"),
        ("pattern", "a*"),
        ("pattern", ""),
        ("pattern", "a" * 501),
        ("pattern", "a{1001}"),
        ("pattern", "((a{100}){100}){100}"),
        ("category", "already_confirmed"),
        ("category", "odd"),
        ("where", "body"),
        ("name", ""),
        ("colour", "red"),
    ],
)
def test_a_rule_that_is_wrong_is_refused_with_its_place(field: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"dead_letters\.rules\.0\.{field}: "):
        configured(**{field: value})


HUNG = {
    r"timeout.*after.*of.*ms": "timeout after of " * 300,
    r"(?:\w?){28}\w{28}!": "a" * 5_000,
    r"\s*\s*\s*\s*x": " " * 5_000,
    "(a+)+b": "a" * 5_000,
    "(?:a|ab)*c": "ab" * 2_500,
    r"(\w+\s?)*$x": "word " * 1_000,
    "(x+x+)+y": "x" * 5_000,
}
"""Patterns of people, and texts on which an engine that goes back takes seconds to years."""


@pytest.mark.parametrize(
    "pattern", [*HUNG, "a+b*", r"\(a+\)+", "[(+]+x", "x{2,5}y", "^ledger .* closed$", "(?i)Käse"]
)
def test_no_pattern_of_ones_own_hangs_on_any_text(pattern: str) -> None:
    rules = Rules([rule.plain() for rule in configured(pattern=pattern).dead_letters.rules])
    began = time.process_time()
    for text in (*HUNG.values(), "\ud800 \x00 é" * 900):
        rules.categorise(text, text)
    assert time.process_time() - began < 1
