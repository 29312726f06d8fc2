"""What the project is made of can be read: NOTICE and the bill of materials name every package of the lock."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
LOCK = PROJECT / "requirements.lock"


def pinned() -> set[tuple[str, str]]:
    lines = [
        line.split(";")[0].rstrip(" \\\n")
        for line in LOCK.read_text().splitlines()
        if line[:1].isalnum()
    ]
    return {
        (name.lower(), version) for name, _, version in (line.partition("==") for line in lines)
    }


def test_notice_names_every_package_of_the_lock_and_its_licence() -> None:
    entries = [
        line.partition(": ")
        for line in (PROJECT / "NOTICE").read_text().split("\n\n")[-1].splitlines()
    ]
    assert {name for name, _, _ in entries} == {name for name, _ in pinned()}, (
        "make materials writes it anew"
    )
    assert all(licence for _, _, licence in entries)


def test_the_bill_of_materials_has_every_pin_with_its_hashes_and_is_the_same_each_time(
    tmp_path: Path,
) -> None:
    bills = []
    for name in ("one.json", "two.json"):
        command = [
            sys.executable,
            "-I",
            str(PROJECT / "docker" / "materials.py"),
            "bill",
            str(LOCK),
            str(tmp_path / name),
        ]
        subprocess.run(command, check=True)
        bills.append((tmp_path / name).read_bytes())
    assert bills[0] == bills[1]
    bill = json.loads(bills[0])
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert {(one["name"], one["version"]) for one in bill["components"]} == pinned()
    assert all(
        one["hashes"] and one["purl"] == f"pkg:pypi/{one['name']}@{one['version']}"
        for one in bill["components"]
    )
