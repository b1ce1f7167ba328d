"""What went through a queue, ever: counted where it is decided, the same on all replicas and after any start."""

from __future__ import annotations

import msgspec
import pytest
from harness.replica_host import RETRY_WINDOW_MS, Host, arn, message, queue, snapshot_of

from quaymaster.core.partition import partition_snapshots
from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_snapshots import Section, load_partition
from quaymaster.core.partition.state_hash import partition_hash
from quaymaster.core.values.commands.decided import TakenOutcome
from quaymaster.core.values.commands.logs import SetGroupOffset
from quaymaster.core.values.commands.messages import (
    CountMessages,
    Delete,
    EntriesOutcome,
    Purge,
    QueueCounts,
    Receipt,
    Receive,
    Send,
)
from quaymaster.core.values.commands.moves import MoveMessage
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.core.values.queues.queue_definitions import replace_definition

JOBS, DEAD, GROUP = 1, 2, 3


def send(host: Host, *numbers: int) -> None:
    host.ask(Send(JOBS, 0, [message(number) for number in numbers]))


def receive(host: Host, queue_id: int = JOBS) -> TakenOutcome:
    outcome = host.ask(Receive(queue_id, 0, 10, 0))
    assert isinstance(outcome, TakenOutcome)
    return outcome


def delete(host: Host, *sequences: int, queue_id: int = JOBS) -> int:
    """Delete messages and return how many were gone."""
    outcome = host.ask(Delete(queue_id, 0, [Receipt(sequence, 1, 1) for sequence in sequences]))
    assert isinstance(outcome, EntriesOutcome)
    assert outcome.errors == [None] * len(sequences)
    return outcome.gone


def traffic(host: Host, queue_id: int = JOBS) -> tuple[int, int]:
    found = host.ask(CountMessages(queue_id))
    assert isinstance(found, QueueCounts)
    assert found.counted_from == 0
    return found.sends, found.deletions


def same_after_replay(host: Host) -> None:
    assert host.replayed().state_hash(host.now_ms) == host.states.state_hash(host.now_ms)


def test_sends_and_deletions_are_counted_and_nothing_else_that_ends_a_message() -> None:
    host = Host()
    host.ask(SetQueue(queue(JOBS, "jobs")))
    send(host, 1, 2, 3, 4)
    receive(host)

    delete(host, 2, 3)
    host.ask(Purge(JOBS))
    send(host, 5)

    assert traffic(host) == (5, 2)
    same_after_replay(host)


def test_a_deletion_of_what_is_gone_is_no_deletion_and_said() -> None:
    host = Host()
    host.ask(SetQueue(queue(JOBS, "jobs")))
    send(host, 1, 2)
    receive(host)

    assert delete(host, 1, 1) == 1
    assert delete(host, 1, 2) == 1
    assert traffic(host) == (2, 2)


def test_a_dead_letter_is_no_send_of_its_new_queue_and_no_deletion_of_its_old_one() -> None:
    host = Host()
    policy = f'{{"deadLetterTargetArn": "{arn("dead")}", "maxReceiveCount": 1}}'
    host.ask(SetQueue(queue(JOBS, "jobs", attributes={"RedrivePolicy": policy})))
    host.ask(SetQueue(queue(DEAD, "dead")))
    send(host, 1, 2)
    receive(host)
    for letter in receive(host).dead_letters:
        row, payload = host.payload(letter.offset)
        host.ask(MoveMessage(JOBS, 0, letter.sequence, DEAD, row.type, row.flags, payload, arn("jobs")))

    assert traffic(host) == (2, 0)
    assert traffic(host, DEAD) == (0, 0)
    assert delete(host, 1, queue_id=DEAD) == 0
    assert traffic(host, DEAD) == (0, 1)
    same_after_replay(host)


def test_sends_are_the_logs_and_deletions_its_groups() -> None:
    host = Host()
    host.ask(SetQueue(queue(JOBS, "jobs", attributes={"RetentionMode": "Log"})))
    host.ask(SetQueue(replace_definition(queue(GROUP, "jobs@a"), group_of=JOBS)))
    send(host, 1, 2, 3)
    receive(host, GROUP)
    delete(host, 1, queue_id=GROUP)
    host.ask(SetGroupOffset(GROUP, 0, 3))

    assert traffic(host) == (3, 0)
    assert traffic(host, GROUP) == (0, 1)
    same_after_replay(host)


def loaded(host: Host, data: bytes) -> Partition:
    definition = host.states.definitions[JOBS]
    return load_partition(data, definition, 0, host.states._keeper, retry_window_ms=RETRY_WINDOW_MS)


def test_a_snapshot_has_the_counts() -> None:
    host = Host()
    host.ask(SetQueue(queue(JOBS, "jobs")))
    send(host, 1, 2, 3)
    receive(host)
    delete(host, 1, 3)

    found = loaded(host, snapshot_of(host.partition(JOBS)))

    assert (found.sends, found.deletions, found.counted_from) == (3, 2, 0)


def test_a_snapshot_of_a_program_that_did_not_count_says_since_when_there_are_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Host()
    host.ask(SetQueue(queue(JOBS, "jobs")))
    send(host, 1, 2, 3)
    receive(host)
    delete(host, 1)
    partition = host.partition(JOBS)
    partition.applied = 7
    encoder = partition_snapshots._encoder

    class Older:
        """Writes states as they were before."""

        def encode(self, content: object) -> bytes:
            if isinstance(content, partition_snapshots._State):
                return encoder.encode(msgspec.structs.astuple(content)[:12])
            return encoder.encode(content)

    with monkeypatch.context() as patched:
        patched.setattr(partition_snapshots, "_encoder", Older())
        data = snapshot_of(partition)
    found = loaded(host, data)

    assert len(partition_snapshots._parse(data)[Section.STATE]) == 1
    assert (found.deletions, found.counted_from) == (0, 7)
    assert loaded(host, snapshot_of(found)).counted_from == 7
    assert partition_hash(found, host.now_ms) != 0
