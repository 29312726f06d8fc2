"""Records of leases in Redis, as tests change them behind everybody's back."""

from __future__ import annotations

from typing import Any

from backstop.leases.redis_records import RedisKeys


def end_records(server: Any, group: str) -> int:
    """Time passes in Redis: every consuming record of the group ended an hour earlier than it says; returns how many there are."""
    ended = 0
    for index in RedisKeys(group).expiry:
        for name, ends in server.zrange(index, 0, -1, withscores=True):
            record = server.get(name)
            past = int(ends) - 3_600_000
            server.zadd(index, {name: past})
            if record:
                server.set(name, record[:1] + b"%013d" % past + record[14:], keepttl=True)
            ended += 1
    return ended
