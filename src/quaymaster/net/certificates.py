"""The certificate authority of a cell: a directory, and the certificates issued from it.

Public: `CertificateAuthority` (`create`, `open`, `issue`, `renew`, `list`), `Issued`, `AuthorityError`,
`InvalidArgument`, `ROLES`.

    <ca>/            0700
      ca.key         0600    the authority's key: its holder can be any node of the cell
      ca.crt                 its certificate
      console.key    0600    what consoles encrypt cookies with, once one of them has a certificate
      nodes/<node>/  0700    what goes to the node, as `tls_directory`
        ca.crt  tls.crt  tls.key (0600)  console.key (0600, of consoles)

Keys are ECDSA P-256. A node's certificate names what it may be (`net/tls`), and is good at both ends of a connection.
Files are written beside their place, synced and renamed, the key first: a node that reads in between has a key and a
certificate that do not fit together, and goes on with those before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from quaymaster.net.console_key import CONSOLE_KEY_FILE, make_console_key
from quaymaster.net.private_files import write_private
from quaymaster.net.tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE, SCHEME, identity_name

CONSOLE: Final = "console"
ROLES: Final = ("frontend", "broker", "metadata", "manager", CONSOLE, "push", "operator")
AUTHORITY_KEY_FILE: Final = "ca.key"
NODES: Final = "nodes"
CLOCK_SKEW: Final = timedelta(minutes=5)
"""Certificates are good from a little before they were made, for nodes whose clocks are behind."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class AuthorityError(Exception):
    """It cannot be done; the message says why."""


class InvalidArgument(AuthorityError):
    """A name or a role that no authority would take; the message names what is allowed."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate: of a node, or (`node` empty) of the authority itself."""

    cell: str
    node: str
    roles: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    path: Path


class CertificateAuthority:
    """An authority that exists. Made by `create` or `open`."""

    def __init__(
        self, directory: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate, cell: str
    ) -> None:
        self.directory = directory
        self.cell = cell
        self._key = key
        self._certificate = certificate

    @classmethod
    def create(cls, directory: Path, cell: str, *, days: int, now: datetime | None = None) -> Self:
        """Make an authority for a cell, in a directory that is empty or not there."""
        _require_name("cell", cell)
        if directory.exists() and any(directory.iterdir()):
            raise AuthorityError(f"{directory} is not empty, and nothing in it is overwritten")
        now = now or datetime.now(UTC)
        key = ec.generate_private_key(ec.SECP256R1())
        authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Quaymaster cell {cell}")])
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(authority)
            .issuer_name(authority)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_SKEW)
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(is_authority=True), critical=True)
            .add_extension(identifier, critical=False)
            .add_extension(_uris([f"{SCHEME}{cell}"]), critical=False)
            .sign(key, hashes.SHA256())
        )
        _make_directory(directory)
        _write(directory / AUTHORITY_KEY_FILE, _key_as_pem(key), 0o600)
        _write(directory / CA_FILE, _as_pem(certificate), 0o644)
        return cls(directory, key, certificate, cell)

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Read an authority."""
        try:
            key = serialization.load_pem_private_key((directory / AUTHORITY_KEY_FILE).read_bytes(), None)
            certificate = x509.load_pem_x509_certificate((directory / CA_FILE).read_bytes())
            (cell,) = _uris_in(certificate)
        except OSError as error:
            raise AuthorityError(
                f"{directory} holds no certificate authority ({error.filename}: {error.strerror}); "
                "`quaymaster ca init` makes one"
            ) from None
        except (ValueError, TypeError) as error:
            raise AuthorityError(f"{directory} holds no authority that can be read: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise AuthorityError(f"{AUTHORITY_KEY_FILE} and {CA_FILE} in {directory} do not belong together")
        return cls(directory, key, certificate, cell.removeprefix(SCHEME))

    @property
    def issued(self) -> Issued:
        """The authority's own certificate."""
        return _describe(self._certificate, self.cell, "", (), self.directory)

    def issue(self, node: str, roles: Iterable[str], *, days: int, now: datetime | None = None) -> Issued:
        """Make key and certificate of a node that has none."""
        _require_name("node", node)
        directory = self.directory / NODES / node
        if directory.exists():
            raise AuthorityError(
                f"{directory} exists already; `quaymaster ca renew {node}` makes a new certificate"
            )
        return self._make(node, roles, days, now or datetime.now(UTC))

    def renew(self, node: str, *, days: int, now: datetime | None = None) -> Issued:
        """Make a new key and certificate of a node, for the roles it has."""
        _require_name("node", node)
        return self._make(node, self._read(node).roles, days, now or datetime.now(UTC))

    def list(self) -> list[Issued]:
        """Return the certificates of nodes, the first to expire first."""
        nodes = self.directory / NODES
        names = sorted(path.name for path in nodes.iterdir()) if nodes.exists() else []
        return sorted(
            (self._read(name) for name in names), key=lambda issued: (issued.expires_ms, issued.node)
        )

    def _read(self, node: str) -> Issued:
        directory = self.directory / NODES / node
        path = directory / CERTIFICATE_FILE
        try:
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
            names = [uri.removeprefix(SCHEME).split("/") for uri in _uris_in(certificate)]
            roles = tuple(role for _, role, _ in names)
        except OSError as error:
            raise AuthorityError(f"there is no certificate of {node} ({path}: {error.strerror})") from None
        except ValueError as error:
            raise AuthorityError(f"{path} cannot be read: {error}") from None
        return _describe(certificate, self.cell, node, roles, directory)

    def _console_key(self) -> bytes:
        """Return the key that all consoles of the cell have; it is made when the first one is to have it."""
        try:
            return make_console_key(self.directory)
        except OSError as error:
            raise AuthorityError(f"{self.directory / CONSOLE_KEY_FILE} cannot be used: {error}") from None

    def _make(self, node: str, roles: Iterable[str], days: int, now: datetime) -> Issued:
        wanted = tuple(dict.fromkeys(roles))
        if not wanted:
            raise InvalidArgument("a node needs at least one role")
        for role in wanted:
            if role not in ROLES:
                raise InvalidArgument(f"there is no role {role}; there are {', '.join(ROLES)}")
        expires = now + timedelta(days=days)
        if expires > self._certificate.not_valid_after_utc:
            until = self._certificate.not_valid_after_utc.date()
            raise AuthorityError(f"the authority's own certificate ends before that, on {until}")
        key = ec.generate_private_key(ec.SECP256R1())
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node)]))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_SKEW)
            .not_valid_after(expires)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(is_authority=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(authority_key, critical=False)
            .add_extension(_uris(identity_name(self.cell, role, node) for role in wanted), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        directory = self.directory / NODES / node
        _make_directory(directory.parent)
        _make_directory(directory)
        _write(directory / CA_FILE, _as_pem(self._certificate), 0o644)
        _write(directory / KEY_FILE, _key_as_pem(key), 0o600)
        _write(directory / CERTIFICATE_FILE, _as_pem(certificate), 0o644)
        if CONSOLE in wanted:
            _write(directory / CONSOLE_KEY_FILE, self._console_key(), 0o600)
        return _describe(certificate, self.cell, node, wanted, directory)


def _require_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name!r} is no name of a {what}: letters, digits, '.', '_' and '-', at most 63"
        )


def _uris(names: Iterable[str]) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.UniformResourceIdentifier(name) for name in names])


def _uris_in(certificate: x509.Certificate) -> list[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        raise ValueError("it names nobody") from None
    uris = extension.value.get_values_for_type(x509.UniformResourceIdentifier)
    return [uri for uri in uris if uri.startswith(SCHEME)]


def _usage(*, is_authority: bool) -> x509.KeyUsage:
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


def _describe(
    certificate: x509.Certificate, cell: str, node: str, roles: tuple[str, ...], path: Path
) -> Issued:
    return Issued(
        cell,
        node,
        roles,
        int((certificate.not_valid_before_utc + CLOCK_SKEW).timestamp() * 1000),
        int(certificate.not_valid_after_utc.timestamp() * 1000),
        path,
    )


def _as_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_as_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)  # the umask may have taken more, and it may have been there, empty
    except OSError as error:
        raise AuthorityError(f"{directory} cannot be made: {error.strerror}") from None


def _write(path: Path, data: bytes, mode: int) -> None:
    try:
        write_private(path, data, mode)
    except OSError as error:
        raise AuthorityError(f"{path} cannot be written: {error.strerror}") from None
