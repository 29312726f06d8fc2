"""A proof that cannot be signed is not made, one that is not published is none, and a folder that holds none says so."""

from __future__ import annotations

import json
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

from backstop.cli.app import run_app
from backstop.model.errors import ConfigurationError
from backstop.reconcile.prove import prove
from backstop.reconcile.sign_proof import (
    MANIFEST,
    SIGNATURE,
    UNCHECKED,
    publish,
    read_signed,
    verify,
    write_manifest,
)

EMPTY: dict[str, Any] = {"counts": {}, "deliveries": 0, "digest": "0" * 64, "files": {}}


DIGEST = "0" * 64


def key_pair() -> tuple[bytes, bytes]:
    key = Ed25519PrivateKey.generate()
    return (
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    )


def holds_no_proof(folder: Path) -> bool:
    with pytest.raises(ConfigurationError, match="holds no proof") as refused:
        verify(folder)
    assert read_signed(folder, DIGEST) is None
    return "whose data check has not passed" in refused.value.next_step


@pytest.fixture
def export(tmp_path: Path) -> Path:
    (tmp_path / "deliveries.jsonl").write_text("")
    write_manifest(
        tmp_path, {**EMPTY, "sentence": "Is it “é”?"}, [tmp_path / "deliveries.jsonl"], signed=True
    )
    return tmp_path


def test_an_export_is_no_proof_and_is_not_signed_until_it_is_published(export: Path) -> None:
    private, public = key_pair()
    assert holds_no_proof(export) and not (export / SIGNATURE).exists()
    publish(export, DIGEST, private)
    assert verify(export, public) == []
    assert not (export / UNCHECKED).exists()
    manifest, signature = read_signed(export, DIGEST) or ("", "")
    assert manifest.encode() == (export / MANIFEST).read_bytes()
    assert signature == (export / SIGNATURE).read_text()
    written = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in export.iterdir()}
    publish(export, DIGEST, private)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in written} == written
    assert set(export.iterdir()) == set(written)


@pytest.mark.parametrize("dies", ["before it signs", "while it signs", "before it names it"])
def test_a_publication_that_dies_leaves_no_proof_and_the_next_one_completes_it(
    export: Path, monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    private, public = key_pair()
    write_text = Path.write_text

    def cut(path: Path, text: str, **given: Any) -> int:
        if dies == "while it signs":
            write_text(path, text[:9], **given)
        raise KeyboardInterrupt

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        if dies == "before it names it":
            patched.setattr(Path, "rename", killed)
        else:
            patched.setattr(Path, "write_text", cut)
        publish(export, DIGEST, private)
    assert (export / SIGNATURE).exists() == (dies != "before it signs")
    assert holds_no_proof(export)
    publish(export, DIGEST, private)
    assert verify(export, public) == []


def test_only_the_export_that_was_checked_is_published(export: Path, tmp_path: Path) -> None:
    """A worker that does not share the folder, and another try's export."""
    (tmp_path / "elsewhere").mkdir()
    for folder, digest in ((tmp_path / "elsewhere", DIGEST), (export, "1" * 64)):
        with pytest.raises(ConfigurationError, match="does not hold the export") as refused:
            publish(folder, digest, None)
        assert "BACKSTOP_PROOFS" in refused.value.next_step
    assert holds_no_proof(export)


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
