"""A running edge brought up to date: new certificates without a new process; else a reload, which keeps connections."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

from quaymaster.cli.edge.certificates import CertificatesUnusable, bundles_in, read_bundles, write_bundles
from quaymaster.cli.edge.control import ControlFailed, replace_certificate, worker_pid
from quaymaster.cli.edge.files import EdgeFiles, EdgeState
from quaymaster.cli.shared.failures import CommandRefused, NoServer

RELOAD_TIMEOUT_S: Final = 20.0
CHECK_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.05


def read_certificates(directory: Path) -> dict[str, bytes]:
    """Return the certificates of a directory. Raises CommandRefused where they cannot be used."""
    try:
        return read_bundles(directory)
    except CertificatesUnusable as error:
        raise CommandRefused(str(error)) from None


def reload_edge(files: EdgeFiles, bundles: dict[str, bytes] | None = None) -> str:
    """Do what is least disturbing, and return what was done, as a sentence.

    `bundles`: the certificates; None: those that are in the directory with which the edge was started.

    Raises:
        NoServer: no edge runs, or it does not answer.
        CommandRefused: certificates or configuration cannot be used; what ran before still does.
    """
    state = files.read_state()
    if bundles is None:
        bundles = read_certificates(Path(state.certificates))
    shown = bundles_in(files.certificates)
    configuration = files.render(state)
    try:
        if bundles.keys() == shown.keys() and files.configuration.read_text() == configuration:
            changed = [name for name, bundle in bundles.items() if shown[name] != bundle]
            for name in changed:
                replace_certificate(files.control, files.certificates / f"{name}.pem", bundles[name])
            # After that: what HAProxy did not take is tried again next time.
            write_bundles(files.certificates, bundles)
            return f"{', '.join(changed)}: new certificates are shown." if changed else "Nothing has changed."
        write_bundles(files.certificates, bundles)
        write_configuration(files, state, configuration)
        _start_worker(files, state)
    except ControlFailed as error:
        raise NoServer(str(error)) from None
    except OSError as error:
        raise CommandRefused(f"{error.filename or files.run} cannot be written: {error.strerror}.") from None
    return "HAProxy was reloaded."


def write_configuration(files: EdgeFiles, state: EdgeState, configuration: str) -> None:
    """Write the file that HAProxy reads, once HAProxy says that it can be used.

    Raises:
        CommandRefused: it cannot; the file is as before.
        OSError: it cannot be written.
    """
    new = files.configuration.with_name(files.configuration.name + ".new")
    new.write_text(configuration)
    done = subprocess.run(  # noqa: S603 -- the program that `edge run` found
        [state.program, "-c", "-f", str(new)],
        capture_output=True,
        text=True,
        timeout=CHECK_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise CommandRefused(
            f"HAProxy refuses its configuration, {new}:\n{(done.stderr or done.stdout).strip()}"
        )
    new.replace(files.configuration)


def _start_worker(files: EdgeFiles, state: EdgeState) -> None:
    """Have the master start another worker; return when that one takes connections."""
    before = worker_pid(files.control)
    os.kill(state.haproxy, signal.SIGUSR2)
    deadline_s = time.monotonic() + RELOAD_TIMEOUT_S
    while True:
        try:
            if worker_pid(files.control) != before:
                return
        except ControlFailed:
            pass
        if time.monotonic() > deadline_s:
            raise NoServer(f"HAProxy has not reloaded after {RELOAD_TIMEOUT_S:.0f} s; its log says why.")
        time.sleep(POLL_S)
