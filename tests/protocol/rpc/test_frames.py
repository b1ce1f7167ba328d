"""Frames: however their bytes are cut, they are the same; and what is no frame is refused, with the reason."""

from __future__ import annotations

import struct
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.protocol.rpc.frames import (
    BODY_COPIED_BYTES_MAX,
    GOODBYE,
    HEADER_BYTES_MAX,
    HELLO,
    HELLO_BYTES_MAX,
    PONG,
    REPLY,
    REQUEST,
    CallHeader,
    Frame,
    FrameReader,
    FrameRefused,
    Goodbye,
    Hello,
    agree_on_version,
    parse_call_header,
    parse_goodbye,
    parse_hello,
    render_call_header,
    render_frame,
    render_goodbye,
    render_hello,
)

BROKER = Hello(cell="eu1", role="broker", node="b1")

some_frames = st.lists(
    st.tuples(
        st.integers(GOODBYE, PONG),
        st.integers(0, 2**64 - 1),
        st.binary(max_size=60),
        st.one_of(
            st.binary(max_size=300),
            st.integers(0, 40_000).map(lambda size: bytes(i & 255 for i in range(size))),
        ),
    ),
    max_size=6,
)


def open_reader(frame_bytes_max: int = 100_000) -> FrameReader:
    reader = FrameReader()
    reader.version = 1
    reader.frame_bytes_max = frame_bytes_max
    return reader


def stream_of(sent: list[Frame], version: int = 1) -> bytes:
    return b"".join(piece for frame in sent for piece in render_frame(version, *frame))


@given(some_frames, st.data())
def test_frames_are_the_same_however_their_bytes_are_cut(sent: list[Frame], data: st.DataObject) -> None:
    stream = stream_of(sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reader = open_reader()

    received: list[Frame] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += reader.feed(stream[start:end])

    assert received == sent
    assert reader.refusal is None
    assert not reader.is_torn
    assert all(type(part) is bytes for frame in received for part in frame[2:])


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_no_bytes_make_the_reader_fail_or_keep_much(pieces: list[bytes]) -> None:
    reader = open_reader(frame_bytes_max=500)

    for piece in pieces:
        reader.feed(piece)

    assert reader.refusal is not None or len(reader._unread) < 16 + HEADER_BYTES_MAX
    assert sum(map(len, reader._pieces)) <= 500


def test_a_body_that_comes_byte_by_byte_is_kept_in_few_pieces() -> None:
    sent: list[Frame] = [(REPLY, 1, b"", bytes(50_000)), (REPLY, 2, b"", b"")]
    reader = open_reader()

    received: list[Frame] = []
    most = 0
    for byte in stream_of(sent):
        received += reader.feed(bytes((byte,)))
        most = max(most, len(reader._pieces))

    assert received == sent
    assert most <= 2


def test_what_is_kept_of_a_frame_is_known_until_it_is_whole() -> None:
    reader = FrameReader()
    whole = b"".join(render_frame(0, REQUEST, 1, b"", bytes(5_000)))

    kept = []
    for start in range(0, len(whole), 1_000):
        reader.feed(whole[start : start + 1_000])
        kept.append(reader.kept_bytes)

    first = 1_000 - (len(whole) - 5_000)
    assert kept == [first, first + 1_000, first + 2_000, first + 3_000, first + 4_000, 0]


def test_a_large_body_is_not_copied_to_be_sent() -> None:
    body = bytes(BODY_COPIED_BYTES_MAX + 1)

    assert render_frame(1, REPLY, 7, b"", body)[1] is body
    assert len(render_frame(1, REPLY, 7, b"", body[:-1])) == 1


def test_a_stream_that_ends_inside_a_frame_is_torn() -> None:
    stream = stream_of([(REPLY, 1, b"h", b"body")])

    for cut in range(1, len(stream)):
        reader = open_reader()
        assert reader.feed(stream[:cut]) == []
        assert reader.is_torn, cut


def test_reading_stops_behind_a_hello_until_the_version_is_known() -> None:
    reader = FrameReader()
    stream = render_hello(BROKER) + stream_of([(REPLY, 1, b"", b"x")])

    first = reader.feed(stream)
    reader.version, reader.frame_bytes_max = 1, 1000
    rest = reader.feed(b"")

    assert [frame[0] for frame in first] == [HELLO]
    assert parse_hello(first[0][2]) == BROKER
    assert rest == [(REPLY, 1, b"", b"x")]


def test_a_goodbye_is_understood_whatever_version_is_spoken() -> None:
    reader = open_reader()
    goodbye = Goodbye("draining", "shutting down")

    (frame,) = reader.feed(render_goodbye(goodbye))

    assert frame[0] == GOODBYE
    assert parse_goodbye(frame[2]) == goodbye


def test_a_long_reason_is_cut() -> None:
    (frame,) = FrameReader().feed(render_goodbye(Goodbye("refused", "ü" * 100_000)))

    assert set(parse_goodbye(frame[2]).reason) == {"ü"}


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [
        ((12, 1, 0, 0, 0), "there is no frame of kind 0"),
        ((12, 1, 10, 0, 0), "there is no frame of kind 10"),
        ((1001, 1, REPLY, 0, 0), "a frame of 1001 bytes is over the 1000 that it may have"),
        ((0xFFFFFFFF, 1, REPLY, 0, 0), "a frame of 4294967295 bytes is over the 1000 that it may have"),
        ((11, 1, REPLY, 0, 0), "a header of 0 bytes does not fit a frame of 11"),
        ((0, 1, REPLY, 0, 0), "a header of 0 bytes does not fit a frame of 0"),
        ((20, 1, REPLY, 9, 0), "a header of 9 bytes does not fit a frame of 20"),
        ((12, 2, REPLY, 0, 0), "a frame of version 2 came where version 1 is spoken"),
        ((12, 0, REPLY, 0, 0), "a frame of version 0 came where version 1 is spoken"),
        ((13, 0, HELLO, 0, 0), "a hello with a body"),
    ],
)
def test_what_is_no_frame_is_refused_with_the_reason(prefix: tuple[int, ...], reason: str) -> None:
    reader = open_reader(frame_bytes_max=1000)
    good = stream_of([(REPLY, 1, b"", b"x")])

    received = reader.feed(good + struct.pack("<IBBHQ", *prefix) + good)

    assert received == [(REPLY, 1, b"", b"x")], "what came before is handed over"
    assert reader.refusal == reason
    assert reader.feed(good) == [], "what comes behind is not"


def test_a_header_over_its_bound_is_refused() -> None:
    reader = open_reader()

    reader.feed(struct.pack("<IBBHQ", 12 + HEADER_BYTES_MAX + 1, 1, REQUEST, HEADER_BYTES_MAX + 1, 0))

    assert reader.refusal is not None


def test_a_peer_that_has_not_said_who_it_is_cannot_send_much() -> None:
    reader = FrameReader()

    reader.feed(struct.pack("<IBBHQ", HELLO_BYTES_MAX + 1, 0, HELLO, 0, 0))

    assert reader.refusal is not None


@pytest.mark.parametrize(
    ("ours", "theirs", "agreed"),
    [
        ((1, 1), (1, 1), 1),
        ((1, 3), (2, 5), 3),
        ((2, 5), (1, 3), 3),
        ((1, 2), (3, 4), None),
        ((3, 4), (1, 2), None),
    ],
)
def test_the_highest_version_that_both_speak_is_spoken(
    ours: tuple[int, int], theirs: tuple[int, int], agreed: int | None
) -> None:
    def hello(versions: tuple[int, int]) -> Hello:
        return Hello("eu1", "broker", "b1", *versions)

    assert agree_on_version(hello(ours), hello(theirs)) == agreed


@given(st.text(max_size=50), st.integers(0, 2**40), st.text(max_size=50))
def test_call_headers_are_read_as_they_were_written(method: str, deadline_ms: int, trace: str) -> None:
    parsed = parse_call_header(render_call_header(method, deadline_ms, trace))

    assert parsed == CallHeader(method, deadline_ms, trace)


def test_headers_of_newer_peers_may_have_more_fields_and_those_of_older_fewer() -> None:
    encode = msgspec.msgpack.encode

    assert parse_call_header(encode(["send", 5, "t", "new"])) == CallHeader("send", 5, "t")
    assert parse_call_header(encode(["send"])) == CallHeader("send")
    assert parse_hello(encode({"cell": "c", "role": "r", "node": "n", "zone": "z"})) == Hello("c", "r", "n")
    assert parse_goodbye(encode({"code": "moved", "to": "x"})) == Goodbye("moved")


@given(st.binary(max_size=40))
def test_bytes_are_a_header_or_refused(header: bytes) -> None:
    for parse in (parse_hello, parse_goodbye, parse_call_header):
        with suppress(FrameRefused):
            assert parse(header) is not None


@pytest.mark.parametrize(
    "header",
    [
        b"\x01",
        b"\x81\xa4cell\xa2\x00\x80",
        b"\x91\xa2\x00\x80",
        b"\x81\xa6reason\xa1\xff",
        b"\x82\xa1x" + b"\x91" * 5_000 + b"\xc0",
    ],
    ids=[
        "no header",
        "hello that is no UTF-8",
        "method that is none",
        "reason that is none",
        "deeply nested",
    ],
)
def test_headers_that_are_none_are_refused(header: bytes) -> None:
    for parse in (parse_hello, parse_goodbye, parse_call_header):
        with pytest.raises(FrameRefused):
            parse(header)


def test_an_identity_is_shown_as_a_path() -> None:
    assert str(BROKER) == "eu1/broker/b1"
