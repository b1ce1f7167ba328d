"""Every command that changes a server or a cell leaves an audit event, as its parser and its code tell.

command ──names it reaches in `PACKAGES`──▶ what it can change ──▶ which act says so
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import quaymaster
from quaymaster.cli.commands import whole_command
from quaymaster.node.roles import CELL_ROLES
from quaymaster.protocol.actions.acts import NOTED_CHANGES, OTHER_ACT
from quaymaster.protocol.actions.table import ACTIONS
from quaymaster.protocol.admin.operations import OPERATIONS

SOURCES = Path(quaymaster.__file__).parents[1]
PACKAGES = ("quaymaster.cli.", "quaymaster.node.", "quaymaster_pipeline.commands.")
"""Where commands are, and what they put together; not the services, which note acts of their own."""
WRITERS = {
    *("transaction", "compare_and_swap", "raise_format", "decide_to_continue"),
    *("force_settling", "restore_data_directory", "back_up_cell", "leave_act"),
}
"""Names by which code of commands writes to a store, or to a data directory that nothing serves from."""
ASKED = {
    "SET_BROKER_STATE": {"DrainBroker", "ActivateBroker", "StopBroker"},
    "ACCEPT_CLOCK": {"AcceptClock"},
}
"""Calls of the RPC, whose processes note the act."""
CLIENTS = "quaymaster.cli.shared.client"
"""How SQS and the admin API are asked: what for, the commands say."""
CHANGES = {operation.name for operation in OPERATIONS.values() if operation.is_change}
"""Operations of the admin API that leave events."""
PROCESSES = {("serve",), *(("run", role) for role in CELL_ROLES), ("edge", "run"), ("bench",)}
"""They run until they are stopped: what they do is done by those who ask them, or is no act."""
ELSEWHERE = ("ca", "local", "profile", "pipeline", "billing", "archive", "audit")
"""Groups that change what is their own: certificates, processes of this machine, profiles, tables. The
audit guide says where each is written down.

Those of the pipeline that ask a server (`billing accounts --sync`) are looked at all the same.
"""

Names = tuple[frozenset[str], frozenset[str]]
"""Which names and which texts a function has, with those that it reaches."""


def source(name: str) -> Path:
    return SOURCES / (name.replace(".", "/") + ".py")


@cache
def module(name: str) -> dict[str, ast.AST]:
    """Return functions, classes and constants of a module of commands, by name."""
    tree = ast.parse(source(name).read_text())
    found: dict[str, ast.AST] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = node
        if isinstance(node, ast.FunctionDef):  # which may make commands that several groups have
            found |= {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
    return found


@cache
def imported(name: str) -> dict[str, tuple[str, str]]:
    """Return what a module takes from other modules of commands: (module, name), name "" for all of it."""
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(ast.parse(source(name).read_text())):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            if whole.startswith(PACKAGES) and source(whole).exists():
                found[alias.asname or alias.name] = (whole, "")
            elif node.module.startswith(PACKAGES):
                found[alias.asname or alias.name] = (node.module, alias.name)
    return found


def reach(start: tuple[str, str]) -> Names:
    """Return names and texts of a function and of all that it reaches in the packages."""
    names: set[str] = set()
    texts: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting = [start]
    while waiting:
        place = waiting.pop()
        if place in seen or place[0] == CLIENTS or place[1] not in module(place[0]):
            continue
        seen.add(place)
        for node in ast.walk(module(place[0])[place[1]]):
            match node:
                case ast.Constant(value=str() as text):
                    texts.add(text)
                case ast.Name(id=name):
                    names.add(name)
                    waiting.append(imported(place[0]).get(name, (place[0], name)))
                case ast.Attribute(value=ast.Name(id=owner), attr=name):
                    names.add(name)
                    if owner in imported(place[0]):
                        waiting.append((imported(place[0])[owner][0], name))
                case ast.Attribute(attr=name):
                    names.add(name)
    return frozenset(names), frozenset(texts)


def commands() -> Iterator[tuple[tuple[str, ...], tuple[str, str]]]:
    """Yield every command of the parser, and the function that it is."""

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], tuple[str, str]]]:
        function = command.callback
        if function is not None:
            function = getattr(function, "__wrapped__", function)
            yield path, (function.__module__, function.__name__)
        for name, below in getattr(command, "commands", {}).items():
            yield from walk(below, (*path, name))

    for path, function in walk(whole_command(), ()):
        if path:
            yield path, function


ALL = dict(commands())


def acts_of(names: frozenset[str], texts: frozenset[str]) -> set[str]:
    """Return the acts that code notes by itself or lets note."""
    noted = set(texts & NOTED_CHANGES) if names & {"act_of_user", "new_act"} else set()
    return noted.union(*(acts for call, acts in ASKED.items() if call in names))


@pytest.mark.parametrize("path", sorted(ALL), ids=" ".join)
def test_a_command_that_changes_something_leaves_an_event(path: tuple[str, ...]) -> None:
    names, texts = reach(ALL[path])
    by_admin_api = texts & CHANGES
    by_sqs = {text for text in texts if text in ACTIONS and ACTIONS[text].is_change}
    directly = names & (WRITERS | ASKED.keys())

    if path in PROCESSES or (path[0] in ELSEWHERE and not by_admin_api):
        return
    # What the admin API and SQS are asked for is an act there: tests of the front end look at their tables.
    if directly:
        assert acts_of(names, texts), (
            f"{' '.join(path)} changes something by {sorted(directly)} and notes no act"
        )
    assert directly or by_admin_api or by_sqs or path in LOOKS, (
        f"{' '.join(path)} is neither an act nor a look"
    )
    assert not (path in LOOKS and (directly or by_admin_api or by_sqs)), f"{' '.join(path)} changes something"


LOOKS = {
    ("monitoring", "render"),
    *(("alert", "list"), ("alert", "history")),
    *(("alert", "destination", "list"), ("alert", "destination", "secret")),
    *(("env",), ("settings",), ("config", "check"), ("policy", "check"), ("doctor",), ("usage",)),
    *(
        ("queue", "list"),
        ("queue", "show"),
        ("queue", "peek"),
        ("queue", "redrive", "status"),
        ("queue", "claims", "list"),
        ("queue", "push", "show"),
        ("group", "list"),
    ),
    *(("message", "send"), ("message", "receive"), ("message", "delete"), ("forward",)),
    ("key", "metrics-password"),
    ("top",),
    *(("account", "list"), ("key", "list"), ("cell", "status"), ("cell", "decisions"), ("frontend", "list")),
    *(("broker", "list"), ("journal", "list"), ("journal", "show"), ("oidc", "list")),
    *(
        ("kms", "list"),
        ("kms", "show"),
        ("user", "list"),
        ("user", "show"),
        ("role", "list"),
        ("role", "show"),
        ("limit", "list"),
        ("limit", "show"),
    ),
    *(("edge", "render", what) for what in ("host", "balancer", "dns")),
}
"""Commands that change nothing but messages."""


def test_every_act_that_can_be_noted_is_that_of_a_command() -> None:
    noted: set[str] = set()
    for function in ALL.values():
        noted |= acts_of(*reach(function))

    # A start with `queues_file` notes the first, the upkeep the second, and no program the third.
    assert noted | {"DeclareQueues", "DeleteKMSKey", OTHER_ACT} >= NOTED_CHANGES


def test_code_that_notes_nothing_is_told_from_code_that_does() -> None:
    names, texts = reach(("quaymaster.cli.cells.cell", "force_store"))
    assert acts_of(names, texts) == {"ForceStore"}
    assert not acts_of(names - {"act_of_user"}, texts)
    assert names & WRITERS
