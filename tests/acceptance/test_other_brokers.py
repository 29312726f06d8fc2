"""The demo's whole story on brokers that are not embedded, small and without Airflow: every fault that the broker can have is
found, repaired or left alone, and what it cannot have is said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from backstop_lab.demo.accounting import differs, run_checker
from backstop_lab.demo.run import write_config
from backstop_lab.demo.scenario import play
from backstop_lab.demo.stage import Stage
from backstop_lab.platform import Platform
from backstop_lab.servers.receive_alerts import AlertReceivers
from duties_by_hand import DutiesByHand

MESSAGES = 320
QUIET_SECONDS = 900.0
SECONDS = 2400
ALWAYS = {
    "crash_before_send",
    "crash_in_send",
    "lost_in_broker",
    "consumer_killed",
    "slow_group",
    "refused",
    "broken_rows",
    "store_away",
    "mass_loss",
    "lease_killed",
    "worker_woken_late",
    "leases_flushed",
}
FAULTS = {"activemq": {"taken_out"}, "rocketmq": {"cut_off", "offset_moved", "files_removed"}}
SENT_AGAIN = {
    "crash_before_send",
    "lost_in_broker",
    "cut_off",
    "offset_moved",
    "taken_out",
    "files_removed",
    "refused",
    "not_sent_in_time",
}
OF_THE_HANDLER = {"dependency_down": 4, "not_json": 6, "field_missing": 2, "rule_refused": 4}
DEATHS = {
    "activemq": {"suppressed_done": 3, "suppressed_undone": 3, "message_expired": 3},
    "rocketmq": {"given_up_done": 3, "given_up_undone": 3},
}

BUSY = {"unknown_horizon": "20m", "overdue_horizon": "2h", "replay_horizon": "4h"}
"""On a machine that does other things the story takes longer than a message may be overdue in the demo's policy."""

pytestmark = [pytest.mark.other_broker, pytest.mark.timeout(SECONDS)]


@dataclass
class Told:
    kind: str
    stage: Stage
    report: dict[str, Any]


@pytest.fixture(scope="module", params=sorted(FAULTS))
def told(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Told]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    config = write_config(folder / "backstop.yaml", request.param)
    written = yaml.safe_load(config.read_text())
    written["policy"] |= BUSY
    config.write_text(yaml.safe_dump(written, sort_keys=False))
    platform = Platform(folder / "platform", config, request.param)
    platform.start(airflow=False)
    receivers = AlertReceivers(folder / "received")
    stage = Stage(platform, folder, seed=3)
    try:
        receivers.start()
        with pytest.MonkeyPatch.context() as environment:
            for name, url in receivers.environment().items():
                environment.setenv(name, url)
            stage.make_tables()
            with DutiesByHand(stage, folder / "docs") as duties:
                stage.start()
                play(stage, MESSAGES)
                duties.wait_until_quiet(QUIET_SECONDS)
            assert duties.broken is None
        receivers.stop()
        yield Told(request.param, stage, run_checker(stage.write_places(), stage.ledger.folder))
    finally:
        receivers.stop()
        stage.stop()
        platform.stop()


def test_everything_came_out_right(told: Told) -> None:
    assert told.report["problems"] == []


def test_every_fault_of_this_broker_was_injected_and_dealt_with(told: Told) -> None:
    faults = told.report["faults"]
    # What a producer knows not to have sent, it writes down itself: on a busy machine that may be all of what was cut off.
    allowed = {"not_sent_in_time", "cut_off"}
    assert set(faults) - allowed == (ALWAYS | FAULTS[told.kind]) - allowed
    assert "cut_off" not in FAULTS[told.kind] or allowed & set(faults)
    for fault, numbers in faults.items():
        assert numbers["injected"] >= 1 and numbers["found"] == numbers["injected"], fault
        assert numbers["resent"] == (numbers["messages"] if fault in SENT_AGAIN else 0), fault


def test_each_group_did_each_work_exactly_once(told: Told) -> None:
    for numbers in told.report["effects"].values():
        assert numbers["expected"] > MESSAGES / 2
        assert numbers["exactly_once"] == numbers["expected"]
        assert numbers["missing"] == numbers["duplicated"] == numbers["unexpected"] == 0


def test_every_death_came_to_its_end(told: Told) -> None:
    deaths = told.report["dead_letters"]
    assert {fault: one["died"] for fault, one in deaths.items()} == {
        **OF_THE_HANDLER,
        **DEATHS[told.kind],
    }
    # A message that came to two workers while its queue changed hands may have died twice: each letter is dealt with.
    assert all(one["right"] == one["died"] <= one["letters"] for one in deaths.values())


def test_what_the_broker_cannot_have_stands_on_the_page(told: Told) -> None:
    page = differs(
        {"name": told.stage.platform.broker.name, "differs": told.stage.broker_faults.page}
    )
    assert len(page) > 2 and max(map(len, page)) <= 80
