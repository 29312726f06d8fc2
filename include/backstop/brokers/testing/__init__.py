"""The suite that every broker adapter must pass, to subclass in the tests of an adapter of your own (needs pytest).

How to: docs/brokers/write-an-adapter.md.
"""

import pytest

pytest.register_assert_rewrite("backstop.brokers.testing.contract")

from backstop.brokers.testing.contract import BrokerContract  # noqa: E402 - its asserts explain themselves only when rewritten
from backstop.brokers.testing.server import (  # noqa: E402
    DELIVERY_LIMIT,
    SEND_TIMEOUT,
    VISIBILITY,
    ServerUnderTest,
)

__all__ = ["DELIVERY_LIMIT", "SEND_TIMEOUT", "VISIBILITY", "BrokerContract", "ServerUnderTest"]
