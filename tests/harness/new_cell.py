"""A cell that begins with a backup: its brokers run first, then it is restored, then the rest of it is started."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from harness.etcd import EtcdCluster
from harness.process import Environment
from harness.running_cell import RunningCell

OTHERS = ("manager", "metadata", "frontend")


@contextmanager
def new_cell(
    directory: Path, brokers: int, *, settings: Mapping[str, str] | None = None
) -> Iterator[RunningCell]:
    """Give a cell of which only the brokers run."""
    directory.mkdir()
    with EtcdCluster.started(directory) as etcd:
        roles = {"broker": brokers, "manager": 1, "metadata": 1, "frontend": 1}
        cell = RunningCell(directory, etcd, roles, settings=settings)
        try:
            for process in cell.of_role("broker"):
                process.launch()
            for process in cell.of_role("broker"):
                process.wait_until_ready()
            yield cell
        finally:
            for process in cell.processes.values():
                process.kill9()


def restore_into(cell: RunningCell, backup: Path, keys: Path) -> subprocess.CompletedProcess[str]:
    """Restore a backup into a cell of which only the brokers run."""
    return cell["broker-1"].command("cell", "restore", str(backup), "--keys", str(keys))


def served(cell: RunningCell, keys: Path) -> Environment:
    """Start the rest of a restored cell, with its master keys; return how it is reached."""
    shutil.copytree(keys, cell.directory / "keys")
    for role in OTHERS:
        for process in cell.of_role(role):
            process.launch()
    for role in OTHERS:
        for process in cell.of_role(role):
            process.wait_until_ready()
    cell.wait_until_whole()
    return cell.environment()
