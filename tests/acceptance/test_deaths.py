"""Faults of the demo that end in a dead-letter queue, on real workers: each message dies as often as the ledger says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from backstop.brokers.protocol import DeadLetter
from backstop.brokers.redis_streams import RedisStreams
from backstop.local import bury, demand, die
from backstop.local.platform import Platform
from backstop.local.stage import Stage

pytestmark = pytest.mark.timeout(300)
TEXTS = {
    demand.NOT_JSON: "JSONDecodeError: ", demand.FIELD_MISSING: "MissingField: order ", demand.RULE_REFUSED: "OverLimit: order ",
    demand.DEPENDENCY_DOWN: "ConnectionError: carrier-",
    bury.SUPPRESSED_DONE: "java.lang.Throwable: Suppressing duplicate delivery on connection",
    bury.SUPPRESSED_UNDONE: "java.lang.Throwable: Suppressing duplicate delivery on connection",
    bury.EXPIRED: "java.lang.Throwable: Message Expired.",
}  # fmt: skip


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("deaths")
    platform = Platform(folder / "platform")
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
        (fault, line["message_id"], line["consumer_group"]) for fault in TEXTS for line in stage.ledger.lines(fault)
    )
    assert len(told) == die.MESSAGES + die.NO_JSON  # what is no JSON dies in both groups
    assert set(told.values()) == {1}
    found = Counter(
        (fault, letter.message_id, letter.group)
        for letter in letters(stage) for fault, text in TEXTS.items() if (letter.error or letter.cause).startswith(text)
    )  # fmt: skip
    # The text of a suppression is the same whether the work was done or not: that is the point of it.
    both = {bury.SUPPRESSED_DONE, bury.SUPPRESSED_UNDONE}
    assert {key for key in found if key[0] not in both} == {key for key in told if key[0] not in both}
    assert {key[1:] for key in found if key[0] in both} == {key[1:] for key in told if key[0] in both}
    assert len(letters(stage)) == len(told)


def test_only_work_that_was_done_has_an_effect(stage: Stage) -> None:
    done = [(line["topic"], line["message_id"]) for line in stage.ledger.lines(bury.SUPPRESSED_DONE)]
    stage.done("billing", done, 0.0)
    assert stage.without_effect("billing", done) == set()
    for fault in (bury.SUPPRESSED_UNDONE, bury.EXPIRED, demand.FIELD_MISSING, demand.DEPENDENCY_DOWN):
        keys = sorted(stage.ledger.keys(fault))
        assert stage.without_effect("shipping", keys) == set(keys), fault
        stage.done("billing", keys, 60.0)
