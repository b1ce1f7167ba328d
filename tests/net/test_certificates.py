"""The certificate authority of a cell: nothing is overwritten, nothing can be read by others, everything is checked."""

from __future__ import annotations

import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from quaymaster.net.certificates import AuthorityError, CertificateAuthority

NOW = datetime(2030, 1, 1, tzinfo=UTC)
DAY_MS = 86_400_000
NOW_MS = int(NOW.timestamp() * 1000)


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path / "ca", "eu1", days=1000, now=NOW)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_only_its_owner_can_read_an_authority(authority: CertificateAuthority) -> None:
    authority.issue("b1", ["broker"], days=30, now=NOW)

    for path in [authority.directory, *authority.directory.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        if path.is_dir():
            assert mode == 0o700, path
        elif path.suffix == ".key":
            assert mode == 0o600, path
    names = sorted(path.name for path in (authority.directory / "nodes" / "b1").iterdir())
    assert names == ["ca.crt", "tls.crt", "tls.key"], "and nothing unfinished is left"


def test_an_authority_is_what_it_was_when_it_is_opened_again(authority: CertificateAuthority) -> None:
    opened = CertificateAuthority.open(authority.directory)

    assert opened.cell == "eu1"
    assert opened.issued == authority.issued
    assert opened.issued.expires_ms == NOW_MS + 1000 * DAY_MS
    assert opened.issue("b1", ["broker"], days=30, now=NOW).roles == ("broker",)


def test_an_authority_is_not_made_where_something_is(authority: CertificateAuthority, tmp_path: Path) -> None:
    before = contents(tmp_path)

    with pytest.raises(AuthorityError, match="is not empty"):
        CertificateAuthority.create(authority.directory, "eu2", days=10)
    with pytest.raises(AuthorityError, match="is not empty"):
        CertificateAuthority.create(tmp_path, "eu2", days=10)

    assert contents(tmp_path) == before


def test_a_certificate_names_cell_roles_and_node(authority: CertificateAuthority) -> None:
    issued = authority.issue("b1", ["broker", "metadata", "broker"], days=30, now=NOW)

    text = ssl._ssl._test_decode_cert(str(issued.path / "tls.crt"))  # type: ignore[attr-defined]

    assert text["subjectAltName"] == (
        ("URI", "quaymaster://eu1/broker/b1"),
        ("URI", "quaymaster://eu1/metadata/b1"),
    )
    assert (issued.cell, issued.node, issued.roles) == ("eu1", "b1", ("broker", "metadata"))
    assert (issued.issued_ms, issued.expires_ms) == (NOW_MS, NOW_MS + 30 * DAY_MS)


def test_a_node_has_one_certificate_until_it_is_renewed(authority: CertificateAuthority) -> None:
    issued = authority.issue("b1", ["broker"], days=30, now=NOW)
    before = contents(issued.path)

    with pytest.raises(AuthorityError, match="`quaymaster ca renew b1` makes a new certificate"):
        authority.issue("b1", ["frontend"], days=30, now=NOW)
    assert contents(issued.path) == before
    renewed = authority.renew("b1", days=60, now=NOW + timedelta(days=20))

    after = contents(issued.path)
    assert (renewed.roles, renewed.expires_ms) == (("broker",), NOW_MS + 80 * DAY_MS)
    changed = {Path(name).name for name in after if after[name] != before[name]}
    assert changed == {"tls.crt", "tls.key"}


def test_certificates_are_listed_the_first_to_expire_first(authority: CertificateAuthority) -> None:
    assert authority.list() == []

    for node, days in [("b1", 30), ("b2", 10), ("b3", 30)]:
        authority.issue(node, ["broker"], days=days, now=NOW)

    assert [issued.node for issued in authority.list()] == ["b2", "b1", "b3"]


@pytest.mark.parametrize("name", ["", "a/b", "..", ".b", "b 1", "b" * 64, "ü", "b1\n"])
def test_names_that_could_be_misread_are_refused(
    authority: CertificateAuthority, tmp_path: Path, name: str
) -> None:
    with pytest.raises(AuthorityError, match="is no name of a node"):
        authority.issue(name, ["broker"], days=1, now=NOW)
    with pytest.raises(AuthorityError, match="is no name of a node"):
        authority.renew(name, days=1, now=NOW)
    with pytest.raises(AuthorityError, match="is no name of a cell"):
        CertificateAuthority.create(tmp_path / "new", name, days=1)
    assert not (tmp_path / "new").exists()


def test_roles_that_do_not_exist_are_refused(authority: CertificateAuthority) -> None:
    with pytest.raises(
        AuthorityError,
        match="no role brokr; there are frontend, broker, metadata, manager, console, push, operator",
    ):
        authority.issue("b1", ["broker", "brokr"], days=1, now=NOW)
    with pytest.raises(AuthorityError, match="at least one role"):
        authority.issue("b1", [], days=1, now=NOW)
    assert authority.list() == []


def test_no_certificate_outlives_its_authority(authority: CertificateAuthority) -> None:
    with pytest.raises(AuthorityError, match="ends before that, on 2032-09-27"):
        authority.issue("b1", ["broker"], days=1001, now=NOW)


def test_what_is_no_authority_is_told_as_such(authority: CertificateAuthority, tmp_path: Path) -> None:
    with pytest.raises(
        AuthorityError, match=r"holds no certificate authority .* `quaymaster ca init` makes one"
    ):
        CertificateAuthority.open(tmp_path / "nowhere")
    with pytest.raises(AuthorityError, match="there is no certificate of b9"):
        authority.renew("b9", days=1)

    other = CertificateAuthority.create(tmp_path / "other", "eu1", days=10)
    (authority.directory / "ca.crt").write_bytes((other.directory / "ca.crt").read_bytes())
    with pytest.raises(AuthorityError, match="do not belong together"):
        CertificateAuthority.open(authority.directory)
    (authority.directory / "ca.crt").write_bytes(b"damaged")
    with pytest.raises(AuthorityError, match="holds no authority that can be read"):
        CertificateAuthority.open(authority.directory)


def test_a_damaged_certificate_of_a_node_is_named(authority: CertificateAuthority) -> None:
    issued = authority.issue("b1", ["broker"], days=30, now=NOW)
    (issued.path / "tls.crt").write_bytes(b"damaged")

    with pytest.raises(AuthorityError, match=r"b1/tls.crt cannot be read"):
        authority.list()


def test_consoles_of_a_cell_have_the_same_secret_which_stays_when_they_are_renewed(
    authority: CertificateAuthority,
) -> None:
    first, second = (authority.issue(f"console-{number}", ["console"], days=1) for number in (1, 2))
    other = authority.issue("m1", ["manager"], days=1)
    before = (first.path / "console.key").read_bytes()

    authority.renew("console-1", days=2)

    assert len(before) == 32
    assert (first.path / "console.key").read_bytes() == (second.path / "console.key").read_bytes() == before
    assert (first.path / "console.key").stat().st_mode & 0o777 == 0o600
    assert not (other.path / "console.key").exists()
