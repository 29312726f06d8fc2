"""Which connections others on the way could read, or answer in the server's place."""

from __future__ import annotations

import ssl
from pathlib import Path

import pymysql
import pytest

from backstop.config.connections import Connections
from backstop.config.load import load
from backstop.config.transport import open_to_others
from backstop.control.connection import connect
from backstop.model.errors import ConfigurationError, StoreUnavailable
from backstop.sql import mysql
from backstop.sql.connection import read_url

PROJECT = Path(__file__).resolve().parents[2]
OPEN = [
    "postgresql://u:p@db.example/control",
    "postgresql://u:p@db.example/control?sslmode=require",
    "postgresql://u:p@db.example/control?sslmode=verify-ca",
    "postgresql://u:p@127.0.0.1,db.example/control",
    "redis://:p@redis.example:6379/0",
    "rediss://:p@redis.example:6379/0?ssl_cert_reqs=none",
    "mysql://u:p@db.example/x",
    "mysql://u:p@db.example/x?ssl_ca=/ca",
    "mysql://u:p@db.example/x?ssl_ca=/ca&ssl_verify_identity=false",
    "mongodb://u:p@127.0.0.1,db.example/x",
    "mongodb://u:p@db.example/x?tls=true&tlsInsecure=true",
    "mongodb+srv://u:p@db.example/x?tls=false",
    "stomp://u:p@mq.example:61613",
    "rocketmq://a:b@one.example:9876,two.example:9876",
    "rocketmq://a:b@one.example:9876?tls=true&check_names=false",
    "kafka://one.example",
    "postgresql://localhost.example/x",
    "postgresql://u:p@[2001:db8::1]:5432/x",
    "postgresql://u@127.0.0.1/x?host=db.example",
    "postgresql://u@localhost/x?hostaddr=192.0.2.1",
    "postgresql:///x?service=elsewhere",
]
CLOSED = [
    "postgresql://u:p@db.example/control?sslmode=verify-full&sslrootcert=/ca",
    "postgresql://u:p@127.0.0.1:5432/control",
    "postgresql://u:p@[::1]:5432/control",
    "postgresql://u@/control?host=/var/run/postgresql",
    "redis://:p@localhost:6379/0",
    "rediss://:p@redis.example:6379/0",
    "mysql://u:p@db.example/x?ssl_ca=/ca&ssl_verify_identity=true",
    "mongodb://u:p@a.example:27017,b.example:27017/x?tls=true&tlsCAFile=/ca",
    "mongodb+srv://u:p@db.example/x",
    "stomp+ssl://u:p@mq.example:61614",
    "rocketmq://a:b@one.example:9876,two.example:9876?tls=true&ca=/ca",
]


@pytest.mark.parametrize("url", OPEN)
def test_open(url: str) -> None:
    assert open_to_others(url)


@pytest.mark.parametrize("url", CLOSED)
def test_closed(url: str) -> None:
    assert open_to_others(url) is None


@pytest.mark.parametrize("url", [one for one in OPEN + CLOSED if one.startswith("postgresql")])
def test_a_connection_goes_where_its_url_says(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is judged above is what the driver connects to."""
    monkeypatch.setenv("ONE", url)
    assert read_url(Connections().url("env:ONE")) == read_url(url)


def test_nothing_is_started_over_an_open_connection_where_the_settings_want_none() -> None:
    settings = load(PROJECT / "backstop.yaml")
    urls = dict.fromkeys(settings.connection_refs(), "postgresql://u:p@127.0.0.1:1/x")
    some = next(ref for ref in urls if ref != settings.control)
    known = Connections(resolver=(urls | {some: "redis://:hidden@redis.example/0"}).get)
    with pytest.raises(ConfigurationError, match="others on the way could read") as refused:
        connect(settings.model_copy(update={"require_tls": True}), known)
    assert some in refused.value.what and "hidden" not in str(refused.value)
    # Nobody answers there: it got so far.
    with pytest.raises(StoreUnavailable):
        connect(
            settings.model_copy(update={"require_tls": True}),
            Connections(resolver=urls.get),
            connect_timeout=2,
        )
    # A line that names a connection which nobody knows stops only what uses it.
    with pytest.raises(StoreUnavailable):
        nobodys = {ref: url for ref, url in urls.items() if ref != some}
        connect(
            settings.model_copy(update={"require_tls": True}),
            Connections(resolver=nobodys.get),
            connect_timeout=2,
        )


def test_mysql_without_options_of_tls_verifies_nothing_and_reads_no_certificate_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[object] = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *given: read.append(given))
    plain = mysql.connect(pymysql, defer_connect=True)
    assert (plain.ssl, plain.ctx.verify_mode, plain.ctx.check_hostname, read) == (
        True,
        ssl.CERT_NONE,
        False,
        [],
    )
    asked = mysql.connect(pymysql, defer_connect=True, ssl_verify_cert=True)
    assert asked.ctx.verify_mode is ssl.CERT_REQUIRED and len(read) == 1
