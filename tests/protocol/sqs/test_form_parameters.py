"""Parameters are decoded as forms are; what is too much or no text is refused."""

from __future__ import annotations

import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.values.errors import CallerError, MalformedInput
from quaymaster.protocol.sqs.form_parameters import parse_parameters, percent_decode


@given(
    st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), st.text(st.characters(codec="utf-8")))
)
def test_parameters_are_decoded_as_forms_are(parameters: dict[str, str]) -> None:
    assert parse_parameters(urllib.parse.urlencode(parameters).encode()) == parameters


@given(st.binary())
def test_any_bytes_are_percent_decoded_as_the_standard_library_does(encoded: bytes) -> None:
    expected = urllib.parse.unquote_to_bytes(encoded.replace(b"+", b" "))

    assert percent_decode(encoded) == expected


def test_empty_pairs_are_ignored() -> None:
    assert parse_parameters(b"&a=1&&=3&b&=4") == {"a": "1", "b": ""}


@pytest.mark.parametrize("encoded", [b"a=1&a=2", b"a=1&a=1", b"a&%61=1"])
def test_a_parameter_that_is_there_twice_is_refused(encoded: bytes) -> None:
    with pytest.raises(MalformedInput, match="The parameter a was sent more than once"):
        parse_parameters(encoded)


def test_too_many_parameters_are_refused_before_they_are_read() -> None:
    with pytest.raises(MalformedInput):
        parse_parameters(b"&" * 4_096)

    assert len(parse_parameters(b"&".join(b"%d=" % n for n in range(4_096)))) == 4_096


def test_parameters_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(MalformedInput):
        parse_parameters(b"Action=%ff")


@given(st.binary(max_size=300))
def test_any_bytes_give_parameters_or_an_error_of_the_caller(encoded: bytes) -> None:
    try:
        parse_parameters(encoded)
    except CallerError:
        return
