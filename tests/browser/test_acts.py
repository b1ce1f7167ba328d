"""What users do in the console, in a real browser."""

from __future__ import annotations

from console.fake_site import LINK_TOKEN, NOW_MS, OPERATORS, FakeSite, signed_in
from harness.chromium import served
from playwright.sync_api import Browser, Page, expect

from browser.console_site import ConsoleSite, console_site, wait_for_script, wait_until
from quaymaster.console.site import APIError, QueueNow

ORDERS = f"/queues/{OPERATORS}/orders"


def is_live(page: Page) -> None:
    wait_for_script(page, "document.documentElement.dataset.following === 'yes'")


def test_wrong_secret_is_told_and_the_right_one_signs_in(console: ConsoleSite) -> None:
    page = console.context().page()
    page.goto(console.url("/queues"))
    page.fill("[name=access_key_id]", "AKOPERATOR")
    page.fill("[name=secret]", "wrong")
    page.click("button.primary")
    expect(page.get_by_role("alert")).to_contain_text("no such access key")
    console.forgive("403")

    page.fill("[name=secret]", "secret")
    page.click("button.primary")

    page.wait_for_url(console.url("/queues"))
    assert page.evaluate("document.cookie") == ""


def test_password_signs_a_customer_in_who_sees_nothing_of_operators(console: ConsoleSite) -> None:
    page = console.context().page()
    page.goto(console.url("/sign-in"))
    page.get_by_role("link", name="User and password").click()
    page.fill("[name=account]", "111111111111")
    page.fill("[name=user]", "ada")
    page.fill("[name=password]", "pass")
    page.click("button.primary")
    page.wait_for_url(console.url("/"))

    page.get_by_role("link", name="Queues").click()

    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.get_by_role("link", name="Cell")).to_have_count(0)


def test_link_signs_in_and_its_token_is_not_kept_in_the_history(console: ConsoleSite) -> None:
    page = console.context().page()

    page.goto(console.url(f"/sign-in#{LINK_TOKEN}"))

    page.wait_for_url(console.url("/"))
    page.go_back()
    assert LINK_TOKEN not in page.url


def test_sign_out_leads_to_sign_in(console: ConsoleSite) -> None:
    page = console.page()

    page.get_by_role("button", name="Sign out").click()

    expect(page.get_by_role("status")).to_have_text("You are signed out.")
    page.goto(console.url("/"))
    assert page.url == console.url("/sign-in")


def test_slash_searches_and_typing_narrows_the_list(console: ConsoleSite) -> None:
    page = console.page()
    page.goto(console.url("/queues"))

    page.keyboard.press("/")
    page.keyboard.type("orders")

    expect(page.locator("tbody tr")).to_have_count(2)
    assert page.evaluate("document.querySelector('input[type=search]').value") == "orders"


def test_question_mark_shows_help_and_letters_go_to_pages(console: ConsoleSite) -> None:
    page = console.page()

    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("q")

    page.wait_for_url(console.url("/queues"))


def test_columns_sort_and_more_rows_come_at_a_step(chromium: Browser) -> None:
    site = FakeSite()
    site.listed = [
        QueueNow(OPERATORS, f"q-{number:03}", f"{number}", False, False, 0, NOW_MS, number, 0, 0)
        for number in range(250)
    ]
    with console_site(chromium, site) as console:
        page = console.page()
        page.goto(console.url("/queues"))
        first = page.locator("tbody tr").first
        expect(first).to_contain_text("q-249")
        page.get_by_role("link", name="Visible").click()
        expect(first).to_contain_text("q-000")
        page.get_by_role("link", name="Show 100 more").click()
        expect(page.locator("tbody tr[id^=q]")).to_have_count(200)
        page.get_by_role("link", name="Show 100 more").click()
        expect(page.locator("tbody tr[id^=q]")).to_have_count(250)

        wait_until(page, lambda: any(topic.subject[2] == "300" for topic in console.hub._pages))


def test_values_change_by_themselves_once_a_second(console: ConsoleSite) -> None:
    page = console.page()
    page.goto(console.url("/queues"))
    is_live(page)

    console.site.listed = [
        QueueNow(OPERATORS, one.name, one.queue_id, False, False, 0, NOW_MS, 777, 0, 0)
        if one.name == "orders"
        else one
        for one in console.site.listed
    ]

    expect(page.get_by_role("row", name="orders ", exact=False).first).to_contain_text("777")


def test_hidden_tab_disconnects_and_a_shown_one_follows_again(console: ConsoleSite) -> None:
    page = console.page()
    page.goto(console.url("/queues"))
    is_live(page)
    show = "Object.defineProperty(document, 'visibilityState', {value: '%s', configurable: true});"
    told = "document.dispatchEvent(new Event('visibilitychange'))"

    page.evaluate(show % "hidden" + told)
    wait_until(page, lambda: console.hub.live_pages == 0)
    page.evaluate(show % "visible" + told)

    wait_until(page, lambda: console.hub.live_pages == 1)


def test_live_page_of_a_revoked_session_goes_to_sign_in(console: ConsoleSite) -> None:
    page = console.page()
    page.goto(console.url("/queues"))
    is_live(page)

    console.site.ended.add(signed_in(OPERATORS).credentials)

    page.wait_for_url(console.url("/sign-in?done=ended"))


def test_peek_consumes_nothing_and_a_script_in_a_body_is_text(console: ConsoleSite) -> None:
    page = console.page()
    page.goto(console.url(f"{ORDERS}/messages"))
    for message in range(3):
        page.locator("details.message").nth(message).locator("summary").click()

    for form in ("text", "base64", "JSON"):
        page.select_option("#as", form)
    page.get_by_role("button", name="Peek").click()

    expect(page.locator("details.message")).to_have_count(3)
    assert page.evaluate("window.planted") is None
    assert page.locator("main img, main script").count() == 0
    assert {asked.name for asked in console.site.api.asked if asked.api == "sqs"} == set()


def test_body_is_shown_as_json_text_and_base64(console: ConsoleSite) -> None:
    page = console.page()
    page.goto(console.url(f"{ORDERS}/messages"))
    body = page.locator("pre.body").first
    page.locator("details.message").first.locator("summary").click()

    expect(body).to_contain_text('"sku": "A-1",\n')
    page.select_option("#as", "text")
    expect(body).to_have_text('{"id": 7, "total": 1290, "items": [{"sku": "A-1", "count": 2}]}')
    page.select_option("#as", "base64")
    expect(body).to_contain_text("eyJpZCI6")


def test_messages_are_received_deleted_and_sent(console: ConsoleSite) -> None:
    page = console.page()
    page.goto(console.url(f"{ORDERS}/messages"))
    page.get_by_role("button", name="Receive").click()
    expect(page.get_by_role("status")).to_contain_text("3 received")

    page.locator("details.message").first.locator("summary").click()
    page.get_by_role("button", name="Delete").click()
    expect(page.locator("details.message")).to_have_count(2)
    page.fill("[name=MessageBody]", "sent by a page")
    page.get_by_role("button", name="Send").click()

    expect(page.get_by_role("status")).to_contain_text("The message is sent.")
    expect(page.locator("details.message")).to_have_count(2)
    assert console.asked("DeleteMessage") == console.asked("SendMessage") == 1


def test_refused_setting_is_marked_at_its_field(console: ConsoleSite) -> None:
    def refuse(_: object) -> object:
        raise APIError("InvalidAttributeValue", "Invalid value for the parameter VisibilityTimeout.", 400)

    console.site.api.answers["SetQueueAttributes"] = refuse
    page = console.page()
    page.goto(console.url(f"{ORDERS}/settings"))

    page.fill("[name=VisibilityTimeout]", "99999")
    page.get_by_role("button", name="Save").click()

    field = page.locator("[name=VisibilityTimeout]")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_have_value("99999")
    expect(field).to_have_accessible_description("! Invalid value for the parameter VisibilityTimeout.")
    console.forgive("422")


def test_queue_is_deleted_after_its_name_is_typed(console: ConsoleSite) -> None:
    page = console.page()
    page.goto(console.url(ORDERS))
    page.get_by_role("link", name="Delete…").click()
    page.fill("[name=name]", "other")
    page.get_by_role("button", name="Delete").click()
    expect(page.locator("[name=name]")).to_have_attribute("aria-invalid", "true")
    assert console.asked("DeleteQueue") == 0
    console.forgive("422")

    page.fill("[name=name]", "orders")
    page.get_by_role("button", name="Delete").click()

    expect(page.get_by_role("status").first).to_contain_text("The queue is deleted.")
    assert console.asked("DeleteQueue") == 1


def test_key_is_deleted_in_a_dialog_after_its_id_is_typed(console: ConsoleSite) -> None:
    page = console.page()
    page.goto(console.url("/users"))

    page.get_by_role("button", name="Delete AKIAROOT").click()
    page.get_by_role("dialog").get_by_label("Type its id").fill("AKIAROOT")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()

    expect(page.get_by_role("status")).to_contain_text("The key is deleted.")
    assert console.asked("DELETE /admin/v1/keys/AKIAROOT") == 1


def test_redrive_shows_its_progress_by_itself(console: ConsoleSite) -> None:
    tasks = console.site.api.answers["ListMessageMoveTasks"]({})["Results"]
    page = console.page()
    page.goto(console.url(f"/queues/{OPERATORS}/orders-dlq/dead-letters"))
    expect(page.locator("#tasks")).to_contain_text("58 %")

    tasks[0] |= {"ApproximateNumberOfMessagesMoved": 12, "Status": "COMPLETED"}

    expect(page.locator("#tasks")).to_contain_text("100 %")
    expect(page.locator("#tasks")).to_contain_text("completed")


def test_form_of_another_site_changes_nothing(console: ConsoleSite) -> None:
    page = console.page()
    target = console.url(f"{ORDERS}/purge")

    async def attack(scope: object, receive: object, send: object) -> None:
        form = f'<form method=post action="{target}"><input name=name value=orders></form>'
        text = f"<!doctype html><title>attack</title>{form}<script>document.forms[0].submit()</script>"
        headers = [(b"content-type", b"text/html")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": text.encode()})  # type: ignore[operator]

    with served(attack) as port:
        page.goto(f"http://evil.example:{port}/")
        page.wait_for_url(target)

    expect(page.locator("body")).to_contain_text("Changes are taken only from pages of this console.")
    assert console.asked("PurgeQueue") == 0
    console.forgive("403", "favicon.ico", "404 (Not Found)")


def test_console_is_not_served_under_a_foreign_name(console: ConsoleSite) -> None:
    page = console.page()

    reply = page.goto(console.url("/sign-in", host="rebound.example"))

    assert reply is not None
    assert reply.status == 421
    console.forgive("421", "favicon.ico", "Cross-Origin-Opener-Policy")
