"""Certificates as operators keep them, made into what HAProxy reads; and those that are made to try TLS with."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from harness.edge import Authority

from quaymaster.cli.edge import certificates as module
from quaymaster.cli.edge.certificates import CertificatesUnusable, bundles_in, read_bundles, write_bundles
from quaymaster.cli.edge.self_signed import GOOD_FOR, ensure_self_signed

AUTHORITY = Authority()


def put(directory: Path, certificate_name: str, key_name: str) -> bytes:
    """Write certificate and key, and return what HAProxy is given."""
    directory.mkdir(exist_ok=True, parents=True)
    certificate, key = AUTHORITY.issue()
    if certificate_name == key_name:
        (directory / key_name).write_bytes(certificate + b"\nsome text\n" + key)
    else:
        (directory / certificate_name).write_bytes(certificate)
        (directory / key_name).write_bytes(key)
    return key + certificate


@pytest.mark.parametrize(
    ("place", "certificate", "key", "name"),
    [
        (".", "tls.crt", "tls.key", "tls"),
        (".", "queue.example.pem", "queue.example.pem", "queue.example"),
        (".", "fullchain.pem", "privkey.pem", "default"),
        ("queue.example", "fullchain.pem", "privkey.pem", "queue.example"),
        ("secret", "tls.crt", "tls.key", "secret-tls"),
    ],
)
def test_all_usual_forms_are_taken(tmp_path: Path, place: str, certificate: str, key: str, name: str) -> None:
    bundle = put(tmp_path / place, certificate, key)

    assert read_bundles(tmp_path) == {name: bundle}


def test_certificates_without_a_key_and_hidden_directories_are_left_alone(tmp_path: Path) -> None:
    bundle = put(tmp_path, "tls.crt", "tls.key")
    (tmp_path / "ca.crt").write_bytes(AUTHORITY.certificate)
    (tmp_path / "ca.pem").write_bytes(AUTHORITY.certificate)
    put(tmp_path / "..data", "tls.crt", "tls.key")
    put(tmp_path / "live", "fullchain.pem", "privkey.pem")
    (tmp_path / "live" / "chain.pem").write_bytes(AUTHORITY.certificate)

    assert read_bundles(tmp_path).keys() == {"live", "tls"}
    assert read_bundles(tmp_path)["tls"] == bundle


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({}, "holds no certificate with its key"),
        ({"tls.crt": AUTHORITY.certificate}, "holds no certificate with its key"),
        ({"tls.crt": b"", "tls.key": AUTHORITY.issue()[1]}, "holds no certificate"),
        ({"tls.crt": AUTHORITY.issue()[0], "tls.key": b"x"}, "holds no private key"),
        (
            {"tls.crt": AUTHORITY.issue()[0], "tls.key": AUTHORITY.issue()[1]},
            "is not that of the certificate",
        ),
        ({"tls.pem": b"".join(reversed([*AUTHORITY.issue(), b" " * 300_000]))}, "over 262144 bytes"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_the_files_name(
    tmp_path: Path, content: dict[str, bytes], reason: str
) -> None:
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)

    with pytest.raises(CertificatesUnusable, match=reason):
        read_bundles(tmp_path)


def test_encrypted_keys_a_missing_directory_and_too_many_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = AUTHORITY.issue()
    (tmp_path / "tls.crt").write_bytes(certificate)
    (tmp_path / "tls.key").write_bytes(
        serialization.load_pem_private_key(key, None).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    with pytest.raises(CertificatesUnusable, match="or an encrypted one"):
        read_bundles(tmp_path)
    with pytest.raises(CertificatesUnusable, match="cannot be read: No such file"):
        read_bundles(tmp_path / "missing")

    (tmp_path / "tls.key").write_bytes(key)
    put(tmp_path, "two.crt", "two.key")
    monkeypatch.setattr(module, "BUNDLES_MAX", 1)
    with pytest.raises(CertificatesUnusable, match="over 1 certificates"):
        read_bundles(tmp_path)


def test_written_bundles_are_private_and_others_are_removed(tmp_path: Path) -> None:
    directory = tmp_path / "certificates"
    write_bundles(directory, {"a": b"1", "b": b"2"})
    write_bundles(directory, {"b": b"3"})

    assert bundles_in(directory) == {"b": b"3"}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "b.pem").stat().st_mode) == 0o600


# Made here.


def test_self_signed_certificate_names_this_machine_and_is_signed_by_its_ca(tmp_path: Path) -> None:
    assert ensure_self_signed(tmp_path / "made", "192.0.2.7")

    leaf, root = x509.load_pem_x509_certificates((tmp_path / "made" / "tls.crt").read_bytes())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"localhost"} <= set(names.get_values_for_type(x509.DNSName))
    assert {"127.0.0.1", "::1", "192.0.2.7"} == set(map(str, names.get_values_for_type(x509.IPAddress)))
    leaf.verify_directly_issued_by(root)
    assert root == x509.load_pem_x509_certificate((tmp_path / "made" / "ca.crt").read_bytes())
    assert len(read_bundles(tmp_path / "made")) == 1
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700


def test_it_is_kept_until_it_is_about_to_expire_or_lacks_a_name(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    ensure_self_signed(tmp_path, "127.0.0.1", now)

    assert not ensure_self_signed(tmp_path, "127.0.0.1", now + timedelta(days=300))
    assert not ensure_self_signed(tmp_path, "0.0.0.0", now)
    assert ensure_self_signed(tmp_path, "192.0.2.7", now)
    assert ensure_self_signed(tmp_path, "192.0.2.7", now + GOOD_FOR - timedelta(days=20))
    (tmp_path / "tls.crt").write_bytes(b"damaged")
    assert ensure_self_signed(tmp_path, "192.0.2.7", now)


def test_certificates_of_an_operator_are_never_replaced(tmp_path: Path) -> None:
    put(tmp_path, "tls.crt", "tls.key")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    assert not ensure_self_signed(tmp_path, "192.0.2.7")

    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
