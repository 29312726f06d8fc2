"""Sending a list of ids and nothing else: asked for as a person, within budget, send number, canary and rate."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from backstop.control.connection import connect
from backstop.model.errors import ConfigurationError, DecisionRefused, Unavailable
from backstop.model.id_list import fits_a_line
from backstop.model.records import Counts
from backstop.requests.ask import Ask, ask, take_turns
from backstop.resend.ask_for_ids import Listed, ask_for_ids, read_ids
from backstop.resend.run_once import Listing, run_duty
from backstop.runs.run import close_run, open_run
from backstop.runs.scope import name_of
from resend_world import OTHER, TOPIC, World, ids, servers, world  # noqa: F401


def send_list(
    world: World, *wanted: str, dry_run: bool = False, who: str = "ann"
) -> tuple[Counts, dict[str, str]]:
    listed: list[Listed] = []
    counts = run_duty(
        world.settings,
        world.connections,
        scope=name_of([TOPIC]),
        dry_run=dry_run,
        listing=Listing(TOPIC, wanted, who, "the shop asked for it"),
        tell_listed=listed.append,
    )
    return counts, {one.message_id: one.says for one in listed}


def out(world: World) -> list[str]:
    return sorted(message_id for message_id, _ in world.copies())


def test_only_the_listed_messages_go_out_whether_asked_for_or_not(world: World) -> None:
    world.stubs(["asked", "not asked", "other asked"])
    world.ask(["asked", "other asked"])
    world.stubs(["asked"], topic=OTHER)
    world.ask(["asked"], topic=OTHER)

    counts, says = send_list(world, "asked", "not asked")

    assert (
        counts["sent"] == 2 and out(world) == ["asked", "not asked"] and world.copies(OTHER) == {}
    )
    assert says == {
        "asked": "a request for it is open already",
        "not asked": "to send to all groups as send 1, when ramp and rate let it",
    }
    made = world.request("not asked")
    assert (made["requested_by"], made["reason"]) == ("person ann", "the shop asked for it")
    assert world.request("other asked")["state"] == "open"
    world.resend()
    assert out(world) == ["asked", "not asked", "other asked"], "the next run is not limited"


def test_what_reconcile_asked_for_and_its_radius_holds_by_now_is_sent_by_a_list(
    world: World,
) -> None:
    """Its own request will be closed unsent; the list's name is one that may send it."""
    world.stubs(["m"])
    world.ask(["m"])
    world.sql(
        "control",
        """WITH c AS (INSERT INTO case_file (kind, topic, summary) VALUES ('mass_loss', 'orders', 's') RETURNING case_id)
        INSERT INTO case_member (case_id, shard, topic, message_id, consumer_group)
        SELECT case_id, 'shop_a', 'orders', 'm', 'billing' FROM c""",
    )
    counts, says = send_list(world, "m")
    assert says["m"].startswith("to send to all groups as send 1")
    assert (counts.get("sent"), out(world)) == (1, ["m"])
    assert world.request("m")["requested_by"] == "person ann"


def test_what_reconcile_asked_for_counts_once_when_a_list_asks_for_it_too(world: World) -> None:
    """By the blast radius of four: the same four messages are not eight."""
    world.set("policy", "blast_floor", to=5)
    world.set("policy", "canary", to=2)
    wanted = ids(4)
    world.stubs(wanted)
    world.ask(wanted, ramped=True)
    world.sql(
        "control",
        """WITH c AS (INSERT INTO case_file (kind, topic, summary) VALUES ('mass_loss', 'orders', 's') RETURNING case_id)
        INSERT INTO case_member (case_id, shard, topic, message_id, consumer_group)
        SELECT case_id, 'shop_a', 'orders', r.message_id, 'billing' FROM c, resend_request r""",
    )
    _, says = send_list(world, *wanted)
    assert all(answer.startswith("to send to all groups") for answer in says.values())


def test_what_reconcile_asked_for_counts_for_the_blast_radius_whoever_joined_it(
    world: World,
) -> None:
    world.set("policy", "blast_floor", to=5)
    world.set("policy", "canary", to=2)
    asked, wanted = ids(4), ids(4, "other")
    world.stubs([*asked, *wanted])
    world.ask(asked, groups=("shipping",), ramped=True)
    world.ask(asked, groups=("billing",), by="triage", ramped=True)
    with pytest.raises(DecisionRefused, match="deliveries to shipping are more than the blast"):
        send_list(world, *wanted)


def test_what_cannot_go_is_listed_with_the_reason(world: World) -> None:
    world.stubs(["confirmed"], status="confirmed")
    world.stubs(["withdrawn"], status="voided")
    world.stubs(["consumed"])
    for group in ("billing", "shipping"):
        world.consume("consumed", group)
    world.stubs(["used up"], send_count=4, refusals=0)
    world.stubs(["twice"], "a")
    world.stubs(["twice"], "b")
    world.stubs(["erased"])
    world.sql(
        "control",
        """INSERT INTO erasure (topic, message_id, asked_by, why, done_at)
        VALUES ('orders', 'erased', 'ann', 'asked', now())""",
    )
    counts, says = send_list(
        world, "confirmed", "withdrawn", "consumed", "used up", "twice", "no such", "erased"
    )
    assert says["erased"] == "its content was erased on request: it is never sent again"
    assert says["confirmed"] == "CONFIRMED already" and says["withdrawn"] == "VOIDED already"
    assert says["consumed"].startswith("nothing to send: billing CONFIRMED")
    assert says["no such"] == "no shard has it" and "several shards" in says["twice"]
    assert "published" not in counts and out(world) == [] and world.requests() == {}


def test_a_used_up_budget_is_not_bypassed(world: World) -> None:
    world.stubs(["m"], status="exhausted", send_count=0)
    _, says = send_list(world, "m")
    assert says["m"].startswith("EXHAUSTED: its sends are used up") and out(world) == []


def test_a_group_that_takes_no_duplicates_is_not_reached_by_a_list(world: World) -> None:
    world.set("groups", "shipping", "duplicates", to="no")
    world.stubs(["m"])
    world.consume("m", "shipping")
    _, says = send_list(world, "m")
    assert "a group that it might harm" in says["m"] and out(world) == []


def test_begun_work_of_a_group_that_takes_no_duplicates_is_not_repeated_by_a_list(
    world: World,
) -> None:
    world.set("groups", "shipping", "duplicates", to="no")
    world.stubs(["m"])
    world.consume("m", "billing")
    world.consume("m", "shipping", state="EXPIRED")
    _, says = send_list(world, "m")
    assert "a group that it might harm; decide it by its case" in says["m"] and out(world) == []


def test_a_list_asked_for_before_a_group_was_declared_to_take_no_duplicates_does_not_reach_it(
    world: World,
) -> None:
    world.set("policy", "canary", to=1)
    world.stubs(["a", "b"])
    for message_id in ("a", "b"):
        world.consume(message_id, "shipping")
    assert send_list(world, "a", "b")[0]["sent"] == 1
    world.sql("control", "UPDATE resend_request SET held = false, requested_by = 'person ann'")
    world.set("groups", "shipping", "duplicates", to="no")
    world.resend()
    assert len(out(world)) == 1 and world.request("b")["error"] == "no_route"


def test_a_long_list_begins_with_a_canary_like_everything_else(world: World) -> None:
    world.set("policy", "canary", to=4)
    wanted = ids(10)
    world.stubs(wanted)
    counts, says = send_list(world, *wanted)
    assert counts["sent"] == 4 and len(out(world)) == 4 and len(says) == 10
    assert world.requests() == {"sent": 4, "open": 6}


def test_a_dry_run_of_a_list_says_what_would_go_and_asks_for_nothing(world: World) -> None:
    world.stubs(["m"])
    _, says = send_list(world, "m", dry_run=True)
    assert says == {"m": "to send to all groups as send 1, when ramp and rate let it"}
    assert world.requests() == {} and out(world) == []


def test_sent_twice_the_same_list_sends_once(world: World) -> None:
    world.stubs(["m"])
    send_list(world, "m")
    _, says = send_list(world, "m")
    assert says["m"].startswith("not yet: ") and world.copies() == {("m", "1"): 1}


def test_a_list_needs_a_name_and_a_topic_in_mode_repair_and_a_shard_that_answers(
    world: World,
) -> None:
    world.stubs(["m"])
    with pytest.raises(ConfigurationError, match="a name and a reason"):
        send_list(world, "m", who=" ")
    good = world.urls["backstop_producer_b"]
    world.urls["backstop_producer_b"] = "postgresql://u:p@127.0.0.1:9/x"
    with pytest.raises(Unavailable, match="shop_b"):
        send_list(world, "m")
    world.urls["backstop_producer_b"] = good
    world.set("topics", TOPIC, "mode", to="observe")
    with pytest.raises(ConfigurationError, match="mode observe"):
        send_list(world, "m")
    assert world.requests() == {} and out(world) == []


def test_ids_are_read_one_a_line_each_once_with_any_character() -> None:
    assert read_ids("b\n\na b:%'\n\nb\nünï\n") == ("b", "a b:%'", "ünï")
    for inside in "\x0b\x0c\r\x1c\x1d\x1e\x85\u2028\u2029":
        odd = f"a{inside}b"
        assert read_ids(f"{odd}\r\n{odd}\nc") == (odd, "c") and fits_a_line(odd)
    assert read_ids("a", ["a", "b\nc"]) == ("a", "b\nc"), "by name it is what it is"
    assert not any(map(fits_a_line, ["", " ", "a\nb", "a\r"]))
    with pytest.raises(ConfigurationError, match="empty"):
        read_ids("\n \n")


def test_a_list_beyond_the_blast_radius_is_refused_whole_and_small_lists_add_up_to_it(
    world: World,
) -> None:
    policy = world.settings.policy_for(TOPIC)
    wanted = [f"m-{place:03}" for place in range(policy.blast_floor)]
    world.stubs(wanted)
    with pytest.raises(DecisionRefused, match="more than the blast radius"):
        send_list(world, *wanted)
    assert out(world) == [] and world.sql("control", "SELECT count(*) FROM resend_request") == [
        (0,)
    ]
    half = policy.blast_floor // 2
    send_list(world, *wanted[:half])
    with pytest.raises(DecisionRefused, match="more than the blast radius"):
        send_list(world, *wanted[half:])
    assert world.sql("control", "SELECT count(*) FROM resend_request") == [(half,)]


def test_a_list_is_measured_by_the_window_of_the_blast_radius(world: World) -> None:
    policy = world.settings.policy_for(TOPIC)
    wanted, half = ids(policy.blast_floor), policy.blast_floor // 2
    world.stubs(wanted)
    world.sql(
        "control",
        """INSERT INTO run (duty, token, as_of, policy_version, code_version, state, finished_at)
        VALUES ('reconcile', gen_random_uuid(), now() - %s - interval '1 minute', '-', '-', 'done', now())""",
        (policy.blast_window,),
    )
    world.sql(
        "control",
        """INSERT INTO verdict_count SELECT run_id, %s, g, 'CONFIRMED', 100000, 0, 100000
        FROM run, unnest(ARRAY['billing', 'shipping']) AS g""",
        (TOPIC,),
    )
    with pytest.raises(DecisionRefused, match="more than the blast radius"):
        send_list(world, *wanted)
    send_list(world, *wanted[:half])
    world.sql(
        "control",
        "UPDATE resend_request SET created_at = created_at - %s",
        (policy.blast_window,),
    )
    send_list(world, *wanted[half:])
    assert world.sql("control", "SELECT count(*) FROM resend_request") == [(len(wanted),)]


def test_a_list_beside_a_promotion_counts_what_that_asks_for(world: World) -> None:
    """Each alone is within the blast radius."""
    floor = world.settings.policy_for(TOPIC).blast_floor
    wanted, half = ids(floor), floor // 2
    world.stubs(wanted)
    refused: list[BaseException] = []

    def ask_by_list() -> None:
        try:
            send_list(world, *wanted[half:])
        except DecisionRefused as error:
            refused.append(error)

    waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    listing = threading.Thread(target=ask_by_list)
    with closing(connect(world.settings, world.connections)) as promotion:
        with promotion, promotion.cursor() as cursor:
            take_turns(cursor)
            asks = [Ask("shop_a", TOPIC, i, 1, None, "lost", "reconcile") for i in wanted[:half]]
            ask(cursor, asks, None)
            listing.start()
            while listing.is_alive() and not world.sql("control", waiting):
                listing.join(0.02)
        listing.join()
    assert len(refused) == 1 and world.requests() == {"open": half} and out(world) == []


def test_a_list_is_taken_once_from_each_run_in_airflow(world: World) -> None:
    world.stubs(["m-1", "m-2"])

    def taken(*wanted: str, listed_in: str | None, dry_run: bool = False) -> int:
        control = connect(world.settings, world.connections)
        run = open_run(control, "resend", name_of([TOPIC]), world.settings, dry_run=dry_run)
        try:
            listed = ask_for_ids(
                world.settings,
                world.connections,
                control,
                run,
                TOPIC,
                wanted,
                "ann",
                "w",
                listed_in=listed_in,
            )
        finally:
            control.rollback()
            close_run(control, run, "done", Counts())
            control.close()
        return sum(one.asks is not None for one in listed)

    assert taken("m-1", listed_in="manual__1", dry_run=True) == 1
    assert taken("m-1", listed_in="manual__1") == 1
    # Somebody else cleared it: Airflow still names who triggered it.
    with pytest.raises(DecisionRefused, match="was taken before"):
        taken("m-1", "m-2", listed_in="manual__1")
    assert world.sql("control", "SELECT message_id FROM resend_request") == [("m-1",)]
    assert taken("m-2", listed_in="manual__2") == 1 and taken("m-2", listed_in=None) == 0
