"""The bytes of messages, move wrappers and payload prefixes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.values.messages import (
    HAS_DEDUP,
    HAS_GROUP,
    HAS_RETRY,
    HEAD_BYTES,
    MOVED_VERSION,
    MessageContent,
    UnknownMessageFormat,
    associated_data,
    associated_start,
    data_key_of,
    decode_content,
    decode_contents,
    decode_message,
    decode_moved,
    encode_content,
    encode_message_head,
    encode_moved,
    hash_dedup,
    hash_group,
    hash_retry,
    join_payload,
    key_parts_of,
    message_id_of,
    prefix_bytes,
    retry_hash_prefix,
    split_key_part,
    split_payload,
    split_plain_heads,
)

ID_A = bytes(range(16))
ID_B = bytes(range(16, 32))
ID_C = bytes(range(32, 48))
START = b"startid1"
CIPHERTEXT = b"c" * 40

u64 = st.integers(0, 2**64 - 1)
ids = st.binary(min_size=16, max_size=16)


def message(message_id: bytes = ID_A, origin_id: bytes | None = None) -> bytes:
    return encode_message_head(message_id, 5, START, 7, 9, origin_id) + CIPHERTEXT


def retry_hash(
    account_id: str, queue_id: int, invocation_id: str, entry_id: str, body: bytes, attributes: bytes | None
) -> bytes:
    return hash_retry(retry_hash_prefix(account_id, queue_id, invocation_id), entry_id, body, attributes)


@given(ids, u64, st.binary(min_size=8, max_size=8), u64, u64, st.none() | ids, st.binary(min_size=16))
def test_message_head_is_read_as_it_was_written(
    message_id: bytes,
    data_key_id: int,
    start_id: bytes,
    queue_id: int,
    counter: int,
    origin_id: bytes | None,
    ciphertext: bytes,
) -> None:
    data = encode_message_head(message_id, data_key_id, start_id, queue_id, counter, origin_id) + ciphertext

    stored = decode_message(data)

    assert stored.message_id == message_id_of(data) == message_id
    assert (stored.data_key_id, stored.start_id) == (data_key_id, start_id)
    assert (stored.origin_queue_id, stored.nonce_counter) == (queue_id, counter)
    assert stored.origin_message_id == (message_id if origin_id is None else origin_id)
    assert bytes(stored.ciphertext) == ciphertext


def test_bytes_of_format_version_1_stay_readable() -> None:
    data = bytes.fromhex(
        "0100" + ID_A.hex() + "0500000000000000" + START.hex() + "0700000000000000" + "0900000000000000"
    )

    stored = decode_message(data + CIPHERTEXT)

    assert data == message()[:HEAD_BYTES]
    assert (stored.message_id, stored.data_key_id, stored.origin_queue_id, stored.nonce_counter) == (
        ID_A,
        5,
        7,
        9,
    )


@given(st.integers(0, 2**64 - 1), st.booleans(), st.booleans())
def test_data_key_of_a_message_is_found_without_the_rest(
    key_id: int, has_origin: bool, is_moved: bool
) -> None:
    origin = bytes(range(16)) if has_origin else None
    message = encode_message_head(bytes(16), key_id, bytes(8), 5, 1, origin) + bytes(20)
    if is_moved:
        message = encode_moved(5, 0, 9, bytes(16), "arn:aws:sqs:local:1:dead", message)

    assert data_key_of(message) == data_key_of(memoryview(message)) == key_id.to_bytes(8, "little")


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x02" * 60, b"\x01" * 49])
def test_what_is_no_message_names_no_data_key(data: bytes) -> None:
    with pytest.raises(UnknownMessageFormat):
        data_key_of(data)


@pytest.mark.parametrize("cut", [0, 1, 20, HEAD_BYTES, HEAD_BYTES + 15])
def test_message_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(UnknownMessageFormat):
        decode_message(message()[:cut])


def test_message_with_an_origin_id_cut_short_is_refused() -> None:
    with pytest.raises(UnknownMessageFormat):
        decode_message(message(ID_A, ID_B)[: HEAD_BYTES + 20])


def test_message_of_a_newer_version_or_with_unknown_flags_is_refused_by_name() -> None:
    newer = b"\x02" + message()[1:]
    unknown_flags = b"\x01\x80" + message()[2:]

    with pytest.raises(UnknownMessageFormat, match="version 2"):
        decode_message(newer)
    with pytest.raises(UnknownMessageFormat, match="flags 128"):
        decode_message(unknown_flags)


@given(u64, st.integers(0, 2**32 - 1), u64, st.none() | ids, st.none() | st.text(max_size=120))
def test_move_wrapper_is_read_as_it_was_written(
    queue_id: int, partition: int, sequence: int, new_id: bytes | None, arn: str | None
) -> None:
    wrapped = encode_moved(queue_id, partition, sequence, new_id, arn, message())

    moved = decode_moved(wrapped)
    stored = decode_message(wrapped)

    assert (moved.source_queue_id, moved.source_partition, moved.source_sequence) == (
        queue_id,
        partition,
        sequence,
    )
    assert (moved.new_message_id, moved.dead_letter_source_arn) == (new_id, arn)
    assert bytes(moved.message) == message()
    assert stored.message_id == message_id_of(wrapped) == (new_id or ID_A)
    assert stored.origin_message_id == ID_A
    assert (stored.source_queue_id, stored.dead_letter_source_arn) == (queue_id, arn)


def test_moving_a_moved_message_leaves_one_wrapper() -> None:
    once = encode_moved(1, 0, 10, ID_B, "arn:first", message())

    twice = encode_moved(2, 0, 20, ID_C, None, once)

    assert twice == encode_moved(2, 0, 20, ID_C, None, message())


@given(st.none() | ids, st.none() | st.text(max_size=40), st.integers(1, 2**64 - 1))
def test_a_wrapper_says_by_which_number_its_message_came_from_another_journal(
    new_id: bytes | None, arn: str | None, number: int
) -> None:
    wrapped = encode_moved(1, 0, 10, new_id, arn, message(), number)

    moved = decode_moved(wrapped)

    assert (moved.number, moved.new_message_id, moved.dead_letter_source_arn) == (number, new_id, arn)
    assert bytes(moved.message) == message()
    assert decode_moved(encode_moved(2, 0, 20, None, None, wrapped)).number == 0
    for end in range(len(wrapped) - len(message()) + 1):
        with pytest.raises(UnknownMessageFormat):
            decode_moved(wrapped[:end])


def test_message_redriven_under_a_new_id_keeps_that_id_when_it_dies_again() -> None:
    redriven = encode_moved(1, 0, 10, ID_B, None, message())

    dead_again = encode_moved(2, 0, 20, None, "arn:source", redriven)

    stored = decode_message(dead_again)
    assert stored.message_id == ID_B
    assert stored.origin_message_id == ID_A
    assert (stored.source_queue_id, stored.dead_letter_source_arn) == (2, "arn:source")


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_message_or_refused(data: bytes) -> None:
    for parse in (decode_message, decode_moved, message_id_of, decode_content):
        try:
            parse(data)
        except UnknownMessageFormat:
            continue


@given(st.binary(max_size=80))
def test_arbitrary_wrapper_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        decode_message(bytes([MOVED_VERSION]) + data)
    except UnknownMessageFormat:
        return


@given(st.integers(0, 2**64 - 1), st.none() | ids, st.none() | ids, st.binary(min_size=1))
def test_payload_is_split_as_it_was_joined(
    group: int, dedup: bytes | None, retry: bytes | None, body: bytes
) -> None:
    flags, payload = join_payload(group, dedup, retry, body)

    assert bool(flags & HAS_GROUP) == (group != 0)
    assert bool(flags & HAS_DEDUP) == (dedup is not None)
    assert bool(flags & HAS_RETRY) == (retry is not None)
    group_read, dedup_read, retry_read, message_read = split_payload(flags, payload)
    assert (group_read, dedup_read, retry_read, bytes(message_read)) == (group, dedup, retry, body)
    assert prefix_bytes(flags) == len(payload) - len(body)


def test_payload_shorter_than_its_prefix_is_refused() -> None:
    with pytest.raises(UnknownMessageFormat):
        split_payload(HAS_GROUP | HAS_DEDUP, b"x" * 23)


def test_content_is_read_as_it_was_written() -> None:
    content = MessageContent(
        body="hello ø",
        body_md5=b"m" * 16,
        attributes=[("count", "Number.int", "5"), ("raw", "Binary", b"\x00\xff")],
        attributes_md5=b"a" * 16,
        sender_id="AIDAEXAMPLE",
        group_id="g",
        dedup_id="d",
        trace_header="Root=1",
    )

    assert decode_content(encode_content(content)) == content


def test_damaged_content_is_refused_without_quoting_it() -> None:
    good = encode_content(MessageContent("secret words", b"", [], None, "s"))

    with pytest.raises(UnknownMessageFormat) as refused:
        decode_content(good[:-3])

    assert "secret" not in str(refused.value)


def test_content_of_a_newer_version_is_refused() -> None:
    with pytest.raises(UnknownMessageFormat, match="version 9"):
        decode_content(b"\x09")


def test_group_hash_is_never_the_number_for_no_group() -> None:
    assert all(hash_group(str(number)) != 0 for number in range(100))
    assert hash_group("a") != hash_group("b")


def test_dedup_id_in_the_scope_of_groups_does_not_run_into_the_group_id() -> None:
    assert hash_dedup("bc", "a") != hash_dedup("c", "ab")
    assert hash_dedup("a") != hash_dedup("a", "")


def test_copied_invocation_id_with_another_body_is_another_message() -> None:
    first = retry_hash("000000000000", 1, "invocation", "entry", b"1" * 16, None)

    assert first == retry_hash("000000000000", 1, "invocation", "entry", b"1" * 16, None)
    assert first != retry_hash("000000000000", 1, "invocation", "entry", b"2" * 16, None)
    assert first != retry_hash("000000000000", 1, "invocation", "entry", b"1" * 16, b"a" * 16)
    assert first != retry_hash("000000000000", 1, "invocation", "other", b"1" * 16, None)
    assert first != retry_hash("000000000000", 2, "invocation", "entry", b"1" * 16, None)
    assert first != retry_hash("000000000001", 1, "invocation", "entry", b"1" * 16, None)


@given(st.lists(st.tuples(ids, u64, st.binary(min_size=8, max_size=8), u64, u64), max_size=4))
def test_many_heads_are_read_as_each_of_them_is(heads: list[tuple[bytes, int, bytes, int, int]]) -> None:
    messages = [encode_message_head(*head) + CIPHERTEXT for head in heads]

    message_ids, key_parts, counters = split_plain_heads(messages)

    stored = [decode_message(data) for data in messages]
    assert list(message_ids) == [one.message_id for one in stored]
    assert [split_key_part(part) for part in key_parts] == [
        (one.data_key_id, one.start_id, one.origin_queue_id) for one in stored
    ]
    assert [int.from_bytes(counter, "little") for counter in counters] == [
        one.nonce_counter for one in stored
    ]
    assert [data[HEAD_BYTES:] for data in messages] == [one.ciphertext for one in stored]


@pytest.mark.parametrize(
    "other",
    [
        b"",
        message()[: HEAD_BYTES - 1],
        message(ID_A, ID_B),
        encode_moved(1, 0, 2, None, None, message()),
        b"\x02" + message()[1:],
    ],
)
def test_many_heads_are_not_read_where_one_is_not_plain(other: bytes) -> None:
    with pytest.raises(UnknownMessageFormat):
        split_plain_heads([message(), other])


@given(u64, u64, ids)
def test_what_a_message_is_bound_to_ends_with_its_id(key: int, queue: int, message_id: bytes) -> None:
    assert associated_start(key, queue) + message_id == associated_data(key, queue, message_id)


def test_many_contents_are_read_as_each_of_them_is() -> None:
    contents = [
        MessageContent("short", b"m" * 16, [], None, "sender"),
        MessageContent("x" * 5_000, b"m" * 16, [("n", "Binary", b"v")], b"a" * 16, "sender", "g", "d", "t"),
    ]

    assert decode_contents([encode_content(content) for content in contents]) == contents
    assert decode_contents([]) == []


@pytest.mark.parametrize("wrong", [b"", b"\x02\x95", b"\x01\x95", b"\x01\x01"])
def test_many_contents_are_not_read_where_one_is_damaged(wrong: bytes) -> None:
    good = encode_content(MessageContent("body", b"m" * 16, [], None, "sender"))

    with pytest.raises(UnknownMessageFormat):
        decode_contents([good, wrong])


def test_key_parts_of_messages_are_found_once_each_and_not_of_what_was_moved_or_is_none() -> None:
    other = encode_message_head(ID_B, 6, START, 7, 10) + CIPHERTEXT
    parts = key_parts_of([message(), other, message(ID_C)])

    assert parts is not None
    assert sorted(map(split_key_part, parts)) == [(5, START, 7), (6, START, 7)]
    assert key_parts_of([]) == []
    for wrong in (message(ID_A, ID_B), encode_moved(1, 2, 3, None, None, message()), message()[:41], b""):
        assert key_parts_of([message(), wrong]) is None
