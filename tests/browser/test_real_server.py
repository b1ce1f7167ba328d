"""The console of a real server in a real browser: what pages do is done, and what they show is so."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.chromium import WatchedContext
from harness.process import QuaymasterProcess
from harness.waiting import PATIENCE_S, eventually
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


def test_alert_and_its_destination_are_made_and_shown(console: RealConsole) -> None:
    page = console.page
    create_queue(console, "alerted")
    create_queue(console, "alerts-come-here")
    console.go("/alerts")
    page.fill("[name=name]", "to-a-queue")
    page.select_option("[name=kind]", "queue")
    page.fill("[name=target]", "arn:aws:sqs:us-east-1:000000000000:alerts-come-here")
    page.get_by_role("button", name="Add destination").click()
    expect(page.get_by_role("status").first).to_contain_text("The destination is made.")

    console.go("/alerts/new")
    page.fill("[name=AlarmName]", "alerted-old")
    page.fill("[name=pattern]", "alerted")
    page.check("[name=action]")
    page.get_by_role("button", name="Create alert").click()
    expect(page.get_by_role("status").first).to_contain_text("The alert is made.")
    expect(page.locator("#alerts")).to_contain_text("alerted-old")

    page.get_by_role("link", name="alerted-old").click()
    expect(page.locator("main")).to_contain_text("ApproximateAgeOfOldestMessage Maximum > 300")
    expect(page.locator("main")).to_contain_text("to-a-queue")
    assert console.context.problems == []


def test_consumer_group_of_a_log_is_made_and_reset(console: RealConsole) -> None:
    page = console.page
    console.go("/queues/new")
    page.fill("[name=QueueName]", "events")
    page.locator("summary", has_text="Guarantees and partitions").click()
    page.select_option("[name=RetentionMode]", "Log")
    page.get_by_role("button", name="Create queue").click()
    path = "/queues/000000000000/events/groups"
    eventually(lambda: (reply := page.goto(f"{console.url}{path}")) is not None and reply.status == 200)
    console.context.problems.clear()
    page.fill("form.inset [name=group]", "readers")
    page.get_by_role("button", name="Create group").click()
    expect(page.locator("tbody")).to_contain_text("readers")

    page.get_by_role("button", name="Reset readers").click()
    page.get_by_role("dialog").get_by_label("Type the name of the group").fill("readers")
    page.get_by_role("dialog").get_by_role("button", name="Reset").click()

    expect(page.get_by_role("status")).to_contain_text("Saved.")
    assert console.context.problems == []


def test_dashboard_of_a_queue_is_made_and_drawn(console: RealConsole) -> None:
    page = console.page
    create_queue(console, "drawn")
    console.go("/dashboards/new")
    page.fill("[name=DashboardName]", "mine")
    body = page.input_value("[name=DashboardBody]").replace('"QUEUE"', '"drawn"')
    page.fill("[name=DashboardBody]", body)
    page.get_by_role("button", name="Save").click()

    expect(page.get_by_role("heading", level=1)).to_have_text("mine")
    expect(page.locator("figure.chart figcaption")).to_contain_text("Messages sent")
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


def test_customer_signs_in_sees_only_the_own_account_and_acts_in_it(
    console: RealConsole, chromium: Browser
) -> None:
    console.go("/accounts")
    console.page.fill("[name=name]", "shop")
    console.page.get_by_role("button", name="Create account").click()
    key = console.page.locator("#key-id").text_content()
    secret = console.page.locator("#key-secret").text_content()
    create_queue(console, "of-operators")
    context = WatchedContext(chromium)
    page = context.page()
    page.goto(f"{console.url}/sign-in")
    page.fill("[name=access_key_id]", key or "")
    page.fill("[name=secret]", secret or "")
    page.click("button.primary")
    page.wait_for_url(f"{console.url}/")

    page.goto(f"{console.url}/queues/new")
    page.fill("[name=QueueName]", "of-the-shop")
    page.get_by_role("button", name="Create queue").click()
    page.goto(f"{console.url}/queues")
    eventually(lambda: page.reload() is not None and page.get_by_text("of-the-shop").count() > 0)
    context.problems.clear()
    page.get_by_role("link", name="of-the-shop").click()
    page.get_by_role("link", name="Messages").click()
    page.fill("[name=MessageBody]", "a customer's")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("details.message summary")).to_contain_text("a customer's")
    for path in ("/", "/alerts", "/dashboards", "/usage", "/audit", "/users"):
        page.goto(f"{console.url}{path}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.goto(f"{console.url}/queues?account=000000000000")

    assert page.get_by_text("of-operators").count() == 0
    assert context.problems == []
    context.context.close()


def test_session_that_only_looks_is_refused_what_changes(console: RealConsole, chromium: Browser) -> None:
    path = create_queue(console, "only-looked-at")
    known = console.process.env()
    context = WatchedContext(chromium)
    page = context.page()
    page.goto(f"{console.url}/sign-in")
    page.fill("[name=access_key_id]", known.access_key_id)
    page.fill("[name=secret]", known.secret_access_key)
    page.check("[name=read_only]")
    page.click("button.primary")
    page.wait_for_url(f"{console.url}/")
    page.goto(f"{console.url}{path}/messages")
    page.fill("[name=MessageBody]", "refused")

    page.get_by_role("button", name="Send").click()

    expect(page.get_by_role("alert")).to_contain_text("not authorized")
    page.goto(f"{console.url}{path}/messages")
    expect(page.locator("details.message")).to_have_count(0)
    context.context.close()


def test_link_that_the_command_prints_signs_in_once(console: RealConsole, chromium: Browser) -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "quaymaster.cli.main", "open", "--print", "--data", str(console.process.data)],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    # Its port is that of the setting, which is 0 here.
    link = f"{console.url}/sign-in#{printed.stdout.strip().partition('#')[2]}"
    first, second = WatchedContext(chromium), WatchedContext(chromium)
    page, late = first.page(), second.page()

    page.goto(link)
    expect(page).to_have_url(f"{console.url}/")
    late.goto(link)
    expect(late.get_by_role("alert")).to_be_visible()

    first.context.close()
    second.context.close()


def test_pages_of_tables_that_are_empty_say_what_fills_them(console: RealConsole) -> None:
    for path in ("/usage", "/audit"):
        console.go(path)
        expect(console.page.locator("main")).to_contain_text("quaymaster pipeline run")
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
