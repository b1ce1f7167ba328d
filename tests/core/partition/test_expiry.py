"""Which partitions are worth a look for messages that have had their time."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from harness.replica_host import Host, arn, message, queue

from quaymaster.core.partition.expiry import find_expired, may_find_expired
from quaymaster.core.structures import log_sizes
from quaymaster.core.values.commands.decided import TakenOutcome
from quaymaster.core.values.commands.logs import SetGroupOffset
from quaymaster.core.values.commands.messages import Receive, Send
from quaymaster.core.values.commands.moves import MoveMessage
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.core.values.queues.queue_definitions import replace_definition

JOBS, DEAD, GROUP = 1, 2, 3


def host_of(name: str = "jobs", **attributes: str) -> Host:
    host = Host()
    host.ask(SetQueue(queue(JOBS, name, attributes=attributes)))
    return host


def log_host(attributes: Mapping[str, str]) -> Host:
    host = host_of(RetentionMode="Log", **attributes)
    host.ask(SetQueue(replace_definition(queue(GROUP, "jobs@a"), group_of=JOBS)))
    return host


def test_nothing_has_expired_before_the_oldest_message_has_had_its_time() -> None:
    host = host_of(MessageRetentionPeriod="60")
    host.ask(Send(JOBS, 0, [message(1)]))
    host.now_ms += 30_000
    host.ask(Send(JOBS, 0, [message(2)]))
    found = host.partition(JOBS)

    assert not may_find_expired(found, host.now_ms + 29_999)
    assert may_find_expired(found, host.now_ms + 30_000)
    assert find_expired(found, host.now_ms + 30_000, 10) == (2, [])


def test_messages_that_were_moved_may_have_expired_behind_younger_ones() -> None:
    host = host_of()
    policy = f'{{"deadLetterTargetArn": "{arn("dead")}", "maxReceiveCount": 1}}'
    host.ask(SetQueue(queue(JOBS, revision=2, name="jobs", attributes={"RedrivePolicy": policy})))
    host.ask(SetQueue(queue(DEAD, "dead", attributes={"MessageRetentionPeriod": "60"})))
    host.ask(Send(JOBS, 0, [message(1)]))
    host.now_ms += 30_000
    host.ask(Send(DEAD, 0, [message(2)]))
    host.ask(Receive(JOBS, 0, 10, 0))
    outcome = host.ask(Receive(JOBS, 0, 10, 0))
    assert isinstance(outcome, TakenOutcome)
    (letter,) = outcome.dead_letters
    row, payload = host.payload(letter.offset)
    host.ask(MoveMessage(JOBS, 0, letter.sequence, DEAD, row.type, row.flags, payload, arn("jobs")))

    assert may_find_expired(host.partition(DEAD), host.now_ms)
    assert find_expired(host.partition(DEAD), host.now_ms + 30_000, 10) == (1, [2])


def test_a_log_that_is_larger_than_it_is_to_be_may_have_something_to_lose_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_sizes, "STRETCH_MESSAGES", 2)
    host = log_host({"RetentionBytes": "1"})
    host.ask(Send(JOBS, 0, [message(1), message(2)]))
    assert not may_find_expired(host.partition(JOBS), host.now_ms)

    host.ask(Send(JOBS, 0, [message(3)]))

    assert may_find_expired(host.partition(JOBS), host.now_ms)


def test_a_log_that_is_pinned_at_its_head_loses_nothing() -> None:
    host = log_host({"RetentionPins": "a", "MessageRetentionPeriod": "60"})
    host.ask(Send(JOBS, 0, [message(1), message(2)]))
    host.now_ms += 60_000

    assert not may_find_expired(host.partition(JOBS), host.now_ms)
    host.ask(SetGroupOffset(GROUP, 0, 2))
    assert may_find_expired(host.partition(JOBS), host.now_ms)
