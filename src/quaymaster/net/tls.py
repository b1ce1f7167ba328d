"""Mutual TLS between the roles of a cell: who may connect at all, and that each is who it says it is.

Public: `TransportSecurity` (`client_context`, `server_context`, `check_peer`, `names`, `expires_ms`), `security_for`,
`names_of`, `TransportSecurityError`.

    security = security_for(listen, settings.tls_directory, force_plaintext=settings.force_plaintext)
    hello = Hello(cell="eu1", role="broker", node="b1")
    if security is None:                                            # loopback: no one else is there
        await RPCServer(handlers, hello).start(host, port)
        client = RPCClient(address, hello)
    else:
        security.require_own(hello)
        server = RPCServer(handlers, hello, check_peer=security.check_peer("frontend", "broker"))
        await server.start(host, port, tls=security.server_context())
        client = RPCClient(address, hello, tls=security.client_context, check_peer=security.check_peer("broker"))

A directory holds three files, PEM, under the names that Kubernetes uses too: `ca.crt` (whose certificates are taken;
several while one CA replaces another), `tls.crt` and `tls.key`. A certificate names what its node may be, as URIs:

    quaymaster://<cell>/<role>/<node>

Both ends ask for a certificate, TLS 1.3 only. A stranger ends in the handshake; a node that says in its HELLO that it
is something its certificate does not name is refused then. Host names play no part: addresses change, identities
do not. When the files change, the next connections use them; those that are open stay. Files that do not fit together
(one of two is written already) change nothing until they do.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from quaymaster.net.rpc import CheckPeer
from quaymaster.protocol.rpc.frames import Hello
from quaymaster.settings import Address

CA_FILE: Final = "ca.crt"
CERTIFICATE_FILE: Final = "tls.crt"
KEY_FILE: Final = "tls.key"
SCHEME: Final = "quaymaster://"
EXPIRY_WARNING_MS: Final = 14 * 86_400_000
"""A certificate that is good for less is a warning in the log when it is loaded."""

log = logging.getLogger(__name__)


class TransportSecurityError(Exception):
    """The files cannot be used, or there should be some; the message says what to do."""


class _Loaded(NamedTuple):
    files: tuple[tuple[int, int, int], ...]
    client: ssl.SSLContext
    server: ssl.SSLContext
    names: frozenset[str]
    expires_ms: int


def identity_name(cell: str, role: str, node: str) -> str:
    """Return how a certificate names a node in a role."""
    return f"{SCHEME}{cell}/{role}/{node}"


def names_of(certificate: Mapping[str, Any] | None) -> list[str]:
    """Return the identities in a certificate, as Python's ssl gives one; none without a certificate."""
    alternatives: Iterable[tuple[str, str]] = (certificate or {}).get("subjectAltName", ())
    return [value for kind, value in alternatives if kind == "URI" and value.startswith(SCHEME)]


class TransportSecurity:
    """The certificates of this process, reloaded when their files change."""

    def __init__(self, directory: Path) -> None:
        """Load them.

        Raises:
            TransportSecurityError: a file is missing or unreadable, or they do not belong together.
        """
        self.directory = directory
        self._refused: tuple[tuple[int, int, int], ...] | None = None
        """Files that could not be used, so that each such set is logged once."""
        self._loaded = self._load(self._look())

    @property
    def names(self) -> frozenset[str]:
        """What the certificate in use says this process may be."""
        return self._current().names

    @property
    def expires_ms(self) -> int:
        """Until when the certificate in use is good, in Unix time."""
        return self._current().expires_ms

    def require_own(self, hello: Hello) -> None:
        """Refuse to start as something that our certificate does not name."""
        wanted = identity_name(hello.cell, hello.role, hello.node)
        if wanted not in self.names:
            raise TransportSecurityError(
                f"{self.directory / CERTIFICATE_FILE} does not name {wanted}, but {_listed(self.names)}"
            )

    def client_context(self) -> ssl.SSLContext:
        """Return the context for the next connection to somebody."""
        return self._current().client

    def server_context(self) -> ssl.SSLContext:
        """Return a context to listen with: each handshake takes the files as they are then."""
        context = self._build(ssl.PROTOCOL_TLS_SERVER)

        def take_current(connection: ssl.SSLObject, name: str | None, listening: ssl.SSLContext) -> None:
            connection.context = self._current().server

        context.sni_callback = take_current
        return context

    def check_peer(self, *roles: str, node: str | None = None) -> CheckPeer:
        """Return the check of a peer's HELLO against its certificate, its role and, if given, its node."""

        def check(hello: Hello, transport: asyncio.BaseTransport) -> str | None:
            names = names_of(transport.get_extra_info("peercert"))
            wanted = identity_name(hello.cell, hello.role, hello.node)
            if wanted not in names:
                return f"{hello} has a certificate of {_listed(names)}"
            if hello.role not in roles:
                return f"{hello} is none of {', '.join(roles)}"
            if node is not None and hello.node != node:
                return f"{hello} is not the node {node}"
            return None

        return check

    def _current(self) -> _Loaded:
        """Return what the files hold; what they held last while they cannot be used."""
        try:
            files = self._look()
            if files == self._loaded.files or files == self._refused:
                return self._loaded
            self._refused = files
            self._loaded = self._load(files)
            log.info("certificate reloaded directory=%s", self.directory)
        except TransportSecurityError as error:
            log.warning("certificate not reloaded, the one before stays in use reason=%s", error)
        return self._loaded

    def _look(self) -> tuple[tuple[int, int, int], ...]:
        try:
            stats = [(self.directory / name).stat() for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE)]
        except OSError as error:
            raise TransportSecurityError(f"{error.filename} cannot be read: {error.strerror}") from None
        return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)

    def _load(self, files: tuple[tuple[int, int, int], ...]) -> _Loaded:
        client = self._build(ssl.PROTOCOL_TLS_CLIENT)
        server = self._build(ssl.PROTOCOL_TLS_SERVER)
        names, expires_ms = self._read_certificate()
        left_ms = expires_ms - int(time.time() * 1000)
        if left_ms < EXPIRY_WARNING_MS:
            log.warning("certificate expires soon directory=%s left_s=%d", self.directory, left_ms // 1000)
        return _Loaded(files, client, server, names, expires_ms)

    def _build(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the HELLO is checked instead
        context.verify_mode = ssl.CERT_REQUIRED
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0  # each connection shows its certificate
        try:
            context.load_verify_locations(self.directory / CA_FILE)
            context.load_cert_chain(self.directory / CERTIFICATE_FILE, self.directory / KEY_FILE)
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise TransportSecurityError(
                f"{CA_FILE}, {CERTIFICATE_FILE} and {KEY_FILE} in {self.directory} cannot be used: {reason}"
            ) from None
        return context

    def _read_certificate(self) -> tuple[frozenset[str], int]:
        from cryptography import x509

        try:
            certificate = x509.load_pem_x509_certificate((self.directory / CERTIFICATE_FILE).read_bytes())
            extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            uris = extension.value.get_values_for_type(x509.UniformResourceIdentifier)
        except (OSError, ValueError, x509.ExtensionNotFound) as error:
            raise TransportSecurityError(
                f"{self.directory / CERTIFICATE_FILE} cannot be used: {error}"
            ) from None
        names = frozenset(uri for uri in uris if uri.startswith(SCHEME))
        return names, _as_ms(certificate.not_valid_after_utc)


def security_for(
    listen: Address, directory: Path | None, *, force_plaintext: bool
) -> TransportSecurity | None:
    """Return the certificates to use on this address; None where none are needed.

    Raises:
        TransportSecurityError: the files cannot be used; or there are none, and others can reach the address.
    """
    if directory is not None:
        return TransportSecurity(directory)
    if listen.is_loopback or force_plaintext:
        return None
    raise TransportSecurityError(
        f"{listen} can be reached by other machines, and tls_directory is not set: who reaches it could read and "
        "change every queue. Listen on loopback, make certificates with `quaymaster ca`, or set "
        "force_plaintext = true if nobody else is in that network"
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nobody"


def _as_ms(time_utc: datetime) -> int:
    return int(time_utc.astimezone(UTC).timestamp() * 1000)
