"""A certificate of an authority that exists for it alone, to try TLS with. The authority's key is never written.

<directory>/  ca.crt    what clients trust
              tls.crt   the certificate, and the authority's
              tls.key
"""

from __future__ import annotations

import ipaddress
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quaymaster.net.private_files import write_private

if TYPE_CHECKING:
    from cryptography import x509

CA_FILE: Final = "ca.crt"
CERTIFICATE_FILE: Final = "tls.crt"
KEY_FILE: Final = "tls.key"
GOOD_FOR: Final = timedelta(days=365)
LEFT_MIN: Final = timedelta(days=30)
"""One that is good for less is replaced."""
CLOCK_SKEW: Final = timedelta(minutes=5)
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")


def ensure_self_signed(directory: Path, host: str, now: datetime | None = None) -> bool:
    """Make certificate and key of this machine, unless those that are there will do; return whether they were made.

    It names localhost, the machine, and `host`, on which is listened. A directory that has other certificates is left
    as it is.

    Raises:
        OSError: the directory cannot be written.
    """
    now = now or datetime.now(UTC)
    names = _names(host)
    if not _is_needed(directory, names, now):
        return False
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority, certificate, key = _make(names, now)
    write_private(directory / CA_FILE, authority)
    write_private(directory / KEY_FILE, key)
    write_private(directory / CERTIFICATE_FILE, certificate + authority)
    return True


def _names(host: str) -> list[str]:
    found = [*_LOCAL, socket.gethostname(), socket.getfqdn()]
    if host not in ("0.0.0.0", "::"):  # noqa: S104 -- which is no name of a server
        found.append(host)
    return list(dict.fromkeys(name for name in found if name))


def _is_needed(directory: Path, names: list[str], now: datetime) -> bool:
    from cryptography import x509

    if not directory.exists() or not any(directory.iterdir()):
        return True
    if not (directory / CA_FILE).exists():
        return not any(path.suffix in (".pem", ".crt") or path.is_dir() for path in directory.iterdir())
    try:
        certificate = x509.load_pem_x509_certificate((directory / CERTIFICATE_FILE).read_bytes())
        named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return True
    return certificate.not_valid_after_utc - now < LEFT_MIN or any(
        _general_name(name) not in named for name in names
    )


def _general_name(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _make(names: list[str], now: datetime) -> tuple[bytes, bytes, bytes]:
    """Return the authority's certificate, the one that it signed, and that one's key, in PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Quaymaster edge, self-signed")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)

    def begin(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_SKEW)
            .not_valid_after(now + GOOD_FOR)
        )

    root = (
        begin(authority, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(is_authority=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    leaf = (
        begin(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Quaymaster")]), key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(is_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return root.public_bytes(pem), leaf.public_bytes(pem), private


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )
