"""Handles what a broker sends to a consumer by itself: members came or went, offsets were reset, an administrator asks what it does.

Refers to the consumer weakly, so that one that is dropped without being closed is gone, and its queues go to the others.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable

from backstop.brokers.rocketmq.consumer.members import MessageQueue
from backstop.brokers.rocketmq.wire import fastjson
from backstop.brokers.rocketmq.wire.codes import RequestCode, ResponseCode
from backstop.brokers.rocketmq.wire.frames import Command, Malformed, Request

RunningInfo = Callable[[], bytes]
log = logging.getLogger(__name__)


class PushHandler:
    """What a broker sent and the consumer has not acted on yet."""

    def __init__(self) -> None:
        self.members_changed = True
        """The group's members may have changed: nothing is known at the beginning."""
        self._resets: list[tuple[MessageQueue, int]] = []
        self._running_info: weakref.WeakMethod[RunningInfo] | None = None

    def answer_with(self, running_info: RunningInfo) -> None:
        """The method that gives the body for an administrator who asks what this consumer is doing."""
        self._running_info = weakref.WeakMethod(running_info)

    def take_resets(self) -> list[tuple[MessageQueue, int]]:
        """(queue, offset) of each that somebody set, once."""
        resets, self._resets = self._resets, []
        return resets

    def handle(self, command: Command) -> Request | None:
        """The answer for a broker that wants one; None: we do not do that."""
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self.members_changed = True
        elif command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            return self._reset(command)
        elif command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            running_info = self._running_info() if self._running_info is not None else None
            if running_info is not None:
                return Request(ResponseCode.SUCCESS, body=running_info())
        return None

    def _reset(self, command: Command) -> Request:
        try:
            table = command.json()["offsetTable"]
            named = [(fastjson.members(key), int(offset)) for key, offset in table.items()]
            self._resets += [
                (MessageQueue(queue["topic"], queue["brokerName"], int(queue["queueId"])), offset)
                for queue, offset in named
            ]
        except (Malformed, KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning(
                "Somebody reset offsets of our group in a way that cannot be read, and nothing was reset: %s",
                error,
            )
            return Request(ResponseCode.INVALID_PARAMETER)
        return Request(ResponseCode.SUCCESS)
