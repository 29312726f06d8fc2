"""The harness's own few requests to a RocketMQ server, past the adapter under test: one request, one connection, JSON headers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import ssl
from dataclasses import dataclass
from itertools import count
from typing import Any

from backstop_lab.servers.ports import LOOPBACK

_numbers = count(1)


@dataclass(frozen=True)
class Answer:
    code: int
    remark: str | None
    ext: dict[str, str]
    body: bytes


class Refused(AssertionError):
    """The server answered with another code than the test takes."""

    def __init__(self, request: int, answer: Answer) -> None:
        super().__init__(f"request {request} was answered with code {answer.code}: {answer.remark}")
        self.answer = answer


def ask(
    port: int,
    code: int,
    ext: dict[str, Any] | None = None,
    body: bytes = b"",
    *,
    ok: tuple[int, ...] = (0,),
    login: tuple[str, str] | None = None,
    timeout: float = 60.0,
    tls: bool = False,
) -> Answer:
    """Sends one request to a port of the loopback; raises OSError when nobody answers, Refused for a code not in `ok`."""
    fields = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in (ext or {}).items()
    }
    if login is not None:
        fields["AccessKey"] = login[0]
        signed = "".join(fields[name] for name in sorted(fields)).encode() + body
        fields["Signature"] = base64.b64encode(
            hmac.new(login[1].encode(), signed, hashlib.sha1).digest()
        ).decode()
    header = json.dumps(
        {
            "code": code,
            "language": "OTHER",
            "version": 485,
            "opaque": next(_numbers),
            "flag": 0,
            "extFields": fields,
            "serializeTypeCurrentRPC": "JSON",
        }
    ).encode()
    with socket.create_connection((LOOPBACK, port), timeout) as plain:
        connection: socket.socket = plain
        if tls:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection = context.wrap_socket(plain)
        connection.settimeout(timeout)
        connection.sendall(
            (4 + len(header) + len(body)).to_bytes(4) + len(header).to_bytes(4) + header + body
        )
        frame = _read(connection, int.from_bytes(_read(connection, 4)))
    size = int.from_bytes(frame[1:4])
    assert frame[0] == 0, "the server answers JSON with JSON"
    said = json.loads(frame[4 : 4 + size])
    answer = Answer(
        said["code"], said.get("remark"), said.get("extFields") or {}, frame[4 + size :]
    )
    if answer.code not in ok:
        raise Refused(code, answer)
    return answer


def _read(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            raise ConnectionResetError("closed before its answer was whole")
        found += part
    return bytes(found)
