"""Hold one message for one worker in Redis alone: begin, renew, complete, fail, each a script that compares the token.

For those who choose it and can live with what it does not promise: a server that loses its data (a flush, a failover to
a replica that lagged, an eviction) forgets what was done and what is held, and the work is then done again; `complete`
is not in the transaction of the handler's effects. docs/how-to/process-once.md says when to take it.
"""

import socket
from collections.abc import Sequence
from datetime import timedelta
from uuid import uuid4

from backstop.leases.lease import (
    LEASE,
    RETRY_AFTER,
    Acquired,
    Arrival,
    Begun,
    Busy,
    Conflict,
    Done,
    Superseded,
    error_text,
    lost,
    refuse_repeated,
    retry_in,
)
from backstop.leases.redis_exchange import RedisExchange, Script
from backstop.leases.redis_records import RedisKeys, encoded, milliseconds
from backstop.model.errors import ConfigurationError

CALL = 1000
"""Messages of one script call: more would keep the server from others, and Lua from spreading them."""
CONSUMING_FOR = timedelta(hours=1)
CONSUMED_FOR = timedelta(days=18)
"""More than the longest way back that the default policy allows: retention, redelivery, resends, replays."""
ERROR_SHOWN = 200
_BEGIN, _COMPLETE, _RELEASE, _RENEW = (
    Script(name) for name in ("begin", "complete", "release", "renew")
)
_ENDS: dict[bytes, Begun] = {b"D": Done(), b"S": Superseded(), b"X": Conflict()}


class RedisGuard:
    """The leases of one group in Redis alone. Safe to share between threads. Everything raises StoreUnavailable.

    `consuming_for`: how long the record of a message lives that is not done; at least two leases, so that a sweep
    finds it. `consumed_for`: how long a done one is remembered; it must be longer than the longest way by which a copy
    can come back (backstop.yaml is refused when `redis_guards.<group>.consumed_for` is shorter; give both the same).
    """

    def __init__(
        self,
        exchange: RedisExchange,
        group: str,
        *,
        lease: timedelta = LEASE,
        retry_after: timedelta = RETRY_AFTER,
        consuming_for: timedelta = CONSUMING_FOR,
        consumed_for: timedelta = CONSUMED_FOR,
        owner_host: str | None = None,
    ) -> None:
        if lease <= timedelta(0) or consuming_for < 2 * lease or consumed_for < consuming_for:
            raise ConfigurationError(
                f"lease {lease}, consuming_for {consuming_for} and consumed_for {consumed_for} do not fit together.",
                unaffected="Nothing was started.",
                next_step="Choose lease > 0, consuming_for >= 2 leases, consumed_for >= consuming_for.",
            )
        self.group, self.lease = group, lease
        self._exchange = exchange
        self._keys = RedisKeys(group)
        self._host = encoded(owner_host or socket.gethostname())
        self._retry_after = retry_after
        self._lease = b"%d" % milliseconds(lease)
        self._consuming_for = b"%d" % milliseconds(consuming_for)
        self._consumed_for = b"%d" % milliseconds(consumed_for)

    def begin(self, arrival: Arrival) -> Begun:
        """Ask for the lease of one message."""
        (begun,) = self.begin_many([arrival])
        return begun

    def begin_many(self, arrivals: Sequence[Arrival]) -> list[Begun]:
        """Ask for many leases, one script call a bucket; answers in order.

        A call whose answer was lost may have granted: those leases end by themselves. Raises ContractBroken when a key
        is there twice.
        """
        refuse_repeated(arrivals)
        token, host = uuid4().hex, self._host
        asked = [
            f"{a.content_version}|{a.payload_hash[:8].hex() if a.payload_hash else '-'}|{host}".encode()
            for a in arrivals
        ]
        answers: list[Begun] = [Busy(self._retry_after)] * len(arrivals)
        parts = list(self._keys.in_buckets([(a.topic, a.message_id) for a in arrivals], CALL))
        called = self._exchange.run(
            [
                (
                    _BEGIN,
                    [self._keys.expiry[bucket], self._keys.conflicts[bucket], *keys],
                    [
                        self._lease,
                        self._consuming_for,
                        self._consumed_for,
                        token.encode(),
                        *[asked[n] for n in numbers],
                    ],
                )
                for bucket, numbers, keys in parts
            ]
        )
        group = self.group
        for (_, numbers, _), (fence, *others) in zip(parts, called, strict=True):
            for number in numbers:
                arrival = arrivals[number]
                answers[number] = Acquired(group, arrival.topic, arrival.message_id, token, fence)
            for place, outcome, first, second in others:
                number = numbers[place]
                arrival = arrivals[number]
                if outcome == b"A":
                    answers[number] = Acquired(
                        group, arrival.topic, arrival.message_id, token, first, second
                    )
                else:
                    busy = Busy(retry_in(first / 1000, self._retry_after))
                    answers[number] = _ENDS.get(outcome, busy)
        return answers

    def renew_many(self, leases: Sequence[Acquired]) -> set[Acquired]:
        """Prolong leases from now on; those that are still ours."""
        return self._fenced(_RENEW, [self._lease, self._consuming_for], leases)

    def complete(self, lease: Acquired) -> None:
        """The work is done. Raises LeaseLost when the record is not ours any more."""
        if not self.complete_many([lease]):
            raise lost(lease, "completed")

    def complete_many(self, leases: Sequence[Acquired]) -> set[Acquired]:
        """The work of many leases is done; those that were still ours."""
        return self._fenced(_COMPLETE, [self._consumed_for], leases)

    def fail(self, lease: Acquired, error: str) -> None:
        """The handler failed: keep the error's beginning, release the lease. Raises LeaseLost."""
        told = error_text(error)[:ERROR_SHOWN].encode()
        if not self._fenced(_RELEASE, [b"F", self._consuming_for], [lease], told):
            raise lost(lease, "failed")

    def give_back_many(
        self, leases: Sequence[Acquired], *, was_entered: bool = False
    ) -> set[Acquired]:
        """A stopping worker releases messages it did not finish; those that were still its own. `was_entered`: their
        handlers had begun, so each stays an attempt."""
        return self._fenced(_RELEASE, [b"E" if was_entered else b"G", self._consuming_for], leases)

    def close(self) -> None:
        self._exchange.close()

    def _fenced(
        self, script: Script, arguments: list[bytes], leases: Sequence[Acquired], *more: bytes
    ) -> set[Acquired]:
        """Leases that were granted together have one token: a call of a script is for one token."""
        by_token: dict[str, list[Acquired]] = {}
        for lease in leases:
            by_token.setdefault(lease.token, []).append(lease)
        parts = [
            (token, [ours[n] for n in numbers], bucket, keys)
            for token, ours in by_token.items()
            for bucket, numbers, keys in self._keys.in_buckets(
                [(lease.topic, lease.message_id) for lease in ours], CALL
            )
        ]
        called = self._exchange.run(
            [
                (script, [self._keys.expiry[bucket], *keys], [*arguments, token.encode(), *more])
                for token, _, bucket, keys in parts
            ]
        )
        held = set(leases)
        for (_, ours, _, _), gone in zip(parts, called, strict=True):
            held.difference_update(ours[place] for place in gone)
        return held
