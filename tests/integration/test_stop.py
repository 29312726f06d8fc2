"""`backstop pause` takes effect within 5 seconds between batches, however slow the rate and however large a batch is."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest

from backstop.resend.run_once import run_once
from backstop.resend.send_claimed import paced
from resend_world import TOPIC, World, ids, servers, world  # noqa: F401

LIMIT = 5.0


def pause(world: World, topic: str = TOPIC) -> float:
    world.sql(
        "control", "INSERT INTO pause (topic, paused_by, why) VALUES (%s, 'ann', 'stop')", [topic]
    )
    return time.monotonic()


def stopped_after(world: World, hooks: dict[str, Any], wait_for: int, topic: str = TOPIC) -> float:
    """Pauses once `wait_for` copies are out; seconds from the pause until the run that was at work has ended, and it says
    how long after the pause the last copy went out."""
    ended: list[float] = []
    published: list[float] = []
    at: list[float] = []
    slow = hooks.get("publish after", lambda: None)

    def after_publish() -> None:
        if not at and sum(world.copies().values()) >= wait_for:
            at.append(pause(world, topic))
        slow()
        published.append(time.monotonic())

    def work() -> None:
        world.hooked_resend({**hooks, "publish after": after_publish})
        ended.append(time.monotonic())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(120)
    assert at, "nothing was published at all"
    assert ended, "the run goes on"
    print(
        f"pause to last publish {max(published[-1] - at[0], 0):.2f} s, to the end of the run {ended[0] - at[0]:.2f} s"
    )
    return ended[0] - at[0]


@pytest.mark.parametrize("topic", [TOPIC, "*"])
def test_a_rate_so_low_that_the_next_turn_is_far_away_does_not_keep_it_from_stopping(
    world: World, topic: str
) -> None:
    world.set("policy", "rate_limit", to=0.05)
    world.set("policy", "claim_timeout", to="5m")
    world.set("policy", "person_time", to="5m")
    wanted = ids(5)
    for _ in range(3):  # a machine that stands still makes one of them longer, not each
        world.empty()
        world.stubs(wanted)
        world.ask(wanted)
        if (seconds := stopped_after(world, {}, 1, topic)) < LIMIT:
            break
    assert seconds < LIMIT
    assert world.requests() == {"sent": 1, "open": 4}
    assert world.stub(wanted[1])["send_count"] == 0


def test_a_batch_that_takes_long_to_publish_stops_between_its_chunks_and_hands_the_rest_back(
    world: World,
) -> None:
    """A broker that needs 5 ms a message: the 3,000 of one claim would take 15 seconds."""
    world.set("policy", "rate_limit", to=100_000)
    world.set("policy", "claim_timeout", to="5m")
    world.set("policy", "person_time", to="5m")
    world.set("resend", to={"batch_size": 5_000})
    wanted = ids(3_000)
    chunks: list[int] = []

    def slow() -> None:
        now = sum(world.copies().values())
        chunks.append(now - sum(chunks))
        time.sleep(chunks[-1] * 0.005)

    for _ in range(3):  # a machine that stands still makes one of them longer, not each
        world.empty()
        chunks.clear()
        world.stubs(wanted)
        world.ask(wanted)
        if (seconds := stopped_after(world, {"publish after": slow}, 1)) < LIMIT:
            break
    assert seconds < LIMIT
    done = world.requests()
    assert set(done) == {"sent", "open"} and done["sent"] == sum(world.copies().values()) < 1_500
    assert world.sql("producer_a", "SELECT count(*) FROM message_stub WHERE send_count > 0") == [
        (done["sent"],)
    ]
    assert world.sql("producer_a", "SELECT sum(refusals) FROM message_stub") == [(0,)], (
        "a stop uses up nothing"
    )

    world.sql("control", "DELETE FROM pause")
    world.set("policy", "rate_limit", to=100_000)
    deadline = time.monotonic() + 120
    number = 1
    while left := set(wanted) - {message_id for message_id, _ in world.copies()}:
        assert time.monotonic() < deadline, world.requests()
        with world.run() as run:
            run_once(world.settings, world.connections, run)
        if world.requests().keys() <= {"sent", "refused"}:
            # On a busy machine a number runs out of time before it is published: the message is asked for again.
            number += 1
            world.ask(sorted(left), number=number)
    assert set(Counter(message_id for message_id, _ in world.copies()).values()) == {1}


@pytest.mark.parametrize(
    ("number", "seconds", "expected"),
    [
        (200, 0.1, 400),
        (200, 1.0, 200),
        (200, 4.0, 50),
        (1, 9.0, 1),
        (200, 0.0, 400),
        (10_000, 0.5, 20_000),
    ],
)
def test_a_chunk_is_about_what_goes_out_in_a_second(
    number: int, seconds: float, expected: int
) -> None:
    assert paced(number, seconds) == expected
