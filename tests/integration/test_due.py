"""What a look from outside finds due, on real databases and a real broker: what each duty would find, and nothing when idle."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg2
import pytest
import redis
from airflow.configuration import conf
from airflow.triggers.shared_stream import SharedStreamManager

from backstop.airflow import due_trigger
from backstop.airflow.due_trigger import DutyDue
from backstop.alerts.run_once import run_once as run_deliveries
from backstop.brokers.redis_streams.keys import Keys
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.control.connection import connect
from backstop.due import look as look_module
from backstop.due import probes
from backstop.due.look import EVERY, Looker, due_now
from backstop.due.probes import DUTIES
from backstop.due.starts import DutySeen
from backstop.resend.run_once import run_duty as run_resend
from backstop.runs.run import close_run, open_run
from backstop.sweep.run_once import run_duty as run_sweep
from backstop.triage.run_once import run_duty as run_triage
from backstop.watch.due_trigger import SILENT_AFTER, judge_silence, judge_unseen, read_silence
from backstop.watch.run_once import run_once
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from system import System, system

SECONDS = timedelta(seconds=1)
A_REQUEST = """
    INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by, state, groups)
    VALUES ('shop_a', 'orders', 'm', 2, 'LOST', 'test', '{state}', '{{billing}}')
"""
A_LETTER = """
    WITH r AS (
        INSERT INTO run (duty, scope, token, state, finished_at, policy_version, code_version)
        VALUES ('triage', 'before', gen_random_uuid(), 'done', now(), '', '') RETURNING run_id
    ), b AS (
        INSERT INTO drain_batch (run_id, broker, queue, letters, acknowledged_at)
        SELECT run_id, 'embedded', 'q', 1, now() FROM r RETURNING batch_id
    )
    INSERT INTO dead_letter (batch_id, broker, queue, broker_id, topic, message_id, headers, content, content_bytes, state,
        closed_at, proof, decided_by)
    SELECT batch_id, 'embedded', 'q', '1', 'orders', 'm', '{{}}', 'c', 1, '{state}',
        CASE WHEN '{state}' = 'discarded' THEN now() END, '{{"log": 1}}', 'triage' FROM b
"""


@pytest.fixture
def world(servers: tuple[Postgres, Valkey]) -> Iterator[System]:
    channel = {"alerts": {"channels": {"ops": {"url": "hook", "kind": "webhook"}}}}
    with system(*servers, **channel) as made:
        yield made


def look(world: System, **changes: Any) -> Mapping[str, DutySeen]:
    settings = changed(world.settings, **changes)
    with Looker(settings, world.connections, patience=30.0, notes=False) as looker:
        seen = looker.look()
    assert seen is not None
    return seen


def due(world: System) -> set[str]:
    return {duty for duty, seen in look(world).items() if seen.apart is not None}


def changed(settings: Settings, **changes: Any) -> Settings:
    return Settings.model_validate(settings.model_dump(exclude_unset=True) | changes)


def test_an_idle_system_has_nothing_due_whatever_is_over(world: System) -> None:
    world.stub("done", status="confirmed")
    world.stub("gone", status="exhausted")
    key = world.stub("logged", status="confirmed")
    world.log(key)
    world.rows("control", A_REQUEST.format(state="sent"))
    world.rows("control", A_LETTER.format(state="discarded"))
    world.rows(
        "control",
        "INSERT INTO alert (dedup_key, severity, title, body, delivered_at) VALUES ('k', 'info', 't', 'b', now())",
    )
    assert due(world) == set()


def test_what_the_slow_schedules_start_in_an_idle_system_makes_nothing_due(world: System) -> None:
    """A run that found nothing must not be the reason for the next one."""
    for run in (run_once, run_sweep, run_triage, run_resend, run_deliveries):
        run(world.settings, world.connections)
    began = world.rows("control", "SELECT duty, state FROM run ORDER BY duty")
    assert began == [
        (duty, "done") for duty in ("deliver_alerts", "resend", "sweep", "triage", "watch")
    ]
    assert due(world) == set()


def test_each_duty_is_fired_by_the_look_that_follows_what_became_due(
    world: System, servers: tuple[Postgres, Valkey], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the trigger's own clock, which stands while databases answer: a loaded machine cannot make it late. What Airflow adds
    are the rounds of its triggerer and its scheduler, of a second each by its defaults."""
    clock = [1000.0]
    monkeypatch.setattr(look_module, "monotonic", lambda: clock[0])
    monkeypatch.setattr(due_trigger, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    key = world.stub("m", status="confirmed")
    lease = {"state": "CONSUMING", "owner_token": "00000000-0000-0000-0000-000000000001"}
    world.log(key, **lease, lease_expires_at="2100-01-01")
    server = redis.Redis.from_url(servers[1].url())
    queue = Keys().dead("orders", "billing")
    a_case = (
        "INSERT INTO case_file (kind, topic, summary) VALUES ('exhausted', 'orders', 's');"
        "INSERT INTO case_member (case_id, shard, topic, message_id, consumer_group)"
        " SELECT case_id, 'shop_b', 'orders', 'm', 'billing' FROM case_file"
    )
    an_alert = "INSERT INTO alert (dedup_key, severity, title, body) VALUES ('k', 'info', 't', 'b')"
    ends = "UPDATE consumer_log SET lease_expires_at = now()"
    becomes_due: dict[str, Callable[[], object]] = {
        "watch": lambda: world.stub("later", next_check_at="2100-01-01"),
        "reconcile": lambda: world.stub("now", shard="shop_b"),
        "sweep": lambda: world.rows("billing_db", ends),
        "triage": lambda: server.xadd(queue, {"id": "m"}),
        "resend": lambda: world.rows("control", A_REQUEST.format(state="open")),
        "deliver_alerts": lambda: world.rows("control", an_alert),
        "ask_people": lambda: world.rows("control", a_case),
    }
    assert becomes_due.keys() == set(DUTIES)
    fired: dict[str, float] = {}

    async def looks(looker: Looker, number: int) -> AsyncIterator[Any]:
        for _ in range(number):
            clock[0] += EVERY
            yield looker.look()

    async def fires(looker: Looker, duty: str, number: int) -> bool:
        async for _ in DutyDue(duty).filter_shared_stream(looks(looker, number)):
            return True
        return False

    with Looker(world.settings, world.connections, patience=60.0, notes=False) as looker:
        for duty, begins in becomes_due.items():
            assert not asyncio.run(fires(looker, duty, 4)), "it is not due yet"
            since = clock[0]
            begins()
            assert asyncio.run(fires(looker, duty, 20)), duty
            fired[duty] = clock[0] - since
    server.close()
    # A broker is asked once a second, a database in each look.
    assert fired == {**dict.fromkeys(DUTIES, EVERY), "triage": fired["triage"]}
    slowest, rounds = (
        max(fired.values()),
        1.0 + conf.getfloat("scheduler", "scheduler_idle_sleep_time"),
    )
    assert slowest <= 1.0 and slowest + rounds <= 3.0, "from due to started"


def test_a_promise_is_watched_until_it_is_settled_and_judged_when_its_time_has_come(
    world: System,
) -> None:
    world.stub("later", next_check_at="2100-01-01")
    assert due(world) == {"watch"}
    world.stub("now", shard="shop_b")
    seen = look(world)
    assert (seen["reconcile"].apart, seen["watch"].apart) == (10 * SECONDS, 60 * SECONDS)


def test_a_lease_that_ended_is_swept_and_a_message_that_goes_on_failing_slowly(
    world: System,
) -> None:
    key = world.stub("m", status="confirmed")
    alive = {"state": "CONSUMING", "owner_token": "00000000-0000-0000-0000-000000000001"}
    world.log(key, **alive, lease_expires_at="2100-01-01")
    assert due(world) == set()
    world.rows("billing_db", "UPDATE consumer_log SET lease_expires_at = now()")
    assert look(world)["sweep"].apart == 2 * SECONDS
    world.rows(
        "billing_db",
        "UPDATE consumer_log SET state = 'FAILED', attempts = 4, lease_expires_at = NULL, updated_at = now()",
    )
    assert look(world)["sweep"].apart == timedelta(minutes=10)


def test_a_dead_letter_is_due_in_its_queue_and_when_it_is_stored(
    world: System, servers: tuple[Postgres, Valkey]
) -> None:
    server = redis.Redis.from_url(servers[1].url())
    queue = Keys().dead("orders", "billing")
    assert due(world) == set()
    name = server.xadd(queue, {"id": "m"})
    assert due(world) == {"triage"}
    server.xdel(queue, name)
    assert due(world) == set()
    world.rows("control", A_LETTER.format(state="open"))
    assert due(world) == {"triage"}
    server.close()


def test_a_request_waits_for_its_instant_its_pause_and_its_ramp(world: System) -> None:
    world.rows("control", A_REQUEST.format(state="open"))
    assert look(world)["resend"].apart == 60 * SECONDS
    world.rows("control", "INSERT INTO pause (topic, paused_by, why) VALUES ('orders', 'ann', 'w')")
    assert due(world) == set()
    world.rows("control", "DELETE FROM pause")
    world.rows("control", "UPDATE resend_request SET not_before = now() + interval '1 h'")
    assert due(world) == set()
    world.rows("control", "UPDATE resend_request SET not_before = now(), held = true")
    assert due(world) == {"resend"}, "a run begins its ramp"
    world.rows(
        "control",
        """WITH one AS (
               INSERT INTO case_file (kind, topic, summary, state, closed_at)
               VALUES ('ramp_stopped', 'orders', 's', 'closed', now()) RETURNING case_id)
           INSERT INTO resend_batch (topic, state, case_id)
           SELECT 'orders', 'stopped', case_id FROM one""",
    )
    assert due(world) == set(), "a person decides about its batch first"
    world.rows("control", "UPDATE resend_batch SET state = 'given_up', ended_at = now()")
    world.rows(
        "control",
        """UPDATE resend_request SET held = false, state = 'claimed', claim_token = gen_random_uuid(),
               claim_deadline = now() + interval '1 h'""",
    )
    assert due(world) == set(), "somebody is sending it"
    world.rows("control", "UPDATE resend_request SET claim_deadline = now()")
    assert due(world) == {"resend"}


def test_an_alert_is_due_where_a_channel_is_and_a_case_where_a_person_is_to_be_asked(
    world: System,
) -> None:
    world.rows(
        "control",
        "INSERT INTO alert (dedup_key, severity, title, body) VALUES ('k', 'info', 't', 'b')",
    )
    assert due(world) == {"deliver_alerts"}
    assert look(world, alerts={"none_wanted": True})["deliver_alerts"].apart is None
    world.rows(
        "control",
        "INSERT INTO case_file (kind, topic, summary) VALUES ('exhausted', 'orders', 's');"
        "INSERT INTO case_member (case_id, shard, topic, message_id, consumer_group)"
        " SELECT case_id, 'shop_a', 'orders', 'm', 'billing' FROM case_file",
    )
    seen = look(world)
    assert seen["ask_people"].apart == 60 * SECONDS
    world.rows("control", "UPDATE alert SET delivered_at = now()")
    told_again = look(world)["deliver_alerts"].apart
    assert told_again == timedelta(minutes=10), "nobody has decided the case"
    assert seen["reconcile"].apart == timedelta(minutes=10), "its messages may settle by themselves"


def test_a_run_over_everything_is_seen_and_what_was_seen_while_it_worked_is_forgotten(
    world: System,
) -> None:
    world.stub("m")
    control = connect(world.settings, world.connections)
    with (
        closing(control),
        Looker(world.settings, world.connections, patience=30.0, notes=False) as looker,
    ):

        def seen() -> DutySeen:
            while (found := looker.look()) is None:
                pass  # it is not its turn yet
            return found["reconcile"]

        open_run(control, "reconcile", "orders", world.settings)
        open_run(control, "reconcile", "*", world.settings, dry_run=True)
        assert seen() == DutySeen(10 * SECONDS), "by hand, or dry: not this one"
        run = open_run(control, "reconcile", "*", world.settings)
        working = seen()
        assert working.alive and working.began is not None and 0 <= working.began < 60
        world.rows("shop_a", "UPDATE message_stub SET status = 'confirmed'")
        close_run(control, run, "done", {})
        assert (seen().alive, seen().apart) == (False, None), "what it judged is not due again"
        open_run(control, "reconcile", "*", world.settings)
        world.rows(
            "control",
            "UPDATE run SET heartbeat_at = now() - interval '1 h' WHERE state = 'running'",
        )
        assert not look(world)["reconcile"].alive, "nobody has heard of it for too long"


def test_a_shard_that_is_away_hides_nothing_of_the_others_and_comes_back(
    world: System, servers: tuple[Postgres, Valkey]
) -> None:
    world.stub("m", shard="shop_b")
    admin = psycopg2.connect(servers[0].admin_dsn())
    admin.autocommit = True
    name = psycopg2.extensions.parse_dsn(world.urls["shop_a"])["dbname"]
    with closing(admin), admin.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        try:
            assert due(world) == {"reconcile", "watch"}
        finally:
            cursor.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    world.rows("shop_b", "DELETE FROM message_stub")
    world.stub("n", shard="shop_a")
    assert due(world) == {"reconcile", "watch"}


def test_without_the_control_database_nothing_is_known_and_nobody_is_stopped(world: System) -> None:
    lost = replace(world, connections=type(world.connections)(resolver={}.get))
    with Looker(world.settings, lost.connections) as looker:
        assert looker.look() is None
        assert looker.look() is None, "it is not asked again at once"
    assert due_now(world.settings, lost.connections) == []


def test_the_watch_hears_that_somebody_looks_and_says_when_nobody_does(world: System) -> None:
    def silent() -> str | None:
        with closing(world.control()) as control, control.cursor() as cursor:
            found = judge_silence(world.settings, *read_silence(cursor)).finding
        return found and found.title

    assert silent() is None, "nothing has run here yet"
    world.rows(
        "control",
        "INSERT INTO run (duty, token, state, started_at, finished_at, policy_version, code_version)"
        " VALUES ('watch', gen_random_uuid(), 'done', now() - interval '2 h', now(), '', '')",
    )
    assert silent() == "Nobody has looked for due work so far"
    with Looker(world.settings, world.connections) as looker:
        looker.look()
    assert silent() is None
    world.rows("control", "UPDATE watermark SET reached = now() - interval '6 min'")
    told = "SELECT severity, over_at IS NULL FROM watch_finding WHERE rule = 'nobody_looks'"
    for _ in range(2):
        run_once(world.settings, world.connections)
        assert world.rows("control", told) == [("warning", True)]
    with Looker(world.settings, world.connections) as looker:
        looker.look()
    run_once(world.settings, world.connections)
    assert world.rows("control", told) == [("warning", False)]
    world.rows("control", "UPDATE watermark SET reached = now() - interval '6 min'")
    assert silent() == "Nobody has looked for due work for 6 minutes"
    nobody = changed(world.settings, schedule={"on_demand": False})
    with closing(world.control()) as control, control.cursor() as cursor:
        assert judge_silence(nobody, *read_silence(cursor)).finding is None


def urls_that_change(world: System) -> tuple[dict[str, str], Connections]:
    """The world's URLs as whoever changes a password finds them: what is written there is what the next question hears."""
    urls = dict(world.urls)
    return urls, Connections(resolver=urls.get)


def test_a_look_that_fails_is_no_sign_that_somebody_looks(world: System) -> None:
    prober = probes.ControlProbe(world.settings, world.connections)
    with closing(prober):
        prober.look(silent={})
        world.rows("control", "UPDATE watermark SET reached = reached - interval '1 hour'")
        world.rows("control", "ALTER TABLE dead_letter RENAME TO gone")
        with pytest.raises(psycopg2.Error):
            prober.look(silent={})
        conn = world.control()
        with closing(conn), conn, conn.cursor() as cursor:
            silent, ever = read_silence(cursor)
        assert ever and silent > timedelta(minutes=59)


def looks_until(looker: Looker, done: Callable[[Any], bool]) -> None:
    """Looks until one sees it; a place that failed is asked again after two seconds."""
    deadline = time.monotonic() + 120
    while not done(looker.look()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("reference", ["shop_a", "control"])
def test_a_changed_password_needs_no_restart(world: System, reference: str) -> None:
    world.stub("m", shard="shop_a")
    urls, connections = urls_that_change(world)
    right, urls[reference] = urls[reference], "postgresql://x:old@127.0.0.1:1/gone"
    with Looker(world.settings, connections, patience=30.0, notes=False) as looker:
        first = looker.look()
        assert first is None or first["reconcile"].apart is None
        urls[reference] = right
        looks_until(looker, lambda seen: seen is not None and seen["reconcile"].apart is not None)


def test_a_place_that_moved_is_found_although_its_old_server_still_answers(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls, connections = urls_that_change(world)
    world.stub("m", shard="shop_b")
    right, urls["shop_b"] = urls["shop_b"], urls["shop_a"]
    with Looker(world.settings, connections, patience=30.0, notes=False) as looker:
        looks_until(looker, lambda seen: seen is not None)
        urls["shop_b"] = right
        monkeypatch.setattr(probes, "OPEN_SECONDS", 0.0)
        looks_until(looker, lambda seen: seen is not None and seen["reconcile"].apart is not None)


def test_a_place_that_does_not_answer_who_looks_is_a_finding_until_it_does(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = (
        "SELECT topic, severity, over_at IS NULL FROM watch_finding WHERE rule = 'nobody_looks'"
        " ORDER BY finding_id"
    )
    urls, connections = urls_that_change(world)
    right, urls["shop_a"] = urls["shop_a"], "postgresql://x:old@127.0.0.1:1/gone"
    monkeypatch.setattr(look_module, "NOTED_EVERY", 0.0)

    def watch() -> list[tuple[Any, ...]]:
        run_once(world.settings, world.connections)
        return world.rows("control", told)

    with Looker(world.settings, connections, patience=30.0) as looker:
        (place,) = [one for one in looker._places if one.probe.name == "shard shop_a"]
        looks_until(looker, lambda _: place.failures > 0)
        assert watch() == [], "it has failed once"
        assert place.unanswered_since is not None
        place.unanswered_since -= SILENT_AFTER.total_seconds()
        looks_until(looker, lambda seen: seen is not None)
        for _ in range(2):
            assert watch() == [("shard shop_a", "warning", True)]
        urls["shop_a"] = right
        looks_until(looker, lambda _: place.failures == 0)
        looks_until(looker, lambda seen: seen is not None)
        assert watch() == [("shard shop_a", "warning", False)]
        assert (
            world.rows("control", "SELECT subject FROM watermark WHERE subject LIKE '%%not seen%%'")
            == []
        )


def test_nobody_looking_at_all_ends_no_finding_of_a_place(world: System) -> None:
    since = datetime(2030, 1, 1, tzinfo=UTC)
    unseen = {"shard shop_a": since, "shard shop_b": None}

    def found(settings: Settings, silent: timedelta) -> dict[str, bool]:
        answers = judge_unseen(settings, silent, True, unseen)
        return {one.topic: one.finding is not None for one in answers}

    assert found(world.settings, 2 * SILENT_AFTER) == {}, "nothing is known of them"
    assert found(world.settings, SECONDS) == {"shard shop_a": True, "shard shop_b": False}
    nobody = changed(world.settings, schedule={"on_demand": False})
    assert not any(found(nobody, SECONDS).values())


def test_the_triggerer_loads_nothing_that_judges_or_checks() -> None:
    """It stays in memory: engines for verdicts and data checks would double it."""
    code = "import sys, backstop.due.look; print(*{name.partition('.')[0] for name in sys.modules})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    loaded = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    assert "psycopg2" in loaded
    heavy = {"duckdb", "pyarrow", "pandas", "pyspark", "great_expectations", "airflow"}
    assert not heavy.intersection(loaded)


def test_after_one_error_it_is_looked_as_often_as_before(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backstop.airflow import control_room

    answers: list[Any] = [world.settings, OSError("no such file"), world.settings]

    def current_settings() -> Settings:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    monkeypatch.setattr(control_room, "current_settings", current_settings)
    monkeypatch.setattr(control_room, "url_from_airflow", world.urls.get)
    every = []
    with closing(due_trigger._Looking()) as looking:
        for _ in range(3):
            looking.look()
            every.append(looking.every)
    assert every == [EVERY, 30.0, EVERY]


def test_one_trigger_looks_for_all_and_each_fires_for_its_own_duty(
    world: System, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from backstop.airflow import control_room

    world.stub("m")
    monkeypatch.setattr(control_room, "current_settings", lambda: world.settings)
    monkeypatch.setattr(control_room, "url_from_airflow", world.urls.get)
    monkeypatch.setattr(due_trigger._Looking, "every", 0.1)
    triggers = [DutyDue(duty) for duty in DUTIES]
    assert len({trigger.shared_stream_key() for trigger in triggers}) == 1
    assert triggers[0].serialize() == (
        "backstop.airflow.due_trigger.DutyDue",
        {"duty": "reconcile"},
    )

    fired: list[Any] = []
    looks = 0

    async def listen(manager: SharedStreamManager, number: int, trigger: DutyDue) -> None:
        stream = manager.subscribe(
            trigger_id=number, trigger=trigger, key=trigger.shared_stream_key()
        )
        async for event in trigger.filter_shared_stream(stream):
            fired.append(event.payload)

    async def count(manager: SharedStreamManager) -> None:
        nonlocal looks
        async for _ in manager.subscribe(
            trigger_id=99, trigger=triggers[0], key="backstop due work"
        ):
            looks += 1

    async def all_of_them() -> None:
        # As the triggerer's own runner does it.
        manager = SharedStreamManager()
        tasks = [
            asyncio.create_task(listen(manager, number, one)) for number, one in enumerate(triggers)
        ]
        tasks.append(asyncio.create_task(count(manager)))
        async with asyncio.timeout(300):
            while len(fired) < 2 or looks < 3:
                await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await manager.stop_all()

    asyncio.run(all_of_them())
    # One start of each that has something to do, however often it is looked.
    assert sorted(event["due"] for event in fired) == ["reconcile", "watch"]


def test_a_broker_that_refuses_one_group_is_no_place_that_is_away(world: System) -> None:
    with closing(redis.Redis.from_url(world.urls["broker"])) as client:
        client.set(Keys().group("shipping"), "no set")  # another program's
        (probe,) = [
            one
            for one in probes.probes_of(world.settings, world.connections)
            if one.name == "broker embedded"
        ]
        assert probe.look(datetime.now(UTC)) == {}
        client.xadd(Keys().dead("orders", "billing"), {"headers": "{}"})
        assert probe.look(datetime.now(UTC)) == {"triage": timedelta(minutes=1)}
