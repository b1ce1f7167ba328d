"""Rows of files that are sorted by account: an account after the other, whatever the number of rows and of accounts.

    files of a day, of lines, of invoices ──▶ AccountRows each ──the least account of all──▶ its rows of each, in turn

Of a file only what a stretch of accounts may be in is read, and of that a few rows are in memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.warehouse.data_files import DataFile, TablePlace, read_batches
from quaymaster_pipeline.warehouse.errors import BrokenTable
from quaymaster_pipeline.warehouse.schemas import TableSpec
from quaymaster_pipeline.warehouse.sums import ROWS_OF_FILE_MIN

ROWS_IN_MEMORY: Final = 1 << 16
"""So many rows of all files together are read at a time: a task holds much else of an account."""
ROWS_OF_TASK_MIN: Final = 1 << 18
ROWS_OF_TASK_MAX: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class Accounts:
    """Accounts from `first` up to `end` (None: to the last one), of these only the `wanted` ones, which are sorted."""

    first: str = ""
    end: str | None = None
    wanted: tuple[str, ...] | None = None

    def may_lie_in(self, low: str, high: str) -> bool:
        """Return whether one of them may be in [low, high]."""
        if high < self.first or (self.end is not None and low >= self.end):
            return False
        if self.wanted is None:
            return True
        at = bisect_left(self.wanted, max(low, self.first))
        if at == len(self.wanted) or self.wanted[at] > high:
            return False
        return self.end is None or self.wanted[at] < self.end

    def of(self, rows: Any, column: str) -> Any:
        """Return those of the rows that are of these accounts."""
        accounts = rows.column(column)
        mask = pc.greater_equal(accounts, self.first)
        if self.end is not None:
            mask = pc.and_(mask, pc.less(accounts, self.end))
        if self.wanted is not None:
            mask = pc.and_(mask, pc.is_in(accounts, pa.array(self.wanted, pa.string())))
        return rows.filter(mask)

    def chosen(self, files: Iterable[DataFile], column: str) -> list[DataFile]:
        """Return the files that may have one of them, by the bounds that a table's log has."""
        return [file for file in files if column not in file.bounds or self.may_lie_in(*file.bounds[column])]


class AccountRows:
    """The rows of one sorted file. `account` is the next one, None at the end."""

    def __init__(self, batches: Iterator[Any], column: str, path: str) -> None:
        self._batches = batches
        self._column = column
        self._path = path
        self._rows: Any = None
        self._runs: Iterator[tuple[str, int]] = iter(())
        self._begin = self._end = 0
        self.account: str | None = ""
        self._advance()

    def seek(self, account: str) -> None:
        """Pass over the rows of accounts before this one."""
        while self.account is not None and self.account < account:
            self._advance()

    def take(self, account: str) -> Iterator[Any]:
        """Yield the rows of an account, in parts. Accounts are taken in their order."""
        self.seek(account)
        while self.account == account:
            yield self._rows.slice(self._begin, self._end - self._begin)
            self._advance()

    def _advance(self) -> None:
        run = next(self._runs, None)
        while run is None:
            self._rows = next(self._batches, None)
            if self._rows is None:
                self.account = None
                return
            self._rows = self._rows.combine_chunks()
            self._end = 0
            if self._rows.num_rows:
                runs = pc.run_end_encode(self._rows.column(self._column).chunk(0))
                self._runs = zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True)
                run = next(self._runs)
        assert self.account is not None, "nothing is read after the end"
        if run[0] < self.account:
            raise BrokenTable(
                f"the file {self._path} is not sorted by account: {run[0]} is after {self.account}"
            )
        self.account = run[0]
        self._begin, self._end = self._end, run[1]


Merge = Callable[[list[Iterator[Any]]], Iterator[Any]]
"""Makes one stream of those of several files that have the same account."""


class AccountFiles:
    """The rows of several sorted files. `merge` makes one stream of an account's; else they come file after file.

    `files` are opened by and by: each with the least account that it may have, so that of files that follow one another
    one is open at a time.
    """

    def __init__(
        self, files: Iterable[tuple[str, Callable[[], AccountRows]]], merge: Merge | None = None
    ) -> None:
        self._waiting = sorted(files, key=lambda pair: pair[0])[::-1]
        self._files: list[AccountRows] = []
        self._merge = merge

    @property
    def account(self) -> str | None:
        """The next account, None at the end."""
        least = self._least()
        while self._waiting and (least is None or self._waiting[-1][0] <= least):
            self._files.append(self._waiting.pop()[1]())
            least = self._least()
        return least

    def seek(self, account: str) -> None:
        """Pass over the rows of accounts before this one."""
        while self._waiting and self._waiting[-1][0] <= account:
            self._files.append(self._waiting.pop()[1]())
        for file in self._files:
            file.seek(account)
        self._files = [file for file in self._files if file.account is not None]

    def take(self, account: str) -> Iterator[Any]:
        """Yield the rows of an account, in parts. Accounts are taken in their order."""
        self.seek(account)
        streams = [file.take(account) for file in self._files if file.account == account]
        if self._merge is not None and len(streams) > 1:
            yield from self._merge(streams)
            return
        for stream in streams:
            yield from stream

    def _least(self) -> str | None:
        return min((file.account for file in self._files if file.account is not None), default=None)


def open_files(
    place: TablePlace,
    spec: TableSpec,
    files: Iterable[DataFile],
    columns: Sequence[str],
    accounts: Accounts,
    *,
    of_files: int = 1,
    by: str = "account_id",
    merge: Merge | None = None,
) -> AccountFiles:
    """Return the rows of these accounts, where `of_files` share the memory for rows.

    `by` is the column of accounts, which is read, too.
    """
    columns = list(dict.fromkeys((*columns, by)))
    rows = max(ROWS_OF_FILE_MIN, ROWS_IN_MEMORY // max(1, of_files))

    def opened(file: DataFile) -> AccountRows:
        found = read_batches(place, spec, file.path, columns, rows, may_have=(by, accounts.may_lie_in))
        return AccountRows((accounts.of(part, by) for part in found), by, file.path)

    chosen = accounts.chosen(files, by)
    return AccountFiles([(file.bounds.get(by, ("",))[0], partial(opened, file)) for file in chosen], merge)


def each_account(streams: Sequence[AccountFiles]) -> Iterator[str]:
    """Yield the next account of all streams, until there is none; rows of it that are not taken are passed over."""
    while True:
        account = min((found for one in streams if (found := one.account) is not None), default=None)
        if account is None:
            return
        yield account
        for one in streams:
            one.seek(f"{account}\0")


def ranges_of(
    place: TablePlace, spec: TableSpec, files: Sequence[DataFile], cores: int, *, by: str = "account_id"
) -> list[Accounts]:
    """Return all accounts in stretches of about as many rows, for tasks; no account is in two.

    Where accounts are is seen in the file with most rows.
    """
    rows = sum(file.rows for file in files)
    count = max(min(cores, rows // ROWS_OF_TASK_MIN), -(-rows // ROWS_OF_TASK_MAX))
    if count <= 1:
        return [Accounts()]
    largest = max(files, key=lambda file: file.rows)
    seen, last_cut, cuts = 0, 0, [""]
    for part in read_batches(place, spec, largest.path, [by], ROWS_IN_MEMORY):
        runs = pc.run_end_encode(part.column(by).combine_chunks())
        before = 0
        for account, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            at = seen + before
            if at - last_cut >= largest.rows / count and account > cuts[-1]:
                cuts.append(account)
                last_cut = at
            before = end
        seen += part.num_rows
    return [Accounts(first, end) for first, end in zip(cuts, [*cuts[1:], None], strict=True)]
