"""Reads which messages were erased on request, in pages: the audit asks the other databases about them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from backstop.model.records import Key
from backstop.sql.named import load

_SQL = load("backstop.audit", "queries.sql")
PAGE = 2_000
INVARIANT = "erased_stays_erased"


def erased_messages(control: Any) -> Iterator[list[Key]]:
    """Those whose erasure is done, each once."""
    after = Key("", "")
    while True:
        with control, control.cursor() as cursor:
            cursor.execute(
                _SQL["erased"],
                {"after_topic": after.topic, "after_id": after.message_id, "limit": PAGE},
            )
            page = [Key(*row) for row in cursor.fetchall()]
        if page:
            yield page
        if len(page) < PAGE:
            return
        after = page[-1]
