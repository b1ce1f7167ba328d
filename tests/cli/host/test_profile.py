"""Profiles: how to reach servers and cells, under names."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from harness.command_line import ACCESS_KEY_ID, SECRET, PlayedServer, Run

from quaymaster.cli.shared import loading
from quaymaster.cli.shared.profile_files import Profile, create_profile, read_profile

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY_ID,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": "eu-test-1",
}


def test_a_profile_of_a_data_directory_reaches_its_server_from_anywhere(
    run: Run, data: Path, server: PlayedServer
) -> None:
    server.answers["ListQueues"] = {"QueueUrls": [server.queue_url("orders")]}
    server.answers["GET /admin/v1/accounts"] = {"accounts": []}
    created = run("profile", "create", "shop", "--data", data)

    for words in (("--profile", "shop", "queue", "list"), ("queue", "list", "--profile", "shop")):
        assert run(*words, "--names-only").out == "orders\n"
    assert run("account", "list", "--profile", "shop").code == 0
    assert run("env", "--profile", "shop").out == run("env", "--data", data).out
    assert run("queue", "list", environment={"QUAYMASTER_PROFILE": "shop"}).code == 0
    assert stat.S_IMODE(Path(created.out.strip()).stat().st_mode) == 0o600


def test_a_profile_of_an_endpoint_takes_credentials_from_the_environment(
    run: Run, server: PlayedServer
) -> None:
    words = ("profile", "create", "shop", "--endpoint-url", server.url, "--admin-url", server.url)
    server.answers["GET /admin/v1/accounts"] = {"accounts": []}

    assert run(*words).code == 2
    assert run(*words, environment=CREDENTIALS).code == 0
    assert run("account", "list", "--profile", "shop").code == 0
    assert run(*words, environment=CREDENTIALS).code == 1  # not overwritten


def test_the_profile_in_use_weighs_less_than_flags_and_variables(
    run: Run, data: Path, server: PlayedServer, tmp_path: Path
) -> None:
    run("profile", "create", "shop", "--data", data)
    elsewhere = {"QUAYMASTER_DATA_DIRECTORY": str(tmp_path / "elsewhere")}

    assert run("queue", "list").code == 3
    assert run("profile", "use", "shop").code == 0
    assert run("queue", "list").code == 0
    assert run("queue", "list", "--data", tmp_path / "elsewhere").code == 3
    assert run("queue", "list", "--profile", "shop", environment=elsewhere).code == 0
    assert run("queue", "list", environment=elsewhere).code == 3


def test_a_profile_named_by_a_flag_weighs_more_than_an_endpoint_in_the_environment(
    run: Run, data: Path, server: PlayedServer
) -> None:
    run("profile", "create", "shop", "--data", data)
    environment = CREDENTIALS | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}

    assert run("queue", "list", "--profile", "shop", environment=environment).code == 0
    assert run("queue", "list", environment=environment | {"QUAYMASTER_PROFILE": "shop"}).code == 3
    assert run("queue", "list", "--profile", "shop", "--data", data).code == 2


def test_profiles_are_listed_shown_without_secrets_and_deleted(
    run: Run, data: Path, server: PlayedServer
) -> None:
    run("profile", "create", "shop", "--data", data, "--use")
    run("profile", "create", "eu1", "--set", "node=me")

    listed = run("profile", "list")
    shown = run("profile", "show", "--json")

    assert listed.out == f"eu1\tfalse\t-\t-\t-\nshop\ttrue\t{server.url}\t{server.url}\t-\n"
    assert (shown.json["name"], shown.json["secret_access_key"]) == ("shop", "********")
    assert SECRET not in run("profile", "list", "--json").out + run("profile", "show", "shop").out
    assert run("profile", "delete", "shop").code == 0
    assert run("profile", "show").code == 1
    assert run("queue", "list").code == 3


def test_what_is_no_profile_is_refused(run: Run, tmp_path: Path) -> None:
    assert run("profile", "create", "shop").code == 2
    assert run("profile", "create", "../shop", "--set", "node=me").code == 2
    for words in (
        ("profile", "use", "shop"),
        ("profile", "delete", "shop"),
        ("queue", "list", "--profile", "shop"),
    ):
        assert run(*words).code == 1
    run("profile", "create", "eu1", "--set", "node=me")
    assert "no endpoint" in run("queue", "list", "--profile", "eu1").err
    (tmp_path / "config/quaymaster/profiles/odd.toml").write_text("port = 3\n")
    assert "port is nothing that it can say" in run("queue", "list", "--profile", "odd").err
    (tmp_path / "config/quaymaster/profiles/odd.toml").write_text("port = \n")
    assert "cannot be read" in run("queue", "list", "--profile", "odd").err


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    profile = Profile(
        endpoint_url="http://[::1]:9324",
        secret_access_key='"\\\n\u00e9\u007f',
        settings={"node": "a=b", "cell": '"'},
    )

    create_profile("p", profile, environment)

    assert read_profile("p", environment) == profile


def test_processes_of_a_cell_are_asked_with_the_settings_of_a_profile(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "cell.toml"
    config.write_text('cell = "eu1"\nnode = "file"\n')
    asked: list[Any] = []

    def load(*given: Any) -> tuple[None, dict[str, str]]:
        asked.append(given)
        return None, {}

    monkeypatch.setattr(loading, "load_settings_of", load)
    run("profile", "create", "eu1", "--config", config, "--set", "node=me", "--set", "zone=z1", "--use")

    loading.load_for(None, ["zone=z2"])
    monkeypatch.setenv("QUAYMASTER_NODE", "you")
    monkeypatch.setenv("QUAYMASTER_CONFIG", "other.toml")
    loading.load_for(None, None)

    first, second = ((given[0], given[4]) for given in asked)
    assert first == (config, ["node=me", "zone=z2"])
    assert second == (None, ["zone=z1"])


def test_commands_that_are_processes_take_no_profile(run: Run) -> None:
    for process in ("serve", "run broker", "settings", "doctor", "restore"):
        assert "--profile" not in run(*process.split(), "--help").out
    for asking in ("env", "queue redrive start", "cell status", "journal recover", "force-store"):
        assert "--profile" in run(*asking.split(), "--help").out
