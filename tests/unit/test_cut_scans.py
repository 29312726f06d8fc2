"""Into how much at a time what is due is cut: every core has work, and no worker holds more than its bound."""

from __future__ import annotations

import pytest

from backstop.reconcile.packets import DELIVERIES_OF_BUCKET, buckets_for, share_of


@pytest.mark.parametrize(("cores", "scans", "parts"), [(2, 1, 2), (2, 2, 1), (4, 3, 2), (2, 8, 1)])
def test_scans_beside_one_another_share_the_cores(cores: int, scans: int, parts: int) -> None:
    assert share_of(cores, scans) == parts
    assert parts * scans >= cores


def test_without_a_scan_nothing_is_divided_by_none() -> None:
    assert share_of(2, 0) == 2


@pytest.mark.parametrize("deliveries", [20_001, 240_000, 10_000_000])
def test_no_bucket_holds_more_than_a_worker_may(deliveries: int) -> None:
    assert deliveries / buckets_for(deliveries, 2) <= DELIVERIES_OF_BUCKET


def test_a_few_are_one_bucket_and_more_keep_every_core_at_work() -> None:
    assert [buckets_for(deliveries, 4) for deliveries in (1, 20_000, 20_001)] == [1, 1, 4]


def test_no_core_waits_for_the_last_bucket_of_another() -> None:
    assert [buckets_for(deliveries, 2) for deliveries in (3_000_000, 240_001, 240_000)] == [
        26,
        4,
        2,
    ]
    assert buckets_for(1_000_000, 8) == 16
