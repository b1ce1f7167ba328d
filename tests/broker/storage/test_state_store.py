"""The queues' state on disk: what is written is what is read, and other versions are refused."""

from __future__ import annotations

import pytest
from harness.broker_support import RETRY_WINDOW_MS, define, message

from quaymaster.broker.storage.state_store import (
    BLOB_VERSION,
    SnapshotMeta,
    UnknownSnapshotFormat,
    decode_meta,
    encode_key,
    encode_meta,
    encode_partition,
    load_partitions,
)
from quaymaster.core.partition.proposals import Proposal
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.structures.orders.index import MemoryChunks
from quaymaster.core.values.commands.messages import Delete, Receipt, Receive, Send
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.core.values.queues.partition_keys import partition_key
from quaymaster.core.values.queues.queue_marks import QueueMarks

NOW_MS = 1_000_000


def states_in_use() -> QueueStates:
    """Return a standard and a FIFO queue with messages in every state."""
    states = QueueStates(MemoryChunks(), retry_window_ms=RETRY_WINDOW_MS)
    proposal = Proposal(0, 1)
    for definition in (define(1), define(2, "queue.fifo")):
        states.decide(SetQueue(definition), NOW_MS, proposal)
    for queue_id in (1, 2):
        sent = [
            message(number, group=number % 3 + 1, dedup=number if queue_id == 2 else None)
            for number in range(1, 10)
        ]
        states.decide(Send(queue_id, 0, sent), NOW_MS, proposal)
    for partition in proposal.sent_to:
        partition.note_commit(partition.next_sequence)
    states.decide(Receive(1, 0, 3, 30_000), NOW_MS + 1, proposal)
    states.decide(Receive(2, 0, 2, 0), NOW_MS + 1, proposal)
    states.decide(Receive(2, 0, 2, 30_000), NOW_MS + 2, proposal)
    states.decide(Delete(1, 0, [Receipt(2, 1, 1)]), NOW_MS + 3, proposal)
    return states


def blobs_of(states: QueueStates) -> list[tuple[bytes, bytes]]:
    return [
        (encode_key(key), b"".join(encode_partition(found, 40))) for key, found in states.partitions.items()
    ]


def load(blobs: list[tuple[bytes, bytes]]) -> QueueStates:
    states = QueueStates(MemoryChunks(), retry_window_ms=RETRY_WINDOW_MS)
    load_partitions(states, blobs, MemoryChunks())
    return states


def test_loaded_partitions_are_as_they_were_saved() -> None:
    states = states_in_use()

    loaded = load(blobs_of(states))

    assert loaded.state_hash(NOW_MS + 10) == states.state_hash(NOW_MS + 10)
    assert loaded.state_hash(NOW_MS + 60_000) == states.state_hash(NOW_MS + 60_000)
    assert loaded.definitions == states.definitions
    assert all(partition.applied == 40 for partition in loaded.partitions.values())


def test_a_saved_partition_is_clean_until_it_changes() -> None:
    states = states_in_use()
    assert len(states.dirty_keys()) == 2

    blobs_of(states)
    clean = states.dirty_keys()
    states.decide(Send(1, 0, [message(99)]), NOW_MS + 5, Proposal(50, 1))

    assert clean == []
    assert states.dirty_keys() == [partition_key(1, 0)]


@pytest.mark.parametrize("version", [2, BLOB_VERSION + 1])
def test_a_blob_of_another_version_is_refused(version: int) -> None:
    key, blob = blobs_of(states_in_use())[0]

    with pytest.raises(UnknownSnapshotFormat, match=f"version {version} is not known; this program reads"):
        load([(key, bytes([version]) + blob[1:])])


def test_a_blob_that_is_none_is_refused_with_the_queue_it_is_of() -> None:
    key, blob = blobs_of(states_in_use())[0]

    with pytest.raises(UnknownSnapshotFormat, match="queue-1"):
        load([(key, blob[:-1])])


def test_the_meta_of_a_snapshot_is_read_back() -> None:
    assert decode_meta(encode_meta(SnapshotMeta(123))) == SnapshotMeta(123)
    assert decode_meta(encode_meta(SnapshotMeta(9, QueueMarks(7, 8)))).marks == QueueMarks(7, 8)


def test_meta_of_a_snapshot_without_marks_is_read() -> None:
    assert decode_meta(b"\x91\x7b") == SnapshotMeta(123, QueueMarks())
