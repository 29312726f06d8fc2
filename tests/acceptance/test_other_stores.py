"""The demo's whole story with the databases of producers and consumers in MariaDB, small and without Airflow: every fault that these
stores can have is found, repaired or left alone, and what they cannot have is said. The checker reads them by its own SQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backstop_lab.demo.accounting import FAULTS, differs, run_checker
from backstop_lab.platform import MARIADB
from backstop_lab.shop.databases import change
from demo_by_hand import (
    ALWAYS,
    SUPPRESSED,
    Told,
    check_deaths,
    check_effects,
    check_faults,
    told_story,
)

SECONDS = 2400
LEFT_OUT = {"poisoned_key", "rolling_restart"}
A_CONFIRMED_ONE = (
    "SELECT topic, message_id FROM message_stub WHERE status = 'confirmed' AND send_count = 1"
    " ORDER BY 1, 2 LIMIT 1"
)
BREAKS = {
    "effect missing": (
        "billing",
        "effect",
        "DELETE FROM effect ORDER BY topic, message_id LIMIT 1",
    ),
    "effect duplicated": ("shipping", "effect", "INSERT INTO effect SELECT * FROM effect LIMIT 1"),
    "dead letter not dealt with": (
        "shipping",
        "consumer_log",
        "UPDATE consumer_log SET content_version = 1",
    ),
    "resend needless": (
        "shop_a",
        "send_attempt",
        "INSERT INTO send_attempt"
        " (topic, message_id, send_number, requested_by, started_at, finished_at, outcome)"
        f" SELECT topic, message_id, 2, 'nobody', now(6), now(6), 'sent' FROM ({A_CONFIRMED_ONE}) s",
    ),
    "stub unaccounted for": (
        "shop_b",
        "message_stub",
        "UPDATE message_stub SET status = 'pending'"
        " WHERE status = 'confirmed' ORDER BY topic, message_id LIMIT 1",
    ),
}

pytestmark = [pytest.mark.other_broker, pytest.mark.timeout(SECONDS)]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    with told_story(tmp_path_factory.mktemp("mariadb"), "mariadb", stores=MARIADB) as story:
        yield story


def test_everything_came_out_right(told: Told) -> None:
    assert told.report["problems"] == []


def test_the_rows_are_in_mariadb(told: Told) -> None:
    for dsn in {*told.stage.shards.values(), *told.stage.stores.values()}:
        [(version,)] = change(dsn, "SELECT version()", ())
        assert "MariaDB" in version
    [(stubs,)] = change(told.stage.shards["shop_a"], "SELECT count(*) FROM message_stub", ())
    [(effects,)] = change(told.stage.stores["billing"], "SELECT count(*) FROM effect", ())
    assert stubs > 0 and effects == told.report["effects"]["billing"]["exactly_once"]


def test_every_fault_of_these_stores_was_injected_and_dealt_with(told: Told) -> None:
    check_faults(told, ALWAYS | {"offset_moved"})


def test_each_group_did_each_work_exactly_once(told: Told) -> None:
    check_effects(told)


def test_every_death_came_to_its_end(told: Told) -> None:
    check_deaths(told, SUPPRESSED)


def test_what_is_left_out_stands_on_the_page_with_its_reason(told: Told) -> None:
    assert set(told.stage.differs()) == {"MariaDB"}
    page = differs(told.stage.differs())
    assert max(map(len, page)) <= 80
    text = " ".join(" ".join(page).split())
    assert not LEFT_OUT & set(told.report["faults"])
    assert all(FAULTS[fault] in text for fault in LEFT_OUT)
    assert "PostgreSQL alone" in text


@pytest.mark.parametrize("rule", BREAKS)
def test_the_checker_sees_one_wrong_row_in_mariadb(rule: str, told: Told) -> None:
    database, table, statement = BREAKS[rule]
    dsn = {**told.stage.shards, **told.stage.stores}[database]
    columns = ", ".join(
        f"`{name}`"
        for (name,) in change(
            dsn,
            "SELECT COLUMN_NAME FROM information_schema.COLUMNS"
            " WHERE TABLE_SCHEMA = database() AND TABLE_NAME = %s AND EXTRA NOT LIKE %s"
            " ORDER BY ORDINAL_POSITION",
            (table, "%GENERATED%"),
        )
    )
    change(dsn, f"CREATE TABLE kept AS SELECT {columns} FROM {table}", ())
    change(dsn, statement, ())
    try:
        found = run_checker(told.stage.write_places(), told.stage.ledger.folder)
    finally:
        restored = (
            f"REPLACE INTO {table} ({columns}) SELECT {columns} FROM kept"
            if table == "message_stub"
            else f"INSERT INTO {table} ({columns}) SELECT {columns} FROM kept"
        )
        if table != "message_stub":
            change(dsn, f"DELETE FROM {table}", ())
        change(dsn, restored, ())
        change(dsn, "DROP TABLE kept", ())
    assert not found["ok"]
    assert rule in {problem["rule"] for problem in found["problems"]}
