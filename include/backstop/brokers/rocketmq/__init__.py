"""RocketMQ: a remoting client of our own, for messages and for looks."""

from backstop.brokers.rocketmq.adapter import RocketMQ

__all__ = ["RocketMQ"]
