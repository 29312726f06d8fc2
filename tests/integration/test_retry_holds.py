"""What waits in a retry queue is passed in the topic's own: it holds back what is settled, also of groups that acknowledge."""

from __future__ import annotations

import pytest

from control_world import World, servers, world  # noqa: F401


def test_nothing_is_found_missing_while_a_retry_queue_may_hold_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.stub("a", sends=1)
    assert {group: str(one.verdict) for group, one in world.judge("a").items()} == {"billing": "UNSENT", "shipping": "UNSENT"}
    monkeypatch.setattr(
        "backstop.brokers.redis_streams.RedisStreams.retry_pending", lambda self, topic, group: int(group == "billing")
    )
    verdicts = world.judge("a")
    assert str(verdicts["billing"].verdict) in ("UNKNOWN", "BACKLOGGED") and not verdicts["billing"].eligible
    assert str(verdicts["shipping"].verdict) == "UNSENT", "each group has a queue of its own"
