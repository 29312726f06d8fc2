"""Looking at dead letters on the command line: causes, the list, one with everything, and files of them."""

from __future__ import annotations

import base64
import json
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from backstop.cli import out
from backstop.cli.app import run_app
from backstop.reports import export_letters as subject
from control_world import World, servers, world  # noqa: F401  fixtures


class Cli:
    """Runs commands in this process and keeps what they printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out, self.err = "", ""

    def __call__(self, *arguments: str) -> int:
        code = run_app(list(arguments))
        self.out, self.err = self._capsys.readouterr()
        return code

    def json(self, *arguments: str, code: int = 0) -> Any:
        assert self(*arguments, "--json") == code, self.err
        return json.loads(self.out)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


def letter(
    world: World,
    message_id: str | None,
    *,
    content: bytes = b'{"a": 1}',
    aside: bool = False,
    **columns: Any,
) -> int:
    """A stored letter of orders and billing, as a drain leaves it."""
    if not world.control("SELECT 1 FROM run"):
        world.control("""INSERT INTO run (duty, token, policy_version, code_version)
            VALUES ('triage', gen_random_uuid(), 'p', 'c')""")
        world.control(
            "INSERT INTO drain_batch (run_id, broker, queue, letters) VALUES (1, 'embedded', 'q', 1)"
        )
        world.control("""INSERT INTO cause (fingerprint, template, shown, category, first_seen_at, last_seen_at)
            VALUES ('f1', 'a name', 'ValueError: no customer <n>', 'poison', now(), now()),
                ('f2', 'timeout', 'timeout', 'transient', now(), now())""")
    values: Mapping[str, Any] = {
        "batch_id": 1,
        "broker": "embedded",
        "queue": "q",
        "broker_id": f"id {message_id} {len(columns)} {content[:9]!r}",
        "topic": "orders",
        "consumer_group": "billing",
        "message_id": message_id,
        "headers": b'{"backstop-message-id": "x"}',
        "content": None if aside else content,
        "content_bytes": len(content),
        "aside": aside,
        "cause_text": "handler failed",
        "error": "ValueError: no customer 7\n  at line 3",
        "died_at": "2026-11-21T10:00Z",
        **columns,
    }
    if "cause_id" in values:
        values = {"classified_at": "2026-11-21T11:00Z", "category": "poison", **values}
    names, marks = ", ".join(values), ", ".join(["%s"] * len(values))
    [(number,)] = world.control(
        f"INSERT INTO dead_letter ({names}) VALUES ({marks}) RETURNING dead_letter_id",
        tuple(values.values()),
    )
    if aside:
        world.control("INSERT INTO dead_letter_aside VALUES (%s, %s)", (number, content))
    return int(number)


CLOSED = {
    "state": "discarded",
    "proof": "{}",
    "decided_by": "ann",
    "closed_at": "2026-11-21T12:00Z",
}


def test_the_list_says_first_what_they_died_of_and_then_which(world: World, cli: Cli) -> None:
    for number in range(3):
        letter(world, f"m-{number}", cause_id=1)
    letter(world, "away", cause_id=2, category="transient")
    letter(world, "new")
    letter(world, "over", cause_id=1, **CLOSED)
    found = cli.json("dead-letters", "list", "--limit", "2")
    assert [(one["category"], one["letters"]) for one in found["causes"]] == [
        ("poison", 3),
        ("transient", 1),
        (None, 1),
    ]
    assert [one["message_id"] for one in found["letters"]] == ["new", "away"], "the newest first"
    assert cli("dead-letters", "list") == 0
    assert (
        cli.out.index("no customer <n>") < cli.out.index("m-2") and "not classified yet" in cli.out
    )
    assert "over" not in cli.out and "customer 7" not in cli.out


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--topic", "orders"], {"a", "b"}),
        (["--topic", "refunds"], {"c"}),
        (["--group", "shipping"], {"b"}),
        (["--category", "poison"], {"a"}),
        (["--cause", "2"], {"b"}),
        (["--case", "1"], {"c"}),
        (["--state", "discarded"], {"d"}),
        (["--all"], {"a", "b", "c", "d"}),
        (["--since", "2026-11-21T09:00Z"], {"a", "b"}),
        (["--since", "2026-11-21T10:00+01:00", "--group", "billing"], {"a"}),
        ([], {"a", "b", "c"}),
    ],
)
def test_every_filter_leaves_what_it_names(
    world: World, cli: Cli, options: list[str], expected: set[str]
) -> None:
    letter(world, "a", cause_id=1)
    letter(world, "b", cause_id=2, category="transient", consumer_group="shipping")
    world.control("""INSERT INTO case_file (kind, topic, consumer_group, subject, severity, summary, evidence)
        VALUES ('dead_letters', 'refunds', 'billing', 'f1', 'warning', 's', '{}')""")
    letter(world, "c", topic="refunds", case_id=1, died_at="2026-11-20T00:00Z")
    letter(world, "d", topic="payments", died_at="2026-11-20T00:00Z", **CLOSED)
    found = cli.json("dead-letters", "list", *options)
    assert {one["message_id"] for one in found["letters"]} == expected
    assert sum(one["letters"] for one in found["causes"]) == len(expected)


def test_what_is_misspelt_is_refused_with_what_there_is(world: World, cli: Cli) -> None:
    assert cli("dead-letters", "list", "--state", "opne") == 2 and "open, replaying" in cli.err
    assert cli("dead-letters", "list", "--category", "bad") == 2 and "poison" in cli.err
    assert (
        cli("dead-letters", "list", "--since", "2026-11-21T10:00") == 2
        and "has no time zone" in cli.err
    )
    for text in ("2026-11-21", "2026-11-21+01:00"):
        assert cli("dead-letters", "list", "--since", text) == 2
        advised = cli.err.partition("Write ")[2].partition(" for UTC")[0]
        assert cli("dead-letters", "list", "--since", advised) == 0, "what it says works"
    assert cli("dead-letters", "show", "7") == 2 and "There is no dead letter 7" in cli.err
    assert cli("dead-letters", "export", "--output", "/no/such/folder/x") == 2
    assert cli("dead-letters", "export", "--output", "x", "--format", "csv") == 2


def test_one_letter_is_shown_with_everything(world: World, cli: Cli) -> None:
    number = letter(world, "m-1", cause_id=1, content='{"größe": "\x1b[31m"}'.encode())
    assert cli("dead-letters", "show", str(number)) == 0
    for part in (
        "orders m-1",
        "ValueError: no customer <n>",
        "customer 7",
        "at line 3",
        "handler failed",
        "größe",
    ):
        assert part in cli.out
    assert "\x1b" not in cli.out, "a payload cannot steer the terminal"
    binary = letter(world, "m-2", content=b"\xff\x00" * 200_000, aside=True)
    assert cli("dead-letters", "show", str(binary)) == 0
    assert "hex ff00ff00" in cli.out and "whole with --raw" in cli.out and len(cli.out) < 3000
    assert cli.json("dead-letters", "show", str(number))["content"] == '{"größe": "\x1b[31m"}'
    purged = letter(world, "m-3", content=b"", aside=True)
    world.control("DELETE FROM dead_letter_aside WHERE dead_letter_id = %s", (purged,))
    assert cli("dead-letters", "show", str(purged)) == 0 and "purged" in cli.out
    assert cli("dead-letters", "show", str(purged), "--raw") == 2


def test_who_reads_what_a_purged_dead_letter_leaves_is_logged(world: World, cli: Cli) -> None:
    number = letter(world, "m-1")
    world.control(
        "UPDATE dead_letter SET content = NULL, emptied_at = now() WHERE dead_letter_id = %s",
        (number,),
    )
    read = "SELECT action, subject FROM decision_log"
    assert cli("dead-letters", "show", str(number), "--raw") == 2
    assert world.control(read) == [], "nothing was shown"
    assert cli("dead-letters", "show", str(number)) == 0
    assert "headers:" in cli.out and "ValueError: no customer 7" in cli.out
    assert world.control(read) == [("read contents", f"dead letter {number}")]


@pytest.mark.parametrize("aside", [False, True])
def test_raw_writes_the_bytes_and_nothing_else(world: World, aside: bool) -> None:
    content = bytes(range(256)) * 3
    number = letter(world, "m-1", content=content, aside=aside)
    command = [sys.executable, "-m", "backstop.cli", "dead-letters", "show", str(number), "--raw"]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    assert done.stdout == content


def test_a_content_as_it_is_cannot_steer_a_terminal(
    capfdbinary: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"\x1b]0;title\x07 gr\xc3\xb6\xc3\x9fe \xff\n"
    for terminal, shown in ((False, content), (True, "\\x1b]0;title\\x07 größe \\xff\n".encode())):
        monkeypatch.setattr(sys.stdout, "isatty", lambda terminal=terminal: terminal)
        out.content(content)
        assert capfdbinary.readouterr().out == shown


CONTENTS = {
    "text": b"{}",
    "empty": b"",
    "binary": bytes(range(256)),
    "large": b"\xff\x00" * 300_000,
}


def fill(world: World) -> None:
    for name, content in CONTENTS.items():
        letter(world, name, content=content, aside=len(content) > 300_000, cause_id=1)
    letter(
        world,
        None,
        content=b"?",
        invalid="it has no headers",
        headers=b"\xff\x00",
        topic=None,
        properties='{"a": "ü"}',
    )
    letter(world, "over", cause_id=2, **CLOSED)


def test_an_export_in_json_lines_holds_every_byte(world: World, cli: Cli, tmp_path: Path) -> None:
    fill(world)
    file = tmp_path / "letters.jsonl"
    assert cli.json("dead-letters", "export", "--output", str(file)) == {
        "written": 5,
        "file": str(file),
    }
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {row["message_id"]: base64.b64decode(row["content_base64"]) for row in rows} == {
        **CONTENTS,
        None: b"?",
    }
    assert base64.b64decode(rows[-1]["headers_base64"]) == b"\xff\x00" and rows[-1][
        "properties"
    ] == {"a": "ü"}
    assert rows[0]["died_at"] == "2026-11-21T10:00:00+00:00"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    written = file.read_bytes()
    assert cli("dead-letters", "export", "--output", str(file), "--all") == 2, (
        "an export replaces nothing"
    )
    assert "exists already" in cli.err and file.read_bytes() == written
    assert [one.name for one in tmp_path.glob(".letters*")] == []


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_small_content_that_is_kept_aside_is_exported_whole(
    world: World, cli: Cli, tmp_path: Path, form: str
) -> None:
    """`aside_bytes` may be far below the default."""
    letter(world, "small", content=b"\xff" * 5_000, aside=True)
    file = tmp_path / "letters"
    assert cli("dead-letters", "export", "--output", str(file), "--format", form) == 0
    if form == "parquet":
        with pq.ParquetFile(file) as parquet:
            [row] = parquet.read().to_pylist()
        assert row["content"] == b"\xff" * 5_000
    else:
        assert base64.b64decode(json.loads(file.read_text())["content_base64"]) == b"\xff" * 5_000


def test_an_export_in_parquet_holds_every_byte_in_bounded_groups(
    world: World, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world)
    monkeypatch.setattr(subject, "_GROUP_ROWS", 2)
    file = tmp_path / "letters.parquet"
    assert cli("dead-letters", "export", "--output", str(file), "--format", "parquet", "--all") == 0
    with pq.ParquetFile(file) as parquet:
        assert parquet.num_row_groups >= 3
        rows = parquet.read().to_pylist()
    assert {row["message_id"]: row["content"] for row in rows} == {
        **CONTENTS,
        None: b"?",
        "over": b'{"a": 1}',
    }
    assert [row["dead_letter_id"] for row in rows] == sorted(row["dead_letter_id"] for row in rows)
    assert (rows[4]["headers"], rows[4]["properties"], rows[5]["state"]) == (
        b"\xff\x00",
        '{"a": "ü"}',
        "discarded",
    )
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_an_export_that_breaks_off_leaves_nothing(
    world: World, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world)
    folder = tmp_path / "out"
    folder.mkdir()
    file = folder / "letters.jsonl"

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(subject.os, "fsync", full)
    assert cli("dead-letters", "export", "--output", str(file)) == 2
    assert "cannot be written: No space left on device" in cli.err
    assert list(folder.iterdir()) == []


def test_where_tells_of_the_dead_letters_of_a_message(world: World, cli: Cli) -> None:
    world.stub("m-1", sends=1)
    letter(world, "m-1", cause_id=1, decision="escalate", reason="poison")
    assert cli("where", "orders", "m-1") == 0
    assert (
        "dead letter 1 of billing, died 2026-11-21 10:00:00: open, poison, escalate by triage: poison"
        in cli.out
    )
    letter(world, "only a letter")
    (story,) = cli.json("where", "orders", "only a letter")
    assert story["found"] and [one["state"] for one in story["letters"]] == ["open"]


def test_a_new_content_is_compared_before_an_edit_and_the_reading_is_logged(
    world: World, cli: Cli, tmp_path: Path
) -> None:
    number = letter(world, "m-1")
    world.stub("m-1")
    world.run(
        "producer_a", "UPDATE message_stub SET content = '{\"a\": 1}' WHERE message_id = 'm-1'"
    )
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text('{"a": 2}')
    bad.write_text('{"a": ')
    assert cli("dead-letters", "compare", str(number), "--content-file", str(good)) == 0
    assert cli.out == "Compared with: JSON.\n"
    found = cli.json("dead-letters", "compare", str(number), "--content-file", str(bad), code=1)
    assert [one["severity"] for one in found["findings"]] == ["error"]
    logged = world.control("SELECT action, subject FROM decision_log ORDER BY entry")
    assert logged == [("read contents", f"dead letter {number}")] * 2
    nameless = letter(world, None, invalid="no id")
    assert cli("dead-letters", "compare", str(nameless), "--content-file", str(good)) == 2
