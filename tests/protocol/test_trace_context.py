"""Which trace a request belongs to, read from what others send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.protocol.trace_context import TraceContext, parse_amazon_trace, parse_traceparent

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
SEEN = TraceContext(int(TRACE, 16), int(SPAN, 16), True)


@pytest.mark.parametrize(
    ("text", "context"),
    [
        (f"00-{TRACE}-{SPAN}-01", SEEN),
        (f"00-{TRACE}-{SPAN}-00", SEEN._replace(is_sampled=False)),
        (f"cc-{TRACE}-{SPAN}-01-what-will-be-added", SEEN),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        ("", None),
    ],
)
def test_traceparent_is_read_as_its_standard_says(text: str, context: TraceContext | None) -> None:
    assert parse_traceparent(text) == context


@pytest.mark.parametrize(
    ("text", "context"),
    [
        (f"Root=1-{TRACE[:8]}-{TRACE[8:]};Parent={SPAN};Sampled=1", SEEN),
        (f"Sampled=0; Parent={SPAN}; Root=1-{TRACE[:8]}-{TRACE[8:]}", SEEN._replace(is_sampled=False)),
        (f"Root=1-{TRACE[:8]}-{TRACE[8:]};Parent={SPAN};Sampled=?", SEEN._replace(is_sampled=None)),
        (f"Root=1-{TRACE[:8]}-{TRACE[8:]};Parent={SPAN};Lineage=a:1", SEEN._replace(is_sampled=None)),
        (f"Root=1-{TRACE[:8]}-{TRACE[8:]}", None),
        (f"Root=2-{TRACE[:8]}-{TRACE[8:]};Parent={SPAN}", None),
        (f"Parent={SPAN};Sampled=1", None),
        ("garbage", None),
    ],
)
def test_header_of_aws_is_read_as_its_guide_says(text: str, context: TraceContext | None) -> None:
    assert parse_amazon_trace(text) == context


@given(st.text())
def test_any_text_is_read_or_names_no_trace(text: str) -> None:
    parse_traceparent(text)
    parse_amazon_trace(text)
