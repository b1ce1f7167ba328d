"""Segment files: header, index, and the search behind a break."""

from __future__ import annotations

from dataclasses import replace

import pytest
from crc32c import crc32c
from harness.batches import BatchSource
from harness.sim_disk import SimDisk
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.broker.storage.segments import (
    DATA_AT,
    RecordGone,
    RecordUnreadable,
    Segment,
    SegmentDamaged,
    SegmentHeader,
    base_offset_of,
    find_batch_behind,
    iterate_batches,
    parse_header,
    read_records,
    render_header,
    segment_name,
)
from quaymaster.core.values.records import decode_header, iterate_rows, rewrite_batch

HEADER_FIELDS_BYTES = 88
HEADER = SegmentHeader(0, 7, b"s" * 16, 0, 0, 0, 0, 0, 0, 0)


def make_segment(disk: SimDisk, data: bytes, *, size: int = 64 << 10) -> Segment:
    fd = disk.open("/segment", create=True)
    disk.fill_zeros(fd, 0, size)
    disk.write(fd, render_header(HEADER) + data, 0)
    return Segment("/segment", HEADER, size)


@given(st.integers(0, 10**20 - 1))
def test_a_segment_is_named_by_its_base_offset(base_offset: int) -> None:
    assert base_offset_of(segment_name(base_offset)) == base_offset


@pytest.mark.parametrize("name", ["1.seg", "00000000000000000001.tmp", "0000000000000000000x.seg", "lock"])
def test_other_files_are_no_segments(name: str) -> None:
    assert base_offset_of(name) is None


@given(st.integers(0, 90 * 8 - 1))
def test_a_changed_bit_in_the_header_is_noticed(bit: int) -> None:
    header = SegmentHeader(1, 7, b"0123456789abcdef", 10, 11, 12, 13, 14, 15, 16)
    page = bytearray(render_header(header))
    assert parse_header("x", bytes(page)) == header
    page[bit // 8] ^= 1 << bit % 8

    with pytest.raises(SegmentDamaged):
        parse_header("x", bytes(page))


def test_an_unknown_segment_version_is_refused_by_name() -> None:
    bare = b"\x09" + render_header(HEADER)[1:HEADER_FIELDS_BYTES]
    page = (bare + crc32c(bare).to_bytes(4, "little")).ljust(DATA_AT, b"\0")

    with pytest.raises(SegmentDamaged, match="version 9"):
        parse_header("x", page)


def test_a_batch_of_the_same_unfinished_write_behind_a_break_is_no_damage() -> None:
    source = BatchSource()
    broken, behind = source.batch([b"x" * 100]), source.batch([b"y" * 100], floor=0)
    segment = make_segment(disk := SimDisk(), bytes(len(broken.data)) + behind.data)

    assert find_batch_behind(disk, segment, DATA_AT, offset=0) is None


def test_a_batch_that_knew_the_broken_one_to_be_durable_is_found_wherever_it_lies() -> None:
    for gap in (0, 1, 5000, (1 << 20) - DATA_AT - 50, 1 << 20):
        source = BatchSource()
        broken, behind = source.batch([b"x" * 100]), source.batch([b"y" * 100], floor=1)
        data = bytes(len(broken.data) + gap) + behind.data
        segment = make_segment(disk := SimDisk(), data, size=2 << 20)

        found = find_batch_behind(disk, segment, DATA_AT, offset=0)

        assert found is not None
        assert found == (DATA_AT + len(broken.data) + gap, decode_header(behind.data))


def test_a_message_body_that_imitates_a_batch_with_impossible_offsets_is_not_believed() -> None:
    imitation = BatchSource(end_offset=10**9).batch([b"evil"], floor=10**9)
    segment = make_segment(disk := SimDisk(), bytes(100) + imitation.data)

    assert find_batch_behind(disk, segment, DATA_AT, offset=5) is None


def test_batches_that_span_the_pieces_of_a_large_read_come_back_whole() -> None:
    source = BatchSource()
    batches = [source.batch([bytes([number]) * 300_000]) for number in range(12)]
    data = b"".join(batch.data for batch in batches)
    segment = make_segment(disk := SimDisk(), data, size=8 << 20)

    found = [bytes(view) for _, _, view in iterate_batches(disk, segment, DATA_AT, DATA_AT + len(data))]

    assert found == [batch.data for batch in batches]


def test_a_damaged_header_does_not_make_a_record_look_compacted_away() -> None:
    source = BatchSource()
    batches = [source.batch([b"x" * 50, b"y" * 50]) for _ in range(4)]
    data = bytearray(b"".join(batch.data for batch in batches))
    segment = make_segment(disk := SimDisk(), bytes(data))
    position = DATA_AT
    for batch in batches:
        segment.note_batch(decode_header(batch.data), position, 16 << 10)
        position += len(batch.data)
    disk.flip_bit(
        "/segment", (DATA_AT + len(batches[0].data) + 16) * 8 + 6
    )  # base offset of the second batch

    with pytest.raises(RecordUnreadable) as noticed:
        read_records(disk, segment, [2])

    assert type(noticed.value) is RecordUnreadable


def test_single_records_are_found_in_a_batch_of_thousands_compacted_or_not() -> None:
    source = BatchSource()
    batch = source.batch([b"%d" % number for number in range(5000)])
    header = decode_header(batch.data)
    kept = [row for row in iterate_rows(batch.data, header) if row.offset % 7 == 3]
    for data, live in (
        (batch.data, range(5000)),
        (rewrite_batch(batch.data, header, kept), range(3, 5000, 7)),
    ):
        segment = make_segment(disk := SimDisk(), data, size=1 << 20)
        segment.header = replace(HEADER, flags=1, end_offset=5000)
        segment.note_batch(decode_header(data), DATA_AT, 16 << 10)
        for wanted in ([live[0]], [live[-1]], list(live)[100:700:9]):
            found = read_records(disk, segment, wanted)

            assert [(row.offset, payload) for row, payload in found] == [(n, b"%d" % n) for n in wanted]
    for gone in (0, 4, 4999):
        with pytest.raises(RecordGone):
            read_records(disk, segment, [gone])
