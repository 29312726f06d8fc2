"""Run a named statement on whatever DB-API 2 connection the caller has: its driver is the application's.

Supported are drivers with the parameter style pyformat, format or qmark: psycopg2, psycopg 3, pg8000, for MariaDB PyMySQL,
mysqlclient and their like, and what wraps them (SQLAlchemy's raw connections, Django's). Nothing here commits, and no value is
ever formatted into SQL.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache, lru_cache
from types import BuiltinMethodType, MethodType
from typing import Any, Protocol

from backstop.model.errors import ConfigurationError, ContractBroken
from backstop.model.mongodb import READ_ALONE
from backstop.sql.array_literal import array_literal
from backstop.sql.prepared import plans_of

_PARAMETER = re.compile(r"%\((\w+)\)s")
_UNNESTED = re.compile(r"\bunnest\(((?:%\(\w+\)s::\w+\[\],?\s*)+)\)(?=\s+AS \w+ \()")
"""With the names of its columns behind it; a function's alias alone would name its only one."""
_MARKS = {"format": "%s", "qmark": "?"}
_IDLE, _IN_TRANSACTION = 0, 2  # libpq's PQTRANS_IDLE, PQTRANS_INTRANS
_SERVER_IN_TRANSACTION = 1  # SERVER_STATUS_IN_TRANS of the MySQL protocol
STYLES = ("pyformat", *_MARKS)
_DRIVERS = 64
"""Classes of connections whose driver is remembered."""
_PASSING = frozenset({"OperationalError", "InterfaceError"})
_LIMITS = frozenset(
    {"ProgramLimitExceeded", "StatementTooComplex", "TooManyColumns", "TooManyArguments"}
)
"""PostgreSQL's class 54: the same statement fails again, whenever it is repeated."""
_PSYCOPG = frozenset({"psycopg2", "psycopg"})
_MYSQL_DRIVERS = frozenset({"pymysql", "MySQLdb", "mysql", "mariadb"})
_DEADLOCKS = frozenset({"40P01", "40001", 1213})
"""The server has rolled back the whole transaction."""
_LOCKS_REFUSED = frozenset({"55P03", 1205, 3572})


class Cursor(Protocol):
    """What is used of a DB-API 2 cursor."""

    @property
    def description(self) -> Any: ...

    def execute(self, operation: str, parameters: Any = ..., /) -> Any: ...

    def fetchall(self) -> Sequence[Any]: ...

    def close(self) -> Any: ...


class Connection(Protocol):
    """What is used of a DB-API 2 connection."""

    def cursor(self) -> Any: ...

    def commit(self) -> Any: ...

    def rollback(self) -> Any: ...

    def close(self) -> Any: ...


def rows(
    connection: Connection, statement: str, values: Mapping[str, object]
) -> list[dict[str, Any]]:
    """Run a pyformat statement of PostgreSQL's in the connection's transaction; its rows by column name. A list is passed as an
    array; lists of one that the statement unnests are passed as what is in them (see `of_one`).

    Raises what the driver raises, ContractBroken for a driver of another parameter style, and ConfigurationError for a connection
    to MariaDB or MySQL, before anything is executed there.
    """
    if speaks_mysql(connection):
        raise ConfigurationError(
            "This part of Backstop works on PostgreSQL alone, and was given a connection to MariaDB or MySQL.",
            unaffected="Nothing was executed on it.",
            next_step="On MariaDB use record and send, Consumer or ProcessOnce (docs/how-to/mariadb.md). Ordered consumption and"
            " parked keys need PostgreSQL.",
        )
    alone, unnested = of_one(statement)
    single: dict[str, object] = {}
    for name in unnested:
        value = values.get(name)
        if not isinstance(value, list) or len(value) != 1:
            break
        single[name] = value[0]
    else:
        if unnested:
            statement, values = alone, {**values, **single}
    lists = {
        name: array_literal(value) for name, value in values.items() if isinstance(value, list)
    }
    given = {**values, **lists} if lists else values
    style = parameter_style(connection)
    plans = plans_of(connection) if style == "pyformat" and not lists else None
    cursor: Cursor
    with closing(connection.cursor()) as cursor:
        if plans is None:
            cursor.execute(*in_style(style, statement, given))
        else:
            plans.execute(connection, cursor, statement, given)
        found = cursor.fetchall()
        names = [column[0] for column in cursor.description] if found else []
    # A dictionary cursor of the application's gives mappings, where zip would pair names with names.
    if found and isinstance(found[0], Mapping):
        return [dict(row) for row in found]
    return [dict(zip(names, row, strict=True)) for row in found]


@cache
def of_one(statement: str) -> tuple[str, frozenset[str]]:
    """The statement with one row of values in the place of each `unnest(%(a)s::text[], ...)`, and the names of these parameters.

    Most calls are for one message, and the planner takes a row of constants for what it is: a look-up by key.
    """
    names: set[str] = set()

    def one_row(unnested: re.Match[str]) -> str:
        names.update(_PARAMETER.findall(unnested[1]))
        return f"(SELECT {unnested[1].replace('[]', '')})"

    alone = _UNNESTED.sub(one_row, statement)
    if any(re.search(rf"%\({name}\)s::\w+\[\]", alone) for name in names):
        return statement, frozenset()  # it is needed as an array elsewhere
    return alone, frozenset(names)


def in_style(style: str, statement: str, values: Mapping[str, object]) -> tuple[str, object]:
    """The statement and its parameters as a driver of this style wants them."""
    if style == "pyformat":
        return statement, dict(values)
    return _PARAMETER.sub(_MARKS[style], statement), tuple(
        values[n] for n in _PARAMETER.findall(statement)
    )


def parameter_style(connection: object) -> str:
    """The `paramstyle` of the driver's module, found from the connection's class. Raises ContractBroken for one that has none."""
    kind: type = type(connection)
    if _is_psycopg(kind):
        return "pyformat"
    if type(connection).__module__.partition(".")[0] == "pymongo":
        raise ContractBroken(
            f"A connection to MongoDB was given: {READ_ALONE}.",
            unaffected="Nothing was executed.",
            next_step="Record, and guard handlers, in a database of PostgreSQL's.",
        )
    inner = getattr(connection, "dbapi_connection", None)  # SQLAlchemy's pool
    inner = getattr(connection, "Database", inner)  # Django's wrapper names the driver's module
    declared = getattr(inner, "paramstyle", None)
    driver: type = type(inner or connection)
    style = declared if isinstance(declared, str) else _declared_by_module(driver)
    if style not in STYLES:
        raise ContractBroken(
            f"A connection of {type(connection).__module__} has the parameter style {style!r}.",
            unaffected="Nothing was executed.",
            next_step=f"Use a driver with one of {', '.join(STYLES)}: psycopg2, psycopg or pg8000.",
        )
    return style


@lru_cache(_DRIVERS)
def _declared_by_module(driver: type) -> str | None:
    for kind in driver.__mro__:  # an application may have subclassed the driver's class
        parts = kind.__module__.split(".")
        for length in range(len(parts), 0, -1):
            module = sys.modules.get(".".join(parts[:length]))
            style = getattr(module, "paramstyle", None)
            if isinstance(style, str):
                return style
    return None


@lru_cache(_DRIVERS)
def _is_psycopg(kind: type) -> bool:
    """Whether it is a class of psycopg's own: neither a wrapper, which may stand for any driver, nor a subclass of the application's."""
    return kind.__module__.partition(".")[0] in _PSYCOPG


def speaks_mysql(connection: object) -> bool:
    """Whether the connection's driver is one for MariaDB and MySQL."""
    kind: type = type(connection)
    if _is_psycopg(kind):
        return False
    inner = getattr(connection, "dbapi_connection", None)  # SQLAlchemy's pool
    driver: type = kind if inner is None else type(inner)
    if _is_of_mysql(driver):
        return True
    module = getattr(connection, "Database", None)  # Django's wrapper names the driver's module
    # PyMongo makes a collection of any name.
    return str(getattr(module, "__name__", "")).partition(".")[0] in _MYSQL_DRIVERS


@lru_cache(_DRIVERS)
def _is_of_mysql(driver: type) -> bool:
    return any(kind.__module__.partition(".")[0] in _MYSQL_DRIVERS for kind in driver.__mro__)


def is_in_transaction(connection: object) -> bool:
    """Whether a transaction is open, as far as the driver tells (psycopg2, psycopg 3 and PyMySQL do)."""
    status = getattr(connection, "server_status", None)
    if isinstance(status, int):
        return bool(status & _SERVER_IN_TRANSACTION)
    return getattr(getattr(connection, "info", None), "transaction_status", None) == _IN_TRANSACTION


def is_in_autocommit(connection: object) -> bool:
    """Whether each statement is committed by itself, as far as the driver tells."""
    ask = getattr(connection, "get_autocommit", None)
    # Of Python (PyMySQL) or of C (mysqlclient); another kind of database may have an attribute of every name.
    if isinstance(ask, MethodType | BuiltinMethodType):
        return bool(ask())
    return getattr(connection, "autocommit", False) is True


def commits_by_itself(connection: object) -> bool:
    """Whether the connection is in no transaction, and switching its autocommit on would let the server commit each statement.

    True of psycopg2 and psycopg 3, whose classes have the switch and whose connections tell their state; for a wrapper the switch
    would be an attribute of its own, and the driver would never hear of it.
    """
    return (
        getattr(getattr(connection, "info", None), "transaction_status", None) == _IDLE
        and hasattr(type(connection), "autocommit")
        and getattr(connection, "autocommit", None) is False
    )


def is_unavailable(error: BaseException) -> bool:
    """Whether the database did not do it for a reason that passes: PEP 249's two classes, by name; not an exceeded limit, which
    drivers file under them."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return not names.isdisjoint(_PASSING) and names.isdisjoint(_LIMITS)


def is_deadlock(error: BaseException | None) -> bool:
    """Whether the server ended the transaction so that others could go on: the whole of it may be tried again."""
    return _code(error) in _DEADLOCKS


def is_lock_refused(error: BaseException) -> bool:
    """Whether another transaction has the row, and this one would not wait, or waited long enough."""
    return _code(error) in _LOCKS_REFUSED


def _code(error: BaseException | None) -> object:
    """A SQLSTATE of PostgreSQL's, or a number of MySQL's; drivers name it differently."""
    state = getattr(error, "pgcode", None) or getattr(error, "sqlstate", None)
    first = error.args[0] if error is not None and error.args else None
    return first if isinstance(first, int) else state
