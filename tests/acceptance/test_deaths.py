"""Faults of the demo that end in a dead-letter queue, on real workers: each message dies as often as the ledger says, and triage
with a person's answers brings every one of them to its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from time import monotonic

import pytest

from backstop.alerts.run_once import run_once as deliver_alerts
from backstop.brokers.protocol import DeadLetter
from backstop.brokers.redis_streams import RedisStreams
from backstop.config.connections import Connections
from backstop.control.connection import connect
from backstop.decisions.decide import decide
from backstop.resend.run_once import run_duty as resend
from backstop.triage.run_once import run_duty as triage
from backstop_lab.demo import die
from backstop_lab.demo.accounting import run_checker
from backstop_lab.demo.choose_answer import choose_answer
from backstop_lab.demo.run import write_config
from backstop_lab.demo.settle_down import OPEN
from backstop_lab.demo.stage import Stage
from backstop_lab.faults.brokers.protocol import EXPIRED, SUPPRESSED_DONE, SUPPRESSED_UNDONE
from backstop_lab.platform import Platform
from backstop_lab.servers.receive_alerts import AlertReceivers
from backstop_lab.shop import demand
from backstop_lab.shop.databases import change

TEXTS = {
    demand.NOT_JSON: "JSONDecodeError: ",
    demand.FIELD_MISSING: "MissingField: order ",
    demand.RULE_REFUSED: "OverLimit: order ",
    demand.DEPENDENCY_DOWN: "ConnectionError: carrier-",
    SUPPRESSED_DONE: "java.lang.Throwable: Suppressing duplicate delivery on connection",
    SUPPRESSED_UNDONE: "java.lang.Throwable: Suppressing duplicate delivery on connection",
    EXPIRED: "java.lang.Throwable: Message Expired.",
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("deaths")
    platform = Platform(folder / "platform", write_config(folder / "backstop.yaml"))
    platform.start(airflow=False)
    made = Stage(platform, folder, seed=1)
    try:
        made.make_tables()
        made.start()
        die.suppress(made)
        die.die_of_the_handler(made)
        yield made
    finally:
        made.stop()
        platform.stop()


def letters(stage: Stage) -> list[DeadLetter]:
    found: list[DeadLetter] = []
    with RedisStreams(stage.urls["backstop_broker"]) as broker:
        for queue in broker.dead_letter_queues(list(stage.groups)):
            with broker.open_dead_letters(queue) as reader:
                while page := reader.read(100):
                    found += page
    return found


def test_what_lies_in_the_dead_letter_queues_is_what_the_ledger_says(stage: Stage) -> None:
    told = Counter(
        (fault, line["message_id"], line["consumer_group"])
        for fault in TEXTS
        for line in stage.ledger.lines(fault)
    )
    assert len(told) == die.MESSAGES + die.NO_JSON  # what is no JSON dies in both groups
    assert set(told.values()) == {1}
    found = Counter(
        (fault, letter.message_id, letter.group)
        for letter in letters(stage)
        for fault, text in TEXTS.items()
        if (letter.error or letter.cause).startswith(text)
    )
    # The text of a suppression is the same whether the work was done or not: that is the point of it.
    both = {SUPPRESSED_DONE, SUPPRESSED_UNDONE}
    assert {key for key in found if key[0] not in both} == {
        key for key in told if key[0] not in both
    }
    assert {key[1:] for key in found if key[0] in both} == {
        key[1:] for key in told if key[0] in both
    }
    assert len(letters(stage)) == len(told)


def test_only_work_that_was_done_has_an_effect(stage: Stage) -> None:
    done = [(line["topic"], line["message_id"]) for line in stage.ledger.lines(SUPPRESSED_DONE)]
    stage.done("billing", done, 0.0)
    assert stage.without_effect("billing", done) == set()
    for fault in (SUPPRESSED_UNDONE, EXPIRED, demand.FIELD_MISSING, demand.DEPENDENCY_DOWN):
        keys = sorted(stage.ledger.keys(fault))
        assert stage.without_effect("shipping", keys) == set(keys), fault
        stage.done("billing", keys, 60.0)


NOT_RECONCILED = {"stub unaccounted for", "delivery without a verdict"}
"""What the checker misses because nothing but triage and resend ran here."""


def answer_all(stage: Stage, connections: Connections) -> None:
    """As a person would in Airflow."""
    control = connect(stage.settings, connections)
    try:
        for (case_id,) in change(
            stage.control, "SELECT case_id FROM case_file WHERE state = 'open' ORDER BY 1", ()
        ):
            if answer := choose_answer(stage, case_id):
                options = dict(answer.inputs)
                if "ids" in options:
                    options["message_ids"] = [options.pop("ids")]
                if "secret_content" in options:
                    options["content"] = options.pop("secret_content").encode()
                decide(
                    control,
                    stage.settings,
                    connections,
                    case_id,
                    answer.option,
                    "ann",
                    answer.why,
                    options,
                )
    finally:
        control.close()


def still_open(stage: Stage) -> dict[str, int]:
    return {
        str(name): int(number)
        for name, number in change(stage.control, OPEN, {"answered": ["dead_letters"]})
        if number
    }


def test_triage_and_a_person_bring_each_death_to_its_end(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    receivers = AlertReceivers(stage.received)
    receivers.start()
    connections = Connections(resolver=stage.urls.get)
    for name, url in receivers.environment().items():
        monkeypatch.setenv(name, url)
    try:
        deadline = monotonic() + 240
        while True:
            triage(stage.settings, connections)
            deliver_alerts(stage.settings, connections)
            answer_all(stage, connections)
            resend(stage.settings, connections)
            deliver_alerts(stage.settings, connections)
            stage.drained(240.0)
            if not (left := still_open(stage)):
                break
            assert monotonic() < deadline, left
    finally:
        receivers.stop()
    told = run_checker(stage.write_places(), stage.ledger.folder)
    assert [problem for problem in told["problems"] if problem["rule"] not in NOT_RECONCILED] == []
    assert told["dead_letters"].keys() == TEXTS.keys()
    # Only reconcile closes what was replayed: it alone knows that the copies were consumed.
    assert (told["told"]["cases"], told["told"]["told"], told["told"]["over"]) == (5, 5, 2)
    # A case whose letters triage meets in two looks may be decided after the first: then it is told of as over, and come back.
    [(came_back,)] = change(
        stage.control, "SELECT coalesce(sum(reopened), 0)::int FROM case_file", ()
    )
    assert told["told"]["messages"] == {"mail": 7 + 2 * came_back, "post": 7 + 2 * came_back}
