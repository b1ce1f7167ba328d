"""`quaymaster edge`: TLS before a front end, by an HAProxy on its host."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quaymaster.cli.edge import render
from quaymaster.cli.shared import options
from quaymaster.cli.shared.failures import NoServer, WrongUsage
from quaymaster.cli.shared.loading import Config, Overrides, warn_of_unknown_variables
from quaymaster.cli.shared.output import note, print_json, print_line

if TYPE_CHECKING:
    from quaymaster.cli.edge.files import EdgeFiles, EdgeState
    from quaymaster.settings import Settings

app = options.new_group("Serve TLS before a front end, by an HAProxy on its host.")
app.add_typer(render.app, name="render")

VERSION_MIN = (2, 6)
DRAIN_TIMEOUT_S = 70.0
"""Connections stay for 60 s at most, after the notice."""
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

    It then does what `edge drain` does, without the notice at Ctrl-C, and ends with 0; with 1 when HAProxy ended by
    itself, and with 3 when it could not start. SIGHUP does what `edge reload` does. Needs HAProxy 2.6 or newer. Root
    reads the certificates, then becomes the owner of the data directory, who may still bind ports below 1024.
    """
    import asyncio

    from quaymaster.cli.edge.certificates import CertificatesUnusable, read_bundles, write_bundles
    from quaymaster.cli.edge.privileges import become_owner
    from quaymaster.cli.edge.reload import write_configuration
    from quaymaster.cli.edge.self_signed import CA_FILE, ensure_self_signed
    from quaymaster.cli.edge.supervisor import supervise
    from quaymaster.cli.shared.tools import find_haproxy

    find_haproxy()  # all is imported before root becomes another user, who may not be able to read it
    settings, origins, files, directory = _asked(data, bind, certificates, config, overrides)
    bound, shown = settings.edge_bind_address, settings.edge_admin_address
    try:
        if self_signed:
            become_owner(files.data, bound.port, shown.port)
            if ensure_self_signed(directory, bound.host):
                note(f"Made a certificate in {directory}; clients trust it by {directory / CA_FILE}.")
        bundles = read_bundles(directory)
        become_owner(files.data, bound.port, shown.port)
        files.make_run()
        with files.held():
            state = _plan(settings, origins, directory)
            write_bundles(files.certificates, bundles)
            write_configuration(files, state, files.render(state))
            asyncio.run(supervise(files, state, f"Serving https://{bound}"))
    except CertificatesUnusable as error:
        hint = "" if self_signed else " To try TLS, --self-signed makes one."
        raise WrongUsage(f"{error}{hint}") from None
    except OSError as error:
        raise NoServer(f"{error.filename or files.run} cannot be used: {error.strerror}.") from None


@app.command()
def reload(
    data: options.Data = None, certificates: Certificates = None, as_json: options.AsJSON = False
) -> None:
    """Show new certificates, without disturbing anybody; reload HAProxy where more has changed.

    Use it as certbot's deploy hook. Where a certificate cannot be used, the one before is still shown. Root names the
    directory of the certificates, unless the data directory is root's: what is in there is not for root to believe.
    """
    from quaymaster.cli.edge.privileges import become_owner, is_foreign_root
    from quaymaster.cli.edge.reload import read_certificates, reload_edge
    from quaymaster.coordination.noted_acts import act_of_user

    files = _files(data)
    # Before root becomes another user.
    act = act_of_user("ReloadEdge", {"data": str(files.data)})
    bundles = None
    if certificates is not None:
        bundles = read_certificates(certificates)
    elif files.data.is_dir() and is_foreign_root(files.data):
        raise WrongUsage("As root, name the directory of the certificates with --certificates.")
    if files.data.is_dir():
        become_owner(files.data)
    files.read_state()
    files.leave_act(act)
    done = reload_edge(files, bundles)
    if as_json:
        print_json({"done": done})
    else:
        print_line(done)


@app.command()
def drain(data: options.Data = None, as_json: options.AsJSON = False) -> None:
    """Close each connection behind its next answer, for `drain_notice_s`; then take no more, and end.

    Requests in progress are answered; connections that were silent for all of the notice are closed after them.
    Returns when the edge has ended; then the front end can be stopped.
    """
    import os
    import signal
    import time

    from quaymaster.cli.edge.privileges import become_owner
    from quaymaster.coordination.noted_acts import act_of_user

    files = _files(data)
    act = act_of_user("DrainEdge", {"data": str(files.data)})
    if files.data.is_dir():
        become_owner(files.data)
    state = files.read_state()
    files.leave_act(act)
    if state.supervisor:
        os.kill(state.supervisor, signal.SIGTERM)
    else:  # of an older release
        os.kill(state.haproxy, signal.SIGUSR1)
    deadline_s = time.monotonic() + state.drain_notice_s + DRAIN_TIMEOUT_S
    while files.is_held():
        if time.monotonic() > deadline_s:
            raise NoServer(f"The edge still runs after {state.drain_notice_s + DRAIN_TIMEOUT_S:.0f} s.")
        time.sleep(POLL_S)
    if as_json:
        print_json({"data": str(files.data)})
    else:
        print_line(f"the edge of {files.data} has ended")


def _files(data: Path | None) -> EdgeFiles:
    from quaymaster.cli.edge.files import EdgeFiles
    from quaymaster.cli.shared.connection import data_directory

    return EdgeFiles(data_directory(data).absolute())


def _asked(
    data: Path | None,
    bind: str | None,
    certificates: Path | None,
    config: Path | None,
    overrides: list[str] | None,
) -> tuple[Settings, Mapping[str, str], EdgeFiles, Path]:
    """Return what was asked for, and the certificates' directory. Raises NoServer and WrongUsage where it cannot be."""
    from quaymaster.cli.edge.files import EdgeFiles

    settings, origins = render.load_edge_settings(config, data, bind, certificates, overrides)
    warn_of_unknown_variables()
    if settings.edge_certificates is None:
        raise WrongUsage("Name the directory of the certificates with --certificates.")
    if settings.edge_place is None:
        raise WrongUsage('edge_listen is "off": the front end takes no connections of a proxy.')
    files = EdgeFiles(settings.data_directory.absolute())
    files.wait_for_data()
    return settings, origins, files, settings.edge_certificates.absolute()


def _plan(settings: Settings, origins: Mapping[str, str], directory: Path) -> EdgeState:
    """Return how it will run. Raises NoServer where it cannot."""
    from quaymaster.cli.edge.files import EdgeState, place_text
    from quaymaster.cli.edge.supervisor import check_port
    from quaymaster.cli.shared.tools import find_haproxy, get_program, haproxy_version

    check_port(settings.edge_bind_address, "edge_bind")
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
    place = settings.edge_place
    assert place is not None, "there is an edge only where there is one"
    return EdgeState(
        haproxy=0,
        program=str(program),
        bind=settings.edge_bind,
        admin=admin,
        front_end=place_text(place),
        admin_listen=None if origins["admin_listen"] == "default" else settings.admin_listen,
        certificates=str(directory),
        connections_max=render.connections_within(settings.http_connections_max),
        balancers=tuple(map(str, settings.edge_balancer_networks)),
        drain_notice_s=settings.drain_notice_s,
    )
