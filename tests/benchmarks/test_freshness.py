"""Figures of times from a request to gold."""

from __future__ import annotations

import pytest

from bench.freshness import figures_of, percentile


def test_95_of_100_samples_are_at_most_the_95th_percentile() -> None:
    assert figures_of([float(number) for number in range(100, 0, -1)]) == {
        "p50_s": 50.5,
        "p95_s": 95.0,
        "max_s": 100.0,
    }


@pytest.mark.parametrize(("values", "expected"), [([3.0], 3.0), ([1.0, 2.0], 2.0), ([5.0] * 19 + [9.0], 5.0)])
def test_few_samples_have_a_percentile_too(values: list[float], expected: float) -> None:
    assert percentile(values, 95) == expected
