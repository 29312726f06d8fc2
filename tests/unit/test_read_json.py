"""Another program's JSON: whatever is wrong with it is a ValueError, however deep it is nested."""

from __future__ import annotations

import json
import sys

import pytest

from backstop.model.errors import StoreFailed
from backstop.model.read_json import read_json
from backstop.stores.mapped.overlay import _texts
from backstop.stores.sent_headers import sent_headers

WRONG = ["", "{", "\ud800", b"\xff", "1" * 5_000, "[" * 100_000, '{"a":' * 100_000]


@pytest.mark.parametrize("text", WRONG, ids=lambda text: repr(text[:3]))
def test_whatever_is_wrong_with_a_text_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_json(text)


def test_headers_at_any_depth_are_sent_as_they_are_or_their_message_is_named() -> None:
    """What is read can be written again, also close to the deepest that the parser takes."""
    sent = {}
    for depth in range(1, sys.getrecursionlimit() + 10):
        deep = "[" * depth + "]" * depth
        document = json.dumps({"a": "b"})[:-1] + f', "deep": {deep}}}'
        try:
            sent[depth] = sent_headers("orders", "m-1", document, 1) == {"a": "b", "deep": deep}
        except StoreFailed as error:
            assert "orders m-1" in error.what
            assert _texts(document) is None
    assert all(sent.values()) and 100 < max(sent) < sys.getrecursionlimit()
