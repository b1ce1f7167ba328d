"""A broker that only coordination cannot be reached from is not made a leader, and one that leads goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.waiting import PATIENCE_S

from quaymaster.core.cell.cell import broker_of

from .cell import Cell
from .probes import Probes

SUSPECT = "broker-1"
"""The first among equals, so the one that is appointed when nothing speaks against it."""
KILLED = "broker-2"

pytestmark = pytest.mark.privileged


def until(cell: Cell, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"{cell.configurations()}\n{cell.logs()}"
        time.sleep(0.02)


def is_told(cell: Cell, problem: str) -> bool:
    """Whether every manager has told of a problem."""
    return all(problem in member.log_path.read_text() for member in cell.of_role("manager"))


@pytest.mark.timeout(300)
def test_journals_of_a_killed_broker_go_to_one_that_reaches_etcd(tmp_path: Path) -> None:
    with Cell.started(tmp_path, etcd_members=1) as cell:
        probes = Probes(cell.environment(), cell.addresses)
        probes.start()
        before = cell.configurations()
        cell.hosts.cut(SUSPECT, "etcd-1")
        until(cell, lambda: is_told(cell, f"broker {SUSPECT} does not reach coordination"))
        assert cell.configurations() == before

        killed_ns = time.monotonic_ns()
        cell.member(KILLED).kill9()
        until(
            cell,
            lambda: all(
                one.activated and broker_of(one.leader) != KILLED for one in cell.configurations().values()
            ),
        )
        until(cell, lambda: probes.all_work_since(killed_ns))

        after = cell.configurations()
        probes.stop()
        print(f"longest gap of a queue: {probes.queue_gap_s(killed_ns):.2f} s")
        for number, old in before.items():
            was_killed = broker_of(old.leader) == KILLED
            assert after[number].epoch == old.epoch + was_killed
            assert broker_of(after[number].leader) == ("broker-3" if was_killed else broker_of(old.leader))
