"""A group that comes to a live topic owes what is created from then on; its history only where active_from says so."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from backstop.config.load import from_mapping
from backstop.config.settings import Settings
from backstop.evidence.judge_by_key import Judge
from backstop.model.errors import RunRefused
from backstop.model.records import Counts, Key
from backstop.runs.run import close_run, open_run
from control_world import World, servers, world, written_settings  # noqa: F401


def with_audit(**group: Any) -> Settings:
    """The configuration in which `audit` takes orders, too."""
    content = written_settings()
    content["topics"]["orders"]["groups"] = [*content["topics"]["orders"]["groups"], "audit"]
    content["groups"]["audit"].update(group)
    return from_mapping(content)


def a_run(world: World, settings: Settings) -> None:
    close_run(world.conn, open_run(world.conn, "watch", "*", settings), "done", Counts())


def owing(world: World, settings: Settings, message_id: str) -> set[str]:
    with Judge(settings, world.connections, world.conn) as judge:
        return {one.consumer_group for one in judge.judge([Key("orders", message_id)])}


def test_a_group_that_comes_to_a_live_topic_owes_what_is_created_from_then_on(world: World) -> None:
    world.stub("before", age="5 minutes")
    a_run(world, world.settings)
    assert owing(world, world.settings, "before") == {"billing", "shipping"}, (
        "the first groups of a topic owe everything"
    )
    later = with_audit()
    assert owing(world, later, "before") == {"billing", "shipping"}, (
        "also before a run has seen the new one"
    )
    a_run(world, later)
    world.stub("after", age="0 seconds")
    for _ in range(2):  # seen once, it stays
        assert owing(world, later, "before") == {"billing", "shipping"}
        assert owing(world, later, "after") == {"billing", "shipping", "audit"}
        a_run(world, later)
    assert owing(world, with_audit(active_from=datetime(2020, 1, 1, tzinfo=UTC)), "before") == {
        "billing",
        "shipping",
        "audit",
    }


def test_a_run_that_is_refused_notes_no_group(world: World) -> None:
    run = open_run(world.conn, "watch", "*", world.settings)
    try:
        open_run(world.conn, "watch", "*", with_audit())
    except RunRefused:
        pass
    else:
        raise AssertionError("two runs of one scope")
    close_run(world.conn, run, "done", Counts())
    assert world.control(
        "SELECT count(*) FROM owed_since WHERE topic = 'orders' AND consumer_group = 'audit'"
    ) == [(0,)]


def test_a_start_offset_covers_only_the_life_of_the_queue_that_it_was_written_for(
    world: World,
) -> None:
    """RocketMQ gives every life of every queue the epoch "0": offsets that begin again lie below the start offset."""
    content = written_settings()
    started = {"start_offsets": {0: {"offset": 100, "epoch": "0"}}}
    content["topics"]["orders"]["groups"] = {"billing": {}, "shipping": {}, "audit": started}
    content["groups"]["audit"]["active_from"] = "2020-01-01T00:00:00Z"
    settings = from_mapping(content)

    def put(message_id: str, age: str, offset: int, broker: str = "embedded") -> None:
        world.stub(message_id, sends=1, age=age)
        world.run(
            "producer_a",
            """
            UPDATE message_stub SET sent_at = attempted_at, broker = %s, queue_id = 0, queue_offset = %s, queue_epoch = '0'
            WHERE message_id = %s""",
            (broker, offset, message_id),
        )

    put("below", "60 minutes", 50)
    put("above", "60 minutes", 100)
    put("elsewhere", "60 minutes", 50, "second")
    put("anew", "10 minutes", 50)
    owed = {"billing", "shipping"}
    for known in ("", "one life", "two lives"):
        if known == "one life":
            world.control(
                "INSERT INTO queue_epoch (broker, topic, queue_id, epoch, accepted, first_seen_at, read_at)"
                " VALUES ('embedded', 'orders', 0, '0', true, now() - interval '2 h', now() - interval '30 min')"
            )
        if (
            known == "two lives"
        ):  # as a look records them that finds the next offset below the last one
            world.control("UPDATE queue_epoch SET present = false")
            world.control(
                "INSERT INTO queue_epoch (broker, topic, queue_id, epoch, accepted, next_offset, read_at)"
                " VALUES ('embedded', 'orders', 0, '0~1', false, 60, now())"
            )
        assert owing(world, settings, "below") == owed
        assert owing(world, settings, "above") == owed | {"audit"}
        assert owing(world, settings, "elsewhere") == owed | {"audit"}
        assert owing(world, settings, "anew") == (
            owed | {"audit"} if known == "two lives" else owed
        )
