"""ActiveMQ Classic: STOMP for messages, Jolokia for looks."""
