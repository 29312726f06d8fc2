"""Messages whose right content is gone: no rule sends them before a person decides what becomes of them."""

from __future__ import annotations

from typing import Any

from backstop.cases.open import open_case
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


def hold_again(control: Any, store: StubStore) -> int:
    """Exhausts the messages of this shard whose case is undecided or left, and that were made pending since. Returns how many it could
    not exhaust, because a send of them is under way."""
    with control, control.cursor() as cursor:
        values = {"kind": _KIND, "subject": _SUBJECT, "shard": store.shard}
        cursor.execute(_SQL["held"], values)
        keys = [Key(*row) for row in cursor.fetchall()]
    pending = [stub for stub in store.stubs(keys).values() if stub.status == StubStatus.PENDING]
    return sum(not _exhaust(store, stub) for stub in pending)


def _exhaust(store: StubStore, stub: Stub) -> bool:
    if stub.status == StubStatus.EXHAUSTED:
        return True
    held = StubOutcome(
        stub.key, StubStatus(stub.status), StubStatus.EXHAUSTED, stub.send_count, None
    )
    return store.promote([held], store.clock()) == 1
