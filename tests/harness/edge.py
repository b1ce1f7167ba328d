"""Runs the real `quaymaster edge run` before a server, and certificates of an authority of the tests' own.

with edge_before(server, tmp_path) as edge:
    ...  # edge.endpoint_url, edge.context(), edge.run("reload")
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from quaymaster.cli.edge.files import EdgeFiles
from quaymaster.cli.shared.tools import find_haproxy

from .forked_programs import Program, run_program, start_program
from .process import QuaymasterProcess, free_port
from .waiting import PATIENCE_S

FETCH_TIMEOUT_S = 180
POLL_INTERVAL_S = 0.02
ROOT = Path(__file__).resolve().parents[2]
PEM = serialization.Encoding.PEM


@cache
def _program() -> Path | str:
    """Return the path of HAProxy, or why there is none."""
    if found := find_haproxy():
        return found
    try:
        done = subprocess.run(
            [ROOT / "scripts" / "haproxy"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return Path(done.stdout.strip()) if done.returncode == 0 else done.stderr.strip()


def haproxy_or_skip() -> Path:
    """Return the path of an HAProxy; the test is skipped, with the reason, where none can be had."""
    program = _program()
    if isinstance(program, str):
        pytest.skip(program)
    return program


class Authority:
    """An authority for servers; clients trust `certificate`, in PEM."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Tests")])
        usage = {name: name == "key_cert_sign" for name in _USAGES}
        made = (
            self._begin(self._key.public_key(), self._name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.KeyUsage(**usage), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = made.public_bytes(PEM)

    def issue(self, *names: str) -> tuple[bytes, bytes]:
        """Return certificate and key, in PEM, of a server with these names besides those of loopback."""
        key = ec.generate_private_key(ec.SECP256R1())
        addresses = [x509.IPAddress(ip_address("127.0.0.1"))]
        hosts = [x509.DNSName(name) for name in ("localhost", *names)]
        made = (
            self._begin(key.public_key(), x509.Name([]))
            .add_extension(x509.SubjectAlternativeName([*addresses, *hosts]), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return made.public_bytes(PEM), private

    def _begin(self, public: ec.EllipticCurvePublicKey, subject: x509.Name) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=2))
        )


_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


class EdgeProcess:
    """One edge before a server; its ports and certificates stay the same over restarts."""

    def __init__(self, server: QuaymasterProcess, directory: Path) -> None:
        haproxy_or_skip()
        self.server = server
        self.certificates = directory / "certificates"
        self.port = free_port()
        self.admin_port = free_port()
        self.log_path = directory / "edge.log"
        self.files = EdgeFiles(server.data.absolute())
        self.child: Program | None = None

    @property
    def endpoint_url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca_file(self) -> Path:
        """What clients trust: of a certificate that `--self-signed` made."""
        return self.certificates / "ca.crt"

    def start(self, *arguments: str) -> None:
        """Start it, and return when it serves."""
        self.launch(*arguments)
        deadline = time.monotonic() + PATIENCE_S
        while not (self.files.state.exists() and "Serving" in self.log()):
            assert self.child is not None
            assert self.child.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(POLL_INTERVAL_S)

    def launch(self, *arguments: str) -> None:
        """Start it, whether it can serve or not."""
        words = self._words(
            "run", "--bind", f"127.0.0.1:{self.port}", "--certificates", str(self.certificates)
        )
        words += ["--set", f"edge_admin=127.0.0.1:{self.admin_port}", *(arguments or ("--self-signed",))]
        if not any(argument.startswith("drain_notice_s=") for argument in arguments):
            words += ["--set", "drain_notice_s=0"]
        with self.log_path.open("wb") as log:
            self.child = start_program(words, environment=_environment(), out=log)

    def ended_with(self) -> int:
        """Wait until it has ended, and return its exit code."""
        assert self.child is not None
        code = self.child.wait(PATIENCE_S)
        self.child = None
        return code

    def stop(self) -> int:
        """Stop it with SIGTERM; return its exit code."""
        assert self.child is not None
        self.child.send_signal(signal.SIGTERM)
        return self.ended_with()

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another command on it."""
        return run_program(self._words(command, *arguments), environment=_environment())

    def _words(self, command: str, *arguments: str) -> list[str]:
        return ["edge", command, "--data", str(self.server.data), *arguments]

    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def workers(self) -> list[int]:
        """Return the processes of HAProxy below its master."""
        master = self.files.read_state().haproxy
        return [int(pid) for pid in Path(f"/proc/{master}/task/{master}/children").read_text().split()]

    def context(self, *, alpn: str = "http/1.1") -> ssl.SSLContext:
        """Return how a client connects that trusts the self-signed certificate."""
        context = ssl.create_default_context(cafile=self.ca_file)
        context.set_alpn_protocols([alpn])
        return context

    def connect(self, *, alpn: str = "http/1.1") -> ssl.SSLSocket:
        """Return a connection, its handshake done."""
        plain = socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)
        return self.context(alpn=alpn).wrap_socket(plain, server_hostname="localhost")

    def health(self, path: str = "/health/ready") -> tuple[int, bytes]:
        """Return what HAProxy answers at its own port."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def client(self, *, verify: Path | None = None, attempts: int = 1, **options: Any) -> Any:
        """Return a boto3 client, which tries each request so often."""
        of_server = self.server.env()
        return boto3.client(
            "sqs",
            endpoint_url=self.endpoint_url,
            verify=str(verify or self.ca_file),
            region_name=of_server.region,
            aws_access_key_id=of_server.access_key_id,
            aws_secret_access_key=of_server.secret_access_key,
            config=Config(retries={"total_max_attempts": attempts, "mode": "standard"}, **options),
        )


@contextmanager
def edge_before(server: QuaymasterProcess, directory: Path, *arguments: str) -> Iterator[EdgeProcess]:
    """Give a running edge, and stop what is left of it in the end."""
    edge = EdgeProcess(server, directory)
    try:
        edge.start(*arguments)
        yield edge
    finally:
        if edge.child is not None:
            edge.stop()


def _environment() -> dict[str, str]:
    return {
        name: text
        for name, text in os.environ.items()
        if name == "QUAYMASTER_TOOLS" or not name.startswith(("QUAYMASTER_", "AWS_"))
    }
