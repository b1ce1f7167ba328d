"""Times are written and read as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.values.errors import MalformedInput
from quaymaster.protocol.cloudwatch.times import parse_time, render_time


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:00Z", 0.0),
        ("2010-08-01T12:00:00Z", 1_280_664_000.0),
        ("2010-08-01T12:00:00.250Z", 1_280_664_000.25),
        ("2010-08-01T14:00:00+02:00", 1_280_664_000.0),
        ("2010-08-01T12:00:00", 1_280_664_000.0),
        ("2010-08-01", 1_280_620_800.0),
    ],
)
def test_time_is_read_in_its_zone(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "now", "2010-13-01T00:00:00Z", "1280664000", "0001-01-01T00:00:00+14:00x"]
)
def test_other_text_is_malformed(text: str) -> None:
    with pytest.raises(MalformedInput):
        parse_time(text)


@given(st.integers(0, 253_402_300_799_000))
def test_time_is_read_as_it_was_written_to_the_millisecond(ms: int) -> None:
    assert round(parse_time(render_time(ms / 1000)) * 1000) == ms


def test_whole_seconds_have_no_fraction() -> None:
    assert render_time(1_280_664_000) == "2010-08-01T12:00:00Z"
    assert render_time(1_280_664_000.25) == "2010-08-01T12:00:00.250Z"
