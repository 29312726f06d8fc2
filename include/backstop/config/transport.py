"""Says of a connection whether others on the way could read it, or answer in the server's place (pure)."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import parse_qsl, urlsplit

NOT_ENCRYPTED = "it is not encrypted"
_NO = ("false", "0", "no", "none", "optional")


def open_to_others(url: str) -> str | None:
    """Why it is; null: it is encrypted and the server's name is checked, or it does not leave this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "it is not a URL"
    said = dict(parse_qsl(parts.query))
    # A service file, which is not read here, may name another address than the URL.
    if "service" not in said and all(_is_here(host) for host in _hosts(parts.netloc, said)):
        return None
    match parts.scheme:
        case "postgresql":
            mode = said.get("sslmode", "prefer")
            return (
                None
                if mode == "verify-full"
                else f"sslmode is {mode}: write sslmode=verify-full and sslrootcert"
            )
        case "rediss":
            return (
                "the server's certificate is not checked"
                if said.get("ssl_cert_reqs", "").lower() in _NO
                else None
            )
        case "redis":
            return f"{NOT_ENCRYPTED}: write rediss://"
        case "mysql":
            checked = said.get("ssl_ca") and said.get("ssl_verify_identity", "").lower() not in (
                "",
                *_NO,
            )
            return None if checked else "write ssl_ca and ssl_verify_identity=true"
        case "mongodb" | "mongodb+srv":
            default = "true" if parts.scheme.endswith("srv") else "false"
            if said.get("tls", said.get("ssl", default)) != "true":
                return f"{NOT_ENCRYPTED}: write tls=true"
            lax = ("tlsInsecure", "tlsAllowInvalidCertificates", "tlsAllowInvalidHostnames")
            checked = all(said.get(name, "false") == "false" for name in lax)
            return None if checked else "the server's certificate or name is not checked"
        case "catalog" | "s3a" | "abfss" | "gs":
            return None  # a name that Spark knows, or a store that Hadoop's clients reach by TLS unless told otherwise
        case "stomp+ssl" | "https":
            return None
        case "http" | "json" | "xml" | "form":
            return f"{NOT_ENCRYPTED}: write {'https' if parts.scheme == 'http' else parts.scheme + 's'}://"
        case "stomp":
            return f"{NOT_ENCRYPTED}: write stomp+ssl://"
        case "rocketmq":
            if said.get("tls") != "true":
                return f"{NOT_ENCRYPTED}: write tls=true"
            return (
                "the server's name is not checked" if said.get("check_names") == "false" else None
            )
    return f"nothing is known of {parts.scheme or 'it'}"


def _hosts(netloc: str, said: dict[str, str]) -> list[str]:
    """The hosts of a URL that may name several; none: a socket of this machine. What its parameters name wins, as in libpq."""
    besides = said.get("hostaddr") or said.get("host")
    named = besides.split(",") if besides else netloc.rpartition("@")[2].split(",")
    hosts = [
        place.partition("]")[0].lstrip("[") if place.startswith("[") else place.partition(":")[0]
        for place in named
    ]
    return [host for host in hosts if host and not host.startswith(("/", "%2F"))]


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
