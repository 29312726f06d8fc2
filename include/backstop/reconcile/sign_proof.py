"""Signs a proof and verifies one: a manifest of what was asked and answered, with the digests of its files.

Ed25519, because whoever checks a proof must not be able to make one: the auditor has the public key alone. Without a key the
manifest still shows a changed byte, but not who wrote it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backstop.model.errors import ConfigurationError
from backstop.model.read_json import read_json
from backstop.reconcile.export_proof import Digest, read_export

MANIFEST, SIGNATURE = "manifest.json", "manifest.sig"
UNCHECKED = "manifest.unchecked.json"
"""What the manifest is called until the proof's data check has passed: a folder without a manifest holds no proof."""


def write_manifest(
    folder: Path, proof: Mapping[str, Any], files: list[Path], *, signed: bool
) -> None:
    """What `publish` makes a proof of. `proof`: plain values."""
    body = {**proof, "files": {path.name: _sha256(path) for path in files}, "signed": signed}
    text = json.dumps(body, indent=2, ensure_ascii=False, sort_keys=True)
    (folder / UNCHECKED).write_text(text, encoding="utf-8")


def publish(folder: Path, digest: str, key: bytes | None) -> None:
    """Signs the manifest of the export with this digest, then gives it its name; done twice it changes nothing.

    `key`: an Ed25519 private key as PEM, or null. Raises ConfigurationError for another key, and when the export is not here.
    """
    if _read_manifest(folder / MANIFEST, digest) is not None:
        return
    text = _read_manifest(folder / UNCHECKED, digest)
    if text is None:
        raise ConfigurationError(
            f"{folder} does not hold the export of this proof.",
            unaffected="The proof is not published; its answer is checked and kept in the control database.",
            next_step="Give every worker the same $BACKSTOP_PROOFS, and prove again.",
        )
    if key is not None:
        (folder / SIGNATURE).write_text(_private(key).sign(text).hex() + "\n", encoding="ascii")
    (folder / UNCHECKED).rename(folder / MANIFEST)


def read_signed(folder: Path, digest: str) -> tuple[str, str | None] | None:
    """The manifest of the export with this digest, and its signature, as they were written; null: there is none to be read here."""
    text, signature = _read_manifest(folder / MANIFEST, digest), folder / SIGNATURE
    if text is None:
        return None
    try:
        signed = signature.read_text(encoding="ascii") if signature.exists() else None
    except (OSError, ValueError):
        return None
    return text.decode(), signed


def _read_manifest(path: Path, digest: str) -> bytes | None:
    """The manifest in this file; null: it is not there, or is none of the export with this digest."""
    try:
        text = path.read_bytes()
        return text if read_json(text)["digest"] == digest else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def verify(folder: Path, public_key: bytes | None = None) -> list[str]:
    """What does not agree, a sentence each; none: everything does. With a public key (PEM) an unsigned proof does not agree.

    Raises ConfigurationError when there is no proof, or the key is none.
    """
    try:
        text = (folder / MANIFEST).read_bytes()
        manifest = read_json(text)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{folder} holds no proof: {MANIFEST} cannot be read ({getattr(error, 'strerror', None) or 'it is not JSON'}).",
            unaffected="Nothing was changed.",
            next_step="Name the folder that `backstop prove --export` wrote."
            + (
                " This one is an export whose data check has not passed: prove again."
                if (folder / UNCHECKED).exists()
                else ""
            ),
        ) from error
    if not _is_manifest(manifest):
        raise ConfigurationError(
            f"{folder} holds no proof: {MANIFEST} is not what `backstop prove` writes.",
            unaffected="Nothing was changed.",
            next_step="Get the folder again from whoever made the proof: this file was changed.",
        )
    wrong = [] if public_key is None else _check_signature(folder, text, public_key)
    if manifest.get("signed") and not (folder / SIGNATURE).exists():
        wrong.append(f"{SIGNATURE} is missing, though the manifest says that it was signed.")
    counted = sum(manifest["counts"].values())
    if counted != manifest["deliveries"]:
        wrong.append(
            f"The counts of the manifest add up to {counted}, not to its {manifest['deliveries']} deliveries."
        )
    for name, expected in manifest["files"].items():
        path = folder / Path(name).name
        if not path.is_file():
            wrong.append(f"{name} is missing.")
            continue
        if _sha256(path) != expected:
            wrong.append(f"{name} was changed: its SHA-256 is another one.")
        wrong += _check_rows(path, manifest)
    return wrong


def _is_manifest(found: object) -> bool:
    """Whether everything is there that is compared."""
    if not isinstance(found, dict):
        return False
    counts, files = found.get("counts"), found.get("files")
    return (
        isinstance(files, dict)
        and isinstance(counts, dict)
        and all(isinstance(number, int) for number in (*counts.values(), found.get("deliveries")))
        and isinstance(found.get("digest"), str)
    )


def _check_rows(path: Path, manifest: Mapping[str, Any]) -> list[str]:
    digest = Digest()
    try:
        for row in read_export(path):
            digest.add(row)
    except (ValueError, KeyError, OSError) as error:
        return [f"{path.name} cannot be read: {type(error).__name__}."]
    wrong = []
    if digest.rows != manifest["deliveries"]:
        wrong.append(
            f"{path.name} has {digest.rows} deliveries, the manifest says {manifest['deliveries']}."
        )
    if str(digest) != manifest["digest"]:
        wrong.append(
            f"{path.name} holds other deliveries than the manifest: their digest is another one."
        )
    if digest.by_standing != manifest["counts"]:
        wrong.append(f"{path.name} gives other counts than the manifest.")
    return wrong


def _check_signature(folder: Path, text: bytes, public_key: bytes) -> list[str]:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(public_key)
    except ValueError as error:
        raise _no_key("public") from error
    if not isinstance(key, Ed25519PublicKey):
        raise _no_key("public")
    try:
        key.verify(bytes.fromhex((folder / SIGNATURE).read_text(encoding="ascii").strip()), text)
    except OSError:
        return ["The proof is not signed."]
    except (InvalidSignature, ValueError):
        return [f"{SIGNATURE} does not fit the manifest and this key."]
    return []


def _private(pem: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise _no_key("private") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key("private")
    return key


def _no_key(kind: str) -> ConfigurationError:
    return ConfigurationError(
        f"The {kind} key is no Ed25519 key in PEM without a password.",
        unaffected="No proof was signed or accepted by it.",
        next_step="Make a pair: openssl genpkey -algorithm ed25519 -out private.pem; openssl pkey -in private.pem -pubout.",
    )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
