"""What the documents show people to type works, typed as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.process import QuaymasterProcess, free_port
from harness.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
NOWHERE = "http://127.0.0.1:9"
LOOPBACK_ONLY = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), NOWHERE),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1"),
}

pytestmark = pytest.mark.slow


def blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a page in one language; empty: blocks that name none."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for named, block in found if named == language]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[QuaymasterProcess]:
    process = QuaymasterProcess(tmp_path / "quaymaster-data")
    process.start()
    try:
        yield process
    finally:
        process.stop()


def run_as_shell(server: QuaymasterProcess, script: str) -> str:
    """Run lines as somebody would type them in the server's directory, with the clients' variables set."""
    return run_typed(server.data.parent, f'eval "$(quaymaster env)"\n{script}', f"{BIN}:{os.environ['PATH']}")


def run_in_a_new_terminal(server: QuaymasterProcess, script: str) -> str:
    """Run lines where nothing was prepared: `.venv` is beside the data, and its commands are not on the path."""
    (server.data.parent / ".venv").symlink_to(sys.prefix)
    bootstrap = server.data.parent / "scripts" / "bootstrap"
    bootstrap.parent.mkdir()
    bootstrap.write_text("#!/bin/sh\ntest -e .venv/bin/activate\n")  # what it makes is there
    bootstrap.chmod(0o755)
    folders = os.environ["PATH"].split(":")
    return run_typed(
        server.data.parent, script, ":".join(folder for folder in folders if Path(folder) != BIN)
    )


def run_typed(directory: Path, script: str, path: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("QUAYMASTER_", "AWS_"))}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"shopt -s expand_aliases\n{script}"],
        cwd=directory,
        env=kept | LOOPBACK_ONLY | {"PATH": path, "AWS_PAGER": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_readme_sends_and_receives_with_the_aws_cli(server: QuaymasterProcess) -> None:
    [script] = [block for block in blocks("README.md", "") if "aws --endpoint" in block]

    printed = run_in_a_new_terminal(server, script)

    assert '"Body": "two coffees"' in printed


def test_the_readme_sends_with_no_sdk(server: QuaymasterProcess) -> None:
    [script] = [block for block in blocks("README.md", "") if "aws --endpoint" in block]
    *prepare, _alias, _create, _send, _receive = [line for line in script.splitlines() if line]
    [send] = re.findall(r"with no SDK at all: `(.+)`", (ROOT / "README.md").read_text(encoding="utf-8"))

    run_in_a_new_terminal(server, "\n".join([*prepare, "quaymaster queue create orders", send]))

    assert run_as_shell(server, "quaymaster queue list") == "orders\t1\t0\t0\n"


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_pages_send_and_receive_with_boto3(server: QuaymasterProcess, page: str) -> None:
    [program] = blocks(page, "python")

    printed = run_as_shell(server, f"python - <<'PROGRAM'\n{program}\nPROGRAM")

    assert printed == "two coffees\n"
    assert run_as_shell(server, "quaymaster queue list") == "orders\t0\t0\t0\n"


def test_commands_of_the_start_page_print_what_it_shows(server: QuaymasterProcess) -> None:
    text = (ROOT / "docs" / "start.md").read_text(encoding="utf-8").partition("\n## 5. ")[0]
    shown = re.findall(
        r"^```\n((?:quaymaster|for) .*?)^```\n\n```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    )

    for command, output in shown:
        printed = run_as_shell(server, command)
        assert _without_what_differs(printed) == _without_what_differs(output), command

    assert [command for command, _ in shown if "queue redrive start" in command]


def _without_what_differs(output: str) -> str:
    """Return output without ids, times and the port, which are others in each run."""
    for pattern in (
        r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        r"AIDA\w+",
        r"\d{13}",
        r"\d{4}-\d\d-\d\d \S+Z",
    ):
        output = re.sub(pattern, "...", output)
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:...", output)


def test_the_readme_serves_a_test_suite_until_its_shell_ends(tmp_path: Path) -> None:
    [script] = [block for block in blocks("README.md", "") if "mktemp" in block]
    ports = {"9324": str(free_port()), "9325": str(free_port())}
    script = script.replace("serve ", "serve --listen 127.0.0.1:9324 --admin 127.0.0.1:9325 ")
    script = script.replace("\npytest ", '\nquaymaster queue create orders --data "$dir" ')
    for usual, free in ports.items():
        script = script.replace(usual, free)

    # Returns when nothing holds its output any more: the server has ended, too.
    printed = run_typed(tmp_path, f"export TMPDIR={tmp_path}\n{script}", f"{BIN}:{os.environ['PATH']}")

    assert printed.endswith(f"http://127.0.0.1:{ports['9324']}/000000000000/orders\n")


def test_the_declared_queues_of_the_start_page_are_made(tmp_path: Path) -> None:
    [declared] = blocks("docs/start.md", "toml")
    (tmp_path / "queues.toml").write_text(declared)
    process = QuaymasterProcess(
        tmp_path / "quaymaster-data", settings={"queues_file": str(tmp_path / "queues.toml")}
    )
    process.start()
    try:
        shown = run_as_shell(process, "quaymaster queue show orders")
    finally:
        process.stop()

    assert "VisibilityTimeout\t60\n" in shown
    assert "orders-dead" in shown
