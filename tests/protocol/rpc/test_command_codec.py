"""Commands and outcomes are the same at the other end, also when that is older or newer."""

from __future__ import annotations

from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quaymaster.core.values import errors
from quaymaster.core.values.commands.completions import CompleteOutcome
from quaymaster.core.values.commands.messages import (
    CountMessages,
    Done,
    EntriesOutcome,
    NewMessage,
    Peek,
    Purge,
    QueueCounts,
    Receive,
    ReceiveOutcome,
    Send,
    SendOutcome,
    SendResult,
)
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.core.values.commands.unions import Command, Outcome
from quaymaster.core.values.errors import InternalFailure
from quaymaster.protocol.rpc.command_codec import (
    COMMAND_VERSION,
    decode_command,
    decode_outcome,
    encode_command,
    encode_outcome,
)

COMMANDS: list[type[Any]] = list(get_args(Command))
OUTCOMES: list[type[Any]] = list(get_args(Outcome))

some_errors = st.sampled_from(
    [
        errors.ReceiptHandleIsInvalid("{receipt_handle}"),
        errors.MessageNotInflight(),
        errors.InvalidParameterValue.of("VisibilityTimeout", 43_201, "It must be 0 to 43200."),
        errors.NotLeader("10.0.0.2:9400"),
        errors.DiskFull(),
    ]
)
# Whole numbers of 64 bits, which is what fields hold; MessagePack has no larger ones.
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**64 - 1),
    bytes: st.binary(max_size=40),
    str: st.text(max_size=20),
    bool: st.booleans(),
    type(None): st.none(),
    Exception: some_errors,
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for whatever a field of this type may hold."""
    if kind in PLAIN:
        return PLAIN[kind]
    inner = get_args(kind)
    match get_origin(kind):
        case origin if origin is Literal:
            return st.sampled_from(inner)
        case origin if origin is UnionType:
            return st.one_of(*map(values_of, inner))
        case origin if origin is list:
            return st.lists(values_of(inner[0]), max_size=3)
        case origin if origin is tuple and inner[-1] is ...:
            return st.lists(values_of(inner[0]), max_size=3).map(tuple)
        case origin if origin is tuple:
            return st.tuples(*map(values_of, inner))
        case origin if origin is dict:
            return st.dictionaries(values_of(inner[0]), values_of(inner[1]), max_size=3)
    fields = get_type_hints(kind)
    return st.builds(kind, **{name: values_of(fields[name]) for name in kind.__struct_fields__})


def test_every_command_and_every_outcome_has_a_tag_of_its_own() -> None:
    for kinds in (COMMANDS, OUTCOMES):
        tags = [kind.__struct_config__.tag for kind in kinds]
        assert len(set(tags)) == len(tags), "tags are on the wire: never use one again"


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
@settings(max_examples=25)
@given(data=st.data())
def test_a_command_is_the_same_at_the_other_end(kind: type[Any], data: st.DataObject) -> None:
    command = data.draw(values_of(kind))

    decoded = decode_command(encode_command(command))

    assert type(decoded) is kind
    assert decoded == command


@pytest.mark.parametrize("kind", OUTCOMES, ids=lambda kind: kind.__name__)
@settings(max_examples=25)
@given(data=st.data())
def test_an_outcome_is_the_same_at_the_other_end(kind: type[Any], data: st.DataObject) -> None:
    outcome = data.draw(values_of(kind))

    decoded = decode_outcome(memoryview(encode_outcome(outcome)))

    assert type(decoded) is kind
    if isinstance(outcome, EntriesOutcome | SendOutcome | CompleteOutcome):
        assert isinstance(decoded, EntriesOutcome | SendOutcome | CompleteOutcome)
        assert [_told(error) for error in decoded.errors] == [_told(error) for error in outcome.errors]
    else:
        assert decoded == outcome


def _told(error: Exception | None) -> Any:
    return error and (type(error), error.args, {**vars(error), "message": str(error)})


def test_the_bytes_of_a_command_stay_as_they_are() -> None:
    send = Send(
        7, 0, [NewMessage(b"i" * 16, b"payload", flags=3, delay_ms=0, group=5, dedup=None, retry=b"r")]
    )

    assert encode_command(send) == (
        b"\x01\x95\x01\x07\x00\x91\x99\xc4\x10iiiiiiiiiiiiiiii\xc4\x07payload\x03\x00\x05\xc0\xc4\x01r\xc3\x00\xc2"
    )
    assert (
        encode_command(Receive(7, 0, 10))
        == b"\x01\x9e\x02\x07\x00\x0a\xff\x00\xc0\xff\xc2\xc2\xc2\x00\xc2\xa0"
    )
    assert encode_outcome(SendOutcome([SendResult(1, b"m")])) == b"\x01\x93\x01\x91\x93\x01\xc4\x01m\xc2\x90"
    assert encode_outcome(Done()) == b"\x01\x91\x04"


def test_fields_of_a_newer_peer_are_ignored_and_those_an_older_one_lacks_have_their_defaults() -> None:
    def sent(*fields: Any) -> bytes:
        return bytes([COMMAND_VERSION]) + msgspec.msgpack.encode(fields)

    assert decode_command(sent(5, 7)) == Purge(7)
    assert decode_command(sent(5, 7, -1, "new")) == Purge(7)
    assert decode_command(sent(2, 7, 0, 10)) == Receive(7, 0, 10)
    assert decode_outcome(sent(5, 1, 2, 3)) == QueueCounts(1, 2, 3)
    assert decode_outcome(sent(4, "new")) == Done()


def test_an_error_that_the_reader_does_not_know_does_not_spoil_the_outcome() -> None:
    data = bytes([COMMAND_VERSION]) + msgspec.msgpack.encode([3, [None, ["MovedToMars", "Too far.", {}]]])

    decoded = decode_outcome(data)

    assert isinstance(decoded, EntriesOutcome)
    assert decoded.errors[0] is None
    assert _told(decoded.errors[1]) == _told(InternalFailure("MovedToMars: Too far."))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\x02\x91\x04",
        b"\x01",
        b"\x01\xc1",
        b"\x01\x91\x63",
        b"\x01\x92\x03\x91\x91\x05",
        b"\x01\x92\x03\x91\x05",
    ],
)
def test_what_cannot_be_read_is_a_failure_that_says_so(data: bytes) -> None:
    with pytest.raises(InternalFailure, match="This process "):
        decode_command(data)
    with pytest.raises(InternalFailure, match="This process "):
        decode_outcome(data)


@given(st.binary(max_size=80))
def test_no_bytes_do_more_than_fail(data: bytes) -> None:
    for decode in (decode_command, decode_outcome):
        try:
            decode(bytes([COMMAND_VERSION]) + data)
        except InternalFailure:
            continue


def test_what_is_no_part_of_an_outcome_is_not_encoded() -> None:
    with pytest.raises(NotImplementedError, match="complex"):
        encode_outcome(ReceiveOutcome(1, [1j]))  # type: ignore[list-item]


def test_empty_ones_too() -> None:
    for command in (Send(1, 0, []), CountMessages(1), Peek(1, 0, 1, 10)):
        assert decode_command(encode_command(command)) == command
    assert SetQueue in COMMANDS
