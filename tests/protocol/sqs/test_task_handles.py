"""Handles of message move tasks say task and source; anything else is refused."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.values.errors import InvalidParameterValue
from quaymaster.protocol.sqs.task_handles import parse_task_handle, render_task_handle

TASK = bytes(range(16))


@given(st.binary(min_size=16, max_size=16), st.text(st.characters(codec="utf-8"), max_size=100))
def test_a_handle_says_what_it_was_made_of(task_id: bytes, source_arn: str) -> None:
    assert parse_task_handle(render_task_handle(task_id, source_arn)) == (task_id, source_arn)


@pytest.mark.parametrize(
    "text",
    [
        *("", "wrong", "====", "a" * 1_025),
        base64.b64encode(b"{}").decode(),
        base64.b64encode(b'{"taskId": "no uuid", "sourceArn": "arn"}').decode(),
    ],
)
def test_other_texts_are_no_handles(text: str) -> None:
    with pytest.raises(InvalidParameterValue, match="TaskHandle is invalid"):
        parse_task_handle(text)
