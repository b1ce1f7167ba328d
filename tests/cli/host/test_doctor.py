from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest
from harness.command_line import PlayedServer, Run, write_client_file

from quaymaster.cli.host import doctor
from quaymaster.cli.host.doctor import OK, PROBLEM, WARNING, Finding
from quaymaster.settings import Settings, load_settings, parse_address


def settings_of(data: Path, **flags: object) -> Settings:
    return load_settings(flags={"data_directory": data, **flags}, environment={})


def disk_findings(data: Path, **flags: object) -> dict[str, Finding]:
    return {finding.check: finding for finding in doctor.check_disk(settings_of(data, **flags))}


@pytest.mark.parametrize(
    ("system", "release", "result"),
    [
        ("Linux", "6.1.0-18-amd64", OK),
        ("Linux", "4.13", OK),
        ("Linux", "4.4.0-210-generic", PROBLEM),
        ("Darwin", "23.1.0", WARNING),
        ("Windows", "11", PROBLEM),
    ],
)
def test_kernels_that_lose_write_errors_are_a_problem(system: str, release: str, result: str) -> None:
    assert doctor.check_kernel(system, release).result == result


def test_a_clock_behind_what_was_written_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    good = next(doctor.check_clock(tmp_path))
    an_hour_ahead_s = time.time() + 3600
    os.utime(tmp_path / "file", (an_hour_ahead_s, an_hour_ahead_s))

    bad = next(doctor.check_clock(tmp_path))

    assert good.result == OK
    assert (bad.result, bool(bad.advice)) == (PROBLEM, True)


def test_little_disk_space_is_a_warning_and_too_little_a_problem(tmp_path: Path) -> None:
    tib = 1 << 40

    assert disk_findings(tmp_path, disk_low_bytes=0, disk_reserve_segments=0)["disk space"].result == OK
    assert disk_findings(tmp_path, disk_reserve_segments=16_000_000)["disk space"].result == WARNING
    assert disk_findings(tmp_path, disk_low_bytes=999 * tib)["disk space"].result == PROBLEM


def test_disk_checks_look_at_the_place_where_a_missing_directory_will_be(tmp_path: Path) -> None:
    findings = disk_findings(tmp_path / "not" / "there")

    assert str(tmp_path) in findings["disk space"].found
    assert "median" in findings["fsync"].found
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("median_ms", "result"), [(0.001, WARNING), (1.0, OK), (50.0, WARNING), (500.0, PROBLEM)]
)
def test_fsync_is_judged_by_its_median(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, median_ms: float, result: str
) -> None:
    monkeypatch.setattr(doctor, "measure_fsync_ms", lambda place: [0.0005, median_ms, median_ms * 3])

    assert disk_findings(tmp_path)["fsync"].result == result


def test_a_disk_that_cannot_be_written_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(place: Path) -> list[float]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor, "measure_fsync_ms", refuse)

    finding = disk_findings(tmp_path)["fsync"]

    assert finding.result == PROBLEM
    assert "Permission denied" in finding.found


def test_fsync_is_measured_on_real_files_and_leaves_none_behind(tmp_path: Path) -> None:
    times_ms = doctor.measure_fsync_ms(tmp_path, tries=3)

    assert len(times_ms) == 3
    assert min(times_ms) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_data_directory_others_can_read_is_a_problem(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "keys").mkdir(parents=True)
    key = data / "keys" / "master"
    key.touch(mode=0o600)
    for path, mode in ((data, 0o700), (data / "keys", 0o700)):
        path.chmod(mode)
    private = doctor.check_permissions(data)
    metrics = data / "metrics.prom"  # for a node exporter
    metrics.touch(mode=0o644)
    metrics.chmod(0o644)
    with_metrics = doctor.check_permissions(data)
    key.chmod(0o640)

    readable = doctor.check_permissions(data)

    assert private.result == with_metrics.result == OK
    assert readable.result == PROBLEM
    assert f"{key} has mode 0640" in readable.found


def test_a_missing_data_directory_is_fine_where_it_can_be_made(tmp_path: Path) -> None:
    assert doctor.check_permissions(tmp_path / "new" / "data").result == OK


def test_a_file_in_the_place_of_the_data_directory_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "data").touch()

    assert doctor.check_permissions(tmp_path / "data").result == PROBLEM


def test_too_few_file_descriptors_for_the_connections_are_a_warning() -> None:
    few = load_settings(flags={"http_connections_max": 1, "admin_connections_max": 1}, environment={})
    many = load_settings(flags={"http_connections_max": 1 << 40}, environment={})

    assert doctor.check_file_limit(few).result == OK
    assert doctor.check_file_limit(many).result == WARNING


def test_too_little_memory_for_the_caches_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gib = 1 << 30
    monkeypatch.setattr(doctor, "_memory_available_bytes", lambda: 2 * gib)

    assert doctor.check_memory(settings_of(tmp_path, body_cache_bytes=gib)).result == OK
    assert doctor.check_memory(settings_of(tmp_path, body_cache_bytes=2 * gib)).result == WARNING


def test_a_free_port_is_fine_and_a_taken_one_a_problem(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = parse_address(f"127.0.0.1:{taken.getsockname()[1]}")

        finding = doctor.check_port("listen", address, tmp_path)

    assert finding.result == PROBLEM
    assert "--listen" in finding.advice
    assert doctor.check_port("listen", address, tmp_path).result == OK


def test_a_port_taken_by_our_own_server_is_fine(data: Path, server: PlayedServer) -> None:
    address = parse_address(server.url.removeprefix("http://"))
    server.answers["GET /health/live"] = {}
    server.is_verified = False

    assert doctor.check_port("admin", address, data).result == OK


def test_a_port_taken_by_the_server_of_other_data_is_a_problem(
    data: Path, server: PlayedServer, tmp_path: Path
) -> None:
    address = parse_address(server.url.removeprefix("http://"))

    assert doctor.check_port("admin", address, tmp_path / "other").result == PROBLEM


def test_what_a_running_server_tells_operators_is_shown(data: Path, server: PlayedServer) -> None:
    server.is_verified = False
    server.answers["GET /health/ready"] = [
        {"status": "ready"},
        {"status": "ready", "notices": ["nothing expires in journal 0: clocks are 9.0 s ahead of its time"]},
        {"status": "not ready", "reason": "The process is draining."},
    ]

    (fine,), (held,), (away,) = (list(doctor.check_server(data)) for _ in range(3))

    assert fine.result == OK
    assert (held.result, held.found) == (
        WARNING,
        "nothing expires in journal 0: clocks are 9.0 s ahead of its time",
    )
    assert "clock accept" in held.advice
    assert (away.result, away.found) == (WARNING, "The process is draining.")


def test_of_a_server_that_does_not_run_nothing_is_said(tmp_path: Path) -> None:
    assert list(doctor.check_server(tmp_path / "new")) == []
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and nobody listens
        write_client_file(tmp_path, *[f"http://127.0.0.1:{silent.getsockname()[1]}"] * 2)

        assert list(doctor.check_server(tmp_path)) == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:many", "http://[::1", "http://127.0.0.1:99999"])
def test_of_a_server_whose_address_cannot_be_read_nothing_is_said(tmp_path: Path, url: str) -> None:
    write_client_file(tmp_path, url, url)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = parse_address(f"127.0.0.1:{other.getsockname()[1]}")

        assert list(doctor.check_server(tmp_path)) == []
        assert doctor.check_port("listen", address, tmp_path).result == PROBLEM


def test_file_that_goes_while_it_is_looked_at_is_no_matter(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")

    assert next(doctor.check_clock(tmp_path)).result == OK
    assert doctor.check_permissions(tmp_path).result == OK


def test_directory_that_may_not_be_looked_at_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "of another"

    def refuse(path: Path, **_: object) -> os.stat_result:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)

    problems = [finding for finding in doctor.check_up(settings_of(data)) if finding.result == PROBLEM]

    assert [(finding.check, "Permission denied" in finding.found) for finding in problems] == [
        ("permissions", True)
    ]


def test_doctor_ends_with_one_when_something_is_wrong(run: Run, tmp_path: Path) -> None:
    ports = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")

    wrong = run("doctor", "--data", tmp_path / "new", *ports, "--set", f"disk_low_bytes={1 << 60}", "--json")

    found = {check["check"]: check for check in wrong.json["checks"]}
    assert wrong.code == 1
    assert found["disk space"]["result"] == "problem"
    assert found["disk space"]["advice"]


def test_doctor_says_what_to_do(run: Run, tmp_path: Path) -> None:
    ports = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")

    result = run("doctor", "--data", tmp_path / "new", *ports, "--set", f"disk_low_bytes={1 << 60}")

    assert "disk space\tproblem\t" in result.out
    assert "disk space: Sends are refused below" in result.out
