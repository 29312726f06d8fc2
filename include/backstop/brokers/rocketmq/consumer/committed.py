"""Reads and commits how far the group has got in single queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backstop.brokers.rocketmq.consumer.members import MessageQueue
from backstop.brokers.rocketmq.consumer.process_queue import ProcessQueue
from backstop.brokers.rocketmq.wire.codes import RequestCode, ResponseCode
from backstop.brokers.rocketmq.wire.frames import Answer, Malformed, Request
from backstop.brokers.rocketmq.wire.requests import ask_committed
from backstop.brokers.rocketmq.wire.unavailable import unavailable

AskAll = Callable[[Sequence[tuple[str, Request]], str], list[Answer]]
"""Asks brokers by name; raises BrokerUnavailable when an answer does not come."""


def commit(ask: AskAll, group: str, process_queues: Sequence[ProcessQueue]) -> None:
    """Tells the broker the lowest offset of each queue that is not acknowledged, where it moved. Raises BrokerUnavailable."""
    moved = [
        (process_queue, process_queue.lowest)
        for process_queue in process_queues
        if process_queue.lowest != process_queue.committed
    ]
    requests = [
        (
            process_queue.queue.broker,
            Request(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                {
                    "consumerGroup": group,
                    "topic": process_queue.queue.topic,
                    "queueId": process_queue.queue.number,
                    "commitOffset": lowest,
                },
            ),
        )
        for process_queue, lowest in moved
    ]
    # Until its broker has answered, nobody knows what it has: that is not somebody else's word.
    before = [process_queue.moved for process_queue, _ in moved]
    for process_queue, _ in moved:
        process_queue.moved = True
    refused = None
    for (process_queue, lowest), was_moved, answer in zip(
        moved, before, ask(requests, "acknowledging"), strict=True
    ):
        if answer.code == ResponseCode.SUCCESS:
            process_queue.committed, process_queue.moved = lowest, False
        else:
            process_queue.moved = was_moved
            why = f"{process_queue.queue.broker} says {answer.said()}"
            refused = refused or unavailable("acknowledging", why)
    if refused is not None:
        raise refused


def committed(
    ask: AskAll, group: str, queues: Sequence[MessageQueue], doing: str
) -> list[int | None]:
    """What the broker has for each queue; null: the group never committed there. Raises BrokerUnavailable."""
    requests = [(queue.broker, ask_committed(group, queue.topic, queue.number)) for queue in queues]
    return [
        None if one.code == ResponseCode.QUERY_NOT_FOUND else _offset(one, doing)
        for one in ask(requests, doing)
    ]


def take_queues(
    ask: AskAll, group: str, queues: Sequence[MessageQueue], doing: str
) -> list[ProcessQueue]:
    """Each from where the group is in it; one that never committed begins at the first message, so that nothing is skipped.

    From 0 the first pull leads to the first message that is still there: to ask for it needs a right that consumers may not have.
    """
    offsets = committed(ask, group, queues, doing)
    return [
        ProcessQueue(queue, offset or 0, offset)
        for queue, offset in zip(queues, offsets, strict=True)
    ]


def _offset(answer: Answer, doing: str) -> int:
    if answer.code != ResponseCode.SUCCESS:
        raise unavailable(doing, f"the broker says {answer.said()}")
    try:
        return answer.number("offset")
    except Malformed as error:
        raise unavailable(doing, str(error)) from error
