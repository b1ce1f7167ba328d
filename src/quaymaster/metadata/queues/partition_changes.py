"""Queues are split, merged and moved: their partition tables change, step by step, whichever nodes stop meanwhile.

    request ──▶ open journals know the row ──CAS──▶ children new ──their journals know──CAS──▶ children open,
                                                        └─ 60 s: CAS ─▶ no children            parents closing
    parents' journals told: that is the seal ──▶ closing ──CAS──▶ closed ──CAS──▶ drained ──CAS──▶ not listed

Each step starts from the row as it is, and is the same if it is taken twice. So any node takes the next one: that which
was asked at once, others when the table has not changed for two seconds. A table at rest costs nothing.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, get_args

from quaymaster.coordination.interface import Compare, Put, RevisionMismatch
from quaymaster.core.structures.ids.sent_ids import DEDUP_WINDOW_MS
from quaymaster.core.values.commands.partitions import PartitionOutcome
from quaymaster.core.values.errors import (
    CallerError,
    InvalidParameterValue,
    NotNow,
    Overloaded,
    QueueDoesNotExist,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import DELIVERY, PARTITIONS
from quaymaster.core.values.partition_life import aged, next_look_ms, unsealed
from quaymaster.core.values.partition_tables import (
    entries_to_merge,
    entries_to_move,
    entries_to_split,
    entry_of,
    in_state,
    is_at_rest,
    is_sealed_by,
    with_children,
    with_children_open,
    with_new_dropped,
    with_state,
    with_told,
)
from quaymaster.core.values.queues.queue_definitions import (
    PartitionPlacement,
    QueueDefinition,
    encode_queue_definition,
)
from quaymaster.core.values.queues.queue_names import GROUP_MARK
from quaymaster.metadata.queues.placement import choose_journals
from quaymaster.metadata.queues.queue_journals import QueueJournals
from quaymaster.metadata.queues.settling import Settling
from quaymaster.metadata.queues.stored_queues import StoredQueues, attempts, put_pending, suffix_of
from quaymaster.metadata.store.rows import PENDING, QUEUES
from quaymaster.metadata.upkeep import FAILS
from quaymaster.monitoring.metrics import Sample
from quaymaster.monitoring.supervision import supervise
from quaymaster.protocol.rpc.metadata_messages import ChangePartitions, CheckTable
from quaymaster.protocol.sqs.internal_queues import is_internal

log = logging.getLogger(__name__)

TAKEOVER_MS: Final = 2_000
"""A change that another node was to carry on is carried on after so long without a step."""
CANCEL_MS: Final = 60_000
"""How long the journals of new partitions have to answer."""
BY_OPERATOR: Final = "An operator cancelled it."
RETRY_MS: Final = 1_000
AGAIN_MS: Final = 50
"""Others change the row at the same time."""
AT_ONCE: Final = 32
"""So many queues take steps at the same time."""
WAKE_MAX_S: Final = 1.0

Step = Literal["begun", "opened", "cancelled", "aged"]


@dataclass(slots=True)
class _Unfinished:
    """A queue whose table is not at rest: since when it is as it is here, and when it is looked at next.

    `looks`: how often it was looked at since in vain. `is_held_up`: its last step failed, which was told, by `problem`.
    """

    table_version: int
    since_s: float
    due_s: float
    looks: int = 0
    is_held_up: bool = False
    problem: str = ""


class PartitionChanges:
    """Begins changes of tables, and carries on all that are not finished, as a task of its own."""

    def __init__(self, queues: StoredQueues, journals: QueueJournals, settling: Settling) -> None:
        self._queues = queues
        self._journals = journals
        self._settling = settling
        self._unfinished: dict[str, _Unfinished] = {}
        self._due: list[tuple[float, str]] = []
        """A heap. What is not so in `_unfinished` any more does not count."""
        self._stepping: dict[str, asyncio.Task[None]] = {}
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._steps: Counter[Step] = Counter(dict.fromkeys(get_args(Step), 0))
        queues.on_table = self._on_table

    def start(self) -> None:
        """Begin to carry on what is not finished."""
        self._task = supervise(asyncio.create_task(self._carry_on(), name="partition changes"))

    async def close(self) -> None:
        """Stop; another process, or the next start, carries on."""
        tasks = [task for task in (self._task, *self._stepping.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._task = None
        self._stepping.clear()

    def samples(self) -> Iterator[Sample]:
        """Give the metrics of changes: a source for `Metrics`."""
        for step, number in self._steps.items():
            yield Sample("quaymaster_partition_changes_total", number, (step,))

    # Beginning

    async def begin(self, request: ChangePartitions) -> QueueDefinition:
        """Store a change, whose steps follow, and return the queue with its new partitions.

        Raises:
            UnsupportedOperation: the queue must not be changed so, or not now.
            OverLimit: it would have more partitions than it may.
            InvalidParameterValue: there are no such partitions or journals.
            NotNow: a journal that has open partitions does not answer.
        """
        queues, suffix = self._queues, f"{request.account_id}/{request.name}"
        queues.options.cell_format.require(PARTITIONS, "Queues can be split, merged and moved")
        async with queues.only_one(suffix):
            async for _ in attempts(suffix):
                current = await queues.queue_meant(request.account_id, request.name, request.queue_id)
                compare = queues.rows.compare(suffix)
                if request.kind == "cancel":
                    try:
                        return await self._cancel(suffix, compare, current)
                    except RevisionMismatch:
                        continue
                lost = await self._lost_journal(current, request) if request.kind == "give up" else None
                # A store that was restored must not give a number again: journals that know better are believed first.
                opened = {entry.journal_id for entry in in_state(current, "open")} - {lost}
                if not await self._settling.tell(current, opened):
                    continue
                changed = self._plan(current, request)
                is_begun = bool(in_state(changed, "new"))
                try:
                    revision = await self._put(compare, changed, "begun" if is_begun else "aged")
                except RevisionMismatch:
                    continue
                if not is_begun:
                    with suppress(*FAILS):  # the row has decided; the rest hear of it later
                        await self._settling.settle(changed, [Compare(PENDING + suffix, revision)])
                self._look_at(suffix, 0)
                return changed
            raise Overloaded

    async def _lost_journal(self, current: QueueDefinition, request: ChangePartitions) -> int:
        """Return the journal of the partition that is given up. It must not answer, or not know the partition."""
        self._queues.options.cell_format.require(DELIVERY, "Partitions can be given up")
        (number,) = request.partitions
        entry = entry_of(current, number)
        if entry is None or entry.state in ("new", "drained"):
            raise InvalidParameterValue.of(
                "Partition", number, "An open, closing or closed partition of the queue can be given up."
            )
        try:
            answer = await self._journals.partition(current.queue_id, number)
        except (NotNow, QueueDoesNotExist):
            return entry.journal_id
        raise UnsupportedOperation(
            f"Journal {entry.journal_id} answers, and has {answer.messages} messages in partition {number}. Only what "
            "is lost is given up."
        )

    async def _cancel(self, suffix: str, compare: Compare, current: QueueDefinition) -> QueueDefinition:
        """Give up what is under way. Who opens the new partitions at this moment changes the row: RevisionMismatch."""
        if not in_state(current, "new"):
            raise UnsupportedOperation(
                "The queue has no new partitions: no change of it is under way, or it cannot be cancelled any more."
            )
        changed = with_new_dropped(current, BY_OPERATOR)
        await self._put(compare, changed, "cancelled")
        self._look_at(suffix, 0)
        return changed

    async def check(self, request: CheckTable) -> QueueDefinition:
        """Have the row take what a journal has, if that is a later table, and return the queue as it then is."""
        queues, suffix = self._queues, f"{request.account_id}/{request.name}"
        async with queues.only_one(suffix):
            current = await queues.queue_meant(request.account_id, request.name, request.queue_id)
            await self._settling.tell_again(current)
            return queues.queue(request.account_id, request.name)

    def _plan(self, current: QueueDefinition, request: ChangePartitions) -> QueueDefinition:
        if request.table_version not in (0, current.table_version):
            raise UnsupportedOperation("The partitions of the queue were changed meanwhile.")
        if current.group_of:
            raise UnsupportedOperation("A consumer group has the partitions of its queue.")
        if is_internal(current.account_id, current.name):
            raise UnsupportedOperation("The queue of usage records has one partition.")
        if current.is_log:
            self._queues.options.cell_format.require(
                DELIVERY, "Log-retained queues can be split, merged and moved"
            )
        number = request.partitions[0] if request.partitions else None
        given_up = None if number is None or request.kind != "give up" else entry_of(current, number)
        if given_up is not None and given_up.state != "open":
            return with_state(current, given_up.number, "drained", is_given_up=True)
        match request.kind:
            case "split":
                parents, ranges = entries_to_split(current, request.into, number, request.key)
            case "merge":
                parents, ranges = entries_to_merge(current, request.partitions)
            case _:
                parents, ranges = entries_to_move(current, number)
        return with_children(current, parents, ranges, self._place(current, request, parents, len(ranges)))

    def _place(
        self,
        current: QueueDefinition,
        request: ChangePartitions,
        parents: list[PartitionPlacement],
        children: int,
    ) -> list[int]:
        taking = self._journals.ids()
        for journal_id in request.journals:
            if journal_id not in taking:
                raise InvalidParameterValue.of("Journal", journal_id, "No such journal takes new partitions.")
        if request.journals:
            return [request.journals[child % len(request.journals)] for child in range(children)]
        avoided = {entry.journal_id for entry in parents} if request.kind in ("move", "give up") else set()
        staying = [entry.journal_id for entry in in_state(current, "open") if entry not in parents]
        return choose_journals(self._queues, taking, children, staying=staying, avoided=avoided)

    # Carrying on

    def _on_table(self, suffix: str, definition: QueueDefinition | None) -> None:
        """Hear of a row; None: the queue is gone, or not active."""
        if definition is None or is_at_rest(definition):
            self._unfinished.pop(suffix, None)
            return
        known = self._unfinished.get(suffix)
        if known is None or known.table_version != definition.table_version:
            now_s = self._queues.mirror.monotonic_s()
            self._unfinished[suffix] = _Unfinished(definition.table_version, now_s, now_s)
            self._look_at(suffix, TAKEOVER_MS)

    def _look_at(self, suffix: str, in_ms: int) -> None:
        """Take the next step of a queue's table after a while."""
        unfinished = self._unfinished.get(suffix)
        if unfinished is not None:
            unfinished.due_s = self._queues.mirror.monotonic_s() + in_ms / 1000
            heapq.heappush(self._due, (unfinished.due_s, suffix))
            self._woken.set()

    async def _carry_on(self) -> None:
        while True:
            self._woken.clear()
            wait_s = self._start_due()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()

    def _start_due(self) -> float | None:
        """Start the steps that are due, as far as there is room; return after how long more are due, None: none are."""
        now_s = self._queues.mirror.monotonic_s()
        while self._due:
            due_s, suffix = self._due[0]
            unfinished = self._unfinished.get(suffix)
            if unfinished is None or unfinished.due_s != due_s:
                heapq.heappop(self._due)
                continue
            if due_s > now_s or len(self._stepping) >= AT_ONCE or not self._journals.is_attached:
                return min(max(due_s - now_s, 0.05), WAKE_MAX_S)
            heapq.heappop(self._due)
            if suffix not in self._stepping:  # else its step says when the next one is due
                task = asyncio.create_task(self._step_in_task(suffix, unfinished), name="partition step")
                self._stepping[suffix] = supervise(task)
        return None

    async def _step_in_task(self, suffix: str, unfinished: _Unfinished) -> None:
        try:
            in_ms = await self.step(suffix)
        finally:
            self._stepping.pop(suffix, None)
        # What the step says is about the table that it saw.
        self._look_at(suffix, in_ms if self._unfinished.get(suffix) is unfinished else 0)

    async def step(self, suffix: str) -> int:
        """Take the next step of a queue's table, and return after how many milliseconds the one after it is due."""
        unfinished, definition = self._unfinished.get(suffix), self._queues.rows.get(suffix)
        if unfinished is None or definition is None:
            return 0
        try:
            if in_state(definition, "new"):
                in_ms = await self._open(definition, unfinished)
            else:
                in_ms = await self._age(definition, unfinished)
                # In the end: a journal that does not answer must not keep partitions of others from going on.
                await self._tell_left(suffix)
        except RevisionMismatch:
            return AGAIN_MS
        except (*FAILS, CallerError) as error:
            if not unfinished.is_held_up:
                log.info("partition change waits queue=%s error=%s", suffix, str(error) or "timeout")
            unfinished.is_held_up = True
            unfinished.problem = str(error)
            return RETRY_MS
        unfinished.is_held_up = False
        return in_ms

    async def _open(self, definition: QueueDefinition, unfinished: _Unfinished) -> int:
        """Let new partitions take messages once their journals know them; after a while, there are none."""
        queues, suffix = self._queues, suffix_of(definition)
        if (queues.mirror.monotonic_s() - unfinished.since_s) * 1000 > CANCEL_MS:
            why = _why_given_up(definition, unfinished)
            log.warning("partition change given up queue=%s: %s", suffix, why)
            await self._store(queues.rows.compare(suffix), with_new_dropped(definition, why), "cancelled")
            return 0
        children = in_state(definition, "new")
        journals = {entry.journal_id for entry in children}
        if not await self._settling.tell(definition, journals):
            return AGAIN_MS
        await self._tell_of_groups(definition, journals)
        latest = queues.rows.get(suffix)
        # Attributes may have been set meanwhile: the same journals know the same partitions.
        awaited = "active", definition.queue_id, definition.table_version
        if latest is None or (latest.state, latest.queue_id, latest.table_version) != awaited:
            return AGAIN_MS
        await self._store(queues.rows.compare(suffix), with_children_open(latest), "opened")
        return 0

    async def _tell_of_groups(self, log: QueueDefinition, journals: set[int]) -> None:
        """Tell journals that have new partitions of a log of its consumer groups.

        A group that is created from now on was created by a row of the log that has these partitions.
        """
        if not log.is_log:
            return
        queues, suffix = self._queues, suffix_of(log)
        await queues.mirror.refresh_all(f"{QUEUES}{suffix}{GROUP_MARK}")
        groups = [queues.rows.get(group) for group in queues.groups_of(log.queue_id)]
        for group in groups:
            if group is not None and group.state != "deleting":
                await self._journals.set_queue(group, journals)

    async def _tell_left(self, suffix: str) -> None:
        """Tell journals that a queue has no partitions there any more, if there are such; RevisionMismatch."""
        queues = self._queues
        definition, compare = queues.rows.get(suffix), queues.rows.compare(suffix)
        if definition is None or definition.state != "active" or not definition.left_journals:
            return
        left = definition.left_journals
        if await self._settling.tell(definition, left):
            told = with_told(definition, left)
            await queues.mirror.transact([compare], [Put(QUEUES + suffix, encode_queue_definition(told))])

    async def _age(self, definition: QueueDefinition, unfinished: _Unfinished) -> int:
        """Close, drain and remove sealed partitions as their journals say; tell those that have not sealed theirs."""
        queues, suffix = self._queues, suffix_of(definition)
        compare, pending = queues.rows.compare(suffix), queues.pending.compare(suffix)
        closing_ms = queues.options.partition_closing_ms
        if definition.dedup_window_ms > DEDUP_WINDOW_MS:
            closing_ms = max(closing_ms, definition.dedup_window_ms)
        answers = await self._ask(definition)
        changed = aged(definition, answers, closing_ms)
        if changed is not definition:
            # The row of a restored store must not get ahead of a later table that journals have: the states of several
            # partitions may change at once.
            if await self._settling.tell(
                definition, {entry.journal_id for entry in in_state(definition, "open")}
            ):
                await self._store(compare, changed, "aged")
            return 0
        if unsealed(definition, answers):
            await self._settling.settle(definition, [compare, pending])
        unfinished.looks += 1
        return next_look_ms(definition, answers, closing_ms, unfinished.looks)

    async def _ask(self, definition: QueueDefinition) -> dict[int, PartitionOutcome]:
        """Return what journals say of sealed partitions; those that do not answer now are left out."""
        numbers = [entry.number for entry in definition.partitions if is_sealed_by(entry)]
        answers = await asyncio.gather(
            *(self._journals.partition(definition.queue_id, number) for number in numbers),
            return_exceptions=True,
        )
        found: dict[int, PartitionOutcome] = {}
        for number, answer in zip(numbers, answers, strict=True):
            if isinstance(answer, PartitionOutcome):
                found[number] = answer
            elif not isinstance(answer, NotNow | CallerError):
                raise answer
        return found

    async def _store(self, compare: Compare, changed: QueueDefinition, step: Step) -> None:
        """Store a table and tell all journals of it; RevisionMismatch if the row is not as it was."""
        revision = await self._put(compare, changed, step)
        await self._settling.settle(changed, [Compare(PENDING + suffix_of(changed), revision)])

    async def _put(self, compare: Compare, changed: QueueDefinition, step: Step) -> int:
        """Store a table that journals are to be told of, and return its revision; RevisionMismatch."""
        queues = self._queues
        revision = await queues.mirror.transact([compare], put_pending(changed, queues.now_ms()))
        self._steps[step] += 1
        log.info(
            "partitions changed queue=%s step=%s table_version=%d",
            *(suffix_of(changed), step, changed.table_version),
        )
        return revision


def _why_given_up(definition: QueueDefinition, unfinished: _Unfinished) -> str:
    journals = dict.fromkeys(entry.journal_id for entry in in_state(definition, "new"))
    why = (
        f"Not all journals of the new partitions ({', '.join(map(str, journals))}) answered within "
        f"{CANCEL_MS // 1000} s."
    )
    return f"{why} What was heard last: {unfinished.problem}" if unfinished.problem else why
