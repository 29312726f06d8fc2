"""Names of RocketMQ's topics and groups for ours, and one number for each queue of a topic.

Ours may hold any character; RocketMQ takes letters, digits and `%`, `|`, `_`, `-`. The others are percent-encoded, and so is a
`%` that would read as an encoding. Thus a namespace (`MQ_INST%orders`) is written as it is.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from backstop.model.errors import ConfigurationError, ContractBroken

MAX_TOPIC, MAX_GROUP = 127, 120
"""A group's retry topic, %RETRY% and its name, must fit into a topic's length: else the broker could not keep what failed."""
RETRY, DEAD_LETTERS = "%RETRY%", "%DLQ%"
QUEUES_OF_A_BROKER = 10_000
_TO_ENCODE = re.compile(r"[^%|A-Za-z0-9_-]|%(?=[0-9A-Fa-f]{2})")
_ENCODED = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_THEIRS = re.compile(
    r"%RETRY%|%DLQ%|%LMQ%|rmq_sys_|RMQ_SYS_|CID_RMQ_SYS_|"
    r"(?:TBW102|SCHEDULE_TOPIC_XXXX(?:_V2)?|BenchmarkTest|TRANS_CHECK_MAX_TIME_TOPIC|SELF_TEST_TOPIC|OFFSET_MOVED_EVENT|"
    r"DEFAULT_CONSUMER|DEFAULT_PRODUCER|TOOLS_CONSUMER|SCHEDULE_CONSUMER|FILTERSRV_CONSUMER|__MONITOR_CONSUMER|"
    r"CLIENT_INNER_PRODUCER|SELF_TEST_P_GROUP|SELF_TEST_C_GROUP)\Z"
)
"""RocketMQ's own: a name of ours that is one of these gets its first character encoded."""


def encode_topic(topic: str) -> str:
    """RocketMQ's name for a topic of ours. Raises ContractBroken."""
    return _fitting("topic", topic, MAX_TOPIC)


def encode_group(group: str) -> str:
    """RocketMQ's name for a group of ours. Raises ContractBroken."""
    return _fitting("group", group, MAX_GROUP)


def decode(name: str) -> str:
    """Our name for RocketMQ's. One that we would not have written so stays as it is."""
    plain = (
        _ENCODED.sub(lambda found: unquote(found.group(), errors="strict"), name)
        if _decodable(name)
        else name
    )
    return plain if _encoded(plain) == name else name


def retry_topic(group: str) -> str:
    """Where messages wait that come to this group (ours) again."""
    return RETRY + encode_group(group)


def pop_retry_topics(group: str, topic: str) -> tuple[str, str]:
    """The same for consumers that POP, by either version of the name."""
    return (
        f"{retry_topic(group)}_{encode_topic(topic)}",
        f"{retry_topic(group)}+{encode_topic(topic)}",
    )


def dead_letter_topic(group: str) -> str:
    """Where the group's dead letters lie."""
    return DEAD_LETTERS + encode_group(group)


def group_of_dead_letters(name: str) -> str | None:
    """The group (ours) whose dead letters RocketMQ's topic holds; null: it is no such topic."""
    return decode(name.removeprefix(DEAD_LETTERS)) if name.startswith(DEAD_LETTERS) else None


def topic_of_retry(name: str, group: str) -> str | None:
    """The topic (ours) that a POP retry topic of this group is for; null: it is none of those."""
    for sign in "+_":
        start = f"{retry_topic(group)}{sign}"
        if name.startswith(start) and len(name) > len(start):
            return decode(name.removeprefix(start))
    return None


def queue_number(broker: str, queue_id: int, brokers: tuple[str, ...] | None) -> int:
    """One number for (broker, queue): `brokers` are all broker names in their order; null: there is only one."""
    if brokers is None:
        return queue_id
    if broker not in brokers:
        raise ConfigurationError(
            f"The broker {broker!r} is not among the brokers of the settings.",
            unaffected="Nothing was sent, and nothing was decided without its queues.",
            next_step="Append it to the option `brokers` (never change the order: the queues are numbered by it).",
        )
    return brokers.index(broker) * QUEUES_OF_A_BROKER + queue_id


def _fitting(kind: str, name: str, longest: int) -> str:
    try:
        encoded = _encoded(name)
    except UnicodeEncodeError:
        encoded = ""
    if not 0 < len(encoded) <= longest:
        raise ContractBroken(
            f"{name[:200]!r} cannot name a {kind} of RocketMQ: its name there would have {len(encoded)} characters.",
            unaffected="Nothing was stored or sent under it.",
            next_step=f"Use a name of valid Unicode with 1 to {longest} characters; each byte of another character than a "
            "letter, a digit, '%', '|', '_' or '-' counts as three.",
        )
    return encoded


def _encoded(name: str) -> str:
    written = _TO_ENCODE.sub(
        lambda found: "".join(f"%{byte:02X}" for byte in found.group().encode()), name
    )
    return f"%{ord(name[0]):02X}{written[1:]}" if _THEIRS.match(name) else written


def _decodable(name: str) -> bool:
    try:
        for found in _ENCODED.finditer(name):
            unquote(found.group(), errors="strict")
    except UnicodeDecodeError:
        return False
    return True
