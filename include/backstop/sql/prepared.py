"""Prepares what a kept connection executes again and again, so that PostgreSQL plans it once: of a statement for one message,
planning is most of the work. psycopg 3 does so by itself; for psycopg2 it takes PREPARE and EXECUTE.

Only where nothing stands between us and the server that deals with sessions: a pooler may give the next transaction another session,
which has not heard of the statement. And only on connections of Backstop's own: an application may discard its session's statements.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import closing
from hashlib import sha256
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

USES = 5
"""Executions before a statement is prepared."""
PLANNED_AGAIN = 1000
"""Executions of one plan at most."""
PLAN_SECONDS = 60.0
_PARAMETER = re.compile(r"%\((\w+)\)s")
_SESSION = (
    "SELECT pg_backend_pid() AS pid,"
    " ARRAY(SELECT name::text FROM pg_prepared_statements WHERE name LIKE 'backstop%') AS names"
)
_OTHER_SESSION = frozenset({"26000", "42P05"})
"""The server knows no statement of this name, or has one already."""
_OTHER_COLUMNS = "0A000"
"""Among others: since the statement was prepared its columns got other types. It is never executed with the old ones."""
_IDLE = 0  # libpq's PQTRANS_IDLE


class _Plan(NamedTuple):
    """How a prepared statement is executed, and until which execution or when its plan is good. A plan that was made for a table
    of one page reads all of it; so it lasts until its statement has come twice as often, and never long."""

    text: str
    uses: int
    ends: float


class Plans:
    """The statements that one session of the server has prepared."""

    def __init__(self) -> None:
        self._uses: dict[str, int] = {}
        self._plans: dict[str, _Plan] = {}
        self._known: set[str] = set()
        """Names that the session has. An application may give us a session that was ours before."""
        self._session_is_ours: bool | None = None

    def execute(
        self, connection: Any, cursor: Any, statement: str, values: Mapping[str, object]
    ) -> None:
        """As the cursor's `execute`, in fewer steps of the server once it has come often. For statements whose values are no lists:
        a plan fits one number of values."""
        plan = self._plans.get(statement)
        if plan is not None and time.monotonic() > plan.ends:
            self._forget(statement)
            plan = None
        uses = self._uses.get(statement, 0)
        self._uses[statement] = uses + 1
        if uses < USES or not self._is_alone(connection):
            cursor.execute(statement, values)
            return
        try:
            if plan is None or uses >= plan.uses:
                plan = self._prepare(cursor, statement, uses)
            cursor.execute(plan.text, values)
        except Exception as error:
            code = getattr(error, "pgcode", None)
            if code in _OTHER_SESSION:
                # Somebody discarded it, or another session stands behind this line: nothing is prepared here any more.
                self._session_is_ours = False
            elif code != _OTHER_COLUMNS:
                raise
            self._forget(statement)
            # Nothing of it has happened. A transaction cannot go on from here: who began it begins it again.
            if connection.info.transaction_status != _IDLE:
                raise
            cursor.execute(statement, values)

    def _forget(self, statement: str) -> None:
        """It is planned each time until it has come often again."""
        self._plans.pop(statement, None)
        self._uses.pop(statement, None)

    def _is_alone(self, connection: Any) -> bool:
        """Whether the session is the connection's for good. The server tells its number at the login and when it is asked."""
        if self._session_is_ours is None:
            with closing(connection.cursor()) as cursor:
                cursor.execute(_SESSION)
                row = cursor.fetchone()
            pid, names = row.values() if isinstance(row, Mapping) else row
            self._known.update(names)
            self._session_is_ours = pid == connection.info.backend_pid
        return self._session_is_ours

    def _prepare(self, cursor: Any, statement: str, uses: int) -> _Plan:
        numbers: dict[str, int] = {}
        text = _PARAMETER.sub(
            lambda found: f"${numbers.setdefault(found[1], len(numbers) + 1)}", statement
        )
        # Named by its text: whatever session this may be, the name stands for no other statement.
        name = f"backstop_{sha256(statement.encode()).hexdigest()[:32]}"
        again = f"DEALLOCATE {name}; " if name in self._known else ""
        cursor.execute(f"{again}PREPARE {name} AS {text}".replace("%%", "%"))
        self._known.add(name)
        given = ", ".join(f"%({parameter})s" for parameter in numbers)
        plan = _Plan(
            f"EXECUTE {name} ({given})" if given else f"EXECUTE {name}",
            uses + 1 + min(uses, PLANNED_AGAIN),
            time.monotonic() + PLAN_SECONDS,
        )
        self._plans[statement] = plan
        return plan


_PLANS: WeakKeyDictionary[object, Plans] = WeakKeyDictionary()


def prepare_on(connection: object) -> None:
    """From now on, statements that come often are prepared on this connection, if its driver is psycopg2."""
    if any(kind.__module__.partition(".")[0] == "psycopg2" for kind in type(connection).__mro__):
        _PLANS[connection] = Plans()


def prepare_no_more_on(connection: object) -> None:
    """It is ours no longer: to close it may be to give it back to a pool of the application's."""
    if plans_of(connection) is not None:
        del _PLANS[connection]


def plans_of(connection: object) -> Plans | None:
    """What is prepared there; null: nothing ever is."""
    try:
        return _PLANS.get(connection)
    except TypeError:  # a wrapper of the application's that no weak reference can name
        return None
