"""Options mean the same in all commands, and are spelled alike."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from harness.command_line import Run

from quaymaster.cli.commands import whole_command
from quaymaster.cli.shared.failures import WrongUsage
from quaymaster.cli.shared.options import gathered, parse_time

OTHER_WORDS = {"--count", "--max", "--every", "--max-results", "--wait-time-seconds", "--force"}
"""Names that one idea had in some command, or has elsewhere."""


def commands() -> Iterator[tuple[str, Any]]:
    def walk(command: Any, words: str) -> Iterator[tuple[str, Any]]:
        if hasattr(command, "commands"):
            for name, child in command.commands.items():
                yield from walk(child, f"{words} {name}".strip())
        else:
            yield words, command

    yield from walk(whole_command(), "")


def test_yes_and_wait_are_flags_and_confirm_takes_a_name() -> None:
    options = [(words, option) for words, command in commands() for option in command.params]

    for name, is_flag in (("--yes", True), ("--wait", True), ("--confirm", False), ("--wait-seconds", False)):
        found = {words: option.is_flag for words, option in options if name in option.opts}
        assert found, name
        assert set(found.values()) == {is_flag}, found


def test_one_idea_has_one_option() -> None:
    for words, command in commands():
        flags = {flag for option in command.params for flag in option.opts}
        assert not flags & OTHER_WORDS, words
        short = {flag for option in command.params if "-n" in option.opts for flag in option.opts}
        assert short <= {"-n", "--limit"}, words


def test_every_command_but_daemons_prints_json() -> None:
    for words, command in commands():
        is_daemon = words in ("serve", "edge run", "forward") or words.startswith("run ")
        prints_file = words == "edge render host"
        has_json = any("--json" in option.opts for option in command.params)
        assert has_json != (is_daemon or prints_file), words


def test_a_file_of_settings_that_is_right_is_said_to_be(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "cell.toml"
    path.write_text('cell = "eu1"\nreplicas = 3\n')

    assert run("config", "check", path).out == f"{path} is right: 2 settings\n"
    by_variable = run("config", "check", "--json", environment={"QUAYMASTER_CONFIG": str(path)})
    assert by_variable.json == {"file": str(path), "settings": ["cell", "replicas"]}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('zell = "eu1"\n', "there is no setting zell; did you mean cell?"),
        ('listen = "nowhere"\n', "listen 'nowhere' is not possible"),
        ("cell = \n", "is not TOML"),
        (None, "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_file_of_settings_is_said(
    run: Run, tmp_path: Path, text: str | None, problem: str
) -> None:
    path = tmp_path / "cell.toml"
    if text is not None:
        path.write_text(text)

    done = run("config", "check", path)

    assert done.code == 2
    assert problem in done.err


def test_a_wrong_line_is_found_though_a_variable_outweighs_it(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "cell.toml"
    path.write_text('listen = "nowhere"\n')

    assert run("config", "check", path, environment={"QUAYMASTER_LISTEN": "127.0.0.1:0"}).code == 2


def test_a_check_without_a_file_asks_for_one(run: Run) -> None:
    assert "Name a file" in run("config", "check").err


@dataclass(frozen=True, kw_only=True)
class GreetOptions:
    name: Annotated[str, typer.Argument(metavar="NAME")]
    times: Annotated[int, typer.Option("--times")] = 1


def test_a_command_takes_many_options_as_one_value_in_the_order_of_its_fields() -> None:
    seen: list[object] = []
    app = typer.Typer()

    @app.command()
    @gathered
    def greet(context: typer.Context, given: GreetOptions) -> None:
        """Greet."""
        seen.append((context.info_name, given))

    command = typer.main.get_command(app)
    command.main(["--times", "2", "Ada"], prog_name="greet", standalone_mode=False)

    assert seen == [("greet", GreetOptions(name="Ada", times=2))]
    assert command.help == "Greet."
    assert [parameter.name for parameter in command.params][:2] == ["name", "times"]


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "foo", ""])
def test_a_time_that_is_none_in_utc_is_refused_as_others(text: str) -> None:
    with pytest.raises(WrongUsage, match="--since takes an hour, not"):
        parse_time(text, "--since", "an hour")


def test_a_time_of_another_zone_is_in_utc() -> None:
    assert parse_time("2026-11-22T10+02:00", "--since", "an hour").hour == 8


def test_the_package_is_run_as_the_command(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("sys.argv", ["quaymaster", "--version"])

    with pytest.raises(SystemExit) as ended:
        runpy.run_module("quaymaster", run_name="__main__")

    assert not ended.value.code
    assert capsys.readouterr().out.startswith("quaymaster ")
