"""What a policy denies is an audit event, up to a bound in a second, above which it is counted."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from harness.usage_blocks import NOON_US

from frontend.support import ACCOUNT, Client, serving_recorded
from frontend.usage.test_usage import records_of, url
from quaymaster.frontend.callers.principal import Principal
from quaymaster.frontend.usage import recorder as recorder_module
from quaymaster.frontend.usage.counted_refusals import COUNTED_INTERVAL_MS, OTHERS
from quaymaster.frontend.usage.recorder import DENIALS_PER_S_MAX, DENIED, UsageRecorder
from quaymaster.net.http.message import HTTPRequest
from quaymaster.protocol.sqs.response import WireForm
from quaymaster.protocol.usage.usage_records import NO_HASH, UsageRecord


class Time:
    """A clock, and a recorder that follows it."""

    def __init__(self) -> None:
        self.ms = 0.0
        self.usage = UsageRecorder(now_us=lambda: NOON_US + int(self.ms * 1000), monotonic_ms=lambda: self.ms)

    def deny(
        self, times: int = 1, account: str = ACCOUNT, action: str = "SendMessage", peer: str = "1.1.1.1"
    ) -> None:
        request = HTTPRequest(b"POST", b"/", b"/", b"", [], peer, self.ms, {}, b"")
        call: Any = SimpleNamespace(
            request=request,
            request_id="r",
            principal=Principal.of_root(account, "KEY", "1"),
            queue=None,
            queue_name="jobs",
            change=None,
            wait_ms=0,
            replied_ms=0.0,
            payload_bytes=0,
            message_count=0,
            duplicate_count=0,
            is_begun=False,
            form=WireForm.JSON,
            action=SimpleNamespace(name=action),
        )
        for _ in range(times):
            self.usage.record(call, DENIED, 403, self.ms, 100)


def events_of(records: list[UsageRecord]) -> list[UsageRecord]:
    return [record for record in records if record.category == "management"]


def counted_in(records: list[UsageRecord]) -> dict[tuple[str, str], int]:
    """Return how many denials are counted, by account and action."""
    return {
        (record.account_id, record.action): json.loads(record.request_params)["requests"]
        for record in records
        if record.request_params
    }


def test_a_denied_send_is_an_audit_event_with_who_asked_from_where_for_what() -> None:
    async def scenario() -> None:
        usage = UsageRecorder(now_us=lambda: 1)
        async with serving_recorded(usage) as service:
            await service.add_queue("jobs")
            await service.metadata.identities.create_user(ACCOUNT, "ada")
            key = await service.metadata.accounts.create_access_key(ACCOUNT, user="ada")
            ada = Client(service.client.port, key.access_key_id, key.secret)
            given = {"QueueUrl": url("jobs"), "MessageBody": "hello"}

            assert (await service.client.json("SendMessage", given)).status == 200
            assert (await ada.json("SendMessage", given)).status == 403
            assert (await ada.json("ReceiveMessage", {"QueueUrl": url("jobs")})).status == 403
            assert (await ada.json("DeleteQueue", {"QueueUrl": url("jobs")})).status == 403

        sent, send, receive, delete = records_of(usage)
        assert (sent.category, sent.record_hash) == ("data", b"")
        assert [record.action for record in (send, receive, delete)] == [
            *("SendMessage", "ReceiveMessage", "DeleteQueue")
        ]
        for record in (send, receive, delete):
            assert (record.category, record.error_code, record.http_status) == ("management", DENIED, 403)
            assert (record.account_id, record.queue_name) == (ACCOUNT, "jobs")
            assert record.principal_id.startswith("AIDA")
            assert (record.access_key_id, record.source_ip) == (ada.key_id, "127.0.0.1")
        assert send.prev_hash == NO_HASH
        assert [record.prev_hash for record in (receive, delete)] == [send.record_hash, receive.record_hash]

    asyncio.run(scenario())


@pytest.mark.parametrize("action", ["SendMessage", "DeleteQueue"])
def test_a_flood_of_denials_is_so_many_events_a_second_and_one_count_a_minute(action: str) -> None:
    time = Time()
    time.deny(1_000, action=action)
    time.ms = 1_000.0
    time.deny(1_000, action=action, peer="2.2.2.2")

    first = records_of(time.usage)
    time.ms = COUNTED_INTERVAL_MS - 1.0
    assert records_of(time.usage) == []
    time.ms = float(COUNTED_INTERVAL_MS)
    (count,) = records_of(time.usage)

    assert len(first) == 2_000
    assert len(events_of(first)) == DENIALS_PER_S_MAX
    assert not any(record.record_hash for record in first if record.category == "data")
    assert json.loads(count.request_params) == {"requests": 1_900, "seconds": 60}
    assert (count.account_id, count.action, count.error_code) == (ACCOUNT, action, DENIED)
    assert (count.category, count.source_ip, count.http_status) == ("management", "", 403)
    assert records_of(time.usage, is_last=True) == []


def test_a_flood_of_one_account_leaves_events_for_others() -> None:
    time = Time()
    time.deny(1_000)
    time.deny(20, account="222222222222")

    events = events_of(records_of(time.usage))

    assert sum(record.account_id == ACCOUNT for record in events) == DENIALS_PER_S_MAX // 2
    assert sum(record.account_id == "222222222222" for record in events) == 20


def test_what_is_counted_of_denials_is_bounded_and_loses_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "DENIED_KINDS_MAX", 3)
    monkeypatch.setattr(recorder_module, "DENIALS_PER_S_MAX", 2)
    time = Time()
    for number in range(10):
        time.deny(5, account=f"{number:012}")

    records = records_of(time.usage, is_last=True)

    counts = counted_in(records)
    assert len(counts) == 4
    assert counts["", "Unknown"] == 50 - 2 - sum(
        counts[f"{number:012}", "SendMessage"] for number in range(3)
    )
    assert [record.error_code for record in records if record.action == "Unknown"] == [OTHERS]
