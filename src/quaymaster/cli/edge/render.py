"""`quaymaster edge render`: the files of the programs before front ends, as text."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quaymaster.cli import options
from quaymaster.cli.failures import WrongUsage
from quaymaster.cli.loading import Overrides, load_settings_of

if TYPE_CHECKING:
    from quaymaster.settings import Settings

app = options.new_group("Print the files of the programs before front ends.")

FILES_BESIDE_CONNECTIONS = 256


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
        )
    )
    sys.stdout.write(text)


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
