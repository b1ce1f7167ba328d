"""The row of a process: what goes with it when the process ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

from quaymaster.coordination.interface import ABSENT
from quaymaster.coordination.presence import Presence, PresenceRow
from quaymaster.coordination.stores.sqlite import SQLiteCoordination


def test_a_process_that_ends_before_it_was_registered_takes_no_row_of_others_with_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await SQLiteCoordination.open(tmp_path / "metadata.sqlite")
        await store.compare_and_swap("/queues/1", ABSENT, b"there")
        row = PresenceRow("pusher", "vm", "1")

        await Presence(store, row).close()
        assert [item.key for item in (await store.list_all(""))[0]] == ["/queues/1"]

        registered = Presence(store, row)
        await registered.register()
        assert len((await store.list_all(""))[0]) == 2
        await registered.close()
        assert [item.key for item in (await store.list_all(""))[0]] == ["/queues/1"]
        await store.close()

    asyncio.run(scenario())
