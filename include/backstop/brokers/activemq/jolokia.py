"""Reads ActiveMQ's management beans over HTTP (Jolokia): what is there, how much, and what the broker is set to.

The STOMP protocol knows neither which queues exist nor how many messages lie in one.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from backstop.brokers.activemq.unavailable import unavailable
from backstop.model.read_json import read_json

QUEUE_ATTRIBUTES = ("Name", "QueueSize", "InFlightCount", "EnqueueCount")


class Jolokia:
    """One address with its login. Safe to share between threads: each question is a connection of its own."""

    def __init__(self, url: str, *, timeout: float) -> None:
        parts = urlsplit(url)
        self._tls = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port or (443 if self._tls else 80)
        self._path = parts.path.rstrip("/") or "/api/jolokia"
        login = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        self._headers = {
            "Authorization": "Basic " + base64.b64encode(login.encode()).decode(),
            "Content-Type": "application/json",
            # ActiveMQ's access file is strict about where a question comes from.
            "Origin": f"{parts.scheme}://{self._host}",
        }
        self._timeout = timeout
        self._lock = threading.Lock()
        self._broker: str | None = None

    def broker_name(self) -> str:
        """The one broker of this process. BrokerUnavailable when there is none, or more than one."""
        with self._lock:
            if self._broker is None:
                [found] = self.ask(
                    [{"type": "search", "mbean": "org.apache.activemq:type=Broker,brokerName=*"}]
                )
                if not isinstance(found, list) or len(found) != 1:
                    raise unavailable(
                        "looking for the broker's name",
                        f"there are {len(found or ())} brokers behind Jolokia",
                    )
                self._broker = next(
                    part[11:]
                    for part in re.split("[:,]", str(found[0]))
                    if part.startswith("brokerName=")
                )
            return self._broker

    def bean(self, *parts: str) -> str:
        return ",".join(
            (f"org.apache.activemq:type=Broker,brokerName={self.broker_name()}", *parts)
        )

    def queue_bean(self, name: str) -> str:
        return self.bean("destinationType=Queue", f"destinationName={in_bean(name)}")

    def read(self, bean: str, attributes: Sequence[str] = ()) -> Any:
        """The value, or null when there is no such bean."""
        return self.ask(
            [
                {
                    "type": "read",
                    "mbean": bean,
                    **({"attribute": list(attributes)} if attributes else {}),
                }
            ]
        )[0]

    def queues(self) -> dict[str, Mapping[str, Any]]:
        """Every queue by its own name: QueueSize and InFlightCount."""
        found = (
            self.read(self.bean("destinationType=Queue", "destinationName=*"), QUEUE_ATTRIBUTES)
            or {}
        )
        return {str(one["Name"]): one for one in found.values()}

    def topics(self) -> set[str]:
        """The names of every topic."""
        found = self.read(self.bean("destinationType=Topic", "destinationName=*"), ("Name",)) or {}
        return {str(one["Name"]) for one in found.values()}

    def run(self, bean: str, operation: str, *arguments: Any) -> Any:
        """What the operation returns. BrokerUnavailable when there is no such bean."""
        [answer] = self.ask(
            [{"type": "exec", "mbean": bean, "operation": operation, "arguments": list(arguments)}],
            needed=True,
        )
        return answer

    def ask(self, questions: Sequence[Mapping[str, Any]], *, needed: bool = False) -> list[Any]:
        """One value a question, in order; null for a bean that is not there, unless it is `needed`."""
        doing = "asking its management beans"
        kind = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._timeout)
        try:
            connection.request("POST", self._path, json.dumps(questions), self._headers)
            response = connection.getresponse()
            status, body = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise unavailable(doing, f"Jolokia: {type(error).__name__}: {error}") from error
        finally:
            connection.close()
        try:
            answers = read_json(body) if status == 200 else None
        except ValueError:
            answers = None
        if not isinstance(answers, list) or len(answers) != len(questions):
            raise unavailable(
                doing, f"Jolokia answered {status}: {body[:200].decode(errors='replace')}"
            )
        values: list[Any] = []
        for answer in answers:
            if answer.get("status") == 200:
                values.append(answer.get("value"))
            elif answer.get("status") == 404 and not needed:
                values.append(None)
            else:
                raise unavailable(
                    doing, f"Jolokia: {str(answer.get('error', answer.get('status')))[:300]}"
                )
        return values


def in_bean(name: str) -> str:
    """A destination's name as ActiveMQ writes it into the name of its bean."""
    for found, written in (
        (":", "_"),
        (",", "_"),
        ("'", "_"),
        ('"', "_"),
        ("?", "&qe;"),
        ("=", "&eq;"),
        ("*", "&ast;"),
    ):
        name = name.replace(found, written)
    return name
