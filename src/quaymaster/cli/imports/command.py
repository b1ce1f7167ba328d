"""`quaymaster import`: brings queues and messages from Amazon SQS, or from a service that speaks its protocol."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import ServerConnection, find_connection
from quaymaster.cli.shared.failures import EXIT_INTERRUPTED, CommandRefused, WrongUsage
from quaymaster.cli.shared.output import Bar, note, print_json, print_table, progress_bar

if TYPE_CHECKING:
    from quaymaster.cli.imports.ledger import Ledger
    from quaymaster.cli.imports.transfer import ImportedQueue, Transfer
    from quaymaster.cli.shared.client import SQSClient
    from quaymaster.core.importing.definitions import Difference, PlannedQueue

STATE_FILE = Path("quaymaster-import.sqlite")
FOLLOWED_IDLE_S = 300.0
NOTED_EVERY_S = 60.0
"""How often progress is told where there is no terminal for a bar."""


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What is imported, and how."""

    source: Annotated[
        str, typer.Option("--from", help="sqs://REGION, or the URL of the service.", metavar="PLACE")
    ]
    queue: Annotated[
        list[str] | None,
        typer.Argument(help="Names of queues, with their dead-letter queues; else all.", metavar="QUEUE"),
    ] = None
    from_profile: Annotated[
        str | None,
        typer.Option(
            "--from-profile",
            help="Profile of ~/.aws/credentials for the service (else AWS_ACCESS_KEY_ID and its kin).",
            metavar="NAME",
        ),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; print what is missing or different here.")
    ] = False
    definitions_only: Annotated[
        bool, typer.Option("--definitions-only", help="Make the queues; leave the messages.")
    ] = False
    update: Annotated[
        bool, typer.Option("--update", help="Let queues that are here have the attributes and tags of there.")
    ] = False
    leave_out: Annotated[
        bool, typer.Option("--leave-out", help="Make queues without what is refused here, such as a policy.")
    ] = False
    state: Annotated[
        Path, typer.Option("--state", help="State file; the next start resumes with it.", metavar="FILE")
    ] = STATE_FILE
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Go on until there were no messages for --idle-seconds (300)."),
    ] = False
    idle_seconds: Annotated[
        float | None,
        typer.Option("--idle-seconds", help="A queue is done after so long at 0 messages.", min=0),
    ] = None
    workers: Annotated[
        int, typer.Option("--workers", help="Threads; a FIFO queue has one.", min=1, max=64)
    ] = 8
    settle: Annotated[
        str | None,
        typer.Option(
            "--settle",
            help="What became of batches older than 7 days that an import left: committed or not.",
            metavar="committed|not",
        ),
    ] = None
    data: options.Data = None
    endpoint_url: options.EndpointURL = None
    as_json: options.AsJSON = False


@options.gathered
def import_queues(given: ImportOptions) -> None:
    """Import queues and messages from SQS or a compatible service.

    Messages are received there, committed here and deleted there. Each is here once if no other program receives
    from the queue there, also when this is killed and started again.
    """
    from quaymaster.cli.imports.definitions import home_of, make_queues, read_queues
    from quaymaster.cli.imports.source import find_source
    from quaymaster.cli.shared.client import SQSClient
    from quaymaster.core.importing.definitions import plan_queues

    if given.settle not in (None, "committed", "not"):
        raise WrongUsage(f"--settle is committed or not, not {given.settle!r}.")
    source = find_source(given.source, given.from_profile, os.environ)
    target = find_connection(given.data, given.endpoint_url)
    if _are_same(source.endpoint_url, target.endpoint_url):
        raise WrongUsage("Source and target are the same service.")
    with SQSClient(source) as there, SQSClient(target) as here:
        found = read_queues(there, given.queue or None, with_dead_letters=True)
        present = read_queues(here, [queue.name for queue, _ in found], is_optional=True)
        planned = plan_queues(
            [queue for queue, _ in found], {queue.name: queue for queue, _ in present}, home_of(target)
        )
        if given.dry_run:
            _print_plan(
                planned, {queue.name: there.counts(url) for queue, url in found}, as_json=given.as_json
            )
            return
        _refuse_losses(planned, leave_out=given.leave_out)
        made = make_queues(here, planned, update=given.update)
        for difference in _told(planned):
            note(_in_words(difference))
        if given.definitions_only:
            _print_made(made, as_json=given.as_json)
            return
        queues = _queues_with_messages(here, planned, {queue.name: url for queue, url in found})
        _move_messages(source, target, there, here, queues, given)


def _refuse_losses(planned: list[PlannedQueue], *, leave_out: bool) -> None:
    refused = [each for queue in planned for each in queue.differences if each.kind == "refused"]
    if refused and not leave_out:
        told = "\n".join(f"  {_in_words(each)}" for each in refused)
        raise CommandRefused(
            f"Nothing was made. These cannot be here as they are there; --leave-out goes on without them:\n{told}"
        )


def _told(planned: list[PlannedQueue]) -> list[Difference]:
    return [each for queue in planned for each in queue.differences if each.kind != "missing"]


def _in_words(difference: Difference) -> str:
    what = f"{difference.queue}: {difference.what}"
    if difference.kind == "differs":
        return f"{what} is {difference.there} there and {difference.here or 'nothing'} here."
    return f"{what} ({difference.kind}): {difference.reason}"


def _are_same(one: str, other: str) -> bool:
    """Return whether two URLs are of one service, whatever its host is called: an import from itself has no end."""
    return one == other or bool(_places(one) & _places(other))


def _places(url: str) -> set[tuple[str, int]]:
    """Return the addresses and ports of a URL; none where its name is not known, as the first call says then."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {(str(address[0]), port) for *_, address in found}


def _print_plan(planned: list[PlannedQueue], counts: dict[str, dict[str, int]], *, as_json: bool) -> None:
    rows = [each for queue in planned for each in queue.differences]
    if as_json:
        print_json(
            {
                "queues": [
                    {"name": queue.name, "is_there": queue.is_there, "messages": counts[queue.name]}
                    for queue in planned
                ],
                "differences": [each._asdict() for each in rows],
            }
        )
        return
    print_table(
        ("QUEUE", "DIFFERENCE", "WHAT", "THERE", "HERE", "REASON"),
        [(each.queue, each.kind, each.what, each.there, each.here, each.reason) for each in rows],
    )
    messages = sum(sum(each.values()) for each in counts.values())
    note(f"{len(planned)} queues with {messages} messages there; nothing was changed")


def _print_made(made: dict[str, list[str]], *, as_json: bool) -> None:
    if as_json:
        print_json(made)
    else:
        print_table(("QUEUE", ""), [(name, what) for what, names in made.items() for name in names])


def _queues_with_messages(
    here: SQSClient, planned: list[PlannedQueue], source_urls: dict[str, str]
) -> list[ImportedQueue]:
    from quaymaster.cli.imports.transfer import ImportedQueue
    from quaymaster.core.values.queues.attributes import LOG, RETENTION_MODE

    queues: list[ImportedQueue] = []
    for queue in planned:
        if RETENTION_MODE.of(queue.attributes) == LOG:
            note(
                f"{queue.name}: a log keeps its messages; read them there with Spark. They are not imported."
            )
            continue
        queues.append(
            ImportedQueue(
                queue.name, source_urls[queue.name], here.queue_url(queue.name), queue.dead_letter_queue
            )
        )
    return queues


def _move_messages(
    source: ServerConnection,
    target: ServerConnection,
    there: SQSClient,
    here: SQSClient,
    queues: list[ImportedQueue],
    given: ImportOptions,
) -> None:
    from quaymaster.cli.imports.ledger import Ledger
    from quaymaster.cli.imports.transfer import Transfer

    idle_s = given.idle_seconds
    if idle_s is None:
        idle_s = FOLLOWED_IDLE_S if given.follow else 0.0
    total = sum(sum(there.counts(queue.source_url).values()) for queue in queues)
    with (
        Ledger(given.state, source=source.endpoint_url, target=target.endpoint_url) as ledger,
        progress_bar("Importing messages", total=total, quiet=given.as_json) as bar,
    ):
        _settle_batches(ledger, here, queues, given.settle)
        transfer = Transfer(
            source,
            target,
            queues,
            ledger,
            workers=given.workers,
            idle_s=idle_s,
            on_progress=_Progress(bar, total),
        )
        try:
            transfer.run()
        except KeyboardInterrupt:
            note(
                "Stopping: batches that were begun are seen through. Again ends at once; the state file is whole."
            )
            transfer.stop()
            transfer.wait()
    _print_end(transfer, given)


class _Progress:
    """Shows how many messages are here: on a bar, or now and then in a line."""

    def __init__(self, bar: Bar, total: int) -> None:
        self._bar = bar
        self._total = total
        self._noted_s = time.monotonic()

    def __call__(self, count: int) -> None:
        self._total = max(self._total, count)
        self._bar.show(count, self._total)
        if not self._bar.is_shown and time.monotonic() - self._noted_s >= NOTED_EVERY_S:
            self._noted_s = time.monotonic()
            note(f"{count} of about {self._total} messages imported")


def _settle_batches(
    ledger: Ledger,
    here: SQSClient,
    queues: list[ImportedQueue],
    settle: str | None,
) -> None:
    """See through what an earlier import left: each batch is here, or can never be."""
    from quaymaster.cli.imports.transfer import close_batch
    from quaymaster.core.partition.staged_messages import SINK_KEPT_MS

    for batch in ledger.unsettled():
        if time.time_ns() // 1_000_000 - batch.begun_ms < SINK_KEPT_MS:
            is_committed = close_batch(
                here, here.queue_url(batch.queue), batch.sink, batch.id, lambda _: time.sleep(1)
            )
        elif settle is None:
            raise CommandRefused(
                f"An import left a batch for {batch.queue} {SINK_KEPT_MS // 86_400_000} days ago or longer, and the "
                "queue does not remember any more whether it has it. Look whether messages with these "
                "OriginMessageIds came, then say --settle committed or --settle not: "
                + " ".join(batch.message_ids)
            )
        else:
            is_committed = settle == "committed"
        ledger.settle(batch.id, batch.identities, is_committed=is_committed)
        if not is_committed:
            ledger.release(batch.identities)


def _print_end(transfer: Transfer, given: ImportOptions) -> None:
    refused = list(transfer.refused.values())
    if given.as_json:
        print_json(
            {
                "imported": transfer.imported,
                "deleted_again": transfer.deleted_again,
                "refused": [each._asdict() for each in refused],
                "unfinished": transfer.open_queues,
            }
        )
    else:
        for each in refused:
            note(f"{each.queue}: message {each.message_id} stays there: {each.reason}")
        if transfer.open_queues:
            note(f"Not done: {', '.join(transfer.open_queues)}. The next start resumes.")
        note(f"{transfer.imported} messages imported")
    if transfer.open_queues:
        raise typer.Exit(EXIT_INTERRUPTED)
    if refused:
        raise CommandRefused(f"{len(refused)} messages are refused here, and stay there.")
