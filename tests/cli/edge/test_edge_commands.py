"""`quaymaster edge` without an edge: what is rendered, and what cannot be."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from harness.command_line import Run, run
from harness.edge import haproxy_or_skip

from quaymaster.cli.edge import commands
from quaymaster.cli.edge.certificates import read_bundles, write_bundles
from quaymaster.cli.edge.files import EdgeFiles, front_end_admin
from quaymaster.cli.edge.self_signed import ensure_self_signed
from quaymaster.cli.shared import tools
from quaymaster.cli.shared.failures import WrongUsage
from quaymaster.net.listener import NEW_SUFFIX, UNIX_PATH_BYTES_MAX
from quaymaster.settings import EDGE_SOCKET, Address

__all__ = ["run"]


def test_rendered_configuration_is_that_of_the_settings(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "edge.toml"
    file.write_text(
        'edge_bind = "0.0.0.0:443"\nedge_listen = "unix:/run/q/a b.sock"\nadmin_listen = "0.0.0.0:7"\n'
    )

    text = run("edge", "render", "host", file, "--data", tmp_path / "data").out

    assert f"bind 0.0.0.0:443 ssl crt {tmp_path}/data/run/certificates/ alpn h2,http/1.1" in text
    assert "server front-end unix@/run/q/a\\ b.sock send-proxy-v2-ssl check addr 127.0.0.1 port 7 " in text
    assert "bind 127.0.0.1:9329\n" in text
    for line in ("ssl-min-ver TLSv1.2", "hard-stop-after 60s", "expose-fd listeners", "http-reuse never"):
        assert line in text
    words = text.split()
    assert "forwardfor" not in words
    changed = [words[at - 1] for at, word in enumerate(words) if word.endswith("-header")]
    assert changed == ["http-after-response"], "signatures cover the headers of requests"


@pytest.mark.parametrize("edge_listen", ["unix:/run/q.sock", "10.0.0.1:9326"])
def test_haproxy_takes_what_is_rendered(run: Run, tmp_path: Path, edge_listen: str) -> None:
    haproxy = haproxy_or_skip()
    files = EdgeFiles(tmp_path)
    files.run.mkdir()
    ensure_self_signed(tmp_path / "made", "127.0.0.1")
    write_bundles(files.certificates, read_bundles(tmp_path / "made"))
    rendered = run(
        *("edge", "render", "host", "--data", tmp_path, "--set", f"edge_listen={edge_listen}"),
        *("--set", "trusted_proxies=10.0.0.0/8", "--set", "http_connections_max=50"),
    )
    files.configuration.write_text(rendered.out)

    done = subprocess.run(
        [haproxy, "-c", "-f", files.configuration], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr


def test_admin_port_is_the_setting_or_what_the_server_wrote_or_the_default(tmp_path: Path) -> None:
    assert front_end_admin(tmp_path, None) == Address("127.0.0.1", 9325)
    assert front_end_admin(tmp_path, "[::]:7") == Address("::1", 7)
    fields = dict.fromkeys(
        ("endpoint_url", "region", "access_key_id", "secret_access_key", "account_id"), "x"
    )
    (tmp_path / "client.json").write_text(json.dumps({**fields, "admin_url": "http://127.0.0.1:8"}))
    assert front_end_admin(tmp_path, None) == Address("127.0.0.1", 8)


@pytest.mark.parametrize("command", ["reload", "drain"])
def test_without_an_edge_there_is_none_to_change(run: Run, tmp_path: Path, command: str) -> None:
    result = run("edge", command, "--data", tmp_path)

    assert (result.code, "No edge runs for" in result.err) == (3, True)


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        ((), 2, "--certificates"),
        (("--certificates", "c", "--bind", "nonsense"), 2, "is not an address"),
        (("--certificates", "c", "--set", "edge_listen=unix:relative"), 2, "no absolute path"),
        (("--certificates", "c", "--set", "edge_listen=127.0.0.1:1"), 2, "trusted_proxies"),
        (("--certificates", "c", "--set", "trusted_proxies=10.0.0.0/33"), 2, "write networks as"),
    ],
)
def test_wrong_usage_is_told(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], code: int, reason: str
) -> None:
    result = run("edge", "run", "--data", tmp_path, *arguments)

    assert (result.code, reason in result.err) == (code, True), result.err


@pytest.mark.parametrize(
    ("said", "reason"), [("HAProxy version 2.4.9-1", "2.6 or newer"), ("", "2.6 or newer")]
)
def test_older_haproxy_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, reason: str
) -> None:
    program = tmp_path / "haproxy"
    program.write_text(f"#!/bin/sh\necho '{said}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(tools, "find_haproxy", lambda: program)

    result = run("edge", "run", "--data", tmp_path, "--certificates", tmp_path / "made", "--self-signed")

    assert (result.code, reason in result.err) == (3, True), result.err


def test_data_directory_that_does_not_come_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    haproxy_or_skip()
    monkeypatch.setattr("quaymaster.cli.edge.files.DATA_PATIENCE_S", 0.0)

    result = run("edge", "run", "--data", tmp_path / "missing", "--certificates", tmp_path)

    assert (result.code, "is no directory" in result.err) == (3, True)
    assert commands.VERSION_MIN == (2, 6)


def test_path_of_a_data_directory_has_at_most_82_bytes() -> None:
    # Paths of tests may be longer than that.
    with TemporaryDirectory(dir="/tmp", prefix="qm") as name:
        longest = Path(name) / ("d" * (82 - len(name) - 1))
        longer = longest.with_name(longest.name + "d")
        for directory in (longest, longer):
            directory.mkdir()

        EdgeFiles(longest).make_run()
        with pytest.raises(WrongUsage, match="too long for a socket"):
            EdgeFiles(longer).make_run()
        assert len(str(longest / EDGE_SOCKET)) + len(NEW_SUFFIX) <= UNIX_PATH_BYTES_MAX
