"""ActiveMQ Classic: STOMP for messages, Jolokia for looks."""

from backstop.brokers.activemq.adapter import ActiveMQ
from backstop.brokers.activemq.names import Names

__all__ = ["ActiveMQ", "Names"]
