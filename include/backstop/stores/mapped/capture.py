"""Prints what a DBA runs so that a table whose rows go when sent can be followed: a trigger that keeps id, topic and time.

The application's transaction writes its row and ours; it never fails for ours but for what fails every write (a full disk).
"""

from __future__ import annotations

import hashlib

from backstop.config.mapped import StubMapping, table_parts
from backstop.sql.named import load
from backstop.stores.mapped.columns import table_of
from backstop.stores.mapped.place import place

_SQL = load("backstop.stores.mapped", "capture.sql")


def function_of(mapping: StubMapping) -> str:
    """The trigger function's name, which changes with what it keeps."""
    kept = "\0".join((mapping.tables[0], mapping.message_id, mapping.topic or ""))
    return f"capture_{hashlib.sha256(kept.encode()).hexdigest()[:12]}"


def capture_sql(mapping: StubMapping, login: str) -> str:
    """One transaction, safe to run twice. `login`: the role that Backstop connects as."""
    name = mapping.tables[0]
    words = {
        "function": function_of(mapping),
        "source": _text(name),
        "topic": "NULL" if mapping.topic is None else f"NEW.{_name(mapping.topic)}::text",
        "id": _name(mapping.message_id),
        "table": table_of(name).replace("%%", "%"),
        "login": _name(login),
    }
    parts = ["BEGIN", place("backstop_capture"), _SQL["rows"], _SQL["trigger"], _SQL["grants"]]
    if mapping.deleted_when_sent:
        schema = _name(table_parts(name)[0] or "public")
        parts += [
            f"GRANT USAGE ON SCHEMA {schema} TO {words['login']}",
            f"GRANT SELECT ({words['id']}) ON {words['table']} TO {words['login']}",
        ]
    text = ";\n\n".join([*parts, "COMMIT"]) + ";\n"
    for word, value in words.items():
        text = text.replace("{" + word + "}", value)
    kept = (
        "-- Purge it with a job of your own, for example daily:\n"
        "-- DELETE FROM backstop_capture.captured_row WHERE captured_at < now() - interval '21 days';\n"
        f"-- To stop capturing: DROP TRIGGER backstop_capture ON {words['table']};\n"
    )
    return text + kept


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
