"""Errors between processes: a `CallerError` or `NotNow` travels by class name and fields, and is raised as it was.

    MessagePack array: class name · message · map of the other fields

A class the reader does not know becomes `InternalFailure` that names it; so does, on the sending side, whatever is
neither of the two kinds (a bug: its text stays in the log of the process it happened in).

To give an error a new field: give the class a default for it (`leader_hint: str | None = None` in the class body),
because the error may come from a process that does not send it yet. Classes are never renamed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from quaymaster.core.values import errors
from quaymaster.core.values.errors import CallerError, InternalFailure, NotNow
from quaymaster.core.values.unreadable import UNREADABLE

ERROR_CLASSES: dict[str, type[CallerError] | type[NotNow]] = {
    name: cls
    for name, cls in vars(errors).items()
    if isinstance(cls, type) and issubclass(cls, CallerError | NotNow)
}
"""Every error there is, by its name."""


class PackedError(msgspec.Struct, array_like=True, gc=False):
    """An error as it travels."""

    name: str
    message: str
    fields: dict[str, Any] = {}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(PackedError)


def travels(error: CallerError | NotNow) -> bool:
    """Tell whether other processes know an error's class."""
    return ERROR_CLASSES.get(type(error).__name__) is type(error)


def pack_error(error: Exception) -> PackedError:
    """Return the error ready for any encoder."""
    if not isinstance(error, CallerError | NotNow) or not travels(error):
        return PackedError(InternalFailure.__name__, InternalFailure.message)
    fields = {field: value for field, value in vars(error).items() if field != "message"}
    return PackedError(type(error).__name__, error.message, fields)


def unpack_error(packed: PackedError) -> CallerError | NotNow:
    """Return the error again: of the same class, with the same fields."""
    cls = ERROR_CLASSES.get(packed.name)
    if cls is None:
        return InternalFailure(f"{packed.name}: {packed.message}")
    # Not by the constructor: each builds its message from other arguments.
    error: Any = cls.__new__(cls, packed.message)
    error.__dict__.update(packed.fields)
    error.message = packed.message
    return error  # type: ignore[no-any-return]


def encode_error(error: Exception) -> bytes:
    """Return the bytes that `decode_error` reads."""
    return _encoder.encode(pack_error(error))


def decode_error(data: bytes | memoryview) -> CallerError | NotNow:
    """Return the error in `data`; InternalFailure when there is none in it."""
    try:
        return unpack_error(_decoder.decode(data))
    except UNREADABLE as failure:
        return InternalFailure(f"An error came that cannot be read: {failure}")
