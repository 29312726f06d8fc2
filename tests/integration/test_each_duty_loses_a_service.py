"""The duties, and each service taken away while they work: a run ends as what it was, and the next completes.

The services go away after the run was opened and counted, before its first step. Spark is stood in for by a judgement by key.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from backstop import duties
from backstop.audit.run_once import AuditInput
from backstop.brokers.redis_streams import RedisStreams
from backstop.config.connections import Connections
from backstop.config.settings import Settings
from backstop.evidence.judge_by_key import Judge
from backstop.incidents.replay import IncidentInput, Wanted
from backstop.model.errors import ConfigurationError, StoreUnavailable, Unavailable
from backstop.model.records import Key
from backstop.reconcile.run_once import ReconcileInput
from backstop.reconcile.run_proof import ProveInput, scope_now
from backstop.reconcile.stage import connect_staging, copy_stubs, copy_verdicts
from backstop.resend.run_once import ResendInput
from backstop.retention.run_once import RetentionInput
from backstop.runs.duty import Duty, Step, Work, walk_duty
from backstop.sql.named import load
from backstop.sweep.run_once import SweepInput
from backstop.triage.run_once import TriageInput
from backstop.verdicts.evaluate import Engine
from backstop.watch.run_once import Watched
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from letters import INSERT, values
from system import System, settings_dict, system

GROUPS = {
    "billing": {
        "store": "billing_db",
        "duplicates": "guard",
        "progress": "acknowledged",
        "leases": {"redis": "leases"},
    },
    "shipping": {"store": "shipping_db", "duplicates": "guard", "progress": "acknowledged"},
}
GONE = {"broker": "redis://127.0.0.1:1/0", "leases": "redis://127.0.0.1:1/1"}
NAMED = {
    "control": "control database",
    "shop_a": "shop_a",
    "billing_db": "billing_db",
    "broker": "embedded",
    "leases": "billing",
}
"""By service: how a person knows it."""
MISSES: dict[str, set[str]] = {
    "reconcile": {"control", "shop_a", "billing_db", "broker"},
    "resend": {"control", "shop_a", "billing_db", "broker"},
    "sweep": {"control", "billing_db", "leases"},
    "triage": {"control", "shop_a", "billing_db", "broker"},
    "retention": {"control", "shop_a", "billing_db", "broker"},
    "audit": {"control", "shop_a", "billing_db"},
    "prove": {"control", "shop_a", "billing_db", "broker"},
    "watch": {"control", "shop_a", "billing_db", "broker"},
    "deliver_alerts": {"control"},
    "incident": {"control", "shop_a", "billing_db", "broker"},
}
"""By duty: the services that it cannot do without."""


class Addresses(Connections):
    """Resolved each time anew: what is lost is lost at once."""

    def __init__(self, urls: dict[str, str]) -> None:
        super().__init__()
        self.urls = urls

    def url(self, ref: str) -> str:
        if ref not in self.urls:
            raise ConfigurationError(
                f"There is no connection {ref}.", unaffected="", next_step="Name another."
            )
        return self.urls[ref]


@pytest.fixture
def world(servers: tuple[Postgres, Valkey]) -> Iterator[System]:
    """Something to do for each duty."""
    with system(*servers, groups=GROUPS) as made:
        made.urls["leases"] = servers[1].url(1)
        made.sent("lost")
        for group in ("billing", "shipping"):
            made.pass_over(group)
        expired = datetime.now(UTC) - timedelta(minutes=1)
        made.log(
            Key("orders", "leased"),
            "billing",
            "CONSUMING",
            lease_expires_at=expired,
            owner_token=str(uuid.uuid4()),
        )
        yield made


LOST = ("lost", "lost-shop_a", "lost-shop_b")


def judge_by_key(work: Work[Any]) -> None:
    """As Spark stages it."""
    topics = ("orders", "payments")
    with Judge(work.settings, work.connections, work.control) as judge:
        seen = judge.judgement([Key(topic, name) for topic in topics for name in LOST])
    kept = Engine().query(
        load("backstop.reconcile", "staged.sql")["kept"], {"judged": seen.judged_table}
    )
    with (
        closing(connect_staging(work.connections.url("control"))) as staging,
        staging,
        staging.cursor() as cursor,
    ):
        copy_verdicts(cursor, work.run.run_id, 0, kept)
        copy_stubs(cursor, work.run.run_id, 0, seen.outcome_table)
        for subject, why in seen.unreachable.items():
            cursor.execute(
                "INSERT INTO staged_read VALUES (%s, 0, %s, 0, false, %s)",
                (work.run.run_id, subject, why),
            )


def prove_by_key(work: Work[Any]) -> None:
    with Judge(work.settings, work.connections, work.control) as judge:
        seen = judge.judgement([Key("orders", "lost")])
    if seen.unreachable:
        raise StoreUnavailable(
            str(seen.unreachable), unaffected="Nothing was proven.", next_step="Bring it back."
        )


def stand_in(duty: Duty[Any]) -> Duty[Any]:
    instead: dict[tuple[str, str], Any] = {
        ("reconcile", "judge"): judge_by_key,
        ("prove", "prove"): prove_by_key,
        ("prove", "publish"): lambda _: None,
    }
    return replace(
        duty,
        steps=tuple(
            replace(one, do=instead.get((duty.name, one.name), one.do))
            if isinstance(one, Step)
            else one
            for one in duty.steps
        ),
    )


def given(name: str) -> Any:
    now = datetime.now(UTC)
    wanted = Wanted(
        topic="orders",
        who="ann",
        why="a test",
        start=now - timedelta(hours=1),
        end=now,
        verdicts=("LOST", "STALLED"),
    )
    return {
        "reconcile": ReconcileInput(lambda: None),
        "resend": ResendInput(),
        "sweep": SweepInput(),
        "triage": TriageInput(),
        "retention": RetentionInput(now=True),
        "audit": AuditInput(now.date()),
        "prove": ProveInput(lambda: None, None, ()),
        "watch": Watched(),
        "deliver_alerts": None,
        "incident": IncidentInput(wanted, "dry_run", "ann"),
    }[name]


def prepare(name: str, world: System) -> dict[str, Any]:
    """What only this duty finds to do; returns what its runs are walked with."""
    if name in ("resend", "incident"):
        walk("reconcile", world, no_send=name == "incident")
    if name == "retention":
        then = datetime.now(UTC) - timedelta(days=2)
        world.stub("old", status="confirmed", age=timedelta(days=2), updated_at=then)
        # Retention trims the queues of a broker that removes nothing by itself.
        world.settings.brokers["embedded"].options["retention"] = "1h"
    if name == "triage":
        dead = world.sent("dead")
        world.log(dead, "billing", "FAILED", last_error="ValueError: no amount")
        with closing(world.control()) as control, control, control.cursor() as cursor:
            cursor.execute(INSERT, values("dead", "billing", "orders"))
    if name == "prove":
        with closing(world.control()) as control:
            now = datetime.now(UTC)
            start = now - timedelta(hours=1)
            return {"scope": scope_now(control, world.settings, "orders", start, now)}
    return {}


EFFECT: dict[str, tuple[str, str, list[tuple[Any, ...]]]] = {
    "reconcile": ("control", "SELECT message_id, state FROM resend_request", [("lost", "open")]),
    "resend": ("control", "SELECT message_id, state FROM resend_request", [("lost", "sent")]),
    "sweep": ("billing_db", "SELECT message_id, state FROM consumer_log", [("leased", "EXPIRED")]),
    "retention": ("shop_a", "SELECT message_id FROM message_stub", [("lost",)]),
    "triage": (
        "control",
        "SELECT message_id, state, category FROM dead_letter",
        [("dead", "open", "poison")],
    ),
    "incident": ("control", "SELECT DISTINCT message_id FROM incident_delivery", [("lost",)]),
}
"""By duty: what it did when it was done."""


def walk(
    name: str, world: System, *, lose: Callable[[], None] | None = None, **options: Any
) -> Work[Any]:
    duty = stand_in(duties.duty_named(name))
    if lose is not None:
        duty = replace(duty, steps=(Step("lose", lambda _: lose(), when_idle=True), *duty.steps))
    return walk_duty(duty, world.settings, world.connections, given(name), **options)


def runs(world: System) -> list[tuple[Any, ...]]:
    return world.rows("control", "SELECT state, coalesce(error, '') FROM run ORDER BY run_id")


@pytest.mark.parametrize(
    ("name", "service"),
    [(name, service) for name in duties.names() for service in NAMED],
)
def test_the_run_ends_as_what_it_was_and_the_next_one_completes(
    servers: tuple[Postgres, Valkey], world: System, name: str, service: str
) -> None:
    options = prepare(name, world)
    before, away = len(runs(world)), dict(world.urls)
    world.connections = Addresses(away)

    def lose() -> None:
        away[service] = GONE.get(service, "postgresql://nobody@127.0.0.1:1/gone")
        if service == "control":
            with (
                closing(psycopg2.connect(servers[0].admin_dsn())) as admin,
                admin.cursor() as cursor,
            ):
                database = world.urls[service].rpartition("/")[2]
                cursor.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
                    (database,),
                )

    if service in MISSES[name]:
        with pytest.raises(Unavailable) as raised:
            walk(name, world, lose=lose, **options)
        assert NAMED[service] in raised.value.what and raised.value.exit_code == 3
        ((state, error),) = runs(world)[before:]
        # Over a database that is away nothing can be said: that run is taken over once it was silent for long enough.
        assert (state, NAMED[service] in error) == (
            ("running", False) if service == "control" else ("incomplete", True)
        )
    else:
        walk(name, world, lose=lose, **options)
        assert runs(world)[before:] == [("done", "")]
    if (
        name == "reconcile" and service != "leases"
    ):  # what is lost for a group is not known without its store
        groups = world.rows("control", "SELECT groups FROM resend_request")
        assert groups in ([], [(["shipping"],)]) and (service == "billing_db" or not groups)

    away[service] = world.urls[service]
    world.rows("control", "UPDATE resend_request SET not_before = clock_timestamp()")
    if (
        name == "reconcile"
    ):  # what could not be judged is looked at again soon; nobody waits for it here
        for shard in ("shop_a", "shop_b"):
            world.rows(
                shard,
                "UPDATE message_stub SET next_check_at = clock_timestamp() WHERE status = 'pending'",
            )
    walk(name, world, dead_after=timedelta(0), **options)
    first = (
        {"control": "abandoned"}.get(service, "incomplete") if service in MISSES[name] else "done"
    )
    assert [state for state, _ in runs(world)[before:]] == [first, "done"]
    if name in EFFECT:
        database, query, rows = EFFECT[name]
        assert world.rows(database, query) == rows
    assert world.rows("control", "SELECT * FROM duty_lease") == []


def without(world: System, *services: str) -> None:
    """Nobody knows the address of these services."""
    world.connections = Connections(
        resolver={name: url for name, url in world.urls.items() if name not in services}.get
    )


def two_brokers(kind: str = "redis_streams", **options: Any) -> Settings:
    """Topic payments has a broker of its own."""
    topics = {"orders": "embedded", "payments": "other"}
    return Settings.model_validate(
        settings_dict(
            groups=GROUPS,
            brokers={
                "other": {"kind": kind, "connection": "other_broker", "options": options},
                **settings_dict()["brokers"],
            },
            topics={
                name: {"broker": broker, "groups": ["billing", "shipping"], "mode": "repair"}
                for name, broker in topics.items()
            },
        )
    )


@pytest.fixture
def pair(servers: tuple[Postgres, Valkey]) -> Iterator[System]:
    """A message of each shard is lost, and each store has a lease that ended and something that is over."""
    with system(*servers, groups=GROUPS) as made:
        made.urls |= {"leases": servers[1].url(1), "other_broker": servers[1].url(2)}
        made.settings = two_brokers()
        for shard in ("shop_a", "shop_b"):
            made.sent(f"lost-{shard}", shard=shard)
            made.stub(
                f"old-{shard}",
                shard=shard,
                status="confirmed",
                age=timedelta(days=2),
                updated_at=datetime.now(UTC) - timedelta(days=2),
            )
        for group in ("billing", "shipping"):
            made.pass_over(group)
            expired, old = (
                datetime.now(UTC) - timedelta(minutes=1),
                datetime.now(UTC) - timedelta(days=3),
            )
            made.log(
                Key("orders", "leased"),
                group,
                "CONSUMING",
                lease_expires_at=expired,
                owner_token=str(uuid.uuid4()),
            )
            made.log(
                Key("orders", "old"), group, first_received_at=old, updated_at=old, consumed_at=old
            )
        yield made


NEEDS = {
    "shop_a": {"reconcile", "retention", "audit"},
    "billing_db": {"reconcile", "sweep", "retention", "audit"},
    "other_broker": {"reconcile"},
}
"""By service: the duties that have something to do with it here."""


@pytest.mark.parametrize("service", NEEDS)
def test_a_connection_that_nobody_knows_stops_only_what_needs_it(
    pair: System, service: str
) -> None:
    pair.stub("lost", "payments", broker="other", shard="shop_b")
    without(pair, service)
    for name in ("reconcile", "sweep", "retention", "audit"):
        with pytest.raises(Unavailable, match=service) if name in NEEDS[service] else nullcontext():
            walk(name, pair)
    assert len(runs(pair)) == 4 and {state for state, _ in runs(pair)} <= {"done", "incomplete"}

    good = [shard for shard in ("shop_a", "shop_b") if shard != service]
    asked = pair.rows(
        "control", "SELECT message_id, groups FROM resend_request WHERE topic = 'orders' ORDER BY 1"
    )
    groups = ["shipping"] if service == "billing_db" else None
    assert [(message_id, to if groups else groups) for message_id, to in asked] == [
        (f"lost-{shard}", groups) for shard in good
    ]
    for shard in good:
        assert pair.rows(shard, "SELECT message_id FROM message_stub WHERE topic = 'orders'") == [
            (f"lost-{shard}",)
        ]
    states = dict(pair.rows("shipping_db", "SELECT message_id, state FROM consumer_log"))
    # Of a message whose stub may be in a shard that cannot be read nothing is purged.
    assert states == {"leased": "EXPIRED"} | ({"old": "CONSUMED"} if service == "shop_a" else {})
    read = pair.rows("control", "SELECT place FROM audit_look WHERE complete")
    assert {f"shard {shard}" for shard in good} | {"store shipping_db", "group shipping"} <= {
        place for (place,) in read
    }


@pytest.mark.parametrize("service", ["shop_a", "shop_b"])
def test_exhausted_stubs_that_cannot_be_read_stop_no_repair_of_the_others(
    pair: System, service: str
) -> None:
    """PostgreSQL refuses a damaged page of the table, whoever reads it; who looks by key reads other pages."""
    for shard in ("shop_a", "shop_b"):
        pair.sent(f"exhausted-{shard}", shard=shard, status="exhausted")
    for group in ("billing", "shipping"):
        pair.pass_over(group)
    pair.rows(
        service,
        """
        -- With statistics of so small a table it would be read whole: those that autovacuum may have made go, and none come.
        ALTER TABLE message_stub SET (autovacuum_enabled = false);
        DELETE FROM pg_statistic WHERE starelid = 'message_stub'::regclass;
        UPDATE pg_class SET relpages = 0, reltuples = -1 WHERE oid = 'message_stub'::regclass OR oid IN
            (SELECT indexrelid FROM pg_index WHERE indrelid = 'message_stub'::regclass);
        ALTER TABLE message_stub RENAME TO whole;
        CREATE FUNCTION damaged(status text) RETURNS boolean LANGUAGE plpgsql COST 1000000 AS $$ BEGIN
            IF status = 'exhausted' THEN RAISE 'invalid page in block 7' USING ERRCODE = 'XX001'; END IF;
            RETURN true;
        END $$;
        CREATE VIEW message_stub AS SELECT * FROM whole WHERE damaged(status);
        """,
    )
    for _ in range(2):
        with pytest.raises(Unavailable, match=f"{service}.*invalid page in block 7"):
            walk("reconcile", pair)
    other = "shop_b" if service == "shop_a" else "shop_a"
    assert (f"lost-{other}",) in pair.rows("control", "SELECT message_id FROM resend_request")
    assert [state for state, _ in runs(pair)] == ["incomplete", "incomplete"]
    assert pair.rows("control", "SELECT DISTINCT message_id FROM case_member") == [
        (f"exhausted-{other}",)
    ]


@pytest.mark.parametrize("how", ["unknown connection", "wrong option"])
def test_requests_for_a_broker_that_cannot_be_opened_hold_back_no_others(
    pair: System, how: str
) -> None:
    key = pair.stub("lost-payment", "payments", broker="other", send_count=0)
    # Those for the other broker are older: they are claimed first.
    pair.rows(
        "control",
        """
        INSERT INTO resend_request (shard, topic, message_id, send_number, reason, requested_by, not_before) VALUES
            ('shop_a', %s, %s, 1, 'unsent', 'reconcile', now() - interval '1 hour'),
            ('shop_a', 'orders', 'lost-shop_a', 2, 'passed_over', 'reconcile', now() - interval '1 minute')
        """,
        *key,
    )
    if how == "unknown connection":
        without(pair, "other_broker")
    else:
        pair.settings = two_brokers(visibility="soon")
    with pytest.raises(Unavailable, match=r"broker other"):
        walk("resend", pair)
    requests = "SELECT message_id, state, claim_token IS NULL FROM resend_request ORDER BY topic"
    assert pair.rows("control", requests) == [
        ("lost-shop_a", "sent", True),
        ("lost-payment", "open", True),
    ]
    assert pair.rows(
        "shop_a", "SELECT send_count FROM message_stub WHERE message_id = 'lost-payment'"
    ) == [(0,)]
    assert [state for state, _ in runs(pair)] == ["incomplete"]


ADAPTER = """
from backstop.brokers.redis_streams import RedisStreams

class Incomplete:
    def __init__(self, url, **options):
        self._inner = RedisStreams(url)

    def __getattr__(self, name):
        if name == "servers":
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._inner.close()

class Mute(RedisStreams):
    def __init__(self, url, **options):
        super().__init__(url)

    @property
    def capabilities(self):
        raise TimeoutError("it asks its cluster what it can do")
"""


@pytest.mark.parametrize("kind", ["incomplete", "mute"])
def test_an_installed_adapter_stops_only_the_topics_of_its_broker(
    pair: System, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other_adapter.py").write_text(ADAPTER)
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[backstop.brokers]\n{kind} = other_adapter:{kind.title()}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "other_adapter", raising=False)
    pair.settings = two_brokers(kind)
    with RedisStreams(pair.urls["other_broker"]) as broker:
        broker.create_topic("payments", 2)
        for group in ("billing", "shipping"):
            broker.create_group(group, "payments", at="start")
    pair.stub("lost", "payments", broker="other", send_count=0)
    with pytest.raises(
        Unavailable,
        match=r"has no servers" if kind == "incomplete" else r"Broker other failed: TimeoutError",
    ):
        walk("reconcile", pair)
    assert pair.rows("control", "SELECT message_id FROM resend_request ORDER BY 1") == [
        ("lost-shop_a",),
        ("lost-shop_b",),
    ]
    walk("resend", pair)
    with (
        pytest.raises(Unavailable, match="has no servers")
        if kind == "incomplete"
        else nullcontext()
    ):
        walk("triage", pair)
    assert pair.rows("control", "SELECT DISTINCT state FROM resend_request") == [("sent",)]
    assert "failed" not in {state for state, _ in runs(pair)}
