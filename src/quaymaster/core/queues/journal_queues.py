"""The queues of one journal and their partitions: which there are, by their definitions and by snapshots.

A new consumer group starts where the leader said, and has the messages up to an end; later ones it follows as they are
sent. A new definition of a log changes its groups, too, and they are deleted together with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice

from quaymaster.core.partition.consumer_groups import begin_group, follow
from quaymaster.core.partition.open_stages import OpenStages
from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.running_tasks import RunningTasks
from quaymaster.core.partition.state_hash import partition_hash
from quaymaster.core.partition.touched_partitions import TouchedPartitions
from quaymaster.core.partition.work.slices import UnfinishedWork
from quaymaster.core.structures.ids.id_limits import ID_LIMITS, IdLimits
from quaymaster.core.structures.orders.index import ChunkKeeper
from quaymaster.core.values.commands.messages import ALL_PARTITIONS
from quaymaster.core.values.errors import QueueDoesNotExist
from quaymaster.core.values.partition_tables import is_sealed_by
from quaymaster.core.values.queues.partition_keys import partition_key
from quaymaster.core.values.queues.queue_definitions import PartitionPlacement, QueueDefinition
from quaymaster.core.values.queues.queue_marks import QueueMarks
from quaymaster.core.values.queues.queue_names import QueueArn
from quaymaster.core.values.records import HOLDING_TYPES, RecordRow, RecordType

NO_STARTS: Mapping[int, tuple[int, int]] = {}


class JournalQueues:
    """The queues of one journal and their partitions, with what is known of all partitions together."""

    def __init__(
        self,
        keeper: ChunkKeeper,
        *,
        retry_window_ms: int,
        id_limits: IdLimits = ID_LIMITS,
        journal_id: int = 0,
    ) -> None:
        self._keeper = keeper
        self.journal_id = journal_id
        """Only partitions whose entry names it are here."""
        self.retry_window_ms = retry_window_ms
        self.id_limits = id_limits
        self.definitions: dict[int, QueueDefinition] = {}
        self.counted_here = 0
        """How many of the queues are counted here: each is in the journal of its first open partition."""
        self.partitions: dict[int, Partition] = {}
        self.unlisted: dict[int, tuple[int, ...]] = {}
        """The numbers of partitions that a newer table does not list, but that still have something, by queue id."""
        self._dirty_keys: set[int] = set()
        self.changes = TouchedPartitions(self.partitions, self.is_unfinished)
        self._ids_by_name: dict[tuple[str, str], int] = {}
        self._group_ids: dict[int, dict[int, None]] = {}
        """The ids of consumer groups, by that of their log."""
        self.marks = QueueMarks()
        """The highest ids there ever were."""
        self.removed: set[int] = set()
        self.running_tasks = RunningTasks()
        self.open_stages = OpenStages()
        self.sending_away: set[int] = set()
        """The partitions with messages on their way to other journals."""
        self.claiming: set[int] = set()
        """The partitions with consumers of claims."""
        self.messages_gone = 0
        """How many messages were deleted, expired or moved away since this was made; only grows."""
        self.unfinished = UnfinishedWork()
        """Work in slices. Until it is done, no command or record may look at its queues or change them."""
        self._to_empty: deque[Iterator[None]] = deque()

    def partition(self, queue_id: int, number: int) -> Partition:
        """Return a partition, or raise QueueDoesNotExist."""
        found = self.partitions.get(queue_id << 16 | number)
        if found is None:
            raise QueueDoesNotExist()
        return found

    def partitions_of(self, queue_id: int) -> list[Partition]:
        """Return the partitions of a queue that are in this journal, or raise QueueDoesNotExist."""
        if queue_id not in self.definitions:
            raise QueueDoesNotExist()
        return self._here(queue_id)

    def partitions_asked(self, queue_id: int, number: int) -> list[Partition]:
        """Return one partition, or with ALL_PARTITIONS all in this journal, or raise QueueDoesNotExist."""
        return (
            self.partitions_of(queue_id) if number == ALL_PARTITIONS else [self.partition(queue_id, number)]
        )

    def queue_of_arn(self, arn: QueueArn) -> int | None:
        """Return the id of the queue with this ARN, None when the journal has none."""
        return self._ids_by_name.get((arn.account_id, arn.name))

    def sequence_of(self, key: int, row_type: int, row_sequence: int) -> int:
        """Return the number of a message by its record's row, in the partition with this key; 0: it is not known."""
        if row_type != RecordType.STAGE:
            return row_sequence
        partition = self.partitions.get(key)
        staged = partition.staged if partition is not None else None
        run = staged.runs.find(row_sequence) if staged is not None else None
        return run.sequence if run is not None else 0

    def is_live(self, row: RecordRow) -> bool:
        """Return whether a record still has a message that somebody may ask for. Compaction keeps these.

        A COMPLETE is needed until each of its outputs is settled.
        """
        if row.type not in HOLDING_TYPES:
            return False
        partition = self.partitions.get(row.queue_id << 16 | row.partition)
        if partition is None:
            return False
        if row.type == RecordType.COMPLETE:
            return partition.moves is not None and row.offset in partition.moves.outputs
        if row.type == RecordType.STAGE:
            return partition.is_kept(row.sequence)
        return partition.is_live(row.sequence)

    def family_of(self, queue_id: int) -> int:
        """Return the log of a consumer group, any other queue itself: what is done to a log is done to its groups."""
        definition = self.definitions.get(queue_id)
        return definition.group_of or queue_id if definition is not None else queue_id

    def is_unfinished(self, partition: Partition) -> bool:
        """Return whether a partition is between two states, and says nothing."""
        return bool(self.unfinished) and self.family_of(partition.definition.queue_id) in self.unfinished

    def state_hash(self, now_ms: int) -> dict[int, int]:
        """Return a hash of each partition's state as of `now_ms`."""
        self.unfinished.finish()
        return {key: partition_hash(partition, now_ms) for key, partition in self.partitions.items()}

    def dirty_keys(self) -> list[int]:
        """Return the keys of the partitions that changed since they were last put into a snapshot."""
        return list(self._dirty_keys)

    @property
    def outputs_under_way(self) -> int:
        """How many outputs of completions are not settled."""
        partitions = [self.partitions.get(key) for key in self.sending_away]
        return sum(partition.outputs_under_way for partition in partitions if partition is not None)

    def empty_later(self, emptied: list[Iterator[None]]) -> None:
        """Take what is left of messages that are gone, to be freed by `empty_some`."""
        self._to_empty.extend(emptied)

    def digest_later(self, partition: Partition) -> None:
        """Have `empty_some` sort what a commit has brought to a partition, too, some with each step."""
        if partition.ids.dedup is not None:
            self._to_empty.append(partition.ids.dedup.digesting())

    def empty_some(self, steps: int) -> bool:
        """Free as much of what is gone as `steps` steps do; return whether there is more."""
        while steps > 0 and self._to_empty:
            steps -= sum(1 for _ in islice(self._to_empty[0], steps))
            if steps > 0:
                self._to_empty.popleft()
        return bool(self._to_empty)

    def note_claiming(self, partition: Partition) -> None:
        """A partition has consumers of claims, or none any more."""
        if partition.claims is not None:
            self.claiming.add(partition.key)
        else:
            self.claiming.discard(partition.key)

    # Definitions

    def load(self, definition: QueueDefinition, partitions: list[Partition]) -> None:
        """Take partitions of a queue from a snapshot, which may have others as of another definition."""
        queue_id = definition.queue_id
        self.marks.note(definition)
        before = self._here(queue_id)
        known = self.definitions.get(queue_id)
        if known is None or known.revision < definition.revision:
            self._define(definition)
        for partition in partitions:
            self._keep(partition)
            self.running_tasks.note(partition.key, partition)
            self.open_stages.note(partition)
            if partition.is_sending_away:
                self.sending_away.add(partition.key)
            self.note_claiming(partition)
        self._note_unlisted(queue_id, [*before, *partitions])

    def attach_groups(self) -> None:
        """Let consumer groups that came from a snapshot follow their logs, before anything is applied.

        One without its log was deleted with it, further on than the snapshot of the log is. A partition without the
        log's is gone as well, or the replay begins both.
        """
        for definition in list(self.definitions.values()):
            if definition.group_of and definition.group_of not in self.definitions:
                self._forget(definition.queue_id)
            elif definition.group_of:
                for group in self._here(definition.queue_id):
                    log = self.partitions.get(partition_key(definition.group_of, group.number))
                    if log is None:
                        self._let_go(group)
                    else:
                        follow(group, log)

    def _here(self, queue_id: int) -> list[Partition]:
        definition = self.definitions.get(queue_id)
        if definition is None:
            return []
        numbers = [*self._listed(definition), *self.unlisted.get(queue_id, ())]
        found = [self.partitions.get(partition_key(queue_id, number)) for number in numbers]
        # A snapshot may have a newer table than partitions: the replay brings the others.
        return [partition for partition in found if partition is not None]

    def _listed(self, definition: QueueDefinition) -> dict[int, PartitionPlacement]:
        """Return the partitions that are in this journal by a table, by number, the oldest first."""
        return {entry.number: entry for entry in definition.partitions if entry.journal_id == self.journal_id}

    def _groups_of(self, queue_id: int) -> list[int]:
        """Return the ids of a log's consumer groups."""
        return list(self._group_ids.get(queue_id, ()))

    def _define(self, definition: QueueDefinition) -> None:
        """Have a definition as the newest of a queue."""
        queue_id = definition.queue_id
        before = self.definitions.get(queue_id)
        self.counted_here += self._counts(definition) - (before is not None and self._counts(before))
        self.definitions[queue_id] = definition
        self._ids_by_name[definition.account_id, definition.name] = queue_id
        if definition.group_of:
            self._group_ids.setdefault(definition.group_of, {})[queue_id] = None

    def _counts(self, definition: QueueDefinition) -> bool:
        """Return whether this is the one journal of a queue's that counts it."""
        first = next((entry for entry in definition.partitions if entry.state == "open"), None)
        return first is not None and first.journal_id == self.journal_id

    def _know(
        self,
        definition: QueueDefinition,
        time_ms: int,
        applied: int,
        starts: Mapping[int, tuple[int, int]] = NO_STARTS,
    ) -> None:
        """Follow a definition as far as it was not followed yet, each partition for itself.

        A replay may meet it again: a snapshot's definition may be newer than its partitions. `applied`: the offset
        behind the record; `starts`: of a new consumer group, for each partition where it starts and what end it has. In
        a partition that its log gets later it starts with the first message.
        """
        queue_id = definition.queue_id
        self.marks.note(definition)
        before = self._here(queue_id)
        known = self.definitions.get(queue_id)
        newest = definition if known is None or known.revision < definition.revision else known
        # Again: a snapshot may be ahead of the replay, which has just seen an older queue of this name come and go.
        self._define(newest)
        listed = self._listed(definition)
        still_listed = listed if newest is definition else self._listed(newest)
        for number, entry in listed.items():
            partition = self.partitions.get(partition_key(queue_id, number))
            if partition is not None:
                self._follow_definition(partition, definition, entry, time_ms, applied)
            elif number in still_listed:
                self._begin(definition, entry, time_ms, applied, starts)
        for partition in before:
            if partition.applied < applied and partition.number not in listed:
                if not partition.is_used or (partition.is_sealed and partition.is_empty):
                    self._let_go(partition)
                else:
                    self._follow_definition(partition, definition, None, time_ms, applied)
        self._note_unlisted(queue_id, self._here(queue_id) + before)
        # A group may have no partition here before the replay has come to where its log has.
        if not self._here(definition.group_of or queue_id):
            self._forget(queue_id)

    def _begin(
        self,
        definition: QueueDefinition,
        entry: PartitionPlacement,
        time_ms: int,
        applied: int,
        starts: Mapping[int, tuple[int, int]],
    ) -> None:
        log: Partition | None = None
        if definition.group_of:
            log = self.partitions.get(partition_key(definition.group_of, entry.number))
            if log is None:
                return  # the log's was dropped further on, and its snapshot is of then
        partition = Partition(
            definition,
            entry.number,
            self._keeper,
            retry_window_ms=self.retry_window_ms,
            id_limits=self.id_limits,
            first_sequence=entry.first_sequence,
        )
        self._keep(partition)
        partition.applied = applied
        if is_sealed_by(entry):
            partition.apply_seal(time_ms)
        if log is not None:
            first = entry.first_sequence
            begin_group(partition, log, *starts.get(entry.number, (first, first)), time_ms)

    def _follow_definition(
        self,
        partition: Partition,
        definition: QueueDefinition,
        entry: PartitionPlacement | None,
        time_ms: int,
        applied: int,
    ) -> None:
        if partition.applied >= applied or partition.definition.revision >= definition.revision:
            return
        partition.apply_definition(definition, time_ms)
        partition.applied = applied
        if entry is not None and is_sealed_by(entry):
            partition.apply_seal(time_ms)
            self.open_stages.note(partition)

    def _note_unlisted(self, queue_id: int, partitions: list[Partition]) -> None:
        numbers = {partition.number for partition in partitions if partition.key in self.partitions}
        numbers.difference_update(self._listed(self.definitions[queue_id]))
        if numbers:
            self.unlisted[queue_id] = tuple(sorted(numbers))
        else:
            self.unlisted.pop(queue_id, None)

    def _keep(self, partition: Partition) -> None:
        """Have one more partition, and know from now on whether it is dirty."""
        self.partitions[partition.key] = partition
        self.changes.take(partition)
        partition.dirty_keys = self._dirty_keys
        if partition.dirty:
            self._dirty_keys.add(partition.key)

    def _forget(self, queue_id: int) -> None:
        for group_id in self._groups_of(queue_id):
            self._forget(group_id)
        for partition in self._here(queue_id):
            self._let_go(partition)
        self.unlisted.pop(queue_id, None)
        definition = self.definitions.pop(queue_id)
        self.counted_here -= self._counts(definition)
        if definition.group_of:
            groups = self._group_ids[definition.group_of]
            del groups[queue_id]
            if not groups:
                del self._group_ids[definition.group_of]
        name = definition.account_id, definition.name
        if self._ids_by_name.get(name) == queue_id:
            del self._ids_by_name[name]

    def _let_go(self, partition: Partition) -> None:
        """A partition is gone, with all that it has, and with those of consumer groups that follow it."""
        for group in list(partition.groups.values()):
            self._let_go(group)
        key = partition.key
        del self.partitions[key]
        self.changes.drop(partition)
        partition.dirty_keys = None
        self._dirty_keys.discard(key)
        if partition.log is not None:
            del partition.log.groups[partition.definition.queue_id]
        else:
            self.messages_gone += partition.alive
        self.empty_later(partition.emptied())
        self.running_tasks.forget(key)
        self.open_stages.forget(key)
        self.sending_away.discard(key)
        self.claiming.discard(key)
        self.removed.add(key)
