"""Each page of the console in both themes and on screens of both sizes: without errors, and usable by all."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from console.fake_site import OPERATORS
from playwright.sync_api import Browser, Page

from browser.console_site import ConsoleSite, wait_for_script

ORDERS = f"/queues/{OPERATORS}/orders"
PAGES = (
    "/",
    "/queues",
    "/queues?q=none-of-this-name",
    "/queues/new",
    ORDERS,
    f"{ORDERS}/messages",
    f"{ORDERS}/settings",
    f"{ORDERS}/policy",
    f"{ORDERS}/push",
    f"{ORDERS}/dead-letters",
    f"{ORDERS}/purge",
    f"/queues/{OPERATORS}/orders-dlq/dead-letters",
    f"/queues/{OPERATORS}/new-queue",
    f"/queues/{OPERATORS}/clickstream/groups",
    "/queues/111111111111/webhooks/messages",
    "/alerts",
    "/alerts/new",
    f"/alerts/{OPERATORS}/orders-old",
    "/dashboards",
    "/dashboards/shop",
    "/dashboards/shop/edit",
    "/usage",
    "/audit",
    "/users",
    "/users/ada",
    "/accounts",
    "/cell",
    "/cell/broker/b1",
)
SERIOUS = frozenset(("serious", "critical"))


def test_chromium_is_driven(chromium: Browser) -> None:
    page = chromium.new_page()
    page.set_content("<title>driven</title><p>one</p>")

    assert page.title() == "driven"
    assert page.evaluate("document.querySelector('p').textContent") == "one"
    assert int(chromium.version.partition(".")[0]) > 100
    page.close()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_page_loads_without_errors_and_fits_its_screen(
    console: ConsoleSite, theme: str, width: int
) -> None:
    page = console.page(color_scheme=theme, viewport={"width": width, "height": 844})

    for path in PAGES:
        reply = page.goto(console.url(path))
        assert reply is not None
        assert reply.status == 200, path
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path
        for figure in range(page.locator("figure.chart details").count()):
            assert page.locator("figure.chart .plot canvas").nth(figure).is_visible(), path


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_axe_finds_nothing_serious(console: ConsoleSite, theme: str, width: int) -> None:
    # axe is a script in the page, which the content policy forbids to all others.
    page = console.page(color_scheme=theme, viewport={"width": width, "height": 844}, bypass_csp=True)
    found = []

    for path in PAGES:
        page.goto(console.url(path))
        found += [f"{path}: {text}" for text in serious_problems(page)]
    page.context.clear_cookies()
    page.goto(console.url("/sign-in"))
    found += [f"sign-in: {text}" for text in serious_problems(page)]

    assert found == []


def serious_problems(page: Page) -> list[str]:
    """Return what axe finds on a page that keeps some people from using it."""
    results = Axe().run(page)
    return [
        f"{violation['id']}: {node['html'][:200]} {node.get('failureSummary', '')}"
        for violation in results.response["violations"]
        if violation["impact"] in SERIOUS
        for node in violation["nodes"]
    ]


def test_pages_are_not_animated_for_those_who_want_no_motion(console: ConsoleSite) -> None:
    page = console.page(reduced_motion="reduce")
    page.goto(console.url("/queues"))
    wait_for_script(page, "document.documentElement.dataset.following === 'yes'")

    assert page.evaluate("document.getAnimations().length") == 0


def test_keyboard_reaches_the_content_first_and_sees_where_it_is(console: ConsoleSite) -> None:
    page = console.page()
    page.goto(console.url("/queues"))

    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    page.keyboard.press("Enter")

    assert outline == "solid"
    assert page.evaluate("location.hash") == "#main"


def test_screenshots_of_the_guide_are_small() -> None:
    images = Path(__file__).parents[2] / "docs/images"

    files = sorted(images.glob("console-*.png"))

    assert files
    for file in files:
        assert file.stat().st_size < 60_000, file.name
