"""Rows of a backup in the store of a new cell: queues and keys come along, processes do not."""

from __future__ import annotations

from quaymaster.coordination.interface import TRANSACTION_BYTES_MAX, KeyValue, Put, check_transaction
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, encode_queue_definition
from quaymaster.metadata.store.restored_rows import in_transactions, rows_to_restore, unexpected_key
from quaymaster.metadata.store.rows import PendingRow, encode_row, row_decoder


def queue_row(name: str, queue_id: int) -> KeyValue:
    definition = QueueDefinition(queue_id, "000000000000", name, "active", 1, 0, 0, {}, {}, 1, ())
    return KeyValue(f"/queues/000000000000/{name}", encode_queue_definition(definition), 5)


def test_each_queue_is_told_to_its_journal_once_more() -> None:
    pending = KeyValue("/pending/000000000000/b", encode_row(PendingRow(2, 77)), 5)

    puts = {put.key: put.value for put in rows_to_restore([pending, queue_row("a", 1), queue_row("b", 2)])}

    decode = row_decoder(PendingRow)
    assert decode(puts["/pending/000000000000/a"]) == PendingRow(1, 0)
    assert decode(puts["/pending/000000000000/b"]) == PendingRow(2, 77)


def test_what_processes_say_of_themselves_stays_behind() -> None:
    gone = [
        *(
            "alive/broker/b1",
            "brokers/b1",
            "journals/0",
            "managers/in_cluster",
            "/nodes/m1",
            "/readers/f1",
        ),
        *("directory", "format"),
    ]
    kept = [
        "/access_keys/AKIA1",
        "/data_keys/01",
        "/ids/queue",
        "identity",
        "recoveries/0/3",
        "usage/front_ends/f1",
    ]

    puts = rows_to_restore([KeyValue(key, b"value", 1) for key in [*gone, *kept]])

    assert [put.key for put in puts] == kept


def test_rows_are_written_in_transactions_that_every_store_takes() -> None:
    puts = [Put(f"/queues/{number}", b"x" * 100) for number in range(150)]
    puts += [Put(f"/large/{number}", b"x" * (TRANSACTION_BYTES_MAX // 2)) for number in range(3)]

    transactions = list(in_transactions(puts))

    assert [put for some in transactions for put in some] == puts
    for some in transactions:
        check_transaction([], some, [])
    assert list(in_transactions([])) == []


def test_store_with_more_than_brokers_in_it_is_not_that_of_a_new_cell() -> None:
    assert unexpected_key(["brokers/b1", "format", "alive/broker/b1"]) is None
    assert unexpected_key(["brokers/b1", "/queues/000000000000/a"]) == "/queues/000000000000/a"
    assert unexpected_key(["journals/0"]) == "journals/0"
