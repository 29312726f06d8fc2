"""The truth table of the verdict rule: one row for each verdict, reason and boundary instant, expected by hand.

All instants are microseconds relative to `as_of`; `S` is a second. The delivery that every row starts from: sent half
an hour ago to offset 10 of queue 0, acknowledged, the group has passed offset 10, everything was read, no log: LOST.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from backstop.verdicts import frames

Row = dict[str, Any]
S = 1_000_000
NOW = 1_790_000_000 * S
AGE = 1_800 * S
SOON = 300 * S
"""`recheck`: the next look where the rule has no instant of its own."""
YEAR_1 = -62_135_596_800 * S
YEAR_9000 = 221_845_392_000 * S

POLICY: Row = {
    "broker": "main",
    "every_tag": True,
    "active_from": None,
    "active_until": None,
    "duplicates": "guard",
    "max_sends": 5,
    "max_refusals": 20,
    "max_clock_skew": 5 * S,
    "max_send_duration": 30 * S,
    "attempt_timeout": 120 * S,
    "first_check": 120 * S,
    "consume_timeout": 900 * S,
    "redelivery_horizon": 21_600 * S,
    "recheck": SOON,
    "unknown_horizon": 3_600 * S,
    "backlog_horizon": 86_400 * S,
    "overdue_horizon": 172_800 * S,
    "replay_horizon": 604_800 * S,
    "queue_delay_cap": 3_600 * S,
}
STUB: Row = {
    "status": "pending",
    "send_count": 1,
    "refusals": 0,
    "max_sends": None,
    "next_check_at": -1,
    "created_at": -AGE,
    "first_seen_at": -AGE,
    "judged_at": None,
    "deliver_at": None,
    "attempted_at": -AGE,
    "sent_at": -AGE + S,
    "attempt_deadline": None,
    "settled": True,
    "broker": "main",
    "queue_id": 0,
    "queue_offset": 10,
    "queue_epoch": "e2",
    "first_to_all": True,
    "created_latest": None,
}
NO_LOG: Row = {**dict.fromkeys(frames.LOG), "log_answered": True, "log_found": False}
GROUP: Row = {
    "broker": "main",
    "removed": False,
    "lives_accepted": True,
    "passed_until": -S,
    "log_floor": YEAR_1,
    "clock_good": True,
    "offsets_read": True,
    "retry_read": True,
    "dead_letters_read": True,
}
SHARD: Row = {"clock_good": True, "attempts_read": True}
QUEUE: Row = {
    "broker": "main",
    "epoch": "e2",
    "epoch_accepted": True,
    "settled_offset": 11,
    "first_offset": 0,
    "next_offset": 100,
    "previous_next_offset": 100,
    "previous_read_at": -600 * S,
    "rate": None,
}


EVER: Row = {"broker": "main", "due_after": None, "due_until": NOW, "seen_at": YEAR_1}


@dataclass(frozen=True)
class Case:
    """One delivery, by what differs from the first; and what must come out."""

    name: str
    verdict: str
    reason: str
    eligible: bool = False
    case: str | None = None
    look: int | None = None
    """next_look_at, relative to as_of."""
    stub: Row = field(default_factory=dict)
    log: Row | None = None
    attempts: tuple[Row, ...] = ()
    queue: Row | None = field(default_factory=dict)
    group: Row | None = field(default_factory=dict)
    shard: Row | None = field(default_factory=dict)
    policy: Row = field(default_factory=dict)
    waits: tuple[str, ...] = ()
    delays: tuple[Row, ...] = ({}, {"broker": "side"}, {"broker": "gone"})
    """Looks at delay storage: by default of brokers that keep nothing back."""
    dead: tuple[str | None, ...] = ()
    discarded: tuple[str, ...] = ()
    elsewhere: Mapping[str, tuple[Row, Row | None]] = field(default_factory=dict)
    """By another broker: what differs of the group there, and of queue 0 (null: none was seen)."""


def log(state: str | None, **columns: Any) -> Row:
    """A valid log row, touched last 1,200 s ago: longer than the consume timeout."""
    return {
        **NO_LOG,
        "log_found": True,
        "log_valid": True,
        "log_state": state,
        "log_updated_at": -1_200 * S,
        **columns,
    }


def attempt(number: int, outcome: str = "sent", group: str | None = None, **columns: Any) -> Row:
    """An ended send number; a sent one lies at offset 10 of queue 0."""
    where = (0, 10, "e2") if outcome == "sent" else (None, None, None)
    return {
        "send_number": number,
        "outcome": outcome,
        "broker": "main",
        "consumer_group": group,
        "started_at": -AGE,
        "finished_at": -AGE + S,
        **dict(zip(("queue_id", "queue_offset", "queue_epoch"), where, strict=True)),
        **columns,
    }


NOWHERE: Row = {"queue_id": None, "queue_offset": None, "queue_epoch": None}
UNACKED: Row = {"sent_at": None, **NOWHERE}
UNSETTLED: Row = {**UNACKED, "settled": False}
NEVER: Row = {**UNACKED, "send_count": 0, "attempted_at": None}
DELAYED: Row = {**NOWHERE, "deliver_at": -100 * S}
REFUSED: Row = {**UNACKED, "refusals": 1}
AHEAD: Row = {"settled_offset": 10}


def aged(seconds: int, micros: int = 0, **columns: Any) -> Row:
    """Created, first seen and attempted this long ago."""
    at = -seconds * S - micros
    return {"created_at": at, "first_seen_at": at, "attempted_at": at, "sent_at": at + S, **columns}


def lost(name: str, reason: str = "passed_over", **changes: Any) -> Case:
    return Case(name, "LOST", reason, eligible=True, **changes)


def unsent(name: str, reason: str, **changes: Any) -> Case:
    return Case(name, "UNSENT", reason, eligible=True, **changes)


def unknown(name: str, reason: str, **changes: Any) -> Case:
    return Case(name, "UNKNOWN", reason, look=SOON, **changes)


def exhausted(name: str, reason: str, **changes: Any) -> Case:
    return Case(name, "EXHAUSTED", reason, case="exhausted", **changes)


def ahead(name: str, reason: str = "ahead_of_group", look: int = SOON, **changes: Any) -> Case:
    return Case(name, "BACKLOGGED", reason, look=look, **changes)


# A FAILED log whose copy is past: STALLED, eligible 6 h after it was touched last, which was 1,200 s ago.
STALLS_UNTIL = (21_600 - 1_200) * S
TRUNCATED: Row = {
    "settled_offset": 5,
    "next_offset": 10,
    "previous_next_offset": 10,
    # Settled at -AGE + S by another clock: the skew lies between.
    "previous_read_at": -AGE + 6 * S + 1,
}

CASES: tuple[Case, ...] = (
    # 0 VOIDED
    Case("stub voided", "VOIDED", "stub_voided", stub={"status": "voided"}),
    Case(
        "voided beats consumed",
        "VOIDED",
        "stub_voided",
        stub={"status": "voided"},
        log=log("CONSUMED"),
    ),
    Case("discarded by a person", "VOIDED", "discarded", discarded=("billing",)),
    lost("another group's delivery discarded", discarded=("shipping",)),
    # 1 CONFIRMED
    Case("consumed", "CONFIRMED", "consumed", log=log("CONSUMED", log_consumed_at=-S)),
    Case("the stub is confirmed", "CONFIRMED", "stub_confirmed", stub={"status": "confirmed"}),
    Case("a false dead letter", "CONFIRMED", "consumed", log=log("CONSUMED"), dead=("billing",)),
    Case(
        "consumed while all else is unread",
        "CONFIRMED",
        "consumed",
        log=log("CONSUMED"),
        group=None,
        shard=None,
    ),
    unknown(
        "CONSUMED in a row that breaks its contract",
        "log_invalid",
        log=log("CONSUMED", log_valid=False),
    ),
    unknown(
        "CONSUMED in a row of unknown validity", "log_invalid", log=log("CONSUMED", log_valid=None)
    ),
    # 2 DEAD_LETTERED
    Case("its dead letter", "DEAD_LETTERED", "dead_letter", look=SOON, dead=("billing",)),
    Case(
        "a dead letter of no known group", "DEAD_LETTERED", "dead_letter", look=SOON, dead=(None,)
    ),
    Case(
        "dead-lettered twice is one delivery",
        "DEAD_LETTERED",
        "dead_letter",
        look=SOON,
        dead=("billing", None, None),
    ),
    Case(
        "dead-lettered and parked",
        "DEAD_LETTERED",
        "dead_letter",
        look=SOON,
        dead=("billing",),
        log=log("PARKED"),
    ),
    lost("another group's dead letter", dead=("shipping",)),
    # 3 PARKED
    Case("parked", "PARKED", "ordering_key", look=SOON, log=log("PARKED")),
    Case(
        "parked a moment ago",
        "PARKED",
        "ordering_key",
        look=SOON,
        log=log("PARKED", log_updated_at=-1),
    ),
    # 4 IN_PROGRESS: lease + 5 s of skew, or 900 s since the last touch
    Case(
        "lease alive by a microsecond",
        "IN_PROGRESS",
        "leased",
        look=1,
        log=log("CONSUMING", lease_expires_at=-5 * S + 1),
    ),
    Case(
        "lease over at this instant",
        "STALLED",
        "redelivery_possible",
        look=STALLS_UNTIL,
        log=log("CONSUMING", lease_expires_at=-5 * S),
    ),
    Case(
        "a lease until the year 8300 is looked at again",
        "IN_PROGRESS",
        "leased",
        case="overdue",
        look=604_800 * S,
        stub=aged(172_800),
        log=log("CONSUMING", lease_expires_at=200_000_000_000 * S),
    ),
    Case(
        "lease without expiry",
        "IN_PROGRESS",
        "lease_without_expiry",
        look=SOON,
        log=log("CONSUMING"),
    ),
    Case(
        "a lease that ends never is one without expiry",
        "IN_PROGRESS",
        "lease_without_expiry",
        look=SOON,
        log=log("CONSUMING", lease_expires_at=YEAR_9000 - NOW),
    ),
    Case(
        "a lease that ends an instant before never",
        "IN_PROGRESS",
        "leased",
        look=171_000 * S,
        log=log("CONSUMING", lease_expires_at=YEAR_9000 - NOW - 1),
    ),
    Case(
        "lease without expiry, touched lately",
        "IN_PROGRESS",
        "lease_without_expiry",
        look=800 * S,
        log=log("CONSUMING", log_updated_at=-100 * S),
    ),
    Case(
        "touched within the timeout by a microsecond",
        "IN_PROGRESS",
        "touched_lately",
        look=1,
        log=log("FAILED", log_updated_at=-900 * S + 1),
    ),
    Case(
        "touched exactly the timeout ago",
        "STALLED",
        "redelivery_possible",
        look=20_700 * S,
        log=log("FAILED", log_updated_at=-900 * S),
    ),
    Case(
        "the later of lease and touch",
        "IN_PROGRESS",
        "leased",
        look=600 * S,
        log=log("CONSUMING", lease_expires_at=60 * S, log_updated_at=-300 * S),
    ),
    Case(
        "the later of touch and lease",
        "IN_PROGRESS",
        "leased",
        look=65 * S,
        log=log("CONSUMING", lease_expires_at=60 * S, log_updated_at=-890 * S),
    ),
    Case(
        "lease over, touched lately",
        "IN_PROGRESS",
        "touched_lately",
        look=10 * S,
        log=log("CONSUMING", lease_expires_at=-60 * S, log_updated_at=-890 * S),
    ),
    Case(
        "a FAILED row has no lease",
        "STALLED",
        "redelivery_possible",
        look=STALLS_UNTIL,
        log=log("FAILED", lease_expires_at=60 * S),
    ),
    Case(
        "an EXPIRED row has no lease",
        "STALLED",
        "redelivery_possible",
        look=STALLS_UNTIL,
        log=log("EXPIRED", lease_expires_at=60 * S),
    ),
    Case(
        "a state that we do not know may be a lease",
        "IN_PROGRESS",
        "leased",
        look=65 * S,
        log=log("HANDLING", lease_expires_at=60 * S),
    ),
    Case(
        "a broken row without state may be a lease",
        "IN_PROGRESS",
        "lease_without_expiry",
        look=SOON,
        log=log(None, log_valid=False),
    ),
    Case(
        "a lease beats not due",
        "IN_PROGRESS",
        "leased",
        look=65 * S,
        stub={"next_check_at": 99 * S},
        log=log("CONSUMING", lease_expires_at=60 * S),
    ),
    # 5 WAITING
    Case("not due by a microsecond", "WAITING", "not_due", look=1, stub={"next_check_at": 1}),
    lost("due at this instant", stub={"next_check_at": 0}),
    Case(
        "unacknowledged, first check to come",
        "WAITING",
        "first_check",
        look=1,
        stub={**UNACKED, "first_seen_at": -120 * S + 1},
    ),
    unsent(
        "unacknowledged, first check at this instant",
        "not_stored",
        stub={**UNACKED, "first_seen_at": -120 * S},
    ),
    Case(
        "unacknowledged, never seen before",
        "WAITING",
        "first_check",
        look=120 * S,
        stub={**UNACKED, "first_seen_at": None},
    ),
    Case(
        "both instants to come",
        "WAITING",
        "not_due",
        look=60 * S,
        stub={**UNACKED, "first_seen_at": -60 * S, "next_check_at": 5 * S},
    ),
    Case(
        "unacknowledged beside a log",
        "WAITING",
        "first_check",
        look=60 * S,
        log=log("FAILED"),
        stub={**UNACKED, "first_seen_at": -60 * S},
    ),
    lost("acknowledged needs no first check", stub={"first_seen_at": None}),
    Case(
        "not due though the logs are unread",
        "WAITING",
        "not_due",
        look=1,
        stub={"next_check_at": 1},
        log={**NO_LOG, "log_answered": False},
    ),
    # 6 BACKLOGGED: by offset, by time, under way
    ahead("the group is at the copy", queue=AHEAD),
    lost("the group is one past the copy"),
    ahead("the broker will redeliver", "to_be_redelivered", queue=AHEAD, log=log("FAILED")),
    ahead("beats incomplete evidence", queue=AHEAD, group={"dead_letters_read": False}),
    ahead(
        "waits for another delivery, and the group is past it", "unacknowledged", waits=("billing",)
    ),
    ahead(
        "waits, failed and past", "unacknowledged", waits=("billing", "billing"), log=log("FAILED")
    ),
    ahead("waits, and no copy is known", "unacknowledged", waits=("billing",), stub=NEVER),
    ahead(
        "waits beats incomplete evidence",
        "unacknowledged",
        waits=("billing",),
        group={"dead_letters_read": False},
    ),
    lost("waits for another group", waits=("shipping",)),
    Case("consumed beats waits", "CONFIRMED", "consumed", waits=("billing",), log=log("CONSUMED")),
    Case(
        "its dead letter beats waits",
        "DEAD_LETTERED",
        "dead_letter",
        look=SOON,
        waits=("billing",),
        dead=("billing",),
    ),
    lost("a stub sent once tells by itself", attempts=(attempt(1, queue_offset=11),)),
    ahead(
        "one copy of two ahead",
        stub={"send_count": 2},
        attempts=(attempt(1), attempt(2, queue_offset=11)),
    ),
    # Settled progress in time is at -1 s: 30 s to send and twice 5 s of skew before it.
    ahead(
        "stored two skews before the settled instant",
        stub={**NOWHERE, "attempt_deadline": 0, "attempted_at": -41 * S},
    ),
    lost(
        "stored a microsecond earlier",
        stub={**NOWHERE, "attempt_deadline": 0, "attempted_at": -41 * S - 1},
    ),
    ahead(
        "scheduled, due two skews before the settled instant",
        stub={**NOWHERE, "deliver_at": -41 * S},
    ),
    lost("scheduled, due a microsecond earlier", stub={**NOWHERE, "deliver_at": -41 * S - 1}),
    # Due at -100 s, so that what was due until -60 s must have come; the group has passed what was stored before -1 s.
    ahead(
        "scheduled, and no look found nothing due by then left in delay storage",
        stub=DELAYED,
        delays=({"due_until": -60 * S - 1, "seen_at": -90 * S},),
    ),
    ahead("scheduled, and no look at delay storage", stub=DELAYED, delays=()),
    ahead(
        "scheduled, and delivered late: a look found nothing left two skews before the settled instant",
        stub=DELAYED,
        delays=(
            {"due_until": -60 * S - 1, "seen_at": -90 * S},
            {"due_after": -60 * S - 1, "due_until": -S, "seen_at": -11 * S},
        ),
    ),
    lost(
        "scheduled, and the look was a microsecond earlier",
        stub=DELAYED,
        delays=({"due_after": -60 * S - 1, "due_until": -60 * S, "seen_at": -11 * S - 1},),
    ),
    lost(
        "scheduled, and the first look that says so counts",
        stub=DELAYED,
        delays=(
            {"due_until": -60 * S, "seen_at": -20 * S},
            {"due_after": -60 * S, "due_until": -S, "seen_at": -5 * S},
        ),
    ),
    ahead(
        "scheduled at a broker whose delays nobody looked at, whatever another one's looks say",
        stub=DELAYED,
        delays=({"broker": "side"},),
    ),
    lost("not scheduled: no look at delay storage is needed", stub=NOWHERE, delays=()),
    ahead(
        "unsettled: stored as late as its deadline", stub={**UNSETTLED, "attempt_deadline": -11 * S}
    ),
    unsent(
        "unsettled, its deadline a microsecond earlier",
        "not_stored",
        stub={**UNSETTLED, "attempt_deadline": -11 * S - 1},
    ),
    unsent(
        "settled as unknown: stored by when it began",
        "not_stored",
        stub={**UNACKED, "attempt_deadline": -S},
    ),
    ahead("unsettled without a deadline", stub={**UNSETTLED, "attempted_at": -131 * S}),
    unsent(
        "unsettled without a deadline, a microsecond earlier",
        "not_stored",
        stub={**UNSETTLED, "attempted_at": -131 * S - 1},
    ),
    ahead(
        "without a deadline, attempt_timeout to come",
        stub={**NOWHERE, "attempted_at": -120 * S + 1},
        policy={"max_send_duration": S},
    ),
    lost(
        "without a deadline, attempt_timeout over",
        stub={**NOWHERE, "attempted_at": -120 * S},
        policy={"max_send_duration": S},
    ),
    ahead(
        "an unsettled second number that began late",
        stub={"send_count": 2, "attempt_deadline": -11 * S, "settled": False},
        attempts=(attempt(1),),
    ),
    ahead("attempt's deadline to come", stub={**UNACKED, "attempt_deadline": 1}),
    unsent(
        "attempt's deadline at this instant", "not_stored", stub={**UNACKED, "attempt_deadline": 0}
    ),
    ahead(
        "second number under way",
        stub={"send_count": 2, "attempted_at": -10 * S},
        attempts=(attempt(1),),
    ),
    lost("second number under way, past by time", stub={"send_count": 2}, attempts=(attempt(1),)),
    ahead(
        "a number above those handed out ends none that is under way",
        stub={"send_count": 2, "attempt_deadline": 9 * S},
        attempts=(attempt(1), attempt(3)),
    ),
    lost(
        "a number above those handed out is no copy",
        stub={"send_count": 2},
        attempts=(attempt(1), attempt(3, queue_offset=11)),
    ),
    ahead(
        "waits as long as the lag needs", look=1_000 * S, queue={"settled_offset": 4, "rate": 0.006}
    ),
    ahead(
        "a lag in part microseconds is rounded down",
        look=857_142_857,
        queue={"settled_offset": 4, "rate": 0.007},
    ),
    ahead("waits at most the cap", look=3_600 * S, queue={"settled_offset": 4, "rate": 0.0001}),
    ahead(
        "a lag beyond all numbers waits the cap",
        look=3_600 * S,
        stub={"queue_offset": 9 * 10**18},
        queue={"settled_offset": 4, "next_offset": 9 * 10**18 + 1, "rate": 1e-7},
    ),
    ahead("a group that stands still is looked at soon", queue={"settled_offset": 4, "rate": 0.0}),
    ahead("backlog horizon to come", look=1, stub=aged(86_400, -1), queue=AHEAD),
    ahead("backlog horizon at this instant", case="backlog", stub=aged(86_400), queue=AHEAD),
    ahead(
        "a later attempt moves the horizon",
        stub={**aged(86_400), "attempted_at": -60 * S},
        queue=AHEAD,
    ),
    ahead("a later schedule moves the horizon", stub=aged(90_000, deliver_at=-60 * S), queue=AHEAD),
    ahead(
        "backlogged, overdue horizon to come",
        look=1,
        case="backlog",
        stub=aged(172_800, -1),
        queue=AHEAD,
    ),
    ahead(
        "backlogged, overdue horizon at this instant",
        case="overdue",
        stub=aged(172_800),
        queue=AHEAD,
    ),
    # A copy is judged by its own broker's progress, also after its topic has moved to another one
    ahead("at another broker, ahead there", stub={"broker": "old"}, elsewhere={"old": ({}, AHEAD)}),
    lost(
        "at another broker, past there",
        stub={"broker": "old"},
        queue=AHEAD,
        elsewhere={"old": ({}, {})},
    ),
    ahead(
        "unacknowledged at another broker, not past there",
        stub={**UNACKED, "broker": "old"},
        elsewhere={"old": ({"passed_until": -AGE}, {})},
    ),
    unsent(
        "unacknowledged at another broker, past there",
        "not_stored",
        stub={**UNACKED, "broker": "old"},
        group={"passed_until": -AGE},
        elsewhere={"old": ({}, {})},
    ),
    ahead(
        "one copy of two ahead, at another broker",
        stub={"send_count": 2, "broker": "old"},
        attempts=(attempt(1), attempt(2, broker="old")),
        elsewhere={"old": ({}, AHEAD)},
    ),
    lost(
        "a broker that was not recorded is the topic's",
        stub={"broker": None},
        elsewhere={"old": ({}, AHEAD)},
    ),
    unknown("at a broker that nobody looked at", "clock_skew", stub={"broker": "old"}),
    unknown(
        "another broker's offsets not read",
        "offsets_unread",
        stub={"broker": "old"},
        elsewhere={"old": ({"offsets_read": False}, {})},
    ),
    unknown(
        "another broker's dead letters not read",
        "dlq_not_read",
        stub={"broker": "old"},
        elsewhere={"old": ({"dead_letters_read": False}, {})},
    ),
    unknown(
        "another broker's clock is off",
        "clock_skew",
        stub={"broker": "old"},
        elsewhere={"old": ({"clock_good": False}, {})},
    ),
    lost(
        "nothing went to the other broker",
        elsewhere={"old": ({"offsets_read": False, "clock_good": None}, None)},
    ),
    unknown(
        "at a broker that was removed",
        "new_epoch",
        case="new_epoch",
        stub={"broker": "old"},
        elsewhere={"old": ({"removed": True, "lives_accepted": False}, None)},
    ),
    unknown(
        "unacknowledged at a broker that was removed",
        "new_epoch",
        case="new_epoch",
        stub={**UNACKED, "broker": "old"},
        elsewhere={"old": ({"removed": True, "lives_accepted": None}, None)},
    ),
    lost(
        "at a broker that was removed, accepted: by time",
        stub={"broker": "old"},
        elsewhere={"old": ({"removed": True}, None)},
    ),
    # 7 UNKNOWN: each test of completeness, failed and not known
    unknown("logs not answered", "logs_unread", log={**NO_LOG, "log_answered": False}),
    unknown(
        "logs answered or not is not known", "logs_unread", log={**NO_LOG, "log_answered": None}
    ),
    unknown("a log there or not is not known", "logs_unread", log={**NO_LOG, "log_found": None}),
    unknown("a broken log", "log_invalid", log=log("FAILED", log_valid=False)),
    unknown("the group's clocks are off", "clock_skew", group={"clock_good": False}),
    unknown("the group's clocks are not known", "clock_skew", group={"clock_good": None}),
    unknown("the shard's clock is off", "clock_skew", shard={"clock_good": False}),
    unknown("the shard is not known", "clock_skew", shard=None),
    unknown("the group is not known", "clock_skew", group=None),
    unknown("logs purged to a microsecond after", "log_purged", group={"log_floor": -AGE + 1}),
    lost("logs purged to this stub's creation", group={"log_floor": -AGE}),
    unknown("no floor read", "log_purged", group={"log_floor": None}),
    unknown(
        "a new epoch", "new_epoch", case="new_epoch", queue={"epoch": "e3", "epoch_accepted": False}
    ),
    unknown(
        "acceptance not known",
        "new_epoch",
        case="new_epoch",
        queue={"epoch": "e3", "epoch_accepted": None},
    ),
    unknown("the copy's queue is gone", "new_epoch", case="new_epoch", stub={"queue_id": 7}),
    unknown(
        "one copy of two of an older epoch",
        "new_epoch",
        case="new_epoch",
        stub={"send_count": 2},
        attempts=(attempt(1, queue_epoch="e1"), attempt(2)),
        queue={"epoch_accepted": False},
    ),
    unknown(
        "unacknowledged, of an older epoch",
        "new_epoch",
        case="new_epoch",
        stub={"sent_at": None, "queue_epoch": "e1"},
        queue={"epoch_accepted": False},
    ),
    unknown(
        "a second number of unknown outcome, of an older epoch",
        "new_epoch",
        case="new_epoch",
        stub={"send_count": 2},
        attempts=(attempt(1), attempt(2, "unknown", queue_id=0, queue_epoch="e1")),
        queue={"epoch_accepted": False},
    ),
    unsent(
        "unacknowledged, of an accepted older epoch",
        "not_stored",
        stub={"sent_at": None, "queue_epoch": "e1"},
    ),
    unknown(
        "a new epoch may not be known without offsets",
        "offsets_unread",
        stub={"queue_id": 7},
        group={"offsets_read": False},
    ),
    unknown("attempts not read", "attempts_unread", shard={"attempts_read": False}),
    unknown("attempts read or not is not known", "attempts_unread", shard={"attempts_read": None}),
    unknown("offsets not read", "offsets_unread", group={"offsets_read": False}),
    unknown("retry depth not read", "offsets_unread", group={"retry_read": None}),
    unknown("dead letters not read", "dlq_not_read", group={"dead_letters_read": False}),
    unknown(
        "dead letters read or not is not known", "dlq_not_read", group={"dead_letters_read": None}
    ),
    unknown("no progress in the copy's queue", "progress_unknown", queue={"settled_offset": None}),
    unknown("no progress in time", "progress_unknown", stub=NOWHERE, group={"passed_until": None}),
    unknown(
        "no progress in time, the attempt under way",
        "progress_unknown",
        stub={**UNACKED, "attempt_deadline": 9 * S},
        group={"passed_until": None},
    ),
    unknown(
        "no progress in time, and a life that nobody accepted",
        "new_epoch",
        case="new_epoch",
        stub=NOWHERE,
        group={"passed_until": None, "lives_accepted": False},
    ),
    unknown(
        "no progress in time, acceptance not known",
        "progress_unknown",
        stub=NOWHERE,
        group={"passed_until": None, "lives_accepted": None},
    ),
    lost(
        "a life that nobody accepted, with progress in time",
        stub=NOWHERE,
        group={"lives_accepted": False},
    ),
    lost(
        "progress in time is not asked of a trusted copy",
        group={"passed_until": None, "lives_accepted": False},
    ),
    unknown(
        "expired, but progress is not known",
        "progress_unknown",
        queue={"settled_offset": None, "first_offset": 11},
    ),
    lost("an accepted epoch goes by time", queue={"epoch": "e3"}),
    ahead(
        "an accepted epoch, not yet past",
        stub={"attempted_at": -41 * S, "attempt_deadline": 0},
        queue={"epoch": "e3", "rate": 0.001},
    ),
    Case(
        "unknown horizon to come",
        "UNKNOWN",
        "dlq_not_read",
        look=1,
        stub=aged(3_600, -1),
        group={"dead_letters_read": False},
    ),
    Case(
        "unknown horizon at this instant",
        "UNKNOWN",
        "dlq_not_read",
        look=SOON,
        case="unknown",
        stub=aged(3_600),
        group={"dead_letters_read": False},
    ),
    Case(
        "unknown beyond the overdue horizon",
        "UNKNOWN",
        "dlq_not_read",
        look=SOON,
        case="overdue",
        stub=aged(172_800),
        group={"dead_letters_read": False},
    ),
    # 8 STALLED
    Case(
        "stalled, redelivery possible by a microsecond",
        "STALLED",
        "redelivery_possible",
        look=1,
        log=log("FAILED", log_updated_at=-21_600 * S + 1),
    ),
    Case(
        "stalled at the redelivery horizon",
        "STALLED",
        "not_finished",
        eligible=True,
        log=log("FAILED", log_updated_at=-21_600 * S),
    ),
    Case(
        "stalled without a copy",
        "STALLED",
        "redelivery_possible",
        look=STALLS_UNTIL,
        stub=NEVER,
        log=log("EXPIRED"),
    ),
    Case(
        "no duplicates allowed, horizon to come",
        "STALLED",
        "no_duplicates_allowed",
        look=1,
        policy={"duplicates": "no"},
        log=log("FAILED", log_updated_at=-21_600 * S + 1),
    ),
    Case(
        "no duplicates allowed: a case",
        "STALLED",
        "no_duplicates_allowed",
        look=SOON,
        case="stalled",
        policy={"duplicates": "no"},
        log=log("FAILED", log_updated_at=-21_600 * S),
    ),
    Case(
        "no duplicates allowed is never exhausted",
        "STALLED",
        "no_duplicates_allowed",
        look=SOON,
        case="stalled",
        policy={"duplicates": "no"},
        stub={"max_sends": 1},
        log=log("FAILED", log_updated_at=-21_600 * S),
    ),
    Case(
        "stalled and overdue",
        "STALLED",
        "redelivery_possible",
        look=STALLS_UNTIL,
        case="overdue",
        stub=aged(172_800),
        log=log("FAILED"),
    ),
    lost("no duplicates allowed, never received", policy={"duplicates": "no"}),
    # 9 UNSENT
    unsent("never sent", "never_sent", stub=NEVER),
    unsent("refused", "refused", stub=REFUSED),
    unsent("outcome unknown, past by time", "not_stored", stub=UNACKED),
    unsent(
        "two unknown",
        "not_stored",
        stub={**UNACKED, "send_count": 2},
        attempts=(attempt(1, "unknown"), attempt(2, "unknown")),
    ),
    unsent(
        "sent to another group alone",
        "refused",
        stub={**UNACKED, "send_count": 2, "refusals": 1},
        attempts=(attempt(1, "refused"), attempt(2, group="shipping")),
    ),
    unsent(
        "no copy needs no progress",
        "refused",
        stub=REFUSED,
        queue=None,
        group={"passed_until": None},
    ),
    unsent(
        "number 1 went to another group alone",
        "refused",
        stub={"first_to_all": False},
        attempts=(attempt(1, group="shipping"),),
    ),
    lost(
        "number 1 went to this group alone",
        stub={"first_to_all": False},
        attempts=(attempt(1, group="billing"),),
    ),
    ahead(
        "number 1 is under way to some groups",
        stub={**UNSETTLED, "first_to_all": False, "attempt_deadline": 1},
    ),
    unsent(
        "number 1, to some groups, was refused",
        "refused",
        stub={**REFUSED, "first_to_all": False},
        attempts=(attempt(1, "refused", group="billing"),),
    ),
    # 10 LOST
    lost("passed over"),
    lost("acknowledged without a position, past by time", stub=NOWHERE),
    lost("acknowledged, attempted when is not known", stub={**NOWHERE, "attempted_at": None}),
    unknown(
        "unknown outcome, attempted when is not known",
        "undecidable",
        stub={**UNACKED, "attempted_at": None, "first_seen_at": -AGE},
    ),
    lost("lost twice", stub={"send_count": 2}, attempts=(attempt(1), attempt(2, queue_offset=9))),
    lost(
        "sent to this group alone",
        stub={"send_count": 2},
        attempts=(attempt(1, "refused"), attempt(2, group="billing")),
    ),
    ahead("offset is the first offset", queue={**AHEAD, "first_offset": 10}),
    lost("offset below the first offset", "expired_in_broker", queue={**AHEAD, "first_offset": 11}),
    ahead("first offset not known: nothing expired", queue={**AHEAD, "first_offset": None}),
    lost(
        "one copy of two expired",
        "expired_in_broker",
        stub={"send_count": 2},
        attempts=(attempt(1, queue_offset=9), attempt(2)),
        queue={**AHEAD, "first_offset": 11},
    ),
    lost("truncated in two runs", "truncated", queue=TRUNCATED),
    lost(
        "one copy of two truncated",
        "truncated",
        stub={"send_count": 2},
        attempts=(attempt(1, queue_offset=4), attempt(2)),
        queue=TRUNCATED,
    ),
    ahead("below the next offset now", queue={**TRUNCATED, "next_offset": 11}),
    ahead(
        "below the next offset in the run before", queue={**TRUNCATED, "previous_next_offset": 11}
    ),
    ahead(
        "truncated, settled a skew before the run before read",
        queue={**TRUNCATED, "previous_read_at": -AGE + 6 * S},
    ),
    ahead("truncated, no run before", queue={**TRUNCATED, "previous_next_offset": None}),
    ahead(
        "truncated, the run before read when is not known",
        queue={**TRUNCATED, "previous_read_at": None},
    ),
    lost("overdue horizon to come", stub=aged(172_800, -1)),
    lost("overdue horizon at this instant", stub=aged(172_800), case="overdue"),
    # EXHAUSTED
    exhausted(
        "every send used",
        "sends_used",
        stub={"send_count": 5},
        attempts=tuple(attempt(number) for number in range(1, 6)),
    ),
    lost(
        "one send left",
        stub={"send_count": 4},
        attempts=tuple(attempt(number) for number in range(1, 5)),
    ),
    lost(
        "a refusal gives its send back",
        stub={"send_count": 5, "refusals": 1},
        attempts=(attempt(1, "refused"), *(attempt(number) for number in range(2, 6))),
    ),
    lost(
        "the stub's own budget is larger",
        stub={"max_sends": 6, "send_count": 5},
        attempts=tuple(attempt(number) for number in range(1, 6)),
    ),
    exhausted("the stub's own budget is smaller", "sends_used", stub={"max_sends": 1}),
    exhausted(
        "every refusal used",
        "refused",
        stub={**UNACKED, "send_count": 20, "refusals": 20},
        attempts=tuple(attempt(number, "refused") for number in range(1, 21)),
    ),
    unsent(
        "one refusal left",
        "refused",
        stub={**UNACKED, "send_count": 19, "refusals": 19},
        attempts=tuple(attempt(number, "refused") for number in range(1, 20)),
    ),
    exhausted("too old at this instant", "too_old", stub=aged(604_800)),
    lost("too old in a microsecond", case="overdue", stub=aged(604_800, -1)),
    exhausted(
        "scheduled and too old at this instant",
        "too_old",
        stub=aged(700_000, deliver_at=-604_800 * S),
    ),
    lost(
        "scheduled later than it was created: too old in a microsecond",
        case="overdue",
        stub=aged(700_000, deliver_at=-604_800 * S + 1),
    ),
    exhausted("the stub is exhausted", "given_up", stub={"status": "exhausted"}),
    exhausted(
        "stalled and exhausted",
        "sends_used",
        stub={"max_sends": 1},
        log=log("FAILED", log_updated_at=-21_600 * S),
    ),
    exhausted("unsent and exhausted", "given_up", stub={**NEVER, "status": "exhausted"}),
    ahead("an exhausted stub's copy ahead", stub={"status": "exhausted"}, queue=AHEAD),
    Case(
        "an exhausted stub, consumed after all",
        "CONFIRMED",
        "consumed",
        stub={"status": "exhausted"},
        log=log("CONSUMED"),
    ),
    Case(
        "in progress and overdue",
        "IN_PROGRESS",
        "leased",
        look=65 * S,
        case="overdue",
        stub=aged(172_800),
        log=log("CONSUMING", lease_expires_at=60 * S),
    ),
    Case(
        "waiting and overdue",
        "WAITING",
        "not_due",
        look=1,
        case="overdue",
        stub=aged(172_800, next_check_at=1),
    ),
    Case(
        "parked and overdue",
        "PARKED",
        "ordering_key",
        look=SOON,
        case="overdue",
        stub=aged(172_800),
        log=log("PARKED"),
    ),
    Case(
        "dead-lettered and overdue",
        "DEAD_LETTERED",
        "dead_letter",
        look=SOON,
        case="overdue",
        stub=aged(172_800),
        dead=("billing",),
    ),
    Case(
        "a look never lies beyond the overdue horizon",
        "IN_PROGRESS",
        "leased",
        look=50 * S,
        stub=aged(172_750),
        log=log("CONSUMING", lease_expires_at=60 * S),
    ),
)

_INSTANTS = {
    "next_check_at",
    "created_at",
    "first_seen_at",
    "judged_at",
    "deliver_at",
    "attempted_at",
    "sent_at",
    "attempt_deadline",
    "lease_expires_at",
    "log_updated_at",
    "log_consumed_at",
    "passed_until",
    "log_floor",
    "previous_read_at",
    "started_at",
    "finished_at",
    "due_after",
    "due_until",
    "seen_at",
}


def _absolute(row: Mapping[str, Any]) -> Row:
    # The floor of a group that purged nothing is the year 1, not an instant beside as_of.
    return {
        name: value + NOW if name in _INSTANTS and value is not None and value != YEAR_1 else value
        for name, value in row.items()
    }


def tables(cases: Iterable[Case] = CASES) -> dict[str, list[Row]]:
    """The input of verdict.sql: every case in a topic and a shard of its own, its stub_id its place in the table."""
    names = (
        "delivery",
        "attempt",
        "policy",
        "group_state",
        "shard_state",
        "progress",
        "waiting",
        "delay_look",
        "dead_letter",
        "decision",
    )
    found: dict[str, list[Row]] = {name: [] for name in names}
    found["instant"] = [{"as_of": NOW}]
    for number, case in enumerate(cases):
        key = {"topic": f"topic-{number}", "message_id": "m:1%s'\""}
        where = {"topic": key["topic"], "consumer_group": "billing"}
        found["policy"].append({**where, **POLICY, **case.policy})
        found["delivery"].append(
            _absolute(
                {
                    "stub_id": number,
                    "shard": key["topic"],
                    **key,
                    "consumer_group": "billing",
                    **STUB,
                    **case.stub,
                    **(NO_LOG if case.log is None else case.log),
                }
            )
        )
        found["attempt"].extend(_absolute({**key, **row}) for row in case.attempts)
        if case.group is not None:
            found["group_state"].append(_absolute({**where, **GROUP, **case.group}))
        if case.shard is not None:
            found["shard_state"].append({"shard": key["topic"], **SHARD, **case.shard})
        if case.queue is not None:
            found["progress"].append(_absolute({**where, "queue_id": 0, **QUEUE, **case.queue}))
        for broker, (group_there, queue_there) in case.elsewhere.items():
            found["group_state"].append(
                _absolute({**where, **GROUP, "broker": broker, **group_there})
            )
            if queue_there is not None:
                found["progress"].append(
                    _absolute({**where, "queue_id": 0, **QUEUE, "broker": broker, **queue_there})
                )
        found["delay_look"].extend(
            _absolute({"topic": key["topic"], **EVER, **row}) for row in case.delays
        )
        found["waiting"].extend({**key, "consumer_group": group} for group in case.waits)
        found["dead_letter"].extend({**key, "consumer_group": group} for group in case.dead)
        found["decision"].extend({**key, "consumer_group": group} for group in case.discarded)
    return found
