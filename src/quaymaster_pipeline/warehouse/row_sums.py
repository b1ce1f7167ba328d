"""What rows add up to, in any order. A note of it tells whether one was changed, deleted or put in since. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

_MODULUS: Final = 1 << 256


class RowSum(NamedTuple):
    """How many rows there are, and what their SHA-256 add up to (modulo 2^256)."""

    rows: int = 0
    hashes: int = 0

    def plus(self, other: RowSum) -> RowSum:
        """Return both together."""
        return RowSum(self.rows + other.rows, (self.hashes + other.hashes) % _MODULUS)

    def to_json(self) -> list[Any]:
        """Return it as a note has it."""
        return [self.rows, f"{self.hashes:064x}"]

    @classmethod
    def from_json(cls, fields: Sequence[Any]) -> RowSum:
        """Return what `to_json` was made of."""
        return cls(fields[0], int(fields[1], 16))

    @classmethod
    def of(cls, hashes: Iterable[bytes]) -> RowSum:
        """Return that of rows with these SHA-256."""
        found = cls()
        for one in hashes:
            found = found.plus(cls(1, int.from_bytes(one)))
        return found
