"""Every adapter of ours, on a real server (the fixture `adapter` of conftest.py), passes the suite that we give to others."""

from backstop.brokers.testing import BrokerContract


class TestBroker(BrokerContract):
    """Once for each adapter."""
