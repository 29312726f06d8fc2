"""What a round of a resend does in this process for each message: the collector of cycles rests, and copies are packed by hand."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstop.brokers.redis_streams.publish import pack
from backstop.model.errors import ContractBroken
from backstop.model.records import ID_HEADER, Message
from backstop.runs.without_collector import without_collector


@pytest.fixture
def collector() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("was_on", [True, False])
def test_the_collector_rests_in_a_batch_and_is_as_it_was_after_it(was_on: bool) -> None:
    (gc.enable if was_on else gc.disable)()
    with without_collector():
        assert not gc.isenabled()
    assert gc.isenabled() is was_on
    with pytest.raises(KeyError), without_collector():
        raise KeyError
    assert gc.isenabled() is was_on


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])),
        st.text(st.characters(exclude_categories=["Cs"])),
        max_size=3,
    ),
)
def test_a_copys_headers_are_written_as_json_would_write_them(
    message_id: str, headers: dict[str, str]
) -> None:
    content, text, tag, key = pack(Message("orders", message_id, b"\x00x", headers))
    assert (content, tag, key) == (b"\x00x", b"", b"")
    written = json.dumps(
        {**headers, ID_HEADER: message_id}, ensure_ascii=False, separators=(",", ":")
    )
    assert text == written.encode()


@pytest.mark.parametrize("headers", [{"n": 1}, {2: "x"}, {"none": None}])
def test_a_header_that_is_no_text_is_refused_before_anything_is_sent(headers: Any) -> None:
    with pytest.raises(ContractBroken, match="A header is not text"):
        pack(Message("orders", "m", b"", headers))
