"""Commands and outcomes as bytes, for those that go to a broker in another process.

    version u8 (1) · MessagePack array: tag of the struct · its fields in order

Inside an outcome an error is what `protocol/rpc/error_codec` packs.

To change a command or outcome: append a field with a default, which older peers ignore and are taken to have sent;
a new one gets a tag that was never used. Fields are never reordered, removed or given another meaning, because the
front ends and brokers of a cell are upgraded one by one. What cannot be done so takes a new version, by the recipe in
`core/values/formats`; an outcome goes in the version of its command.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from quaymaster.core.values.commands.unions import Command, Outcome
from quaymaster.core.values.errors import InternalFailure
from quaymaster.core.values.formats import FORMAT_MAX, Versions, version_in
from quaymaster.core.values.unreadable import UNREADABLE
from quaymaster.protocol.rpc.error_codec import PackedError, pack_error, unpack_error

COMMAND_VERSIONS: Final[Versions] = {1: 1}
_VERSIONS_READ = frozenset(COMMAND_VERSIONS.values())
COMMAND_VERSION: Final = version_in(COMMAND_VERSIONS, FORMAT_MAX)
_VERSION_BYTES = {version: bytes([version]) for version in _VERSIONS_READ}


def _pack(value: Any) -> Any:
    if isinstance(value, Exception):
        return pack_error(value)
    raise NotImplementedError(f"{type(value).__name__} is no part of an outcome")


def _unpack(kind: type, value: Any) -> Any:
    assert kind is Exception, "outcomes hold nothing else that MessagePack has not"
    return unpack_error(msgspec.convert(value, PackedError))


_encoder = msgspec.msgpack.Encoder(enc_hook=_pack)
_command_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_outcome_decoder: msgspec.msgpack.Decoder[Outcome] = msgspec.msgpack.Decoder(Outcome, dec_hook=_unpack)


def encode_command(command: Command, *, version: int = COMMAND_VERSION) -> bytes:
    """Return the bytes that `decode_command` reads."""
    return _VERSION_BYTES[version] + _encoder.encode(command)


def decode_command(data: bytes | memoryview) -> Command:
    """Return the command in `data`; InternalFailure when this program cannot read it."""
    command: Command = _decode(_command_decoder, data, "command")
    return command


def encode_outcome(outcome: Outcome, *, version: int = COMMAND_VERSION) -> bytes:
    """Return the bytes that `decode_outcome` reads."""
    return _VERSION_BYTES[version] + _encoder.encode(outcome)


def decode_outcome(data: bytes | memoryview) -> Outcome:
    """Return the outcome in `data`; InternalFailure when this program cannot read it."""
    outcome: Outcome = _decode(_outcome_decoder, data, "outcome")
    return outcome


def _decode(decoder: msgspec.msgpack.Decoder[Any], data: bytes | memoryview, what: str) -> Any:
    if not data or data[0] not in _VERSIONS_READ:
        version = data[0] if data else "none"
        raise InternalFailure(f"This process reads {what}s up to version {COMMAND_VERSION}, not {version}.")
    try:
        return decoder.decode(memoryview(data)[1:])
    except UNREADABLE as error:
        raise InternalFailure(f"This process cannot read a {what}: {error}.") from error
