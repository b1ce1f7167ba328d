"""Which commands there are, and where. A module of commands is imported when one of them is asked for.

    quaymaster queue list ──COMMANDS["queue"]──▶ import quaymaster.cli.queues.queue, and nothing of the others

Commands of other packages are looked for only when a name is not one of these, or when all are wanted: for help,
completion, the reference page. Modules of commands, for their part, import only what their options need; what does the
work is imported when they run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import typer.main
from typer.core import TyperGroup

from quaymaster.cli.shared.options import new_group
from quaymaster.cli.shared.profile_files import name_profile

COMMANDS: Final[Mapping[str, str]] = {
    "serve": "quaymaster.cli.host.server:serve",
    "run": "quaymaster.cli.cells.roles:app",
    "env": "quaymaster.cli.host.server:env",
    "open": "quaymaster.cli.admin.open:open_console",
    "top": "quaymaster.cli.admin.top:top",
    "queue": "quaymaster.cli.queues.queue:app",
    "policy": "quaymaster.cli.queues.policy:app",
    "message": "quaymaster.cli.queues.message:app",
    "forward": "quaymaster.cli.queues.forward:forward",
    "group": "quaymaster.cli.admin.group:app",
    "account": "quaymaster.cli.admin.account:app",
    "user": "quaymaster.cli.admin.user:app",
    "role": "quaymaster.cli.admin.role:app",
    "identity": "quaymaster.cli.admin.identity:app",
    "key": "quaymaster.cli.admin.key:app",
    "limit": "quaymaster.cli.admin.limit:app",
    "alert": "quaymaster.cli.admin.alert:app",
    "oidc": "quaymaster.cli.admin.oidc:app",
    "kms": "quaymaster.cli.admin.kms:app",
    "profile": "quaymaster.cli.host.profile:app",
    "edge": "quaymaster.cli.edge.commands:app",
    "local": "quaymaster.cli.local.commands:app",
    "import": "quaymaster.cli.imports.command:import_queues",
    "backup": "quaymaster.cli.host.server:backup",
    "restore": "quaymaster.cli.host.server:restore",
    "doctor": "quaymaster.cli.host.server:doctor",
    "settings": "quaymaster.cli.host.server:show_settings",
    "config": "quaymaster.cli.host.config:app",
    "monitoring": "quaymaster.cli.host.monitoring:app",
    "bench": "quaymaster.cli.bench.bench:bench",
    "master-key": "quaymaster.cli.admin.key:master_key_app",
    "receipt-key": "quaymaster.cli.admin.key:receipt_key_app",
    "session-key": "quaymaster.cli.admin.key:session_key_app",
    "clock": "quaymaster.cli.admin.clock:app",
    "frontend": "quaymaster.cli.admin.frontend:app",
    "cell": "quaymaster.cli.cells.cell:app",
    "broker": "quaymaster.cli.cells.brokers:app",
    "journal": "quaymaster.cli.cells.journals:app",
    "ca": "quaymaster.cli.host.ca:app",
    "force-start": "quaymaster.cli.host.server:force_start",
    "force-store": "quaymaster.cli.cells.cell:force_store",
}
"""Each command, or group of commands, in the order of the help: MODULE:NAME of a function, or of a group."""


class LazyGroup(TyperGroup):
    """The `quaymaster` command. `commands` has those that were imported so far."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return [*COMMANDS, *_commands_of_others()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name; None where there is none."""
        if cmd_name not in self.commands:
            place = COMMANDS.get(cmd_name) or _commands_of_others().get(cmd_name)
            if place is None:
                self.import_all()  # so that what is said of a wrong name has the right one
                return None
            module, _, attribute = place.partition(":")
            self.commands[cmd_name] = _command_of(cmd_name, getattr(import_module(module), attribute))
        return self.commands[cmd_name]

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options before the name of a command."""
        return [_quick(parameter) for parameter in super().get_params(ctx)]

    def import_all(self) -> None:
        """Import every command."""
        for name in self.list_commands(None):
            self.get_command(None, name)


app = new_group("Quaymaster: Amazon SQS that anyone can run.")


def _take_profile(name: str | None) -> None:
    if name is not None:
        name_profile(name)


@app.callback(cls=LazyGroup)
def quaymaster_command(
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            help="Profile that says where the server is (else QUAYMASTER_PROFILE); also after the command.",
            metavar="NAME",
            callback=_take_profile,
            expose_value=False,
        ),
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Quaymaster: Amazon SQS that anyone can run."""
    # `--version` alone never comes here: see `main`.


def whole_command() -> LazyGroup:
    """Return the `quaymaster` command with all others in it."""
    command = typer.main.get_command(app)
    assert isinstance(command, LazyGroup), "its callback names the class"
    command.import_all()
    return command


def _commands_of_others() -> dict[str, str]:
    from quaymaster.cli.extensions import find_extensions

    return {name: place for one in find_extensions() for name, place in one.commands.items()}


def _prepare(command: Any, profile: Any) -> None:
    """Give `--profile` to each command that asks a server or the processes of a cell, as its options tell."""
    all_params = command.get_params  # --help, too
    command.get_params = lambda ctx: [_quick(parameter) for parameter in all_params(ctx)]
    if command.name == "profile":
        profile = None
    for one in getattr(command, "commands", {}).values():
        _prepare(one, profile)
    names = {parameter.name for parameter in command.params}
    asks_processes = "config" in names and "admin" not in names  # else it is a process, or about to be
    is_asking = names & {"endpoint_url", "admin_url"} or asks_processes or command.name == "env"
    if profile is not None and is_asking:
        command.params.append(profile)


def _quick(parameter: Any) -> Any:
    """Let a parameter take what needs no check as it is: nothing, a text, a path.

    Typer checks values with Pydantic, whose import takes longer than all else that a command imports.
    """
    if "process_value" in vars(parameter):
        return parameter
    check = parameter.process_value
    wanted = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)

    def process_value(ctx: Any, value: Any) -> Any:
        taken: Any
        if value is None and not parameter.required:
            taken = () if parameter.multiple or parameter.nargs == -1 else None
        elif isinstance(value, str) and wanted in (str, Path):
            taken = wanted(value)
        else:
            return check(ctx, value)
        return taken if parameter.callback is None else parameter.callback(ctx, parameter, taken)

    parameter.process_value = process_value
    return parameter


@cache
def _command_of(name: str, found: Any) -> Any:
    """Return the command of a function, or of a group. A process that runs many command lines makes each once."""
    command: Any
    if isinstance(found, typer.Typer):
        command = typer.main.get_group(found)
        command.name = name
    else:
        alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        alone.command(name)(found)
        command = typer.main.get_command(alone)
    _prepare(command, _profile_option())
    return command


@cache
def _profile_option() -> Any:
    return next(one for one in typer.main.get_command(app).params if one.name == "profile")
