"""One simulated process: its event loop, its threads, its clock and its disk, all driven by one seed.

The broker's code runs unchanged. What it takes from outside is put in its place by `World.installed`: threads, locks,
events and queues take turns (only one runs at a time, and it gives way at each file operation), time passes when
nobody has anything to do, and the disk is a `SimDisk`. Hence a run depends on its seed alone.

    loop thread ──step──▶ simulated thread ──file operation, lock, event, queue──▶ gives way ──▶ loop thread
"""

from __future__ import annotations

import asyncio
import copy
import selectors
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import Empty
from random import Random
from typing import Any
from uuid import UUID

from harness.sim_disk import PowerLost, SimDisk

from quaymaster.broker import lone_leader
from quaymaster.broker.replica import journal_service, replica
from quaymaster.broker.replica.clock import QueueClock
from quaymaster.broker.replica.maintenance import compaction, expiry, snapshots, steps
from quaymaster.broker.replica.moves import message_moves
from quaymaster.broker.replica.records.time_file import Boot
from quaymaster.broker.storage import chunk_store, journal_files, journal_recovery, space, writer
from quaymaster.core.partition.partition import Partition

START_MS = 1_700_000_000_000
RECORDED = object()


class Killed(BaseException):
    """The process this thread belongs to is dead."""


class Stuck(AssertionError):
    """Nothing is left to happen, but somebody still waits."""


class _Selector(selectors.SelectSelector):
    """Waits for nothing: time passes at once."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("every thread and task waits, and no timer is set")
        self.loop.now_s += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is a number, and whose executors are simulated threads."""

    def __init__(self, world: World, now_s: float) -> None:
        selector = _Selector()
        selector.loop = self
        self.world = world
        self.now_s = now_s
        super().__init__(selector)

    def time(self) -> float:
        return self.now_s

    def _write_to_self(self) -> None:
        """Nobody sleeps, so nobody needs to be woken."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]  # a future all the same
        future: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                self.call_soon(_settle, future, None, error)
            else:
                self.call_soon(_settle, future, result, None)

        SimThread(self.world, target=work).start()
        return future


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


class SimThread:
    """Stands for `threading.Thread`: a real thread that runs only when the world gives it its turn."""

    def __init__(
        self, world: World, *, target: Callable[[], None], name: str = "", daemon: bool = True
    ) -> None:
        self.ident: int | None = None
        self.is_done = False
        self.handle: asyncio.Handle | None = None
        self._world = world
        self.slowness_s = world.slowness_s.get(name, 0.003)
        self._target = target
        self._turn = threading.Lock()
        self._turn.acquire()
        self._ended: list[SimThread] = []
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self.ident = 1
        self._world.threads.append(self)
        self._thread.start()
        self._world.make_ready(self)

    def is_alive(self) -> bool:
        return self.ident is not None and not self.is_done

    def join(self, timeout: float | None = None) -> None:
        current = self._world.current
        assert current is not None, "the loop's thread never waits for another"
        while not self.is_done:
            self._ended.append(current)
            self._world.block()

    def take_turn(self) -> None:
        """Run until this thread gives way; called on the loop's thread."""
        self._turn.release()
        self._world.given_back.acquire()

    def give_way(self) -> None:
        """Let the loop go on; returns at the next turn."""
        self._world.given_back.release()
        self._turn.acquire()
        if self._world.is_dead:
            raise Killed

    def _run(self) -> None:
        self._turn.acquire()
        world = self._world
        try:
            if not world.is_dead:
                self._target()
        except (Killed, PowerLost):
            pass
        except BaseException as error:
            if not world.is_dead:
                world.errors.append(error)
        finally:
            self.is_done = True
            world.threads.remove(self)
            for thread in self._ended:
                world.make_ready(thread)
            world.given_back.release()


class SimLock:
    """Stands for `threading.Lock`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._holder: SimThread | object | None = None
        self._waiting: deque[SimThread] = deque()

    def __enter__(self) -> SimLock:
        world = self._world
        while self._holder is not None:
            if world.current is None:
                world.run_one_thread()
            else:
                self._waiting.append(world.current)
                world.block()
        self._holder = world.current or RECORDED
        return self

    def __exit__(self, *exception: object) -> None:
        self._holder = None
        if self._waiting:
            self._world.make_ready(self._waiting.popleft())


class SimEvent:
    """Stands for `threading.Event`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False
        self._waiting: list[SimThread] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for thread in self._waiting:
            self._world.make_ready(thread)
        self._waiting.clear()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        world = self._world
        current = world.current
        assert current is not None, "the loop's thread never waits for an event"
        if self._is_set:
            return True
        self._waiting.append(current)
        timer = world.loop.call_later(timeout, world.make_ready, current) if timeout is not None else None
        world.block()
        if timer is not None:
            timer.cancel()
        if current in self._waiting:
            self._waiting.remove(current)
        return self._is_set


class SimQueue:
    """Stands for `queue.SimpleQueue` with one reader."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._items: deque[Any] = deque()
        self._reader: SimThread | None = None

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._reader is not None:
            self._world.make_ready(self._reader)
            self._reader = None

    def get(self) -> Any:
        while not self._items:
            self._reader = self._world.current
            self._world.block()
        return self._items.popleft()

    def get_nowait(self) -> Any:
        if not self._items:
            raise Empty
        return self._items.popleft()


class SimThreading:
    """Stands for the module `threading`."""

    def __init__(self, world: World) -> None:
        self.Thread = partial(SimThread, world)
        self.Lock = partial(SimLock, world)
        self.Event = partial(SimEvent, world)


class SimTime:
    """Stands for the module `time`. `perf_counter` jumps, so that long steps give way at random places."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        return self._world.loop.now_s

    def perf_counter(self) -> float:
        return self._world.loop.now_s + self._world.rng.random() * 0.008


class SimUuid:
    """Stands for the module `uuid`."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def uuid4(self) -> UUID:
        return UUID(int=self._rng.getrandbits(128), version=4)


class WatchedDisk:
    """A `Disk` at which threads give way, and at whose power cut the world ends."""

    def __init__(self, world: World, disk: SimDisk) -> None:
        self._world = world
        self.disk = disk


def _delegated(name: str, gives_way: bool) -> Callable[..., Any]:
    def call(self: WatchedDisk, *args: Any, **keywords: Any) -> Any:
        world = self._world
        if gives_way and world.current is not None:
            world.give_way()
        try:
            return getattr(self.disk, name)(*args, **keywords)
        except PowerLost:
            world.die()
            raise

    return call


for _name in ("write", "write_many", "sync", "sync_data", "rename", "unlink", "sync_directory", "truncate"):
    setattr(WatchedDisk, _name, _delegated(_name, gives_way=True))
for _name in ("open", "close", "read", "size", "fill_zeros", "reserve", "make_directory", "list_directory"):
    setattr(WatchedDisk, _name, _delegated(_name, gives_way=False))
for _name in ("exists", "free_bytes", "lock"):
    setattr(WatchedDisk, _name, _delegated(_name, gives_way=False))


class World:
    """One life of one process."""

    def __init__(self, rng: Random, *, now_s: float = 0.0, skew_ms: int = 0, boots: int = 1) -> None:
        """`boots`: how often the machine was started; what is of an earlier boot is older by an unknown time."""
        self.rng = rng
        self.skew_ms = skew_ms
        self.boots = boots
        self.loop = VirtualLoop(self, now_s)
        self.threads: list[SimThread] = []
        self.current: SimThread | None = None
        self.given_back = threading.Lock()
        self.given_back.acquire()
        # In some lives the disk is slow for one kind of thread, so that others overtake it.
        self.slowness_s = {"journal-writer": rng.choice((0.003, 0.003, 0.1)), "": rng.choice((0.003, 0.05))}
        self.is_dead = False
        self.may_move = True
        self.errors: list[BaseException] = []

    def time_ms(self) -> int:
        """Return the wall clock and the monotonic one: here they agree."""
        return START_MS + int(self.loop.now_s * 1000) + self.skew_ms

    def boot(self) -> Boot:
        """Return which boot this is. The uptime goes with the clocks, so that all three agree."""
        return Boot(self.boots.to_bytes(16, "big"), self.time_ms())

    # Turns

    def make_ready(self, thread: SimThread) -> None:
        """Give a thread its next turn soon."""
        if thread.handle is not None or thread.is_done:
            return
        if self.rng.random() < 0.6:
            thread.handle = self.loop.call_soon(self._step, thread)
        else:
            thread.handle = self.loop.call_later(self.rng.random() * thread.slowness_s, self._step, thread)

    def give_way(self) -> None:
        """The running thread lets others go first."""
        current = self.current
        assert current is not None, "a simulated thread is running"
        self.make_ready(current)
        self.block()

    def block(self) -> None:
        """The running thread waits until somebody makes it ready."""
        current = self.current
        assert current is not None, "a simulated thread is running"
        current.give_way()

    def run_one_thread(self) -> None:
        """Run any thread that is ready: the loop's thread waits for a lock."""
        ready = [thread for thread in self.threads if thread.handle is not None]
        if not ready:
            raise Stuck("the loop's thread waits for a lock that nobody will give back")
        thread = self.rng.choice(ready)
        assert thread.handle is not None
        thread.handle.cancel()
        self._step(thread)

    def _step(self, thread: SimThread) -> None:
        thread.handle = None
        self.current = thread
        thread.take_turn()
        self.current = None
        if self.is_dead:
            self.loop.stop()

    # Death

    def die(self) -> None:
        """The process is no more. What it would still do does not happen."""
        self.is_dead = True
        if self.current is None:
            self.loop.stop()

    def bury(self) -> None:
        """End every thread and task, and close the loop."""
        self.is_dead = True
        while self.threads:
            thread = self.threads[0]
            if thread.handle is not None:
                thread.handle.cancel()
            self._step(thread)
        loop = self.loop
        loop.set_exception_handler(lambda *_: None)
        for _ in range(20):
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.call_soon(loop.stop)
            loop.run_forever()
            if not tasks:
                break
        loop.close()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Put this world in the place of the real one while the block runs."""
        start_tasks_of = message_moves.MessageMoves.start_tasks_of

        def start_tasks_later(tasks: message_moves.MessageMoves, key: int) -> None:
            if self.may_move:
                start_tasks_of(tasks, key)

        sim_threading, sim_time = SimThreading(self), SimTime(self)
        background = compaction, expiry, snapshots, steps
        places: list[tuple[Any, str, Any]] = [
            *[
                (module, "threading", sim_threading)
                for module in (writer, journal_files, space, chunk_store, compaction)
            ],
            *[(module, "time", sim_time) for module in (*background, writer, lone_leader, journal_service)],
            *[(module, "monotonic_ms", self.time_ms) for module in (replica, journal_service)],
            (writer, "SimpleQueue", partial(SimQueue, self)),
            (journal_service, "read_boot", self.boot),
            (journal_recovery, "uuid4", SimUuid(self.rng).uuid4),
            (message_moves, "uuid", SimUuid(self.rng)),
            (message_moves.MessageMoves, "start_tasks_of", start_tasks_later),
            (
                journal_service,
                "QueueClock",
                partial(QueueClock, wall_ms=self.time_ms, monotonic_ms=self.time_ms),
            ),
            (
                Partition,
                "__hash__",
                lambda partition: hash((partition.definition.queue_id, partition.number)),
            ),
        ]
        before = [(place, name, getattr(place, name)) for place, name, _ in places]
        try:
            for place, name, value in places:
                setattr(place, name, value)
            yield
        finally:
            for place, name, value in before:
                setattr(place, name, value)


def after_kill(disk: SimDisk) -> SimDisk:
    """Return the disk as a killed process leaves it: what was written is there, durable or not."""
    after = SimDisk(capacity_bytes=disk.capacity_bytes)
    after._directories = copy.deepcopy(disk._directories)
    after._stale = list(disk._stale)
    after.is_lying = disk.is_lying
    files = {file for directory in after._directories.values() for file in directory.names.values()}
    for file in files:
        file.opens = 0
    after._used_bytes = sum(len(file.content) for file in files)
    return after
