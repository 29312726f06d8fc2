"""The leases in a consumer database: counts those that ended, takes them back as they were seen, says what a log says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from psycopg2.extensions import cursor as Cursor

from backstop.model.records import Key
from backstop.sql.connection import PostgresConnection, columns, only_readable, readable
from backstop.sql.named import load
from backstop.stores.leases import EndedLeases, Failing, HeldLease, LeaseStanding, TakenBack

_SQL = load("backstop.stores.postgresql", "leases.sql")
_KEY = dict.fromkeys(("consumer_group", "topic", "message_id"), "readable")
_SEEN = {
    **_KEY,
    **dict.fromkeys(("owner_token", "lease_expires_at", "updated_at"), "readable"),
    "owner_host": "string",
    "is_expired": "boolean",
}
_TAKEN = {
    "consumer_group": "readable",
    **dict.fromkeys(("topic", "owner_host"), "string"),
    "leases": "bigint",
    "message_id": "string",
}
_FAILING = {**_KEY, "attempts": "int", "last_error": "string", "first_received_at": "timestamptz"}
"""Of the columns of these statements, in their order."""


class PostgresLeases:
    """See stores.leases.Leases."""

    def __init__(self, store: str, url: str) -> None:
        self._connection = PostgresConnection(f"store {store}", url)

    def count(self, groups: Sequence[str], limit: int, overdue_seconds: float) -> EndedLeases:
        """The expired leases of these groups."""
        values = {"groups": list(groups), "limit": limit, "overdue_seconds": overdue_seconds}
        return EndedLeases(*self._connection.rows(_SQL["count"], values)[0])

    def count_endless(self, untouched: Mapping[str, float]) -> int:
        """Leases without an end that nobody touched for so many seconds, by group."""
        ((number,),) = self._connection.rows(_SQL["count_endless"], _untouched(untouched))
        return int(number)

    def count_without_time(self, groups: Sequence[str]) -> int:
        """Logs of these groups that are CONSUMED and do not say when."""
        ((number,),) = self._connection.rows(_SQL["count_without_time"], {"groups": list(groups)})
        return int(number)

    def settle(
        self,
        groups: Sequence[str],
        untouched: Mapping[str, float],
        limit: int,
        endless: bool,
        decide: Callable[[list[HeldLease]], list[HeldLease]] | None,
    ) -> tuple[list[HeldLease], set[tuple[str, str, str]]]:
        """Looks at no more than `limit` leases (those without an end if `endless`), takes back what `decide` returns of
        them, and commits. Returns what was seen, and the (group, topic, id) of what was really taken back. `decide` null: it only
        looks, as a login may that can change nothing.
        """

        def work(cursor: Cursor) -> tuple[list[HeldLease], set[tuple[str, str, str]]]:
            look = _SQL["endless" if endless else "expired"] + (
                "" if decide is None else "\n" + _SQL["held"]
            )
            keys = only_readable(cursor, "l.topic", "l.message_id")
            look = readable(cursor, look.replace("{only_readable}", keys), _SEEN)
            asked: dict[str, Any] = _untouched(untouched) if endless else {"groups": list(groups)}
            cursor.execute(look, {**asked, "limit": limit})
            seen = [HeldLease(*row) for row in cursor.fetchall()]
            wanted = [] if decide is None else decide(seen)
            if not wanted:
                return seen, set()
            names = ("groups", "topics", "message_ids", "tokens", "ends", "touched")
            cursor.execute(_SQL["reclaim"], columns([lease[:6] for lease in wanted], names))
            return seen, set(cursor.fetchall())

        return self._connection.run(work)

    def reclaim(self, seen: Sequence[HeldLease]) -> list[tuple[str, str, str]]:
        """Takes these leases back, each only as it was seen, and commits; the (group, topic, id) of what was really taken back."""
        names = ("groups", "topics", "message_ids", "tokens", "ends", "touched")
        rows = self._connection.rows(_SQL["reclaim"], columns([one[:6] for one in seen], names))
        return [(group, topic, message_id) for group, topic, message_id in rows]

    def take_back(self, groups: Sequence[str], limit: int) -> list[TakenBack]:
        """Takes back at most `limit` leases of these groups whose end has come, and commits."""

        def work(cursor: Cursor) -> list[tuple[Any, ...]]:
            statement = f"{_SQL['take_back']} {readable(cursor, _SQL['taken'], _TAKEN)}"
            cursor.execute(statement, {"groups": list(groups), "limit": limit})
            return cursor.fetchall()

        return [TakenBack(*row) for row in self._connection.run(work)]

    def standing(self, group: str, keys: Sequence[Key]) -> dict[Key, LeaseStanding]:
        """What the logs of one group say, by key, on the primary; a key that is absent has no log."""
        asked = self._connection.storable_keys(keys)
        values: dict[str, Any] = {"group": group, **columns(asked, ("topics", "message_ids"))}
        # One row for all keys of which the same is so: a row each would cost the driver as much as all else here.
        found: dict[Key, LeaseStanding] = {}
        for *said, numbers in self._connection.rows(_SQL["standing"], values):
            standing = LeaseStanding(*said)
            for number in numbers:
                found[asked[number - 1]] = standing
        return found

    def failing(
        self, least: Mapping[tuple[str, str], tuple[int, float]], limit: int
    ) -> list[Failing]:
        """Messages of these (group, topic) begun at least so often, not done, that moved within so many seconds; the newest
        first, at most `limit` of each (group, topic)."""
        rows = [(group, topic, *each) for (group, topic), each in least.items()]
        values = {**columns(rows, ("groups", "topics", "attempts", "seconds")), "limit": limit}

        def work(cursor: Cursor) -> list[tuple[Any, ...]]:
            keys = only_readable(cursor, "m.message_id")
            statement = _SQL["failing"].replace("{only_readable}", keys)
            cursor.execute(readable(cursor, statement, _FAILING), values)
            return cursor.fetchall()

        return [Failing(*row) for row in self._connection.run(work)]

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _untouched(untouched: Mapping[str, float]) -> dict[str, Any]:
    return {"groups": list(untouched), "untouched_seconds": list(untouched.values())}
