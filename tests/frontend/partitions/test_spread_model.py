"""Queues are split, merged and moved out of the blue: nothing is lost, doubled, out of order, or said to be empty."""

from __future__ import annotations

import pytest

from .spread_model import Kind, World
from .support import run


@pytest.mark.parametrize("kind", ["standard", "fifo", "exactly once"])
@pytest.mark.parametrize("seed", range(3))
def test_clients_see_nothing_of_changes_of_partitions(seed: int, kind: Kind) -> None:
    async def scenario() -> World:
        world = World(seed, kind, changes=2)
        await world.run()
        return world

    world = run(scenario())

    assert world.row.table_version > 1
    assert world.acknowledged_s
    assert world.empty
