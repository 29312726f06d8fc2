"""The runbooks of docs/runbooks, followed to the letter on a real system that really went back in time.

The commands are taken out of the pages. A database "goes back" by being replaced with a copy taken before the traffic of the
lost time.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import system as small
from backstop.cli.app import run_app
from backstop.model.records import Key
from backstop.schema.migrate import migrate
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from system import System

pytestmark = pytest.mark.nightly

PAGES = Path(__file__).resolve().parents[2] / "docs" / "runbooks"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Postgres, Valkey]]:
    folder = tmp_path_factory.mktemp("restore")
    with Postgres(folder / "pg") as postgres, Valkey(folder / "valkey") as valkey:
        for name in ("control", "shop_a", "billing_db"):
            postgres.create_database(f"template_{name}")
            migrate(postgres.admin_dsn(f"template_{name}"), small.ROLES[name])
            small.keep_shape(postgres, f"template_{name}", small.ROLES[name])
        yield postgres, valkey


class Incident:
    """One system, its backups, and a hand that follows a page."""

    def __init__(
        self,
        system: System,
        postgres: Postgres,
        spark: Any,
        patch: pytest.MonkeyPatch,
        folder: Path,
    ) -> None:
        self.system, self._postgres, self._spark = system, postgres, spark
        self.said: list[str] = []
        patch.chdir(folder)
        patch.setattr("backstop.spark.session.start_session", lambda *_, **__: spark)
        for reference in system.settings.connection_refs():
            patch.setenv(f"AIRFLOW_CONN_{reference.upper()}", system.connections.url(reference))
        written = folder / "backstop.yaml"
        written.write_text(system.settings.model_dump_json(exclude_unset=True))
        patch.setenv("BACKSTOP_CONFIG", str(written))

    def back_up(self, database: str) -> datetime:
        """A copy of the database as it is; returns an instant before it was taken."""
        since = datetime.now(UTC) - timedelta(seconds=1)
        name = self.system.urls[database].rpartition("/")[2].partition("?")[0]
        # A copy needs the database for itself; a real backup does not.
        self._admin(
            f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = '{name}'"
        )
        self._admin(f"DROP DATABASE IF EXISTS {name}_backup")  # of a test before
        self._admin(f"CREATE DATABASE {name}_backup TEMPLATE {name}")
        return since

    def go_back(self, database: str) -> None:
        """The database is what it was when it was backed up; every connection to it is cut."""
        name = self.system.urls[database].rpartition("/")[2].partition("?")[0]
        self._admin(f"DROP DATABASE {name} WITH (FORCE)")
        self._admin(f"CREATE DATABASE {name} TEMPLATE {name}_backup")

    def _admin(self, statement: str) -> None:
        import psycopg2

        connection = psycopg2.connect(self._postgres.admin_dsn())
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement)
        connection.close()

    def follow(self, page: str, *, accept: set[int] | None = None, **words: str) -> None:
        """Every command of the page, in its order; `words` stand for its $NAMES."""
        text = (PAGES / page).read_text(encoding="utf-8")
        commands = [
            line
            for block in re.findall(r"```\n(.*?)```", text, re.DOTALL)
            for line in block.splitlines()
            if line
        ]
        assert commands, page
        for command in commands:
            for name, value in words.items():
                command = command.replace(f"${name}", value)
            assert "$" not in command, command
            self.run(*shlex.split(command)[1:], codes=accept or {0})

    def run(self, *arguments: str, codes: set[int] | None = None) -> None:
        """One command of ours, as a person types it."""
        code = run_app(list(arguments))
        assert code in (codes or {0}), (arguments, code)

    def settle_time(self) -> None:
        """Minutes pass: what is under way has ended, what waits is due."""
        for shard in ("shop_a", "shop_b"):
            self.system.rows(
                shard,
                """
                UPDATE message_stub SET next_check_at = least(next_check_at, now() - interval '1 second'),
                    attempted_at = attempted_at - interval '1 minute', attempt_deadline = attempt_deadline - interval '1 minute',
                    first_seen_at = first_seen_at - interval '1 minute', created_at = created_at - interval '1 minute'
                WHERE status = 'pending'""",
            )
            self.system.rows(
                shard, "UPDATE send_attempt SET started_at = started_at - interval '1 minute'"
            )
        self.system.rows(
            "control", "UPDATE resend_request SET not_before = now() WHERE state = 'open'"
        )

    def copies(self, key: Key) -> int:
        """How often a message went out, by what the broker stores."""
        import redis

        server, count = redis.Redis.from_url(self.system.urls["broker"]), 0
        for name in server.scan_iter("backstop:*:queue:*"):
            if server.type(name) == b"stream":
                count += sum(key.message_id in str(fields) for _, fields in server.xrange(name))
        return count


@pytest.fixture
def incident(
    servers: tuple[Postgres, Valkey], spark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Incident]:
    postgres, valkey = servers
    with small.system(postgres, valkey) as system:
        yield Incident(system, postgres, spark, monkeypatch, tmp_path)


def status(system: System, key: Key) -> str:
    return str(
        system.rows(
            "shop_a", "SELECT status FROM message_stub WHERE topic = %s AND message_id = %s", *key
        )[0][0]
    )


def sends(system: System, key: Key) -> int:
    return int(
        system.rows(
            "shop_a",
            "SELECT send_count FROM message_stub WHERE topic = %s AND message_id = %s",
            *key,
        )[0][0]
    )


def lose(system: System, message_id: str) -> Key:
    """A message that both groups went over without a log."""
    key = system.sent(message_id)
    for group in ("billing", "shipping"):
        system.pass_over(group)
    return key


def test_a_restored_producer_hands_out_no_number_twice(incident: Incident) -> None:
    system = incident.system
    lost, withdrawn = lose(system, "lost"), lose(system, "withdrawn")
    since = incident.back_up("shop_a")
    incident.run("run", "reconcile")
    system.rows(
        "control", "INSERT INTO case_file (kind, topic, summary) VALUES ('overdue', 'orders', 's')"
    )
    system.rows(
        "control",
        "INSERT INTO case_member (case_id, shard, topic, message_id) VALUES (1, 'shop_a', %s, %s)",
        *withdrawn,
    )
    incident.run("cases", "decide", "1", "void", "--by", "ann", "--why", "w")
    assert status(system, withdrawn) == "voided"
    incident.run("run", "resend")
    assert (sends(system, lost), incident.copies(lost)) == (2, 2)
    incident.go_back("shop_a")
    assert sends(system, lost) == 1, "the number is forgotten, its copy is out"
    incident.follow("restore-producer.md", SINCE=since.isoformat())
    assert (sends(system, lost), status(system, withdrawn)) == (2, "voided")
    # The copy of the lost time is consumed: nothing more is sent.
    incident.settle_time()
    for group in ("billing", "shipping"):
        assert {message.message_id for message in system.consume(group)} == {"lost"}
    incident.run("run", "reconcile")
    incident.run("run", "resend")
    assert (status(system, lost), incident.copies(lost), incident.copies(withdrawn)) == (
        "confirmed",
        2,
        1,
    )


def test_what_a_restored_producer_forgot_is_sent_again_when_it_was_lost(incident: Incident) -> None:
    system = incident.system
    lost = lose(system, "lost twice")
    since = incident.back_up("shop_a")
    incident.run("run", "reconcile")
    incident.run("run", "resend")
    for group in ("billing", "shipping"):
        system.pass_over(group)
    incident.go_back("shop_a")
    incident.follow("restore-producer.md", SINCE=since.isoformat())
    incident.settle_time()
    incident.run("run", "reconcile")
    incident.run("run", "resend")
    assert (sends(system, lost), incident.copies(lost)) == (3, 3)
    numbers = system.rows("shop_a", "SELECT send_number, outcome FROM send_attempt ORDER BY 1")
    assert numbers == [(1, "sent"), (2, "unknown"), (3, "sent")]


def test_without_the_runbook_a_restored_producer_is_found_out_by_the_control_database(
    incident: Incident,
) -> None:
    system = incident.system
    lost = lose(system, "lost")
    incident.back_up("shop_a")
    incident.run("run", "reconcile")
    incident.run("run", "resend")
    incident.go_back("shop_a")
    incident.settle_time()
    incident.run("run", "reconcile")
    incident.run("run", "resend")
    # Number 2 is not asked for again: the request for it is closed, so its copy stays the only one.
    assert incident.copies(lost) == 2


def test_a_restored_consumer_gets_back_what_it_lost_and_nobody_else_gets_it_twice(
    incident: Incident,
) -> None:
    system = incident.system
    kept = system.sent("kept")
    for group in ("billing", "shipping"):
        system.consume(group)
    since = incident.back_up("billing_db")
    gone = system.sent("gone")
    for group in ("billing", "shipping"):
        system.consume(group)
    incident.run("run", "reconcile")
    assert (status(system, kept), status(system, gone)) == ("confirmed", "confirmed")
    incident.go_back("billing_db")
    incident.follow("restore-consumer.md", SINCE=since.isoformat())
    incident.settle_time()
    incident.run("run", "resend")
    assert (status(system, kept), status(system, gone)) == ("confirmed", "pending")
    assert (incident.copies(kept), incident.copies(gone)) == (1, 2)
    (attempt,) = system.rows(
        "shop_a", "SELECT groups FROM send_attempt WHERE message_id = 'gone' AND send_number = 2"
    )
    assert attempt == (["billing"],)
    system.consume("billing")
    incident.settle_time()
    incident.run("run", "reconcile")
    assert status(system, gone) == "confirmed"


def test_a_restored_control_database_sends_nothing_twice(incident: Incident) -> None:
    system = incident.system
    early, late = lose(system, "asked before the backup"), lose(system, "asked after it")
    system.rows(
        "shop_a",
        "UPDATE message_stub SET next_check_at = now() + interval '1 hour' WHERE message_id LIKE '%%after%%'",
    )
    incident.run("run", "reconcile")
    incident.back_up("control")
    system.rows(
        "shop_a", "UPDATE message_stub SET next_check_at = now() WHERE message_id LIKE '%%after%%'"
    )
    incident.run("run", "reconcile")
    incident.run("run", "resend")
    assert [incident.copies(key) for key in (early, late)] == [2, 2]
    incident.go_back("control")
    assert system.rows("control", "SELECT state FROM resend_request") == [("open",)]
    incident.follow("restore-control.md")
    system.rows("control", "UPDATE resend_request SET not_before = now() WHERE state = 'open'")
    incident.run("run", "resend")
    assert [incident.copies(key) for key in (early, late)] == [2, 2]
    incident.settle_time()
    for group in ("billing", "shipping"):
        system.consume(group)
    incident.run("run", "resend")
    incident.run("run", "reconcile")
    assert [status(system, key) for key in (early, late)] == ["confirmed", "confirmed"]
    assert [incident.copies(key) for key in (early, late)] == [2, 2]
    assert "open" not in {
        state for (state,) in system.rows("control", "SELECT state FROM resend_request")
    }


def test_what_was_received_and_not_finished_before_the_control_database_was_restored_is_a_persons(
    incident: Incident,
) -> None:
    """Its dead letter was drained after the backup: the broker has it no more, and nobody else knows of it."""
    system = incident.system
    incident.back_up("control")
    poison = lose(system, "poison")
    system.rows(
        "billing_db",
        """
        INSERT INTO consumer_log (consumer_group, topic, message_id, state, updated_at, owner_token)
        VALUES ('billing', %s, %s, 'FAILED', now() - interval '1 hour', gen_random_uuid())""",
        *poison,
    )
    incident.go_back("control")
    incident.follow("restore-control.md")
    asked = "SELECT groups FROM resend_request ORDER BY send_number"
    assert system.rows("control", asked) == [(["shipping"],)]
    members = (
        "SELECT c.kind, c.state, m.message_id, m.consumer_group"
        " FROM case_file c JOIN case_member m USING (case_id) ORDER BY 1"
    )
    case = ("stalled", "open", "poison", "billing")
    assert system.rows("control", members) == [case]
    # One that is touched after the restore is like any other.
    system.rows(
        "control",
        "UPDATE watermark SET reached = now() - interval '2 hours' WHERE subject = 'control restored'",
    )
    incident.run("run", "reconcile")
    assert system.rows("control", asked) == [(None,)]


def test_a_rebuilt_broker_waits_for_a_person_and_then_loses_nothing(incident: Incident) -> None:
    import redis

    system = incident.system
    done, unread = system.sent("done"), None
    for group in ("billing", "shipping"):
        system.consume(group)
    unread = system.sent("unread")
    incident.run("run", "reconcile")
    redis.Redis.from_url(system.urls["broker"]).flushall()
    for topic in system.settings.topics:
        system.broker.create_topic(topic, 4)
        for group in system.settings.groups_of(topic):
            system.broker.create_group(group, topic, "start")
    incident.settle_time()
    incident.run("run", "reconcile")
    incident.run("run", "resend")
    cases = system.rows(
        "control",
        "SELECT case_id FROM case_file WHERE kind = 'new_epoch' AND state = 'open' ORDER BY 1",
    )
    assert len(cases) == 2 and incident.copies(unread) == 0, (
        "nothing is sent before a person accepts the new life"
    )
    for (case,) in cases:
        incident.settle_time()
        incident.follow("broker-rebuilt.md", CASE=str(case), accept={0, 1})
    incident.settle_time()
    incident.run("run", "reconcile")
    incident.run("run", "resend")
    assert (incident.copies(unread), incident.copies(done), status(system, done)) == (
        1,
        0,
        "confirmed",
    )


@pytest.mark.parametrize("page", ["producer shop_a", "consumer billing_db"])
def test_nothing_is_restored_while_resends_may_go_out(
    incident: Incident, page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["restore", *page.split(), "--since", "2026-11-21T02:00Z"]) == 6
    assert "Resends are not paused" in capsys.readouterr().err


def test_the_page_of_a_consumer_empties_its_leases_alone_and_says_what_is_not_resent() -> None:
    """The leases' Redis may be another database of the broker's server (docker-compose.yaml)."""
    text = (PAGES / "restore-consumer.md").read_text(encoding="utf-8")
    assert "FLUSHDB" in text and "Never `FLUSHALL`" in text and "redis_guards" in text
    assert "flush it" not in text.lower()
    assert "too_old" in text and "declared_safe" in text and "duplicates: no" in text


def test_the_page_of_the_control_database_says_which_alarms_are_of_forgotten_decisions() -> None:
    text = (PAGES / "restore-control.md").read_text(encoding="utf-8")
    assert "withdrawals_are_decisions" in text and "discard_without_decision" in text


def test_every_runbook_says_what_cannot_be_known_and_is_followed_here() -> None:
    followed = set(
        re.findall(r'follow\("([a-z-]+\.md)"', Path(__file__).read_text(encoding="utf-8"))
    )
    assert followed == {path.name for path in PAGES.glob("*.md")}
    assert all(
        "## What Backstop cannot know" in path.read_text(encoding="utf-8")
        for path in PAGES.glob("*.md")
    )
