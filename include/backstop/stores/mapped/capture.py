"""Prints what a DBA runs so that a table whose rows go when sent can be followed: a trigger that keeps id, topic and time.

The application's transaction writes its row and ours; it never fails for ours but for what fails every write (a full disk).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from backstop.config.mapped import StubMapping, table_parts
from backstop.sql.connection import TEXT_FORMS
from backstop.sql.named import load
from backstop.stores.mapped.columns import table_of
from backstop.stores.mapped.place import place

_SQL = load("backstop.stores.mapped", "capture.sql")
_STEPS = ("rows", "types", "trigger", "grants")
_HOW = "3"
"""Grows with each change of the trigger that a table must not miss."""


FIRST_FOREIGN_TYPE = 16384
"""The first number that a server gives to what is made in it: types below are its own."""


def function_of(mapping: StubMapping) -> str:
    """The trigger function's name, which changes with what it keeps and how."""
    kept = "\0".join((mapping.tables[0], mapping.message_id, mapping.topic or "", _HOW))
    return f"capture_{hashlib.sha256(kept.encode()).hexdigest()[:12]}"


def captured_columns(mapping: StubMapping) -> list[str]:
    """The table's columns that the trigger keeps: the id, and the topic where a column names it."""
    return [name for name in (mapping.message_id, mapping.topic) if name is not None]


def capture_sql(mapping: StubMapping, login: str) -> str:
    """One transaction, safe to run twice. `login`: the role that Backstop connects as."""
    name, table = mapping.tables[0], table_of(mapping.tables[0]).replace("%%", "%")
    columns = captured_columns(mapping)
    words = {
        "kept": _for_each("kept", columns),
        "kept_anew": _for_each("kept_anew", columns),
        "function": function_of(mapping),
        "source": _text(name),
        "columns": ", ".join(map(_text, columns)),
        "table": table,
        "table_text": _text(table),
        "first_foreign": f"'{FIRST_FOREIGN_TYPE}'::oid",
        "login": _name(login),
        "text_forms": " ".join(f"SET {name} = {_text(form)}" for name, form in TEXT_FORMS.items()),
    }
    parts = ["BEGIN", place("backstop_capture"), *map(_SQL.__getitem__, _STEPS)]
    if mapping.deleted_when_sent:
        schema = _name(table_parts(name)[0] or "public")
        parts += [
            f"GRANT USAGE ON SCHEMA {schema} TO {words['login']}",
            f"GRANT SELECT ({_name(mapping.message_id)}) ON {words['table']} TO {words['login']}",
        ]
    text = ";\n\n".join([*parts, "COMMIT"]) + ";\n"
    for word, value in words.items():
        text = text.replace("{" + word + "}", value)
    hints = (
        "-- Purge it with a job of your own, for example daily:\n"
        "-- DELETE FROM backstop_capture.captured_row WHERE captured_at < now() - interval '21 days';\n"
        f"-- To stop capturing: DROP TRIGGER backstop_capture ON {words['table']};\n"
    )
    return text + hints


def _for_each(query: str, columns: Sequence[str]) -> str:
    """The statement for the id, and for the topic where a column names it."""
    statements = []
    for variable, column in zip(("its_id", "its_topic"), columns, strict=False):
        field = f"($1).{_name(column)}"
        output = f"SELECT CASE WHEN NOT {field} IS NULL THEN concat({field}) END"
        statement = _SQL[query] + ";"
        for word, value in {
            "variable": variable,
            "column": _name(column),
            "name": _text(column),
            "cast": _text(f"SELECT {field}::text"),
            "output": _text(output),
        }.items():
            statement = statement.replace("{" + word + "}", value)
        statements.append(statement)
    return "\n".join(statements)


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
