"""Stored rows."""

from __future__ import annotations

import msgspec
import pytest

from quaymaster.core.values.formats import UnknownFormat
from quaymaster.core.values.row_codec import RowCodec


class Before(msgspec.Struct, frozen=True, array_like=True):
    name: str


class Now(msgspec.Struct, frozen=True, array_like=True):
    name: str
    count: int = 7


class Unusable(Exception):
    pass


def test_rows_are_a_version_and_their_fields_and_those_of_before_are_read() -> None:
    before, now = RowCodec(Before, "a row"), RowCodec(Now, "a row")

    assert before.encode(Before("a")) == b"\x01\x91\xa1a"
    assert now.decode(before.encode(Before("a"))) == Now("a")
    assert now.decode(memoryview(now.encode(Now("b", 3)))) == Now("b", 3)
    assert before.decode(now.encode(Now("b", 3))) == Before("b")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "a row has no version; this program reads version 2"),
        (b"\x03\x91\xa1a", "a row has version 3; .*version of Quaymaster that wrote it"),
        (b"\x02\xc1", "a row is damaged"),
        (b"\x02\x91\xa1\xff", "a row is damaged"),
        (b"\x02\x91\x01", "a row is damaged"),
    ],
)
def test_what_cannot_be_read_is_told_without_its_content(data: bytes, reason: str) -> None:
    with pytest.raises(UnknownFormat, match=reason):
        RowCodec(Now, "a row", version=2).decode(data)
    with pytest.raises(Unusable, match=reason):
        RowCodec(Now, "a row", version=2, error=Unusable).decode(data)
