"""Blocks of usage records: what goes in comes out, what is damaged is found, what is chained holds."""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.protocol.usage import usage_blocks
from quaymaster.protocol.usage.dropped_records import (
    DROPPED_COUNTS_MAX,
    OTHERS,
    Dropped,
    DroppedCount,
    add_dropped,
    merge_dropped,
)
from quaymaster.protocol.usage.usage_blocks import (
    BLOCK_BYTES_MAX,
    HEAD_BYTES,
    ROWS_PER_BLOCK_MAX,
    BlockEnd,
    BlockHeader,
    BlockOrigin,
    EncodedBlock,
    Seal,
    UnknownBlockVersion,
    block_length,
    block_text,
    decode_block,
    decode_header,
    encode_block,
    parse_block_text,
)
from quaymaster.protocol.usage.usage_records import (
    NO_HASH,
    Change,
    CorruptRecord,
    UsageContext,
    UsageRecord,
    chunks_of,
    event_id,
    event_seed,
    hash_record,
    hashed_bytes,
    parse_hashed_bytes,
)
from quaymaster.protocol.usage.usage_rows import CorruptBlock, UsageRows

NOON_US = 1_795_348_800_000_000
ORIGIN = BlockOrigin("fe-1", 3, "eu-test-1")
NOTHING = UsageRows([], [], [], [], [], [], [], [], [], [], [], [])


def make_record(sequence: int = 0, **fields: Any) -> UsageRecord:
    """Return a record as the decoder would, its hashes aside."""
    values: dict[str, Any] = {
        "front_end": "fe-1",
        "incarnation": 3,
        "sequence": sequence,
        "schema_version": 1,
        "event_time_us": NOON_US + sequence,
        "region": "eu-test-1",
        "account_id": "111111111111",
        "principal_id": "AIDAEXAMPLE",
        "access_key_id": "AKIAEXAMPLE",
        "source_ip": "192.0.2.7",
        "user_agent": "Boto3/1.40",
        "request_id": str(uuid.UUID(int=sequence)),
        "protocol": "json",
        "action": "SendMessage",
        "category": "data",
        "read_only": False,
        "queue_id": 7,
        "queue_name": "orders",
        "queue_type": "standard",
        "http_status": 200,
        "error_code": "",
        "latency_us": 1_500,
        "server_us": 1_400,
        "request_bytes": 300,
        "response_bytes": 200,
        "payload_bytes": 100,
        "message_count": 1,
        "request_params": "",
        "response_elements": "",
        "prev_hash": b"",
        "record_hash": b"",
        "duplicate_count": 0,
        **fields,
    }
    values["received_time_us"] = values["event_time_us"] - values["latency_us"]
    values["chunks"] = chunks_of(values["payload_bytes"])
    values["empty_receive"] = values["action"] == "ReceiveMessage" and values["message_count"] == 0
    values["event_id"] = event_id(
        event_seed(values["front_end"], values["incarnation"]), sequence, values["event_time_us"]
    )
    return UsageRecord(**values)


def encode_records(
    records: Sequence[UsageRecord], *, low_watermark_us: int, after: BlockEnd | None = None
) -> EncodedBlock:
    """Return a block of records, all of one front end, incarnation and region, numbered densely."""
    first = records[0]
    for sequence, record in enumerate(records, first.sequence):
        assert record.sequence == sequence, f"record {record.sequence} stands where {sequence} must be"
    return encode_block(
        BlockOrigin(first.front_end, first.incarnation, first.region),
        after or BlockEnd(first.sequence),
        rows_of(records),
        low_watermark_us=low_watermark_us,
    )


def rows_of(records: Sequence[UsageRecord]) -> UsageRows:
    """Return the columns of records. What is worked out (chunks, ids, hashes) is left behind."""
    numbers: dict[UsageContext, int] = {}
    names = UsageContext.__struct_fields__
    context = [
        numbers.setdefault(UsageContext(*(getattr(record, name) for name in names)), len(numbers))
        for record in records
    ]
    return UsageRows(
        list(numbers),
        context,
        [record.event_time_us for record in records],
        [record.latency_us for record in records],
        [record.server_us for record in records],
        [record.request_bytes for record in records],
        [record.response_bytes for record in records],
        [record.payload_bytes for record in records],
        [record.message_count for record in records],
        [record.duplicate_count for record in records],
        [record.request_id for record in records],
        [
            Change(row, record.request_params, record.response_elements)
            for row, record in enumerate(records)
            if record.category == "management"
        ],
    )


def test_records_come_back_as_they_were() -> None:
    records = [
        make_record(40),
        make_record(41, queue_name="other", queue_id=2**63 - 1, payload_bytes=2**33, message_count=10),
        make_record(42, action="ReceiveMessage", message_count=0, payload_bytes=0, latency_us=20_000_000),
    ]

    block = decode_block(encode_records(records, low_watermark_us=NOON_US).data)

    assert block.records() == records
    assert [record.empty_receive for record in block.records()] == [False, False, True]


numbers = st.integers(0, 2**63)


@st.composite
def some_records(draw: st.DrawFn) -> list[UsageRecord]:
    first = draw(st.integers(0, 2**40))
    count = draw(st.integers(1, 12))
    texts = st.text(max_size=8)
    return [
        make_record(
            first + at,
            event_time_us=draw(st.integers(2**40, 2**52)),
            latency_us=draw(st.integers(0, 2**34)),
            server_us=draw(st.integers(0, 2**34)),
            queue_name=draw(texts),
            user_agent=draw(texts),
            account_id=draw(st.sampled_from(["", "111111111111", "222222222222"])),
            http_status=draw(st.sampled_from([200, 400, 403, 499, 503])),
            payload_bytes=draw(st.integers(0, 2**60)),
            request_bytes=draw(numbers),
            message_count=draw(st.integers(0, 10)),
            duplicate_count=draw(st.integers(0, 10)),
        )
        for at in range(count)
    ]


@given(some_records())
def test_any_records_come_back_and_the_header_has_their_sums(records: list[UsageRecord]) -> None:
    encoded = encode_records(records, low_watermark_us=5, after=BlockEnd(records[0].sequence, b"p" * 32))

    header = decode_header(encoded.data)
    assert decode_block(encoded.data).records() == [
        msgspec.structs.replace(record, empty_receive=record.empty_receive and record.http_status == 200)
        for record in records
    ]
    assert header == BlockHeader(
        "fe-1",
        3,
        records[0].sequence,
        records[-1].sequence + 1,
        len(records),
        sum(record.message_count for record in records),
        sum(record.payload_bytes for record in records),
        sum(record.chunks for record in records),
        sum(record.http_status >= 400 for record in records),
        min(record.event_time_us for record in records),
        max(record.event_time_us for record in records),
        5,
        "eu-test-1",
        b"p" * 32,
    )
    assert header.requests == len(records)
    assert encoded.end.next_sequence == header.seq_hi


def test_columns_have_the_names_and_order_of_a_record() -> None:
    block = decode_block(encode_records([make_record(0), make_record(1)], low_watermark_us=0).data)

    columns = block.columns()

    assert tuple(columns) == UsageRecord.__struct_fields__
    assert list(columns["sequence"]) == [0, 1]


def test_what_repeats_is_written_once() -> None:
    records = [make_record(sequence) for sequence in range(ROWS_PER_BLOCK_MAX)]

    encoded = encode_records(records, low_watermark_us=0)

    assert len(decode_block(encoded.data).rows.contexts) == 1
    assert len(encoded.data) < BLOCK_BYTES_MAX


def test_records_that_are_not_dense_are_no_block() -> None:
    with pytest.raises(AssertionError, match="record 2 stands where 1 must be"):
        encode_records([make_record(0), make_record(2)], low_watermark_us=0)


def test_an_idle_front_end_says_how_far_it_is_without_rows() -> None:
    encoded = encode_block(ORIGIN, BlockEnd(17), NOTHING, low_watermark_us=NOON_US)

    block = decode_block(encoded.data)

    assert (block.header.seq_lo, block.header.seq_hi, block.header.rows) == (17, 17, 0)
    assert block.header.low_watermark_us == NOON_US
    assert block.records() == []


def test_an_incarnation_ends_with_a_seal() -> None:
    seal = Seal(3, 17, "crashed")

    encoded = encode_block(ORIGIN, BlockEnd(17), NOTHING, low_watermark_us=0, seal=seal)

    assert decode_header(encoded.data).seal == seal


def test_what_was_dropped_comes_before_the_rows_and_has_their_numbers() -> None:
    dropped = Dropped(5, 9, "spool_full", [DroppedCount("1", "SendMessage", 4, 4, 400, 4, 0)])
    rows = rows_of([make_record(9), make_record(10)])

    encoded = encode_block(ORIGIN, BlockEnd(5), rows, low_watermark_us=0, dropped=dropped)

    block = decode_block(encoded.data)
    assert block.header.dropped == dropped
    assert (block.header.seq_lo, block.header.seq_hi) == (5, 11)
    assert [record.sequence for record in block.records()] == [9, 10]


def test_what_was_dropped_stands_first_or_not_at_all() -> None:
    with pytest.raises(AssertionError, match="comes first"):
        encode_block(ORIGIN, BlockEnd(4), NOTHING, low_watermark_us=0, dropped=Dropped(5, 6, "damaged", []))


def test_blocks_are_chained_by_their_digests() -> None:
    first = encode_records([make_record(0)], low_watermark_us=0)

    second = encode_records([make_record(1)], low_watermark_us=0, after=first.end)

    assert decode_header(first.data).previous == NO_HASH
    assert decode_header(second.data).previous == decode_block(first.data).digest == first.end.digest


def test_management_records_are_chained_across_blocks_and_data_records_are_not() -> None:
    created = make_record(
        1,
        action="CreateQueue",
        category="management",
        request_params='{"QueueName":"orders"}',
        response_elements='{"QueueUrl":"u"}',
    )
    listed = make_record(2, action="ListQueues", category="management", read_only=True)
    first = encode_records([make_record(0), created, listed], low_watermark_us=0)
    second = encode_records(
        [make_record(3, action="DeleteQueue", category="management")],
        low_watermark_us=0,
        after=first.end,
    )

    records = [*decode_block(first.data).records(), *decode_block(second.data).records()]

    assert records[0].record_hash == records[0].prev_hash == b""
    assert records[1].request_params == '{"QueueName":"orders"}'
    chained = records[1:]
    assert [record.record_hash for record in chained] == [hash_record(record) for record in chained]
    hashes = [NO_HASH, *(record.record_hash for record in chained)]
    assert [record.prev_hash for record in chained] == hashes[:-1]
    assert second.end.audit_hash == hashes[-1]


def other_than(value: object) -> object:
    """Return another value of the same type."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case bytes():
            return value + b"x"
        case _:
            return f"{value}x"


@pytest.mark.parametrize("name", sorted(set(UsageRecord.__struct_fields__) - {"record_hash"}))
def test_no_field_of_a_chained_record_can_be_changed(name: str) -> None:
    record = make_record(0, category="management", prev_hash=NO_HASH)
    value = getattr(record, name)

    changed = msgspec.structs.replace(record, **{name: other_than(value)})

    assert hash_record(changed) != hash_record(record)


def test_event_ids_are_uuids_of_version_7_in_the_order_of_time_and_sequence() -> None:
    ids = [
        event_id(event_seed("fe-1", 3), sequence, NOON_US + sequence // 3 * 1_000) for sequence in range(9)
    ]

    assert ids == sorted(set(ids))
    assert {uuid.UUID(text).version for text in ids} == {7}
    assert {uuid.UUID(text).variant for text in ids} == {uuid.RFC_4122}
    assert uuid.UUID(ids[0]).int >> 80 == NOON_US // 1_000
    assert (
        event_id(event_seed("fe-2", 3), 0, NOON_US) != ids[0] != event_id(event_seed("fe-1", 4), 0, NOON_US)
    )


@pytest.mark.parametrize(
    ("payload_bytes", "chunks"), [(0, 1), (1, 1), (65_536, 1), (65_537, 2), (262_144, 4), (1 << 20, 16)]
)
def test_a_request_is_billed_by_64_kib(payload_bytes: int, chunks: int) -> None:
    assert chunks_of(payload_bytes) == chunks


def some_block() -> bytes:
    return encode_records([make_record(0), make_record(1, action="CreateQueue")], low_watermark_us=0).data


def test_every_changed_byte_is_found() -> None:
    data = some_block()

    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x10

        with pytest.raises((CorruptBlock, UnknownBlockVersion)):
            decode_block(bytes(damaged))


def test_every_cut_is_found() -> None:
    data = some_block()

    for length in range(len(data)):
        with pytest.raises(CorruptBlock):
            decode_block(data[:length])


def test_what_follows_a_block_is_not_looked_at() -> None:
    data = some_block()

    block = decode_block(data + b"more")

    assert block_length(data + b"more") == len(data)
    assert block == decode_block(data)


def test_a_block_of_a_newer_program_is_named_so() -> None:
    with pytest.raises(UnknownBlockVersion, match="version 2; version 1 can be read"):
        decode_header(b"\x02" + some_block()[1:])


def test_a_header_longer_than_its_block_is_damage() -> None:
    with pytest.raises(CorruptBlock, match="a header of 90 bytes does not fit into a block of 20"):
        block_length(struct.pack("<B3sIII", 1, b"QMU", 20, 90, 0))


def forged(header: BlockHeader, body: bytes | list[Any]) -> bytes:
    """Return a block whose CRC is right, whatever it says."""
    encoded = msgspec.msgpack.encode(header)
    packed = body if isinstance(body, bytes) else zlib.compress(msgspec.msgpack.encode(body))
    head = struct.pack("<B3sII", 1, b"QMU", HEAD_BYTES + len(encoded) + len(packed), len(encoded))
    crc = crc32c(packed, crc32c(encoded, crc32c(head)))
    return head + struct.pack("<I", crc) + encoded + packed


def header_of(rows: int, **fields: Any) -> BlockHeader:
    values: dict[str, Any] = {"messages": 0, "payload_bytes": 0, "seq_hi": rows, **fields}
    return BlockHeader(
        front_end="f", incarnation=1, seq_lo=0, rows=rows, chunks=1, errors=0, time_min_us=0, time_max_us=0,
        low_watermark_us=0, region="r", previous=NO_HASH, **values,
    )  # fmt: skip


CONTEXT = ["1", "", "", "", "", "json", "SendMessage", "data", False, 0, "", "", 200, ""]


def body_of(count: int = 1, *, context: int = 0, ids: str = "a", changes: object = ()) -> list[Any]:
    column = b"B" + bytes(count)
    return [[CONTEXT], b"B" + bytes([context] * count), *[column] * 8, ids, changes]


def test_a_forged_block_that_is_whole_can_be_read() -> None:
    assert len(decode_block(forged(header_of(1), body_of())).rows) == 1


@pytest.mark.parametrize(
    ("header", "body", "message"),
    [
        (header_of(1), b"no zlib", "rows cannot be read"),
        (header_of(1), zlib.compress(b"\xc1"), "rows cannot be read"),
        (header_of(1), body_of()[:5], "rows cannot be read"),
        (header_of(1), [[CONTEXT], b"x\0", *body_of()[2:]], "rows cannot be read"),
        (header_of(1), [[CONTEXT], b"", *body_of()[2:]], "rows cannot be read"),
        (header_of(1), [[CONTEXT], b"H\0", *body_of()[2:]], "rows cannot be read"),
        (header_of(1), body_of(ids="a\nb"), "columns are not of one length"),
        (header_of(1), body_of(context=1), "name what it does not have"),
        (header_of(1), body_of(changes=[[1, "", "", b"", b""]]), "name what it does not have"),
        (header_of(2), body_of(), "sum up to"),
        (header_of(1, messages=1), body_of(), "sum up to"),
        (header_of(1, payload_bytes=1), body_of(), "sum up to"),
        (header_of(1, seq_hi=2), body_of(), "are not 1 rows and 0 dropped"),
        (header_of(1, dropped=Dropped(0, 1, "damaged", [])), body_of(), "are not 1 rows and 1 dropped"),
    ],
)
def test_a_forged_block_that_contradicts_itself_is_refused(
    header: BlockHeader, body: bytes | list[Any], message: str
) -> None:
    with pytest.raises(CorruptBlock, match=message):
        decode_block(forged(header, body))


def test_a_header_that_is_none_is_refused() -> None:
    data = bytearray(forged(header_of(0), b""))
    head, rest = bytes(data[:12]), b"\xc1" + bytes(data[HEAD_BYTES + 1 :])

    with pytest.raises(CorruptBlock, match="header cannot be read"):
        decode_header(head + struct.pack("<I", crc32c(rest, crc32c(head))) + rest)


def test_rows_that_would_fill_the_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_blocks, "BODY_BYTES_MAX", 100)

    with pytest.raises(CorruptBlock, match="rows cannot be read"):
        decode_block(forged(header_of(1), zlib.compress(bytes(10_000))))


def test_a_block_is_text_as_the_body_of_a_message() -> None:
    data = some_block()

    text = block_text(data)

    assert text.isascii()
    assert "\n" not in text
    assert parse_block_text(text) == parse_block_text(text.encode()) == data


@pytest.mark.parametrize("text", ["no base64!", "AAA", "ü"])
def test_a_body_that_is_no_base64_is_no_block(text: str) -> None:
    with pytest.raises(CorruptBlock, match="is not base64"):
        parse_block_text(text)


def count_of(account_id: str = "1", action: str = "SendMessage") -> dict[tuple[str, str], DroppedCount]:
    counts: dict[tuple[str, str], DroppedCount] = {}
    add_dropped(counts, DroppedCount(account_id, action, 1, 2, 30, 1, 1))
    return counts


def test_dropped_requests_are_counted_by_account_and_action() -> None:
    counts = count_of()

    add_dropped(counts, DroppedCount("1", "SendMessage", 1, 0, 5, 1, 0))
    add_dropped(counts, DroppedCount("2", "SendMessage", 1, 0, 0, 1, 1))

    assert list(counts.values()) == [
        DroppedCount("1", "SendMessage", 2, 2, 35, 2, 1),
        DroppedCount("2", "SendMessage", 1, 0, 0, 1, 1),
    ]


def test_counts_of_many_accounts_are_bounded() -> None:
    counts: dict[tuple[str, str], DroppedCount] = {}

    for account in range(DROPPED_COUNTS_MAX + 20):
        add_dropped(counts, DroppedCount(str(account), "A", 1, 0, 0, 1, 0))

    assert len(counts) == DROPPED_COUNTS_MAX + 1
    assert counts[OTHERS, OTHERS].requests == 20
    assert sum(count.requests for count in counts.values()) == DROPPED_COUNTS_MAX + 20


def test_stretches_of_dropped_records_that_lie_end_to_end_are_one() -> None:
    earlier = Dropped(0, 1, "spool_full", list(count_of().values()))
    later = Dropped(1, 2, "too_many", [*count_of().values(), *count_of("2").values()])

    merged = merge_dropped(earlier, later)

    assert (merged.from_sequence, merged.to_sequence, merged.reason) == (0, 2, "spool_full")
    assert merged.counts == [
        DroppedCount("1", "SendMessage", 2, 4, 60, 2, 2),
        DroppedCount("2", "SendMessage", 1, 2, 30, 1, 1),
    ]


def test_what_nobody_knows_of_one_stretch_is_not_known_of_both() -> None:
    known = Dropped(1, 2, "spool_full", list(count_of().values()))

    assert merge_dropped(Dropped(0, 1, "damaged", []), known).counts == []


def test_stretches_with_something_between_them_are_not_merged() -> None:
    with pytest.raises(AssertionError, match="end to end"):
        merge_dropped(Dropped(0, 1, "damaged", []), Dropped(2, 3, "damaged", []))


def test_columns_of_different_lengths_are_no_rows() -> None:
    rows = rows_of([make_record(0)])
    rows.latency_us = [1, 2]

    with pytest.raises(AssertionError, match="one length"):
        encode_block(ORIGIN, BlockEnd(), rows, low_watermark_us=0)


def test_a_request_id_of_two_lines_is_refused() -> None:
    with pytest.raises(AssertionError, match="one line"):
        encode_records([make_record(0, request_id="a\nb")], low_watermark_us=0)


def test_older_programs_pass_over_fields_appended_since() -> None:
    encoded = [*msgspec.msgpack.decode(msgspec.msgpack.encode(header_of(0))), "appended"]

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(encoded), type=BlockHeader) == header_of(0)
    assert msgspec.convert([*CONTEXT, "appended"], UsageContext).action == "SendMessage"
    assert msgspec.convert([0, "p", "e", b"", b"", 1], Change).request_params == "p"


def test_what_a_record_hash_was_made_of_gives_the_record_back() -> None:
    record = make_record(0, category="management", prev_hash=NO_HASH, record_hash=b"h")

    data = hashed_bytes(record)

    assert sha256(data).digest() == hash_record(record)
    assert parse_hashed_bytes(data) == msgspec.structs.replace(record, record_hash=b"")


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x90", b"\x93\x01\x02\x03", b"\x91\xa1\xff"])
def test_bytes_that_are_no_record_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptRecord, match="no usage record"):
        parse_hashed_bytes(data)
