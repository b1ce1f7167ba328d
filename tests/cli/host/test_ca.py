"""`quaymaster ca`: what it prints, and how it says no."""

from __future__ import annotations

import time
from pathlib import Path

from harness.command_line import Run

DAY_MS = 86_400_000


def test_an_authority_and_certificates_are_made_listed_and_renewed(run: Run, tmp_path: Path) -> None:
    ca = ("--ca", str(tmp_path / "ca"))

    made = run("ca", "init", "eu1", *ca)
    issued = run("ca", "issue", "b1", "--role", "broker", "--role", "metadata", "--days", "10", *ca, "--json")
    run("ca", "issue", "f1", "--role", "frontend", *ca)
    listed = run("ca", "list", *ca)
    renewed = run("ca", "renew", "--expiring-within", "30", *ca, "--json")
    by_name = run("ca", "renew", "f1", "--days", "5", *ca, "--json")

    assert made.code == 0
    assert made.out.split("\t")[:3] == ["(authority)", "eu1", "-"]
    (certificate,) = issued.json["certificates"]
    now_ms = time.time() * 1000
    assert abs(certificate.pop("expires_ms") - 10 * DAY_MS - now_ms) < DAY_MS
    assert abs(certificate.pop("issued_ms") - now_ms) < DAY_MS
    assert certificate.pop("days_left") in (9, 10)
    assert certificate == {
        "node": "b1",
        "cell": "eu1",
        "roles": ["broker", "metadata"],
        "directory": str(tmp_path / "ca" / "nodes" / "b1"),
    }
    rows = [line.split("\t") for line in listed.out.splitlines()]
    assert [row[0] for row in rows] == ["b1", "f1", "(authority)"]
    assert rows[0][2] == "broker metadata"
    assert rows[0][4].endswith("days left")
    assert [one["node"] for one in renewed.json["certificates"]] == ["b1"]
    assert [one["node"] for one in by_name.json["certificates"]] == ["f1"]


def test_when_nothing_is_to_be_renewed_it_says_so(run: Run, tmp_path: Path) -> None:
    ca = ("--ca", str(tmp_path / "ca"))
    run("ca", "init", "eu1", *ca)

    renewed = run("ca", "renew", "--expiring-within", "30", *ca)

    assert (renewed.code, renewed.out) == (0, "")
    assert "No certificate expires so soon." in renewed.err


def test_an_expired_certificate_is_shown_as_such(run: Run, tmp_path: Path) -> None:
    from datetime import UTC, datetime, timedelta

    from quaymaster.net.certificates import CertificateAuthority

    long_ago = datetime.now(UTC) - timedelta(days=90)
    CertificateAuthority.create(tmp_path / "ca", "eu1", days=900, now=long_ago).issue(
        "b1", ["broker"], days=30, now=long_ago
    )

    listed = run("ca", "list", "--ca", str(tmp_path / "ca"))

    assert listed.out.splitlines()[0].split("\t")[4] == "expired"


def test_refusals_are_one_line(run: Run, tmp_path: Path) -> None:
    ca = ("--ca", str(tmp_path / "ca"))
    run("ca", "init", "eu1", *ca)
    run("ca", "issue", "b1", "--role", "broker", *ca)
    (tmp_path / "ca" / "nodes" / "b2").mkdir()

    refused = [
        run("ca", "init", "eu1", *ca),
        run("ca", "issue", "b1", "--role", "broker", *ca),
        run("ca", "renew", "b9", *ca),
        run("ca", "list", *ca),
    ]
    misused = [
        run("ca", "renew", *ca),
        run("ca", "renew", "b1", "--expiring-within", "3", *ca),
        run("ca", "list", "--ca", str(tmp_path / "nowhere")),
        run("ca", "issue", "b4", *ca),
        run("ca", "issue", "b4", "--role", "king", *ca),
        run("ca", "issue", "../b4", "--role", "broker", *ca),
        run("ca", "init", "eu 1", "--ca", str(tmp_path / "other")),
    ]

    assert [result.code for result in refused] == [1] * 4
    assert [result.code for result in misused] == [2] * 7
    assert all(result.err.startswith("quaymaster: ") and result.err.count("\n") == 1 for result in refused)
