"""The console of a real server in a real browser: what pages do is done, and what they show is so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.chromium import WatchedContext
from harness.process import QuaymasterProcess
from harness.waiting import eventually
from playwright.sync_api import Browser, Page, expect

ADDRESS = re.compile(r"console=(http://127\.0\.0\.1:\d+)")


class RealConsole:
    """A server's console with a page of it."""

    def __init__(self, process: QuaymasterProcess, url: str, context: WatchedContext) -> None:
        self.process = process
        self.url = url
        self.context = context
        self.page: Page = context.page()

    def go(self, path: str) -> None:
        """Go to a page."""
        reply = self.page.goto(f"{self.url}{path}")
        assert reply is not None
        assert reply.status == 200, self.page.content()

    def sign_in(self) -> None:
        """Sign in with the root key, once front end and console know each other."""
        known = self.process.env()

        def is_signed_in() -> bool:
            self.page.goto(f"{self.url}/sign-in")
            self.page.fill("[name=access_key_id]", known.access_key_id)
            self.page.fill("[name=secret]", known.secret_access_key)
            self.page.click("button.primary")
            self.page.wait_for_load_state()
            return self.page.url == f"{self.url}/"

        eventually(is_signed_in)
        self.context.problems.clear()


@pytest.fixture(scope="module")
def console(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealConsole]:
    """Return a served console with a browser that is signed in."""
    data: Path = tmp_path_factory.mktemp("console") / "data"
    process = QuaymasterProcess(data, settings={"console": "on", "console_listen": "127.0.0.1:0"})
    process.start()
    try:
        found = ADDRESS.search(process.log())
        assert found is not None, process.log()
        context = WatchedContext(chromium)
        console = RealConsole(process, found[1], context)
        eventually(lambda: answers(console))
        console.sign_in()
        yield console
        context.context.close()
    finally:
        process.stop()


def answers(console: RealConsole) -> bool:
    try:
        return console.page.request.get(f"{console.url}/sign-in").status == 200
    except Exception:
        return False


def create_queue(console: RealConsole, name: str, **fields: str) -> str:
    """Make a queue by the form, and return its path once the console knows it."""
    console.go("/queues/new")
    console.page.fill("[name=QueueName]", name)
    for field, value in fields.items():
        console.page.fill(f"[name={field}]", value)
    console.page.get_by_role("button", name="Create queue").click()
    path = f"/queues/000000000000/{name}"

    def is_known() -> bool:
        reply = console.page.goto(f"{console.url}{path}")
        return reply is not None and reply.status == 200

    eventually(is_known)
    console.context.problems.clear()
    return path


def test_message_goes_through_all_pages_of_its_life(console: RealConsole) -> None:
    page = console.page
    path = create_queue(console, "orders")
    console.go(f"{path}/messages")
    page.fill("[name=MessageBody]", '{"from": "a page", "script": "<script>window.planted = 1</script>"}')
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("status")).to_contain_text("The message is sent.")

    for _ in range(2):
        console.go(f"{path}/messages")
        expect(page.locator("details.message")).to_have_count(1)
        expect(page.locator("details.message summary")).to_contain_text("visible")
        expect(page.locator("details.message summary")).to_contain_text("×0")
    page.get_by_role("button", name="Receive").click()
    expect(page.locator("details.message summary")).to_contain_text("a page")
    page.locator("details.message summary").click()
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("status").last).to_contain_text("The message is deleted.")

    console.go(f"{path}/messages")
    expect(page.locator("details.message")).to_have_count(0)
    assert page.evaluate("window.planted") is None
    assert console.context.problems == []


def test_values_of_a_queue_become_those_of_its_leader(console: RealConsole) -> None:
    page = console.page
    path = create_queue(console, "counted")
    console.go(f"{path}/messages")
    page.fill("[name=MessageBody]", "one")
    page.get_by_role("button", name="Send").click()

    console.go(path)

    expect(page.locator("#facts")).to_contain_text("1 visible, 0 in flight, 0 delayed")
    console.go("/queues")
    expect(page.locator("tr", has_text="counted")).to_contain_text("1")
    assert console.context.problems == []


def test_settings_are_changed_and_a_wrong_one_is_told_at_its_field(console: RealConsole) -> None:
    page = console.page
    path = create_queue(console, "settings")
    console.go(f"{path}/settings")
    page.fill("[name=VisibilityTimeout]", "45")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("Saved.")
    expect(page.locator("[name=VisibilityTimeout]")).to_have_value("45")
    assert console.context.problems == []

    page.fill("[name=VisibilityTimeout]", "99999")
    page.get_by_role("button", name="Save").click()

    expect(page.locator("[name=VisibilityTimeout]")).to_have_attribute("aria-invalid", "true")
    console.context.problems.clear()


def test_policy_is_set_explained_and_tried(console: RealConsole) -> None:
    page = console.page
    path = create_queue(console, "policed")
    console.go(f"{path}/policy")
    page.fill(
        "[name=Policy]", '{"Statement": {"Effect": "Deny", "Principal": "*", "Action": "sqs:PurgeQueue"}}'
    )
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".steps")).to_contain_text("Each principal of each account may not do PurgeQueue")

    page.select_option("[name=try]", "PurgeQueue")
    page.get_by_role("button", name="Try").click()
    expect(page.get_by_role("status")).to_contain_text("Refused")
    page.select_option("[name=try]", "SendMessage")
    page.get_by_role("button", name="Try").click()

    expect(page.get_by_role("status")).to_contain_text("Allowed")
    assert console.context.problems == []


def test_each_page_of_a_real_server_loads(console: RealConsole) -> None:
    path = create_queue(console, "looked-at")

    for page in (
        "/",
        "/queues",
        path,
        f"{path}/dead-letters",
        "/alerts",
        "/alerts/new",
        "/dashboards",
        "/usage",
        "/audit",
        "/users",
        "/accounts",
        "/cell",
    ):
        console.go(page)

    assert console.context.problems == []


def test_queue_is_deleted_by_its_name(console: RealConsole) -> None:
    page = console.page
    path = create_queue(console, "gone")
    console.go(f"{path}/delete")
    page.fill("[name=name]", "gone")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("status").first).to_contain_text("The queue is deleted.")

    def is_gone() -> bool:
        reply = page.goto(f"{console.url}{path}")
        return reply is not None and reply.status == 404

    eventually(is_gone)
    console.context.problems.clear()
