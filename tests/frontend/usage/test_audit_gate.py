"""No change begins while its audit event cannot be written, and none is answered as done before it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import pytest
from harness.waiting import PATIENCE_S

from frontend.admin.test_admin import Port, administered
from frontend.support import until
from frontend.usage.test_usage_spool import failing
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.frontend.assembly import make_usage_feed
from quaymaster.frontend.usage import audit_gate
from quaymaster.frontend.usage.spool_blocks import OWED_BYTES
from quaymaster.frontend.usage.usage_feed import UsageFeed
from quaymaster.settings import load_settings

__all__ = ["failing"]


class Audited(NamedTuple):
    """A front end and an admin port, whose records a feed writes."""

    port: Port
    feed: UsageFeed

    async def create_queue(self, name: str) -> tuple[int, str]:
        answer = await self.port.service.client.json("CreateQueue", {"QueueName": name})
        return answer.status, "" if answer.status == 200 else answer.json["message"]

    async def create_key(self) -> tuple[int, dict[str, Any]]:
        answer = await self.port.call("POST", "keys", {"name": "robot"})
        return answer.status, answer.json

    async def send(self) -> int:
        given = {"QueueUrl": self.port.service.client.url("orders"), "MessageBody": "hello"}
        return (await self.port.service.client.json("SendMessage", given)).status

    def sample(self, name: str) -> float:
        return sum(sample.value for sample in self.feed.samples() if sample.name == name)


@asynccontextmanager
async def audited(directory: Path) -> AsyncIterator[Audited]:
    settings = load_settings(flags={"usage_sync_ms": 10}, environment={})
    feed = make_usage_feed(settings, directory, node="fe-1")
    await feed.start(MemoryCoordination(), "us-east-1")
    async with administered(usage=feed.recorder) as port:
        port.admin.record_acts(feed.recorder)
        await port.service.add_queue("orders")
        yield Audited(port, feed)
    await feed.stop()


def test_while_the_disk_fails_no_change_begins_and_messages_go_on(tmp_path: Path, failing: list[str]) -> None:
    async def scenario() -> None:
        async with audited(tmp_path) as one:
            failing.append("pwrite")
            assert await one.send() == 200
            await until(lambda: one.feed.recorder.audit.trouble is not None)

            status, message = await one.create_queue("refused")
            key_status, key = await one.create_key()
            looked = await one.port.service.client.json("ListQueues", {})

            assert (status, key_status, looked.status) == (503, 503, 200)
            assert message.startswith("Nothing was changed")
            assert "make room" in message
            assert key["error"]["message"] == message
            assert "secret_access_key" not in key
            assert (
                one.port.service.metadata.find_queue(one.port.service.settings.account_id, "refused") is None
            )
            assert await one.send() == 200
            assert one.sample("quaymaster_usage_changes_refused") == 1
            assert len(one.feed.notices()) == 1

            failing.clear()
            await until(lambda: one.feed.recorder.audit.trouble is None)

            assert (await one.create_queue("taken"))[0] == 200
            assert (await one.create_key())[0] == 200
            assert one.sample("quaymaster_usage_changes_refused") == 0
            assert one.feed.notices() == []

    asyncio.run(scenario())


def test_the_change_that_meets_the_failure_is_answered_once_its_event_is_written(
    tmp_path: Path, failing: list[str]
) -> None:
    async def scenario() -> None:
        async with audited(tmp_path) as one:
            failing.append("pwrite")
            creating = asyncio.create_task(one.create_key())
            await until(lambda: one.feed.recorder.audit.trouble is not None)
            assert not creating.done()
            written = one.sample("quaymaster_usage_records_written_total")

            failing.clear()
            status, key = await creating

            assert (status, "secret_access_key" in key) == (200, True)
            assert one.sample("quaymaster_usage_records_written_total") == written + 1
            assert one.sample("quaymaster_usage_records_dropped_total") == 0

    asyncio.run(scenario())


def test_temporary_credentials_are_given_once_their_event_is_written_and_not_while_none_can_be(
    tmp_path: Path, failing: list[str]
) -> None:
    async def scenario() -> None:
        async with audited(tmp_path) as one:
            client = one.port.service.client
            failing.append("pwrite")
            asking = asyncio.create_task(client.sts("GetSessionToken", {}))
            await until(lambda: one.feed.recorder.audit.trouble is not None)
            assert not asking.done()
            written = one.sample("quaymaster_usage_records_written_total")

            refused = await client.sts("GetSessionToken", {})
            identity = await client.sts("GetCallerIdentity", {})
            failing.clear()
            given = await asking

            assert (refused.status, identity.status, given.status) == (503, 200, 200)
            assert b"SecretAccessKey" not in refused.body
            assert b"SecretAccessKey" in given.body
            assert one.sample("quaymaster_usage_records_written_total") >= written + 1

    asyncio.run(scenario())


def test_a_change_whose_event_is_not_written_in_time_has_an_unknown_outcome(
    tmp_path: Path, failing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_gate, "WRITE_WAIT_S", 0.05)

    async def scenario() -> None:
        async with audited(tmp_path) as one:
            failing.append("pwrite")

            status, message = await one.create_queue("made")

            assert status == 503
            assert message.startswith("The outcome is unknown")
            failing.clear()
            monkeypatch.setattr(audit_gate, "WRITE_WAIT_S", PATIENCE_S)
            await until(lambda: one.feed.recorder.audit.trouble is None)
            assert one.sample("quaymaster_usage_records_written_total") == 1
            assert (await one.create_queue("made"))[0] == 200  # as it was

            monkeypatch.setattr(audit_gate, "WRITE_WAIT_S", 0.05)
            failing.append("pwrite")
            key_status, key = await one.create_key()
            failing.clear()

            assert key_status == 503
            assert "not shown again" in key["error"]["message"]

    asyncio.run(scenario())


def test_a_disk_that_does_not_answer_lets_no_change_begin_until_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_gate, "WRITE_WAIT_S", 0.05)

    async def scenario() -> None:
        async with audited(tmp_path) as one:
            goes_on = Event()
            one.feed._thread.submit(goes_on.wait)
            try:
                assert (await one.create_queue("late"))[1].startswith("The outcome is unknown")
                assert one.feed.recorder.audit.trouble == "disk_late"
                assert (await one.create_queue("refused"))[1].startswith("Nothing was changed")
                assert await one.send() == 200
            finally:
                monkeypatch.setattr(audit_gate, "WRITE_WAIT_S", PATIENCE_S)
                goes_on.set()

            await until(lambda: one.feed.recorder.audit.trouble is None)
            await until(lambda: one.feed.recorder.waiting == 0)
            assert (await one.create_queue("taken"))[0] == 200

    asyncio.run(scenario())


def test_a_spool_that_is_full_refuses_changes_once_their_own_room_is_used_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with audited(tmp_path) as one:
            one.feed._spool._bytes_max = 0
            assert await one.send() == 200
            await until(lambda: one.sample("quaymaster_usage_records_dropped_total") == 1)
            assert (await one.create_queue("taken"))[0] == 200

            one.feed._spool._bytes_max = -OWED_BYTES
            await one.send()
            await until(lambda: one.feed.recorder.audit.trouble == "spool_full")
            status, message = await one.create_queue("refused")
            assert (status, "usage_spool_bytes_max" in message) == (503, True)
            blocks = one.feed._spool.size_bytes

            one.feed._spool._bytes_max = 1 << 20
            await until(lambda: one.feed.recorder.audit.trouble is None)

            assert one.feed._spool.size_bytes - blocks < 4096  # looks are not written into a full spool
            assert (await one.create_queue("another"))[0] == 200

    asyncio.run(scenario())


def test_the_log_tells_of_a_change_of_state_and_not_of_each_request(
    tmp_path: Path, failing: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with audited(tmp_path) as one:
            failing.append("pwrite")
            await one.send()
            await until(lambda: one.feed.recorder.audit.trouble is not None)
            for _ in range(5):
                await one.create_queue("refused")
                await one.send()
            failing.clear()
            await until(lambda: one.feed.recorder.audit.trouble is None)
            await one.send()

    asyncio.run(scenario())

    told = [record.message for record in caplog.records]
    assert told.count("usage records not written") == 1
    assert told.count("changes are refused: their audit events cannot be written") == 1
    assert told.count("changes are taken again: their audit events can be written") == 1


def test_a_change_that_is_refused_is_answered_although_its_event_cannot_be_written(
    tmp_path: Path, failing: list[str]
) -> None:
    async def scenario() -> None:
        async with audited(tmp_path) as one:
            failing.append("pwrite")
            await one.send()
            await until(lambda: one.feed.recorder.audit.trouble is not None)

            answer = await one.port.service.client.json("CreateQueue", {"QueueName": 7})

            assert answer.status == 400
            failing.clear()

    asyncio.run(scenario())
