"""A row for each of many sequence numbers, in pages: what is done to all rows is done a page at a time.

    sequence >> PAGE_BITS ──▶ page: sequence ──▶ row

A table may be given a `Packing`: a page of many rows then lies in columns, at some bytes a row.

`freeze` gives the rows as they are, page by page, while the table changes: a page that is still to be given is
copied before its first change. Rows themselves never change; they are replaced.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, MutableMapping
from typing import Any, Generic, Protocol, TypeVar, overload

PAGE_BITS = 9

Row = TypeVar("Row")
Default = TypeVar("Default")

PACKED_FROM_ROWS = 64
"""A page of so many rows takes less room in columns."""


class Packing(Protocol[Row]):
    """How rows lie in columns: numbers, of which the first is not 0."""

    def columns(self) -> tuple[array[int], ...]:
        """Return empty columns."""
        ...

    def split(self, row: Row) -> tuple[int, ...]:
        """Return a row's numbers."""
        ...

    def join(self, *numbers: int) -> Row:
        """Return the row of these numbers."""
        ...


class _PackedPage(Generic[Row]):
    """A page in columns; a row whose first number is 0 is none. Used as the dict of another page is."""

    __slots__ = ("_columns", "_packing", "_rows", "_start")

    def __init__(self, packing: Packing[Row], start: int) -> None:
        self._packing = packing
        self._start = start
        self._columns = packing.columns()
        for column in self._columns:
            column.frombytes(bytes(column.itemsize << PAGE_BITS))
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def __contains__(self, sequence: int) -> bool:
        return bool(self._columns[0][sequence - self._start])

    def __iter__(self) -> Iterator[int]:
        return (self._start + at for at, first in enumerate(self._columns[0]) if first)

    def __getitem__(self, sequence: int) -> Row:
        row: Row | None = self.get(sequence, None)
        if row is None:
            raise KeyError(sequence)
        return row

    def __setitem__(self, sequence: int, row: Row) -> None:
        at = sequence - self._start
        self._rows += not self._columns[0][at]
        for column, number in zip(self._columns, self._packing.split(row), strict=True):
            column[at] = number

    def __delitem__(self, sequence: int) -> None:
        if sequence not in self:
            raise KeyError(sequence)
        self._columns[0][sequence - self._start] = 0
        self._rows -= 1

    def get(self, sequence: int, default: Any) -> Any:
        at = sequence - self._start
        if not self._columns[0][at]:
            return default
        return self._packing.join(*(column[at] for column in self._columns))

    def copy(self) -> _PackedPage[Row]:
        copied = _PackedPage(self._packing, self._start)
        copied._columns = tuple(column[:] for column in self._columns)
        copied._rows = self._rows
        return copied

    def rows(self) -> dict[int, Row]:
        return {sequence: self[sequence] for sequence in self}


_NOTHING: set[int] = set()
"""No page is frozen. Shared by all tables that never were, and never added to."""


class RowTable(MutableMapping[int, Row]):
    """A mapping from sequence numbers to rows; iteration goes by page."""

    __slots__ = ("_frozen", "_packing", "_pages", "_size")

    def __init__(self, packing: Packing[Row] | None = None) -> None:
        self._packing = packing
        self._pages: dict[int, dict[int, Row] | _PackedPage[Row]] = {}
        self._frozen: set[int] = _NOTHING
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, sequence: object) -> bool:
        assert isinstance(sequence, int), "rows are found by sequence number"
        page = self._pages.get(sequence >> PAGE_BITS)
        return page is not None and sequence in page

    def __iter__(self) -> Iterator[int]:
        for page in self._pages.values():
            yield from page

    def __getitem__(self, sequence: int) -> Row:
        return self._pages[sequence >> PAGE_BITS][sequence]

    def __setitem__(self, sequence: int, row: Row) -> None:
        number = sequence >> PAGE_BITS
        page = self._pages.get(number)
        if page is None:
            self._pages[number] = {sequence: row}
            self._size += 1
            return
        if number in self._frozen:
            page = self._thaw(number)
        self._size -= len(page)
        page[sequence] = row
        self._size += len(page)
        if self._packing is not None and type(page) is dict and len(page) >= PACKED_FROM_ROWS:
            packed = self._pages[number] = _PackedPage(self._packing, number << PAGE_BITS)
            for known, its_row in page.items():
                packed[known] = its_row

    def __delitem__(self, sequence: int) -> None:
        number = sequence >> PAGE_BITS
        page = self._pages[number]
        if number in self._frozen:
            page = self._thaw(number)
        del page[sequence]
        self._size -= 1
        if not page:
            del self._pages[number]

    @overload
    def get(self, sequence: int, /) -> Row | None: ...
    @overload
    def get(self, sequence: int, /, default: Row) -> Row: ...
    @overload
    def get(self, sequence: int, /, default: Default) -> Row | Default: ...
    def get(self, sequence: int, /, default: Any = None) -> Any:
        """Return a row, or the default."""
        page = self._pages.get(sequence >> PAGE_BITS)
        return default if page is None else page.get(sequence, default)

    def take(self, sequence: int) -> Row | None:
        """Remove and return a row; None when there is none."""
        page = self._pages.get(sequence >> PAGE_BITS)
        if page is None or sequence not in page:
            return None
        row = page[sequence]
        del self[sequence]
        return row

    def take_below(self, stop: int) -> list[int]:
        """Remove the rows of all sequence numbers below `stop` and return these."""
        taken: list[int] = []
        for number in [number for number in self._pages if number << PAGE_BITS < stop]:
            gone = [sequence for sequence in self._pages[number] if sequence < stop]
            taken += gone
            if len(gone) == len(self._pages[number]):
                self._size -= len(gone)
                del self._pages[number]
                self._frozen.discard(number)
            else:
                for sequence in gone:
                    del self[sequence]
        return taken

    def stop_after(self, rows: int) -> int | None:
        """Return below which sequence number there are about `rows` rows, by whole pages; None: fewer in all."""
        seen = 0
        for number in sorted(self._pages) if self._size > rows else ():
            seen += len(self._pages[number])
            if seen >= rows:
                return (number + 1) << PAGE_BITS
        return None

    def freeze(self) -> Iterator[dict[int, Row]]:
        """Return the rows as they are now, as pages that are not to be changed. One at a time is under way."""
        pages = list(self._pages.items())
        self._frozen = set(self._pages)
        return self._give(pages)

    def emptied(self) -> Iterator[None]:
        """Empty a table that is used no more, a page with each step: all at once takes time, too."""
        while self._pages:
            self._pages.popitem()
            yield

    def load(self, rows: dict[int, Row]) -> None:
        """Put in the rows of a page that `freeze` gave."""
        for sequence, row in rows.items():
            self[sequence] = row

    def _give(self, pages: list[tuple[int, dict[int, Row] | _PackedPage[Row]]]) -> Iterator[dict[int, Row]]:
        frozen = self._frozen
        for number, page in pages:
            yield page.rows() if isinstance(page, _PackedPage) else page
            frozen.discard(number)

    def _thaw(self, number: int) -> dict[int, Row] | _PackedPage[Row]:
        self._frozen.discard(number)
        page = self._pages[number] = self._pages[number].copy()
        return page
