"""What managers and operators ask, as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import DecodeError, ValidationError

from quaymaster.core.cell.cell import BrokerReport, ReplicaSeen
from quaymaster.protocol.rpc.broker_calls import (
    JOURNAL_ID,
    DropRequest,
    TransferRequest,
    decode_answer,
    decode_drop,
    decode_report,
    decode_transfer,
    encode_call,
)
from quaymaster.protocol.rpc.manager_calls import (
    BrokerStateRequest,
    decode_state_request,
    encode_state_request,
)


@given(journal=st.integers(0, 2**63), member=st.text(max_size=80), epoch=st.integers(0, 2**62))
def test_requests_come_out_as_they_went_in(journal: int, member: str, epoch: int) -> None:
    transfer, drop = TransferRequest(journal, member), DropRequest(journal, member, epoch)

    assert decode_transfer(encode_call(transfer)) == transfer
    assert decode_drop(encode_call(drop)) == drop
    assert JOURNAL_ID.unpack(JOURNAL_ID.pack(journal)) == (journal,)


def test_reports_and_answers_come_out_as_they_went_in() -> None:
    seen = ReplicaSeen("b@1", "leading", 3, 3, 3, 90, True, lag={"c@2": 4})
    report = BrokerReport({7: seen}, disk_free_bytes=5, is_disk_low=True)

    assert decode_report(encode_call(report)) == report
    assert decode_answer(encode_call(True)) is True


def test_a_broker_has_one_of_the_states_there_are() -> None:
    request = BrokerStateRequest("b1", "draining")

    assert decode_state_request(encode_state_request(request)) == request
    with pytest.raises(ValidationError):
        decode_state_request(encode_call({"broker": "b1", "state": "sleepy"}))
    with pytest.raises((DecodeError, ValidationError)):
        decode_state_request(b"\xc1")
