"""One lazy connection to somebody else's PostgreSQL: its primary only, never waiting forever, open again
after a loss.

A store that does not answer raises StoreUnavailable with the store's name and never its password. That
includes a server that is there and refuses (no privilege, no table): nothing may be decided from
its silence either.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from io import BytesIO
from itertools import chain
from typing import Any, TypeVar

import psycopg2
from psycopg2 import errors
from psycopg2.extensions import PYDATETIMETZ, new_type, parse_dsn, register_type
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor
from psycopg2.sql import Composable

from backstop.model.errors import StoreUnavailable
from backstop.model.mask_secrets import mask_secrets
from backstop.model.mongodb import READ_ALONE
from backstop.model.records import EARLIEST, LATEST, Key
from backstop.model.storable_text import fits
from backstop.sql.array_literal import array_literal
from backstop.sql.own_session import WHAT_TO_DO, WHY, cut_line, shares_sessions

T = TypeVar("T")

CONNECT_TIMEOUT = timedelta(seconds=10)
STATEMENT_TIMEOUT = timedelta(seconds=60)
"""A batch takes milliseconds; percentiles over millions of due rows take seconds."""
GRACE = 5.0
"""Seconds that a server gets beyond its own limit before the line is cut from this side."""
BULK_TIMEOUT = timedelta(minutes=15)
"""One part of a scan, or the cuts of all of them: millions of rows from a cold disk take minutes."""
SNAPSHOT_TIMEOUT = timedelta(minutes=30)
"""A snapshot holds back the server's vacuum: a reader that is gone or stuck loses it after so long."""
_TRIES = 4
_PIECE = 16 * 2**20
"""Bytes of COPY that are read into one Arrow table: some 75,000 stubs."""
_NOT_REPLICATED = "synchronous replication"
"""In the warning of a COMMIT whose wait for a standby was cancelled (pg_cancel_backend): the change is there, and a failover may
lose it. The driver shows no SQLSTATE of a warning, so that only a server with English messages is understood."""
TEXT_FORMS: Mapping[str, str] = {
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "lc_monetary": "C",
}
"""How values are written as text, whatever a role or a database says: ids of other programs' tables are compared as texts."""
_NO_LIMIT = """CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL
            THEN set_config('transaction_timeout', '0', false) END"""
_SETTINGS = f"""
    SELECT {", ".join(f"set_config('{name}', '{form}', false)" for name, form in TEXT_FORMS.items())},
        set_config('statement_timeout', %(statement)s, false), set_config('lock_timeout', %(lock)s, false),
        set_config('idle_in_transaction_session_timeout', %(idle)s, false),
        {_NO_LIMIT},
        set_config('row_security', 'off', false)
"""
"""With row_security off the server refuses a query from which a policy would hide rows: absence must not be evidence. From 17 on it
may have a limit for whole transactions, which would end each large scan: the limits of statements and of idle transactions are ours."""
_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', %s, true)"
_TURNED_DOWN = (
    errors.InsufficientPrivilege,
    errors.UndefinedTable,
    errors.UndefinedColumn,
    errors.InvalidSchemaName,
    errors.ReadOnlySqlTransaction,
    errors.InsufficientResources,
    errors.SystemError,
)
"""The server answers, and will not do what a healthy store of this schema does."""
_SESSION_ENDED = (errors.IdleInTransactionSessionTimeout, errors.TransactionTimeout)
"""The server has ended the session; the driver files these under InternalError."""


class PostgresConnection:
    """`run(work)` calls `work(cursor)` in a transaction of its own and commits it. For one thread at a time.

    `subject` names the store in errors: "shard shop_a". Opened by the first call, not by the constructor. `read_only`: another
    program's types and views may run its code with our login's rights; it changes nothing then, and cannot end that.
    """

    def __init__(
        self,
        subject: str,
        url: str,
        *,
        statement_timeout: timedelta = STATEMENT_TIMEOUT,
        grace: float = GRACE,
        read_only: bool = False,
    ) -> None:
        self.subject = subject
        self._read_only = read_only
        self._url = url
        self._statement_seconds = statement_timeout.total_seconds()
        self._grace = grace
        self._connection: Connection | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.subject})"

    def parameters(self) -> dict[str, str]:
        """The connection's parameters by libpq's names, the password among them. Raises StoreUnavailable."""
        if self._url.startswith("mongodb"):
            raise self._unavailable(
                f"its connection is one to MongoDB; {READ_ALONE}", next_step=MAP_IT
            )
        parameters = read_url(self._url)
        if parameters is None:
            raise self._unavailable(NOT_A_URL)
        return parameters

    def run(
        self,
        work: Callable[[Cursor], T],
        *,
        commit: bool = True,
        lock_timeout: timedelta | None = None,
    ) -> T:
        """What `work` returns, committed; or with its transaction left open, until `close`. With a `lock_timeout` it waits no longer
        than that for a lock, and the driver's LockNotAvailable says so.

        `work` may be called again: after a deadlock, and when a connection that was idle turns out to be
        gone before anything was committed. A connection lost during the commit is never repeated here:
        whoever owns the token finds out; so it is when no synchronous standby confirmed the commit. Raises
        StoreUnavailable.
        """
        for attempt in range(1, _TRIES + 1):
            was_open = self._connection is not None
            committing = False
            try:
                with self._alarmed() as connection:
                    with connection.cursor() as cursor:
                        if lock_timeout is not None:
                            milliseconds = round(lock_timeout.total_seconds() * 1000)
                            cursor.execute(_LOCK_TIMEOUT, (str(milliseconds),))
                        result = work(cursor)
                    if not commit:
                        return result
                    committing = True
                    connection.notices.clear()
                    connection.commit()
                    if any(_NOT_REPLICATED in notice for notice in connection.notices):
                        raise self._unavailable(
                            "its commit was not confirmed by a synchronous standby"
                        )
                    return result
            except (errors.DeadlockDetected, errors.SerializationFailure) as error:
                self._roll_back()
                if attempt == _TRIES:
                    raise self._unavailable(_first_line(error)) from None
            except errors.ProgramLimitExceeded as error:
                # The driver files it under OperationalError; the server is there, and refuses this statement each time.
                self._roll_back()
                raise self._unavailable(f"it refused: {_first_line(error)}", refused=True) from None
            except errors.LockNotAvailable as error:
                self._roll_back()
                if lock_timeout is not None:
                    raise
                raise self._unavailable(_first_line(error)) from None
            except (
                psycopg2.OperationalError,
                psycopg2.InterfaceError,
                *_SESSION_ENDED,
            ) as error:
                gone = self._connection is None or self._connection.closed != 0
                self.close()
                if not (was_open and gone and not committing and attempt == 1):
                    raise self._unavailable(_first_line(error)) from None
            except _TURNED_DOWN as error:
                self._roll_back()
                raise self._unavailable(f"it refused: {_first_line(error)}", refused=True) from None
            except BaseException:
                self._roll_back()
                raise
        raise AssertionError("the last try returns or raises")

    def rows(self, statement: str | Composable, values: object = None) -> list[tuple[Any, ...]]:
        """The rows of one statement in a transaction of its own. Raises StoreUnavailable."""

        def work(cursor: Cursor) -> list[tuple[Any, ...]]:
            cursor.execute(statement, values)  # type: ignore[arg-type]
            return cursor.fetchall()

        return self.run(work)

    def rows_of_keys(
        self, statement: str, keys: Sequence[Key], values: Mapping[str, Any]
    ) -> tuple[list[tuple[Any, ...]], list[Key]]:
        """(the rows of these keys, the keys whose rows hold text that the server cannot convert). Raises StoreUnavailable."""
        if not keys:
            return [], []
        try:
            return self.rows(statement, {**values, **columns(keys, ("topics", "message_ids"))}), []
        except (errors.CharacterNotInRepertoire, errors.UntranslatableCharacter):
            if len(keys) == 1:
                return [], list(keys)
            middle = len(keys) // 2
            left = self.rows_of_keys(statement, keys[:middle], values)
            right = self.rows_of_keys(statement, keys[middle:], values)
            return left[0] + right[0], left[1] + right[1]

    def storable_keys(self, keys: Iterable[Key]) -> list[Key]:
        """Each key once, without those that this database cannot hold: they have no row. Raises StoreUnavailable."""
        once = storable_keys(keys)
        if "".join(chain.from_iterable(once)).isascii():
            return once
        encoding, version = self.run(
            lambda cursor: (_server_encoding(cursor), _server_version(cursor))
        )
        if encoding in _HOLD_ANY_TEXT:
            return once
        if encoding == "LATIN1":
            return [key for key in once if max(map(max, filter(None, key)), default="") <= "\xff"]
        # The server alone knows: Python's codec of the same name lacks characters (EUC_JP's \u2460), or is not there (EUC_TW), and a key
        # that is left out has no row.
        fitting = _FITTING.setdefault((encoding, version), {})
        letters = set(chain.from_iterable(chain.from_iterable(once)))
        self._ask_which_fit(sorted(letters - fitting.keys()), fitting)
        return [key for key in once if all(map(fitting.__getitem__, "".join(key)))]

    def _ask_which_fit(self, letters: Sequence[str], fitting: dict[str, bool]) -> None:
        """Writes down of each whether the server can convert it to its own encoding."""
        if not letters:
            return
        try:
            # Apart from one another: some encodings have a character for two of Unicode's.
            self.rows("SELECT %(text)s::text", {"text": " ".join(letters)})
        except (errors.CharacterNotInRepertoire, errors.UntranslatableCharacter):
            if len(letters) == 1:
                fitting[letters[0]] = False
                return
            middle = len(letters) // 2
            self._ask_which_fit(letters[:middle], fitting)
            self._ask_which_fit(letters[middle:], fitting)
        else:
            fitting.update(dict.fromkeys(letters, True))

    def copy(self, statement: str, values: object, columns: Mapping[str, str]) -> Any:
        """The rows of one SELECT as an Arrow table of `columns` (Spark's type names), by COPY: five times as fast as rows
        through the driver. Raises StoreUnavailable."""
        from backstop.sql.arrow import read_copy  # needs pyarrow, which not every caller has

        def work(cursor: Cursor) -> bytes:
            answer = BytesIO()
            select = cursor.mogrify(readable(cursor, statement, columns), values).decode()  # type: ignore[arg-type]
            cursor.copy_expert(f"COPY ({select}) TO STDOUT (FORMAT csv)", answer)
            return answer.getvalue()

        return read_copy(self.run(work), columns)

    def copy_parts(
        self,
        statements: Mapping[str, str],
        columns: Mapping[str, Mapping[str, str]],
        snapshot: str | None,
        keep: Callable[[str, Any], T],
        has_rows: Callable[[str], bool] = lambda _: True,
    ) -> list[T]:
        """What `keep` makes of each Arrow table of these SELECTs, by COPY, a few megabytes at a time, in a snapshot that another
        session exported. `keep` is called again for all of them when `run` tries again. `has_rows`: whether a SELECT may have
        any, asked when those before it were read. Raises StoreUnavailable."""
        from backstop.sql.arrow import read_copy

        reader = PostgresConnection(self.subject, self._url, statement_timeout=BULK_TIMEOUT)

        def work(cursor: Cursor) -> list[T]:
            if snapshot is not None:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                cursor.execute("SET TRANSACTION SNAPSHOT %s", (snapshot,))
            kept: list[T] = []
            for name, statement in statements.items():
                if not has_rows(name):
                    continue
                rows = _Rows(lambda text: kept.append(keep(name, read_copy(text, columns[name]))))  # noqa: B023 - called at once
                cursor.copy_expert(f"COPY ({statement}) TO STDOUT (FORMAT csv)", rows)
                rows.end()
            return kept

        try:
            return reader.run(work)
        finally:
            reader.close()

    @contextmanager
    def snapshot(self, work: Callable[[Cursor, str], T]) -> Iterator[T]:
        """What `work` returns of a read-only transaction and of the name by which other sessions read as of the same instant,
        until the context ends; on a connection of its own. Raises StoreUnavailable."""
        holder = PostgresConnection(self.subject, self._url, statement_timeout=BULK_TIMEOUT)

        def export(cursor: Cursor) -> T:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            # Its parts are read by others.
            idle = str(round(SNAPSHOT_TIMEOUT.total_seconds() * 1000))
            cursor.execute(
                "SELECT set_config('idle_in_transaction_session_timeout', %s, true)", (idle,)
            )
            cursor.execute("SELECT pg_export_snapshot()")
            ((name,),) = cursor.fetchall()
            return work(cursor, name)

        try:
            yield holder.run(export, commit=False)
        finally:
            holder.close()

    def close(self) -> None:
        """Safe to call twice; the next `run` opens again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _alarmed(self) -> Iterator[Connection]:
        """The open connection; its line is cut when server and network are silent beyond every limit of
        theirs."""
        connection = self._open()
        cut = threading.Timer(self._statement_seconds + self._grace, cut_line, [connection])
        cut.daemon = True
        cut.start()
        try:
            yield connection
        finally:
            cut.cancel()

    def _open(self) -> Connection:
        if self._connection is not None and self._connection.closed == 0:
            return self._connection
        parameters = {"application_name": "backstop", "keepalives_idle": "30", **self.parameters()}
        # A standby may lack the very row that is asked for; what it does not have is not absent.
        parameters["target_session_attrs"] = "primary"
        # Ids are any Unicode, whatever the database is encoded in; the server converts.
        parameters["client_encoding"] = "UTF8"
        parameters["connect_timeout"] = str(round(CONNECT_TIMEOUT.total_seconds()))

        def connect() -> Connection:
            made: Connection = psycopg2.connect(**parameters)  # type: ignore[call-overload]
            return made

        connection = connect()
        if shares_sessions(connection, connect):
            connection.close()
            raise self._unavailable(WHY, next_step=WHAT_TO_DO)
        self._connection = connection
        bound_instants(connection)
        limit = str(round(self._statement_seconds * 1000))
        with connection.cursor() as cursor:
            cursor.execute(_SETTINGS, {"statement": limit, "lock": limit, "idle": limit})
        connection.commit()
        if self._read_only:
            connection.set_session(readonly=True)  # said by each BEGIN
        return connection

    def _roll_back(self) -> None:
        if self._connection is None:
            return
        try:
            self._connection.rollback()
        except psycopg2.Error:
            self.close()  # the server drops the transaction with the connection

    def _unavailable(
        self, why: str, *, refused: bool = False, next_step: str = ""
    ) -> StoreUnavailable:
        why = mask_secrets(why, [(read_url(self._url) or {}).get("password") or ""])
        if reason := refusal(why):
            return StoreUnavailable(
                f"The database of {self.subject} refused the connection: {reason.rstrip('.')}.",
                unaffected="Nothing was decided without it; what it had committed is there.",
                next_step=AFTER_REFUSAL,
            )
        migrate = "Run `backstop migrate` and `backstop check` for it; the next run looks again."
        silence = (
            "Restart it, or correct its connection; the next run continues where this one stopped."
        )
        return StoreUnavailable(
            f"The database of {self.subject} did not answer: {why.rstrip('.')}.",
            unaffected="Nothing was decided from its silence; what it had committed is there.",
            next_step=next_step or (migrate if refused else silence),
        )


class _Rows:
    """Takes what COPY sends, row by row, and gives it on in pieces of whole rows."""

    def __init__(self, give: Callable[[bytes], None]) -> None:
        self._give = give
        self._rows: list[bytes] = []
        self._size = 0

    def write(self, row: bytes) -> None:
        self._rows.append(row)
        self._size += len(row)
        if self._size >= _PIECE:
            self.end()

    def end(self) -> None:
        """Gives on what is left; without rows, nothing."""
        if self._rows:
            self._give(b"".join(self._rows))
            self._rows, self._size = [], 0


AFTER_REFUSAL = "Correct the login, password or database of its connection, or what the server allows; then try again."


def refusal(why: str) -> str | None:
    """The reason of a server that answered and let nobody in (a wrong password); None for one that did not answer."""
    found = re.search(r"\bFATAL: +(.*)", why)
    return found[1] if found else None


def _instant(value: str | bytes | None, cursor: Cursor) -> Any:
    """An instant within EARLIEST and LATEST: another program's odd row must not fail the whole batch."""
    if value is None:
        return None
    text = str(value)
    if text[4] == "-" and text[-1] != "C":
        read = PYDATETIMETZ(text, cursor)
        return min(read, LATEST) if text >= _NEAR_LATEST else read
    if text == "-infinity" or text.endswith("BC"):
        return EARLIEST
    return LATEST  # infinity, or a year of five digits


_NEAR_LATEST = str(LATEST.year - 1)
_TIMESTAMPTZ = 1184
_INSTANT = new_type((_TIMESTAMPTZ,), "INSTANT", _instant)


def bound_instants(connection: Connection) -> None:
    """Makes the connection read every instant within EARLIEST and LATEST."""
    register_type(_INSTANT, connection)


def lift_transaction_limit(connection: Connection) -> None:
    """The server's limit for whole transactions (from 17 on) ends none of this session; commits."""
    with connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {_NO_LIMIT}")


def _server_encoding(cursor: Cursor) -> str:
    return cursor.connection.info.parameter_status("server_encoding") or "UTF8"


def _server_version(cursor: Cursor) -> int:
    return cursor.connection.info.server_version


_HOLD_ANY_TEXT = frozenset({"UTF8", "SQL_ASCII"})
"""Encodings of a server."""
_FITTING: dict[tuple[str, int], dict[str, bool]] = {}
"""Which characters a server of this encoding and version converts, as far as one was asked: a question fails for each that it does not,
and an answer holds for every connection."""


UNREADABLE = "unreadable"
"""The status of a stub whose topic or id is no UTF-8, or holds a NUL: they are shown as hexadecimal, and nobody can ask for them."""
_TAIL = "[89ab][0-9a-f]"
_UTF8 = (
    "^("
    + "|".join(
        (
            "[0-7][0-9a-f]",
            f"(c[2-9a-f]|d[0-9a-f]){_TAIL}",
            f"e0[ab][0-9a-f]{_TAIL}",
            f"e[1-9abcef]({_TAIL}){{2}}",
            f"ed[89][0-9a-f]{_TAIL}",
            f"f0[9ab][0-9a-f]({_TAIL}){{2}}",
            f"f[1-3]({_TAIL}){{3}}",
            f"f48[0-9a-f]({_TAIL}){{2}}",
        )
    )
    + ")*$"
)
"""The hexadecimal of valid UTF-8."""


def readable(
    cursor: Cursor, select: str, columns: Mapping[str, str], *, names: Collection[str] = ()
) -> str:
    """The SELECT, changed so that no row of a SQL_ASCII database can end it: such a database holds any bytes, and the server
    refuses to send those that are no UTF-8. Text that is none becomes its hexadecimal, which equals nothing that is asked for;
    in the columns `names` it becomes null, and so names no message.

    Of every other encoding the server converts each character that it holds, or `backstop check` says what to do.
    """
    if _server_encoding(cursor) != "SQL_ASCII":
        return select

    def read(name: str, kind: str) -> str:
        if name == "status" and {"topic", "message_id"} <= columns.keys():
            return f"CASE WHEN {_legible('topic')} AND {_legible('message_id')} THEN status ELSE '{UNREADABLE}' END AS status"
        if kind != "string":
            return name
        shown = f"'\\x' || encode(convert_to({name}, 'SQL_ASCII'), 'hex')"
        return f"CASE WHEN {_legible(name)} THEN {name} ELSE {'NULL' if name in names else shown} END AS {name}"

    return f"SELECT {', '.join(read(name, kind) for name, kind in columns.items())} FROM ({select}) AS raw"


def only_readable(cursor: Cursor, *names: str) -> str:
    """A condition: the texts of these columns can be sent. A row whose key cannot be is left out in the server, so that LIMIT counts
    only rows that come."""
    if _server_encoding(cursor) != "SQL_ASCII":
        return "true"
    return " AND ".join(map(_legible, names))


def _legible(name: str) -> str:
    return f"(encode(convert_to({name}, 'SQL_ASCII'), 'hex') ~ '{_UTF8}')"


MAP_IT = "Name a database of PostgreSQL's, or map the collection with kind: mapped; see docs/how-to/existing-tables.md."
NOT_A_URL = "its connection is not a URL that PostgreSQL understands, as postgresql://user:password@host:5432/database"


def read_url(url: str) -> dict[str, str] | None:
    """A URL's parameters by libpq's names; null when it is not a URL that libpq would connect with.

    A password with a bare `/` or `@` in it ends up in the port, host or database, which the server's errors
    repeat: such a URL never gets as far as a connection.
    """
    try:
        parameters = {name: str(value) for name, value in parse_dsn(url).items()}
    except psycopg2.ProgrammingError:
        return None  # the driver's own text repeats the URL
    ports = parameters.get("port", "").split(",")
    names = parameters.get("host", "") + parameters.get("dbname", "")
    return (
        parameters
        if all(port.isdigit() or not port for port in ports) and "@" not in names
        else None
    )


def storable_keys(keys: Iterable[Key]) -> list[Key]:
    """Each key once, without those that no database can hold: they have no row."""
    once = list(dict.fromkeys(keys))
    if fits("".join(chain.from_iterable(once))):
        return once
    return [key for key in once if fits(key.topic) and fits(key.message_id)]


def columns(rows: Sequence[Sequence[Any]], names: Sequence[str]) -> dict[str, str]:
    """Rows as one array a column, for `unnest`; every name gets an array, also without rows."""
    turned = zip(*rows, strict=True) if rows else [()] * len(names)
    return {name: array_literal(column) for name, column in zip(names, turned, strict=True)}


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
