"""What rows of MariaDB say, where another program wrote them."""

from __future__ import annotations

import pytest

from backstop.stores.mariadb.stub_rows import attempt_table, message_of


def test_what_is_sent_again_has_the_tag_and_the_ordering_key_of_the_first_copy() -> None:
    message = message_of((b"orders", b"m", b"x", "{}", "red\0", b"k\0", 1))
    assert (message.tag, message.partition_key) == ("red\0", "k\0")


@pytest.mark.parametrize(
    ("document", "groups"),
    [
        (None, [None]),
        ('["billing", "shipping"]', ["billing", "shipping"]),
        ("[]", [None]),
        ("5", [None]),
        ('"billing"', [None]),
        ('{"billing": 1}', [None]),
        ('["billing", 1]', [None]),
        ("[", [None]),
        ("[" * 100_000, [None]),
        ('["\\ud800"]', ["\\ud800"]),
    ],
)
def test_an_attempt_without_a_list_of_groups_counts_as_one_to_all(
    document: str | None, groups: list[str | None]
) -> None:
    row = (b"orders", b"m", 1, document, "sent", None, None, None, None, 1, 2)
    assert attempt_table([row]).column("consumer_group").to_pylist() == groups
