from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from harness.command_line import PlayedServer, Run
from harness.waiting import PATIENCE_S

from quaymaster.cli.commands import COMMANDS, whole_command
from quaymaster.cli.main import FIRST_STEPS
from quaymaster.cli.shared import output


def on_terminal(*arguments: str) -> str:
    """Return what a command prints when both its outputs are a terminal 100 columns wide."""
    reading, writing = pty.openpty()
    pieces: list[bytes] = []

    def read() -> None:
        try:
            while piece := os.read(reading, 4096):
                pieces.append(piece)
        except OSError:
            return  # how Linux says that the other side is closed

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        subprocess.run(
            [sys.executable, "-m", "quaymaster.cli.main", *arguments],
            stdout=writing,
            stderr=writing,
            stdin=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], "COLUMNS": "100", "TERM": "xterm", "NO_COLOR": "1"},
            timeout=PATIENCE_S,
            check=True,
        )
    finally:
        os.close(writing)
        reader.join()
        os.close(reading)
    return b"".join(pieces).decode()


def test_a_terminal_gets_a_table_with_headers(data: Path, server: PlayedServer) -> None:
    server.answers["GET /admin/v1/queues/orders/messages?count=10"] = {
        "messages": [
            {
                "sequence": 1,
                "state": "visible",
                "delivery_count": 0,
                "sent_ms": 1_700_000_000_000,
                "message_id": "id-1",
                "body": "[red]not markup[/red]",
            }
        ],
        "next_sequence": 0,
    }

    printed = on_terminal("queue", "peek", "orders", "--data", str(data))

    assert "SEQUENCE" in printed
    assert "[red]not markup[/red]" in printed


def test_a_terminal_gets_a_progress_bar(data: Path, server: PlayedServer) -> None:
    server.answers["CreateQueue"] = {"QueueUrl": server.queue_url("bench")}

    printed = on_terminal("bench", "--seconds", "0.3", "--connections", "1", "--data", str(data))

    assert "Sending, receiving, deleting" in printed
    assert "MESSAGES/S" in printed


def test_a_pipe_gets_one_line_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("A", "B"), [("one\ntwo", None), (True, 5)])

    assert capsys.readouterr().out == "one two\t-\ntrue\t5\n"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (200 << 20, "200 MiB"), (5 << 40, "5.0 TiB")],
)
def test_sizes_are_shown_in_binary_units(count: int, text: str) -> None:
    assert output.bytes_as_text(count) == text


def test_times_are_shown_in_utc() -> None:
    assert output.time_as_text(1_700_000_000_999) == "2023-11-14 22:13:20Z"
    assert output.time_as_text(0) == output.time_as_text(None) == "-"


def modules_after(*arguments: str) -> set[str]:
    """Return the modules that a process has imported once it has run a command."""
    program = (
        "import sys\n"
        "from quaymaster.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    pass\n"
        "print(*sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return set(done.stdout.splitlines()[-1].split())


SLOW = {"rich", "asyncio", "uvloop", "cryptography", "msgspec", "prometheus_client", "quaymaster.settings"}


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("queue", "--help"), ("env", "--data", "nowhere"), ("audit", "--help")],
    ids=" ".join,
)
def test_quick_commands_import_nothing_slow(arguments: tuple[str, ...]) -> None:
    assert modules_after(*arguments) & SLOW == set()


@pytest.mark.parametrize(
    "words", ["queue list --data nowhere", "message send orders hello", "profile list", "account list"]
)
def test_commands_check_texts_and_paths_without_pydantic(words: str) -> None:
    # What speaks the protocol needs msgspec.
    assert modules_after(*words.split()) & {"pydantic", *SLOW - {"msgspec"}} == set()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("queue peek orders --limit 3000", "less than or equal to 1000"),
        ("message receive orders --wait-seconds soon", "valid integer"),
        ("message send", "Missing argument"),
        ("billing invoice --month 2026-11 --format odt", "odt"),
    ],
)
def test_what_is_no_text_is_checked(run: Run, words: str, problem: str) -> None:
    refused = run(*words.split())

    assert refused.code == 2
    assert problem in refused.err


@pytest.mark.parametrize("arguments", [(), ("--version",)], ids=str)
def test_what_needs_no_command_imports_none(arguments: tuple[str, ...]) -> None:
    assert modules_after(*arguments) & {"typer", "pydantic", *SLOW} == set()


def test_a_command_imports_no_other_command() -> None:
    places = {place.partition(":")[0] for place in COMMANDS.values()}

    imported = modules_after("message", "--help")

    assert imported & places == {"quaymaster.cli.queues.message"}
    assert not any(name.startswith("quaymaster_pipeline") for name in imported)


def test_a_wrong_name_is_answered_with_the_right_one_of_any_package(run: Run) -> None:
    assert "Did you mean 'queue'?" in run("queu", "list").err
    assert "Did you mean 'billing'?" in run("biling").err


def test_without_arguments_it_says_what_to_do_first(run: Run) -> None:
    said = run()

    assert said.code == 0
    for words in (
        "quaymaster serve",
        "message send",
        "message receive",
        "quaymaster --help",
        "docs/start.md",
    ):
        assert words in said.out


def test_the_first_steps_are_commands_that_exist() -> None:
    shown = re.findall(r"quaymaster ([a-z]+)(?: ([a-z]+))?", FIRST_STEPS)

    assert len(shown) > 5
    for group, name in shown:
        command = whole_command().commands[group]
        assert not hasattr(command, "commands") or name in command.commands, (group, name)


def test_a_server_starts_without_what_calls_other_systems() -> None:
    program = "import sys, quaymaster.node.roles\nprint(*sys.modules)"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert not {"aiohttp", "opentelemetry"} & set(done.stdout.split())
