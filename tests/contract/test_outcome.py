"""A stub over its deliveries: its next status and its next look, from both engines as from the oracle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import pytest
from tests.contract import engines
from tests.contract.truth_table import NOW, STUB, S

import oracle
from backstop.model.records import Verdict
from backstop.verdicts import frames

Row = dict[str, Any]
ENGINES = ("duckdb", "postgresql", "spark")
OVERDUE = 172_800 * S
REPLAY = 604_800 * S
YEAR_9000 = 221_845_392_000 * S
COLUMNS = ("stub_id", "old_status", "new_status", "deliveries", "next_look_at")


def test_a_driver_serves_no_page_that_anybody_could_end_its_tasks_on(spark: Any) -> None:
    assert spark.sparkContext.uiWebUrl is None


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, spark: Any
) -> Iterator[Mapping[str, engines.Run]]:
    """The engines that evaluate a text by itself: packets bring verdicts, and no other text."""
    with engines.every_engine(tmp_path_factory.mktemp("pg"), spark) as runs:
        yield {name: run for name, run in runs.items() if name in ENGINES}


def stub(number: int, status: str, **columns: Any) -> Row:
    return {
        **dict.fromkeys(frames.STUB),
        **STUB,
        "stub_id": number,
        "shard": "s",
        "topic": "t%",
        "message_id": f"m:{number}",
        "created_at": NOW - S,
        "attempted_at": NOW - S,
        "status": status,
        **columns,
    }


def delivery(
    number: int, group: int, verdict: str, eligible: bool = False, look: int | None = None
) -> Row:
    return {
        **dict.fromkeys(frames.JUDGED),
        "stub_id": number,
        "consumer_group": f"g{group}",
        "verdict": verdict,
        "eligible": eligible,
        "next_look_at": look,
    }


Open = tuple[str, bool, int | None]
DONE: Open = ("CONFIRMED", False, None)
VOID: Open = ("VOIDED", False, None)
USED: Open = ("EXHAUSTED", False, None)
LOST: Open = ("LOST", True, None)
LATE: Open = ("BACKLOGGED", False, NOW + 300)
SOON: Open = ("WAITING", False, NOW + 5)

TABLE: tuple[tuple[str, str, tuple[Open, ...], Row, str, int | None], ...] = (
    # sentence, status, deliveries, what differs of the stub, its new status, its next look
    ("every delivery confirmed", "pending", (DONE, DONE), {}, "confirmed", None),
    ("confirmed or voided", "pending", (DONE, VOID), {}, "confirmed", None),
    ("every delivery discarded", "pending", (VOID,), {}, "confirmed", None),
    ("one exhausted, the others done", "pending", (DONE, USED, VOID), {}, "exhausted", None),
    ("one exhausted, one open", "pending", (USED, LATE), {}, "pending", NOW + 300),
    ("the earliest look of its deliveries", "pending", (LATE, SOON, DONE), {}, "pending", NOW + 5),
    (
        "an eligible delivery keeps the stub's own look",
        "pending",
        (LOST, SOON),
        {},
        "pending",
        None,
    ),
    ("an exhausted stub is confirmed after all", "exhausted", (DONE, DONE), {}, "confirmed", None),
    ("an exhausted stub stays so", "exhausted", (DONE, USED), {}, "exhausted", None),
    (
        "only a person moves an exhausted stub back",
        "exhausted",
        (DONE, LATE),
        {},
        "exhausted",
        None,
    ),
    ("an exhausted stub that nobody owes any more", "exhausted", (), {}, "exhausted", None),
    ("confirmed is final", "confirmed", (LOST,), {}, "confirmed", None),
    (
        "confirmed without deliveries",
        "confirmed",
        (),
        {"created_at": NOW - OVERDUE},
        "confirmed",
        None,
    ),
    ("voided is final", "voided", (DONE,), {}, "voided", None),
    (
        "nobody owes it, horizon to come",
        "pending",
        (),
        {"created_at": NOW - OVERDUE + 1, "attempted_at": None},
        "pending",
        NOW + 1,
    ),
    (
        "nobody owes it, horizon at this instant",
        "pending",
        (),
        {"created_at": NOW - OVERDUE, "attempted_at": None},
        "no_taker",
        None,
    ),
    (
        "nobody owes it, attempted later",
        "pending",
        (),
        {"created_at": NOW - OVERDUE, "attempted_at": NOW - S},
        "pending",
        NOW - S + OVERDUE,
    ),
    (
        "nobody owes it, due later",
        "pending",
        (),
        {"created_at": NOW - OVERDUE, "attempted_at": None, "deliver_at": NOW},
        "pending",
        NOW + OVERDUE,
    ),
    (
        "nobody owes it, due in the year 9000",
        "pending",
        (),
        {"created_at": NOW, "attempted_at": None, "deliver_at": YEAR_9000},
        "pending",
        NOW + REPLAY,
    ),
    (
        "nobody owes it, never confirmed",
        "no_taker",
        (),
        {"created_at": NOW - OVERDUE, "attempted_at": None},
        "no_taker",
        None,
    ),
)


@pytest.fixture(scope="module")
def of_table(runs: Mapping[str, engines.Run]) -> dict[str, dict[int, Row]]:
    tables: dict[str, list[Row]] = {
        "instant": [{"as_of": NOW}],
        "no_taker": [{"topic": "t%", "overdue_horizon": OVERDUE, "replay_horizon": REPLAY}],
        "stub": [stub(number, row[1], **row[3]) for number, row in enumerate(TABLE)],
        "judged": [
            delivery(number, group, *one)
            for number, row in enumerate(TABLE)
            for group, one in enumerate(row[2])
        ],
    }
    answers = {name: run("outcome", tables) for name, run in runs.items()}
    answers["oracle"] = oracle.outcome(tables)
    return {name: {row["stub_id"]: row for row in rows} for name, rows in answers.items()}


@pytest.mark.parametrize("engine", [*ENGINES, "oracle"])
@pytest.mark.parametrize("number", range(len(TABLE)), ids=[row[0] for row in TABLE])
def test_a_stub_over_its_deliveries(
    of_table: dict[str, dict[int, Row]], engine: str, number: int
) -> None:
    _, old, deliveries, _, new, look = TABLE[number]
    answer = of_table[engine][number]
    found = (
        answer["old_status"],
        answer["deliveries"],
        answer["new_status"],
        answer["next_look_at"],
    )
    assert found == (old, len(deliveries), new, look)


@pytest.mark.parametrize("engine", ENGINES)
def test_thousands_of_random_stubs_end_as_the_oracle_says_each_once(
    runs: Mapping[str, engines.Run], engine: str
) -> None:
    tables = random_stubs(seed=5, number=4_000)
    expected = {row["stub_id"]: row for row in oracle.outcome(tables)}
    rows = runs[engine]("outcome", tables)
    assert {row["new_status"] for row in rows} == {
        "pending",
        "confirmed",
        "exhausted",
        "voided",
        "no_taker",
    }
    assert len(rows) == len(expected) == 4_000
    differing = [
        (row, expected[row["stub_id"]])
        for row in rows
        if any(row[column] != expected[row["stub_id"]][column] for column in COLUMNS)
    ]
    assert not differing, (len(differing), differing[:3])
    assert sum(row["deliveries"] for row in rows) == len(tables["judged"])
    by_id = {one["stub_id"]: one for one in tables["stub"]}
    for row in rows:
        for column in ("shard", "topic", "message_id", "send_count"):
            assert row[column] == by_id[row["stub_id"]][column]


def random_stubs(seed: int, number: int) -> dict[str, list[Row]]:
    """Stubs with none to four deliveries of any verdicts, biased to those that decide a status."""
    random = Random(seed)
    tables: dict[str, list[Row]] = {
        "instant": [{"as_of": NOW}],
        "stub": [],
        "judged": [],
        "no_taker": [
            {"topic": "t%", "overdue_horizon": OVERDUE, "replay_horizon": REPLAY},
            {"topic": "other", "overdue_horizon": S, "replay_horizon": REPLAY},
        ],
    }
    few = ("CONFIRMED", "VOIDED", "EXHAUSTED")
    for one in range(number):
        at = NOW - OVERDUE + random.choice((-1, 0, 1, S))
        tables["stub"].append(
            stub(
                one,
                random.choice(
                    ("pending",) * 5 + ("exhausted", "exhausted", "confirmed", "voided", "no_taker")
                ),
                created_at=at,
                attempted_at=random.choice((None, None, at, NOW)),
                deliver_at=random.choice((None, None, NOW + S)),
                topic=random.choice(("t%", "t%", "other")),
                send_count=random.randrange(4),
            )
        )
        verdicts = random.choice((few[:2], few, tuple(str(verdict) for verdict in Verdict)))
        for group in range(random.randrange(5)):
            verdict = random.choice(verdicts)
            eligible = verdict in ("LOST", "UNSENT", "STALLED") and random.random() < 0.6
            closed = eligible or verdict in few
            look = None if closed else NOW + random.randrange(1, 9)
            tables["judged"].append(delivery(one, group, verdict, eligible, look))
    return tables
