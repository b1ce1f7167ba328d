from __future__ import annotations

from pathlib import Path

from harness.command_line import PlayedServer, Run

ACCOUNT = "111122223333"
ROW = {"account_id": ACCOUNT, "queue": "", "action": "SendMessage", "requests": 50, "bytes": None}
LINE = f"{ACCOUNT}\t-\tSendMessage\t50\t-\n"


def test_set_sends_what_is_given(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["POST /admin/v1/limits"] = ROW

    options = ["--account", ACCOUNT, "--action", "SendMessage", "--requests", "50", "--data", data]
    assert run("limit", "set", *options).out == LINE
    assert run("limit", "set", *options, "--queue", "jobs", "--bytes", "2000", "--json").json == ROW

    given = {"account_id": ACCOUNT, "action": "SendMessage", "requests": 50}
    assert server.called("POST /admin/v1/limits") == [given, {**given, "queue": "jobs", "bytes": 2_000}]


def test_list_shows_all_limits_or_those_of_an_account(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["GET /admin/v1/limits"] = {"limits": [ROW], "next_token": None}
    server.answers[f"GET /admin/v1/limits?account_id={ACCOUNT}"] = {"limits": [], "next_token": None}

    assert run("limit", "list", "--data", data).out == LINE
    assert run("limit", "list", "--account", ACCOUNT, "--data", data, "--json").json["limits"] == []


def test_show_names_what_holds_together(run: Run, data: Path, server: PlayedServer) -> None:
    effective = {"Account": {"*": {"Requests": 9}}, "Queue": {"SendMessage": {"Bytes": 5_000}}}
    for query in ("", "?queue=jobs"):
        server.answers[f"GET /admin/v1/limits/{ACCOUNT}{query}"] = {"effective": effective}

    out = run("limit", "show", "--account", ACCOUNT, "--queue", "jobs", "--data", data).out

    assert out == "Account\t*\t9\t-\nQueue\tSendMessage\t-\t5000\n"
    shown = run("limit", "show", "--account", ACCOUNT, "--data", data, "--json")
    assert shown.json["effective"] == effective


def test_remove_names_the_limit_as_set_does(run: Run, data: Path, server: PlayedServer) -> None:
    for query in ("", "?action=SendMessage"):
        server.answers[f"DELETE /admin/v1/limits/{ACCOUNT}{query}"] = {**ROW, "deleted": True}

    removed = run("limit", "remove", "--account", ACCOUNT, "--action", "SendMessage", "--data", data)

    assert removed.out == f"Removed the limit of {ACCOUNT} SendMessage.\n"
    again = run("limit", "remove", "--account", ACCOUNT, "--data", data, "--json")
    assert again.json["deleted"] is True


def test_an_account_without_limits_is_told_so(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["GET /admin/v1/limits/111111111111"] = {"effective": {"Account": {}, "Queue": {}}}

    shown = run("limit", "show", "--account", "111111111111", "--data", data)

    assert (shown.code, shown.out) == (0, "")
    assert "No limit holds for the account 111111111111" in shown.err
