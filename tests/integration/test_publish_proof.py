"""A proof is published once its data check has passed: signed, and shown to people. The proof itself is a stand-in without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from backstop.checks.run import run_suites
from backstop.model.errors import AuditFailed, ConfigurationError, RunLost, StoreUnavailable
from backstop.reconcile import run_proof
from backstop.reconcile.export_proof import write_export
from backstop.reconcile.run_proof import PROVE, ProveInput, publish_proof, scope_now
from backstop.reconcile.sign_proof import MANIFEST, SIGNATURE, UNCHECKED, verify, write_manifest
from backstop.reports.runs import proof_of
from backstop.runs.duty import RunCheck, Step, Work, walk_duty
from backstop.runs.run import Run, close_run, open_run
from backstop.sql.named import load
from backstop_lab.servers.postgres import Postgres
from backstop_lab.servers.valkey import Valkey
from system import System, system

SAVE = load("backstop.reconcile", "queries.sql")["save_proof"]
OWN = """
expectations:
  - name: always_lost
    description: this team believes that something is always lost
    rows: proofs
    type: expect_column_values_to_be_in_set
    kwargs: {column: answer, value_set: [lost]}
"""


@pytest.fixture
def world(servers: tuple[Postgres, Valkey], tmp_path: Path) -> Iterator[System]:
    """Its settings name a key, as `public` beside it verifies."""
    key = Ed25519PrivateKey.generate()
    private = tmp_path / "private.pem"
    private.touch(mode=0o600)
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "public.pem").write_bytes(public)
    with system(*servers) as made:
        signs = SimpleNamespace(signing_key=str(private))
        made.settings = made.settings.model_copy(update={"prove": signs})
        yield made


def prove_nothing(work: Work[ProveInput]) -> None:
    """As Spark does for a window without a stub."""
    folder, run = work.input.folder, work.run
    assert folder is not None
    folder.mkdir()
    files, digest = write_export([], folder, ("jsonl",))
    manifest = {"deliveries": 0, "counts": {}, "digest": str(digest), "answer": "nothing_lost"}
    write_manifest(folder, manifest, files, signed=True)
    now = datetime.now(UTC)
    with work.control, work.control.cursor() as cursor:
        cursor.execute(
            SAVE,
            {
                "run_id": run.run_id,
                "topic": "orders",
                "start": now - timedelta(hours=1),
                "end": now,
                "answer": "nothing_lost",
                "sentence": "Nothing was lost.",
                "stubs": "{}",
                "owed_stubs": 0,
                "broken": 0,
                "deliveries": 0,
                "missed": "{}",
                "digest": str(digest),
            },
        )


STAND_IN = replace(PROVE, steps=(Step("prove", prove_nothing), *PROVE.steps[1:]))


def walk(world: System, folder: Path, check: RunCheck | None) -> Work[Any]:
    now = datetime.now(UTC)
    with closing(world.control()) as control:
        scope = scope_now(control, world.settings, "orders", now - timedelta(hours=1), now)
    given = ProveInput(None, folder)
    return walk_duty(STAND_IN, world.settings, world.connections, given, scope=scope, check=check)


def checked(world: System, docs: Path, own: Path | None = None) -> RunCheck:
    def check(run: Run, suites: Sequence[str]) -> None:
        run_suites(suites, world.urls["control"], run.run_id, None, docs, own=own)

    return check


def is_published(world: System, folder: Path) -> bool:
    """To whom it has the folder, and to people; both or neither."""
    ((run_id, shown),) = world.rows("control", "SELECT run_id, published FROM proof")
    with closing(world.control()) as control:
        assert (proof_of(control, run_id) is not None) == shown
    if not shown:
        with pytest.raises(ConfigurationError, match="holds no proof"):
            verify(folder)
        assert not (folder / MANIFEST).exists()
        return False
    assert verify(folder, (folder.parent / "public.pem").read_bytes()) == []
    return True


def test_a_proof_whose_check_holds_is_signed_and_shown(world: System, tmp_path: Path) -> None:
    walk(world, tmp_path / "proof", checked(world, tmp_path / "docs"))
    assert is_published(world, tmp_path / "proof")
    assert world.rows("control", "SELECT state FROM run") == [("done",)]


def away(run: Run, suites: Sequence[str]) -> None:
    raise StoreUnavailable("No check could be run.", unaffected="", next_step="")


@pytest.mark.parametrize("check", ["fails", "cannot be run", "is left out"])
def test_a_proof_whose_check_does_not_hold_is_neither_signed_nor_shown(
    world: System, tmp_path: Path, check: str
) -> None:
    folder = tmp_path / "proof"
    (tmp_path / "proof.yaml").write_text(OWN)
    checks = {
        "fails": (checked(world, tmp_path / "docs", tmp_path), AuditFailed, "always_lost"),
        "cannot be run": (away, StoreUnavailable, "No check could be run"),
        "is left out": (None, AuditFailed, "has not passed"),
    }
    what, error, says = checks[check]
    with pytest.raises(error, match=says):
        walk(world, folder, what)
    assert not is_published(world, folder)
    assert {path.name for path in folder.iterdir()} == {"deliveries.jsonl", UNCHECKED}


@pytest.mark.parametrize("dies", ["before it signs", "before it is named", "before it is shown"])
def test_a_publication_that_dies_is_done_again_and_shows_nothing_that_is_not_checked(
    world: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    folder = tmp_path / "proof"
    publish = run_proof.publish

    def killed(*given: Any) -> None:
        if dies == "before it is shown":
            publish(*given)
        raise KeyboardInterrupt

    with closing(world.control()) as control:
        run = open_run(control, "prove", "orders", world.settings)
        work: Work[Any] = Work(
            PROVE, world.settings, world.connections, control, run, ProveInput(None, folder)
        )
        prove_nothing(work)
        with pytest.raises(AuditFailed, match="has not passed"):
            publish_proof(work)
        assert not is_published(world, folder)
        run_suites(("proof",), world.urls["control"], run.run_id, None, tmp_path / "docs")
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            if dies == "before it is named":
                patched.setattr(Path, "rename", killed)
            else:
                patched.setattr(run_proof, "publish", killed)
            publish_proof(work)
        if dies == "before it is shown":
            assert world.rows("control", "SELECT published FROM proof") == [(False,)]
            assert (folder / MANIFEST).exists(), "its check has passed"
        else:
            assert not is_published(world, folder)
        for _ in range(2):
            publish_proof(work)
            assert is_published(world, folder)
        assert {path.name for path in folder.iterdir()} == {
            "deliveries.jsonl",
            MANIFEST,
            SIGNATURE,
        }
        close_run(control, run, "done", {})
        with pytest.raises(RunLost):
            publish_proof(work)
