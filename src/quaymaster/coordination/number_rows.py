"""Rows of the store that are one number, as decimal text."""

from __future__ import annotations

from collections.abc import Callable

from quaymaster.coordination.interface import KeyValue, StoreUnusable


def encode_number(number: int) -> bytes:
    """Return the value of a row that is this number, 0 or more."""
    return str(number).encode()


def number_decoder(key: str) -> Callable[[bytes], int]:
    """Return what reads `encode_number`'s bytes in the row of a key; StoreUnusable when they are something else."""

    def decode(value: bytes) -> int:
        if not value.isdigit():
            raise StoreUnusable(f"the row {key} in the metadata store is damaged.")
        return int(value)

    return decode


def number_of(row: KeyValue | None) -> int:
    """Return the number that a row is, 0 where there is none; StoreUnusable when it is damaged."""
    return 0 if row is None else number_decoder(row.key)(row.value)
