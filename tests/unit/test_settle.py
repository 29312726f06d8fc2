"""Settled progress: what counts as certain, and when a queue's life is a new one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from backstop.evidence.settle import Progress, cut, present_epoch, settle

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
GRACE = timedelta(hours=6)


def at(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def test_progress_is_settled_up_to_the_grace_before_the_run() -> None:
    assert cut(NOW, GRACE, 0, None) == NOW - GRACE
    assert cut(NOW, timedelta(0), 0, None) == NOW


def test_an_empty_retry_queue_needs_no_memory_of_one() -> None:
    assert cut(NOW, GRACE, 0, NOW - 2 * GRACE) == NOW - GRACE


def test_while_messages_wait_to_be_retried_only_what_was_passed_before_them_is_settled() -> None:
    assert cut(NOW, GRACE, 1, NOW - 2 * GRACE) == NOW - 2 * GRACE
    # Last seen empty within the grace: the grace is the earlier bound.
    assert cut(NOW, GRACE, 1, at(5)) == NOW - GRACE
    assert cut(NOW, GRACE, 1, NOW - GRACE) == NOW - GRACE


def test_a_retry_queue_never_seen_empty_settles_nothing() -> None:
    assert cut(NOW, GRACE, 1, None) is None


def test_settled_progress_is_the_recorded_one() -> None:
    live = {0: Progress("e1", 90, at(1)), 1: Progress("e1", 50, at(2))}
    recorded = {0: Progress("e1", 70, at(370)), 1: Progress("e1", 50, at(365))}
    assert settle(live, recorded) == recorded


def test_settled_progress_is_never_above_the_live_one() -> None:
    # The group was set back: what it had passed counts no longer. Offset and time are bounded each by itself.
    live = {0: Progress("e1", 10, at(400))}
    assert settle(live, {0: Progress("e1", 70, at(370))}) == {0: Progress("e1", 10, at(400))}
    assert settle(live, {0: Progress("e1", 5, at(370))}) == {0: Progress("e1", 5, at(400))}
    assert settle(live, {0: Progress("e1", 70, at(500))}) == {0: Progress("e1", 10, at(500))}


def test_progress_of_another_epoch_is_not_compared() -> None:
    assert settle({0: Progress("e2", 10, at(1))}, {0: Progress("e1", 7, at(370))}) == {}
    assert settle({0: Progress("e1~1", 10, at(1))}, {0: Progress("e1", 7, at(370))}) == {}


def test_a_queue_without_a_record_or_without_live_progress_is_not_known() -> None:
    recorded = {1: Progress("e1", 7, at(370)), 2: Progress("e1", 9, at(370))}
    assert settle({0: Progress("e1", 10, at(1)), 1: Progress("e1", 8, at(1))}, recorded) == {
        1: Progress("e1", 7, at(370))
    }
    assert settle({}, recorded) == {}


def test_random_progress_settles_below_both_in_both_measures() -> None:
    random = Random(3)

    def draw() -> dict[int, Progress]:
        return {
            queue: Progress(
                random.choice(("e1", "e2")), random.randrange(9), at(random.randrange(9))
            )
            for queue in range(4)
            if random.random() < 0.8
        }

    for _ in range(2_000):
        live, recorded = draw(), draw()
        settled = settle(live, recorded)
        same = {q for q in live.keys() & recorded.keys() if live[q].epoch == recorded[q].epoch}
        assert settled.keys() == same
        for queue, progress in settled.items():
            both = (live[queue], recorded[queue])
            assert progress.epoch == live[queue].epoch
            assert progress.next_offset == min(one.next_offset for one in both)
            assert progress.passed_until == min(one.passed_until for one in both)


@pytest.mark.parametrize(
    ("seen", "next_offset", "stored", "stored_next_offset", "label", "same"),
    [
        pytest.param("e1", 5, None, None, "e1", True, id="the first life that is ever seen"),
        pytest.param("e1", 5, "e1", 5, "e1", True, id="nothing was stored since"),
        pytest.param("e1", 6, "e1", 5, "e1", True, id="messages were stored since"),
        pytest.param("e1", 6, "e1", None, "e1", True, id="no next offset was recorded"),
        pytest.param("e2", 9, "e1", 5, "e2", False, id="the broker says it is another"),
        pytest.param("e1", 4, "e1", 5, "e1~1", False, id="its next offset fell"),
        pytest.param("e1", 0, "e1", 5, "e1~1", False, id="it is empty again"),
        pytest.param("e1", 6, "e1~1", 5, "e1~1", True, id="the life after a fall goes on"),
        pytest.param("e1", 4, "e1~1", 5, "e1~2", False, id="it fell again"),
        pytest.param("e1", 4, "e1~9", 5, "e1~10", False, id="it fell a tenth time"),
        pytest.param("e2", 4, "e1~1", 5, "e2", False, id="another epoch after a fall"),
    ],
)
def test_a_queue_lives_on_or_begins_anew(
    seen: str,
    next_offset: int,
    stored: str | None,
    stored_next_offset: int | None,
    label: str,
    same: bool,
) -> None:
    assert present_epoch(seen, next_offset, stored, stored_next_offset) == (label, same)


def test_an_epoch_never_gets_a_label_that_a_copy_can_carry() -> None:
    """A copy carries the broker's own epoch: each fall's label differs from it, and from all before."""
    label, labels, offset = "e1", ["e1"], 1_000
    for _ in range(12):
        offset -= 10
        label, same = present_epoch("e1", offset, label, offset + 10)
        assert not same
        labels.append(label)
    assert len(set(labels)) == len(labels)
