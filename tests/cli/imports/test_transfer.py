"""What an import does when services are slow, busy, old, or do not answer: played servers, and a clock that jumps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest
from harness.command_line import ACCESS_KEY_ID, SECRET, PlayedServer, Refusal
from harness.waiting import PATIENCE_S, eventually

from quaymaster.cli.imports import transfer
from quaymaster.cli.imports.ledger import Known, Ledger
from quaymaster.cli.imports.transfer import ImportedQueue, Transfer
from quaymaster.cli.shared.connection import ServerConnection
from quaymaster.cli.shared.failures import CommandRefused, NoServer
from quaymaster.core.importing.messages import read_delivery

MESSAGE_ID = "5f0c3a1e-8b1d-4a3b-9a52-0c6f2f4f1d11"
UNAVAILABLE = Refusal(503, "ServiceUnavailable", "Not now.")
COMMITTED = {"Staged": 1, "AlreadyCommitted": False, "Committed": 1}


def message(message_id: str = MESSAGE_ID, body: str = "hello") -> dict[str, Any]:
    return {
        "MessageId": message_id,
        "ReceiptHandle": f"handle of {message_id}",
        "Body": body,
        "MD5OfBody": md5(body.encode(), usedforsecurity=False).hexdigest(),
    }


class Clock:
    """Time that stands but when a test moves it."""

    def __init__(self) -> None:
        self.now_ms = transfer._now_ms()

    def __call__(self) -> int:
        return self.now_ms


class Services:
    """Two played services, one queue, and one import of it."""

    def __init__(self, there: PlayedServer, here: PlayedServer, path: Path) -> None:
        self.there, self.here, self.path = there, here, path
        self.ledger = Ledger(path, source="there", target="here")
        self.transfer = Transfer(
            self._connection(there),
            self._connection(here),
            [ImportedQueue("orders", there.queue_url("orders"), here.queue_url("orders"))],
            self.ledger,
            workers=1,
            idle_s=0,
            on_progress=lambda _: None,
        )

    @staticmethod
    def _connection(server: PlayedServer) -> ServerConnection:
        return ServerConnection(server.url, "eu-test-1", ACCESS_KEY_ID, SECRET)

    def offer(self, *answers: Any) -> None:
        """Let receives be answered so, and then be empty."""
        left = list(answers)
        self.there.answers["ReceiveMessage"] = lambda _: left.pop(0) if left else {}

    def claim(self) -> Known:
        """Return what the state file knows of the message."""
        return self.ledger.claim(read_delivery(message(), "orders").identity)


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    monkeypatch.setattr(transfer, "BACK_OFF_S", (0.0,))
    there, here = PlayedServer(), PlayedServer()
    made = Services(there, here, tmp_path / "state")
    try:
        yield made
    finally:
        made.ledger.__exit__()
        there.stop()
        here.stop()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(transfer, "_now_ms", made)
    return made


def test_a_message_is_committed_and_then_deleted(services: Services) -> None:
    services.offer({"Messages": [message()]})
    services.here.answers["StageMessages"] = COMMITTED

    services.transfer.run()

    (staged,) = services.here.called("StageMessages")
    assert (staged["Commit"], staged["Deduplicate"], staged["FirstIndex"]) == (True, False, 0)
    assert [each["OriginMessageId"] for each in staged["Messages"]] == [MESSAGE_ID]
    (deleted,) = services.there.called("DeleteMessageBatch")
    assert [entry["ReceiptHandle"] for entry in deleted["Entries"]] == [f"handle of {MESSAGE_ID}"]
    assert (services.transfer.imported, services.transfer.open_queues) == (1, [])


def test_a_message_with_less_than_30_s_of_its_visibility_left_is_not_committed(
    services: Services, clock: Clock
) -> None:
    def slow(_: Any) -> Any:
        if len(services.there.called("ReceiveMessage")) > 1:
            return {}
        clock.now_ms += (transfer.VISIBILITY_S - 30) * 1000
        return {"Messages": [message()]}

    services.there.answers["ReceiveMessage"] = slow

    services.transfer.run()

    assert services.here.called("StageMessages") == []
    assert services.there.called("DeleteMessageBatch") == []
    assert services.claim() is Known.NEW


@pytest.mark.parametrize(("committed", "known"), [(1, Known.COMMITTED), (0, Known.NEW)])
def test_a_commit_that_is_not_answered_in_time_is_settled_before_others_can_receive(
    services: Services, clock: Clock, committed: int, known: Known
) -> None:
    def silent(_: Any) -> Any:
        clock.now_ms += 200_000
        return UNAVAILABLE

    services.offer({"Messages": [message()]})
    services.here.answers["StageMessages"] = silent
    services.here.answers["CommitTransaction"] = [UNAVAILABLE, {"Committed": committed}]

    services.transfer.run()

    staged, again = services.here.called("StageMessages")
    assert staged == again
    for closed in services.here.called("CommitTransaction"):
        assert (closed["SinkId"], closed["BatchId"], closed["Stages"]) == (
            staged["SinkId"],
            staged["BatchId"],
            [],
        )
    assert services.transfer.imported == committed
    assert len(services.there.called("DeleteMessageBatch")) == committed
    assert services.claim() is known


def test_a_service_that_does_not_know_the_name_of_an_attribute_is_not_asked_for_it_again(
    services: Services,
) -> None:
    unknown = Refusal(400, "InvalidAttributeName", "Unknown Attribute OriginMessageId.")
    services.offer(unknown, {"Messages": [message()]})
    services.here.answers["StageMessages"] = COMMITTED

    services.transfer.run()

    first, *others = (each["AttributeNames"] for each in services.there.called("ReceiveMessage"))
    assert first == ["All", "OriginMessageId"]
    assert all(names == ["All"] for names in others)
    assert services.transfer.imported == 1


def test_busy_services_are_asked_again(services: Services) -> None:
    throttled = Refusal(400, "RequestThrottled", "Slow down.")
    services.offer(throttled, UNAVAILABLE, {"Messages": [message()]})
    services.here.answers["StageMessages"] = [throttled, UNAVAILABLE, COMMITTED]
    services.there.answers["DeleteMessageBatch"] = [throttled, UNAVAILABLE, {}]

    services.transfer.run()

    assert services.transfer.imported == 1
    assert len(services.there.called("DeleteMessageBatch")) == 3


def test_a_message_that_was_committed_before_is_only_deleted(services: Services) -> None:
    services.offer({"Messages": [message()]}, {}, {"Messages": [message()]})
    counts = [{"ApproximateNumberOfMessages": "1"}]
    services.there.answers["GetQueueAttributes"] = lambda _: {"Attributes": counts.pop() if counts else {}}
    services.here.answers["StageMessages"] = COMMITTED

    services.transfer.run()

    assert len(services.here.called("StageMessages")) == 1
    assert len(services.there.called("DeleteMessageBatch")) == 2
    assert (services.transfer.imported, services.transfer.deleted_again) == (1, 1)


def test_a_message_that_is_not_whole_is_left_to_come_again(services: Services) -> None:
    services.offer({"Messages": [{**message(), "MD5OfBody": "0" * 32}, message("m2")]})
    services.here.answers["StageMessages"] = COMMITTED

    services.transfer.run()

    (staged,) = services.here.called("StageMessages")
    assert len(staged["Messages"]) == 1
    assert services.claim() is Known.NEW


def test_a_refused_message_stays_there_and_is_tried_once(services: Services) -> None:
    refusal = Refusal(400, "InvalidParameterValue", "Messages[1]: Too long.")
    services.offer({"Messages": [message("m1"), message(), message("m3")]}, {}, {"Messages": [message()]})
    counts = [{"ApproximateNumberOfMessages": "1"}, {"ApproximateNumberOfMessages": "2"}]
    services.there.answers["GetQueueAttributes"] = lambda _: {"Attributes": counts.pop() if counts else {}}
    services.here.answers["StageMessages"] = [refusal, {**COMMITTED, "Committed": 2}]

    services.transfer.run()

    (refused,) = services.transfer.refused.values()
    assert (refused.queue, refused.message_id, refused.reason) == ("orders", MESSAGE_ID, "Too long.")
    assert [len(each["Messages"]) for each in services.here.called("StageMessages")] == [3, 2]
    assert services.transfer.imported == 2
    (deleted,) = services.there.called("DeleteMessageBatch")
    assert len(deleted["Entries"]) == 2


def test_what_no_message_can_help_ends_the_import(services: Services) -> None:
    services.offer({"Messages": [message()]})
    services.here.answers["StageMessages"] = Refusal(403, "AccessDenied", "No.")

    with pytest.raises(CommandRefused, match=r"No\."):
        services.transfer.run()

    assert services.claim() is Known.NEW
    assert services.transfer.open_queues == ["orders"]


def test_credentials_that_have_expired_end_the_import(services: Services) -> None:
    services.there.answers["ReceiveMessage"] = Refusal(403, "ExpiredToken", "The token has expired.")

    with pytest.raises(CommandRefused, match="expired"):
        services.transfer.run()


def test_a_server_of_before_which_does_not_commit_is_told_and_nothing_is_deleted(services: Services) -> None:
    services.offer({"Messages": [message()]})
    services.here.answers["StageMessages"] = {"Staged": 1, "AlreadyCommitted": False}

    with pytest.raises(NoServer, match="older version"):
        services.transfer.run()

    assert services.there.called("DeleteMessageBatch") == []


def test_an_import_that_is_stopped_leaves_what_is_not_answered_to_the_next_start(services: Services) -> None:
    services.offer({"Messages": [message()]})
    services.here.answers["StageMessages"] = UNAVAILABLE
    running = threading.Thread(target=services.transfer.run)
    running.start()
    eventually(lambda: services.here.called("StageMessages"), "the commit is tried")

    services.transfer.stop()

    running.join(PATIENCE_S)
    assert not running.is_alive()
    (left,) = services.ledger.unsettled()
    assert left.message_ids == [MESSAGE_ID]
    assert services.there.called("DeleteMessageBatch") == []
