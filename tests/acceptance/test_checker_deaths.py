"""The checker of dead letters and alerts disagrees when one death, answer or message did not end as it must."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from checker_world import GROUPS, World

Break = Callable[[World], object]


def sql(database: str, statement: str) -> Break:
    return lambda world: world.sql(database, statement)


def forget(way: str, words: str) -> Break:
    """As if these messages had never come."""

    def break_it(world: World) -> None:
        file = world.received.folder / f"{way}.jsonl"
        kept = [
            line for line in file.read_text().splitlines() if words not in json.loads(line)["title"]
        ]
        file.write_text("".join(f"{line}\n" for line in kept))

    return break_it


def both(*breaks: Break) -> Break:
    return lambda world: [break_it(world) for break_it in breaks]


LETTER = "UPDATE dead_letter SET {} WHERE message_id = '{}'"
NOT_DEALT, UNTOLD = "dead letter not dealt with", "case without an alert"
BROKEN: dict[str, tuple[str, Break]] = {
    "an injected death was never drained": (
        NOT_DEALT,
        sql("control", "DELETE FROM dead_letter WHERE message_id = 'suppressed_undone'"),
    ),
    "a letter is still open": (
        NOT_DEALT,
        sql("control", LETTER.format("state = 'open', closed_at = NULL", "dependency_down")),
    ),
    "a letter that nobody injected was drained": (
        "dead letter that nobody injected",
        sql("control", LETTER.format("message_id = 'lost'", "dependency_down")),
    ),
    "a letter was stored twice": (
        "dead letter stored twice",
        sql("control", LETTER.format("broker_id = 'rule_refused-billing#2'", "dependency_down")),
    ),
    "a page was never acknowledged": (
        "batch of dead letters not acknowledged",
        sql("control", "UPDATE drain_batch SET acknowledged_at = NULL"),
    ),
    "a false dead letter was discarded, and its log is gone": (
        NOT_DEALT,
        sql("billing", "DELETE FROM consumer_log WHERE message_id = 'suppressed_done'"),
    ),
    "what was never done was discarded in place of replayed": (
        NOT_DEALT,
        sql(
            "control",
            LETTER.format(
                "state = 'discarded', proof = '[1]', send_number = NULL", "suppressed_undone"
            ),
        ),
    ),
    "a letter is called replayed, and nothing was sent": (
        NOT_DEALT,
        sql("shop_a", "DELETE FROM send_attempt WHERE message_id = 'dependency_down'"),
    ),
    "a replay was never consumed": (
        NOT_DEALT,
        sql("shipping", "DELETE FROM effect WHERE message_id = 'suppressed_undone'"),
    ),
    "a replay was consumed twice": (
        NOT_DEALT,
        sql(
            "shipping",
            "INSERT INTO effect SELECT * FROM effect WHERE message_id = 'dependency_down'",
        ),
    ),
    "a false dead letter was replayed": (
        "resend needless",
        lambda w: w.attempt("shop_a", "orders", "suppressed_done", 2, "sent", "billing"),
    ),
    "one death was replayed twice": (
        "resend needless",
        lambda w: w.attempt("shop_a", "orders", "dependency_down", 3, "sent", "shipping"),
    ),
    "a replay reached a group that had done its work": (
        "resend needless",
        sql(
            "shop_a",
            "UPDATE send_attempt SET groups = '{billing}' WHERE message_id = 'dependency_down'",
        ),
    ),
    "a machine replayed poison": (
        NOT_DEALT,
        sql(
            "control",
            "UPDATE case_file SET evidence = '{}' WHERE case_id IN"
            " (SELECT case_id FROM case_member WHERE message_id = 'rule_refused')",
        ),
    ),
    "poison was discarded and no decision is kept": (
        NOT_DEALT,
        sql(
            "control",
            "DELETE FROM delivery_decision WHERE message_id = 'not_json' AND consumer_group = 'billing'",
        ),
    ),
    "poison had an effect after all": (
        NOT_DEALT,
        lambda w: w.sql(
            "billing", "INSERT INTO effect VALUES ('billing', 'orders', 'not_json', 1, 1, 'w')"
        ),
    ),
    "a delivery was given up for no reason": (
        "discarded without a reason",
        lambda w: w.give_up("orders", "held", "billing"),
    ),
    "the old content was consumed": (
        NOT_DEALT,
        sql(
            "shipping",
            "UPDATE consumer_log SET content_version = 1 WHERE message_id = 'field_missing'",
        ),
    ),
    "the old content was not kept": (
        NOT_DEALT,
        sql("control", "DELETE FROM message_version WHERE content_version = 1"),
    ),
    "two causes are in one case": (
        "not one case a cause",
        sql(
            "control",
            "UPDATE case_member SET case_id = (SELECT case_id FROM case_member WHERE message_id = 'rule_refused')"
            " WHERE message_id = 'message_expired'",
        ),
    ),
    "a case was opened and never answered": (
        "case that was not answered",
        lambda w: w.case("dead_letters", "orders", "rule_refused", "billing"),
    ),
    "a case was written to the outbox and not sent": (
        UNTOLD,
        sql("control", "UPDATE alert SET delivered_at = NULL WHERE title LIKE '%: mass_loss in %'"),
    ),
    "an alert waits": (
        "alert not delivered",
        sql("control", "UPDATE alert SET delivered_at = NULL WHERE closing"),
    ),
    "an alert is said to be delivered and came by no way": (
        "alert said to be delivered that never came",
        both(*(forget(way, ": mass_loss in ") for way in ("mail", "post"))),
    ),
    "nobody was told that a case is over": (
        "closed case without an alert",
        sql("control", "DELETE FROM alert WHERE closing"),
    ),
    "one mail did not come": (
        "message said to be sent that never came",
        forget("mail", ": mass_loss in "),
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_it_disagrees_when(what: str, world: World) -> None:
    rule, break_it = BROKEN[what]
    break_it(world)
    code, told = world.check()
    assert (code, told["ok"]) == (1, False)
    assert rule in {problem["rule"] for problem in told["problems"]}, told["problems"]


def test_it_counts_each_way_to_die_and_each_message_that_came(world: World) -> None:
    _, told = world.check()
    numbers = {
        fault: (one["died"], one["discarded"], one["replayed"], one["cases"], one["right"])
        for fault, one in told["dead_letters"].items()
    }
    assert numbers == {
        "suppressed_done": (1, 1, 0, 0, 1),
        "suppressed_undone": (1, 0, 1, 0, 1),
        "dependency_down": (1, 0, 1, 0, 1),
        "message_expired": (1, 0, 1, 1, 1),
        "not_json": (2, 2, 0, 2, 2),
        "field_missing": (1, 0, 1, 1, 1),
        "rule_refused": (1, 0, 1, 1, 1),
    }
    cases = 2 + 3 + len(GROUPS)
    assert (told["told"]["cases"], told["told"]["told"], told["told"]["over"]) == (
        cases,
        cases,
        cases - 1,
    )
    assert told["told"]["messages"] == {"mail": 2 * cases - 1, "post": 2 * cases - 1}
    assert told["told"]["answers"] == {"discard by ann": 3, "replay by ann": 2, "edit by ann": 1}
