"""Every error that Backstop raises on purpose, drawn as one tree.

    BackstopError
    |-- ConfigurationError      backstop.yaml, a policy or a connection id is wrong: nothing was started
    |-- Unavailable             a store or broker did not answer: nothing was decided from its silence
    |   |-- StoreUnavailable    a producer, consumer or control database
    |   |   `-- StoreFailed     it failed in a way that nobody foresaw
    |   |       |-- ContentErased   one message's content was erased on request
    |   |       `-- RowsLocked      some rows are held by another transaction; the others can be changed
    |   |-- BrokerUnavailable   the broker, for reading
    |   |-- HeartbeatLost       whoever watches from outside did not take the heartbeat
    |   |-- MetricsUndelivered  the OpenTelemetry collector did not take the metrics
    |   `-- AlertsUndelivered   a channel that should take an alert cannot, and at times nobody was told
    |-- PublishFailed           one message was not acknowledged
    |   |-- PublishRefused      the broker certainly does not have it
    |   `-- PublishUnknown      it may or may not have it: never counted as "not sent"
    |-- LeaseError
    |   `-- LeaseLost           somebody else holds the lease, or the work is already done: roll back
    |-- RunError
    |   |-- RunRefused          another run of this duty and scope is alive
    |   `-- RunLost             this run was closed or taken over: it may write nothing more
    |-- PromotionFailed         a part of a promotion failed; the other parts were done
    |-- AuditFailed             a data check failed: what it guards was not promoted
    |-- ContractBroken          a value that the wire contract does not allow
    `-- DecisionRefused         a person's decision does not fit the state of the case

A message has three parts: what happened, what was not lost, and what to do next.
"""

from __future__ import annotations

from collections.abc import Collection

from backstop.model.storable_text import escaped


class BackstopError(Exception):
    """The root: `what` happened, what is `unaffected`, and the `next_step` for the reader.

    `exit_code` is what the command line and the Spark jobs end with. The three are text that a database can hold, whatever a
    broker or a store said: they are written into runs.
    """

    exit_code = 1

    def __init__(self, what: str, *, unaffected: str, next_step: str) -> None:
        self.what, self.unaffected, self.next_step = (
            escaped(what),
            escaped(unaffected),
            escaped(next_step),
        )
        super().__init__(f"{self.what} {self.unaffected} {self.next_step}")

    def __reduce__(self) -> tuple[object, ...]:
        # Executors send errors to the driver by pickle, which would otherwise lose the keyword arguments.
        return _rebuild, (type(self), self.what, self.unaffected, self.next_step)


def _rebuild(
    kind: type[BackstopError], what: str, unaffected: str, next_step: str
) -> BackstopError:
    return kind(what, unaffected=unaffected, next_step=next_step)


class ConfigurationError(BackstopError):
    """Settings that would be unsafe or make no sense; nothing was started."""

    exit_code = 2


class Unavailable(BackstopError):
    """Something outside did not answer; its silence decides nothing."""

    exit_code = 3


class StoreUnavailable(Unavailable):
    """A producer, consumer or control database did not answer."""


class StoreFailed(StoreUnavailable):
    """A store failed in a way that nobody foresaw; as far as its data is concerned, it did not answer."""


class ContentErased(StoreFailed):
    """The content of one message was erased on request: nothing of it can be sent, now or later."""

    @classmethod
    def of(cls, message_id: str, topic: str) -> ContentErased:
        """The error about this message."""
        return cls(
            f"The content of {message_id} of {topic} was erased on request: it is never sent again.",
            unaffected="No send number of it was handed out; other messages are sent.",
            next_step="Withdraw it by its case (void), or let its business send it under another id.",
        )


class RowsLocked(StoreFailed):
    """Another transaction holds some of the rows that were to be changed; nothing of the change was committed."""

    keys: frozenset[tuple[str, str]] = frozenset()
    """(topic, message id) of each of these rows."""

    @classmethod
    def of(cls, subject: str, keys: Collection[tuple[str, str]]) -> RowsLocked:
        """The error about these rows; `subject`: "shard shop_a"."""
        topic, message_id = min(keys)
        number = "1 row" if len(keys) == 1 else f"{len(keys)} rows"
        error = cls(
            f"Another transaction holds {number} of {subject}: {message_id} of {topic}"
            f"{'' if len(keys) == 1 else ' and others'}.",
            unaffected="These rows are as they were.",
            next_step="End that transaction if it is stuck (pg_stat_activity, SHOW PROCESSLIST). A duty's next run takes these rows; "
            "run a command again.",
        )
        error.keys = frozenset(keys)
        return error


class BrokerUnavailable(Unavailable):
    """The broker did not answer a question."""


class HeartbeatLost(Unavailable):
    """The heartbeat's URL did not answer, or refused."""


class MetricsUndelivered(Unavailable):
    """The OpenTelemetry collector did not take the metrics."""


class AlertsUndelivered(Unavailable):
    """Alerts wait, and no channel takes them, or the URL of one that should is not known."""


class PublishFailed(BackstopError):
    """One message was not acknowledged by the broker."""

    exit_code = 3


class PublishRefused(PublishFailed):
    """The broker certainly does not have the message. `for_good`: asking again cannot help."""

    def __init__(
        self, what: str, *, unaffected: str, next_step: str, for_good: bool = False
    ) -> None:
        super().__init__(what, unaffected=unaffected, next_step=next_step)
        self.for_good = for_good


class PublishUnknown(PublishFailed):
    """A timeout or a lost connection: the broker may have the message."""


class LeaseError(BackstopError):
    """Processing once could not be held."""


class LeaseLost(LeaseError):
    """`complete`, `renew` or `fail` changed no row: the caller's transaction must roll back."""


class RunError(BackstopError):
    """A duty's run cannot begin or go on."""

    exit_code = 4


class RunRefused(RunError):
    """Another run of this duty and scope is alive."""


class RunLost(RunError):
    """This run was closed or taken over; it may write nothing more."""


class PromotionFailed(BackstopError):
    """A part of a promotion failed, for another reason than that something did not answer; the other parts were done."""


class AuditFailed(BackstopError):
    """A data check failed; what it guards was not promoted."""

    exit_code = 5


class ContractBroken(BackstopError):
    """A value that the wire contract does not allow."""

    exit_code = 2


class DecisionRefused(BackstopError):
    """A person's decision does not fit the present state of the case."""

    exit_code = 6
