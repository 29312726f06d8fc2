"""Connections: who is asked first, that Airflow's forms are understood, and that no secret shows."""

from __future__ import annotations

import json
import os
import pickle
import stat
from pathlib import Path

import pytest

from backstop.config.connections import (
    Connections,
    read_secrets_file,
    take_secrets_file,
    write_secrets_file,
)
from backstop.model.errors import ConfigurationError

PASSWORD = "p@ss/w:rd %25"


@pytest.fixture(autouse=True)
def no_other_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BACKSTOP_SECRETS_FILE", raising=False)
    monkeypatch.delenv("AIRFLOW_CONN_SHOP", raising=False)


def test_the_secrets_file_comes_first_then_the_resolver_then_airflows_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", "postgresql://variable/db")
    assert Connections().url("shop") == "postgresql://variable/db"
    assert (
        Connections({"shop": "postgresql://resolver/db"}.get).url("shop")
        == "postgresql://resolver/db"
    )
    assert Connections({}.get).url("shop") == "postgresql://variable/db"
    write_secrets_file(tmp_path / "secrets", {"shop": "postgresql://file/db"})
    monkeypatch.setenv("BACKSTOP_SECRETS_FILE", str(tmp_path / "secrets"))
    assert (
        Connections({"shop": "postgresql://resolver/db"}.get).url("shop") == "postgresql://file/db"
    )


def test_an_environment_reference_asks_only_that_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_URL", "postgresql://me@host/db")
    assert (
        Connections({"env:SHOP_URL": "postgresql://wrong/db"}.get).url("env:SHOP_URL")
        == "postgresql://me@host/db"
    )
    monkeypatch.delenv("SHOP_URL")
    with pytest.raises(ConfigurationError, match="SHOP_URL"):
        Connections().url("env:SHOP_URL")


def test_an_unknown_connection_says_where_it_was_looked_for() -> None:
    with pytest.raises(ConfigurationError) as error:
        Connections().url("shop")
    assert "AIRFLOW_CONN_SHOP" in str(error.value)
    assert "in Airflow" not in str(error.value)  # the command line does not read Airflow's own
    with pytest.raises(ConfigurationError, match="Make the connection shop in Airflow"):
        Connections(resolver={}.get).url("shop")


@pytest.mark.parametrize("path", ["leases", "0/1", "1-0", "?db=one"])
def test_a_database_of_redis_that_is_no_number_is_refused(path: str) -> None:
    """The client would take number 0 for it, which may be the broker's."""
    with pytest.raises(
        ConfigurationError, match=r"database is not a number.* redis://:password@host:6379/0"
    ):
        Connections({"shop": f"redis://h:6379/{path}"}.get).url("shop")
    assert Connections({"shop": "redis://h:6379/1"}.get).url("shop") == "redis://h:6379/1"


@pytest.mark.parametrize("url", ["postgresql://me:p#w@h/db", "postgresql://me:p/w@h/db"])
def test_a_password_that_breaks_its_url_is_refused_with_how_to_write_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", url)
    with pytest.raises(ConfigurationError) as error:
        Connections().url("shop")
    assert "%23" in error.value.next_step and "p#w" not in str(error.value)


def test_json_of_no_known_type_is_refused_with_the_types() -> None:
    with pytest.raises(ConfigurationError, match=r"conn_type of generic .*postgres, .*redis"):
        Connections({"shop": '{"conn_type": "oracle", "host": "h"}'}.get).url("shop")


def test_an_id_that_no_shell_can_set_is_sent_to_the_secrets_file() -> None:
    with pytest.raises(ConfigurationError) as error:
        Connections().url("my-shop")
    assert error.value.next_step.startswith("No shell can set AIRFLOW_CONN_MY-SHOP: name a secrets")


@pytest.mark.parametrize(
    ("connection", "url"),
    [
        (
            {
                "conn_type": "postgres",
                "host": "h",
                "port": 5432,
                "login": "me",
                "password": PASSWORD,
                "schema": "db",
            },
            "postgresql://me:p%40ss%2Fw%3Ard%20%2525@h:5432/db",
        ),
        (
            {
                "conn_type": "postgres",
                "host": "::1",
                "login": "me",
                "schema": "my db",
                "extra": '{"sslmode": "require"}',
            },
            "postgresql://me@[::1]/my%20db?sslmode=require",
        ),
        (
            {"conn_type": "redis", "host": "h", "port": 6379, "password": "x", "extra": {"db": 3}},
            "redis://:x@h:6379/3",
        ),
        ({"conn_type": "redis", "host": "h", "extra": {"ssl": True}}, "rediss://h/0"),
        (
            {
                "conn_type": "mysql",
                "host": "h",
                "port": 3306,
                "login": "me",
                "password": PASSWORD,
                "schema": "db",
                "extra": {"charset": "utf8", "ssl_ca": "/ca.pem"},
            },
            "mysql://me:p%40ss%2Fw%3Ard%20%2525@h:3306/db?ssl_ca=%2Fca.pem",
        ),
        (
            {
                "conn_type": "mongo",
                "host": "h",
                "login": "me",
                "password": PASSWORD,
                "schema": "db",
                "extra": {"srv": True, "ssl": True, "allow_insecure": False},
            },
            "mongodb+srv://me:p%40ss%2Fw%3Ard%20%2525@h/db?ssl=true",
        ),
        ({"conn_type": "postgres", "extra": {"service": "shop"}}, "postgresql:///?service=shop"),
        (
            {"conn_type": "postgres", "login": "u", "extra": {"service": "shop"}},
            "postgresql://u@/?service=shop",
        ),
    ],
)
def test_airflows_json_form_becomes_a_url(
    connection: dict[str, object], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(connection))
    assert Connections().url("shop") == url


@pytest.mark.parametrize(
    ("written", "url"),
    [
        (
            "postgres://me:x@h:1/db?sslmode=require&cursor=dict",
            "postgresql://me:x@h:1/db?sslmode=require",
        ),
        (
            "postgres://me:x@h:1/db?require_auth=scram-sha-256",
            "postgresql://me:x@h:1/db?require_auth=scram-sha-256",
        ),
        (
            "postgres://me:x@h/db?__extra__=%7B%22sslmode%22%3A%20%22verify-full%22%7D",
            "postgresql://me:x@h/db?sslmode=verify-full",
        ),
        ("mariadb://me:x@h/db?charset=utf8&ssl_ca=/ca.pem", "mysql://me:x@h/db?ssl_ca=%2Fca.pem"),
        (
            "mongodb://me:x@a:27017,b:27018/db?replicaSet=rs0&readPreference=secondary",
            "mongodb://me:x@a:27017,b:27018/db?replicaSet=rs0",
        ),
        ("mongo://me:x@h:1/db?tls=true", "mongodb://me:x@h:1/db?tls=true"),
        ("redis://:x@h:1/2", "redis://:x@h:1/2"),
        ("redis://:x@h:1/?db=2", "redis://:x@h:1/2"),
        ("redis://:x@h:1/leases?db=2", "redis://:x@h:1/2"),
        ("redis://h/?__extra__=%7B%22db%22%3A%202%2C%20%22ssl%22%3A%20true%7D", "rediss://h/2"),
        ("postgresql://u@/control?host=db.example", "postgresql://u@/control?host=db.example"),
        (
            "postgresql://u:x@/db?host=/cloudsql/p:r:i",
            "postgresql://u:x@/db?host=%2Fcloudsql%2Fp%3Ar%3Ai",
        ),
        (
            "postgresql://h/db?user=me&password=x&port=1",
            "postgresql://h/db?user=me&password=x&port=1",
        ),
        ("postgresql:///control", "postgresql:///control"),
        ("https://hooks.example/x?y=z", "https://hooks.example/x?y=z"),
    ],
)
def test_airflows_uri_form_becomes_a_url_with_what_the_driver_understands(
    written: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", written)
    assert Connections().url("shop") == url


@pytest.mark.parametrize(
    "broken",
    [
        "hunter2",
        "{not json",
        '{"conn_type": "mystery", "password": "hunter2"}',
        "postgresql://hunter2@[::1:x/",
        "redis://:hunter2@h/?db=one",
    ],
)
def test_a_connection_that_is_none_is_refused_without_showing_it(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", broken)
    with pytest.raises(ConfigurationError) as error:
        Connections().url("shop")
    assert "hunter2" not in str(error.value)
    assert error.value.__cause__ is None


def test_no_text_shows_a_secret_and_pickling_carries_what_was_resolved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", "postgresql://me:hunter2@h/db")
    connections = Connections().carrying(["shop"])
    for text in (repr(connections), str(connections), f"{connections}", repr([connections])):
        assert "hunter2" not in text
    monkeypatch.delenv("AIRFLOW_CONN_SHOP")
    assert pickle.loads(pickle.dumps(connections)).url("shop") == "postgresql://me:hunter2@h/db"


def test_a_connection_that_nobody_knows_is_missed_only_where_it_is_used() -> None:
    connections = Connections(resolver={"shop": "postgresql://h/db"}.get)
    refs = ["nobody's", "shop", "env:NOBODY_SET_THIS"]
    assert connections.known(refs) == {"shop": "postgresql://h/db"}
    carried = pickle.loads(pickle.dumps(connections.carrying(refs)))
    assert carried.url("shop") == "postgresql://h/db"
    for ref in ("nobody's", "env:NOBODY_SET_THIS"):
        with pytest.raises(ConfigurationError):
            carried.url(ref)


def test_a_text_with_a_resolved_password_can_be_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", "postgresql://me:hun%40ter2@h/db")
    connections = Connections().carrying(["shop"])
    assert connections.hide("login hun@ter2 failed, hun%40ter2") == "login *** failed, ***"


@pytest.mark.parametrize(
    ("password", "text", "hidden"),
    [
        (
            "shop",
            "shop_a of the shop: shops, shop@h, 'shop'",
            "shop_a of the ***: shops, ***@h, '***'",
        ),
        ("1", "21 rows, login 1", "21 rows, login ***"),
        ("hunter2hunter", "xhunter2hunterx", "x***x"),
        ("s3cr3t-and-long", r"\ns3cr3t-and-long\n", r"\n***\n"),
    ],
)
def test_a_password_that_may_be_a_part_of_other_words_eats_none_of_them(
    password: str, text: str, hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", f"postgresql://me:{password}@h/db")
    assert Connections().carrying(["shop"]).hide(text) == hidden


def test_a_password_of_an_address_within_an_address_is_hidden_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jolokia = "http%3A%2F%2Fadmin%3Asecr%2540et%40h%3A8161%2Fapi%2Fjolokia"
    monkeypatch.setenv("AIRFLOW_CONN_MQ", f"stomp://app:hunter2@h:61613?jolokia={jolokia}")
    connections = Connections().carrying(["mq"])
    told = f"hunter2, secr@et, secr%40et, {jolokia}"
    hidden = connections.hide(told)
    assert "hunter2" not in hidden and "secr" not in hidden


def test_a_password_in_a_query_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", "https://hook.example/x?password=hun%40ter2")
    assert Connections().carrying(["shop"]).hide("hun@ter2") == "***"
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", "postgresql://h/db?user=me&password=hun%40ter2")
    hidden = Connections().carrying(["shop"]).hide("hun@ter2, password=hun%40ter2")
    assert hidden == "***, password=***"


def test_a_secrets_file_is_ours_alone_from_its_first_moment(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    before = os.umask(0)
    try:
        write_secrets_file(path, {"shop": "postgresql://h/db"})
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_secrets_file(path) == {"shop": "postgresql://h/db"}
    with pytest.raises(FileExistsError):
        write_secrets_file(path, {})


def test_a_file_for_one_reader_is_gone_when_it_was_read_and_its_reader_still_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secrets"
    write_secrets_file(path, {"shop": "postgresql://file/db"})
    monkeypatch.setenv("BACKSTOP_SECRETS_FILE", str(path))
    take_secrets_file()
    assert path.exists(), "a file that somebody keeps is not ours to remove"
    monkeypatch.setenv("BACKSTOP_SECRETS_ONCE", "1")
    take_secrets_file()
    take_secrets_file()
    assert not path.exists()
    assert [Connections().url("shop") for _ in range(2)] == ["postgresql://file/db"] * 2


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_secrets_file_that_others_can_read_is_refused(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secrets"
    write_secrets_file(path, {"shop": "postgresql://h/db"})
    path.chmod(mode)
    monkeypatch.setenv("BACKSTOP_SECRETS_FILE", str(path))
    with pytest.raises(ConfigurationError, match="read by others"):
        Connections().url("shop")


@pytest.mark.parametrize("content", ["hunter2", '["hunter2"]', '{"shop": 1}'])
def test_a_secrets_file_that_holds_something_else_is_refused_without_showing_it(
    content: str, tmp_path: Path
) -> None:
    path = tmp_path / "secrets"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError) as error:
        read_secrets_file(path)
    assert "hunter2" not in str(error.value)


def test_a_generic_connection_in_json_carries_a_whole_url(monkeypatch: pytest.MonkeyPatch) -> None:
    carried = "slack://TokenA/TokenB/TokenC"
    monkeypatch.setenv(
        "AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "generic", "extra": {"url": carried}})
    )
    assert Connections().url("shop") == carried
