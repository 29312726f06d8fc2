"""What rows of MariaDB say, where another program wrote them."""

from __future__ import annotations

from backstop.stores.mariadb.stub_rows import message_of


def test_what_is_sent_again_has_the_tag_and_the_ordering_key_of_the_first_copy() -> None:
    message = message_of((b"orders", b"m", b"x", "{}", "red\0", b"k\0", 1))
    assert (message.tag, message.partition_key) == ("red\0", "k\0")
