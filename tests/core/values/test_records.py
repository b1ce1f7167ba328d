"""The batch format: what was encoded comes back, and no changed byte goes unnoticed."""

from __future__ import annotations

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.values import records
from quaymaster.core.values.records import (
    BATCH_VERSION,
    DUE_AFTER_MAX_MS,
    FLAG_COMPACTED,
    HEADER_BYTES,
    RECORDS_PER_BATCH_MAX,
    ROW_BYTES,
    Batch,
    CorruptBatch,
    Record,
    RecordRow,
    RecordType,
    chain_after,
    check_batch,
    check_table,
    decode_header,
    encode_batch,
    iterate_rows,
    message_places,
    payload_places,
    rewrite_batch,
    row_at,
)

U64 = st.integers(0, 2**64 - 1)
RECORDS = st.lists(
    st.builds(
        Record,
        type=st.sampled_from(RecordType),
        flags=st.integers(0, 255),
        queue_id=U64,
        partition=st.integers(0, 0xFFFF),
        sequence=U64,
        time_ms=U64,
        due_after_ms=st.integers(0, DUE_AFTER_MAX_MS),
        payload=st.binary(max_size=200),
    ),
    min_size=1,
    max_size=20,
)


def encode(records: list[Record], *, base_offset: int = 5, previous_chain: int = 77, floor: int = 3) -> Batch:
    return encode_batch(
        records, epoch=4, base_offset=base_offset, time_ms=123, floor=floor, previous_chain=previous_chain
    )


def simple(*payloads: bytes) -> list[Record]:
    return [
        Record(RecordType.SEND, 0, 1, 0, number, 1000 + number, 0, payload)
        for number, payload in enumerate(payloads)
    ]


@given(RECORDS, st.integers(0, 40))
def test_records_come_back_as_they_were_encoded(records: list[Record], at: int) -> None:
    batch = encode(records)
    data = b"\xaa" * at + batch.data + b"\xbb" * 7

    header = decode_header(data, at)
    check_batch(memoryview(data), header, at)
    rows = list(iterate_rows(memoryview(data), header, at))

    assert (header.epoch, header.base_offset, header.time_ms, header.floor) == (4, 5, 123, 3)
    assert (header.length, header.count, header.span) == (len(batch.data), len(records), len(records))
    assert (batch.epoch, batch.base_offset, batch.next_offset) == (4, 5, 5 + len(records))
    assert [
        Record(
            row.type,
            row.flags,
            row.queue_id,
            row.partition,
            row.sequence,
            row.time_ms,
            row.due_after_ms,
            data[at + row.position : at + row.position + row.length],
        )
        for row in rows
    ] == records
    assert [row.offset for row in rows] == list(range(5, 5 + len(records)))
    assert [row_at(data, header, number, at) for number in range(len(records))] == rows


@given(RECORDS, st.data())
def test_payloads_of_any_rows_are_found(records: list[Record], data: st.DataObject) -> None:
    batch = encode(records)
    rows = sorted(data.draw(st.sets(st.integers(0, len(records) - 1))))

    places = list(payload_places(batch.data, rows))

    assert [(kind, flags, batch.data[start:end]) for kind, flags, start, end in places] == [
        (records[row].type, records[row].flags, records[row].payload) for row in rows
    ]


@given(RECORDS, st.data())
def test_a_changed_bit_anywhere_is_noticed(records: list[Record], data: st.DataObject) -> None:
    batch = encode(records)
    bit = data.draw(st.integers(0, len(batch.data) * 8 - 1))
    changed = bytearray(batch.data)
    changed[bit // 8] ^= 1 << bit % 8
    broken = bytes(changed)

    def reads_back() -> bool:
        header = decode_header(broken)
        check_batch(broken, header)
        return header.chain == chain_after(77, header.epoch, header.base_offset, header.span, header.crc)

    try:
        unnoticed = reads_back()
    except CorruptBatch:
        unnoticed = False
    assert not unnoticed


@given(st.binary(max_size=400))
def test_bytes_that_are_no_batch_never_crash_the_decoder(noise: bytes) -> None:
    for data in (noise, bytes([BATCH_VERSION]) + b"QMB" + noise):
        try:
            check_batch(data, decode_header(data))
        except CorruptBatch:
            continue
        pytest.fail("noise was taken for a batch")


@given(RECORDS, st.integers(0, 3000))
def test_a_batch_cut_short_is_noticed(records: list[Record], length: int) -> None:
    data = encode(records).data
    cut = data[: min(length, len(data) - 1)]

    with pytest.raises(CorruptBatch):
        check_batch(cut, decode_header(cut))


def test_the_chain_binds_a_batch_to_all_before_it() -> None:
    same = simple(b"payload")

    one, other = encode(same, previous_chain=1), encode(same, previous_chain=2)

    assert one.chain != other.chain
    header = decode_header(one.data)
    assert one.chain == header.chain == chain_after(1, 4, 5, 1, header.crc)


@given(RECORDS, st.data())
def test_a_rewritten_batch_keeps_rows_offsets_and_chain(records: list[Record], data: st.DataObject) -> None:
    original = encode(records).data
    header = decode_header(original)
    rows = list(iterate_rows(original, header))
    keep = [row for row in rows if data.draw(st.booleans())]

    rewritten = rewrite_batch(memoryview(b"--" + original), header, keep, 2)

    new = decode_header(rewritten)
    check_batch(rewritten, new)
    assert new.flags == FLAG_COMPACTED
    assert new.length == len(rewritten)
    assert (new.base_offset, new.span, new.next_offset) == (
        header.base_offset,
        header.span,
        header.next_offset,
    )
    assert (new.epoch, new.time_ms, new.floor, new.chain) == (4, 123, 3, header.chain)
    kept = list(iterate_rows(rewritten, new))

    def placed_anywhere(rows: list[RecordRow]) -> list[RecordRow]:
        return [msgspec.structs.replace(row, position=0) for row in rows]

    assert placed_anywhere(kept) == placed_anywhere(keep)
    for before, after in zip(keep, kept, strict=True):
        assert (
            original[before.position : before.position + before.length]
            == rewritten[after.position : after.position + after.length]
        )


def test_a_batch_can_be_rewritten_again() -> None:
    first = encode(simple(b"a", b"b", b"c")).data
    header = decode_header(first)
    second = rewrite_batch(first, header, list(iterate_rows(first, header))[1:])
    header = decode_header(second)

    third = rewrite_batch(second, header, list(iterate_rows(second, header))[1:])

    header = decode_header(third)
    check_batch(third, header)
    (row,) = iterate_rows(third, header)
    assert row.offset == 7
    assert third[row.position :] == b"c"


def test_an_unknown_version_is_refused_by_name() -> None:
    data = bytes([99]) + encode(simple(b"a")).data[1:]

    with pytest.raises(CorruptBatch, match="version 99"):
        decode_header(data)


def test_a_payload_and_the_table_can_be_checked_apart() -> None:
    data = encode(simple(b"aaaa", b"bbbb")).data[:-1] + b"?"
    header = decode_header(data)

    check_table(data, header)

    with pytest.raises(CorruptBatch, match="record 6"):
        check_batch(data, header)


def test_a_batch_holds_as_many_records_as_its_offsets_can_say() -> None:
    records = simple(b"") * RECORDS_PER_BATCH_MAX

    batch = encode(records)

    assert len(batch.data) == HEADER_BYTES + RECORDS_PER_BATCH_MAX * ROW_BYTES
    assert (
        list(iterate_rows(batch.data, decode_header(batch.data)))[-1].offset == 5 + RECORDS_PER_BATCH_MAX - 1
    )
    for wrong in ([], [*records, records[0]]):
        with pytest.raises(AssertionError):
            encode(wrong)


def test_the_bytes_of_version_1_do_not_change() -> None:
    batch = encode_batch(
        [Record(RecordType.SEND, 1, 2, 3, 4, 5, 6, b"payload")],
        epoch=7,
        base_offset=8,
        time_ms=9,
        floor=10,
        previous_chain=11,
    )

    assert batch.data.hex() == PINNED


PINNED = (
    "01514d427700000007000000000000000800000000000000010000000000000009000000000000000a00000000000000"
    "eb980bd01dc319d1572b66fa01000000020100007069e3f4020000000000000004000000000000000500000000000000"
    "060000007000000007000000030000007061796c6f6164"
)


def test_fewer_bytes_than_a_header_are_no_batch() -> None:
    with pytest.raises(CorruptBatch, match="63 bytes are too few"):
        decode_header(bytes(63))


def test_bytes_without_the_magic_are_no_batch() -> None:
    with pytest.raises(CorruptBatch, match="no batch starts here"):
        decode_header(bytes(64))


def test_a_batch_is_written_in_the_version_asked_for_and_keeps_it_when_it_is_compacted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records, "_VERSIONS_READ", frozenset({1, 2}))
    some = [Record(RecordType.DELETE, 0, 7, 0, number, 5, 0, b"") for number in range(3)]
    batch = encode_batch(some, epoch=1, base_offset=0, time_ms=5, floor=0, previous_chain=0, version=2)

    header = decode_header(batch.data)
    check_batch(batch.data, header)
    compacted = rewrite_batch(batch.data, header, list(iterate_rows(batch.data, header))[1:])

    assert batch.data[0] == compacted[0] == 2
    check_batch(compacted, decode_header(compacted))


def test_places_of_messages_are_those_of_the_records_that_hold_one() -> None:
    payloads = [(RecordType.SEND, 3, b"first"), (RecordType.DELETE, 0, b""), (RecordType.MOVE, 1, b"second")]
    records = [
        Record(int(kind), flags, 9, 0, number, 1_000, 0, payload)
        for number, (kind, flags, payload) in enumerate(payloads)
    ]
    batch = encode_batch(records, epoch=1, base_offset=5, time_ms=1_000, floor=0, previous_chain=0)

    found = list(message_places(memoryview(batch.data), decode_header(batch.data)))

    assert [(number, kind, flags, batch.data[start:end]) for number, kind, flags, _, start, end in found] == [
        (0, RecordType.SEND, 3, b"first"),
        (2, RecordType.MOVE, 1, b"second"),
    ]
    assert [crc for _, _, _, crc, _, _ in found] == [crc32c(b"first"), crc32c(b"second")]
