"""The metrics API's certificates: an authority that signs one serving certificate, then is gone.

Called by `registration`. Nothing is stored: an operator that starts makes new ones and registers
their authority, so there is no Secret to read and no key outlives the process. The authority's own
key is dropped as soon as it has signed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = timedelta(days=30)
_RENEW_AFTER = LIFETIME * 2 / 3
_CLOCKS_DIFFER = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Certificates:
    """A serving certificate with its key, and the authority that vouches for it. All PEM."""

    authority: bytes
    serving: bytes
    key: bytes
    made: datetime

    def is_due(self, now: datetime) -> bool:
        """Say whether it is time for others; also where the clock went back before them."""
        return not self.made - _CLOCKS_DIFFER <= now < self.made + _RENEW_AFTER


def make_certificates(hosts: Sequence[str], now: datetime) -> Certificates:
    """Return new certificates for a server that is called by these names; the first is its own."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = _name("qwen-operator metrics API authority")
    authority = (
        _builder(issuer, issuer, authority_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    serving = (
        _builder(_name(hosts[0]), issuer, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(h) for h in hosts]), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    return Certificates(
        authority=authority.public_bytes(Encoding.PEM),
        serving=serving.public_bytes(Encoding.PEM),
        key=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        made=now,
    )


def bundle(*known: Certificates | None) -> bytes:
    """Return the authorities to be trusted: those to come and those still served, PEM."""
    return b"".join(found.authority for found in known if found is not None)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + LIFETIME)
    )


def _name(common_name: str) -> x509.Name:
    # X.520 allows 64 characters; clients go by the alternative names
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
