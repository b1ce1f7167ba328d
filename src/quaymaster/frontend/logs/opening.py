"""What a front end and its opening workers tell each other: stored messages there, columns back.

    front end ── Piece: messages, and the keys that they need ──▶ worker
              ◀── the columns, or nothing: one of them was moved or is damaged ──

Each goes behind its length (4 bytes, little-endian) through a pair of connected sockets; a frame of no length is a
worker's "ready" when it is the first, and its "nothing" later. Both sides are the same version of the program, so there
is no other version of these bytes. The keys are those of messages, never data keys.
"""

from __future__ import annotations

import struct
import time
from typing import Final

import msgspec

from quaymaster.core.values.messages import key_parts_of
from quaymaster.messaging.encryption import MessageCipher, MessageOpener
from quaymaster.protocol.logs.log_columns import Block
from quaymaster.protocol.logs.log_rows import BlockBuilder, Rows

LENGTH: Final = struct.Struct("<I")
NOTHING: Final = LENGTH.pack(0)

KEYS_MAX: Final = 16
"""A piece whose messages need more keys is opened by the front end itself: to derive each costs some microseconds."""

OPENED_AT_ONCE: Final = 256
"""So many messages go into columns together: with all that is made of them they fit into a processor's second cache."""


class Piece(msgspec.Struct, array_like=True, gc=False):
    """Messages of one partition, one offset after another from `first` on, and the columns that are wanted of them."""

    queue: str
    partition: int
    first: int
    sent_ms: list[int]
    messages: list[bytes]
    names: list[str]
    keys: list[tuple[bytes, bytes]]

    def __repr__(self) -> str:  # no keys
        return f"Piece({self.queue!r}, {self.partition}, {self.first}, {len(self.messages)} messages)"


class Opened(msgspec.Struct, array_like=True, gc=False):
    """A block as it comes back: its buffers are views of the frame.

    `cpu_s`: the processor time that it took; `done_s`: when it was there, on `time.monotonic()`'s clock, which is one
    for all processes.
    """

    rows: int
    columns: dict[str, list[memoryview]]
    cpu_s: float
    done_s: float

    @property
    def block(self) -> Block:
        """The columns."""
        return Block(self.rows, {name: list(buffers) for name, buffers in self.columns.items()})


_encoder = msgspec.msgpack.Encoder()
_piece_decoder = msgspec.msgpack.Decoder(Piece)
_opened_decoder = msgspec.msgpack.Decoder(Opened)


def keys_for(cipher: MessageCipher, messages: list[bytes]) -> list[tuple[bytes, bytes]] | None:
    """Return the keys that open messages; None when a worker could not open all of them.

    Raises what the cipher's `data_key` does for one that is not known yet.
    """
    parts = key_parts_of(messages)
    if parts is None or len(parts) > KEYS_MAX:
        return None
    try:
        return [(part, cipher.message_key(part)) for part in parts]
    except KeyError:
        return None


def frame_of(piece: Piece) -> bytearray:
    """Return a piece as it goes to a worker."""
    return _framed(piece)


def reply_to(data: bytearray) -> bytes | bytearray:
    """Return the frame with which a worker answers a piece."""
    began_s = time.process_time()
    block = _open(_piece_decoder.decode(data))
    if block is None:
        return NOTHING
    cpu_s = time.process_time() - began_s
    return _framed(Opened(block.rows, block.columns, cpu_s, time.monotonic()))  # type: ignore[arg-type]


def opened_of(data: bytearray) -> Opened:
    """Return what a worker answered with."""
    return _opened_decoder.decode(data)


def _open(piece: Piece) -> Block | None:
    opener = MessageOpener(piece.keys)
    builder = BlockBuilder(piece.names)
    for at in range(0, len(piece.messages), OPENED_AT_ONCE):
        messages = piece.messages[at : at + OPENED_AT_ONCE]
        opened = opener.open_plain(messages)
        if opened is None:
            return None
        message_ids, contents = opened
        first, count = piece.first + at, len(messages)
        builder.append(
            Rows(
                piece.queue,
                piece.partition,
                list(range(first, first + count)),
                piece.sent_ms[at : at + count],
                list(message_ids),
                [None] * count,
                contents,
            )
        )
    return builder.block()


def _framed(what: Piece | Opened) -> bytearray:
    frame = bytearray(LENGTH.size)
    _encoder.encode_into(what, frame, LENGTH.size)
    LENGTH.pack_into(frame, 0, len(frame) - LENGTH.size)
    return frame
