"""Keep what was really done to whom, and every end and start of a process: one line each, for whoever reads a failure."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any


class Record:
    """`events.jsonl` in a folder. Instants are seconds since the traffic began, and the wall clock's."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._turn = threading.Lock()
        self._began = monotonic()

    def begin(self) -> None:
        """The traffic begins now."""
        self._began = monotonic()

    @property
    def now(self) -> float:
        """Seconds since the traffic began."""
        return monotonic() - self._began

    def write(self, what: str, **facts: Any) -> None:
        line = json.dumps(
            {"at": round(self.now, 2), "wall": datetime.now(UTC).isoformat(), "what": what, **facts}
        )
        with self._turn, self.file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    @contextmanager
    def lasting(self, what: str, **facts: Any) -> Iterator[dict[str, Any]]:
        """A fault from its begin to its end: written when it is over, with what the body adds to the facts."""
        since, wall = round(self.now, 2), datetime.now(UTC).isoformat()
        try:
            yield facts
        except BaseException as error:
            facts["error"] = f"{type(error).__name__}: {error}"
            raise
        finally:
            self.write(what, since=since, since_wall=wall, **facts)

    def events(self) -> list[dict[str, Any]]:
        if not self.file.exists():
            return []
        return [json.loads(line) for line in self.file.read_text(encoding="utf-8").splitlines()]
