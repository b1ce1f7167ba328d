"""Log-retained queues and their consumer groups: what is kept, what each group sees, and where groups start."""

from __future__ import annotations

from array import array
from unittest.mock import patch

import pytest
from harness.replica_host import (
    RETRY_WINDOW_MS,
    Host,
    arn,
    far_queue,
    identity,
    message,
    queue,
    replay,
    snapshot_of,
)
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.partition.consumer_groups import check_start
from quaymaster.core.partition.expiry import is_over_size
from quaymaster.core.partition.partition_moves import QueuesElsewhere
from quaymaster.core.partition.partition_snapshots import load_partition
from quaymaster.core.queues.defined_queues import GROUPS_MAX
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.structures import log_sizes
from quaymaster.core.structures.log_sizes import LogSizes
from quaymaster.core.structures.orders import fifo_order
from quaymaster.core.structures.orders.index import GroupIndex, MemoryChunks
from quaymaster.core.structures.orders.standard_order import StandardOrder
from quaymaster.core.values.commands.decided import ExpireMessages, PeekedOffsets, TakenOutcome
from quaymaster.core.values.commands.logs import ResetGroup, SetGroupOffset
from quaymaster.core.values.commands.messages import (
    ChangeVisibility,
    CountMessages,
    Delete,
    EntriesOutcome,
    Peek,
    Purge,
    QueueCounts,
    Receipt,
    Receive,
    Send,
)
from quaymaster.core.values.commands.move_tasks import StartMoveTask
from quaymaster.core.values.commands.moves import EndMoves, MoveBegun, MoveMessage
from quaymaster.core.values.commands.partitions import ForgetQueue, SetQueue
from quaymaster.core.values.errors import (
    InvalidParameterValue,
    OverLimit,
    QueueDoesNotExist,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, replace_definition

LOG, A, B, DEAD = 1, 2, 3, 4


def group(queue_id: int, name: str, *, start: str | None = None, log: int = LOG) -> QueueDefinition:
    attributes = {"GroupStart": start} if start else {}
    return replace_definition(queue(queue_id, name, attributes=attributes), group_of=log)


def log_host(name: str = "log", **attributes: object) -> Host:
    host = Host()
    host.ask(SetQueue(queue(LOG, name, attributes={"RetentionMode": "Log", **attributes})))
    return host


def send(host: Host, *numbers: int, group: int = 0, delay_ms: int = -1) -> None:
    for number in numbers:
        host.ask(Send(LOG, 0, [message(number, group=group, delay_ms=delay_ms)]))


def receive(host: Host, queue_id: int, count_max: int = 10, timeout_ms: int = -1) -> list[int]:
    outcome = host.ask(Receive(queue_id, 0, count_max, timeout_ms))
    assert isinstance(outcome, TakenOutcome)
    return [taken.sequence for taken in outcome.taken]


def delete(host: Host, queue_id: int, *sequences: int) -> None:
    outcome = host.ask(Delete(queue_id, 0, [Receipt(sequence, 1, 1) for sequence in sequences]))
    assert isinstance(outcome, EntriesOutcome)
    assert outcome.errors == [None] * len(sequences)


def counts(host: Host, queue_id: int) -> tuple[int, int, int]:
    found = host.ask(CountMessages(queue_id))
    assert isinstance(found, QueueCounts)
    return found.visible, found.in_flight, found.delayed


def restarted(
    host: Host, *, snapshots: list[tuple[int, bytes, QueueDefinition]], start: int | None = None
) -> QueueStates:
    """Return what a start makes of snapshots, as (applied, bytes, definition), and all batches behind them."""
    keeper = host.states._keeper
    states = QueueStates(keeper, retry_window_ms=RETRY_WINDOW_MS)
    for applied, data, definition in snapshots:
        loaded = load_partition(data, definition, 0, keeper, retry_window_ms=RETRY_WINDOW_MS)
        assert loaded.applied == applied
        states.load(definition, [loaded])
    states.attach_groups()
    if start is None:
        start = min(applied for applied, _, _ in snapshots)
    return replay(host.batches, states=states, start=start)


def snapshot(host: Host, queue_id: int) -> tuple[int, bytes, QueueDefinition]:
    found = host.partition(queue_id)
    found.applied = host.replica.end_offset
    return found.applied, snapshot_of(found), found.definition


def assert_same(host: Host, states: QueueStates) -> None:
    assert states.state_hash(host.now_ms) == host.states.state_hash(host.now_ms)


def test_each_group_gets_every_message_and_the_log_keeps_them() -> None:
    host = log_host()
    host.ask(SetQueue(group(A, "log@a")))
    host.ask(SetQueue(group(B, "log@b")))
    send(host, 1, 2, 3)

    assert receive(host, A) == [1, 2, 3]
    delete(host, A, 1, 2, 3)
    assert receive(host, B, 2) == [1, 2]

    assert counts(host, LOG) == (3, 0, 0)
    assert counts(host, A) == (0, 0, 0)
    assert counts(host, B) == (1, 2, 0)
    assert_same(host, host.replayed())


def test_a_log_keeps_what_its_groups_have_deleted_from_compaction() -> None:
    host = log_host()
    host.ask(SetQueue(group(A, "log@a")))
    send(host, 1, 2)
    delete(host, A, *receive(host, A))

    offsets = [host.partition(LOG).index.entry(sequence).offset for sequence in (1, 2)]

    assert all(host.states.is_live(host.payload(offset)[0]) for offset in offsets)
    assert host.states.messages_gone == 0


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", [2, 3, 4]),
        ("latest", []),
        ("offset:3", [3, 4]),
        ("offset:1", [2, 3, 4]),
        ("offset:99", []),
        ("timestamp:1001000", [3, 4]),
        ("timestamp:1001001", [4]),
        ("timestamp:0", [2, 3, 4]),
    ],
)
def test_a_group_starts_where_it_is_told(start: str, expected: list[int]) -> None:
    host = log_host(MessageRetentionPeriod="60")
    send(host, 1)
    host.now_ms += 70_000
    host.ask(ExpireMessages(LOG, 0))
    host = log_host()
    send(host, 1)
    host.ask(SetQueue(group(9, "log@first")))
    host.ask(Purge(LOG))
    send(host, 2)
    host.now_ms += 1_000
    send(host, 3)
    host.now_ms += 1_000
    send(host, 4)

    host.ask(SetQueue(group(A, "log@a", start=start)))
    host.ask(ResetGroup(9, start))

    assert receive(host, A) == expected
    assert receive(host, 9) == expected
    assert_same(host, host.replayed())


def test_a_group_starts_at_the_logs_group_start_when_nothing_is_said() -> None:
    host = log_host(GroupStart="latest")
    send(host, 1)
    host.ask(SetQueue(group(A, "log@a")))
    send(host, 2)

    assert receive(host, A) == [2]


@pytest.mark.parametrize(
    "start", ["", "newest", "offset:", "offset:-1", "offset:1e3", "timestamp:" + "9" * 19]
)
def test_a_start_that_is_none_is_refused_with_what_it_may_be(start: str) -> None:
    with pytest.raises(InvalidParameterValue, match="earliest, latest, offset:NUMBER or timestamp"):
        check_start(start)


def test_messages_of_a_late_group_wait_for_delays_that_rise_and_fall() -> None:
    host = log_host()
    send(host, 1, delay_ms=5_000)
    send(host, 2, delay_ms=1_000)
    send(host, 3)
    host.ask(SetQueue(group(A, "log@a")))

    assert counts(host, A) == (1, 0, 2)
    assert receive(host, A) == [3]
    host.now_ms += 1_000
    assert receive(host, A) == [2]
    host.now_ms += 4_000
    assert receive(host, A) == [1]
    assert_same(host, host.replayed())


def test_fifo_groups_lock_for_each_consumer_group_by_itself() -> None:
    host = log_host("log.fifo")
    host.ask(SetQueue(group(A, "log.fifo@a")))
    host.ask(SetQueue(group(B, "log.fifo@b")))
    send(host, 1, 2, group=7)

    assert receive(host, A, 1) == [1]
    assert receive(host, A, 1) == []
    assert receive(host, B, 10) == [1, 2]
    delete(host, A, 1)
    assert receive(host, A, 1) == [2]
    assert_same(host, host.replayed())


def test_attributes_of_the_log_hold_for_its_groups_from_their_change_on() -> None:
    host = log_host()
    host.ask(SetQueue(group(A, "log@a")))
    changed = queue(LOG, "log", revision=2, attributes={"RetentionMode": "Log", "VisibilityTimeout": "1"})
    host.ask(SetQueue(changed))
    host.ask(SetQueue(group(A, "log@a")))
    send(host, 1)

    assert receive(host, A) == [1]
    host.now_ms += 1_000
    assert receive(host, A) == [1]
    assert host.partition(A).definition.attributes == changed.attributes
    assert_same(host, host.replayed())


def test_retention_of_the_log_is_that_of_its_groups() -> None:
    host = log_host(MessageRetentionPeriod="60")
    host.ask(SetQueue(group(A, "log@a")))
    send(host, 1, 2)
    assert receive(host, A, 1) == [1]
    host.now_ms += 70_000
    send(host, 3)

    assert receive(host, A) == [3]

    assert counts(host, LOG) == (1, 0, 0)
    assert host.states.messages_expired == 2
    assert_same(host, host.replayed())


def test_a_log_keeps_no_more_bytes_than_it_is_told_but_for_the_stretch_in_front(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_sizes, "STRETCH_MESSAGES", 2)
    each = len(message(1).payload)
    host = log_host(RetentionBytes=str(3 * each))
    host.ask(SetQueue(group(A, "log@a")))
    send(host, *range(1, 8))
    assert is_over_size(host.partition(LOG))

    host.ask(ExpireMessages(LOG, 0))

    assert receive(host, A) == [5, 6, 7]
    assert not is_over_size(host.partition(LOG))
    assert_same(host, host.replayed())
    assert_same(host, restarted(host, snapshots=[snapshot(host, LOG), snapshot(host, A)]))


def test_a_log_keeps_what_a_group_that_pins_it_has_not_consumed() -> None:
    host = log_host(MessageRetentionPeriod="60", RetentionPins="a,b")
    host.ask(SetQueue(group(A, "log@a")))
    send(host, 1, 2, 3)
    host.now_ms += 70_000

    host.ask(ExpireMessages(LOG, 0))
    assert host.partition(LOG).head == 1  # b is not there, and so has consumed nothing
    host.ask(SetQueue(group(B, "log@b")))
    host.ask(SetGroupOffset(B, 0, 4))
    assert receive(host, A, 1) == [1]
    delete(host, A, 1)
    host.ask(ExpireMessages(LOG, 0))

    assert host.partition(LOG).head == 2
    assert receive(host, A) == [2, 3]
    assert_same(host, host.replayed())
    host.ask(SetGroupOffset(A, 0, 4))
    host.ask(ExpireMessages(LOG, 0))
    assert host.partition(LOG).head == 4
    assert_same(host, host.replayed())


def test_a_group_that_pins_its_log_begins_with_what_was_kept_for_it() -> None:
    host = log_host(GroupStart="latest", RetentionPins="a")
    send(host, 1, 2)

    host.ask(SetQueue(group(A, "log@a")))
    host.ask(SetQueue(group(B, "log@b")))
    host.ask(SetQueue(group(DEAD, "log@c", start="latest")))

    assert [receive(host, queue_id) for queue_id in (A, B, DEAD)] == [[1, 2], [], []]
    assert_same(host, host.replayed())


def test_a_log_that_is_too_large_stays_as_large_while_it_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_sizes, "STRETCH_MESSAGES", 2)
    host = log_host(RetentionBytes="1", RetentionPins="a")
    host.ask(SetQueue(group(A, "log@a")))
    send(host, *range(1, 8))

    host.ask(SetGroupOffset(A, 0, 4))
    host.ask(ExpireMessages(LOG, 0))

    assert host.partition(LOG).head == 4


def test_nothing_of_a_log_goes_by_age_under_a_legal_hold() -> None:
    host = log_host(MessageRetentionPeriod="60", LegalHold="true")
    host.ask(SetQueue(group(A, "log@a")))
    send(host, 1)
    host.now_ms += 70_000

    host.ask(ExpireMessages(LOG, 0))
    assert receive(host, A) == [1]

    freed = {"RetentionMode": "Log", "MessageRetentionPeriod": "60"}
    host.ask(SetQueue(replace_definition(queue(LOG, "log", attributes=freed), revision=2)))
    host.ask(ExpireMessages(LOG, 0))
    assert host.partition(LOG).head == 2


def test_stretches_end_by_bytes_too_and_count_whole_until_they_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_sizes, "STRETCH_BYTES", 10)
    sizes = LogSizes()
    for sequence in range(1, 7):
        sizes.add(sequence, 6)

    assert sizes.content()[0] == [1, 3, 5]
    assert [sizes.first_within(kept) for kept in (36, 24, 12, 0)] == [0, 3, 5, 5]
    sizes.drop_below(4)
    assert sizes.total_bytes == 24
    sizes.clear()
    assert sizes.total_bytes == 0
    assert sizes.first_within(1) == 0


@given(
    st.lists(st.lists(st.integers(0, 12), max_size=30), min_size=1, max_size=6),
    st.integers(1, 9),
    st.integers(1, 40),
    st.integers(1, 9),
)
def test_bytes_of_a_log_are_added_up_at_once_as_they_are_one_by_one(
    runs: list[list[int]], stretch_messages: int, stretch_bytes: int, run_messages: int
) -> None:
    one_by_one, at_once = LogSizes(), LogSizes()
    sequence = 7

    with (
        patch.object(log_sizes, "STRETCH_MESSAGES", stretch_messages),
        patch.object(log_sizes, "STRETCH_BYTES", stretch_bytes),
        patch.object(log_sizes, "RUN_MESSAGES", run_messages),
    ):
        for run in runs:
            at_once.add_run(sequence, array("I", run))
            for size in run:
                one_by_one.add(sequence, size)
                sequence += 1

            assert at_once.content() == one_by_one.content()
            assert at_once.total_bytes == one_by_one.total_bytes


def test_a_reset_group_forgets_what_it_had_in_flight_and_goes_back_or_on() -> None:
    host = log_host()
    host.ask(SetQueue(group(A, "log@a")))
    send(host, 1, 2, 3)
    assert receive(host, A, 2) == [1, 2]

    host.ask(ResetGroup(A, "earliest"))

    assert counts(host, A) == (3, 0, 0)
    assert receive(host, A) == [1, 2, 3]
    host.ask(ResetGroup(A, "latest"))
    assert counts(host, A) == (0, 0, 0)
    host.now_ms += 60_000
    assert receive(host, A) == []
    assert_same(host, host.replayed())


def test_an_offset_is_set_forward_only_and_not_beyond_what_is_committed() -> None:
    host = log_host()
    host.ask(SetQueue(group(A, "log@a")))
    send(host, 1, 2, 3)

    host.ask(SetGroupOffset(A, 0, 3))
    host.ask(SetGroupOffset(A, 0, 2))

    assert receive(host, A) == [3]
    with pytest.raises(InvalidParameterValue, match="The end of partition 0 is 4"):
        host.ask(SetGroupOffset(A, 0, 5))
    assert_same(host, host.replayed())


def test_dead_letters_of_a_group_are_copied_and_consumed_in_that_group_alone() -> None:
    policy = f'{{"deadLetterTargetArn": "{arn("dead")}", "maxReceiveCount": 1}}'
    host = log_host(RedrivePolicy=policy)
    host.ask(SetQueue(queue(DEAD, "dead")))
    host.ask(SetQueue(group(A, "log@a")))
    host.ask(SetQueue(group(B, "log@b")))
    send(host, 1)
    assert receive(host, A, timeout_ms=0) == [1]
    outcome = host.ask(Receive(A, 0, 1))
    assert isinstance(outcome, TakenOutcome)
    (letter,) = outcome.dead_letters
    row, payload = host.payload(letter.offset)

    host.ask(MoveMessage(A, 0, 1, DEAD, row.type, row.flags, payload, arn("log@a")))

    assert counts(host, DEAD) == (1, 0, 0)
    assert counts(host, A) == (0, 0, 0)
    assert counts(host, B) == counts(host, LOG) == (1, 0, 0)
    assert_same(host, host.replayed())


def test_a_log_is_nobodys_dead_letter_queue() -> None:
    host = log_host()
    policy = f'{{"deadLetterTargetArn": "{arn("log")}", "maxReceiveCount": 1}}'
    host.ask(SetQueue(queue(DEAD, "jobs", attributes={"RedrivePolicy": policy})))
    host.ask(Send(DEAD, 0, [message(1)]))

    for _ in range(3):
        assert receive(host, DEAD, timeout_ms=0) == [1]


def test_what_cannot_be_asked_of_a_log_or_its_group_is_refused_with_why() -> None:
    host = log_host()
    host.ask(SetQueue(group(A, "log@a")))
    host.ask(SetQueue(queue(DEAD, "plain")))
    task = StartMoveTask(LOG, identity(1), arn("log"), None, None, None)

    with pytest.raises(UnsupportedOperation, match="read by its consumer groups"):
        host.ask(Receive(LOG, 0, 1))
    with pytest.raises(UnsupportedOperation, match="read by its consumer groups"):
        host.ask(Delete(LOG, 0, []))
    with pytest.raises(UnsupportedOperation, match="read by its consumer groups"):
        host.ask(ChangeVisibility(LOG, 0, [], []))
    with pytest.raises(UnsupportedOperation, match="sent to the queue"):
        host.ask(Send(A, 0, [message(1)]))
    with pytest.raises(UnsupportedOperation, match="they are not moved"):
        host.ask(task)
    with pytest.raises(UnsupportedOperation, match="plain is no consumer group"):
        host.ask(ResetGroup(DEAD, "earliest"))
    with pytest.raises(UnsupportedOperation, match="plain is no consumer group"):
        host.ask(SetGroupOffset(DEAD, 0, 1))


def test_a_group_needs_its_log_and_a_log_has_so_many_groups() -> None:
    host = log_host()
    host.ask(SetQueue(queue(DEAD, "plain")))
    with pytest.raises(QueueDoesNotExist):
        host.ask(SetQueue(group(A, "none@a", log=77)))
    with pytest.raises(QueueDoesNotExist):
        host.ask(SetQueue(group(A, "plain@a", log=DEAD)))
    for number in range(GROUPS_MAX):
        host.ask(SetQueue(group(100 + number, f"log@{number}")))

    with pytest.raises(OverLimit, match=str(GROUPS_MAX)):
        host.ask(SetQueue(group(A, "log@a")))


def test_a_look_at_the_logs_own_messages_shows_all_as_visible() -> None:
    host = log_host()
    host.ask(SetQueue(group(A, "log@a")))
    send(host, 1, 2)
    delete(host, A, *receive(host, A, 1))

    shown = host.ask(Peek(LOG, 0, 0, 10))

    assert isinstance(shown, PeekedOffsets)
    assert [found.sequence for found in shown.messages] == [1, 2]
    assert shown.states == ["visible", "visible"]


@pytest.mark.parametrize("name", ["log", "log.fifo"])
def test_a_group_of_an_older_snapshot_than_its_logs_lacks_what_the_log_dropped(name: str) -> None:
    """Its in-flight messages, those that came back and its move records among them are of messages that are gone."""
    policy = f'{{"deadLetterTargetArn": "{arn("elsewhere")}", "maxReceiveCount": 9}}'
    host = log_host(name, RedrivePolicy=policy)
    host.ask(SetQueue(group(A, f"{name}@a")))
    for number in range(1, 7):
        send(host, number, group=number % 2 + 1)
    receive(host, A, 3)
    receive(host, A, 1, 0)
    host.ask(Receive(A, 0, 1, attempt=b"attempt-00000001"))
    older = snapshot(host, A)
    host.ask(ChangeVisibility(A, 0, [Receipt(1, 1, 1)], [0]))
    receive(host, A, 1)
    host.ask(ChangeVisibility(A, 0, [Receipt(1, 1, 2)], [1_000]))
    delete(host, A, *receive(host, A, 10))
    send(host, 7, 8, group=3)
    host.ask(SetGroupOffset(A, 0, 5))
    receive(host, A, 10)
    host.ask(Purge(LOG))
    send(host, 9, 10, group=1)
    host.ask(ResetGroup(A, "offset:2"))
    receive(host, A, 1)

    states = restarted(host, snapshots=[snapshot(host, LOG), older])

    assert_same(host, states)
    assert_same(host, restarted(host, snapshots=[snapshot(host, LOG)], start=0))


def test_a_group_whose_log_is_in_no_snapshot_is_made_again_by_the_replay_or_gone() -> None:
    host = log_host()
    host.ask(SetQueue(group(A, "log@a")))
    send(host, 1)
    _, data, definition = snapshot(host, A)

    states = QueueStates(MemoryChunks(), retry_window_ms=RETRY_WINDOW_MS)
    loaded = load_partition(data, definition, 0, MemoryChunks(), retry_window_ms=RETRY_WINDOW_MS)
    states.load(definition, [loaded])
    states.attach_groups()
    assert states.definitions == {}
    assert_same(host, replay(host.batches, states=states))

    behind = QueueStates(MemoryChunks(), retry_window_ms=RETRY_WINDOW_MS)
    assert replay(host.batches, states=behind, start=2).definitions == {}


def test_an_index_of_a_group_owns_no_chunks() -> None:
    index = GroupIndex(5)

    assert index.chunk_numbers() == []
    assert index.lost_chunks(ValueError) == []
    assert GroupIndex.of_bytes(index.to_bytes()).next_sequence == 5


def test_fair_shares_of_a_group_behind_its_log_count_what_is_still_in_flight() -> None:
    host = log_host(MessageRetentionPeriod="60")
    host.ask(SetQueue(group(A, "log@a")))
    send(host, 1, 2, group=7)
    host.now_ms += 50_000
    send(host, 3, 4, group=7)
    send(host, 5)
    assert receive(host, A, timeout_ms=300_000) == [1, 2, 3, 4, 5]
    older = snapshot(host, A)
    host.now_ms += 20_000
    host.ask(ExpireMessages(LOG, 0))

    states = restarted(host, snapshots=[snapshot(host, LOG), older])

    assert_same(host, states)
    order = states.partition(A, 0).order
    assert isinstance(order, StandardOrder)
    assert [tenant.in_flight for tenant in order.tenants.values()] == [2]


def test_messages_that_leave_for_another_journal_are_the_groups_alone() -> None:
    policy = f'{{"deadLetterTargetArn": "{arn("far")}", "maxReceiveCount": 1}}'
    host = log_host(RedrivePolicy=policy)
    host.ask(SetQueue(group(A, "log@a")))
    host.states.elsewhere = QueuesElsewhere(CellFormat())
    host.states.elsewhere.places[arn("far")] = far_queue(9, "far", 5)
    send(host, 1, 2, 3)
    older = snapshot(host, A)
    receive(host, A, timeout_ms=0)
    outcome = host.ask(Receive(A, 0, 10))
    assert isinstance(outcome, TakenOutcome)
    begun = []
    for letter in outcome.dead_letters:
        row, payload = host.payload(letter.offset)
        move = MoveMessage(
            A, 0, letter.sequence, 9, row.type, row.flags, payload, None, target=far_queue(9, "far", 5)
        )
        answer = host.ask(move)
        assert isinstance(answer, MoveBegun)
        begun.append(answer)
    leaving = snapshot(host, A)
    host.ask(EndMoves(A, 0, begun[0].target_key, [begun[0].number], []))

    assert counts(host, A) == (0, 2, 0)
    assert counts(host, LOG) == (3, 0, 0)
    assert host.states.messages_gone == 0
    assert_same(host, host.replayed())

    host.ask(Purge(LOG))
    for group_then in (older, leaving):
        assert_same(host, restarted(host, snapshots=[snapshot(host, LOG), group_then]))


def test_what_a_bounded_expiry_leaves_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fifo_order, "EXPIRED_AT_A_TIME", 1)
    host = log_host("log.fifo", MessageRetentionPeriod="60")
    host.ask(SetQueue(group(A, "log.fifo@a")))
    host.ask(SetQueue(group(B, "log.fifo@b")))
    for number in range(1, 5):
        send(host, number, group=number)
    assert receive(host, B, 4) == [1, 2, 3, 4]
    host.now_ms += 70_000
    send(host, 5, group=5)

    assert receive(host, A) == [5]

    assert counts(host, LOG)[0] > 1
    assert_same(host, host.replayed())


def test_a_purge_of_a_group_consumes_all_there_is_for_that_group() -> None:
    host = log_host()
    host.ask(SetQueue(group(A, "log@a")))
    host.ask(SetQueue(group(B, "log@b")))
    send(host, 1, 2)

    host.ask(Purge(A))

    assert (counts(host, A), counts(host, B), counts(host, LOG)) == ((0, 0, 0), (2, 0, 0), (2, 0, 0))
    assert host.states.messages_gone == 0
    assert_same(host, host.replayed())


def test_groups_go_with_their_log() -> None:
    host = log_host()
    host.ask(SetQueue(group(A, "log@a")))
    send(host, 1)
    changed = queue(LOG, "log", revision=2, attributes={"RetentionMode": "Log", "DelaySeconds": "5"})
    host.ask(SetQueue(changed))
    snapshots = [snapshot(host, LOG), snapshot(host, A)]
    assert_same(host, restarted(host, snapshots=snapshots, start=0))

    host.ask(ForgetQueue(LOG))

    assert host.states.partitions == {}
    assert restarted(host, snapshots=snapshots).partitions == {}


def test_a_reset_of_a_group_that_is_gone_is_passed_over() -> None:
    host = log_host()
    host.ask(SetQueue(group(A, "log@a")))
    host.ask(ResetGroup(A, "earliest"))
    host.ask(ForgetQueue(A))

    assert_same(host, restarted(host, snapshots=[snapshot(host, LOG)], start=3))
