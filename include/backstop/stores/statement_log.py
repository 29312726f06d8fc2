"""Whether a PostgreSQL server writes the contents of messages into its own log: our statements carry them as values."""

from __future__ import annotations

from collections.abc import Iterable

from backstop.brokers.protocol import Finding
from backstop.sql.named import load

QUERY = load("backstop.stores.postgresql", "check.sql")["statement_log"]
"""login, setting, value; %(role)s: the role whose logins are looked at beside this one."""
_QUIET = {
    "log_min_error_statement": ("log", "fatal", "panic"),
    "log_statement": ("none", "ddl"),
    "log_min_duration_statement": ("-1",),
}
_SET = {
    "log_min_error_statement": "panic",
    "log_statement": "none",
    "log_min_duration_statement": "-1",
}


def finding(subject: str, rows: Iterable[tuple[str, str, str]]) -> Finding:
    """What `backstop check` says of it. A statement that fails, on a lock or a unique key, is logged whole by default."""
    loud = [(login, name, value) for login, name, value in rows if value not in _QUIET[name]]
    subject = f"{subject}: contents in the server's log"
    if not loud:
        return Finding(subject, True, "none: failed, slow and other statements are not logged")
    says = ", ".join(f"{name} is {value} for {login}" for login, name, value in loud)
    do = "; ".join(f"ALTER ROLE {login} SET {name} = '{_SET[name]}'" for login, name, _ in loud)
    return Finding(
        subject,
        False,
        f"statements are logged with the contents in them: {says}",
        f"As a superuser: {do}.",
    )
