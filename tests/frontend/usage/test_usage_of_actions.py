"""Records of all actions are what the table says of them."""

from __future__ import annotations

import asyncio
import time
from typing import get_args

from frontend.support import serving_recorded
from frontend.test_steps import REQUESTS, ask
from quaymaster.frontend.usage.recorder import UsageRecorder
from quaymaster.protocol.actions.table import ACTIONS, UsageColumn
from quaymaster.protocol.usage.usage_blocks import BlockEnd, BlockOrigin, decode_block, encode_block
from quaymaster.protocol.usage.usage_records import UsageRecord


def recorded() -> list[UsageRecord]:
    """Return the records of a request for each action, in order."""
    usage = UsageRecorder(now_us=lambda: time.time_ns() // 1_000)

    async def scenario() -> None:
        async with serving_recorded(usage) as service:
            await service.add_queue("jobs")
            await service.add_queue("dead")
            await service.add_queue("log", RetentionMode="Log")
            for action, given in REQUESTS:
                await ask(service, action, given)

    asyncio.run(scenario())
    taken = usage.take()
    rows = taken.columns(0, taken.count)
    block = encode_block(BlockOrigin("fe", 1, "r"), BlockEnd(), rows, low_watermark_us=taken.watermark_us)
    return decode_block(block.data).records()


def test_records_have_the_category_and_the_columns_of_their_action() -> None:
    records = recorded()

    assert [record.action for record in records] == [name for name, _ in REQUESTS]
    for record in records:
        action = ACTIONS[record.action]
        assert (record.category, record.read_only) == (action.category, action.read_only)
        if action.service != "sts":
            assert bool(record.request_params) == action.is_change
        filled = {name for name in get_args(UsageColumn) if getattr(record, name)}
        assert filled <= action.usage
    assert {name for record in records for name in get_args(UsageColumn) if getattr(record, name)} >= {
        "message_count",
        "payload_bytes",
    }
