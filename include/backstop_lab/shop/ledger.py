"""Keep what was injected: one file a fault, one line a message, on disk before the fault takes effect.

The checker reads it, and so knows what must have been found without asking Backstop.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Key = tuple[str, str]
"""(topic, message id)"""
NOT_IN_TIME = "not_sent_in_time"
"""Nobody injected it, and it counts: a producer too slow under load, or a broker too busy, leaves the send to Backstop."""


class Ledger:
    """A folder of `<fault>.jsonl`. Several processes may append at once: one call is one synced write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def append(
        self,
        fault: str,
        keys: Iterable[Key],
        *,
        consumer_group: str | None = None,
        detail: str | None = None,
    ) -> None:
        """`consumer_group`: the one group that the fault hits; None: all of them."""
        now = datetime.now(UTC).isoformat()
        lines = [
            json.dumps(
                {
                    "topic": topic,
                    "message_id": message_id,
                    "consumer_group": consumer_group,
                    "at": now,
                    "detail": detail,
                },
                ensure_ascii=False,
            )
            for topic, message_id in keys
        ]
        if not lines:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(
            self.folder / f"{fault}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        try:
            os.write(descriptor, ("\n".join(lines) + "\n").encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def keys(self, fault: str) -> set[Key]:
        """Every message of a fault; empty when it was not injected."""
        return {(line["topic"], line["message_id"]) for line in self.lines(fault)}

    def lines(self, fault: str) -> list[dict[str, Any]]:
        """Everything that stands there of a fault, in order."""
        file = self.folder / f"{fault}.jsonl"
        if not file.exists():
            return []
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
