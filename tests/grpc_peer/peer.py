"""RocketMQ's official Python client in the hands of a test: orders are lines of JSON on the input, answers lines on the output.

It runs in a process of its own, started with -I: its package and the tests' server have one name (`rocketmq`).
"""

from __future__ import annotations

import base64
import json
import sys
import traceback
from typing import Any

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)
from rocketmq.v5.exception import InternalErrorException
from rocketmq.v5.util import Misc

Misc.get_local_ip = staticmethod(
    lambda: "127.0.0.1"
)  # it would ask for a route to the internet with each message
AWAIT_SECONDS = 3
"""Of one receive; with less the proxy answers that it is illegal."""


class Peer:
    def __init__(self, endpoint: str) -> None:
        self._where = ClientConfiguration(endpoint, Credentials(), request_timeout=20)
        self._producer: Any = None
        self._consumers: dict[str, Any] = {}
        self._held: dict[str, Any] = {}

    def send(self, topic: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if self._producer is None:
            self._producer = Producer(self._where, (topic,))
            self._producer.startup()
        return [self._send(topic, **message) for message in messages]

    def _send(
        self,
        topic: str,
        body: str,
        keys: str | None = None,
        tag: str | None = None,
        properties: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        message = Message()
        message.topic, message.body = topic, base64.b64decode(body)
        if keys:
            message.keys = keys
        if tag:
            message.tag = tag
        for name, value in (properties or {}).items():
            message.add_property(name, value)
        receipt = self._producer.send(message)
        return {"message_id": receipt.message_id, "offset": receipt.offset}

    def receive(self, group: str, topic: str, invisible: int) -> list[dict[str, Any]]:
        """What is there now, held for so many seconds; not acknowledged."""
        consumer = self._consumers.get(group)
        if consumer is None:
            consumer = SimpleConsumer(
                self._where, group, {topic: FilterExpression()}, AWAIT_SECONDS
            )
            consumer.startup()
            self._consumers[group] = consumer
        found = []
        try:
            received = consumer.receive(32, invisible)
        except InternalErrorException as early:
            if '"settings" is null' not in str(early):
                raise
            return []  # the proxy has not yet read what the client told it of itself
        for message in received or []:
            self._held[message.message_id] = message
            found.append(
                {
                    "message_id": message.message_id,
                    "body": base64.b64encode(message.body).decode(),
                    "keys": sorted(message.keys),
                    "attempt": message.delivery_attempt,
                    "properties": dict(message.properties),
                    "tag": message.tag,
                }
            )
        return found

    def acknowledge(self, group: str, ids: list[str]) -> None:
        for message_id in ids:
            self._consumers[group].ack(self._held.pop(message_id))


def main() -> None:
    peer = Peer(sys.argv[1])
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = {"answer": getattr(peer, order.pop("do"))(**order)}
        except Exception:  # noqa: BLE001 - the test reads it
            answer = {"error": traceback.format_exc()}
        print("> " + json.dumps(answer), flush=True)


main()
