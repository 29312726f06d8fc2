"""Classify on real databases: letters and logs before, staged rows, causes and counts after."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from backstop.checks.run import run_suite
from backstop.cli.app import run_app
from backstop.control.connection import connect
from backstop.model.errors import AuditFailed, RunLost
from backstop.model.records import Counts
from backstop.runs.run import Run
from backstop.triage.causes import classify as classify_module
from backstop.triage.causes.classify import classify_dead_letters
from backstop.triage.causes.promote_causes import promote_causes
from backstop.triage.causes.try_rules import try_rules
from letter_world import (
    FAILED,
    KEY_ERROR,
    LIMIT,
    categories,
    causes,
    classify,
    counts_are_right,
    letter,
    log,
    rule,
    triage,
)
from resend_world import TOPIC, World, servers, world

__all__ = ["servers", "world"]


def test_a_letter_gets_its_cause_and_category_and_the_cause_counts_it(
    world: World, tmp_path: Path
) -> None:
    first = letter(world, "a", error="KeyError: 'total'", died="2026-11-21 09:00:00+00")
    second = letter(world, "b", error="KeyError: 'vat'")
    letter(
        world,
        "c",
        error='psycopg2.OperationalError: connection to server at "10.0.0.7" failed: Connection refused',
    )
    counts = classify(world, audit=tmp_path)
    assert counts["letters_classified"] == counts["letters_promoted"] == 3
    assert categories(world) == {"a": "poison", "b": "poison", "c": "transient"}
    assert causes(world)["handler failed || KeyError: <*>"] == ("poison", 2)
    ((examples, seen, last),) = world.sql(
        "control",
        "SELECT examples, first_seen_at::text, last_seen_at::text FROM cause WHERE category = 'poison'",
    )
    assert sorted(examples) == [first, second]
    assert (seen[:13], last[:13]) == ("2026-11-21 09", "2026-11-21 10")
    assert classify(world) == Counts()  # nothing is left to classify, and nothing is counted twice
    assert counts_are_right(world)


def test_the_log_decides_what_is_confirmed_already(world: World) -> None:
    for message_id, cause in (
        ("done", "Suppressing duplicate delivery on connection, consumer ID:h-1-2-3:1:1:1"),
        ("undone", "Suppressing duplicate delivery on connection, consumer ID:h-9-2-3:1:1:1"),
        ("done-poison", FAILED),
    ):
        letter(world, message_id, cause, "" if cause != FAILED else KEY_ERROR)
    log(world, "done", "CONSUMED")
    log(world, "done-poison", "CONSUMED", error=KEY_ERROR)
    log(world, "undone", "EXPIRED")
    classify(world)
    assert categories(world) == {
        "done": "already_confirmed",
        "undone": "duplicate_suppressed",
        "done-poison": "already_confirmed",
    }
    # The causes say what the texts say.
    assert {category for category, _ in causes(world).values()} == {
        "duplicate_suppressed",
        "poison",
    }


def test_busy_exhausted_only_where_the_log_shows_no_failure(world: World) -> None:
    for message_id in ("never-received", "busy", "failed", "failed-away", "failed-oddly", "no-id"):
        letter(world, None if message_id == "no-id" else message_id, LIMIT)
    letter(world, "foreign", LIMIT, group="somebody else's")
    log(world, "busy", "CONSUMING")
    log(world, "failed", "FAILED", error=KEY_ERROR)
    log(
        world,
        "failed-away",
        "EXPIRED",
        error="ConnectionRefusedError: [Errno 111] Connection refused",
    )
    log(world, "failed-oddly", "FAILED", error="Declined: it is Sunday")
    classify(world)
    found = categories(world)
    assert found.pop(None) == "unknown"  # type: ignore[call-overload]
    assert found == {
        "never-received": "busy_exhausted",
        "busy": "busy_exhausted",
        "failed": "poison",
        "failed-away": "transient",
        "failed-oddly": "unknown",
        "foreign": "unknown",
    }
    assert counts_are_right(world)


def test_the_error_that_the_log_keeps_tells_causes_apart_where_the_letter_has_none(
    world: World,
) -> None:
    for message_id, error in (
        ("a", KEY_ERROR),
        ("b", "TimeoutError: timed out after 3 s"),
        ("c", KEY_ERROR),
    ):
        letter(world, message_id)
        log(world, message_id, "FAILED", error=error)
    classify(world)
    assert categories(world) == {"a": "poison", "b": "transient", "c": "poison"}
    assert causes(world) == {
        "handler failed || KeyError: <*>": ("poison", 2),
        "handler failed || TimeoutError: timed out after <*>": ("transient", 1),
    }


def test_a_letter_of_an_unknown_group_is_confirmed_only_when_every_group_of_its_topic_is_done(
    world: World,
) -> None:
    for message_id in ("both", "one"):
        letter(world, message_id, LIMIT, group=None)
        log(world, message_id, "CONSUMED", group="billing")
    log(world, "both", "CONSUMED", group="shipping")
    classify(world)
    assert categories(world) == {"both": "already_confirmed", "one": "busy_exhausted"}


def test_another_content_under_the_same_id_is_a_conflict_even_when_the_first_is_done(
    world: World,
) -> None:
    letter(world, "done")
    log(world, "done", "CONSUMED", conflicts=1)
    letter(world, "open")
    log(world, "open", "CONSUMING", conflicts=2)
    classify(world)
    assert categories(world) == {"done": "conflict", "open": "conflict"}


def test_a_message_that_breaks_its_contract_is_poison(world: World) -> None:
    letter(world, None, FAILED, invalid="its header 'backstop-message-id' is missing")
    classify(world)
    assert world.sql("control", "SELECT category FROM dead_letter") == [("poison",)]


def test_a_letter_whose_log_does_not_answer_waits_and_is_not_guessed_at(
    world: World, tmp_path: Path
) -> None:
    letter(world, "asked", error=KEY_ERROR)
    letter(world, "not-asked", error=KEY_ERROR, group="shipping")
    letter(world, None, error=KEY_ERROR, group="shipping")
    good = world.urls["backstop_consumer_shipping"]
    world.urls["backstop_consumer_shipping"] = "postgresql://nobody@127.0.0.1:1/none"
    counts = classify(world, audit=tmp_path)
    assert (counts["letters_classified"], counts["letters_waiting"]) == (2, 1)
    assert categories(world)["not-asked"] is None
    world.urls["backstop_consumer_shipping"] = good
    log(world, "not-asked", "CONSUMED", group="shipping")
    classify(world)
    assert categories(world)["not-asked"] == "already_confirmed"
    assert counts_are_right(world)


def test_a_changed_rule_moves_open_letters_and_only_open_ones(world: World, tmp_path: Path) -> None:
    names = ("a", "b", "closed")
    for name in names:
        letter(world, name, error="LedgerClosed: ledger 17 of 2025 is closed")
    letter(world, "poison", error=KEY_ERROR)
    classify(world)
    assert set(categories(world).values()) == {"unknown", "poison"}
    before = dict(world.sql("control", "SELECT message_id, cause_id FROM dead_letter"))
    world.sql(
        "control",
        """UPDATE dead_letter SET state = 'discarded', proof = '{}', decided_by = 'ada', closed_at = now()
        WHERE message_id = 'closed'""",
    )
    world.set("dead_letters", to={"rules": [rule("ledger", "transient", "^LedgerClosed", "error")]})
    counts = classify(world, audit=tmp_path)
    assert counts["letters_changed"] == 2
    assert categories(world) == {
        "a": "transient",
        "b": "transient",
        "closed": "unknown",
        "poison": "poison",
    }
    after = dict(world.sql("control", "SELECT message_id, cause_id FROM dead_letter"))
    assert after == before  # the same text is the same cause: its case goes on
    assert causes(world)["handler failed || LedgerClosed: ledger <*> of <*> is closed"] == (
        "transient",
        3,
    )
    assert counts_are_right(world)


def test_a_rule_that_goes_by_a_slot_makes_causes_of_its_own_and_counts_stay_right(
    world: World, tmp_path: Path
) -> None:
    for at, number in enumerate((17, 18, 17)):
        letter(world, f"m{at}", error=f"LedgerClosed: ledger {number}")
    classify(world)
    assert causes(world) == {"handler failed || LedgerClosed: ledger <*>": ("unknown", 3)}
    world.set("dead_letters", to={"rules": [rule("ledger-17", "poison", r"ledger 17\b")]})
    classify(world, audit=tmp_path)
    assert sorted(categories(world).values()) == ["poison", "poison", "unknown"]
    rows = world.sql(
        "control", "SELECT category, dead_letters FROM cause WHERE dead_letters > 0 ORDER BY 1"
    )
    assert rows == [("poison", 2), ("unknown", 1)]
    world.set("dead_letters", to={"rules": []})
    classify(world, audit=tmp_path)
    assert causes(world) == {"handler failed || LedgerClosed: ledger <*>": ("unknown", 3)}
    assert counts_are_right(world)


def test_names_in_one_place_become_one_cause_that_later_texts_meet_again(
    world: World, tmp_path: Path
) -> None:
    for name in ("alice", "bob", "carol"):
        letter(world, f"one-{name}", error=f"Declined: the card of {name} is not accepted here")
    classify(world, audit=tmp_path)
    assert causes(world) == {
        "handler failed || Declined: the card of <name> is not accepted here": ("unknown", 3)
    }
    letter(world, "dave", error="Declined: the card of dave is not accepted here")
    letter(world, "number", error="Declined: the card of 4711 is not accepted here")
    letter(world, "word", error="Declined: the card of nobody is not accepted here")
    classify(world, audit=tmp_path)
    assert {template: count for template, (_, count) in causes(world).items()} == {
        "handler failed || Declined: the card of <name> is not accepted here": 6,
    }


def test_letters_of_older_causes_move_with_a_new_pattern_but_for_those_in_a_case(
    world: World, tmp_path: Path
) -> None:
    for name in ("alice", "bob"):
        letter(world, name, error=f"Declined: the card of {name} is not accepted here")
    classify(world)
    assert len(causes(world)) == 2
    world.sql(
        "control",
        """WITH c AS (INSERT INTO case_file (kind, topic, consumer_group, subject, severity, summary)
        VALUES ('dead_letters', 'orders', 'billing', 'x', 'warning', 's') RETURNING case_id)
        UPDATE dead_letter SET case_id = c.case_id FROM c WHERE message_id = 'alice'""",
    )
    letter(world, "carol", error="Declined: the card of carol is not accepted here")
    classify(world, audit=tmp_path)
    assert {template: count for template, (_, count) in causes(world).items()} == {
        "handler failed || Declined: the card of <name> is not accepted here": 2,
        "handler failed || Declined: the card of alice is not accepted here": 1,
    }
    assert counts_are_right(world)


def test_a_run_over_a_topic_leaves_the_others_alone(world: World) -> None:
    letter(world, "ours", error=KEY_ERROR)
    letter(world, "theirs", error=KEY_ERROR, topic="payments")
    classify(world, TOPIC)
    assert categories(world) == {"ours": "poison", "theirs": None}


def test_hostile_texts_are_classified_and_pass_the_audit(world: World, tmp_path: Path) -> None:
    texts = (
        "\x01\ue001 1234567890123456789",
        "<name> <any> <*>",
        "a@b.cc " * 500,
        "((((" * 3000,
        '{"a":' * 3000,
        "'" * 9001,
        "",
        "Error20261121235959Failed",
        "x@" + "a" * 70 + ".com",
        "abcdefab-abcd-abcd-abcd-x",
        "\u202ex",
        "11111111-2222-3333-4444-555555555555" * 100,
    )
    for number, text in enumerate(texts):
        letter(world, f"m{number}", text, text)
    assert classify(world, audit=tmp_path)["letters_promoted"] == len(texts)


def test_a_retried_classify_stages_anew_and_promotes_once(world: World, tmp_path: Path) -> None:
    letters = [letter(world, f"m{number}", error=KEY_ERROR) for number in range(5)]
    with triage(world) as (control, run):
        classify_dead_letters(control, world.settings, world.connections, run, limit=3)
        classify_dead_letters(control, world.settings, world.connections, run)
        run_suite("causes", world.urls["backstop_control"], run.run_id, None, tmp_path)
        promote_causes(control, run)
        promote_causes(control, run)
    assert causes(world) == {"handler failed || KeyError: <*>": ("poison", 5)}
    assert world.sql("control", "SELECT examples FROM cause") == [(letters,)]
    assert counts_are_right(world)


def test_a_letter_that_was_decided_before_the_promotion_keeps_what_it_was(world: World) -> None:
    letter(world, "a", error=KEY_ERROR)
    letter(world, "b", error=KEY_ERROR)
    with triage(world) as (control, run):
        classify_dead_letters(control, world.settings, world.connections, run)
        world.sql(
            "control",
            """UPDATE dead_letter SET state = 'discarded', proof = '{}', decided_by = 'ada', closed_at = now()
            WHERE message_id = 'b'""",
        )
        promote_causes(control, run)
    assert categories(world) == {"a": "poison", "b": None}
    assert causes(world) == {"handler failed || KeyError: <*>": ("poison", 1)}
    assert counts_are_right(world)


def test_two_promotions_at_once_count_every_letter_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backstop.triage.causes.promote_causes.BATCH", 7)
    for number in range(60):
        letter(
            world, f"m{number}", error=(KEY_ERROR, "TypeError: no", "ValueError: no")[number % 3]
        )
    with world.run(duty="triage") as one, world.run(TOPIC, duty="triage") as two:
        controls = [connect(world.settings, world.connections) for _ in range(2)]
        for control, run in zip(controls, (one, two), strict=True):
            classify_dead_letters(control, world.settings, world.connections, run)
        failed: list[BaseException] = []

        def promote(control: Any, run: Run) -> None:
            try:
                promote_causes(control, run)
            except BaseException as error:  # noqa: BLE001  shown by the assertion
                failed.append(error)

        threads = [
            threading.Thread(target=promote, args=pair)
            for pair in zip(controls, (one, two), strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for control in controls:
            control.close()
    assert failed == []
    assert sorted(count for _, count in causes(world).values()) == [20, 20, 20]
    assert counts_are_right(world)


_KILLED = """
import os, signal, sys
from backstop.config.connections import Connections
from backstop.triage.causes import promote_causes as module
from backstop.runs.run import Run, find
import psycopg2
module.BATCH = 10
whole, done = module._promote_held, []
def promote(cursor, old_causes):
    if len(done) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    done.append(1)
    return whole(cursor, old_causes)
module._promote_held = promote
control = psycopg2.connect(sys.argv[1])
module.promote_causes(control, find(control, int(sys.argv[2]), sys.argv[3]))
"""


def test_a_promotion_killed_between_batches_is_finished_by_the_next_one(world: World) -> None:
    for number in range(35):
        letter(world, f"m{number:02}", error=KEY_ERROR)
    with triage(world) as (control, run):
        classify_dead_letters(control, world.settings, world.connections, run)
        died = subprocess.run(
            [
                sys.executable,
                "-c",
                _KILLED,
                world.urls["backstop_control"],
                str(run.run_id),
                run.token,
            ],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "include")},
            check=False,
            capture_output=True,
        )
        assert died.returncode == -signal.SIGKILL, died.stderr.decode()
        assert causes(world) == {"handler failed || KeyError: <*>": ("poison", 20)}
        assert counts_are_right(world)
        promote_causes(control, run)
    assert causes(world) == {"handler failed || KeyError: <*>": ("poison", 35)}
    assert counts_are_right(world)


def test_a_run_that_was_taken_over_stages_and_promotes_nothing_more(world: World) -> None:
    letter(world, "a", error=KEY_ERROR)
    with triage(world) as (control, run):
        classify_dead_letters(control, world.settings, world.connections, run)
        world.sql("control", "UPDATE duty_lease SET token = gen_random_uuid()")
        with pytest.raises(RunLost):
            promote_causes(control, run)
        with pytest.raises(RunLost):
            classify_dead_letters(control, world.settings, world.connections, run)
    assert categories(world) == {"a": None}


def test_a_late_classify_changes_nothing_of_what_was_checked(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that had begun when the check did, as on a host that was frozen, and one that begins after it."""
    letter(world, "a", error=KEY_ERROR)

    def classify_here() -> None:
        classify_dead_letters(control, world.settings, world.connections, run)

    with triage(world) as (control, run):
        classify_here()
        close = classify_module.close_stage

        def close_late(*given: Any) -> Counts:
            run_suite("causes", world.urls["backstop_control"], run.run_id, None, tmp_path)
            world.sql("control", "UPDATE staged_letter SET category = 'transient' WHERE stage = 2")
            return close(*given)

        with monkeypatch.context() as patched, pytest.raises(RunLost, match="comes too late"):
            patched.setattr(classify_module, "close_stage", close_late)
            classify_here()
        with pytest.raises(RunLost, match="comes too late"):
            classify_here()
        promote_causes(control, run)
    assert categories(world) == {"a": "poison"}


@pytest.mark.parametrize(
    ("check", "breach"),
    [
        (
            "letters_exist_and_are_open",
            "UPDATE staged_letter SET dead_letter_id = 999999"
            " WHERE dead_letter_id = (SELECT min(dead_letter_id) FROM staged_letter)",
        ),
        ("categories_known", "UPDATE staged_letter SET category = 'odd'"),
        (
            "one_cause_one_template",
            "UPDATE staged_letter SET template = template || message_id FROM dead_letter d"
            " WHERE d.dead_letter_id = staged_letter.dead_letter_id",
        ),
        (
            "templates_hold_no_numbers",
            "UPDATE staged_letter SET template = 'order 20261121 is late'",
        ),
        (
            "letters_conserved",
            "DELETE FROM staged_letter WHERE dead_letter_id = (SELECT min(dead_letter_id) FROM staged_letter)",
        ),
        ("staging_is_whole", "DELETE FROM staged_read"),
        (
            "causes_count_their_letters",
            "INSERT INTO cause (fingerprint, template, category, first_seen_at, last_seen_at, dead_letters)"
            " SELECT DISTINCT fingerprint, template, rule_category, now(), now(), 3 FROM staged_letter",
        ),
    ],
)
def test_the_audit_stops_what_does_not_hold(
    world: World, tmp_path: Path, check: str, breach: str
) -> None:
    letter(world, "a", error=KEY_ERROR)
    letter(world, "b", error=KEY_ERROR)
    with triage(world) as (control, run):
        classify_dead_letters(control, world.settings, world.connections, run)
        world.sql("control", breach)
        with pytest.raises(AuditFailed):
            run_suite("causes", world.urls["backstop_control"], run.run_id, None, tmp_path)
    ((failed,),) = world.sql("control", "SELECT failed FROM data_check WHERE suite = 'causes'")
    assert check in [one["name"] for one in failed]


def test_people_see_a_cause_without_names_and_those_of_an_earlier_version_too(world: World) -> None:
    letter(world, "a", error="Refused: payment for Greta Thunberg is too large")
    world.sql(
        "control",
        """
        INSERT INTO cause (fingerprint, template, category, first_seen_at, last_seen_at)
        VALUES ('old', 'IBAN <*> of Max Mustermann blocked', 'poison', now(), now());
        INSERT INTO case_file (kind, topic, consumer_group, subject, summary, evidence)
        VALUES ('dead_letters', 'orders', 'billing', 'old', '',
            '{"template": "IBAN <*> of Max Mustermann blocked", "letters": 3}')""",
    )
    classify(world)
    kept = dict(world.sql("control", "SELECT template, shown FROM cause"))
    assert kept == {
        "handler failed || Refused: payment for Greta Thunberg is too large": "handler failed || Refused: payment for <*> is too large",
        "IBAN <*> of Max Mustermann blocked": "IBAN <*> of <*> blocked",
    }
    assert world.sql("control", "SELECT evidence FROM case_file") == [
        ({"template": "IBAN <*> of <*> blocked", "letters": 3},)
    ]
    world.sql("control", "DELETE FROM case_file")


def test_a_trial_of_other_rules_says_what_would_change_and_writes_nothing(world: World) -> None:
    ids = [letter(world, name, error=f"LedgerClosed: ledger {name}") for name in ("a", "b")]
    letter(world, "c", error=KEY_ERROR)
    letter(world, "done", error=KEY_ERROR)
    log(world, "done", "CONSUMED")
    classify(world)
    before = world.sql("control", "SELECT to_jsonb(d) FROM dead_letter d ORDER BY dead_letter_id")
    control = connect(world.settings, world.connections)
    try:
        trial = try_rules(
            control,
            world.settings,
            world.connections,
            [
                rule("ledger", "transient", "LedgerClosed"),
                rule("all", "expired", "KeyError"),
            ],
        )
    finally:
        control.close()
    changes = {
        (change.before, change.after): (change.letters, sorted(change.examples))
        for change in trial.changes
    }
    assert changes[("unknown", "transient")] == (2, sorted(ids))
    assert changes[("poison", "expired")][0] == 1
    assert (trial.letters, trial.same, trial.waits) == (
        4,
        1,
        0,
    )  # what the log proves done stays so
    assert (
        world.sql("control", "SELECT to_jsonb(d) FROM dead_letter d ORDER BY dead_letter_id")
        == before
    )


def test_causes_are_listed_and_rules_are_tried_by_command_line(
    world: World,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = letter(world, "a", error="LedgerClosed: ledger 17")
    letter(world, "b", error=KEY_ERROR, topic="payments")
    classify(world)
    config = tmp_path / "backstop.yaml"
    config.write_text(yaml.safe_dump(world.written))
    monkeypatch.setenv("BACKSTOP_CONFIG", str(config))
    for name, url in world.urls.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", url)

    def command(*arguments: str) -> tuple[int, str]:
        code = run_app(["dead-letters", *arguments])
        said = capsys.readouterr()
        return code, said.out + said.err

    code, said = command("causes", "--json")
    assert code == 0
    assert [(row["category"], row["open"]) for row in json.loads(said)] == [
        ("unknown", 1),
        ("poison", 1),
    ]
    assert "LedgerClosed: ledger <*>" in command("causes", "--category", "unknown")[1]
    assert "KeyError" not in command("causes", "--category", "unknown")[1]
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump({"rules": [rule("ledger", "transient", "LedgerClosed")]}))
    code, said = command("try-rules", str(rules), "--json")
    assert code == 0
    (change,) = json.loads(said)["changes"]
    assert (change["before"], change["after"], change["letters"], change["examples"]) == (
        "unknown",
        "transient",
        1,
        [first],
    )
    assert categories(world) == {"a": "unknown", "b": "poison"}
    rules.write_text(yaml.safe_dump({"rules": [rule("ledger", "odd", "(")]}))
    code, said = command("try-rules", str(rules))
    assert code == 2
    assert (
        "rules.0.category" in said and "rules.0.pattern" in said and "Nothing was changed" in said
    )


def test_a_text_that_breaks_the_classification_is_for_a_person_and_stops_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = classify_module.shape_of

    def shape_of(cause: str, error: str) -> Any:
        if "bomb" in error:
            raise RecursionError("too deep")
        return whole(cause, error)

    monkeypatch.setattr(classify_module, "shape_of", shape_of)
    letter(world, "odd", error="the bomb of a hostile producer")
    letter(world, "good", error="KeyError: 'total'")
    classify(world)
    assert categories(world) == {"odd": "unknown", "good": "poison"}
    assert [template for template in causes(world) if "RecursionError" in template]
    assert not [template for template in causes(world) if "bomb" in template]
