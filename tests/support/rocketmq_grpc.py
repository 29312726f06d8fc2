"""Drive RocketMQ's official Python client (gRPC, through the proxy) as a process of ours; the server needs proxy=True."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from backstop_lab.servers.ports import LOOPBACK
from rocketmq_server import RocketMQ

PEER = Path(__file__).parents[1] / "grpc_peer" / "peer.py"


class PythonPeer:
    """One process with the official client. A topic must have been made with a kind (NORMAL): the proxy asks for it."""

    def __init__(self, server: RocketMQ, folder: Path) -> None:
        assert server.grpc_port is not None, "the server runs without its proxy"
        folder.mkdir(parents=True, exist_ok=True)
        self._errors = folder / "stderr.log"
        descriptor = os.open(self._errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(PEER), f"{LOOPBACK}:{server.grpc_port}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=descriptor,
            text=True,
            env={**os.environ, "HOME": str(folder)},  # it writes its log there
        )
        os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def send(
        self, topic: str, messages: Sequence[bytes | Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Bodies, or mappings with body and any of keys, tag, properties. Answers: message_id, offset."""
        wanted = [{"body": one} if isinstance(one, bytes) else dict(one) for one in messages]
        for one in wanted:
            one["body"] = base64.b64encode(one["body"]).decode()
        found = self._ask("send", topic=topic, messages=wanted)
        assert isinstance(found, list)
        return found

    def receive(self, group: str, topic: str, *, invisible: int = 30) -> list[dict[str, Any]]:
        """Up to 32 messages, waited for 3 s, invisible to others for so many seconds: message_id, body, keys, attempt ..."""
        found: list[dict[str, Any]] = self._ask(
            "receive", group=group, topic=topic, invisible=invisible
        )
        return [{**one, "body": base64.b64decode(one["body"])} for one in found]

    def acknowledge(self, group: str, ids: Sequence[str]) -> None:
        self._ask("acknowledge", group=group, ids=list(ids))

    def _ask(self, do: str, **values: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **values}) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("> "):
                said = json.loads(line[2:])
                assert "error" not in said, said["error"]
                return said["answer"]
        raise AssertionError(f"the Python client ended: {self._errors.read_text()[-2000:]}")
