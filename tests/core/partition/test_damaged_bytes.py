"""Bytes and values at the edge of their formats."""

from __future__ import annotations

import pytest
from harness.replica_host import queue

from quaymaster.core.values.errors import SignatureDoesNotMatch
from quaymaster.core.values.messages import (
    UnknownMessageFormat,
    associated_data,
    decode_moved,
    encode_moved,
    hash_attempt,
)
from quaymaster.core.values.records import (
    CorruptBatch,
    Record,
    RecordType,
    check_table,
    decode_header,
    encode_batch,
    record_at,
)


def test_signature_error_says_what_to_check() -> None:
    assert "Check your AWS Secret Access Key" in SignatureDoesNotMatch().message


def test_ciphertext_is_bound_to_key_queue_and_message() -> None:
    bound = {
        associated_data(key, queue_id, message_id)
        for key in (1, 2)
        for queue_id in (1, 2)
        for message_id in (bytes(16), bytes(15) + b"1")
    }

    assert len(bound) == 8


def test_attempt_ids_are_told_apart() -> None:
    assert hash_attempt("a") != hash_attempt("b")
    assert len(hash_attempt("a")) == 16


def test_move_wrapper_cut_at_any_place_is_refused_or_holds_less() -> None:
    whole = encode_moved(1, 0, 7, None, "arn:aws:sqs:local:0:é", b"\1message")

    for end in range(len(whole) - len(b"\1message") + 1):
        with pytest.raises(UnknownMessageFormat):
            decode_moved(whole[:end])
    damaged = whole.replace("é".encode(), b"\xff\xff")
    with pytest.raises(UnknownMessageFormat, match="ARN is damaged"):
        decode_moved(damaged)


def test_queue_with_a_key_of_its_own_says_so_in_its_attributes() -> None:
    attributes = queue(1, attributes={"KmsMasterKeyId": "alias/x"}).all_attributes()

    assert attributes["SqsManagedSseEnabled"] == "false"
    assert attributes["KmsDataKeyReusePeriodSeconds"] == "300"


def test_record_is_found_by_its_place_in_a_batch() -> None:
    records = [Record(RecordType.SEND, at, 1, 0, 10 + at, 5, 0, b"payload-%d" % at) for at in range(3)]
    batch = encode_batch(records, epoch=1, base_offset=4, time_ms=5, floor=0, previous_chain=0)

    assert record_at(batch.data, 2) == (RecordType.SEND, 2, 12, b"payload-2")


def test_table_that_ends_early_is_corrupt() -> None:
    record = Record(RecordType.SEND, 0, 1, 0, 1, 5, 0, b"payload")
    batch = encode_batch([record], epoch=1, base_offset=0, time_ms=5, floor=0, previous_chain=0)

    with pytest.raises(CorruptBatch, match="ends inside its record table"):
        check_table(batch.data[:100], decode_header(batch.data))


def test_header_that_contradicts_itself_is_corrupt() -> None:
    record = Record(RecordType.SEND, 0, 1, 0, 1, 5, 0, b"payload")
    batch = encode_batch([record], epoch=1, base_offset=0, time_ms=5, floor=0, previous_chain=0)
    data = bytearray(batch.data)
    data[60:64] = bytes(4)  # it spans no offsets

    with pytest.raises(CorruptBatch, match="contradicts itself"):
        decode_header(bytes(data))


def test_few_bytes_are_no_header() -> None:
    with pytest.raises(CorruptBatch, match="too few"):
        decode_header(bytes(63))
