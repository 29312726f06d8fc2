"""Sends messages through one channel, in a process of its own: what hangs, prints or crashes in a service's plugin ends here.

On stdin one JSON document a line: first the channel (the URL is never an argument, which others could see), then messages.
On stdout one line for each: {"error": null} when the channel took it, else what kind of failure it was, and no more: what a
server says may quote the URL. Ends by itself when a message takes too long, also when the parent is gone.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from hashlib import sha256
from http.client import HTTPException
from ipaddress import ip_address
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

Send = Callable[[Mapping[str, Any]], str | None]

LOCAL = frozenset(
    {"blink1", "dbus", "gio", "glib", "gnome", "kde", "macosx", "qt", "syslog", "windows"}
)
"""Plugins that speak to this machine: nobody reads what a server says to its own desktop."""
UNANSWERED = frozenset({"rsyslog", "aprs", "growl"})
"""Whether anybody took it cannot be known, and silence is never success."""
_PINGS = re.compile(r"@(?=(everyone|here|channel|all)\b)")
_LINKS = re.compile(r"\](?=\()")
"""Where Markdown would show a text in place of an address."""
_STATUS = re.compile(r"error=(\d{3})|\b([45]\d\d)\b")


_WITH_A_HOST = ("http", "https", "json", "jsons", "xml", "xmls", "form", "forms")


class _NoRedirects(HTTPRedirectHandler):
    """A redirect could lead anywhere, and turns a POST into a GET; the answer itself is then the error."""

    def redirect_request(self, *_: object) -> None:
        return None


def metadata_service(url: str) -> bool:
    """Its host is a link-local address: there a cloud's machines answer with their own secrets, and nobody's alerts go there.

    A name that changes its address afterwards is not found out; nothing of an answer is ever shown.
    """
    try:
        parts = urlsplit(url)
        # Of other services the host's place holds a key, which no name server may be asked about.
        flags = 0 if parts.scheme in _WITH_A_HOST else socket.AI_NUMERICHOST
        found = socket.getaddrinfo(parts.hostname, None, flags=flags)
    except (OSError, ValueError):
        return False  # nobody is reached there either
    addresses = (ip_address(str(place[0]).partition("%")[0]) for *_, place in found)
    return any(
        (getattr(address, "ipv4_mapped", None) or address).is_link_local for address in addresses
    )


def webhook(channel: Mapping[str, Any]) -> Send | str:
    """Posts a message's fields as JSON; or why the URL cannot be used."""
    if urlsplit(channel["url"]).scheme not in ("http", "https"):
        return "not an http(s) URL"
    opener = build_opener(_NoRedirects)

    def send(message: Mapping[str, Any]) -> str | None:
        body = json.dumps(message["fields"]).encode()
        request = Request(
            channel["url"], data=body, headers={"Content-Type": "application/json"}, method="POST"
        )
        try:
            with opener.open(request, timeout=channel["timeout"]):
                return None
        except HTTPError as error:
            error.close()
            return f"HTTP {error.code}"
        except (OSError, HTTPException, ValueError) as error:
            return type(getattr(error, "reason", error)).__name__

    return send


def apprise(channel: Mapping[str, Any]) -> Send | str:
    """Sends title and text by Apprise; or why the URL cannot be used."""
    try:
        from apprise import Apprise, AppriseAsset
        from apprise.common import NotifyFormat, NotifyType, OverflowMode
        from apprise.manager_plugins import NotificationManager
    except ImportError:
        return "Apprise is not installed: pip install backstop-mq[alerts]"
    said = _Heard()
    logger = logging.getLogger("apprise")
    logger.propagate = False
    logger.addHandler(said)
    scheme = urlsplit(channel["url"]).scheme.lower()
    if scheme in LOCAL | UNANSWERED:
        return f"{scheme}:// does not reach anybody who could answer"
    plugins = NotificationManager()
    if scheme not in plugins or getattr(plugins[scheme], "category", None) == "custom":
        return "no service that Apprise knows has this scheme"
    # Nothing is kept on disk, and nobody is redirected elsewhere with our credentials.
    asset = AppriseAsset(
        storage_mode="memory", secure_logging=True, http_redirects=False, app_id="Backstop"
    )
    plugin = Apprise.instantiate(channel["url"], asset=asset)
    if plugin is None:
        return "Apprise cannot read it"
    if plugin.redirects or getattr(plugin, "optional", False) or getattr(plugin, "retry", 0):
        return "redirect, optional and retry are not for the URL to say"
    if len(plugin) != 1 or getattr(plugin, "cc", None) or getattr(plugin, "bcc", None):
        # Apprise says only whether all of them took it: those who did would be told again and again.
        return f"it names {len(plugin)} targets or copies; one channel is for one: a list's address, a room, a service"
    plugin.socket_connect_timeout = plugin.socket_read_timeout = channel["timeout"]
    plugin.request_rate_per_sec = min(
        plugin.request_rate_per_sec, 0.0 if scheme.startswith("mailto") else 1.0
    )
    # A service refuses a text that is too long for it, again and again: the gravest stand first in ours.
    plugin.overflow_mode = OverflowMode.TRUNCATE
    types = {"info": NotifyType.INFO, "warning": NotifyType.WARNING, "critical": NotifyType.FAILURE}

    def send(message: Mapping[str, Any]) -> str | None:
        said.texts.clear()
        kind = NotifyType.SUCCESS if message["closing"] else types[message["severity"]]
        if scheme == "pagerduty":
            # One incident a story: told again it is the same one, and its closing alert resolves it.
            plugin.action, plugin.dedup = "map", _incident_key(message["thread"])
        taken = plugin.notify(
            body=_as_text(message["body"]),
            title=_as_text(message["title"]),
            notify_type=kind,
            body_format=NotifyFormat.TEXT,
        )
        return None if taken is True else said.kind()

    return send


def _incident_key(thread: str) -> str:
    """The thread, or its SHA-256 where PagerDuty would refuse the length: an audit's has a name of up to 200 characters in it."""
    key = f"backstop/{thread}"
    return key if len(key) <= 255 else f"backstop/{sha256(key.encode()).hexdigest()}"


def _as_text(text: str) -> str:
    """The text, of which a room neither calls anybody nor makes a link: ids are other people's, and services pass markup through."""
    return _LINKS.sub("] ", _PINGS.sub("@ ", text))


class _Heard(logging.Handler):
    """What Apprise logged of one message, for the kind of its failure alone."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())

    def kind(self) -> str:
        text = " ".join(self.texts)
        if found := _STATUS.search(text):
            return f"HTTP {found[1] or found[2]}"
        return "no connection" if "onnection" in text else "refused"


WAYS: dict[str, Callable[[Mapping[str, Any]], Send | str]] = {
    "apprise": apprise,
    "webhook": webhook,
}


LINK_LOCAL = "a link-local address is nobody's channel"


def main() -> None:
    """Serves one channel until stdin ends."""
    # Whatever a plugin prints must not look like an answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)

    def answer(error: str | None) -> None:
        print(json.dumps({"error": error}), file=answers, flush=True)

    channel = json.loads(sys.stdin.readline())
    signal.setitimer(signal.ITIMER_REAL, channel["start"])
    send = LINK_LOCAL if metadata_service(channel["url"]) else WAYS[channel["kind"]](channel)
    answer(send if isinstance(send, str) else None)
    signal.setitimer(signal.ITIMER_REAL, 0)
    if isinstance(send, str):
        return
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, channel["limit"])
        try:
            error = send(json.loads(line))
        except Exception as broken:  # noqa: BLE001  a plugin may raise anything; its text may hold the URL
            error = type(broken).__name__
        answer(error)
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main()
