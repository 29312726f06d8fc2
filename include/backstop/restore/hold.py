"""Messages whose right content is gone: no rule sends them before a person decides what becomes of them."""

from __future__ import annotations

from typing import Any

from backstop.cases.open import open_case
from backstop.evidence.apply_apart import apply_apart
from backstop.model.errors import StoreFailed
from backstop.model.records import Key, Stub, StubStatus
from backstop.sql.named import load
from backstop.stores.protocol import StubOutcome, StubStore

_SQL = load("backstop.restore", "queries.sql")
_KIND, _SUBJECT = "exhausted", "restored content"


def hold(control: Any, store: StubStore, stub: Stub) -> bool:
    """Exhausts an open stub, and opens a case for it; commits. False: a send of it is under way, and nothing was changed."""
    if not _exhaust(store, stub):
        return False
    with control, control.cursor() as cursor:
        open_case(
            cursor,
            kind=_KIND,
            topic=stub.key.topic,
            group="*",
            subject=_SUBJECT,
            severity="critical",
            summary="Messages came back from a backup with a content that a person had replaced, and the newer one is kept no"
            " longer: nothing is resent, decide what becomes of them",
            evidence={},
            members=[(store.shard, *stub.key, "*")],
            run_id=None,
        )
    return True


def hold_again(control: Any, store: StubStore, refused: list[tuple[Key, StoreFailed]]) -> int:
    """Exhausts the messages of this shard whose case is undecided or left, and that were made pending since. Returns how many it could
    not exhaust, because a send of them is under way; those that the shard refuses to change are added to `refused`."""
    with control, control.cursor() as cursor:
        values = {"kind": _KIND, "subject": _SUBJECT, "shard": store.shard}
        cursor.execute(_SQL["held"], values)
        keys = [Key(*row) for row in cursor.fetchall()]
    stubs = store.stubs(keys)
    pending = [key for key, stub in stubs.items() if stub.status == StubStatus.PENDING]
    under_way = 0
    for key in pending:
        held = apply_apart([key], lambda one: _exhaust(store, stubs[one[0]]), refused)
        under_way += held == [False]
    return under_way


def _exhaust(store: StubStore, stub: Stub) -> bool:
    if stub.status == StubStatus.EXHAUSTED:
        return True
    held = StubOutcome(
        stub.key, StubStatus(stub.status), StubStatus.EXHAUSTED, stub.send_count, None
    )
    return store.promote([held], store.clock()) == 1
