"""Starts the process that sends through one channel, and never waits for it longer than the limit."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import backstop

TOO_LONG = "no answer in time"
"""The kind of failure of a channel that hangs: nothing more is tried with it now."""
ENDED = "the sending process ended"
"""The kind of failure of a service's plugin that took its process down: the next look begins with a new one."""
_START = 30.0
_LATER = 5.0
"""The process ends itself only when nobody has ended it in time; else it could be the quicker, and a hanging channel look like a
broken process."""


_INHERITED = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LANG",
        "TZ",
        "TMPDIR",
        "LD_LIBRARY_PATH",
        "VIRTUAL_ENV",
        "PYTHONHOME",
        "PYTHONDONTWRITEBYTECODE",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        *(
            form
            for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
            for form in (name, name.upper())
        ),
    }
)
"""What the process may see of our environment: services' plugins have no business with whatever secrets are beside these."""


class Sender:
    """One channel, open. Use it as a context manager; `error` says why it cannot be used at all."""

    def __init__(self, kind: str, url: str, timeout: float) -> None:
        self._limit = 3 * timeout
        source = str(Path(backstop.__file__).parents[1])
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name in _INHERITED or name.startswith("LC_")
        }
        path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "backstop.alerts.send_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**inherited, "PYTHONPATH": path},
            start_new_session=True,
        )
        channel = {
            "kind": kind,
            "url": raw(url),
            "timeout": timeout,
            "start": _START + _LATER,
            "limit": self._limit + _LATER,
        }
        self.error = self._ask(channel, _START)

    def send(self, message: Mapping[str, Any]) -> str | None:
        """Null when the channel took the message, else the kind of failure."""
        return self._ask(message, self._limit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _ask(self, document: Mapping[str, Any], limit: float) -> str | None:
        assert self._process.stdin is not None and self._process.stdout is not None
        if self._process.stdin.closed:
            return ENDED  # it ended with the message before: no further one has anybody to send it
        deadline = time.monotonic() + limit
        try:
            self._process.stdin.write(json.dumps(dict(document)).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return ENDED
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self._end()
                    return TOO_LONG
                part = os.read(self._process.stdout.fileno(), 65536)
                if not part:
                    self._end()
                    return ENDED
                line += part
        error: str | None = json.loads(line)["error"]
        return error

    def _end(self) -> None:
        # It holds nothing that a kill could lose: what it was doing counts as not taken.
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # what was still to be written has no reader any more


def raw(url: str) -> str:
    """The channel's URL. An Airflow connection of type `generic` carries it in its extra field `url`.

    Airflow takes a URI apart and writes it again, with other quoting than a service's URL may have; an extra field stays as
    it is.
    """
    parts = urlsplit(url)
    if parts.scheme == "generic" and (carried := parse_qs(parts.query).get("url")):
        return carried[0]
    return url
