"""Which trace a request belongs to, as its headers say: `traceparent`, or AWS's `X-Amzn-Trace-Id`.

    traceparent       00-<trace, 32 hex digits>-<span, 16>-<flags, 2>                     bit 0 of the flags: sampled
    X-Amzn-Trace-Id   Root=1-<8 hex digits>-<24>;Parent=<16>;Sampled=<0, 1 or ?>;…        in any order

Sources: W3C Trace Context, level 1; AWS X-Ray Developer Guide, "Tracing header". What does not look like either belongs
to no trace: a header is no reason to refuse a request.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_ROOT: Final = re.compile(r"1-([0-9a-f]{8})-([0-9a-f]{24})")
_SPAN: Final = re.compile(r"[0-9a-f]{16}")
_IS_SAMPLED: Final = 1
HEADER_BYTES_MAX: Final = 1_024


class TraceContext(NamedTuple):
    """A span of another program: 128 and 64 bits, neither 0, and whether it is recorded; None: that is not said."""

    trace_id: int
    span_id: int
    is_sampled: bool | None


def parse_traceparent(text: str) -> TraceContext | None:
    """Return what a `traceparent` header says; None where it cannot be read, as by a version of the future."""
    found = _TRACEPARENT.fullmatch(text[:HEADER_BYTES_MAX])
    if found is None:
        return None
    version, trace, span, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest is not None):
        return None
    return _context(trace, span, bool(int(flags, 16) & _IS_SAMPLED))


def parse_amazon_trace(text: str) -> TraceContext | None:
    """Return what an `X-Amzn-Trace-Id` header, or a message's AWSTraceHeader, says; None where it names no span."""
    fields: dict[str, str] = {}
    for part in text[:HEADER_BYTES_MAX].split(";"):
        name, _, value = part.strip().partition("=")
        fields.setdefault(name.lower(), value.lower())
    root = _ROOT.fullmatch(fields.get("root", ""))
    span = _SPAN.fullmatch(fields.get("parent", ""))
    if root is None or span is None:
        return None
    sampled = {"0": False, "1": True}.get(fields.get("sampled", ""))
    return _context(root[1] + root[2], span[0], sampled)


def _context(trace: str, span: str, is_sampled: bool | None) -> TraceContext | None:
    trace_id, span_id = int(trace, 16), int(span, 16)
    return TraceContext(trace_id, span_id, is_sampled) if trace_id and span_id else None
