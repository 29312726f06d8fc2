"""A bound for all queues of a consumer leaves each its share."""

import pytest

from backstop.brokers.budget import has_room


@pytest.mark.parametrize(
    ("held", "most", "takes"),
    [
        ([0], 10, [True]),
        ([9], 10, [True]),
        ([10], 10, [False]),
        ([9, 0], 10, [True, True]),
        ([10, 0], 10, [False, True]),
        ([70, 4, 5], 12, [False, False, False]),
        ([70, 3, 0], 12, [False, True, True]),
        ([10, 0, 0], 2, [False, True, True]),
        ([10, 1, 0], 2, [False, False, True]),
    ],
)
def test_a_queue_takes_more_below_its_share_or_while_all_hold_little(
    held: list[int], most: int, takes: list[bool]
) -> None:
    assert [has_room(own, held, most, len(held)) for own in held] == takes
