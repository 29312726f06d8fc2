"""The request and answer codes of the remoting protocol that are used here, each with its word."""

from __future__ import annotations

from enum import IntEnum


class Ask(IntEnum):
    """What a request asks for."""

    PULL = 11
    QUERY_BY_KEY = 12
    COMMITTED = 14
    COMMIT = 15
    CREATE_TOPIC = 17
    CHANGE_BROKER_CONFIG = 25
    BROKER_CONFIG = 26
    BROKER_RUNTIME = 28
    NEXT_OFFSET = 30
    FIRST_OFFSET = 31
    VIEW_MESSAGE = 33
    HEARTBEAT = 34
    UNREGISTER = 35
    SEND_BACK = 36
    CONSUMER_IDS = 38
    CONSUMER_IDS_CHANGED = 40
    """From the broker: a member of the group came or went."""
    DELAY_OFFSETS = 45
    ROUTE = 105
    CLUSTER = 106
    CREATE_GROUP = 200
    ALL_GROUPS = 201
    TOPIC_STATS = 202
    CONSUMER_CONNECTIONS = 203
    DELETE_TOPIC = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    RESET_CLIENT_OFFSETS = 220
    """From the broker: somebody set the group's offsets."""
    RESET_OFFSETS = 222
    CONSUME_TIME_SPAN = 303
    RUNNING_INFO = 307
    """To a consumer, by way of the broker."""
    SEND = 310
    SEND_BATCH = 320
    """See batch.py."""
    TOPIC_CONFIG = 351


class Said(IntEnum):
    """What an answer says."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    GROUP_NOT_EXIST = 26
    INVALID_PARAMETER = 29
    CONSUMER_NOT_ONLINE = 206
    CONSUME_TIMEOUT = 207
    FLOW_CONTROL = 215
    NOT_LEADER_FOR_QUEUE = 501
    GO_AWAY = 1500


def word(code: int) -> str:
    """TOPIC_NOT_EXIST (17); the bare number of a code that is not used here."""
    try:
        return f"{Said(code).name} ({code})"
    except ValueError:
        return f"code {code}"
