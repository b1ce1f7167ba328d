"""A row for each of many sequence numbers, in pages: what is done to all rows is done a page at a time.

    sequence >> PAGE_BITS ──▶ page: sequence ──▶ row

`freeze` gives the rows as they are, page by page, while the table changes: a page that is still to be given is
copied before its first change. Rows themselves never change; they are replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, TypeVar, overload

PAGE_BITS = 9

Row = TypeVar("Row")
Default = TypeVar("Default")

_NOTHING: set[int] = set()
"""No page is frozen. Shared by all tables that never were, and never added to."""


class RowTable(MutableMapping[int, Row]):
    """A mapping from sequence numbers to rows; iteration goes by page."""

    __slots__ = ("_frozen", "_pages", "_size")

    def __init__(self) -> None:
        self._pages: dict[int, dict[int, Row]] = {}
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

    def _give(self, pages: list[tuple[int, dict[int, Row]]]) -> Iterator[dict[int, Row]]:
        frozen = self._frozen
        for number, page in pages:
            yield page
            frozen.discard(number)

    def _thaw(self, number: int) -> dict[int, Row]:
        self._frozen.discard(number)
        page = self._pages[number] = dict(self._pages[number])
        return page
