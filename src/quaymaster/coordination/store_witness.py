"""Watches that the store of a process is the one it knows, and has not been restored from an older copy.

    start ──▶ look ── fits ──▶ serve, look once a second ── fits, new generation ──▶ a new token in both
               │ ▲                    │
               │ └─ once a second ─┐  └─ went back ──▶ `problem`; the owner decides what that ends
               └─ went back ───────┴─▶ `store/refused` is written: processes without a memory of their own read it

What is compared, and why tokens: `core/cell/store_history`. From a store that cannot be reached nothing is concluded.
The disk follows the store: a process that stops between the two writes is one token behind, which its row knows.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

import msgspec
from crc32c import crc32c

from quaymaster.coordination.interface import (
    ABSENT,
    Compare,
    Coordination,
    KeyValue,
    OutcomeUnknown,
    Put,
    RevisionMismatch,
    StoreUnusable,
)
from quaymaster.core.cell.store_history import (
    WITNESSES_MAX,
    Refusal,
    SeenStore,
    Verdict,
    WitnessMark,
    WitnessRow,
    caught_up,
    is_due,
    judge,
    renewed,
    row_again,
    rows_to_forget,
    tell,
    with_decision,
)
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.unreadable import UNREADABLE
from quaymaster.monitoring.logs import log_event
from quaymaster.monitoring.supervision import supervise

STORE: Final = "store/"
STORE_ID: Final = "store/id"
GENERATION: Final = "store/generation"
DECISIONS: Final = "store/decisions"
WITNESSES: Final = "store/witnesses/"
FORGOTTEN: Final = "store/forgotten"
REFUSED: Final = "store/refused"
WITNESS_FILE: Final = "store.witness"
WITNESS_VERSION: Final = 1
LOOK_INTERVAL_S: Final = 1.0
TOKEN_BYTES: Final = 16
HEADER_BYTES: Final = 5
"""Of the file: its version, and the CRC-32C of what follows."""

log = logging.getLogger(__name__)

_encode = msgspec.msgpack.Encoder().encode
_rows = msgspec.msgpack.Decoder(WitnessRow)
_marks = msgspec.msgpack.Decoder(WitnessMark)
_refusals = msgspec.json.Decoder(Refusal)
_decisions = msgspec.json.Decoder(tuple[str, ...])
_numbers = msgspec.json.Decoder(int)


class WitnessFile(Protocol):
    """The file of a data directory. Calls block."""

    @property
    def directory(self) -> str:
        """The data directory, for operators."""

    def read(self) -> bytes | None:
        """Return what is in it; None when there is none."""

    def write(self, data: bytes) -> None:
        """Replace what is in it, durably."""


class StoreWitness:
    """Compares a store with what is known of it. Within one event loop."""

    def __init__(
        self,
        store: Coordination,
        process: str,
        file: WitnessFile | None = None,
        *,
        keeps_data: bool = False,
        interval_s: float = LOOK_INTERVAL_S,
        rows_max: int = WITNESSES_MAX,
    ) -> None:
        """`process`: role and name. Without a `file` it only reads what others found.

        `keeps_data`: the directory has more than the witness file. It must not be used when it is older than the store.
        `rows_max`: beyond so many, rows of directories that were not used for longest are removed.
        """
        self._store = store
        self._process = process
        self._file = file
        self._keeps_data = keeps_data
        self._interval_s = interval_s
        self._rows_max = rows_max
        self._mark: WitnessMark | None = None
        self._is_read = file is None
        self._unwritten = False
        self._task: asyncio.Task[None] | None = None
        self.verdict = Verdict.UNKNOWN
        """Of this process alone."""
        self.problem: str | None = None
        """Why the store must not be believed; None while nothing was found."""

    def why_not_ready(self) -> str | None:
        """Return why the store must not be believed: a check of `Health`."""
        return self.problem

    async def look(self) -> None:
        """Compare once, and write down what is new; NotNow when the store cannot be reached.

        Raises StoreUnusable when the file, or what the store has, is damaged or of a newer version.
        """
        if not self._is_read:
            self._mark = await self._read_file()
            self._is_read = True
        found = await self._ask()
        try:
            refusal = _refusal_of(found.get(REFUSED))
            seen = _seen(found, self._mark)
            if self._file is None or (self._mark is None and refusal is not None):
                own = None  # a store that others refuse is nothing to remember
            else:
                own = await self._compare(found, seen)
        except UNREADABLE as error:
            raise StoreUnusable(
                f"what is under {STORE!r} in the metadata store cannot be read: {error}"
            ) from None
        if self.verdict is Verdict.STORE_WENT_BACK and own is not None and refusal is None:
            await self._tell_others(own)
        self._tell(own or (None if refusal is None else refusal.reason))

    async def wait_until_accepted(self) -> None:
        """Return when the store may be believed, however long an operator takes to decide.

        Raises StoreUnusable when no decision about the store can help: the directory must not be used with it, or the
        store is damaged.
        """
        while True:
            with suppress(NotNow):
                await self.look()
                self._check_usable()
                if self.problem is None:
                    return
            self._store.check_asked()
            await asyncio.sleep(self._interval_s)

    async def look_at_start(self) -> None:
        """Return after the first look that reached the store, whatever it found of the store.

        Raises StoreUnusable as `wait_until_accepted`.
        """
        while True:
            try:
                await self.look()
            except NotNow:
                self._store.check_asked()
                await asyncio.sleep(self._interval_s)
            else:
                self._check_usable()
                return

    def start(self, on_problem: Callable[[StoreUnusable], None]) -> None:
        """Begin to look again and again; `on_problem` hears of each problem once."""
        self._task = supervise(asyncio.create_task(self._watch(on_problem), name="store-witness"))

    async def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _watch(self, on_problem: Callable[[StoreUnusable], None]) -> None:
        told = None
        while True:
            try:
                await self.look()
            except NotNow:
                pass  # looked at again in a second
            except StoreUnusable as error:
                self._tell(str(error))
            if self.problem != told and self.problem is not None:
                on_problem(StoreUnusable(self.problem))
            told = self.problem
            await asyncio.sleep(self._interval_s)

    def _check_usable(self) -> None:
        if self.verdict in (Verdict.OTHER_STORE, Verdict.DIRECTORY_WENT_BACK):
            raise StoreUnusable(self.problem or self.verdict.value)

    def _tell(self, problem: str | None) -> None:
        if problem != self.problem:
            if problem is not None:
                log_event(log, logging.ERROR, "store refused", reason=problem)
            else:
                log_event(log, logging.WARNING, "store accepted")
        self.problem = problem

    # The store

    async def _ask(self) -> dict[str, KeyValue]:
        keys = [STORE_ID, GENERATION, DECISIONS, REFUSED, FORGOTTEN]
        if self._mark is not None:
            keys.append(WITNESSES + self._mark.directory_id)
        rows, _ = await self._store.read(keys)
        return {row.key: row for row in rows}

    async def _compare(self, found: dict[str, KeyValue], seen: SeenStore) -> str | None:
        """Return what is wrong, None when nothing is; bring directory and store to what is new."""
        mark = self._mark
        self.verdict = judge(mark, seen)
        if self.verdict is Verdict.DIRECTORY_WENT_BACK and not self._keeps_data:
            self.verdict = Verdict.DECIDED  # nothing but the mark is in it
        if mark is not None and self.verdict is Verdict.FITS:
            assert seen.witness is not None, "a store without a row fits no directory"
            if self._unwritten or mark.token != seen.witness.token:
                await self._write_file(caught_up(mark, seen))
            if not self._unwritten and is_due(self._mark or mark, seen):
                await self._renew(found, seen)
            return None
        if mark is not None and self.verdict is Verdict.FORGOTTEN:
            await self._write_again(mark, seen)
            await self._forget_others(found, seen)
            return None
        if mark is None or self.verdict is Verdict.DECIDED:
            if mark is not None:
                log_event(log, logging.WARNING, "store differs, as decided", process=self._process)
            await self._renew(found, seen)
            if seen.witness is None:
                await self._forget_others(found, seen)
            return None
        assert self._file is not None, "what has no file compares nothing"
        return tell(self.verdict, mark, seen, self._process, self._file.directory)

    async def _renew(self, found: dict[str, KeyValue], seen: SeenStore) -> None:
        store_id = seen.store_id or secrets.token_hex(8)
        directory_id = secrets.token_hex(8) if self._mark is None else self._mark.directory_id
        row, mark = renewed(
            self._mark,
            seen,
            store_id=store_id,
            directory_id=directory_id,
            token=secrets.token_bytes(TOKEN_BYTES),
            process=self._process,
        )
        key = WITNESSES + directory_id
        compares = [Compare(key, found[key].revision if key in found else ABSENT)]
        puts = [Put(key, _encode(row))]
        if seen.store_id is None:
            compares.append(Compare(STORE_ID, ABSENT))
            puts.append(Put(STORE_ID, store_id.encode()))
        # Another process made the id, or it is unknown what came of this: the next look knows.
        with suppress(RevisionMismatch, OutcomeUnknown):
            await self._store.transaction(compares, puts)
            await self._write_file(mark)

    async def _write_again(self, mark: WitnessMark, seen: SeenStore) -> None:
        log_event(log, logging.INFO, "row of this directory was removed", process=self._process)
        key = WITNESSES + mark.directory_id
        with suppress(RevisionMismatch, OutcomeUnknown):  # the next look knows
            row = row_again(mark, seen, self._process)
            await self._store.transaction([Compare(key, ABSENT)], [Put(key, _encode(row))])

    async def _forget_others(self, found: dict[str, KeyValue], seen: SeenStore) -> None:
        """Remove rows of directories that were not used for longest, now that there is one more."""
        items, _ = await self._store.list_all(WITNESSES)
        rows = {item.key: item for item in items}
        generations = {key: _rows.decode(row.value).generation for key, row in rows.items()}
        written = {key: (generations[key], row.revision) for key, row in rows.items()}
        keys = rows_to_forget(written, self._rows_max)
        if not keys:
            return
        forgotten = max(seen.forgotten, *(generations[key] for key in keys))
        compares = [Compare(key, rows[key].revision) for key in keys]
        compares.append(Compare(FORGOTTEN, found[FORGOTTEN].revision if FORGOTTEN in found else ABSENT))
        # One of them came back meanwhile, or another process did the same: the next directory that begins does it.
        with suppress(RevisionMismatch, OutcomeUnknown):
            await self._store.transaction(compares, [Put(FORGOTTEN, str(forgotten).encode())], keys)
            log_event(
                log, logging.INFO, "rows of old directories removed", rows=len(keys), generation=forgotten
            )

    async def _tell_others(self, reason: str) -> None:
        refusal = Refusal(self._process, reason, time.time_ns() // 1_000_000)
        with suppress(RevisionMismatch, NotNow):
            await self._store.compare_and_swap(REFUSED, ABSENT, msgspec.json.encode(refusal))

    # The file

    async def _read_file(self) -> WitnessMark | None:
        assert self._file is not None, "there is a file to read"
        data = await asyncio.get_running_loop().run_in_executor(None, self._file.read)
        return None if data is None else decode_mark(data, self._file.directory)

    async def _write_file(self, mark: WitnessMark) -> None:
        """Remember a mark, and write it; where that fails, a later look writes it, before the next token."""
        assert self._file is not None, "there is a file to write"
        self._mark = mark
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._file.write, encode_mark(mark))
        except OSError as error:
            if not self._unwritten:
                log_event(log, logging.ERROR, "witness of the store not written", reason=str(error))
            self._unwritten = True
        else:
            self._unwritten = False


def encode_mark(mark: WitnessMark) -> bytes:
    """Return the bytes of the file."""
    body = _encode(mark)
    return bytes([WITNESS_VERSION]) + crc32c(body).to_bytes(4, "little") + body


def decode_mark(data: bytes, directory: str) -> WitnessMark:
    """Return what is in the file; StoreUnusable when it is damaged, or of a newer version."""
    path = f"{directory}/{WITNESS_FILE}"
    body = data[HEADER_BYTES:]
    if len(data) < HEADER_BYTES or crc32c(body) != int.from_bytes(data[1:HEADER_BYTES], "little"):
        raise StoreUnusable(
            f"{path} is damaged, which says what this directory has seen of the metadata store. If the store was not "
            "restored from an older copy since, remove the file."
        )
    if data[0] != WITNESS_VERSION:
        raise StoreUnusable(
            f"{path} has version {data[0]}; this program reads version {WITNESS_VERSION}. Start the version of "
            "Quaymaster that wrote it."
        )
    return _marks.decode(body)


def with_generation(
    puts: Sequence[Put], deletes: Sequence[str], is_counted: Callable[[str], bool]
) -> Sequence[Put]:
    """Return what is written when a change that counts makes a new generation; only its revision matters."""
    changes = any(is_counted(put.key) for put in puts) or any(map(is_counted, deletes))
    return [*puts, Put(GENERATION, b"")] if changes else puts


async def read_refusal(store: Coordination) -> Refusal | None:
    """Return what a process found, None when nothing is to be decided."""
    return _refusal_of(await store.get(REFUSED))


async def decide_to_continue(store: Coordination, puts: list[Put]) -> None:
    """Write down that an operator continues with the store as it is, and `puts` with that."""
    while True:
        row = await store.get(DECISIONS)
        decided = with_decision(() if row is None else _decisions.decode(row.value), secrets.token_hex(8))
        with suppress(RevisionMismatch):
            await store.transaction(
                [Compare(DECISIONS, ABSENT if row is None else row.revision)],
                [Put(DECISIONS, msgspec.json.encode(decided)), *puts],
                [REFUSED],
            )
            return


def _seen(found: dict[str, KeyValue], mark: WitnessMark | None) -> SeenStore:
    generation = found.get(GENERATION)
    decisions = found.get(DECISIONS)
    store_id = found.get(STORE_ID)
    witness = None if mark is None else found.get(WITNESSES + mark.directory_id)
    forgotten = found.get(FORGOTTEN)
    return SeenStore(
        None if store_id is None else store_id.value.decode(),
        0 if generation is None else generation.revision,
        () if decisions is None else _decisions.decode(decisions.value),
        None if witness is None else _rows.decode(witness.value),
        0 if forgotten is None else _numbers.decode(forgotten.value),
    )


def _refusal_of(row: KeyValue | None) -> Refusal | None:
    return None if row is None else _refusals.decode(row.value)
