"""A real etcd that fails in all the ways it can: members killed and paused, leaders changed, answers lost.

The tests share a cluster of three; each leaves all its members running. Nothing here is started anew to heal.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness.etcd import EtcdCluster
from harness.waiting import PATIENCE_S

from quaymaster.coordination.interface import (
    ABSENT,
    Coordination,
    CoordinationUnavailable,
    Event,
    OutcomeUnknown,
    RevisionMismatch,
    WatchLost,
)
from quaymaster.coordination.stores import etcd as etcd_module
from quaymaster.coordination.stores import etcd_gateway
from quaymaster.coordination.stores.etcd import EtcdCoordination
from quaymaster.coordination.stores.etcd_gateway import EtcdAccess
from quaymaster.core.values.errors import NotNow

TIMEOUT_MS = 1_500
"""Of calls; shorter than etcd's own, so that outcomes are unknown often."""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster.started(tmp_path_factory.mktemp("etcd-3"), members=3) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def watch_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_module, "WATCH_PROBE_S", 0.5)
    monkeypatch.setattr(etcd_gateway, "ATTEMPT_TIMEOUT_S", 0.7)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await scenario()

    asyncio.run(main())


@asynccontextmanager
async def opened(
    endpoints: list[str], root: Path, timeout_ms: int = TIMEOUT_MS
) -> AsyncIterator[EtcdCoordination]:
    store = EtcdCoordination(EtcdAccess(endpoints), root=f"{root.name}/", timeout_ms=timeout_ms)
    try:
        yield store
    finally:
        await store.close()


async def until_done(call: Callable[[], Awaitable[object]]) -> None:
    """Repeat a call for as long as etcd cannot be used."""
    while True:
        try:
            await call()
        except NotNow:
            await asyncio.sleep(0.05)
        else:
            return


# -- compare-and-swap -------------------------------------------------------------------------------------


class Incrementer:
    """Adds its own marks to a list that others add to as well; each mark must get in exactly once."""

    def __init__(self, store: Coordination, name: str) -> None:
        self._store = store
        self._name = name
        self.added = 0
        self.unknown = 0
        self.unavailable = 0

    async def work(self, enough: asyncio.Event, count_min: int) -> None:
        while self.added < count_min or not enough.is_set():
            await self._add(f"{self._name}{self.added}")
            self.added += 1

    async def _add(self, mark: str) -> None:
        may_be_in = False
        while True:
            try:
                row = await self._store.get("marks")
                marks = row.value.decode().split() if row else []
                if mark in marks:
                    assert may_be_in, f"{mark} was added by a change that was said not to be made"
                    return
                value = " ".join([*marks, mark]).encode()
                await self._store.compare_and_swap("marks", row.revision if row else ABSENT, value)
            except RevisionMismatch:
                continue
            except OutcomeUnknown:
                self.unknown += 1
                may_be_in = True
            except CoordinationUnavailable:
                self.unavailable += 1
                await asyncio.sleep(0.02)
            else:
                return


def test_every_step_of_a_counter_is_made_once_through_kills_pauses_and_leader_changes(
    three: EtcdCluster, tmp_path: Path
) -> None:
    def kill_and_start_the_leader() -> None:
        leader = three.leader()
        three.kill(leader)
        three.leader()
        three.start(leader)

    def pause_the_leader() -> None:
        leader = three.leader()
        three.pause(leader)
        try:
            wait_for_another_leader(three, leader)
        finally:
            three.resume(leader)
            three.wait_until_ready()

    def lose_the_majority() -> None:
        three.kill(0)
        three.kill(1)
        three.launch(0)
        three.start(1)

    async def scenario() -> None:
        async with (
            opened(three.endpoints, tmp_path) as one,
            opened(three.endpoints[1:] + three.endpoints[:1], tmp_path) as two,
            opened(three.endpoints[2:] + three.endpoints[:2], tmp_path) as three_,
        ):
            workers = [
                Incrementer(store, name)
                for store, name in ((one, "a"), (two, "b"), (three_, "c"), (one, "d"))
            ]
            enough = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for worker in workers:
                    group.create_task(worker.work(enough, 10))
                for fault in (kill_and_start_the_leader, pause_the_leader, lose_the_majority):
                    await asyncio.to_thread(fault)
                enough.set()

            row = await one.get("marks")

        assert row is not None
        marks = row.value.decode().split()
        assert sorted(marks) == sorted(
            f"{worker._name}{number}" for worker in workers for number in range(worker.added)
        )

    run(scenario)


def wait_for_another_leader(cluster: EtcdCluster, old: int) -> None:
    """Return when the members that run agree on a leader other than the paused one."""
    others = [number for number in range(len(cluster.members)) if number != old]
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        statuses = [cluster.status(number) for number in others]
        leaders = {status["leader"] for status in statuses if status and status.get("leader")}
        ids = {status["header"]["member_id"] for status in statuses if status}
        if len(leaders) == 1 and leaders <= ids:
            return
        time.sleep(0.02)
    raise AssertionError(f"member {old} is the leader still")


@pytest.mark.parametrize("fault", ["lose answers", "spoil answers", "forget connections"])
def test_a_change_without_a_good_answer_is_unknown_and_found_by_reading(
    three: EtcdCluster, tmp_path: Path, fault: str
) -> None:
    async def scenario() -> None:
        async with (
            relay(three.members[0].client_port) as (port, faults),
            opened([f"http://127.0.0.1:{port}"], tmp_path) as store,
        ):
            first = await store.compare_and_swap("a", ABSENT, b"1")
            faults.add(fault)
            await asyncio.sleep(0.1)

            with pytest.raises(OutcomeUnknown):
                await store.compare_and_swap("a", first, b"2")

            faults.clear()
            found = await store.get("a")
            assert found is not None
            is_made = fault != "forget connections"
            assert found.value == (b"2" if is_made else b"1")
            assert await store.compare_and_swap("a", found.revision, b"3") > found.revision

    run(scenario)


def test_lost_answers_of_what_may_be_repeated_are_not_noticed(three: EtcdCluster, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            relay(three.members[0].client_port) as (port, faults),
            opened([f"http://127.0.0.1:{port}", three.endpoints[1]], tmp_path) as store,
        ):
            faults.add("lose answers")

            assert await store.get("a") is None
            lease = await store.grant_lease(60_000)
            await store.keep_alive(lease)
            await store.compare_and_swap("a", ABSENT, b"1", lease_id=lease)
            await store.revoke_lease(lease)

            assert await store.get("a") is None

    run(scenario)


# -- endpoints --------------------------------------------------------------------------------------------


def test_endpoint_that_takes_requests_and_never_answers_costs_no_more_than_the_time_out(
    three: EtcdCluster, tmp_path: Path
) -> None:
    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(65_536):
                pass
        finally:
            writer.close()

    async def scenario() -> None:
        async with serving(swallow) as hole:
            async with opened([hole], tmp_path, timeout_ms=200) as store:
                # A change is not sent before a read was answered.
                with pytest.raises(CoordinationUnavailable):
                    await store.compare_and_swap("a", ABSENT, b"1")
                for call in (store.get("a"), store.list_prefix("")):
                    with pytest.raises(CoordinationUnavailable):
                        await call
                with pytest.raises(OutcomeUnknown):
                    await store.grant_lease(1_000)
            async with opened([hole, *three.endpoints], tmp_path) as store:
                assert await store.get("a") is None
                revision = await store.compare_and_swap("a", ABSENT, b"1")
                assert await anext(store.watch("", revision - 1)) == [Event("a", b"1", revision)]

    run(scenario)


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\xff\x17 garbage \r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n<html>Hi</html>",
        b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"header":',
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nbad",
        b"",
    ],
)
def test_endpoint_that_is_no_etcd_gets_no_change_and_others_are_asked(
    three: EtcdCluster, tmp_path: Path, answer: bytes
) -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(65_536)
            writer.write(answer)
            await writer.drain()
        finally:
            writer.close()

    async def scenario() -> None:
        async with serving(reply) as wrong:
            async with opened([wrong], tmp_path) as store:
                with pytest.raises(CoordinationUnavailable):
                    await store.compare_and_swap("a", ABSENT, b"1")
                with pytest.raises(CoordinationUnavailable):
                    await store.get("a")
            async with opened([wrong, three.endpoints[0]], tmp_path) as store:
                assert await store.get("a") is None
                revision = await store.compare_and_swap("a", ABSENT, b"1")
                assert await anext(store.watch("", revision - 1)) == [Event("a", b"1", revision)]

    run(scenario)


def test_gateway_that_is_turned_off_is_named(tmp_path: Path) -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65_536)
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 19\r\n\r\n404 page not found\n")
        writer.close()

    async def scenario() -> None:
        async with serving(reply) as off, opened([off], tmp_path) as store:
            with pytest.raises(CoordinationUnavailable, match="is the gateway on"):
                await store.compare_and_swap("a", ABSENT, b"1")

    run(scenario)


# -- down and back ----------------------------------------------------------------------------------------


def test_etcd_that_is_down_changes_nothing_and_all_goes_on_when_it_is_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(etcd.endpoints, tmp_path) as store:
            first = await store.compare_and_swap("a", ABSENT, b"1")
            lease = await store.grant_lease(60_000)
            watched = asyncio.create_task(take(store.watch("", first), 1))
            await asyncio.sleep(0.1)

            await asyncio.to_thread(etcd.kill, 0)

            for _ in range(3):
                with pytest.raises(CoordinationUnavailable):
                    await store.get("a")
                with pytest.raises(CoordinationUnavailable):
                    await store.compare_and_swap("a", first, b"lost")
                with pytest.raises(CoordinationUnavailable):
                    await store.keep_alive(lease)
            await asyncio.to_thread(etcd.start, 0)
            await store.keep_alive(lease)
            second = await store.compare_and_swap("a", first, b"2", lease_id=lease)
            assert await watched == [Event("a", b"2", second)]

    with EtcdCluster.started(tmp_path) as etcd:
        run(scenario)


def test_watch_that_is_blind_for_long_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_module, "WATCH_GIVE_UP_S", 0.3)

    async def scenario() -> None:
        async with opened(["http://127.0.0.1:1"], tmp_path) as store:
            with pytest.raises(CoordinationUnavailable, match="cannot be followed"):
                await anext(store.watch("", 0))

    run(scenario)


def test_without_a_majority_nothing_is_read_or_changed_until_it_is_back(
    three: EtcdCluster, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with opened(three.endpoints, tmp_path) as store:
            first = await store.compare_and_swap("a", ABSENT, b"1")
            three.kill(0)
            three.kill(1)
            try:
                with pytest.raises(CoordinationUnavailable):
                    await store.get("a")
                with pytest.raises(NotNow):
                    await store.compare_and_swap("b", ABSENT, b"1")
            finally:
                three.launch(0)
                await asyncio.to_thread(three.start, 1)

            await until_done(lambda: store.get("a"))
            found = await store.get("a")
            assert found is not None
            assert found.revision == first

    run(scenario)


# -- watches ----------------------------------------------------------------------------------------------


async def take(watch: AsyncIterator[list[Event]], count: int) -> list[Event]:
    events: list[Event] = []
    while len(events) < count:
        events.extend(await anext(watch))
    return events


def test_watch_misses_nothing_and_repeats_nothing_over_leader_changes(
    three: EtcdCluster, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with opened(three.endpoints, tmp_path) as store:
            start = await store.compare_and_swap("n", ABSENT, b"")
            seen: list[Event] = []
            caught_up = asyncio.Event()
            last = 0

            async def follow() -> None:
                async for events in store.watch("", start):
                    seen.extend(events)
                    if seen[-1].revision >= last > 0:
                        caught_up.set()

            written: list[int] = []
            enough = asyncio.Event()

            async def write() -> None:
                while not enough.is_set() or len(written) < 50:
                    try:
                        written.append(await store.compare_and_swap(f"k{len(written)}", ABSENT, b"v"))
                    except OutcomeUnknown:
                        continue
                    except RevisionMismatch as made_before:
                        written.append(made_before.found)
                    except CoordinationUnavailable:
                        await asyncio.sleep(0.02)

            following = asyncio.create_task(follow())
            writing = asyncio.create_task(write())
            for _ in range(2):
                leader = await asyncio.to_thread(three.leader)
                await asyncio.to_thread(three.kill, leader)
                await asyncio.to_thread(three.leader)
                await asyncio.to_thread(three.start, leader)
            enough.set()
            await writing
            last = written[-1]
            if not seen or seen[-1].revision < last:
                await caught_up.wait()
            following.cancel()

            assert [event.revision for event in seen] == written

    run(scenario)


@pytest.mark.parametrize("has_answered_others", [False, True])
def test_watch_at_a_member_that_hangs_goes_on_at_another(
    three: EtcdCluster, tmp_path: Path, has_answered_others: bool
) -> None:
    async def scenario() -> None:
        leader = await asyncio.to_thread(three.leader)
        hanging = (leader + 1) % 3
        order = [three.endpoints[(hanging + step) % 3] for step in range(3)]
        async with (
            opened(order, tmp_path) as watching,
            opened([three.endpoints[leader]], tmp_path) as writing,
        ):
            first = await writing.compare_and_swap("a", ABSENT, b"1")
            watch = watching.watch("", first - 1)
            assert await anext(watch) == [Event("a", b"1", first)]
            if has_answered_others:
                assert await watching.get("a") is not None

            three.pause(hanging)
            try:
                second = await writing.compare_and_swap("a", first, b"2")

                assert await anext(watch) == [Event("a", b"2", second)]
            finally:
                three.resume(hanging)

    run(scenario)


def test_watch_that_a_proxy_forgot_is_made_anew(
    three: EtcdCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_module, "WATCH_RENEW_S", 1.0)

    async def scenario() -> None:
        async with (
            relay(three.members[0].client_port) as (port, faults),
            opened([f"http://127.0.0.1:{port}"], tmp_path) as watching,
            opened(three.endpoints, tmp_path) as writing,
        ):
            first = await writing.compare_and_swap("a", ABSENT, b"1")
            watch = watching.watch("", first - 1)
            assert await anext(watch) == [Event("a", b"1", first)]
            faults.add("forget connections")
            await asyncio.sleep(0.1)

            second = await writing.compare_and_swap("a", first, b"2")

            assert await anext(watch) == [Event("a", b"2", second)]

    run(scenario)


def test_watch_cut_while_its_revision_was_compacted_is_lost(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            relay(etcd.members[0].client_port) as (port, faults),
            opened([f"http://127.0.0.1:{port}"], tmp_path) as watching,
            opened(etcd.endpoints, tmp_path) as writing,
        ):
            revision = await writing.compare_and_swap("a", ABSENT, b"0")
            watch = watching.watch("", revision - 1)
            await anext(watch)
            faults.add("refuse")
            waiting = asyncio.create_task(take(watch, 1))
            await asyncio.sleep(0.1)
            for number in range(3):
                revision = await writing.compare_and_swap("a", revision, str(number).encode())
            await asyncio.to_thread(etcd.post, "/v3/kv/compaction", {"revision": revision})
            faults.clear()

            with pytest.raises(WatchLost):
                await waiting

    with EtcdCluster.started(tmp_path) as etcd:
        run(scenario)


# -- leases -----------------------------------------------------------------------------------------------

HOLDER = """
import asyncio, sys
from quaymaster.coordination.stores.etcd import EtcdCoordination
from quaymaster.coordination.stores.etcd_gateway import EtcdAccess
from quaymaster.coordination.interface import LeaseExpired

async def main():
    store = EtcdCoordination(EtcdAccess(sys.argv[2:]), root=sys.argv[1])
    lease = await store.grant_lease(1_000)
    await store.compare_and_swap("leader", 0, b"me", lease_id=lease)
    print("held", flush=True)
    try:
        while True:
            await asyncio.sleep(0.2)
            await store.keep_alive(lease)
            print("kept", flush=True)
    except LeaseExpired:
        print("lost", flush=True)
    await store.close()

asyncio.run(main())
"""


def test_process_that_was_paused_for_longer_than_its_lease_learns_that_it_lost_it(
    three: EtcdCluster, tmp_path: Path
) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, f"{tmp_path.name}/", *three.endpoints],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    try:
        assert [holder.stdout.readline().strip() for _ in range(3)] == ["held", "kept", "kept"]

        os.kill(holder.pid, signal.SIGSTOP)

        async def until_gone() -> None:
            async with opened(three.endpoints, tmp_path) as store:
                assert await store.get("leader") is not None
                async for events in store.watch("leader", 0):
                    if any(event.value is None for event in events):
                        return

        run(until_gone)
        os.kill(holder.pid, signal.SIGCONT)
        rest = holder.stdout.read().split()
        assert rest[-1] == "lost"
        assert set(rest[:-1]) <= {"kept"}
        assert holder.wait(PATIENCE_S) == 0
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_lease_that_is_kept_alive_outlives_the_leader(three: EtcdCluster, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(three.endpoints, tmp_path) as store:
            lease = await store.grant_lease(10_000)
            revision = await store.compare_and_swap("holder", ABSENT, b"me", lease_id=lease)
            leader = await asyncio.to_thread(three.leader)

            await asyncio.to_thread(three.kill, leader)
            await until_done(lambda: store.keep_alive(lease))

            found = await store.get("holder")
            assert found is not None
            assert found.revision == revision
            await asyncio.to_thread(three.start, leader)
            await store.revoke_lease(lease)

    run(scenario)


# -- helpers ----------------------------------------------------------------------------------------------

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[str]:
    """Give the URL of a server on a free loopback port."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@asynccontextmanager
async def relay(target_port: int) -> AsyncIterator[tuple[int, set[str]]]:
    """Give the port of a relay, and its faults:

    lose answers          the connection ends in place of the next answer
    spoil answers         answers are garbage
    forget connections    connections that are there now carry nothing any more, and do not end
    refuse                connections end, and new ones too
    """
    faults: set[str] = set()
    writers: set[asyncio.StreamWriter] = set()
    tasks: set[asyncio.Task[None]] = set()

    async def pump(
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        other: asyncio.StreamWriter,
        *,
        answers: bool,
    ) -> None:
        is_forgotten = False
        try:
            while True:
                reading = asyncio.ensure_future(reader.read(65_536))
                while not reading.done():
                    await asyncio.wait([reading], timeout=0.02)
                    is_forgotten = is_forgotten or "forget connections" in faults
                    if "refuse" in faults:
                        reading.cancel()
                        return
                piece = reading.result()
                if not piece or (answers and "lose answers" in faults):
                    return
                if not is_forgotten:
                    writer.write(b"garbage\r\n\r\n" if answers and "spoil answers" in faults else piece)
                    await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
            other.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        if "refuse" in faults:
            writer.close()
            return
        faults.discard("forget connections")
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target_port)
        writers.add(far_writer)
        for task in (
            asyncio.create_task(pump(reader, far_writer, writer, answers=False)),
            asyncio.create_task(pump(far_reader, writer, far_writer, answers=True)),
        ):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], faults
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            writer.close()
