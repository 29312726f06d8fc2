"""What the demo says while it works."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from backstop.config.load import load
from backstop_lab.demo.narrate import narrate
from backstop_lab.demo.run import workers_of_a_group, write_config
from backstop_lab.demo.scenario import play_each
from backstop_lab.demo.stage import Stage
from backstop_lab.servers.child import LocalServerError
from backstop_lab.shop import wait_for


@pytest.fixture
def said() -> Iterator[io.StringIO]:
    logger = logging.getLogger("backstop_lab")
    before = (logger.handlers[:], logger.level, logger.propagate)
    yield io.StringIO()
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def a_stage() -> Stage:
    stage = object.__new__(Stage)
    stage.seconds = {}
    return stage


def lose_something(stage: Stage) -> None:
    """A message is lost.

    More that nobody reads here.
    """


def test_each_phase_is_a_line_that_says_what_is_waited_for(said: io.StringIO) -> None:
    narrate(full=False, stream=said)
    stage = a_stage()
    with stage.timed("faults", "each loss to happen"):
        play_each(stage, lose_something)
    (line,) = said.getvalue().splitlines()
    assert line.split(" s  ", 1)[1] == "faults: waiting for each loss to happen"
    assert stage.seconds.keys() == {"faults"}


def test_the_long_story_tells_each_step_and_each_wait(said: io.StringIO) -> None:
    narrate(full=True, stream=said)
    with a_stage().timed("faults", "each loss to happen"):
        play_each(a_stage(), lose_something)
        wait_for.wait_for("The end", lambda: True, 1.0)
    told = [line.split(" s  ", 1)[1] for line in said.getvalue().splitlines()]
    assert told[1:] == ["lose something: A message is lost.", "  waiting for: The end"]


def test_a_long_wait_says_what_is_still_open(
    said: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrate(full=False, stream=said)
    monkeypatch.setattr(wait_for, "TELL_SECONDS", 0.0)
    left = ["two messages", "one message"]
    wait_for.wait_for("Quiet", lambda: not left, 10.0, lambda: left.pop(0), every=0.001)
    told = [line.split(" s  ", 1)[1] for line in said.getvalue().splitlines()]
    assert told == [
        "  still waiting for: Quiet (two messages)",
        "  still waiting for: Quiet (one message)",
    ]


def test_nothing_is_waited_for_when_what_goes_on_beside_the_story_has_failed() -> None:
    stage = a_stage()

    def failed() -> None:
        raise LocalServerError("Airflow ended.", unaffected="Its runs.", next_step="Read its log.")

    stage.beside = failed
    with pytest.raises(LocalServerError, match=r"Airflow ended\."):
        wait_for.wait_for("A run", lambda: stage.unread("billing", []) > 0, 900.0)


def test_the_demos_settings_are_accepted(tmp_path: Path) -> None:
    assert (
        load(write_config(tmp_path / "backstop.yaml")).policy_for("orders").recheck.total_seconds()
        == 10.0
    )


def test_many_messages_get_more_workers() -> None:
    assert [workers_of_a_group(messages) for messages in (4_000, 200_000)] == [2, 6]
