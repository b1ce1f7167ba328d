"""`quaymaster edge render`: files are written where they are asked for, and what is wrong is said in a line each."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.command_line import Run

EXPECTED = Path(__file__).parent / "expected"
LAYOUT = EXPECTED / "edge.toml"


def test_the_files_of_a_balancer_are_written_and_named(run: Run, tmp_path: Path) -> None:
    result = run("edge", "render", "balancer", LAYOUT, "--name", "balancer-1", "--out", tmp_path / "b" / "1")

    names = ["haproxy.cfg", "keepalived.conf", "check-balancer"]
    assert result.out.splitlines() == [str(tmp_path / "b" / "1" / name) for name in names]
    for name in names:
        path = tmp_path / "b" / "1" / name
        assert path.read_text() == (EXPECTED / "balancer-1" / name).read_text()
        assert path.stat().st_mode & 0o777 == (0o755 if name == "check-balancer" else 0o644)


def test_what_is_rendered_again_replaces_what_was_there(run: Run, tmp_path: Path) -> None:
    (tmp_path / "dnsmasq.conf").write_text("old")

    result = run("edge", "render", "dns", LAYOUT, "--out", tmp_path, "--json")

    assert result.json == {"files": [str(tmp_path / "dnsmasq.conf")]}
    assert (tmp_path / "dnsmasq.conf").read_text() == (EXPECTED / "dnsmasq.conf").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["dnsmasq.conf"]


def test_the_check_is_named_where_it_will_be_installed(run: Run, tmp_path: Path) -> None:
    place = ("--name", "balancer-2", "--out", tmp_path, "--installed")

    relative = run("edge", "render", "balancer", LAYOUT, *place, "etc/edge")
    absolute = run("edge", "render", "balancer", LAYOUT, *place, "/etc/edge")

    assert (relative.code, absolute.code) == (2, 0)
    assert "keepalived needs a path from the root" in relative.err
    assert 'script "/etc/edge/check-balancer alive"' in (tmp_path / "keepalived.conf").read_text()


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (None, ["{file} cannot be read: No such file or directory"]),
        ("name = 1", ["{file}: Expected `str`, got `int` - at `$.name`"]),
        (
            LAYOUT.read_text().replace("eth0", "-").replace("10.0.0.22", "x"),
            [
                "{file}: balancer balancer-1: '-' is not a network interface, for example eth0",
                "{file}: balancer balancer-2: '-' is not a network interface, for example eth0",
                "{file}: host frontend-2: address: 'x' is not an IPv4 address, for example 10.0.0.5",
            ],
        ),
    ],
)
def test_a_description_that_is_wrong_changes_nothing(
    run: Run, tmp_path: Path, text: str | None, lines: list[str]
) -> None:
    file = tmp_path / "edge.toml"
    if text is not None:
        file.write_text(text)

    result = run("edge", "render", "dns", file, "--out", tmp_path / "out")

    assert result.code == 2
    for line in lines:
        assert line.format(file=file) in result.err
    assert not (tmp_path / "out").exists()


def test_a_balancer_that_there_is_not_is_refused(run: Run, tmp_path: Path) -> None:
    result = run("edge", "render", "balancer", LAYOUT, "--name", "b3", "--out", tmp_path / "out")

    assert result.code == 2
    assert "there is no balancer 'b3'; there are balancer-1, balancer-2" in result.err
