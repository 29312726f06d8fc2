"""Where the name servers are, the login and TLS: one URL."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from backstop.brokers.rocketmq.wire.frames import Login
from backstop.model.errors import ConfigurationError

DEFAULT_PORT = 9876
_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:\[\]/]+)(?::(\d{1,5}))?")
_SWITCH = {"true": True, "false": False}
_OPTIONS = frozenset({"tls", "ca", "cert", "key", "check_names"})


@dataclass(frozen=True, slots=True, repr=False)
class Address:
    """The name servers as host:port, how to log in, and TLS; never shown."""

    namesrvs: tuple[str, ...]
    login: Login | None = None
    tls: bool = False
    ca: str | None = None
    """A file of the authorities that may sign the servers' certificates; null: the system's."""
    cert: str | None = None
    key: str | None = None
    """Our own certificate and its key, where the servers ask for one."""
    check_names: bool = True
    """Whether a certificate must name the host, or the address, that was connected to."""

    @classmethod
    def parse(cls, url: str) -> Address:
        """rocketmq://access:secret@host:port,host:port?tls=true&ca=file&check_names=false; the login percent-encoded."""
        try:
            parts = urlsplit(url)
            asked = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
            options = dict(asked)
        except ValueError:
            raise _wrong("it cannot be read") from None
        if parts.scheme != "rocketmq" or parts.path not in ("", "/") or parts.fragment:
            raise _wrong("it is not one of RocketMQ")
        if len(options) != len(asked) or set(options) - _OPTIONS:
            raise _wrong(f"an option is there twice, or is none of {', '.join(sorted(_OPTIONS))}")
        written, at, servers = parts.netloc.rpartition("@")
        access, colon, secret = written.partition(":")
        if at and not (access and colon and secret):
            raise _wrong("a login needs an access key and a secret")
        tls, check_names = options.get("tls", "false"), options.get("check_names", "true")
        if tls not in _SWITCH or check_names not in _SWITCH:
            raise _wrong("tls and check_names are true or false")
        if not _SWITCH[tls] and set(options) - {"tls"}:
            raise _wrong("ca, cert, key and check_names are of use with tls=true only")
        return cls(
            tuple(endpoint(one, DEFAULT_PORT) for one in re.split("[,;]", servers)),
            Login(unquote(access), unquote(secret)) if at else None,
            _SWITCH[tls],
            options.get("ca"),
            options.get("cert"),
            options.get("key"),
            _SWITCH[check_names],
        )

    def context(self) -> ssl.SSLContext | None:
        """TLS as it is asked for; null: none. ConfigurationError for a file that cannot be used."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
            context.check_hostname = self.check_names
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ValueError) as error:
            raise _wrong(f"its ca, cert or key cannot be read: {type(error).__name__}") from error
        return context


def endpoint(text: str, default_port: int | None = None) -> str:
    """host:port, checked. Raises ConfigurationError."""
    found = _ENDPOINT.fullmatch(text.strip())
    port = (found[2] or default_port) if found else None
    if found is None or port is None or not 0 < int(port) < 65536:
        raise _wrong("a server is not host:port")
    return f"{found[1]}:{port}"


def split_endpoint(text: str) -> tuple[str, int]:
    """(host, port), an IPv6 address without its brackets."""
    host, _, port = text.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _wrong(why: str) -> ConfigurationError:
    return ConfigurationError(
        f"The connection of a RocketMQ broker is not usable: {why}.",
        unaffected="Nothing was sent or read.",
        next_step="Write it as rocketmq://access:secret@namesrv-1:9876,namesrv-2:9876?tls=true&ca=/path/ca.pem; login, further "
        "name servers and everything after the question mark may be left out.",
    )
