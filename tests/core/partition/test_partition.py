"""One partition: what a snapshot holds, what time changes, and what each record does."""

from __future__ import annotations

import pytest
from harness.replica_host import queue, snapshot_of
from pyroaring import BitMap64

from quaymaster.core.partition import expiry, partition_snapshots
from quaymaster.core.partition.expiry import find_expired
from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_counts import counts_of
from quaymaster.core.partition.partition_snapshots import load_partition, snapshot_pieces
from quaymaster.core.partition.state_hash import partition_hash
from quaymaster.core.structures import deliveries
from quaymaster.core.structures.deliveries import ATTEMPT_WINDOW_MS
from quaymaster.core.structures.ids.recent_ids import SLOT_ENTRIES
from quaymaster.core.structures.orders import fifo_order
from quaymaster.core.structures.orders import index as index_module
from quaymaster.core.structures.orders.fifo_order import FIFOOrder
from quaymaster.core.structures.orders.index import MemoryChunks
from quaymaster.core.structures.orders.standard_order import StandardOrder
from quaymaster.core.values.commands.move_tasks import MoveTask

NOW_MS = 1_000_000


class Closed(MemoryChunks):
    """Chunks that cannot be read yet, as while a snapshot is loaded."""

    def __init__(self, other: MemoryChunks) -> None:
        super().__init__()
        self._chunks = other._chunks
        self.is_open = False

    def read(self, number: int, tag: bytes) -> bytes:
        assert self.is_open, "the chunk file is not open yet"
        return super().read(number, tag)


def partition(*, keeper: MemoryChunks | None = None, name: str = "jobs", **attributes: int) -> Partition:
    return Partition(
        queue(1, name, attributes=attributes), 0, keeper or MemoryChunks(), retry_window_ms=120_000
    )


def send(
    to: Partition, count: int = 1, *, now_ms: int = NOW_MS, own_delay_ms: int | None = None, group: int = 0
) -> None:
    for _ in range(count):
        delay_ms = to.definition.delay_ms if own_delay_ms is None else own_delay_ms
        sequence = to.next_sequence
        to.apply_send(sequence, sequence, now_ms, delay_ms, own_delay_ms is not None, group)


def receive(
    of: Partition, count_max: int = 10, *, now_ms: int = NOW_MS, timeout_ms: int = 30_000
) -> list[int]:
    of.advance(now_ms)
    taken = of.take_visible(count_max, now_ms)
    counts = [row.delivery_count if (row := of.returned.get(sequence)) else 0 for sequence in taken]
    messages = [(sequence, count + 1) for sequence, count in zip(taken, counts, strict=True)]
    if messages:
        of.apply_receive(messages, now_ms, timeout_ms, 1, None, taken=True)
    return taken


def restored(of: Partition, keeper: MemoryChunks | None = None) -> Partition:
    return load_partition(
        snapshot_of(of), of.definition, of.number, keeper or of.index._keeper, retry_window_ms=120_000
    )


# Time


@pytest.mark.parametrize("times_ms", [[60_000], range(0, 60_001, 50), [10_000, 20_000, 60_000]])
def test_how_often_the_wheel_is_turned_changes_nothing(times_ms: list[int]) -> None:
    found = partition()
    send(found, 3)
    receive(found, 1, timeout_ms=10_000)
    receive(found, 1, timeout_ms=20_000)
    receive(found, 1, timeout_ms=5_000)
    # The first is hidden for longer: it comes back last, whenever somebody looks.
    found.apply_change_visibility(1, NOW_MS + 1_000, 39_000, 1, 1, changed=True)

    for time_ms in times_ms:
        found.advance(NOW_MS + time_ms)

    assert isinstance(found.order, StandardOrder)
    assert list(found.order.returned) == [3, 2, 1]


def test_message_is_visible_again_after_its_visibility_timeout() -> None:
    found = partition()
    send(found)

    assert receive(found, timeout_ms=30_000) == [1]
    assert not found.advance(NOW_MS + 29_999)
    assert found.advance(NOW_MS + 30_000)
    assert receive(found, now_ms=NOW_MS + 30_000) == [1]
    assert found.in_flight[1].delivery_count == 2
    assert found.in_flight[1].first_receive_ms == NOW_MS


def test_message_received_with_no_timeout_is_visible_at_once() -> None:
    found = partition()
    send(found)

    assert receive(found, timeout_ms=0) == [1]
    assert receive(found) == [1]


def test_next_change_is_the_nearest_of_timeouts_and_delays() -> None:
    found = partition(DelaySeconds=900)
    assert found.next_change_ms() is None

    send(found)
    receive(found)
    assert found.next_change_ms() == NOW_MS + 900_000
    send(found, own_delay_ms=60_000)
    assert found.next_change_ms() == NOW_MS + 60_000
    send(found, own_delay_ms=0)
    receive(found, timeout_ms=30_000)
    assert found.next_change_ms() == NOW_MS + 30_000


def test_wheel_forgets_a_deleted_message_that_was_hidden_for_hours() -> None:
    found = partition()
    send(found, 2)
    receive(found, 1, timeout_ms=43_200_000)
    receive(found, 1, timeout_ms=50_000)

    found.apply_delete([1, 2], NOW_MS)

    assert found.wheel.next_due_ms() == NOW_MS + 50_000  # too near to be worth it
    assert not found.advance(NOW_MS + 50_000)
    assert not found.wheel


# Delays


def test_own_delay_and_queue_delay_go_side_by_side() -> None:
    found = partition(DelaySeconds=10)
    send(found)
    send(found, own_delay_ms=5_000)
    send(found, own_delay_ms=0)

    assert receive(found) == [3]
    assert counts_of(found, NOW_MS).delayed == 2
    assert receive(found, now_ms=NOW_MS + 5_000) == [2]
    assert counts_of(found, NOW_MS + 5_000).delayed == 1
    assert receive(found, now_ms=NOW_MS + 10_000) == [1]
    assert counts_of(found, NOW_MS + 10_000).delayed == 0


def test_lowered_delay_applies_to_new_messages_and_all_are_counted() -> None:
    found = partition(DelaySeconds=100)
    send(found, 3)

    found.apply_definition(queue(1, "jobs", revision=2, attributes={"DelaySeconds": 0}), NOW_MS)
    send(found, 2)

    assert counts_of(found, NOW_MS).delayed == 3
    assert receive(found) == [4, 5]
    counts = counts_of(found, NOW_MS)
    assert (counts.visible, counts.in_flight, counts.delayed) == (0, 2, 3)
    assert [found.state_of(sequence, NOW_MS) for sequence in (1, 5)] == ["delayed", "in_flight"]
    assert receive(found, now_ms=NOW_MS + 100_000) == [4, 1, 5, 2, 3]


def test_raised_delay_applies_to_new_messages() -> None:
    found = partition()
    send(found)

    found.apply_definition(queue(1, "jobs", revision=2, attributes={"DelaySeconds": 100}), NOW_MS)
    send(found)

    assert receive(found) == [1]
    assert found.state_of(2, NOW_MS) == "delayed"


def test_changed_delay_of_a_fifo_queue_applies_to_those_that_wait() -> None:
    found = partition(name="jobs.fifo", DelaySeconds=100)
    send(found, group=5)
    assert receive(found) == []

    found.apply_definition(queue(1, "jobs.fifo", revision=2, attributes={"DelaySeconds": 1}), NOW_MS)

    assert counts_of(found, NOW_MS).delayed == 1
    assert receive(found, now_ms=NOW_MS + 1_000) == [1]


# Deleting


def test_deleting_in_any_order_moves_the_head_past_what_is_gone() -> None:
    found = partition()
    send(found, 6)

    found.apply_delete([2, 3, 5], NOW_MS)
    assert (found.head, found.alive, list(found.deleted)) == (1, 3, [2, 3, 5])
    found.apply_delete([1, 2, 99, 0], NOW_MS)

    assert (found.head, found.alive, list(found.deleted)) == (4, 2, [5])
    assert [found.is_live(sequence) for sequence in range(8)] == [False] * 4 + [True, False, True, False]


def test_message_deleted_before_it_is_due_never_shows() -> None:
    found = partition()
    send(found, 2, own_delay_ms=5_000)

    found.apply_delete([1], NOW_MS)

    assert receive(found, now_ms=NOW_MS + 5_000) == [2]
    assert counts_of(found, NOW_MS).oldest_sent_ms == NOW_MS


def test_purge_takes_everything_in_any_state_and_what_deduplication_remembers() -> None:
    found = partition(name="jobs")
    send(found, 3)
    send(found, own_delay_ms=5_000)
    found.apply_send(5, 5, NOW_MS, 0, False, 0)
    found.ids.note(b"d" * 16, b"r" * 16, 5, NOW_MS)
    receive(found, 2)
    found.advance(NOW_MS + 30_000)
    receive(found, 1, now_ms=NOW_MS + 30_000)
    found.moving[3] = 9

    emptied = found.apply_purge(found.next_sequence, NOW_MS)
    assert found.apply_delete_below(2) == []

    assert counts_of(found, NOW_MS + 30_000).visible == 0
    assert (found.alive, len(found.in_flight), len(found.returned), found.moving) == (0, 0, 0, {})
    assert [len(list(steps)) for steps in emptied] == [1, 1, 1]
    assert found.ids.find(b"d" * 16, b"r" * 16, NOW_MS) is None
    assert partition_hash(found, NOW_MS) == partition_hash(restored(found), NOW_MS)


def test_purge_stops_where_it_says() -> None:
    found = partition()
    send(found, 5)
    found.apply_delete([4], NOW_MS)

    found.apply_delete_below(3)

    assert (found.head, found.alive) == (3, 2)
    assert receive(found) == [3, 5]


# Expiry


def test_oldest_messages_expire_as_a_stretch_and_only_committed_ones() -> None:
    found = partition(MessageRetentionPeriod=60)
    send(found, 3)
    send(found, 2, now_ms=NOW_MS + 10_000)
    found.uncommitted_from = 3

    assert find_expired(found, NOW_MS + 59_999, 10) == (1, [])
    assert find_expired(found, NOW_MS + 60_000, 10) == (3, [])
    found.note_commit(6)
    assert find_expired(found, NOW_MS + 60_000, 10) == (4, [])
    found.apply_delete_below(6)
    assert find_expired(found, 10**12, 10) == (6, [])


def test_expired_messages_among_moved_ones_are_found_a_stretch_at_a_time() -> None:
    found = partition(MessageRetentionPeriod=60)
    for age_ms in (0, 60_000, 10, 70_000, 80_000, 0):
        sequence = found.next_sequence
        found.apply_move_in(sequence, sequence, NOW_MS, NOW_MS - age_ms, 2, 5, 0)
    found.apply_delete([5], NOW_MS)

    assert find_expired(found, NOW_MS, 1) == (1, [2])
    assert find_expired(found, NOW_MS, 1) == (1, [4])
    assert find_expired(found, NOW_MS, 1) == (1, [])
    assert find_expired(found, NOW_MS, 10) == (1, [2, 4])


def test_expiry_behind_messages_that_wait_does_not_hand_them_out_early() -> None:
    found = partition(DelaySeconds=100, MessageRetentionPeriod=60)
    send(found, 2)
    found.apply_move_in(3, 3, NOW_MS, NOW_MS - 90_000, 1, 5, 0)
    found.apply_move_in(4, 4, NOW_MS, NOW_MS - 1_000, 1, 5, 0)

    found.apply_delete(find_expired(found, NOW_MS, 10)[1], NOW_MS)

    assert counts_of(found, NOW_MS).delayed == 2
    assert receive(found) == [4]


# Receipts of receives that were lost


def test_receipt_of_a_lost_receive_still_hides_and_the_count_does_not_fall() -> None:
    found = partition()
    send(found, 2)

    found.apply_change_visibility(1, NOW_MS, 10_000, 3, 1, changed=True)
    found.apply_change_visibility(2, NOW_MS, 0, 3, 1, changed=True)

    assert found.in_flight[1].delivery_count == 3
    assert receive(found) == [2]
    found.advance(NOW_MS + 10_000)
    found.apply_change_visibility(1, NOW_MS + 10_000, 10_000, 7, 1, changed=True)
    assert found.in_flight[1].delivery_count == 7
    assert found.in_flight[1].first_receive_ms == NOW_MS


def test_hidden_message_is_visible_at_once_when_its_timeout_is_ended() -> None:
    found = partition()
    send(found)
    receive(found)

    found.apply_change_visibility(1, NOW_MS, 0, 1, 1, changed=True)

    assert receive(found) == [1]


# Attempts


def test_old_attempts_are_forgotten_and_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "ATTEMPTS_MAX", 2)
    found = partition(name="jobs.fifo")
    send(found, 4, group=5)
    for number in range(3):
        found.apply_receive([(number + 1, 1)], NOW_MS + number, 1_000, 1, b"%016d" % number, taken=False)

    assert list(found.attempts) == [b"%016d" % 1, b"%016d" % 2]
    assert found.attempts.find(b"%016d" % 0, found.in_flight, NOW_MS) is None
    assert found.attempts.find(b"%016d" % 1, found.in_flight, NOW_MS) is not None
    assert found.attempts.find(b"%016d" % 1, found.in_flight, NOW_MS + 1 + ATTEMPT_WINDOW_MS) is None
    found.apply_receive([(4, 1)], NOW_MS + 2 * ATTEMPT_WINDOW_MS, 1_000, 1, b"%016d" % 9, taken=False)
    assert list(found.attempts) == [b"%016d" % 9]


# Tasks


def test_only_the_newest_tasks_are_kept() -> None:
    found = partition()
    tasks = [MoveTask(bytes([n]), "arn", None, None, None, "RUNNING", n) for n in range(12)]

    for task in tasks:
        found.apply_task(task)
    found.apply_task(MoveTask(bytes([5]), "arn", None, None, None, "COMPLETED", 5))

    assert [task.started_ms for task in found.tasks] == list(range(2, 12))
    assert found.tasks[3].status == "COMPLETED"


# Snapshots


@pytest.mark.parametrize("name", ["jobs", "jobs.fifo"])
def test_snapshot_is_loaded_without_reading_index_chunks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "CHUNK_ENTRIES", 4)
    monkeypatch.setattr(index_module, "TAIL_ENTRIES_MAX", 8)
    keeper = MemoryChunks()
    found = partition(keeper=keeper, name=name)
    for number in range(60):
        send(found, group=number % 4 + 1)
    receive(found, 3)
    receive(found, 3, now_ms=NOW_MS + 30_000)
    closed = Closed(keeper)

    loaded = restored(found, closed)

    closed.is_open = True
    assert partition_hash(loaded, NOW_MS) == partition_hash(found, NOW_MS)
    assert sorted(receive(loaded, now_ms=NOW_MS + 31_000)) == sorted(receive(found, now_ms=NOW_MS + 31_000))


def test_snapshot_keeps_how_often_a_returned_message_was_received() -> None:
    found = partition()
    send(found, 3)
    for round_ in range(4):
        receive(found, now_ms=NOW_MS + round_ * 30_000)
    found.advance(NOW_MS + 120_000)

    loaded = restored(found)
    receive(loaded, now_ms=NOW_MS + 120_000)

    assert [row.delivery_count for row in loaded.in_flight.values()] == [5, 5, 5]


def test_what_was_taken_for_a_move_is_visible_to_whoever_loads_the_snapshot() -> None:
    for name, group in (("jobs", 0), ("jobs.fifo", 5)):
        found = partition(name=name)
        send(found, 3, group=group)
        send(found, 1, group=group and 6)
        for sequence in found.take_visible(2, NOW_MS):
            found.moving[sequence] = 9

        loaded = restored(found)

        assert partition_hash(loaded, NOW_MS) == partition_hash(found, NOW_MS)
        assert sorted(receive(loaded)) == [1, 2, 3, 4]
        found.put_back(1, NOW_MS)
        found.put_back(2, NOW_MS)
        assert sorted(receive(found)) == [1, 2, 3, 4]


def test_snapshot_keeps_delays_windows_attempts_and_tasks() -> None:
    found = partition(DelaySeconds=5)
    send(found, 2)
    send(found, 2, own_delay_ms=60_000)
    found.apply_definition(queue(1, "jobs", revision=2), NOW_MS)
    found.apply_send(5, 5, NOW_MS, 0, False, 0)
    found.ids.note(b"d" * 16, b"r" * 16, 5, NOW_MS)
    found.apply_move_in(6, 6, NOW_MS, NOW_MS - 5, 2, 7, 0)
    found.apply_receive([(5, 1)], NOW_MS, 1_000, 1, b"a" * 16, taken=False)
    found.apply_task(MoveTask(b"t", "arn", None, None, None, "RUNNING", 1))
    found.apply_delete([3], NOW_MS)

    loaded = restored(found)

    assert partition_hash(loaded, NOW_MS) == partition_hash(found, NOW_MS)
    assert loaded.has_moved_in
    dirty = [loaded.dirty]
    for note in (loaded.note_change, loaded.note_saved):
        note()
        dirty.append(loaded.dirty)
    assert dirty == [False, True, False]
    assert loaded.tasks == found.tasks
    assert loaded.ids.find(b"d" * 16, None, NOW_MS) == 5
    assert loaded.ids.find(None, b"r" * 16, NOW_MS) == 5
    assert loaded.attempts.find(b"a" * 16, loaded.in_flight, NOW_MS) is not None
    assert counts_of(loaded, NOW_MS + 4_999) == counts_of(found, NOW_MS + 4_999)
    assert sorted(receive(loaded, now_ms=NOW_MS + 60_000)) == [1, 2, 4, 5, 6]


def test_snapshot_of_an_empty_partition_is_small() -> None:
    found = partition()
    send(found, 20_000)
    receive(found, 10_000)
    found.apply_delete_below(20_001)

    assert len(snapshot_of(found)) < 200


def test_unknown_version_of_a_snapshot_is_a_bug_not_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_snapshots, "STATE_VERSION", 99)
    data = snapshot_of(partition())
    monkeypatch.undo()

    with pytest.raises(AssertionError, match="version 99 is not known"):
        load_partition(data, queue(1), 0, MemoryChunks(), retry_window_ms=1)


def test_snapshot_that_is_cut_off_anywhere_is_refused() -> None:
    found = partition()
    found.apply_send(1, 5, NOW_MS, 0, False, 0)
    found.ids.note(b"d" * 16, b"r" * 16, 5, NOW_MS)
    data = snapshot_of(found)

    for end in range(len(data)):
        with pytest.raises(ValueError, match="cut off"):
            load_partition(data[:end], queue(1), 0, MemoryChunks(), retry_window_ms=1)


def test_snapshot_keeps_what_each_tenant_has_in_flight_but_not_what_is_being_moved() -> None:
    found = partition()
    for group in (7, 7, 7, 8, 8, 9, 0):
        send(found, 1, group=group)
    assert receive(found, 3) == [1, 2, 3]
    assert receive(found, 2, timeout_ms=60_000) == [4, 5]
    found.apply_delete([5], NOW_MS)
    for sequence in found.take_visible(10, NOW_MS):
        found.moving[sequence] = 9

    loaded = restored(found)

    assert sorted(found.moving) == [6, 7]
    assert isinstance(loaded.order, StandardOrder)
    assert {key: tenant.in_flight for key, tenant in loaded.order.tenants.items() if tenant.in_flight} == {
        7: 3,
        8: 1,
    }
    assert partition_hash(loaded, NOW_MS) == partition_hash(found, NOW_MS)


@pytest.mark.parametrize("name", ["jobs", "steps.fifo"])
def test_a_snapshot_comes_in_small_pieces_and_says_what_was_when_it_was_begun(name: str) -> None:
    count = SLOT_ENTRIES + 10
    found = partition(name=name)
    for sequence in range(1, count + 1):
        retry = sequence.to_bytes(16, "little")
        group = sequence if name == "steps.fifo" else 0
        own_delay = name == "jobs" and sequence > count - 300
        delay_ms = 50 * (sequence % 300) if own_delay else 0
        found.apply_send(sequence, sequence, NOW_MS, delay_ms, own_delay, group)
        found.ids.note(None, retry, sequence, NOW_MS)
    while receive(found):
        pass
    for sequence in range(1, count, 2):
        found.apply_change_visibility(sequence, NOW_MS, 0, 1, 1, changed=True)
    expected = partition_hash(found, NOW_MS)

    pieces = snapshot_pieces(found)
    begun = [next(pieces), next(pieces)]  # the state, of which there is one
    found.advance(NOW_MS + 10_000)
    receive(found, 10)
    found.apply_delete(range(100, 400), NOW_MS)
    found.apply_change_visibility(600, NOW_MS, 0, 1, 1, changed=True)
    if name == "jobs":
        send(found, 1, own_delay_ms=200)
    found.apply_purge(found.next_sequence, NOW_MS)
    rest = list(pieces)
    loaded = load_partition(
        b"".join([*begun, *rest]), found.definition, 0, found.index._keeper, retry_window_ms=120_000
    )

    assert partition_hash(loaded, NOW_MS) == expected
    assert max(map(len, rest)) < 33 * SLOT_ENTRIES
    assert len(begun[1]) < 33 * 2 * SLOT_ENTRIES


def test_messages_that_were_received_expire_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "EXPIRED_ROWS_MAX", 100)
    found = partition(MessageRetentionPeriod=60)
    send(found, 2_000)
    while receive(found):
        pass
    now_ms = NOW_MS + 60_001

    left = []
    while found.alive:
        stop, _ = find_expired(found, now_ms, 1_000)
        found.apply_delete_below(stop)
        left.append(len(found.in_flight))

    assert left == [1_489, 977, 465, 0]


def test_fifo_messages_of_many_groups_expire_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fifo_order, "EXPIRED_AT_A_TIME", 100)
    found = partition(name="steps.fifo", MessageRetentionPeriod=60)
    for group in range(1, 251):
        send(found, 1, group=group)
    while receive(found):
        pass
    now_ms = NOW_MS + 60_001

    stops = []
    while found.alive:
        stops.append(find_expired(found, now_ms, 1_000)[0])
        found.apply_delete_below(stops[-1])

    assert stops == [101, 201, 251]


# Mistakes of the one who applies


def test_sequence_numbers_are_stored_densely() -> None:
    found = partition()

    with pytest.raises(AssertionError, match="sequence 2 stored where 1 is next"):
        found.apply_send(2, 1, NOW_MS, 0, False, 0)


def test_fifo_queue_refuses_a_delay_of_a_single_message() -> None:
    found = partition(name="jobs.fifo")
    assert isinstance(found.order, FIFOOrder)

    with pytest.raises(AssertionError, match="no delays of single messages"):
        found.apply_send(1, 1, NOW_MS, 5, True, 1)


def test_hash_differs_when_one_message_is_missing() -> None:
    found, other = partition(), partition()
    send(found, 3)
    send(other, 3)
    assert partition_hash(found, NOW_MS) == partition_hash(other, NOW_MS)

    assert isinstance(other.order, StandardOrder)
    other.order.cursor = 2

    assert partition_hash(found, NOW_MS) != partition_hash(other, NOW_MS)
    assert BitMap64(other.deleted) == found.deleted
