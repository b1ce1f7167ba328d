"""Whether a store that others keep (etcd) still is what a process saw of it, or was restored from an older copy.

    store/id               random; the same for as long as the store lives, also after it was restored
    store/generation       written with every change of metadata; its revision is the store's *generation*
    store/decisions        the ids of what operators decided with `force-store`, oldest first
    store/witnesses/<id>   WitnessRow: what one data directory knows, as the store has it
    store/forgotten        text: the highest generation of a row of a directory that was removed
    store/refused          Refusal: a process found that the store went back; removed by `force-store`
    <data>/store.witness   WitnessMark: the same, as the directory has it

A directory and its row carry the same token, a random one for each generation that was seen. No other process writes
that row. So a row with an older token says that the store went back, however much was written to it since; a revision
or a count could have been passed again.

Directories come and go, and their rows stay. So a directory that begins removes the rows with the oldest generations,
beyond WITNESSES_MAX. A directory without a row that has seen no more than such a row writes it again: nothing says that
the store went back. What a restored store lost was seen after the rows in its copy were written, so the directory's
generation is above theirs: such a store could hide only when so many directories began in it since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

import msgspec

DECISIONS_MAX: Final = 64
"""So many decisions are remembered, the latest ones."""
WITNESSES_MAX: Final = 1_000
"""So many directories have a row; beyond that, those without any use for longest lose theirs."""
FORGOTTEN_AT_ONCE_MAX: Final = 50
"""So many rows are removed at most when a directory begins."""


class WitnessRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the store has of one data directory.

    `before`: the token before this one, for a directory that is one behind. `generation`: the store's at that time.
    `process`: role and name, for operators.
    """

    token: bytes
    before: bytes
    generation: int
    process: str


class WitnessMark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a data directory has of its store. `followed`: the decisions of operators that it knows."""

    store_id: str
    directory_id: str
    token: bytes
    generation: int
    followed: tuple[str, ...] = ()


class Refusal(msgspec.Struct, frozen=True):
    """A process found at a time that the store went back."""

    process: str
    reason: str
    time_ms: int


class SeenStore(msgspec.Struct, frozen=True, gc=False):
    """What a store says at one moment.

    `witness`: the row of the directory that asks. `forgotten`: rows up to this generation may have been removed.
    """

    store_id: str | None
    generation: int
    decisions: tuple[str, ...]
    witness: WitnessRow | None
    forgotten: int = 0


class Verdict(Enum):
    """How a directory and a store stand to each other."""

    UNKNOWN = "the directory has seen no store yet"
    FITS = "the store has all that the directory saw"
    DECIDED = "they differ, and an operator decided since to continue with the store"
    FORGOTTEN = "the store removed the row of a directory that was not used for long"
    STORE_WENT_BACK = "the store is older than the directory"
    OTHER_STORE = "the store is not the one that the directory was begun with"
    DIRECTORY_WENT_BACK = "the directory is older than the store"


def judge(mark: WitnessMark | None, seen: SeenStore) -> Verdict:
    """Return how a directory and a store stand to each other."""
    if mark is None:
        return Verdict.UNKNOWN
    is_decided = bool(set(seen.decisions) - set(mark.followed))
    if seen.store_id != mark.store_id:
        # A store with another id was never this directory's, whatever was decided there.
        return Verdict.DECIDED if seen.store_id is None and is_decided else Verdict.OTHER_STORE
    witness = seen.witness
    if witness is not None and mark.token in (witness.token, witness.before):
        return Verdict.FITS
    if is_decided:
        return Verdict.DECIDED
    lacks_decision = bool(mark.followed) and mark.followed[-1] not in seen.decisions
    if witness is None and mark.generation <= seen.forgotten and not lacks_decision:
        return Verdict.FORGOTTEN
    if witness is None or witness.generation < mark.generation or lacks_decision:
        return Verdict.STORE_WENT_BACK
    return Verdict.DIRECTORY_WENT_BACK


def caught_up(mark: WitnessMark, seen: SeenStore) -> WitnessMark:
    """Return the mark of a directory that fits: one that stopped before it wrote its last token takes that."""
    assert seen.witness is not None, "a store without a row fits no directory"
    return msgspec.structs.replace(mark, token=seen.witness.token, generation=seen.witness.generation)


def is_due(mark: WitnessMark, seen: SeenStore) -> bool:
    """Tell whether there is something new to be written down."""
    return seen.generation > mark.generation or not set(seen.decisions) <= set(mark.followed)


def renewed(
    mark: WitnessMark | None, seen: SeenStore, *, store_id: str, directory_id: str, token: bytes, process: str
) -> tuple[WitnessRow, WitnessMark]:
    """Return row and mark with a new token, as of what the store says."""
    followed = () if mark is None else mark.followed
    followed = (*(one for one in followed if one not in seen.decisions), *seen.decisions)[-DECISIONS_MAX:]
    before = b"" if seen.witness is None else seen.witness.token
    return (
        WitnessRow(token, before, seen.generation, process),
        WitnessMark(store_id, directory_id, token, seen.generation, followed),
    )


def row_again(mark: WitnessMark, seen: SeenStore, process: str) -> WitnessRow:
    """Return the row of a directory whose row was removed, with its token: older copies of the store fit as well."""
    return WitnessRow(mark.token, b"", seen.generation, process)


def rows_to_forget(written: Mapping[str, tuple[int, int]], rows_max: int) -> list[str]:
    """Return the keys of the rows to remove, the oldest first, by generation and by the revision they are of.

    Processes that run have the store's generation within a second. If one loses its row, because nothing has changed
    for long, it writes it again, and that is then the newest one.
    """
    surplus = min(len(written) - rows_max, FORGOTTEN_AT_ONCE_MAX)
    return sorted(written, key=lambda key: (written[key], key))[: max(0, surplus)]


def with_decision(decisions: Sequence[str], decision: str) -> tuple[str, ...]:
    """Return what operators decided, with one more decision."""
    return (*decisions, decision)[-DECISIONS_MAX:]


def tell(verdict: Verdict, mark: WitnessMark, seen: SeenStore, process: str, directory: str) -> str:
    """Return what was found, and what decides, as sentences for an operator."""
    if verdict is Verdict.STORE_WENT_BACK:
        found = "nothing" if seen.witness is None else f"metadata up to revision {seen.witness.generation}"
        return (
            f"The metadata store went back: {process} has seen metadata up to revision {mark.generation}, and the "
            f"store knows that it has seen {found}. It was restored from an older copy: keys that were deleted or "
            "disabled since work again in it. Restore a newer copy of it. To continue with this one, decide so with "
            "`quaymaster force-store`."
        )
    if verdict is Verdict.OTHER_STORE:
        found = "no id" if seen.store_id is None else f"the id {seen.store_id}"
        return (
            f"The metadata store is not the one that {directory} was used with: that has the id {mark.store_id}, and "
            f"this one has {found}. It lost its data, or is not this cell's (etcd_endpoints, etcd_prefix). Restore it, "
            f"or use its own. To use this one all the same, remove {directory}/store.witness."
        )
    assert verdict is Verdict.DIRECTORY_WENT_BACK, f"nothing is to be told of {verdict}"
    return (
        f"{directory} is an older copy, or a second one: it has seen metadata up to revision {mark.generation}, and "
        "the store knows that its process has seen later changes. Put back the newest directory, or begin with an "
        "empty one, which a cell fills again. To use this one all the same, decide so with `quaymaster force-store`."
    )
