"""The `quaymaster` command: which subcommands there are, and how it ends when one fails.

Modules of subcommands import only what their options need; what does the work is imported when they run, so
that `--help`, `--version`, completion and `env` answer at once.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, cast

import typer

import quaymaster
from quaymaster.cli import account, bench, ca, clock, frontend, group, key, message, options, queue, server
from quaymaster.cli.cells import brokers, cell, journals, roles
from quaymaster.cli.extensions import Extension, find_extensions
from quaymaster.cli.failures import EXIT_INTERRUPTED, EXIT_USAGE, CommandFailed, WrongUsage
from quaymaster.cli.local import commands as local

_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__base__)
"""What Typer raises for any wrong command line; it has no public name."""

app = options.new_group("Quaymaster: Amazon SQS that anyone can run.")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"quaymaster {quaymaster.__version__}")
        raise typer.Exit


@app.callback()
def quaymaster_command(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Quaymaster: Amazon SQS that anyone can run."""


app.command()(server.serve)
app.add_typer(roles.app, name="run")
app.command()(server.env)
app.add_typer(queue.app, name="queue")
app.add_typer(message.app, name="message")
app.add_typer(group.app, name="group")
app.add_typer(account.app, name="account")
app.add_typer(key.app, name="key")
app.add_typer(local.app, name="local")
_extensions: list[Extension] = find_extensions()
for _extension in _extensions:
    _extension.add_commands(app)
app.command()(server.backup)
app.command()(server.restore)
app.command()(server.doctor)
app.command("settings")(server.show_settings)
app.command()(bench.bench)
app.add_typer(key.master_key_app, name="master-key")
app.add_typer(key.receipt_key_app, name="receipt-key")
app.add_typer(clock.app, name="clock")
app.add_typer(frontend.app, name="frontend")
app.add_typer(cell.app, name="cell")
app.add_typer(brokers.app, name="broker")
app.add_typer(journals.app, name="journal")
app.add_typer(ca.app, name="ca")
app.command("force-start")(server.force_start)
app.command("force-store")(cell.force_store)


def main() -> None:
    """Run the command line. A failure is an exit code and one line on stderr, or with --json an object.

    A command line that cannot be parsed is told by Typer, with the command's usage.
    """
    try:
        # By itself Typer prints usage errors as text and exits; with --json they come here.
        code = app(prog_name="quaymaster", standalone_mode=not _wants_json())
        sys.exit(code if isinstance(code, int) else 0)
    except _UsageError as error:
        _print_failure(WrongUsage(error.format_message()))
        sys.exit(EXIT_USAGE)
    except CommandFailed as failure:
        _print_failure(failure)
        sys.exit(failure.exit_code)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader (`| head`) has what it wanted. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        told = next(filter(None, (extension.tell(error) for extension in _extensions)), None)
        if told is None:
            raise
        _print_failure(told)
        sys.exit(told.exit_code)


def _print_failure(failure: CommandFailed) -> None:
    if _wants_json():
        error = {"code": failure.code, "message": failure.message}
        sys.stderr.write(json.dumps({"error": error}, ensure_ascii=False) + "\n")
    else:
        sys.stderr.write(f"quaymaster: {failure.line}\n")


def _wants_json() -> bool:
    arguments = sys.argv[1:]
    if "--" in arguments:
        arguments = arguments[: arguments.index("--")]  # what follows is a text to send, or a name
    return "--json" in arguments


if __name__ == "__main__":
    main()
