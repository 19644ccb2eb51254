"""Certificates for servers of tests, made on the spot."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Issuer:
    """An authority without key identifiers, as some providers of clusters have one."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        """What is trusted."""
        return self.certificate.public_bytes(Encoding.PEM)


def authority(name: str = "kubernetes", *, issuer: Issuer | None = None) -> Issuer:
    """A root, or an authority below another one."""
    key = ec.generate_private_key(ec.SECP256R1())
    return Issuer(_certificate(name, key, issuer=issuer, is_authority=True), key)


def server_files(directory: Path, issuer: Issuer, *above: Issuer) -> Path:
    """A file with the key and the chain of a server on 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    own = _certificate("server", key, issuer=issuer, is_authority=False)
    path = directory / "server.pem"
    path.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        + own.public_bytes(Encoding.PEM)
        + b"".join(one.pem for one in above)
    )
    return path


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, *, issuer: Issuer | None, is_authority: bool
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if not is_authority:
        names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        made = made.add_extension(names, critical=False)
    return made.sign(key if issuer is None else issuer.key, hashes.SHA256())
