"""What holds keys and secrets back: the file of the signing key, and the process that sends alerts."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backstop.alerts.send import Sender
from backstop.config.settings import Settings
from backstop.config.signing_key import signing_key
from backstop.config.transport import open_to_others
from backstop.model.errors import ConfigurationError


def test_a_signing_key_is_read_from_a_file_of_ours_that_nobody_else_may_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key.pem"
    settings = cast(Settings, SimpleNamespace(prove=SimpleNamespace(signing_key=str(path))))
    path.write_bytes(b"a key")
    path.chmod(0o600)
    assert signing_key(settings) == b"a key"
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigurationError, match="another user"):
        signing_key(settings)
    monkeypatch.undo()
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="others than its owner"):
        signing_key(settings)


def test_the_process_that_sends_sees_no_secret_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "_SPARK_AUTH_SECRET",
        "BACKSTOP_SHOP",
        "AIRFLOW_CONN_X",
        "ALERTS_DESK",
        "VAULT_TOKEN",
    ):
        monkeypatch.setenv(name, "s3cr3t-4f7a")
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    with Sender("webhook", "http://127.0.0.1:9/x", 1.0) as sender:
        assert sender.error is None
        seen = Path(f"/proc/{sender._process.pid}/environ").read_bytes()
    assert b"s3cr3t-4f7a" not in seen and b"proxy.example" in seen and b"PATH=" in seen


@pytest.mark.parametrize(
    ("kind", "url"),
    [
        ("webhook", "http://169.254.169.254/latest"),
        ("webhook", "http://2852039166/"),
        ("webhook", "https://[fe80::1]/x"),
        ("webhook", "http://[::ffff:169.254.169.254]/"),
        ("apprise", "json://169.254.169.254/x"),
    ],
)
def test_a_link_local_address_is_no_channel(kind: str, url: str) -> None:
    with Sender(kind, url, 1.0) as sender:
        assert sender.error is not None and "link-local" in sender.error


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://hooks.example/x", "it is not encrypted: write https://"),
        ("json://h/x", "it is not encrypted: write jsons://"),
        ("https://hooks.example/x", None),
        ("http://127.0.0.1:9/x", None),
    ],
)
def test_a_webhook_over_the_network_is_encrypted_or_said_not_to_be(url: str, why: Any) -> None:
    assert open_to_others(url) == why
