"""The Java example and the wire contract stay together."""

from __future__ import annotations

import re
from pathlib import Path

from backstop.sql.named import load

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "java"
CONTRACT = {**load("backstop.client", "queries.sql"), **load("backstop.leases", "queries.sql")}


def test_the_example_s_statements_are_the_contract_s_word_for_word() -> None:
    parts = re.split(
        r"^-- name: (\w+): .+\n",
        (EXAMPLE / "wire-contract.sql").read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    found = {
        name: text.strip().removesuffix(";")
        for name, text in zip(parts[1::2], parts[2::2], strict=True)
    }
    assert set(found) == {
        "record",
        "look_before_send",
        "settle",
        "begin",
        "refused",
        "complete",
        "fail",
    }
    assert found == {name: CONTRACT[name] for name in found}


def test_the_example_writes_the_contract_s_tables_in_no_other_way() -> None:
    for source in EXAMPLE.glob("*.java"):
        assert not re.search(
            "consumer_log|message_stub|send_attempt", source.read_text(encoding="utf-8")
        ), source.name


def test_every_statement_of_the_example_is_used() -> None:
    sources = "".join(source.read_text(encoding="utf-8") for source in EXAMPLE.glob("*.java"))
    used = set(re.findall(r'ContractSql\.prepare\(\w+, "(\w+)"', sources))
    assert used == set(
        re.findall(
            r"^-- name: (\w+)",
            (EXAMPLE / "wire-contract.sql").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    )
