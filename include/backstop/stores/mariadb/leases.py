"""The leases in a consumer database in MariaDB; see stores.leases.Leases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from backstop.model.records import EARLIEST, Key
from backstop.sql.mariadb_keys import listed, with_keys
from backstop.sql.mysql import MysqlConnection
from backstop.sql.named import load
from backstop.stores.leases import EndedLeases, Failing, HeldLease, LeaseStanding, TakenBack
from backstop.stores.mariadb.keys import as_instant, as_note, as_text, by_topic

_SQL = {
    name: with_keys(text) for name, text in load("backstop.stores.mariadb", "leases.sql").items()
}
_FOREVER = 10**15
"""Microseconds of an interval: more than 30 years, which no calendar ends."""


class MariaLeases:
    """See stores.leases.Leases."""

    def __init__(self, store: str, url: str) -> None:
        self._connection = MysqlConnection(f"store {store}", url)

    def count(self, groups: Sequence[str], limit: int, overdue_seconds: float) -> EndedLeases:
        if not groups:
            return EndedLeases(0, None, 0)
        values = {"groups": _encoded(groups), "limit": limit, "overdue": _micros(overdue_seconds)}
        ((number, oldest, overdue),) = self._connection.rows(_SQL["count"], values)
        return EndedLeases(int(number), as_instant(oldest), int(overdue))

    def count_endless(self, untouched: Mapping[str, float]) -> int:
        def count(cursor: Any) -> int:
            number = 0
            for values in _untouched(untouched):
                cursor.execute(_SQL["count_endless"], values)
                number += int(cursor.fetchall()[0][0])
            return number

        return self._connection.run(count)

    def count_without_time(self, groups: Sequence[str]) -> int:
        if not groups:
            return 0
        ((number,),) = self._connection.rows(_SQL["without_time"], {"groups": _encoded(groups)})
        return int(number)

    def settle(
        self,
        groups: Sequence[str],
        untouched: Mapping[str, float],
        limit: int,
        endless: bool,
        decide: Callable[[list[HeldLease]], list[HeldLease]] | None,
    ) -> tuple[list[HeldLease], set[tuple[str, str, str]]]:
        held = "" if decide is None else f"\n{_SQL['held']}"
        look = f"{_SQL['seen']}\n{_SQL['endless' if endless else 'expired']}{held}"
        asked = [*_untouched(untouched)] if endless else [{"groups": _encoded(groups)}]

        def work(cursor: Any) -> tuple[list[HeldLease], set[tuple[str, str, str]]]:
            seen: list[HeldLease] = []
            keys: dict[HeldLease, tuple[bytes, bytes, bytes]] = {}
            for values in asked if groups else ():
                cursor.execute(look, {**values, "limit": limit - len(seen)})
                for row in cursor.fetchall():
                    group, topic, message_id, token, ends, touched, host = row
                    names = (as_text(group), as_text(topic), as_text(message_id))
                    lease = HeldLease(*names, token, ends, touched, as_note(host), is_expired=True)
                    seen.append(lease)
                    keys[lease] = row[:3]
                if len(seen) == limit:
                    break
            wanted = [] if decide is None else decide(seen)
            return seen, {lease[:3] for lease in wanted if _reclaim(cursor, lease, keys[lease])}

        return self._connection.run(work) if decide is None else self._connection.change(work)

    def reclaim(self, seen: Sequence[HeldLease]) -> list[tuple[str, str, str]]:
        def work(cursor: Any) -> list[tuple[str, str, str]]:
            return [
                lease[:3]
                for lease in sorted(seen, key=lambda lease: lease[:3])
                if _reclaim(cursor, lease, tuple(part.encode() for part in lease[:3]))
            ]

        return self._connection.change(work)

    def take_back(self, groups: Sequence[str], limit: int) -> list[TakenBack]:
        if not groups:
            return []
        look = f"{_SQL['seen']}\n{_SQL['expired']}\n{_SQL['held']}"

        def work(cursor: Any) -> list[TakenBack]:
            cursor.execute(look, {"groups": _encoded(groups), "limit": limit})
            ids: dict[tuple[bytes, bytes], list[bytes]] = {}
            taken: Counter[tuple[str, str, str | None]] = Counter()
            examples: dict[tuple[str, str, str | None], str] = {}
            for group, topic, message_id, _, _, _, host in cursor.fetchall():
                ids.setdefault((group, topic), []).append(message_id)
                line = (as_text(group), as_text(topic), as_note(host))
                taken[line] += 1
                examples[line] = min(examples.get(line, as_text(message_id)), as_text(message_id))
            for (group, topic), some in sorted(ids.items()):
                # They are held, and an end that has come stays past.
                values = {"group": group, "topic": topic, "ids": listed(some)}
                cursor.execute(_SQL["take_back"], values)
            return [TakenBack(*line, number, examples[line]) for line, number in taken.items()]

        return self._connection.change(work)

    def standing(self, group: str, keys: Sequence[Key]) -> dict[Key, LeaseStanding]:
        found: dict[Key, LeaseStanding] = {}
        for values, by_id in by_topic(keys):
            given = {**values, "group": group.encode()}
            for message_id, state, is_alive, left in self._connection.rows(_SQL["standing"], given):
                seconds = left / 1_000_000 if is_alive and left is not None else None
                found[by_id[bytes(message_id)]] = LeaseStanding(state, bool(is_alive), seconds)
        return found

    def failing(
        self, least: Mapping[tuple[str, str], tuple[int, float]], limit: int
    ) -> list[Failing]:
        def ask(cursor: Any) -> list[Failing]:
            found = []
            for (group, topic), (attempts, seconds) in least.items():
                values = {
                    "group": group.encode(),
                    "topic": topic.encode(),
                    "least": max(3, attempts),
                    "within": _micros(seconds),
                    "limit": limit,
                }
                cursor.execute(_SQL["failing"], values)
                found += [
                    Failing(
                        group,
                        topic,
                        as_text(message_id),
                        begun,
                        as_note(error),
                        as_instant(at) or EARLIEST,
                    )
                    for message_id, begun, error, at in cursor.fetchall()
                ]
            return found

        return self._connection.run(ask)

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


def _reclaim(cursor: Any, lease: HeldLease, key: Sequence[bytes]) -> bool:
    group, topic, message_id = key
    values = {
        "group": group,
        "topic": topic,
        "message_id": message_id,
        "token": lease.token,
        "ends": lease.ends,
        "touched": lease.touched,
    }
    return bool(cursor.execute(_SQL["reclaim"], values))


def _untouched(untouched: Mapping[str, float]) -> list[dict[str, Any]]:
    return [
        {"group": group.encode(), "untouched": _micros(seconds)}
        for group, seconds in untouched.items()
    ]


def _encoded(names: Sequence[str]) -> tuple[bytes, ...]:
    return tuple(name.encode() for name in names)


def _micros(seconds: float) -> int:
    return min(round(seconds * 1_000_000), _FOREVER)
