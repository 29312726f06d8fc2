"""The verdict rule: one answer from PostgreSQL, Spark, a run's packets, a table written by hand and the oracle."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.contract import engines, random_deliveries, truth_table
from tests.contract.truth_table import CASES, NOW

import oracle
from backstop.model.records import Verdict
from backstop.reconcile.judge_proven import DECIDES, OUTCOME, judge_proven
from backstop.verdicts import frames
from backstop.verdicts.evaluate import RELATIONS, Engine, table

ENGINES = ("duckdb", "postgresql", "spark")
OF_VERDICTS = (*ENGINES, "packets")
ANSWERED = ("verdict", "reason", "eligible", "case_kind", "next_look_at", "missing")
SEED, TOPICS, STUBS_EACH = 20_260, 230, 12
RANDOM_FROM = 10_000
"""stub_ids below are rows of the truth table."""
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, spark: Any
) -> Iterator[Mapping[str, engines.Run]]:
    with engines.every_engine(tmp_path_factory.mktemp("pg"), spark) as runs:
        yield runs


@pytest.fixture(scope="module")
def random_tables() -> dict[str, Rows]:
    return random_deliveries.judge_tables(SEED, TOPICS, STUBS_EACH, first_id=RANDOM_FROM)


@pytest.fixture(scope="module")
def answers(runs: Mapping[str, engines.Run], random_tables: dict[str, Rows]) -> dict[str, Rows]:
    """Every engine's rows about the truth table and the random deliveries, judged at once as a run would."""
    tables = truth_table.tables()
    both = {
        name: [*tables[name], *rows] for name, rows in random_tables.items() if name != "instant"
    }
    return {name: run("verdict", {**tables, **both}) for name, run in runs.items()}


@pytest.fixture(scope="module")
def of_table(answers: dict[str, Rows]) -> dict[str, Rows]:
    found = {
        name: [row for row in rows if row["stub_id"] < RANDOM_FROM]
        for name, rows in answers.items()
    }
    return {**found, "oracle": oracle.judge(truth_table.tables())}


@pytest.fixture(scope="module")
def of_random(answers: dict[str, Rows]) -> dict[str, Rows]:
    return {
        name: [row for row in rows if row["stub_id"] >= RANDOM_FROM]
        for name, rows in answers.items()
    }


def identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (row["stub_id"], row["consumer_group"])


def assert_same(
    found: Sequence[Mapping[str, Any]],
    expected: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
) -> None:
    """Every delivery once in both, equal in these columns; shows the first few that are not."""
    assert Counter(map(identity, found)) == Counter(map(identity, expected))
    wanted = {identity(row): {c: row[c] for c in columns} for row in expected}
    got = {identity(row): {c: row[c] for c in columns} for row in found}
    differing = [(key, got[key], wanted[key]) for key in got if got[key] != wanted[key]]
    assert not differing, (len(differing), differing[:3])


@pytest.mark.parametrize("engine", [*OF_VERDICTS, "oracle"])
@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_each_row_of_the_truth_table_comes_out_as_written(
    of_table: dict[str, Rows], engine: str, number: int
) -> None:
    case = CASES[number]
    rows = [row for row in of_table[engine] if row["stub_id"] == number]
    assert len(rows) == 1
    row = rows[0]
    look = None if row["next_look_at"] is None else row["next_look_at"] - NOW
    found = (row["verdict"], row["reason"], row["eligible"], row["case_kind"], look)
    assert found == (case.verdict, case.reason, case.eligible, case.case, case.look)


def test_the_truth_table_has_every_verdict_every_reason_and_every_kind_of_case() -> None:
    assert {case.verdict for case in CASES} == {str(verdict) for verdict in Verdict}
    assert len({case.name for case in CASES}) == len(CASES)
    # Every word that the rule can answer with stands after THEN, ELSE or in a coalesce.
    words = set(re.findall(r"(?:THEN|ELSE|missing,) '([a-z_]+)'", frames.portable_sql("verdict")))
    places = {"passed", "expired", "ahead", "unknown"}  # of a copy; 'unknown' is a kind of case too
    used = {case.reason for case in CASES} | {case.case for case in CASES if case.case}
    assert words - places == used - {"unknown"}
    assert "unknown" in used


@pytest.mark.parametrize("engine", OF_VERDICTS)
def test_thousands_of_random_deliveries_are_judged_as_the_oracle_judges_them(
    of_random: dict[str, Rows], random_tables: dict[str, Rows], engine: str
) -> None:
    expected = oracle.judge(random_tables)
    assert len(expected) >= 5_000
    assert {row["verdict"] for row in expected} == {str(verdict) for verdict in Verdict}
    assert {row["reason"] for row in expected} == {case.reason for case in CASES}
    assert {row["case_kind"] for row in expected} == {case.case for case in CASES}
    assert_same(of_random[engine], expected, ANSWERED)


@pytest.mark.parametrize("engine", ["postgresql", "duckdb", "packets"])
def test_all_engines_give_every_column_equal(answers: dict[str, Rows], engine: str) -> None:
    assert_same(answers["spark"], answers[engine], tuple(frames.JUDGED))


@pytest.mark.parametrize("engine", OF_VERDICTS)
def test_every_delivery_read_gets_exactly_one_verdict(
    of_random: dict[str, Rows], random_tables: dict[str, Rows], engine: str
) -> None:
    rows = of_random[engine]
    deliveries = {identity(row): row for row in random_tables["delivery"]}
    policies = {(row["topic"], row["consumer_group"]): row for row in random_tables["policy"]}
    assert Counter(map(identity, rows)) == Counter(map(identity, random_tables["delivery"]))
    by_verdict = Counter(row["verdict"] for row in rows)
    assert sum(by_verdict[str(verdict)] for verdict in Verdict) == len(random_tables["delivery"])
    for row in rows:
        assert list(row) == list(frames.JUDGED)
        assert not row["eligible"] or row["verdict"] in ("STALLED", "UNSENT", "LOST")
        # Nothing waits for ever: what is still open and not to be sent has a next look in the future.
        open_ = row["verdict"] not in ("VOIDED", "CONFIRMED", "EXHAUSTED") and not row["eligible"]
        assert open_ == (row["next_look_at"] is not None)
        assert not open_ or row["next_look_at"] > random_deliveries.NOW
        assert row["verdict"] != "EXHAUSTED" or row["case_kind"] == "exhausted"
        # What the blast radius counts as newly CONFIRMED: consumed after the stub was judged last, and not far ahead.
        read = deliveries[identity(row)]
        consumed, judged = read["log_consumed_at"] or 0, read["judged_at"] or 0
        near = policies[row["topic"], row["consumer_group"]]["unknown_horizon"]
        ahead = consumed >= random_deliveries.NOW + near
        assert row["newly"] == (row["verdict"] == "CONFIRMED" and consumed > judged and not ahead)


def test_more_seeds_on_the_claims_engine(runs: Mapping[str, engines.Run]) -> None:
    for seed in range(5):
        tables = random_deliveries.judge_tables(seed, 150, 12)
        assert_same(runs["duckdb"]("verdict", tables), oracle.judge(tables), ANSWERED)


def test_absence_is_not_evidence(runs: Mapping[str, engines.Run]) -> None:
    """Whatever is taken away from what was read, a delivery that was not eligible does not become so."""
    tables = random_deliveries.judge_tables(77, 100, 12)
    before = {identity(r) for r in runs["duckdb"]("verdict", tables) if r["eligible"]}
    nothing_read: dict[str, Rows] = {
        "group_state": [],
        "shard_state": [],
        "delivery": [{**d, **dict.fromkeys(frames.LOG)} for d in tables["delivery"]],
        "progress": [{**p, "settled_offset": None} for p in tables["progress"]],
    }
    for name, less in nothing_read.items():
        after = {
            identity(r) for r in runs["duckdb"]("verdict", {**tables, name: less}) if r["eligible"]
        }
        assert after <= before, name
        assert name == "progress" or not after, name


def test_what_logs_alone_decide_is_what_all_the_evidence_says(
    runs: Mapping[str, engines.Run],
) -> None:
    """Each stub whose every delivery is CONFIRMED by its log is decided without what is read after the logs, and no other is."""
    rows = random_deliveries.judge_tables(SEED, 10 * TOPICS, STUBS_EACH, first_id=RANDOM_FROM)
    topics = {row["topic"] for row in rows["delivery"]}
    rows["no_taker"] = [dict.fromkeys(frames.NO_TAKER, 1) | {"topic": topic} for topic in topics]
    given = {
        name: table(columns, rows[name])
        for text in ("verdict", "outcome")
        for name, columns in RELATIONS[text].items()
        if name not in ("stub", "judged")
    }
    seen = {row["stub_id"]: row for row in rows["delivery"]}
    stubs = table(frames.STUB, [dict.fromkeys(frames.STUB) | row for row in seen.values()])
    by_stub: dict[int, list[dict[str, Any]]] = {}
    for row in runs["duckdb"]("verdict", rows):
        by_stub.setdefault(row["stub_id"], []).append(row)
    logs: dict[int, list[dict[str, Any]]] = {}
    for log in rows["delivery"]:
        logs.setdefault(log["stub_id"], []).append(log)
    by_log = {
        stub_id
        for stub_id, judged in by_stub.items()
        if all(
            row["reason"] == "consumed" and log["log_valid"] and log["log_state"] == "CONSUMED"
            for row, log in zip(
                sorted(judged, key=identity),
                sorted(logs[stub_id], key=identity),
                strict=True,
            )
        )
    }
    with closing(Engine()) as engine:
        known = {name: given[name] for name in DECIDES}
        found = judge_proven(known, engine, stubs, given["delivery"])
        judged = [row for stub_id in by_log for row in by_stub[stub_id]]
        whole = {
            **known,
            "stub": stubs.filter(pc.is_in(stubs["stub_id"], pa.array(by_log))),
            "judged": table(frames.JUDGED, judged),
        }
        expected = engine.run("outcome", whole).select(OUTCOME)
    assert found is not None
    assert 20 < found.outcomes.num_rows == len(by_log) < stubs.num_rows / 2
    assert set(map(str, found.outcomes.to_pylist())) == set(map(str, expected.to_pylist()))
    assert set(found.rest["stub_id"].to_pylist()) == set(seen) - by_log
    counted = Counter((row["topic"], row["consumer_group"], row["newly"]) for row in judged)
    assert {row["verdict"] for row in found.counted.to_pylist()} == {"CONFIRMED"}
    for row in found.counted.to_pylist():
        one = row["topic"], row["consumer_group"]
        assert (row["deliveries"], row["eligible"]) == (
            counted[*one, True] + counted[*one, False],
            0,
        )
        assert row["newly"] == counted[*one, True]
    discarded = {(d["topic"], d["message_id"]) for d in rows["decision"]}
    assert any(  # else the decisions were not needed
        (seen[stub_id]["topic"], seen[stub_id]["message_id"]) in discarded
        and all(row["log_state"] == "CONSUMED" for row in by_stub[stub_id])
        for stub_id in set(by_stub) - by_log
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_group_owes_what_it_takes_while_it_is_active_and_not_below_its_start(
    runs: Mapping[str, engines.Run], engine: str
) -> None:
    tables = random_deliveries.owed_tables(SEED, 100, 40)
    rows = runs[engine]("deliveries", tables)
    stubs = {stub["stub_id"]: stub for stub in tables["stub"]}
    expected = [
        {
            **{c: stubs[stub_id][c] for c in frames.OWED if c != "consumer_group"},
            "consumer_group": group,
        }
        for stub_id, group in oracle.owed(tables)
    ]
    assert 0 < len(expected) < 3 * len(stubs)
    assert_same(rows, expected, tuple(frames.OWED))
    assert all(list(row) == list(frames.OWED) for row in rows[:1])


OWED: tuple[tuple[dict[str, Any], dict[str, Any], bool], ...] = (
    ({}, {}, True),
    ({"created_at": NOW}, {"active_from": NOW}, True),
    ({"created_at": NOW - 1}, {"active_from": NOW}, False),
    ({"created_at": NOW}, {"active_until": NOW}, False),
    ({"created_at": NOW - 1}, {"active_until": NOW}, True),
    # Created between the two: perhaps while the group was active.
    ({"created_at": NOW - 1, "created_latest": NOW}, {"active_from": NOW}, True),
    ({"created_at": NOW - 2, "created_latest": NOW - 1}, {"active_from": NOW}, False),
    ({"created_at": NOW - 1, "created_latest": NOW}, {"active_until": NOW}, True),
    ({"tag": "red"}, {"every_tag": False}, True),
    ({"tag": "blue"}, {"every_tag": False}, False),
    ({"tag": None}, {"every_tag": False}, False),
    ({"first_queue_offset": 9}, {}, False),
    ({"first_queue_offset": 10}, {}, True),
    ({"first_queue_offset": 9, "first_queue_epoch": "e1"}, {}, True),
    ({"first_queue_offset": 9, "first_queue_id": 1}, {}, True),
    ({"first_queue_offset": None}, {}, True),
    # A resend's place, or none while one is under way, says nothing about who owes the message.
    ({"first_queue_offset": 9, "queue_offset": 200, "send_count": 2}, {}, False),
    (
        {
            "first_queue_offset": 9,
            "queue_offset": None,
            "queue_id": None,
            "queue_epoch": None,
            "send_count": 2,
        },
        {},
        False,
    ),
    (
        {"first_queue_offset": None, "first_queue_id": None, "first_queue_epoch": None},
        {"active_from": NOW},
        False,
    ),
    # Another broker's queue, and a later life of the queue under the same epoch, have offsets of their own.
    ({"first_queue_offset": 9, "first_broker": "side"}, {}, True),
    ({"first_queue_offset": 9, "first_broker": "side"}, {"broker": "side"}, True),
    ({"first_queue_offset": 9, "first_broker": None}, {}, False),
    ({"first_queue_offset": 9, "created_at": NOW - 1}, {"attempt_timeout": 1}, False),
    ({"first_queue_offset": 9, "created_at": NOW}, {"attempt_timeout": 1}, True),
    (
        {"first_queue_offset": 9, "created_at": NOW},
        {"attempt_timeout": 1, "active_from": NOW + 1},
        False,
    ),
)
"""What differs of the stub and of the policy; is it owed?"""


@pytest.mark.parametrize("engine", ENGINES)
def test_a_delivery_is_owed_or_not_at_each_boundary(
    runs: Mapping[str, engines.Run], engine: str
) -> None:
    tables: dict[str, Rows] = {name: [] for name in ("stub", "policy", "group_tag", "start_offset")}
    start = {
        "broker": "main",
        "queue_id": 0,
        "epoch": "e2",
        "start_offset": 10,
        "only_until": NOW + 1,
    }
    for number, (stub, policy, _) in enumerate(OWED):
        where = {"topic": f"t{number}", "consumer_group": "billing"}
        tables["stub"].append(
            {
                **dict.fromkeys(frames.STUB),
                **truth_table.STUB,
                "stub_id": number,
                "shard": "s",
                "message_id": "m",
                "topic": where["topic"],
                "created_at": NOW - 1,
                "first_broker": "main",
                "first_queue_id": 0,
                "first_queue_offset": 10,
                "first_queue_epoch": "e2",
                **stub,
            }
        )
        tables["policy"].append({**where, **truth_table.POLICY, "attempt_timeout": 0, **policy})
        tables["group_tag"].extend({**where, "tag": tag} for tag in ("red", "green"))
        tables["start_offset"].append({**where, **start})
    wanted = [number for number, (_, _, owes) in enumerate(OWED) if owes]
    assert sorted(row["stub_id"] for row in runs[engine]("deliveries", tables)) == wanted
    assert sorted(stub_id for stub_id, _ in oracle.owed(tables)) == wanted


@pytest.mark.parametrize("name", ["deliveries", "verdict", "outcome"])
def test_the_portable_text_holds_no_percent_sign(name: str) -> None:
    # psycopg2 would read it as a parameter.
    assert "%" not in frames.portable_sql(name)
