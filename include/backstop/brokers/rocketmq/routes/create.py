"""Makes topics and groups on every master, and deletes topics: what operators do elsewhere, for the demo and the tests."""

from __future__ import annotations

import json
import time
from typing import Literal

from backstop.brokers.rocketmq.message.names import encode_group, encode_topic
from backstop.brokers.rocketmq.routes.group_configs import group_configs
from backstop.brokers.rocketmq.routes.route import NoSuchTopic, Routes
from backstop.brokers.rocketmq.wire.codes import RequestCode, ResponseCode
from backstop.brokers.rocketmq.wire.frames import Malformed, Request
from backstop.brokers.rocketmq.wire.pool import Pool
from backstop.brokers.rocketmq.wire.requests import ask_committed
from backstop.brokers.rocketmq.wire.require_answers import require_answers
from backstop.brokers.rocketmq.wire.unavailable import unavailable

_READ_AND_WRITE = 6


class Creator:
    """Administers for one adapter. Raises BrokerUnavailable; what is there already stays."""

    def __init__(self, pool: Pool, routes: Routes, *, seconds: float, retries: int) -> None:
        """`retries`: how often the broker delivers again to consumers that do not say how often."""
        self._pool, self._routes, self._seconds, self._retries = pool, routes, seconds, retries

    def topic(self, topic: str, queues: int) -> None:
        """Makes it with so many queues on each master; queues can be added. Returns when the name servers tell of them."""
        name, deadline = encode_topic(topic), time.monotonic() + self._seconds
        masters = self._masters()
        try:
            there = {
                queue.broker
                for queue in self._routes.route(name, fresh=True).queues
                if queue.queue_id >= queues - 1
            }
        except NoSuchTopic:
            there = set()
        request = Request(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            {
                "topic": name,
                "defaultTopic": "TBW102",
                "readQueueNums": queues,
                "writeQueueNums": queues,
                "perm": _READ_AND_WRITE,
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0,
                "order": False,
                "attributes": "",
            },
        )
        self._ask(
            f"making the topic {name}",
            {at for broker, at in masters.items() if broker not in there},
            request,
        )
        while not self._known(name, queues, len(masters)):
            if time.monotonic() >= deadline:
                raise unavailable(f"making the topic {name}", "the name servers do not know it")
            time.sleep(0.01)  # nobody tells when a name server knows: it is asked

    def group(self, group: str, topic: str, at: Literal["start", "end"]) -> None:
        """Makes it, and says where it begins in each queue of the topic in which it has committed nothing."""
        name, to = encode_group(group), encode_topic(topic)
        doing = f"making the group {name}"
        # As it was made, if it is there: changing it is an operator's business.
        masters = sorted(set(self._masters().values()))
        known = group_configs(self._pool, masters, self._by(), doing)
        if any(groups is None for groups in known):
            raise unavailable(
                doing,
                "this login may not read which groups there are, and an existing one is not to be changed",
            )
        missing = {
            master
            for master, groups in zip(masters, known, strict=True)
            if name not in (groups or {})
        }
        self._ask(
            doing,
            missing,
            Request(
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                body=json.dumps(
                    {
                        "groupName": name,
                        "consumeEnable": True,
                        "consumeFromMinEnable": at == "start",
                        "consumeBroadcastEnable": False,
                        "consumeMessageOrderly": False,
                        "retryQueueNums": 1,
                        "retryMaxTimes": self._retries,
                        "brokerId": 0,
                        "whichBrokerWhenConsumeSlowly": 1,
                        "notifyConsumerIdsChangedEnable": True,
                    }
                ).encode(),
            ),
        )
        try:
            route = self._routes.route(to, fresh=True)
        except NoSuchTopic as error:
            raise unavailable(doing, f"there is no topic {topic!r}") from error
        queues = route.complete(doing)
        begins = RequestCode.GET_MIN_OFFSET if at == "start" else RequestCode.GET_MAX_OFFSET
        requests = []
        for queue, master in queues:
            requests.append((master, ask_committed(name, to, queue.queue_id)))
            requests.append((master, Request(begins, {"topic": to, "queueId": queue.queue_id})))
        answers = require_answers(
            self._pool, requests, self._by(), doing, also=(ResponseCode.QUERY_NOT_FOUND,)
        )
        try:
            commits = [
                (
                    master,
                    Request(
                        RequestCode.UPDATE_CONSUMER_OFFSET,
                        {
                            "consumerGroup": name,
                            "topic": to,
                            "queueId": queue.queue_id,
                            "commitOffset": begin.number("offset"),
                        },
                    ),
                )
                for (queue, master), committed, begin in zip(
                    queues, answers[::2], answers[1::2], strict=True
                )
                if committed.code == ResponseCode.QUERY_NOT_FOUND
            ]
        except Malformed as error:
            raise unavailable(doing, str(error)) from error
        require_answers(self._pool, commits, self._by(), doing)

    def delete_topic(self, topic: str) -> None:
        """With all its queues hold, and how far its groups have got; what groups have in retry and dead letters stays."""
        name = encode_topic(topic)
        doing = f"deleting the topic {name}"
        self._ask(
            doing,
            set(self._masters().values()),
            Request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name}),
        )
        self._ask(
            doing,
            set(self._pool.address.namesrvs),
            Request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": name}),
        )
        self._routes.forget(name)

    def _known(self, name: str, queues: int, masters: int) -> bool:
        try:
            route = self._routes.route(name, fresh=True)
        except NoSuchTopic:
            return False
        return (
            len({queue.broker for queue in route.queues if queue.queue_id >= queues - 1}) == masters
        )

    def _masters(self) -> dict[str, str]:
        masters = self._routes.masters()
        away = [broker for broker, master in masters.items() if master is None]
        if away:
            raise unavailable(
                "looking for the masters", f"the master of the broker {', '.join(away)} is away"
            )
        return {broker: master for broker, master in masters.items() if master is not None}

    def _ask(self, doing: str, servers: set[str], request: Request) -> None:
        require_answers(self._pool, [(to, request) for to in sorted(servers)], self._by(), doing)

    def _by(self) -> float:
        return time.monotonic() + self._seconds
