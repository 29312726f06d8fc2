"""All checks over one end state; `ok` is true when nothing is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .accounts import (
    check_data_checks,
    check_effects,
    check_leases,
    check_order,
    check_promises,
    check_resends,
    check_stubs,
    count_final,
)
from .books import Ledger, Problems, keys_of, read_books, read_ledger
from .deaths import check_deaths
from .injected import check_faults
from .told import check_told, read_received


def check(places: dict[str, Any], ledger: Ledger) -> dict[str, Any]:
    """Everything that must hold, with the numbers behind it; `ok` is true when nothing is wrong."""
    books = read_books(places, ledger)
    topics: dict[str, list[str]] = places["topics"]
    problems = Problems()
    twice = keys_of(
        line
        for line in ledger.get("broken_rows", [])
        if line.get("detail") == "one id on two shards"
    )
    check_promises(books, twice, problems)
    check_leases(books, problems)
    check_order(books, problems)
    check_data_checks(books, ledger, problems)
    told = {
        "effects": check_effects(books, topics, ledger, problems),
        "stubs": check_stubs(books, problems),
        "verdicts": count_final(books, topics, problems),
        "resends": check_resends(books, topics, ledger, problems),
        "faults": check_faults(books, topics, ledger, problems),
        "dead_letters": check_deaths(books, ledger, problems),
        "told": check_told(books, read_received(Path(places["received"])), problems),
        "cases": books.summary["cases"],
        "requests": books.summary["requests"],
        "data_checks": books.summary["data_checks"],
    }
    if books.summary["cases_without_alert"]:
        problems.add("case without an alert", books.summary["cases_without_alert"])
    listed = problems.listed()
    return {"ok": not listed, "problems": listed, **told}


def main(arguments: list[str]) -> int:
    places, folder = Path(arguments[0]), Path(arguments[1])
    told = check(json.loads(places.read_text(encoding="utf-8")), read_ledger(folder))
    print(json.dumps(told, ensure_ascii=False, indent=2))
    return 0 if told["ok"] else 1
