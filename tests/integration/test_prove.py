"""A proof of a window: what it says of every message, what makes it say less, and what an auditor can check afterwards."""

from __future__ import annotations

import json
import stat
import subprocess
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import system as small
from backstop.checks.run import run_suites
from backstop.config.settings import Settings
from backstop.model.errors import AuditFailed, ConfigurationError, Unavailable
from backstop.reconcile.answer_proof import Answer
from backstop.reconcile.export_proof import read_export
from backstop.reconcile.prove import Proof
from backstop.reconcile.run_proof import run_proof
from backstop.reconcile.sign_proof import verify
from backstop.runs.run import Run
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from system import System

HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Postgres, Valkey]]:
    folder = tmp_path_factory.mktemp("prove")
    with (
        Postgres(folder / "pg") as postgres,
        Valkey(folder / "valkey", appendfsync="everysec") as valkey,
    ):
        small.build_template(postgres)
        yield postgres, valkey


@pytest.fixture
def system(servers: tuple[Postgres, Valkey]) -> Iterator[System]:
    with small.system(*servers) as one:
        yield one


@pytest.fixture
def prove(system: System, spark: Any, tmp_path: Path) -> Any:
    def proving(
        *,
        folder: Path | None = None,
        settings: Any = None,
        start: datetime | None = None,
        own: Path | None = None,
    ) -> Proof:
        now = datetime.now(UTC)

        def audit(run: Run, suites: Sequence[str]) -> None:
            run_suites(suites, system.urls["control"], run.run_id, None, tmp_path / "docs", own=own)

        return run_proof(
            settings or system.settings,
            system.connections,
            lambda: spark,
            audit,
            "orders",
            start or now - HOUR,
            now,
            folder=folder,
            formats=("jsonl", "parquet"),
        )

    return proving


OWN = """
expectations:
  - name: always_lost
    description: this team believes that something is always lost
    rows: proofs
    type: expect_column_values_to_be_in_set
    kwargs: {column: answer, value_set: [lost]}
"""


def confirmed(system: System, message_id: str, **columns: Any) -> Any:
    return system.sent(message_id, status="confirmed", **columns)


def consumed_by_all(system: System, key: Any) -> None:
    for group in ("billing", "shipping"):
        system.log(key, group)


def pass_all(system: System) -> None:
    for group in ("billing", "shipping"):
        system.pass_over(group)


def standings(proof: Proof) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in proof.counts:
        found[one.standing] = found.get(one.standing, 0) + one.deliveries
    return found


def test_nothing_was_lost_when_every_group_logged_every_message(
    system: System, prove: Any, tmp_path: Path
) -> None:
    for number in range(5):
        consumed_by_all(system, confirmed(system, f"done-{number}"))
    consumed_by_all(system, system.sent("not promoted yet"))
    system.stub("withdrawn", status="voided")
    pass_all(system)
    proof = prove(folder=tmp_path / "proof")
    assert (proof.answer, standings(proof)) == (Answer.NOTHING_LOST, {"done": 12, "withdrawn": 2})
    assert proof.stubs == {"confirmed": 5, "pending": 1, "voided": 1}
    assert proof.sentence.startswith("Nothing was lost of orders between ")
    rows = {
        kind: sorted(
            json.dumps(row) for row in read_export(tmp_path / "proof" / f"deliveries.{kind}")
        )
        for kind in ("jsonl", "parquet")
    }
    assert rows["jsonl"] == rows["parquet"] and len(rows["jsonl"]) == 14
    assert verify(tmp_path / "proof") == []
    stored = system.rows(
        "control",
        "SELECT answer, deliveries, sentence, published FROM proof WHERE run_id = %s",
        proof.run_id,
    )
    assert stored == [("nothing_lost", 14, proof.sentence, True)]
    assert system.rows(
        "control", "SELECT passed FROM data_check WHERE run_id = %s", proof.run_id
    ) == [(True,)]


def test_an_answer_whose_check_fails_is_not_published(
    system: System, prove: Any, tmp_path: Path
) -> None:
    consumed_by_all(system, confirmed(system, "done"))
    pass_all(system)
    (tmp_path / "proof.yaml").write_text(OWN)
    with pytest.raises(AuditFailed, match="always_lost") as failed:
        prove(folder=tmp_path / "proof", own=tmp_path)
    assert "was not published" in failed.value.unaffected
    with pytest.raises(ConfigurationError, match="holds no proof"):
        verify(tmp_path / "proof")
    assert system.rows("control", "SELECT answer, published FROM proof") == [
        ("nothing_lost", False)
    ]


def test_exactly_what_was_lost_is_named(system: System, prove: Any) -> None:
    consumed_by_all(system, confirmed(system, "done"))
    lost = system.sent("lost by shipping")
    system.log(lost, "billing")
    system.stub("never sent", send_count=0)
    pass_all(system)
    proof = prove()
    assert proof.answer is Answer.LOST
    assert {one[:3] for one in proof.lost} == {
        ("lost by shipping", "shipping", "LOST"),
        ("never sent", "billing", "UNSENT"),
        ("never sent", "shipping", "UNSENT"),
    }
    assert standings(proof) == {"done": 3, "lost": 3}
    # Nothing was promoted, asked for or sent.
    assert system.rows("control", "SELECT count(*) FROM resend_request") == [(0,)]
    assert system.rows("shop_a", "SELECT count(*) FROM message_stub WHERE status = 'pending'") == [
        (2,)
    ]


def test_what_is_still_under_way_is_not_finished_and_not_lost(system: System, prove: Any) -> None:
    consumed_by_all(system, confirmed(system, "done"))
    system.sent("in the broker")
    proof = prove()
    assert (proof.answer, standings(proof)) == (Answer.UNFINISHED, {"done": 2, "unfinished": 2})


def test_a_confirmed_stub_without_its_log_proves_nothing(system: System, prove: Any) -> None:
    consumed_by_all(system, confirmed(system, "done"))
    system.log(confirmed(system, "half"), "billing")
    pass_all(system)
    proof = prove()
    assert (proof.answer, standings(proof)) == (Answer.INCOMPLETE, {"done": 3, "not_proven": 1})
    assert "their logs are not there though nothing was purged" in proof.sentence


def test_a_log_that_breaks_its_contract_proves_nothing_though_it_says_consumed(
    system: System, prove: Any
) -> None:
    key = confirmed(system, "m")
    consumed_by_all(system, key)
    pass_all(system)
    # As another program's table may be.
    system.rows("billing_db", "ALTER TABLE consumer_log ALTER attempts DROP NOT NULL")
    system.rows("billing_db", "UPDATE consumer_log SET attempts = NULL")
    proof = prove()
    assert (proof.answer, standings(proof)) == (Answer.INCOMPLETE, {"done": 1, "unknown": 1})
    assert "1 deliveries could not be judged" in proof.sentence


def test_logs_purged_since_are_said_and_do_not_spoil_the_answer(system: System, prove: Any) -> None:
    system.log(confirmed(system, "old"), "billing")
    system.rows(
        "shipping_db",
        "INSERT INTO consumer_log_floor (consumer_group, log_floor) VALUES ('shipping', now())",
    )
    pass_all(system)
    proof = prove()
    assert (proof.answer, standings(proof)) == (
        Answer.NOTHING_LOST,
        {"done": 1, "confirmed_earlier": 1},
    )
    assert "their logs purged since" in proof.sentence


INBOX = {
    "kind": "mapped",
    "connection": "shipping_db",
    "mapping": {
        "tables": ["inbox"],
        "message_id": "id",
        "topic": "topic",
        "received_at": "received",
        "times": "instant",
    },
}


@pytest.mark.parametrize("why", ["nothing found by this mapping yet", "a row without an id"])
def test_a_mapped_inbox_that_proves_nothing_by_absence_proves_no_earlier_work(
    system: System, prove: Any, why: str
) -> None:
    """Nothing was purged there that anybody knows of: a confirmed stub without its row is not proven by its status."""
    system.rows("shipping_db", "CREATE TABLE inbox (id text, topic text, received timestamptz)")
    content = small.settings_dict()
    content["consumers"]["shipping_db"] = INBOX
    content["topics"]["orders"]["mode"] = content["topics"]["payments"]["mode"] = "observe"
    settings = Settings.model_validate(content)
    keys = [confirmed(system, "done"), confirmed(system, "row is gone")]
    for key in keys:
        system.log(key, "billing")
    system.rows("shipping_db", "INSERT INTO inbox VALUES ('done', 'orders', now())")
    if why == "a row without an id":
        mapping = settings.consumers["shipping_db"].mapping
        assert mapping is not None
        system.rows(
            "control",
            "INSERT INTO mapped_log_proof (store, mapping, consumer_group, topic) VALUES ('shipping_db', %s, 'shipping', 'orders')",
            mapping.fingerprint,
        )
        proof = prove(settings=settings)
        assert (proof.answer, standings(proof)) == (
            Answer.INCOMPLETE,
            {"done": 3, "not_proven": 1},
        )
        system.rows("shipping_db", "INSERT INTO inbox VALUES (NULL, 'orders', now())")
    pass_all(system)
    proof = prove(settings=settings)
    assert (proof.answer, standings(proof)) == (Answer.INCOMPLETE, {"done": 3, "unknown": 1})
    assert "1 deliveries could not be judged" in proof.sentence


def test_of_a_window_whose_closed_stubs_may_be_purged_only_a_loss_is_told(
    system: System, prove: Any
) -> None:
    kept = system.settings.policy_for("orders").stub_retention
    consumed_by_all(system, confirmed(system, "done"))
    pass_all(system)
    proof = prove(start=datetime.now(UTC) - kept - HOUR)
    assert proof.answer is Answer.INCOMPLETE and "some may be purged" in proof.sentence
    assert prove(start=datetime.now(UTC) - kept + HOUR).answer is Answer.NOTHING_LOST
    system.stub("never sent", send_count=0)
    assert prove(start=datetime.now(UTC) - kept - HOUR).answer is Answer.LOST


def test_what_retention_may_purge_while_a_proof_is_made_is_not_called_read(
    system: System, prove: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Airflow a proof waits for a worker and for Spark's executors after its run was opened."""
    kept = system.settings.policy_for("orders").stub_retention
    consumed_by_all(system, confirmed(system, "done"))
    pass_all(system)
    later = datetime.now(UTC) + 2 * HOUR
    monkeypatch.setattr("backstop.reconcile.prove.control_now", lambda _: later)
    proof = prove(start=datetime.now(UTC) - kept + HOUR)
    assert proof.answer is Answer.INCOMPLETE and "some may be purged" in proof.sentence


@pytest.mark.parametrize("away", ["billing_db", "shop_b"])
def test_what_cannot_be_read_makes_the_proof_incomplete(
    system: System, prove: Any, away: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumed_by_all(system, confirmed(system, "done"))
    pass_all(system)
    reference = {"billing_db": "billing_db", "shop_b": "shop_b"}[away]
    connection = (
        system.settings.consumers.get(reference) or system.settings.producers[reference]
    ).connection
    system.connections._urls[connection] = "postgresql://u:p@127.0.0.1:1/x"
    proof = prove()
    assert proof.answer is Answer.INCOMPLETE
    assert away in proof.sentence and "Nothing was lost" not in proof.sentence


THEIRS = {
    "kind": "mapped",
    "connection": "shop_a",
    "mapping": {
        "tables": ["outbox"],
        "topics": ["payments"],
        "message_id": "id",
        "state": "state",
        "sent": ["sent"],
        "unsent": ["new"],
        "created_at": "created",
        "times": "instant",
    },
}


def test_a_mapped_table_of_other_topics_takes_no_part_in_a_proof(
    system: System, prove: Any
) -> None:
    system.rows("shop_a", "CREATE TABLE outbox (id text, state text, created timestamptz)")
    content = small.settings_dict()
    content["producers"]["theirs"] = THEIRS
    content["topics"]["payments"]["mode"] = "observe"
    consumed_by_all(system, confirmed(system, "done"))
    pass_all(system)
    proof = prove(settings=Settings.model_validate(content))
    assert proof.answer is Answer.NOTHING_LOST, proof.sentence


def test_a_broken_stub_makes_the_proof_incomplete(system: System, prove: Any) -> None:
    consumed_by_all(system, confirmed(system, "done"))
    twin = system.stub("twin")
    system.stub("twin", shard="shop_b")
    consumed_by_all(system, twin)
    pass_all(system)
    proof = prove()
    assert proof.answer is Answer.INCOMPLETE
    assert "2 stubs break their contract" in proof.sentence


def test_a_stub_that_no_group_takes_makes_the_proof_incomplete(system: System, prove: Any) -> None:
    written = small.settings_dict()
    written["topics"]["orders"]["groups"] = {"billing": {"tags": ["eu"]}}
    system.log(confirmed(system, "eu", tag="eu"), "billing")
    system.log(confirmed(system, "us", tag="us"), "billing")
    pass_all(system)
    proof = prove(settings=Settings.model_validate(written))
    assert (proof.answer, standings(proof)) == (Answer.INCOMPLETE, {"done": 1})
    assert "1 stubs are owed by no group" in proof.sentence


def test_only_the_window_and_the_topic_are_read(system: System, prove: Any) -> None:
    consumed_by_all(system, confirmed(system, "inside"))
    system.stub("long ago", send_count=0, age=timedelta(hours=3))
    system.stub("elsewhere", topic="payments", send_count=0)
    pass_all(system)
    proof = prove()
    assert (proof.answer, proof.stubs) == (Answer.NOTHING_LOST, {"confirmed": 1})


def test_a_window_that_producers_may_still_fill_is_cut(system: System, prove: Any) -> None:
    proof = prove()
    assert "nothing promised" in proof.sentence
    policy = system.settings.policy_for("orders")
    assert (
        proof.window.end <= datetime.now(UTC) - policy.longest_transaction - policy.max_clock_skew
    )
    with pytest.raises(ConfigurationError, match="may still commit"):
        prove(start=datetime.now(UTC) - timedelta(milliseconds=100))


def test_a_signed_proof_shows_every_change(system: System, prove: Any, tmp_path: Path) -> None:
    consumed_by_all(system, confirmed(system, "done"))
    pass_all(system)
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    subprocess.run(
        ["openssl", "genpkey", "-algorithm", "ed25519", "-out", private],
        check=True,
        capture_output=True,
    )
    subprocess.run(
        ["openssl", "pkey", "-in", private, "-pubout", "-out", public],
        check=True,
        capture_output=True,
    )
    private.chmod(0o600)
    settings = system.settings.model_copy(
        update={"prove": type("P", (), {"signing_key": str(private)})()}
    )
    folder = tmp_path / "proof"
    assert prove(folder=folder, settings=settings).answer is Answer.NOTHING_LOST
    key = public.read_bytes()
    assert verify(folder, key) == []
    originals = {path.name: path.read_bytes() for path in folder.iterdir()}
    changes = {
        "deliveries.jsonl": lambda text: text.replace(b'"done"', b'"lost"', 1),
        "deliveries.parquet": lambda text: text[:-1] + b"x",
        "manifest.json": lambda text: text.replace(b"Nothing was lost", b"Everything fine."),
        "manifest.sig": lambda text: b"00" * 64,
    }
    for name, change in changes.items():
        (folder / name).write_bytes(change(originals[name]))
        assert any(
            name in sentence or "manifest.sig" in sentence for sentence in verify(folder, key)
        ), name
        (folder / name).unlink()
        assert verify(folder, key) if name != "manifest.json" else True, name
        (folder / name).write_bytes(originals[name])
    assert verify(folder, key) == []
    other = tmp_path / "other.pem"
    subprocess.run(
        ["openssl", "genpkey", "-algorithm", "ed25519", "-out", tmp_path / "x.pem"],
        check=True,
        capture_output=True,
    )
    subprocess.run(
        ["openssl", "pkey", "-in", tmp_path / "x.pem", "-pubout", "-out", other],
        check=True,
        capture_output=True,
    )
    assert verify(folder, other.read_bytes()) == [
        "manifest.sig does not fit the manifest and this key."
    ]
    private.chmod(0o644)
    with pytest.raises(ConfigurationError, match="others than its owner"):
        prove(folder=tmp_path / "again", settings=settings)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_proof_is_not_written_over_another_one(
    system: System, prove: Any, tmp_path: Path
) -> None:
    """As in Airflow after the control database was restored: the id of a run comes again, and with it the folder."""
    consumed_by_all(system, confirmed(system, "done"))
    pass_all(system)
    folder = tmp_path / "run-7"
    prove(folder=folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    consumed_by_all(system, confirmed(system, "another"))
    pass_all(system)
    with pytest.raises(ConfigurationError, match="already holds a proof"):
        prove(folder=folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_proofs_run_beside_a_reconcile_and_beside_one_another(system: System, prove: Any) -> None:
    from backstop.runs.run import open_run

    consumed_by_all(system, confirmed(system, "done"))
    pass_all(system)
    control = system.control()
    open_run(control, "reconcile", "*", system.settings)
    open_run(control, "prove", '["orders"]', system.settings)
    assert prove().answer is Answer.NOTHING_LOST
    control.close()


def test_a_control_database_that_is_away_gives_no_answer(system: System, prove: Any) -> None:
    system.connections._urls[system.settings.control] = "postgresql://u:p@127.0.0.1:1/x"
    with pytest.raises(Unavailable):
        prove()
