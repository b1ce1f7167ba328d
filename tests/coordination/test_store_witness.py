"""A process notices that its store was restored from an older copy, whatever was written to it since."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from quaymaster.coordination.interface import (
    Compare,
    CoordinationUnavailable,
    KeyValue,
    OutcomeUnknown,
    Put,
    StoreUnusable,
)
from quaymaster.coordination.store_witness import (
    FORGOTTEN,
    GENERATION,
    REFUSED,
    STORE_ID,
    WITNESSES,
    StoreWitness,
    decide_to_continue,
    decode_mark,
    encode_mark,
    read_refusal,
    with_generation,
)
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.cell.store_history import SeenStore, Verdict, WitnessMark

INTERVAL_S = 0.005


class RestorableStore(MemoryCoordination):
    """A store that an operator copies and restores."""

    def copied(self) -> tuple[dict[str, KeyValue], int]:
        return dict(self._rows), self._revision

    def restore(self, copy: tuple[dict[str, KeyValue], int]) -> None:
        self._rows, self._revision = dict(copy[0]), copy[1]
        self._history.clear()

    async def change(self) -> None:
        await self.transaction([], [Put(GENERATION, b"")])


class File:
    """The file of a data directory."""

    directory = "/data"

    def __init__(self) -> None:
        self.content: bytes | None = None
        self.is_full = False

    def read(self) -> bytes | None:
        return self.content

    def write(self, data: bytes) -> None:
        if self.is_full:
            raise OSError(28, "no space left")
        self.content = data

    def copied(self) -> File:
        other = File()
        other.content = self.content
        return other


def run(scenario: Callable[[RestorableStore], Awaitable[None]]) -> None:
    asyncio.run(scenario(RestorableStore()))  # type: ignore[arg-type]


def broker(store: RestorableStore, file: File | None) -> StoreWitness:
    return StoreWitness(store, "broker broker-1", file, keeps_data=True, interval_s=INTERVAL_S)


async def looked(store: RestorableStore, file: File | None) -> StoreWitness:
    witness = broker(store, file)
    await witness.look()
    return witness


async def passed(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(INTERVAL_S)


def test_a_store_that_was_restored_is_refused_though_it_came_further_since() -> None:
    async def scenario(store: RestorableStore) -> None:
        file = File()
        witness = await looked(store, file)
        copy = store.copied()
        await store.change()
        await witness.look()

        store.restore(copy)
        for _ in range(50):
            await store.change()
        for again in (witness, await looked(store, file)):
            await again.look()

            assert again.verdict is Verdict.STORE_WENT_BACK
            assert "force-store" in (again.why_not_ready() or "")

    run(scenario)


def test_a_copy_that_lost_no_change_is_taken() -> None:
    async def scenario(store: RestorableStore) -> None:
        file = File()
        await store.change()
        await looked(store, file)
        await looked(store, file)
        copy = store.copied()
        await store.transaction([], [Put("nodes/one", b"beat")])

        store.restore(copy)
        witness = await looked(store, file)

        assert witness.problem is None
        await store.change()
        await witness.look()
        assert (await looked(store, file)).problem is None

    run(scenario)


def test_processes_without_a_memory_learn_what_another_one_found() -> None:
    async def scenario(store: RestorableStore) -> None:
        file = File()
        witness = await looked(store, file)
        copy = store.copied()
        await store.change()
        await witness.look()
        store.restore(copy)
        front_end, new = await looked(store, None), await looked(store, File())
        assert front_end.problem is None

        await looked(store, file)

        for other in (front_end, new):
            await other.look()
            assert "went back: broker broker-1" in (other.problem or "")
        refusal = await read_refusal(store)
        assert refusal is not None
        assert refusal.process == "broker broker-1"

    run(scenario)


def test_what_an_operator_decided_is_followed_once_also_by_processes_that_were_away() -> None:
    async def scenario(store: RestorableStore) -> None:
        here, away = File(), File()
        for file in (here, away):
            await looked(store, file)
        copy = store.copied()
        await store.change()
        for file in (here, away):
            await looked(store, file)
        store.restore(copy)
        witness = await looked(store, here)
        assert witness.why_not_ready() is not None

        await decide_to_continue(store, [Put("accepted", b"1")])
        await witness.look()

        assert witness.problem is None
        assert await read_refusal(store) is None
        assert await store.get("accepted") is not None
        second = store.copied()
        await store.change()
        await witness.look()
        assert (await looked(store, away)).problem is None
        assert await read_refusal(store) is None
        store.restore(second)
        assert (await looked(store, here)).verdict is Verdict.STORE_WENT_BACK

    run(scenario)


def test_a_store_restored_to_before_a_decision_is_refused() -> None:
    async def scenario(store: RestorableStore) -> None:
        file = File()
        witness = await looked(store, file)
        copy = store.copied()
        await store.change()
        await witness.look()
        store.restore(copy)
        await decide_to_continue(store, [])
        await witness.look()
        assert witness.problem is None

        store.restore(copy)
        await witness.look()

        assert witness.verdict is Verdict.STORE_WENT_BACK

    run(scenario)


def test_an_older_copy_of_a_directory_is_refused_and_others_are_not_told_that_the_store_went_back() -> None:
    async def scenario(store: RestorableStore) -> None:
        file = File()
        witness = await looked(store, file)
        older = file.copied()
        for _ in range(2):
            await store.change()
            await witness.look()

        for start in (broker(store, older).look_at_start, broker(store, older).wait_until_accepted):
            with pytest.raises(StoreUnusable, match="/data is an older copy"):
                await start()
        assert await read_refusal(store) is None

        node = StoreWitness(store, "metadata one", older)  # it has nothing that could be old
        await node.wait_until_accepted()
        assert node.problem is None

    run(scenario)


def test_another_store_is_refused_and_is_not_told_so() -> None:
    async def scenario(store: RestorableStore) -> None:
        file = File()
        await looked(store, file)
        other, empty = RestorableStore(), RestorableStore()
        await looked(other, File())
        await decide_to_continue(other, [])

        for wrong in (other, empty):
            with pytest.raises(
                StoreUnusable, match=r"not the one that /data was used with.*remove /data/store\.wit"
            ):
                await broker(wrong, file).look_at_start()
            assert await read_refusal(wrong) is None
        await decide_to_continue(empty, [])  # a copy from before there were ids
        assert (await looked(empty, file)).problem is None
        assert await empty.get(STORE_ID) is not None

    run(scenario)


@pytest.mark.parametrize("is_made", [False, True])
def test_a_process_that_stops_between_the_stores_write_and_its_own_is_not_mistaken(is_made: bool) -> None:
    class Unsure(RestorableStore):
        is_unsure = False

        async def transaction(self, compares, puts=(), deletes=()):  # type: ignore[no-untyped-def]
            if self.is_unsure:
                if is_made:
                    await super().transaction(compares, puts, deletes)
                raise OutcomeUnknown
            return await super().transaction(compares, puts, deletes)

    async def scenario() -> None:
        store, file = Unsure(), File()
        witness = await looked(store, file)
        for _ in range(3):
            await store.change()
            store.is_unsure = True
            await witness.look()
            store.is_unsure = False
            assert (await looked(store, file.copied())).problem is None
            if is_made:
                witness = await looked(store, file)

        assert (await looked(store, file)).problem is None

    asyncio.run(scenario())


def test_no_token_is_made_before_the_one_before_is_on_the_disk(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(store: RestorableStore) -> None:
        file = File()
        witness = await looked(store, file)
        file.is_full = True
        for _ in range(3):
            await store.change()
            await witness.look()
        assert witness.problem is None
        file.is_full = False
        assert (await looked(store, file.copied())).problem is None

        await witness.look()

        assert (await looked(store, file)).problem is None

    run(scenario)
    assert caplog.text.count("witness of the store not written") == 1


def test_a_process_waits_for_a_decision_and_for_a_store_that_is_away() -> None:
    class Away(RestorableStore):
        is_away = True

        async def read(self, keys):  # type: ignore[no-untyped-def]
            if self.is_away:
                raise CoordinationUnavailable
            return await super().read(keys)

    async def scenario() -> None:
        store, file = Away(), File()
        starting = asyncio.create_task(broker(store, file).look_at_start())
        await asyncio.sleep(3 * INTERVAL_S)
        assert not starting.done()
        store.is_away = False
        await starting
        copy = store.copied()
        await store.change()
        await looked(store, file)
        store.restore(copy)
        node = broker(store, file)
        waiting = asyncio.create_task(node.wait_until_accepted())
        await passed(lambda: node.problem is not None)
        assert not waiting.done()

        await decide_to_continue(store, [])

        await waiting

    asyncio.run(scenario())


def test_a_running_process_hears_of_each_problem_once() -> None:
    async def scenario(store: RestorableStore) -> None:
        told: list[StoreUnusable] = []
        file = File()
        witness = await looked(store, file)
        await witness.close()
        copy = store.copied()
        await store.change()
        await witness.look()
        store.restore(copy)
        witness.start(told.append)

        await passed(lambda: bool(told))
        await asyncio.sleep(5 * INTERVAL_S)
        assert len(told) == 1
        await decide_to_continue(store, [])
        await passed(lambda: witness.problem is None)
        await store.transaction([], [Put(REFUSED, b"\x00")])
        await passed(lambda: len(told) == 2)

        await witness.close()

    run(scenario)


@pytest.mark.parametrize("place", range(0, 40, 3))
def test_a_bit_that_flips_in_the_file_is_refused(place: int) -> None:
    data = bytearray(encode_mark(WitnessMark("store", "directory", b"token" * 3, 5, ("one",))))
    data[place] ^= 1 << (place % 8)

    with pytest.raises(StoreUnusable, match=r"store\.witness"):
        decode_mark(bytes(data), "/data")
    with pytest.raises(StoreUnusable, match="damaged"):
        decode_mark(bytes(data[:3]), "/data")


def test_rows_that_cannot_be_read_are_refused_with_a_sentence() -> None:
    async def scenario(store: RestorableStore) -> None:
        file = File()
        await looked(store, file)
        assert file.content is not None
        directory_id = decode_mark(file.content, "/data").directory_id
        await store.transaction([], [Put(WITNESSES + directory_id, b"\x93\x01")])

        with pytest.raises(StoreUnusable, match="cannot be read"):
            await looked(store, file)

    run(scenario)


def test_rows_of_directories_that_are_gone_have_an_end() -> None:
    async def scenario(store: RestorableStore) -> None:
        lasting = File()
        witness = StoreWitness(store, "metadata lasting", lasting, rows_max=3)
        for number in range(20):
            await store.change()
            await witness.look()
            await StoreWitness(store, f"metadata {number}", File(), rows_max=3).look()

        rows, _ = await store.list_all(WITNESSES)

        assert len(rows) == 3
        assert witness._mark is not None
        assert WITNESSES + witness._mark.directory_id in {row.key for row in rows}
        await witness.look()
        assert witness.verdict is Verdict.FITS

    run(scenario)


def test_a_directory_whose_row_was_removed_begins_again_and_a_store_that_went_back_is_still_refused() -> None:
    async def scenario(store: RestorableStore) -> None:
        away = File()
        await store.change()
        witness = broker(store, away)
        await witness.look()
        copy = store.copied()
        for number in range(3):
            await store.change()
            await StoreWitness(store, f"metadata {number}", File(), rows_max=1).look()
        back = await looked(store, away)
        verdicts = [back.verdict]
        await back.look()
        verdicts.append(back.verdict)
        assert verdicts == [Verdict.FORGOTTEN, Verdict.FITS]
        assert back.problem is None

        store.restore(copy)
        for number in range(3):
            await store.change()
            await StoreWitness(store, f"metadata {number}", File(), rows_max=2).look()

        assert back._mark is not None
        assert await store.get(WITNESSES + back._mark.directory_id) is None
        again = await looked(store, away)
        assert again.verdict is Verdict.STORE_WENT_BACK

    run(scenario)


def test_a_row_that_was_written_meanwhile_is_not_removed() -> None:
    class Crowded(RestorableStore):
        async def list_all(self, prefix: str) -> tuple[list[KeyValue], int]:
            found = await super().list_all(prefix)
            if prefix == WITNESSES:
                await other.look()
            return found

    store = Crowded()
    other = broker(store, File())

    async def scenario() -> None:
        await other.look()
        await store.change()

        await StoreWitness(store, "metadata one", File(), rows_max=1).look()

        assert len((await RestorableStore.list_all(store, WITNESSES))[0]) == 2
        assert await store.get(FORGOTTEN) is None

    asyncio.run(scenario())


def test_changes_that_count_make_a_new_generation() -> None:
    def is_counted(key: str) -> bool:
        return key.startswith("/keys/")

    beat, key = Put("/nodes/one", b""), Put("/keys/one", b"")

    assert with_generation([beat], ["/nodes/two"], is_counted) == [beat]
    assert with_generation([key, beat], [], is_counted) == [key, beat, Put(GENERATION, b"")]
    assert with_generation([], ["/keys/two"], is_counted) == [Put(GENERATION, b"")]


def test_two_processes_that_begin_at_once_agree_on_one_store() -> None:
    async def scenario(store: RestorableStore) -> None:
        files = [File() for _ in range(3)]
        witnesses = [broker(store, file) for file in files]

        await asyncio.gather(*(witness.look() for witness in witnesses))
        for witness in witnesses:
            await witness.look()

        ids = {decode_mark(file.content or b"", "/data").store_id for file in files}
        assert len(ids) == 1
        row = await store.get(STORE_ID)
        assert row is not None
        assert ids == {row.value.decode()}

    run(scenario)


def test_a_row_that_changed_meanwhile_is_looked_at_again() -> None:
    async def scenario(store: RestorableStore) -> None:
        file = File()
        witness = await looked(store, file)
        mark = decode_mark(file.content or b"", "/data")
        found = await witness._ask()
        key = WITNESSES + mark.directory_id
        row = await store.get(key)
        assert row is not None
        await store.transaction([Compare(key, row.revision)], [Put(key, row.value)])
        await store.change()

        await witness._renew(found, msgspec.structs.replace(_nothing_seen(mark), generation=9))

        assert decode_mark(file.content or b"", "/data") == mark
        await witness.look()
        assert decode_mark(file.content or b"", "/data") != mark

    run(scenario)


def _nothing_seen(mark: WitnessMark) -> SeenStore:
    return SeenStore(mark.store_id, 0, (), None)
