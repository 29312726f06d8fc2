"""Faults by which messages end in a dead-letter queue: of their content, of a dependency, of a client's mistake, of time."""

from __future__ import annotations

import json
from collections import Counter

from backstop_lab.demo.lose import DRAIN_SECONDS
from backstop_lab.demo.stage import Stage
from backstop_lab.shop.demand import (
    DEPENDENCY_DOWN,
    FIELD_MISSING,
    NOT_JSON,
    OLD_LIMIT,
    RULE_REFUSED,
)
from backstop_lab.shop.wait_for import wait_for

FALSE, UNDONE, TOO_LATE = 3, 3, 3
NO_JSON, NO_COUNTRY, OVER_LIMIT, CARRIED = 3, 2, 4, 4
MESSAGES = FALSE + UNDONE + TOO_LATE + NO_JSON + NO_COUNTRY + OVER_LIMIT + CARRIED
DEATHS = {
    NOT_JSON: 2 * NO_JSON,
    FIELD_MISSING: NO_COUNTRY,
    RULE_REFUSED: OVER_LIMIT,
    DEPENDENCY_DOWN: CARRIED,
}
"""How many deliveries die of each: what is no JSON kills both groups."""
DIE_SECONDS = 600.0


def suppress(stage: Stage) -> None:
    """A client gives up redeliveries as duplicates: of work that was done, and of work that was not; others are too old."""
    done = [
        ("orders", message_id)
        for message_id in stage.producers["shop_a"].make("orders", FALSE, tell=True)
    ]
    stage.done("billing", done, DRAIN_SECONDS)
    stage.drained(DRAIN_SECONDS)
    stage.broker_faults.bury_done("orders", "billing", done)
    _, undone, expired = stage.broker_faults.false_letters
    with stage.nobody_receives():
        # A worker that was frozen while it waited would be handed them all the same, until its wait is over.
        wait_for(
            "Workers that wait for nothing",
            stage.broker_faults.nobody_waits,
            DIE_SECONDS,
            lambda: "some still wait",
        )
        ids = stage.producers["shop_b"].make("orders", UNDONE + TOO_LATE, tell=True)
        died = {
            message_id: undone if place < UNDONE else expired
            for place, message_id in enumerate(ids)
        }
        stage.broker_faults.bury(
            "orders", "shipping", {message_id: fault for message_id, fault in died.items() if fault}
        )


def die_of_the_handler(stage: Stage) -> None:
    """Three kinds of poison, and a carrier that is away for longer than the broker tries; then it is back."""
    shop_a, shop_b = stage.producers["shop_a"], stage.producers["shop_b"]
    stage.conditions.carrier_is_down()
    shop_a.make("orders", NO_JSON, bodies=[cut_short(number) for number in range(NO_JSON)])
    shop_b.make(
        "orders", NO_COUNTRY, bodies=[without_country(number) for number in range(NO_COUNTRY)]
    )
    shop_a.make("orders", OVER_LIMIT, bodies=[over_limit(number) for number in range(OVER_LIMIT)])
    shop_b.make("orders", CARRIED, bodies=[carried(number) for number in range(CARRIED)])

    def left() -> dict[str, int]:
        stage.watch()
        died = Counter(
            {fault: len({line_of(line) for line in stage.ledger.lines(fault)}) for fault in DEATHS}
        )
        return {
            fault: count - died[fault] for fault, count in DEATHS.items() if died[fault] < count
        }

    wait_for("The death of messages", lambda: not left(), DIE_SECONDS, lambda: str(left()))
    # The last delivery was noted before it was handed back: the broker's queues tell when it is over.
    stage.drained(DRAIN_SECONDS)
    stage.conditions.carrier_is_back()


def line_of(line: dict[str, str]) -> tuple[str, str]:
    return line["message_id"], line["consumer_group"]


def cut_short(number: int) -> str:
    """Ends in the middle of a text, each at another place."""
    return json.dumps({"amount": 20 + number, "note": "deliver to the back door " * (2 + number)})[
        :-3
    ]


def without_country(number: int) -> str:
    ship_to = {"name": f"customer {8800 + number}", "street": f"Main Street {3 + 11 * number}"}
    return json.dumps(
        {"no": 4700 + number, "amount": 30 + number, "customer": 8800 + number, "ship_to": ship_to}
    )


def with_country(body: str, country: str) -> str:
    """What a person makes of it."""
    order = json.loads(body)
    return json.dumps({**order, "ship_to": {**order["ship_to"], "country": country}})


def over_limit(number: int) -> str:
    return json.dumps(
        {
            "no": 5900 + 7 * number,
            "amount": OLD_LIMIT + 100 + 13 * number,
            "customer": 9100 + number,
        }
    )


def carried(number: int) -> str:
    return json.dumps({"no": 6100 + number, "amount": 40 + number, "carrier": "express"})
