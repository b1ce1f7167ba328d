"""ExactlyOnce queues: each delivery has a number, and only the newest finishes its message, and is told so."""

from __future__ import annotations

from typing import cast

import pytest
from harness.replica_host import Host, arn, message, queue, receipts_of, replay, snapshot_of

from quaymaster.core.partition.partition_snapshots import STATE_VERSION, load_partition, state_version_min
from quaymaster.core.structures.ids.settled_deliveries import SETTLED_WINDOW_MS
from quaymaster.core.structures.orders.index import MemoryChunks
from quaymaster.core.values.commands.decided import TakenOutcome
from quaymaster.core.values.commands.logs import ResetGroup
from quaymaster.core.values.commands.messages import (
    ChangeVisibility,
    Delete,
    EntriesOutcome,
    Purge,
    Receipt,
    Receive,
    Send,
)
from quaymaster.core.values.commands.moves import MoveMessage
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, replace_definition

JOBS, LOG, GROUP, DEAD = 1, 2, 3, 4
EXPIRED = "The receipt handle has expired"


def exactly_once(
    name: str = "jobs", revision: int = 1, attributes: dict[str, object] | None = None
) -> QueueDefinition:
    given = {"DeliveryGuarantee": "ExactlyOnce", "VisibilityTimeout": 30, **(attributes or {})}
    return queue(JOBS, name, revision=revision, attributes=given)


def started(name: str = "jobs", **attributes: object) -> Host:
    host = Host()
    host.ask(SetQueue(exactly_once(name, attributes=attributes)))
    host.ask(Send(JOBS, 0, [message(1, group=1), message(2, group=2)]))
    return host


def receive(host: Host, queue_id: int = JOBS, *, count: int = 1) -> list[Receipt]:
    return receipts_of(host.ask(Receive(queue_id, 0, count)))


def delete(host: Host, *receipts: Receipt, queue_id: int = JOBS) -> list[str]:
    """Return what is said of each receipt: "" where it is told that the message is finished."""
    outcome = cast(EntriesOutcome, host.ask(Delete(queue_id, 0, list(receipts))))
    return ["" if error is None else str(error) for error in outcome.errors]


def change(host: Host, receipt: Receipt, timeout_ms: int) -> str:
    outcome = cast(EntriesOutcome, host.ask(ChangeVisibility(JOBS, 0, [receipt], [timeout_ms])))
    return "" if outcome.errors[0] is None else str(outcome.errors[0])


@pytest.mark.parametrize("name", ["jobs", "jobs.fifo"])
def test_a_receive_waits_for_its_commit(name: str) -> None:
    host = started(name)
    host.is_slow = True

    token = host.propose(Receive(JOBS, 0, 1))

    assert token not in host.replies
    host.make_durable()
    assert isinstance(host.replies[token], TakenOutcome)


@pytest.mark.parametrize("name", ["jobs", "jobs.fifo"])
def test_only_the_newest_delivery_finishes_a_message(name: str) -> None:
    host = started(name)
    (first,) = receive(host)
    host.now_ms += 60_000
    second = next(one for one in receive(host, count=2) if one.sequence == first.sequence)

    assert EXPIRED in delete(host, first)[0]
    assert delete(host, second) == [""]
    assert EXPIRED in delete(host, first)[0]


@pytest.mark.parametrize("name", ["jobs", "jobs.fifo"])
def test_a_delivery_that_finished_its_message_is_told_so_again_for_five_minutes(name: str) -> None:
    host = started(name)
    (receipt,) = receive(host)

    assert delete(host, receipt, receipt) == ["", ""]
    host.now_ms += SETTLED_WINDOW_MS - 1
    assert delete(host, receipt) == [""]
    host.now_ms += 1
    assert EXPIRED in delete(host, receipt)[0]


def test_a_timeout_that_has_passed_ends_a_delivery_though_nobody_else_has_the_message() -> None:
    host = started()
    (receipt,) = receive(host)
    host.now_ms += 30_050

    assert EXPIRED in delete(host, receipt)[0]
    assert EXPIRED in change(host, receipt, 10_000)


def test_visibility_is_changed_by_the_delivery_that_has_the_message_only() -> None:
    host = started()
    (first,) = receive(host)
    assert change(host, first, 0) == ""
    second = next(one for one in receive(host, count=2) if one.sequence == first.sequence)

    assert EXPIRED in change(host, first, 60_000)
    assert change(host, second, 60_000) == ""
    host.now_ms += 50_000
    assert delete(host, second) == [""]


def test_a_message_that_was_purged_is_not_told_to_be_finished() -> None:
    host = started()
    finished, purged = receive(host, count=2)
    delete(host, finished)
    host.ask(Purge(JOBS))

    assert EXPIRED in delete(host, purged)[0]
    assert delete(host, finished) == [""]


def test_a_message_that_expired_is_not_told_to_be_finished() -> None:
    host = started(MessageRetentionPeriod=60)
    (receipt,) = receive(host)
    host.now_ms += 61_000
    assert receive(host) == []

    assert EXPIRED in delete(host, receipt)[0]


def test_a_delivery_of_another_epoch_finishes_nothing() -> None:
    host = started()
    (receipt,) = receive(host)

    stale = Receipt(receipt.sequence, receipt.epoch + 1, receipt.delivery_count)

    assert EXPIRED in delete(host, stale)[0]
    assert delete(host, receipt) == [""]


def test_what_finished_a_message_is_known_after_a_replay_and_from_a_snapshot() -> None:
    host = started()
    finished, held = receive(host, count=2)
    delete(host, finished)
    partition = host.partition(JOBS)

    replayed = Host(batches=host.batches, states=replay(host.batches), epoch=2, now_ms=host.now_ms)
    assert replayed.states.state_hash(host.now_ms) == host.states.state_hash(host.now_ms)
    assert state_version_min(partition) == STATE_VERSION
    loaded = load_partition(
        snapshot_of(partition), partition.definition, 0, MemoryChunks(), retry_window_ms=1
    )

    assert delete(replayed, finished, held) == ["", ""]
    assert loaded.settled is not None
    assert loaded.settled.find(finished.sequence, 1, 0, host.now_ms) == 0


def test_counts_of_before_a_queue_became_exactly_once_name_other_deliveries() -> None:
    host = Host()
    host.ask(SetQueue(queue(JOBS, "jobs", attributes={"VisibilityTimeout": 30})))
    host.ask(Send(JOBS, 0, [message(1)]))
    (old,) = receive(host)
    host.ask(SetQueue(exactly_once(revision=2)))
    host.now_ms += 60_000
    (new,) = receive(host)

    assert new.epoch >> 48 == 1
    assert EXPIRED in delete(host, Receipt(old.sequence, old.epoch, new.delivery_count))[0]
    assert delete(host, new) == [""]
    host.ask(SetQueue(exactly_once(revision=3, attributes={"VisibilityTimeout": 40})))
    assert host.partition(JOBS).resets == 1


def test_what_is_in_flight_when_a_queue_becomes_exactly_once_can_be_finished() -> None:
    host = Host()
    host.ask(SetQueue(queue(JOBS, "jobs")))
    host.ask(Send(JOBS, 0, [message(1)]))
    (receipt,) = receive(host)

    host.ask(SetQueue(exactly_once(revision=2)))

    assert delete(host, receipt) == [""]
    assert delete(host, receipt) == [""]


def test_a_reset_of_a_consumer_group_ends_all_deliveries_of_before() -> None:
    host = Host()
    log = queue(LOG, "log", attributes={"RetentionMode": "Log", "DeliveryGuarantee": "ExactlyOnce"})
    host.ask(SetQueue(log))
    host.ask(SetQueue(replace_definition(queue(GROUP, "log@a"), group_of=LOG)))
    host.ask(Send(LOG, 0, [message(1)]))
    (finished,) = receive(host, GROUP)
    assert delete(host, finished, queue_id=GROUP) == [""]
    host.ask(ResetGroup(GROUP, "earliest"))
    (again,) = receive(host, GROUP)

    assert (again.sequence, again.delivery_count) == (finished.sequence, finished.delivery_count)
    assert again != finished
    # It did finish the message, before all began again; and it does not finish it again.
    assert delete(host, finished, queue_id=GROUP) == [""]
    assert host.partition(GROUP).alive == 1
    assert delete(host, again, queue_id=GROUP) == [""]
    assert host.partition(GROUP).alive == 0
    replayed = replay(host.batches)
    assert replayed.state_hash(host.now_ms) == host.states.state_hash(host.now_ms)


def test_a_reset_of_a_group_that_is_not_exactly_once_writes_nothing_new() -> None:
    host = Host()
    host.ask(SetQueue(queue(LOG, "log", attributes={"RetentionMode": "Log"})))
    host.ask(SetQueue(replace_definition(queue(GROUP, "log@a"), group_of=LOG)))

    host.ask(ResetGroup(GROUP, "earliest"))

    assert host.partition(GROUP).resets == 0
    assert state_version_min(host.partition(GROUP)) < STATE_VERSION


def test_who_never_finished_anything_is_refused_without_a_look() -> None:
    host = started()

    assert EXPIRED in delete(host, Receipt(9, 1, 1))[0]
    assert host.partition(JOBS).settled is None


def test_a_message_that_became_a_dead_letter_is_not_told_to_be_finished() -> None:
    policy = f'{{"deadLetterTargetArn": "{arn("dead")}", "maxReceiveCount": 1}}'
    host = started(RedrivePolicy=policy)
    host.ask(SetQueue(queue(DEAD, "dead")))
    (receipt,) = receive(host)
    host.now_ms += 60_000
    outcome = cast(TakenOutcome, host.ask(Receive(JOBS, 0, 10)))
    (letter,) = outcome.dead_letters
    moving = delete(host, receipt)
    host.ask(MoveMessage(JOBS, 0, letter.sequence, DEAD, 2, 0, message(1).payload, arn("jobs")))

    for told in (moving, delete(host, receipt)):
        assert EXPIRED in told[0]
    assert host.partition(DEAD).alive == 1


def test_a_queue_time_that_jumps_ahead_ends_deliveries_and_nothing_else() -> None:
    host = started()
    paused, other = receive(host, count=2)
    delete(host, other)
    host.now_ms += 86_400_000

    (again,) = receive(host)

    assert again.delivery_count == 2
    assert EXPIRED in delete(host, paused)[0]
    assert delete(host, again) == [""]


# The leader dies, before or after what it decided is committed; the answer is lost


def later(host: Host, *, committed: int | None = None) -> Host:
    """Return the next leader, which knows so many batches of the one before."""
    batches = host.batches if committed is None else host.batches[:committed]
    return Host(batches=batches, states=replay(batches), epoch=2, now_ms=host.now_ms)


def test_a_receive_that_was_not_committed_gives_its_number_to_another_delivery_that_only_holds_it() -> None:
    host = started()
    known = len(host.batches)
    (lost,) = receive(host)

    leader = later(host, committed=known)
    (given,) = receive(leader)

    assert (given.sequence, given.delivery_count) == (lost.sequence, lost.delivery_count)
    assert EXPIRED in delete(leader, lost)[0]
    assert delete(leader, given) == [""]


def test_a_receive_whose_answer_was_lost_is_counted() -> None:
    host = started()
    (lost,) = receive(host)

    leader = later(host)
    leader.now_ms += 60_000
    again = next(one for one in receive(leader, count=2) if one.sequence == lost.sequence)

    assert again.delivery_count == 2


def test_a_delete_that_was_not_committed_is_done_when_it_is_sent_again() -> None:
    host = started()
    (receipt,) = receive(host)
    known = len(host.batches)
    delete(host, receipt)

    assert delete(later(host, committed=known), receipt) == [""]


def test_a_delete_whose_answer_was_lost_is_told_to_be_done_by_the_next_leader_for_five_minutes() -> None:
    host = started()
    (receipt,) = receive(host)
    delete(host, receipt)

    leader = later(host)

    assert delete(leader, receipt) == [""]
    leader.now_ms += 360_000
    assert EXPIRED in delete(leader, receipt)[0]
