"""RocketMQ's names, queue numbers and properties: whatever ours hold comes back, and two of ours are never one of theirs."""

from __future__ import annotations

import json
import multiprocessing
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backstop.brokers.rocketmq.message import properties as props
from backstop.brokers.rocketmq.message.names import (
    MAX_GROUP,
    MAX_TOPIC,
    QUEUES_OF_A_BROKER,
    dead_letter_topic,
    decode,
    encode_group,
    encode_topic,
    group_of_dead_letters,
    pop_retry_topics,
    queue_number,
    retry_topic,
    topic_of_retry,
)
from backstop.brokers.rocketmq.message.properties import (
    BROKERS_OWN,
    MAX_PROPERTIES,
    brokers_properties,
    message_of,
    next_unique_key,
    own_headers,
    partition_key_of,
    properties_of,
    tag_of,
    write_properties,
)
from backstop.brokers.rocketmq.message.stored import Stored, read_properties
from backstop.model.errors import ConfigurationError, ContractBroken
from backstop.model.records import ID_HEADER, Message

ANY = st.characters(blacklist_categories=["Cs"])
NAME = st.text(ANY | st.sampled_from("%|+_DLQRETY0aF"), min_size=1, max_size=10) | st.sampled_from(
    [
        "%RETRY%g",
        "%DLQ%g",
        "TBW102",
        "rmq_sys_x",
        "SCHEDULE_TOPIC_XXXX",
        "MQ_INST%orders",
        "100%25",
        "%%41",
        "%c3%a9",
        "%C3%A9",
    ]
)
TEXT = st.text(ANY | st.sampled_from("\x00\x01\x02 "), max_size=20)
NOW = datetime(2030, 1, 1, tzinfo=UTC)


@settings(deadline=None, max_examples=300)
@given(NAME, NAME)
def test_a_name_is_rocketmqs_and_comes_back_and_is_nobody_elses(one: str, other: str) -> None:
    for name in (one, other):
        assert re.fullmatch(r"[%|a-zA-Z0-9_-]{1,120}", encode_topic(name))
        assert decode(encode_topic(name)) == decode(encode_group(name)) == name
        assert group_of_dead_letters(dead_letter_topic(name)) == name
        for retry in pop_retry_topics(name, other):
            assert retry.startswith(retry_topic(name)) and topic_of_retry(retry, name) == other
        assert (
            topic_of_retry(retry_topic(name), name) is None
            and group_of_dead_letters(retry_topic(name)) is None
        )
    assert (encode_topic(one) == encode_topic(other)) == (one == other)
    theirs = {encode_topic(one), retry_topic(one), dead_letter_topic(one)}
    assert len(theirs) == 3, "a topic is never the retry topic of a group"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("orders", "orders"),
        ("a.b:c", "a%2Eb%3Ac"),
        ("MQ_INST_1%orders", "MQ_INST_1%orders"),
        ("50%25", "50%2525"),
        ("a|b", "a|b"),
        ("ü", "%C3%BC"),
        ("TBW102", "%54BW102"),
        ("TBW1023", "TBW1023"),
        ("%RETRY%x", "%25RETRY%x"),
        ("rmq_sys_a", "%72mq_sys_a"),
    ],
)
def test_names_that_rocketmq_takes_stay_as_they_are_and_its_own_are_never_ours(
    ours: str, theirs: str
) -> None:
    assert (encode_topic(ours), decode(theirs)) == (theirs, ours)


@pytest.mark.parametrize(
    "foreign", ["a%zz", "%", "a%2", "%ff%fe", "%c3%bc", "%41", "TBW102", "%RETRY%x"]
)
def test_a_name_that_we_would_not_have_written_so_stays_as_it_is(foreign: str) -> None:
    assert decode(foreign) == foreign


def test_what_cannot_be_a_name_there_is_refused() -> None:
    assert (
        len(encode_topic("t" * MAX_TOPIC)) == MAX_TOPIC
        and len(retry_topic("g" * MAX_GROUP)) == MAX_TOPIC
    )
    for encode, wrong in (
        (encode_topic, ""),
        (encode_topic, "t" * (MAX_TOPIC + 1)),
        (encode_group, "g" * (MAX_GROUP + 1)),
        (encode_topic, "ü" * 22),
        (encode_topic, "\ud800"),
    ):
        with pytest.raises(ContractBroken) as raised:
            encode(wrong)
        assert raised.value.what and raised.value.unaffected and raised.value.next_step


@given(st.integers(0, 50), st.integers(0, 9_999))
def test_a_queues_number_tells_its_broker_and_its_place(broker: int, queue: int) -> None:
    brokers = tuple(f"b-{i}" for i in range(51))
    number = queue_number(f"b-{broker}", queue, brokers)
    assert divmod(number, QUEUES_OF_A_BROKER) == (broker, queue)
    assert queue_number("whatever", queue, None) == queue


def test_a_broker_that_the_settings_do_not_name_has_no_number() -> None:
    with pytest.raises(ConfigurationError, match="broker-c"):
        queue_number("broker-c", 0, ("broker-a", "broker-b"))


def stored(properties: dict[str, str], content: bytes | None = b"x") -> Stored:
    """`content` null: one that cannot be read."""
    body, crc = (b"x", 7) if content is None else (content, None)
    return Stored("t", 0, 0, 0, "127.0.0.1:1", "", NOW, NOW, 0, 0, 0, body, crc, properties)


@settings(deadline=None, max_examples=300)
@given(
    TEXT.filter(bool),
    st.binary(max_size=20),
    st.dictionaries(
        TEXT
        | st.sampled_from(
            [*sorted(BROKERS_OWN), "TIMER_OUT_MS", "backstop-tag", "backstop-headers"]
        ),
        TEXT,
    ),
    st.none() | TEXT | st.sampled_from(["*", "a||b", "tag"]),
    st.none() | TEXT,
)
def test_a_message_survives_its_properties(
    message_id: str, content: bytes, headers: dict[str, str], tag: str | None, key: str | None
) -> None:
    written = properties_of(
        Message("orders", message_id, content, headers, tag, key), unique_key="F" * 32
    )
    came = read_properties(write_properties(written))
    assert came == written, "nothing in it parts properties"
    assert all(came.values()), "the broker drops what is empty"
    assert set(brokers_properties(came)) <= {"UNIQ_KEY", "WAIT", "KEYS", "TAGS", "__SHARDINGKEY"}, (
        "no header is the broker's"
    )
    expected = Message("orders", message_id, content, {**headers, ID_HEADER: message_id}, tag, key)
    assert message_of(stored(came, content), "orders") == expected
    assert (tag_of(came), partition_key_of(came)) == (tag, key)
    assert ("KEYS" in came) == (not re.search(r"[\s\x00-\x20]", message_id))


def test_what_other_clients_wrote_is_told_apart_from_what_the_producer_wrote() -> None:
    came = {
        "UNIQ_KEY": "1",
        "WAIT": "true",
        "TIMER_OUT_MS": "3",
        "__RMQ.TRANSIENT.X": "1",
        "mine": "a",
        "TAGS": "t",
        "backstop-headers": "{}",
        ID_HEADER: "7",
        "DELAY": "3",
    }
    assert own_headers(came) == {"mine": "a", ID_HEADER: "7"}
    assert set(brokers_properties(came)) == {
        "UNIQ_KEY",
        "WAIT",
        "TIMER_OUT_MS",
        "__RMQ.TRANSIENT.X",
        "TAGS",
        "DELAY",
    }


@pytest.mark.parametrize("wrong", ["x", "3", "[1]", '{"a":', "[" * 100_000, "9" * 5000, '{"a":1}'])
def test_a_foreign_text_in_a_property_of_ours_stops_nobody(wrong: str) -> None:
    message = message_of(
        stored({"backstop-headers": wrong, "backstop-tag": wrong, ID_HEADER: "1"}), "t"
    )
    assert message is not None
    assert (message.headers, message.tag) == ({ID_HEADER: "1"}, wrong)


def test_what_cannot_be_read_is_no_message_and_one_without_an_id_has_none() -> None:
    assert "checksum" in str(message_of(stored({ID_HEADER: "1"}, None), "t"))
    assert message_of(stored({}), "t") == Message("t", "", b"x")


def test_a_message_that_breaks_the_contract_is_refused() -> None:
    bad: Any = {"n": 1}
    for message in (Message("t", "", b""), Message("t", "1", b"", bad)):
        with pytest.raises(ContractBroken):
            properties_of(message)
    for message in (
        Message("t", "\ud800", b""),
        Message("t", "1", b"", {"a": "\ud800"}),
        Message("t", "1", b"", tag="\udfff"),
    ):
        with pytest.raises(UnicodeEncodeError):
            properties_of(message)


def test_properties_that_a_message_cannot_keep_are_refused() -> None:
    room = (
        MAX_PROPERTIES
        - len(write_properties(properties_of(Message("t", "1", b"", {"a": "x"}))))
        + 1
    )
    assert write_properties(properties_of(Message("t", "1", b"", {"a": "x" * room})))
    for text in ("x" * (room + 1), "ü" * (room // 2 + 1)):
        with pytest.raises(ContractBroken):
            write_properties(properties_of(Message("t", "1", b"", {"a": text})))


def test_tags_that_a_subscription_can_name_are_rocketmqs_own() -> None:
    assert properties_of(Message("t", "1", b"", tag="größe"))["TAGS"] == "größe"
    for tag in ("*", "a b", "a||b", "a|b", "", " a", "a\x01"):
        written = properties_of(Message("t", "1", b"", tag=tag))
        assert "TAGS" not in written and json.loads(written["backstop-tag"]) == tag


def _some_keys(number: int) -> list[str]:
    return [next_unique_key() for _ in range(number)]


def test_unique_keys_are_unique_over_threads_and_forked_processes_and_tell_their_time() -> None:
    with ThreadPoolExecutor(4) as threads:
        keys = [key for some in threads.map(_some_keys, [5_000] * 4) for key in some]
    with multiprocessing.get_context("fork").Pool(2) as processes:
        keys += [
            key for some in processes.map(_some_keys, [5_000] * 4, chunksize=1) for key in some
        ]
    assert len(set(keys)) == len(keys) == 40_000
    assert all(re.fullmatch(r"[0-9A-F]{32}", key) for key in keys)
    month = datetime.now().replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    told = month.timestamp() + int(keys[-1][20:28], 16) / 1000
    assert abs(told - datetime.now().timestamp()) < 60


@pytest.mark.parametrize(
    ("now", "begun", "over"),
    [
        ((2030, 1, 15), (2030, 1, 1), (2030, 2, 1)),
        ((2030, 12, 31), (2030, 12, 1), (2031, 1, 1)),
        ((2032, 2, 29), (2032, 2, 1), (2032, 3, 1)),
        ((2030, 11, 1), (2030, 11, 1), (2030, 12, 1)),
    ],
)
def test_the_month_of_a_key_begins_on_its_first_day(
    now: tuple[int, int, int], begun: tuple[int, int, int], over: tuple[int, int, int]
) -> None:
    assert props._month_of(datetime(*now).timestamp()) == (
        datetime(*begun).timestamp(),
        datetime(*over).timestamp(),
    )
