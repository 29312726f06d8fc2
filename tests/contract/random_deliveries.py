"""Seeded random deliveries: instants near every boundary of the rule, nulls where a column may hold one."""

from __future__ import annotations

from random import Random
from typing import Any

from backstop.verdicts import frames

Row = dict[str, Any]
NOW = 1_790_000_000_000_000
YEAR_9000 = 221_845_392_000_000_000
SECOND = 1_000_000
YEAR_1 = -62_135_596_800 * SECOND
SPANS = {
    "max_clock_skew": 5,
    "max_send_duration": 30,
    "attempt_timeout": 120,
    "first_check": 120,
    "consume_timeout": 900,
    "redelivery_horizon": 21_600,
    "recheck": 300,
    "unknown_horizon": 3_600,
    "backlog_horizon": 86_400,
    "overdue_horizon": 172_800,
    "replay_horizon": 604_800,
    "queue_delay_cap": 3_600,
}
"""The default policy, in seconds."""
STATES = ("CONSUMING", "CONSUMED", "FAILED", "EXPIRED", "PARKED", "HANDLING")
ODD = ("", ":", "%", "%s", "'", '"', "ü", "漢", "\\", "\t", " ")


class Dice:
    """A world of one topic and two groups at a time; everything follows from the seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.edge = 0.35

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def maybe(self, value: Any, null: float = 0.06) -> Any:
        return None if self.chance(null) else value

    def near(self, *boundaries: int) -> int:
        """On a boundary, a microsecond beside it, or anywhere within two days before."""
        if self.chance(self.edge):
            return self.random.choice(boundaries) + self.random.choice((-1, 0, 1))
        return NOW - int(10 ** self.random.uniform(0, 11.3))

    def good(self, null: float = 0.02, bad: float = 0.02) -> bool | None:
        answer: bool | None = self.maybe(not self.chance(bad), null)
        return answer


def policy(dice: Dice, topic: str, group: str) -> Row:
    spans = {
        name: SECOND * max(1, int(span * dice.random.choice((0.5, 1, 1, 2))))
        for name, span in SPANS.items()
    }
    return {
        "topic": topic,
        "consumer_group": group,
        "broker": "main",
        "every_tag": True,
        "active_from": None,
        "active_until": None,
        "duplicates": dice.random.choice(("guard", "guard", "declared_safe", "no")),
        "max_sends": dice.random.choice((1, 3, 5)),
        "max_refusals": dice.random.choice((1, 2, 20)),
        **spans,
    }


def broker(dice: Dice) -> str | None:
    """Where a copy went: mostly the topic's; another one, one that was removed, one that nobody looked at."""
    return dice.random.choice(
        (None,) * 3 + ("main",) * 14 + ("side",) * 2 + ("gone", "gone", "nowhere")
    )


def group_state(dice: Dice, topic: str, group: str, spans: Row, at: str) -> Row:
    return {
        "topic": topic,
        "consumer_group": group,
        "broker": at,
        "removed": dice.maybe(at == "gone", 0.03),
        "lives_accepted": dice.maybe(dice.chance(0.5)),
        "passed_until": dice.maybe(dice.random.choice((NOW - 1, NOW, NOW - 60 * SECOND))),
        "log_floor": dice.maybe(dice.random.choice((YEAR_1, NOW - spans["overdue_horizon"])), 0.03),
        "clock_good": dice.good(),
        "offsets_read": dice.good(),
        "retry_read": dice.good(),
        "dead_letters_read": dice.good(),
    }


def progress(dice: Dice, topic: str, group: str, queue_id: int, at: str) -> Row:
    settled = dice.random.randrange(0, 20)
    first = dice.random.choice((0, 0, settled, settled + 3))
    following = max(first, settled) + dice.random.choice((0, 0, 1, 8))
    return {
        "topic": topic,
        "consumer_group": group,
        "broker": at,
        "queue_id": queue_id,
        "epoch": "e2",
        "epoch_accepted": dice.random.choice((True, True, True, False, None)),
        "settled_offset": dice.maybe(settled),
        "first_offset": dice.maybe(first),
        "next_offset": dice.maybe(following, 0.03),
        "previous_next_offset": dice.maybe(following - dice.random.choice((0, 0, 1)), 0.1),
        "previous_read_at": dice.maybe(NOW - 600 * SECOND, 0.1),
        "rate": dice.maybe(dice.random.choice((0.0, 1e-9, 0.003, 0.007, 0.013, 12.5)), 0.2),
    }


def delay_looks(dice: Dice, topic: str, at: str, p: Row) -> list[Row]:
    """A broker that keeps nothing back; or up to three intervals of due instants, each with the first look after it."""
    if dice.chance(0.3):
        ever = {"due_after": None, "due_until": NOW * 2, "seen_at": YEAR_1}
        return [{"topic": topic, "broker": at, **ever}]
    margin = 2 * p["max_clock_skew"]
    around = (NOW, NOW + margin, NOW + p["max_send_duration"] + margin, NOW - 60 * SECOND)
    if dice.chance(0.5):  # some look found everything of now delivered
        first = dice.near(NOW - margin - 1, NOW - margin - 2, NOW - margin)
        late = {"due_after": None, "due_until": NOW * 2, "seen_at": first}
        return [{"topic": topic, "broker": at, **late}]
    ends = sorted({dice.near(*around) for _ in range(dice.random.choice((0, 1, 2, 3)))})
    seen = sorted(dice.near(NOW - margin, NOW - margin - 1) for _ in ends)
    return [
        {"topic": topic, "broker": at, "due_after": after, "due_until": until, "seen_at": first}
        for after, until, first in zip([None, *ends], ends, seen, strict=False)
    ]


def position(dice: Dice, sent: bool) -> Row:
    if dice.chance(0.1 if sent else 0.9):
        return {"queue_id": None, "queue_offset": None, "queue_epoch": None}
    return {
        "queue_id": dice.maybe(dice.random.choice((0, 0, 0, 1, 1, 1, 7)), 0.03),
        "queue_offset": dice.maybe(dice.random.randrange(0, 30), 0.03),
        "queue_epoch": dice.maybe(dice.random.choice(("e2",) * 12 + ("e1", "")), 0.03),
    }


def stub(dice: Dice, number: int, shard: str, topic: str, p: Row) -> Row:
    send_count = dice.random.choice((0, 1, 1, 1, 1, 2, 3))
    refusals = dice.random.choice((0, 0, 0, min(1, send_count), send_count))
    margin = p["max_send_duration"] + 2 * p["max_clock_skew"]
    attempted = (
        dice.maybe(
            dice.near(
                NOW - margin,
                NOW - 1 - margin,
                NOW - 2 * p["max_clock_skew"] - p["attempt_timeout"],
                NOW - p["overdue_horizon"],
                NOW - p["backlog_horizon"],
                NOW - p["unknown_horizon"],
            )
        )
        if send_count
        else None
    )
    sent = dice.chance(0.6) and send_count > 0
    created = dice.near(
        NOW - p["replay_horizon"],
        NOW - p["overdue_horizon"],
        NOW - p["backlog_horizon"],
        NOW - p["unknown_horizon"],
    )
    return {
        "stub_id": number,
        "shard": shard,
        "topic": topic,
        "message_id": f"m{dice.random.choice(ODD)}{number}",
        "tag": None,
        "status": dice.random.choice(
            ("pending",) * 14 + ("exhausted", "confirmed", "voided", "no_taker")
        ),
        "send_count": send_count,
        "refusals": refusals,
        "max_sends": dice.maybe(dice.random.choice((1, 3, 9)), 0.8),
        "next_check_at": NOW - 1 if dice.chance(0.5) else dice.near(NOW),
        "created_at": created,
        "first_seen_at": dice.maybe(dice.near(NOW - p["first_check"]), 0.1),
        "judged_at": dice.maybe(
            dice.random.choice((NOW - 60 * SECOND, dice.near(NOW - 60 * SECOND))), 0.4
        ),
        "deliver_at": dice.maybe(
            dice.near(NOW - p["max_send_duration"], NOW, NOW - 60 * SECOND - margin), 0.6
        ),
        "attempted_at": attempted,
        "sent_at": dice.near(NOW - 600 * SECOND, NOW - 600 * SECOND - p["max_clock_skew"])
        if sent
        else None,
        "attempt_deadline": dice.maybe(dice.near(NOW, NOW - p["max_send_duration"]), 0.4),
        "settled": dice.chance(0.6),
        "broker": broker(dice),
        **position(dice, sent),
        "first_to_all": dice.chance(0.9),
        "created_latest": None,
    }


def log(dice: Dice, p: Row) -> Row:
    if dice.chance(0.03):
        answered, found = dice.random.choice((False, None, True)), dice.random.choice((False, None))
        return {**dict.fromkeys(frames.LOG), "log_answered": answered, "log_found": found}
    if dice.chance(0.6):
        return {**dict.fromkeys(frames.LOG), "log_answered": True, "log_found": False}
    return {
        "log_answered": True,
        "log_found": True,
        "log_valid": dice.good(0.03, 0.05),
        "log_broken": None,
        "log_state": dice.maybe(dice.random.choice(STATES), 0.03),
        "lease_expires_at": dice.maybe(dice.near(NOW, NOW - p["max_clock_skew"], YEAR_9000), 0.15),
        "log_updated_at": dice.maybe(
            dice.near(NOW - p["consume_timeout"], NOW - p["redelivery_horizon"])
        ),
        "log_consumed_at": dice.maybe(
            dice.random.choice((NOW - 60 * SECOND, dice.near(NOW - 60 * SECOND)))
        ),
    }


def attempts(dice: Dice, of: Row, groups: tuple[str, ...], p: Row) -> list[Row]:
    rows: list[Row] = []
    for number in (
        # Now and then a row above the numbers that were handed out, which does not count.
        range(1, of["send_count"] + 1 + dice.chance(0.1))
        if of["send_count"] > 1 or not of["first_to_all"]
        else ()
    ):
        if dice.chance(0.12):
            continue  # still under way
        outcome, went_to = dice.random.choice(("sent", "sent", "refused", "unknown")), broker(dice)
        where = position(dice, outcome == "sent")
        margin = p["max_send_duration"] + 2 * p["max_clock_skew"]
        started = dice.maybe(dice.near(NOW - margin, NOW - 1 - margin), 0.03)
        settled_by = NOW - 600 * SECOND - p["max_clock_skew"]
        finished = dice.maybe(dice.near(NOW - 600 * SECOND, settled_by), 0.03)
        addressed: tuple[list[str | None], ...] = (
            [None],
            [None],
            [groups[0]],
            [groups[1]],
            [*groups],
            ["elsewhere"],
        )
        rows.extend(
            {
                "topic": of["topic"],
                "message_id": of["message_id"],
                "send_number": number,
                "consumer_group": group,
                "outcome": outcome,
                "broker": went_to,
                "started_at": started,
                "finished_at": finished,
                **where,
            }
            for group in dice.random.choice(addressed)
        )
    return rows


def judge_tables(
    seed: int, topics: int, stubs_each: int, first_id: int = 1
) -> dict[str, list[Row]]:
    """The input of verdict.sql: topics x stubs_each x 2 deliveries; stub_ids from `first_id` on."""
    dice = Dice(seed)
    tables: dict[str, list[Row]] = {
        name: []
        for name in (
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
    }
    tables["instant"] = [{"as_of": NOW}]
    number = first_id - 1
    for index in range(topics):
        topic, shard, groups = f"t:{index}", f"shard%{index}", ("billing", "ship'ing")
        policies = {group: policy(dice, topic, group) for group in groups}
        tables["policy"].extend(policies.values())
        for group in groups:
            for at in ("main", "side", "gone"):
                if not dice.chance(0.02):
                    tables["group_state"].append(
                        group_state(dice, topic, group, policies[group], at)
                    )
                queues = [q for q in (0, 1) if at != "gone" and not dice.chance(0.03)]
                tables["progress"].extend(progress(dice, topic, group, q, at) for q in queues)
        for at in ("main", "side", "gone", "nowhere"):
            tables["delay_look"].extend(delay_looks(dice, topic, at, policies[groups[0]]))
        if not dice.chance(0.02):
            state = {"shard": shard, "clock_good": dice.good(), "attempts_read": dice.good()}
            tables["shard_state"].append(state)
        for _ in range(stubs_each):
            number += 1
            one = stub(dice, number, shard, topic, policies[groups[0]])
            tables["attempt"].extend(attempts(dice, one, groups, policies[groups[0]]))
            key = {"topic": topic, "message_id": one["message_id"]}
            for group in groups:
                owed = {column: one[column] for column in frames.OWED if column != "consumer_group"}
                tables["delivery"].append(
                    {**owed, "consumer_group": group, **log(dice, policies[group])}
                )
            for table, share in (("waiting", 0.05), ("dead_letter", 0.05), ("decision", 0.03)):
                if dice.chance(share):
                    named = dice.random.choice(
                        (*groups, None if table == "dead_letter" else "elsewhere")
                    )
                    rows = [{**key, "consumer_group": named}] * dice.random.choice((1, 1, 2))
                    tables[table].extend(rows)
    return tables


def owed_tables(seed: int, topics: int, stubs_each: int) -> dict[str, list[Row]]:
    """The input of deliveries.sql: groups that filter, that came late or left, that started at an offset."""
    dice = Dice(seed)
    tables: dict[str, list[Row]] = {
        name: [] for name in ("stub", "policy", "group_tag", "start_offset")
    }
    number = 0
    for index in range(topics):
        topic = f"t:{index}"
        came, left = NOW - 7_200 * SECOND, NOW - 3_600 * SECOND
        for group in ("billing", "ship'ing", "audit"):
            row = policy(dice, topic, group)
            every_tag = dice.chance(0.5)
            row["every_tag"] = every_tag
            row["active_from"], row["active_until"] = dice.maybe(came, 0.6), dice.maybe(left, 0.6)
            tables["policy"].append(row)
            if not every_tag:
                tags = [tag for tag in ("red", "%", "") if dice.chance(0.5)]
                tables["group_tag"].extend(
                    {"topic": topic, "consumer_group": group, "tag": tag} for tag in tags
                )
            tables["start_offset"].extend(
                {
                    "topic": topic,
                    "consumer_group": group,
                    "broker": dice.random.choice(("main", "main", "side")),
                    "queue_id": q,
                    "epoch": "e2",
                    "start_offset": 10,
                    "only_until": dice.maybe(dice.near(came + row["attempt_timeout"], left), 0.5),
                }
                for q in (0, 1)
                if dice.chance(0.4)
            )
        for _ in range(stubs_each):
            number += 1
            one = stub(dice, number, "shop", topic, tables["policy"][-1])
            one["created_at"] = dice.near(came, left)
            one["created_latest"] = dice.maybe(dice.near(came, left), 0.5)
            # Where number 1 lies, whatever was sent later.
            one.update(
                {f"first_{name}": value for name, value in position(dice, dice.chance(0.8)).items()}
            )
            one["first_broker"] = broker(dice)
            if one["first_queue_offset"] is not None and dice.chance(0.5):
                one["first_queue_offset"] = dice.random.choice((9, 10, 11))
            one["tag"] = dice.maybe(dice.random.choice(("red", "%", "", "blue")), 0.2)
            tables["stub"].append(one)
    return tables
