"""Processes that are started again when they end, and told things over a pipe."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness.waiting import PATIENCE_S

from quaymaster.node.children.child import Child

ECHO = """
import os, sys
with open(sys.argv[1], "ab", buffering=0) as file:
    while piece := os.read(0, 1):
        file.write(piece)
    file.write(b"end")
"""
"""Writes what it is told to a file."""


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@asynccontextmanager
async def kept(directory: Path, ends: list[int]) -> AsyncIterator[tuple[Child, Path]]:
    said = directory / "said"
    child = Child("echo", (sys.executable, "-c", ECHO, str(said)), lambda: b"start.", on_ended=ends.append)
    keeping = asyncio.create_task(child.keep())
    try:
        await until(lambda: said.exists() and said.read_bytes())
        yield child, said
    finally:
        await child.end(0)
        await keeping


def test_one_that_is_killed_is_started_again_with_the_same_brief(tmp_path: Path) -> None:
    ends: list[int] = []

    async def scenario() -> None:
        async with kept(tmp_path, ends) as (child, said):
            child.tell(b"more.")
            await until(lambda: said.read_bytes() == b"start.more.")
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)

            await until(lambda: said.read_bytes() == b"start.more.start.")

    asyncio.run(scenario())
    assert ends == [-signal.SIGKILL]


def test_one_that_was_let_go_is_not_started_again_and_hears_nothing(tmp_path: Path) -> None:
    ends: list[int] = []

    async def scenario() -> None:
        async with kept(tmp_path, ends) as (child, said):
            child.let_go()
            assert child.pid is not None
            os.kill(child.pid, signal.SIGTERM)
            await until(lambda: child.pid is None)
            child.tell(b"more")

            assert said.read_bytes() == b"start."

    asyncio.run(scenario())
    assert ends == []


def test_a_program_that_cannot_be_run_is_tried_again_later(tmp_path: Path) -> None:
    ends: list[int] = []

    async def scenario() -> None:
        child = Child("none", (str(tmp_path / "none"),), lambda: b"", on_ended=ends.append)
        keeping = asyncio.create_task(child.keep())
        await until(lambda: len(ends) > 1)
        await child.end(0)
        keeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await keeping

    asyncio.run(scenario())
    assert set(ends) == {-1}


def test_its_pipe_ends_with_the_process_that_keeps_it(tmp_path: Path) -> None:
    said = tmp_path / "said"
    parent = f"""
import asyncio, os, sys
from quaymaster.node.children.child import Child
async def main():
    child = Child("echo", (sys.executable, "-c", {ECHO!r}, {str(said)!r}), lambda: b"start.", on_ended=print)
    asyncio.create_task(child.keep())
    while not os.path.exists({str(said)!r}) or not os.path.getsize({str(said)!r}):
        await asyncio.sleep(0.005)
    os.kill(os.getpid(), {signal.SIGKILL})
asyncio.run(main())
"""

    async def scenario() -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", parent)
        await process.wait()

        await until(lambda: said.read_bytes() == b"start.end")

    asyncio.run(scenario())
