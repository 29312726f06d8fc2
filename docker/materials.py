"""Writes what this project is made of: a bill of materials (CycloneDX) from the lock, and NOTICE with everybody's licence.

    materials.py bill requirements.lock build/sbom.cdx.json     needs the lock alone
    materials.py notice requirements.lock NOTICE                asks the installed packages for their licences

The bill has the time of nobody's clock in it: the same lock makes the same file.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import uuid
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import NamedTuple

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_NO_LICENCE = ("", "unknown", "dual license")
NOTICE = """\
Backstop
Licensed under the Apache License, Version 2.0 (see LICENSE).

The packages of requirements.lock, which a set-up or an image installs beside Backstop, each under its own licence. Nothing of
them is part of Backstop's own wheel. Licences are as the packages state them.

"""


class Package(NamedTuple):
    """One pin of the lock; `hashes` of each of its files."""

    name: str
    version: str
    hashes: tuple[str, ...]


def packages(lock: str) -> Iterator[Package]:
    """In the order of the lock."""
    pins = list(_PIN.finditer(lock))
    for at, pin in enumerate(pins):
        end = pins[at + 1].start() if at + 1 < len(pins) else len(lock)
        yield Package(
            pin[1].lower().replace("_", "-"), pin[2], tuple(_HASH.findall(lock[pin.start() : end]))
        )


def bill(lock: str, version: str) -> str:
    """CycloneDX 1.5 as JSON."""
    serial = uuid.UUID(bytes=hashlib.sha256(f"{version}\n{lock}".encode()).digest()[:16], version=4)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": "backstop-mq",
                "version": version,
                "purl": f"pkg:pypi/backstop-mq@{version}",
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": [
            {
                "type": "library",
                "name": one.name,
                "version": one.version,
                "purl": f"pkg:pypi/{one.name}@{one.version}",
                "bom-ref": f"pkg:pypi/{one.name}@{one.version}",
                "hashes": [{"alg": "SHA-256", "content": content} for content in one.hashes],
            }
            for one in packages(lock)
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def licence(name: str) -> str:
    """As the installed package states it, in a line. The lock also has packages for other versions of Python."""
    try:
        said = metadata(name)
    except PackageNotFoundError:
        return "not installed here"
    named = [
        text.rpartition(" :: ")[2]
        for text in said.get_all("Classifier") or ()
        if text.startswith("License :: ")
    ]
    text = said.get("License-Expression") or " ".join((said.get("License") or "").split())
    if text.lower() in _NO_LICENCE or len(text) > 60:  # some put the whole text there
        text = ", ".join(named)
    return text or "not stated"


def notice(lock: str) -> str:
    """Every package of the lock, with its licence."""
    names = dict.fromkeys(one.name for one in packages(lock))
    return NOTICE + "".join(f"{name}: {licence(name)}\n" for name in names)


def main() -> None:
    """See above."""
    what, lock, target = (
        sys.argv[1],
        Path(sys.argv[2]).read_text(encoding="utf-8"),
        Path(sys.argv[3]),
    )
    if what == "bill":
        project = Path(__file__).resolve().parent.parent / "pyproject.toml"
        found = re.search(
            r'^version = "([^"]+)"', project.read_text(encoding="utf-8"), re.MULTILINE
        )
        assert found is not None
        text = bill(lock, found[1])
    else:
        text = notice(lock)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
