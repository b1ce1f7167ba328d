"""Denied requests for messages are found among the audit events, and so are counts of those that were too many."""

from __future__ import annotations

import json
from pathlib import Path

from frontend.support import ACCOUNT
from frontend.usage.test_denials import Time
from harness.pipeline_site import InProcess, Site

from quaymaster.frontend.usage.recorder import DENIALS_PER_S_MAX, DENIED
from quaymaster.protocol.usage.usage_blocks import BlockEnd, BlockOrigin, encode_block
from quaymaster_pipeline.audit.audit import Audit, Query
from quaymaster_pipeline.audit.verification import heads_of, verify_chains


def test_denied_sends_are_found_and_proved_and_so_is_the_count_of_a_flood(tmp_path: Path) -> None:
    site, time = Site(tmp_path), Time()
    time.deny(1_000)
    time.deny(3, action="CreateQueue", account="222222222222")
    taken = time.usage.take(is_last=True)
    rows = taken.columns(0, taken.count)
    block = encode_block(BlockOrigin("fe-1", 1, "r"), BlockEnd(), rows, low_watermark_us=taken.watermark_us)

    site.ship(block.data)
    site.run()

    audit = Audit(site.warehouse)
    found = audit.search(Query(account=ACCOUNT, action="SendMessage", limit=1_000))
    denied = [event for event in found if not event["request_parameters"]]
    (counted,) = [event for event in found if event["request_parameters"]]
    assert len(denied) == DENIALS_PER_S_MAX // 2
    assert {
        (event["access_key_id"], event["source_ip_address"], event["error_code"]) for event in denied
    } == {("KEY", "1.1.1.1", DENIED)}
    assert json.loads(counted["request_parameters"])["requests"] == 1_000 - len(denied)
    assert len(audit.search(Query(account="222222222222"))) == 3
    assert not verify_chains(InProcess(), site.warehouse, heads_of(())).breaks
