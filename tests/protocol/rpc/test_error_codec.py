"""Errors between processes are raised as they were, or as InternalFailure."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.values import errors
from quaymaster.core.values.errors import InternalFailure, NotLeader
from quaymaster.protocol.rpc.error_codec import ERROR_CLASSES, decode_error, encode_error

EXAMPLES = [
    errors.QueueDoesNotExist(),
    errors.QueueNameExists("DelaySeconds"),
    errors.PurgeQueueInProgress("orders", 60),
    errors.OverLimit.in_flight(120_000),
    errors.ReceiptHandleIsInvalid("{receipt_handle}"),
    errors.InvalidParameterValue.of("DelaySeconds", 901, "It must be 0 to 900."),
    NotLeader("10.0.0.2:9400"),
    NotLeader(),
    errors.Timeout(),
    errors.DiskFull("No room for 3 bytes."),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=repr)
def test_an_error_is_of_the_same_class_with_the_same_fields(error: Exception) -> None:
    decoded = decode_error(encode_error(error))

    assert type(decoded) is type(error)
    assert vars(decoded) == {"message": str(error), **vars(error)}
    assert decoded.args == error.args
    assert str(decoded) == str(error)


@given(st.sampled_from(sorted(ERROR_CLASSES)), st.text())
def test_every_class_travels(name: str, message: str) -> None:
    error = ERROR_CLASSES[name].__new__(ERROR_CLASSES[name], message)
    error.message = message

    decoded = decode_error(encode_error(error))

    assert type(decoded) is type(error)
    assert decoded.message == message


def test_a_class_that_the_reader_does_not_know_becomes_an_internal_failure_that_names_it() -> None:
    data = msgspec.msgpack.encode(["MovedToMars", "Too far.", {}])

    decoded = decode_error(data)

    assert type(decoded) is InternalFailure
    assert decoded.message == "MovedToMars: Too far."


def test_fields_of_newer_peers_are_kept_and_more_members_are_ignored() -> None:
    decoded = decode_error(
        msgspec.msgpack.encode(["NotLeader", "No.", {"leader_hint": "b2", "epoch": 7}, "new"])
    )

    assert vars(decoded) == {"message": "No.", "leader_hint": "b2", "epoch": 7}


def test_a_field_that_an_older_peer_does_not_send_has_its_default() -> None:
    decoded = decode_error(msgspec.msgpack.encode(["NotLeader", "No."]))

    assert isinstance(decoded, NotLeader)
    assert decoded.leader_hint is None


@pytest.mark.parametrize("error", [ValueError("secret"), type("NotLeader", (NotLeader,), {})()], ids=repr)
def test_what_is_no_error_of_ours_becomes_an_internal_failure_without_its_text(error: Exception) -> None:
    decoded = decode_error(encode_error(error))

    assert type(decoded) is InternalFailure
    assert "secret" not in decoded.message


@given(st.binary(max_size=60))
def test_bytes_that_hold_no_error_become_an_internal_failure(data: bytes) -> None:
    assert isinstance(decode_error(data), errors.CallerError | errors.NotNow)
