"""What a journal remembers of queues, and how it is told from a store that has gone back."""

from __future__ import annotations

from typing import Any

import pytest

from quaymaster.core.partition.proposals import Proposal
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.structures.orders.index import MemoryChunks
from quaymaster.core.values.commands.partitions import AskMarks, ForgetQueue, MarksOutcome, SetQueue
from quaymaster.core.values.errors import QueueIdTaken, QueueRevisionTaken
from quaymaster.core.values.formats import CellFormat, UnknownFormat
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition, replace_definition
from quaymaster.core.values.queues.queue_marks import QueueMarks, find_contradictions, tell_contradictions
from quaymaster.core.values.records import RecordRow


def queue(queue_id: int, name: str = "", **fields: Any) -> QueueDefinition:
    base = QueueDefinition(
        queue_id,
        "000000000000",
        name or f"queue-{queue_id}",
        "active",
        1,
        100,
        100,
        {},
        {},
        queue_id + 1000,
        one_partition(),
    )
    return replace_definition(base, **fields)


class Journal:
    def __init__(self) -> None:
        self.states = QueueStates(MemoryChunks(), retry_window_ms=0)

    def tell(self, command: Any) -> list[int]:
        proposal = Proposal(epoch=1, base_offset=0)
        self.outcome = self.states.decide(command, 1_000, proposal)[0]
        return [record.type for record in proposal.records]

    @property
    def marks(self) -> QueueMarks:
        self.tell(AskMarks(0))
        assert isinstance(self.outcome, MarksOutcome)
        return self.outcome.marks


def test_a_journal_knows_the_highest_ids_it_ever_saw_also_of_queues_that_are_gone() -> None:
    journal = Journal()

    journal.tell(SetQueue(queue(7)))
    journal.tell(SetQueue(queue(3)))
    journal.tell(ForgetQueue(7))

    assert journal.marks == QueueMarks(7, 1007)


@pytest.mark.parametrize(
    "changes", [{"name": "other"}, {"account_id": "1"}, {"created_ms": 5}, {"name": "x", "revision": 9}]
)
def test_an_id_with_another_identity_is_refused_and_changes_nothing(changes: dict[str, Any]) -> None:
    journal = Journal()
    journal.tell(SetQueue(queue(7)))
    other = queue(7, **changes)

    with pytest.raises(QueueIdTaken, match="under the id 7"):
        journal.tell(SetQueue(other))
    with pytest.raises(QueueIdTaken):
        journal.tell(ForgetQueue(7, (other.account_id, other.name, other.created_ms)))

    assert journal.states.definitions == {7: queue(7)}


def test_attributes_that_are_not_newer_than_the_journals_are_refused() -> None:
    journal = Journal()
    kept = queue(7, revision=3, attributes={"DelaySeconds": "5"})
    journal.tell(SetQueue(kept))

    for revision in (2, 3):
        with pytest.raises(QueueRevisionTaken) as refused:
            journal.tell(SetQueue(queue(7, revision=revision, attributes={"DelaySeconds": "6"})))
        assert refused.value.revision == 3

    assert not journal.tell(SetQueue(replace_definition(kept, tags={"team": "ours"})))  # told once more
    assert journal.states.definitions == {7: kept}


def test_attributes_that_are_not_newer_are_left_out_in_cells_of_older_formats() -> None:
    journal = Journal()
    journal.states.cell_format = CellFormat(3)
    journal.tell(SetQueue(queue(7, revision=3)))

    assert not journal.tell(SetQueue(queue(7, revision=2)))


def test_a_queue_is_deleted_by_its_id_or_by_who_it_is() -> None:
    journal = Journal()
    journal.tell(SetQueue(queue(7)))
    journal.tell(SetQueue(queue(8)))

    assert journal.tell(ForgetQueue(7, ("000000000000", "queue-7", 100)))
    assert journal.tell(ForgetQueue(8))
    assert not journal.tell(ForgetQueue(7, ("000000000000", "queue-7", 100)))  # it is gone already

    assert not journal.states.definitions


def test_metadata_and_journal_of_one_moment_do_not_contradict_each_other() -> None:
    group = queue(4, "log@group", group_of=3, revision=8)
    stored = {
        1: queue(1),
        2: queue(2, revision=2, state="deleting"),
        3: queue(3),
        4: replace_definition(group, revision=1),
        5: queue(5, state="creating"),
        6: queue(6, revision=3),
        9: queue(9, "other@gone", group_of=8),
    }
    known = {1: queue(1), 3: queue(3), 4: group, 6: queue(6, revision=2), 7: queue(7)}

    assert find_contradictions(stored, {6, 7}, known) == []


def test_what_one_side_lost_is_named() -> None:
    stored = {1: queue(1), 2: queue(2, revision=2), 3: queue(3), 4: queue(4, "new")}
    known = {
        2: queue(2),
        3: queue(3, revision=4),
        4: queue(4, "old"),
        5: queue(5),
        6: queue(6, "a@b", group_of=5),
    }

    found = find_contradictions(stored, set(), known)

    assert found == [
        "the journal does not have the queue queue-1",
        "the journal has the queue queue-2 as of revision 1, the metadata as of 2",
        "the metadata has the queue queue-3 as of revision 1, the journal as of 4",
        "queue 4 is old in the journal and new in the metadata",
        "the metadata does not have the queue queue-5 of the journal",
    ]
    assert tell_contradictions(found).endswith("; and 2 more")
    assert tell_contradictions(found[:1]) == "the journal does not have the queue queue-1"


def test_other_partitions_under_the_same_revision_are_named() -> None:
    there = replace_definition(queue(1), partitions=one_partition(4), table_version=3)

    assert find_contradictions({1: there}, set(), {1: queue(1)}) == [
        "the metadata has other partitions of the queue queue-1 (version 3) than the journal (version 1)"
    ]
    assert find_contradictions({1: there}, {1}, {1: queue(1)}) == []


def test_a_record_of_a_type_that_is_not_known_is_named() -> None:
    row = RecordRow(0, 200, 0, 0, 1, 0, 0, 0, 0, 0, 0)

    with pytest.raises(UnknownFormat, match="a record of type 200"):
        Journal().states.apply(row, b"", 1)
