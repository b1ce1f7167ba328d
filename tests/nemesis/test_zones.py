"""A zone of three is lost, with all that runs there: nothing acknowledged is lost, and every queue is served soon.

How soon is printed; the machine's other work is in it, so that nothing is asserted of it but that it comes.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from harness.checker import check
from harness.history import Disturbed
from harness.load import Load
from harness.waiting import eventually

from quaymaster.core.cell.cell import broker_of

from .nemesis import cell_queues
from .probes import Probes
from .zones import ZONES, ZonedCell

ACKNOWLEDGED = 60
"""Messages before and after each loss."""
CALL_TIMEOUT_S = 8.0
DRAIN_TIMEOUT_S = 300.0

pytestmark = [pytest.mark.privileged, pytest.mark.slow]


def acting_zone(cell: ZonedCell) -> str:
    """Return the zone of the manager that acts: its loss is the worst."""
    told = [
        (line, manager.host)
        for manager in cell.of_role("manager")
        for line in manager.log_path.read_text().splitlines()
        if "manager began to act" in line
    ]
    return max(told)[1]


def zones_of(cell: ZonedCell) -> dict[int, set[str]]:
    """Return in which zones the members of each journal are."""
    return {
        number: {cell.member(broker_of(member)).host for member in one.members}
        for number, one in cell.configurations().items()
    }


@pytest.mark.timeout(600)
@pytest.mark.parametrize("loss", ["cut off", "killed"])
def test_a_lost_zone_costs_no_message_and_no_queue(tmp_path: Path, loss: str) -> None:
    with ZonedCell.in_zones(tmp_path) as cell:
        assert list(zones_of(cell).values()) == [set(ZONES)] * len(ZONES)
        leaders = {broker_of(one.leader) for one in cell.configurations().values()}
        assert {cell.member(name).host for name in leaders} == set(ZONES)
        lost = acting_zone(cell)
        environment = cell.environment()
        prefix = f"arn:aws:sqs:{environment.region}:{environment.account_id}:"
        load = Load(
            environment,
            cell.addresses,
            queues=cell_queues(prefix),
            workers=3,
            pause_s=0.03,
            large_share=0.001,
            timeout_s=CALL_TIMEOUT_S,
        )
        load.create_queues()
        left = [
            address
            for address, front_end in zip(cell.addresses, cell.of_role("frontend"), strict=True)
            if front_end.host != lost
        ]
        probes = Probes(environment, left)
        probes.start()
        load.start()
        load.work_until(ACKNOWLEDGED)

        lost_ns = time.monotonic_ns()
        if loss == "killed":
            cell.kill(lost)
        else:
            cell.cut_off(lost)
        eventually(lambda: probes.all_work_since(lost_ns), "every queue to be served without the zone")
        load.work_until(load.figures.acknowledged + ACKNOWLEDGED)
        gap_s = probes.queue_gap_s(lost_ns)

        assert all(cell.member(broker_of(one.leader)).host != lost for one in cell.configurations().values())
        cell.heal(loss)
        cell.wait_until_ready()
        # What a leader of the zone had not committed may have been forgotten: receives of standard queues.
        load.add(Disturbed(lost_ns, time.monotonic_ns(), loss))
        load.stop()
        probes.stop()
        load.drain(DRAIN_TIMEOUT_S)
        verdict = check(load.history)

    print(f"{lost} {loss}: every queue served after {gap_s:.2f} s; {verdict.report()}")
    assert verdict.violations == []
    assert cell.ends == {}
