"""`quaymaster ca`: certificates for the nodes of a cell. Works on a directory; needs no server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.failures import CommandFailed, CommandRefused, WrongUsage
from quaymaster.cli.shared.output import note, print_json, print_table, time_as_text

if TYPE_CHECKING:
    from quaymaster.net.certificates import AuthorityError, CertificateAuthority, Issued

app = options.new_group("Make and renew the certificates with which the nodes of a cell know each other.")

Directory = Annotated[
    Path, typer.Option("--ca", help="Directory of the certificate authority.", metavar="DIR")
]
Node = Annotated[str, typer.Argument(help="Name of the node.", metavar="NODE")]
NodeDays = Annotated[int, typer.Option("--days", help="How long the certificate is good.", min=1, max=3650)]
DIRECTORY = Path("quaymaster-ca")
DAY_MS = 86_400_000


@app.command()
def init(
    cell: Annotated[str, typer.Argument(help="Name of the cell.", metavar="CELL")],
    directory: Directory = DIRECTORY,
    days: Annotated[
        int, typer.Option("--days", help="How long the authority is good.", min=1, max=36500)
    ] = 3650,
    as_json: options.AsJSON = False,
) -> None:
    """Make the certificate authority of a cell. One that is there is not overwritten.

    Keep its directory where no node can read it: whoever has `ca.key` can be any node.
    """
    from quaymaster.net.certificates import AuthorityError, CertificateAuthority

    try:
        authority = CertificateAuthority.create(directory, cell, days=days)
    except AuthorityError as error:
        raise _failure(error) from None
    _print([authority.issued], as_json)


@app.command()
def issue(
    node: Node,
    roles: Annotated[
        list[str],
        typer.Option(
            "--role",
            help="What it may be: frontend, broker, metadata, manager, console, push, or operator, who may ask "
            "managers; repeatable.",
        ),
    ],
    directory: Directory = DIRECTORY,
    days: NodeDays = 365,
    as_json: options.AsJSON = False,
) -> None:
    """Make key and certificate of a node, in `nodes/NODE`: copy that directory there, as its `tls_directory`."""
    from quaymaster.net.certificates import AuthorityError

    authority = _open(directory)
    try:
        issued = authority.issue(node, roles, days=days)
    except AuthorityError as error:
        raise _failure(error) from None
    _print([issued], as_json)


@app.command()
def renew(
    nodes: Annotated[list[str] | None, typer.Argument(help="Names of nodes.", metavar="[NODE]...")] = None,
    left: Annotated[
        int | None,
        typer.Option("--expiring-within", help="All that are good for fewer days than this.", metavar="DAYS"),
    ] = None,
    directory: Directory = DIRECTORY,
    days: NodeDays = 365,
    as_json: options.AsJSON = False,
) -> None:
    """Make new keys and certificates of nodes, for the roles they have.

    A node that gets the new files uses them from its next connection on; those that are open stay.
    """
    from quaymaster.net.certificates import AuthorityError

    if bool(nodes) == (left is not None):
        raise WrongUsage("Name nodes, or say --expiring-within DAYS.")
    authority = _open(directory)
    try:
        if left is not None:
            limit_ms = time.time() * 1000 + left * DAY_MS
            nodes = [issued.node for issued in authority.list() if issued.expires_ms < limit_ms]
        renewed = [authority.renew(node, days=days) for node in nodes or []]
    except AuthorityError as error:
        raise _failure(error) from None
    _print(renewed, as_json)
    if not renewed:
        note("No certificate expires so soon.")


@app.command("list")
def list_certificates(directory: Directory = DIRECTORY, as_json: options.AsJSON = False) -> None:
    """List the certificates of nodes, the first to expire first, then the authority's own."""
    from quaymaster.net.certificates import AuthorityError

    authority = _open(directory)
    try:
        issued = authority.list()
    except AuthorityError as error:
        raise _failure(error) from None
    _print([*issued, authority.issued], as_json)


def _failure(error: AuthorityError) -> CommandFailed:
    from quaymaster.net.certificates import InvalidArgument

    return WrongUsage(f"{error}.") if isinstance(error, InvalidArgument) else CommandRefused(f"{error}.")


def _open(directory: Path) -> CertificateAuthority:
    from quaymaster.net.certificates import AuthorityError, CertificateAuthority

    try:
        return CertificateAuthority.open(directory)
    except AuthorityError as error:
        raise WrongUsage(f"{error}.") from None


def _print(certificates: list[Issued], as_json: bool) -> None:
    now_ms = int(time.time() * 1000)
    if as_json:
        print_json({"certificates": [_as_fields(issued, now_ms) for issued in certificates]})
        return
    print_table(
        ("NODE", "CELL", "ROLES", "EXPIRES", "STATE", "DIRECTORY"),
        (
            (
                issued.node or "(authority)",
                issued.cell,
                " ".join(issued.roles) or None,
                time_as_text(issued.expires_ms),
                _state(issued, now_ms),
                issued.path,
            )
            for issued in certificates
        ),
    )


def _as_fields(issued: Issued, now_ms: int) -> dict[str, Any]:
    return {
        "node": issued.node or None,
        "cell": issued.cell,
        "roles": list(issued.roles),
        "issued_ms": issued.issued_ms,
        "expires_ms": issued.expires_ms,
        "days_left": (issued.expires_ms - now_ms) // DAY_MS,
        "directory": str(issued.path),
    }


def _state(issued: Issued, now_ms: int) -> str:
    left_days = (issued.expires_ms - now_ms) // DAY_MS
    return f"{left_days} days left" if left_days >= 0 else "expired"
