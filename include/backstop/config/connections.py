"""Turns a connection id into a URL, and keeps what it found out of every text.

Asked in this order: the secrets file that $BACKSTOP_SECRETS_FILE names, a resolver given by the caller (Airflow's own),
$AIRFLOW_CONN_<ID>, and for "env:NAME" only $NAME.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from backstop.model.errors import ConfigurationError
from backstop.model.mask_secrets import mask_secrets
from backstop.model.read_json import read_json

_KEPT = "Nothing was started, read or changed."
_SCHEMES = {
    "postgres": "postgresql",
    "postgresql": "postgresql",
    "redis": "redis",
    "rediss": "rediss",
    "mysql": "mysql",
    "mariadb": "mysql",
    "mongo": "mongodb",
    "mongodb": "mongodb",
    "mongodb+srv": "mongodb+srv",
}
# What libpq, redis, PyMySQL and PyMongo understand of a connection's extra; the rest is meant for Airflow's own hooks.
_PARAMETERS = {
    "postgresql": (
        "host",
        "hostaddr",
        "port",
        "dbname",
        "user",
        "password",
        "passfile",
        "service",
        "requirepeer",
        "sslmode",
        "sslrootcert",
        "sslcert",
        "sslkey",
        "sslcrl",
        "channel_binding",
        "require_auth",
        "target_session_attrs",
        "options",
        "gssencmode",
        "application_name",
        "connect_timeout",
        "keepalives_idle",
    ),
    "redis": ("ssl_cert_reqs", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"),
    "mysql": ("ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_cert", "ssl_verify_identity"),
    "mongodb": (
        "authMechanism",
        "authMechanismProperties",
        "authSource",
        "compressors",
        "replicaSet",
        "ssl",
        "tls",
        "tlsAllowInvalidCertificates",
        "tlsAllowInvalidHostnames",
        "tlsCAFile",
        "tlsCertificateKeyFile",
        "tlsInsecure",
    ),
}

_AS_URL = (
    "Write it as postgresql://user:password@host:5432/database or redis://:password@host:6379/0. In a password write @ : / ? # and % as"
    " %40 %3A %2F %3F %23 and %25."
)
_AS_JSON = (
    'Write it as {"conn_type": "postgres", "host": "...", "schema": "the database", "login": "...", "password": "..."}, with a conn_type'
    f" of generic (its extra has the url), {', '.join(_SCHEMES)}."
)

Resolver = Callable[[str], str | None]
"""Connection id -> URL, or null when it does not know the id."""


class Connections:
    """URLs by connection id. Neither `repr` nor `str` shows one; pickling carries those that were resolved before."""

    def __init__(self, resolver: Resolver | None = None) -> None:
        self._resolver = resolver
        self._urls: dict[str, str] = {}

    def url(self, ref: str) -> str:
        """The URL for an Airflow connection id or "env:NAME"; ConfigurationError when nobody knows it."""
        if ref not in self._urls:
            self._urls[ref] = self._resolve(ref)
        return self._urls[ref]

    def given(self, url: str) -> str:
        """A URL that was given as it is: its password is kept out of texts, too."""
        self._urls[url] = url
        return url

    def known(self, refs: Iterable[str]) -> dict[str, str]:
        """The URLs of these connections, without those that cannot be resolved: only what uses one of them fails."""
        found: dict[str, str] = {}
        for ref in refs:
            with suppress(ConfigurationError):
                found[ref] = self.url(ref)
        return found

    def renewed(self) -> Connections:
        """The same, with nothing resolved yet: what was a URL may be another by now. A pickled copy keeps what it carries."""
        made = Connections(self._resolver)
        if self._resolver is None:
            made._urls = dict(self._urls)
        return made

    def carrying(self, refs: Iterable[str]) -> Connections:
        """Resolves all of these now, as `known`, so that a pickled copy has them where neither file nor environment is."""
        self.known(refs)
        return self

    def hide(self, text: str) -> str:
        """The text with every password that was resolved here replaced by ***, as written and decoded."""
        return mask_secrets(
            text, (secret for url in self._urls.values() for secret in _passwords(url))
        )

    def _resolve(self, ref: str) -> str:
        if ref.startswith("env:"):
            name = ref.removeprefix("env:")
            value = os.environ.get(name)
            if not value:
                raise _unknown(
                    ref, f"the environment variable {name} is not set", f"Set {name} to its URL."
                )
            return _as_url(ref, value)
        secrets_file = os.environ.get("BACKSTOP_SECRETS_FILE")
        if secrets_file and (value := _secrets(secrets_file).get(ref)):
            return _as_url(ref, value)
        if self._resolver is not None and (value := self._resolver(ref)):
            return _as_url(ref, value)
        variable = f"AIRFLOW_CONN_{ref.upper()}"
        if value := os.environ.get(variable):
            return _as_url(ref, value)
        if self._resolver is None:  # the command line: Airflow's own connections are not read
            in_file = "name a secrets file that has it in BACKSTOP_SECRETS_FILE"
            raise _unknown(
                ref,
                f"neither a secrets file nor {variable} has it",
                f"Set {variable} to its URL, or {in_file}."
                if variable.isidentifier()
                else f"No shell can set {variable}: {in_file}, or give the connection an id of letters, digits and _.",
            )
        raise _unknown(
            ref,
            f"neither a secrets file nor Airflow nor {variable} has it",
            f"Make the connection {ref} in Airflow, or set {variable} to its URL.",
        )

    def __repr__(self) -> str:
        return f"Connections({len(self._urls)} resolved, not shown)"

    def __getstate__(self) -> dict[str, Any]:
        # A resolver belongs to the process that made it (Airflow's is not there in an executor).
        return {"_resolver": None, "_urls": dict(self._urls)}


def read_secrets_file(path: Path) -> dict[str, str]:
    """{connection id: url} from a JSON file that only we can read; ConfigurationError for any other file."""
    try:
        with path.open(encoding="utf-8") as file:
            # The open file is looked at, not the path, so that nobody can put another in its place in between.
            facts = os.fstat(file.fileno())
            if (
                not stat.S_ISREG(facts.st_mode)
                or stat.S_IMODE(facts.st_mode) & 0o077
                or facts.st_uid != os.geteuid()
            ):
                raise ConfigurationError(
                    f"The secrets file {path} can be read by others, or is not ours.",
                    unaffected=_KEPT,
                    next_step=f"Make it ours alone: chmod 600 {path}; change the passwords if others could have seen them.",
                )
            content: dict[str, str] = json.load(file)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise ConfigurationError(
            f"The secrets file {path} cannot be read: {why}.",
            unaffected=_KEPT,
            next_step="Write it again, or unset BACKSTOP_SECRETS_FILE.",
        ) from None
    if not isinstance(content, dict) or not all(
        isinstance(value, str) for value in content.values()
    ):
        raise ConfigurationError(
            f"The secrets file {path} does not hold text by connection id.",
            unaffected=_KEPT,
            next_step='Write it as {"connection_id": "url"}.',
        )
    return content


_taken: dict[str, dict[str, str]] = {}
"""What this process took out of secrets files that are gone."""


def take_secrets_file() -> None:
    """Reads the secrets file into this process and removes it, where whoever wrote it says that it is for one reader
    ($BACKSTOP_SECRETS_ONCE): a process that is killed leaves none behind."""
    path = os.environ.get("BACKSTOP_SECRETS_FILE")
    if path and os.environ.get("BACKSTOP_SECRETS_ONCE") == "1" and path not in _taken:
        _taken[path] = read_secrets_file(Path(path))
        Path(path).unlink()


def _secrets(path: str) -> dict[str, str]:
    return _taken[path] if path in _taken else read_secrets_file(Path(path))


def write_secrets_file(path: Path, urls: Mapping[str, str]) -> None:
    """Writes {connection id: url} to a new file of mode 0600; FileExistsError when something is there already."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(dict(urls), file)


def _unknown(ref: str, why: str, next_step: str) -> ConfigurationError:
    return ConfigurationError(
        f"The connection {ref} is not known: {why}.", unaffected=_KEPT, next_step=next_step
    )


def _as_url(ref: str, value: str) -> str:
    """Airflow's JSON or URI form as a plain URL. Values other than databases and brokers (a webhook) stay as they are."""
    text = value.strip()
    if text.startswith("{"):
        try:
            return _from_json(read_json(text))
        except (ValueError, KeyError, TypeError):
            raise _unknown(ref, "its JSON is not an Airflow connection", _AS_JSON) from None
    try:
        parts = urlsplit(text)
        if "," not in parts.netloc:
            _ = parts.port  # read to have it checked
        extra = dict(parse_qsl(parts.query))
        # Airflow writes an extra that is more than flat text as JSON in one parameter.
        extra.update(read_json(extra.pop("__extra__", "{}")))
        scheme, path = _SCHEMES.get(parts.scheme), parts.path.lstrip("/")
    except (ValueError, TypeError):
        raise _unknown(ref, "it is not a URL", _AS_URL) from None
    if not parts.scheme:
        raise _unknown(ref, "it is not a URL", _AS_URL)
    if scheme is None:
        return text
    if scheme in ("redis", "rediss") and ("db" in extra or path):
        try:  # as redis-py, which takes number 0 for a path that is none; Airflow writes it behind the question mark
            path = str(int(extra.get("db", path.rstrip("/"))))
        except (ValueError, TypeError):
            raise _unknown(ref, "its database is not a number", _AS_URL) from None
    return _url(scheme, parts.netloc, path, extra)


def _from_json(connection: Mapping[str, Any]) -> str:
    extra = connection.get("extra") or {}
    if isinstance(extra, str):
        extra = read_json(extra)
    if connection["conn_type"] == "generic":
        return str(extra["url"])
    scheme = _SCHEMES[connection["conn_type"]]
    login = quote(connection.get("login") or "", safe="")
    password = connection.get("password")
    user = login if password is None else f"{login}:{quote(password, safe='')}"
    # A service file fills in only what nobody has named.
    by_service = scheme == "postgresql" and "service" in extra
    host = connection.get("host") or ("" if by_service else "localhost")
    address = f"[{host}]" if ":" in host else host
    if connection.get("port"):
        address = f"{address}:{int(connection['port'])}"
    if scheme in ("postgresql", "mysql", "mongodb"):
        path = quote(connection.get("schema") or "", safe="")
    else:
        path = str(int(extra.get("db", connection.get("schema") or 0)))
    return _url(scheme, f"{user}@{address}" if user else address, path, extra)


def _url(scheme: str, address: str, path: str, extra: Mapping[str, Any]) -> str:
    if scheme == "redis" and extra.get("ssl") in (True, "true", "True", "1"):
        scheme = "rediss"
    if scheme == "mongodb" and extra.get("srv") in (True, "true", "True", "1"):
        scheme = "mongodb+srv"
    known = _PARAMETERS[{"rediss": "redis", "mongodb+srv": "mongodb"}.get(scheme, scheme)]
    named = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in extra.items()
        if name in known
    }
    query = urlencode(named, quote_via=quote)
    # Not urlunsplit: without an address it leaves the two slashes out.
    return f"{scheme}://{address}/{path}" + (f"?{query}" if query else "")


def _passwords(url: str) -> Iterator[str]:
    """Those of an address and of the addresses in its query (ActiveMQ's names its Jolokia there), as written and decoded."""
    try:
        parts = urlsplit(url)
        password = parts.password
    except ValueError:
        return
    if password:
        yield from (password, unquote(password))
    for name, value in parse_qsl(parts.query):
        if name == "password" and value:
            yield from (value, quote(value, safe=""))
        elif "://" in value:
            for inner in _passwords(value):
                yield from (inner, quote(inner, safe=""))
