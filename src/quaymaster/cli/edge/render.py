"""`quaymaster edge render`: the files of the programs before front ends, as text.

That of a host is made from its settings and printed; those of balancers and name servers are made from one file that
describes them all (`layout`), and written.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.failures import CommandRefused, WrongUsage, reason_of
from quaymaster.cli.shared.loading import Overrides, load_settings_of
from quaymaster.cli.shared.output import print_json, print_line

if TYPE_CHECKING:
    from quaymaster.cli.edge.layout import EdgeLayout
    from quaymaster.settings import Settings

app = options.new_group("Make the files of the programs before front ends.")

FILES_BESIDE_CONNECTIONS = 256
INSTALLED: Final = Path("/etc/quaymaster/edge")
EXECUTABLE: Final = 0o755
READABLE: Final = 0o644

LayoutFile = Annotated[
    Path, typer.Argument(help="TOML file with virtual IPs, balancers and hosts.", metavar="FILE")
]
Out = Annotated[
    Path, typer.Option("--out", help="Directory to write to; it is made where there is none.", metavar="DIR")
]


@app.command()
def host(
    file: Annotated[Path | None, typer.Argument(help="TOML file with settings.", metavar="[FILE]")] = None,
    data: options.Data = None,
    overrides: Overrides = None,
) -> None:
    """Print the configuration of the HAProxy on a front end's host, as `edge run` runs it.

    `edge run` also writes what it reads: certificates, each with its key, in `run/certificates` of the data directory.
    """
    from quaymaster.cli.edge.files import EdgeFiles, front_end_admin
    from quaymaster.cli.edge.host import HostProxy, render_host

    settings, origins = load_edge_settings(file, data, None, None, overrides)
    place = settings.edge_place
    if place is None:
        raise WrongUsage('edge_listen is "off": the front end takes no connections of a proxy.')
    files = EdgeFiles(settings.data_directory.absolute())
    text = render_host(
        HostProxy(
            bind=settings.edge_bind_address,
            front_end=place,
            front_end_admin=front_end_admin(
                files.data, None if origins["admin_listen"] == "default" else settings.admin_listen
            ),
            certificates=files.certificates,
            admin=settings.edge_admin_address,
            control=files.control,
            connections_max=settings.http_connections_max,
            balancers=tuple(map(str, settings.edge_balancer_networks)),
        )
    )
    sys.stdout.write(text)


@app.command()
def balancer(
    file: LayoutFile,
    name: Annotated[str, typer.Option("--name", help="Which balancer of the file.", metavar="NAME")],
    out: Out,
    installed: Annotated[
        Path, typer.Option("--installed", help="Where the files will be on the balancer.", metavar="DIR")
    ] = INSTALLED,
    as_json: options.AsJSON = False,
) -> None:
    """Write the files of one balancer: `haproxy.cfg`, `keepalived.conf`, and `check-balancer`, which that one runs."""
    from quaymaster.cli.edge.balancers import CHECK_FILE, balancer_files
    from quaymaster.cli.edge.layout import LayoutError

    if not installed.is_absolute():
        raise WrongUsage(
            f"--installed {installed}: keepalived needs a path from the root, as {INSTALLED} is."
        )
    layout = _read(file)
    try:
        files = balancer_files(layout, name, str(installed))
    except LayoutError as error:
        raise WrongUsage(f"{file}: {error}") from None
    _write(out, files, as_json, executable=CHECK_FILE)


@app.command()
def dns(file: LayoutFile, out: Out, as_json: options.AsJSON = False) -> None:
    """Write the file of a name server: `dnsmasq.conf`, with an address for each virtual IP."""
    from quaymaster.cli.edge.dns import DNSMASQ_FILE, dnsmasq_configuration

    _write(out, {DNSMASQ_FILE: dnsmasq_configuration(_read(file))}, as_json)


def load_edge_settings(
    config: Path | None,
    data: Path | None,
    bind: str | None,
    certificates: Path | None,
    overrides: list[str] | None,
) -> tuple[Settings, dict[str, str]]:
    """Return the settings of an edge, and for each where its value is from. Raises WrongUsage."""
    given = {"edge_bind": bind, "edge_certificates": certificates}
    flags = [f"{name}={value}" for name, value in given.items() if value is not None]
    return load_settings_of(config, data, None, None, [*(overrides or ()), *flags])


def connections_within(wanted: int) -> int:
    """Return how many connections HAProxy can have of those: each takes two open files."""
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files_max == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, (files_max - FILES_BESIDE_CONNECTIONS) // 2))


def _read(file: Path) -> EdgeLayout:
    from quaymaster.cli.edge.layout import LayoutError, parse_layout

    try:
        return parse_layout(options.read_text(file))
    except LayoutError as error:
        raise WrongUsage("\n".join(f"{file}: {line}" for line in str(error).splitlines())) from None


def _write(out: Path, files: Mapping[str, str], as_json: bool, *, executable: str = "") -> None:
    written = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = out / name
            partial = path.with_name(f".{name}.partial")
            partial.write_text(text, encoding="utf-8")
            partial.chmod(EXECUTABLE if name == executable else READABLE)
            os.replace(partial, path)
            written.append(str(path))
    except OSError as error:
        raise CommandRefused(f"{out} cannot be written: {reason_of(error)}") from None
    if as_json:
        print_json({"files": written})
        return
    for name in written:
        print_line(name)
