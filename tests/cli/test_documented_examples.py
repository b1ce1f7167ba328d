"""What the documents show people to type works, typed as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.process import QuaymasterProcess
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
    return run_typed(server, f'eval "$(quaymaster env)"\n{script}', f"{BIN}:{os.environ['PATH']}")


def run_in_a_new_terminal(server: QuaymasterProcess, script: str) -> str:
    """Run lines where nothing was prepared: `.venv` is beside the data, and its commands are not on the path."""
    (server.data.parent / ".venv").symlink_to(sys.prefix)
    bootstrap = server.data.parent / "scripts" / "bootstrap"
    bootstrap.parent.mkdir()
    bootstrap.write_text("#!/bin/sh\ntest -e .venv/bin/activate\n")  # what it makes is there
    bootstrap.chmod(0o755)
    folders = os.environ["PATH"].split(":")
    return run_typed(server, script, ":".join(folder for folder in folders if Path(folder) != BIN))


def run_typed(server: QuaymasterProcess, script: str, path: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("QUAYMASTER_", "AWS_"))}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"shopt -s expand_aliases\n{script}"],
        cwd=server.data.parent,
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


def test_the_start_page_works_by_hand_up_to_a_redrive(server: QuaymasterProcess) -> None:
    by_hand, fifo = [
        block
        for block in blocks("docs/start.md", "")
        if block.startswith(("quaymaster queue create orders", "quaymaster queue create payments-dead"))
    ]
    fail_to_charge = (
        "for attempt in 1 2 3; do\n"
        "  quaymaster message receive payments.fifo --visibility-timeout 0 --body-only\ndone\n"
        "quaymaster message receive payments.fifo --body-only --wait-seconds 5"
    )

    assert "two coffees" in run_as_shell(server, by_hand)
    run_as_shell(server, fifo)
    assert run_as_shell(server, fail_to_charge).splitlines() == ["charge 5"] * 3 + ["refund 5"]
    assert "charge 5" in run_as_shell(server, "quaymaster queue peek payments-dead.fifo")
    assert run_as_shell(server, "quaymaster queue redrive start payments-dead.fifo").startswith(
        "COMPLETED\t1\t"
    )


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
