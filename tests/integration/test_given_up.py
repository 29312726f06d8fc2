"""What a person gave up is neither asked for by the machine nor counted; what is spent is before a person, whatever crashed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from backstop.cases.open import open_case
from backstop.config.load import from_mapping
from backstop.decisions.decide import decide
from backstop.model.errors import StoreUnavailable
from backstop.model.records import Counts, Key
from backstop.reconcile.promote import promote
from backstop.reconcile.revisit import revisit_cases
from backstop.runs.run import Run, close_run, open_run
from backstop.stores.postgresql.stubs import PostgresStubs
from control_world import World, servers, world, written_settings  # noqa: F401

FLOOR = 5


@pytest.fixture
def careful(world: World) -> World:
    """A system that asks a person from the fifth delivery on."""
    written = written_settings()
    written["policy"] |= {"blast_share": 0.1, "blast_floor": FLOOR, "canary": 0}
    world.settings = from_mapping(written)
    return world


def lost(world: World, *message_ids: str, given_up: bool) -> None:
    """Messages of which number 1 was lost; of number 2 a person said that nobody shall send it."""
    for message_id in message_ids:
        world.stub(message_id, sends=1)
        if given_up:
            world.control(
                """
                INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by, state, given_up_by,
                    given_up_groups)
                VALUES ('shop_a', 'orders', %s, 2, 'lost', 'reconcile', 'not_needed', 1, '{billing}')
                """,
                (message_id,),
            )


def promoted(world: World, *message_ids: str, group: str = "billing", sends: int = 1) -> Counts:
    """A run that judged them LOST for a group, promoted."""
    run: Run = open_run(world.conn, "reconcile", "*", world.settings)
    world.control(
        """
        INSERT INTO staged_verdict (run_id, stage, shard, topic, message_id, consumer_group, verdict, reason, eligible,
            send_count, evidence)
        SELECT run_id, stage, 'shop_a', 'orders', i, %s, 'LOST', 'no_log', true, %s, '{}'
        FROM run, unnest(%s::text[]) AS i WHERE run_id = %s""",
        (group, sends, list(message_ids), run.run_id),
    )
    counts = promote(world.settings, world.connections, world.conn, run)
    close_run(world.conn, run, "done", counts)
    return counts


def members(world: World) -> list[tuple[Any, ...]]:
    return world.control(
        "SELECT c.kind, m.message_id FROM case_member m JOIN case_file c USING (case_id) ORDER BY 1, 2"
    )


@pytest.fixture
def decided(careful: World) -> World:
    careful.control(
        "INSERT INTO case_file (kind, topic, summary, state, decision, decided_by, decided_at, why)"
        " VALUES ('ramp_stopped', 'orders', 's', 'closed', 'give_up', 'ann', now(), 'w')"
    )
    return careful


def test_what_was_given_up_makes_no_mass_loss_and_no_request(decided: World) -> None:
    names = [f"given-up-{n}" for n in range(FLOOR * 2)]
    lost(decided, *names, given_up=True)
    counts = promoted(decided, *names)
    assert members(decided) == [] and "already_asked" not in counts
    assert decided.control("SELECT DISTINCT state, send_number FROM resend_request") == [
        ("not_needed", 2)
    ]


def test_what_was_given_up_does_not_hold_back_what_was_not(decided: World) -> None:
    given_up, others = (
        [f"given-up-{n}" for n in range(FLOOR)],
        [f"other-{n}" for n in range(FLOOR - 1)],
    )
    lost(decided, *given_up, given_up=True)
    lost(decided, *others, given_up=False)
    promoted(decided, *given_up, *others)
    assert members(decided) == []
    asked = decided.control("SELECT message_id FROM resend_request WHERE state = 'open' ORDER BY 1")
    assert [message_id for (message_id,) in asked] == others


def test_what_was_given_up_for_one_group_is_asked_for_by_another_and_stays_given_up(
    decided: World,
) -> None:
    lost(decided, "m", given_up=True)
    promoted(decided, "m", group="shipping")
    asked = "SELECT groups, state, given_up_groups FROM resend_request ORDER BY send_number"
    assert decided.control(asked) == [(["shipping"], "open", ["billing"])]
    decided.control("UPDATE resend_request SET state = 'sent'")
    promoted(decided, "m", sends=2)
    assert decided.control(asked) == [(["shipping"], "sent", ["billing"])], (
        "with the next number neither"
    )


def test_a_mass_loss_asks_nobody_again_about_what_was_given_up(decided: World) -> None:
    others = [f"other-{n}" for n in range(FLOOR)]
    lost(decided, "given-up", given_up=True)
    lost(decided, *others, given_up=False)
    promoted(decided, "given-up", *others)
    assert members(decided) == [("mass_loss", name) for name in others]


def revisited(world: World) -> Counts:
    """What each reconcile run does first."""
    run = open_run(world.conn, "reconcile", "*", world.settings)
    counts = revisit_cases(world.settings, world.connections, world.conn, run)
    close_run(world.conn, run, "done", counts)
    return counts


def test_an_exhausted_stub_without_an_open_case_becomes_one(world: World) -> None:
    """Its case was lost with the control database's last hours, or a person's decision of it led nowhere."""
    world.stub("lost", sends=4, status="exhausted")
    world.stub("raised", sends=4, status="exhausted")
    world.stub("left", sends=4, status="exhausted")
    for name, decision in (("raised", "raise"), ("left", "leave")):
        world.control(
            """
            WITH c AS (
                INSERT INTO case_file (kind, topic, consumer_group, subject, summary, state, decision, decided_by, decided_at,
                    why)
                VALUES ('exhausted', 'orders', 'billing', '', 's', 'decided', %s, 'ann', now(), 'w') RETURNING case_id)
            INSERT INTO case_member (case_id, shard, topic, message_id, consumer_group)
            SELECT case_id, 'shop_a', 'orders', %s, g FROM c, unnest('{billing,shipping}'::text[]) AS g
            """,
            (decision, name),
        )
    assert revisited(world)["case_exhausted"] == 4
    open_members = """
        SELECT c.consumer_group, m.message_id FROM case_member m JOIN case_file c USING (case_id)
        WHERE c.state = 'open' AND c.kind = 'exhausted' ORDER BY 1, 2"""
    asked = [(group, name) for group in ("billing", "shipping") for name in ("lost", "raised")]
    assert world.control(open_members) == asked
    assert world.control("SELECT count(*) FROM alert") == [(2,)]
    assert "cases" not in revisited(world), "asked once"


def test_an_exhausted_stub_whose_deliveries_people_gave_up_is_confirmed(world: World) -> None:
    world.stub("a", sends=4, status="exhausted")
    world.log("a", "shipping")
    assert revisited(world)["case_exhausted"] == 1
    ((case_id,),) = world.control("SELECT case_id FROM case_file")
    decide(world.conn, world.settings, world.connections, case_id, "discard", "ann", "refunded", {})
    assert (
        world.control("SELECT state FROM case_file") == [("closed",)]
        and world.stub_now("a")["status"] == "exhausted"
    )
    assert revisited(world)["late_confirmed"] == 1
    assert world.stub_now("a")["status"] == "confirmed"
    assert revisited(world).get("revisited", 0) == 0


def asked(world: World, kind: str, group: str, *message_ids: str) -> None:
    """A case of these deliveries of stubs that are pending."""
    with world.conn, world.conn.cursor() as cur:
        open_case(
            cur,
            kind=kind,
            topic="orders",
            group=group,
            subject="",
            severity="warning",
            summary="s",
            evidence={},
            members=[("shop_a", "orders", message_id, group) for message_id in message_ids],
            run_id=None,
        )


@pytest.mark.parametrize(
    "kind", ["backlog", "unknown", "overdue", "stalled", "no_route", "mass_loss"]
)
def test_a_case_closes_although_another_group_of_its_stub_is_not_done(
    world: World, kind: str
) -> None:
    world.stub("a", sends=1)
    for group in ("billing", "shipping"):
        asked(world, kind, group, "a")
    world.log("a", "billing")
    assert revisited(world)["cases_closed"] == 1
    assert world.stub_now("a")["status"] == "pending"
    assert world.control("SELECT consumer_group, state FROM case_file ORDER BY 1") == [
        ("billing", "closed"),
        ("shipping", "open"),
    ]


def test_a_delivery_that_the_last_run_found_open_is_not_looked_at_again(world: World) -> None:
    world.stub("a", sends=1)
    asked(world, "overdue", "billing", "a")
    world.control(
        "INSERT INTO open_delivery (topic, message_id, consumer_group, shard, verdict, reason, eligible, run_id)"
        " VALUES ('orders', 'a', 'billing', 'shop_a', 'BACKLOGGED', 'ahead', false, 1)"
    )
    assert revisited(world).get("revisited", 0) == 0


def broken(world: World, shard: str, message_id: str, row_key: str) -> None:
    """A run met the stub broken, so long ago that the next is to meet it again."""
    world.control(
        """
        WITH r AS (INSERT INTO run (duty, scope, token, dry_run, policy_version, code_version)
            VALUES ('reconcile', '*', gen_random_uuid(), false, '', '') RETURNING run_id)
        INSERT INTO quarantine (store, row_key, reason, topic, message_id, first_run_id, last_seen_at)
        SELECT %s, %s, 'no_time', 'orders', %s, run_id, now() - %s FROM r""",
        (
            f"shard {shard}",
            row_key,
            message_id,
            world.settings.policy_for(None).unknown_horizon + timedelta(hours=1),
        ),
    )


def test_the_case_of_a_broken_stub_stays_a_persons_although_a_log_says_that_it_is_done(
    world: World,
) -> None:
    """Neither the case nor its alert comes and goes; and it takes no other delivery's turn."""
    for name in ("broken", "long"):
        world.stub(name, sends=1)
        world.log(name, "billing")
        broken(world, "shop_a", name if name == "broken" else "x" * 2600, name)
    asked(world, "unknown", "billing", "broken", "long")
    assert revisited(world).get("revisited", 0) == 0
    assert world.control("SELECT state FROM case_file") == [("open",)]
    # Repaired: no run has met it broken for long.
    world.control("UPDATE quarantine SET last_seen_at = now() - interval '90 days'")
    assert revisited(world)["cases_closed"] == 1


def test_a_delivery_on_two_shards_settles_no_case_although_a_log_says_that_it_is_done(
    world: World,
) -> None:
    """One of the two promises may be lost."""
    for shard in ("shop_a", "shop_b"):
        world.stub("twice", sends=1, shard=shard)
    asked(world, "unknown", "billing", "twice")
    world.log("twice", "billing")
    assert revisited(world)["cases_closed"] == 0
    assert world.control("SELECT state FROM case_file") == [("open",)]


def test_of_many_such_deliveries_each_run_looks_at_some(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backstop.reconcile.revisit._OTHERS", 2)
    for name in "abc":
        world.stub(name, sends=1)
        world.log(name, "billing")
    asked(world, "mass_loss", "billing", *"abc")
    assert [revisited(world).get("revisited", 0) for _ in range(3)] == [2, 1, 0]
    assert world.control("SELECT state FROM case_file") == [("closed",)]


def _held_as_such(world: World) -> None:
    """The case of a message as such: its one member names no group."""
    with world.conn, world.conn.cursor() as cur:
        open_case(
            cur,
            kind="exhausted",
            topic="orders",
            group="*",
            subject="restored content",
            severity="critical",
            summary="s",
            evidence={},
            members=[("shop_a", "orders", "a", "*")],
            run_id=None,
        )


def test_the_case_of_a_message_as_such_closes_when_every_group_has_done_it(world: World) -> None:
    world.stub("a", sends=2, status="exhausted")
    _held_as_such(world)
    world.log("a", "billing")
    assert revisited(world).get("late_confirmed", 0) == 0
    assert world.control("SELECT state FROM case_file") == [("open",)], "shipping has not"
    world.log("a", "shipping")
    assert revisited(world)["late_confirmed"] == 1
    assert world.control("SELECT state FROM case_file") == [("closed",)]
    assert revisited(world).get("revisited", 0) == 0


def test_the_case_of_a_message_as_such_closes_when_a_person_discarded_every_delivery(
    world: World,
) -> None:
    world.stub("a", sends=2, status="exhausted")
    _held_as_such(world)
    decide(world.conn, world.settings, world.connections, 1, "discard", "ann", "because", {})
    revisited(world)
    assert world.stub_now("a")["status"] == "confirmed"
    assert world.control("SELECT state FROM case_file") == [("closed",)]


@pytest.mark.parametrize("answer", [None, "leave"])
def test_what_a_mass_loss_holds_stays_a_persons_however_much_is_confirmed_later(
    careful: World, answer: str | None
) -> None:
    names = [f"lost-{n}" for n in range(FLOOR)]
    lost(careful, *names, given_up=False)
    promoted(careful, *names)
    assert members(careful) == [("mass_loss", name) for name in names]
    if answer is not None:
        ((case_id,),) = careful.control("SELECT case_id FROM case_file")
        decide(
            careful.conn,
            careful.settings,
            careful.connections,
            case_id,
            answer,
            "ann",
            "because",
            {},
        )
    careful.control(
        "INSERT INTO verdict_count SELECT max(run_id), 'orders', 'billing', 'CONFIRMED', 1000, 0, 1000 FROM run"
    )
    promoted(careful, *names)  # 5 of 1,005
    assert careful.control("SELECT count(*) FROM resend_request") == [(0,)]
    promoted(careful, *names[:2])  # a run that met fewer than the floor
    assert careful.control("SELECT count(*) FROM resend_request") == [(0,)]


@pytest.mark.parametrize(
    ("beside_the_edge", "asked_about"),
    [(timedelta(minutes=-1), False), (timedelta(minutes=1), True)],
)
def test_confirmations_before_the_window_do_not_hide_a_mass_loss(
    careful: World, beside_the_edge: timedelta, asked_about: bool
) -> None:
    window = careful.settings.policy_for("orders", "billing").blast_window
    earlier = open_run(careful.conn, "reconcile", "*", careful.settings)
    close_run(careful.conn, earlier, "done", Counts())
    careful.control("UPDATE run SET as_of = as_of - %s", (window + beside_the_edge,))
    careful.control(
        "INSERT INTO verdict_count SELECT run_id, 'orders', 'billing', 'CONFIRMED', 1000, 0, 1000 FROM run"
    )
    names = [f"lost-{n}" for n in range(FLOOR)]
    lost(careful, *names, given_up=False)
    promoted(careful, *names)  # 5 of 1,005, or 5 of 5
    assert members(careful) == ([("mass_loss", name) for name in names] if asked_about else [])
    requested = 0 if asked_about else FLOOR
    assert careful.control("SELECT count(*) FROM resend_request") == [(requested,)]


def test_requests_before_the_window_make_no_mass_loss(careful: World) -> None:
    first, second = ([f"{word}-{n}" for n in range(FLOOR - 1)] for word in ("first", "second"))
    lost(careful, *first, *second, given_up=False)
    promoted(careful, *first)
    careful.control(
        "UPDATE resend_request SET created_at = created_at - %s",
        (careful.settings.policy_for("orders", "billing").blast_window,),
    )
    promoted(careful, *second)
    assert members(careful) == []
    assert careful.control("SELECT count(*) FROM resend_request") == [(2 * (FLOOR - 1),)]


def test_what_a_person_withdrew_while_a_run_was_judging_is_not_asked_about_again(
    world: World,
) -> None:
    world.stub("a", sends=1)
    asked(world, "overdue", "billing", "a")
    run = open_run(world.conn, "reconcile", "*", world.settings)
    world.control(
        """
        INSERT INTO staged_verdict (run_id, stage, shard, topic, message_id, consumer_group, verdict, reason, eligible,
            send_count, case_kind, evidence)
        SELECT run_id, stage, 'shop_a', 'orders', 'a', 'billing', 'BACKLOGGED', 'ahead_of_group', false, 1, 'overdue', '{}'
        FROM run WHERE run_id = %s""",
        (run.run_id,),
    )
    ((case_id,),) = world.control("SELECT case_id FROM case_file")
    decide(world.conn, world.settings, world.connections, case_id, "void", "ann", "refunded", {})
    counts = promote(world.settings, world.connections, world.conn, run)
    close_run(world.conn, run, "done", counts)
    assert world.control("SELECT state FROM case_file ORDER BY case_id") == [("closed",)]
    assert world.control("SELECT count(*) FROM open_delivery") == [(0,)]


def _silence_shop_b(monkeypatch: pytest.MonkeyPatch) -> None:
    really = PostgresStubs.stub_table

    def answer(self: PostgresStubs, keys: Sequence[Key]) -> Any:
        if self.shard == "shop_b":
            raise StoreUnavailable("no answer", unaffected="", next_step="")
        return really(self, keys)

    monkeypatch.setattr(PostgresStubs, "stub_table", answer)


def test_a_shard_that_is_away_keeps_nothing_of_the_others_from_being_confirmed_or_asked_about(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("done", "lost"):
        world.stub(name, sends=4, status="exhausted")
    for group in ("billing", "shipping"):
        world.log("done", group)
    _silence_shop_b(monkeypatch)
    counts = revisited(world)
    assert counts.get("late_confirmed") == 1
    assert counts.get("case_exhausted") == 2


def test_what_a_run_met_on_two_shards_is_not_confirmed_while_one_is_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other promise may be there, and lost."""
    twice = 'tw"i\\ce'
    for name in ("once", twice):
        world.stub(name, sends=4, status="exhausted")
        for group in ("billing", "shipping"):
            world.log(name, group)
    for shard in ("shop_a", "shop_b"):
        broken(world, shard, twice, twice)
    world.control("UPDATE quarantine SET reason = 'on_two_shards'")
    _silence_shop_b(monkeypatch)
    assert revisited(world).get("late_confirmed") == 1
    assert world.stub_now("once")["status"] == "confirmed"
    assert world.stub_now(twice)["status"] == "exhausted"
