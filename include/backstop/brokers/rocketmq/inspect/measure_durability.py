"""Asks every master, topic and group what it is set to, and holds it against the settings: facts, one a line."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from backstop.brokers.protocol import Finding
from backstop.brokers.rocketmq.inspect.check_config import (
    Consumers,
    WantedTopic,
    check_broker,
    check_group,
    check_permissions,
    check_progress,
    check_retries,
    check_subscription,
)
from backstop.brokers.rocketmq.inspect.locks import running_infos
from backstop.brokers.rocketmq.message.names import encode_group, encode_topic, pop_retry_topics
from backstop.brokers.rocketmq.routes.group_configs import Configs, group_configs
from backstop.brokers.rocketmq.routes.route import NoSuchTopic, Routes
from backstop.brokers.rocketmq.wire.codes import RequestCode, ResponseCode
from backstop.brokers.rocketmq.wire.frames import Answer, Malformed, Request
from backstop.brokers.rocketmq.wire.pool import Pool
from backstop.brokers.rocketmq.wire.require_answers import require_answers
from backstop.brokers.rocketmq.wire.unavailable import unavailable
from backstop.model.errors import ConfigurationError, ContractBroken


class ConfigReader:
    """Looks at what the server is set to, for one adapter. Raises BrokerUnavailable."""

    def __init__(
        self,
        pool: Pool,
        routes: Routes,
        wanted: Mapping[str, WantedTopic],
        *,
        levels: str,
        max_bytes: int,
        seconds: float,
    ) -> None:
        """`levels`: messageDelayLevel as the settings have it; `max_bytes`: the largest message."""
        self._pool, self._routes, self._wanted, self._seconds = pool, routes, wanted, seconds
        self._levels, self._max_bytes = levels, max_bytes

    def survey(self, topics: Sequence[str]) -> list[Finding]:
        deadline = time.monotonic() + self._seconds
        masters = self._routes.masters(deadline=deadline)
        findings = [
            Finding(
                f"{broker}: master",
                False,
                "the name servers know it, and no master of it",
                "Start its master: until then nothing of its topics is read.",
            )
            for broker, master in sorted(masters.items())
            if master is None
        ]
        there = {broker: master for broker, master in sorted(masters.items()) if master is not None}
        asked = [(master, Request(RequestCode.GET_BROKER_CONFIG)) for master in there.values()]
        answers = require_answers(
            self._pool,
            asked,
            deadline,
            "reading its configuration",
            also=(ResponseCode.NO_PERMISSION,),
        )
        retention = max(
            (self._wanted[topic].retention for topic in topics if topic in self._wanted),
            default=None,
        )
        for broker, answer in zip(there, answers, strict=True):
            if answer.code == ResponseCode.NO_PERMISSION:
                findings.append(_unread(f"{broker}: configuration"))
                continue
            config = _lines(answer)
            findings += check_broker(broker, config, retention, self._levels, self._max_bytes)
        for topic in topics:
            findings.append(self._topic(topic, deadline))
        groups: dict[str, list[str]] = {}
        for topic in filter(_can_be, topics):
            for group in self._wanted[topic].groups if topic in self._wanted else ():
                groups.setdefault(group, []).append(topic)
        addresses = sorted(there.values())
        configs = (
            group_configs(self._pool, addresses, deadline, "reading its groups") if groups else []
        )
        for group, its in sorted(groups.items()):
            findings += self._group(
                group, its, dict(zip(addresses, configs, strict=True)), deadline
            )
        return findings

    def _topic(self, topic: str, deadline: float) -> Finding:
        subject = f"topic {topic}"
        try:
            route = self._routes.route(encode_topic(topic), deadline=deadline, fresh=True)
        except NoSuchTopic:
            return Finding(
                subject,
                False,
                "it is not there",
                "Make it on every master (mqadmin updateTopic), then check again.",
            )
        except (ContractBroken, ConfigurationError) as error:
            return Finding(subject, False, error.what, error.next_step)
        queues: dict[str, tuple[int, int]] = {}
        for queue in route.queues:
            read, written = queues.get(queue.broker, (0, 0))
            queues[queue.broker] = (read + queue.readable, written + queue.writable)
        return check_permissions(
            topic, queues, [broker for broker, master in route.masters.items() if master is None]
        )

    def _group(
        self,
        group: str,
        topics: Sequence[str],
        configs: Mapping[str, Configs | None],
        deadline: float,
    ) -> list[Finding]:
        """What one group is set to on each master, and what its consumers that are connected subscribe to."""
        subject = f"group {group}"
        try:
            name = encode_group(group)
        except ContractBroken as error:
            return [Finding(subject, False, error.what, error.next_step)]
        found: dict[str, dict[str, Any]] = {}
        for to, readable in configs.items():
            if readable is None:
                return [_unread(subject)]
            if name in readable:
                found[to] = readable[name]
        if missing := sorted(configs.keys() - found.keys()):
            do = "Make it on every master (mqadmin updateSubGroup), then check again."
            return [Finding(subject, False, f"it is not there at {', '.join(missing)}", do)]
        findings = [check_group(group, found)]
        retries = sorted(int(one.get("retryMaxTimes", 16)) for one in found.values())
        most, fewest = (retries[-1], retries[0]) if retries else (None, None)
        policies = [self._wanted[topic].groups[group] for topic in topics]
        tightest = min(policies, key=lambda one: one.retries_at_most)
        findings.append(check_retries(group, self._levels, most, tightest, fewest))
        consumers = self._consumers(group, name, topics, sorted(configs), deadline)
        findings.append(check_progress(group, consumers, any(one.acknowledged for one in policies)))
        for topic, one in zip(topics, policies, strict=True):
            findings.append(
                check_subscription(group, topic, consumers.expressions(encode_topic(topic)), one)
            )
        return findings

    def _consumers(
        self, group: str, name: str, topics: Sequence[str], masters: Sequence[str], deadline: float
    ) -> Consumers:
        request = Request(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": name})
        doing = f"reading who consumes as {name}"
        also = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.GROUP_NOT_EXIST)
        answers = require_answers(
            self._pool, [(to, request) for to in masters], deadline, doing, also=also
        )
        clients: set[str] = set()
        subscriptions: dict[str, set[str]] = {}
        try:
            for answer in answers:
                if answer.code != ResponseCode.SUCCESS:
                    continue
                found = _object(answer, doing)
                clients |= {str(one["clientId"]) for one in found.get("connectionSet") or ()}
                for topic, one in (found.get("subscriptionTable") or {}).items():
                    text = str(one.get("subString", "*"))
                    kind = str(one.get("expressionType") or "TAG")
                    subscriptions.setdefault(str(topic), set()).add(
                        text if kind == "TAG" else f"{kind}: {text}"
                    )
        except (KeyError, TypeError, AttributeError) as error:
            raise unavailable(
                doing, f"an answer that cannot be read: {type(error).__name__}: {error}"
            ) from error
        infos = running_infos(self._pool, group, {at: at for at in masters}, doing, deadline)
        pops = (
            ["a consumer reports it"]
            if any(info and info.get("mqPopTable") for info in infos.values())
            else []
        )
        for retry in (one for topic in topics for one in pop_retry_topics(group, topic)):
            try:
                self._routes.route(retry, deadline=deadline)
            except NoSuchTopic:
                continue
            pops.append(f"there is a topic {retry}")
        return Consumers(
            len(clients), subscriptions, pops, sum(info is None for info in infos.values())
        )


def _can_be(topic: str) -> bool:
    """Whether RocketMQ can have the name; else the topic's own finding says so."""
    try:
        encode_topic(topic)
    except ContractBroken:
        return False
    return True


def _lines(answer: Answer) -> dict[str, str]:
    """A body of properties."""
    lines = (line.partition("=") for line in answer.body.decode(errors="replace").splitlines())
    return {name.strip(): value.strip() for name, equals, value in lines if equals}


def _object(answer: Answer, doing: str) -> dict[str, Any]:
    try:
        found = answer.json()
    except Malformed as error:
        raise unavailable(doing, str(error)) from error
    if not isinstance(found, dict):
        raise unavailable(doing, "an answer that is not an object")
    return found


def _unread(subject: str) -> Finding:
    return Finding(
        subject,
        False,
        "this login may not read it, so it is not known",
        "Grant it Get on the cluster and on its groups, or check the server by hand.",
    )
