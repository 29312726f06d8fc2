"""The policy: every setting of how long to wait, how often to send and when to ask a person, with its default."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from backstop.config.durations import Duration

Count = Annotated[int, Field(ge=1, le=2**31 - 1, strict=True)]
"""At most what the databases' columns hold."""
Share = Annotated[float, Field(gt=0, le=1)]


def _seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def _hours(number: float) -> timedelta:
    return timedelta(hours=number)


def _days(number: float) -> timedelta:
    return timedelta(days=number)


class Policy(BaseModel):
    """One complete policy. The same model carries overrides: only the fields that were written then count.

    What the settings must satisfy together is in `constraints.py`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_clock_skew: Duration = Field(
        _seconds(5), description="clocks farther apart make the evidence incomplete"
    )
    max_send_duration: Duration = Field(
        _seconds(30), description="from the commit to the client's last retry"
    )
    attempt_timeout: Duration = Field(
        _seconds(120), description="after this a send under way counts as unknown"
    )
    claim_timeout: Duration = Field(
        _seconds(300), description="after this a claimed request is taken from its worker"
    )
    first_check: Duration = Field(_seconds(120), description="how long a new stub is left alone")
    longest_transaction: Duration = Field(
        _seconds(60), description="the longest transaction of a producer"
    )
    lease: Duration = Field(
        _seconds(60), description="how long a consumer may hold a message without renewing"
    )
    sweep_interval: Duration = Field(
        _seconds(30), description="how often expired leases are looked for"
    )
    untouched_for: Duration = Field(
        _hours(24),
        description="a CONSUMING log without the end of its lease is taken back when nobody touched it for so long",
    )
    alert_attempts: Annotated[int, Field(ge=3, le=2**31 - 1, strict=True)] = Field(
        3,
        description="a message begun so often and not done is a case; fewer than the broker's deliveries",
    )
    leak_sweeps: Count = Field(
        3,
        description="a host or handler whose leases so many sweeps took back within leak_window is a case",
    )
    leak_window: Duration = Field(_hours(1), description="over how long leaking is counted")
    retry_after: Duration = Field(
        _seconds(10), description="when a message that another worker holds comes again"
    )
    consume_timeout: Duration = Field(
        _seconds(900), description="how long a log that moved is left alone"
    )
    redelivery_horizon: Duration = Field(
        _hours(6), description="after this the broker redelivers no more"
    )
    progress_history: Duration = Field(_hours(24), description="how long recorded progress is kept")
    unknown_horizon: Duration = Field(_hours(1), description="UNKNOWN beyond this is a case")
    backlog_horizon: Duration = Field(_hours(24), description="BACKLOGGED beyond this is a case")
    overdue_horizon: Duration = Field(_hours(48), description="anything open beyond this is a case")
    recheck: Duration = Field(
        _seconds(300), description="the least time between two looks at what only waits"
    )
    reconcile_interval: Duration = Field(
        _seconds(600), description="how far apart runs of reconcile begin while something is due"
    )
    max_sends: Annotated[int, Field(ge=1, le=1_000, strict=True)] = Field(
        5, description="sends of one message, refused ones not counted"
    )
    max_refusals: Count = Field(20, description="refusals of one message by the broker")
    max_replays: Count = Field(
        3, description="replays of one delivery's dead letters by a machine; then a person decides"
    )
    expired: Literal["case", "replay"] = Field(
        "case", description="a dead letter whose time to live ended becomes a case, or is replayed"
    )
    backoff_base: Duration = Field(_seconds(180), description="the wait after the first send")
    backoff_factor: Annotated[float, Field(ge=1, le=100)] = Field(
        2.0, description="each further wait is longer by this"
    )
    backoff_cap: Duration = Field(_hours(1), description="the longest wait between two sends")
    backoff_jitter: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.2, description="share by which a wait may vary"
    )
    queue_delay_cap: Duration = Field(
        _hours(1), description="the most that is added for a group's lag"
    )
    replay_horizon: Duration = Field(
        _days(7), description="nothing is published later than this after created_at and deliver_at"
    )
    person_time: Duration = Field(
        _hours(24), description="how long a person may take to decide a case"
    )
    longest_delay: Duration = Field(
        _days(7), description="the farthest that deliver_at may lie ahead; record refuses more"
    )
    broker_retention: Duration = Field(
        _days(3), description="how long the broker keeps a message; declared"
    )
    log_retention: Duration = Field(_days(21), description="how long consumers keep their logs")
    stub_retention: Duration = Field(_days(21), description="how long producers keep closed stubs")
    control_retention: Duration | None = Field(
        None,
        description="how long the control database keeps finished rows; null: as stub_retention",
    )
    dead_letter_retention: Duration | None = Field(
        None, description="how long a decided dead letter is kept; null: as stub_retention"
    )
    content_retention: Duration | None = Field(
        None,
        description="how long the content of a decided dead letter, or of a replaced version, is kept; null: with the rest",
    )
    blast_share: Share = Field(
        0.05, description="more than this share to resend at once asks a person"
    )
    blast_floor: Count = Field(50, description="fewer deliveries than this to resend never ask")
    blast_window: Duration = Field(
        _hours(1), description="the window over which the share is taken"
    )
    canary: Annotated[int, Field(ge=0, le=2**31 - 1, strict=True)] = Field(
        20,
        description="more resends of a topic than this begin with so many and wait for what becomes of them; 0: off",
    )
    ramp_factor: Annotated[float, Field(ge=1, le=100)] = Field(
        2.0, description="each further step is larger by this"
    )
    ordering_gap: Literal["case", "resend"] = Field(
        "case",
        description="a lost message whose key's later ones may have been sent asks a person, or is resent after them",
    )
    rate_limit: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        200.0, description="resends a second, per topic and broker"
    )
    retention_warn: Share = Field(
        0.5, description="a backlog older than this share of broker_retention is an alert"
    )
    watch_window: Duration = Field(
        _seconds(900), description="over how long the watch measures what flows"
    )
    watch_floor: Count = Field(
        20,
        description="with fewer messages than this in watch_window the watch draws no conclusion",
    )

    def backoff(self, n: int) -> timedelta:
        """The wait after send number `n` (1 and up), without jitter."""
        try:
            factor = self.backoff_factor ** (n - 1)
        except OverflowError:
            return self.backoff_cap
        cap = self.backoff_cap / self.backoff_base if self.backoff_base else 1.0
        return self.backoff_base * min(factor, cap)

    def with_overrides(self, *overrides: Policy) -> Policy:
        """This policy with what each override writes, the later ones winning."""
        return self.model_copy(
            update={
                name: getattr(override, name)
                for override in overrides
                for name in override.model_fields_set
            }
        )
