"""Log work that a business row's lock made safe: no lease is held, the log is written with the effects.

The business row decides whether the effect is there; the log is the second witness: it refuses an end that it has
already, and then the caller rolls the effects back. No function commits.
"""

import socket

from backstop.leases import guard
from backstop.leases.lease import RETRY_AFTER, Arrival, Begun, Busy, error_text
from backstop.leases.log_table import log_table
from backstop.sql.run import Connection


def record_done(
    connection: Connection, group: str, arrival: Arrival, owner_host: str | None = None
) -> bool:
    """The last statement of the handler's transaction; false: roll back, then ask `why_not`."""
    host = owner_host or socket.gethostname()
    return log_table(connection).record_done(connection, group, arrival, host)


def record_failure(
    connection: Connection, group: str, arrival: Arrival, error: str, owner_host: str | None = None
) -> bool:
    """The handler's transaction was rolled back: keep the error; false: ask `why_not`."""
    host = owner_host or socket.gethostname()
    text = error_text(error, connection)
    return log_table(connection).record_failure(connection, group, arrival, text, host)


def why_not(connection: Connection, group: str, arrival: Arrival) -> Begun:
    """What the log says of a copy whose end or failure it did not take, counted there."""
    return guard.refused_many(connection, group, [arrival], RETRY_AFTER).get(
        arrival.key, Busy(RETRY_AFTER)
    )
