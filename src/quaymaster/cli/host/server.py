"""`quaymaster serve`, `env`, `settings`, `doctor`, `backup`, `restore`: the server, from its own machine."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import (
    chosen_profile,
    connection_fields,
    data_directory,
    find_connection,
    known_server,
)
from quaymaster.cli.shared.failures import EXIT_REFUSED, CommandRefused, WrongUsage
from quaymaster.cli.shared.loading import (
    Admin,
    Config,
    Listen,
    Overrides,
    ServedData,
    Workers,
    collecting_later,
    load_settings_of,
    run_process,
    settings_to_serve,
    warn_of_unknown_variables,
)
from quaymaster.cli.shared.output import note, print_json, print_line, print_table, progress_bar

BACKUP_WAIT_MS = 24 * 3600 * 1000
BACKUP_POLL_S = 0.5
CLUSTER_FILE = "cluster.json"
"""What `quaymaster local up` writes: see `cli/local/plan`."""


def serve(
    data: ServedData = None,
    listen: Listen = None,
    admin: Admin = None,
    workers: Workers = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Run the server until SIGTERM or Ctrl-C.

    It then takes no more requests, finishes those it has, and ends with 0; with 1 when it had to stop by
    itself, and with 3 when it could not start because data directory, keys or ports cannot be used.
    """
    with collecting_later():
        settings = settings_to_serve(config, data, listen, admin, overrides, workers)

        from quaymaster.node.roles import SERVER, run_role

        run_process(run_role(settings, SERVER))


def env(
    all_services: Annotated[
        bool,
        typer.Option(
            "--all-services", help="Send the clients of every AWS service here: set AWS_ENDPOINT_URL as well."
        ),
    ] = False,
    data: options.Data = None,
    as_json: options.AsJSON = False,
) -> None:
    """Print how to reach the server, for `eval`.

    The lines set the variables that AWS SDKs and the AWS CLI read: where SQS is, region and credentials. Clients of
    other AWS services in the same shell have these credentials too, and still ask AWS, which refuses them. The server
    writes what the lines say to client.json in its data directory at each start; a profile has them, too.
    """
    connection = known_server(data, os.environ)
    if not connection.access_key_id:
        note("The server has no enabled access key of the default account: requests cannot be signed.")
    if as_json:
        print_json(connection_fields(connection))
        return
    for name, value in (
        ("AWS_ENDPOINT_URL_SQS", connection.endpoint_url),
        *([("AWS_ENDPOINT_URL", connection.endpoint_url)] if all_services else []),
        ("AWS_DEFAULT_REGION", connection.region),
        ("AWS_REGION", connection.region),
        ("AWS_ACCESS_KEY_ID", connection.access_key_id),
        ("AWS_SECRET_ACCESS_KEY", connection.secret_access_key),
        *([("AWS_SESSION_TOKEN", connection.session_token)] if connection.session_token else []),
    ):
        print_line(f"export {name}={shlex.quote(value)}")


def show_settings(
    data: ServedData = None,
    listen: Listen = None,
    admin: Admin = None,
    config: Config = None,
    overrides: Overrides = None,
    as_json: options.AsJSON = False,
) -> None:
    """Show every setting's value and origin.

    They are those that `serve` would have with the same flags, here and now.
    """
    from quaymaster.settings import effective_settings

    settings, origins = load_settings_of(config, data, listen, admin, overrides)
    values = effective_settings(settings)
    warn_of_unknown_variables()
    if as_json:
        print_json({name: {"value": value, "origin": origins[name]} for name, value in values.items()})
    else:
        print_table(
            ("SETTING", "VALUE", "ORIGIN"), ((name, value, origins[name]) for name, value in values.items())
        )


def doctor(
    data: ServedData = None,
    listen: Listen = None,
    admin: Admin = None,
    config: Config = None,
    overrides: Overrides = None,
    as_json: options.AsJSON = False,
) -> None:
    """Check that this machine is fit to serve.

    Looks at clock, disk, limits, permissions, ports, memory and kernel, and says what to do about what it
    finds. Ends with 1 when something is wrong.
    """
    from quaymaster.cli.host.doctor import check_up

    settings, _ = load_settings_of(config, data, listen, admin, overrides)
    with progress_bar("Checking", quiet=as_json):
        findings = check_up(settings)
    if as_json:
        print_json({"checks": [finding._asdict() for finding in findings]})
    else:
        print_table(
            ("CHECK", "RESULT", "FOUND"),
            ((finding.check, finding.result, finding.found) for finding in findings),
        )
        for finding in findings:
            if finding.advice:
                print_line(f"\n{finding.check}: {finding.advice}")
    if any(finding.result == "problem" for finding in findings):
        raise typer.Exit(EXIT_REFUSED)


def backup(
    destination: Annotated[Path, typer.Argument(help="Where to; must not exist yet.", metavar="DESTINATION")],
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Write a consistent copy of the data of a server, or of the cell of `quaymaster local up`.

    A server writes it itself, to a path on its own machine. A cell on hosts of its own: `quaymaster cell backup`.
    """
    path = destination.absolute()
    directory = data_directory(data)
    is_here = data is not None or chosen_profile(os.environ) is None
    if admin_url is None and is_here and (directory / CLUSTER_FILE).exists():
        from quaymaster.cli.cells.cell_cut import local_settings, run_cell_backup

        of_cell = local_settings(directory.absolute())
        if of_cell is not None:
            run_cell_backup(of_cell, path, as_json=as_json)
            return
    from concurrent.futures import ThreadPoolExecutor, wait

    from quaymaster.cli.shared.client import AdminClient

    connection = find_connection(data, None)
    with (
        AdminClient(connection, admin_url) as admin,
        AdminClient(connection, admin_url) as watcher,
        progress_bar("Backing up", quiet=as_json, in_bytes=True) as bar,
        ThreadPoolExecutor(1) as pool,
    ):
        # One connection waits for the answer while the other asks how far it is.
        asked = pool.submit(admin.call, "CreateBackup", path=str(path), wait_ms=BACKUP_WAIT_MS)
        while not wait([asked], BACKUP_POLL_S).done:
            made = watcher.call("GetBackup")
            bar.update(made.get("done_bytes", 0), total=made.get("total_bytes", 0))
        result = asked.result()
    if as_json:
        print_json(result)
    else:
        print_line(f"backed up to {result.get('path', path)}")
        if result.get("coordination") == "etcd":
            note(
                "Queues and keys were copied from etcd into it: restored, it is served with coordination = "
                '"sqlite". etcd itself is not backed up.'
            )
        note("It holds no master key: keep the data directory's keys/ somewhere else, or it cannot be read.")


def force_start(
    data: options.Data = None,
    yes: options.Yes = False,
    as_json: options.AsJSON = False,
) -> None:
    """Let the next start continue with what is in the data directory, though a part of it is missing or went back.

    Use it only when a start was refused for that reason, and what is missing will not come back. The metadata
    decides: messages of queues that it does not have are dropped, queues that the journal does not have are empty,
    keys and accounts are what they were when the metadata was copied. A directory whose file `coordination` is missing
    or damaged belongs to what etcd has under the `etcd_prefix` of that start from then on.
    """
    from quaymaster.broker.storage.disk import DirectoryInUse
    from quaymaster.coordination.noted_acts import act_of_user
    from quaymaster.node.data.data_directory import DataDirectoryUnusable, check_format, lock_data_directory
    from quaymaster.node.data.settling import force_settling

    directory = data_directory(data)
    if not directory.is_dir():
        raise WrongUsage(f"{directory} is no directory.")
    try:
        lock = lock_data_directory(directory.absolute())
        check_format(directory)
    except (DirectoryInUse, DataDirectoryUnusable) as error:
        raise CommandRefused(str(error)) from None
    note(
        f"The next start from {directory} uses what is there. Messages of queues that its metadata does not have are "
        "LOST, queues that its journal does not have are empty, and access keys that were deleted or disabled since "
        "the metadata was copied work again. Where the file 'coordination' is missing or damaged, the etcd_prefix of "
        "that start says which metadata that is. If what is missing can still be brought back, stop here."
    )
    if not yes and not typer.confirm("Continue with what is there?", err=True):
        raise CommandRefused("Nothing was changed.")
    act = act_of_user("ForceStart", {"data": str(directory.absolute())})
    force_settling(directory.absolute(), act)
    lock.release()
    if as_json:
        print_json({"data": str(directory.absolute())})
    else:
        print_line(f"the next `quaymaster serve --data {directory}` continues with what is there")


def restore(
    source: Annotated[Path, typer.Argument(help="What `quaymaster backup` wrote.", metavar="BACKUP")],
    data: options.Data = None,
    keys: Annotated[
        Path | None,
        typer.Option("--keys", help="Copy of the server's keys/ directory.", metavar="DIR"),
    ] = None,
    as_json: options.AsJSON = False,
) -> None:
    """Make a data directory from a backup.

    The directory must be missing or empty. Refused without the master keys the backup was made under: a copy of
    keys/, or QUAYMASTER_MASTER_KEY with QUAYMASTER_MASTER_KEY_SOURCE=environment.
    """
    directory = data_directory(data)
    if not source.exists():
        raise WrongUsage(f"{source} does not exist.")
    if directory.exists() and any(directory.iterdir()):
        raise CommandRefused(f"{directory} is not empty. Restore into a new directory, then serve from that.")
    settings, _ = load_settings_of(None, directory, None, None, None)
    from quaymaster.node.restoring import KEYS_WANTED, RestoreRefused, restore_data_directory

    if keys is None and settings.master_key_source == "file":
        raise CommandRefused(KEYS_WANTED)

    with progress_bar("Restoring", quiet=as_json, in_bytes=True) as bar:
        try:
            restore_data_directory(source, settings, keys, lambda done, total: bar.update(done, total=total))
        except RestoreRefused as error:
            raise CommandRefused(str(error)) from None
    if as_json:
        print_json({"backup": str(source), "data": str(directory)})
    else:
        print_line(f"restored to {directory}; start it with `quaymaster serve --data {directory}`")
