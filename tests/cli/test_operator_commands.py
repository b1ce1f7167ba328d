from __future__ import annotations

from pathlib import Path

from harness.command_line import PlayedServer, Refusal, Run

KEY = {
    "access_key_id": "AK",
    "account_id": "000000000000",
    "name": "",
    "enabled": True,
    "created_ms": 1_700_000_000_000,
}


ACCOUNT = {
    "account_id": "111111111111",
    "name": "shop",
    "created_ms": 1_700_000_000_000,
    "state": "enabled",
    "deleted_ms": None,
}


def test_accounts_are_listed_with_their_states(run: Run, data: Path, server: PlayedServer) -> None:
    gone = ACCOUNT | {"account_id": "222222222222", "state": "deleted", "deleted_ms": 1_700_000_000_001}
    server.answers["GET /admin/v1/accounts"] = {"accounts": [ACCOUNT]}
    server.answers["GET /admin/v1/accounts?deleted=true"] = {"accounts": [ACCOUNT, gone]}

    one = "111111111111\tshop\t2023-11-14 22:13:20Z\tenabled\n"
    assert run("account", "list", "--data", data).out == one
    assert run("account", "list", "--data", data, "--json").json == {"accounts": [ACCOUNT]}
    assert run("account", "list", "--deleted", "--data", data).out == (
        one + "222222222222\tshop\t2023-11-14 22:13:20Z\tdeleted\n"
    )


def test_an_account_is_disabled_and_enabled_by_id(run: Run, data: Path, server: PlayedServer) -> None:
    disabled = ACCOUNT | {"state": "disabled"}
    server.answers["POST /admin/v1/accounts/111111111111/disable"] = disabled
    server.answers["POST /admin/v1/accounts/111111111111/enable"] = ACCOUNT

    assert run("account", "disable", "111111111111", "--data", data).out == (
        "The account 111111111111 (shop) is disabled.\n"
    )
    assert run("account", "disable", "111111111111", "--data", data, "--json").json == disabled
    assert run("account", "enable", "111111111111", "--data", data).out.endswith("is enabled.\n")


def test_an_account_is_deleted_when_its_id_is_given_once_more(
    run: Run, data: Path, server: PlayedServer
) -> None:
    deleted = {"account_id": "111111111111", "deleted": True}
    server.answers["DELETE /admin/v1/accounts/111111111111"] = deleted
    delete = ("account", "delete", "111111111111", "--data", data)

    unanswered = run(*delete)
    wrong = run(*delete, "--confirm", "111111111112")
    mistyped = run(*delete, stdin="shop\n", is_terminal=True)
    assert server.calls == []
    typed = run(*delete, stdin="111111111111\n", is_terminal=True)
    confirmed = run(*delete, "--confirm", "111111111111", "--json")

    assert unanswered.code == 2
    assert "give --confirm 111111111111" in unanswered.err
    assert wrong.code == mistyped.code == 1
    assert "nothing was deleted" in wrong.err
    assert typed.out == "Deleted the account 111111111111.\n"
    assert "deletes the account 111111111111 and its access keys for good" in typed.err
    assert confirmed.json == deleted


def test_why_an_account_is_not_deleted_is_one_line(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["DELETE /admin/v1/accounts/111111111111"] = Refusal(
        400, "UnsupportedOperation", "The account 111111111111 has 2 queues."
    )

    result = run("account", "delete", "111111111111", "--confirm", "111111111111", "--data", data)

    assert result.code == 1
    assert result.err == "quaymaster: The account 111111111111 has 2 queues. (UnsupportedOperation)\n"


def test_accounts_are_listed_page_by_page(run: Run, data: Path, server: PlayedServer) -> None:
    one, two = ({"account_id": 12 * digit, "name": digit, "created_ms": 5} for digit in "12")
    server.answers["GET /admin/v1/accounts"] = {"accounts": [one], "next_token": one["account_id"]}
    server.answers[f"GET /admin/v1/accounts?next_token={one['account_id']}"] = {
        "accounts": [two],
        "next_token": None,
    }

    assert run("account", "list", "--data", data, "--json").json == {"accounts": [one, two]}


def test_a_new_account_comes_with_a_key_whose_secret_is_shown_once(
    run: Run, data: Path, server: PlayedServer
) -> None:
    server.answers["POST /admin/v1/accounts"] = {
        "account_id": "111111111111",
        "name": "shop",
        "created_ms": 5,
        "access_key_id": "AK",
        "secret_access_key": "once",
    }

    result = run("account", "create", "shop", "--id", "111111111111", "--data", data)

    assert "secret_access_key\tonce\n" in result.out
    assert server.called("POST /admin/v1/accounts") == [{"name": "shop", "account_id": "111111111111"}]


def test_keys_of_the_own_account_are_listed(run: Run, data: Path, server: PlayedServer) -> None:
    of_user = {**KEY, "access_key_id": "AU", "user": "ann", "last_used_ms": 1_700_002_800_000}
    unused = {**KEY, "access_key_id": "AN", "last_used_ms": None}
    server.answers["GET /admin/v1/keys?account_id=000000000000"] = {"keys": [KEY, of_user, unused]}

    assert run("key", "list", "--data", data).out.splitlines() == [
        "AK\t000000000000\t-\t-\ttrue\t2023-11-14 22:13:20Z\tunknown",
        "AU\t000000000000\tann\t-\ttrue\t2023-11-14 22:13:20Z\t2023-11-14 23:00:00Z",
        "AN\t000000000000\t-\t-\ttrue\t2023-11-14 22:13:20Z\tnever",
    ]


def test_a_key_is_created_for_the_account_named(run: Run, data: Path, server: PlayedServer) -> None:
    run("key", "create", "--data", data)
    run("key", "create", "--account", "111111111111", "--name", "shop", "--data", data)

    assert server.called("POST /admin/v1/keys") == [
        {"account_id": "000000000000", "name": ""},
        {"account_id": "111111111111", "name": "shop"},
    ]


def test_a_new_secret_and_temporary_credentials_are_shown_once(
    run: Run, data: Path, server: PlayedServer
) -> None:
    server.answers["POST /admin/v1/keys/AK/rotate"] = {**KEY, "secret_access_key": "new"}
    temporary = {**KEY, "secret_access_key": "brief", "session_token": "token", "expires_ms": 5}
    server.answers["POST /admin/v1/keys/AK/session"] = temporary

    rotated = run("key", "rotate", "AK", "--data", data)
    session = run("key", "session", "AK", "--seconds", "900", "--data", data)

    assert "secret_access_key\tnew\n" in rotated.out
    assert "session_token\ttoken\n" in session.out
    assert server.called("POST /admin/v1/keys/AK/session") == [{"duration_s": 900}]


def test_keys_are_disabled_enabled_and_deleted_by_id(run: Run, data: Path, server: PlayedServer) -> None:
    for command in ("disable", "enable", "delete"):
        assert run("key", command, "A/K", "--data", data).code == 0

    assert [call.what for call in server.calls] == [
        "POST /admin/v1/keys/A%2FK/disable",
        "POST /admin/v1/keys/A%2FK/enable",
        "DELETE /admin/v1/keys/A%2FK",
    ]


def test_rotation_says_what_was_done(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["POST /admin/v1/keys/rotate-master"] = {
        "master_key_id": "mk-2",
        "previous_master_key_id": "mk-1",
    }

    rotated = run("master-key", "rotate", "--data", data)
    as_json = run("master-key", "rotate", "--data", data, "--json")

    assert rotated.out == "master_key_id mk-2, previous_master_key_id mk-1\n"
    assert rotated.err.endswith("Backups made before this need the old master key mk-1: keep a copy of it.\n")
    assert as_json.json["previous_master_key_id"] == "mk-1"
    assert run("receipt-key", "rotate", "--data", data).code == 0


def test_the_key_of_session_tokens_is_rotated(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["POST /admin/v1/keys/rotate-sessions"] = {"session_key_id": 2}

    assert run("session-key", "rotate", "--data", data).out == "session_key_id 2\n"
    assert run("session-key", "rotate", "--data", data, "--json").json == {"session_key_id": 2}


def test_issuers_of_web_identity_tokens_are_set_listed_and_deleted(
    run: Run, data: Path, server: PlayedServer, tmp_path: Path
) -> None:
    issuer = {"name": "oidc.example.com/ci", "audiences": ["a", "b"], "keys_url": None, "changed_ms": 0}
    server.answers["POST /admin/v1/oidc"] = {**issuer, "key_count": 1}
    server.answers["GET /admin/v1/oidc"] = {
        "issuers": [
            {**issuer, "key_count": 7},
            {**issuer, "key_count": None},
            {**issuer, "key_count": None, "keys_url": "https://keys"},
        ]
    }
    server.answers["DELETE /admin/v1/oidc/oidc.example.com%2Fci"] = {"deleted": True}
    keys = tmp_path / "jwks.json"
    keys.write_text('{"keys": []}')
    setting = (
        "oidc",
        "set",
        "https://oidc.example.com/ci",
        "--audience",
        "a",
        "--audience",
        "b",
        "--data",
        data,
    )

    given = run(*setting, "--keys", keys)
    fetched = run(*setting, "--keys-url", "https://keys", "--json")
    listed = run("oidc", "list", "--data", data)
    missing = run(*setting, "--keys", tmp_path / "none")
    deleted = run("oidc", "delete", "https://oidc.example.com/ci", "--data", data)

    assert given.out == "Tokens of oidc.example.com/ci are taken.\n"
    assert fetched.json["key_count"] == 1
    sent = [call.fields for call in server.calls if call.what == "POST /admin/v1/oidc"]
    common = {"issuer": "https://oidc.example.com/ci", "audiences": ["a", "b"]}
    assert sent == [{**common, "keys": '{"keys": []}'}, {**common, "keys_url": "https://keys"}]
    for shown in ("7", "by discovery", "from https://keys"):
        assert shown in listed.out
    assert missing.code == 2
    assert deleted.out == "Deleted the issuer https://oidc.example.com/ci.\n"


def test_an_error_of_the_admin_api_is_one_line(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["POST /admin/v1/accounts"] = Refusal(400, "AccountExists", "The account exists.")

    result = run("account", "create", "shop", "--data", data)

    assert result.code == 1
    assert result.err == "quaymaster: The account exists. (AccountExists)\n"


def test_operator_commands_need_to_know_the_admin_port(run: Run, server: PlayedServer) -> None:
    environment = {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": "QMTESTKEY",
        "AWS_SECRET_ACCESS_KEY": "a secret only the tests know",
        "AWS_DEFAULT_REGION": "eu-test-1",
    }

    without = run("account", "list", environment=environment)
    server.answers["GET /admin/v1/accounts"] = {"accounts": []}
    with_url = run("account", "list", "--admin-url", server.url, environment=environment)

    assert without.code == 2
    assert "--admin-url" in without.err
    assert with_url.code == 0


def test_the_admin_port_is_known_after_eval_of_env(run: Run, data: Path, server: PlayedServer) -> None:
    environment = {
        "QUAYMASTER_DATA_DIRECTORY": str(data),
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": "QMTESTKEY",
        "AWS_SECRET_ACCESS_KEY": "a secret only the tests know",
        "AWS_DEFAULT_REGION": "eu-test-1",
    }
    server.answers["GET /admin/v1/accounts"] = {"accounts": []}

    assert run("account", "list", environment=environment).code == 0
    elsewhere = {"AWS_ENDPOINT_URL": server.url.replace("127.0.0.1", "localhost")}
    assert run("account", "list", environment=elsewhere).code == 2


def test_an_operator_says_that_the_clock_is_right(run: Run, data: Path, server: PlayedServer) -> None:
    assert run("clock", "accept", "--data", data).code == 0

    assert [call.what for call in server.calls] == ["POST /admin/v1/clock/accept"]


def test_front_ends_are_listed_and_one_that_is_gone_is_retired(
    run: Run, data: Path, server: PlayedServer
) -> None:
    row = {"front_end": "fe-1", "incarnation": 4, "seen_ms": 0, "sealed_incarnation": None}
    server.answers["GET /admin/v1/front-ends"] = {"front_ends": [row]}
    server.answers["POST /admin/v1/front-ends/fe-1/seal"] = [row | {"sealed_incarnation": 4}, row]

    assert run("frontend", "list", "--data", data).out == "fe-1\t4\t-\t\n"
    assert run("frontend", "list", "--data", data, "--json").json == {"front_ends": [row]}
    assert run("frontend", "retire", "fe-1", "--data", data).out == "incarnation 4 of fe-1 is sealed\n"
    assert "nothing is to be sealed" in run("frontend", "retire", "fe-1", "--data", data).out


def test_a_revocation_that_some_do_not_know_of_yet_is_done_and_told(
    run: Run, data: Path, server: PlayedServer
) -> None:
    behind = {"behind": ["fe-2", "front ends of broker b1, which does not answer"]}
    server.answers["POST /admin/v1/keys/AK/disable"] = KEY | behind
    server.answers["POST /admin/v1/keys/AK/rotate"] = KEY | behind | {"secret_access_key": "new"}

    disabled = run("key", "disable", "AK", "--data", data)
    rotated = run("key", "rotate", "AK", "--data", data, "--json")

    assert disabled.code == rotated.code == 3
    assert "some do not know of it yet: fe-2, front ends of broker b1" in disabled.err
    assert rotated.json["secret_access_key"] == "new"
