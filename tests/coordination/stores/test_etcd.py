"""What is particular to etcd: sharing it, logging in, TLS, wrong addresses, compaction, backup."""

from __future__ import annotations

import asyncio
import base64
import math
import shutil
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from harness.certificates import Certificate, make_certificate
from harness.etcd import EtcdCluster
from harness.waiting import PATIENCE_S

from quaymaster.coordination.interface import (
    ABSENT,
    CoordinationUnavailable,
    Event,
    Put,
    StoreUnusable,
    WatchLost,
)
from quaymaster.coordination.stores import etcd_gateway
from quaymaster.coordination.stores.etcd import EtcdCoordination
from quaymaster.coordination.stores.etcd_gateway import EtcdAccess, EtcdGateway, parse_error
from quaymaster.coordination.stores.sqlite import SQLiteCoordination
from quaymaster.coordination.watched_prefix import WatchedPrefix


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await scenario()

    asyncio.run(main())


def test_two_roots_in_one_etcd_do_not_see_each_other(etcd: EtcdCluster, tmp_path: Path) -> None:
    async def scenario() -> None:
        one = etcd.store(f"{tmp_path.name}/one/")
        two = etcd.store(f"{tmp_path.name}/two/")
        revision = await one.compare_and_swap("a", ABSENT, b"1")
        watch = two.watch("", revision - 1)

        own = await two.compare_and_swap("a", ABSENT, b"2")

        assert await anext(watch) == [Event("a", b"2", own)]
        assert [item.value for item in (await one.list_all(""))[0]] == [b"1"]
        assert [item.value for item in (await two.list_all(""))[0]] == [b"2"]
        await one.close()
        await two.close()

    run(scenario)


@pytest.mark.parametrize(
    ("access", "root", "message"),
    [
        (EtcdAccess([]), "q/", "etcd_endpoints is empty"),
        (EtcdAccess(["127.0.0.1:2379"]), "q/", "not an address of etcd"),
        (EtcdAccess(["http://user@127.0.0.1:2379"]), "q/", "not an address of etcd"),
        (EtcdAccess(["http://[::1"]), "q/", "not an address of etcd"),
        (EtcdAccess(["https://127.0.0.1:2379"], ca_file=Path("/nowhere/ca.pem")), "q/", "/nowhere/ca.pem"),
        (EtcdAccess(["http://127.0.0.1:2379"]), "q", "must end with '/'"),
    ],
)
def test_an_access_that_cannot_be_is_named(access: EtcdAccess, root: str, message: str) -> None:
    async def scenario() -> None:
        with pytest.raises(StoreUnusable, match=message):
            EtcdCoordination(access, root=root)

    run(scenario)


def test_watch_from_before_a_compaction_is_lost_and_one_that_kept_up_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = etcd.store("q/")
        first = await store.compare_and_swap("a", ABSENT, b"1")
        live = store.watch("", first - 1)
        assert await anext(live) == [Event("a", b"1", first)]
        second = await store.compare_and_swap("a", first, b"2")
        third = await store.compare_and_swap("a", second, b"3")

        await asyncio.to_thread(etcd.post, "/v3/kv/compaction", {"revision": third, "physical": True})

        with pytest.raises(WatchLost):
            await anext(store.watch("", first))
        events: list[Event] = []
        while len(events) < 2:
            events += await anext(live)
        assert events == [Event("a", b"2", second), Event("a", b"3", third)]
        fourth = await store.compare_and_swap("a", third, b"4")
        assert await anext(live) == [Event("a", b"4", fourth)]
        await store.close()

    with EtcdCluster.started(tmp_path) as etcd:  # of its own: others watch from the beginning
        run(scenario)


def test_an_endpoint_is_asked_for_its_revision_unless_it_answered_another_read_since(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    async def scenario() -> None:
        store = etcd.store(f"{tmp_path.name}/")
        gateway = EtcdGateway(
            EtcdAccess(etcd.endpoints), timeout_ms=int(PATIENCE_S * 1000), probe_key=b"probe"
        )
        (endpoint,) = gateway.by_preference()
        loop = asyncio.get_running_loop()
        first = await store.compare_and_swap("a", ABSENT, b"1")
        began_s = loop.time()
        assert await gateway.probe(endpoint, PATIENCE_S) == first

        second = await store.compare_and_swap("a", first, b"2")

        assert await gateway.revision_since(endpoint, began_s) == first
        assert await gateway.revision_since(endpoint, math.nextafter(loop.time(), math.inf)) == second
        third = await store.compare_and_swap("a", second, b"3")
        assert await gateway.revision_since(endpoint, began_s) == second
        gateway.avoid(endpoint, "it did not answer")
        assert await gateway.revision_since(endpoint, began_s) == third
        await gateway.close()
        await store.close()

    run(scenario)


def test_backup_is_a_sqlite_store_of_one_moment_without_what_is_bound_to_leases(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    async def scenario() -> None:
        store = etcd.store(f"{tmp_path.name}/")
        for number in range(1100):
            await store.compare_and_swap(f"k/{number:04}", ABSENT, b"v")
        lease = await store.grant_lease(60_000)
        last = await store.compare_and_swap("leader", ABSENT, b"me", lease_id=lease)

        revision = await store.backup(tmp_path / "copy.sqlite")

        assert revision >= last
        with pytest.raises(FileExistsError):
            await store.backup(tmp_path / "copy.sqlite")
        copy = await SQLiteCoordination.open(tmp_path / "copy.sqlite")
        items, _ = await copy.list_all("")
        assert [(item.key, item.value) for item in items] == [(f"k/{n:04}", b"v") for n in range(1100)]
        await copy.close()
        await store.revoke_lease(lease)
        await store.close()

    run(scenario)


def test_a_watch_given_up_lets_its_connection_go(
    etcd: EtcdCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_gateway, "WATCHES_MAX", 2)

    async def scenario() -> None:
        store = etcd.store(f"{tmp_path.name}/")
        revision = await store.compare_and_swap("a", ABSENT, b"1")

        for _ in range(5):  # more than may be open at once
            watch = store.watch("", revision - 1)
            await anext(watch)
            await watch.aclose()  # type: ignore[attr-defined]

        assert not store._gateway._streams
        await store.close()

    run(scenario)


def test_only_endpoint_there_is_has_the_whole_time_for_a_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        store = etcd.store("q/")
        await store.compare_and_swap("a", ABSENT, b"1")
        # Only now: the write may take longer.
        monkeypatch.setattr(etcd_gateway, "ATTEMPT_TIMEOUT_S", 0.05)
        etcd.pause(0)
        reading = asyncio.create_task(store.get("a"))
        await asyncio.wait([reading], timeout=0.5)
        etcd.resume(0)
        assert not reading.done()
        found = await reading
        assert found is not None
        await store.close()

    with EtcdCluster.started(tmp_path) as etcd:
        run(scenario)


def test_endpoints_of_different_clusters_are_not_mixed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()

    async def scenario() -> None:
        store = EtcdCoordination(EtcdAccess(one.endpoints + two.endpoints), root="q/")
        revision = await store.compare_and_swap("a", ABSENT, b"1")

        await asyncio.to_thread(one.kill, 0)

        with pytest.raises(CoordinationUnavailable, match="belongs to another cluster"):
            await store.get("a")
        await asyncio.to_thread(one.start, 0)
        found = await store.get("a")
        assert found is not None
        assert found.revision == revision
        await store.close()

    with EtcdCluster.started(tmp_path / "one") as one, EtcdCluster.started(tmp_path / "two") as two:
        run(scenario)


def test_etcd_that_lost_its_data_is_not_asked_and_tells_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = EtcdCoordination(EtcdAccess(etcd.endpoints), root="q/")
        for number in range(5):
            await store.transaction([], [Put(f"a/{number}", b"1")])
        told: list[tuple[str, bytes | None]] = []
        watch = WatchedPrefix(store, "a/", lambda key, value: told.append((key, value)), relist_s=0.1)
        watch.start()
        await watch.listed.wait()

        await asyncio.to_thread(etcd.kill, 0)
        await asyncio.to_thread(shutil.rmtree, etcd.members[0].data)
        await asyncio.to_thread(etcd.start, 0)
        with pytest.raises(CoordinationUnavailable, match="lost its data"):
            await store.get("a/1")
        other = EtcdCoordination(EtcdAccess(etcd.endpoints), root="q/")
        for _ in range(20):  # what is new there does not make it what it was
            await other.transaction([], [Put("b", b"2")])

        with pytest.raises(CoordinationUnavailable, match="lost its data"):
            await store.transaction([], [Put("a/1", b"2")])
        await watch.close()
        assert sorted(told) == [(f"a/{number}", b"1") for number in range(5)]
        assert await other.get("a/1") is None
        await store.close()
        await other.close()

    with EtcdCluster.started(tmp_path) as etcd:
        run(scenario)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_user_sees_its_root_only_and_logs_in_again_when_etcd_forgot_it(tmp_path: Path) -> None:
    def set_up(etcd: EtcdCluster) -> None:
        etcd.post("/v3/auth/user/add", {"name": "root", "password": "toor"})
        etcd.post("/v3/auth/user/grant", {"user": "root", "role": "root"})
        etcd.post("/v3/auth/user/add", {"name": "cell", "password": "secret"})
        etcd.post("/v3/auth/role/add", {"name": "cell"})
        permission = {"permType": "READWRITE", "key": encoded("q/"), "range_end": encoded("q0")}
        etcd.post("/v3/auth/role/grant", {"name": "cell", "perm": permission})
        etcd.post("/v3/auth/user/grant", {"user": "cell", "role": "cell"})
        etcd.post("/v3/auth/enable", {})

    async def scenario() -> None:
        store = EtcdCoordination(EtcdAccess(etcd.endpoints, user="cell", password="secret"), root="q/")
        revision = await store.compare_and_swap("a", ABSENT, b"1")
        watch = store.watch("", revision - 1)
        assert await anext(watch) == [Event("a", b"1", revision)]
        lease = await store.grant_lease(60_000)
        await store.keep_alive(lease)

        # The tokens of this kind are in the member's memory only.
        await asyncio.to_thread(etcd.kill, 0)
        await asyncio.to_thread(etcd.start, 0)
        second = await store.compare_and_swap("a", revision, b"2", lease_id=lease)

        assert await anext(watch) == [Event("a", b"2", second)]
        await store.close()
        for wrong, message in (
            (EtcdAccess(etcd.endpoints, user="cell", password="guess"), "authentication failed"),
            (EtcdAccess(etcd.endpoints), "user name is empty"),
        ):
            store = EtcdCoordination(wrong, root="q/")
            with pytest.raises(CoordinationUnavailable, match=message) as refused:
                await store.get("a")
            assert refused.value.message == CoordinationUnavailable.message  # what users of the API see
            with pytest.raises(CoordinationUnavailable, match=message):
                await store.compare_and_swap("a", second, b"3")
            await store.close()
        store = EtcdCoordination(EtcdAccess(etcd.endpoints, user="cell", password="secret"), root="other/")
        with pytest.raises(CoordinationUnavailable, match="permission denied"):
            await store.get("a")
        await store.close()

    with EtcdCluster.started(tmp_path) as etcd:
        set_up(etcd)
        run(scenario)


def test_user_is_no_hindrance_where_etcd_asks_for_none(etcd: EtcdCluster, tmp_path: Path) -> None:
    async def scenario() -> None:
        store = EtcdCoordination(
            EtcdAccess(etcd.endpoints, user="cell", password="secret"), root=f"{tmp_path.name}/"
        )

        await store.compare_and_swap("a", ABSENT, b"1")

        await store.close()

    run(scenario)


def test_over_tls_both_sides_show_a_certificate_of_the_same_authority(tmp_path: Path) -> None:
    authority = make_certificate(tmp_path, "authority")
    server = make_certificate(tmp_path, "server", authority)
    client = make_certificate(tmp_path, "client", authority)
    stranger = make_certificate(tmp_path, "stranger", make_certificate(tmp_path, "other-authority"))
    context = ssl.create_default_context(cafile=authority.certificate_file)
    context.load_cert_chain(client.certificate_file, client.key_file)
    arguments = [
        f"--cert-file={server.certificate_file}",
        f"--key-file={server.key_file}",
        f"--trusted-ca-file={authority.certificate_file}",
        "--client-cert-auth",
    ]

    def access(shown: Certificate | None, trusted: Path | None) -> EtcdAccess:
        files = (shown.certificate_file, shown.key_file) if shown else (None, None)
        return EtcdAccess(etcd.endpoints, trusted, *files)

    async def scenario() -> None:
        store = EtcdCoordination(access(client, authority.certificate_file), root="q/")
        revision = await store.compare_and_swap("a", ABSENT, b"1")
        assert await anext(store.watch("", revision - 1)) == [Event("a", b"1", revision)]
        await store.close()

        for wrong in (
            access(None, authority.certificate_file),
            access(stranger, authority.certificate_file),
            access(client, tmp_path / "other-authority.pem"),
        ):
            store = EtcdCoordination(wrong, root="q/")
            with pytest.raises(CoordinationUnavailable):
                await store.get("a")
            await store.close()

    with EtcdCluster.started(tmp_path, arguments=arguments, context=context) as etcd:
        run(scenario)


@pytest.mark.parametrize(
    ("content", "parsed"),
    [
        ({"error": "no", "message": "no", "code": 14}, (14, "no")),  # 3.4, 3.5
        ({"code": 14, "message": "no", "details": []}, (14, "no")),  # 3.6
        ({"error": {"grpc_code": 14, "http_code": 503, "message": "no"}}, (14, "no")),  # 3.4, in a stream
        ({"error": {"code": 14, "message": "no", "details": []}}, (14, "no")),  # 3.6, in a stream
    ],
)
def test_errors_of_all_versions_are_understood(content: object, parsed: tuple[int, str]) -> None:
    assert parse_error(content) == parsed


@pytest.mark.parametrize("content", [{}, [], "no", {"error": 5}, {"code": "14", "message": "no"}])
def test_what_is_no_error_of_etcd_is_not_taken_for_one(content: object) -> None:
    with pytest.raises(ValueError):
        parse_error(content)
