"""RocketMQ: a remoting client of our own.

adapter.py puts the parts together. From the wire up:

- `wire/`: frames, codes, requests; a session is one connection, a pool has one for each server
- `message/`: messages as brokers store them, their properties and names
- `routes/`: which servers have a topic; creates topics and groups
- `consumer/`: a member of a group, beside Java's
- `inspect/`: reads offsets, progress, retries and schedules; checks configuration and durability
- `producer/`: publishes
- `dead_letters/`: reads and empties dead-letter queues
"""

from backstop.brokers.rocketmq.adapter import RocketMQ

__all__ = ["RocketMQ"]
