"""A task that runs as long as its process ends the process when it fails, and says why."""

from __future__ import annotations

import asyncio
import logging

import pytest

from quaymaster.monitoring.supervision import listen_for_failures, supervise


async def fail() -> None:
    raise AssertionError("a bug")


def test_supervised_task_that_fails_is_told_of_once() -> None:
    async def scenario() -> list[Exception]:
        failures: list[Exception] = []
        listen_for_failures(asyncio.get_running_loop(), failures.append)
        await asyncio.wait([supervise(asyncio.create_task(fail()))])
        await asyncio.sleep(0)
        return failures

    failures = asyncio.run(scenario())

    assert [str(failure) for failure in failures] == ["a bug"]


def test_task_that_ends_or_is_cancelled_ends_no_process() -> None:
    async def scenario() -> list[Exception]:
        failures: list[Exception] = []
        listen_for_failures(asyncio.get_running_loop(), failures.append)
        ended = supervise(asyncio.create_task(asyncio.sleep(0)))
        cancelled = supervise(asyncio.create_task(asyncio.sleep(3_600)))
        await ended
        cancelled.cancel()
        await asyncio.wait([cancelled])
        await asyncio.sleep(0)
        return failures

    assert asyncio.run(scenario()) == []


def test_what_asyncio_itself_reports_is_logged_and_ends_no_process(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> list[Exception]:
        failures: list[Exception] = []
        loop = asyncio.get_running_loop()
        listen_for_failures(loop, failures.append)
        loop.call_exception_handler({"message": "a transport broke", "exception": OSError("reset")})
        return failures

    with caplog.at_level(logging.ERROR, logger="asyncio"):
        failures = asyncio.run(scenario())

    assert failures == []
    assert "a transport broke" in caplog.text
