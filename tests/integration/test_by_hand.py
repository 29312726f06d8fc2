"""Reconcile by hand beside the scheduled one: scopes of their own, the same rows as one run, and judging without sending."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import pytest

from backstop.model.errors import ConfigurationError, RunRefused, StoreUnavailable
from backstop.model.records import Counts
from backstop.reconcile import promote as promotion
from backstop.reconcile.judge import judge
from backstop.reconcile.promote import promote
from backstop.reconcile.run_once import run_once
from backstop.runs.run import Run, close_run, open_run
from backstop.runs.scope import name_of, scope_of
from backstop.stores.postgresql.stubs import PostgresStubs
from backstop.stores.protocol import Scope
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from system import System, system

NOW = datetime.now(UTC)


def early() -> Scope:
    """Around ten minutes ago."""
    return Scope(
        ["orders"],
        datetime.now(UTC) - timedelta(minutes=12),
        datetime.now(UTC) - timedelta(minutes=8),
    )


def late() -> Scope:
    """Since."""
    return Scope(["orders"], datetime.now(UTC) - timedelta(minutes=8), datetime.now(UTC))


@pytest.fixture
def world(postgres: Postgres, valkey: Valkey) -> Iterator[System]:
    with system(postgres, valkey) as running:
        yield running


def no_audit(run: Run, suites: Sequence[str]) -> None:
    """The suites have tests of their own; here what two runs do to the same rows is looked at."""


class Hands:
    """Runs of reconcile, whole or step by step."""

    def __init__(self, world: System, spark: Any) -> None:
        self.world, self.spark = world, spark

    def whole(self, **options: Any) -> Counts:
        return run_once(
            self.world.settings, self.world.connections, lambda: self.spark, no_audit, **options
        )

    def judged(self, scope: Scope) -> tuple[Any, Run]:
        """A run that lives, and has staged what it found."""
        control = self.world.control()
        name = name_of(scope.topics, scope.created_from, scope.created_to)
        run = open_run(control, "reconcile", name, self.world.settings)
        judge(self.spark, self.world.settings, self.world.connections, control, run, scope)
        return control, run

    def promote(self, control: Any, run: Run) -> Counts:
        counts = promote(self.world.settings, self.world.connections, control, run)
        close_run(control, run, "done", counts)
        return counts


@pytest.fixture
def hands(world: System, spark: Any) -> Hands:
    return Hands(world, spark)


def mixed(world: System) -> None:
    """Lost, confirmed and used-up messages of both windows, and one that waits in the broker."""
    for number, age in enumerate((timedelta(minutes=10), timedelta(minutes=1))):
        world.sent(f"lost-{number}", age=age)
        world.sent(f"used-up-{number}", age=age, max_sends=1)
    world.pass_over("billing")
    world.pass_over("shipping")
    for number, age in enumerate((timedelta(minutes=10), timedelta(minutes=1))):
        world.sent(f"done-{number}", age=age)
    world.consume("billing")
    world.consume("shipping")


def left_behind(world: System) -> dict[str, list[tuple[Any, ...]]]:
    """What producers and people see of a reconcile, whoever ran it."""
    return {
        "requests": world.rows(
            "control",
            "SELECT message_id, send_number, groups, state FROM resend_request ORDER BY 1, 2",
        ),
        "cases": world.rows(
            "control", "SELECT kind, topic, consumer_group, state FROM case_file ORDER BY 1, 2, 3"
        ),
        "members": world.rows(
            "control", "SELECT message_id, consumer_group FROM case_member ORDER BY 1, 2"
        ),
        "alerts": world.rows("control", "SELECT title FROM alert ORDER BY 1"),
        "stubs": world.rows(
            "shop_a", "SELECT message_id, status, send_count FROM message_stub ORDER BY 1"
        ),
    }


def test_a_topic_or_a_window_is_judged_while_the_run_over_everything_lives(
    world: System, hands: Hands
) -> None:
    world.sent("m-1", age=timedelta(minutes=10))
    world.sent("m-2")
    world.pass_over("billing")
    world.pass_over("shipping")
    control = world.control()
    everything = open_run(control, "reconcile", "*", world.settings)
    assert hands.whole(scope=early())["lost"] == 2
    assert world.rows("control", "SELECT message_id FROM resend_request") == [("m-1",)]
    assert world.rows("shop_a", "SELECT message_id FROM message_stub WHERE judged_at IS NULL") == [
        ("m-2",)
    ]
    with pytest.raises(RunRefused):
        hands.whole()
    close_run(control, everything, "done", Counts())
    control.close()
    hands.whole()
    assert world.rows(
        "control", "SELECT message_id, send_number FROM resend_request ORDER BY 1"
    ) == [("m-1", 2), ("m-2", 2)]


def test_a_scope_is_read_back_from_its_name() -> None:
    for scope in (Scope(), Scope(["a", 'b"%']), early(), Scope(None, None, NOW)):
        assert scope_of(name_of(scope.topics, scope.created_from, scope.created_to)) == scope
    for start, end in ((NOW, NOW), (NOW, NOW - timedelta(1)), (NOW.replace(tzinfo=None), None)):
        with pytest.raises(ConfigurationError):
            name_of(None, start, end)


@pytest.mark.parametrize("first", ["everything", "window"])
def test_two_overlapping_runs_at_once_leave_the_rows_of_one(
    postgres: Postgres, valkey: Valkey, spark: Any, first: str
) -> None:
    with system(postgres, valkey) as alone:
        mixed(alone)
        Hands(alone, spark).whole()
        expected = left_behind(alone)
    assert [len(expected[name]) for name in ("requests", "cases", "members", "stubs")] == [
        2,
        2,
        4,
        6,
    ]
    with system(postgres, valkey) as world:
        mixed(world)
        hands = Hands(world, spark)
        scopes = [Scope(), early()] if first == "everything" else [early(), Scope()]
        runs = [hands.judged(scope) for scope in scopes]
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda one: hands.promote(*one), runs))
        assert left_behind(world) == expected
        # A third one, later, finds nothing more to do.
        hands.whole()
        assert left_behind(world) == expected
        for control, _ in runs:
            control.close()


def test_what_two_runs_saw_confirmed_at_once_counts_once_in_the_blast_radius(
    world: System, hands: Hands
) -> None:
    """100 confirmed and 30 lost are too many to send unasked (23 %); counted twice, 200 would hide it (13 %)."""
    for number in range(100):
        world.sent(f"done-{number}", age=timedelta(minutes=10))
    world.consume("billing")
    world.consume("shipping")
    runs = [hands.judged(Scope()), hands.judged(early())]
    newly = world.rows(
        "control",
        "SELECT newly FROM staged_count WHERE verdict = 'CONFIRMED' AND consumer_group = 'billing'",
    )
    assert newly == [(100,), (100,)]
    for one in runs:
        hands.promote(*one)
        one[0].close()
    for number in range(30):
        world.sent(f"lost-{number}")
    world.pass_over("billing")
    world.consume("shipping")
    hands.whole()
    assert world.rows("control", "SELECT kind, consumer_group FROM case_file") == [
        ("mass_loss", "billing")
    ]
    assert world.rows("control", "SELECT count(*) FROM resend_request") == [(0,)]


def test_what_a_shard_did_not_take_counts_once_in_the_blast_radius(
    world: System, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 confirmed and 30 lost are too many to send unasked (23 %); counted by each of three runs, 300 would hide it (9 %)."""

    def full(*_: Any, **__: Any) -> int:
        raise StoreUnavailable("no space left on device", unaffected="", next_step="")

    for number in range(100):
        world.sent(f"done-{number}", age=timedelta(minutes=10))
    world.consume("billing")
    world.consume("shipping")
    with monkeypatch.context() as patched:
        patched.setattr(PostgresStubs, "promote", full)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="no space left"):
                hands.whole()
    for number in range(30):
        world.sent(f"lost-{number}")
    world.pass_over("billing")
    world.consume("shipping")
    hands.whole()
    assert world.rows("control", "SELECT kind, consumer_group FROM case_file") == [
        ("mass_loss", "billing")
    ]
    assert world.rows("control", "SELECT count(*) FROM resend_request") == [(0,)]


def test_two_windows_at_once_do_not_leave_the_blast_radius_together(
    world: System, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        world.sent(f"early-{number}", age=timedelta(minutes=10))
        world.sent(f"late-{number}")
    world.pass_over("billing")
    world.consume("shipping")
    runs = [hands.judged(early()), hands.judged(late())]
    asking, really_ask = threading.Event(), promotion.ask
    others: list[Future[Counts]] = []

    def ask_late(*arguments: Any) -> Counts:
        """Between the measure and the commit: until the other run waits for its turn, or has ended without waiting."""
        if not asking.is_set():
            asking.set()
            until = monotonic() + 120
            waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            while (
                monotonic() < until
                and world.rows("control", waiting) == [(0,)]
                and not any(o.done() for o in others)
            ):
                threading.Event().wait(0.05)
        return really_ask(*arguments)

    monkeypatch.setattr(promotion, "ask", ask_late)
    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(hands.promote, *runs[0])
        assert asking.wait(120)
        others.append(threads.submit(hands.promote, *runs[1]))
        one.result()
        others[0].result()
    assert world.rows("control", "SELECT count(*) FROM resend_request") == [(20,)]
    assert world.rows(
        "control",
        "SELECT kind, count(*) FROM case_file JOIN case_member USING (case_id) GROUP BY 1",
    ) == [("mass_loss", 20)]
    for control, _ in runs:
        control.close()


def test_judging_without_sending_promotes_all_but_requests_and_leaves_the_lost_due(
    world: System, hands: Hands
) -> None:
    mixed(world)
    before = world.rows(
        "shop_a",
        "SELECT next_check_at FROM message_stub WHERE message_id LIKE 'lost-%%' ORDER BY message_id",
    )
    counts = hands.whole(no_send=True)
    assert counts["not_asked_for"] == 2
    found = left_behind(world)
    assert found["requests"] == []
    assert found["cases"] == [
        ("exhausted", "orders", "billing", "open"),
        ("exhausted", "orders", "shipping", "open"),
    ]
    assert [row[1] for row in found["stubs"]] == [
        "confirmed",
        "confirmed",
        "pending",
        "pending",
        "exhausted",
        "exhausted",
    ]
    assert world.rows("control", "SELECT verdict, count(*) FROM verdict GROUP BY 1 ORDER BY 1") == [
        ("EXHAUSTED", 4),
        ("LOST", 4),
    ]
    assert world.rows("control", "SELECT no_send, state FROM run") == [(True, "done")]
    after = world.rows(
        "shop_a",
        "SELECT next_check_at FROM message_stub WHERE message_id LIKE 'lost-%%' ORDER BY message_id",
    )
    assert after == before
    hands.whole()
    assert [row[:2] for row in left_behind(world)["requests"]] == [("lost-0", 2), ("lost-1", 2)]


def test_a_run_over_less_leaves_the_watermarks_and_cases_of_others_alone(
    world: System, hands: Hands
) -> None:
    world.sent("m-1", age=timedelta(minutes=10))
    world.sent("other", topic="payments", status="exhausted")
    for topic in ("orders", "payments"):
        world.consume("billing", topic)
        world.consume("shipping", topic)
    (case,) = world.rows(
        "control",
        "INSERT INTO case_file (kind, topic, consumer_group, subject, severity, summary, evidence)"
        " VALUES ('exhausted', 'payments', 'billing', '', 'critical', 's', '{}') RETURNING case_id",
    )[0]
    world.rows(
        "control",
        "INSERT INTO case_member (case_id, shard, topic, message_id, consumer_group)"
        " VALUES (%s, 'shop_a', 'payments', 'other', 'billing')",
        case,
    )
    world.sent("m-2")
    assert hands.whole(scope=early())["confirmed"] == 2
    assert world.rows("control", "SELECT * FROM watermark WHERE subject LIKE 'anomalies%%'") == []
    assert world.rows("shop_a", "SELECT status FROM message_stub WHERE message_id = 'other'") == [
        ("exhausted",)
    ]
    assert hands.whole()["late_confirmed"] == 1
    assert (
        len(world.rows("control", "SELECT * FROM watermark WHERE subject LIKE 'anomalies%%'")) == 2
    )


def cut_off(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Run]:
    """A run over the early window whose control part is committed and whose shards were not reached."""
    control, run = hands.judged(early())

    class Killed(Exception):
        pass

    def die(*_: object) -> int:
        raise Killed

    with monkeypatch.context() as cut:
        cut.setattr(promotion, "_promote_shards", die)
        with pytest.raises(Killed):
            hands.promote(control, run)
    control.rollback()
    return control, run


def staged(world: System, run: Run) -> int:
    return int(
        world.rows("control", "SELECT count(*) FROM staged_stub WHERE run_id = %s", run.run_id)[0][
            0
        ]
    )


def test_a_run_does_not_disturb_the_promotion_of_another_scope_that_lives(
    world: System, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed(world)
    control, window = cut_off(hands, monkeypatch)
    hands.whole(scope=late())
    assert staged(world, window) == 3
    assert world.rows("shop_a", "SELECT status FROM message_stub WHERE message_id = 'done-0'") == [
        ("pending",)
    ]
    hands.promote(control, window)
    assert staged(world, window) == 0
    assert world.rows("shop_a", "SELECT status FROM message_stub WHERE message_id = 'done-0'") == [
        ("confirmed",)
    ]
    control.close()


def test_the_promotion_of_a_window_that_died_is_finished_though_nobody_asks_for_that_window_again(
    world: System, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed(world)
    control, window = cut_off(hands, monkeypatch)
    world.rows(
        "control", "UPDATE duty_lease SET heartbeat_at = heartbeat_at - interval '3 minutes'"
    )
    hands.whole(scope=late())
    assert staged(world, window) == 0
    assert world.rows("shop_a", "SELECT status FROM message_stub WHERE message_id = 'done-0'") == [
        ("confirmed",)
    ]
    assert world.rows("control", "SELECT state FROM run WHERE run_id = %s", window.run_id) == [
        ("done",)
    ]
    assert world.rows("control", "SELECT * FROM duty_lease") == []
    control.close()


def test_a_run_that_looked_before_another_one_saw_no_offset_go_back(
    world: System, hands: Hands
) -> None:
    world.sent("m-1")
    world.consume("billing")
    world.consume("shipping")
    beside, other = hands.judged(early())
    assert world.rows("control", "SELECT count(*) FROM progress") == [(0,)]
    beside_late, later = hands.judged(late())
    world.rows(
        "control", "UPDATE progress SET next_offset = next_offset + 5"
    )  # as if it had looked after the next one
    everything, run = hands.judged(Scope())
    regressions: Callable[[], Any] = lambda: world.rows(  # noqa: E731
        "control", "SELECT count(*) FROM anomaly WHERE kind = 'REGRESSION'"
    )
    assert regressions() == [(0,)]
    for control, one in ((beside, other), (beside_late, later), (everything, run)):
        close_run(control, one, "done", Counts())
        control.close()
    world.rows("shop_a", "UPDATE message_stub SET next_check_at = now()")
    hands.whole()
    assert regressions()[0][0] > 0
