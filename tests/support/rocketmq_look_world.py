"""A real RocketMQ, our looks at it, and what a hand does there past them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Any

from backstop.brokers.rocketmq.inspect.clock import Clock
from backstop.brokers.rocketmq.inspect.read_progress import ProgressReader
from backstop.brokers.rocketmq.inspect.retries import RetryReader
from backstop.brokers.rocketmq.inspect.schedule import Schedule
from backstop.brokers.rocketmq.routes.route import Routes
from backstop.brokers.rocketmq.wire.address import Address
from backstop.brokers.rocketmq.wire.pool import Pool
from backstop.config.rocketmq_delay_levels import parse_levels
from rocketmq_server import RocketMQ

WAIT = 240.0
_numbers = count()


class World:
    """A server, our looks at it, and what a hand does there past them."""

    def __init__(self, server: RocketMQ, brokers: list[str] | None = None) -> None:
        self.server = server
        self.pool = Pool(Address.parse(server.url()), connect_timeout=10.0)
        routes, clock = Routes(self.pool, brokers=brokers, answer_timeout=10.0), Clock(self.pool)
        levels = parse_levels(server.settings["messageDelayLevel"])
        self.schedule = Schedule(self.pool, clock, levels)
        self.look = ProgressReader(self.pool, routes, clock, self.schedule, seconds=10.0)
        self.retries = RetryReader(self.pool, self.look, self.schedule, seconds=10.0)
        # One for which everything that is scheduled is due at once, so that what is not delivered is late.
        self.hasty = ProgressReader(
            self.pool,
            routes,
            clock,
            Schedule(self.pool, clock, [timedelta(0)] * len(levels)),
            seconds=10.0,
        )

    def close(self) -> None:
        self.pool.close()

    def made(self, queues: int = 1, *groups: str) -> str:
        """A topic of its own, and groups named after it."""
        topic = f"look-{next(_numbers)}"
        self.server.create_topic(topic, queues)
        for group in groups or ("g",):
            self.server.create_group(f"{group}-{topic}")
        return topic

    def send(
        self,
        topic: str,
        number: int = 1,
        *,
        queue: int = 0,
        tags: str = "",
        level: int = 0,
        size: int = 1,
        server: RocketMQ | None = None,
    ) -> list[tuple[str, int]]:
        """(the broker's message id, offset) of each."""
        properties = "".join(
            f"{name}\x01{value}\x02"
            for name, value in {"TAGS": tags, "DELAY": level or ""}.items()
            if value
        )
        sent = []
        for _ in range(number):
            sent.append(self.store(topic, queue, properties, b"x" * size, server))
        if not level:
            self.until(lambda: self.end(topic, queue, server) > sent[-1][1])
        return sent

    def store(
        self,
        topic: str,
        queue: int,
        properties: str = "",
        body: bytes = b"x",
        server: RocketMQ | None = None,
    ) -> tuple[str, int]:
        answer = (server or self.server).ask(
            310,
            {
                "a": "tests",
                "b": topic,
                "c": "TBW102",
                "d": 4,
                "e": queue,
                "f": 0,
                "g": round(time.time() * 1000),
                "h": 0,
                "i": properties,
                "j": 0,
                "k": False,
                "m": False,
            },
            body,
        )
        return answer.ext["msgId"], int(answer.ext["queueOffset"])

    def end(self, topic: str, queue: int = 0, server: RocketMQ | None = None) -> int:
        return int(
            (server or self.server).ask(30, {"topic": topic, "queueId": queue}).ext["offset"]
        )

    def commit(
        self, group: str, topic: str, queue: int, offset: int, server: RocketMQ | None = None
    ) -> None:
        where = {"consumerGroup": group, "topic": topic, "queueId": queue}
        (server or self.server).ask(15, {**where, "commitOffset": offset})

    def send_back(self, group: str, topic: str, message_id: str, level: int) -> None:
        """What a consumer does with a message that it could not process."""
        physical = int(message_id[-16:], 16)
        self.server.ask(
            36,
            {
                "offset": physical,
                "group": group,
                "delayLevel": level,
                "originMsgId": message_id,
                "originTopic": topic,
                "unitMode": False,
                "maxReconsumeTimes": 16,
            },
        )

    def at(self, topic: str, group: str = "g") -> list[tuple[int, int]]:
        """(queue, next offset) as our look tells it."""
        return [
            (one.queue_id, one.next_offset) for one in self.look.progress(topic, f"{group}-{topic}")
        ]

    def until(self, holds: Callable[[], Any], seconds: float = WAIT) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, "it did not come true in time"
            time.sleep(0.05)  # each question costs the broker and us milliseconds of a core
