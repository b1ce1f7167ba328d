"""Metadata and journals of one server, when they are not of one moment: after a restore, or where one went back.

A data directory with the file `restored` has been restored from a backup, or an operator decided with `force-start`
that its parts are to be used as they are; the file says who did so. The next start then makes the journal follow the
metadata, notes the act for the audit chain, and removes the file. Without it a
contradiction ends the start: nothing is changed until somebody decides.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from quaymaster.broker.own_journals import OwnJournals
from quaymaster.broker.storage.disk import RealDisk, write_file_durably
from quaymaster.broker.storage.journal_state import RESTORED_NAME
from quaymaster.coordination.interface import Coordination
from quaymaster.coordination.noted_acts import NotedAct, decode_act, encode_act, note_act
from quaymaster.coordination.store_mark import DECIDE
from quaymaster.coordination.store_witness import WITNESS_FILE
from quaymaster.core.values.partition_tables import awaited_journals
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, decode_queue_definition
from quaymaster.core.values.queues.queue_marks import find_contradictions, identity_of, tell_contradictions
from quaymaster.frontend.queue_journal import BrokerQueueJournal
from quaymaster.metadata.queues.queues import Queues
from quaymaster.metadata.store.rows import DELETED, PENDING, QUEUES, DeletedRow, PendingRow, row_decoder
from quaymaster.monitoring.logs import log_event
from quaymaster.node.data.contradictions import DataContradicts, is_to_settle
from quaymaster.node.data.stores import mark_files

log = logging.getLogger(__name__)

_decode_pending = row_decoder(PendingRow)
_decode_deleted = row_decoder(DeletedRow)


def force_settling(data: Path, act: NotedAct) -> None:
    """Let the next start use what is there. No process may serve from the directory meanwhile.

    The act is in the file that lets it: the one is there if the other is.
    """
    write_file_durably(RealDisk(), str(data), RESTORED_NAME, encode_act(act))
    for path in mark_files(data):
        path.unlink(missing_ok=True)
    (data / WITNESS_FILE).unlink(missing_ok=True)


def _read_act(path: Path) -> NotedAct | None:
    """Return who let the parts of a data directory be used; None where an older program, or damage, does not say."""
    written = path.read_bytes()
    try:
        return decode_act(written)
    except msgspec.MsgspecError:
        if written:
            log_event(log, logging.WARNING, "who restored this is not readable", path=str(path))
        return None


async def check_settled(data: Path, store: Coordination, own: OwnJournals) -> None:
    """Make sure that the journals of this process and the store tell the same of their queues; else DataContradicts.

    Call it before the journals hear of changes. Raises NotNow.
    """
    rows, _ = await store.list_all(QUEUES)
    pending, _ = await store.list_all(PENDING)
    deleted, _ = await store.list_all(DELETED)
    unsettled = {_decode_pending(row.value).queue_id for row in pending}
    unsettled |= {_decode_deleted(row.value).queue_id for row in deleted}
    definitions = [decode_queue_definition(row.value) for row in rows]
    _refuse_contradictions(data, {one.queue_id: one for one in definitions}, unsettled, own)


def _refuse_contradictions(
    data: Path, stored: Mapping[int, QueueDefinition], unsettled: Collection[int], own: OwnJournals
) -> None:
    """Compare each journal with the queues that it must know; others it may know as they were."""
    found: list[str] = []
    for number, states in own.queues().items():
        expected = {
            queue_id: queue for queue_id, queue in stored.items() if number in awaited_journals(queue)
        }
        known = {
            queue_id: queue
            for queue_id, queue in states.definitions.items()
            if queue_id in expected or queue_id not in stored
        }
        found += find_contradictions(expected, unsettled, known)
    if found:
        raise DataContradicts(
            f"the metadata and the journal of {data} are not of one moment: {tell_contradictions(found)}. {DECIDE}."
        )


async def settle(
    data: Path,
    store: Coordination,
    queues: Queues,
    own: OwnJournals,
) -> None:
    """Make sure that journals and metadata tell the same of queues; DataContradicts when somebody must decide."""
    journaled = [(journal, journal.host.replica.queues) for journal in own.all()]
    stored, unsettled = queues.what_is_settled()
    if not is_to_settle(data):
        _refuse_contradictions(data, stored, unsettled, own)
        return
    for _, states in journaled:
        await queues.id_guard.raise_to(states.marks)
    defined = {definition.queue_id: definition for definition in queues.active_queues()}
    for journal, states in journaled:
        for queue_id, definition in list(states.definitions.items()):
            if queue_id not in defined or identity_of(defined[queue_id]) != identity_of(definition):
                log_event(log, logging.WARNING, "restored queue dropped", queue=definition.name)
                await BrokerQueueJournal(journal).delete_queue(queue_id)
    # Logs before their consumer groups.
    for queue_id, definition in sorted(defined.items(), key=lambda entry: entry[1].group_of):
        if not any(queue_id in states.definitions for _, states in journaled):
            log_event(log, logging.WARNING, "restored queue is empty", queue=definition.name)
        await queues.settling.tell_again(definition)
    act = _read_act(data / RESTORED_NAME)
    if (
        act is not None
    ):  # noted once more after a crash here: under the same id, and none is in a chain before
        await note_act(store, act)
    (data / RESTORED_NAME).unlink()
    RealDisk().sync_directory(str(data))
