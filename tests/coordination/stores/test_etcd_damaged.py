"""Rows in etcd that are not as they were written: never believed, whoever reads them, and told by their key.

Damage is done as a tool of an operator would: the stored bytes of a row are read, harmed, and put back.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness.etcd import EtcdCluster
from harness.waiting import PATIENCE_S

from quaymaster.coordination.cell_format import CellMember
from quaymaster.coordination.interface import (
    ABSENT,
    CoordinationUnavailable,
    Event,
    KeyValue,
    Put,
    StoreUnusable,
)
from quaymaster.coordination.presence import Presence, PresenceRow
from quaymaster.coordination.store_witness import StoreWitness
from quaymaster.coordination.stores import etcd as etcd_module
from quaymaster.coordination.stores.etcd import EtcdCoordination
from quaymaster.coordination.stores.etcd_gateway import EtcdAccess

PASSWORD = "root-password-1"


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await scenario()

    asyncio.run(main())


@asynccontextmanager
async def opened(etcd: EtcdCluster, root: str, *before: str) -> AsyncIterator[EtcdCoordination]:
    """Give a store that prefers the endpoints `before`."""
    store = EtcdCoordination(EtcdAccess([*before, *etcd.endpoints]), root=root)
    try:
        yield store
    finally:
        await store.close()


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def stored(etcd: EtcdCluster, key: str) -> bytes:
    return base64.b64decode(etcd.post("/v3/kv/range", {"key": text(key.encode())})["kvs"][0]["value"])


def put(etcd: EtcdCluster, key: str, value: bytes, lease: int = 0) -> None:
    etcd.post("/v3/kv/put", {"key": text(key.encode()), "value": text(value), "lease": lease})


def flipped(value: bytes, bit: int) -> bytes:
    harmed = bytearray(value)
    harmed[bit // 8] ^= 1 << bit % 8
    return bytes(harmed)


Read = Callable[[EtcdCoordination], Awaitable[object]]
READS: list[Read] = [
    lambda store: store.get("row"),
    lambda store: store.list_prefix("r"),
    lambda store: store.list_all(""),
    lambda store: store.read(["other", "row"]),
]


@pytest.mark.parametrize("read", READS)
def test_a_flipped_bit_is_not_believed_by_any_read_and_etcd_is_away_from_then_on(
    etcd: EtcdCluster, tmp_path: Path, read: Read
) -> None:
    root = f"{tmp_path.name}/"

    async def scenario() -> None:
        async with opened(etcd, root) as store:
            await store.compare_and_swap("row", ABSENT, b"a secret value")
            await asyncio.to_thread(put, etcd, f"{root}row", flipped(stored(etcd, f"{root}row"), 99))

            with pytest.raises(CoordinationUnavailable) as found:
                await read(store)

            assert f"is damaged at the key '{root}row': its row is not the one that was written" in str(
                found.value
            )
            assert "restore etcd from a snapshot" in str(found.value)
            assert "secret" not in str(found.value)
            assert store.why_refused is not None
            with pytest.raises(CoordinationUnavailable, match="is damaged at the key"):
                await store.compare_and_swap("other", ABSENT, b"1")
            with pytest.raises(StoreUnusable, match="is damaged at the key"):
                await store.verify()

    run(scenario)


def test_a_flipped_bit_is_found_by_the_reading_of_everything_at_a_start(
    etcd: EtcdCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_module, "VERIFY_ROWS", 2)
    root = f"{tmp_path.name}/"

    async def scenario() -> None:
        async with opened(etcd, root) as store:
            for number in range(7):
                await store.compare_and_swap(f"row-{number}", ABSENT, b"value")
            await store.verify()
            await asyncio.to_thread(put, etcd, f"{root}row-6", flipped(stored(etcd, f"{root}row-6"), 3))
        async with opened(etcd, root) as store:
            assert await store.get("row-5") is not None

            with pytest.raises(StoreUnusable, match=r"is damaged at the key '.*/row-6'"):
                await store.verify()

    run(scenario)


def test_a_row_without_a_checksum_may_be_of_an_older_program(etcd: EtcdCluster, tmp_path: Path) -> None:
    root = f"{tmp_path.name}/"

    async def scenario() -> None:
        async with opened(etcd, root) as store:
            await asyncio.to_thread(put, etcd, f"{root}format", b"4")

            with pytest.raises(
                StoreUnusable, match=r"has no checksum.* an older Quaymaster or another program"
            ):
                await store.verify()

    run(scenario)


def test_a_row_that_was_moved_or_bound_to_another_lease_is_not_believed(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    root = f"{tmp_path.name}/"

    async def scenario() -> None:
        async with opened(etcd, root) as store:
            await store.compare_and_swap("enabled", ABSENT, b"key")
            await asyncio.to_thread(put, etcd, f"{root}enablee", stored(etcd, f"{root}enabled"))

            with pytest.raises(CoordinationUnavailable, match=r"is damaged at the key '.*/enablee'"):
                await store.list_all("e")
        async with opened(etcd, root) as store:
            lease = await store.grant_lease(60_000)
            await store.compare_and_swap("presence", ABSENT, b"here", lease_id=lease)
            assert await store.get("presence") is not None
            await asyncio.to_thread(put, etcd, f"{root}presence", stored(etcd, f"{root}presence"))

            with pytest.raises(CoordinationUnavailable, match=r"is damaged at the key '.*/presence'"):
                await store.get("presence")

    run(scenario)


def test_a_watch_does_not_tell_a_damaged_row_and_says_at_last_that_it_is_blind(
    etcd: EtcdCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_module, "WATCH_GIVE_UP_S", 0.2)
    root = f"{tmp_path.name}/"

    async def scenario() -> None:
        async with opened(etcd, root) as store:
            first = await store.compare_and_swap("row", ABSENT, b"1")
            watch = store.watch("", first - 1)
            assert await anext(watch) == [Event("row", b"1", first)]
            await asyncio.to_thread(put, etcd, f"{root}row", flipped(stored(etcd, f"{root}row"), 40))

            with pytest.raises(CoordinationUnavailable, match=r"is damaged at the key '.*/row'"):
                await anext(watch)

    run(scenario)


def test_deletions_carry_no_checksum_and_are_told(etcd: EtcdCluster, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(etcd, f"{tmp_path.name}/") as store:
            first = await store.compare_and_swap("row", ABSENT, b"")
            gone = await store.compare_and_swap("row", first, None)

            watch = store.watch("", first - 1)

            events: list[Event] = []
            while len(events) < 2:
                events += await anext(watch)
            assert events == [Event("row", b"", first), Event("row", None, gone)]

    run(scenario)


def test_a_row_that_left_the_root_is_found_by_a_start(etcd: EtcdCluster, tmp_path: Path) -> None:
    root = f"{tmp_path.name}/"
    nearby = root[:-2] + chr(ord(root[-2]) ^ 2) + "/"

    async def scenario() -> None:
        async with opened(etcd, root) as store, opened(etcd, nearby) as neighbour:
            await store.compare_and_swap("key", ABSENT, b"disabled")
            await neighbour.compare_and_swap("key", ABSENT, b"its own")
            await store.verify()
            await asyncio.to_thread(put, etcd, f"{nearby}zzz", stored(etcd, f"{root}key"))
            await store.verify()  # damaged, but none of ours under its own name
            await asyncio.to_thread(put, etcd, f"{nearby}key", stored(etcd, f"{root}key"))

            with pytest.raises(
                StoreUnusable, match=f"damaged at the key '{root}key': it is now '{nearby}key'"
            ):
                await store.verify()

    run(scenario)


def test_a_user_of_the_root_alone_verifies_the_root_alone(tmp_path: Path) -> None:
    with EtcdCluster.started(tmp_path) as etcd:
        _ask_for_passwords(etcd)

        async def scenario() -> None:
            access = EtcdAccess(etcd.endpoints, user="sqs", password="sqs-password-1")
            store = EtcdCoordination(access, root="q/")
            await store.compare_and_swap("row", ABSENT, b"1")
            await store.verify()
            assert store.why_refused is None
            await store.close()

        run(scenario)


def _ask_for_passwords(etcd: EtcdCluster) -> None:
    for name, password in (("root", PASSWORD), ("sqs", "sqs-password-1")):
        etcd.post("/v3/auth/user/add", {"name": name, "password": password})
        etcd.post("/v3/auth/role/add", {"name": name})
        etcd.post("/v3/auth/user/grant", {"user": name, "role": name})
    permission = {"permType": "READWRITE", "key": text(b"q/"), "range_end": text(b"q0")}
    etcd.post("/v3/auth/role/grant", {"name": "sqs", "perm": permission})
    etcd.post("/v3/auth/enable", {})


def test_rows_that_one_member_has_damaged_are_read_from_another(
    etcd: EtcdCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = f"{tmp_path.name}/"

    async def scenario() -> None:
        async with opened(etcd, root) as store:
            first = await store.compare_and_swap("row", ABSENT, b"1")
        whole = stored(etcd, f"{root}row")
        async with (
            harming(etcd, whole, flipped(whole, 42)) as harmed,
            opened(etcd, root, harmed) as store,
        ):
            watch = store.watch("", first - 1)

            assert await anext(watch) == [Event("row", b"1", first)]
            assert await store.get("row") == KeyValue("row", b"1", first)
            await store.verify()
            second = await store.compare_and_swap("row", first, b"2")
            assert await anext(watch) == [Event("row", b"2", second)]

            assert store.why_refused is None
            assert caplog.text.count("etcd endpoint refused") == 1

    run(scenario)


@asynccontextmanager
async def harming(etcd: EtcdCluster, whole: bytes, harmed: bytes) -> AsyncIterator[str]:
    """Give the address of a member that answers with a row harmed."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(65_536):
                writer.write(piece.replace(text(whole).encode(), text(harmed).encode()))
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", etcd.members[0].client_port)
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def test_processes_that_start_with_a_damaged_etcd_end_instead_of_waiting_for_it(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    root = f"{tmp_path.name}/"

    async def scenario() -> None:
        for key in ("store/id", "format"):
            await asyncio.to_thread(put, etcd, root + key, b"not what was written")
        async with opened(etcd, root) as store:
            with pytest.raises(StoreUnusable, match=r"is damaged at the key '.*/store/id'"):
                await StoreWitness(store, "broker one").look_at_start()
        async with opened(etcd, root) as store:
            with pytest.raises(StoreUnusable, match=r"is damaged at the key '.*/store/id'"):
                await StoreWitness(store, "frontend one").wait_until_accepted()
        async with opened(etcd, root) as store:
            member = CellMember(
                store, Presence(store, PresenceRow("broker", "one", "1")), on_unreadable=lambda error: None
            )
            with pytest.raises(StoreUnusable, match=r"is damaged at the key '.*/format'"):
                await member.join()

    run(scenario)


def test_a_backup_holds_plain_values_and_is_not_made_of_damaged_ones(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    root = f"{tmp_path.name}/"

    async def scenario() -> None:
        async with opened(etcd, root) as store:
            await store.transaction([], [Put("a", b"1"), Put("b", b"2")])
            await asyncio.to_thread(put, etcd, f"{root}b", stored(etcd, f"{root}a"))

            with pytest.raises(CoordinationUnavailable, match=r"is damaged at the key '.*/b'"):
                await store.backup(tmp_path / "copy.sqlite")

    run(scenario)
