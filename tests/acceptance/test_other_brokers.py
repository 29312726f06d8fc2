"""The demo's whole story on brokers that are not embedded, small and without Airflow: every fault that the broker can have is
found, repaired or left alone, and what it cannot have is said."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backstop_lab.demo.accounting import differs
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
FAULTS = {"activemq": {"taken_out"}, "rocketmq": {"cut_off", "offset_moved", "files_removed"}}
DEATHS = {"activemq": SUPPRESSED, "rocketmq": {"given_up_done": 3, "given_up_undone": 3}}

pytestmark = [pytest.mark.other_broker, pytest.mark.timeout(SECONDS)]


@pytest.fixture(scope="module", params=sorted(FAULTS))
def told(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Told]:
    with told_story(
        tmp_path_factory.mktemp(request.param), request.param, broker=request.param
    ) as story:
        yield story


def test_everything_came_out_right(told: Told) -> None:
    assert told.report["problems"] == []


def test_every_fault_of_this_broker_was_injected_and_dealt_with(told: Told) -> None:
    check_faults(told, ALWAYS | FAULTS[told.kind])


def test_each_group_did_each_work_exactly_once(told: Told) -> None:
    check_effects(told)


def test_every_death_came_to_its_end(told: Told) -> None:
    check_deaths(told, DEATHS[told.kind])


def test_what_the_broker_cannot_have_stands_on_the_page(told: Told) -> None:
    assert set(told.stage.differs()) == {told.stage.platform.broker.name}
    page = differs(told.stage.differs())
    assert len(page) > 2 and max(map(len, page)) <= 80
