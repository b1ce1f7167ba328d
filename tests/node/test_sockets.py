"""Where the Unix sockets of a server are: paths may have a hundred bytes, and directories longer ones."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness.short_paths import short_directory

from quaymaster.net.listener import fits_unix
from quaymaster.node.edge.sockets import make_sockets

NAMES = ["a.sock", "console.sock"]


@pytest.mark.parametrize("is_tmpdir_long", [False, True])
def test_sockets_are_in_the_data_directory_or_where_their_path_is_short(
    monkeypatch: pytest.MonkeyPatch, is_tmpdir_long: bool
) -> None:
    with short_directory() as short:
        long = short / ("x" * 90)
        long.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(long if is_tmpdir_long else short))
        with ExitStack() as stack:
            here: Any = SimpleNamespace(data=short, stack=stack)
            far: Any = SimpleNamespace(data=long, stack=stack)

            assert make_sockets(here, NAMES) == short / "run"
            found = make_sockets(far, NAMES)

            assert found.parent == (Path("/tmp") if is_tmpdir_long else short)
            assert all(fits_unix(found / name) for name in NAMES)
            assert found.stat().st_mode & 0o777 == 0o700
        assert not found.exists()
