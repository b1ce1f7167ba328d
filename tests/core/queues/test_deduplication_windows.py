"""Deduplication ids on standard queues, and windows that are longer than records are sure to be kept."""

from __future__ import annotations

from typing import cast

import pytest
from harness.replica_host import (
    RETRY_WINDOW_MS,
    Host,
    identity,
    message,
    moved,
    queue,
    replay,
    snapshot_of,
)
from pyroaring import BitMap

from quaymaster.core.partition.partition_snapshots import STATE_VERSION, load_partition, state_version_min
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.structures.ids.id_limits import IdLimits
from quaymaster.core.structures.ids.recent_ids import top_of
from quaymaster.core.structures.ids.sent_ids import DEDUP_WINDOW_MS
from quaymaster.core.structures.orders.index import MemoryChunks
from quaymaster.core.values.commands.decided import Duplicate, SentElsewhere, SentOutcome, TakenOutcome
from quaymaster.core.values.commands.messages import (
    Delete,
    NewMessage,
    Purge,
    Receipt,
    Receive,
    Send,
    SendResult,
)
from quaymaster.core.values.commands.partitions import AskIds, IdsOutcome, SetQueue
from quaymaster.core.values.commands.transactions import CommitTransaction, StageCount, StageMessages
from quaymaster.core.values.errors import OverLimit, UnsupportedOperation
from quaymaster.core.values.queues.queue_definitions import QueueDefinition

JOBS = 1
HOUR_MS = 3_600_000
ID, OTHER = b"d" * 16, b"e" * 16


def jobs(name: str = "jobs", window_s: int = 300, *, revision: int = 1) -> QueueDefinition:
    attributes = {"DeliveryGuarantee": "ExactlyOnce"}
    if window_s != 300:
        attributes["DeduplicationWindowSeconds"] = str(window_s)
    return queue(JOBS, name, revision=revision, attributes=attributes)


def started(name: str = "jobs", window_s: int = 300, *, dedup_ids_max: int = 100) -> Host:
    limits = IdLimits(dedup_ids_max=dedup_ids_max)
    states = QueueStates(MemoryChunks(), retry_window_ms=RETRY_WINDOW_MS, id_limits=limits)
    host = Host(states=states)
    host.ask(SetQueue(jobs(name, window_s)))
    return host


def send(host: Host, *messages: NewMessage) -> list[SendResult | Duplicate]:
    return cast(SentOutcome, host.ask(Send(JOBS, 0, list(messages)))).results


def new(number: int, dedup: bytes | None = ID) -> NewMessage:
    return message(number, group=1, dedup=dedup)


@pytest.mark.parametrize("name", ["jobs", "jobs.fifo"])
@pytest.mark.parametrize("window_s", [300, 3_600])
def test_an_id_stands_for_one_message_in_its_window(name: str, window_s: int) -> None:
    host = started(name, window_s)
    (first,) = send(host, new(1))

    host.now_ms += window_s * 1000 - 1
    (again,) = send(host, new(2))
    host.now_ms += 1
    (later,) = send(host, new(3))

    assert first == SendResult(1, identity(1))
    assert isinstance(again, Duplicate) or again == SendResult(1, identity(1), duplicate=True)
    assert later == SendResult(2, identity(3))


def test_a_long_window_needs_no_record_of_a_message() -> None:
    host = started(window_s=3_600)
    send(host, new(1))
    taken = cast(TakenOutcome, host.ask(Receive(JOBS, 0, 1)))
    host.ask(Delete(JOBS, 0, [Receipt(1, taken.epoch, 1)]))
    host.now_ms += HOUR_MS - 1

    assert send(host, new(2), new(3, OTHER)) == [
        SendResult(1, identity(1), duplicate=True),
        SendResult(2, identity(3)),
    ]


def test_a_retry_is_found_in_a_long_window_as_before() -> None:
    host = started(window_s=3_600)
    retried = message(1, dedup=ID, retry=b"r" * 16)
    send(host, retried)

    assert send(host, retried) == [SendResult(1, identity(1), duplicate=True)]
    (found,) = send(host, message(2, retry=b"r" * 16))
    assert isinstance(found, Duplicate)


def test_ids_beyond_the_limit_are_refused_and_none_is_forgotten_early() -> None:
    host = started(window_s=3_600, dedup_ids_max=2)
    send(host, new(1), new(2, OTHER))
    host.now_ms += HOUR_MS - 1

    with pytest.raises(OverLimit, match="as many deduplication ids are kept as may be: 2"):
        send(host, new(3, b"f" * 16))
    assert host.partition(JOBS).alive == 2
    assert send(host, new(4)) == [SendResult(1, identity(1), duplicate=True)]
    assert send(host, new(5, None)) == [SendResult(3, identity(5))]
    host.now_ms += 1
    assert send(host, new(6, b"f" * 16)) == [SendResult(4, identity(6))]


def test_short_windows_have_no_limit() -> None:
    host = started(dedup_ids_max=1)

    assert len(send(host, new(1), new(2, OTHER))) == 2


def test_kept_ids_are_the_same_after_a_replay_and_from_a_snapshot() -> None:
    host = started(window_s=3_600)
    send(host, new(1), new(2, OTHER), new(3, None))

    replayed = replay(host.batches)
    partition = host.partition(JOBS)
    loaded = load_partition(
        snapshot_of(partition), partition.definition, 0, MemoryChunks(), retry_window_ms=RETRY_WINDOW_MS
    )

    assert replayed.state_hash(host.now_ms) == host.states.state_hash(host.now_ms)
    assert state_version_min(partition) == STATE_VERSION
    for found in (partition, replayed.partition(JOBS, 0), loaded):
        assert found.ids.find(OTHER, None, host.now_ms) == (2, identity(2))


def test_a_window_is_changed_from_the_next_message_on() -> None:
    host = started()
    send(host, new(1))
    host.ask(SetQueue(jobs(window_s=3_600, revision=2)))
    send(host, new(2, OTHER))
    host.now_ms += DEDUP_WINDOW_MS

    assert send(host, new(3)) == [SendResult(3, identity(3))]
    assert send(host, new(4, OTHER)) == [SendResult(2, identity(2), duplicate=True)]
    host.ask(SetQueue(jobs(window_s=300, revision=3)))
    assert send(host, new(5, OTHER)) == [SendResult(4, identity(5))]
    replayed = replay(host.batches)
    assert replayed.state_hash(host.now_ms) == host.states.state_hash(host.now_ms)


def test_a_purge_forgets_ids_of_long_windows_too() -> None:
    host = started(window_s=3_600)
    send(host, new(1))

    host.ask(Purge(JOBS))

    assert send(host, new(2)) == [SendResult(2, identity(2))]


def test_a_sealed_partition_tells_which_ids_it_keeps_and_finds_their_messages() -> None:
    host = Host()
    definition = jobs(window_s=3_600)
    host.ask(SetQueue(definition))
    send(host, new(1))
    host.ask(SetQueue(moved(definition)))
    host.now_ms += HOUR_MS - 1

    answer = host.ask(Send(JOBS, 0, [new(2), new(3, OTHER)]))
    ids = host.ask(AskIds(JOBS, 0))

    assert isinstance(answer, SentElsewhere)
    assert answer.results == [SendResult(1, identity(1), duplicate=True), None]
    assert isinstance(ids, IdsOutcome)
    assert list(BitMap.deserialize(ids.tops)) == [top_of(ID)]


def test_messages_with_ids_are_not_staged_for_long_windows() -> None:
    host = started("jobs.fifo", 3_600)

    with pytest.raises(UnsupportedOperation, match="DeduplicationWindowSeconds=300 only"):
        host.ask(StageMessages(JOBS, 0, "sink", 1, "s", 0, [new(1)]))


def test_a_commit_finds_ids_that_are_kept_from_a_longer_window() -> None:
    host = started("jobs.fifo", 3_600)
    send(host, new(1))
    host.ask(SetQueue(jobs("jobs.fifo", 300, revision=2)))
    host.ask(StageMessages(JOBS, 0, "sink", 1, "s", 0, [new(2), new(3, OTHER)]))

    host.ask(CommitTransaction(JOBS, 0, "sink", 1, [StageCount("s", 2)]))

    assert host.partition(JOBS).next_sequence == 3
