"""A drain that is killed, or loses its broker or its database, at any arrow: the next one has every letter once."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import redis

from backstop.brokers.protocol import DeadLetter
from backstop.brokers.redis_streams import Keys
from backstop.brokers.redis_streams.drain import RedisDeadLetters
from backstop.model.errors import BrokerUnavailable
from backstop.model.records import Counts
from backstop.runs.run import close_run, open_run
from backstop.triage.drain import drain as subject
from backstop.triage.drain.drain import Bounds, drain_all
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from forked import run_forked
from system import System, settings_dict, system

CHILD = Path(__file__).with_name("drain_killed_child.py")
LETTERS, PAGE = 100, 20
DEAD = Keys().dead("orders", "billing")


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    with Valkey(tmp_path / "valkey", appendfsync="everysec") as server:
        yield server


def fill(valkey: Valkey, start: int = 0, count: int = LETTERS) -> None:
    with redis.Redis.from_url(valkey.url()) as client:
        client.sadd(Keys().group("billing"), "orders")
        for number in range(start, start + count):
            client.xadd(
                DEAD,
                {
                    "headers": json.dumps({"backstop-message-id": f"m-{number}"}),
                    "content": b"c" * number,
                    "origin-topic": "orders",
                    "origin-group": "billing",
                },
            )


def left(valkey: Valkey) -> int:
    with redis.Redis.from_url(valkey.url()) as client:
        return int(client.xlen(DEAD))


def drain_again(world: System) -> Counts:
    control = world.control()
    run = open_run(control, "triage", "*", world.settings, dead_after=timedelta(0))
    counts = drain_all(world.settings, world.connections, control, run, bounds=Bounds(page=PAGE))
    close_run(control, run, "done", {})
    control.close()
    return counts


def assert_all_here_once(world: System, valkey: Valkey, count: int = LETTERS) -> None:
    found = world.rows(
        "control",
        "SELECT message_id, octet_length(content) FROM dead_letter ORDER BY dead_letter_id",
    )
    assert found == [(f"m-{number}", number) for number in range(count)]
    assert left(valkey) == 0
    assert world.rows(
        "control", "SELECT count(*) FROM drain_batch WHERE acknowledged_at IS NULL"
    ) == [(0,)]
    assert world.rows("control", "SELECT sum(letters) FROM drain_batch") == [(count,)]
    assert world.rows("control", "SELECT count(*) FROM drain_mark WHERE queue = %s", DEAD) == [(1,)]


@pytest.mark.parametrize(
    ("boundary", "stored", "in_broker"),
    [
        ("inside the transaction", 2 * PAGE, LETTERS - 2 * PAGE),
        ("after the commit", 3 * PAGE, LETTERS - 2 * PAGE),
        ("half way through an acknowledgement", 3 * PAGE, LETTERS - 2 * PAGE - PAGE // 2),
        ("after the acknowledgement", 3 * PAGE, LETTERS - 3 * PAGE),
        ("before the mark", LETTERS, 0),
    ],
)
def test_killed_at_any_arrow_the_next_drain_has_every_letter_once(
    boundary: str, stored: int, in_broker: int, postgres: Postgres, valkey: Valkey, tmp_path: Path
) -> None:
    with system(postgres, valkey) as world:
        fill(valkey)
        control = world.control()
        run = open_run(control, "triage", "*", world.settings)
        case = tmp_path / "case.json"
        case.write_text(
            json.dumps(
                {
                    "settings": settings_dict(),
                    "urls": world.urls,
                    "run_id": run.run_id,
                    "token": run.token,
                    "boundary": boundary,
                }
            )
        )
        ended = run_forked(CHILD, str(case))
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        # The reading thread is ahead of the storing one by a page at most.
        [(kept,)] = world.rows("control", "SELECT count(*) FROM dead_letter")
        assert stored <= kept <= min(stored + 2 * PAGE, LETTERS)
        assert left(valkey) <= LETTERS and left(valkey) + kept >= LETTERS, (
            "a letter is in one of both at every instant"
        )
        assert in_broker - PAGE <= left(valkey) <= in_broker + 2 * PAGE
        drain_again(world)
        assert_all_here_once(world, valkey)
        control.close()


def test_a_broker_that_goes_away_before_an_acknowledgement_is_named_and_nothing_is_lost(
    postgres: Postgres, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    with system(postgres, valkey) as world:
        fill(valkey)
        acknowledge, pages = RedisDeadLetters.acknowledge, iter(range(1, 100))

        def acknowledge_when_the_broker_is_gone(
            reader: RedisDeadLetters, letters: Sequence[DeadLetter]
        ) -> None:
            if next(pages) == 3:
                valkey.kill()
            acknowledge(reader, letters)

        with (
            monkeypatch.context() as patch,
            pytest.raises(BrokerUnavailable, match="queues could not be emptied"),
        ):
            patch.setattr(RedisDeadLetters, "acknowledge", acknowledge_when_the_broker_is_gone)
            drain_again(world)
        [(acknowledged,)] = world.rows(
            "control", "SELECT count(*) FROM drain_batch WHERE acknowledged_at IS NOT NULL"
        )
        assert acknowledged == 2, "what the broker has forgotten is marked so"
        valkey.start()
        counts = drain_again(world)
        assert counts["known"] >= PAGE
        assert_all_here_once(world, valkey)


def test_a_control_database_that_goes_away_acknowledges_nothing_more(
    postgres: Postgres, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    with system(postgres, valkey) as world:
        fill(valkey)
        store, pages = subject.store_page, iter(range(1, 100))

        def store_when_the_database_is_gone(control: Any, *rest: Any) -> Any:
            if next(pages) == 3:
                world.rows(
                    "control", "SELECT pg_terminate_backend(%s, 10000)", control.info.backend_pid
                )
            return store(control, *rest)

        with (
            monkeypatch.context() as patch,
            pytest.raises((psycopg2.OperationalError, psycopg2.InterfaceError)),
        ):
            patch.setattr(subject, "store_page", store_when_the_database_is_gone)
            drain_again(world)
        [(kept,)] = world.rows("control", "SELECT count(*) FROM dead_letter")
        assert (kept, left(valkey)) == (2 * PAGE, LETTERS - 2 * PAGE)
        drain_again(world)
        assert_all_here_once(world, valkey)


def test_what_died_in_the_meantime_comes_after_what_a_killed_drain_left(
    postgres: Postgres, valkey: Valkey, tmp_path: Path
) -> None:
    with system(postgres, valkey) as world:
        fill(valkey)
        control = world.control()
        run = open_run(control, "triage", "*", world.settings)
        case = tmp_path / "case.json"
        case.write_text(
            json.dumps(
                {
                    "settings": settings_dict(),
                    "urls": world.urls,
                    "run_id": run.run_id,
                    "token": run.token,
                    "boundary": "after the commit",
                }
            )
        )
        ended = run_forked(CHILD, str(case))
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        fill(valkey, LETTERS, 30)
        drain_again(world)
        assert_all_here_once(world, valkey, LETTERS + 30)
        control.close()
