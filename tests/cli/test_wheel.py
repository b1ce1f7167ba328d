"""The wheel, as people get it: built, installed into an empty environment, and run.

Offline: what it depends on is taken from the environment of the tests; that the dependencies it declares are all
it imports is a test of its own.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from harness.process import QuaymasterProcess
from harness.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
OURS = {"quaymaster", "pyspark_quaymaster", "quaymaster_pipeline"}

pytestmark = pytest.mark.slow


class InstalledProcess(QuaymasterProcess):
    """A server run from an environment of its own."""

    def __init__(self, data: Path, installed: Path) -> None:
        super().__init__(data)
        self.installed = installed

    def _executable(self) -> str:
        return str(self.installed / "bin" / "quaymaster")

    def _environment(self) -> dict[str, str]:
        return super()._environment() | environment()


def environment() -> dict[str, str]:
    """Return an environment in which dependencies are found, but not this working copy."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("QUAYMASTER_", "AWS_"))}
    return kept | {"PYTHONPATH": sysconfig.get_path("purelib")}


def run(*command: object, stdin: str = "") -> str:
    done = subprocess.run(
        [str(part) for part in command],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        capture_output=True,
        timeout=PATIENCE_S,
        check=True,
    )
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=True)
    run(folder / "bin" / "python", "-m", "pip", "install", "--no-index", "--no-deps", "--quiet", wheel)
    return folder


@pytest.fixture
def server(installed: Path, tmp_path: Path) -> Iterator[InstalledProcess]:
    process = InstalledProcess(tmp_path / "data", installed)
    process.start()
    try:
        yield process
    finally:
        process.stop()


def test_the_wheel_has_the_package_the_licence_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert "quaymaster/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == OURS


def test_the_wheel_declares_every_package_it_imports(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    [metadata] = [name for name in archive.namelist() if name.endswith("METADATA")]
    requirements = re.findall(r"^Requires-Dist: ([\w.-]+)", archive.read(metadata).decode(), re.MULTILINE)
    declared = {requirement.lower() for requirement in requirements}
    distributions = packages_distributions()

    for name in archive.namelist():
        if name.endswith(".py"):
            for module in _imported(archive.read(name)):
                if module in sys.stdlib_module_names or module in OURS:
                    continue
                owners = {owner.lower().replace("_", "-") for owner in distributions.get(module, [])}
                assert owners & declared, f"{name} imports {module}, which nothing declares"


def test_the_installed_program_sends_and_receives(server: InstalledProcess) -> None:
    def quaymaster(*arguments: str, stdin: str = "") -> str:
        return run(server.installed / "bin" / "quaymaster", *arguments, "--data", server.data, stdin=stdin)

    version = run(server.installed / "bin" / "quaymaster", "--version")
    quaymaster("queue", "create", "orders.fifo", "ContentBasedDeduplication=true")
    quaymaster("message", "send", "orders.fifo", "--lines", "--group", "g", stdin="one\ntwo\nthree\n")
    listed = quaymaster("queue", "list")
    peeked: dict[str, Any] = json.loads(quaymaster("queue", "peek", "orders.fifo", "--json"))
    received = quaymaster("message", "receive", "orders.fifo", "-n", "10", "--body-only", "--delete")
    left: dict[str, Any] = json.loads(quaymaster("queue", "list", "--json"))
    quaymaster("queue", "delete", "orders.fifo", "--confirm", "orders.fifo")

    assert re.fullmatch(r"quaymaster \d+\.\d+\.\d+\n", version)
    assert listed == "orders.fifo\t3\t0\t0\n"
    assert [(row["state"], row["body"]) for row in peeked["messages"]] == [
        ("visible", "one"),
        ("visible", "two"),
        ("visible", "three"),
    ]
    assert received == "one\ntwo\nthree\n"
    assert [(row["visible"], row["in_flight"]) for row in left["queues"]] == [(0, 0)]
    assert quaymaster("queue", "list") == ""


def test_the_installed_program_measures_itself(server: InstalledProcess) -> None:
    program = server.installed / "bin" / "quaymaster"

    printed = run(program, "bench", "--seconds", "0.5", "--batch", "10", "--data", server.data, "--json")

    actions = json.loads(printed)["actions"]
    assert actions["send"]["messages"] > 0
    assert actions["delete"]["messages"] == actions["receive"]["messages"] > 0


def test_operators_manage_accounts_and_keys(server: InstalledProcess) -> None:
    def quaymaster(*arguments: str) -> dict[str, Any]:
        program = server.installed / "bin" / "quaymaster"
        answer: dict[str, Any] = json.loads(run(program, *arguments, "--data", server.data, "--json"))
        return answer

    account = quaymaster("account", "create", "shop")
    key = quaymaster("key", "create", "--account", account["account_id"], "--name", "till")
    quaymaster("key", "disable", key["access_key_id"])
    keys = quaymaster("key", "list", "--account", account["account_id"])["keys"]
    quaymaster("key", "delete", key["access_key_id"])
    rotated = quaymaster("master-key", "rotate")
    receipts = quaymaster("receipt-key", "rotate")

    assert account["account_id"] in {row["account_id"] for row in quaymaster("account", "list")["accounts"]}
    assert {row["access_key_id"]: row["enabled"] for row in keys} == {
        account["access_key_id"]: True,
        key["access_key_id"]: False,
    }
    assert rotated["master_key_id"]
    assert receipts["receipt_key_id"]


def _imported(source: bytes) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
