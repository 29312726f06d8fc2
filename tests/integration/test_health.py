"""The watch on real parts: losses that are coming are seen before they are losses, and nothing else is an alarm."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.sources import Sources
from backstop.model.errors import HeartbeatLost, RunRefused, StoreUnavailable
from backstop.model.records import Counts, Message, Outcome
from backstop.reports.metrics import render
from backstop.runs.run import close_run, open_run
from backstop.sql.named import load
from backstop.watch.blocked import Blocked, Blocks, tell_of_blocked
from backstop.watch.run_once import Watched, run_once
from backstop.watch.sample_groups import forget
from backstop.watch.samples import QueueSample
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from lake_world import CONSUMER, PRODUCER
from system import System, settings_dict, system

DAY = 86400.0
TIMES = {
    "control": {
        "watch_topic": ("taken_at", "counted_until"),
        "watch_group": ("taken_at", "counted_until"),
        "watch_queue": ("stands_since", "taken_at"),
        "run": ("started_at", "finished_at"),
    },
    "shop_a": {"message_stub": ("created_at",)},
    "shop_b": {"message_stub": ("created_at",)},
    "billing_db": {"consumer_log": ("first_received_at",)},
    "shipping_db": {"consumer_log": ("first_received_at",)},
}


class Watch:
    """A system, its watch, and time that passes when the test says so: every row becomes older."""

    def __init__(self, world: System) -> None:
        self.world = world
        self.numbers = iter(range(1_000_000))

    def look(self, **changes: Any) -> Watched:
        """One run of the duty; `changes` are further settings."""
        return run_once(self.settings(**changes), self.world.connections)

    def settings(self, **changes: Any) -> Settings:
        written = self.world.settings.model_dump(exclude_unset=True)
        # The tests start the duty: nobody looks for due work (tests/integration/test_due.py).
        alone = {"watch": {"allowed_age": {}}, "schedule": {"on_demand": False}}
        return Settings.model_validate({**alone, **written, **changes})

    def later(self, seconds: float = 60.0) -> None:
        for database, tables in TIMES.items():
            moved = [
                f"UPDATE {table} SET "
                + ", ".join(f"{name} = {name} - interval '{seconds} seconds'" for name in columns)
                for table, columns in tables.items()
            ]
            self.world.rows(database, ";".join(moved))

    def flow(
        self,
        topic: str = "orders",
        number: int = 30,
        *,
        stubs: bool = True,
        offsets: bool = True,
        consume: tuple[str, ...] = ("billing", "shipping"),
        logs: tuple[str, ...] = ("billing", "shipping"),
        stuck: str = "",
        behind: bool = False,
    ) -> None:
        """Messages that go their way through the broker now: recorded, sent, received, logged.

        `stuck`: a group that gets no farther in queue 0, where its first message is tried again and again; `behind`: the
        messages behind that one are logged all the same.
        """
        names = [f"m-{next(self.numbers)}" for _ in range(number)]
        receipts = self.world.broker.publish([Message(topic, name, b"{}") for name in names])
        assert all(receipt.outcome is Outcome.SENT for receipt in receipts)
        at = [receipt.position if offsets else None for receipt in receipts]
        if stubs and names:
            self.world.rows(
                "shop_a",
                """
                INSERT INTO message_stub (topic, message_id, content, send_count, next_check_at, attempted_at, sent_at, queue_id,
                    queue_offset, queue_epoch)
                SELECT %s, m.message_id, '', 1, now(), now(), now(), m.queue_id, m.queue_offset, m.queue_epoch
                FROM unnest(%s::text[], %s::integer[], %s::bigint[], %s::text[]) AS m (message_id, queue_id, queue_offset,
                    queue_epoch)""",
                topic,
                names,
                [p and p.queue_id for p in at],
                [p and p.offset for p in at],
                [p and p.epoch for p in at],
            )
        for group in consume:
            subscription = self.world.broker.subscribe(group, [topic], f"worker-{uuid.uuid4()}")
            kept = []
            while received := subscription.fetch(500, timedelta(milliseconds=20)):
                fetched, held = (
                    received,
                    [one for one in received if group == stuck and one.position.queue_id == 0],
                )
                received = [one for one in received if one not in held]
                if group in logs:
                    self.world.rows(
                        f"{group}_db",
                        "INSERT INTO consumer_log (consumer_group, topic, message_id, state, consumed_at)"
                        " SELECT %s, %s, id, 'CONSUMED', now() FROM unnest(%s::text[]) AS id"
                        " ON CONFLICT (consumer_group, topic, message_id) DO UPDATE SET state = 'CONSUMED', consumed_at = now()",
                        group,
                        topic,
                        [one.message.message_id for one in received],
                    )
                    for one in held if behind else held[:1]:
                        self.world.rows(
                            f"{group}_db",
                            "INSERT INTO consumer_log (consumer_group, topic, message_id, state, queue_id,"
                            " queue_offset, queue_epoch) SELECT %s, %s, %s, 'FAILED', %s, %s, %s WHERE %s OR NOT EXISTS ("
                            " SELECT FROM consumer_log WHERE queue_id IS NOT NULL) ON CONFLICT DO NOTHING",
                            group,
                            topic,
                            one.message.message_id,
                            one.position.queue_id,
                            one.position.offset,
                            one.position.epoch,
                            behind,
                        )
                subscription.acknowledge(received)
                kept += held
                if held and len(held) == len(fetched) < 500:
                    break  # what is held is not given again
            for one in kept:
                subscription.hand_back(one, after=timedelta(0), counts=False)
            subscription.close()

    def minutes(self, looks: int, **flow: Any) -> None:
        """So many looks a minute apart, with a flow before each."""
        for _ in range(looks):
            if flow:
                self.flow(**flow)
            self.later(60)
            self.look()

    def findings(self) -> list[tuple[str, str, str, str]]:
        found = self.world.rows(
            "control",
            "SELECT rule, topic, consumer_group, severity FROM watch_finding WHERE over_at IS NULL ORDER BY 1, 2, 3",
        )
        return [tuple(row) for row in found]  # type: ignore[misc]

    def alerts(self) -> list[str]:
        return [
            key
            for (key,) in self.world.rows(
                "control", "SELECT dedup_key FROM alert ORDER BY alert_id"
            )
        ]

    def succeed(self, duty: str, ago: float = 0.0, state: str = "done", **options: Any) -> None:
        """A run of a duty that ended so long ago."""
        conn = self.world.control()
        run = open_run(conn, duty, options.pop("scope", "*"), self.world.settings, **options)
        close_run(conn, run, state, {})  # type: ignore[arg-type]
        conn.close()
        ended = "now() - %s * interval '1 second'"
        self.world.rows(
            "control",
            f"UPDATE run SET finished_at = {ended}, started_at = {ended} WHERE run_id = %s",
            ago,
            ago,
            run.run_id,
        )


POLICY = {"watch_window": "2m", "watch_floor": 20}


@pytest.fixture
def watch(servers: tuple[Postgres, Valkey]) -> Iterator[Watch]:
    with system(*servers, policy=POLICY) as world:
        yield Watch(world)


# Alarms that must come.


def test_a_group_that_acknowledges_and_writes_no_log_is_an_alert_before_anything_is_called_lost(
    watch: Watch,
) -> None:
    watch.look()
    watch.minutes(4, number=30)
    assert watch.findings() == []
    watch.minutes(4, number=30, logs=("billing",))
    assert watch.findings() == [("logging_stopped", "orders", "shipping", "critical")]
    (body,) = watch.world.rows("control", "SELECT body FROM alert")[0]
    assert "wrote 0 logs" in body and "backstop pause orders" in body
    watch.minutes(6, number=30)
    assert watch.findings() == []
    assert watch.alerts() == ["watch/1/critical", "watch/1/over"]


def test_a_group_that_never_logged_is_an_alert_too_unless_a_filter_may_explain_it(
    watch: Watch,
) -> None:
    watch.look()
    watch.minutes(5, number=30, logs=())
    assert watch.findings() == [
        ("logging_stopped", "orders", "billing", "critical"),
        ("logging_stopped", "orders", "shipping", "critical"),
    ]


def test_producers_that_settle_without_offsets_are_an_alert_once(watch: Watch) -> None:
    watch.look()
    watch.minutes(4, number=30)
    watch.minutes(4, number=30, offsets=False)
    watch.minutes(20, number=20, offsets=False)
    assert watch.findings() == [("offsets_stopped", "orders", "*", "warning")]
    assert watch.alerts() == ["watch/1/warning"]
    watch.minutes(4, number=30)
    assert (watch.findings(), watch.alerts()) == ([], ["watch/1/warning", "watch/1/over"])


def test_messages_that_nobody_recorded_are_an_alert(watch: Watch) -> None:
    watch.look()
    watch.minutes(4, number=30)
    watch.minutes(6, number=30, stubs=False)
    assert ("stubs_stopped", "orders", "*", "critical") in watch.findings()


def test_a_group_that_stands_still_while_messages_come_is_an_alert_until_it_moves(
    watch: Watch,
) -> None:
    watch.look()
    watch.minutes(2, number=30)
    watch.minutes(4, number=30, consume=("billing",))
    assert watch.findings() == [("group_stands", "orders", "shipping", "warning")]
    watch.minutes(1, number=1)
    assert watch.findings() == []


def cases(watch: Watch) -> list[tuple[str, str, str, str, list[int]]]:
    """kind, topic, group, state, the queues of it."""
    found = watch.world.rows(
        "control",
        "SELECT kind, topic, consumer_group, state, evidence FROM case_file ORDER BY case_id",
    )
    return [(*row[:4], [one["queue"] for one in row[4]["queues"]]) for row in found]


def test_one_queue_that_stands_while_the_others_go_on_is_a_case_until_it_moves(
    watch: Watch,
) -> None:
    watch.look()
    watch.minutes(2, number=30)
    watch.minutes(2, number=30, stuck="shipping")
    assert cases(watch) == [], "it may still be at work on that message"
    watch.minutes(4, number=30, stuck="shipping")
    assert cases(watch) == [("queue_blocked", "orders", "shipping", "open", [0])]
    assert watch.findings() == [], "the group as a whole goes on"
    [(summary, evidence)] = watch.world.rows("control", "SELECT summary, evidence FROM case_file")
    [(offset,)] = watch.world.rows(
        "control",
        """
        SELECT passed FROM watch_queue WHERE topic = 'orders' AND consumer_group = 'shipping' AND queue_id = 0""",
    )
    assert f"queue 0 at offset {offset} since" in summary
    assert evidence["queues"][0]["offset"] == offset and evidence["queues"][0]["came_since"] > 0
    assert watch.alerts() == ["case/1"]
    over, deadline = (
        [("queue_blocked", "orders", "shipping", "closed", [0])],
        time.monotonic() + 120,
    )
    while cases(watch) != over:
        assert time.monotonic() < deadline, cases(watch)
        watch.minutes(1, number=30)
    assert watch.alerts() == ["case/1", "case/1/closed"]


def test_a_queue_that_is_blocked_after_the_alert_of_its_hour_is_in_the_next_hours(
    watch: Watch,
) -> None:
    world, day = watch.world, datetime(2030, 1, 1, tzinfo=UTC)

    def look(at: str, *queues: int) -> None:
        hour, minute = at.split(":")
        as_of = day + timedelta(hours=int(hour), minutes=int(minute))
        standing = QueueSample(
            0, "e", passed=7, stored=9, since=day, came=2, moved=True, backlog_seconds=60.0
        )
        with (
            closing(world.control()) as control,
            Sources(world.settings, world.connections) as sources,
        ):
            run = open_run(control, "watch", "*", world.settings)
            found = [Blocked(replace(standing, queue_id=queue), ()) for queue in queues]
            pair = ("orders", "billing")
            blocks = Blocks({pair: found}, {pair}, {pair: 4})
            with control, control.cursor() as cursor:
                tell_of_blocked(sources, cursor, blocks, as_of, run.run_id)
            close_run(control, run, "done", Counts())

    def announced() -> list[list[int]]:
        """The queues that each alert after the case's own names."""
        found = world.rows(
            "control", "SELECT body FROM alert WHERE title LIKE '%%more queues%%' ORDER BY alert_id"
        )
        return [[int(queue) for queue in re.findall(r"queue (\d+) at", body)] for (body,) in found]

    look("10:05", 1)
    assert announced() == [], "the case's own alert is about it"
    look("10:15", 1, 2)
    assert announced() == [[2]]
    look("10:30", 1, 2, 3)
    look("10:45", 1, 2, 3, 4)
    assert announced() == [[2]], "one alert an hour"
    look("11:05", 1, 2, 3, 4)
    assert announced() == [[2], [3, 4]]
    look("12:05", 1, 2, 4)
    look("13:05", 1, 2, 3, 4)
    assert announced() == [[2], [3, 4], [3]], "it moved, and is blocked again"


def test_a_message_that_is_only_late_is_no_blocked_queue(watch: Watch) -> None:
    watch.look()
    watch.minutes(2, number=30)
    watch.minutes(8, number=30, stuck="shipping", behind=True)
    watch.minutes(3, number=0)
    assert cases(watch) == [], "what lies behind it was received"


def test_a_queue_that_nobody_could_ask_about_stays_what_it_was(watch: Watch) -> None:
    watch.look()
    watch.minutes(2, number=30)
    watch.minutes(6, number=30, stuck="shipping")
    assert [state for _, _, _, state, _ in cases(watch)] == ["open"]
    broken = Connections(
        resolver={**watch.world.urls, "shipping_db": "postgresql://nobody@127.0.0.1:1/gone"}.get
    )
    with pytest.raises(StoreUnavailable, match="store shipping_db"):
        run_once(watch.world.settings, broken)
    assert [state for _, _, _, state, _ in cases(watch)] == ["open"]


def test_a_finding_ends_with_a_reason_when_nobody_watches_its_subject_any_more(
    watch: Watch,
) -> None:
    watch.look()
    watch.minutes(2, number=30)
    watch.minutes(4, number=30, consume=("billing",))
    watch.world.rows(
        "control",
        """INSERT INTO watch_finding (rule, topic, consumer_group, severity, title, body) VALUES
        ('stubs_stopped', 'gone', '*', 'critical', 't', 'b'), ('backlog_age', 'gone', 'billing', 'critical', 't', 'b'),
        ('duty_overdue', 'triage', '*', 'critical', 't', 'b'), ('heartbeat', '*', '*', 'warning', 't', 'b'),
        ('duty_overdue', 'reconcile', '*', 'critical', 't', 'b')""",
    )
    assert len(watch.findings()) == 6
    topics = watch.settings().model_dump(exclude_unset=True)["topics"]
    del topics["orders"]["groups"]["shipping"]
    watch.look(topics=topics, watch={"allowed_age": {"reconcile": "1s"}})
    assert watch.findings() == [("duty_overdue", "reconcile", "*", "critical")], (
        "what is watched still goes on"
    )
    said = dict(
        watch.world.rows(
            "control", "SELECT dedup_key, body FROM alert WHERE dedup_key LIKE '%%/over'"
        )
    )
    assert len(said) == 5
    assert said["watch/1/over"].startswith(
        "The group shipping does not take orders any more, by backstop.yaml."
    )
    assert "Whether it is still so is not known" in said["watch/1/over"]


def test_a_finding_about_a_group_ends_with_the_group(watch: Watch) -> None:
    watch.look()
    watch.minutes(2, number=30)
    watch.minutes(4, number=30, consume=("billing",))
    groups = watch.settings().model_dump(exclude_unset=True)["groups"]
    groups["shipping"]["active_until"] = "2020-01-01T00:00:00Z"
    watch.look(groups=groups)
    assert watch.findings() == []
    (body,) = watch.world.rows("control", "SELECT body FROM alert WHERE dedup_key = 'watch/1/over'")
    assert body[0].startswith("The group shipping has ended")


def test_a_backlog_that_nears_the_brokers_retention_warns_then_worsens_and_ends_each_once(
    servers: Any,
) -> None:
    # An hour's retention, so that 0.05 % of it is under two seconds of real waiting in a real broker.
    with system(*servers, policy={**POLICY, "retention_warn": 0.0005}) as world:
        watch = Watch(world)
        watch.flow(number=5, consume=("billing",))
        assert watch.look().counts["found"] == 0
        watch.later(60)
        wait_until(lambda: oldest(world) > 2.0)
        watch.look()
        assert watch.findings() == [("backlog_age", "orders", "shipping", "warning")]
        (body,) = world.rows("control", "SELECT body FROM alert")[0]
        assert "The oldest of 5 messages" in body and "falls behind" in body
        watch.look()
        assert watch.alerts() == ["watch/1/warning"]
        watch.flow(number=0)
        watch.look()
        assert (watch.findings(), watch.alerts()) == ([], ["watch/1/warning", "watch/1/over"])


def test_what_the_broker_removed_before_the_group_came_is_critical(watch: Watch) -> None:
    import redis

    watch.flow(number=40, consume=("billing",))
    server = redis.Redis.from_url(watch.world.urls["broker"])
    for queue in (0, 1):
        from backstop.brokers.redis_streams import Keys

        server.xtrim(Keys().stream("orders", queue), maxlen=2, approximate=False)
    watch.look()
    assert watch.findings() == [("backlog_age", "orders", "shipping", "critical")]


# Alarms that must not come.


def test_a_quiet_night_after_a_busy_day_is_no_alarm(watch: Watch) -> None:
    watch.look()
    watch.minutes(4, number=30)
    watch.minutes(12)
    watch.minutes(3, number=3)
    assert watch.alerts() == []


def test_a_first_burst_on_a_new_topic_is_no_alarm(watch: Watch) -> None:
    watch.look()
    watch.minutes(3)
    watch.minutes(5, topic="payments", number=40)
    assert watch.alerts() == []


def test_a_burst_after_a_quiet_time_is_no_alarm_at_any_look(watch: Watch) -> None:
    watch.look()
    watch.minutes(4, number=30)
    watch.minutes(10)
    watch.flow(number=60)
    for seconds in (0.5, 1, 2, 3, 60, 60, 60, 60):
        watch.look()
        watch.later(seconds)
    assert watch.alerts() == []


def test_a_group_that_has_ended_is_no_alarm(servers: Any) -> None:
    groups = settings_dict()["groups"]
    groups["shipping"] |= {"active_until": "2020-01-01T00:00:00Z"}
    with system(*servers, policy=POLICY, groups=groups) as world:
        watch = Watch(world)
        watch.look()
        watch.minutes(5, number=30, consume=("billing",))
        assert watch.alerts() == []


def test_copies_that_backstop_itself_sent_again_are_no_messages_around_it(watch: Watch) -> None:
    watch.look()
    watch.minutes(4, number=30)
    watch.minutes(8)
    conn = watch.world.control()
    run = open_run(conn, "resend", "*", watch.world.settings)
    watch.flow(number=30, stubs=False, logs=())
    watch.look()
    close_run(conn, run, "done", {"published": 30})
    conn.close()
    watch.minutes(6)
    assert watch.alerts() == []


def test_a_pause_of_the_watch_itself_measures_nothing_across_it(servers: Any) -> None:
    with system(*servers, policy={**POLICY, "watch_window": "15m"}) as world:
        watch = Watch(world)
        watch.look()
        for _ in range(5):
            watch.flow(number=30)
            watch.later(300)
            watch.look()
        watch.flow(number=60)
        watch.later(5400)
        for _ in range(5):
            watch.look()
            watch.later(300)
        assert watch.alerts() == []


def test_a_store_that_does_not_answer_raises_no_alarm_closes_none_and_is_named(
    watch: Watch,
) -> None:
    watch.look()
    watch.minutes(4, number=30)
    watch.minutes(4, number=30, logs=("billing",))
    assert len(watch.findings()) == 1
    away = {
        **watch.world.urls,
        "shipping_db": "postgresql://nobody@127.0.0.1:1/gone",
        "shop_a": "postgresql://x@127.0.0.1:1/y",
    }
    broken = Connections(resolver=away.get)
    for _ in range(3):
        watch.flow(number=30)
        watch.later(60)
        with pytest.raises(StoreUnavailable, match=r"shard shop_a.*store shipping_db"):
            run_once(watch.world.settings, broken)
    assert len(watch.findings()) == 1 and len(watch.alerts()) == 1
    assert watch.world.rows("control", "SELECT state FROM run ORDER BY run_id DESC LIMIT 1") == [
        ("incomplete",)
    ]
    watch.minutes(6, number=30)
    assert watch.alerts() == ["watch/1/critical", "watch/1/over"]


# Duties and the heartbeat.


class Outside:
    """The service that takes heartbeats, on the loopback. `mode`: good, refuse, hang, drip."""

    def __init__(self) -> None:
        self.mode, self.asked = "good", []  # type: ignore[var-annotated]
        self.release = threading.Event()
        outside = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                outside.asked.append((self.path, body))
                if outside.mode == "hang":
                    outside.release.wait(120)
                if outside.mode == "drip":
                    while not outside.release.wait(0.1):
                        self.wfile.write(b"H")
                        self.wfile.flush()
                self.send_response(500 if outside.mode == "refuse" else 200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/ping/s3cret-uuid"


@contextmanager
def outside() -> Iterator[Outside]:
    service = Outside()
    thread = threading.Thread(target=service.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        service.release.set()
        service.server.shutdown()
        service.server.server_close()
        thread.join()


def test_the_heartbeat_beats_only_while_every_duty_succeeds_in_time(watch: Watch) -> None:
    with outside() as service:
        watch.world.urls.update(beat=service.url, fail=f"{service.url}/fail")
        beating = {
            "heartbeat": {"url": "beat", "fail_url": "fail", "timeout": 20},
            "watch": {"allowed_age": {"reconcile": "10m", "resend": "10m"}},
        }
        watch.succeed("reconcile", ago=60)
        watch.succeed("resend", ago=30)
        assert watch.look(**beating).overdue == {}
        assert service.asked[-1][0] == "/ping/s3cret-uuid"
        [age] = re.findall(r"reconcile: succeeded (\d+) s ago", service.asked[-1][1])
        assert 60 <= int(age) < 600
        watch.later(580)
        late = watch.look(**beating)
        assert list(late.overdue) == ["reconcile", "resend"]
        assert service.asked[-1][0] == "/ping/s3cret-uuid/fail"
        watch.succeed("resend")
        watch.succeed("reconcile", state="incomplete")
        watch.succeed("reconcile", scope="orders")
        watch.succeed("reconcile", dry_run=True)
        assert list(watch.look(**beating).overdue) == ["reconcile"], (
            "no failed, partial or dry run is a success of the schedule"
        )
        silent = {**beating, "heartbeat": {"url": "beat", "timeout": 20}}
        before = len(service.asked)
        watch.look(**silent)
        assert len(service.asked) == before, "silence is the alarm"
        assert watch.findings() == [("duty_overdue", "reconcile", "*", "critical")]
        watch.succeed("reconcile")
        watch.look(**beating)
        assert service.asked[-1][0] == "/ping/s3cret-uuid"
        assert watch.findings() == []


def test_the_heartbeat_is_on_where_its_connection_is_there_and_off_without_a_word(
    watch: Watch,
) -> None:
    with outside() as service:
        watch.look()
        assert service.asked == []
        watch.world.urls["backstop_heartbeat"] = service.url
        watch.look()
        assert [path for path, _ in service.asked] == ["/ping/s3cret-uuid"]
        watch.world.urls["backstop_heartbeat_fail"] = f"{service.url}/fail"
        watch.later(7200)
        watch.look(watch={"allowed_age": {"reconcile": "1h"}})
        assert service.asked[-1][0] == "/ping/s3cret-uuid/fail"
        service.mode = "refuse"
        with pytest.raises(HeartbeatLost, match="backstop_heartbeat"):
            watch.look()
        assert ("heartbeat", "*", "*", "warning") in watch.findings()
        # Whoever takes the connection away wants none: the finding is over, and nobody is asked.
        del watch.world.urls["backstop_heartbeat"]
        watch.world.connections = Connections(resolver=watch.world.urls.get)
        asked = len(service.asked)
        watch.look()
        assert len(service.asked) == asked
        assert ("heartbeat", "*", "*", "warning") not in watch.findings()


@pytest.mark.parametrize("mode", ["refuse", "hang", "drip"])
def test_a_heartbeat_url_that_fails_or_hangs_neither_hangs_the_duty_nor_is_passed_over(
    watch: Watch, mode: str
) -> None:
    with outside() as service:
        watch.world.urls.update(beat=service.url)
        beating = {"heartbeat": {"url": "beat", "timeout": 0.5}}
        service.mode = mode
        for _ in range(2):
            with pytest.raises(HeartbeatLost) as caught:
                watch.look(**beating)
            assert "s3cret-uuid" not in str(caught.value)
        (seconds,) = watch.world.rows(
            "control",
            "SELECT extract(epoch FROM finished_at - started_at)::float8 FROM run ORDER BY run_id DESC LIMIT 1",
        )[0]
        assert seconds < 60
        assert watch.findings() == [("heartbeat", "*", "*", "warning")]
        assert watch.alerts() == ["watch/1/warning"], "once, however often"
        stored = watch.world.rows(
            "control",
            "SELECT to_jsonb(a)::text FROM alert a UNION ALL SELECT to_jsonb(r)::text FROM run r",
        )
        assert not any("s3cret-uuid" in text for (text,) in stored)
        service.mode = "good"
        service.release.set()
        watch.look(**beating)
        assert watch.alerts() == ["watch/1/warning", "watch/1/over"]


def test_a_second_watch_at_the_same_moment_is_refused(watch: Watch) -> None:
    conn = watch.world.control()
    open_run(conn, "watch", "*", watch.world.settings)
    with pytest.raises(RunRefused):
        watch.look()
    conn.close()


def test_the_watch_buries_nobody_under_its_own_rows(watch: Watch) -> None:
    watch.minutes(3)
    watch.later(2 * DAY)
    watch.look()
    # The newest that succeeded stays until this one is done.
    assert watch.world.rows("control", "SELECT count(*) FROM run WHERE duty = 'watch'") == [(2,)]
    assert watch.world.rows("control", "SELECT count(*) FROM watch_topic") == [(2,)]


def test_a_watch_that_opened_a_case_stays_and_stops_no_later_one(watch: Watch) -> None:
    watch.minutes(2)
    [(opened_by,)] = watch.world.rows(
        "control",
        """
        INSERT INTO case_file (kind, topic, consumer_group, subject, severity, summary, evidence, opened_by_run)
        SELECT 'queue_blocked', 'orders', 'billing', 'orders', 'warning', 'it stands', '{}', min(run_id) FROM run
        RETURNING opened_by_run""",
    )
    watch.later(2 * DAY)
    for _ in range(2):
        watch.look()
    left = [run for (run,) in watch.world.rows("control", "SELECT run_id FROM run ORDER BY run_id")]
    assert left[0] == opened_by and len(left) == 3


def test_the_newest_watch_that_succeeded_is_remembered_for_as_long_as_it_fails(
    watch: Watch,
) -> None:
    for days in (3, 2):
        watch.succeed("watch", ago=days * DAY)
    watch.succeed("watch", ago=1.5 * DAY, state="incomplete")
    conn = watch.world.control()
    with closing(conn), conn, conn.cursor() as cursor:
        forget(cursor, watch.settings(), datetime.now(UTC))
    assert watch.world.rows(
        "control", "SELECT state FROM run WHERE duty = 'watch' ORDER BY run_id"
    ) == [("done",), ("incomplete",)]


def test_a_night_whose_window_was_shut_is_no_success_of_retention(watch: Watch) -> None:
    late = {"watch": {"allowed_age": {"retention": "26h"}}}
    watch.succeed("retention", ago=3 * DAY)
    conn = watch.world.control()
    with closing(conn):
        shut = open_run(conn, "retention", "*", watch.world.settings)
        close_run(conn, shut, "done", Counts(window_is_shut=1))
        metrics = render(conn, watch.settings(**late))[0].decode()
    assert list(watch.look(**late).overdue) == ["retention"]
    (success,) = re.findall(
        r'backstop_duty_last_success_timestamp_seconds\{duty="retention",scope="\*"\} (\S+)',
        metrics,
    )
    assert time.time() - float(success) > 2 * DAY
    with closing(watch.world.control()) as conn, conn.cursor() as cursor:
        cursor.execute(
            load("backstop.watch", "queries.sql")["last_success_of"], {"duty": "retention"}
        )
        assert cursor.fetchone()[0] < shut.run_id, "it names the same outage as before"
        now = datetime.now(UTC)
        day = {"day_from": now - timedelta(hours=12), "day_to": now + timedelta(hours=1)}
        ran = load("backstop.audit", "control.sql")["duties_ran"]
        cursor.execute(ran, {"duties": ["retention"], "as_of": now, **day})
        assert [row[0] for row in cursor.fetchall()] == ["retention"]


def oldest(world: System) -> float:
    """Seconds since the oldest message of `orders` was stored that shipping has not passed."""
    positions = world.broker.progress("orders", "shipping")
    now = world.broker.clock()
    return max((now - position.passed_until).total_seconds() for position in positions)


def wait_until(condition: Callable[[], bool]) -> None:
    ended = threading.Event()
    for _ in range(2400):
        if condition():
            return
        ended.wait(0.05)
    pytest.fail("it never happened")


LAKE = {
    "kind": "mapped",
    "connection": "lake",
    "mapping": {**CONSUMER, "dialect": "parquet", "tables": ["theirs/inbox"]},
}


def with_inbox(inbox: dict[str, Any]) -> dict[str, Any]:
    """Settings in which billing's log is another program's."""
    given = settings_dict()
    given["groups"]["billing"] = {"store": "billing_db", "progress": "acknowledged"}
    topics = {
        "orders": {"broker": "embedded", "groups": ["billing", "shipping"], "mode": "observe"}
    }
    consumers = {**given["consumers"], "billing_db": inbox}
    return {"groups": given["groups"], "topics": topics, "consumers": consumers}


def test_a_log_in_a_lake_needs_no_spark_to_be_watched(servers: tuple[Postgres, Valkey]) -> None:
    with system(*servers, policy=POLICY, **with_inbox(LAKE)) as world:
        world.urls["lake"] = "file:///nowhere"  # nor a lake that can be read
        watch = Watch(world)
        watch.look()
        watch.minutes(6, number=30, logs=("shipping",))
        assert watch.findings() == []
        assert world.rows("control", "SELECT DISTINCT state FROM run WHERE duty = 'watch'") == [
            ("done",)
        ]


def test_a_finding_about_stubs_ends_where_they_are_in_a_lake(
    servers: tuple[Postgres, Valkey],
) -> None:
    mapping = {**PRODUCER, "dialect": "parquet", "tables": ["theirs/outbox"]}
    lake = {"kind": "mapped", "connection": "lake", "mapping": mapping}
    given = settings_dict(policy=POLICY)
    given["producers"]["lake"] = lake
    given["topics"]["orders"]["mode"] = "observe"
    with system(*servers, **given) as world:
        world.urls["lake"] = "file:///nowhere"
        world.rows(
            "control",
            """INSERT INTO watch_finding (rule, topic, consumer_group, severity, title, body)
            SELECT rule, topic, '*', 'critical', 't', 'b'
            FROM unnest(ARRAY['offsets_stopped', 'stubs_stopped']) rule, unnest(ARRAY['orders', 'payments']) topic""",
        )
        watch = Watch(world)
        watch.look()
        assert [(rule, topic) for rule, topic, *_ in watch.findings()] == [
            ("offsets_stopped", "payments"),
            ("stubs_stopped", "payments"),
        ]
        said = world.rows("control", "SELECT body FROM alert WHERE dedup_key LIKE '%%/over'")
        assert len(said) == 2 and all("without Spark" in body for (body,) in said)


def test_an_inbox_that_says_no_time_of_receipt_has_not_stopped_logging(
    servers: tuple[Postgres, Valkey],
) -> None:
    mapping = {"tables": ["inbox"], "message_id": "message_id", "topic": "topic"}
    inbox = {"kind": "mapped", "connection": "billing_db", "mapping": mapping}
    with system(*servers, policy=POLICY, **with_inbox(inbox)) as world:
        world.rows(
            "billing_db", "CREATE TABLE inbox (message_id text NOT NULL, topic text NOT NULL)"
        )
        watch = Watch(world)
        watch.look()
        watch.minutes(6, number=30, logs=("shipping",))
        assert watch.findings() == []
