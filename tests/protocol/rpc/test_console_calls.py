"""What a server asks its console is read as it was written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.values.unreadable import UNREADABLE
from quaymaster.protocol.rpc.console_calls import (
    QueueMetricsText,
    decode_queue_metrics,
    encode_queue_metrics,
)


@given(st.integers(100, 599), st.binary(max_size=100))
def test_metrics_of_queues_are_read_as_they_were_written(status: int, text: bytes) -> None:
    answer = QueueMetricsText(status, text)

    assert decode_queue_metrics(encode_queue_metrics(answer)) == answer


@pytest.mark.parametrize("garbage", [b"", b"\xc1", encode_queue_metrics({"status": "200", "text": b""})])
def test_garbage_is_not_read(garbage: bytes) -> None:
    with pytest.raises(UNREADABLE):
        decode_queue_metrics(garbage)
