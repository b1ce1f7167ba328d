"""`quaymaster cell status`, `cell decisions`, `cell upgrade`, `force-store`: a cell as a whole, for operators.

The first two ask managers over the RPC, wherever they are; the others change coordination, as no manager would.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quaymaster.cli.cells import cell_backups
from quaymaster.cli.cells.brokers import print_brokers
from quaymaster.cli.cells.cell_links import Managers, ask_each_manager, ask_status
from quaymaster.cli.cells.journals import print_journals
from quaymaster.cli.shared import options
from quaymaster.cli.shared.failures import EXIT_REFUSED, CommandRefused, NoServer
from quaymaster.cli.shared.loading import Config, Overrides, load_for
from quaymaster.cli.shared.output import note, print_json, print_line, print_table, time_as_text

if TYPE_CHECKING:
    from quaymaster.settings import Settings

app = options.new_group("Look at a cell, back it up, restore it, upgrade it.")
app.command("backup")(cell_backups.cell_backup)
app.command("restore")(cell_backups.cell_restore)


@app.command("status")
def cell_status(
    managers: Managers = None,
    config: Config = None,
    overrides: Overrides = None,
    as_json: options.AsJSON = False,
) -> None:
    """Show brokers, journals, their leaders and lag, and what is wrong. Ends with 1 when something is."""
    status = ask_status(managers, config, overrides)
    if as_json:
        print_json(status)
    else:
        acting = status["acting_manager"] or "nobody"
        print_line(f"manager {status['manager']} says; {acting} acts")
        print_brokers(status["brokers"])
        print_journals(status["journals"])
        for problem in status["problems"]:
            note(f"problem: {problem}")
    if status["problems"]:
        raise typer.Exit(EXIT_REFUSED)


@app.command("decisions")
def cell_decisions(
    managers: Managers = None,
    config: Config = None,
    overrides: Overrides = None,
    as_json: options.AsJSON = False,
) -> None:
    """Show what managers decided last and why, the newest last. Each manager knows its own since it was started.

    At most 1,000 of each are kept. Give all managers with --manager: one acts, and others did before, or stood in.
    """
    import msgspec

    from quaymaster.protocol.rpc.manager_calls import DECISIONS

    answers = [
        msgspec.json.decode(answer) for answer in ask_each_manager(managers, config, overrides, DECISIONS)
    ]
    decisions = sorted(
        (
            {**one["decision"], "at_ms": one["at_ms"], "manager": answer["manager"]}
            | {name: one[name] for name in ("result", "error", "times")}
            for answer in answers
            for one in answer["decisions"]
        ),
        key=lambda one: one["at_ms"],
    )
    if as_json:
        print_json({"decisions": decisions})
        return
    print_table(
        ("TIME", "MANAGER", "ACTION", "JOURNAL", "BROKER", "LEADER", "RESULT", "TIMES", "REASON"),
        [
            (
                time_as_text(one["at_ms"]),
                one["manager"],
                one["action"],
                one["journal"],
                one["broker"],
                one["leader"],
                one["result"],
                one["times"],
                one["reason"] if one["error"] is None else f"{one['reason']}; {one['error']}",
            )
            for one in decisions
        ],
    )


@app.command("upgrade")
def cell_upgrade(
    wanted: Annotated[
        int | None, typer.Option("--to", help="Format to write; the newest of this program without.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing.")] = False,
    config: Config = None,
    overrides: Overrides = None,
    as_json: options.AsJSON = False,
) -> None:
    """Let the cell write the newest format, once all of its processes read it. After that none can be older."""
    import asyncio

    upgraded = asyncio.run(_upgrade(load_for(config, overrides), wanted, dry_run))
    if as_json:
        print_json(upgraded)
        return
    print_table(
        ("ROLE", "NODE", "ZONE", "VERSION", "READS FORMATS"),
        [
            (
                one["role"],
                one["node"],
                one["zone"],
                one["version"],
                f"{one['format_min']}-{one['format_max']}",
            )
            for one in upgraded["processes"]
        ],
    )
    print_line(f"the cell writes format {upgraded['format']}")


async def _upgrade(settings: Settings, wanted: int | None, dry_run: bool) -> dict[str, Any]:
    import msgspec

    from quaymaster.coordination.cell_format import FormatRefused, raise_format, read_format
    from quaymaster.coordination.noted_acts import act_of_user
    from quaymaster.coordination.presence import list_alive
    from quaymaster.core.values.errors import NotNow
    from quaymaster.core.values.formats import FORMAT_MAX
    from quaymaster.node.data.stores import open_etcd

    store = open_etcd(settings)
    try:
        processes = await list_alive(store)
        if not dry_run:
            number = FORMAT_MAX if wanted is None else wanted
            await raise_format(store, number, act_of_user("UpgradeCell", {"format": number}))
        return {"format": await read_format(store), "processes": msgspec.to_builtins(processes)}
    except FormatRefused as error:
        raise CommandRefused(str(error)) from None
    except NotNow as error:
        raise NoServer(f"coordination: {error}") from None
    finally:
        await store.close()


def force_store(
    config: Config = None,
    overrides: Overrides = None,
    yes: options.Yes = False,
    as_json: options.AsJSON = False,
) -> None:
    """Let a cell continue with an etcd that was restored from an older copy, though its processes have seen more.

    Use it only when there is no newer copy. Queues that were made since the copy are not found any more, deleted ones
    and deleted keys are there again. New queues get ids above all that the journals have seen.
    """
    import asyncio

    settings = load_for(config, overrides)
    if found := asyncio.run(_why_refused(settings)):
        note(found)
    note(
        f"If etcd under {settings.etcd_prefix!r} is older than what the cell has seen, queues that were made since it "
        "was copied are not found any more, and what is in them is LOST; access keys that were deleted or disabled "
        "since work again. If a newer copy of etcd can still be restored, stop here."
    )
    if not yes and not typer.confirm("Continue with this etcd?", err=True):
        raise CommandRefused("Nothing was changed.")
    asyncio.run(_force_store(settings))
    if as_json:
        print_json({"etcd_prefix": settings.etcd_prefix})
        return
    print_line(
        "decided: processes that wait continue within seconds; restart those that ran while etcd was restored. The "
        "next queue that is created begins with ids above all that the journals have seen"
    )


async def _why_refused(settings: Settings) -> str | None:
    """Return what a process of the cell found of the store."""
    from quaymaster.coordination.store_witness import read_refusal
    from quaymaster.core.values.errors import NotNow
    from quaymaster.node.data.stores import open_etcd

    store = open_etcd(settings)
    try:
        refusal = await read_refusal(store)
    except NotNow as error:
        raise NoServer(f"coordination: {error}") from None
    finally:
        await store.close()
    return None if refusal is None else refusal.reason


async def _force_store(settings: Settings) -> None:
    from quaymaster.coordination.interface import Put
    from quaymaster.coordination.noted_acts import act_of_user, put_act
    from quaymaster.coordination.number_rows import encode_number
    from quaymaster.coordination.store_witness import decide_to_continue
    from quaymaster.core.values.errors import NotNow
    from quaymaster.metadata.store.rows import ACCEPTED
    from quaymaster.node.data.stores import open_etcd

    store = open_etcd(settings)
    try:
        accepted = Put(ACCEPTED, encode_number(time.time_ns() // 1_000_000))
        act = act_of_user("ForceStore", {"etcd_prefix": settings.etcd_prefix})
        await decide_to_continue(store, [accepted, put_act(act)])
    except NotNow as error:
        raise NoServer(f"coordination: {error}") from None
    finally:
        await store.close()
