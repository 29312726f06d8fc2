"""The books of the consumers in one MariaDB database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backstop.model.read_json import read_json
from backstop.model.records import EARLIEST
from backstop.sql.mysql import MysqlConnection
from backstop.stores.mariadb.keys import as_instant, as_text
from backstop.stores.postgresql.parking import ConsumerBooks

_BOOKS = (
    "SELECT consumer_group, member, counts, in_process, has_ended, started_at, written_at FROM consumer_books"
    " WHERE consumer_group IN %(groups)s"
)


class MariaBooks:
    """Every method raises StoreUnavailable when the database does not answer."""

    def __init__(self, store: str, url: str) -> None:
        self._connection = MysqlConnection(f"store {store}", url)

    def books(self, groups: Sequence[str]) -> list[ConsumerBooks]:
        values = {"groups": tuple(group.encode() for group in groups)}
        return [
            ConsumerBooks(
                as_text(group),
                as_text(member),
                _document(counts),
                in_process,
                bool(has_ended),
                as_instant(started_at) or EARLIEST,
                as_instant(written_at) or EARLIEST,
            )
            for group, member, counts, in_process, has_ended, started_at, written_at in (
                self._connection.rows(_BOOKS, values) if groups else ()
            )
        ]

    def close(self) -> None:
        self._connection.close()


def _document(text: str) -> Any:
    """Any program of the group's may have written it."""
    try:
        return read_json(text)
    except ValueError:
        return {}
