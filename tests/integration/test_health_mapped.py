"""The watch over a producer's mapped table: only a look of reconcile meets its rows, and what none has met is not missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count

import pytest

from backstop.config.mapped import StubMapping
from backstop.config.settings import Settings
from backstop.model.records import Message
from backstop.stores.lake.stores import LakeStubs
from backstop.stores.mapped.stubs import ZONES
from backstop.watch.run_once import run_once
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from lake_world import PRODUCER
from mapped_world import LIBRARIES, Mapped, make_mapped, settings_of
from system import POLICY, system

TIMES = {
    "watch_topic": ("taken_at", "counted_until"),
    "watch_group": ("taken_at", "counted_until"),
    "watch_queue": ("stands_since", "taken_at"),
    "run": ("started_at", "finished_at"),
    "mapped_stub": ("created_at", "first_seen_at", "state_seen_at", "last_seen_at"),
    "mapped_look": ("mapped_at", "began_at", "ended_at"),
}


class Shop:
    """A mapped producer and its watch; time passes when the test says so, in steps of `minutes`."""

    def __init__(self, mapped: Mapped, minutes: int) -> None:
        self.mapped, self.minutes, self.numbers = mapped, minutes, count()

    def passes(
        self, steps: int, *, stored: bool = True, recorded: bool = True, looks: bool = True
    ) -> None:
        """A run of the watch a step, after messages and, if it `looks`, a look of reconcile."""
        world = self.mapped.system
        for _ in range(steps):
            for _ in range(3):
                name = self.mapped.promise() if recorded else f"around-{next(self.numbers)}"
                if stored:
                    world.broker.publish([Message("orders", name, b"{}")])
            passed = f"interval '{self.minutes} min'"
            self.mapped.run(f'UPDATE cap.published SET "Added" = "Added" - {passed}')
            for table, columns in TIMES.items():
                earlier = (f"{one} = {one} - {passed}" for one in columns)
                world.rows("control", f"UPDATE {table} SET {', '.join(earlier)}")
            if looks:
                self.mapped.look()
            alone = {"watch": {"allowed_age": {}}, "schedule": {"on_demand": False}}
            written = world.settings.model_dump(exclude_unset=True)
            run_once(Settings.model_validate({**written, **alone}), world.connections)

    def accused(self) -> bool:
        found = "SELECT 1 FROM watch_finding WHERE rule = 'stubs_stopped'"
        return bool(self.mapped.system.rows("control", found))


@contextmanager
def shop(servers: tuple[Postgres, Valkey], window: str, minutes: int) -> Iterator[Shop]:
    library = LIBRARIES["cap"]
    policy = {**POLICY, "watch_window": window, "watch_floor": 2}
    with system(*servers, **settings_of(library, policy=policy)) as world:
        yield Shop(make_mapped(servers[0], world, library), minutes)


def test_a_reconcile_that_stands_still_is_no_producer_that_sends_without_stubs(
    servers: tuple[Postgres, Valkey],
) -> None:
    with shop(servers, "2m", 1) as its:
        its.passes(5)
        its.passes(8, looks=False)
        assert not its.accused()
        its.passes(3)
        assert not its.accused(), "the next look meets what was recorded meanwhile"
        its.passes(6, recorded=False)
        assert its.accused(), "and what nobody recorded is missing"


def test_what_was_recorded_in_an_hour_that_no_count_covers_is_not_missing(
    servers: tuple[Postgres, Valkey],
) -> None:
    with shop(servers, "2h", 20) as its:
        its.passes(8)
        its.passes(10, looks=False)
        its.passes(5, stored=False, recorded=False, looks=False)
        its.passes(2, stored=False, recorded=False)
        assert not its.accused()


@pytest.mark.parametrize("known", [True, False])
def test_a_table_that_no_look_has_met_accuses_nobody(
    servers: tuple[Postgres, Valkey], known: bool
) -> None:
    """Nor does one that is mapped otherwise since the last look."""
    with shop(servers, "2m", 1) as its:
        if known:
            its.passes(5)
            its.mapped.system.rows("control", "UPDATE mapped_look SET mapping = 'of before'")
        its.passes(8, looks=False)
        assert not its.accused()
        recorded = "SELECT recorded FROM watch_topic ORDER BY taken_at DESC LIMIT 8"
        assert its.mapped.system.rows("control", recorded) == [(None,)] * 8


def test_of_a_lake_table_nobody_can_say_without_spark_what_is_missing() -> None:
    now = datetime.now(UTC)
    mapping = StubMapping.model_validate(
        {**PRODUCER, "dialect": "parquet", "tables": ["theirs/outbox"]}
    )
    stubs = LakeStubs("shop", "/nowhere", "postgresql://nobody@127.0.0.1:1/none", mapping, ZONES)
    assert stubs.known_until("orders", now) is None
    assert stubs.known_until("payments", now) == now, "of a topic that it does not hold nothing is"
