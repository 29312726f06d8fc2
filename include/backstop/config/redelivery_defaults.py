"""How often and how fast Redis Streams and ActiveMQ redeliver where their options say nothing.

Beside the adapters, because the settings reckon with it before any broker is opened.
"""

from __future__ import annotations

from datetime import timedelta

DELIVERY_LIMIT = 16
"""Deliveries of one message to one group before it becomes a dead letter."""
VISIBILITY = timedelta(seconds=60)
"""Redis Streams: how long an unacknowledged message stays with its consumer."""
