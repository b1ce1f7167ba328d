"""`quaymaster edge`: TLS before a front end, by an HAProxy on its host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quaymaster.cli import options
from quaymaster.cli.edge import render
from quaymaster.cli.failures import NoServer, WrongUsage
from quaymaster.cli.loading import Config, Overrides, warn_of_unknown_variables
from quaymaster.cli.output import note, print_json, print_line

if TYPE_CHECKING:
    from quaymaster.cli.edge.files import EdgeFiles, EdgeState
    from quaymaster.settings import Settings

app = options.new_group("Serve TLS before a front end, by an HAProxy on its host.")
app.add_typer(render.app, name="render")

VERSION_MIN = (2, 6)
DRAIN_TIMEOUT_S = 70.0
"""Connections stay for 60 s at most."""
POLL_S = 0.05

Certificates = Annotated[
    Path | None,
    typer.Option("--certificates", help="Directory with certificates and their keys.", metavar="DIR"),
]


@app.command()
def run(
    data: options.Data = None,
    bind: Annotated[
        str | None, typer.Option("--bind", help="Address on which TLS is served.", metavar="HOST:PORT")
    ] = None,
    certificates: Certificates = None,
    self_signed: Annotated[
        bool,
        typer.Option(
            "--self-signed",
            help="Make a certificate there, to try TLS with, where there is none; `ca.crt` is its CA.",
        ),
    ] = False,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Run an HAProxy that serves TLS for the front end of a data directory, until SIGTERM or Ctrl-C.

    It then takes no more connections, lets requests in progress end, and ends with 0; with 1 when HAProxy ended by
    itself, and with 3 when it could not start. SIGHUP does what `edge reload` does. Needs HAProxy 2.6 or newer. As
    root, HAProxy becomes the owner of the data directory once it listens.
    """
    import asyncio

    from quaymaster.cli.edge.certificates import CertificatesUnusable, read_bundles, write_bundles
    from quaymaster.cli.edge.reload import write_configuration
    from quaymaster.cli.edge.self_signed import CA_FILE, ensure_self_signed
    from quaymaster.cli.edge.supervisor import check_port, supervise

    settings, files, state = _plan(data, bind, certificates, config, overrides)
    directory = Path(state.certificates)
    with files.held():
        check_port(settings.edge_bind_address, "edge_bind")
        try:
            made = self_signed and ensure_self_signed(directory, settings.edge_bind_address.host)
            write_bundles(files.certificates, read_bundles(directory))
            write_configuration(files, state, files.render(state))
        except CertificatesUnusable as error:
            hint = "" if self_signed else " To try TLS, --self-signed makes one."
            raise WrongUsage(f"{error}{hint}") from None
        except OSError as error:
            raise NoServer(f"{error.filename} cannot be used: {error.strerror}.") from None
        if made:
            note(f"Made a certificate in {directory}; clients trust it by {directory / CA_FILE}.")
        asyncio.run(supervise(files, state, f"Serving https://{settings.edge_bind_address}"))


@app.command()
def reload(data: options.Data = None, as_json: options.AsJSON = False) -> None:
    """Show new certificates, without disturbing anybody; reload HAProxy where more has changed.

    Use it as certbot's deploy hook. Where a certificate cannot be used, the one before is still shown.
    """
    from quaymaster.cli.edge.reload import reload_edge

    done = reload_edge(_files(data))
    if as_json:
        print_json({"done": done})
    else:
        print_line(done)


@app.command()
def drain(data: options.Data = None, as_json: options.AsJSON = False) -> None:
    """Take no more connections, close those that are open when their requests are answered, and end.

    Returns when the edge has ended; then the front end can be stopped.
    """
    import os
    import signal
    import time

    files = _files(data)
    os.kill(files.read_state().haproxy, signal.SIGUSR1)
    deadline_s = time.monotonic() + DRAIN_TIMEOUT_S
    while files.is_held():
        if time.monotonic() > deadline_s:
            raise NoServer(f"The edge still runs after {DRAIN_TIMEOUT_S:.0f} s.")
        time.sleep(POLL_S)
    if as_json:
        print_json({"data": str(files.data)})
    else:
        print_line(f"the edge of {files.data} has ended")


def _files(data: Path | None) -> EdgeFiles:
    from quaymaster.cli.connection import data_directory
    from quaymaster.cli.edge.files import EdgeFiles

    return EdgeFiles(data_directory(data).absolute())


def _plan(
    data: Path | None,
    bind: str | None,
    certificates: Path | None,
    config: Path | None,
    overrides: list[str] | None,
) -> tuple[Settings, EdgeFiles, EdgeState]:
    """Return what was asked for. Raises NoServer and WrongUsage where it cannot be."""
    import os

    from quaymaster.cli.edge.files import EdgeFiles, EdgeState, place_text
    from quaymaster.cli.edge.supervisor import check_port
    from quaymaster.cli.tools import find_haproxy, get_program, haproxy_version

    settings, origins = render.load_edge_settings(config, data, bind, certificates, overrides)
    warn_of_unknown_variables()
    if settings.edge_certificates is None:
        raise WrongUsage("Name the directory of the certificates with --certificates.")
    place = settings.edge_place
    if place is None:
        raise WrongUsage('edge_listen is "off": the front end takes no connections of a proxy.')
    program, problem = get_program("haproxy", find_haproxy)
    if program is None:
        raise NoServer(f"An edge needs HAProxy, which is not on this machine. {problem}")
    version = haproxy_version(program)
    if version is None or version < VERSION_MIN:
        raise NoServer(f"{program} is not an HAProxy of version {VERSION_MIN[0]}.{VERSION_MIN[1]} or newer.")
    admin: str | None = settings.edge_admin
    try:
        check_port(settings.edge_admin_address, "edge_admin")
    except NoServer as failure:
        if origins["edge_admin"] != "default":
            raise
        note(f"quaymaster edge: no health checks and metrics of HAProxy: {failure.message}")
        admin = None
    files = EdgeFiles(settings.data_directory.absolute())
    files.make_run()
    owner = files.data.stat()
    state = EdgeState(
        haproxy=0,
        program=str(program),
        bind=settings.edge_bind,
        admin=admin,
        front_end=place_text(place),
        admin_listen=None if origins["admin_listen"] == "default" else settings.admin_listen,
        certificates=str(settings.edge_certificates.absolute()),
        connections_max=render.connections_within(settings.http_connections_max),
        owner=(owner.st_uid, owner.st_gid) if os.geteuid() == 0 and owner.st_uid else None,
    )
    return settings, files, state
