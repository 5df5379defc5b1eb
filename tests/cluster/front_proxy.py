"""Certificates for tests: a front proxy's, as an API server has them, and servers'."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


def sign_server(
    key: ec.EllipticCurvePublicKey, names: Sequence[str], now: datetime
) -> tuple[bytes, bytes]:
    """Return an authority and a certificate for a server that is also a client, by these names."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    issuer = _name(f"{names[0]} authority")
    authority = _sign(issuer, issuer, authority_key, authority_key, is_authority=True)
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_name(names[0]))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(n) for n in names]), False)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return authority.public_bytes(Encoding.PEM), certificate.public_bytes(Encoding.PEM)


def make_client(folder: Path, common_name: str) -> tuple[str, Path]:
    """Return an authority (PEM), and a file with a certificate that it signed and its key."""
    folder.mkdir(mode=0o700, exist_ok=True)
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = _name(f"{folder.name} authority")
    authority = _sign(issuer, issuer, authority_key, authority_key, is_authority=True)
    certificate = _sign(_name(common_name), issuer, key, authority_key, is_authority=False)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    both = folder / "client.pem"
    both.write_bytes(certificate.public_bytes(Encoding.PEM) + pem)
    return authority.public_bytes(Encoding.PEM).decode(), both


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _sign(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if not is_authority:
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = builder.add_extension(usage, critical=False)
    return builder.sign(signer, hashes.SHA256())
