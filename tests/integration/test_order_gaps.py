"""A topic that is only observed: a lost message that belongs before others of its key is a case, without anything being asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from backstop.config.settings import Settings
from backstop.model.errors import StoreUnavailable
from backstop.model.records import Key
from backstop.reconcile import find_gaps
from backstop.reconcile.promote import promote
from backstop.runs.run import close_run, open_run
from backstop.stores.postgresql.stubs import PostgresStubs
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from system import System, system


@pytest.fixture
def world(servers: tuple[Postgres, Valkey]) -> Iterator[System]:
    with system(*servers) as made:
        yield made


def observing(world: System, **policy: Any) -> Settings:
    written = world.settings.model_dump(exclude_unset=True)
    written["topics"]["orders"] |= {"mode": "observe", "policy": policy}
    return Settings.model_validate(written)


def promoted(
    world: System, settings: Settings, *lost: Key, groups: tuple[str, ...] = ("billing", "shipping")
) -> None:
    """A run judged these messages LOST for these groups, and is promoted."""
    conn = world.control()
    run = open_run(conn, "reconcile", "*", settings)
    for key in lost:
        for group in groups:
            world.rows(
                "control",
                "INSERT INTO staged_verdict (run_id, stage, shard, topic, message_id, consumer_group, verdict,"
                " reason, eligible, send_count, evidence) VALUES (%s, 0, 'shop_a', %s, %s, %s, 'LOST', 'passed', true, 1,"
                " '{}')",
                run.run_id,
                *key,
                group,
            )
    counts = promote(settings, world.connections, conn, run)
    close_run(conn, run, "done", counts)
    conn.close()


def line(
    world: System, *messages: str, key: str | None = "k", sequence: int = 1, **columns: Any
) -> list[Key]:
    return [
        world.stub(m, ordering_key=key, sequence=n, **columns)
        for n, m in enumerate(messages, sequence)
    ]


def gaps(world: System) -> list[tuple[Any, ...]]:
    return world.rows(
        "control",
        "SELECT c.topic, c.subject, m.message_id, c.evidence->>'in_the_way' FROM case_file c"
        " JOIN case_member m USING (case_id) WHERE c.kind = 'order_gap' ORDER BY 2, 3",
    )


def test_a_gap_in_an_observed_topic_is_one_case_a_key_and_nothing_is_asked_for(
    world: System,
) -> None:
    first, second = line(world, "first", "second")
    line(world, "third", sequence=3, status="confirmed")
    (last,) = line(world, "last", key="other")
    (free,) = line(world, "free", key=None)
    for _ in range(2):
        promoted(world, observing(world), first, second, last, free)
    assert gaps(world) == [("orders", "k", "first", "second"), ("orders", "k", "second", "second")]
    assert world.rows("control", "SELECT count(*) FROM case_file WHERE kind = 'order_gap'") == [
        (1,)
    ]
    assert world.rows("control", "SELECT count(*) FROM resend_request") == [(0,)]


def test_a_later_message_that_was_never_sent_makes_no_gap_nor_does_a_policy_that_says_resend(
    world: System,
) -> None:
    (lost,) = line(world, "lost")
    line(world, "later", sequence=2, send_count=0)
    promoted(world, observing(world), lost)
    assert gaps(world) == []
    world.rows("shop_a", "UPDATE message_stub SET send_count = 1 WHERE message_id = 'later'")
    promoted(world, observing(world, ordering_gap="resend"), lost)
    assert gaps(world) == []
    promoted(world, observing(world), lost)
    assert gaps(world) == [("orders", "k", "lost", "later")]


def test_a_topic_in_repair_is_asked_about_at_the_claim_and_not_twice(world: System) -> None:
    (lost,) = line(world, "lost")
    line(world, "later", sequence=2)
    promoted(world, world.settings, lost)
    assert gaps(world) == []
    assert world.rows("control", "SELECT message_id FROM resend_request") == [("lost",)]


def test_a_shard_that_is_away_is_waited_for_once_and_not_for_each_page(
    world: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = line(world, "first", "second", "third")
    line(world, "last", sequence=4)
    asked: list[str] = []

    def silent(what: str) -> Any:
        def fail(*_: Any) -> Any:
            asked.append(what)
            raise StoreUnavailable("no answer", unaffected="", next_step="")

        return fail

    monkeypatch.setattr(find_gaps, "_PAGE", 1)
    with monkeypatch.context() as patched:
        patched.setattr(PostgresStubs, "neighbours", silent("neighbours"))
        patched.setattr(PostgresStubs, "clock", silent("clock"))
        with pytest.raises(StoreUnavailable, match="shop_a"):
            promoted(world, observing(world), *lost)
    assert asked == ["neighbours", "clock"]
    world.rows("control", "DELETE FROM duty_lease")
    promoted(world, observing(world), *lost)
    assert len(gaps(world)) == 3, "the next run asks"


def test_what_a_mass_loss_holds_is_not_asked_about_key_by_key(world: System) -> None:
    lost = [key for n in range(30) for key in line(world, f"lost-{n}", key=f"k{n}")]
    for n in range(30):
        line(world, f"later-{n}", key=f"k{n}", sequence=2)
    promoted(world, observing(world), *lost)
    assert gaps(world) == []
    assert world.rows("control", "SELECT count(DISTINCT kind), min(kind) FROM case_file") == [
        (1, "mass_loss")
    ]
