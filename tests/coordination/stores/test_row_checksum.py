"""What a row in etcd carries so that one that was not written so is told from one that was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quaymaster.coordination.stores.row_checksum import (
    HEAD,
    roots_nearby,
    value_of,
    why_damaged,
    with_checksum,
)

keys = st.binary(min_size=1, max_size=40)
values = st.binary(max_size=200)
leases = st.integers(min_value=0, max_value=2**63 - 1)


@given(keys, values, leases)
def test_a_row_is_read_as_it_was_written(key: bytes, value: bytes, lease: int) -> None:
    stored = with_checksum(key, value, lease)

    assert why_damaged(key, stored, lease) is None
    assert value_of(stored) == value


@given(keys, values, leases, st.data())
def test_a_bit_that_flips_anywhere_in_a_row_is_noticed(
    key: bytes, value: bytes, lease: int, data: st.DataObject
) -> None:
    stored = with_checksum(key, value, lease)
    bit = data.draw(st.integers(0, 8 * (len(stored) + len(key)) - 1))
    row = bytearray(stored + key)
    row[bit // 8] ^= 1 << bit % 8

    assert why_damaged(bytes(row[len(stored) :]), bytes(row[: len(stored)]), lease) is not None


@given(keys, values, leases, leases)
def test_a_row_is_not_of_another_lease(key: bytes, value: bytes, lease: int, other: int) -> None:
    reason = why_damaged(key, with_checksum(key, value, lease), other)

    assert (reason is None) == (lease == other)


@given(keys, values, st.integers(0, 300))
def test_a_row_that_was_cut_is_noticed(key: bytes, value: bytes, kept: int) -> None:
    stored = with_checksum(key, value, 0)

    assert (why_damaged(key, stored[:kept], 0) is None) == (kept >= len(stored))


def test_a_key_and_a_value_are_not_mistaken_for_others_that_read_the_same() -> None:
    stored = with_checksum(b"ab", b"c", 0)

    assert why_damaged(b"a", stored[: HEAD.size] + b"bc", 0) is not None


def test_a_value_without_a_checksum_may_be_of_an_older_program() -> None:
    for value in (b"", b"4", b'{"a":1}', b"\x94\x01\x02\x03\x04", "é".encode()):
        assert "an older Quaymaster or another program wrote it" in (why_damaged(b"k", value, 0) or "")


def test_the_roots_nearby_are_those_one_bit_away() -> None:
    roots = roots_nearby(b"eu1/")

    assert len(set(roots)) == len(roots) == 32
    assert b"eu3/" in roots
    assert b"eu1/" not in roots
