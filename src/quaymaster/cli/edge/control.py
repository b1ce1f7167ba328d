"""Commands to a running HAProxy over its socket: its process, its certificates, its end."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

from quaymaster.cli.edge.host import FRONT_END, STAYING, STAYING_SERVER

TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 1024 * 1024
PAYLOAD_BYTES_MAX: Final = 48 * 1024
"""HAProxy takes a command and its payload in one buffer, of 64 KiB."""


class ControlFailed(Exception):
    """HAProxy does not answer, or does not do what it is told; the message says why."""


def ask(control: Path, command: str) -> str:
    """Return what an HAProxy answers.

    Raises:
        ControlFailed: it does not.
    """
    answer = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(TIMEOUT_S)
            connection.connect(str(control))
            connection.sendall(command.encode() + b"\n")
            while part := connection.recv(65_536):
                answer += part
                if len(answer) > ANSWER_BYTES_MAX:
                    raise ControlFailed(f"HAProxy answered with over {ANSWER_BYTES_MAX} bytes.")
    except OSError as error:
        raise ControlFailed(f"HAProxy cannot be reached at {control}: {error.strerror or error}.") from None
    return answer.decode(errors="replace").strip()


class LastingControl:
    """A connection for commands that was made before HAProxy stops, and stays while it does: its socket is closed then.

    HAProxy does not end before it is closed.
    """

    _PROMPT: Final = b"> "

    def __init__(self, control: Path) -> None:
        """Connect. Raises ControlFailed."""
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.settimeout(TIMEOUT_S)
        try:
            self._connection.connect(str(control))
        except OSError as error:
            self.close()
            raise ControlFailed(
                f"HAProxy cannot be reached at {control}: {error.strerror or error}."
            ) from None
        self._ask("prompt")

    def requests_in_progress(self) -> int:
        """Return how many requests wait for the front end's answer. Raises ControlFailed."""
        lines = self._ask(f"show stat {FRONT_END} 2 -1").splitlines()
        names = next((line.removeprefix("# ").split(",") for line in lines if line.startswith("# ")), [])
        values = next((line.split(",") for line in lines if line.startswith(f"{FRONT_END},")), [])
        found = dict(zip(names, values, strict=False))
        try:
            return int(found["scur"]) + int(found["qcur"])
        except (KeyError, ValueError):
            raise ControlFailed("HAProxy does not say how many requests are in progress.") from None

    def close(self) -> None:
        """Let HAProxy end."""
        self._connection.close()

    def _ask(self, command: str) -> str:
        answer = b""
        try:
            self._connection.sendall(command.encode() + b"\n")
            while not answer.endswith(self._PROMPT):
                part = self._connection.recv(65_536)
                if not part or len(answer) > ANSWER_BYTES_MAX:
                    raise ControlFailed("HAProxy does not answer any more.")
                answer += part
        except OSError as error:
            raise ControlFailed(f"HAProxy does not answer: {error.strerror or error}.") from None
        return answer.decode(errors="replace")


def announce_end(control: Path) -> None:
    """Have an HAProxy close each connection behind its next answer, and tell balancers to send no new ones.

    Raises:
        ControlFailed: it does not, as one does not that an older release has configured.
    """
    answer = ask(control, f"set server {STAYING}/{STAYING_SERVER} state drain")
    if answer:
        raise ControlFailed(f"HAProxy does not announce its end: {answer}")


def worker_pid(control: Path) -> int:
    """Return the process that takes connections now. Raises ControlFailed."""
    for line in ask(control, "show info").splitlines():
        name, _, value = line.partition(": ")
        if name == "Pid":
            return int(value)
    raise ControlFailed("HAProxy does not say what its process is.")


def replace_certificate(control: Path, path: Path, bundle: bytes) -> None:
    """Have new connections get another certificate than the one that was read from `path`; open ones stay.

    Raises:
        ControlFailed: the one before is still shown.
    """
    if len(bundle) > PAYLOAD_BYTES_MAX:
        raise ControlFailed(f"{path} has over {PAYLOAD_BYTES_MAX} bytes.")
    # A payload ends with an empty line.
    text = "\n".join(line for line in bundle.decode("ascii").splitlines() if line)
    answer = ask(control, f"set ssl cert {path} <<\n{text}\n")
    if "Transaction created" not in answer and "Transaction updated" not in answer:
        raise ControlFailed(f"HAProxy does not take the certificate {path}: {answer}")
    answer = ask(control, f"commit ssl cert {path}")
    if "Success!" not in answer:
        ask(control, f"abort ssl cert {path}")
        raise ControlFailed(f"HAProxy does not show the certificate {path}: {answer}")
