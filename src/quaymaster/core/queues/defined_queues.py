"""What a leader decides of queues themselves: that they are there, have changed, are reset or deleted."""

from __future__ import annotations

import msgspec

from quaymaster.core.partition.consumer_groups import check_start, find_start, reset_group
from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.proposals import Proposal, Wait
from quaymaster.core.queues.applied_queues import AppliedQueues
from quaymaster.core.queues.record_payloads import HAS_STARTS, IS_NEW, join_queue_set
from quaymaster.core.values.commands.logs import ResetGroup, SetGroupOffset
from quaymaster.core.values.commands.messages import Done, Elsewhere
from quaymaster.core.values.commands.partitions import (
    AskIds,
    AskMarks,
    AskPartition,
    ForgetQueue,
    IdsOutcome,
    MarksOutcome,
    PartitionOutcome,
    SetQueue,
)
from quaymaster.core.values.commands.unions import Decided
from quaymaster.core.values.errors import (
    InvalidParameterValue,
    NotNow,
    OverLimit,
    QueueDoesNotExist,
    QueueIdTaken,
    QueueRevisionTaken,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import REVISIONS_COMPARED, CellFormat
from quaymaster.core.values.partition_tables import is_newer_table, journals_of
from quaymaster.core.values.queues.attributes import EARLIEST, GROUP_START
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, group_definition
from quaymaster.core.values.queues.queue_marks import QueueIdentity, identity_of
from quaymaster.core.values.queues.queue_names import split_group
from quaymaster.core.values.records import Record, RecordType

GROUPS_MAX = 100
"""Consumer groups of one log-retained queue: each is told of every message."""


class DefinedQueues(AppliedQueues):
    """The queues of one journal, as the metadata service and operators change them where it is led."""

    cell_format: CellFormat
    """What the cell reads."""

    def _set_queue(self, command: SetQueue, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        definition = command.definition
        known = self.definitions.get(definition.queue_id)
        self._check_identity(known, identity_of(definition))
        if known is not None and not definition.group_of and is_newer_table(known, definition):
            return Elsewhere(known), Wait.COMMIT
        if known is not None and self.cell_format.version_of(REVISIONS_COMPARED):
            self._check_revision(known, definition)
        is_here = known is not None or self.journal_id in journals_of(definition) or definition.group_of
        # A group that is known is as its log says.
        is_news = known is None or (known.revision < definition.revision and not definition.group_of)
        if is_here and is_news:
            starts: dict[int, tuple[int, int]] = {}
            if definition.group_of:
                definition, starts = self._new_group(definition)
            flags = (IS_NEW if known is None else 0) | (HAS_STARTS if starts else 0)
            payload = join_queue_set(definition, starts)
            proposal.records.append(
                Record(RecordType.QUEUE_SET, flags, definition.queue_id, 0, 0, now_ms, 0, payload)
            )
            queue_ids = [definition.queue_id, *self._groups_of(definition.queue_id)]
            proposal.awake.update(self._here(definition.queue_id))
            self._know(definition, now_ms, proposal.next_offset, starts)
            for group_id in self._groups_of(definition.queue_id):
                group = group_definition(self.definitions[group_id], definition)
                self._know(group, now_ms, proposal.next_offset)
            for queue_id in queue_ids:
                proposal.awake.update(self._here(queue_id))
            for partition in self._here(definition.queue_id) if starts else ():
                proposal.sent_to[partition] = partition.next_sequence
                partition.uncommitted_from = (
                    partition.log.uncommitted_from if partition.log is not None else 0
                )
        return Done(), Wait.COMMIT

    @staticmethod
    def _check_identity(known: QueueDefinition | None, identity: QueueIdentity) -> None:
        if known is not None and identity_of(known) != identity:
            raise QueueIdTaken(
                f"The journal has the queue {known.name} under the id {known.queue_id}, and was told that it is "
                f"{identity[1]}: the metadata is older than the journal."
            )

    @staticmethod
    def _check_revision(known: QueueDefinition, definition: QueueDefinition) -> None:
        """Refuse what would be left out though its caller was told that it counts; a group has its log's revisions."""
        is_same = (
            known.revision == definition.revision
            and known.attributes == definition.attributes
            and known.table_version == definition.table_version
        )
        if known.revision >= definition.revision and not is_same and not definition.group_of:
            raise QueueRevisionTaken(known.revision)

    def _new_group(self, group: QueueDefinition) -> tuple[QueueDefinition, dict[int, tuple[int, int]]]:
        """Return a new consumer group as its log says, and where it starts in each partition."""
        log = self.definitions.get(group.group_of)
        if log is None or not log.is_log:
            raise QueueDoesNotExist
        if len(self._groups_of(log.queue_id)) >= GROUPS_MAX:
            raise OverLimit(f"A log-retained queue may have {GROUPS_MAX} consumer groups.")
        start = group.attributes.get(GROUP_START.name)
        if start is None and split_group(group.name)[1] not in log.retention_pins:
            # One that pins the log begins with all that was kept for it.
            start = log.group_start
        start = start or EARLIEST
        check_start(start)
        starts = {
            partition.number: (find_start(start, partition), partition.next_sequence)
            for partition in self.partitions_of(log.queue_id)
        }
        return group_definition(group, log), starts

    def _reset_group(self, command: ResetGroup, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        check_start(command.start)
        for partition in self.partitions_asked(command.queue_id, command.partition):
            start = find_start(command.start, _log_of(partition))
            proposal.add(RecordType.GROUP_RESET, partition, now_ms, sequence=start)
            self.empty_later(reset_group(partition, start, now_ms))
            proposal.awake.add(partition)
        return Done(), Wait.COMMIT

    def _set_group_offset(
        self, command: SetGroupOffset, now_ms: int, proposal: Proposal
    ) -> tuple[Decided, Wait]:
        partition = self.partition(command.queue_id, command.partition)
        _log_of(partition)
        if command.sequence > partition.committed:
            raise InvalidParameterValue.of(
                "Offset",
                command.sequence,
                f"The end of partition {partition.number} is {partition.committed}.",
            )
        if command.sequence > partition.head:
            proposal.add(RecordType.EXPIRE, partition, now_ms, sequence=command.sequence)
            self.empty_later(partition.apply_delete_below(command.sequence))
            proposal.awake.add(partition)
        return Done(), Wait.COMMIT

    def _delete_queue(self, command: ForgetQueue, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        known = self.definitions.get(command.queue_id)
        if command.identity is not None:
            self._check_identity(known, command.identity)
        if known is not None:
            self._check_has_no_outputs(command.queue_id)
            proposal.records.append(
                Record(RecordType.QUEUE_DELETE, 0, command.queue_id, 0, 0, now_ms, 0, b"")
            )
            for queue_id in (command.queue_id, *self._groups_of(command.queue_id)):
                proposal.awake.update(self.partitions_of(queue_id))
            self._forget(command.queue_id)
        return Done(), Wait.COMMIT

    def _check_has_no_outputs(self, queue_id: int) -> None:
        """Raise NotNow while messages that were completed here have outputs under way: they would be lost."""
        for each in (queue_id, *self._groups_of(queue_id)):
            for partition in self._here(each):
                if partition.outputs_under_way:
                    raise NotNow(
                        f"{partition.outputs_under_way} messages that completions sent from this queue have not "
                        "arrived yet. Try again."
                    )

    def _ask_partition(self, command: AskPartition, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self.partition(command.queue_id, command.partition)
        outcome = PartitionOutcome(
            sealed_for_ms=now_ms - partition.sealed_ms if partition.is_sealed else None,
            is_empty=partition.is_empty,
            messages=partition.alive,
            sends=partition.sends,
            deletions=partition.deletions,
            table_version=self.definitions[command.queue_id].table_version,
            outputs=sum(one.outputs_under_way for one in (partition, *partition.groups.values())),
        )
        return outcome, Wait.COMMIT

    def _ask_ids(self, command: AskIds, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self.partition(command.queue_id, command.partition)
        tops = partition.ids.dedup_tops() if partition.is_sealed else None
        if tops is None:
            return IdsOutcome(b"", is_known=False), Wait.NOTHING
        # As with all that is said of a sealed partition: no later leader may know more.
        return IdsOutcome(tops.serialize()), Wait.COMMIT

    def _ask_marks(self, command: AskMarks, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        # A leader that was deposed and does not know it has older marks. It can commit nothing, so it never answers.
        proposal.records.append(Record(RecordType.BARRIER, 0, 0, 0, 0, now_ms, 0, b""))
        return MarksOutcome(msgspec.structs.replace(self.marks)), Wait.COMMIT


def _log_of(group: Partition) -> Partition:
    if group.log is None:
        raise UnsupportedOperation(
            f"The queue {group.definition.name} is no consumer group of a log-retained queue."
        )
    return group.log
