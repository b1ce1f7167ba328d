"""`quaymaster journal`: the journals of a cell: where they are led, how far each member is, and one that is rescued.

What is shown is asked of a manager over the RPC. `journal recover` changes coordination itself, as no manager would.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from quaymaster.cli.cells.cell_links import RECOVERIES, Managers, ask, ask_status
from quaymaster.cli.shared import options
from quaymaster.cli.shared.failures import CommandRefused, NoServer
from quaymaster.cli.shared.loading import Config, Overrides, load_for
from quaymaster.cli.shared.output import note, print_json, print_line, print_table

if TYPE_CHECKING:
    from quaymaster.coordination.interface import Coordination, KeyValue
    from quaymaster.core.cell.cell import BrokerReport, ReplicaSeen
    from quaymaster.core.values.journal_configuration import JournalConfiguration
    from quaymaster.settings import Settings

app = options.new_group("Look at the journals of a cell, and recover one whose majority is lost.")

JournalNumber = Annotated[int, typer.Argument(help="Number of the journal.", metavar="JOURNAL")]


@app.command("list")
def list_journals(
    managers: Managers = None,
    config: Config = None,
    overrides: Overrides = None,
    as_json: options.AsJSON = False,
) -> None:
    """List the journals of a cell: leader, epoch, members, and how many records the last of them is behind."""
    journals = ask_status(managers, config, overrides)["journals"]
    if as_json:
        print_json({"journals": journals})
    else:
        print_journals(journals)


def print_journals(journals: list[dict[str, Any]]) -> None:
    """Print journals as a manager's status has them."""
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
            for journal in journals
        ],
    )


@app.command("show")
def show(
    journal: JournalNumber,
    managers: Managers = None,
    config: Config = None,
    overrides: Overrides = None,
    as_json: options.AsJSON = False,
) -> None:
    """Show a journal's epoch, leader, members and learners, and how far each of them is."""
    status = ask_status(managers, config, overrides)
    found = next((one for one in status["journals"] if one["journal"] == journal), None)
    if found is None:
        numbers = ", ".join(str(one["journal"]) for one in status["journals"]) or "none"
        raise CommandRefused(f"There is no journal {journal}; there are: {numbers}.")
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


@app.command()
def recover(
    journal: JournalNumber,
    broker: Annotated[str, typer.Option("--broker", help="Broker whose copy is to be all there is.")],
    config: Config = None,
    overrides: Overrides = None,
    yes: options.Yes = False,
    as_json: options.AsJSON = False,
) -> None:
    """Go on with one copy of a journal whose majority is lost for good. What only the others had is lost.

    Use it only when the other members will not come back: their disks are gone. It says what may be lost, asks,
    writes an event that stays in coordination, and appoints the broker alone; the manager then adds others.
    """
    import asyncio

    settings = load_for(config, overrides)
    event = asyncio.run(_recover(settings, journal, broker, confirmed=yes))
    if as_json:
        print_json(event)
    else:
        print_line(
            f"journal {journal}: {broker} alone is appointed for epoch {event['epoch']}; "
            f"written down as {event['key']}"
        )


class _KeptCopy(NamedTuple):
    """The copy of a journal that is to be all there is, and what is known of the others."""

    row: KeyValue
    known: JournalConfiguration
    replica: ReplicaSeen

    @property
    def others(self) -> list[str]:
        """Members, of now or of before, that are given up."""
        return sorted({*self.known.members, *self.known.previous_members} - {self.replica.member})


async def _recover(settings: Settings, journal: int, broker: str, *, confirmed: bool) -> dict[str, Any]:
    from quaymaster.node.data.stores import open_etcd

    store = open_etcd(settings)
    try:
        copy = await _find_copy(settings, store, journal, broker)
        await _check_majority_is_lost(settings, store, journal, copy)
        note(
            f"Journal {journal}: the copy of {broker} ends at {copy.replica.end}, with a record of epoch "
            f"{copy.replica.last_epoch}; the newest epoch appointed is {copy.known.epoch}.\n"
            f"Given up: {', '.join(copy.others)}. Every message that was acknowledged and is not in this copy is LOST, "
            "and deletes that are not in it are undone. If one of these disks can still be brought back, stop here."
        )
        if not confirmed and not typer.confirm(f"Go on with the copy of {broker} alone?", err=True):
            raise CommandRefused("Nothing was changed.")
        return await _appoint_alone(store, journal, copy)
    finally:
        await store.close()


async def _find_copy(settings: Settings, store: Coordination, journal: int, broker: str) -> _KeptCopy:
    from quaymaster.coordination.cell_keys import (
        configuration_key,
        decode_configuration,
        decode_registration,
        registration_key,
    )

    row = await store.get(configuration_key(journal))
    registered = await store.get(registration_key(broker))
    if row is None:
        raise CommandRefused(f"There is no journal {journal}.")
    if registered is None:
        raise CommandRefused(f"There is no broker {broker}.")
    known = decode_configuration(row.value)
    report = await _report_of(settings, decode_registration(registered.value).address)
    replica = report.replicas.get(journal)
    if replica is None or replica.member not in {*known.members, *known.previous_members}:
        raise CommandRefused(f"{broker} has no copy of journal {journal} that counts.")
    return _KeptCopy(row, known, replica)


async def _check_majority_is_lost(
    settings: Settings, store: Coordination, journal: int, copy: _KeptCopy
) -> None:
    """Raise CommandRefused if the members that can be reached are a majority."""
    from quaymaster.core.cell.cell import broker_of

    reachable = [
        member
        for member in copy.known.members
        if member != copy.replica.member
        and await _is_there(settings, store, broker_of(member), journal, member)
    ]
    if 2 * (len(reachable) + 1) > len(copy.known.members):
        raise CommandRefused(
            f"Journal {journal} has a majority: {', '.join((copy.replica.member, *reachable))}. The manager appoints "
            "a leader by itself; nothing has to be given up."
        )


async def _appoint_alone(store: Coordination, journal: int, copy: _KeptCopy) -> dict[str, Any]:
    """Appoint the copy's broker as the journal's only member; return the event that is written down with it."""
    import msgspec

    from quaymaster.coordination.cell_keys import encode_configuration
    from quaymaster.coordination.interface import Compare, Put, RevisionMismatch
    from quaymaster.coordination.noted_acts import act_of_user, put_act
    from quaymaster.core.values.journal_configuration import JournalConfiguration

    row, replica = copy.row, copy.replica
    epoch = max(copy.known.epoch, replica.promised_epoch) + 1
    alone = JournalConfiguration(epoch, replica.member, (replica.member,), (replica.member,), False)
    key = f"{RECOVERIES}{journal}/{epoch}"
    event = {
        "key": key,
        "journal": journal,
        "epoch": epoch,
        "time_ms": time.time_ns() // 1_000_000,
        "host": socket.gethostname(),
        "kept": replica.member,
        "kept_end": replica.end,
        "kept_last_epoch": replica.last_epoch,
        "given_up": copy.others,
    }
    try:
        await store.transaction(
            [Compare(row.key, row.revision), Compare(key, 0)],
            [
                Put(row.key, encode_configuration(alone)),
                Put(key, msgspec.json.encode(event)),
                put_act(act_of_user("ForceRecover", event)),
            ],
        )
    except RevisionMismatch:
        raise CommandRefused("The journal was changed meanwhile: look again.") from None
    return event


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

    return decode_report(await ask(settings, address, "broker", REPORT, b""))
