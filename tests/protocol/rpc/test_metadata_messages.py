"""Requests to metadata nodes and their answers, as bytes."""

from __future__ import annotations

import msgspec
import pytest

from quaymaster.core.values.errors import MalformedInput
from quaymaster.protocol.rpc.metadata_messages import (
    Changes,
    CreateQueue,
    DeleteQueue,
    FindRows,
    GetChanges,
    Greet,
    NewDataKey,
    Request,
    StoreRow,
    Swap,
    Transact,
    Written,
    decode_request,
    encode_message,
)


@pytest.mark.parametrize(
    "request_",
    [
        Greet(),
        FindRows(["/queues/000000000000/orders"], 7),
        GetChanges(["/queues/"], 12, 1_000),
        Transact([Swap("/a", 0)], [Written("/a", b"\x00")], ["/b"]),
        CreateQueue("000000000000", "orders", {"DelaySeconds": "5"}, {}, NewDataKey(3, 9, b"\x01"), 4),
        DeleteQueue("000000000000", "orders"),
    ],
    ids=lambda request: type(request).__name__,
)
def test_request_is_read_as_it_was_written(request_: Request) -> None:
    assert decode_request(encode_message(request_)) == request_


def test_answer_is_read_as_it_was_written() -> None:
    changes = Changes([StoreRow("/a", b"1", 5), StoreRow("/b", None, 6)], 6, 40)

    assert msgspec.msgpack.decode(encode_message(changes), type=Changes) == changes


def test_request_with_more_fields_than_are_known_is_read() -> None:
    # A newer peer appended some.
    newer = msgspec.msgpack.encode([22, "000000000000", "orders", 4, 7, "more", 1])

    assert decode_request(newer) == DeleteQueue("000000000000", "orders", 4, 7)


def test_change_from_an_older_front_end_names_its_queue_alone() -> None:
    older = msgspec.msgpack.encode([22, "000000000000", "orders", 4])

    assert decode_request(older) == DeleteQueue("000000000000", "orders", 4, queue_id=0)


@pytest.mark.parametrize("data", [b"", b"\xc0", b"garbage", msgspec.msgpack.encode([99, 1])])
def test_what_is_no_request_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedInput, match="metadata node"):
        decode_request(data)
