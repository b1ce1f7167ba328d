"""Clients and a receiver that are closed with their test, and the server's log under a test that failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from harness.process import QuaymasterProcess
from harness.webhooks import WebhookReceiver

from .support import Client

Connect = Callable[..., Client]

_logs: list[QuaymasterProcess] = []


@pytest.fixture
def connect() -> Iterator[Connect]:
    """`connect(process)` gives a client of a running server; all are closed after the test."""
    clients: list[Client] = []

    def make(process: QuaymasterProcess, *, clock_offset_ms: int = 0) -> Client:
        client = Client(process, clock_offset_ms=clock_offset_ms)
        clients.append(client)
        if process not in _logs:
            _logs.append(process)
        return client

    yield make
    for client in clients:
        client.close()
    _logs.clear()


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    """A receiver of what is pushed, and of what alerts tell."""
    with closing(WebhookReceiver()) as found:
        yield found


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Show the server's log under a failed test."""
    outcome: Any = yield
    report = outcome.get_result()
    if report.failed:
        for process in _logs:
            report.sections.append(
                (f"log of the server on port {process.listen_port}", process.log()[-6000:])
            )
