"""A console that is served, and a browser's pages of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from console.fake_site import KEY, FakeSite
from console.furnished import furnished_site
from harness.chromium import WatchedContext, served
from harness.waiting import PATIENCE_S, eventually
from playwright.sync_api import Browser, Page

from quaymaster.console.web.app import WebOptions, create_app
from quaymaster.console.web.live import Hub


class ConsoleSite:
    """A served console, its site, and its port."""

    def __init__(self, browser: Browser, site: FakeSite, port: int, hub: Hub) -> None:
        self._browser = browser
        self.site = site
        self.port = port
        self.hub = hub
        self._contexts: list[WatchedContext] = []

    def url(self, path: str, host: str = "localhost") -> str:
        """Return the URL of a page."""
        return f"http://{host}:{self.port}{path}"

    def context(self, **options: Any) -> WatchedContext:
        """Return a new browser context; what goes wrong in it fails the test at its end."""
        watched = WatchedContext(self._browser, **options)
        self._contexts.append(watched)
        return watched

    def page(self, account: str = "AKOPERATOR", **options: Any) -> Page:
        """Return a page that is signed in."""
        page = self.context(**options).page()
        self.sign_in(page, account)
        return page

    def sign_in(self, page: Page, key_id: str) -> None:
        """Fill in the sign-in form."""
        page.goto(self.url("/sign-in"))
        page.fill("[name=access_key_id]", key_id)
        page.fill("[name=secret]", "secret")
        page.click("button.primary")
        page.wait_for_url(self.url("/"))

    def asked(self, name: str) -> int:
        """Return how often pages asked the API so."""
        return sum(asked.name == name for asked in self.site.api.asked)

    def close(self) -> None:
        """Close all pages, and fail with what went wrong in them."""
        problems = [problem for watched in self._contexts for problem in watched.problems]
        for watched in self._contexts:
            watched.context.close()
        assert problems == [], "\n".join(problems)

    def forgive(self, *expected: str) -> None:
        """Take problems that a test wants for none: each has one of these texts in it."""
        for watched in self._contexts:
            watched.problems[:] = [
                problem for problem in watched.problems if not any(text in problem for text in expected)
            ]


@contextmanager
def console_site(browser: Browser, site: FakeSite | None = None) -> Iterator[ConsoleSite]:
    """Serve a console for a browser."""
    shown = site or furnished_site()
    app = create_app(shown, WebOptions(KEY))
    with served(app) as port:
        console = ConsoleSite(browser, shown, port, app.state.web.hub)
        yield console
        console.close()


def wait_until(page: Page, question: Callable[[], bool]) -> None:
    """Wait for what a page does; its events are handled meanwhile."""

    def ask() -> bool:
        page.evaluate("1")
        return question()

    eventually(ask)


def wait_for_script(page: Page, expression: str) -> None:
    """Wait until an expression holds in a page, which the content policy does not allow `wait_for_function` to ask."""
    wait_until(page, lambda: bool(page.evaluate(expression)))


__all__ = ["PATIENCE_S", "ConsoleSite", "console_site", "wait_for_script", "wait_until"]
