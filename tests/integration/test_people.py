"""People with a login of their own: what they decide is theirs, whatever they say, and what they wrote they cannot rewrite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest
from psycopg2 import errors

from backstop.cases.intend import begun
from backstop.cases.open import open_case
from backstop.cli.app import run_app
from backstop.config.connections import Connections
from backstop.config.load import from_mapping
from backstop.config.people import PeopleSettings
from backstop.config.settings import Settings
from backstop.control.connection import connect
from backstop.control.speaker import keep_policy, person
from backstop.decisions.decide import decide
from backstop.decisions.note import add_note
from backstop.evidence.sources import Sources
from backstop.incidents.replay import Wanted, run_incident
from backstop.model.errors import ConfigurationError, DecisionRefused
from backstop.requests.ask import Ask, ask
from backstop.resend.run_once import Listing, run_duty
from backstop.restore.pause import pause, resume
from backstop.runs.run import close_run, open_run
from backstop.runs.scope import name_of
from backstop.schema.migrate import grant
from backstop.sql.named import load
from backstop.watch.parked import look_for_parked
from control_world import ROLES, World, servers, world, written_settings  # noqa: F401
from triage_world import dead

LOG = "SELECT login, who, action, subject, why FROM decision_log ORDER BY entry"


@pytest.fixture
def ann(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A connection of a person's own login; everything that reads connections is given hers."""
    for database, role in ROLES.items():
        grant(world.postgres.admin_dsn(database), role)
    password = world.postgres.create_role("ann")
    world.run("control", "GRANT backstop_person TO ann")
    world.control("TRUNCATE decision_log, decision_checkpoint, people_policy")
    for database in ROLES:
        monkeypatch.setenv(
            f"AIRFLOW_CONN_BACKSTOP_{database.upper()}",
            world.postgres.dsn("ann", password, database),
        )
    # As a duty's run keeps it.
    keep_policy(world.conn, world.settings)
    connection = connect(world.settings, Connections())
    yield connection
    connection.close()


def found(world: World, kind: str, *message_ids: str) -> int:
    with world.conn, world.conn.cursor() as cur:
        return open_case(
            cur,
            kind=kind,
            topic="orders",
            group="billing",
            subject="",
            severity="warning",
            summary="s",
            evidence={},
            members=[("shop_a", "orders", one, "billing") for one in message_ids],
            run_id=None,
        )


def decided(
    world: World, ann: Any, case_id: int, action: str, who: str = "ann", **options: Any
) -> Any:
    return decide(ann, world.settings, Connections(), case_id, action, who, "because", options)


@pytest.mark.parametrize(
    ("kind", "action"),
    [
        ("unknown", "discard"),
        ("unknown", "void"),
        ("exhausted", "raise"),
        ("overdue", "resend"),
        ("unknown", "leave"),
    ],
)
def test_a_person_decides_a_case_with_a_login_that_can_do_no_more(
    world: World, ann: Any, kind: str, action: str
) -> None:
    if kind == "exhausted":
        world.stub("a", sends=4, status="exhausted")
    else:
        world.stub("a")
    case_id = found(world, kind, "a")
    assert not decided(world, ann, case_id, action).left_out
    told = world.control(LOG)
    assert told[-1] == ("ann", "ann", action, f"case {case_id}", "because")
    assert [entry[2] for entry in told[:-1]] == (
        [f"begin to {action}"] if action in ("void", "raise") else []
    )
    add_note(ann, case_id, "ann", "told the shop")


def test_a_person_decides_dead_letters_and_replays_an_incident(world: World, ann: Any) -> None:
    for name in ("m-1", "m-2", "m-3"):
        dead(world, name, "poison")
    wanted = Wanted(topic="orders", who="ann", why="mended", verdicts=("DEAD_LETTERED",))
    plan, _ = run_incident(world.settings, Connections(), wanted, "dry_run", "ann")
    assert plan.total == 3
    with pytest.raises(DecisionRefused, match="cannot decide in the name of olga"):
        run_incident(world.settings, Connections(), plan.incident_id, "canary", "olga")
    assert world.control("SELECT * FROM resend_request") == []
    run_incident(world.settings, Connections(), plan.incident_id, "canary", "ann")
    about = f"plan {plan.incident_id} of orders"
    assert [entry[:4] for entry in world.control(LOG)] == [
        ("ann", "ann", f"{does} (canary)", about) for does in ("begin to replay", "replay")
    ]


def test_nobody_with_a_login_of_their_own_decides_in_anothers_name(
    world: World, ann: Any, capfd: Any
) -> None:
    world.stub("a")
    case_id = found(world, "unknown", "a")
    with pytest.raises(DecisionRefused, match="The login ann cannot decide in the name of olga"):
        decided(world, ann, case_id, "discard", who="olga")
    decision, note = (
        ["cases", "decide", str(case_id), "discard", "--why", "w"],
        ["cases", "note", str(case_id), "--text", "x"],
    )
    for arguments in (decision, note, ["pause", "--all", "--why", "w"]):
        assert run_app([*arguments, "--by", "olga"]) == 6, arguments
    for query in (
        "SELECT 1 FROM delivery_decision",
        "SELECT 1 FROM pause",
        "SELECT 1 FROM case_note",
        LOG,
    ):
        assert world.control(query) == []
    assert world.control("SELECT state, decision FROM case_file") == [("open", None)]
    # Without --by the login is the name, whoever the operating system says it is.
    for arguments in (decision, ["pause", "--all", "--why", "w"], ["resume", "--all"]):
        assert run_app(arguments) == 0, capfd.readouterr()
    assert [entry[:3] for entry in world.control(LOG)] == [
        ("ann", "ann", one) for one in ("discard", "pause", "resume")
    ]
    assert world.control("SELECT decided_by FROM delivery_decision") == [("ann",)]


@pytest.mark.parametrize(
    ("people", "may"),
    [
        ({"deciders": ["olga"]}, False),
        ({"deciders": ["ann"]}, True),
        ({"deciders": [{"id": "7", "name": "ann"}]}, True),
        ({"deciders": [{"id": "ann", "name": "bob"}]}, False),
        ({"deciders": ["ann"], "rules": [{"actions": ["void"], "deciders": ["olga"]}]}, False),
        (
            {
                "deciders": ["ann"],
                "rules": [{"actions": ["void"], "topics": ["payments"], "deciders": ["olga"]}],
            },
            True,
        ),
        (
            {
                "deciders": ["olga"],
                "rules": [{"actions": ["void"], "topics": ["orders"], "deciders": ["ann"]}],
            },
            True,
        ),
    ],
)
def test_only_whom_the_policy_names_decides_by_action_and_topic(
    world: World, ann: Any, people: dict[str, Any], may: bool
) -> None:
    world.stub("a")
    case_id = found(world, "unknown", "a")
    # What the duties' settings say counts, and not what a person brings.
    theirs = PeopleSettings.model_validate({"second_person": [], **people})
    keep_policy(world.conn, world.settings.model_copy(update={"people": theirs}))
    world.settings = world.settings.model_copy(
        update={"people": PeopleSettings(deciders=None, second_person=())}
    )
    if may:
        assert decided(world, ann, case_id, "void").counts["voided"] == 1
    else:
        with pytest.raises(DecisionRefused, match="ann may not decide to void in orders"):
            decided(world, ann, case_id, "void")
        assert world.stub_now("a")["status"] == "pending" and world.control(LOG) == []


def test_a_person_ends_a_pause_where_they_may_decide_to_resend_and_pauses_everywhere(
    world: World, ann: Any
) -> None:
    written = written_settings()
    written["people"] = {
        "rules": [{"actions": ["resend"], "topics": ["payments"], "deciders": ["olga"]}]
    }
    keep_policy(world.conn, from_mapping(written))
    # Whatever settings she brings.
    for topic in ("payments", "orders", "*"):
        assert pause(ann, world.settings.topics, topic, "ann", "w")
    for topic in ("payments", "*"):
        with pytest.raises(DecisionRefused, match="ann may not decide to resend in payments"):
            resume(ann, world.settings, topic, "ann")
    assert resume(ann, world.settings, "orders", "ann")
    assert world.control("SELECT topic FROM pause ORDER BY 1") == [("*",), ("payments",)]
    assert resume(world.conn, world.settings, "*", "olga")


def test_a_person_ends_no_pause_of_a_topic_that_their_settings_leave_out(
    world: World, ann: Any
) -> None:
    theirs, hers = written_settings(), written_settings()
    theirs["brokers"]["second"] = dict(theirs["brokers"]["embedded"])
    theirs["topics"]["payments"]["broker"] = "second"
    theirs["people"] = {
        "rules": [{"actions": ["resend"], "topics": ["payments"], "deciders": ["olga"]}]
    }
    keep_policy(world.conn, from_mapping(theirs))
    del hers["topics"]["payments"]
    assert pause(world.conn, ["payments"], "payments", "olga", "w")
    with pytest.raises(DecisionRefused, match="ann may not decide to resend in payments"):
        resume(ann, from_mapping(hers), "*", "ann")
    assert world.control("SELECT topic FROM pause") == [("payments",)]


@pytest.mark.parametrize(
    ("database", "statement"),
    [
        ("control", "UPDATE decision_log SET who = 'olga'"),
        ("control", "DELETE FROM decision_log"),
        ("control", "TRUNCATE decision_log"),
        ("control", "DROP TABLE decision_log"),
        ("control", "INSERT INTO decision_log SELECT * FROM decision_log"),
        ("control", "SELECT forget_decisions(now())"),
        ("control", "INSERT INTO decision_checkpoint (entry, hash) VALUES (9, '')"),
        ("control", "SET ROLE backstop_duty"),
        ("control", "SET SESSION AUTHORIZATION postgres"),
        ("control", "DELETE FROM delivery_decision"),
        ("control", "DELETE FROM case_file"),
        ("control", "UPDATE incident SET given = '{}'"),
        ("control", "UPDATE case_question SET given = '{}'"),
        ("control", "DELETE FROM resend_request"),
        ("control", "UPDATE incident SET planned_by = 'olga'"),
        ("control", "UPDATE case_note SET written_by = 'olga'"),
        ("control", "DELETE FROM alert"),
        ("control", "UPDATE case_member SET message_id = 'another'"),
        ("control", "UPDATE case_file SET topic = 'payments'"),
        (
            "control",
            "INSERT INTO case_member (case_id, shard, topic, message_id, added_at) VALUES (1, 's', 't', 'm', now())",
        ),
        (
            "control",
            "INSERT INTO case_file (kind, topic, summary, state) VALUES ('unknown', 'orders', 's', 'closed')",
        ),
        (
            "control",
            "INSERT INTO delivery_decision (topic, message_id, consumer_group, decision, decided_by, why, decided_at)"
            " VALUES ('orders', 'd', 'billing', 'discard', 'ann', 'w', now())",
        ),
        (
            "control",
            "INSERT INTO incident_delivery (run_id, place, shard, topic, message_id, consumer_group, send_number, route, reason,"
            " asked_at) VALUES (1, 1, 's', 'orders', 'a', 'billing', 1, 'topic', 'r', now())",
        ),
        (
            "control",
            "INSERT INTO incident (run_id, wanted, planned_by, why, given) VALUES (1, '{}', 'ann', 'w', '{}')",
        ),
        (
            "control",
            "INSERT INTO pause (topic, paused_by, why, paused_at) VALUES ('t', 'ann', 'w', now())",
        ),
        (
            "control",
            "INSERT INTO drained_broker (topic, broker, case_id, stated_by, why, stated_at)"
            " VALUES ('orders', 'b', 1, 'ann', 'w', now())",
        ),
        ("control", "UPDATE run SET dry_run = false"),
        ("control", "UPDATE run SET scope = '*'"),
        ("control", "UPDATE progress SET next_offset = 0"),
        ("control", "DELETE FROM erasure"),
        ("producer_a", "UPDATE message_stub SET send_count = 0"),
        ("producer_a", "DELETE FROM message_stub"),
        (
            "producer_a",
            "INSERT INTO message_stub (topic, message_id, content, next_check_at) VALUES ('t', 'x', '', now())",
        ),
        ("consumer_billing", "UPDATE consumer_log SET state = 'CONSUMED'"),
        ("consumer_billing", "DELETE FROM consumer_log"),
    ],
)
def test_a_person_rewrites_nothing_and_reaches_nothing_else(
    world: World, ann: Any, database: str, statement: str
) -> None:
    url = Connections().url(f"backstop_{database}")
    connection = psycopg2.connect(url)
    try:
        with (
            pytest.raises((errors.InsufficientPrivilege, errors.InvalidParameterValue)),
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)
    finally:
        connection.close()


def test_the_log_takes_the_login_from_the_session_and_its_clock_and_names_everybody(
    world: World, ann: Any
) -> None:
    with ann, ann.cursor() as cursor:
        cursor.execute("SET TIME ZONE 'Asia/Tokyo'")
        cursor.execute(
            "SELECT append_decision('olga', 'void', 'case 1', 'w', '{\"at\": \"2001-01-01\"}')"
        )
    told = world.control("SELECT login, who, at > now() - interval '1 minute' FROM decision_log")
    assert told == [("ann", "ann", True)], "a person's login is the name, whatever it says"
    for nobody in ("''", "' '", "NULL"):
        with pytest.raises((errors.CheckViolation, errors.NotNullViolation)):
            world.control(f"SELECT append_decision({nobody}, 'void', 'case 1', 'w', '{{}}')")


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO proposal (case_id, action, who, why) SELECT case_id, 'void', 'olga', 'w' FROM case_file",
        "INSERT INTO case_note (case_id, written_by, note) SELECT case_id, 'olga', 'n' FROM case_file",
        "INSERT INTO pause (topic, paused_by, why) VALUES ('orders', 'olga', 'w')",
        "INSERT INTO delivery_decision (topic, message_id, consumer_group, decision, decided_by, why)"
        " VALUES ('orders', 'a', 'billing', 'discard', 'olga, approved by bob', 'w')",
        "INSERT INTO withdrawal (shard, topic, message_id, case_id, decided_by, why)"
        " SELECT 'shop_a', 'orders', 'a', case_id, 'olga', 'w' FROM case_file",
        "UPDATE delivery_decision SET decided_by = 'olga'",
        "INSERT INTO proposal (case_id, action, who, why) SELECT case_id, 'void', 'olga, approved by ann', 'w' FROM case_file",
        "INSERT INTO proposal (case_id, action, who, why, ended_at, ended_by, how)"
        " SELECT case_id, 'void', 'ann', 'w', now(), 'bob', 'approved' FROM case_file",
        "INSERT INTO delivery_decision (topic, message_id, consumer_group, decision, decided_by, why)"
        " VALUES ('orders', 'a', 'billing', 'discard', 'olga, approved by ann', 'w')",
        "INSERT INTO incident (run_id, wanted, planned_by, why, planned_in) SELECT run_id, '{}', 'ann', 'w', 'r' FROM run",
        "INSERT INTO incident (run_id, wanted, planned_by, why, shown) SELECT run_id, '{}', 'ann', 'w', '{}' FROM run",
        "INSERT INTO incident (run_id, wanted, planned_by, why, given) SELECT run_id, '{}', 'ann', 'w', '{}' FROM run",
        "INSERT INTO incident (run_id, wanted, planned_by, why, whole) SELECT run_id, '{}', 'ann', 'w', true FROM run",
        "UPDATE run SET listed_in = NULL",
        "INSERT INTO people_policy (policy) VALUES ('{}')",
        "UPDATE case_file SET decision = 'leave', decided_by = 'olga', why = 'w'",
        "UPDATE dead_letter SET decided_by = 'eve'",
        "UPDATE dead_letter SET decided_by = 'olga, approved by ann'",
        *(
            "INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by)"
            f" SELECT 'shop_a', 'orders', 'a', 1, 'r', {by} FROM case_file LIMIT 1"
            for by in (
                "'olga'",
                "'person olga'",
                "'olga (incident 1)'",
                "'reconcile'",
                "'case ' || case_id",
            )
        ),
        "UPDATE case_file SET why = 'olga says so' WHERE decided_by = 'olga'",
        "UPDATE case_file SET decision = 'void' WHERE decided_by = 'olga'",
        'UPDATE case_file SET evidence = \'{"decisions": [{"by": "olga", "action": "void"}]}\'',
        "UPDATE case_file SET evidence = '{\"decisions\": []}' WHERE decided_by = 'olga'",
        "UPDATE dead_letter SET state = 'discarded', decision = 'discard', closed_at = now() WHERE decided_by = 'olga'",
        "INSERT INTO drained_broker (topic, broker, case_id, stated_by, why) VALUES ('orders', 'old', 1, 'olga', 'w')",
        "UPDATE message_version SET content = 'another'",
        "UPDATE withdrawal SET why = 'another'",
        "INSERT INTO incident_delivery (run_id, place, shard, topic, message_id, consumer_group, send_number, route, reason,"
        " letters) SELECT run_id, 1, 'shop_a', 'orders', 'a', 'billing', 1, 'topic', 'r', '{}' FROM incident",
    ],
)
def test_a_row_in_anothers_name_is_refused_also_to_who_writes_it_by_hand(
    world: World, ann: Any, statement: str
) -> None:
    case_id = found(world, "unknown", "a")
    dead(world, "m", "poison")
    world.control("UPDATE dead_letter SET decided_by = 'olga', decision = 'wait'")
    world.control(
        """
        UPDATE case_file SET state = 'decided', decided_at = now(), decision = 'leave', decided_by = 'olga', why = 'known',
            evidence = '{"decisions": [{"by": "olga", "action": "leave"}]}';
        INSERT INTO case_file (kind, topic, summary) VALUES ('unknown', 'refunds', 's');
        INSERT INTO withdrawal (shard, topic, message_id, case_id, decided_by, why)
        VALUES ('shop_a', 'orders', 'z', %(case)s, 'olga', 'w');
        INSERT INTO message_version (shard, topic, message_id, content_version, content, written_by, why)
        VALUES ('shop_a', 'orders', 'z', 1, '', 'the producer', 'w')""",
        {"case": case_id},
    )
    world.control("""
        WITH r AS (
            INSERT INTO run (duty, scope, token, policy_version, code_version)
            VALUES ('incident', 'orders', gen_random_uuid(), '1', '1') RETURNING run_id)
        INSERT INTO incident (run_id, wanted, planned_by, why) SELECT run_id, '{}', 'olga', 'w' FROM r""")
    with pytest.raises(errors.InsufficientPrivilege), ann, ann.cursor() as cursor:
        cursor.execute(statement)
    with ann, ann.cursor() as cursor:
        cursor.execute("INSERT INTO pause (topic, paused_by, why) VALUES ('orders', 'ann', 'w')")
        cursor.execute("DELETE FROM pause")


SEEN = """
    INSERT INTO case_file (kind, topic, summary) VALUES ('unknown', 'orders', 's'), ('unknown', 'refunds', 's');
    INSERT INTO case_file (kind, topic, summary, state, decision, decided_by, decided_at, why)
    VALUES ('overdue', 'orders', 's', 'decided', 'leave', 'ann', now(), 'known');
    INSERT INTO case_member (case_id, shard, topic, message_id) VALUES (1, 'shop_a', 'orders', 'a');
    INSERT INTO run (duty, scope, token, policy_version, code_version)
    SELECT 'incident', '["orders"]', gen_random_uuid(), '1', '1' FROM generate_series(1, 2);
    INSERT INTO run (duty, scope, token, policy_version, code_version)
    VALUES ('reconcile', '*', gen_random_uuid(), '1', '1');
    INSERT INTO duty_lease (duty, scope, token, run_id) SELECT duty, scope, token, run_id FROM run WHERE duty = 'reconcile';
    INSERT INTO incident (run_id, wanted, planned_by, why, whole)
    VALUES (1, '{"topic": "orders"}', 'olga', 'w', true), (2, '{"topic": "orders"}', 'ann', 'w', true);
    INSERT INTO incident_delivery (run_id, place, shard, topic, message_id, consumer_group, send_number, route, reason)
    VALUES (1, 1, 'shop_a', 'orders', 'a', 'billing', 1, 'topic', 'r');
    INSERT INTO proposal (case_id, action, who, why) VALUES (1, 'void', 'olga', 'w');
    INSERT INTO pause (topic, paused_by, why) VALUES ('refunds', 'olga', 'w');
    INSERT INTO queue_epoch (broker, topic, queue_id, epoch, accepted) VALUES ('b', 'orders', 0, 'e', false);
    INSERT INTO owed_since (topic, consumer_group) VALUES ('orders', 'billing');
    INSERT INTO resend_batch (topic) VALUES ('orders');
    INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by)
    VALUES ('shop_a', 'orders', 'q', 1, 'r', 'reconcile')"""


def test_a_login_joins_what_reconcile_asked_for_by_the_case_that_it_decides(
    world: World, ann: Any
) -> None:
    world.stub("a")
    with world.conn, world.conn.cursor() as cursor:
        ask(cursor, [Ask("shop_a", "orders", "a", 1, None, "lost", "reconcile")], None)
    case_id = found(world, "overdue", "a")
    decided(world, ann, case_id, "resend")
    assert world.control("SELECT requested_by, groups, asked_by, state FROM resend_request") == [
        (
            f"case {case_id}",
            None,
            {"billing": f"case {case_id}", "*": "reconcile"},
            "open",
        )
    ]


def test_a_login_adds_itself_alone_to_who_asked_for_which_group(world: World, ann: Any) -> None:
    world.control(SEEN)

    def refused(change: str) -> None:
        with pytest.raises(psycopg2.errors.InsufficientPrivilege), ann, ann.cursor() as cursor:
            cursor.execute(f"UPDATE resend_request SET {change}")

    for asked_by in (
        '{"billing": "person olga"}',
        '{"billing": "case 1"}',
        '{"billing": "olga (incident 1)"}',
        '{"billing": "person ann", "shipping": "case 1"}',
        "[]",
    ):
        refused(f"asked_by = '{asked_by}'")
    mixed = '{"billing": "person ann", "shipping": "ann (incident 1)", "*": "reconcile"}'
    with ann, ann.cursor() as cursor:
        cursor.execute("UPDATE resend_request SET asked_by = %s", (mixed,))
    # Nor does it leave out who asked, so that a name counts for more.
    world.control(
        """UPDATE resend_request SET requested_by = 'case 1', groups = '{billing,shipping}',
        asked_by = '{"billing": "case 1", "shipping": "reconcile"}'"""
    )
    for change in (
        "asked_by = NULL",
        "asked_by = '{}'",
        "asked_by = asked_by - 'shipping'",
        "groups = NULL",
        """groups = NULL, asked_by = asked_by || '{"*": "case 1"}'""",
    ):
        refused(change)
    with ann, ann.cursor() as cursor:
        cursor.execute(
            """UPDATE resend_request SET asked_by = asked_by || '{"shipping": "ann (incident 1)"}'"""
        )
    assert world.control("SELECT asked_by FROM resend_request") == [
        ({"billing": "case 1", "shipping": "ann (incident 1)"},)
    ]


def test_what_a_person_changes_by_sql_beside_the_program_is_in_the_log(
    world: World, ann: Any
) -> None:
    world.control(SEEN)
    dead(world, "m", "poison")
    for statement, subject in (
        (
            "UPDATE incident SET approved_by = 'ann', approved_at = now() WHERE run_id = 1",
            "plan 1 of orders",
        ),
        ("UPDATE incident SET too_wide = false WHERE run_id = 2", "plan 2 of orders"),
        ("UPDATE incident_delivery SET asked_at = now()", "plan 1 of orders"),
        (
            "INSERT INTO incident_delivery (run_id, place, shard, topic, message_id, consumer_group, send_number, route, reason)"
            " VALUES (2, 1, 'shop_a', 'orders', 'z', 'billing', 1, 'topic', 'r')",
            "plan 2 of orders",
        ),
        ("UPDATE proposal SET ended_at = now(), ended_by = 'ann', how = 'rejected'", "case 1"),
        (
            "INSERT INTO proposal (case_id, action, who, why) VALUES (2, 'void', 'ann', 'w')",
            "case 2",
        ),
        ("UPDATE case_member SET settled_at = now()", "case 1"),
        ("DELETE FROM case_member", "case 1"),
        ("UPDATE case_file SET state = 'closed', closed_at = now() WHERE case_id = 1", "case 1"),
        ("UPDATE case_file SET summary = 'nothing' WHERE case_id = 2", "case 2"),
        ("UPDATE case_file SET why = 'another' WHERE case_id = 3", "case 3"),
        (
            "INSERT INTO case_file (kind, topic, summary) VALUES ('new_epoch', 'orders', 'accept it')",
            "case 4",
        ),
        (
            "INSERT INTO case_member (case_id, shard, topic, message_id) VALUES (2, 'shop_a', 'refunds', 'b')",
            "case 2",
        ),
        (
            "INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by)"
            " VALUES ('shop_a', 'orders', 'n', 1, 'r', 'person ann')",
            "orders",
        ),
        ("UPDATE resend_request SET state = 'not_needed' WHERE message_id = 'q'", "orders"),
        ("UPDATE resend_batch SET state = 'given_up', ended_at = now()", "orders"),
        ("UPDATE dead_letter SET look_at = 'infinity'", "orders"),
        ("UPDATE queue_epoch SET accepted = true", "orders"),
        (
            "INSERT INTO delivery_decision (topic, message_id, consumer_group, decision, decided_by, why)"
            " VALUES ('orders', 'd', 'billing', 'discard', 'ann', 'w')",
            "orders",
        ),
        (
            "INSERT INTO withdrawal (shard, topic, message_id, case_id, decided_by, why)"
            " VALUES ('shop_a', 'orders', 'w', 3, 'ann', 'w')",
            "case 3",
        ),
        (
            "INSERT INTO message_version (shard, topic, message_id, content_version, content, case_id, written_by, why)"
            " VALUES ('shop_a', 'orders', 'w', 1, 'x', 3, 'ann', 'w')",
            "case 3",
        ),
        ("DELETE FROM pause", "refunds"),
        (
            "INSERT INTO drained_broker (topic, broker, case_id, stated_by, why) VALUES ('orders', 'old', 3, 'ann', 'w')",
            "case 3",
        ),
    ):
        world.control("TRUNCATE decision_log, decision_checkpoint")
        with ann, ann.cursor() as cursor:
            cursor.execute(statement)
            assert cursor.rowcount == 1, statement
        told = world.control(
            "SELECT login, who, action, subject, details ->> 'table' FROM decision_log"
        )
        verb, _, table, *_ = statement.replace("UPDATE ", "UPDATE x ").split()
        assert told == [("ann", "ann", f"{verb} by SQL", subject, table)], statement
        assert "'x'" not in str(world.control("SELECT details FROM decision_log")), "no content"
    with ann, ann.cursor() as cursor:
        cursor.execute("UPDATE case_member SET added_at = '2001-01-01'")
        cursor.execute("UPDATE case_member SET settled_at = '9999-01-01'")
    recent = "added_at > now() - interval '1 minute', settled_at <= now()"
    assert world.control(f"SELECT {recent} FROM case_member") == [(True, True)], "both are now"
    # The duties' own logins change all of it as before.
    world.control("TRUNCATE decision_log, decision_checkpoint; UPDATE case_file SET summary = 's2'")
    assert world.control(LOG) == []


def test_an_entry_about_something_else_covers_no_change_by_sql(world: World, ann: Any) -> None:
    world.control(SEEN)
    world.control("UPDATE case_file SET topic = 'payments' WHERE case_id = 3")
    with ann, ann.cursor() as cursor:
        for statement in (
            "SELECT append_decision('ann', 'leave', 'case 3', 'w', '{}')",
            "UPDATE case_file SET summary = 'x'",
            "UPDATE resend_request SET not_before = 'infinity'",
        ):
            cursor.execute(statement)
    by_sql = [("UPDATE by SQL", "case 1"), ("UPDATE by SQL", "case 2"), ("UPDATE by SQL", "orders")]
    assert [entry[2:4] for entry in world.control(LOG)] == [("leave", "case 3"), *by_sql]
    with ann, ann.cursor() as cursor:
        cursor.execute("SELECT append_decision('ann', 'pause', '*', 'w', '{}')")
        cursor.execute("UPDATE resend_request SET not_before = now()")
        cursor.execute("INSERT INTO pause (topic, paused_by, why) VALUES ('*', 'ann', 'w')")
    assert [entry[2:4] for entry in world.control(LOG)][4:] == [
        ("pause", "*"),
        ("UPDATE by SQL", "orders"),
    ]
    # What one transaction said covers nothing of the next.
    with ann, ann.cursor() as cursor:
        cursor.execute("UPDATE case_file SET summary = 'y' WHERE case_id = 3")
    assert world.control(LOG)[-1][2:4] == ("UPDATE by SQL", "case 3")


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO run (duty, scope, token, policy_version, code_version)"
        " VALUES ('sweep', '*', gen_random_uuid(), '1', '1')",
        "UPDATE run SET state = 'done', finished_at = now() WHERE run_id = 3",
        "UPDATE run SET state = 'abandoned', finished_at = now() WHERE run_id = 3",
        "UPDATE run SET heartbeat_at = '-infinity' WHERE run_id = 3",
        "UPDATE run SET counts = '{}' WHERE run_id = 3",
        "UPDATE duty_lease SET token = gen_random_uuid()",
        "UPDATE duty_lease SET heartbeat_at = '-infinity'",
        "UPDATE duty_lease SET run_id = 1",
        "DELETE FROM duty_lease",
        "INSERT INTO duty_lease (duty, scope, token, run_id) VALUES ('sweep', '*', gen_random_uuid(), 1)",
        "INSERT INTO duty_lease (duty, scope, token, run_id, heartbeat_at)"
        " SELECT duty, scope, token, run_id, 'infinity' FROM run WHERE run_id = 1",
        "INSERT INTO owed_since (topic, consumer_group, owed_from) VALUES ('orders', 'shipping', 'infinity')",
        "INSERT INTO owed_since (topic, consumer_group) VALUES ('orders', 'shipping')",
    ],
)
def test_by_hand_a_person_opens_runs_that_are_dry_or_of_some_topics_alone(
    world: World, ann: Any, statement: str
) -> None:
    world.control(SEEN)
    with pytest.raises(errors.InsufficientPrivilege), ann, ann.cursor() as cursor:
        cursor.execute(statement)
    assert world.control("SELECT state, counts FROM run WHERE run_id = 3") == [("running", {})]


def test_a_person_opens_a_dry_run_over_everything_also_after_one_that_died(
    world: World, ann: Any
) -> None:
    world.control(SEEN)
    world.control("UPDATE duty_lease SET heartbeat_at = now() - interval '3 min'")
    world.control("UPDATE run SET heartbeat_at = now() - interval '3 min'")
    with pytest.raises(
        ConfigurationError,
        match="may not open the run: the login ann opens runs that are dry or of some topics",
    ):
        open_run(ann, "sweep", "*", world.settings)
    run = open_run(ann, "reconcile", "*", world.settings, dry_run=True)
    assert world.control(
        "SELECT run_id, state FROM run WHERE duty = 'reconcile' ORDER BY run_id"
    ) == [
        (3, "abandoned"),
        (run.run_id, "running"),
    ]
    close_run(ann, run, "done", {})
    assert world.control("SELECT 1 FROM duty_lease") == [] and world.control(LOG) == []


def test_a_withdrawal_that_one_stub_refuses_is_done_for_the_others_by_a_persons_login_too(
    world: World, ann: Any
) -> None:
    world.stub("a")
    world.stub("sent", sends=1, under_way=True)
    done = decided(world, ann, found(world, "unknown", "a", "sent"), "void")
    assert done.counts["voided"] == 1 and len(done.left_out) == 1
    assert [world.stub_now(name)["status"] for name in ("a", "sent")] == ["voided", "pending"]


def test_a_persons_refused_answer_puts_back_what_another_had_decided(
    world: World, ann: Any
) -> None:
    world.stub("a")
    case_id = found(world, "overdue", "a")
    decide(world.conn, world.settings, world.connections, case_id, "leave", "olga", "known", {})
    world.log("a", "billing", state="CONSUMING")
    with pytest.raises(DecisionRefused, match="does not fit"):
        decided(world, ann, case_id, "discard")
    assert world.control("SELECT state, decision, decided_by, why FROM case_file") == [
        ("decided", "leave", "olga", "known")
    ]


@pytest.mark.parametrize("left", [False, True])
def test_a_refused_answer_puts_back_what_was_decided_and_not_what_a_person_wrote_there(
    world: World, ann: Any, left: bool
) -> None:
    world.stub("a")
    case_id = found(world, "overdue", "a")
    if left:
        decide(world.conn, world.settings, world.connections, case_id, "leave", "bob", "known", {})
    before = world.control(
        "SELECT state, decision, decided_by, why, decided_at, intention FROM case_file"
    )
    forged = """{"before": {"decision": "leave", "decided_by": "olga", "why": "refunded", "decided_at": "2026-11-20T10:00:00Z",
        "until": "9999-01-01"}}"""
    # In nobody's name, and in another's, nobody is about to decide.
    for name in ("", ", decision = 'leave', decided_by = 'olga', why = 'refunded'"):
        with pytest.raises(errors.InsufficientPrivilege), ann, ann.cursor() as cursor:
            cursor.execute(
                f"UPDATE case_file SET state = 'open', decided_at = NULL, intention = %s{name}",
                (forged,),
            )
    with ann, ann.cursor() as cursor:
        cursor.execute(
            "UPDATE case_file SET state = 'open', decided_at = NULL, decision = 'void', decided_by = 'ann', why = 'w',"
            " intention = %s",
            (forged,),
        )
    world.log("a", "billing", state="CONSUMING")
    with pytest.raises(DecisionRefused, match="does not fit"):
        decide(
            world.conn,
            world.settings,
            world.connections,
            case_id,
            "discard",
            "carl",
            "because",
            {"once": "run 1"},
        )
    after = world.control(
        "SELECT state, decision, decided_by, why, decided_at, intention FROM case_file"
    )
    assert after == (before if left else [("open", None, None, None, None, None)])


def test_what_another_decided_before_is_not_decided_again_in_their_name(
    world: World, ann: Any
) -> None:
    case_id = found(world, "overdue", "a")
    decide(world.conn, world.settings, world.connections, case_id, "leave", "olga", "known", {})
    world.control(
        "UPDATE case_file SET state = 'open', decided_at = NULL, decision = NULL, decided_by = NULL, why = NULL"
    )
    again = "UPDATE case_file SET state = 'decided', decision = 'leave', decided_by = 'olga', why = 'known', decided_at = now()"
    with pytest.raises(errors.InsufficientPrivilege), ann, ann.cursor() as cursor:
        cursor.execute(again)
    # Nor is an answer that olga is giving now ended in her name.
    world.control(
        "UPDATE case_file SET decision = 'discard', decided_by = 'olga', why = 'w', intention = '{}'"
    )
    with pytest.raises(errors.InsufficientPrivilege), ann, ann.cursor() as cursor:
        cursor.execute(
            "UPDATE case_file SET state = 'decided', decided_at = now(), intention = NULL"
        )
    assert world.control("SELECT state, decision, decided_by FROM case_file") == [
        ("open", "discard", "olga")
    ]


def test_a_decision_that_goes_without_being_put_back_is_in_the_log(world: World, ann: Any) -> None:
    case_id = found(world, "overdue", "a")
    decide(world.conn, world.settings, world.connections, case_id, "leave", "olga", "known", {})
    with ann, ann.cursor() as cursor:
        cursor.execute(
            "UPDATE case_file SET state = 'open', decided_at = NULL, decision = 'void', decided_by = 'ann', why = 'w',"
            " intention = '{}'"
        )
    assert [entry[2] for entry in world.control(LOG)] == ["leave"], "it may be put back"
    with ann, ann.cursor() as cursor:
        cursor.execute(
            "UPDATE case_file SET decision = NULL, decided_by = NULL, why = NULL, intention = NULL"
        )
    assert world.control(LOG)[1:] == [
        ("ann", "ann", "UPDATE by SQL", f"case {case_id}", "changed beside the program")
    ]


def test_when_anything_of_a_case_happened_is_by_the_databases_clock_and_in_the_log(
    world: World, ann: Any
) -> None:
    case_id = found(world, "overdue", "a")
    decide(world.conn, world.settings, world.connections, case_id, "leave", "olga", "known", {})
    world.control("TRUNCATE decision_log, decision_checkpoint")
    for column in ("decided_at", "last_seen_at", "opened_at"):
        for instant in ("2001-01-01", "infinity"):
            with ann, ann.cursor() as cursor:
                cursor.execute(f"UPDATE case_file SET {column} = %s", (instant,))
            now = f"SELECT {column} > now() - interval '1 min' AND {column} <= now() FROM case_file"
            assert world.control(now) == [(True,)], column
            assert world.control(LOG)[-1][2:4] == ("UPDATE by SQL", f"case {case_id}")
    assert len(world.control(LOG)) == 6
    with pytest.raises(errors.InsufficientPrivilege), ann, ann.cursor() as cursor:
        cursor.execute(
            "INSERT INTO case_note (case_id, written_by, note, written_at) VALUES (1, 'ann', 'n', '2001-01-01')"
        )


def test_an_answer_with_the_name_of_a_colleagues_is_another_answer(world: World, ann: Any) -> None:
    world.stub("a")
    case_id = found(world, "unknown", "a")
    with ann, ann.cursor() as cursor:
        cursor.execute(
            "INSERT INTO proposal (case_id, action, who, why, options) VALUES (%s, 'void', 'ann', 'w', %s)",
            (case_id, '{"once": "q"}'),
        )
        cursor.execute("UPDATE proposal SET ended_at = now(), ended_by = 'ann', how = 'rejected'")
        cursor.execute("""UPDATE case_file SET evidence = '{"decisions": [{"by": "ann", "once": "q"}]}', decision = 'discard',
            decided_by = 'ann', why = 'w', intention = '{"once": "q", "reached": true}'""")
    assert begun(world.conn, case_id, "q", "ann") and not begun(world.conn, case_id, "q", "olga")
    done = decide(
        world.conn,
        world.settings,
        world.connections,
        case_id,
        "discard",
        "olga",
        "refunded",
        {"once": "q"},
    )
    assert not done.again and world.control("SELECT decided_by FROM delivery_decision") == [
        ("olga",)
    ]
    assert begun(world.conn, case_id, "q", "olga")


@pytest.mark.parametrize(
    "change",
    [
        "evidence = '[]'",
        "evidence = '5'",
        "evidence = '{\"decisions\": null}'",
        "intention = '[]'",
        "intention = '5'",
        'intention = \'{"reached": "banana"}\'',
    ],
)
def test_nobody_makes_a_case_that_cannot_be_decided(world: World, ann: Any, change: str) -> None:
    world.stub("a")
    case_id = found(world, "unknown", "a")
    mine = ", decision = 'void', decided_by = 'ann', why = 'w'"
    with (
        pytest.raises((errors.CheckViolation, errors.InvalidParameterValue)),
        ann,
        ann.cursor() as cursor,
    ):
        cursor.execute(f"UPDATE case_file SET {change}{mine}")
    with pytest.raises(errors.CheckViolation):
        world.control(f"UPDATE case_file SET {change}{mine}")
    assert (
        decide(
            world.conn, world.settings, world.connections, case_id, "discard", "bob", "w", {}
        ).counts["discarded"]
        == 1
    )


def test_which_message_was_withdrawn_or_edited_nobody_changes_and_nobody_says_so_for_a_producer_or_triage(
    world: World, ann: Any
) -> None:
    case_id = found(world, "unknown", "a")
    dead(world, "m", "poison")
    world.control(
        """
        INSERT INTO withdrawal (shard, topic, message_id, case_id, decided_by, why)
        VALUES ('shop_a', 'orders', 'z', %(c)s, 'olga', 'w');
        INSERT INTO message_version (shard, topic, message_id, content_version, content, written_by, why)
        VALUES ('shop_a', 'orders', 'z', 2, 'her content', 'olga', 'w');
        INSERT INTO case_file (kind, topic, summary) VALUES ('overdue', 'orders', 's')""",
        {"c": case_id},
    )
    kept = world.control("SELECT w.*, v.* FROM withdrawal w, message_version v")
    version = "INSERT INTO message_version (shard, topic, message_id, content_version, content, case_id, written_by, why) VALUES "
    for statement in (
        "UPDATE withdrawal SET topic = 'payments'",
        "UPDATE withdrawal SET message_id = 'pay-1'",
        "UPDATE withdrawal SET shard = 's'",
        "UPDATE withdrawal SET case_id = 2",
        "UPDATE message_version SET message_id = 'pay-1'",
        "UPDATE message_version SET topic = 'payments'",
        "UPDATE message_version SET shard = 'shop_b'",
        "UPDATE message_version SET content_version = 3",
        "UPDATE message_version SET case_id = 1",
        version + f"('shop_a', 'orders', 'a', 1, 'never written', {case_id}, 'the producer', 'w')",
        "UPDATE dead_letter SET state = 'discarded', decision = 'discard', decided_by = 'triage', closed_at = now()",
    ):
        with pytest.raises(errors.InsufficientPrivilege), ann, ann.cursor() as cursor:
            cursor.execute(statement)
    assert world.control("SELECT w.*, v.* FROM withdrawal w, message_version v") == kept
    assert (
        world.control("SELECT state FROM dead_letter") == [("open",)] and world.control(LOG) == []
    )


def test_what_another_began_covers_no_change_by_sql(world: World, ann: Any) -> None:
    case_id = found(world, "unknown", "a")
    about = f"case {case_id}"
    withdrawal = "INSERT INTO withdrawal (shard, topic, message_id, case_id, decided_by, why) VALUES ('s', 'orders', "
    world.control(f"{withdrawal}'z', {case_id}, 'olga', 'w')")
    world.control("SELECT append_decision('olga', 'begin to void', %s, 'w', '{}')", (about,))
    with ann, ann.cursor() as cursor:
        cursor.execute("DELETE FROM withdrawal")
    assert [entry[1:4] for entry in world.control(LOG)] == [
        ("olga", "begin to void", about),
        ("ann", "DELETE by SQL", about),
    ]
    # Her own beginning covers the messages of its case alone, and nothing that was applied.
    world.control(
        "INSERT INTO withdrawal VALUES ('s', 'orders', 'a', %s, 'olga', 'w', now(), now())",
        (case_id,),
    )
    for statement, table in (
        ("DELETE FROM withdrawal", "withdrawal"),
        (f"{withdrawal}'p', {case_id}, 'ann', 'w')", "withdrawal"),
        (
            "INSERT INTO message_version (shard, topic, message_id, content_version, content, case_id, written_by, why)"
            f" VALUES ('s', 'orders', 'a', 2, 'x', {case_id}, 'ann', 'w')",
            "message_version",
        ),
    ):
        world.control("SELECT append_decision('ann', 'begin to void', %s, 'w', '{}')", (about,))
        with ann, ann.cursor() as cursor:
            cursor.execute(
                "SELECT append_decision('ann', 'begin to void', %s, 'w', '{}')", (about,)
            )
        with ann, ann.cursor() as cursor:
            cursor.execute(statement)
        told = world.control(
            "SELECT login, action, details ->> 'table' FROM decision_log ORDER BY entry DESC LIMIT 1"
        )
        assert told == [("ann", f"{statement.split()[0]} by SQL", table)], statement


def test_what_a_cut_short_withdrawal_had_done_is_settled_by_the_next_one_who_decides(
    world: World, ann: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        world.stub(name)
    world.stub("c", sends=1, under_way=True)
    case_id = found(world, "unknown", "a", "b", "c")
    world.control(
        """
        INSERT INTO withdrawal (shard, topic, message_id, case_id, decided_by, why)
        SELECT 'shop_a', 'orders', m, %s, 'olga', 'w' FROM unnest('{a,c}'::text[]) m""",
        (case_id,),
    )
    world.run("producer_a", "UPDATE message_stub SET status = 'voided' WHERE message_id = 'a'")
    assert decided(world, ann, case_id, "leave").counts == {}
    assert world.control(
        "SELECT message_id, decided_by, applied_at IS NOT NULL FROM withdrawal"
    ) == [("a", "olga", True)]
    assert [entry[1:4] for entry in world.control(LOG)] == [
        ("ann", does, f"case {case_id}") for does in ("settle what was begun", "leave")
    ]


def test_a_proposal_by_sql_is_of_what_is_there_now_and_of_who_may(
    world: World, ann: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "later"):
        world.stub(name)
    case_id = found(world, "unknown", "a")
    people = PeopleSettings.model_validate(
        {"deciders": ["ann", "bob"], "rules": [{"actions": ["raise"], "deciders": ["bob"]}]}
    )
    world.settings = world.settings.model_copy(update={"people": people})
    keep_policy(world.conn, world.settings)
    world.control('UPDATE case_file SET evidence = \'{"head": "k-1", "last_number": 2}\'')
    forged = '{"shown": {"at": "9999-01-01T00:00:00Z", "letter": 999, "last_number": 999}}'
    proposes = (
        "INSERT INTO proposal (case_id, action, who, why, options) VALUES (%s, %s, 'ann', 'w', %s)"
    )
    with pytest.raises(errors.InsufficientPrivilege), ann, ann.cursor() as cursor:
        cursor.execute(
            "INSERT INTO proposal (case_id, action, who, why, proposed_at) VALUES (1, 'void', 'ann', 'w', 'infinity')"
        )
    with ann.cursor() as cursor:
        cursor.execute(
            proposes + " RETURNING options #>> '{shown,letter}'", (case_id, "void", "[]")
        )
        assert cursor.fetchone() == ("0",)
        ann.rollback()
    with ann, ann.cursor() as cursor:
        cursor.execute(proposes, (case_id, "void", forged))
    found(world, "unknown", "later")
    shown = world.control(
        "SELECT (options #>> '{shown,at}')::timestamptz <= now(), options #> '{shown,letter}', options #> '{shown,head}',"
        " options #> '{shown,last_number}' FROM proposal"
    )
    assert shown == [(True, 0, "k-1", 2)]
    number = world.control("SELECT proposal_id FROM proposal")[0][0]
    password = world.postgres.create_role("bob")
    world.run("control", "GRANT backstop_person TO bob")
    for database in ROLES:
        monkeypatch.setenv(
            f"AIRFLOW_CONN_BACKSTOP_{database.upper()}",
            world.postgres.dsn("bob", password, database),
        )
    bob = connect(world.settings, Connections())
    with bob, bob.cursor() as cursor:
        cursor.execute("UPDATE proposal SET ended_by = 'bob'")
    assert world.control(LOG)[-1][:4] == ("bob", "bob", "UPDATE by SQL", f"case {case_id}")
    decided(world, bob, case_id, "approve", who="bob", proposal=number)
    assert [world.stub_now(name)["status"] for name in ("a", "later")] == ["voided", "pending"]
    # What she may not decide she does not propose by SQL either.
    with ann, ann.cursor() as cursor:
        cursor.execute(proposes, (case_id, "raise", "{}"))
    number = world.control("SELECT max(proposal_id) FROM proposal")[0][0]
    for conn, who in ((bob, "bob"), (world.conn, "bob"), (world.conn, "olga")):
        with pytest.raises(DecisionRefused, match="ann may not decide to raise"):
            decide(
                conn,
                world.settings,
                Connections(),
                case_id,
                "approve",
                who,
                "w",
                {"proposal": number},
            )
    bob.close()
    world.control("TRUNCATE decision_log, decision_checkpoint")
    world.control("UPDATE proposal SET ended_at = now(), how = 'stale' WHERE ended_at IS NULL")
    world.control(
        "INSERT INTO proposal (case_id, action, who, why, content) VALUES (%s, 'edit', 'olga', 'w', 'new')",
        (case_id,),
    )
    with ann, ann.cursor() as cursor:
        cursor.execute("UPDATE proposal SET content = NULL WHERE ended_at IS NULL")
    assert [entry[1:4] for entry in world.control(LOG)] == [
        ("ann", "UPDATE by SQL", f"case {case_id}")
    ]


def test_a_person_silences_no_alert_in_advance(world: World, ann: Any) -> None:
    case_id = found(world, "mass_loss", "a")
    world.control("TRUNCATE alert CASCADE")
    alert = "INSERT INTO alert ({columns}) VALUES ({values})"
    for columns, values in (
        ("dedup_key, severity, title, body", f"'case/{case_id}', 'info', 't', 'b'"),
        (
            "case_id, dedup_key, severity, title, body",
            f"{case_id}, 'case/{case_id}0', 'info', 't', 'b'",
        ),
        (
            "case_id, dedup_key, severity, title, body",
            f"{case_id}, 'reconcile/stalled', 'info', 't', 'b'",
        ),
        (
            "case_id, dedup_key, severity, title, body, delivered_at",
            f"{case_id}, 'case/{case_id}', 'info', 't', 'b', now()",
        ),
    ):
        with pytest.raises(errors.InsufficientPrivilege), ann, ann.cursor() as cursor:
            cursor.execute(alert.format(columns=columns, values=values))
    assert world.control("SELECT 1 FROM alert") == [] and world.control(LOG) == []
    with ann, ann.cursor() as cursor:
        cursor.execute(
            alert.format(
                columns="case_id, dedup_key, severity, title, body",
                values=f"{case_id}, 'case/{case_id}/closed', 'info', 't', 'b'",
            )
        )
    told = world.control(
        "SELECT action, subject, details #>> '{first,dedup_key}' FROM decision_log"
    )
    assert told == [("INSERT by SQL", f"case {case_id}", f"case/{case_id}/closed")]


def test_an_entry_is_bounded(world: World, ann: Any) -> None:
    for why, details in (
        ("'a', 10001", "'{}'"),
        ("'a', 1", "jsonb_build_array(repeat('a', 8000001))"),
    ):
        with pytest.raises(errors.ProgramLimitExceeded), ann, ann.cursor() as cursor:
            cursor.execute(f"SELECT append_decision('ann', 'note', 'x', repeat({why}), {details})")
    with ann, ann.cursor() as cursor:
        cursor.execute("SELECT append_decision('ann', 'note', 'x', repeat('a', 10000), '{}')")
    world.stub("a")
    case_id = found(world, "unknown", "a")
    with pytest.raises(DecisionRefused, match="at most 10,000 characters"):
        decide(
            world.conn, world.settings, world.connections, case_id, "void", "bob", "a" * 10_001, {}
        )
    assert world.stub_now("a")["status"] == "pending" and len(world.control(LOG)) == 1


def test_a_person_asks_for_a_list_and_the_duties_send_it(
    world: World, ann: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stub("a")
    listing = Listing("orders", ("a",), "ann", "lost")
    assert run_duty(world.settings, Connections(), scope=name_of(["orders"]), listing=listing) == {}
    assert world.control("SELECT requested_by, state FROM resend_request") == [
        ("person ann", "open")
    ]
    assert world.control("SELECT state FROM run WHERE duty = 'resend'") == [("done",)]
    assert [entry[2:4] for entry in world.control(LOG)] == [("resend", "1 ids of orders")]
    for database in ROLES:
        monkeypatch.setenv(
            f"AIRFLOW_CONN_BACKSTOP_{database.upper()}", world.postgres.admin_dsn(database)
        )
    assert run_duty(world.settings, Connections())["sent"] == 1


def test_the_owner_of_the_tables_is_no_person_although_it_made_the_role(world: World) -> None:
    password = world.postgres.create_role("maker")
    world.run("control", "ALTER ROLE maker CREATEROLE; GRANT CONNECT ON DATABASE control TO maker")
    world.run(
        "control", "GRANT backstop_person TO maker WITH ADMIN OPTION, INHERIT FALSE, SET FALSE"
    )
    connection = psycopg2.connect(world.postgres.dsn("maker", password, "control"))
    try:
        assert person(connection) is None
    finally:
        connection.close()


def test_a_person_edits_and_another_approves_each_with_their_own_login(
    world: World, ann: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead(world, "m", "poison")
    with world.conn, world.conn.cursor() as cur:
        case_id = open_case(
            cur,
            kind="dead_letters",
            topic="orders",
            group="billing",
            subject="f",
            severity="warning",
            summary="s",
            evidence={},
            members=[("shop_a", "orders", "m", "billing")],
            run_id=None,
        )
        cur.execute("UPDATE dead_letter SET case_id = %s", (case_id,))
    keep_policy(world.conn, world.settings.model_copy(update={"people": PeopleSettings()}))
    assert decided(world, ann, case_id, "edit", message_ids=["m"], content=b"mended").counts == {
        "proposed": 1
    }
    ((number,),) = world.control("SELECT proposal_id FROM proposal")
    with pytest.raises(DecisionRefused, match="cannot approve it"):
        decided(world, ann, case_id, "approve", proposal=number)
    # What bob has looked at by now is not changed beneath its number.
    for change in ("content = 'another'", "options = '{}'", "action = 'void'"):
        with (
            pytest.raises((errors.IntegrityConstraintViolation, errors.InsufficientPrivilege)),
            ann,
            ann.cursor() as cursor,
        ):
            cursor.execute(f"UPDATE proposal SET {change}")
        with pytest.raises(errors.IntegrityConstraintViolation):
            world.control(f"UPDATE proposal SET {change}")
    password = world.postgres.create_role("bob")
    world.run("control", "GRANT backstop_person TO bob")
    for database in ROLES:
        monkeypatch.setenv(
            f"AIRFLOW_CONN_BACKSTOP_{database.upper()}",
            world.postgres.dsn("bob", password, database),
        )
    bob = connect(world.settings, Connections())
    with bob, bob.cursor() as cursor:
        cursor.execute("UPDATE proposal SET ended_by = 'bob'")
    version = "INSERT INTO message_version (shard, topic, message_id, content_version, content, case_id, written_by, why) VALUES "
    for topic, message_id, content in (
        ("orders", "m", "hers"),
        ("orders", "other", "mended"),
        ("payments", "m", "mended"),
    ):
        with pytest.raises(errors.InsufficientPrivilege), bob, bob.cursor() as cursor:
            cursor.execute(
                version + "('shop_a', %s, %s, 2, %s, %s, 'ann, approved by bob', 'because')",
                (topic, message_id, content, case_id),
            )
    with bob, bob.cursor() as cursor:
        cursor.execute("UPDATE proposal SET ended_by = NULL")
    decided(world, bob, case_id, "approve", who="bob", proposal=number)
    bob.close()
    assert bytes(world.run("producer_a", "SELECT content FROM message_stub")[0][0]) == b"mended"
    versions = world.control("SELECT written_by FROM message_version ORDER BY content_version")
    assert versions == [("the producer",), ("ann, approved by bob",)]
    assert world.control("SELECT login, who, action FROM decision_log ORDER BY entry") == [
        ("ann", "ann", "propose to edit"),
        ("bob", "bob", "UPDATE by SQL"),
        *(("bob", "bob", does) for does in ("begin to approve", "begin to edit", "edit")),
    ]


@pytest.mark.parametrize("action", ["discard", "resend", "replay", "discard a dead letter"])
def test_what_else_the_policy_has_two_people_decide_each_with_their_own_login(
    world: World, ann: Any, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """For one group a discard is a withdrawal, and a replay of all dead letters of a cause is an incident's."""
    of_letters = action in ("replay", "discard a dead letter")
    action = action.split()[0]
    for name in ("m", "n"):
        if of_letters:
            dead(world, name, "poison")
        else:
            world.stub(name)
    case_id = found(world, "dead_letters" if of_letters else "overdue", "m", "n")
    world.control("UPDATE dead_letter SET case_id = %s", (case_id,))
    people = PeopleSettings(second_person=(action,))
    keep_policy(world.conn, world.settings.model_copy(update={"people": people}))
    assert decided(world, ann, case_id, action, message_ids=["m"]).counts == {"proposed": 1}
    ((number,),) = world.control("SELECT proposal_id FROM proposal")
    password = world.postgres.create_role("bob")
    world.run("control", "GRANT backstop_person TO bob")
    for database in ROLES:
        monkeypatch.setenv(
            f"AIRFLOW_CONN_BACKSTOP_{database.upper()}",
            world.postgres.dsn("bob", password, database),
        )
    bob = connect(world.settings, Connections())
    forged = [
        "INSERT INTO delivery_decision (topic, message_id, consumer_group, decision, case_id, decided_by, why)"
        f" VALUES ('orders', '{message_id}', 'billing', 'discard', {case_id}, '{who}, approved by bob', '{why}')"
        for message_id, who, why in (
            ("n", "ann", "because"),
            ("m", "carl", "because"),
            ("m", "ann", "x"),
        )
    ]
    forged += [
        f"UPDATE dead_letter SET state = '{state}', decision = '{decision}', decided_by = 'ann, approved by bob'"
        f" WHERE message_id = '{message_id}'"
        for message_id, state, decision in (
            ("n", "replaying", "replay"),
            ("n", "discarded", "discard"),
            ("m", *(("discarded", "discard") if action == "replay" else ("replaying", "replay"))),
        )
        if of_letters
    ]
    with bob, bob.cursor() as cursor:
        cursor.execute("UPDATE proposal SET ended_by = 'bob'")
    for statement in forged:
        with (
            pytest.raises(errors.InsufficientPrivilege, match="in its own name alone"),
            bob,
            bob.cursor() as cursor,
        ):
            cursor.execute(statement)
    with bob, bob.cursor() as cursor:
        cursor.execute("UPDATE proposal SET ended_by = NULL")
    decided(world, bob, case_id, "approve", who="bob", proposal=number)
    bob.close()
    both = "ann, approved by bob"
    given_up = world.control("SELECT message_id, decided_by FROM delivery_decision")
    assert given_up == ([("m", both)] if action == "discard" else [])
    asked = world.control("SELECT message_id, requested_by FROM resend_request")
    assert asked == ([] if action == "discard" else [("m", f"case {case_id}")])
    states = world.control("SELECT message_id, state, decided_by FROM dead_letter ORDER BY 1")
    done = ("m", "discarded" if action == "discard" else "replaying", both)
    assert states == ([done, ("n", "open", None)] if of_letters else [])
    assert [entry[:3] for entry in world.control(LOG)][-1] == ("bob", "bob", action)


def test_two_people_discard_a_parked_key_each_with_their_own_login(
    world: World, ann: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stub("k-1")
    world.run(
        "consumer_billing",
        """
        INSERT INTO consumer_log (consumer_group, topic, message_id, state) VALUES ('billing', 'orders', 'k-1', 'PARKED');
        INSERT INTO parked_key (consumer_group, topic, ordering_key, queue_id, state, messages, bytes)
            VALUES ('billing', 'orders', 'k', 0, 'PARKED', 1, 1000);
        INSERT INTO parked_message (consumer_group, topic, message_id, ordering_key, content, queue_id)
            VALUES ('billing', 'orders', 'k-1', 'k', 'x', 0)""",
    )
    ((last_number,),) = world.run("consumer_billing", "SELECT number FROM parked_message")
    with world.conn, world.conn.cursor() as cur:
        case_id = open_case(
            cur,
            kind="key_parked",
            topic="orders",
            group="billing",
            subject="k",
            severity="warning",
            summary="s",
            evidence={"head": "k-1", "last_number": last_number},
            members=[],
            run_id=None,
        )
    people = PeopleSettings(second_person=("discard_key",))
    keep_policy(world.conn, world.settings.model_copy(update={"people": people}))
    assert decided(world, ann, case_id, "discard_key").counts == {"proposed": 1}
    ((number,),) = world.control("SELECT proposal_id FROM proposal")
    password = world.postgres.create_role("bob")
    world.run("control", "GRANT backstop_person TO bob")
    for database in ROLES:
        monkeypatch.setenv(
            f"AIRFLOW_CONN_BACKSTOP_{database.upper()}",
            world.postgres.dsn("bob", password, database),
        )
    bob = connect(world.settings, Connections())
    approved = decided(world, bob, case_id, "approve", who="bob", proposal=number)
    bob.close()
    assert approved.counts == {"discarded": 1}
    assert world.control("SELECT how FROM proposal") == [("approved",)]
    for database in ROLES:
        monkeypatch.setenv(
            f"AIRFLOW_CONN_BACKSTOP_{database.upper()}", world.postgres.admin_dsn(database)
        )
    with Sources(world.settings, Connections()) as sources:
        assert look_for_parked(sources, world.conn).undecided == []
    assert world.control("SELECT message_id, decided_by, case_id FROM delivery_decision") == [
        ("k-1", "ann, approved by bob", case_id)
    ]
    assert world.run("consumer_billing", "SELECT 1 FROM parked_discard") == []


def test_two_names_stand_where_one_proposed_it_and_the_other_approves_it_now_and_nowhere_else(
    world: World, ann: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stub("a")
    case_id, other = found(world, "unknown", "a", "b"), found(world, "overdue", "c")
    keep_policy(world.conn, world.settings.model_copy(update={"people": PeopleSettings()}))
    assert decided(world, ann, case_id, "void", message_ids=["a"]).counts == {"proposed": 1}
    world.control(
        "INSERT INTO proposal (case_id, action, who, why) VALUES (%s, 'raise', 'carl', 'w')",
        (other,),
    )
    password = world.postgres.create_role("bob")
    world.run("control", "GRANT backstop_person TO bob")
    bob = psycopg2.connect(world.postgres.dsn("bob", password, "control"))
    bob.autocommit = True

    def refused(who: Any, statement: str) -> bool:
        try:
            with who.cursor() as cursor:
                cursor.execute(statement)
        except (errors.InsufficientPrivilege, errors.IntegrityConstraintViolation):
            who.rollback()
            return True
        return False

    def withdraw(case: int, message_id: str) -> str:
        return f"""
            INSERT INTO withdrawal (shard, topic, message_id, case_id, decided_by, why)
            VALUES ('shop_a', 'orders', '{message_id}', {case}, 'ann, approved by bob', 'because')"""

    version = f"""
        INSERT INTO message_version (shard, topic, message_id, content_version, content, case_id, written_by, why)
        VALUES ('shop_a', 'orders', 'a', 2, '', {case_id}, 'ann, approved by bob', 'w')"""
    assert refused(bob, withdraw(case_id, "a")), "bob has not begun to approve it"
    # Who proposed it approves nothing, nor says that another did; who approves says no more than that.
    mine = f"UPDATE proposal SET {{}} WHERE case_id = {case_id}"
    assert refused(ann, mine.format("ended_by = 'ann'"))
    for who, name in ((ann, "ann"), (bob, "bob")):
        assert refused(who, mine.format(f"ended_by = '{name}', how = 'approved', ended_at = now()"))
    assert not refused(bob, mine.format("ended_by = 'bob'"))
    assert refused(ann, mine.format("ended_by = NULL")), "bob is applying it"
    for statement in (
        withdraw(other, "a"),
        withdraw(other, "c"),
        withdraw(case_id, "b"),
        version,
        withdraw(case_id, "a").replace("'ann,", "'carl,"),
        "UPDATE case_file SET decision = 'void', decided_by = 'ann, approved by bob', why = 'w'"
        f" WHERE case_id = {other}",
        f"""
                      INSERT INTO delivery_decision (topic, message_id, consumer_group, decision, case_id, decided_by, why)
                      VALUES ('orders', 'a', 'billing', 'discard', {case_id}, 'ann, approved by bob', 'w')""",
    ):
        assert refused(bob, statement), statement
    world.control(
        "UPDATE case_member SET settled_at = now() - interval '1 day' WHERE message_id = 'a'"
    )
    assert refused(bob, withdraw(case_id, "a")), "it had settled before"
    world.control("UPDATE case_member SET settled_at = NULL")
    assert refused(bob, withdraw(case_id, "a").replace("'because'", "'he said so'")), (
        "it is not what ann said"
    )
    assert refused(bob, withdraw(case_id, "a").replace("'orders'", "'payments'")), "another message"
    assert not refused(bob, withdraw(case_id, "a"))
    assert not refused(bob, mine.format("how = 'approved', ended_at = now()"))
    assert refused(bob, withdraw(case_id, "a").replace("shop_a", "shop_b")), "it has ended"
    assert refused(bob, mine.format("how = NULL, ended_at = NULL, ended_by = NULL")), (
        "what has ended stays so"
    )
    bob.close()


def test_who_reads_a_content_is_in_the_log_before_it_is_shown(
    world: World, ann: Any, tmp_path: Any, capfd: Any
) -> None:
    number = dead(world, "m", "poison")
    for arguments in (
        ["show", str(number)],
        ["show", str(number), "--raw"],
        ["export", "--output", str(tmp_path / "x")],
    ):
        assert run_app(["dead-letters", *arguments]) == 0, capfd.readouterr()
    read = f"dead letter {number}"
    told = [("ann", "ann", "read contents", what) for what in (read, read, "dead letters")]
    assert [entry[:4] for entry in world.control(LOG)] == told
    # Where it cannot be noted nothing is shown.
    world.control(
        "REVOKE EXECUTE ON FUNCTION append_decision(text, text, text, text, jsonb) FROM backstop_person"
    )
    capfd.readouterr()
    assert run_app(["dead-letters", "show", str(number), "--raw"]) != 0
    assert capfd.readouterr().out == ""


def test_before_any_duty_ran_a_person_decides_nothing(world: World, ann: Any) -> None:
    world.control("TRUNCATE people_policy")
    world.stub("a")
    with pytest.raises(DecisionRefused, match="no duty has run"):
        decided(world, ann, found(world, "unknown", "a"), "discard")


def test_what_a_newer_program_kept_of_the_policy_is_passed_over(world: World, ann: Any) -> None:
    world.control("UPDATE people_policy SET policy = policy || '{\"newer\": 1}'")
    world.stub("a")
    assert decided(world, ann, found(world, "unknown", "a"), "discard").counts["discarded"] == 1


def test_a_table_of_the_same_name_does_not_swallow_what_somebody_decides(
    world: World, ann: Any
) -> None:
    with pytest.raises(errors.InsufficientPrivilege), ann, ann.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE decision_log (x int)")
    # The duties' login may make one.
    other = connect(
        world.settings, Connections(resolver=lambda _: world.postgres.admin_dsn("control"))
    )
    with other, other.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE decision_log (LIKE public.decision_log INCLUDING ALL)")
        cursor.execute(
            "CREATE TEMP TABLE decision_checkpoint AS SELECT 99::bigint AS entry, 'x'::text AS hash"
        )
        cursor.execute("SELECT append_decision('ann', 'void', 'case 1', 'w', '{}')")
    other.close()
    assert world.control("SELECT entry, previous, who FROM decision_log") == [(1, "", "ann")]


BROKEN = "SELECT entry FROM ({}) AS found (entry, topic, message_id, consumer_group) ORDER BY 1"


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ("SELECT 1", []),
        ("UPDATE decision_log SET why = 'x' WHERE entry = 2", ["2"]),
        ("UPDATE decision_log SET at = at + interval '1 s' WHERE entry = 3", ["3"]),
        ("DELETE FROM decision_log WHERE entry = 2", ["3"]),
        ("DELETE FROM decision_log WHERE entry = 1", ["2"]),
        ("UPDATE decision_log SET entry = 9 WHERE entry = 4", ["9"]),
        (
            "SELECT forget_decisions((SELECT at + interval '1 us' FROM decision_log WHERE entry = 2))",
            [],
        ),
        ("SELECT forget_decisions('infinity')", []),
        (
            "SELECT forget_decisions((SELECT at + interval '1 us' FROM decision_log WHERE entry = 2));"
            " DELETE FROM decision_log WHERE entry = 3",
            ["4"],
        ),
    ],
)
def test_the_audit_finds_every_entry_that_was_changed_or_taken_out(
    world: World, ann: Any, change: str, broken: list[str]
) -> None:
    with ann, ann.cursor() as cursor:
        for place in range(4):
            cursor.execute(
                "SELECT append_decision('ann', 'void', %s, 'w', '{}')", (f"case {place}",)
            )
    world.control(change)
    query = BROKEN.format(load("backstop.audit", "control.sql")["decisions_are_whole"])
    assert [entry for (entry,) in world.control(query)] == broken
    # What was forgotten is gone on with.
    with ann, ann.cursor() as cursor:
        cursor.execute("SELECT append_decision('ann', 'void', 'case 9', 'w', '{}')")
    assert [entry for (entry,) in world.control(query)] == broken


def own_settings(world: World, **policy: Any) -> Settings:
    """What a person brings: everything is sent, at once, and nothing is too much."""
    written = written_settings()
    written["policy"].update({"blast_floor": 100_000, "blast_share": 1.0, "canary": 0, **policy})
    written["topics"]["refunds"]["mode"] = "repair"
    written["groups"]["audit"]["duplicates"] = "declared_safe"
    return from_mapping(written)


def duties_keep(world: World, **policy: Any) -> None:
    written = written_settings()
    written["policy"].update(policy)
    world.settings = from_mapping(written)
    keep_policy(world.conn, world.settings)


def test_whatever_settings_a_person_brings_the_duties_limit_a_list(world: World, ann: Any) -> None:
    duties_keep(world, blast_floor=5, blast_share=0.01, canary=2)
    mine = own_settings(world)
    for place in range(5):
        world.stub(f"m{place}")
        world.stub(f"r{place}", topic="refunds")

    def listed(topic: str, *ids: str) -> None:
        run_duty(
            mine, Connections(), scope=name_of([topic]), listing=Listing(topic, ids, "ann", "lost")
        )

    with pytest.raises(DecisionRefused, match="more than the blast radius"):
        listed("orders", *(f"m{place}" for place in range(5)))
    with pytest.raises(ConfigurationError, match="mode observe"):
        listed("refunds", "r0")
    assert world.control("SELECT 1 FROM resend_request") == []
    listed("orders", "m0", "m1", "m2", "m3")
    assert world.control("SELECT held, count(*) FROM resend_request GROUP BY 1") == [(True, 4)]


def test_whatever_settings_a_person_brings_a_group_that_takes_no_duplicates_is_not_reached(
    world: World, ann: Any
) -> None:
    written = written_settings()
    written["groups"]["shipping"]["duplicates"] = "no"
    keep_policy(world.conn, from_mapping(written))
    world.stub("a", sends=1)
    world.log("a", "shipping")
    run_duty(
        own_settings(world),
        Connections(),
        scope=name_of(["orders"]),
        listing=Listing("orders", ("a",), "ann", "lost"),
    )
    assert world.control("SELECT 1 FROM resend_request") == []


def test_whatever_settings_a_person_brings_the_duties_limit_a_plan_and_a_case(
    world: World, ann: Any
) -> None:
    duties_keep(world, blast_floor=5, blast_share=0.01, canary=2)
    mine = own_settings(world, canary=99_999)
    for place in range(6):
        dead(world, f"m{place}", "poison")
    wanted = Wanted(topic="orders", who="ann", why="mended", verdicts=("DEAD_LETTERED",))
    plan, _ = run_incident(mine, Connections(), wanted, "dry_run", "ann")
    assert (plan.total, plan.too_wide) == (6, True)
    with pytest.raises(DecisionRefused, match="more than the blast radius"):
        run_incident(mine, Connections(), plan.incident_id, "canary", "ann")
    run_incident(mine, Connections(), plan.incident_id, "canary", "ann", approved=plan.digest)
    assert world.control("SELECT held, count(*) FROM resend_request GROUP BY 1") == [(True, 2)]
    world.stub("late")
    world.stub("back", topic="refunds")
    decide(
        ann,
        own_settings(world),
        Connections(),
        found(world, "overdue", "late"),
        "resend",
        "ann",
        "w",
        {},
    )
    assert world.control("SELECT held FROM resend_request WHERE message_id = 'late'") == [(True,)]


def test_a_topic_that_the_duties_send_at_once_waits_for_no_ramp_by_a_person_either(
    world: World, ann: Any
) -> None:
    duties_keep(world, canary=0)
    world.stub("late")
    decided(world, ann, found(world, "overdue", "late"), "resend")
    assert world.control("SELECT held FROM resend_request") == [(False,)]


def test_by_sql_too_a_person_asks_for_what_waits_for_its_step_and_not_in_mode_observe(
    world: World, ann: Any
) -> None:
    duties_keep(world, canary=2)
    insert = """
        INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by, held)
        VALUES ('shop_a', '{}', 'a', 1, 'r', 'person ann', false)"""
    with ann, ann.cursor() as cursor:
        cursor.execute(insert.format("orders"))
        cursor.execute("UPDATE resend_request SET held = false")
    assert world.control("SELECT held FROM resend_request") == [(True,)]
    world.control("UPDATE resend_request SET held = false, state = 'not_needed'")
    with ann, ann.cursor() as cursor:
        cursor.execute("UPDATE resend_request SET state = 'open'")
    assert world.control("SELECT state, held FROM resend_request") == [("open", True)]
    with (
        pytest.raises(errors.InsufficientPrivilege, match="mode observe"),
        ann,
        ann.cursor() as cursor,
    ):
        cursor.execute(insert.format("refunds"))
    claimed = insert.replace("held)", "held, state, claim_token, claim_deadline)").replace(
        "false)", "false, 'claimed', gen_random_uuid(), now())"
    )
    for statement in (
        claimed.format("orders"),
        "INSERT INTO resend_batch (topic, released) VALUES ('orders', 9)",
    ):
        with (
            pytest.raises(errors.InsufficientPrivilege, match="permission denied"),
            ann,
            ann.cursor() as cursor,
        ):
            cursor.execute(statement)


def test_when_it_was_asked_for_stays_with_a_delivery_of_a_plan(world: World, ann: Any) -> None:
    world.control(SEEN)
    for said in ("'2001-01-01'", "NULL"):
        with ann, ann.cursor() as cursor:
            cursor.execute(f"UPDATE incident_delivery SET asked_at = {said}")
        assert world.control(
            "SELECT now() - asked_at < interval '1 hour' FROM incident_delivery"
        ) == [(True,)]


def test_a_topic_at_a_broker_that_a_persons_settings_lack_is_not_decided_with_them(
    world: World, ann: Any
) -> None:
    written = written_settings()
    written["brokers"]["other"] = written["brokers"]["embedded"]
    written["topics"]["orders"]["broker"] = "other"
    keep_policy(world.conn, from_mapping(written))
    world.stub("a")
    case_id = found(world, "unknown", "a")
    with pytest.raises(DecisionRefused, match="broker other"):
        decided(world, ann, case_id, "discard")
    assert world.control("SELECT state FROM case_file") == [("open",)]


@pytest.mark.parametrize(
    "way", ["-c role=backstop_person", "ALTER ROLE eve SET role = 'backstop_person'"]
)
def test_a_login_that_has_to_take_its_role_is_a_person_too(
    world: World, ann: Any, way: str
) -> None:
    password = world.postgres.create_role("eve")
    world.run(
        "control",
        "ALTER ROLE eve NOINHERIT; GRANT backstop_person TO eve; GRANT CONNECT ON DATABASE control TO eve",
    )
    member = "SELECT inherit_option, set_option FROM pg_auth_members WHERE member = 'eve'::regrole"
    assert world.control(member) == [(False, True)]
    options = way if way.startswith("-c") else ""
    if not options:
        world.run("control", way)
    world.stub("a")
    case_id = found(world, "unknown", "a")
    eve = psycopg2.connect(world.postgres.dsn("eve", password, "control"), options=options)
    try:
        assert person(eve) == "eve"
        for statement in (
            f"INSERT INTO case_note (case_id, written_by, note) VALUES ({case_id}, 'olga', 'n')",
            f"UPDATE case_file SET state = 'decided', decision = 'leave', decided_by = 'olga', why = 'w', decided_at = now()"
            f" WHERE case_id = {case_id}",
            "INSERT INTO pause (topic, paused_by, why) VALUES ('orders', 'olga', 'w')",
            f"INSERT INTO delivery_decision (topic, message_id, consumer_group, decision, case_id, decided_by, why)"
            f" VALUES ('orders', 'a', 'billing', 'discard', {case_id}, 'olga', 'w')",
            f"INSERT INTO proposal (case_id, action, who, why) VALUES ({case_id}, 'void', 'olga', 'w')",
            f"INSERT INTO drained_broker (topic, broker, case_id, stated_by, why) VALUES ('orders', 'b', {case_id}, 'olga', 'w')",
            "INSERT INTO run (duty, scope, token, policy_version, code_version)"
            " VALUES ('sweep', '*', gen_random_uuid(), '1', '1')",
        ):
            with (
                pytest.raises(errors.InsufficientPrivilege, match="the login eve"),
                eve,
                eve.cursor() as cursor,
            ):
                cursor.execute(statement)
        with pytest.raises(DecisionRefused, match="cannot decide in the name of olga"):
            decide(eve, own_settings(world), world.connections, case_id, "discard", "olga", "b", {})
        with eve, eve.cursor() as cursor:
            cursor.execute("SELECT append_decision('olga', 'note', 'x', 'w', '{}')")
    finally:
        eve.close()
    assert world.control(LOG) == [("eve", "eve", "note", "x", "w")]


def test_whoever_may_take_the_duties_role_is_the_platforms_login(world: World, ann: Any) -> None:
    password = world.postgres.create_role("twofold")
    world.run(
        "control",
        "GRANT backstop_person TO twofold; GRANT backstop_duty TO twofold WITH INHERIT FALSE, SET TRUE",
    )
    world.run("control", "GRANT CONNECT ON DATABASE control TO twofold")
    connection = psycopg2.connect(world.postgres.dsn("twofold", password, "control"))
    try:
        assert person(connection) is None
    finally:
        connection.close()


def test_neither_a_dry_run_nor_a_persons_settles_which_groups_owe_a_topic(
    world: World, ann: Any
) -> None:
    world.control("DELETE FROM owed_since")
    brought = written_settings()
    brought["topics"]["invoices"] = {"broker": "embedded", "groups": ["billing"], "mode": "repair"}
    mine, seen = from_mapping(brought), "SELECT topic, consumer_group FROM owed_since"
    close_run(ann, open_run(ann, "sweep", "*", mine, dry_run=True), "done", {})
    close_run(ann, open_run(ann, "reconcile", name_of(["invoices"]), mine), "done", {})
    close_run(world.conn, open_run(world.conn, "sweep", "*", mine, dry_run=True), "done", {})
    assert world.control(seen) == []
    with pytest.raises(errors.InsufficientPrivilege), ann, ann.cursor() as cursor:
        cursor.execute("INSERT INTO owed_since (topic, consumer_group) VALUES ('invoices', 'none')")
    brought["topics"]["invoices"]["groups"] = ["billing", "shipping"]
    close_run(world.conn, open_run(world.conn, "sweep", "*", from_mapping(brought)), "done", {})
    assert sorted(world.control(seen + " WHERE topic = 'invoices' AND owed_from IS NULL")) == [
        ("invoices", "billing"),
        ("invoices", "shipping"),
    ]
