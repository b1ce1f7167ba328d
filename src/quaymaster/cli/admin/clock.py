"""`quaymaster clock accept`: the clocks are right, says an operator. A server is told so, or each broker of a cell."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quaymaster.cli.cells.cell_links import Managers, ask, ask_status
from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import find_connection
from quaymaster.cli.shared.failures import NoServer
from quaymaster.cli.shared.loading import Config, Overrides, load_for
from quaymaster.cli.shared.output import print_json, print_line

app = options.new_group("Say that clocks are right.")


@app.command()
def accept(
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    is_cell: Annotated[
        bool, typer.Option("--cell", help="Tell every broker of a cell; so do --manager, --config and --set.")
    ] = False,
    managers: Managers = None,
    config: Config = None,
    overrides: Overrides = None,
    as_json: options.AsJSON = False,
) -> None:
    """Say that the clock is right, so messages expire again.

    While the clock is more than 5 s from the journal's time, and after a stop that lasted more than five minutes
    by that clock, a server lets no message expire: until the two are near again, until somebody says that the
    clock is right, or, where messages could only expire late, until it has run evenly for an hour. Journals of a cell
    do the same, and those whose time is behind step to the clocks of the brokers.
    """
    if is_cell or managers or config is not None or overrides:
        _accept_in_cell(managers, config, overrides, as_json=as_json)
        return
    from quaymaster.cli.shared.client import AdminClient

    with AdminClient(find_connection(data, None), admin_url) as admin:
        answer = admin.call("AcceptClock")
    if as_json:
        print_json(answer)
    else:
        print_line("messages may expire again")


def _accept_in_cell(
    managers: list[str] | None, config: Path | None, overrides: list[str] | None, *, as_json: bool
) -> None:
    import asyncio

    from quaymaster.coordination.noted_acts import user_here
    from quaymaster.protocol.rpc.broker_calls import ACCEPT_CLOCK, AcceptClockRequest, encode_call

    settings = load_for(config, overrides)
    asked = encode_call(AcceptClockRequest(user_here()))
    told: list[str] = []
    missing: list[str] = []
    for broker in ask_status(managers, config, overrides)["brokers"]:
        try:
            asyncio.run(ask(settings, broker["address"], "broker", ACCEPT_CLOCK, asked))
        except NoServer:
            missing.append(broker["name"])
        else:
            told.append(broker["name"])
            if not as_json:
                print_line(f"{broker['name']} has accepted its clock")
    if as_json:
        print_json({"accepted": told, "missing": missing})
    if missing:
        raise NoServer(f"not told, for they do not answer: {', '.join(missing)}")
