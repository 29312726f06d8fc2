"""RocketMQ: a remoting client of our own, for messages and for looks.

adapter.py puts the parts together. From the wire up:

- the wire: frames, codes, fastjson, address, session (one connection), exchange and pool (many questions at once), stored and
  unpack (messages as brokers keep them), properties, batch, names
- where things are: route, require_answers, questions
- to send: publish
- to look: clock, schedule, look, retries, committed, group_configs, locks
- to receive, as a member of a group beside Java's: receive, pull, in_hand, share_queues, hand_over, members, hear, lines
- dead letters: drain, dead_queue, read_letter, find_origins
- to check and to make: measure_durability, hold_against, create
"""

from backstop.brokers.rocketmq.adapter import RocketMQ

__all__ = ["RocketMQ"]
