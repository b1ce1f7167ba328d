"""Messages that are leaving for other journals: sent to the leaders there until they are settled.

Outputs of completions leave so too, also for partitions of this journal.

    MOVE_OUT committed ─▶ begun ─▶ batch of one pair of partitions ─▶ the target's leader ─▶ EndMoves ─▶ the next batch
                            ▲                    ▲                            │
    leads again: all that is not settled         └────── no answer: again ────┤
                                                                              └──▶ the partition was given up: to others

One batch of a pair is on its way at a time, and the next one goes when the one before is settled, durably: that is
what the numbers of `core/partition/partition_moves` rest on.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from quaymaster.broker.replica.journal_questions import JournalQuestion, JournalQuestions
from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_moves import MovesOut, OpenMove
from quaymaster.core.partition.work.completion_records import RecordedOutput, outputs_of
from quaymaster.core.queues.completions import output_to_move
from quaymaster.core.queues.moved_messages import message_to_move
from quaymaster.core.values.commands.moves import (
    EndMoves,
    MoveBegun,
    MovedMessage,
    MoveIn,
    MoveInOutcome,
    MovesGoOn,
)
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.queues.partition_keys import partition_key, parts_of_key
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_names import QueueArn
from quaymaster.monitoring.logs import log_event

if TYPE_CHECKING:
    from quaymaster.broker.replica.records.record_bodies import Body
    from quaymaster.broker.replica.replica import ReplicaHost

BATCH_MAX: Final = 50
"""How many messages are sent at once, as long as they have no more bytes than this; a larger one goes alone."""
BATCH_BYTES_MAX: Final = 1 << 20

BATCHES_TO_A_JOURNAL_MAX: Final = 4
"""So many pairs of partitions send to one other journal at a time: one that is away holds up nobody else."""

RETRY_MIN_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
LOOK_S: Final = 1.0
UNANSWERED_TOLD: Final = 5
"""After so many attempts in a row without an answer the log says so."""
UNANSWERED_LOST: Final = 6
"""After so many, and each time after as many more, it is looked whether the partition was given up."""

Pair = tuple[int, int]
"""The keys of a source and a target partition."""

log = logging.getLogger(__name__)


class MoveCarrier(Protocol):
    """The way to the leaders of other journals."""

    async def move(self, journal_id: int, command: MoveIn) -> MoveInOutcome:
        """Have a journal's leader take messages; raises NotNow when that may not have happened."""


class TargetQueues(Protocol):
    """What is known of the queues that messages leave for."""

    def note(self, queue: QueueDefinition) -> None:
        """See `QueuePlaces`."""

    async def is_gone(self, target_key: int, journal_id: int, arns: list[str]) -> bool:
        """See `QueuePlaces`."""

    async def table_without(self, target_key: int, journal_id: int, arn: str) -> QueueDefinition | None:
        """See `QueuePlaces`."""

    async def table_of_lost(
        self, target_key: int, arns: list[str], *, are_certain: bool
    ) -> QueueDefinition | None:
        """See `QueuePlaces`."""


class MovesAway:
    """Carries what leaves one journal, while it is led here."""

    def __init__(
        self,
        host: ReplicaHost,
        region: str,
        carrier: MoveCarrier,
        *,
        targets: TargetQueues,
        on_settled: Callable[[int], None],
    ) -> None:
        """`on_settled` is told the key of a source partition."""
        self._host = host
        self._region = region
        self._carrier = carrier
        self._targets = targets
        self._on_settled = on_settled
        self._committed: dict[Pair, int] = {}
        self._carrying: JournalQuestions[Pair] = JournalQuestions(
            host.files.journal_id,
            next_question=self._next_question,
            pause_s=_pause_s,
            told_after=UNANSWERED_TOLD,
            unanswered_event="moves not taken yet",
            refused_event="moves failed",
            settle_silent=self._is_lost,
            silent_after=UNANSWERED_LOST,
        )
        self._turns: dict[int, asyncio.Semaphore] = {}
        self._settled = asyncio.Event()

    def resume(self) -> None:
        """Send everything that is not settled: this replica leads now, and all that it knows is committed."""
        queues = self._host.replica.queues
        for source_key in tuple(queues.sending_away):
            partition = queues.partitions[source_key]
            if partition.moves is not None:
                for target_key, pair in partition.moves.out.items():
                    if pair.open:
                        self.begun(source_key, MoveBegun(target_key, pair.last))

    def begun(self, source_key: int, begun: MoveBegun) -> None:
        """A message may be sent: that it leaves is committed."""
        pair = source_key, begun.target_key
        self._committed[pair] = max(self._committed.get(pair, 0), begun.number)
        self._carrying.begin(pair)

    def stop(self) -> None:
        """Send nothing more; whoever leads next begins with all that is not settled."""
        self._carrying.stop()
        self._committed.clear()
        self._note_settled()

    async def close(self) -> None:
        """Stop, and wait until that is so."""
        await self._carrying.close()
        self.stop()

    async def something_settled(self) -> None:
        """Return when moves of some partition were settled, or after a moment without."""
        with suppress(TimeoutError):  # the queue may be gone, of which nobody tells
            async with asyncio.timeout(LOOK_S):
                await self._settled.wait()

    def has_redrives(self, source_key: int) -> bool:
        """Return whether messages that a move task took from this partition are under way, and it is led here."""
        if not self._host.replica.is_leading:
            return False
        partition = self._host.replica.queues.partitions.get(source_key)
        if partition is None or partition.moves is None:
            return False
        return any(move.is_redrive for pair in partition.moves.out.values() for move in pair.open.values())

    def _note_settled(self) -> None:
        settled, self._settled = self._settled, asyncio.Event()
        settled.set()

    def _next_question(self, pair: Pair) -> JournalQuestion | None:
        batch = self._next_batch(pair)
        if batch is None:
            self._committed.pop(pair, None)
            return None
        return JournalQuestion(partial(self._send, *batch), {"target_journal": batch[1].journal_id})

    async def _send(self, partition: Partition, to: MovesOut, moves: list[tuple[int, OpenMove]]) -> bool:
        """Have a batch taken, and what was decided of it noted."""
        async with self._turns.setdefault(to.journal_id, asyncio.Semaphore(BATCHES_TO_A_JOURNAL_MAX)):
            command = await self._command(partition, to, moves)
            outcome = await self._carrier.move(to.journal_id, command)
        await self._end(command, to, outcome)
        return True

    def _next_batch(self, pair: Pair) -> tuple[Partition, MovesOut, list[tuple[int, OpenMove]]] | None:
        replica = self._host.replica
        partition = replica.queues.partitions.get(pair[0]) if replica.is_leading else None
        to = partition.moves_to(pair[1]) if partition is not None else None
        if partition is None or partition.moves is None or to is None:
            return None
        moves = partition.moves.to_send(pair[1], self._committed.get(pair, 0), BATCH_MAX)
        return (partition, to, moves) if moves else None

    async def _command(self, partition: Partition, to: MovesOut, moves: list[tuple[int, OpenMove]]) -> MoveIn:
        """Read what is sent. What was deleted meanwhile or cannot be read is withdrawn, if it has not arrived.

        An output that cannot be read stays under way: raises NotNow when it is the first.
        """
        offsets: dict[int, int] = {}
        for number, move in moves:
            if move.is_output:
                offsets[number] = move.offset
            elif partition.is_live(move.sequence):
                offsets[number] = partition.index.offset_and_sent_ms(move.sequence)[0]
        bodies = await self._host.records.of(list(dict.fromkeys(offsets.values())))
        outputs: dict[int, list[RecordedOutput]] = {}
        messages: list[MovedMessage] = []
        size = 0
        for number, move in moves:
            body = bodies.get(offsets.get(number, -1))
            message = MovedMessage(number)
            if move.is_output:
                if body is None:
                    if messages:
                        break
                    raise NotNow("An output of a completion cannot be read.")
                if move.offset not in outputs:
                    outputs[move.offset] = list(outputs_of(body[3]))
                message = output_to_move(partition, number, outputs[move.offset][move.at])
            elif body is not None and partition.is_live(move.sequence):
                message = self._message(partition, number, move, body)
            size += len(message.payload or b"")
            if messages and size > BATCH_BYTES_MAX:
                break
            messages.append(message)
        definition = partition.definition
        return MoveIn(*parts_of_key(to.target_key), definition.queue_id, partition.number, messages)

    def _message(self, partition: Partition, number: int, move: OpenMove, body: Body) -> MovedMessage:
        record_type, flags, _, payload = body
        definition = partition.definition
        arn = str(QueueArn(self._region, definition.account_id, definition.name))
        return message_to_move(
            partition,
            move.sequence,
            (record_type, flags, payload),
            source_arn=None if move.is_redrive else arn,
            # Sent again it gets another one; it is taken once.
            new_message_id=uuid.uuid4().bytes if move.is_redrive else None,
            number=number,
        )

    async def _end(self, command: MoveIn, to: MovesOut, outcome: MoveInOutcome) -> None:
        """Note what the target has decided; returns when that is committed."""
        numbers = [message.number for message in command.messages]
        elsewhere = outcome.definition if outcome.is_sealed else None
        if outcome.is_gone:
            elsewhere = await self._table_of_gone(command, to)
        if elsewhere is not None:
            self._targets.note(elsewhere)
        withdrawn = numbers if outcome.is_gone else outcome.withdrawn
        taken = [] if outcome.is_gone else [number for number in numbers if number not in withdrawn]
        ended = EndMoves(
            command.source_queue_id,
            command.source_partition,
            to.target_key,
            taken,
            list(withdrawn),
            elsewhere,
        )
        await self._decide(ended)

    async def _decide(self, ended: EndMoves) -> None:
        source_key = partition_key(ended.queue_id, ended.partition)
        answer: object = await self._host.ask(ended)
        for begun in answer.begun if isinstance(answer, MovesGoOn) else ():
            self.begun(source_key, begun)
        self._note_settled()
        self._on_settled(source_key)

    async def _is_lost(self, pair: Pair) -> bool:
        """Let moves to a partition that was given up go on to those that follow it; tell whether it is so.

        Whether those that were sent have arrived there is not known. What the partition had is lost, so they are sent
        again. Those of a queue that is gone meanwhile are dropped if they are outputs.
        """
        partition = self._host.replica.queues.partitions.get(pair[0])
        to = partition.moves_to(pair[1]) if partition is not None else None
        if partition is None or to is None or not self._host.replica.is_leading:
            return False
        outputs = [number for number, move in to.open.items() if move.is_output]
        try:
            if outputs:
                names = [await self._arn_of(to.open[outputs[0]])]
            else:
                names = self._names_of(partition.definition.queue_id)
            elsewhere = await self._targets.table_of_lost(to.target_key, names, are_certain=bool(outputs))
            if elsewhere is not None:
                self._targets.note(elsewhere)
            definition = partition.definition
            await self._decide(
                EndMoves(definition.queue_id, partition.number, to.target_key, [], outputs, elsewhere)
            )
        except NotNow:
            return False
        log_event(
            log,
            logging.WARNING,
            "moves to a lost partition ended",
            journal=self._host.files.journal_id,
            target_journal=to.journal_id,
            go_on=elsewhere is not None,
        )
        return True

    async def _arn_of(self, output: OpenMove) -> str:
        """Return the ARN of the queue that an output is for; raises NotNow when its record cannot be read."""
        body = (await self._host.records.of([output.offset])).get(output.offset)
        if body is None:
            raise NotNow("An output of a completion cannot be read.")
        return list(outputs_of(body[3]))[output.at].arn

    async def _table_of_gone(self, command: MoveIn, to: MovesOut) -> QueueDefinition | None:
        """Return the table by which outputs go on whose partition is gone, None if their queue is; see `QueuePlaces`.

        Messages return to where they came from, and are looked at again there; an output has nowhere to return to.
        """
        source = self._host.replica.queues.partitions.get(
            partition_key(command.source_queue_id, command.source_partition)
        )
        pair = source.moves_to(to.target_key) if source is not None else None
        moves = [pair.open.get(message.number) for message in command.messages] if pair is not None else []
        output = next((move for move in moves if move is not None and move.is_output), None)
        if output is None:
            names = self._names_of(command.source_queue_id)
            await self._targets.is_gone(to.target_key, to.journal_id, names)
            return None
        arn = await self._arn_of(output)
        return await self._targets.table_without(to.target_key, to.journal_id, arn)

    def _names_of(self, source_queue_id: int) -> list[str]:
        """Return the ARNs that the queue may have which these messages are for, as far as their source says."""
        source = self._host.replica.queues.definitions.get(source_queue_id)
        policy = source.redrive_policy if source is not None else None
        return [str(policy.target)] if policy is not None else []


def _pause_s(unanswered: int, why: Exception | None) -> float:
    if why is not None and not isinstance(why, NotNow):
        return RETRY_MAX_S
    return min(RETRY_MIN_S * 2.0 ** min(unanswered - 1, 10), RETRY_MAX_S)
