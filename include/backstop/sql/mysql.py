"""One lazy connection to somebody else's MySQL or MariaDB: the primary alone, never waiting forever. `run` only reads.

Whatever keeps it from answering raises StoreUnavailable, as for PostgreSQL, and a password is in none of its texts. PyMySQL is
imported by the first use: it is an extra of its own.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from backstop.model.errors import StoreUnavailable
from backstop.model.mask_secrets import mask_secrets
from backstop.sql.connection import AFTER_REFUSAL, CONNECT_TIMEOUT, GRACE, STATEMENT_TIMEOUT
from backstop.sql.run import is_deadlock, is_lock_refused

T = TypeVar("T")

_REFUSED_LOGINS = frozenset({1044, 1045, 1049, 1130, 1698, 3118})
_REFUSED = frozenset({1054, 1142, 1143, 1146, 1227, 1370, 1412})
"""No privilege, no such table or column, a table that was changed while it was read."""
_REFUSED_ROWS = frozenset({1644, 3819, 4025})
"""A trigger's SIGNAL, and a CHECK of MySQL and of MariaDB; drivers file them with errors of the server itself."""
_SESSION = (
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    # No mode of the server's changes what a text means; ids are compared by their whole length.
    "SET SESSION sql_mode = '', time_zone = '+00:00', lock_wait_timeout = %(seconds)s, max_sort_length = 8192",
    # A limit of the server's would cut answers short without a word.
    "SET SESSION sql_select_limit = 18446744073709551615, sql_big_selects = 1",
)
_READ = ("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",)
_CHANGE = ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "START TRANSACTION")
_LOCK_TIMEOUT = "SET SESSION innodb_lock_wait_timeout = {}"
_TRIES = 4
_OPTIONAL = {
    "max_statement_time": "SET SESSION max_statement_time = %(seconds)s",  # MariaDB's
    "max_execution_time": "SET SESSION max_execution_time = %(seconds)s * 1000",  # MySQL's
    # MariaDB would turn a long list of keys into a table that no index is used for.
    "in_predicate_conversion_threshold": "SET SESSION in_predicate_conversion_threshold = 0",
}
_ASKED = (
    "hostname",
    "port",
    "server_id",
    "server_uuid",
    "server_uid",
    "read_only",
    "super_read_only",
    "innodb_read_only",
    "wsrep_on",
    "group_replication_group_name",
    *_OPTIONAL,
)
_VARIABLES = "SHOW GLOBAL VARIABLES WHERE Variable_name IN %(names)s"
_REPLICATES = {
    True: "SHOW GLOBAL STATUS WHERE Variable_name IN ('Slave_running', 'Slaves_running')",
    False: "SELECT CHANNEL_NAME, SERVICE_STATE FROM performance_schema.replication_connection_status",
}
_STARTED = {
    True: "SELECT CAST(UNIX_TIMESTAMP() - VARIABLE_VALUE AS SIGNED) FROM information_schema.GLOBAL_STATUS"
    " WHERE VARIABLE_NAME = 'UPTIME'",
    False: "SELECT CAST(UNIX_TIMESTAMP() - VARIABLE_VALUE AS SIGNED) FROM performance_schema.global_status"
    " WHERE VARIABLE_NAME = 'Uptime'",
}
"""Of MariaDB, of MySQL, as `_REPLICATES`. Both numbers are of one statement, so that their difference is the same each time."""


class MysqlConnection:
    """`run(work)` calls `work(cursor)` in a read-only transaction of its own. For one thread at a time.

    `subject` names the store in errors: "shard shop_a". Opened by the first call, not by the constructor.
    """

    def __init__(
        self, subject: str, url: str, *, statement_timeout: timedelta = STATEMENT_TIMEOUT
    ) -> None:
        self.subject = subject
        self._login = read_mysql_url(url)
        self._seconds = max(1, round(statement_timeout.total_seconds()))
        self._connection: Any = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.subject})"

    def run(self, work: Callable[[Any], T], *, unbuffered: bool = False) -> T:
        """What `work` returns, of one snapshot; its cursor holds whole answers, or `unbuffered` gives rows as they come.

        Whether this is the primary is asked after the work: a server may be set to read only under an open connection, and what
        it lacks since then is not absent. Raises StoreUnavailable.
        """
        pymysql = driver(self.subject)
        try:
            connection = self._begin(pymysql, _READ)
            kind = pymysql.cursors.SSCursor if unbuffered else pymysql.cursors.Cursor
            with connection.cursor(kind) as cursor:
                result = work(cursor)
            with connection.cursor() as cursor:
                self._require_primary(cursor)
            connection.rollback()
            return result
        except (
            pymysql.err.OperationalError,
            pymysql.err.InterfaceError,
            pymysql.err.InternalError,
            OSError,
        ) as error:
            raise self._unavailable(error) from None
        except pymysql.err.ProgrammingError as error:
            if error.args[:1] and error.args[0] in _REFUSED | _REFUSED_LOGINS:
                raise self._unavailable(error) from None
            self.close()
            raise
        except BaseException:
            self.close()  # rows that are still on their way would be the next statement's answer
            raise

    def change(self, work: Callable[[Any], T], *, lock_timeout: timedelta | None = None) -> T:
        """What `work` returns, committed; it may be called again, after a deadlock. Each of its statements sees what is committed
        when it begins, and locks the rows that it finds and no gap between them. Raises StoreUnavailable; the driver's error
        where the server refuses a row, or a lock within the `lock_timeout` (whole seconds; null: the server's own).

        A connection that is lost during the commit is never tried again: the rows say what became of it.
        """
        pymysql = driver(self.subject)
        for attempt in range(1, _TRIES + 1):
            try:
                connection = self._begin(pymysql, _CHANGE)
                with connection.cursor() as cursor:
                    cursor.execute(_LOCK_TIMEOUT.format(_whole_seconds(lock_timeout)))
                    result = work(cursor)
                    self._require_primary(cursor)
                connection.commit()
                return result
            except (
                pymysql.err.OperationalError,
                pymysql.err.InterfaceError,
                pymysql.err.InternalError,
                OSError,
            ) as error:
                if is_deadlock(error) and attempt < _TRIES:
                    self._connection.rollback()
                    continue
                if error.args[:1] and error.args[0] in _REFUSED_ROWS:
                    self._connection.rollback()
                    raise  # a row is at fault, and the server is not away
                if lock_timeout is not None and is_lock_refused(error):
                    self._connection.rollback()
                    raise
                raise self._unavailable(error) from None
            except pymysql.err.ProgrammingError as error:
                if error.args[:1] and error.args[0] in _REFUSED | _REFUSED_LOGINS:
                    raise self._unavailable(error) from None
                self.close()
                raise
            except BaseException:
                self.close()  # which undoes it
                raise
        raise AssertionError("the last try returns or raises")

    def rows(
        self, statement: str, values: Mapping[str, Any] | None = None
    ) -> list[tuple[Any, ...]]:
        """The rows of one statement in a transaction of its own. Raises StoreUnavailable."""

        def work(cursor: Any) -> list[tuple[Any, ...]]:
            cursor.execute(statement, values)
            return list(cursor.fetchall())

        return self.run(work)

    def close(self) -> None:
        """Safe to call twice; the next `run` opens again."""
        connection, self._connection = self._connection, None
        if connection is not None and connection.open:
            connection.close()

    def _begin(self, pymysql: Any, begin: Sequence[str]) -> Any:
        """The connection, in a transaction; opened again where it was idle and is gone."""
        if self._connection is not None:
            try:
                for statement in begin:
                    self._connection.query(statement)
                return self._connection
            except (pymysql.MySQLError, OSError):
                self.close()
        self._connection = self._open(pymysql)
        for statement in begin:
            self._connection.query(statement)
        return self._connection

    def _open(self, pymysql: Any) -> Any:
        if self._login is None:
            raise StoreUnavailable(
                f"The connection of {self.subject} is not a MySQL database.",
                unaffected="Nothing was read, and nothing was decided without it.",
                next_step="Write it as mysql://user:password@host:3306/database, or correct its kind (mapping.dialect of a mapped table).",
            )
        connection = connect(
            pymysql,
            **self._login,
            charset="utf8mb4",
            autocommit=True,
            program_name="backstop",
            connect_timeout=max(1, round(CONNECT_TIMEOUT.total_seconds())),
            read_timeout=self._seconds + GRACE,
            write_timeout=self._seconds + GRACE,
        )
        try:
            with connection.cursor() as cursor:
                known = _variables(cursor)
                optional = [text for name, text in _OPTIONAL.items() if name in known]
                for text in (*_SESSION, *optional):
                    cursor.execute(text, {"seconds": self._seconds})
        except BaseException:
            connection.close()
            raise
        return connection

    def _require_primary(self, cursor: Any) -> None:
        if why := not_primary(cursor):
            self.close()
            raise StoreUnavailable(
                f"The database of {self.subject} is not to be relied on: {why}.",
                unaffected="Nothing was decided by it: what such a server lacks is not absent.",
                next_step="Name the server that the application writes to.",
            )

    def _unavailable(self, error: BaseException) -> StoreUnavailable:
        self.close()
        code = error.args[0] if error.args and isinstance(error.args[0], int) else None
        lines = str(error.args[-1] if error.args else error).strip().splitlines()
        why = (lines[0] if lines else type(error).__name__).rstrip(".")
        why = mask_secrets(why, [str((self._login or {}).get("password") or "")])
        if code in _REFUSED_LOGINS:
            return StoreUnavailable(
                f"The database of {self.subject} refused the connection: {why}.",
                unaffected="Nothing was decided without it.",
                next_step=AFTER_REFUSAL,
            )
        refused = code in _REFUSED
        return StoreUnavailable(
            f"The database of {self.subject} did not answer: {'it refused: ' if refused else ''}{why}.",
            unaffected="Nothing was decided from its silence.",
            next_step="Correct the mapping or the grants that `backstop check` names; the next run reads it again."
            if refused
            else "Restart it, or correct its connection; the next run continues where this one stopped.",
        )


def driver(subject: str) -> Any:
    """PyMySQL. Raises StoreUnavailable where it is not installed."""
    try:
        import pymysql
        import pymysql.cursors
    except ModuleNotFoundError:
        raise StoreUnavailable(
            f"The database of {subject} is MySQL or MariaDB, and PyMySQL is not installed.",
            unaffected="Nothing was decided without it.",
            next_step='Install "backstop-mq[mysql]" where the duties run.',
        ) from None
    return pymysql


def connect(pymysql: Any, **options: Any) -> Any:
    """PyMySQL's connection; TLS as its `options` say. Without any it takes what the server offers and verifies nothing: then the
    system's certificates are left unread, which PyMySQL reads for each connection (40 ms of a core)."""
    return _connection_class(pymysql)(**options)


@cache
def _connection_class(pymysql: Any) -> Any:
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE

    class Connection(pymysql.connections.Connection):  # type: ignore[misc]
        def _create_ssl_ctx(self, given: Any) -> Any:
            return super()._create_ssl_ctx(given) if given else unverified

    return Connection


def not_primary(cursor: Any) -> str | None:
    """Why what this server lacks is not absent; null: it takes writes, and nothing shows that it copies another."""
    known = _variables(cursor)
    for name in ("read_only", "super_read_only", "innodb_read_only"):
        if known.get(name, "OFF").upper() not in ("OFF", "0"):
            return f"it is {name}"
    if known.get("wsrep_on", "OFF").upper() in ("ON", "1") or known.get(
        "group_replication_group_name"
    ):
        return "it is one of a cluster, whose members may lag behind one another"
    cursor.execute(_REPLICATES[_is_mariadb(cursor)])
    if any(value.upper() not in ("OFF", "0", "") for _, value in cursor.fetchall()):
        return "it is a replica of another server"
    return None


def server_of(cursor: Any) -> str:
    """Names this server and its present life: another text after a restart or a failover."""
    known = _variables(cursor)
    cursor.execute(_STARTED[_is_mariadb(cursor)])
    ((started,),) = cursor.fetchall()
    names = ("hostname", "port", "server_id", "server_uuid", "server_uid")
    return " ".join([*(known.get(name, "-") for name in names), str(started)])


def _whole_seconds(lock_timeout: timedelta | None) -> str:
    return "DEFAULT" if lock_timeout is None else str(max(1, round(lock_timeout.total_seconds())))


def _is_mariadb(cursor: Any) -> bool:
    cursor.execute("SELECT VERSION()")
    ((version,),) = cursor.fetchall()
    return "MariaDB" in version


def _variables(cursor: Any) -> dict[str, str]:
    cursor.execute(_VARIABLES, {"names": _ASKED})
    return dict(cursor.fetchall())


def read_mysql_url(url: str) -> dict[str, Any] | None:
    """PyMySQL's arguments out of mysql://user:password@host:port/database?ssl_ca=...; null without a host or database."""
    try:
        parts = urlsplit(url)
        port = parts.port or 3306
    except ValueError:
        return None
    database = unquote(parts.path.lstrip("/"))
    if parts.scheme != "mysql" or not parts.hostname or not database:
        return None
    return {
        "host": parts.hostname,
        "port": port,
        "database": database,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        **dict(_options(parts.query)),
    }


def _options(query: str) -> Iterator[tuple[str, Any]]:
    for name, value in parse_qsl(query):
        flag = name in ("ssl_verify_cert", "ssl_verify_identity")
        yield name, value.lower() in ("1", "true") if flag else value
