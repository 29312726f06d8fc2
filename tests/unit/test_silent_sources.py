"""A store or broker that does not answer costs its time-out a few times in a look, however many topics and groups it serves; and
a topic without a group is looked at like any other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from backstop.brokers.protocol import QueueState
from backstop.config.settings import Settings
from backstop.evidence.evidence import Readings
from backstop.evidence.read import read_after_logs, read_groups
from backstop.model.errors import BrokerUnavailable, StoreFailed, StoreUnavailable, Unavailable
from backstop.model.records import LATEST, Counts
from backstop.reconcile import anomalies
from backstop.reconcile.record import record_looks
from backstop.runs.run import Run

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
TOPICS = [f"topic-{number}" for number in range(10)]


class Cursor:
    """Of a control database that remembers nothing."""

    def __init__(self) -> None:
        self.written: list[Any] = []
        self.connection = SimpleNamespace(cursor=lambda name: Rows())

    def execute(self, _: str, values: Any = None) -> None:
        self.written.append(values)

    def fetchall(self) -> list[Any]:
        return []

    def fetchone(self) -> tuple[datetime]:
        return (NOW,)


class Rows(list[Any]):
    """A cursor on the server without rows."""

    itersize = 0

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *_: object) -> None: ...

    def execute(self, *_: Any) -> None: ...


class Broker:
    """With one empty queue a topic."""

    capabilities = SimpleNamespace(
        delays_messages=False,
        lists_retries=False,
        lists_retries_together=False,
        progress_means=None,
    )

    def servers(self, _: str) -> frozenset[str]:
        return frozenset()

    def queues(self, _: str) -> list[QueueState]:
        return [QueueState(0, "life", 0, 0, NOW)]

    def clock(self) -> datetime:
        return NOW

    def retry_pending(self, *_: Any) -> int:
        return 0

    def progress(self, *_: Any) -> list[Any]:
        return []

    def dead_letters(self, *_: Any, since: Any) -> list[Any]:
        return []

    def passed_until(self, _: str, offsets: dict[int, int]) -> dict[int, datetime]:
        return dict.fromkeys(offsets, NOW)


class Logs:
    """Of a group without a row."""

    def clock(self) -> datetime:
        return NOW

    def floor(self, *_: Any) -> datetime:
        return NOW

    def highest_logged(self, *_: Any) -> dict[Any, int]:
        return {}


class Silent:
    """Fails whatever it is asked, and counts the questions."""

    capabilities = Broker.capabilities

    def __init__(self, error: type[Unavailable]) -> None:
        self.asked, self._error = Counter[str](), error

    def __getattr__(self, name: str) -> Any:
        def fail(*_: Any, **__: Any) -> Any:
            self.asked[name] += 1
            raise self._error(f"{name}: no answer", unaffected="", next_step="")

        return fail


class Sources(SimpleNamespace):
    """One broker, one shard, one store."""

    def __init__(
        self, given: Settings, broker: Any = None, logs: Callable[[str], Any] = lambda _: Logs()
    ) -> None:
        shard = SimpleNamespace(
            lives=lambda topics: {}, proves=lambda topic: True, clock=lambda: NOW
        )
        super().__init__(
            settings=given,
            unreachable={},
            broker=lambda _: broker or Broker(),
            logs_of=logs,
            shard=lambda _: shard,
            seen_dead_letters={},
        )

    def missed(self, subject: str, error: Unavailable) -> None:
        self.unreachable[subject] = error.what


def settings(progress: str = "logged", **topics: Any) -> Settings:
    given = topics or {topic: ["billing", "shipping"] for topic in TOPICS}
    return Settings.model_validate(
        {
            "control": "control",
            "brokers": {"main": {"kind": "redis_streams", "connection": "broker"}},
            "producers": {"shop": {"connection": "shop"}},
            "consumers": {"logs": {"connection": "logs"}},
            "groups": {
                group: {"store": "logs", "progress": progress} for group in ("billing", "shipping")
            },
            "topics": {
                topic: {"broker": "main", "groups": groups} for topic, groups in given.items()
            },
        }
    )


def look(sources: Sources) -> Readings:
    cursor = Cursor()
    readings = read_groups(sources, cursor, NOW, sources.settings.topics)  # type: ignore[arg-type]
    read_after_logs(readings, sources, cursor)  # type: ignore[arg-type]
    return readings


@pytest.mark.parametrize("groups", [[], {}], ids=["list", "mapping"])
def test_a_topic_without_groups_is_recorded_and_its_delays_are_known(groups: Any) -> None:
    """It stopped each run, for every topic, while one of its stubs was due."""
    sources = Sources(settings(taken=["billing"], untaken=groups))
    readings = look(sources)
    cursor = Cursor()
    record_looks(cursor, SimpleNamespace(run_id=1), readings)  # type: ignore[arg-type]
    assert {row["topic"] for row in readings.delay_rows()} == {"taken", "untaken"}
    assert {row["broker"] for row in readings.delay_rows()} == {"main"}
    written = [values for values in cursor.written if values and "epoch" in values]
    assert {(one["broker"], one["topic"]) for one in written} >= {("main", "untaken")}
    assert sources.unreachable == {}


def test_a_store_that_is_away_is_waited_for_a_few_times_and_not_for_each_group() -> None:
    store = Silent(StoreUnavailable)
    sources = Sources(settings(), logs=lambda _: store)
    readings = look(sources)
    assert store.asked == {"highest_logged": 1, "clock": 1}
    assert sources.unreachable == {"store logs": "highest_logged: no answer"}
    assert len(readings.groups) == 20
    assert not any(one.clock_good or one.log_floor for one in readings.groups.values())


@pytest.mark.parametrize("read", [True, False], ids=["its stubs were read", "nothing of it was"])
def test_ids_of_stubs_whose_shard_does_not_say_whether_they_are_proven_are_not(read: bool) -> None:
    """Unproven ids may be those of a mistaken mapping: that no log has them must not count."""
    sources = Sources(settings())
    sources.shard("shop").proves = Silent(StoreUnavailable).proves
    readings = read_groups(sources, Cursor(), NOW, TOPICS)  # type: ignore[arg-type]
    if read:
        readings.shards["shop"] = (True, True)
    read_after_logs(readings, sources, Cursor())  # type: ignore[arg-type]
    assert {one.log_floor for one in readings.groups.values()} == {LATEST if read else NOW}
    assert sources.unreachable == {"shard shop": "proves: no answer"}


def test_a_broker_that_is_away_is_waited_for_a_few_times_and_not_for_each_topic() -> None:
    broker = Silent(BrokerUnavailable)
    sources = Sources(settings(), broker=broker)
    readings = look(sources)
    assert broker.asked == {"servers": 1, "clock": 1}
    assert sources.unreachable == {"broker main": "servers: no answer"}
    assert not any(one.dead_letters_read for one in readings.groups.values())


def test_a_store_that_fails_for_one_group_is_asked_for_the_others() -> None:
    failing = Silent(StoreFailed)
    sources = Sources(settings(), logs=lambda group: failing if group == "billing" else Logs())
    readings = look(sources)
    assert all(one.clock_good for (_, group), one in readings.groups.items() if group == "shipping")
    floors = {(group, one.log_floor) for (_, group), one in readings.groups.items()}
    assert floors == {("billing", None), ("shipping", NOW)}


def test_each_group_has_its_own_allowance_for_its_stores_clock() -> None:
    class Late(Logs):
        def clock(self) -> datetime:
            return NOW - timedelta(seconds=3)

    strict = {"billing": {"policy": {"max_clock_skew": "1s"}}}
    readings = look(Sources(settings(strict=strict, lax=["billing"]), logs=lambda _: Late()))
    assert {topic: one.clock_good for (topic, _), one in readings.groups.items()} == {
        "strict": False,
        "lax": True,
    }
    readings = look(Sources(settings(lax=["billing"], strict=strict), logs=lambda _: Late()))
    assert not readings.groups["strict", "billing"].clock_good


def test_anomalies_wait_once_for_a_store_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Silent(StoreUnavailable)
    sources = Sources(settings(), logs=lambda _: store)
    assert anomalies_of(monkeypatch, sources) == {"anomalies_unread": 2}
    assert store.asked == {"received_between": 1, "clock": 1}


def test_anomalies_wait_once_for_a_shard_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = Silent(StoreUnavailable)
    logs = SimpleNamespace(received_between=lambda *_: [], clock=lambda: NOW)
    sources = Sources(settings(), logs=lambda _: logs)
    sources.shard = lambda _: shard
    monkeypatch.setattr(anomalies, "_look", lambda *_: sources.shard("shop").stubs([]))
    assert anomalies_of(monkeypatch, sources) == {"anomalies_unread": 2}
    assert shard.asked == {"stubs": 1, "clock": 1}


def anomalies_of(
    monkeypatch: pytest.MonkeyPatch, sources: Sources, pages: Sequence[Any] = ()
) -> Counts:
    """`pages`: of withdrawn messages."""
    monkeypatch.setattr(anomalies, "Sources", lambda *_: nullcontext(sources))
    control = MagicMock()
    cursor = control.cursor.return_value.__enter__.return_value
    cursor.fetchone.return_value = None
    cursor.fetchall.side_effect = [*pages, []]
    run = Run(1, "token", NOW, "reconcile", "*")
    return anomalies.find_anomalies(sources.settings, MagicMock(), control, run)


def test_withdrawn_messages_wait_once_for_a_store_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Silent(StoreUnavailable)
    sources = Sources(settings(), logs=lambda _: store)
    monkeypatch.setattr(anomalies, "_next_batch", lambda *_: ([], NOW))
    monkeypatch.setattr(anomalies, "_look", lambda *_: [])
    monkeypatch.setattr(anomalies, "hold", lambda *_: None)
    pages = [[("topic-0", f"m-{page}", NOW, "shop")] for page in range(3)]
    assert anomalies_of(monkeypatch, sources, pages) == {"anomalies_unread": 2}
    assert store.asked == {"logs": 1, "clock": 1}
