"""`quaymaster local`: a whole cell on this machine, with everything that it needs, to try and to develop against."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import ServerConnection, connection_fields
from quaymaster.cli.shared.failures import CommandRefused, NoServer, WrongUsage
from quaymaster.cli.shared.output import note, print_json, print_line, print_table, progress_bar
from quaymaster.node.data.client_file import CLIENT_FILE

if TYPE_CHECKING:
    from quaymaster.cli.local.cluster import Cluster, Progress
    from quaymaster.cli.local.plan import ClusterOptions, ClusterRecord, Programs

app = options.new_group(
    "Run a whole cell on this machine: etcd, brokers, metadata, managers, front ends, HAProxy, a console, a pusher."
)

DATA_DEFAULT = Path("quaymaster-cluster")
DATA_VARIABLE = "QUAYMASTER_DATA_DIRECTORY"

Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Directory of the cluster (else QUAYMASTER_DATA_DIRECTORY, else ./quaymaster-cluster).",
        metavar="DIR",
    ),
]
Name = Annotated[str, typer.Argument(help="Name of a process, as in `local status`.", metavar="NAME")]


def _count(flag: str, text: str, default: int) -> Any:
    return typer.Option(flag, help=f"{text} At first {default}, later as before.", metavar="NUMBER", min=1)


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    """What the cell has, and how it is shown."""

    data: Data = None
    brokers: Annotated[int | None, _count("--brokers", "Brokers, in three zones in turn.", 3)] = None
    frontends: Annotated[int | None, _count("--frontends", "Front ends.", 2)] = None
    metadata: Annotated[int | None, _count("--metadata", "Metadata nodes.", 2)] = None
    managers: Annotated[int | None, _count("--managers", "Managers, of which one acts.", 2)] = None
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            help="Instead of a cell, one server in so many processes. Later as before.",
            metavar="NUMBER",
            min=1,
        ),
    ] = None
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            help="Port of the endpoint; 0 for any. At first 9324, later as before.",
            metavar="PORT",
            min=0,
            max=65_535,
        ),
    ] = None
    tls: Annotated[
        bool | None,
        typer.Option(
            "--tls/--no-tls", help="Serve TLS on another port too, with a CA of its own. Later as before."
        ),
    ] = None
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A setting for every process, as in --set log_level=debug.", metavar="NAME=VALUE"
        ),
    ] = None
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when requests are served; the processes keep running.")
    ] = False
    as_json: options.AsJSON = False


@app.command()
@options.gathered
def up(given: UpOptions) -> None:
    """Start a cell, or the one that was stopped in this directory, with its data, or what is missing of one that runs.

    Everything listens on loopback. Once requests are served it prints how to reach them, then shows how the cell is
    until Ctrl-C, which stops it; with --detach it runs until `local down`. With --workers it is one server in several
    processes instead of a cell, which needs neither etcd nor HAProxy. With --json it prints what
    `quaymaster env --json` does, and where the console is. QUAYMASTER_ variables hold for every process, but those that
    say where things are.
    """
    from quaymaster.cli.local.cluster import RECORD_FILE, locked, prepare_directory, read_cluster
    from quaymaster.cli.local.start import held_ports, plan_start, start_cluster

    directory = _directory(given.data)
    prepare_directory(directory)
    with _terminated_as_interrupted():
        with ExitStack() as stack:
            stack.enter_context(locked(directory))
            known = read_cluster(directory) if (directory / RECORD_FILE).exists() else None
            record = known.record if known is not None else None
            is_running = known is not None and bool(known.running)
            asked = _options(given, record, is_running=is_running)
            if known is not None and is_running:
                _check_some_are_missing(known, asked)
                cluster = known
            else:
                ports = stack.enter_context(held_ports(record))
                programs = _programs(needs_cell=not asked.workers)
                cluster = plan_start(directory, asked, programs, record, ports)
            is_first = not (directory / CLIENT_FILE).exists()
            with _progress("Starting", quiet=given.as_json) as progress:
                connection = start_cluster(cluster, _environment(), progress)
        if given.as_json:
            print_json({**connection_fields(connection), **_more_fields(cluster)})
            sys.stdout.flush()
        else:
            _greet(cluster, connection, is_first=is_first)
        if not given.detach:
            _watch_until_interrupted(cluster, quiet=given.as_json)


@app.command()
def status(data: Data = None, as_json: options.AsJSON = False) -> None:
    """Show the processes and the journals of the cell.

    A journal's lag is how many records the last of its members is behind.
    """
    from quaymaster.cli.local.cluster import read_cluster
    from quaymaster.cli.local.view import (
        JOURNAL_HEADERS,
        PROCESS_HEADERS,
        journal_rows,
        look_once,
        process_rows,
    )

    found = look_once(read_cluster(_directory(data)))
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(found))
    else:
        print_line(found.endpoint_url)
        print_table(PROCESS_HEADERS, process_rows(found))
        if found.journals:
            print_table(JOURNAL_HEADERS, journal_rows(found))
    if found.journals is None:
        note("etcd does not answer, so the journals are not known.")


@app.command()
def kill(
    name: Name,
    signal_name: Annotated[
        str,
        typer.Option("--signal", help="What to send: KILL, TERM, STOP, CONT, ...", metavar="SIGNAL"),
    ] = "KILL",
    data: Data = None,
    as_json: options.AsJSON = False,
) -> None:
    """Send a signal to a process of the cell, to see what the others do.

    STOP makes it silent without ending it, CONT lets it go on; `local restart` brings back what has ended.
    """
    from quaymaster.cli.local.cluster import locked, read_cluster

    number = _signal_number(signal_name)
    directory = _directory(data)
    with locked(directory):
        cluster = read_cluster(directory)
        process = cluster.running_process(name)
        cluster.signal(name, number)
    if as_json:
        print_json(
            {"name": name, "pid": process.pid if process else None, "signal": signal.Signals(number).name}
        )
    else:
        print_line(f"sent {signal.Signals(number).name} to {name}")


@app.command()
def restart(name: Name, data: Data = None, as_json: options.AsJSON = False) -> None:
    """Bring a process back that has ended, or stop one and start it again; return when it is ready."""
    from quaymaster.cli.local.cluster import locked, read_cluster

    directory = _directory(data)
    with locked(directory):
        cluster = read_cluster(directory)
        if name in cluster.helpers:
            raise CommandRefused(
                f"The server starts {name} again when it ends: use `local kill {name}`, or `local restart server`."
            )
        planned, _ = cluster.process(name)
        cluster.check_startable(planned)
        cluster.stop_one(name)
        with progress_bar(f"Starting {name}", quiet=as_json):
            cluster.start_one(planned, _environment())
    if as_json:
        print_json({"name": name, "pid": cluster.record.processes[name].pid})
    else:
        print_line(f"{name} is ready")


@app.command()
def down(data: Data = None, as_json: options.AsJSON = False) -> None:
    """Stop the cell. Its data stays: `local up` starts it again."""
    from quaymaster.cli.local.cluster import locked, read_cluster

    directory = _directory(data)
    with locked(directory):
        cluster = read_cluster(directory)
        with _progress("Stopping", quiet=as_json) as progress:
            stopped = cluster.stop(progress)
    if as_json:
        print_json({"stopped": stopped})
    else:
        print_line(f"stopped {len(stopped)} processes" if stopped else "nothing was running")


# What is asked for


def _directory(data: Path | None) -> Path:
    return (data or Path(os.environ.get(DATA_VARIABLE) or DATA_DEFAULT)).absolute()


def _options(given: UpOptions, known: ClusterRecord | None, *, is_running: bool) -> ClusterOptions:
    """Return what was asked for now, else before, else what is usual."""
    import msgspec

    from quaymaster.cli.local.plan import ClusterOptions, settings_of_environment
    from quaymaster.cli.shared.options import parse_assignments
    from quaymaster.settings import ENVIRONMENT_PREFIX, Settings, SettingsError, load_settings

    before = known.options if known is not None else ClusterOptions()
    settings = {
        **before.settings,
        **settings_of_environment(os.environ, list(Settings.model_fields), ENVIRONMENT_PREFIX),
        **dict(parse_assignments(given.overrides or (), "setting")),
    }
    try:
        load_settings(flags=settings, environment={})
    except SettingsError as error:
        raise WrongUsage(str(error)) from None
    of_cell = ("brokers", "frontends", "metadata", "managers")
    if given.workers and any(getattr(given, name) is not None for name in of_cell):
        raise WrongUsage("--workers is for one server, without brokers and front ends: say one or the other.")
    names = (*of_cell, "port", "tls", "workers")
    asked = {name: value for name in names if (value := getattr(given, name)) is not None}
    has_console = before.console if is_running else _has_console(settings)
    has_push = before.push if is_running else True
    return msgspec.structs.replace(before, **asked, settings=settings, console=has_console, push=has_push)


def _has_console(settings: Mapping[str, str]) -> bool:
    """Tell whether there is to be a console: it is installed, and the settings do not say no."""
    from quaymaster.node.children.console_extra import INSTALL, missing_for_console

    if settings.get("console") == "off":
        return False
    if missing_for_console():
        note(f"There is no console, which is not installed: {INSTALL}")
        return False
    return True


def _programs(*, needs_cell: bool) -> Programs:
    """Return what a cluster is made of, got from the system's packages where it is missing."""
    from quaymaster.cli.local.etcd import find_etcd
    from quaymaster.cli.local.plan import Programs
    from quaymaster.cli.shared.tools import find_haproxy, get_program

    quaymaster = (sys.executable, "-P", "-m", "quaymaster.cli.main")
    if not needs_cell:
        return Programs(quaymaster, "", None)
    etcd, problem = get_program("etcd", find_etcd)
    if etcd is None:
        raise NoServer(f"A cluster needs etcd, which is not on this machine. {problem}")
    haproxy, problem = get_program("haproxy", find_haproxy)
    if haproxy is None:
        note(f"There is no HAProxy, so the endpoint is the first front end alone. {problem}")
    return Programs(
        quaymaster,
        str(etcd),
        str(haproxy) if haproxy is not None else None,
        _connections_max(),
    )


def _connections_max() -> int:
    """Return how many connections HAProxy can have with the files that it may open: two for each, and some."""
    import resource

    from quaymaster.cli.local.plan import CONNECTIONS_MAX

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(64, min(CONNECTIONS_MAX, (hard - 128) // 2))


def _environment() -> dict[str, str]:
    from quaymaster.cli.local.plan import environment_without_settings
    from quaymaster.settings import ENVIRONMENT_PREFIX

    return environment_without_settings(os.environ, ENVIRONMENT_PREFIX)


def _signal_number(text: str) -> int:
    name = text.upper().removeprefix("SIG")
    try:
        return signal.Signals(int(text)) if text.isdigit() else signal.Signals[f"SIG{name}"]
    except (KeyError, ValueError):
        raise WrongUsage(f"There is no signal {text!r}.") from None


def _check_some_are_missing(cluster: Cluster, asked: ClusterOptions) -> None:
    """Refuse to start a cluster that runs whole, or is to be another one."""
    text = f"The cluster in {cluster.directory} is already running, on {cluster.plan.endpoint_url}."
    if not cluster.missing:
        raise CommandRefused(text)
    if asked != cluster.record.options:
        raise CommandRefused(f"{text} Stop it with `quaymaster local down` to change it.")


# What is shown


def _more_fields(cluster: Cluster) -> dict[str, str]:
    plan = cluster.plan
    tls = {} if plan.tls_url is None else {"tls_endpoint_url": plan.tls_url, "ca_file": str(plan.ca_file)}
    return tls if plan.console_url is None else {**tls, "console_url": plan.console_url}


def _greet(cluster: Cluster, connection: ServerConnection, *, is_first: bool) -> None:
    print_line(f"SQS is served on {connection.endpoint_url}")
    if cluster.plan.tls_url is not None:
        print_line(f"and on {cluster.plan.tls_url}, for clients that trust {cluster.plan.ca_file}")
    if is_first:
        # The only time: from here on it is in client.json.
        print_line(f"Access key        {connection.access_key_id}")
        print_line(f"Secret access key {connection.secret_access_key}")
    shown = os.path.relpath(cluster.directory)
    shown = str(cluster.directory) if shown.startswith("..") else shown
    print_line(f'Point any AWS SDK at it:  eval "$(quaymaster env --data {shown})"')
    if cluster.plan.console_url is not None:
        print_line(f"Console: {cluster.plan.console_url}  (`quaymaster open --data {shown}` signs you in)")
    print_line(f"Logs are in {os.path.join(shown, 'logs')}")
    sys.stdout.flush()


def _watch_until_interrupted(cluster: Cluster, *, quiet: bool) -> None:
    """Show how the cluster is until Ctrl-C or SIGTERM, then stop it; return when somebody else has stopped it."""
    from quaymaster.cli.local.cluster import locked, read_cluster
    from quaymaster.cli.local.view import watch_as_lines, watch_live

    directory = cluster.directory
    try:
        if quiet or not sys.stdout.isatty():
            watch_as_lines(directory, quiet=quiet)
        else:
            watch_live(directory)
    except KeyboardInterrupt:
        with locked(directory), _progress("Stopping", quiet=quiet) as progress:
            stopped = read_cluster(directory).stop(progress)
        if not quiet:
            print_line(f"stopped {len(stopped)} processes")
    else:
        note("The cluster was stopped.")


@contextmanager
def _progress(what: str, *, quiet: bool) -> Iterator[Progress]:
    with progress_bar(what, total=1, quiet=quiet) as bar:
        yield lambda text, done, total: bar.update(done, total=total, what=text)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Within it, SIGTERM ends what Ctrl-C would."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
