"""Contexts that read the system's authorities late trust the same ones."""

from __future__ import annotations

import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from harness.certificates import Certificate, make_certificate

from quaymaster.late_authorities import LateAuthorities, reading_authorities_later


@pytest.fixture
def authority(tmp_path: Path) -> Certificate:
    return make_certificate(tmp_path, "authority")


def shake_hands(client: ssl.SSLContext, of_server: Certificate) -> None:
    """Connect a client to a server at 127.0.0.1, in memory; raises ssl.SSLError when the client does not trust it."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(of_server.certificate_file, of_server.key_file)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)


def test_what_the_system_trusts_is_trusted_and_nothing_else(
    tmp_path: Path, authority: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = make_certificate(tmp_path, "others")
    with reading_authorities_later():
        context = ssl.create_default_context()
    assert type(context) is LateAuthorities
    assert context.cert_store_stats()["x509_ca"] == 0

    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate_file))
    shake_hands(context, make_certificate(tmp_path, "server", authority))

    assert type(context) is ssl.SSLContext
    assert context.cert_store_stats()["x509_ca"] == 1
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(context, make_certificate(tmp_path, "stranger", others))


def test_contexts_are_as_before_once_the_block_has_ended(
    authority: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate_file))
    with reading_authorities_later():
        pass

    context = ssl.create_default_context()

    assert type(context) is ssl.SSLContext
    assert context.cert_store_stats()["x509_ca"] == 1


@pytest.mark.parametrize(
    ("module", "made"),
    [
        ("quaymaster.coordination.stores.etcd_gateway", ""),
        ("quaymaster.net.outbound.client", ".OutboundClient(rules=None)"),
    ],
)
def test_processes_start_without_reading_the_systems_authorities(module: str, made: str) -> None:
    reading = (
        "import ssl, sys\n"
        "def read(context): raise AssertionError('read')\n"
        "ssl.SSLContext.set_default_verify_paths = read\n"
        f"import {module}\n"
        "assert 'aiohttp' in sys.modules\n"
        f"{module}{made}\n"
    )

    subprocess.run([sys.executable, "-c", reading], check=True)


def test_a_context_that_is_used_while_others_are_made_reads_its_authorities(
    tmp_path: Path, authority: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate_file))
    with reading_authorities_later():
        context = ssl.create_default_context()

        shake_hands(context, make_certificate(tmp_path, "server", authority))

        assert context.cert_store_stats()["x509_ca"] > 0
