"""Log work that a business row's lock made safe: no lease is held, the log is written with the effects.

The business row decides whether the effect is there; the log is the second witness: it refuses an end that it has
already, and then the caller rolls the effects back. No function commits.
"""

import socket

from backstop.leases import guard
from backstop.leases.lease import RETRY_AFTER, Arrival, Begun, Busy, error_text
from backstop.sql.named import load
from backstop.sql.run import Connection, rows

_SQL = load("backstop.leases", "queries.sql")


def record_done(
    connection: Connection, group: str, arrival: Arrival, owner_host: str | None = None
) -> bool:
    """The last statement of the handler's transaction; false: roll back, then ask `why_not`."""
    return bool(rows(connection, _SQL["record_done"], _values(group, arrival, owner_host)))


def record_failure(
    connection: Connection, group: str, arrival: Arrival, error: str, owner_host: str | None = None
) -> bool:
    """The handler's transaction was rolled back: keep the error; false when the message has ended meanwhile."""
    values = {**_values(group, arrival, owner_host), "error": error_text(error)}
    return bool(rows(connection, _SQL["record_failure"], values))


def why_not(connection: Connection, group: str, arrival: Arrival) -> Begun:
    """What the log says of a copy that could not be recorded as done, counted there."""
    return guard.refused_many(connection, group, [arrival], RETRY_AFTER).get(
        arrival.key, Busy(RETRY_AFTER)
    )


def _values(group: str, arrival: Arrival, owner_host: str | None) -> dict[str, object]:
    position = arrival.position
    return {
        "group": group,
        "topic": arrival.topic,
        "message_id": arrival.message_id,
        "queue_id": position.queue_id if position else None,
        "queue_offset": position.offset if position else None,
        "queue_epoch": position.epoch if position else None,
        "payload_hash": arrival.payload_hash,
        "content_version": arrival.content_version,
        "owner_host": owner_host or socket.gethostname(),
    }
