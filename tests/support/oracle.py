"""The verdict rule in plain Python, written from the specification alone, as the judge of the portable SQL.

It takes the same rows (dicts with the columns of `backstop.verdicts.frames`) and is slow on purpose: one
delivery at a time, three truth values where the specification says "known" (None: it cannot be told).

Names of reasons and kinds of cases, which the specification leaves free, and what it leaves open were taken
from the SQL later; each such place says so ("open:").
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]
Maybe = bool | None
NO_LEASE = {"CONSUMED", "FAILED", "EXPIRED", "PARKED"}
"""A lease exists in state CONSUMING only, or in a state that we do not know."""
SETTLED = {"CONFIRMED", "VOIDED"}
NEVER = 221_845_392_000_000_000
"""The year 9000: open: what ends then or later ends never."""


def both(*parts: Maybe) -> Maybe:
    """True when all are; false when one is false; else it cannot be told."""
    if any(part is False for part in parts):
        return False
    return None if any(part is None for part in parts) else True


def either(*parts: Maybe) -> Maybe:
    """True when one is; false when all are false; else it cannot be told."""
    if any(part is True for part in parts):
        return True
    return None if any(part is None for part in parts) else False


def less(left: int | None, right: int | None) -> Maybe:
    return None if left is None or right is None else left < right


def at_least(left: int | None, right: int | None) -> Maybe:
    return None if left is None or right is None else left >= right


def plus(instant: int | None, length: int) -> int | None:
    return None if instant is None else instant + length


def latest(*instants: int | None) -> int | None:
    return max((i for i in instants if i is not None), default=None)


@dataclass(frozen=True)
class Copy:
    """One send number that may have reached the broker, addressed to this group."""

    acknowledged: bool
    attempted_at: int | None
    finished_at: int | None
    deadline: int | None
    """Null: nothing of it is under way."""
    settled: bool = True
    """Whether it was recorded how it ended, and with it when it began at the latest."""
    broker: str | None = None
    """Null: not recorded; it is at its topic's."""
    queue_id: int | None = None
    offset: int | None = None
    epoch: str | None = None


@dataclass(frozen=True)
class Fate:
    """What is known of one copy."""

    trusted: bool
    past: Maybe
    progress_known: bool
    epoch_good: bool
    how: str
    """Why it is past: passed, expired_in_broker or truncated."""


# ---- owed deliveries


def owed(tables: Tables) -> list[tuple[int, str]]:
    """(stub_id, group) of each delivery: subscribed, the filter takes it, created while active, not below the
    start."""
    found = []
    for stub in tables["stub"]:
        for policy in tables["policy"]:
            if stub["topic"] == policy["topic"] and _owes(stub, policy, tables):
                found.append((stub["stub_id"], policy["consumer_group"]))
    return found


def _owes(stub: Row, policy: Row, tables: Tables) -> bool:
    where = (policy["topic"], policy["consumer_group"])
    tags = {
        row["tag"] for row in tables["group_tag"] if (row["topic"], row["consumer_group"]) == where
    }
    if not policy["every_tag"] and (stub["tag"] is None or stub["tag"] not in tags):
        return False
    created_latest = (
        stub["created_at"] if stub["created_latest"] is None else stub["created_latest"]
    )
    if policy["active_from"] is not None and created_latest < policy["active_from"]:
        return False
    if policy["active_until"] is not None and stub["created_at"] >= policy["active_until"]:
        return False
    for start in tables["start_offset"]:
        here = (start["topic"], start["consumer_group"]) == where
        here = here and stub["first_queue_id"] == start["queue_id"]
        here = here and stub["first_queue_epoch"] == start["epoch"]
        here = here and (stub["first_broker"] or policy["broker"]) == start["broker"]
        # From this instant on the same epoch may be another life's: the place of what was sent then is not known.
        sent_by = created_latest + policy["attempt_timeout"]
        here = here and (start["only_until"] is None or sent_by < start["only_until"])
        # Offsets are never compared across epochs; without a known place of number 1, created_at has decided.
        if here and less(stub["first_queue_offset"], start["start_offset"]) is True:
            return False
    return True


# ---- copies


def copies(delivery: Row, attempts: Iterable[Row], policy: Row) -> list[Copy]:
    """The copies addressed to the delivery's group."""
    stub, group = delivery, delivery["consumer_group"]
    # "A null attempt_deadline is attempted_at + attempt_timeout."
    deadline = stub["attempt_deadline"]
    if deadline is None:
        deadline = plus(stub["attempted_at"], policy["attempt_timeout"])
    under_way = Copy(
        False, stub["attempted_at"], None, deadline, settled=False, broker=stub["broker"]
    )
    if stub["send_count"] == 0:
        return []
    if stub["send_count"] == 1 and stub["first_to_all"] is True:
        if stub["sent_at"] is not None:
            # open: without attempted_at the acknowledgement bounds it, from above.
            started = stub["sent_at"] if stub["attempted_at"] is None else stub["attempted_at"]
            return [
                Copy(
                    True,
                    started,
                    stub["sent_at"],
                    deadline,
                    True,
                    stub["broker"],
                    stub["queue_id"],
                    stub["queue_offset"],
                    stub["queue_epoch"],
                )
            ]
        if stub["refusals"] >= 1:
            return []
        # Not acknowledged, but whoever wrote it may have recorded where it went.
        where = (stub["broker"], stub["queue_id"], stub["queue_offset"], stub["queue_epoch"])
        return [Copy(False, stub["attempted_at"], None, deadline, stub["settled"] is True, *where)]
    found = []
    for number in range(1, stub["send_count"] + 1):
        rows = [a for a in attempts if a["send_number"] == number]
        if not rows:
            # Handed out, no row: under way, to whom is not known. The stub's times are the newest send's:
            # never too early for an older one.
            found.append(under_way)
        for row in rows:
            if row["consumer_group"] in (None, group) and row["outcome"] != "refused":
                newest = number == stub["send_count"]
                found.append(
                    Copy(
                        row["outcome"] == "sent",
                        row["started_at"],
                        row["finished_at"],
                        deadline if newest else None,
                        True,
                        row["broker"],
                        row["queue_id"],
                        row["queue_offset"],
                        row["queue_epoch"],
                    )
                )
    return found


def fate(
    copy: Copy,
    delivery: Row,
    policy: Row,
    group: Row,
    queues: Mapping[tuple[str, int], Row],
    delays: Sequence[Row],
    as_of: int,
) -> Fate:
    """Past, ahead or not known; and whether the evidence about this copy is good. `group`: at the copy's broker; `delays`: by
    when what was due had left each broker's delay storage."""
    broker = policy["broker"] if copy.broker is None else copy.broker
    queue = None if copy.queue_id is None else queues.get((broker, copy.queue_id))
    trusted = (
        copy.acknowledged
        and queue is not None
        and copy.offset is not None
        and copy.epoch is not None
        and copy.epoch == queue["epoch"]
    )
    # Known to be of the present epoch, or of an older one that a person has accepted; open: a copy without one,
    # acknowledged or not, goes by time.
    epoch_good = copy.epoch is None or (
        queue is not None and (copy.epoch == queue["epoch"] or queue["epoch_accepted"] is True)
    )
    if (
        group["removed"] is True
    ):  # "of a broker that is configured no more, that no person has accepted"
        epoch_good = group["lives_accepted"] is True
    if trusted:
        assert queue is not None
        passed = less(copy.offset, queue["settled_offset"])
        expired = less(copy.offset, queue["first_offset"]) is True
        truncated = (
            both(
                at_least(copy.offset, queue["next_offset"]),
                at_least(copy.offset, queue["previous_next_offset"]),
                # "Of a copy settled before the earlier of the two readings, less the skew."
                less(plus(copy.finished_at, policy["max_clock_skew"]), queue["previous_read_at"]),
            )
            is True
        )
        how = "passed_over" if passed else "expired_in_broker" if expired else "truncated"
        past = either(passed, expired, truncated)
        return Fate(True, past, queue["settled_offset"] is not None, epoch_good, how)
    if group["passed_until"] is None and group["lives_accepted"] is False:
        epoch_good = False  # it may be in a queue that is gone, which nobody has accepted
    stored_by = None
    if copy.attempted_at is not None:
        # "A send begins at the latest at attempt_deadline - max_send_duration", which counts until it is settled.
        late = None if copy.settled else plus(copy.deadline, -policy["max_send_duration"])
        stored_by = plus(
            latest(copy.attempted_at, late, delivery["deliver_at"]), policy["max_send_duration"]
        )
    kept_back = False
    if delivery["deliver_at"] is not None and stored_by is not None:
        # "No earlier than the first recorded look at which nothing due by then was left in delay storage."
        then = stored_by + 2 * policy["max_clock_skew"]
        seen = [
            row["seen_at"]
            for row in delays
            if row["broker"] == broker
            and less(row["due_after"], then) is not False
            and then <= row["due_until"]
        ]
        kept_back, stored_by = not seen, latest(stored_by, *seen)
    over = copy.deadline is None or as_of >= copy.deadline
    # "Two servers are compared through the control database's clock."
    past = both(less(plus(stored_by, 2 * policy["max_clock_skew"]), group["passed_until"]), over)
    if kept_back:
        past = False  # no look said so yet
    if group["passed_until"] is None or stored_by is None or not epoch_good:
        # "Known and not past is ahead": without both instants nothing is known, under way or not; and only
        # once its epoch is accepted does a copy follow the time rule.
        past = None
    return Fate(False, past, group["passed_until"] is not None, epoch_good, "passed_over")


# ---- the rule

_NOTHING: dict[str, Any] = dict.fromkeys(
    (
        "passed_until",
        "log_floor",
        "clock_good",
        "offsets_read",
        "retry_read",
        "dead_letters_read",
        "attempts_read",
        "removed",
        "lives_accepted",
    )
)


def judge(tables: Tables) -> list[dict[str, Any]]:
    """One answer for each delivery: stub_id, consumer_group, verdict, reason, eligible, case_kind,
    next_look_at, missing."""
    as_of = tables["instant"][0]["as_of"]
    index = {
        name: _by(rows, "shard" if name == "shard_state" else "topic")
        for name, rows in tables.items()
    }
    return [
        _Judgement(
            delivery,
            {
                name: index[name][delivery["shard" if name == "shard_state" else "topic"]]
                for name in index
            },
            as_of,
        ).answer()
        for delivery in tables["delivery"]
    ]


def _by(rows: Iterable[Row], column: str) -> dict[Any, list[Row]]:
    found: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.get(column)].append(row)
    return found


class _Judgement:
    def __init__(self, delivery: Row, tables: Tables, as_of: int) -> None:
        key = (delivery["topic"], delivery["message_id"])
        where = (delivery["topic"], delivery["consumer_group"])

        def of_group(name: str) -> list[Row]:
            return [row for row in tables[name] if (row["topic"], row["consumer_group"]) == where]

        def of_key(name: str) -> list[Row]:
            return [row for row in tables[name] if (row["topic"], row["message_id"]) == key]

        self.s, self.as_of = delivery, as_of
        self.policy = of_group("policy")[0]
        groups = {row["broker"]: row for row in of_group("group_state")}
        self.group = groups.get(self.policy["broker"], _NOTHING)
        self.shard = next(iter(tables["shard_state"]), _NOTHING)
        self.queues = {(row["broker"], row["queue_id"]): row for row in of_group("progress")}
        self.discarded = any(row["consumer_group"] == where[1] for row in of_key("decision"))
        self.waits = any(row["consumer_group"] == where[1] for row in of_key("waiting"))
        self.dead = any(row["consumer_group"] in (None, where[1]) for row in of_key("dead_letter"))
        self.copies = copies(delivery, of_key("attempt"), self.policy)
        # "A copy is judged by its own broker's progress."
        self.at = [groups.get(c.broker or self.policy["broker"], _NOTHING) for c in self.copies]
        self.fates = [
            fate(copy, delivery, self.policy, at, self.queues, tables["delay_look"], as_of)
            for copy, at in zip(self.copies, self.at, strict=True)
        ]
        self.acknowledged = any(c.acknowledged for c in self.copies)
        self.l = delivery["log_found"] is True
        self.base = latest(delivery["created_at"], delivery["deliver_at"], delivery["attempted_at"])

    # -- evidence

    def lease_until(self) -> int | None:
        """When the lease is over for certain; null where there is none, or where it has no end, or one that never comes."""
        ends = self.s["lease_expires_at"]
        if not self.may_have_lease() or (ends is not None and ends >= NEVER):
            return None
        return plus(ends, self.policy["max_clock_skew"])

    def may_have_lease(self) -> bool:
        return self.l and self.s["log_state"] not in NO_LEASE

    def touched_until(self) -> int | None:
        return plus(self.s["log_updated_at"], self.policy["consume_timeout"]) if self.l else None

    def in_progress(self) -> bool:
        return self.lease_alive() or less(self.as_of, self.touched_until()) is True

    def lease_alive(self) -> bool:
        return self.may_have_lease() and less(self.as_of, self.lease_until()) is not False

    def waits_until(self) -> int | None:
        """The instant before which it is too early to look, or null."""
        instants = []
        if not self.l:
            instants.append(self.s["next_check_at"])
        if (
            not self.acknowledged
        ):  # also beside a log: the row's second half does not ask for "no log"
            seen = self.as_of if self.s["first_seen_at"] is None else self.s["first_seen_at"]
            instants.append(seen + self.policy["first_check"])
        return latest(*(i for i in instants if self.as_of < i))

    def missing(self) -> list[str]:
        """What is not known to be good, in the specification's order."""
        s, group, shard = self.s, self.group, self.shard
        at = [group, *self.at]  # "on the broker of each copy", and on the topic's
        good = {
            "logs_unread": s["log_answered"] is True and s["log_found"] is not None,
            "log_invalid": s["log_found"] is not True or s["log_valid"] is True,
            "clock_skew": all(g["clock_good"] is True for g in at) and shard["clock_good"] is True,
            "log_purged": at_least(s["created_at"], group["log_floor"]) is True,
            "attempts_unread": shard["attempts_read"] is True,
            "offsets_unread": all(
                g["offsets_read"] is True and g["retry_read"] is True for g in at
            ),
            "new_epoch": all(f.epoch_good for f in self.fates),
            "dlq_not_read": all(g["dead_letters_read"] is True for g in at),
            "progress_unknown": all(f.progress_known for f in self.fates),
        }
        return [name for name, is_good in good.items() if not is_good]

    # -- the table of section 3, first match wins

    def verdict(self) -> str:
        s = self.s
        every_past = all(f.past is True for f in self.fates)
        if s["status"] == "voided" or self.discarded:
            return "VOIDED"
        if (self.l and s["log_valid"] is True and s["log_state"] == "CONSUMED") or s[
            "status"
        ] == "confirmed":
            return "CONFIRMED"
        if self.dead:
            return "DEAD_LETTERED"
        if self.l and s["log_state"] == "PARKED":
            return "PARKED"
        if self.in_progress():
            return "IN_PROGRESS"
        if self.waits_until() is not None:
            return "WAITING"
        if self.waits or any(f.past is False for f in self.fates):
            return "BACKLOGGED"
        if self.missing():
            return "UNKNOWN"
        if self.l and every_past:
            return "STALLED"
        if not self.l and every_past:
            return "LOST" if self.acknowledged else "UNSENT"
        return "UNKNOWN"

    def used_up(self) -> str | None:
        """Why an eligible delivery is EXHAUSTED instead."""
        s, policy = self.s, self.policy
        budget = policy["max_sends"] if s["max_sends"] is None else s["max_sends"]
        if s["status"] == "exhausted":
            return "given_up"
        if s["send_count"] - s["refusals"] >= budget:
            return "sends_used"
        if s["refusals"] >= policy["max_refusals"]:
            return "refused"
        if (
            self.as_of
            >= max(s["created_at"], s["deliver_at"] or s["created_at"]) + policy["replay_horizon"]
        ):
            return "too_old"
        return None

    def may_be_stalled_until(self) -> int | None:
        return plus(self.s["log_updated_at"], self.policy["redelivery_horizon"])

    def answer(self) -> dict[str, Any]:
        matched = verdict = self.verdict()
        eligible = verdict in ("LOST", "UNSENT")
        if verdict == "STALLED" and at_least(self.as_of, self.may_be_stalled_until()) is True:
            eligible = self.policy["duplicates"] != "no"
        repairable = eligible
        reason = self.reason(verdict, eligible)
        if eligible and (why := self.used_up()) is not None:
            verdict, reason, eligible = "EXHAUSTED", why, False
        return {
            "stub_id": self.s["stub_id"],
            "consumer_group": self.s["consumer_group"],
            "verdict": verdict,
            "reason": reason,
            "eligible": eligible,
            "case_kind": self.case_kind(verdict, reason),
            "next_look_at": None if repairable else self.next_look_at(matched),
            "missing": next(iter(self.missing()), None),
        }

    def reason(self, verdict: str, eligible: bool) -> str:
        """Why this verdict; the words are the SQL's, the distinctions the specification's."""
        s = self.s
        if verdict == "UNKNOWN":
            return (self.missing() or ["undecidable"])[0]
        if verdict == "IN_PROGRESS" and self.lease_alive():
            return "leased" if self.lease_until() is not None else "lease_without_expiry"
        if verdict == "LOST":
            hows = {f.how for f in self.fates}
            return next(
                how for how in ("expired_in_broker", "truncated", "passed_over") if how in hows
            )
        if verdict == "UNSENT":
            return (
                "not_stored" if self.copies else "never_sent" if s["send_count"] == 0 else "refused"
            )
        if verdict == "STALLED":
            if eligible:
                return "not_finished"
            return (
                "no_duplicates_allowed"
                if self.policy["duplicates"] == "no"
                else "redelivery_possible"
            )
        return {
            "VOIDED": "stub_voided" if s["status"] == "voided" else "discarded",
            "CONFIRMED": "consumed" if self.l else "stub_confirmed",
            "DEAD_LETTERED": "dead_letter",
            "PARKED": "ordering_key",
            "IN_PROGRESS": "touched_lately",
            "WAITING": "not_due"
            if not self.l and self.as_of < s["next_check_at"]
            else "first_check",
            "BACKLOGGED": "unacknowledged"
            if self.waits
            else "to_be_redelivered"
            if self.l
            else "ahead_of_group",
        }[verdict]

    # -- nothing waits for ever

    def horizon(self, name: str) -> int | None:
        return plus(self.base, self.policy[name])

    def case_kind(self, verdict: str, reason: str) -> str | None:
        """open: the kind when several apply; a new epoch asks at once; STALLED asks when it would be sent."""

        def beyond(name: str) -> bool:
            return at_least(self.as_of, self.horizon(name)) is True

        if verdict in SETTLED:
            return None
        if verdict == "EXHAUSTED":
            return "exhausted"
        if reason == "new_epoch":
            return "new_epoch"
        stalled_until = self.may_be_stalled_until()
        if reason == "no_duplicates_allowed" and at_least(self.as_of, stalled_until) is True:
            return "stalled"
        if beyond("overdue_horizon"):
            return "overdue"
        if verdict == "BACKLOGGED" and beyond("backlog_horizon"):
            return "backlog"
        return "unknown" if verdict == "UNKNOWN" and beyond("unknown_horizon") else None

    def next_look_at(self, verdict: str) -> int | None:
        """When it may have changed, but never after the next instant at which it becomes a case."""
        if verdict in SETTLED:
            return None
        horizons = [self.horizon("overdue_horizon")]
        if verdict == "BACKLOGGED":
            horizons.append(self.horizon("backlog_horizon"))
        if verdict == "UNKNOWN":
            horizons.append(self.horizon("unknown_horizon"))
        ahead = [h for h in horizons if h is not None and h > self.as_of]
        return min([self.planned_look(verdict), self.as_of + self.policy["replay_horizon"], *ahead])

    def planned_look(self, verdict: str) -> int:
        """open: the rule has no instant for several verdicts; `recheck` stands in."""
        soon: int = self.as_of + self.policy["recheck"]
        if verdict == "IN_PROGRESS":
            endless = self.may_have_lease() and self.lease_until() is None
            return (
                latest(soon if endless else None, self.lease_until(), self.touched_until()) or soon
            )
        if verdict == "WAITING":
            return self.waits_until() or soon
        if verdict == "BACKLOGGED":
            wait: int = max(self.policy["recheck"], min(self.lag(), self.policy["queue_delay_cap"]))
            return self.as_of + wait
        if verdict == "STALLED":
            until = self.may_be_stalled_until()
            return until if until is not None and until > self.as_of else soon
        return soon

    def lag(self) -> int:
        """How long the group needs to come to the farthest copy ahead, at its rate."""
        estimates: list[int] = []
        for copy, where in zip(self.copies, self.fates, strict=True):
            if where.trusted and where.past is False:
                queue = self.queues[copy.broker or self.policy["broker"], copy.queue_id]
                rate = queue["rate"]
                if rate is not None and rate > 0:
                    # Whole microseconds, rounded down.
                    estimates.append(
                        math.floor((copy.offset - queue["settled_offset"]) / rate * 1_000_000)
                    )
        return max(estimates, default=self.policy["recheck"])


# ---- a stub over its deliveries


def outcome(tables: Tables) -> list[dict[str, Any]]:
    """One answer for each stub: stub_id, old_status, new_status, deliveries, next_look_at."""
    as_of = tables["instant"][0]["as_of"]
    horizons = {
        row["topic"]: (row["overdue_horizon"], row["replay_horizon"]) for row in tables["no_taker"]
    }
    judged = _by(tables["judged"], "stub_id")
    return [
        _outcome(stub, judged[stub["stub_id"]], horizons[stub["topic"]], as_of)
        for stub in tables["stub"]
    ]


def _outcome(
    stub: Row, judged: Sequence[Row], horizons: tuple[int | None, int], as_of: int
) -> dict[str, Any]:
    horizon, replay_horizon = horizons
    old = stub["status"]
    verdicts = {j["verdict"] for j in judged}
    base = latest(stub["created_at"], stub["deliver_at"], stub["attempted_at"])
    overdue = None if horizon is None else plus(base, horizon)
    new = old
    if old not in ("confirmed", "voided"):
        if not judged and old != "exhausted":
            new = "no_taker" if at_least(as_of, overdue) is True else "pending"
        elif judged and verdicts <= SETTLED:
            new = "confirmed"
        elif judged and verdicts <= {*SETTLED, "EXHAUSTED"}:
            new = "exhausted"
        elif old != "exhausted":  # only a person moves it back, by raising max_sends
            new = "pending"  # open: also a no_taker that is owed after all
    look = None
    if new == "pending":
        if not judged:
            look = None if overdue is None else min(overdue, as_of + replay_horizon)
        elif not any(j["eligible"] for j in judged):
            look = min(
                (j["next_look_at"] for j in judged if j["next_look_at"] is not None), default=None
            )
    return {
        "stub_id": stub["stub_id"],
        "old_status": old,
        "new_status": new,
        "deliveries": len(judged),
        "next_look_at": look,
    }
