"""The `quaymaster` command: how it begins, and how it ends when something fails.

Which commands there are: `cli/commands`. Importing Typer takes longer than to answer `--version`, or to say what to do
first, which therefore is done before.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NoReturn, cast

import quaymaster
from quaymaster.cli.shared.failures import (
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    CommandFailed,
    WrongUsage,
    told_at_the_end,
)

if TYPE_CHECKING:
    import typer

FIRST_STEPS: Final = """\
Quaymaster: Amazon SQS that anyone can run.

Start a server here, with its data in ./quaymaster-data:

    quaymaster serve

Use it, from another shell in the same directory:

    quaymaster queue create orders
    quaymaster message send orders 'hello'
    quaymaster message receive orders --delete

Or with any AWS SDK, or the AWS CLI:

    eval "$(quaymaster env)"
    aws sqs list-queues

A replicated cell on this machine, to try:   quaymaster local up
All commands, and the options of one:        quaymaster --help, quaymaster COMMAND --help
Documentation:                               docs/start.md in the source
"""
QUICK_ANSWERS: Final[Mapping[str, str]] = {
    "": FIRST_STEPS,
    "--version": f"quaymaster {quaymaster.__version__}\n",
}
"""What is printed for a whole command line."""


def main() -> None:
    """Run the command line. A failure is an exit code and one line on stderr, or with --json an object.

    A command line that cannot be parsed is told by Typer, with the command's usage.
    """
    if (answer := QUICK_ANSWERS.get(" ".join(sys.argv[1:]))) is not None:
        sys.stdout.write(answer)
        sys.exit(0)

    import typer

    from quaymaster.cli.commands import app
    from quaymaster.cli.shared.profile_files import name_profile

    # All that is left ends with the process. To look through it for garbage first takes a sixth of a short command.
    atexit.register(gc.freeze)

    # What Typer raises for any wrong command line; it has no public name.
    usage_error = cast("type[typer.BadParameter]", typer.BadParameter.__base__)
    name_profile(None)
    try:
        # By itself Typer prints usage errors as text and exits; with --json they come here.
        code = app(prog_name="quaymaster", standalone_mode=not _wants_json())
        _exit_done(code if isinstance(code, int) else 0)
    except SystemExit as ended:
        _exit_done(ended.code)
    except usage_error as error:
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
        told = _told_by_others(error)
        if told is None:
            raise
        _print_failure(told)
        sys.exit(told.exit_code)


def _exit_done(code: int | str | None) -> NoReturn:
    """Exit with a code; where that says that all was well, with what a command left to be told at its end."""
    if not code and told_at_the_end:
        failure = told_at_the_end.pop()
        _print_failure(failure)
        sys.exit(failure.exit_code)
    sys.exit(code)


def _told_by_others(error: Exception) -> CommandFailed | None:
    """Return what an exception means to a user, where it is of a package that adds commands."""
    from quaymaster.cli.extensions import find_extensions

    return next(filter(None, (extension.tell(error) for extension in find_extensions())), None)


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
