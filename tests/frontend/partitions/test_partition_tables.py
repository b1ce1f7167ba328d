"""Tables that are newer than their rows are believed until the rows have them, or the queue is gone."""

from __future__ import annotations

import pytest
from core.spread.support import HIGH, LOW, entry, queue
from msgspec.structs import replace
from pyroaring import BitMap

from quaymaster.core.structures.ids.recent_ids import top_of
from quaymaster.core.values.commands.messages import ALL_PARTITIONS
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.partitions import tables as tables_module

from .support import HALVES, PLAIN, SPLIT, Rows

QUEUE = PLAIN.queue_id


def reported(rows: Rows) -> list[int]:
    versions: list[int] = []
    rows.tables.on_newer = lambda definition: versions.append(definition.table_version)
    return versions


def test_what_a_row_says_is_found_while_nothing_newer_was_met() -> None:
    rows = Rows()

    rows.tables.meet(PLAIN)

    assert rows.tables.find(QUEUE) is PLAIN
    assert rows.tables.find(99) is None
    assert not rows.tables.met


def test_a_newer_table_is_believed_and_reported_once() -> None:
    rows = Rows()
    versions = reported(rows)

    rows.tables.meet(SPLIT)
    rows.tables.meet(SPLIT)

    assert rows.tables.find(QUEUE) is SPLIT
    assert versions == [2]


def test_an_older_table_is_not_believed() -> None:
    rows = Rows(SPLIT)
    versions = reported(rows)

    rows.tables.meet(PLAIN)

    assert rows.tables.find(QUEUE) is SPLIT
    assert versions == []


def test_a_table_of_the_same_version_with_other_partitions_is_believed() -> None:
    rows = Rows(SPLIT)

    rows.tables.meet(HALVES)

    assert rows.tables.find(QUEUE) is HALVES


@pytest.mark.parametrize("row", [SPLIT, queue(entry(0, "closed"), entry(1), version=3)])
def test_a_met_table_is_forgotten_when_the_row_has_it_or_a_newer_one(row: QueueDefinition) -> None:
    rows = Rows()
    rows.tables.meet(SPLIT)

    rows.show(row)

    assert rows.tables.find(QUEUE) is row
    assert not rows.tables.met


def test_a_met_table_is_forgotten_when_the_queue_is_gone_and_not_met_again() -> None:
    rows = Rows()
    rows.tables.meet(SPLIT)

    rows.show(None)

    assert rows.tables.find(QUEUE) is None
    rows.tables.meet(SPLIT)
    assert not rows.tables.met


def test_a_row_that_was_restored_does_not_hide_what_was_met() -> None:
    rows = Rows(queue(entry(0), version=1))
    rows.tables.meet(SPLIT)

    rows.show(replace(PLAIN, revision=0, table_version=0))

    assert rows.tables.find(QUEUE) is SPLIT


def test_a_newer_table_replaces_the_one_that_was_met_before() -> None:
    rows = Rows()
    versions = reported(rows)
    third = queue(entry(0, "closed"), entry(1, keys=LOW), entry(2, keys=HIGH), version=3)

    rows.tables.meet(SPLIT)
    rows.tables.meet(third)
    rows.tables.meet(SPLIT)

    assert rows.tables.find(QUEUE) is third
    assert versions == [2, 3]


def test_journals_are_found_by_both_tables() -> None:
    rows = Rows()
    assert rows.tables.journal_of(QUEUE, 1) is None

    rows.tables.meet(HALVES)

    assert [rows.tables.journal_of(QUEUE, number) for number in (0, 1, 2, 3)] == [0, 1, 2, None]
    assert rows.tables.journal_of(99, 0) is None


def test_the_journal_of_all_partitions_is_that_of_the_oldest_one_that_is_listed() -> None:
    rows = Rows(queue(entry(4), version=9))
    assert rows.tables.journal_of(QUEUE, ALL_PARTITIONS) == 4

    rows.tables.meet(queue(entry(5), version=10))

    assert rows.tables.journal_of(QUEUE, ALL_PARTITIONS) == 5


def test_of_too_many_met_tables_the_first_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables_module, "MET_MAX", 2)
    rows = {number: replace(PLAIN, queue_id=number) for number in range(1, 4)}
    tables = tables_module.PartitionTables(rows.get, lambda queue_id, partition: None, Rows().refresh)

    for number in rows:
        tables.meet(replace(SPLIT, queue_id=number))

    assert list(tables.met) == [2, 3]
    assert tables.find(1) is rows[1]


def test_of_too_many_sealed_partitions_the_first_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables_module, "SEALED_MAX", 2)
    tables = Rows().tables

    for number in (1, 2, 3):
        tables.note_sealed(QUEUE, number)

    assert [tables.is_known_sealed(QUEUE, number) for number in (1, 2, 3)] == [False, True, True]


def tops_of(*ids: bytes) -> bytes:
    return BitMap([top_of(one) for one in ids]).serialize()


def test_a_partition_may_know_any_id_until_it_told_which_it_knows() -> None:
    tables = Rows().tables
    known, new = bytes(16), b"\xff" * 16
    assert tables.may_know(QUEUE, 1, new)

    tables.note_ids(QUEUE, 1, tops_of(known))

    assert [tables.may_know(QUEUE, 1, one) for one in (known, new)] == [True, False]
    assert tables.may_know(QUEUE, 2, new)
    tables.forget_ids(QUEUE, 1)
    assert tables.may_know(QUEUE, 1, new)


def test_of_too_many_ids_those_of_the_first_partition_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = Rows().tables
    new, tops = b"\xff" * 16, tops_of(bytes(16))
    monkeypatch.setattr(tables_module, "IDS_BYTES_MAX", 2 * len(tops))

    for number in (1, 2, 1, 3):
        tables.note_ids(QUEUE, number, tops)

    assert [tables.may_know(QUEUE, number, new) for number in (1, 2, 3)] == [False, True, False]
