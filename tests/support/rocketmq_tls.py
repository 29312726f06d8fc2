"""Make an authority of the test's own, and a server's certificate for the loopback that it signed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from backstop_lab.servers.ports import LOOPBACK


def write_certificates(folder: Path) -> tuple[Path, Path]:
    """(certificate, key) of a server; the authority is `ca.pem` beside them. What is there already stays."""
    certificate_path, key_path = folder / "server.pem", folder / "server.key"
    if certificate_path.exists():
        return certificate_path, key_path
    folder.mkdir(parents=True, exist_ok=True)
    authority_key, server_key = _new_key(), _new_key()
    authority = _certificate(
        "authority of the test",
        authority_key,
        "authority of the test",
        authority_key,
        authority=True,
    )
    certificate = _certificate(
        "server of the test", server_key, "authority of the test", authority_key, authority=False
    )
    (folder / "ca.pem").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    key_path.touch(mode=0o600)
    key_path.write_bytes(
        server_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return certificate_path, key_path


def _new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _certificate(
    subject: str,
    key: rsa.RSAPrivateKey,
    issuer: str,
    issuer_key: rsa.RSAPrivateKey,
    *,
    authority: bool,
) -> x509.Certificate:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.IPAddress(ip_address(LOOPBACK)), x509.DNSName("localhost")]
            ),
            critical=False,
        )
        .sign(issuer_key, hashes.SHA256())
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
