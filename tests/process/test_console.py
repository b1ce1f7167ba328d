"""The console next to a real server: it comes and goes with it, and is started again when it is killed."""

import os
import signal
from pathlib import Path
from urllib.request import urlopen

import pytest
from harness.process import QuaymasterProcess
from harness.waiting import eventually

NICE_MAX = 19
CONSOLE = "quaymaster.node.console.process"


def consoles_of(process: QuaymasterProcess) -> list[int]:
    """Return the ids of the console processes of a server."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
            except OSError:
                continue
            if CONSOLE.encode() in words and int(parent) == process.pid:
                found.append(int(entry.name))
    return found


def answers(process: QuaymasterProcess) -> bool:
    """Tell whether the console gives its metrics to the server."""
    with urlopen(f"{process.admin_url}/metrics", timeout=30) as answer:
        return b'quaymaster_build_info{worker="console"' in answer.read()


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("workers", [1, 2])
def test_a_console_is_started_again_when_it_is_killed_and_ends_with_its_server(
    tmp_path: Path, workers: int
) -> None:
    settings = {"console": "on", "console_listen": "127.0.0.1:0", "workers": str(workers)}
    process = QuaymasterProcess(tmp_path / "data", settings=settings)
    process.start()
    try:
        eventually(lambda: answers(process))
        [first] = consoles_of(process)
        of_server = os.getpriority(os.PRIO_PROCESS, process.pid)
        assert os.getpriority(os.PRIO_PROCESS, first) == min(of_server + 10, NICE_MAX)
        os.kill(first, signal.SIGKILL)
        eventually(lambda: first not in consoles_of(process) and answers(process))
        [second] = consoles_of(process)
    finally:
        process.stop()

    assert is_gone(second)
    assert "console=http://127.0.0.1:" in process.log()
    assert (tmp_path / "data" / "console.key").stat().st_mode & 0o777 == 0o600


def test_a_console_ends_when_its_server_is_killed(tmp_path: Path) -> None:
    process = QuaymasterProcess(
        tmp_path / "data", settings={"console": "on", "console_listen": "127.0.0.1:0"}
    )
    process.start()
    try:
        eventually(lambda: answers(process))
        [console] = consoles_of(process)
        process.kill9()
        eventually(lambda: is_gone(console))
        process.start()
        eventually(lambda: answers(process))
    finally:
        process.stop()
