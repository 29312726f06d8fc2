"""What waits in a retry queue is passed in the topic's own: it holds back what is settled, also of groups that acknowledge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from backstop.brokers.protocol import Retries
from backstop.brokers.redis_streams import RedisStreams
from backstop.model.errors import BrokerUnavailable
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


@pytest.fixture
def asked_together(monkeypatch: pytest.MonkeyPatch) -> list[set[tuple[str, str]]]:
    """A broker that lists the retries of many groups by one look: message a waits for billing. Its looks."""
    looks: list[set[tuple[str, str]]] = []
    can = RedisStreams.capabilities.fget
    assert can is not None
    monkeypatch.setattr(
        RedisStreams,
        "capabilities",
        property(lambda self: replace(can(self), lists_retries_together=True)),
    )

    def together(
        self: Any, wanted: Mapping[tuple[str, str], Any]
    ) -> dict[tuple[str, str], Retries]:
        looks.append(set(wanted))
        return {
            (topic, group): Retries(0, frozenset({"a"} if group == "billing" else ()), {})
            for topic, group in wanted
        }

    monkeypatch.setattr(RedisStreams, "list_retries_together", together, raising=False)
    return looks


def test_the_retries_of_all_groups_are_asked_for_by_one_look_where_the_broker_can(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    asked_together: list[set[tuple[str, str]]],
) -> None:
    world.stub("a", sends=1)

    def alone(self: Any, topic: str, group: str, since: Any = None) -> Retries:
        raise AssertionError(f"asked for {group} alone")

    monkeypatch.setattr(RedisStreams, "list_retries", alone)
    assert {group: str(one.verdict) for group, one in world.judge("a").items()} == {
        "billing": "BACKLOGGED",
        "shipping": "UNSENT",
    }
    assert asked_together == [{("orders", "billing"), ("orders", "shipping")}]


def test_a_group_whose_retries_cannot_be_read_is_unknown_alone_beside_groups_of_one_look(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    asked_together: list[set[tuple[str, str]]],
) -> None:
    world.stub("a", sends=1)

    def refused(self: Any, *given: Any) -> Any:
        raise BrokerUnavailable("No.", unaffected="Nothing.", next_step="Nothing.")

    def alone(self: Any, topic: str, group: str, since: Any = None) -> Retries:
        return refused(self) if group == "billing" else Retries(0, frozenset(), {})

    monkeypatch.setattr(RedisStreams, "list_retries_together", refused)
    monkeypatch.setattr(RedisStreams, "list_retries", alone)
    assert {group: str(one.verdict) for group, one in world.judge("a").items()} == {
        "billing": "UNKNOWN",
        "shipping": "UNSENT",
    }
