"""Which store a server uses: SQLite or etcd, and never another one than its data directory was begun with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from harness.command_line import Run
from harness.etcd import EtcdCluster
from harness.process import ProcessFailed, QuaymasterProcess
from harness.waiting import PATIENCE_S

from quaymaster.cli.host.doctor import check_etcd
from quaymaster.coordination.interface import CoordinationUnavailable, StoreUnusable
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.coordination.stores.sqlite import SQLiteCoordination
from quaymaster.node.data import stores
from quaymaster.node.data.stores import ETCD_FILE, MARK_KEY, SQLITE_FILE, open_store
from quaymaster.settings import Settings, SettingsError, load_settings

PREFIX = "q/"


def settings(**flags: object) -> Settings:
    return load_settings(flags=flags, environment={})


async def join(
    store: MemoryCoordination, data: Path, prefix: str = PREFIX, *, takes_any_store: bool = False
) -> None:
    await stores._join(store, prefix, data, stores._read_mark(data), takes_any_store=takes_any_store)


async def id_in(store: MemoryCoordination) -> str | None:
    row = await store.get(MARK_KEY)
    return row.value.decode() if row else None


def run_async(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await scenario()

    asyncio.run(main())


def directory(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_directory_and_its_place_in_etcd_know_each_other(tmp_path: Path) -> None:
    data = directory(tmp_path / "data")

    async def scenario() -> None:
        store = MemoryCoordination()
        await join(store, data)
        (data / "journals").mkdir()

        await join(store, data)

        row = await store.get(MARK_KEY)
        assert row is not None
        assert (data / ETCD_FILE).read_text() == f"etcd {PREFIX} {row.value.decode()}\n"

    run_async(scenario)


def test_a_start_cut_before_etcd_knew_the_directory_is_finished_by_the_next(tmp_path: Path) -> None:
    data = directory(tmp_path / "data")
    (data / ETCD_FILE).write_text(f"etcd {PREFIX} 0123456789abcdef\n")

    async def scenario() -> None:
        store = MemoryCoordination()

        await join(store, data)

        row = await store.get(MARK_KEY)
        assert row is not None
        assert row.value == b"0123456789abcdef"

    run_async(scenario)


def test_two_directories_cannot_share_a_prefix(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = MemoryCoordination()
        await join(store, directory(tmp_path / "one"))
        directory(tmp_path / "two")

        for _ in range(2):
            with pytest.raises(StoreUnusable, match="belongs to another data directory"):
                await join(store, tmp_path / "two")

        assert list((tmp_path / "two").iterdir()) == []

    run_async(scenario)


def test_a_directory_with_messages_is_not_served_with_an_empty_etcd(tmp_path: Path) -> None:
    data = directory(tmp_path / "data")

    async def scenario() -> None:
        await join(MemoryCoordination(), data)
        (data / "journals").mkdir()

        with pytest.raises(StoreUnusable, match="is this the right etcd"):
            await join(MemoryCoordination(), data)

    run_async(scenario)


def test_a_directory_stays_with_its_prefix(tmp_path: Path) -> None:
    data = directory(tmp_path / "data")

    async def scenario() -> None:
        store = MemoryCoordination()
        await join(store, data)

        with pytest.raises(StoreUnusable, match=r"was begun with 'etcd q/', and etcd_prefix is 'other/'"):
            await join(store, data, "other/")

    run_async(scenario)


def test_a_directory_with_a_metadata_file_is_not_served_with_etcd(tmp_path: Path) -> None:
    data = directory(tmp_path / "data")

    async def scenario() -> None:
        store = await SQLiteCoordination.open(data / SQLITE_FILE)
        await store.close()

        with pytest.raises(StoreUnusable, match=r"set coordination = 'sqlite'"):
            await join(MemoryCoordination(), data)

    run_async(scenario)


def test_a_directory_begun_with_etcd_is_not_served_with_a_file(tmp_path: Path) -> None:
    data = directory(tmp_path / "data")

    async def scenario() -> None:
        await join(MemoryCoordination(), data)

        with pytest.raises(StoreUnusable, match=r"set coordination = 'etcd'"):
            await open_store(settings(), data)

        assert not (data / SQLITE_FILE).exists()

    run_async(scenario)


DAMAGED = [
    b"",
    b"\x00" * 512,
    b"etcd q/ \xff123456789abcdef\n",
    b"etcd q/ 0123456789abcde",
    b"etcd 0123456789abcdef\n",
    b"etcd q/ 0123456789abcdef\netcd q/ 0123456789abcdef\n",
]


@pytest.mark.parametrize("written", [None, *DAMAGED])
@pytest.mark.parametrize("has_journals", [True, False])
def test_a_directory_that_does_not_tell_its_place_in_etcd_is_refused_unchanged_until_an_operator_decides(
    tmp_path: Path, written: bytes | None, has_journals: bool
) -> None:
    data = directory(tmp_path / "data")
    told = "is missing" if written is None else "is damaged: it has .* should be"
    if has_journals or written is not None:
        told += r".*force-start.*what is under etcd_prefix 'q/'"

    async def scenario() -> None:
        store = MemoryCoordination()
        await join(store, data)
        identity = await id_in(store)
        if has_journals:
            (data / "journals" / "0").mkdir(parents=True)
        if written is None:
            (data / ETCD_FILE).unlink()
        else:
            (data / ETCD_FILE).write_bytes(written)
        left = sorted(data.rglob("*"))

        for _ in range(2):
            with pytest.raises(StoreUnusable, match=told):
                await join(store, data)
            assert sorted(data.rglob("*")) == left
            assert written is None or (data / ETCD_FILE).read_bytes() == written
            assert await id_in(store) == identity

        await join(store, data, takes_any_store=True)
        await join(store, data)

        assert (data / ETCD_FILE).read_text() == f"etcd {PREFIX} {identity}\n"
        assert await id_in(store) == identity

    run_async(scenario)


def test_no_flipped_bit_of_the_file_is_believed_and_no_cut_of_it(tmp_path: Path) -> None:
    data = directory(tmp_path / "data")

    async def scenario() -> None:
        store = MemoryCoordination()
        await join(store, data)
        (data / "journals").mkdir()
        whole = (data / ETCD_FILE).read_bytes()
        flipped = [
            whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :]
            for place in range(len(whole))
            for bit in range(8)
        ]
        cut = [whole[:length] for length in range(len(whole) - 1)]

        for damaged in (*flipped, *cut):
            (data / ETCD_FILE).write_bytes(damaged)
            with pytest.raises(StoreUnusable):
                await join(store, data)
            with pytest.raises(StoreUnusable):
                await open_store(settings(), data)
            assert (data / ETCD_FILE).read_bytes() == damaged

    run_async(scenario)


def test_a_whole_file_that_does_not_fit_is_refused_whatever_an_operator_decided(tmp_path: Path) -> None:
    data = directory(tmp_path / "data")

    async def scenario() -> None:
        store = MemoryCoordination()
        await join(store, directory(tmp_path / "other"))
        identity = await id_in(store)
        (data / "journals").mkdir()
        (data / ETCD_FILE).write_text(f"etcd {PREFIX} 0123456789abcdef\n")

        with pytest.raises(StoreUnusable, match=f"etcd has the id {identity}, .* says 0123456789abcdef"):
            await join(store, data, takes_any_store=True)

    run_async(scenario)


def test_a_directory_with_messages_is_not_joined_to_an_empty_etcd_whatever_an_operator_decided(
    tmp_path: Path,
) -> None:
    data = directory(tmp_path / "data")
    (data / "journals").mkdir()

    async def scenario() -> None:
        store = MemoryCoordination()

        with pytest.raises(StoreUnusable, match="is this the right etcd"):
            await join(store, data, takes_any_store=True)

        assert not (data / ETCD_FILE).exists()
        assert await id_in(store) is None

    run_async(scenario)


def test_a_start_waits_for_etcd_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "ETCD_WAIT_S", 0.2)
    monkeypatch.setattr(stores, "ETCD_RETRY_S", 0.05)

    async def scenario() -> None:
        with pytest.raises(CoordinationUnavailable):
            await open_store(
                settings(coordination="etcd", etcd_endpoints="http://127.0.0.1:1"),
                directory(tmp_path / "data"),
            )

    run_async(scenario)


def test_endpoints_are_separated_by_commas() -> None:
    chosen = settings(etcd_endpoints="http://a:2379, http://b:2379,")

    assert chosen.etcd_endpoint_list == ["http://a:2379", "http://b:2379"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"etcd_user": "cell"}, "etcd_user and etcd_password go together"),
        ({"etcd_password": "secret"}, "etcd_user and etcd_password go together"),
        ({"etcd_key_file": "/key.pem"}, "etcd_key_file is set"),
        ({"etcd_prefix": "quaymaster"}, "etcd_prefix"),
        ({"coordination": "zookeeper"}, "coordination"),
    ],
)
def test_settings_of_etcd_that_cannot_be_are_refused(flags: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settings(**flags)


def test_doctor_asks_each_endpoint_of_etcd(etcd: EtcdCluster) -> None:
    endpoints = f"{etcd.endpoints[0]},http://127.0.0.1:1"

    findings = list(check_etcd(settings(coordination="etcd", etcd_endpoints=endpoints)))

    assert [finding.result for finding in findings] == ["ok", "problem"]
    assert "127.0.0.1:1" in findings[1].found
    assert list(check_etcd(settings())) == []


# -- the real server --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster.started(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


def etcd_settings(etcd: EtcdCluster, name: str) -> dict[str, str]:
    return {
        "coordination": "etcd",
        "etcd_endpoints": ",".join(etcd.endpoints),
        "etcd_prefix": f"{name}/",
        "etcd_timeout_ms": "2000",
    }


@pytest.mark.slow
def test_a_server_on_etcd_goes_on_with_messages_while_etcd_is_down_and_with_queues_when_it_is_back(
    etcd: EtcdCluster, run: Run, tmp_path: Path
) -> None:
    server = QuaymasterProcess(tmp_path / "data", settings=etcd_settings(etcd, tmp_path.name))
    server.start()
    try:
        run("queue", "create", "orders", "--data", server.data)
        run("message", "send", "orders", "one", "--data", server.data)

        etcd.kill(0)
        sent = run("message", "send", "orders", "two", "--data", server.data)
        received = run(
            "message", "receive", "orders", "-n", "10", "--delete", "--body-only", "--data", server.data
        )
        refused = run("queue", "create", "invoices", "--data", server.data)
        etcd.start(0)
        created = run("queue", "create", "invoices", "--data", server.data)

        server.restart()
        listed = run("queue", "list", "--data", server.data)
    finally:
        server.stop()

    assert (sent.code, received.code, created.code) == (0, 0, 0)
    assert sorted(received.out.split()) == ["one", "two"]
    assert refused.code == 3
    assert "orders" in listed.out
    assert "invoices" in listed.out
    assert not (server.data / SQLITE_FILE).exists()


@pytest.mark.slow
@pytest.mark.parametrize("written", [None, b"etcd \x00\xff"], ids=["missing", "damaged"])
def test_a_server_whose_directory_does_not_tell_its_store_waits_for_an_operator_and_then_has_all_messages(
    etcd: EtcdCluster, run: Run, tmp_path: Path, written: bytes | None
) -> None:
    server = QuaymasterProcess(tmp_path / "data", settings=etcd_settings(etcd, tmp_path.name))
    server.start()
    try:
        run("queue", "create", "orders", "--data", server.data)
        run("message", "send", "orders", "one", "--data", server.data)
        server.stop()
        whole = (server.data / ETCD_FILE).read_bytes()
        if written is None:
            (server.data / ETCD_FILE).unlink()
        else:
            (server.data / ETCD_FILE).write_bytes(written)

        for _ in range(2):
            with pytest.raises(ProcessFailed, match=r"exit code 3 (.|\n)*quaymaster force-start"):
                server.start()
            assert "Traceback" not in server.log()
        decided = run("force-start", "--data", server.data, "--yes")
        server.start()
        received = run("message", "receive", "orders", "--body-only", "--data", server.data)
        server.restart()
    finally:
        server.stop()

    assert decided.code == 0
    assert received.out.split() == ["one"]
    assert (server.data / ETCD_FILE).read_bytes() == whole


@pytest.mark.slow
def test_a_backup_of_a_server_on_etcd_needs_no_etcd(etcd: EtcdCluster, run: Run, tmp_path: Path) -> None:
    first = QuaymasterProcess(tmp_path / "first", settings=etcd_settings(etcd, tmp_path.name))
    first.start()
    try:
        run("queue", "create", "orders", "VisibilityTimeout=77", "--data", first.data)
        run("message", "send", "orders", "one", "--data", first.data)
        made = run("backup", "copy", "--data", first.data)
        key = first.env().access_key_id
    finally:
        first.stop()

    restored = run("restore", "copy", "--data", tmp_path / "second", "--keys", first.data / "keys")
    second = QuaymasterProcess(tmp_path / "second")
    second.start()
    try:
        shown = run("queue", "show", "orders", "--data", second.data, "--json").json
        received = run("message", "receive", "orders", "--body-only", "--data", second.data)
        same_key = second.env().access_key_id
    finally:
        second.stop()
    with_etcd = QuaymasterProcess(tmp_path / "second", settings=etcd_settings(etcd, f"{tmp_path.name}-other"))
    with pytest.raises(ProcessFailed, match="set coordination = 'sqlite'"):
        with_etcd.start()

    assert (made.code, restored.code) == (0, 0)
    assert "etcd itself is not backed up" in made.err
    assert shown["attributes"]["VisibilityTimeout"] == "77"
    assert received.out.split() == ["one"]
    assert same_key == key
