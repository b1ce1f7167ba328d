"""What a role shows of itself: its metrics, and why nothing should be asked of it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from harness.waiting import PATIENCE_S

from node.test_metadata_roles import add_journals
from quaymaster.coordination.interface import StoreUnusable
from quaymaster.coordination.presence import Presence, PresenceRow
from quaymaster.coordination.store_witness import StoreWitness
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.formats import CellFormat
from quaymaster.metadata.node import MetadataNode
from quaymaster.monitoring.health import Health
from quaymaster.monitoring.metrics import Metrics
from quaymaster.node import roles
from quaymaster.node.cell import metadata_roles
from quaymaster.node.cell.membership import Membership
from quaymaster.node.node import Node
from quaymaster.settings import load_settings


def test_a_metadata_node_shows_how_old_its_knowledge_is_and_is_not_ready_when_its_store_went_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[MetadataNode] = []
    start = metadata_roles.start_metadata_node

    async def noted(*given: Any, **more: Any) -> Any:
        metadata, address = await start(*given, **more)
        started.append(metadata)
        return metadata, address

    monkeypatch.setattr("quaymaster.node.roles.start_metadata_node", noted)

    async def scenario() -> None:
        store = MemoryCoordination()
        await add_journals(store)
        settings = load_settings(flags={"node": "one", "metadata_listen": "127.0.0.1:0"}, environment={})
        async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
            unused = cast(Any, None)
            health, metrics = Health(), Metrics("0")
            node = Node(settings, "metadata", tmp_path, stack, health, metrics, unused, unused, unused)
            witness = cast(StoreWitness, None)
            presence = Presence(store, PresenceRow("metadata", "one", "0"))
            await roles.CELL_ROLES["metadata"](node, Membership(store, witness, CellFormat(), presence))
            health.set_state("serving")
            shown = metrics.render().decode()

            assert health.why_not_ready() is None
            for name in ("node_age_seconds", "node_rows", "queues"):
                assert f"\nquaymaster_metadata_{name} " in shown
            assert 'quaymaster_data_keys{state="in_use"} ' in shown
            started[0]._went_back = StoreUnusable("it went back")
            assert "it went back" in (health.why_not_ready() or "")

    asyncio.run(scenario())
