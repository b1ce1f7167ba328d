"""`quaymaster open` and `quaymaster user password`: how people get into the console."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest
from harness.command_line import PlayedServer, Run

from quaymaster.cli.admin import user

ACCOUNT = "111111111111"
LINK = {"url": "http://127.0.0.1:9326/sign-in#a.b", "token": "a.b", "expires_ms": 5}
PASSWORD = {"account_id": ACCOUNT, "name": "ada", "has_password": True}


@pytest.mark.parametrize("has_browser", [True, False])
def test_the_console_is_opened_with_a_link_that_is_printed_where_no_browser_is(
    run: Run, data: Path, server: PlayedServer, monkeypatch: pytest.MonkeyPatch, has_browser: bool
) -> None:
    server.answers["POST /admin/v1/sign-in-links"] = LINK
    opened: list[str] = []

    def browse(url: str) -> bool:
        opened.append(url)
        return has_browser

    monkeypatch.setattr(webbrowser, "open", browse)

    assert run("open", "--data", data).out == ("" if has_browser else f"{LINK['url']}\n")
    assert opened == [LINK["url"]]
    assert run("open", "--print", "--data", data).out == f"{LINK['url']}\n"
    assert run("open", "--data", data, "--json").json == LINK
    assert opened == [LINK["url"]]


def test_a_password_is_read_from_standard_input(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["POST /admin/v1/users/ada/password"] = PASSWORD

    given = "correct horse battery\nmore\n"
    shown = run("user", "password", "ada", "--account", ACCOUNT, "--data", data, stdin=given)

    assert shown.out == "The user ada has a new password.\n"
    assert server.calls[0].fields == {"account_id": ACCOUNT, "password": "correct horse battery"}


def test_a_password_is_typed_twice_on_a_terminal(
    run: Run, data: Path, server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers["POST /admin/v1/users/ada/password"] = PASSWORD
    typed = ["correct horse battery"] * 2 + ["one", "another"]
    monkeypatch.setattr(user, "getpass", lambda prompt: typed.pop(0))

    assert run("user", "password", "ada", "--data", data, "--json", is_terminal=True).json == PASSWORD
    differ = run("user", "password", "ada", "--data", data, is_terminal=True)
    assert (differ.code, "differ" in differ.err) == (2, True)
    assert len(server.calls) == 1


def test_a_password_is_taken(run: Run, data: Path, server: PlayedServer) -> None:
    answer = {**PASSWORD, "has_password": False}
    server.answers[f"DELETE /admin/v1/users/ada/password?account_id={ACCOUNT}"] = answer

    shown = run("user", "password", "ada", "--remove", "--account", ACCOUNT, "--data", data)

    assert shown.out == "The user ada has no password.\n"
