"""The one epoch that every queue of RocketMQ has: a topic has no id there.

A topic deleted and made again, or a broker restored, is noticed by a next offset that falls (ADR 5).
"""

from __future__ import annotations

from typing import Final

EPOCH: Final = "0"
