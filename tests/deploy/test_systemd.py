"""The systemd units: judged by systemd-analyze, compared with the program, and their sandbox tried where it can be."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from harness.process import QuaymasterProcess, free_port
from harness.short_paths import short_directory
from harness.waiting import PATIENCE_S

from quaymaster.cli.shared.tools import find_haproxy
from quaymaster.net.listener import BACKLOG
from quaymaster.node.roles import CELL_ROLES, SERVER

from .support import A_KEY, DEPLOY, TOOLS, check_command, lint, program_or_skip

SYSTEMD = DEPLOY / "systemd"
UNITS = sorted(SYSTEMD.glob("*.service"))
SETTINGS = sorted((SYSTEMD / "etc").glob("*.toml"))
EXPOSURE_MAX = 20
"""In tenths: `systemd-analyze security` calls up to 2.0 "OK"; a service without a sandbox has 9.6."""
NOT_JUDGED = "the units are not judged by systemd itself (Debian, Ubuntu: apt-get install systemd)"
PR_SET_MDWE, PR_GET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 66, 1


def name_of(path: Path) -> str:
    return path.name


def read(unit: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the settings of each section, in order; a name may be there more than once."""
    found: dict[str, list[tuple[str, str]]] = {}
    section = ""
    for line in unit.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(section, []).append((name, value))
    return found


def words_of(unit: Path, name: str) -> list[str]:
    [found] = [value for key, value in read(unit)["Service"] if key == name]
    return found.split()


def test_there_is_a_unit_for_each_role_and_settings_for_each_unit() -> None:
    commands = {check_command(words_of(unit, "ExecStart")[1:]) for unit in UNITS}
    files = {words_of(unit, "ExecStart")[words_of(unit, "ExecStart").index("--config") + 1] for unit in UNITS}

    assert commands == {"serve", "edge run", *(f"run {role}" for role in CELL_ROLES)}
    assert {settings.stem for settings in SETTINGS} == {SERVER, "edge", *CELL_ROLES}
    assert files == {f"/etc/quaymaster/{settings.name}" for settings in SETTINGS}


def test_an_edge_stops_with_its_front_end_and_before_it_and_has_none_of_its_secrets() -> None:
    unit = read(SYSTEMD / "quaymaster-edge@.service")
    front_end = "quaymaster-%i.service"

    assert dict(unit["Unit"])["BindsTo"] == front_end
    assert front_end in dict(unit["Unit"])["After"].split()
    assert dict(unit["Install"])["WantedBy"] == front_end
    assert {"quaymaster-frontend.service", "quaymaster-server.service"} <= {unit.name for unit in UNITS}
    assert "EnvironmentFile" not in dict(unit["Service"])


@pytest.mark.parametrize("unit", UNITS, ids=name_of)
def test_systemd_takes_the_unit(unit: Path, tmp_path: Path) -> None:
    analyze = program_or_skip("systemd-analyze", NOT_JUDGED)
    # As installed, but for the program: it is looked for.
    for other in UNITS:
        text = other.read_text(encoding="utf-8").replace(
            "/opt/quaymaster/bin/quaymaster", str(TOOLS / "quaymaster")
        )
        (tmp_path / other.name).write_text(text)
    name = unit.name.replace("@", "@frontend")

    printed = lint(analyze, "verify", "--man=no", tmp_path / name)

    assert name not in printed, printed


@pytest.mark.parametrize("unit", UNITS, ids=name_of)
def test_the_sandbox_of_a_unit_is_tight(unit: Path) -> None:
    analyze = program_or_skip("systemd-analyze", NOT_JUDGED)

    lint(analyze, "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", "--no-pager", unit)


@pytest.mark.parametrize("unit", UNITS, ids=name_of)
def test_commands_of_a_unit_exist(unit: Path) -> None:
    for name in ("ExecStartPre", "ExecStart", "ExecReload", "ExecStop"):
        for key, value in read(unit)["Service"]:
            if key == name and value.startswith("/opt/quaymaster/bin/quaymaster "):
                check_command(value.split()[1:])


@pytest.mark.parametrize("unit", UNITS, ids=name_of)
def test_a_unit_gives_a_drain_the_time_that_it_takes_and_starts_again(unit: Path) -> None:
    service = dict(read(unit)["Service"])

    assert int(service["TimeoutStopSec"]) >= 60
    assert service["Restart"] == "always"
    assert service["User"] == "quaymaster"


@pytest.mark.parametrize("settings", SETTINGS, ids=name_of)
def test_processes_can_start_with_the_settings(settings: Path) -> None:
    secrets = {"QUAYMASTER_MASTER_KEY": A_KEY}
    if "etcd_user" in settings.read_text(encoding="utf-8"):
        secrets["QUAYMASTER_ETCD_PASSWORD"] = "secret"

    lint("quaymaster", "config", "check", settings, **secrets)


def test_directories_and_users_of_the_units_are_made() -> None:
    users = (SYSTEMD / "quaymaster.sysusers.conf").read_text()
    directories = re.findall(r"^d (\S+)", (SYSTEMD / "quaymaster.tmpfiles.conf").read_text(), re.MULTILINE)

    assert re.search(r"^u quaymaster ", users, re.MULTILINE)
    assert {"/etc/quaymaster", "/etc/quaymaster/tls"} <= set(directories)
    for unit in UNITS:
        for _, word in [pair for pair in read(unit)["Service"] if pair[0] == "ExecStart"]:
            assert all(path.startswith("/etc/quaymaster/") for path in re.findall(r"--config (\S+)", word))


def test_the_kernel_settings_exist() -> None:
    text = (SYSTEMD / "quaymaster.sysctl.conf").read_text()
    found = dict(re.findall(r"^([a-z.]+) = (\d+)$", text, re.MULTILINE))

    assert set(found) == {"net.core.somaxconn", "vm.swappiness"}
    assert int(found["net.core.somaxconn"]) == BACKLOG
    for name in found:
        assert Path("/proc/sys", *name.split(".")).exists() or not Path("/proc/sys").exists(), name


def test_systemd_makes_the_user_and_the_directories(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: that systemd makes user and directories is not tested")
    (tmp_path / "etc").mkdir()

    lint(
        program_or_skip("systemd-sysusers", NOT_JUDGED),
        f"--root={tmp_path}",
        SYSTEMD / "quaymaster.sysusers.conf",
    )
    lint(
        program_or_skip("systemd-tmpfiles", NOT_JUDGED),
        f"--root={tmp_path}",
        "--create",
        SYSTEMD / "quaymaster.tmpfiles.conf",
    )

    group = re.search(r"^quaymaster:x:(\d+):", (tmp_path / "etc/group").read_text(), re.MULTILINE)
    assert group is not None
    for name in ("etc/quaymaster", "etc/quaymaster/tls", "etc/quaymaster/edge"):
        status = (tmp_path / name).stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (0, int(group[1]), 0o750)


@pytest.mark.parametrize("unit", UNITS, ids=name_of)
def test_a_unit_leaves_what_tells_the_uptime_readable(unit: Path) -> None:
    # Without /proc/uptime and the boot's id, queue time cannot be carried over a restart.
    assert "ProcSubset" not in dict(read(unit)["Service"])


class RefusingProcess(QuaymasterProcess):
    """A server that may not make memory executable, as with `MemoryDenyWriteExecute`."""

    def _executable(self) -> str:
        program = self.data.parent / "refusing"
        program.write_text(
            f"#!{TOOLS / 'python'}\n"
            "import ctypes, os, sys\n"
            f"assert ctypes.CDLL(None).prctl({PR_SET_MDWE}, {PR_MDWE_REFUSE_EXEC_GAIN}, 0, 0, 0) == 0\n"
            f"os.execv({str(TOOLS / 'quaymaster')!r}, ['quaymaster', *sys.argv[1:]])\n"
        )
        program.chmod(0o700)
        return str(program)

    def edge(self, port: int, log: Path) -> subprocess.Popen[bytes]:
        """Start the server's edge in the same way, with a certificate that it makes."""
        words: list[str | Path] = [
            "edge",
            "run",
            "--data",
            self.data,
            "--bind",
            f"127.0.0.1:{port}",
            "--self-signed",
        ]
        words += [
            "--certificates",
            self.data.parent / "certificates",
            "--set",
            f"edge_admin=127.0.0.1:{free_port()}",
        ]
        with log.open("wb") as output:
            return subprocess.Popen(
                [self._executable(), *words], stdout=output, stderr=output, env=self._environment()
            )


@pytest.fixture
def short_path() -> Iterator[Path]:
    with short_directory() as path:
        yield path


@pytest.mark.slow
def test_a_server_and_its_edge_run_where_memory_cannot_become_executable(short_path: Path) -> None:
    if ctypes.CDLL(None).prctl(PR_GET_MDWE, 0, 0, 0, 0) < 0:
        pytest.skip(
            "this kernel is older than 6.3: that a server runs with MemoryDenyWriteExecute is not tested"
        )
    if find_haproxy() is None:
        pytest.skip("there is no HAProxy: the edge is not tested (scripts/haproxy gets one)")
    server, port = RefusingProcess(short_path / "data"), free_port()
    server.start()
    edge = server.edge(port, short_path / "edge.log")
    try:
        while f"Serving https://127.0.0.1:{port}" not in (short_path / "edge.log").read_text():
            assert edge.poll() is None, (short_path / "edge.log").read_text()
            time.sleep(0.05)
        known = server.env()
        sqs = boto3.client(
            "sqs",
            endpoint_url=f"https://127.0.0.1:{port}",
            verify=str(short_path / "certificates" / "ca.crt"),
            region_name=known.region,
            aws_access_key_id=known.access_key_id,
            aws_secret_access_key=known.secret_access_key,
        )
        url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    finally:
        edge.terminate()
        code = edge.wait(PATIENCE_S)
        server.stop()

    assert url.startswith("https://")
    assert code == 0
