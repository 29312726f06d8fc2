"""What waits in a retry queue is passed in the topic's own: it holds back what is settled, also of groups that acknowledge."""

from __future__ import annotations

from typing import Any

import pytest

from backstop.brokers.protocol import Retries
from backstop.brokers.redis_streams import RedisStreams
from control_world import World, servers, world  # noqa: F401


def test_nothing_is_found_missing_while_a_retry_queue_may_hold_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stub("a", sends=1)
    assert {group: str(one.verdict) for group, one in world.judge("a").items()} == {
        "billing": "UNSENT",
        "shipping": "UNSENT",
    }
    monkeypatch.setattr(
        RedisStreams,
        "list_retries",
        lambda self, topic, group, since=None: Retries(int(group == "billing"), None, {}),
    )
    verdicts = world.judge("a")
    assert (
        str(verdicts["billing"].verdict) in ("UNKNOWN", "BACKLOGGED")
        and not verdicts["billing"].eligible
    )
    assert str(verdicts["shipping"].verdict) == "UNSENT", "each group has a queue of its own"


def test_what_is_known_to_wait_holds_back_itself_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stub("a", sends=1)
    world.stub("b", sends=1)

    def listed(self: Any, topic: str, group: str, since: Any = None) -> Retries:
        return Retries(2, frozenset({"a", "of another topic"}), {})

    monkeypatch.setattr(RedisStreams, "list_retries", listed)
    assert {str(one.verdict) for one in world.judge("a").values()} == {"BACKLOGGED"}
    assert {str(one.verdict) for one in world.judge("b").values()} == {"UNSENT"}
