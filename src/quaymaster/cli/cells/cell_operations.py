"""`quaymaster cell status`, `journal show`, `broker drain`, `broker activate`, `force-recover`: a cell, for operators.

They ask a manager over the RPC, wherever it is; `force-recover` and `cell upgrade` change coordination themselves, as
no manager would.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quaymaster.cli import options
from quaymaster.cli.cells.cell_links import RECOVERIES, client_of
from quaymaster.cli.failures import EXIT_REFUSED, NoServer, Refused
from quaymaster.cli.loading import Config, Overrides
from quaymaster.cli.output import bytes_as_text, note, print_json, print_line, print_table

if TYPE_CHECKING:
    from quaymaster.coordination.interface import Coordination
    from quaymaster.core.cell.cell import BrokerReport
    from quaymaster.settings import Settings

ASK_TIMEOUT_MS = 5_000
DRAIN_LOOK_S = 1.0

Managers = Annotated[
    list[str] | None,
    typer.Option(
        "--manager", help="Address of a manager; may be given again for others.", metavar="HOST:PORT"
    ),
]

cell_app = options.new_group("Look at a cell.")
journal_app = options.new_group("Look at the journals of a cell.")


@cell_app.command("status")
def cell_status(
    managers: Managers = None,
    config: Config = None,
    overrides: Overrides = None,
    as_json: options.AsJSON = False,
) -> None:
    """Show brokers, journals, their leaders and lag, and what is wrong. Ends with 1 when something is."""
    status = _ask_status(managers, config, overrides)
    if as_json:
        print_json(status)
    else:
        acting = status["acting_manager"] or "nobody"
        print_line(f"manager {status['manager']} says; {acting} acts")
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
                for broker in status["brokers"]
            ],
        )
        print_table(
            ("JOURNAL", "LEADER", "EPOCH", "MEMBERS", "LAG"),
            [
                (
                    journal["journal"],
                    journal["leader"],
                    journal["epoch"],
                    ",".join(member["broker"] for member in journal["members"]),
                    max((member["lag_records"] or 0 for member in journal["members"]), default=0),
                )
                for journal in status["journals"]
            ],
        )
        for problem in status["problems"]:
            note(f"problem: {problem}")
    if status["problems"]:
        raise typer.Exit(EXIT_REFUSED)


def _clock_as_text(ahead_ms: int | None) -> str:
    return "?" if ahead_ms is None else f"{ahead_ms / 1000:+.1f} s"


@cell_app.command("accept-clock")
def cell_accept_clock(
    managers: Managers = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Say that the brokers' clocks are right: journals whose time is behind step to them, and messages expire again."""
    import asyncio

    from quaymaster.coordination.noted_acts import user_here
    from quaymaster.protocol.rpc.broker_calls import ACCEPT_CLOCK, AcceptClockRequest, encode_call

    settings = _settings(config, overrides)
    asked = encode_call(AcceptClockRequest(user_here()))
    missing = []
    for broker in _ask_status(managers, config, overrides)["brokers"]:
        try:
            asyncio.run(_ask(settings, broker["address"], "broker", ACCEPT_CLOCK, asked))
        except NoServer:
            missing.append(broker["name"])
        else:
            print_line(f"{broker['name']} has accepted its clock")
    if missing:
        raise NoServer(f"not told, for they do not answer: {', '.join(missing)}")


@cell_app.command("upgrade")
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

    upgraded = asyncio.run(_upgrade(_settings(config, overrides), wanted, dry_run))
    if as_json:
        print_json(upgraded)
        return
    print_table(
        ("ROLE", "NODE", "VERSION", "READS FORMATS"),
        [
            (one["role"], one["node"], one["version"], f"{one['format_min']}-{one['format_max']}")
            for one in upgraded["processes"]
        ],
    )
    print_line(f"the cell writes format {upgraded['format']}")


async def _upgrade(settings: Settings, wanted: int | None, dry_run: bool) -> dict[str, Any]:
    import msgspec

    from quaymaster.coordination.cell_format import FormatRefused, list_processes, raise_format, read_format
    from quaymaster.coordination.noted_acts import act_of_user
    from quaymaster.core.values.errors import NotNow
    from quaymaster.core.values.formats import FORMAT_MAX
    from quaymaster.node.stores import open_etcd

    store = open_etcd(settings)
    try:
        processes = await list_processes(store)
        if not dry_run:
            number = FORMAT_MAX if wanted is None else wanted
            await raise_format(store, number, act_of_user("UpgradeCell", {"format": number}))
        return {"format": await read_format(store), "processes": msgspec.to_builtins(processes)}
    except FormatRefused as error:
        raise Refused(str(error)) from None
    except NotNow as error:
        raise NoServer(f"coordination: {error}") from None
    finally:
        await store.close()


@journal_app.command("show")
def journal_show(
    journal: Annotated[int, typer.Argument(help="Number of the journal.")],
    managers: Managers = None,
    config: Config = None,
    overrides: Overrides = None,
    as_json: options.AsJSON = False,
) -> None:
    """Show a journal's epoch, leader, members and learners, and how far each of them is."""
    status = _ask_status(managers, config, overrides)
    found = next((one for one in status["journals"] if one["journal"] == journal), None)
    if found is None:
        numbers = ", ".join(str(one["journal"]) for one in status["journals"]) or "none"
        raise Refused(f"There is no journal {journal}; there are: {numbers}.")
    if as_json:
        print_json(found)
        return
    print_line(
        f"journal {journal}, epoch {found['epoch']}, led by {found['leader'] or 'nobody'}"
        + ("" if found["is_activated"] else f"; {found['appointed']} is appointed and not activated yet")
    )
    print_table(
        ("MEMBER", "BROKER", "ROLE", "END", "LAG"),
        [
            (
                member["member"],
                member["broker"],
                f"learner ({member['role'] or '-'})" if member["is_learner"] else member["role"],
                member["end"],
                member["lag_records"],
            )
            for member in found["members"]
        ],
    )


def drain(
    broker: Annotated[str, typer.Argument(help="Name of the broker.")],
    managers: Managers = None,
    config: Config = None,
    overrides: Overrides = None,
    wait: Annotated[bool, typer.Option(help="Return only when nothing is left on it.")] = True,
) -> None:
    """Let a broker give away all that it has, so that it can be taken out of the cell."""
    _set_state(broker, "draining", managers, config, overrides)
    note(f"{broker} drains: others take over what it leads, then its replicas")
    told: set[str] = set()
    while wait:
        status = _ask_status(managers, config, overrides)
        left = next((one for one in status["brokers"] if one["name"] == broker), None)
        if left is None or not left["replicas"]:
            break
        for problem in status["problems"]:
            if problem not in told:
                note(problem)
                told.add(problem)
        time.sleep(DRAIN_LOOK_S)
    if wait:
        print_line(f"{broker} has nothing any more")


def activate(
    broker: Annotated[str, typer.Argument(help="Name of the broker.")],
    managers: Managers = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Let a broker that drained, or was about to, take part again."""
    _set_state(broker, "active", managers, config, overrides)


def force_recover(
    journal: Annotated[int, typer.Argument(help="Number of the journal.")],
    broker: Annotated[str, typer.Option("--broker", help="Broker whose copy is to be all there is.")],
    config: Config = None,
    overrides: Overrides = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: options.AsJSON = False,
) -> None:
    """Go on with one copy of a journal whose majority is lost for good. What only the others had is lost.

    Use it only when the other members will not come back: their disks are gone. It says what may be lost, asks,
    writes an event that stays in coordination, and appoints the broker alone; the manager then adds others.
    """
    import asyncio

    settings = _settings(config, overrides)
    event = asyncio.run(_force_recover(settings, journal, broker, confirmed=yes))
    if as_json:
        print_json(event)
    else:
        print_line(
            f"journal {journal}: {broker} alone is appointed for epoch {event['epoch']}; "
            f"written down as {event['key']}"
        )


def force_store(
    config: Config = None,
    overrides: Overrides = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Let a cell continue with an etcd that was restored from an older copy, though its processes have seen more.

    Use it only when there is no newer copy. Queues that were made since the copy are not found any more, deleted ones
    and deleted keys are there again. New queues get ids above all that the journals have seen.
    """
    import asyncio

    settings = _settings(config, overrides)
    if found := asyncio.run(_why_refused(settings)):
        note(found)
    note(
        f"If etcd under {settings.etcd_prefix!r} is older than what the cell has seen, queues that were made since it "
        "was copied are not found any more, and what is in them is LOST; access keys that were deleted or disabled "
        "since work again. If a newer copy of etcd can still be restored, stop here."
    )
    if not yes and not typer.confirm("Continue with this etcd?", err=True):
        raise Refused("Nothing was changed.")
    asyncio.run(_force_store(settings))
    print_line(
        "decided: processes that wait continue within seconds; restart those that ran while etcd was restored. The "
        "next queue that is created begins with ids above all that the journals have seen"
    )


async def _why_refused(settings: Settings) -> str | None:
    """Return what a process of the cell found of the store."""
    from quaymaster.coordination.store_witness import read_refusal
    from quaymaster.core.values.errors import NotNow
    from quaymaster.node.stores import open_etcd

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
    from quaymaster.coordination.store_witness import decide_to_continue
    from quaymaster.core.values.errors import NotNow
    from quaymaster.metadata.store.rows import ACCEPTED
    from quaymaster.node.stores import open_etcd

    store = open_etcd(settings)
    try:
        accepted = Put(ACCEPTED, str(time.time_ns() // 1_000_000).encode())
        act = act_of_user("ForceStore", {"etcd_prefix": settings.etcd_prefix})
        await decide_to_continue(store, [accepted, put_act(act)])
    except NotNow as error:
        raise NoServer(f"coordination: {error}") from None
    finally:
        await store.close()


async def _force_recover(settings: Settings, journal: int, broker: str, *, confirmed: bool) -> dict[str, Any]:
    import msgspec

    from quaymaster.coordination.cell_keys import (
        configuration_key,
        decode_configuration,
        decode_registration,
        encode_configuration,
        registration_key,
    )
    from quaymaster.coordination.interface import Compare, Put, RevisionMismatch
    from quaymaster.coordination.noted_acts import act_of_user, put_act
    from quaymaster.core.cell.cell import broker_of
    from quaymaster.core.values.journal_configuration import JournalConfiguration
    from quaymaster.node.stores import open_etcd

    store = open_etcd(settings)
    try:
        row = await store.get(configuration_key(journal))
        registered = await store.get(registration_key(broker))
        if row is None:
            raise Refused(f"There is no journal {journal}.")
        if registered is None:
            raise Refused(f"There is no broker {broker}.")
        known = decode_configuration(row.value)
        report = await _report_of(settings, decode_registration(registered.value).address)
        replica = report.replicas.get(journal)
        members = set(known.members) | set(known.previous_members)
        if replica is None or replica.member not in members:
            raise Refused(f"{broker} has no copy of journal {journal} that counts.")
        reachable = [
            member
            for member in known.members
            if member != replica.member
            and await _is_there(settings, store, broker_of(member), journal, member)
        ]
        if 2 * (len(reachable) + 1) > len(known.members):
            raise Refused(
                f"Journal {journal} has a majority: {', '.join((replica.member, *reachable))}. The manager appoints "
                "a leader by itself; nothing has to be given up."
            )
        others = sorted(members - {replica.member})
        note(
            f"Journal {journal}: the copy of {broker} ends at {replica.end}, with a record of epoch "
            f"{replica.last_epoch}; the newest epoch appointed is {known.epoch}.\n"
            f"Given up: {', '.join(others)}. Every message that was acknowledged and is not in this copy is LOST, "
            "and deletes that are not in it are undone. If one of these disks can still be brought back, stop here."
        )
        if not confirmed and not typer.confirm(f"Go on with the copy of {broker} alone?", err=True):
            raise Refused("Nothing was changed.")
        epoch = max(known.epoch, replica.promised_epoch) + 1
        alone = JournalConfiguration(epoch, replica.member, (replica.member,), (replica.member,), False)
        event = {
            "key": f"{RECOVERIES}{journal}/{epoch}",
            "journal": journal,
            "epoch": epoch,
            "time_ms": time.time_ns() // 1_000_000,
            "host": socket.gethostname(),
            "kept": replica.member,
            "kept_end": replica.end,
            "kept_last_epoch": replica.last_epoch,
            "given_up": others,
        }
        try:
            await store.transaction(
                [Compare(row.key, row.revision), Compare(str(event["key"]), 0)],
                [
                    Put(row.key, encode_configuration(alone)),
                    Put(str(event["key"]), msgspec.json.encode(event)),
                    put_act(act_of_user("ForceRecover", event)),
                ],
            )
        except RevisionMismatch:
            raise Refused("The journal was changed meanwhile: look again.") from None
        return event
    finally:
        await store.close()


async def _is_there(settings: Settings, store: Coordination, broker: str, journal: int, member: str) -> bool:
    """Tell whether a member can be reached and has the copy that it is named for."""
    from quaymaster.coordination.cell_keys import decode_registration, registration_key

    registered = await store.get(registration_key(broker))
    if registered is None:
        return False
    try:
        report = await _report_of(settings, decode_registration(registered.value).address)
    except NoServer:
        return False
    replica = report.replicas.get(journal)
    return replica is not None and replica.member == member and not replica.is_tainted


async def _report_of(settings: Settings, address: str) -> BrokerReport:
    from quaymaster.protocol.rpc.broker_calls import REPORT, decode_report

    return decode_report(await _ask(settings, address, "broker", REPORT, b""))


def _ask_status(managers: list[str] | None, config: Any, overrides: list[str] | None) -> dict[str, Any]:
    import msgspec

    from quaymaster.protocol.rpc.manager_calls import STATUS

    answer = _ask_managers(managers, config, overrides, STATUS, b"")
    status: dict[str, Any] = msgspec.json.decode(answer)
    return status


def _set_state(
    broker: str, state: Any, managers: list[str] | None, config: Any, overrides: list[str] | None
) -> None:
    from quaymaster.coordination.noted_acts import user_here
    from quaymaster.protocol.rpc.manager_calls import (
        SET_BROKER_STATE,
        BrokerStateRequest,
        encode_state_request,
    )

    body = encode_state_request(BrokerStateRequest(broker, state, user_here()))
    _ask_managers(managers, config, overrides, SET_BROKER_STATE, body)


def _ask_managers(
    managers: list[str] | None, config: Any, overrides: list[str] | None, method: str, body: bytes
) -> bytes:
    """Ask one manager after the other, until one answers."""
    import asyncio

    settings = _settings(config, overrides)
    failure: NoServer | None = None
    for address in managers or [settings.manager_listen]:
        try:
            return asyncio.run(_ask(settings, address, "manager", method, body))
        except NoServer as error:
            failure = error
    assert failure is not None, "there is at least one address"
    raise failure


async def _ask(settings: Settings, address: str, role: str, method: str, body: bytes) -> bytes:
    from quaymaster.core.values.errors import CallerError, NotNow

    client = client_of(settings, address, role)
    try:
        return await client.ask(method, body, ASK_TIMEOUT_MS)
    except CallerError as error:
        raise Refused(str(error)) from None
    except NotNow as error:
        raise NoServer(f"{role} at {address}: {error}") from None
    finally:
        await client.close()


def _settings(config: Any, overrides: list[str] | None) -> Settings:
    from quaymaster.cli.loading import load_for

    return load_for(config, overrides)
