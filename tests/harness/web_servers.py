"""Small real HTTP servers on loopback for outbound calls, with or without TLS, and a resolver of made-up names."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass
class WebServer:
    """A server that runs, and the requests that came to it."""

    host: str
    port: int = 0
    scheme: str = "http"
    requests: list[web.BaseRequest] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The URL that the server is at, without a path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


@asynccontextmanager
async def web_server(
    handler: Handler, *, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[WebServer]:
    """Serve all requests with a handler until the block ends."""
    server = WebServer(host, scheme="http" if tls is None else "https")

    async def noted(request: web.BaseRequest) -> web.StreamResponse:
        server.requests.append(request)
        return await handler(request)

    runner = web.ServerRunner(web.Server(noted), shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, ssl_context=tls)
        await site.start()
        server.port = runner.addresses[0][1]
        yield server
    finally:
        await runner.cleanup()


def self_signed(directory: Path, *names: str) -> tuple[ssl.SSLContext, Path]:
    """Return a server's TLS context for names and addresses, and the file by which clients trust it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = directory / f"{names[0]}.pem"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path = directory / f"{names[0]}.key"
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path, key_path)
    return context, path


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class MadeUpNames(AbstractResolver):
    """Resolves each name to the next of its lists of addresses; the last one stays. An empty list: there is none."""

    def __init__(self, names: Mapping[str, Sequence[Sequence[str]]]) -> None:
        self._left = {name: list(answers) for name, answers in names.items()}
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked.append(host)
        answers = self._left.get(host, [[]])
        addresses = answers[0] if len(answers) == 1 else answers.pop(0)
        if not addresses:
            raise OSError("no such name")
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        """Nothing is open."""
