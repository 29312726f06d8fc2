"""Whom alerts are sent to in tests: a real HTTP endpoint and a real SMTP server, which fail in the ways that real ones do."""

from __future__ import annotations

import email
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.header import decode_header, make_header
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword

from backstop_lab.servers.ports import free_port


class Endpoint:
    """Takes POSTs. `answers` is a status, `hang` (until `let_go`), `close` (no answer at all), `drip` (a byte now and
    then, for ever) or `redirect`."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self.answers: int | str = 204
        self.before_answer: Callable[[], None] = lambda: None
        self.let_go = threading.Event()
        self.asked = 0
        self.says = b""
        endpoint = self

        class Taker(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.do_POST()

            def do_POST(self) -> None:
                endpoint.asked += 1
                body = json.loads(
                    self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}"
                )
                if endpoint.answers == "hang":
                    endpoint.let_go.wait(60)
                    return
                if endpoint.answers == "close":
                    self.connection.close()
                    return
                if endpoint.answers == "drip":
                    self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                    while not endpoint.let_go.wait(0.1):
                        self.wfile.write(b".")
                if endpoint.answers == "redirect" and self.path != "/elsewhere":
                    self.send_response(302)
                    self.send_header("Location", "/elsewhere")
                    self.end_headers()
                    return
                status = 200 if endpoint.answers == "redirect" else int(endpoint.answers)
                if status < 300:
                    endpoint.taken.append(body)
                endpoint.before_answer()
                self.send_response(status)
                self.end_headers()
                if status != 204:
                    self.wfile.write(endpoint.says)

            def handle(self) -> None:
                try:
                    super().handle()
                except (ConnectionError, ValueError):
                    return  # the sender has gone, or we closed the connection on purpose

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Taker)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.server_port}"


@contextmanager
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.let_go.set()
        made.server.shutdown()
        made.server.server_close()
        thread.join()


class Mailbox:
    """An SMTP server's. `answers` is what it says to a message's end."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.recipients: list[list[str]] = []
        self.logins: list[str] = []
        self.answers = "250 taken"
        self.port = 0

    async def handle_DATA(self, server: Any, session: Any, envelope: Envelope) -> str:
        if self.answers.startswith("250"):
            assert isinstance(envelope.content, bytes)
            self.messages.append(email.message_from_bytes(envelope.content))
            self.recipients.append(envelope.rcpt_tos)
        return self.answers

    def authenticate(
        self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any
    ) -> AuthResult:
        assert isinstance(data, LoginPassword)
        good = (data.login, data.password) == (b"backstop", b"pw-4f7a")
        self.logins.append(data.login.decode())
        return AuthResult(success=good, handled=True)

    def subjects(self) -> list[str]:
        return [str(make_header(decode_header(message["Subject"]))) for message in self.messages]

    def text(self, number: int = -1) -> str:
        payload = self.messages[number].get_payload(decode=True)
        assert isinstance(payload, bytes)
        return payload.decode()


@contextmanager
def mailbox(tls: ssl.SSLContext | None = None) -> Iterator[Mailbox]:
    box = Mailbox()
    secure: dict[str, Any] = (
        {}
        if tls is None
        else {
            "tls_context": tls,
            "require_starttls": True,
            "authenticator": box.authenticate,
            "auth_required": True,
        }
    )
    box.port = free_port()
    controller = Controller(box, hostname="127.0.0.1", port=box.port, **secure)
    controller.start()
    try:
        yield box
    finally:
        controller.stop()
