"""Pages of the console in Debian's chromium, with everything that goes wrong in the browser noted."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
import uvicorn
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from starlette.types import ASGIApp

from harness.waiting import PATIENCE_S, eventually

ARGUMENTS: Final = (
    # Tests of containers run as root, where chromium's own sandbox does not start.
    "--no-sandbox",
    "--host-resolver-rules=MAP *.example 127.0.0.1",
)
REPORTS: Final = """
document.addEventListener("securitypolicyviolation", (event) => {
  console.error(`CSP: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
"""


def chromium_path() -> str:
    """Return where chromium is; without one the test is skipped."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("there is no chromium: scripts/bootstrap need chromium")
    return path


@contextmanager
def driven_chromium() -> Iterator[Browser]:
    """Start a chromium, and end it."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def served(app: ASGIApp) -> Iterator[int]:
    """Serve an application on this machine in a thread of its own; gives the port."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            eventually(lambda: server.started, "the pages are served")
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)


class WatchedContext:
    """A browser's context whose pages note script errors, reports of the content policy, and failed requests."""

    def __init__(self, browser: Browser, **options: Any) -> None:
        self.context: BrowserContext = browser.new_context(**options)
        self.context.set_default_timeout(1_000 * PATIENCE_S)
        self.context.add_init_script(REPORTS)
        self.problems: list[str] = []

    def page(self) -> Page:
        """Open a page that is watched."""
        page = self.context.new_page()
        page.on("console", lambda message: self._note(message.type in ("error", "warning"), message.text))
        page.on("pageerror", lambda error: self._note(True, f"script: {error}"))
        page.on(
            "requestfailed",
            # A page that is left ends its live stream, and an icon that was still on its way.
            lambda request: self._note(
                request.failure != "net::ERR_ABORTED", f"failed: {request.url} {request.failure}"
            ),
        )
        page.on("response", lambda reply: self._note(reply.status >= 400, f"{reply.status} {reply.url}"))
        return page

    def _note(self, is_problem: bool, text: str) -> None:
        if is_problem:
            self.problems.append(text)
