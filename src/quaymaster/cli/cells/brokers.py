"""`quaymaster broker`: the brokers of a cell that runs. They ask a manager over the RPC, wherever it is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from quaymaster.cli.cells.cell_links import Managers, ask_managers, ask_status
from quaymaster.cli.shared import options
from quaymaster.cli.shared.loading import Config, Overrides
from quaymaster.cli.shared.output import bytes_as_text, note, print_json, print_line, print_table

DRAIN_LOOK_S = 1.0

app = options.new_group("List the brokers of a cell, take one out, or let it take part again.")

BrokerName = Annotated[str, typer.Argument(help="Name of the broker.", metavar="BROKER")]


@app.command("list")
def list_brokers(
    managers: Managers = None,
    config: Config = None,
    overrides: Overrides = None,
    as_json: options.AsJSON = False,
) -> None:
    """List the brokers of a cell: zone, state, what each leads and keeps, free space and clock."""
    brokers = ask_status(managers, config, overrides)["brokers"]
    if as_json:
        print_json({"brokers": brokers})
    else:
        print_brokers(brokers)


def print_brokers(brokers: list[dict[str, Any]]) -> None:
    """Print brokers as a manager's status has them."""
    print_table(
        ("BROKER", "ZONE", "STATE", "REACHABLE", "LEADS", "REPLICAS", "DISK FREE", "CLOCK", "ADDRESS"),
        [
            (
                broker["name"],
                broker["zone"],
                broker["state"],
                broker["is_reachable"],
                broker["leads"],
                broker["replicas"],
                bytes_as_text(broker["disk_free_bytes"]),
                _clock_as_text(broker["clock_ahead_ms"]),
                broker["address"],
            )
            for broker in brokers
        ],
    )


def _clock_as_text(ahead_ms: int | None) -> str:
    return "?" if ahead_ms is None else f"{ahead_ms / 1000:+.1f} s"


@app.command()
def drain(
    broker: BrokerName,
    managers: Managers = None,
    config: Config = None,
    overrides: Overrides = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Return only when nothing is left on it.")
    ] = True,
    as_json: options.AsJSON = False,
) -> None:
    """Let a broker give away all that it has, so that it can be taken out of the cell."""
    _set_state(broker, "draining", managers, config, overrides)
    note(f"{broker} drains: others take over what it leads, then its replicas")
    told: set[str] = set()
    while wait:
        status = ask_status(managers, config, overrides)
        left = next((one for one in status["brokers"] if one["name"] == broker), None)
        if left is None or not left["replicas"]:
            break
        for problem in status["problems"]:
            if problem not in told:
                note(problem)
                told.add(problem)
        time.sleep(DRAIN_LOOK_S)
    if as_json:
        print_json({"broker": broker, "state": "draining", "is_empty": wait})
    elif wait:
        print_line(f"{broker} has nothing any more")


@app.command()
def activate(
    broker: BrokerName,
    managers: Managers = None,
    config: Config = None,
    overrides: Overrides = None,
    as_json: options.AsJSON = False,
) -> None:
    """Let a broker that drained, or was about to, take part again."""
    _set_state(broker, "active", managers, config, overrides)
    if as_json:
        print_json({"broker": broker, "state": "active"})


def _set_state(
    broker: str, state: Any, managers: list[str] | None, config: Path | None, overrides: list[str] | None
) -> None:
    from quaymaster.coordination.noted_acts import user_here
    from quaymaster.protocol.rpc.manager_calls import (
        SET_BROKER_STATE,
        BrokerStateRequest,
        encode_state_request,
    )

    body = encode_state_request(BrokerStateRequest(broker, state, user_here()))
    ask_managers(managers, config, overrides, SET_BROKER_STATE, body)
