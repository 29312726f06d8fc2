"""Replaces the content of one message by a person's edit; the version that was, and the one that is sent instead, are kept.

    control: both versions | control: the new version's row is held | producer: content and version, compare-and-set | control

Crash points. After the first commit: the old version is kept, nothing was changed, and the new row is a plan that a later
edit may overwrite. After the producer's commit: the new version is the message's; its row was written before, so nothing is
unknown. Whoever replaces, or overwrites a plan, holds that row meanwhile: while the producer's version is n, only the content
of row n + 1 can become its content. Then the row says that it was carried out, and is overwritten no more; where somebody died in
between, the next edit says so.
"""

from __future__ import annotations

from typing import Any

from backstop.cases.intend import Intent, refused
from backstop.model.records import VERSION_HEADER, Key, Message
from backstop.sql.named import load
from backstop.stores.protocol import StubStore

_SQL = load("backstop.triage.decide", "decide.sql")


def replace_content(conn: Any, store: StubStore, key: Key, content: bytes, intent: Intent) -> int:
    """Makes `content` the message's next version, and returns its number; the same content once more changes nothing.

    Commits in both databases. Raises DecisionRefused when somebody else edits it, a send of it is under way or its content was
    erased, StoreUnavailable.
    """
    now = store.contents([key]).get(key)
    if now is None:
        raise refused(f"Message {key.message_id} is not there any more.", "Look at the case again.")
    if (why := store.unsendable([key]).get(key)) is not None:
        raise refused(why.what, why.next_step)
    version = _version(now)
    row = {
        "shard": store.shard,
        "topic": key.topic,
        "message_id": key.message_id,
        "case_id": intent["case_id"],
        "who": intent["who"],
        "why": intent["why"],
    }
    if now.content == content:
        # By this answer, perhaps, and it died before it could write that down.
        with conn, conn.cursor() as cur:
            cur.execute(_SQL["carried_out"], {**row, "version": version, "carried_out": True})
        return version
    with conn, conn.cursor() as cur:
        cur.execute(
            _SQL["keep_version"],
            {
                **row,
                "version": version,
                "content": now.content,
                "who": "the producer",
                "why": "as it was before the edit",
                "case_id": None,
            },
        )
        cur.execute(_SQL["plan_version"], {**row, "version": version + 1, "content": content})
        planned = cur.rowcount == 1
        # The row is held now: nobody can make it the message's content before this commit.
        _require_version(store, key, version)
        if not planned:
            raise refused(
                f"Message {key.message_id} is at version {version}, and version {version + 1} was carried out before: its database "
                "was restored from a backup.",
                f"Restore what it has forgotten (backstop restore producer {store.shard} --since ...), then decide again.",
            )
    with conn, conn.cursor() as cur:
        cur.execute(_SQL["hold_version"], {**row, "version": version + 1})
        found = cur.fetchone()
        if found is None or bytes(found[0]) != content:
            raise _meanwhile(key)
        carried_out = store.replace_content(key, version, content)
        # Of one that moved on by itself, somebody else's account holds.
        if carried_out or _is_at(store, key, version):
            cur.execute(
                _SQL["carried_out"],
                {**row, "version": version + 1, "carried_out": carried_out},
            )
    if not carried_out:
        raise _meanwhile(key)
    return version + 1


def _require_version(store: StubStore, key: Key, version: int) -> None:
    if not _is_at(store, key, version):
        raise _meanwhile(key)


def _is_at(store: StubStore, key: Key, version: int) -> bool:
    now = store.contents([key]).get(key)
    return now is not None and _version(now) == version


def _version(message: Message) -> int:
    return int(message.headers.get(VERSION_HEADER, "1"))


def _meanwhile(key: Key) -> Exception:
    return refused(
        f"Message {key.message_id} was edited by somebody else, sent, or ended meanwhile.",
        "Look at it again: backstop where --id, then decide by the present state.",
    )
