"""Receive alerts as people and programs do: a mail server and a web server on the loopback, threads of whoever starts them.

Each message that came is a line of `mail.jsonl` or `post.jsonl` in one folder.
"""

from __future__ import annotations

import json
import threading
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller

from backstop_lab.servers.ports import LOOPBACK, free_port

READER = "oncall@shop.example"


class Received:
    """What came, in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._turn = threading.Lock()

    def keep(self, way: str, title: str, text: str) -> None:
        line = json.dumps({"title": title, "text": text}, ensure_ascii=False)
        with self._turn, (self.folder / f"{way}.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def count(self, way: str) -> int:
        file = self.folder / f"{way}.jsonl"
        return len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0


class _Mailbox:
    """What aiosmtpd calls for each mail."""

    def __init__(self, received: Received) -> None:
        self._received = received

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        mail = message_from_bytes(envelope.content, policy=policy.default)
        text = mail.get_body(("plain", "html"))
        self._received.keep(
            "mail", str(mail["Subject"]), text.get_content() if text is not None else ""
        )
        return "250 OK"


class AlertReceivers:
    """Both servers; `start`, and `stop` at the end."""

    def __init__(self, folder: Path) -> None:
        self.received = received = Received(folder)
        self._mail = Controller(_Mailbox(received), hostname=LOOPBACK, port=free_port())

        class Webhook(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                fields = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                received.keep("post", str(fields["title"]), str(fields["text"]))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing: the lines that were kept say it."""

        self._web = ThreadingHTTPServer((LOOPBACK, 0), Webhook)
        self._web.daemon_threads = True
        self._serving = threading.Thread(target=self._web.serve_forever, daemon=True)

    def start(self) -> None:
        self._mail.start()
        self._serving.start()

    def stop(self) -> None:
        if self._serving.is_alive():
            self._web.shutdown()
            self._serving.join()
            self._mail.stop()
        self._web.server_close()

    def environment(self) -> dict[str, str]:
        """The two addresses, for `alerts.channels` in backstop.yaml."""
        return {
            "BACKSTOP_ALERTS_MAIL": f"mailto://{LOOPBACK}:{self._mail.port}/?from=backstop@shop.example&to={READER}",
            "BACKSTOP_ALERTS_WEBHOOK": f"http://{LOOPBACK}:{self._web.server_port}/alerts",
        }
