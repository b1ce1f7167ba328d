"""How a command says that it could not do what it was asked: one clear line, and an exit code for scripts.

0  done
1  refused: the service said no, or `doctor` found something wrong
2  usage: the command line, a setting or a file named in it is wrong
3  no server: not found, not reachable, or not able to answer now; worth trying again. Or done, but not everywhere yet
130  interrupted
"""

from __future__ import annotations

from typing import ClassVar

EXIT_REFUSED = 1
EXIT_USAGE = 2
EXIT_NO_SERVER = 3
EXIT_INTERRUPTED = 130


def reason_of(error: Exception) -> str:
    """Return what went wrong with a file, without its path, which the message that this is for names already."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def as_sentence(words: object) -> str:
    """Return words that may be a sentence already, with one full stop at the end."""
    text = str(words).rstrip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


class CommandFailed(Exception):
    """A command ends here. `message` is a sentence; `code` the service's error code, if it gave one."""

    exit_code: ClassVar[int] = EXIT_REFUSED

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code

    @property
    def line(self) -> str:
        """The message for people: with the code, which programs get beside it."""
        return f"{self.message} ({self.code})" if self.code else self.message


class CommandRefused(CommandFailed):
    """The service understood, and said no."""


class WrongUsage(CommandFailed):
    """What was asked for cannot be right, whatever the server's state."""

    exit_code = EXIT_USAGE


class NoServer(CommandFailed):
    """There is no one to ask, or no one who can answer now."""

    exit_code = EXIT_NO_SERVER


class NotEverywhere(CommandFailed):
    """It is done, but some front ends do not know of it yet."""

    exit_code = EXIT_NO_SERVER


told_at_the_end: list[CommandFailed] = []
"""What a command ends with after it has printed its result: a new secret, say, must be shown all the same."""
