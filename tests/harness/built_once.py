"""What many tests begin with, made once in a process: each test gets a copy of its files, and of its objects.

    @built_once
    def started(directory: Path) -> tuple[Site, FrontEnd]: ...

    first call     makes it in a directory of its own ──▶ files as bytes, objects pickled ──▶ directory deleted
    every call     files written to the directory given, objects unpickled; their paths lie in that directory

What is kept cannot be changed by a test, for it is bytes. What is made must follow from the arguments alone: not from
what a test patches, nor from the clock.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

Given = ParamSpec("Given")
Made = TypeVar("Made")


class _Kept(NamedTuple):
    files: dict[str, tuple[bytes, int]]
    """By path, with when they were written, nanoseconds."""
    directories: list[str]
    objects: bytes


def built_once(
    make: Callable[Concatenate[Path, Given], Made],
) -> Callable[Concatenate[Path, Given], Made]:
    """Return what gives for the same arguments what `make` gives, in any directory; `make` runs once for them.

    `make` is given an empty directory, and returns what can be pickled. Paths in it that lie there lie then in the
    directory that was asked for. That exists, or is made.
    """
    kept: dict[Any, _Kept] = {}

    @functools.wraps(make)
    def copied(directory: Path, /, *arguments: Given.args, **named: Given.kwargs) -> Made:
        key = arguments, tuple(sorted(named.items()))
        if key not in kept:
            with tempfile.TemporaryDirectory() as temporary:
                place = Path(temporary).resolve()
                objects = _pickled(make(place, *arguments, **named), place)
                kept[key] = _read(place, objects)
        made_there: Made = _written(kept[key], directory)
        return made_there

    return copied


def _read(place: Path, objects: bytes) -> _Kept:
    paths = sorted(place.rglob("*"))
    files = {
        str(path.relative_to(place)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in paths
        if path.is_file()
    }
    return _Kept(files, [str(path.relative_to(place)) for path in paths if path.is_dir()], objects)


def _written(kept: _Kept, directory: Path) -> Any:
    for name in kept.directories:
        (directory / name).mkdir(parents=True, exist_ok=True)
    for name, (data, written_ns) in kept.files.items():
        path = directory / name
        path.write_bytes(data)
        os.utime(path, ns=(written_ns, written_ns))
    return _Placing(io.BytesIO(kept.objects), directory).load()


def _pickled(objects: Any, place: Path) -> bytes:
    written = io.BytesIO()
    _Placeless(written, place).dump(objects)
    return written.getvalue()


class _Placeless(pickle.Pickler):
    """Pickles paths that lie in a directory without it."""

    def __init__(self, file: io.BytesIO, place: Path) -> None:
        super().__init__(file)
        self._place = place

    def persistent_id(self, value: Any) -> str | None:
        if isinstance(value, Path) and value.is_relative_to(self._place):
            return str(value.relative_to(self._place))
        return None


class _Placing(pickle.Unpickler):
    """Reads them back, in another directory."""

    def __init__(self, file: io.BytesIO, directory: Path) -> None:
        super().__init__(file)
        self._directory = directory

    def persistent_load(self, name: str) -> Path:
        return self._directory / name
