"""The rights that docs/brokers/rocketmq.md names are enough for each login, and what is missing is said and loses nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from backstop.brokers.rocketmq import RocketMQ
from backstop.brokers.rocketmq.inspect.check_config import WantedGroup, WantedTopic
from backstop.model.errors import BrokerUnavailable
from backstop.model.records import Message, Outcome
from backstop_lab.servers.share_classes import archive
from rocketmq_server import RocketMQ as Server

TOPIC, GROUP = "orders", "billing"
PRODUCER = {f"Topic:{TOPIC}": ["Pub"]}
CONSUMER = {f"Topic:{TOPIC}": ["Sub"], f"Group:{GROUP}": ["Sub", "Get"]}
RESEND = {f"Topic:{TOPIC}": ["Pub"], f"Group:{GROUP}": ["Sub", "Get"]}
DUTIES = {
    f"Topic:{TOPIC}": ["Get", "Sub"],
    f"Group:{GROUP}*": ["Get", "Sub"],
    "Topic:SELF_TEST_TOPIC": ["Get"],
    "Group:BACKSTOP_CLOCK": ["Get"],
    "Topic:SCHEDULE_TOPIC_XXXX": ["Get", "Sub"],
    "Topic:rmq_sys_wheel_timer": ["Get", "Sub"],
    f"Topic:%DLQ%{GROUP}": ["Get", "Sub"],
    "Group:TOOLS_CONSUMER": ["Sub"],
    "Group:BACKSTOP_DRAIN": ["Get", "Sub"],
    "Cluster:DefaultCluster": ["Get"],
}
LOGINS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "producer": PRODUCER,
    "consumer": CONSUMER,
    "resend": RESEND,
    "duties": DUTIES,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("acl") / "server", acl=True) as one:
        one.create_topic(TOPIC, 2)
        for group in (GROUP, "BACKSTOP_DRAIN"):
            one.create_group(group)
        for name, rights in LOGINS.items():
            one.create_user(name, f"secret-of-{name}", rights)
        yield one


def connect(server: Server, login: str, **options: Any) -> RocketMQ:
    return RocketMQ(
        server.url(login, f"secret-of-{login}"),
        delay_levels=server.settings["messageDelayLevel"],
        delivery_limit=2,
        **options,
    )


def test_each_login_does_its_part_with_the_rights_of_the_page_and_no_more(server: Server) -> None:
    with connect(server, "producer") as producer:
        assert [
            one.outcome
            for one in producer.publish([Message(TOPIC, f"m-{n}", b"x") for n in range(4)])
        ] == [Outcome.SENT] * 4
    consumer = connect(server, "consumer")
    with consumer.subscribe(GROUP, [TOPIC], "one") as subscription:
        received = []
        while len(received) < 4:
            received += subscription.fetch(4, timedelta(seconds=1))
        subscription.acknowledge(received[:3])
        subscription.hand_back(received[3], after=timedelta(0), counts=True)
        with connect(server, "resend") as resend:
            [copy] = resend.publish([Message(TOPIC, "m-4", b"x")], group=GROUP)
            assert copy.outcome is Outcome.SENT, copy.error
        again = []
        while len(again) < 2:
            again += subscription.fetch(4, timedelta(seconds=1))
        assert {one.message.message_id for one in again} == {received[3].message.message_id, "m-4"}
        [failed] = [one for one in again if one.message.message_id != "m-4"]
        subscription.hand_back(failed, after=timedelta(0), counts=True)  # to the dead letters
        subscription.acknowledge([one for one in again if one is not failed])
        with connect(server, "duties") as duties:
            assert duties.holders(TOPIC, GROUP)
    consumer.close()
    wanted = {
        TOPIC: WantedTopic(
            timedelta(hours=1),
            {
                GROUP: WantedGroup(None, True, timedelta(hours=9), timedelta(0), delivery_limit=2),
            },
        )
    }
    with connect(server, "duties", wanted=wanted) as duties:
        duties.clock()
        assert sum(one.next_offset for one in duties.queues(TOPIC)) == 4
        assert sum(one.next_offset for one in duties.progress(TOPIC, GROUP)) == 4
        assert duties.retry_pending(TOPIC, GROUP) == 0
        deadline = time.monotonic() + 60
        while not list(duties.dead_letters(GROUP)):  # the broker shows it a moment later
            assert time.monotonic() < deadline
        [queue] = duties.dead_letter_queues([GROUP])
        with duties.open_dead_letters(queue) as reader:
            [letter] = reader.read(10)
            assert (
                letter.message_id == received[3].message.message_id and letter.position is not None
            )
            reader.acknowledge([letter])
        assert list(duties.dead_letters(GROUP)) == []
        unread = [
            finding for finding in duties.durability([TOPIC]) if "may not read" in finding.says
        ]
        assert not unread, unread


def test_what_is_missing_is_said_and_nothing_is_taken_for_granted(server: Server) -> None:
    with connect(server, "producer") as producer:
        for look in (
            lambda: producer.progress(TOPIC, GROUP),
            lambda: producer.retry_pending(TOPIC, GROUP),
        ):
            with pytest.raises(BrokerUnavailable, match="NO_PERMISSION"):
                look()
        [copy] = producer.publish([Message(TOPIC, "m-9", b"x")], group=GROUP)
        assert (
            copy.outcome is Outcome.REFUSED
            and not copy.refused_for_good
            and "NO_PERMISSION" in (copy.error or "")
        )
    with connect(server, "duties") as duties:
        [refused] = duties.publish([Message(TOPIC, "m-9", b"x")])
        assert refused.outcome is Outcome.REFUSED and not refused.refused_for_good


def test_broker_and_name_server_run_on_the_classes_that_make_rocketmq_kept(server: Server) -> None:
    for pid in (server.pid, server.namesrv_pid):
        assert archive("rocketmq").name in Path(f"/proc/{pid}/maps").read_text()
