"""Certificates by ACME: certbot, with `quaymaster edge reload` as its deploy hook, against Pebble.

Pebble is Let's Encrypt's server for tests; Debian and Ubuntu have it. certbot comes from PyPI. Both are fetched once
and kept; the test is skipped, with the reason, where they cannot be had.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from harness.edge import Authority, edge_before, haproxy_or_skip
from harness.process import QuaymasterProcess, free_port
from harness.short_paths import short_directory
from harness.waiting import PATIENCE_S, eventually

from .foreign import build, cached, fetch_or_skip, program_or_skip

pytestmark = pytest.mark.timeout(900)  # the first run fetches packages

CERTBOT = "certbot==5.8.0"
DOMAIN = "queue.example.com"


@pytest.fixture(name="tmp_path")
def short_tmp_path() -> Iterator[Path]:
    """Sockets of the edge are in data directories."""
    with short_directory() as path:
        yield path


@pytest.fixture(scope="module")
def certbot() -> Path:
    """The certbot program, in an environment of its own."""

    def make(directory: Path) -> None:
        build([sys.executable, "-m", "venv", str(directory)], directory)
        fetch_or_skip([str(directory / "bin" / "python"), "-m", "pip", "install", "-q", CERTBOT], directory)
        # The directory is renamed, and programs in it name their interpreter.
        run = "import sys; from certbot.main import main; sys.exit(main())"
        (directory / "certbot.sh").write_text(
            f'#!/bin/sh\nexec "$(dirname "$0")/bin/python" -c "{run}" "$@"\n'
        )
        (directory / "certbot.sh").chmod(0o755)

    return cached("certbot", [CERTBOT, sys.version, "2"], make) / "certbot.sh"


@pytest.fixture(scope="module")
def pebble_programs() -> Path:
    """The directory with `pebble` and `pebble-challtestsrv`."""
    if found := shutil.which("pebble"):
        return Path(found).parent

    def make(directory: Path) -> None:
        apt_get = program_or_skip("apt-get")
        fetch_or_skip([apt_get, "download", "-qq", "pebble"], directory)
        (package,) = directory.glob("pebble_*.deb")
        build([program_or_skip("dpkg-deb"), "-x", str(package), str(directory)], directory)

    return cached("pebble", ["1"], make) / "usr" / "bin"


@contextmanager
def running(command: list[str], log: Path, environment: Mapping[str, str]) -> Iterator[None]:
    with log.open("wb") as file:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env={**os.environ, **environment}
        )
    try:
        yield
    finally:
        child.terminate()
        child.wait(PATIENCE_S)


class ACME:
    """A Pebble whose names are all this machine, and certbot as its client."""

    def __init__(self, directory: Path, certbot: Path) -> None:
        self._directory = directory
        self._certbot = certbot
        self.port, self.http_port, self.dns_port = free_port(), free_port(), free_port()
        self.management_port, self.names_port = free_port(), free_port()

    @contextmanager
    def started(self, programs: Path) -> Iterator[None]:
        directory, authority = self._directory, Authority()
        certificate, key = authority.issue()
        for name, content in (
            ("ca.pem", authority.certificate),
            ("pebble.crt", certificate),
            ("pebble.key", key),
        ):
            (directory / name).write_bytes(content)
        told = {
            "listenAddress": f"127.0.0.1:{self.port}",
            "managementListenAddress": f"127.0.0.1:{self.management_port}",
            "certificate": str(directory / "pebble.crt"),
            "privateKey": str(directory / "pebble.key"),
            "httpPort": self.http_port,
            "tlsPort": 0,
        }
        (directory / "pebble.json").write_text(json.dumps({"pebble": told}))
        names = [str(programs / "pebble-challtestsrv"), "-defaultIPv4", "127.0.0.1", "-defaultIPv6", ""]
        names += ["-dns01", f"127.0.0.1:{self.dns_port}", "-management", f"127.0.0.1:{self.names_port}"]
        names += ["-http01", "", "-https01", "", "-tlsalpn01", ""]
        server = [str(programs / "pebble"), "-config", str(directory / "pebble.json")]
        server += ["-dnsserver", f"127.0.0.1:{self.dns_port}"]
        quick = {"PEBBLE_VA_NOSLEEP": "1", "PEBBLE_WFE_NONCEREJECT": "0"}
        with ExitStack() as stack:
            stack.enter_context(running(names, directory / "names.log", {}))
            stack.enter_context(running(server, directory / "pebble.log", quick))
            eventually(self._answers)
            yield

    def _answers(self) -> bool:
        try:
            ssl.get_server_certificate(("127.0.0.1", self.port))
        except OSError:
            return False
        return True

    def certbot(self, *arguments: str) -> str:
        """Run certbot, which must succeed; return what it said."""
        places = [f"--{name}-dir={self._directory / name}" for name in ("config", "work", "logs")]
        common = [f"--server=https://127.0.0.1:{self.port}/dir", "--non-interactive", *places]
        environment = {**os.environ, "REQUESTS_CA_BUNDLE": str(self._directory / "ca.pem")}
        done = subprocess.run(
            [str(self._certbot), *arguments, *common],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr + (self._directory / "pebble.log").read_text()
        return done.stdout + done.stderr


def test_certbot_renews_a_certificate_that_the_edge_then_shows(
    tmp_path: Path, certbot: Path, pebble_programs: Path
) -> None:
    haproxy_or_skip()
    server = QuaymasterProcess(tmp_path / "data")
    acme = ACME(tmp_path, certbot)
    hook = f"{Path(sys.executable).parent / 'quaymaster'} edge reload --data {server.data}"
    with acme.started(pebble_programs):
        acme.certbot(
            *("certonly", "--standalone", f"--http-01-port={acme.http_port}", f"--domain={DOMAIN}"),
            *("--agree-tos", "--register-unsafely-without-email", f"--deploy-hook={hook}"),
        )
        (tmp_path / "certificates").symlink_to(tmp_path / "config" / "live")
        server.start()
        try:
            with edge_before(server, tmp_path, "--set", "log_level=info") as edge:
                before = shown_at(edge.port)
                assert names_in(before) == [DOMAIN]

                acme.certbot("renew", "--force-renewal", "--no-random-sleep-on-renew")

                after = shown_at(edge.port)
                assert names_in(after) == [DOMAIN]
                assert after != before
        finally:
            server.stop()


def shown_at(port: int) -> bytes:
    return ssl.get_server_certificate(("127.0.0.1", port)).encode()


def names_in(certificate: bytes) -> list[str]:
    found = x509.load_pem_x509_certificate(certificate)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return list(names.get_values_for_type(x509.DNSName))
