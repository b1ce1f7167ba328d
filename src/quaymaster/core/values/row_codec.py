"""Stored rows of one kind: a version byte, and a MessagePack array of fields.

    ┌─────────┬──────────────────────────┐
    │ version │ fields, in their order   │
    └─────────┴──────────────────────────┘

To change a kind of row: append fields with defaults. What an older program would misread gets another version, and the
old one is read as long as rows of it can be there.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import msgspec

from quaymaster.core.values.formats import UnknownFormat
from quaymaster.core.values.unreadable import UNREADABLE

Row = TypeVar("Row", bound=msgspec.Struct)

_encode: Final = msgspec.msgpack.Encoder().encode


def encode_row(row: msgspec.Struct, version: int) -> bytes:
    """Return the stored bytes of a row of any kind."""
    return bytes((version,)) + _encode(row)


class RowCodec(Generic[Row]):
    """Writes and reads rows of a kind. `what` names one in errors, which never tell of its content."""

    __slots__ = ("_decode", "_error", "_version", "_what")

    def __init__(
        self, kind: type[Row], what: str, *, version: int = 1, error: type[Exception] = UnknownFormat
    ) -> None:
        """`error` is raised for bytes that this program cannot read."""
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._what = what
        self._version = version
        self._error = error

    def encode(self, row: Row) -> bytes:
        """Return the stored bytes of a row."""
        return encode_row(row, self._version)

    def decode(self, data: bytes | memoryview) -> Row:
        """Read what `encode` wrote; `error` says what is wrong."""
        if not data or data[0] != self._version:
            found = f"version {data[0]}" if data else "no version"
            raise self._error(
                f"{self._what} has {found}; this program reads version {self._version}. Start the version of "
                "Quaymaster that wrote it, unless it is damaged"
            )
        try:
            return self._decode(memoryview(data)[1:])
        except UNREADABLE:
            # The parser's message could quote the content.
            raise self._error(f"{self._what} is damaged") from None
