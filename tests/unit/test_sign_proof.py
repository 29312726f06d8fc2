"""A proof that cannot be signed is not made, and a folder that holds none says so."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backstop.cli.app import run_app
from backstop.model.errors import ConfigurationError
from backstop.reconcile.prove import prove
from backstop.reconcile.sign_proof import verify

EMPTY: dict[str, Any] = {"counts": {}, "deliveries": 0, "digest": "0" * 64, "files": {}}


@pytest.mark.parametrize(
    "broken",
    [
        [],
        {name: value for name, value in EMPTY.items() if name != "counts"},
        {**EMPTY, "counts": {"lost": "none"}},
        {**EMPTY, "deliveries": None},
        {**EMPTY, "files": ["deliveries.jsonl"]},
        {**EMPTY, "digest": 0},
    ],
)
def test_a_manifest_that_was_cut_is_no_proof_and_no_crash(tmp_path: Path, broken: object) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(EMPTY))
    assert verify(tmp_path) == []
    (tmp_path / "manifest.json").write_text(json.dumps(broken))
    with pytest.raises(ConfigurationError, match="is not what `backstop prove` writes"):
        verify(tmp_path)


def test_a_verification_is_a_document_for_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for counted, code in ((0, 0), (1, 1)):
        manifest = {**EMPTY, "counts": {"lost": counted}}
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        assert run_app(["prove", "--verify", str(tmp_path), "--json"]) == code
        said = json.loads(capsys.readouterr().out)
        assert (said["agrees"], len(said["wrong"])) == (code == 0, code)


def test_a_key_that_others_may_read_stops_a_proof_before_anything_is_read(tmp_path: Path) -> None:
    key = tmp_path / "private.pem"
    key.write_text("a key")
    key.chmod(0o644)
    settings: Any = SimpleNamespace(prove=SimpleNamespace(signing_key=str(key)))
    nothing: Any = None
    with pytest.raises(ConfigurationError, match="others than its owner may read it"):
        prove(nothing, settings, nothing, nothing, nothing, folder=tmp_path / "proof")
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize("place", ["private.pem", "private.pem/proof", "full"])
def test_an_export_that_cannot_be_written_is_refused_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    (tmp_path / "private.pem").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "of").write_text("")
    window = ("--from", "2026-11-21T02:00Z", "--to", "2026-11-21T03:00Z")
    assert run_app(["prove", "orders", *window, "--export", str(tmp_path / place)]) == 2
    error = capsys.readouterr().err
    assert str(tmp_path / place) in error and "Something unexpected" not in error
