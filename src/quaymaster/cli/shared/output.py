"""How commands print and ask: tables on a terminal, tab-separated lines in a pipe, JSON when asked.

Only what was asked for goes to stdout, so that `$(quaymaster ...)` and pipes get nothing else; notes and
progress bars go to stderr. Rich takes longer to import than most commands to run, so it is imported by those
that draw.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from quaymaster.cli.shared.failures import WrongUsage

if TYPE_CHECKING:
    from rich.progress import Progress


def print_json(value: Any) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_line(text: str = "") -> None:
    """Print one line of the answer."""
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """Say something beside the answer: on stderr."""
    sys.stderr.write(text + "\n")


def ask_before_deletion(question: str, option: str) -> str:
    """Return what is typed; WrongUsage names the `option` that answers where there is no terminal."""
    if not sys.stdin.isatty():
        raise WrongUsage(f"This asks before it deletes; give {option} where nobody can answer.")
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip()


def print_table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows under headers on a terminal, else as tab-separated lines without headers."""
    texts = [[_cell(value) for value in row] for row in rows]
    if not sys.stdout.isatty():
        for row in texts:
            print_line("\t".join(" ".join(cell.split()) for cell in row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for index, header in enumerate(headers):
        is_number = bool(texts) and all(row[index].replace(".", "").isdigit() for row in texts)
        table.add_column(header, justify="right" if is_number else "left", overflow="fold")
    for row in texts:
        # Text, not str: what users stored must not be read as markup.
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


def time_as_text(time_ms: int | None) -> str:
    """Return a time as people read it, in UTC; `-` for none."""
    if not time_ms:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time_ms / 1000)) + "Z"


def bytes_as_text(count: float) -> str:
    """Return a size in binary units with three significant digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def print_done(fields: Any, line: str, remark: str, *, as_json: bool) -> None:
    """Print what a command has done: its fields as JSON, or a line of it and a remark."""
    if as_json:
        print_json(fields)
    else:
        print_line(line)
        note(remark)


class Bar:
    """One progress bar, or nothing at all when stderr is not a terminal."""

    def __init__(self, progress: Progress | None, total: float | None, what: str) -> None:
        self._progress = progress
        self._task = None if progress is None else progress.add_task(what, total=total)

    @property
    def is_shown(self) -> bool:
        """Whether anybody sees it."""
        return self._progress is not None

    def show(self, done: float, total: float) -> None:
        """Show that `done` of `total` is reached."""
        self.update(done, total=total)

    def update(self, done: float, *, total: float | None = None, what: str | None = None) -> None:
        """Show that `done` of `total` is reached, and `what` is being done."""
        if self._progress is not None and self._task is not None:
            if what is not None:
                self._progress.update(self._task, description=what)
            if total is not None:
                self._progress.update(self._task, total=total)
            self._progress.update(self._task, completed=done)


@contextmanager
def progress_bar(
    what: str, *, total: float | None = None, quiet: bool = False, in_bytes: bool = False
) -> Iterator[Bar]:
    """Show a progress bar on stderr while the block runs; `total` None means that it is not known how much."""
    if quiet or not sys.stderr.isatty():
        yield Bar(None, total, what)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    amount = DownloadColumn(binary_units=True) if in_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bar(progress, total, what)
