"""A chromium for all tests of a process, and a furnished site for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.chromium import driven_chromium
from playwright.sync_api import Browser

from browser.console_site import ConsoleSite, console_site


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Return a browser that all tests share."""
    with driven_chromium() as browser:
        yield browser


@pytest.fixture
def console(chromium: Browser) -> Iterator[ConsoleSite]:
    """Return a served console with something on each page."""
    with console_site(chromium) as served:
        yield served
