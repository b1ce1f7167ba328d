"""The whole of a journal's queues against a small reference model, with crashes, snapshots and replays.

QUAYMASTER_HYPOTHESIS=long runs it for as long as a night has room.
"""

from __future__ import annotations

import copy
import hashlib
import os
from typing import Any, ClassVar

import pytest
from harness.replica_host import RETRY_WINDOW_MS, Host, arn, identity, message, queue, replay, snapshot_of
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core.queues.queue_model import DEDUP_WINDOW_MS, ModelMessage, ModelQueue, move
from quaymaster.core.partition import partition
from quaymaster.core.partition.partition_counts import counts_of
from quaymaster.core.partition.partition_snapshots import load_partition
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.queues.record_payloads import MOVE_HEAD_BYTES
from quaymaster.core.structures import sequences
from quaymaster.core.structures.ids import recent_ids
from quaymaster.core.structures.ids.recent_marks import MARKED_S
from quaymaster.core.structures.orders import fifo_order, index, standard_order
from quaymaster.core.values.commands.decided import (
    DeadLetter,
    Duplicate,
    ExpireMessages,
    PeekedOffsets,
    SentOutcome,
    TakenOutcome,
)
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
    SendResult,
)
from quaymaster.core.values.commands.move_tasks import (
    CancelMoveTask,
    FinishMoveTask,
    ListMoveTasks,
    MoveTasksOutcome,
    StartMoveTask,
    TakeForMove,
    TakenForTask,
)
from quaymaster.core.values.commands.moves import MoveMessage
from quaymaster.core.values.commands.partitions import ForgetQueue, SetQueue
from quaymaster.core.values.errors import InvalidParameterValue, QueueRevisionTaken
from quaymaster.core.values.messages import message_id_of, prefix_bytes
from quaymaster.core.values.queues.queue_definitions import (
    QueueDefinition,
    decode_queue_definition,
    encode_queue_definition,
    replace_definition,
)
from quaymaster.core.values.records import RecordType

pytestmark = pytest.mark.uncovered

IS_LONG = os.environ.get("QUAYMASTER_HYPOTHESIS") == "long"

SMALL = [
    (index, "CHUNK_ENTRIES", 4),
    (index, "TAIL_ENTRIES_MAX", 8),
    (index, "CHUNKS_CACHED", 2),
    (sequences, "ARRAY_LENGTH_MAX", 3),
    (recent_ids, "SLOT_ENTRIES", 3),
    (standard_order, "SCAN_MAX", 4),
    (standard_order, "RETURNED_MAX", 3),
    (standard_order, "NOISY_IN_FLIGHT_MIN", 2),
    (standard_order, "BUSY_MIN_MS", 1_000),
    (standard_order, "TENANTS_MAX", 2),
    (fifo_order, "SCAN_MAX", 4),
    (fifo_order, "READY_GROUPS_MAX", 2),
    (partition, "FAR_DEADLINE_MS", 10_000),
]

NAMES = ["jobs", "jobs-dead", "steps.fifo", "steps-dead.fifo"]
"""The first and third have the one behind them as dead-letter queue, when they have one."""

places = st.sampled_from([0, 1, 2, 3, 4, 4, 4, 4, 4, 4])
"""A queue by its place in NAMES, or more often (4) the one this run is mostly about."""
flags = st.booleans()
times_ms = st.sampled_from([0, 0, 0, 1, 20, 49, 50, 1_000, 1_000, 2_500, 30_000, 61_000, 300_000])
timeouts_ms = st.sampled_from([-1, 0, 1_000, 2_000, 5_000, 30_000])
groups = st.integers(1, 3)


def spread(kind: bytes, number: int) -> bytes:
    """Return 16 bytes as a hash would give them: different from the first byte on."""
    return hashlib.blake2b(kind + b"%d" % number, digest_size=16).digest()


entries_to_send = st.lists(
    st.tuples(
        groups,
        st.sampled_from([-1, -1, -1, 0, 1_000, 2_000]),
        st.integers(0, 5),
        st.integers(0, 5),
        flags,
    ),
    min_size=1,
    max_size=4,
)
"""Each: group, delay, deduplication id and retry id (0: none), whether it may be a retry."""


class QueueMachine(RuleBasedStateMachine):
    names: ClassVar = NAMES

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for module, name, value in SMALL:
            self.patch.setattr(module, name, value)
        self.keeper = index.MemoryChunks()
        self.host = Host(states=QueueStates(self.keeper, retry_window_ms=RETRY_WINDOW_MS))
        self.epoch = 1
        self.focus = 0
        self.ids = 100
        self.came_ms: dict[bytes, int] = {}
        """When the leader was last asked to store a message of a retried id."""
        self.definitions: dict[str, QueueDefinition] = {}
        self.models: dict[int, ModelQueue] = {}
        self.receipts: list[tuple[int, Receipt]] = []
        self.letters: list[DeadLetter] = []
        self.taken_for_task: list[tuple[int, int, int, bytes]] = []  # queue, sequence, offset
        self.snapshots: dict[int, tuple[int, bytes, bytes]] = {}
        self.kept: list[tuple[int, Any]] = []  # end offset -> the model as of it
        self.make_queues()

    def make_queues(self) -> None:
        for name in self.names:
            self.make_queue(name, {})

    def teardown(self) -> None:
        self.patch.undo()

    # Plumbing

    @property
    def now_ms(self) -> int:
        return int(self.host.now_ms)

    def ask(self, command: Any) -> Any:
        """Propose; the answer is what was decided. Whether it was held back long enough is checked here."""
        token = self.host.propose(command)
        replies = self.host.replies
        if token in replies:
            answer = replies.pop(token)
            is_promise = isinstance(
                command,
                Delete
                | ChangeVisibility
                | Purge
                | SetQueue
                | ForgetQueue
                | Send
                | ResetGroup
                | SetGroupOffset,
            )
            if isinstance(command, Receive) and isinstance(answer, TakenOutcome):
                model = self.models[command.queue_id]
                is_promise = bool(answer.taken and (model.is_fifo or model.is_exactly_once))
            is_promise = is_promise and not isinstance(answer, Exception)
            assert not is_promise or self.host.rests_on[token] <= self.host.replica.durable_end
            if isinstance(answer, Exception):
                raise answer
            return answer
        waiting = [*self.host.replica._pending]
        for pending in waiting:
            for held, answer in pending.on_commit:
                if held == token:
                    return answer
        raise AssertionError("a command is answered, or its answer waits for the commit")

    def name_at(self, place: int) -> str:
        return self.names[self.focus if place == 4 else place]

    def model_at(self, place: int) -> ModelQueue:
        return self.models[self.definitions[self.name_at(place)].queue_id]

    def keep(self) -> None:
        """Remember the model as of the journal's end, should what is behind the durable end be lost."""
        if self.host.is_slow:
            state = copy.deepcopy((self.models, self.definitions, len(self.receipts)))
            self.kept.append((self.host.replica.end_offset, state))

    def committed(self, queue_id: int) -> int:
        return int(self.host.partition(queue_id).committed)

    def stored_id(self, offset: int) -> bytes:
        row, payload = self.host.payload(offset)
        if row.type == RecordType.MOVE:
            payload = payload[MOVE_HEAD_BYTES:]
        return message_id_of(payload[prefix_bytes(row.flags & 7) :])

    def make_queue(self, name: str, attributes: dict[str, str]) -> None:
        self.ids += 1
        definition = queue(self.ids, name, attributes=attributes)
        self.definitions[name] = definition
        self.models[self.ids] = ModelQueue(self.ids, name, name.endswith(".fifo"))
        self.set_model(definition)
        self.ask(SetQueue(definition))

    def set_model(self, definition: QueueDefinition) -> None:
        model = self.models[definition.queue_id]
        model.visibility_ms = definition.visibility_timeout_ms
        model.delay_ms = definition.delay_ms
        model.retention_ms = definition.retention_ms
        model.set_exactly_once(definition.is_exactly_once)
        policy = definition.redrive_policy
        model.receives_max = policy.receive_count_max if policy else 0
        self.link()

    def link(self) -> None:
        """Find the dead-letter queues anew: they go by name."""
        for name, definition in self.definitions.items():
            policy = definition.redrive_policy
            target = policy.target.name if policy else ""
            known = self.definitions.get(target)
            self.models[definition.queue_id].target = known.queue_id if known else None
            assert name == definition.name

    # Rules: time and durability

    @initialize(
        is_slow=flags,
        focus=st.sampled_from([0, 0, 1, 2, 2, 3]),
        delay_s=st.sampled_from([0, 0, 0, 2]),
        receives_max=st.sampled_from([0, 1, 2]),
        is_exactly_once=flags,
    )
    def start(
        self, is_slow: bool, focus: int, delay_s: int, receives_max: int, is_exactly_once: bool
    ) -> None:
        self.focus = focus
        self.set_attributes(focus, delay_s, 30, 345_600, receives_max, is_exactly_once)
        self.host.is_slow = is_slow
        self.keep()

    @rule(by_ms=times_ms)
    def time_passes(self, by_ms: int) -> None:
        self.host.now_ms += by_ms
        for model in self.models.values():
            model.advance(self.now_ms)

    @rule(place=places)
    def wheel_is_turned(self, place: int) -> None:
        self.host.partition(self.model_at(place).queue_id).advance(self.now_ms)

    @precondition(lambda self: self.host.is_slow)
    @rule(count=st.integers(1, 4))
    def disk_catches_up(self, count: int) -> None:
        self.host.make_durable(count)
        self.host.replies.clear()
        while len(self.kept) > 1 and self.kept[1][0] <= self.host.replica.durable_end:
            self.kept.pop(0)

    @precondition(lambda self: self.host.is_slow)
    @rule(from_snapshot=flags)
    def power_is_cut(self, from_snapshot: bool) -> None:
        durable_end = self.host.replica.durable_end
        batches = self.host.durable_batches()
        while len(self.kept) > 1 and self.kept[1][0] <= durable_end:
            self.kept.pop(0)
        assert self.kept[0][0] <= durable_end
        self.models, self.definitions, receipt_count = copy.deepcopy(self.kept[0][1])
        self.snapshots = {key: kept for key, kept in self.snapshots.items() if kept[0] <= durable_end}
        # A receive of a standard queue was answered before it was durable: its receipts are out there.
        self.receipts = [
            (queue_id, receipt)
            for at, (queue_id, receipt) in enumerate(self.receipts)
            if at < receipt_count
            or (
                queue_id in self.models
                and not self.models[queue_id].is_fifo
                and not self.models[queue_id].is_exactly_once
                and receipt.sequence < self.models[queue_id].next_sequence
            )
        ]
        self.letters.clear()
        self.taken_for_task.clear()
        for model in self.models.values():
            for found in model.live.values():
                found.moving_to = None
            model.advance(self.now_ms)
            model.repeats_until_ms = 0  # in the leader's memory, as what came lately is
            model.retries_before = [
                time_ms
                for (kind, _), stored in model.stored.items()
                if kind == "retry"
                for time_ms, _ in stored
            ]
        self.came_ms.clear()
        self.epoch += 1
        states = self.from_snapshots(batches) if from_snapshot else replay(batches, keeper=self.keeper)
        self.host = Host(batches=batches, states=states, epoch=self.epoch, now_ms=self.now_ms, is_slow=True)
        self.kept.clear()
        self.keep()

    # Rules: messages

    @rule(place=places, entries=entries_to_send)
    def send(self, place: int, entries: list[tuple[int, int, int, int, bool]]) -> None:
        self.send_to(self.model_at(place), entries)

    def send_to(self, model: ModelQueue, entries: list[tuple[int, int, int, int, bool]]) -> None:
        model.advance(self.now_ms)
        command = Send(model.queue_id, 0, [])
        expected: list[tuple[bytes, bool]] = []
        may_be_late = self.now_ms < model.repeats_until_ms or self.looks_for_late(model)
        for group, delay_ms, dedup, retry, may_be_retry in entries:
            self.ids += 1
            message_id = identity(self.ids)
            keys = {
                "dedup": spread(b"dedup", dedup)
                if dedup and (model.is_fifo or model.is_exactly_once)
                else None,
                "retry": spread(b"retry", retry) if retry else None,
            }
            if not model.is_fifo and group == 3:
                group = 0
            command.messages.append(
                message(
                    self.ids,
                    group=group,
                    delay_ms=delay_ms,
                    dedup=keys["dedup"],
                    retry=keys["retry"],
                    may_be_retry=may_be_retry,
                )
            )
            known: bytes | None = None
            if keys["dedup"]:
                known = model.find_stored("dedup", keys["dedup"], self.now_ms, DEDUP_WINDOW_MS)
            came_lately = keys["retry"] is not None and self.came_lately(keys["retry"])
            if known is None and keys["retry"] and (may_be_retry or may_be_late or came_lately):
                known = model.find_stored("retry", keys["retry"], self.now_ms, RETRY_WINDOW_MS)
            if known is None:
                model.send(message_id, group, self.now_ms, delay_ms)
                if keys["retry"] and may_be_retry:
                    model.repeats_until_ms = self.now_ms + RETRY_WINDOW_MS
                for kind, key in keys.items():
                    if key:
                        model.stored.setdefault((kind, key), []).append((self.now_ms, message_id))
            expected.append((known or message_id, known is not None))

        outcome: SentOutcome = self.ask(command)

        for result, (message_id, is_duplicate) in zip(outcome.results, expected, strict=True):
            assert isinstance(result, Duplicate) == is_duplicate
            if isinstance(result, SendResult):
                assert result.message_id == message_id
                assert model.live[result.sequence].message_id == message_id
            else:
                assert self.stored_id(result.offset) == message_id
        model.advance(self.now_ms)
        self.keep()

    def came_lately(self, retry: bytes) -> bool:
        """Note that a retried id comes, and tell whether the leader knows it from the last seconds."""
        second = self.now_ms // 1000
        before = self.came_ms.get(retry)
        self.came_ms[retry] = self.now_ms
        # A second is kept in a byte, so an old one looks new now and then.
        return before is not None and (second - before // 1000) % 255 <= MARKED_S

    def looks_for_late(self, model: ModelQueue) -> bool:
        """Tell whether a leader looks for first attempts whose repeats an earlier one stored.

        It must while there may be one. That it looks longer than it must changes only what is stored again at once.
        """
        states, retries = self.host.states, self.host.partition(model.queue_id).ids.retries
        looks = (
            self.now_ms < states.repeats_until_ms
            and retries is not None
            and retries.may_know_below(states.repeats_below)
        )
        assert looks or all(self.now_ms - time_ms >= RETRY_WINDOW_MS for time_ms in model.retries_before)
        return looks

    @rule(
        place=places,
        count_max=st.sampled_from([1, 2, 3, 10]),
        timeout_ms=timeouts_ms,
        attempt=st.integers(0, 3),
    )
    def receive(self, place: int, count_max: int, timeout_ms: int, attempt: int) -> None:
        model = self.model_at(place)
        model.advance(self.now_ms)
        key = b"attempt-%08d" % attempt if attempt and model.is_fifo else None
        timeout = model.visibility_ms if timeout_ms < 0 else timeout_ms
        earlier = model.find_attempt(key, self.now_ms) if key else None
        for round_ in range(1_000):
            assert round_ < 999, "a scan comes to its end"
            # Later too: what a receive found to be dead letters may have gone meanwhile.
            if key and model.is_spent(key, self.now_ms):
                with pytest.raises(InvalidParameterValue):
                    self.ask(Receive(model.queue_id, 0, count_max, timeout_ms, attempt=key))
                break
            outcome: TakenOutcome = self.ask(Receive(model.queue_id, 0, count_max, timeout_ms, attempt=key))
            epoch = model.receipt_epoch(self.epoch) if outcome.taken else self.epoch
            assert outcome.epoch == epoch
            if earlier is None:
                self.check_taken(model, outcome, count_max)
                for letter in outcome.dead_letters:
                    found = model.live[letter.sequence]
                    assert model.is_exhausted(found)
                    assert letter.target_queue_id == model.target
                    assert self.stored_id(letter.offset) == found.message_id
                    found.moving_to = letter.target_queue_id
                    self.letters.append(letter)
            else:
                assert [(taken.sequence, taken.delivery_count) for taken in outcome.taken] == earlier[
                    :count_max
                ]
            for taken in outcome.taken:
                found = model.live[taken.sequence]
                if earlier is None:
                    model.take(found, self.now_ms, timeout, self.epoch)
                else:
                    model.hide(found, self.now_ms, timeout, self.epoch)
                assert taken.delivery_count == found.count
                assert taken.first_receive_ms == found.first_ms
                assert taken.sent_ms == found.sent_ms
                assert self.stored_id(taken.offset) == found.message_id
                assert taken.offset < self.host.replica.durable_end
                if model.is_fifo or taken.offset < self.host.replica.commit:
                    self.receipts.append(
                        (model.queue_id, Receipt(taken.sequence, epoch, taken.delivery_count))
                    )
            if key and outcome.taken:
                model.attempts[key] = (
                    self.now_ms,
                    [(taken.sequence, taken.delivery_count) for taken in outcome.taken],
                )
            self.keep()
            if outcome.taken or not outcome.unfinished:
                break

    @rule(
        place=places,
        entries=entries_to_send,
        receives=st.lists(
            st.tuples(st.sampled_from([1, 2, 10]), timeouts_ms, st.integers(0, 3), flags, times_ms),
            min_size=1,
            max_size=4,
        ),
    )
    def queue_is_worked_on(
        self,
        place: int,
        entries: list[tuple[int, int, int, int, bool]],
        receives: list[tuple[int, int, int, bool, int]],
    ) -> None:
        """What happens most: messages are sent, received, and some deleted, while time passes."""
        self.send(place, entries)
        if self.host.is_slow:
            self.disk_catches_up(2)
        for count_max, timeout_ms, attempt, is_deleted, after_ms in receives:
            self.receive(place, count_max, timeout_ms, attempt)
            self.sync_expired()
            if is_deleted and self.receipts:
                self.delete([0], True)
            self.time_passes(after_ms)
        if self.letters:
            self.dead_letter_is_moved(0, True)
            self.disk_catches_up(2)
            if self.focus in (0, 2):
                self.receive(self.focus + 1, 1, 5_000, 0)

    def check_taken(self, model: ModelQueue, outcome: TakenOutcome, count_max: int) -> None:
        taken = [found.sequence for found in outcome.taken]
        letters = {letter.sequence for letter in outcome.dead_letters}
        committed = self.committed(model.queue_id)
        assert len(set(taken)) == len(taken) <= count_max
        may = model.candidates(self.now_ms, committed, strictly=False)
        allowed: set[int] = set()
        for run in may:
            chosen = [sequence for sequence in taken if model.live[sequence].group == run[0].group]
            chosen = (
                chosen if model.is_fifo else [sequence for sequence in taken if sequence == run[0].sequence]
            )
            front: list[int] = []
            for found in run:
                if found.sequence in letters or model.is_expired(found, self.now_ms):
                    allowed.add(found.sequence)
                    continue
                if model.is_exhausted(found) or len(front) == len(chosen):
                    break
                front.append(found.sequence)
            assert chosen == front, "a group gives its messages in order, from its front"
            allowed.update(front)
        assert allowed.issuperset([*taken, *letters]), "only what is visible, due and committed is handed out"
        if model.is_fifo:
            where = [model.live[sequence].group for sequence in taken]
            assert len(set(where)) == sum(a != b for a, b in zip([None, *where], where, strict=False))
        if len(taken) < count_max and not outcome.unfinished:
            served = {model.live[sequence].group for sequence in [*taken, *letters]}
            for run in model.candidates(self.now_ms, committed, strictly=True):
                left = [
                    found
                    for found in run
                    if found.sequence not in taken
                    and found.sequence not in letters
                    and not model.is_expired(found, self.now_ms)
                ]
                # What was set aside left room, but the receive had locked the groups it went on to; and the
                # look ahead for more of one group has a bound.
                may_be_short = (
                    bool(letters)
                    or len(model.live) > fifo_order.SCAN_MAX
                    or len({found.group for found in model.live.values()}) > fifo_order.READY_GROUPS_MAX
                    or any(model.is_expired(found, self.now_ms) for found in model.live.values())
                )
                if not (model.is_fifo and may_be_short and run[0].group in served):
                    assert not left, "what is visible is handed out while there is room"

    @precondition(lambda self: self.receipts)
    @rule(picks=st.lists(st.integers(0, 1_000), min_size=1, max_size=3), is_newest=flags)
    def delete(self, picks: list[int], is_newest: bool) -> None:
        queue_id, receipts = self.pick(picks, is_newest)
        model = self.models.get(queue_id)
        if model is None:
            return
        model.advance(self.now_ms)

        outcome: EntriesOutcome = self.ask(Delete(queue_id, 0, receipts))

        # Each is judged before any is deleted.
        verdicts = [
            copy.deepcopy(model).delete(receipt.sequence, receipt.epoch, receipt.delivery_count, self.now_ms)
            for receipt in receipts
        ]
        for receipt, error, is_done in zip(receipts, outcome.errors, verdicts, strict=True):
            assert isinstance(error, InvalidParameterValue) != is_done
            model.delete(receipt.sequence, receipt.epoch, receipt.delivery_count, self.now_ms)
        self.keep()

    @precondition(lambda self: self.receipts)
    @rule(
        picks=st.lists(st.integers(0, 1_000), min_size=1, max_size=3),
        is_newest=flags,
        timeout_ms=timeouts_ms.filter(lambda timeout_ms: timeout_ms >= 0),
    )
    def change_visibility(self, picks: list[int], is_newest: bool, timeout_ms: int) -> None:
        queue_id, receipts = self.pick(picks, is_newest)
        model = self.models.get(queue_id)
        if model is None:
            return
        model.advance(self.now_ms)

        outcome: EntriesOutcome = self.ask(
            ChangeVisibility(queue_id, 0, receipts, [timeout_ms] * len(receipts))
        )

        for receipt, error in zip(receipts, outcome.errors, strict=True):
            is_done = model.change_visibility(
                receipt.sequence, receipt.epoch, receipt.delivery_count, self.now_ms, timeout_ms
            )
            assert isinstance(error, InvalidParameterValue) != is_done
        self.keep()

    def pick(self, picks: list[int], is_newest: bool) -> tuple[int, list[Receipt]]:
        first = -1 if is_newest else picks[0] % len(self.receipts)
        queue_id = self.receipts[first][0]
        mine = [receipt for known, receipt in self.receipts if known == queue_id]
        chosen = [self.receipts[first][1], *(mine[pick % len(mine)] for pick in picks[1:])]
        return queue_id, chosen

    # Rules: moves

    @precondition(lambda self: self.letters)
    @rule(pick=st.integers(0, 100), is_readable=st.sampled_from([True, True, True, False]))
    def dead_letter_is_moved(self, pick: int, is_readable: bool) -> None:
        letter = self.letters.pop(pick % len(self.letters))
        row, payload = self.host.payload(letter.offset)
        source = self.models.get(letter.queue_id)
        target = self.models.get(letter.target_queue_id)
        self.ask(
            MoveMessage(
                letter.queue_id,
                0,
                letter.sequence,
                letter.target_queue_id,
                row.type,
                row.flags,
                payload if is_readable else None,
                arn(source.name) if source else None,
            )
        )
        found = source.live.get(letter.sequence) if source else None
        if source is not None and found is not None and found.moving_to is not None:
            if target is None or not is_readable:
                found.moving_to = None
            else:
                move(source, target, letter.sequence, self.now_ms, None)
        self.keep()

    @rule(place=st.sampled_from([1, 3]), to=st.sampled_from([None, None, 0, 2, 1, 3]))
    def move_task_starts(self, place: int, to: int | None) -> None:
        source = self.model_at(place)
        target = self.model_at(to) if to is not None and to // 2 == place // 2 else None
        self.ids += 1
        command = StartMoveTask(
            source.queue_id,
            identity(self.ids),
            arn(source.name),
            None,
            target.queue_id if target else None,
            None,
        )
        if source.task is not None and source.task["status"] == "RUNNING":
            with pytest.raises(InvalidParameterValue):
                self.ask(command)
            return
        self.ask(command)
        source.task = {"id": command.task_id, "status": "RUNNING", "moved": 0, "to": command.target_queue_id}
        source.task["stop"] = source.next_sequence
        self.keep()

    @rule(place=st.sampled_from([1, 3]), count_max=st.integers(1, 5))
    def move_task_takes(self, place: int, count_max: int) -> None:
        source = self.model_at(place)
        if source.task is None or source.task["status"] != "RUNNING":
            return
        source.advance(self.now_ms)
        task_id = source.task["id"]
        assert isinstance(task_id, bytes)
        outcome: TakenForTask = self.ask(TakeForMove(source.queue_id, task_id, count_max))
        may = {
            found.sequence
            for run in source.candidates(self.now_ms, self.committed(source.queue_id), strictly=False)
            for found in run
        }
        for taken in outcome.taken:
            assert taken.sequence in may
            assert taken.sequence < int(str(source.task["stop"]))
            found = source.live[taken.sequence]
            assert not source.is_expired(found, self.now_ms)
            assert self.stored_id(taken.offset) == found.message_id
            found.moving_to = -1
            self.taken_for_task.append((source.queue_id, taken.sequence, taken.offset, task_id))
        self.keep()

    @precondition(lambda self: self.taken_for_task)
    @rule(pick=st.integers(0, 100))
    def move_task_moves(self, pick: int) -> None:
        queue_id, sequence, offset, task_id = self.taken_for_task.pop(pick % len(self.taken_for_task))
        source = self.models.get(queue_id)
        if source is None:
            return
        task = source.task
        found = source.live.get(sequence)
        assert task is not None
        target_id = task["to"] or (found.origin if found else 0)
        target = self.models.get(target_id) if isinstance(target_id, int) else None
        row, payload = self.host.payload(offset)
        self.ids += 1
        self.ask(
            MoveMessage(
                queue_id,
                0,
                sequence,
                target.queue_id if target else 0,
                row.type,
                row.flags,
                payload,
                None,
                new_message_id=identity(self.ids),
                task_id=task_id,
            )
        )
        if found is not None and found.moving_to is not None:
            if target is None or task["id"] != task_id or task["status"] != "RUNNING":
                found.moving_to = None
            else:
                move(source, target, sequence, self.now_ms, identity(self.ids))
                task["moved"] = int(str(task["moved"])) + 1
        self.keep()

    @rule(place=st.sampled_from([1, 3]), how=st.sampled_from(["CANCELLED", "COMPLETED", "FAILED"]))
    def move_task_ends(self, place: int, how: str) -> None:
        source = self.model_at(place)
        task = source.task
        if task is None or task["status"] != "RUNNING":
            return
        task_id = task["id"]
        assert isinstance(task_id, bytes)
        if how == "CANCELLED":
            self.ask(CancelMoveTask(source.queue_id, task_id))
        else:
            self.ask(FinishMoveTask(source.queue_id, task_id, "gone" if how == "FAILED" else None))
        task["status"] = how
        self.keep()

    # Rules: queues

    @rule(place=places)
    def purge(self, place: int) -> None:
        model = self.model_at(place)
        self.ask(Purge(model.queue_id))
        model.live.clear()
        model.stored.clear()
        model.retries_before.clear()
        model.attempts.clear()
        self.keep()

    @rule(place=places)
    def expire(self, place: int) -> None:
        model = self.model_at(place)
        partition_ = self.host.partition(model.queue_id)
        for _ in range(4):
            self.ask(ExpireMessages(model.queue_id, 0))
        self.sync_expired()
        for found in model.live.values():
            assert not model.is_expired(found, self.now_ms) or found.sequence >= partition_.committed
        self.keep()

    @rule(
        place=places,
        delay_s=st.sampled_from([0, 0, 1, 2, 5]),
        visibility_s=st.sampled_from([0, 1, 5, 30]),
        retention_s=st.sampled_from([60, 300, 345_600]),
        receives_max=st.sampled_from([0, 1, 2]),
        is_exactly_once=flags,
    )
    def set_attributes(
        self,
        place: int,
        delay_s: int,
        visibility_s: int,
        retention_s: int,
        receives_max: int,
        is_exactly_once: bool,
    ) -> None:
        name = self.name_at(place)
        definition = self.definitions[name]
        attributes = {
            "DelaySeconds": str(delay_s),
            "VisibilityTimeout": str(visibility_s),
            "MessageRetentionPeriod": str(retention_s),
        }
        if name.endswith(".fifo"):
            attributes["FifoQueue"] = "true"
        if is_exactly_once:
            attributes["DeliveryGuarantee"] = "ExactlyOnce"
        if receives_max and not name.endswith(("-dead", "-dead.fifo")):
            target = arn(self.names[self.names.index(name) + 1])
            attributes["RedrivePolicy"] = (
                f'{{"deadLetterTargetArn": "{target}", "maxReceiveCount": {receives_max}}}'
            )
        definition = replace_definition(definition, revision=definition.revision + 1, attributes=attributes)
        self.definitions[name] = definition
        self.models[definition.queue_id].advance(self.now_ms)
        self.ask(SetQueue(definition))
        with pytest.raises(QueueRevisionTaken):
            self.ask(SetQueue(replace_definition(definition, revision=1, attributes={})))
        self.set_model(definition)
        self.models[definition.queue_id].advance(self.now_ms)
        self.keep()

    @rule(place=places)
    def delete_and_make_again(self, place: int) -> None:
        definition = self.definitions[self.name_at(place)]
        self.ask(ForgetQueue(definition.queue_id))
        self.ask(ForgetQueue(definition.queue_id))
        del self.models[definition.queue_id]
        self.make_queue(definition.name, dict(definition.attributes))
        # Metadata would go on after a power cut between the two; here there is none.
        self.host.make_durable()
        self.keep()

    # Rules: state from elsewhere

    @rule(place=places)
    def partition_is_put_into_a_snapshot(self, place: int) -> None:
        self.put_into_a_snapshot(self.model_at(place).queue_id)

    def put_into_a_snapshot(self, queue_id: int) -> None:
        found = self.host.partition(queue_id)
        found.applied = self.host.replica.end_offset
        key = found.definition.queue_id
        self.snapshots[key] = (found.applied, encode_queue_definition(found.definition), snapshot_of(found))

    @rule(is_behind_snapshot=flags, snapshotted=st.sets(st.integers(0, 3)))
    def replay_gives_the_same_state(self, is_behind_snapshot: bool, snapshotted: set[int]) -> None:
        """Also behind snapshots of the partitions that were taken at different offsets, some just now."""
        if is_behind_snapshot:
            for place in snapshotted:
                self.partition_is_put_into_a_snapshot(place)
            self.same_as(self.from_snapshots(self.host.batches))
        else:
            self.same_as(replay(self.host.batches, keeper=self.keeper))

    def from_snapshots(self, batches: list[Any]) -> QueueStates:
        states = QueueStates(self.keeper, retry_window_ms=RETRY_WINDOW_MS)
        live = {definition.queue_id for definition in self.definitions.values()}
        start = 0
        if live <= self.snapshots.keys():
            start = min(applied for applied, _, _ in self.snapshots.values())
        for applied, definition_bytes, data in self.snapshots.values():
            definition = decode_queue_definition(definition_bytes)
            loaded = load_partition(data, definition, 0, self.keeper, retry_window_ms=RETRY_WINDOW_MS)
            assert loaded.applied == applied
            states.load(definition, [loaded])
        states.attach_groups()
        return replay(batches, states=states, start=start)

    def same_as(self, states: QueueStates) -> None:
        now_ms = self.now_ms
        assert states.state_hash(now_ms) == self.host.states.state_hash(now_ms)
        assert states.definitions == self.host.states.definitions
        for key, found in states.partitions.items():
            live = self.host.states.partitions[key]
            mine, theirs = counts_of(found, now_ms), counts_of(live, now_ms)
            assert mine.in_flight == theirs.in_flight
            assert mine.visible + mine.delayed == theirs.visible + theirs.delayed
            # Where a raised delay finds messages that were due depends on what was looked at, on FIFO queues.
            if not found.definition.is_fifo:
                assert mine.delayed == theirs.delayed

    # What must hold after each step

    def sync_expired(self) -> None:
        """What the model has, the queue has, but for what expired."""
        for queue_id, model in self.models.items():
            found = self.host.partition(queue_id)
            gone = [sequence for sequence in model.live if not found.is_live(sequence)]
            for sequence in gone:
                assert model.is_expired(model.live[sequence], self.now_ms), "no message is lost"
                del model.live[sequence]
            assert found.alive == len(model.live), "no message is invented"
            assert found.next_sequence == model.next_sequence

    @invariant()
    def queues_hold_what_the_model_holds(self) -> None:
        self.sync_expired()
        for queue_id, model in self.models.items():
            model.advance(self.now_ms)
            counts: QueueCounts = self.ask(CountMessages(queue_id))
            not_in_flight, in_flight, delayed_min, delayed_max = model.counts(self.now_ms)
            assert counts.in_flight == in_flight
            assert delayed_min <= counts.delayed <= delayed_max
            assert counts.visible == not_in_flight - counts.delayed
            self.check_peek(model, counts.delayed)
            if model.task is not None:
                tasks: MoveTasksOutcome = self.ask(ListMoveTasks(queue_id))
                newest = tasks.tasks[0]
                assert (newest.task_id, newest.status) == (model.task["id"], model.task["status"])
                assert newest.moved == model.task["moved"]

    def check_peek(self, model: ModelQueue, delayed: int) -> None:
        peeked: PeekedOffsets = self.ask(Peek(model.queue_id, 0, 0, 1_000))
        states = dict(zip([found.sequence for found in peeked.messages], peeked.states, strict=True))
        committed = self.committed(model.queue_id)
        assert set(states) == {sequence for sequence in model.live if sequence < committed}
        if committed == model.next_sequence:
            assert sum(state == "delayed" for state in states.values()) == delayed
        for shown in peeked.messages:
            found: ModelMessage = model.live[shown.sequence]
            assert (states[shown.sequence] == "in_flight") == (found.deadline_ms > 0)
            assert shown.delivery_count == found.count
            assert self.stored_id(shown.offset) == found.message_id


@pytest.mark.timeout(0 if IS_LONG else 180)
class TestQueueMachine(QueueMachine.TestCase):  # type: ignore[misc, valid-type]  # made by Hypothesis
    pass


TestQueueMachine.settings = settings(
    max_examples=20_000 if IS_LONG else 60,
    stateful_step_count=120 if IS_LONG else 40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    print_blob=True,
)
