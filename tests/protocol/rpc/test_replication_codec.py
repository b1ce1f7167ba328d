"""What replicas say to each other is the same at the other end, or it is refused."""

from __future__ import annotations

import struct
from typing import get_args

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from quaymaster.core.replication.log_tail import LOG_START, Position
from quaymaster.core.replication.messages import (
    Append,
    Appended,
    DiskPressure,
    Envelope,
    FetchBatches,
    Message,
    Mismatch,
    Prepare,
    Promise,
    Resign,
    Stale,
    Tail,
)
from quaymaster.core.values.records import (
    Batch,
    Record,
    RecordType,
    check_batch,
    decode_header,
    encode_batch,
    iterate_rows,
    rewrite_batch,
)
from quaymaster.protocol.rpc.replication_codec import (
    REPLICATION_VERSION,
    ReplicationMessageUnreadable,
    decode_envelope,
    encode_envelope,
)

NUMBER = st.integers(0, 2**63)
NAME = st.text("abc-@0123456789", max_size=40)


def chained(payloads: list[list[bytes]], behind: Position, epoch: int) -> list[Batch]:
    """Return batches with these payloads, one behind the other."""
    batches = []
    for some in payloads:
        batch = encode_batch(
            [Record(RecordType.SEND, 0, 1, 0, 1, 5, 0, payload) for payload in some],
            epoch=epoch,
            base_offset=behind.end,
            time_ms=5,
            floor=0,
            previous_chain=behind.chain,
        )
        behind = Position(batch.next_offset, epoch, batch.chain)
        batches.append(batch)
    return batches


PAYLOADS = st.lists(st.lists(st.binary(max_size=30), min_size=1, max_size=3), max_size=3)


@st.composite
def appends(draw: st.DrawFn) -> Append:
    behind = Position(draw(st.integers(0, 2**40)), 0, draw(NUMBER))
    batches = chained(draw(PAYLOADS), behind, draw(NUMBER))
    return Append(
        draw(NUMBER),
        behind.end,
        behind.chain,
        batches,
        draw(NUMBER),
        draw(NUMBER),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(NUMBER),
    )


@st.composite
def tails(draw: st.DrawFn) -> Tail:
    behind = Position(draw(st.integers(0, 2**40)), 0, draw(NUMBER))
    batches = chained(draw(PAYLOADS), behind, draw(NUMBER))
    return Tail(draw(NUMBER), behind.end, batches, draw(st.booleans()))


PLAIN = [Prepare, Promise, FetchBatches, Mismatch, Stale, Resign]
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    appends(),
    tails(),
    st.builds(Appended, NUMBER, NUMBER, NUMBER, NUMBER, st.sampled_from(DiskPressure), NUMBER),
    *(st.builds(kind, **dict.fromkeys(kind.__struct_fields__, NUMBER)) for kind in PLAIN),
)
ENVELOPES = st.builds(Envelope, NAME, NAME, MESSAGES)

WHOLE = encode_envelope(
    7,
    Envelope(
        "a@1",
        "b@2",
        Append(3, 0, 0, chained([[b"one", b"two"], [b"three"]], LOG_START, 3), 0, 1_000, tell_received=True),
    ),
)


def with_crc(body: bytes) -> bytes:
    """Return a message with this body and a CRC that holds."""
    return struct.pack("<BI", REPLICATION_VERSION, crc32c(body)) + body


def test_every_kind_of_message_is_tried() -> None:
    assert {Append, Appended, Tail, *PLAIN} == set(get_args(Message))


@given(st.integers(0, 2**63), ENVELOPES)
def test_message_is_the_same_at_the_other_end(journal_id: int, envelope: Envelope) -> None:
    assert decode_envelope(encode_envelope(journal_id, envelope)) == (journal_id, envelope)


def test_message_is_read_from_the_middle_of_what_was_received() -> None:
    assert decode_envelope(memoryview(b"before" + WHOLE)[6:]) == decode_envelope(WHOLE)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([6, 3, 20, 10, 1_000], Appended(3, 20, 10, 1_000, DiskPressure.PLENTY)),
        ([5, 3, 20, 7, [], 10, 1_000, True], Append(3, 20, 7, [], 10, 1_000, tell_received=True)),
    ],
)
def test_message_from_before_room_was_spoken_of_is_read(fields: list[object], message: Message) -> None:
    body = msgspec.msgpack.encode([7, "a@1", "b@2", fields])

    read = decode_envelope(struct.pack("<BI", 1, crc32c(body)) + body)

    assert read == (7, Envelope("a@1", "b@2", message))


@pytest.mark.parametrize("at", range(len(WHOLE)))
def test_message_that_is_damaged_anywhere_is_refused(at: int) -> None:
    for flipped in (0x01, 0x80, 0xFF):
        with pytest.raises(ReplicationMessageUnreadable):
            decode_envelope(WHOLE[:at] + bytes([WHOLE[at] ^ flipped]) + WHOLE[at + 1 :])


@given(st.data(), ENVELOPES)
def test_message_of_any_kind_that_is_damaged_is_refused(data: st.DataObject, envelope: Envelope) -> None:
    whole = encode_envelope(7, envelope)
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = data.draw(st.integers(1, 255))

    with pytest.raises(ReplicationMessageUnreadable):
        decode_envelope(whole[:at] + bytes([whole[at] ^ flipped]) + whole[at + 1 :])


@pytest.mark.parametrize("length", range(len(WHOLE)))
def test_message_that_is_cut_short_is_refused(length: int) -> None:
    with pytest.raises(ReplicationMessageUnreadable):
        decode_envelope(WHOLE[:length])


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_bytes_that_are_no_message_are_refused(body: bytes) -> None:
    for data in (body, with_crc(body)):
        with pytest.raises(ReplicationMessageUnreadable):
            decode_envelope(data)


def test_message_of_another_version_is_refused_by_its_number() -> None:
    with pytest.raises(ReplicationMessageUnreadable, match=f"version {REPLICATION_VERSION} are read, not 2"):
        decode_envelope(b"\2" + WHOLE[1:])
    with pytest.raises(ReplicationMessageUnreadable, match="not none"):
        decode_envelope(b"")


@pytest.mark.parametrize("kind", [5, 4])
@pytest.mark.parametrize("harm", range(len(chained([[b"one", b"two"]], LOG_START, 3)[0].data)))
def test_batch_that_was_damaged_before_it_was_sent_is_refused(kind: int, harm: int) -> None:
    """The message's own CRC holds: the damage is on the sender's disk or in its memory."""
    (batch,) = chained([[b"one", b"two"]], LOG_START, 3)
    data = batch.data[:harm] + bytes([batch.data[harm] ^ 1]) + batch.data[harm + 1 :]
    body = [5, 3, 0, 0, [data], 0, 1_000, False] if kind == 5 else [4, 3, 0, [data], False]

    if kind == 4 and 48 <= harm < 56:
        # The chain of a tail's first batch is not known here: whoever takes it compares it with the log.
        _, envelope = decode_envelope(with_crc(msgspec.msgpack.encode([7, "a", "b", body])))
        assert isinstance(envelope.message, Tail)
        assert envelope.message.batches[0].chain != batch.chain
        return
    with pytest.raises(ReplicationMessageUnreadable):
        decode_envelope(with_crc(msgspec.msgpack.encode([7, "a", "b", body])))


def test_batches_are_taken_only_one_behind_the_other_and_as_first_written() -> None:
    first, second, third = chained([[b"one", b"two"], [b"three"], [b"four"]], LOG_START, 3)
    header = decode_header(first.data)
    compacted = rewrite_batch(first.data, header, list(iterate_rows(first.data, header))[:1])
    check_batch(compacted, decode_header(compacted))
    (other,) = chained([[b"other"]], Position(2, 3, 99), 3)

    for start, datas in (
        (0, [first.data, third.data]),
        (0, [second.data]),
        (2, [first.data]),
        (0, [first.data + b"more"]),
        (0, [first.data, other.data]),
        (0, [compacted]),
        (0, [b""]),
    ):
        for body in ([5, 3, start, 0, datas, 0, 1_000, False], [4, 3, start, datas, False]):
            with pytest.raises(ReplicationMessageUnreadable):
                decode_envelope(with_crc(msgspec.msgpack.encode([7, "a", "b", body])))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([2, 3, 2, 20], Promise(3, 2, 20, time_ms=0, wall_ms=0)),
        ([5, 3, 20, 7, [], 10, 1_000, True, False, True], Append(3, 20, 7, [], 10, 1_000, True, time_ms=0)),
        ([6, 3, 20, 10, 1_000, 0], Appended(3, 20, 10, 1_000, wall_ms=0)),
    ],
)
def test_message_that_tells_no_time_is_read_as_one_that_does_not_know_it(
    fields: list[object], message: Message
) -> None:
    """As programs wrote it before clocks were told."""
    read = decode_envelope(with_crc(msgspec.msgpack.encode([7, "a@1", "b@2", fields])))

    assert read == (7, Envelope("a@1", "b@2", message))


def test_append_that_says_nothing_of_the_lease_is_read_as_one_of_a_leader_that_has_it() -> None:
    """As programs wrote it before leaders told."""
    said = [7, "a", "b", [5, 3, 10, 4711, [], 9, 1_000, True]]
    body = msgspec.msgpack.encode(said)

    _, envelope = decode_envelope(struct.pack("<BI", REPLICATION_VERSION, crc32c(body)) + body)

    assert envelope.message == Append(3, 10, 4711, [], 9, 1_000, True, has_lease=True)
