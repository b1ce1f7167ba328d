"""Pieces for opening workers, and what they answer: the columns that the front end would have made itself."""

from __future__ import annotations

import os
import time

import pytest

from quaymaster.core.values.errors import NotYetKnown
from quaymaster.core.values.messages import MessageContent, encode_moved
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition
from quaymaster.frontend.logs import opening
from quaymaster.frontend.logs.opening import (
    LENGTH,
    NOTHING,
    OPENED_AT_ONCE,
    Piece,
    frame_of,
    keys_for,
    opened_of,
    reply_to,
)
from quaymaster.messaging.encryption import MessageCipher
from quaymaster.protocol.logs.log_columns import COLUMNS, render_block
from quaymaster.protocol.logs.log_rows import Rows, columns_of

KEYS = {9: b"k" * 32}
LOG = QueueDefinition(7, "000000000000", "log", "active", 1, 0, 0, {}, {}, 9, one_partition())
COUNT = 2 * OPENED_AT_ONCE + 3


def content(number: int) -> MessageContent:
    attributes: list[tuple[str, str, object]] = [("n", "Number", str(number)), ("b", "Binary", b"\x00")]
    group, trace = ("tenant", None) if number % 3 else (None, "Root=1")
    chosen = attributes if number % 7 == 0 else []
    return MessageContent(f"body ö {number}", os.urandom(16), chosen, None, "sender", group, None, trace)


def stored(count: int, cipher: MessageCipher) -> tuple[list[MessageContent], list[bytes], list[bytes]]:
    """Return contents, message ids, and the messages as they are stored."""
    contents = [content(number) for number in range(count)]
    ids = [os.urandom(16) for _ in contents]
    messages = [cipher.encrypt_content(one, LOG, own) for one, own in zip(contents, ids, strict=True)]
    return contents, ids, messages


def answer_to(piece: Piece) -> bytes:
    """Return what a worker answers, without its length."""
    reply = reply_to(frame_of(piece)[LENGTH.size :])
    assert LENGTH.unpack_from(reply) == (len(reply) - LENGTH.size,)
    return bytes(reply[LENGTH.size :])


def test_worker_answers_with_the_columns_of_the_messages() -> None:
    cipher = MessageCipher(KEYS.__getitem__)
    contents, ids, messages = stored(COUNT, cipher)
    times = list(range(1_000, 1_000 + COUNT))
    keys = keys_for(cipher, messages)
    assert keys is not None
    began_s = time.monotonic()

    for names in (list(COLUMNS), ["value"], ["offset", "key"]):
        opened = opened_of(bytearray(answer_to(Piece("log", 3, 41, times, messages, names, keys))))
        rows = Rows("log", 3, list(range(41, 41 + COUNT)), times, ids, [None] * COUNT, contents)
        assert b"".join(render_block(opened.block)) == b"".join(render_block(columns_of(rows, names)))
        assert opened.cpu_s > 0
        assert began_s < opened.done_s <= time.monotonic()


def test_worker_answers_nothing_to_messages_that_it_cannot_all_open() -> None:
    cipher = MessageCipher(KEYS.__getitem__)
    _, _, messages = stored(COUNT, cipher)
    keys = keys_for(cipher, messages)
    assert keys is not None
    damaged = bytearray(messages[-1])
    damaged[-1] ^= 1

    for wrong in (bytes(damaged), encode_moved(7, 0, 4, None, None, messages[-1])):
        piece = Piece("log", 0, 1, [1] * COUNT, [*messages[:-1], wrong], ["value"], keys)
        assert reply_to(frame_of(piece)[LENGTH.size :]) == NOTHING
    assert reply_to(frame_of(Piece("log", 0, 1, [1], messages[:1], ["value"], []))[LENGTH.size :]) == NOTHING


def test_keys_are_given_for_each_start_once_and_never_a_data_key() -> None:
    ciphers = [MessageCipher(KEYS.__getitem__) for _ in range(3)]
    messages = [message for cipher in ciphers for message in stored(4, cipher)[2]]

    keys = keys_for(ciphers[0], messages)

    assert keys is not None
    assert len(keys) == 3
    assert KEYS[9] not in [key for _, key in keys]


def test_messages_that_need_too_many_keys_or_one_that_is_gone_or_were_moved_are_for_no_worker() -> None:
    cipher = MessageCipher(KEYS.__getitem__)
    _, _, messages = stored(2, cipher)
    starts = [MessageCipher(KEYS.__getitem__) for _ in range(opening.KEYS_MAX + 1)]
    many = [message for start in starts for message in stored(1, start)[2]]
    without: dict[int, bytes] = {}

    assert keys_for(cipher, many) is None
    assert keys_for(MessageCipher(without.__getitem__), messages) is None
    assert keys_for(cipher, [*messages, encode_moved(7, 0, 4, None, None, messages[0])]) is None
    assert keys_for(cipher, [*messages, messages[0][:20]]) is None


def test_a_data_key_that_is_being_asked_for_is_waited_for_and_no_reason_to_open_elsewhere() -> None:
    _, _, messages = stored(2, MessageCipher(KEYS.__getitem__))

    def unknown(data_key_id: int) -> bytes:
        raise NotYetKnown(lambda resume: resume(None))

    with pytest.raises(NotYetKnown):
        keys_for(MessageCipher(unknown), messages)


def test_repr_of_a_piece_has_no_keys_and_no_messages() -> None:
    piece = Piece("log", 0, 1, [1], [b"m" * 80], ["value"], [(b"p" * 24, b"k" * 32)])

    assert repr(piece) == "Piece('log', 0, 1, 1 messages)"
