"""`quaymaster queue partitions|split|merge|move`: the partitions of a queue, over the admin API."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from quaymaster.cli.queues.named_queues import name_of, other_account
from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import find_connection
from quaymaster.cli.shared.failures import CommandRefused, NoServer, WrongUsage
from quaymaster.cli.shared.output import ask_before_deletion, note, print_json, print_table

if TYPE_CHECKING:
    from pathlib import Path

    from quaymaster.cli.shared.client import AdminClient

LOOK_INTERVAL_S: Final = 0.25
GIVE_UP_S: Final = 60.0

Partition = dict[str, Any]
WaitSeconds = Annotated[
    float,
    typer.Option(
        "--wait-seconds",
        help="Wait so long for the new partitions to take messages, and the old ones to take none; 0: do not wait.",
        metavar="S",
        min=0,
    ),
]
Cancel = Annotated[
    bool,
    typer.Option(
        "--cancel", help="Give up the change that is under way, while its new partitions take no messages."
    ),
]
OnePartition = Annotated[
    int | None, typer.Option("--partition", help="Number of an open partition.", metavar="P", min=0)
]


def add_to(app: typer.Typer) -> None:
    """Add the commands to a group."""
    app.command("partitions")(show_partitions)
    app.command("split")(split)
    app.command("merge")(merge)
    app.command("move")(move)


def show_partitions(
    queue: options.QueueName,
    give_up: Annotated[
        int | None,
        typer.Option(
            "--give-up",
            help="Give up this partition, whose journal is lost for good, with all its messages. Asks for the queue's "
            "name.",
            metavar="P",
            min=0,
        ),
    ] = None,
    confirm: Annotated[
        str | None,
        typer.Option("--confirm", help="The queue's name once more, instead of typing it.", metavar="NAME"),
    ] = None,
    account: options.QueueAccount = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Show a queue's partitions: their state, journal, keys and messages.

    With --give-up, one is given up first. It is refused while its journal answers.
    """
    if confirm is not None and give_up is None:
        raise WrongUsage("--confirm is for --give-up.")
    with _Queue(queue, account, data, admin_url) as asked:
        if give_up is not None:
            _check_confirmed(asked.name, give_up, confirm)
            asked.give_up(give_up)
        partitions = asked.partitions()
        if asked.given_up:
            note(f"The last change was given up. {asked.given_up}")
        _print(partitions, as_json)


def split(
    queue: options.QueueName,
    into: Annotated[int | None, typer.Option("--into", help="In how many parts.", metavar="N", min=2)] = None,
    partition: OnePartition = None,
    cancel: Cancel = False,
    wait_seconds: WaitSeconds = 60.0,
    account: options.QueueAccount = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Split a partition of a queue into several.

    Without --partition, the one with most keys. Messages stay where they are; new ones go to the new partitions. A FIFO
    queue is split by message groups: its DeduplicationScope must be messageGroup, its FifoThroughputLimit
    perMessageGroupId.
    """
    if (into is None) is not cancel:
        raise WrongUsage("Say --into N, or --cancel.")
    with _Queue(queue, account, data, admin_url) as asked:
        asked.change("SplitQueue", {"into": into, "partition": partition}, wait_seconds, cancel=cancel)
        _print(asked.partitions(), as_json)


def merge(
    queue: options.QueueName,
    partitions: Annotated[
        str | None,
        typer.Option("--partitions", help="Numbers of open partitions, as in 3,4; else all.", metavar="P,P"),
    ] = None,
    cancel: Cancel = False,
    wait_seconds: WaitSeconds = 60.0,
    account: options.QueueAccount = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Merge open partitions of a queue into one.

    Their keys must follow one another. Messages stay where they are; new ones go to the new partition.
    """
    fields = {"partitions": None if partitions is None else _numbers(partitions)}
    with _Queue(queue, account, data, admin_url) as asked:
        asked.change("MergeQueue", fields, wait_seconds, cancel=cancel)
        _print(asked.partitions(), as_json)


def move(
    queue: options.QueueName,
    partition: OnePartition = None,
    to_journal: Annotated[
        int | None,
        typer.Option("--to-journal", help="Journal; else one with few partitions.", metavar="J", min=0),
    ] = None,
    cancel: Cancel = False,
    wait_seconds: WaitSeconds = 60.0,
    account: options.QueueAccount = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Move a partition of a queue to another journal.

    Messages stay where they are; new ones go to the new partition there. --partition is needed only where several are
    open.
    """
    with _Queue(queue, account, data, admin_url) as asked:
        asked.change(
            "MoveQueue", {"partition": partition, "journal": to_journal}, wait_seconds, cancel=cancel
        )
        _print(asked.partitions(), as_json)


class _Queue:
    """A queue, and the admin API that is asked about it."""

    def __init__(self, queue: str, account: str | None, data: Path | None, admin_url: str | None) -> None:
        connection = find_connection(data, None)
        self.name = name_of(queue)
        self.given_up = ""
        """Why the last change was given up, as the partitions were looked at last."""
        self._named: dict[str, Any] = {
            "name": self.name,
            "account_id": other_account(connection, queue, account),
        }
        from quaymaster.cli.shared.client import AdminClient

        self._admin: AdminClient = AdminClient(connection, admin_url)

    def __enter__(self) -> _Queue:
        self._admin.__enter__()
        return self

    def __exit__(self, *ended: Any) -> None:
        self._admin.__exit__(*ended)

    def partitions(self) -> list[Partition]:
        """Return the partitions that are listed, the oldest first."""
        answer = self._admin.call("ListPartitions", **self._named)
        self.given_up = answer.get("given_up") or ""
        found: list[Partition] = answer["partitions"]
        return found

    def give_up(self, number: int) -> None:
        """Give up a partition. One that is open gets a new one for its keys first, and then is given up as sealed ones.

        Raises:
            CommandRefused: it cannot be given up, or the new partition's journal does not answer.
            NoServer: it is not done within a minute.
        """
        deadline_s = time.monotonic() + GIVE_UP_S
        while True:
            begun = self._admin.call("GiveUpPartition", **self._named, partition=number)
            if not begun["children"]:
                note(f"Partition {number} is given up.")
                return
            note(f"New {_named(begun['children'])} for the keys of partition {number}.")
            while True:
                states = {row["number"]: row["state"] for row in self.partitions()}
                state = states.get(number, "drained")  # it is not listed any more
                if state != "open":
                    break
                if not states.keys() >= set(begun["children"]):
                    raise CommandRefused(f"The change was given up. {self.given_up}")
                if time.monotonic() > deadline_s:
                    raise NoServer(f"Partition {number} is not sealed yet. Say it again later.")
                time.sleep(LOOK_INTERVAL_S)
            if state == "drained":
                return

    def change(
        self, operation: str, members: Mapping[str, Any], wait_seconds: float, *, cancel: bool
    ) -> None:
        """Begin a change, and wait until it is done; or give up the one that is under way.

        Raises:
            CommandRefused: it cannot be, or was given up.
            NoServer: it is not done within `wait_seconds`; the server continues with it.
        """
        if cancel:
            self._admin.call("CancelQueueChange", **self._named)
            return
        begun = self._admin.call(operation, **self._named, **members)
        parents, children = begun["parents"], begun["children"]
        note(f"New {_named(children)} for the keys of {_named(parents)}.")
        if not wait_seconds:
            return
        deadline_s = time.monotonic() + wait_seconds
        told = ""
        while True:
            states = {row["number"]: row for row in self.partitions()}
            if any(number not in states for number in children):
                raise CommandRefused(f"The change was given up. {self.given_up}")
            are_open = all(states[number]["state"] != "new" for number in children)
            are_sealed = all(_is_sealed(states.get(number)) for number in parents)
            news = _news(children, parents, are_open=are_open, are_sealed=are_sealed)
            if news != told:
                told = news
                note(news)
            if are_open and are_sealed:
                return
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise NoServer(
                    f"This is not finished after {wait_seconds:g} s. The server continues with it: `quaymaster queue "
                    f"partitions {self.name}` shows how far it is."
                )
            time.sleep(min(LOOK_INTERVAL_S, left_s))


def _check_confirmed(name: str, number: int, confirm: str | None) -> None:
    """Raise CommandRefused unless the queue's name is given once more."""
    if confirm is None:
        note(f"This gives up all messages in partition {number} of the queue {name} for good.")
        confirm = ask_before_deletion("Type the queue's name to go on: ", f"--confirm {name}")
    if confirm.strip() != name:
        raise CommandRefused(
            f"{confirm.strip()!r} is not the name of the queue, {name}: nothing was given up."
        )


def _is_sealed(partition: Partition | None) -> bool:
    """Return whether a partition takes no messages; one that is not listed any more took none for long."""
    if partition is None or partition["state"] in ("closed", "drained"):
        return True
    return partition["state"] == "closing" and partition["sealed_for_ms"] is not None


def _news(children: list[int], parents: list[int], *, are_open: bool, are_sealed: bool) -> str:
    if not are_open:
        return f"Waiting for the journals of {_named(children)}."
    if not are_sealed:
        return f"Open: {_named(children)}. Waiting for the seal of {_named(parents)}."
    return f"Open: {_named(children)}. Sealed: {_named(parents)}."


def _named(numbers: list[int]) -> str:
    what = "partition" if len(numbers) == 1 else "partitions"
    return f"{what} {', '.join(map(str, numbers))}"


def _numbers(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isascii() and part.strip().isdigit() and len(part) < 8 for part in parts):
        raise WrongUsage(f"--partitions takes numbers separated by commas, as in 3,4; not {text!r}.")
    return [int(part) for part in parts]


def _print(partitions: list[Partition], as_json: bool) -> None:
    if as_json:
        print_json(partitions)
        return
    columns = ("number", "state", "journal", "messages", "sends", "first_key", "last_key")
    print_table(
        ("PARTITION", "STATE", "JOURNAL", "MESSAGES", "SENDS", "FIRST KEY", "LAST KEY"),
        ([row[column] for column in columns] for row in partitions),
    )
