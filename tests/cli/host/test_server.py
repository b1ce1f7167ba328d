from __future__ import annotations

import gc
import json
import shlex
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from harness.command_line import ACCESS_KEY_ID, SECRET, PlayedServer, Refusal, Run, write_client_file

import quaymaster
from quaymaster.cli.cells import roles
from quaymaster.cli.host import server as server_commands
from quaymaster.cli.shared import loading


def test_version_is_the_package_version(run: Run) -> None:
    assert run("--version").out == f"quaymaster {quaymaster.__version__}\n"


@pytest.mark.parametrize("all_services", [False, True])
def test_env_prints_shell_lines_that_sdks_read(
    run: Run, data: Path, server: PlayedServer, all_services: bool
) -> None:
    """Clients of other AWS services are sent here only where that was asked for."""
    result = run("env", "--data", data, *(["--all-services"] if all_services else []))

    lines = [shlex.split(line) for line in result.out.splitlines()]
    assert {line[0] for line in lines} == {"export"}
    assert dict(line[1].split("=", 1) for line in lines) == {
        "AWS_ENDPOINT_URL_SQS": server.url,
        **({"AWS_ENDPOINT_URL": server.url} if all_services else {}),
        "AWS_DEFAULT_REGION": "eu-test-1",
        "AWS_REGION": "eu-test-1",
        "AWS_ACCESS_KEY_ID": ACCESS_KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }


def test_env_as_json_has_what_a_client_needs(run: Run, data: Path, server: PlayedServer) -> None:
    result = run("env", "--data", data, "--json")

    assert result.code == 0
    assert result.json == {
        "endpoint_url": server.url,
        "admin_url": server.url,
        "region": "eu-test-1",
        "account_id": "000000000000",
        "access_key_id": ACCESS_KEY_ID,
        "secret_access_key": SECRET,
    }


def test_env_says_when_no_key_can_sign(run: Run, data: Path) -> None:
    path = data / "client.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"access_key_id": "", "secret_access_key": ""}))

    assert "no enabled access key" in run("env", "--data", data).err


def test_env_takes_the_data_directory_from_the_environment(run: Run, data: Path) -> None:
    result = run("env", environment={"QUAYMASTER_DATA_DIRECTORY": str(data)})

    assert result.code == 0
    assert ACCESS_KEY_ID in result.out


def test_env_says_when_no_server_was_started_there(run: Run, tmp_path: Path) -> None:
    result = run("env", "--data", tmp_path / "nowhere")

    assert (result.code, result.out) == (3, "")
    assert "nowhere/client.json does not exist" in result.err
    assert "quaymaster serve --data" in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("content", ["", "{", "[]", '{"endpoint_url": "http://127.0.0.1:1"}'])
def test_env_says_when_the_client_file_is_not_whole(run: Run, tmp_path: Path, content: str) -> None:
    (tmp_path / "client.json").write_text(content)

    result = run("env", "--data", tmp_path)

    assert result.code == 3
    assert "is not whole" in result.err


def test_failures_are_an_object_with_json(run: Run, tmp_path: Path) -> None:
    result = run("env", "--data", tmp_path, "--json")

    assert result.code == 3
    assert "does not exist" in json.loads(result.err)["error"]["message"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("queue", "show", "--json", "--nonsense"),
        ("queue", "show", "--json"),
        ("queue", "--json"),
        ("nonsense", "--json"),
        ("message", "receive", "orders", "-n", "many", "--json"),
    ],
)
def test_a_wrong_command_line_is_an_object_with_json(run: Run, arguments: tuple[str, ...]) -> None:
    result = run(*arguments)

    assert (result.code, result.out) == (2, "")
    error = json.loads(result.err)["error"]
    assert set(error) == {"code", "message"}
    assert error["message"]


def test_a_text_that_looks_like_an_option_asks_for_no_json(run: Run, tmp_path: Path) -> None:
    result = run("message", "send", "--data", tmp_path, "--", "orders", "--json")

    assert result.code == 3
    assert result.err.startswith("quaymaster: ")


def test_help_is_no_failure_with_json(run: Run) -> None:
    result = run("queue", "show", "--json", "--help")

    assert (result.code, result.err) == (0, "")
    assert "Usage: quaymaster queue show" in result.out


def test_the_code_of_a_failure_is_beside_the_message_with_json(
    run: Run, data: Path, server: PlayedServer
) -> None:
    code = "AWS.SimpleQueueService.NonExistentQueue"
    server.answers["GetQueueUrl"] = Refusal(400, code, "The specified queue does not exist.")

    as_json = run("queue", "show", "orders", "--data", data, "--json")
    as_text = run("queue", "show", "orders", "--data", data)

    assert (as_json.code, as_text.code) == (1, 1)
    assert json.loads(as_json.err) == {
        "error": {"code": code, "message": "The specified queue does not exist."}
    }
    assert as_text.err == f"quaymaster: The specified queue does not exist. ({code})\n"


def test_a_wrong_command_line_is_a_usage_error(run: Run) -> None:
    assert run("queue", "create").code == 2
    assert run("nonsense").code == 2
    assert run("env", "--nonsense").code == 2


def test_settings_show_value_and_origin(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "quaymaster.toml"
    config.write_text('region = "eu-north-1"\nlisten = "127.0.0.1:1"\n')

    result = run(
        *(
            "settings",
            "--config",
            config,
            "--listen",
            "127.0.0.1:7000",
            "--set",
            "slow_request_ms=5",
            "--json",
        ),
        environment={"QUAYMASTER_LOG_LEVEL": "debug"},
    )

    assert result.code == 0
    assert result.json["region"] == {"value": "eu-north-1", "origin": str(config)}
    assert result.json["listen"] == {"value": "127.0.0.1:7000", "origin": "command line"}
    assert result.json["slow_request_ms"] == {"value": 5, "origin": "command line"}
    assert result.json["log_level"] == {"value": "debug", "origin": "QUAYMASTER_LOG_LEVEL"}
    assert result.json["account_id"] == {"value": "000000000000", "origin": "default"}


def test_settings_never_show_secrets(run: Run) -> None:
    result = run(
        "settings", environment={"QUAYMASTER_MASTER_KEY": "c2VjcmV0", "QUAYMASTER_LOG_LEVEL": "info"}
    )

    assert result.code == 0
    assert "c2VjcmV0" not in result.out


def test_settings_warn_of_variables_that_are_none(run: Run) -> None:
    result = run("settings", environment={"QUAYMASTER_LISTN": "127.0.0.1:1"})

    assert result.code == 0
    assert "QUAYMASTER_LISTN" in result.err
    assert "QUAYMASTER_LISTEN?" in result.err


def test_serve_refuses_settings_that_cannot_be(run: Run) -> None:
    result = run("serve", "--listen", "nowhere")

    assert result.code == 2
    assert "'nowhere' is not an address" in result.err


def test_garbage_is_collected_later_while_a_process_begins(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    collects: list[bool] = []

    def begin(process: Coroutine[Any, Any, int]) -> None:
        process.close()
        collects.append(gc.isenabled())

    monkeypatch.setattr(loading, "_raise_file_limit", lambda: None)  # it would be that of all tests here
    monkeypatch.setattr(server_commands, "run_process", begin)
    monkeypatch.setattr(roles, "run_process", begin)

    assert run("serve", "--data", tmp_path / "data").code == 0
    assert run("run", "broker").code == 0

    assert collects == [False, False]
    assert gc.isenabled()


def test_backup_goes_through_the_admin_api_with_an_absolute_path(
    run: Run, data: Path, server: PlayedServer, tmp_path: Path
) -> None:
    server.answers["POST /admin/v1/backup"] = {"path": str(tmp_path / "copy")}

    result = run("backup", "copy", "--data", data)

    assert result.code == 0
    assert server.called("POST /admin/v1/backup") == [{"path": str(tmp_path / "copy")}]
    assert str(tmp_path / "copy") in result.out


def test_restore_refuses_a_directory_with_something_in_it(run: Run, data: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()

    result = run("restore", tmp_path / "copy", "--data", data)

    assert result.code == 1
    assert "is not empty" in result.err


def test_restore_says_when_there_is_no_backup(run: Run, tmp_path: Path) -> None:
    result = run("restore", tmp_path / "copy", "--data", tmp_path / "new")

    assert result.code == 2
    assert "copy does not exist" in result.err


def test_a_server_that_is_not_running_is_said_so(run: Run, tmp_path: Path) -> None:
    # Port 1 (tcpmux) is privileged and unused: nobody listens there.
    write_client_file(tmp_path, "http://127.0.0.1:1", "http://127.0.0.1:1")

    result = run("queue", "list", "--data", tmp_path)

    assert result.code == 3
    assert "Is the server running?" in result.err


def test_endpoint_url_takes_credentials_from_the_environment(run: Run, server: PlayedServer) -> None:
    credentials = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "eu-test-1",
    }

    result = run("queue", "list", "--endpoint-url", server.url, environment=credentials)

    assert (result.code, result.err) == (0, "")
    assert [call.what for call in server.calls] == ["ListQueues"]


def test_endpoint_url_without_credentials_is_a_usage_error(run: Run, server: PlayedServer) -> None:
    result = run("queue", "list", "--endpoint-url", server.url)

    assert result.code == 2
    assert "AWS_ACCESS_KEY_ID" in result.err
    assert server.calls == []


def test_data_and_endpoint_url_exclude_each_other(run: Run, data: Path, server: PlayedServer) -> None:
    assert run("queue", "list", "--data", data, "--endpoint-url", server.url).code == 2


def test_a_connection_the_server_closed_is_opened_again(run: Run, data: Path, server: PlayedServer) -> None:
    server.close_after_each = True

    result = run("queue", "show", "orders", "--data", data, "--json")

    assert (result.code, result.err) == (0, "")
    assert result.json["name"] == "orders"
