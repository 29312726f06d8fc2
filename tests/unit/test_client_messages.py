"""What the client decides without a database: names, styles, headers, and how light it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from types import ModuleType, SimpleNamespace
from uuid import RFC_4122, UUID

import psycopg2
import psycopg2.errors
import psycopg2.extensions
import pytest

from backstop import client
from backstop.brokers.protocol import Received
from backstop.client.read_headers import read_headers
from backstop.leases.guard import new_tokens
from backstop.model.errors import BackstopError, ContractBroken
from backstop.model.records import LogState, Message, Position
from backstop.sql.mariadb_run import fetch
from backstop.sql.named import load
from backstop.sql.run import (
    in_style,
    is_in_autocommit,
    is_unavailable,
    of_one,
    parameter_style,
    rows,
    speaks_mysql,
)

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = ROOT / "docs" / "wire-contract.md"
HEAVY = (
    "airflow",
    "pyspark",
    "great_expectations",
    "pydantic",
    "sqlalchemy",
    "alembic",
    "pandas",
    "pyarrow",
)
FILES = {
    package: load(package, "queries.sql") for package in ("backstop.client", "backstop.leases")
}


def received(message_id: str = "m", content: bytes = b"{}", **headers: str) -> Received:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Received(Message("orders", message_id, content, named), None, "0/1-0", 1)


def test_importing_the_client_loads_nothing_heavy() -> None:
    program = f"import sys, backstop.client; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(ROOT / "include"), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_every_public_name_of_the_client_is_documented() -> None:
    public = {
        name: getattr(client, name) for name in client.__all__ if name != "Handler"
    }  # a type alias
    assert [name for name, value in public.items() if not value.__doc__] == []


@pytest.mark.parametrize(("package", "name"), [(p, n) for p, found in FILES.items() for n in found])
def test_the_wire_contract_holds_every_statement_word_for_word(package: str, name: str) -> None:
    blocks = re.findall(r"```sql\n(.*?);?\n```", CONTRACT.read_text(encoding="utf-8"), re.DOTALL)
    assert FILES[package][name] in blocks


def test_the_wire_contract_holds_no_other_statement() -> None:
    blocks = re.findall(r"```sql\n(.*?);?\n```", CONTRACT.read_text(encoding="utf-8"), re.DOTALL)
    known = [statement for found in FILES.values() for statement in found.values()]
    assert [block for block in blocks if block not in known] == []


@pytest.mark.parametrize("state", LogState)
def test_the_wire_contract_tells_every_state_of_a_log(state: LogState) -> None:
    assert f"| `{state}` | {state.sentence} |" in CONTRACT.read_text(encoding="utf-8")


@pytest.mark.parametrize("form", ["-- name: first: says", "-- first: says"])
def test_named_queries_are_read_in_both_forms(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = f"sql_of_{'long' if 'name' in form else 'short'}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    text = f"-- About this file.\n\n{form}\nSELECT 1; -- two;\n\n{form.replace('first', 'second')}\nSELECT 2;\n"
    (tmp_path / package / "queries.sql").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load(package, "queries.sql") == {"first": "SELECT 1; -- two", "second": "SELECT 2"}


@pytest.mark.parametrize(
    "text", ["", "SELECT 1", "-- a: x\n-- b: y\nSELECT 1", "-- a: x\nSELECT 1\n-- a: y\nSELECT 2"]
)
def test_a_file_without_a_query_is_refused(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = f"bad_sql_{sha256(text.encode()).hexdigest()[:8]}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    (tmp_path / package / "queries.sql").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=package):
        load(package, "queries.sql")


@pytest.mark.parametrize(
    ("style", "statement", "parameters"),
    [
        ("pyformat", "SELECT %(a)s::text, %(b)s, %(a)s", {"a": 1, "b": 2}),
        ("format", "SELECT %s::text, %s, %s", (1, 2, 1)),
        ("qmark", "SELECT ?::text, ?, ?", (1, 2, 1)),
    ],
)
def test_a_statement_is_written_in_the_drivers_style(
    style: str, statement: str, parameters: object
) -> None:
    assert in_style(style, "SELECT %(a)s::text, %(b)s, %(a)s", {"a": 1, "b": 2}) == (
        statement,
        parameters,
    )


class Written:
    """A cursor, and its connection, that keep what would be executed."""

    description = (("n",),)

    def cursor(self) -> Written:
        return self

    def execute(self, text: str, values: object) -> None:
        self.said = text, values

    def fetchall(self) -> list[object]:
        return []

    def close(self) -> None: ...


def test_no_driver_of_mariadb_gets_bytes_that_a_character_set_changes() -> None:
    """In GBK the last byte of the first character takes the backslash that stands before the quote, which then ends the text."""
    statement = "SELECT %(topic)s, %(token)s, %(hash)s, %(topic)s, %(error)s"
    values = {"topic": "中'".encode(), "token": "t", "hash": None, "error": b""}
    in_format, in_pyformat = (
        type("Driver", (Written,), {"Database": SimpleNamespace(paramstyle=style)})()
        for style in ("format", "pyformat")
    )
    fetch(in_format, statement, values)
    assert in_format.said == (
        "SELECT UNHEX(%s), %s, %s, UNHEX(%s), X''",
        ("e4b8ad27", "t", None, "e4b8ad27"),
    )
    fetch(in_pyformat, statement, values)
    text, given = in_pyformat.said
    assert text == "SELECT UNHEX(%(topic)s), %(token)s, %(hash)s, UNHEX(%(topic)s), X''"
    assert isinstance(given, dict) and not [v for v in given.values() if isinstance(v, bytes)]


@pytest.mark.parametrize("package", FILES)
def test_of_one_message_a_statement_is_given_values_and_of_several_arrays(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.paramstyle", "pyformat", raising=False)
    seen = 0
    for statement in FILES[package].values():
        alone, names = of_one(statement)
        assert "unnest" not in alone and (alone == statement) == (not names)
        if not names:
            continue
        seen += 1
        others = dict.fromkeys(re.findall(r"%\((\w+)\)s", statement), "7")
        written = Written()
        rows(written, statement, {**others, **{name: ["a"] for name in names}})  # type: ignore[arg-type]
        assert written.said == (alone, {**others, **dict.fromkeys(names, "a")})
        rows(written, statement, {**others, **{name: ["a", "b"] for name in names}})  # type: ignore[arg-type]
        assert written.said == (statement, {**others, **dict.fromkeys(names, '{"a","b"}')})
    assert seen >= 3


def test_a_list_that_is_needed_as_an_array_stays_one() -> None:
    for statement in (
        "SELECT q FROM unnest(%(a)s::integer[]) AS q",
        "SELECT 1 FROM unnest(%(a)s::text[]) AS g (a) WHERE a = ANY (%(a)s::text[])",
        "SELECT * FROM unnest(%(a)s::text[]) WITH ORDINALITY AS g (a, n)",
    ):
        assert of_one(statement) == (statement, frozenset())


def test_a_driver_of_another_style_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("numeric_driver")
    module.paramstyle = "numeric"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "numeric_driver", module)
    made = type("Made", (), {"__module__": "numeric_driver"})
    with pytest.raises(ContractBroken, match="numeric"):
        parameter_style(made())


def test_only_psycopgs_own_class_answers_for_its_driver() -> None:
    """What an application made of it may stand for another driver, and is asked."""

    class Wrapped(psycopg2.extensions.connection):
        Database = ModuleType("pymysql")
        Database.paramstyle = "format"  # type: ignore[attr-defined]

    own, wrapped = psycopg2.extensions.connection, Wrapped
    assert [speaks_mysql(kind.__new__(kind)) for kind in (own, wrapped)] == [False, True]
    assert [parameter_style(kind.__new__(kind)) for kind in (own, wrapped)] == [
        "pyformat",
        "format",
    ]


@pytest.mark.parametrize("said", [True, False])
def test_a_driver_that_is_written_in_c_is_asked_whether_it_is_in_autocommit(said: bool) -> None:
    """mysqlclient's connection has two methods of C, where PyMySQL's has one of Python."""
    connection = SimpleNamespace(get_autocommit=[said].pop, autocommit=[].append)
    assert is_in_autocommit(connection) is said


def test_a_drivers_errors_are_known_by_their_standard_names() -> None:
    assert is_unavailable(psycopg2.OperationalError())
    assert is_unavailable(psycopg2.InterfaceError())
    assert not is_unavailable(psycopg2.IntegrityError())
    assert not is_unavailable(psycopg2.errors.ProgramLimitExceeded()), (
        "the same statement fails each time"
    )
    assert not is_unavailable(ValueError())


def test_a_copy_without_headers_is_for_every_group_and_of_the_first_version() -> None:
    copy = read_headers(received(content=b"x"))
    assert copy.is_for("any")
    assert (copy.arrival.content_version, copy.arrival.payload_hash) == (1, sha256(b"x").digest())


@pytest.mark.parametrize(
    "headers",
    [
        {"backstop_groups": "billing"},
        {"backstop_groups": "[]"},
        {"backstop_groups": '["a", 1]'},
        {"backstop_groups": '{"a": 1}'},
        {"backstop_groups": "[" * 100_000},
        {"backstop_groups": "[" * 100_000 + "]" * 100_000},
        {"backstop_content_version": "0"},
        {"backstop_content_version": "-1"},
        {"backstop_content_version": "1" * 10},
        {"backstop_content_version": "²"},
        {"backstop_content_version": ""},
    ],
)
def test_headers_that_cannot_be_read_are_refused(headers: Mapping[str, str]) -> None:
    with pytest.raises(ContractBroken):
        read_headers(received(**headers))


@pytest.mark.parametrize("message_id", ["", "a\x00b", "x" * 1025])
def test_an_id_that_no_log_can_hold_is_refused(message_id: str) -> None:
    with pytest.raises(BackstopError):
        read_headers(received(message_id))


@pytest.mark.parametrize("text", ["a\x00b", "\ud800"])
def test_a_tag_that_no_log_can_hold_is_refused(text: str) -> None:
    with pytest.raises(ContractBroken, match="Its tag"):
        read_headers(Received(Message("orders", "m", b"{}", {}, text), None, "0/1-0", 1))


@pytest.mark.parametrize("epoch", ["a\x00b", "\ud800", "x" * 1025, "ж" * 513])
def test_an_epoch_that_no_log_can_hold_is_refused(epoch: str) -> None:
    placed = Received(Message("orders", "m", b"{}"), Position(0, 1, epoch), "0/1-0", 1)
    with pytest.raises(ContractBroken, match="Its epoch"):
        read_headers(placed)


def test_a_header_that_names_this_group_among_others_is_for_it() -> None:
    copy = read_headers(received(backstop_groups='["a:b", "ключ"]'))
    assert [copy.is_for(group) for group in ("a:b", "ключ", "a")] == [True, True, False]


def test_tokens_are_random_uuids_of_version_4() -> None:
    tokens = new_tokens(500)
    assert len(set(tokens)) == 500
    for token in tokens:
        uuid = UUID(token)
        assert (str(uuid), uuid.version, uuid.variant) == (token, 4, RFC_4122)
