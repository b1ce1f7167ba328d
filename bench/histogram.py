"""Latencies of millions of requests in a few thousand counters, each within 0.2 % of what was measured.

below 1,024 us     one counter for each microsecond
above              512 counters for each doubling
"""

from __future__ import annotations

from collections.abc import Sequence

_LINEAR_BITS = 10
_HALF = 1 << (_LINEAR_BITS - 1)
BUCKETS = 1 << 14
"""Enough for 20 minutes; what is longer counts as that."""


def bucket_of(duration_us: int) -> int:
    """Return the counter that a duration belongs to."""
    shift = duration_us.bit_length() - _LINEAR_BITS
    if shift <= 0:
        return duration_us
    return min(BUCKETS - 1, shift * _HALF + (duration_us >> shift))


def duration_us_of(bucket: int) -> float:
    """Return the middle of the durations that a counter stands for."""
    if bucket < 2 * _HALF:
        return float(bucket)
    shift = bucket // _HALF - 1
    return ((bucket - shift * _HALF) << shift) + ((1 << shift) - 1) / 2


def percentiles_ms(counters: Sequence[int], shares: Sequence[float]) -> list[float | None]:
    """Return, for each share (0.99), the duration that so many requests did not exceed; None without requests."""
    total = sum(counters)
    if not total:
        return [None] * len(shares)
    found: dict[float, float] = {}
    passed = 0
    waiting = sorted(set(shares), reverse=True)
    for bucket, count in enumerate(counters):
        passed += count
        while waiting and passed >= waiting[-1] * total:
            found[waiting.pop()] = duration_us_of(bucket) / 1000
        if not waiting:
            break
    return [found[share] for share in shares]
