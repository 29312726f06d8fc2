"""The resend duty on real databases and a real broker: what goes out, what does not, and what is left in the rows."""

from __future__ import annotations

from resend_world import World, ids, servers, world  # noqa: F401


def test_a_request_publishes_its_number_once_and_the_rows_say_so(world: World) -> None:  # noqa: F811
    wanted = ["plain", "ünï:%s{}'\"", "a b"]
    world.stubs(wanted)
    world.ask(wanted)

    counts = world.resend()

    assert counts["published"] == counts["sent"] == 3, counts
    assert world.copies() == {(i, "1"): 1 for i in wanted}
    assert world.requests() == {"sent": 3}
    assert world.attempts() == {"sent": 3}
    for i in wanted:
        stub = world.stub(i)
        assert stub["send_count"] == 1 and stub["attempt_token"] is None and stub["queue_offset"] is not None
