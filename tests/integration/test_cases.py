"""A person's part: cases are opened once, shown, decided by the present state, and closed when they are over."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any, ClassVar, get_type_hints

import psycopg2
import pytest

from backstop.brokers.open import open_broker
from backstop.cases.close import close_satisfied, close_settled, settle
from backstop.cases.intend import begun, require_mine
from backstop.cases.open import open_case
from backstop.cli.app import run_app
from backstop.cli.cases import decide_one
from backstop.config.connections import Connections
from backstop.config.load import from_mapping
from backstop.control.connection import connect
from backstop.decisions import decide as subject
from backstop.decisions.actions import ACTIONS, MOST, actions_for
from backstop.decisions.decide import Decided, Preview, decide, preview
from backstop.decisions.list_cases import list_cases, show
from backstop.evidence.sources import Sources
from backstop.model.errors import DecisionRefused, StoreUnavailable
from backstop.runs.run import open_run
from backstop.triage.decide import answer
from backstop.watch.outbox import note_failure, note_success
from backstop_lab.shop.wait_for import wait_for
from control_world import SHARDS, World, servers, world, written_settings  # noqa: F401
from letters import INSERT, values


def found(
    world: World,
    kind: str,
    *message_ids: str,
    topic: str = "orders",
    group: str = "billing",
    shard: str = "shop_a",
    evidence: dict[str, object] | None = None,
    conn: Any = None,
) -> int:
    """A run finds these deliveries, and commits."""
    control = conn or world.conn
    with control, control.cursor() as cur:
        return open_case(
            cur,
            kind=kind,
            topic=topic,
            group=group,
            subject="",
            severity="warning",
            summary=f"{kind} happened",
            evidence=evidence or {},
            members=[(shard, topic, i, group) for i in message_ids],
            run_id=None,
        )


def decided(world: World, case_id: int, action: str, **options: Any) -> Decided:
    return decide(
        world.conn, world.settings, world.connections, case_id, action, "ann", "because", options
    )


def previewed(world: World, case_id: int, action: str) -> Preview | None:
    with Sources(world.settings, world.connections) as sources:
        return preview(world.conn, sources, case_id, action)


def state_of(world: World, case_id: int) -> str:
    return str(world.control("SELECT state FROM case_file WHERE case_id = %s", (case_id,))[0][0])


def alerts(world: World) -> list[str]:
    return [key for (key,) in world.control("SELECT dedup_key FROM alert ORDER BY alert_id")]


def test_one_cause_has_one_open_case_and_one_alert_however_often_it_is_found(world: World) -> None:
    first = found(world, "exhausted", "a", "b")
    assert found(world, "exhausted", "b", "c") == first
    assert found(world, "exhausted", "d", group="shipping") != first
    case, members = show(world.conn, first)
    assert (case.state, case.members, [m.message_id for m in members]) == (
        "open",
        3,
        ["a", "b", "c"],
    )
    assert alerts(world).count(f"case/{first}") == 1
    assert len(alerts(world)) == 2


def test_a_case_its_members_and_its_alert_appear_together_or_not_at_all(world: World) -> None:
    with world.conn.cursor() as cur:
        open_case(
            cur,
            kind="backlog",
            topic="orders",
            group="billing",
            subject="",
            severity="info",
            summary="s",
            evidence={},
            members=[("shop_a", "orders", "a", "billing")],
            run_id=None,
        )
    world.conn.rollback()
    for table in ("case_file", "case_member", "alert"):
        assert world.control(f"SELECT count(*) FROM {table}") == [(0,)]


def test_every_kind_of_case_offers_actions_that_have_a_sentence(world: World) -> None:
    check = world.control(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'case_file_kind_check'"
    )
    kinds = [part.split("'")[1] for part in check[0][0].split(",")]
    assert len(kinds) == 21
    for kind in kinds:
        assert "leave" in actions_for(kind)
        assert set(actions_for(kind)) <= set(ACTIONS)


def test_two_cases_that_send_by_one_request_are_both_on_their_way(world: World) -> None:
    world.stub("a")
    first = found(world, "overdue", "a")
    second = found(world, "overdue", "a", group="shipping")
    for case_id in (first, second):
        assert decided(world, case_id, "resend").left_out == ()
    assert world.control("SELECT groups, requested_by, asked_by FROM resend_request") == [
        (
            ["billing", "shipping"],
            f"case {second}",
            {"billing": f"case {first}", "shipping": f"case {second}"},
        )
    ]
    assert found(world, "overdue", "a") == first
    assert found(world, "overdue", "a", group="shipping") == second
    assert [state_of(world, case_id) for case_id in (first, second)] == ["decided", "decided"]


def test_a_discarded_delivery_is_voided_for_its_group_alone_and_ends_its_case(world: World) -> None:
    world.stub("a")
    case_id = found(world, "unknown", "a")
    done = decided(world, case_id, "discard")
    assert done.counts["discarded"] == 1
    verdicts = world.judge("a")
    assert (str(verdicts["billing"].verdict), verdicts["billing"].reason) == ("VOIDED", "discarded")
    assert str(verdicts["shipping"].verdict) == "UNSENT"
    assert world.control("SELECT decided_by, why, case_id FROM delivery_decision") == [
        ("ann", "because", case_id)
    ]
    case, _ = show(world.conn, case_id)
    assert (case.state, case.decision, case.decided_by, case.why) == (
        "closed",
        "discard",
        "ann",
        "because",
    )
    assert alerts(world) == [f"case/{case_id}", f"case/{case_id}/closed"]


def test_a_decision_that_is_repeated_changes_nothing(world: World) -> None:
    world.stub("a")
    case_id = found(world, "overdue", "a")
    decided(world, case_id, "discard")
    again = decided(world, case_id, "discard")
    assert again.again
    assert world.control("SELECT count(*) FROM delivery_decision") == [(1,)]
    with pytest.raises(DecisionRefused, match="already closed"):
        decided(world, case_id, "leave")


def test_what_was_done_meanwhile_is_settled_and_not_discarded(world: World) -> None:
    world.stub("done")
    world.stub("open")
    case_id = found(world, "overdue", "done", "open")
    world.log("done", "billing")
    result = decided(world, case_id, "discard")
    assert (result.counts["discarded"], result.counts["already_done"]) == (1, 1)
    assert world.control("SELECT message_id FROM delivery_decision") == [("open",)]
    assert state_of(world, case_id) == "closed"


def test_a_decision_that_fits_nothing_any_more_is_refused_in_three_parts(world: World) -> None:
    world.stub("a")
    world.log("a", "billing", state="CONSUMING")
    case_id = found(world, "overdue", "a")
    with pytest.raises(DecisionRefused) as refused:
        decided(world, case_id, "discard")
    assert "a consumer is working on it now" in refused.value.what
    assert refused.value.unaffected == "Nothing was applied."
    assert "decide by the present state" in refused.value.next_step
    assert refused.value.exit_code == 6
    case, _ = show(world.conn, case_id)
    assert (case.state, case.decision) == ("open", None)


def test_a_case_stays_open_for_the_deliveries_that_a_decision_did_not_fit(world: World) -> None:
    world.stub("free")
    world.stub("busy")
    world.log("busy", "billing", state="CONSUMING")
    case_id = found(world, "overdue", "free", "busy")
    result = decided(world, case_id, "discard")
    assert result.counts["discarded"] == 1
    assert result.left_out == ("busy for billing: a consumer is working on it now",)
    case, _ = show(world.conn, case_id)
    assert (case.state, case.open_members, case.evidence["decisions"][0]["by"]) == (
        "open",
        1,
        "ann",
    )


def test_a_person_may_decide_about_some_of_the_deliveries(world: World) -> None:
    world.stub("a")
    world.stub("b")
    case_id = found(world, "overdue", "a", "b")
    decided(world, case_id, "discard", message_ids=["b"])
    assert world.control("SELECT message_id FROM delivery_decision") == [("b",)]
    assert state_of(world, case_id) == "open"
    with pytest.raises(DecisionRefused, match="Not among the open deliveries"):
        decided(world, case_id, "discard", message_ids=["b"])


def test_raising_the_limit_makes_an_exhausted_message_eligible_again(world: World) -> None:
    world.stub("a", sends=4, status="exhausted")
    assert str(world.judge("a")["billing"].verdict) == "EXHAUSTED"
    case_id = found(world, "exhausted", "a")
    assert decided(world, case_id, "raise", more=2).counts["raised"] == 1
    stub = world.stub_now("a")
    assert (stub["status"], stub["max_sends"], stub["send_count"]) == ("pending", 6, 4)
    assert world.judge("a")["billing"].eligible
    assert state_of(world, case_id) == "decided"


def test_a_raise_allows_that_many_more_sends_however_often_the_broker_refused(
    world: World,
) -> None:
    world.stub("a", sends=5, refused=1, status="exhausted")
    case_id = found(world, "exhausted", "a")
    assert decided(world, case_id, "raise").counts["raised"] == 1
    assert world.stub_now("a")["max_sends"] == 5, "four count, and one more was allowed"
    assert world.judge("a")["billing"].eligible


def test_a_decision_that_crashed_after_the_producers_commit_can_be_repeated(world: World) -> None:
    world.stub("raised", sends=4, status="exhausted")
    world.stub("voided", sends=4, status="exhausted")
    raising, voiding = found(world, "exhausted", "raised"), found(world, "overdue", "voided")
    # The state after a crash: the intention stands, the producer has committed, the last transaction never came.
    world.run(
        "control",
        "UPDATE case_file SET decision = 'raise', decided_by = 'ann', why = 'because' WHERE case_id = %s",
        (raising,),
    )
    world.run(
        SHARDS["shop_a"],
        "UPDATE message_stub SET status = 'pending', max_sends = 5 WHERE message_id = 'raised'",
    )
    world.run(
        SHARDS["shop_a"], "UPDATE message_stub SET status = 'voided' WHERE message_id = 'voided'"
    )
    assert decided(world, raising, "raise").counts["raised"] == 1
    assert world.stub_now("raised")["max_sends"] == 5
    assert state_of(world, raising) == "decided"
    assert decided(world, voiding, "void").counts["already_done"] == 1
    assert state_of(world, voiding) == "closed"


def test_raising_is_refused_where_it_could_not_help(world: World) -> None:
    world.stub("refused", sends=3, refused=3, status="exhausted")
    case_id = found(world, "refused", "refused")
    with pytest.raises(DecisionRefused, match="raise max_refusals in the policy"):
        decided(world, case_id, "raise")
    world.stub("old", sends=4, status="exhausted", age="50 minutes")
    with pytest.raises(DecisionRefused, match="older than the replay horizon"):
        decided(world, found(world, "exhausted", "old"), "raise")
    assert world.stub_now("old")["status"] == "exhausted"


def test_a_voided_message_is_withdrawn_for_every_group(world: World) -> None:
    world.stub("a", sends=4, status="exhausted", age="50 minutes")
    billing, shipping = (
        found(world, "exhausted", "a"),
        found(world, "exhausted", "a", group="shipping"),
    )
    assert decided(world, billing, "void").counts["voided"] == 1
    assert {str(judged.verdict) for judged in world.judge("a").values()} == {"VOIDED"}
    assert (state_of(world, billing), state_of(world, shipping)) == ("closed", "closed")


def test_a_message_is_not_voided_while_an_attempt_is_under_way(world: World) -> None:
    world.stub("sending", sends=2, under_way=True)
    world.stub("free", sends=2)
    case_id = found(world, "overdue", "sending", "free")
    result = decided(world, case_id, "void")
    assert result.counts["voided"] == 1
    assert result.left_out == (
        "sending: an attempt to send it is under way, or it was just confirmed",
    )
    assert world.stub_now("sending")["status"] == "pending"
    assert state_of(world, case_id) == "open"


def test_a_resend_asks_for_the_next_number_to_this_group_alone(world: World) -> None:
    world.stub("a", sends=2)
    world.stub("consumed", sends=2)
    world.log("consumed", "billing")
    case_id = found(world, "mass_loss", "a", "consumed")
    assert decided(world, case_id, "resend").counts["requests"] == 1
    assert world.control(
        "SELECT shard, message_id, send_number, groups, requested_by, state FROM resend_request"
    ) == [("shop_a", "a", 3, ["billing"], f"case {case_id}", "open")]
    assert state_of(world, case_id) == "decided"
    assert decided(world, case_id, "resend").again
    assert world.control("SELECT count(*) FROM resend_request") == [(1,)]
    # While it is on its way the same finding is no news.
    assert found(world, "mass_loss", "a") == case_id
    assert world.control("SELECT count(*) FROM case_file") == [(1,)]
    world.run("control", "UPDATE resend_request SET state = 'unknown'")
    assert found(world, "mass_loss", "a") != case_id


def test_a_resend_whose_number_a_worker_has_for_other_groups_leaves_its_case_open(
    world: World,
) -> None:
    """It would be decided, and nothing asked for."""
    world.stub("a", sends=2)
    world.stub("b", sends=2)
    world.run(
        "control",
        "INSERT INTO resend_request (shard, topic, message_id, send_number, groups, reason, requested_by, state, claim_token,"
        " claim_deadline) VALUES ('shop_a', 'orders', 'a', 3, '{shipping}', 'lost', 'reconcile', 'claimed', gen_random_uuid(),"
        " now() + interval '1 minute')",
    )
    case_id = found(world, "mass_loss", "a", "b")
    result = decided(world, case_id, "resend")
    assert result.counts == {"requests": 1, "already_asked": 1, "left_out": 1}
    assert result.left_out == ("a for billing: a send of it is under way",)
    assert state_of(world, case_id) == "open"


def test_nothing_is_asked_for_what_may_still_come_nor_in_mode_observe(world: World) -> None:
    world.stub("busy", sends=1)
    world.log("busy", "billing", state="CONSUMING")
    with pytest.raises(DecisionRefused, match="IN_PROGRESS"):
        decided(world, found(world, "unknown", "busy"), "resend")
    world.stub("seen", topic="refunds")
    case_id = found(world, "unknown", "seen", topic="refunds")
    with pytest.raises(DecisionRefused, match="mode observe"):
        decided(world, case_id, "resend")
    with pytest.raises(DecisionRefused, match="mode observe"):
        previewed(world, case_id, "resend")
    assert world.control("SELECT count(*) FROM resend_request") == [(0,)]


def test_a_person_may_resend_to_a_group_that_takes_no_duplicates(world: World) -> None:
    world.stub("a", topic="payments", sends=2)
    world.log("a", "audit", topic="payments", state="FAILED", moved="2 minutes")
    judged = world.judge("a", "payments")["audit"]
    assert (str(judged.verdict), judged.eligible, judged.case_kind) == ("STALLED", False, "stalled")
    case_id = found(world, "stalled", "a", topic="payments", group="audit")
    assert decided(world, case_id, "resend").counts["requests"] == 1
    assert world.control("SELECT groups, route FROM resend_request") == [(["audit"], "topic")]


def test_what_a_person_left_opens_no_new_case_and_can_still_be_decided(world: World) -> None:
    world.stub("a")
    case_id = found(world, "backlog", "a")
    assert decided(world, case_id, "leave").counts == {}
    assert state_of(world, case_id) == "decided"
    assert found(world, "backlog", "a") == case_id
    assert world.control("SELECT count(*) FROM case_file") == [(1,)]
    newer = found(world, "backlog", "a", "b")
    assert newer != case_id
    assert world.control("SELECT message_id FROM case_member WHERE case_id = %s", (newer,)) == [
        ("b",)
    ]
    with pytest.raises(DecisionRefused, match="a newer case of the same cause is open"):
        decided(world, case_id, "discard")
    decided(world, newer, "leave")
    assert decided(world, case_id, "discard").counts["discarded"] == 1


def test_what_a_person_is_leaving_at_the_moment_when_a_run_finds_it_again_opens_no_new_case(
    world: World,
) -> None:
    world.stub("a")
    case_id = found(world, "backlog", "a")
    other = connect(world.settings, world.connections)
    again: list[int] = []

    def find_again() -> None:
        again.append(found(world, "backlog", "a", conn=other))

    finds = threading.Thread(target=find_again)
    with world.conn, world.conn.cursor() as cur:
        cur.execute(
            "UPDATE case_file SET state = 'decided', decision = 'leave', decided_by = 'ann', decided_at = now(), why = ''"
        )
        finds.start()
        wait_for("the run that waits for the decision", lambda: waits_for_lock(world), 30)
    finds.join()
    other.close()
    assert again == [case_id]
    assert world.control("SELECT count(*) FROM case_file") == [(1,)]


def waits_for_lock(world: World) -> bool:
    watcher = connect(world.settings, world.connections)
    try:
        with watcher, watcher.cursor() as cur:
            cur.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            return bool(cur.fetchone()[0])
    finally:
        watcher.close()


def test_accepting_a_new_epoch_takes_only_what_the_person_was_told_of(world: World) -> None:
    def begin_life(epoch: str) -> None:
        world.run("control", "UPDATE queue_epoch SET present = false")
        world.run(
            "control",
            "INSERT INTO queue_epoch (broker, topic, queue_id, epoch, accepted) VALUES ('embedded', 'orders', 0, %s, false)",
            (epoch,),
        )

    begin_life("two")
    case_id = found(world, "new_epoch", "a")
    begin_life("three")
    with pytest.raises(DecisionRefused, match="yet another life"):
        decided(world, case_id, "accept")
    assert world.control("SELECT bool_or(accepted) FROM queue_epoch") == [(False,)]
    found(world, "new_epoch", "a")
    assert decided(world, case_id, "accept").counts["accepted"] == 1
    assert world.control("SELECT epoch FROM queue_epoch WHERE accepted") == [("three",)]


def test_a_first_life_is_accepted_only_while_no_open_message_lies_in_another_one(
    world: World,
) -> None:
    """The topic moved to another broker, or the control database is new: older copies must not be judged by time unasked."""
    with open_broker(world.settings, world.connections, "embedded") as broker:
        epochs = {queue.queue_id: queue.epoch for queue in broker.queues("orders")}
    world.stub("a", sends=1)
    acknowledged = """
        UPDATE message_stub SET sent_at = attempted_at, queue_id = 1, queue_offset = 500, queue_epoch = %s, broker = %s"""

    def verdicts() -> set[tuple[str, str, bool]]:
        return {(str(one.verdict), one.reason, one.eligible) for one in world.judge("a").values()}

    world.run("producer_a", acknowledged, ("before", "main"))
    assert verdicts() == {("UNKNOWN", "new_epoch", False)}
    world.run("producer_a", acknowledged, ("before", "embedded"))
    assert verdicts() == {("UNKNOWN", "new_epoch", False)}
    world.run("producer_a", acknowledged, (epochs[1], "embedded"))
    assert verdicts() == {("BACKLOGGED", "ahead_of_group", False)}
    world.run("producer_a", "UPDATE message_stub SET queue_id = 0")
    assert verdicts() == {("UNKNOWN", "new_epoch", False)}, "each queue has a life of its own"


def test_an_action_that_the_kind_does_not_offer_and_a_decision_without_reason_are_refused(
    world: World,
) -> None:
    case_id = found(world, "backlog", "a")
    with pytest.raises(DecisionRefused, match="cannot be decided by 'accept'"):
        decided(world, case_id, "accept")
    with pytest.raises(DecisionRefused, match="needs a name and a reason"):
        decide(world.conn, world.settings, world.connections, case_id, "leave", "ann", "  ")
    with pytest.raises(DecisionRefused, match="no case 999"):
        decided(world, 999, "leave")


def test_nothing_is_decided_while_the_present_state_cannot_be_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stub("a")
    case_id = found(world, "overdue", "a")
    with monkeypatch.context() as away:
        away.setenv("AIRFLOW_CONN_BACKSTOP_CONSUMER_BILLING", "postgresql://u:p@127.0.0.1:1/none")
        with pytest.raises(StoreUnavailable, match="billing_db"):
            decide(world.conn, world.settings, Connections(), case_id, "discard", "ann", "because")
    assert world.control("SELECT count(*) FROM delivery_decision") == [(0,)]
    assert state_of(world, case_id) == "open"
    assert decided(world, case_id, "discard").counts["discarded"] == 1


def test_of_two_people_who_decide_at_once_only_one_finishes(world: World) -> None:
    world.stub("a", sends=4, status="exhausted")
    case_id = found(world, "exhausted", "a")
    holding = psycopg2.connect(world.postgres.admin_dsn(SHARDS["shop_a"]))
    holding.cursor().execute("SELECT 1 FROM message_stub WHERE message_id = 'a' FOR UPDATE")
    outcome: list[object] = []

    def ann() -> None:
        own = connect(world.settings, world.connections)
        try:
            outcome.append(
                decide(own, world.settings, world.connections, case_id, "void", "ann", "first")
            )
        except DecisionRefused as refused:
            outcome.append(refused)
        finally:
            own.close()

    thread = threading.Thread(target=ann)
    thread.start()
    deadline = time.monotonic() + 120
    while not world.run(SHARDS["shop_a"], "SELECT 1 FROM pg_locks WHERE NOT granted"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    bob = decide(world.conn, world.settings, world.connections, case_id, "leave", "bob", "second")
    holding.rollback()
    holding.close()
    thread.join()
    assert bob.action == "leave"
    assert isinstance(outcome[0], DecisionRefused)
    assert "Somebody else" in outcome[0].what
    case, _ = show(world.conn, case_id)
    assert (case.decided_by, case.decision) == ("bob", "leave")


def test_a_case_closes_by_itself_once_all_its_deliveries_are_done(world: World) -> None:
    case_id = found(world, "overdue", "confirmed", "judged", "discarded")
    other = found(world, "unknown", "still_open", group="shipping")
    run = open_run(world.conn, "reconcile", "*", world.settings)
    world.run(
        "control",
        """
        INSERT INTO staged_stub (run_id, stage, shard, topic, message_id, old_status, new_status, send_count, deliveries)
        VALUES (%(run)s, 0, 'shop_a', 'orders', 'confirmed', 'pending', 'confirmed', 1, 2),
            (%(run)s, 0, 'shop_a', 'orders', 'still_open', 'pending', 'pending', 1, 2),
            (%(run)s, 7, 'shop_a', 'orders', 'still_open', 'pending', 'confirmed', 1, 2)""",
        {"run": run.run_id},
    )
    with world.conn, world.conn.cursor() as cur:
        assert close_satisfied(cur, run.run_id) == 0
    world.run(
        "control",
        "INSERT INTO delivery_decision VALUES ('orders', 'discarded', 'billing', 'discard', NULL, 'ann', now(), 'x')",
    )
    with world.conn, world.conn.cursor() as cur:
        assert close_satisfied(cur, run.run_id, [("orders", "judged", "billing")]) == 1
        assert close_satisfied(cur, run.run_id) == 0
    assert (state_of(world, case_id), state_of(world, other)) == ("closed", "open")
    assert alerts(world).count(f"case/{case_id}/closed") == 1
    assert [case.case_id for case in list_cases(world.conn)] == [other]
    assert {case.case_id for case in list_cases(world.conn, state=None)} == {case_id, other}


def test_a_delivery_that_is_open_again_opens_its_member_again(world: World) -> None:
    case_id = found(world, "overdue", "a", "b")
    with world.conn, world.conn.cursor() as cur:
        close_satisfied(cur, 0, [("orders", "a", "billing")])
    assert show(world.conn, case_id)[0].open_members == 1
    found(world, "overdue", "a")
    assert show(world.conn, case_id)[0].open_members == 2


def test_ids_with_quotes_colons_and_any_script_are_decided_like_others(world: World) -> None:
    odd = "o'ne:%s{}\"日本 ;--"
    world.stub(odd)
    case_id = found(world, "overdue", odd)
    decided(world, case_id, "discard")
    assert world.control("SELECT message_id FROM delivery_decision") == [(odd,)]


def test_the_settings_of_this_test_are_valid() -> None:
    from control_world import written_settings

    assert from_mapping(written_settings()).topics["refunds"].mode == "observe"


def shown_now(world: World) -> dict[str, Any]:
    """What a form that is written at this instant would keep."""
    ((at, letter),) = world.control(
        "SELECT clock_timestamp(), coalesce(max(dead_letter_id), 0) FROM dead_letter"
    )
    return {"at": at.isoformat(), "letter": letter}


def test_a_decision_with_an_option_that_its_action_does_not_take_is_refused(world: World) -> None:
    world.stub("a")
    world.stub("b")
    case_id = found(world, "unknown", "a", "b")
    for options in ({"letters": [1]}, {"more": 2}, {"sample": 1}, {"content": b""}):
        with pytest.raises(DecisionRefused, match="does not take") as refusal:
            decided(world, case_id, "discard", **options)
        assert "It takes a choice of messages (--message)" in refusal.value.next_step
    assert world.control("SELECT count(*) FROM delivery_decision") == [(0,)]
    assert (
        run_app(["cases", "decide", str(case_id), "discard", "--more", "1", "--why", "x"])
        == DecisionRefused.exit_code
    )
    assert world.control("SELECT state FROM case_file") == [("open",)]
    for kind in ("ramp_stopped", "new_epoch"):
        action = {"ramp_stopped": "go_on", "new_epoch": "accept"}[kind]
        with pytest.raises(DecisionRefused, match="does not take a choice of messages"):
            decided(world, found(world, kind, "a"), action, message_ids=["a"])


def test_a_refused_decision_leaves_a_case_that_was_left_as_it_was(world: World) -> None:
    world.stub("a")
    case_id = found(world, "overdue", "a")
    decide(world.conn, world.settings, world.connections, case_id, "leave", "bob", "known")
    left = world.control("SELECT state, decision, decided_by, why, decided_at FROM case_file")
    for action in ("discard", "leave"):
        with pytest.raises(DecisionRefused, match="Not among the open deliveries"):
            decided(world, case_id, action, message_ids=["nobody"])
    assert (
        world.control("SELECT state, decision, decided_by, why, decided_at FROM case_file") == left
    )
    found(world, "overdue", "a")
    assert [case.case_id for case in list_cases(world.conn, state=None)] == [case_id], (
        "it is still left"
    )


def test_a_case_that_was_left_stays_open_for_what_joined_it_while_a_decision_was_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    case_id = found(world, "overdue", "a")
    decided(world, case_id, "leave")

    def joins(*arguments: Any) -> None:
        found(world, "overdue", "late")
        raise StoreUnavailable("away", unaffected="-", next_step="-")

    monkeypatch.setattr("backstop.decisions.decide.settle_begun", joins)
    with pytest.raises(StoreUnavailable):
        decided(world, case_id, "discard")
    assert world.control("SELECT state, decision, intention FROM case_file") == [
        ("open", None, None)
    ]


@pytest.mark.parametrize(("where", "stands"), [("_plan", None), ("_finish", "void")])
def test_an_intention_outlives_an_error_only_when_it_may_have_changed_a_producer(
    world: World, monkeypatch: pytest.MonkeyPatch, where: str, stands: str | None
) -> None:
    world.stub("a", sends=4, status="exhausted")
    case_id = found(world, "exhausted", "a")

    def breaks(*arguments: Any) -> None:
        raise psycopg2.OperationalError("the server closed the connection")

    with monkeypatch.context() as broken:
        broken.setattr(f"backstop.decisions.decide.{where}", breaks)
        with pytest.raises(psycopg2.OperationalError):
            decided(world, case_id, "void", once="run 1")
    assert world.control("SELECT decision FROM case_file") == [(stands,)]
    assert begun(world.conn, case_id, "run 1", "ann") is (stands is not None)
    assert not begun(world.conn, case_id, "run 2", "ann"), "another answer is another"
    decided(world, case_id, "void", once="run 1")
    assert (state_of(world, case_id), begun(world.conn, case_id, "run 1", "ann")) == (
        "closed",
        True,
    )


def test_what_joins_a_case_after_it_was_shown_is_decided_only_where_it_is_named(
    world: World,
) -> None:
    for name in ("seen", "late", "named"):
        world.stub(name)
    case_id = found(world, "overdue", "seen")
    shown = shown_now(world)
    found(world, "overdue", "late", "named")
    done = decided(world, case_id, "discard", shown=shown)
    assert done.left_out == (
        "late: it came after the question",
        "named: it came after the question",
    )
    assert (done.counts["discarded"], state_of(world, case_id)) == (1, "open")
    with pytest.raises(DecisionRefused, match="came after the question"):
        decided(world, case_id, "discard", shown=shown)
    assert (
        decided(world, case_id, "discard", shown=shown, message_ids=["named"]).counts["discarded"]
        == 1
    )
    assert world.control("SELECT message_id FROM delivery_decision ORDER BY 1") == [
        ("named",),
        ("seen",),
    ]
    assert decided(world, case_id, "discard", shown=shown_now(world)).counts["discarded"] == 1
    # A delivery that was done and is open again since is no longer what was shown.
    other = found(world, "unknown", "x", "y")
    shown = shown_now(world)
    with world.conn, world.conn.cursor() as cur:
        close_satisfied(cur, 0, [("orders", "y", "billing")])
    found(world, "unknown", "y")
    later = "SELECT message_id FROM case_member WHERE case_id = %s AND added_at > %s"
    assert world.control(later, (other, shown["at"])) == [("y",)]


def test_what_somebody_did_not_see_or_did_not_name_is_not_left_with_the_rest(world: World) -> None:
    case_id = found(world, "overdue", "seen", "other")
    shown = shown_now(world)
    found(world, "overdue", "late")
    done = decided(world, case_id, "leave", shown=shown)
    (open_case,) = list_cases(world.conn)
    assert done.left_out == (f"late: it is in case {open_case.case_id} now",)
    assert [member.message_id for member in show(world.conn, open_case.case_id)[1]] == ["late"]
    assert state_of(world, case_id) == "decided" and f"case/{open_case.case_id}" in alerts(world)
    decided(world, open_case.case_id, "leave")
    named = found(world, "unknown", "a", "b")
    decided(world, named, "leave", message_ids=["a"])
    ((rest,),) = world.control(
        "SELECT message_id FROM case_member JOIN case_file USING (case_id) WHERE state = 'open'"
    )
    assert rest == "b"


def test_a_case_that_came_back_ends_the_story_before_in_its_alerts(world: World) -> None:
    def comes(severity: str = "warning") -> int:
        with world.conn, world.conn.cursor() as cur:
            return open_case(
                cur,
                kind="dead_letters",
                topic="orders",
                group="billing",
                subject="1:x",
                severity=severity,
                summary="dead letters",
                evidence={},
                members=[("shop_a", "orders", "m", "billing")],
                run_id=None,
                reopens=True,
            )

    case_id = comes()
    world.control(
        "UPDATE case_file SET state = 'decided', decision = 'replay', decided_by = 'a', why = 'w', decided_at = now()"
    )
    assert comes() == case_id
    first = f"case/{case_id}"
    assert alerts(world) == [first, f"{first}/closed", f"{first}/reopened/1"]
    world.control(
        "UPDATE case_file SET state = 'closed', closed_at = now(), decided_at = NULL, decision = NULL"
    )
    world.control(
        "INSERT INTO alert (case_id, dedup_key, severity, title, body) VALUES (%s, %s, 'info', 't', 'b')",
        (case_id, f"{first}/reopened/1/closed"),
    )
    comes()
    world.control("DELETE FROM alert WHERE dedup_key = %s", (first,))
    comes()
    assert alerts(world)[1:] == [
        f"{first}/reopened/1",
        f"{first}/reopened/1/closed",
        f"{first}/reopened/2",
    ]


def test_a_case_that_a_delivery_joins_while_it_is_closed_stays_open(world: World) -> None:
    case_id = found(world, "exhausted", "a")
    with world.conn, world.conn.cursor() as cur:
        settle(cur, [("orders", "a", "billing")])
    joining = connect(world.settings, world.connections)
    with joining.cursor() as cur:  # a run that has found another one, and has not committed
        open_case(
            cur,
            kind="exhausted",
            topic="orders",
            group="billing",
            subject="",
            severity="warning",
            summary="exhausted happened",
            evidence={},
            members=[("shop_a", "orders", "b", "billing")],
            run_id=None,
        )
    closed: list[int] = []

    def close() -> None:
        with world.conn, world.conn.cursor() as cur:
            closed.append(close_settled(cur))

    closing = threading.Thread(target=close)
    closing.start()
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    deadline = time.monotonic() + 120
    while not world.control(waits) and time.monotonic() < deadline:
        time.sleep(0.01)
    joining.commit()
    joining.close()
    closing.join(120)
    assert closed == [0] and state_of(world, case_id) == "open"


def test_each_failure_of_what_a_person_began_is_told_and_of_a_duty_once(world: World) -> None:
    for run in ("case-1-1", "case-2-1", "case-2-1"):
        note_failure(world.conn, "decide_case", "t", "b", {"run": run})
        note_failure(world.conn, "sweep", "t", "b", {"run": run})
    assert alerts(world) == [
        "duty/decide_case/case-1-1/failed",
        "duty/sweep/failed/0",
        "duty/decide_case/case-2-1/failed",
    ]


def test_a_run_that_somebody_called_over_ends_no_story(world: World) -> None:
    for run in ("over", "closed", "case-1-1"):
        assert note_failure(world.conn, "decide_case", "t", "b", {"run": run})
    assert world.control("SELECT thread, closing FROM alert") == [("duty/decide_case", False)] * 3


def test_a_duty_that_goes_on_failing_is_told_again_in_steps(world: World) -> None:
    steps = (timedelta(hours=4), timedelta(hours=24))
    told = []
    for hours in (0, 1, 4, 5, 23, 24, 47, 48, 49, 96):
        first = "UPDATE alert SET created_at = now() - make_interval(hours => %s) WHERE NOT dedup_key LIKE '%%/again/%%'"
        world.control(first, (hours,))
        if note_failure(world.conn, "ask_people", "t", "b", {"run": "r"}, steps):
            told.append(hours)
    assert told == [0, 4, 24, 48, 96]
    assert world.control("SELECT dedup_key, severity, title FROM alert ORDER BY alert_id")[1] == (
        "duty/ask_people/failed/0/again/1",
        "critical",
        "The duty ask_people still fails",
    )
    note_success(world.conn, "ask_people")
    assert note_failure(world.conn, "ask_people", "t", "b", {"run": "r"}, steps)


@pytest.mark.parametrize(
    "options",
    [
        {"more": 101},
        {"more": 0},
        {"more": -1},
        {"more": 2_000_000_000},
        {"more": "x"},
        {"more": True},
        {"more": 1.5},
        {"sample": 10_001},
        {"sample": "2"},
    ],
)
def test_a_number_that_no_form_allows_is_refused_when_it_is_applied(
    world: World, options: dict[str, Any]
) -> None:
    world.stub("a", sends=4, status="exhausted")
    case_id = found(world, "exhausted", "a")
    with pytest.raises(DecisionRefused, match="is a number from 1 to"):
        decided(world, case_id, "raise", **options)
    assert world.stub_now("a")["max_sends"] is None and state_of(world, case_id) == "open"


def test_the_command_line_allows_the_numbers_that_a_form_allows() -> None:
    options = get_type_hints(decide_one, include_extras=True)
    assert {name: options[name].__metadata__[0].max for name in MOST} == MOST


@pytest.mark.parametrize(
    ("kind", "action", "options"),
    [
        ("unknown", "resend", {}),
        ("unknown", "drained", {"broker": "old"}),
        ("exhausted", "raise", {}),
    ],
)
def test_an_answer_that_needs_the_settings_of_a_topic_that_left_them_is_refused(
    world: World, kind: str, action: str, options: dict[str, Any]
) -> None:
    world.stub("a", sends=4, status="exhausted")
    case_id = found(world, kind, "a")
    content = written_settings()
    del content["topics"]["orders"]
    content["people"] = {"second_person": ["raise"], "deciders": ["ann", "bob"]}
    world.settings = from_mapping(content)
    with pytest.raises(DecisionRefused, match=r"orders is not in backstop\.yaml"):
        decided(world, case_id, action, **options)
    assert state_of(world, case_id) == "open"
    with pytest.raises(DecisionRefused):
        decided(world, case_id, "void")
    with pytest.raises(DecisionRefused):
        decided(world, case_id, "discard")
    assert state_of(world, case_id) == "open"
    decided(world, case_id, "leave")


def test_a_batch_of_a_topic_that_left_the_settings_is_given_up_for_every_group(
    world: World,
) -> None:
    case_id = found(world, "ramp_stopped")
    world.control(
        "INSERT INTO resend_batch (topic, state, case_id) VALUES ('orders', 'stopped', %s)",
        (case_id,),
    )
    world.control(
        "INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by, held)"
        " VALUES ('shop_a', 'orders', 'a', 2, 'LOST', 'reconcile', true)"
    )
    content = written_settings()
    del content["topics"]["orders"]
    world.settings = from_mapping(content)
    assert decided(world, case_id, "give_up").counts == {"given_up": 1}
    given_up = world.control("SELECT state, given_up_groups FROM resend_request")
    assert given_up == [("not_needed", ["*"])]


class Fetches(psycopg2.extensions.cursor):
    """Keeps how many rows each query about a case's deliveries or dead letters has brought here."""

    rows: ClassVar[list[int]] = []

    def fetchall(self) -> list[tuple[Any, ...]]:
        found = super().fetchall()
        if b"case_member" in self.query or b"dead_letter d" in self.query:
            Fetches.rows.append(len(found))
        return found


def test_a_preview_of_a_large_case_brings_no_more_of_it_than_it_reads_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "PREVIEWED", 3)
    monkeypatch.setattr(answer, "COUNTED", 4, raising=False)
    monkeypatch.setattr(Fetches, "rows", [])
    many = found(world, "mass_loss", *(f"m-{number}" for number in range(5)))
    letters = found(world, "dead_letters")
    for number in range(6):
        world.control(INSERT, values(f"m-{number}"))
    world.control("UPDATE dead_letter SET case_id = %s", (letters,))
    world.control("UPDATE dead_letter SET left_in_case = case_id WHERE message_id = 'm-0'")
    world.conn.cursor_factory = Fetches
    seen = previewed(world, many, "resend")
    assert seen is not None and (seen.read, seen.open) == (3, 5)
    seen = previewed(world, letters, "discard")
    assert seen is not None and (seen.read, seen.open) == (3, 5), "what was left before is not read"
    assert max(Fetches.rows) == 3
    world.control("UPDATE dead_letter SET left_in_case = case_id")
    seen = previewed(world, letters, "discard")
    assert seen is not None and (seen.read, seen.open) == (3, 5), "counted up to one more than 4"
    assert max(Fetches.rows) == 3


def test_a_preview_says_what_a_decision_would_do_and_changes_nothing(world: World) -> None:
    world.stub("unsent", sends=1)
    case_id = found(world, "mass_loss", "unsent", "nowhere")
    before = world.control("SELECT * FROM case_file"), world.control("SELECT * FROM decision_log")
    seen = previewed(world, case_id, "resend")
    assert seen is not None
    assert (seen.read, seen.open, seen.fits, seen.done) == (2, 2, 1, 0)
    assert seen.left_out == ("nowhere: no shard has its stub, or billing does not owe it",)
    assert previewed(world, case_id, "leave") is None
    with pytest.raises(DecisionRefused, match="cannot be decided by 'replay'"):
        previewed(world, case_id, "replay")
    dry_run = ["cases", "decide", str(case_id), "resend", "--why", "w", "--dry-run"]
    assert run_app(dry_run) == 0
    for chosen in (["--message", "unsent"], ["--letter", "1"], ["--sample", "1"]):
        assert run_app([*dry_run, *chosen]) == 2, "it would answer for the whole case"
    after = world.control("SELECT * FROM case_file"), world.control("SELECT * FROM decision_log")
    assert after == before and world.control("SELECT * FROM resend_request") == []
    counts = decided(world, case_id, "resend").counts
    assert (counts["requests"], counts["left_out"]) == (seen.fits, len(seen.left_out))


def test_a_decision_whose_case_closed_by_itself_blames_nobody(world: World) -> None:
    world.stub("a")
    case_id = found(world, "unknown", "a")
    world.control("UPDATE case_file SET state = 'closed', closed_at = now()")
    intent = {"case_id": case_id, "action": "void", "who": "ann", "why": "w", "once": None}
    with (
        pytest.raises(DecisionRefused, match="was closed meanwhile"),
        world.conn,
        world.conn.cursor() as cur,
    ):
        require_mine(cur, intent)


def test_a_raise_takes_nothing_of_what_the_policy_allows(world: World) -> None:
    world.stub("a", sends=2, refused=1)
    assert world.judge("a")["billing"].eligible
    case_id = found(world, "refused", "a")
    assert decided(world, case_id, "raise").counts["raised"] == 1
    assert world.judge("a")["billing"].max_sends == 4, "one of its four sends was used"
