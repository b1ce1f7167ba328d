"""What a journal remembers of the queues that it ever had, so that nothing of theirs is given to others.

Ids come from a store that may go back: it was restored from an older copy. The journal's own marks do not, as long as
it has its snapshot and its records; no id below them is given.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from quaymaster.core.values.queues.queue_definitions import QueueDefinition

TOLD_MAX = 3
"""So many contradictions are told in full."""


class QueueMarks(msgspec.Struct, array_like=True, gc=False):
    """The highest ids that the journal ever saw. They only grow."""

    queue_id: int = 0
    data_key_id: int = 0

    def note(self, definition: QueueDefinition) -> None:
        """Take the ids of a queue into account."""
        self.raise_to(definition.queue_id, definition.data_key_id)

    def raise_to(self, queue_id: int, data_key_id: int = 0) -> None:
        """Take ids into account."""
        self.queue_id = max(self.queue_id, queue_id)
        self.data_key_id = max(self.data_key_id, data_key_id)


QueueIdentity = tuple[str, str, int]
"""Account, name and time of creation: what a queue stays, whatever is changed of it."""


def identity_of(definition: QueueDefinition) -> QueueIdentity:
    """Return who a queue is."""
    return definition.account_id, definition.name, definition.created_ms


def find_contradictions(
    stored: Mapping[int, QueueDefinition],
    unsettled: Collection[int],
    known: Mapping[int, QueueDefinition],
) -> list[str]:
    """Return how the queues of the metadata and those of its journal cannot be of one history.

    `stored`: what the metadata has, in whatever state; `unsettled`: ids about which the journal is still to be told
    something; `known`: what the journal has. Of a log's consumer groups only the log counts: they come and go with it.
    """
    found = []
    for queue_id, definition in stored.items():
        if queue_id in unsettled or definition.group_of or definition.state != "active":
            continue
        there = known.get(queue_id)
        if there is None:
            found.append(f"the journal does not have the queue {definition.name}")
        elif identity_of(there) == identity_of(definition) and there.revision < definition.revision:
            found.append(
                f"the journal has the queue {definition.name} as of revision {there.revision}, the metadata as of "
                f"{definition.revision}"
            )
    for queue_id, definition in known.items():
        if queue_id in unsettled:
            continue
        there = stored.get(queue_id)
        if there is None:
            if not definition.group_of:
                found.append(f"the metadata does not have the queue {definition.name} of the journal")
        elif identity_of(there) != identity_of(definition):
            found.append(
                f"queue {queue_id} is {definition.name} in the journal and {there.name} in the metadata"
            )
        elif not definition.group_of and there.revision < definition.revision:
            found.append(
                f"the metadata has the queue {definition.name} as of revision {there.revision}, the journal as of "
                f"{definition.revision}"
            )
        elif there.revision == definition.revision and there.partitions != definition.partitions:
            found.append(
                f"the metadata has other partitions of the queue {definition.name} (version {there.table_version}) "
                f"than the journal (version {definition.table_version})"
            )
    return found


def tell_contradictions(found: list[str]) -> str:
    """Return them as one part of a sentence."""
    more = len(found) - TOLD_MAX
    return "; ".join(found[:TOLD_MAX]) + (f"; and {more} more" if more > 0 else "")
