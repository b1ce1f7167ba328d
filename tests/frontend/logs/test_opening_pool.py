"""Log workers: answers are the same with and without them, whatever becomes of them, and they come and go."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from frontend.actions.test_log_actions import fetch
from frontend.support import Answer, Service, serving, until
from quaymaster.core.values.commands.logs import Fetch
from quaymaster.core.values.messages import MessageContent
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition
from quaymaster.frontend.logs import log_reader, opening_pace, opening_pool, opening_process
from quaymaster.frontend.logs.opening import Piece, keys_for
from quaymaster.frontend.logs.opening_pool import AT_ONCE, OpeningPool, usable_cores
from quaymaster.messaging.encryption import MessageCipher
from quaymaster.protocol.logs.log_columns import COLUMNS, Block

PIECE = 8
MESSAGES = 37
KEYS = {9: b"k" * 32}
LOG = QueueDefinition(7, "000000000000", "log", "active", 1, 0, 0, {}, {}, 9, one_partition())


@pytest.fixture(autouse=True)
def small_pieces_and_cores_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "PIECE_MESSAGES", PIECE)
    monkeypatch.setattr(log_reader, "GIVEN_MIN", PIECE // 2)
    monkeypatch.setattr(opening_pace, "SLOW_RATIO", math.inf)  # whatever else the machine does


async def send(service: Service, count: int) -> None:
    """Send messages that differ, some of them with attributes."""
    for number in range(count):
        attribute = {"DataType": "String", "StringValue": f"value {number}"}
        sent = {
            "QueueUrl": service.client.url("log"),
            "MessageBody": f"body ö {number}",
            "MessageAttributes": {"kind": attribute} if number % 3 else {},
        }
        assert (await service.client.json("SendMessage", sent)).status == 200


async def send_long(service: Service, count: int, size: int) -> None:
    """Send messages of a size."""
    for number in range(count):
        sent = {"QueueUrl": service.client.url("log"), "MessageBody": f"{number:{size}}"}
        assert (await service.client.json("SendMessage", sent)).status == 200


@asynccontextmanager
async def log_of(count: int, workers: int = 2) -> AsyncIterator[tuple[Service, OpeningPool, int]]:
    """Serve a log, and have a worker that is ready; the log's id comes third."""
    async with serving(log_workers_max=workers) as service:
        queue = await service.add_queue("log", RetentionMode="Log")
        await send(service, count)
        assert service.opening is not None
        service.opening.start_one()
        await until(lambda: service.opening is not None and service.opening.is_ready)
        yield service, service.opening, queue.queue_id


async def fetch_here(service: Service, start: int = 1) -> Answer:
    """Fetch as a front end without workers does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_reader, "GIVEN_BYTES_EACH_MAX", 0)
        return await fetch(service, start)


def pieces(pool: OpeningPool) -> float:
    return counted(pool)["quaymaster_log_worker_pieces_total"]


def failures(pool: OpeningPool) -> float:
    return counted(pool)["quaymaster_log_worker_failures_total"]


def counted(pool: OpeningPool) -> dict[str, float]:
    return {sample.name: sample.value for sample in pool.samples()}


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def facts_of(pid: int, what: str) -> bytes:
    return Path(f"/proc/{pid}/{what}").read_bytes()


def piece_of(count: int = 3) -> Piece:
    cipher = MessageCipher(KEYS.__getitem__)
    content = MessageContent("the body", b"m" * 16, [], None, "sender")
    messages = [cipher.encrypt_content(content, LOG, os.urandom(16)) for _ in range(count)]
    return Piece("log", 0, 1, [1] * count, messages, ["value"], keys_for(cipher, messages) or [])


def bodies(block: Block | None) -> bytes | None:
    return None if block is None else bytes(block.columns["value"][2])


# What is read


def test_answers_are_the_same_bytes_with_workers_and_without() -> None:
    async def scenario() -> None:
        async with log_of(MESSAGES) as (service, pool, _):
            for names in (list(COLUMNS), ["value"], ["offset", "attributes"]):
                before = pieces(pool)
                opened = await fetch(service, 1, Columns=names)
                assert pieces(pool) > before
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(log_reader, "GIVEN_BYTES_EACH_MAX", 0)
                    here = await fetch(service, 1, Columns=names)

                assert opened.status == here.status == 200
                assert opened.body == here.body
                assert opened.headers["x-quaymaster-next-offset"] == str(MESSAGES + 1)
            assert failures(pool) == 0

    asyncio.run(scenario())


def test_ranges_and_sizes_hold_with_workers_too() -> None:
    async def scenario() -> None:
        async with log_of(MESSAGES) as (service, pool, queue_id):
            size = len(service.broker.queues[queue_id].messages[1].new.payload)
            part = await fetch(service, 3, 25)
            some = await fetch(service, 1, MaxBytes=20 * size, Columns=["value"])

            assert pieces(pool)
            assert part.headers["x-quaymaster-next-offset"] == "25"
            assert 15 <= int(some.headers["x-quaymaster-next-offset"]) <= 21

    asyncio.run(scenario())


@pytest.mark.parametrize("wrong", [1, 13, MESSAGES])
def test_a_damaged_message_gives_the_same_error_with_workers_and_without(wrong: int) -> None:
    async def scenario() -> None:
        async with log_of(MESSAGES) as (service, pool, queue_id):
            new = service.broker.queues[queue_id].messages[wrong].new
            new.payload = new.payload[:-1] + bytes([new.payload[-1] ^ 1])

            opened, here = await fetch(service, 1), await fetch_here(service)

            assert pieces(pool)
            assert opened.status == here.status == 400
            assert opened.json == here.json
            assert opened.json["Offset"] == wrong

    asyncio.run(scenario())


def test_a_damaged_message_is_told_before_what_the_broker_refuses_behind_it() -> None:
    async def scenario() -> None:
        async with log_of(MESSAGES, workers=1) as (service, pool, queue_id):
            kept = service.broker.queues[queue_id].messages
            kept[2].new.payload = kept[2].new.payload[:-1] + bytes([kept[2].new.payload[-1] ^ 1])
            del kept[20]  # in the third piece: it is refused while the first is with the worker
            service.broker.commands.clear()
            os.kill(pool.pids[0], signal.SIGSTOP)
            reading = asyncio.create_task(fetch(service, 1))
            await until(lambda: sum(isinstance(one, Fetch) for one in service.broker.commands) == 3)
            for _ in range(20):
                await asyncio.sleep(0.001)
            os.kill(pool.pids[0], signal.SIGCONT)

            answer = await reading

            assert (answer.status, answer.json.get("Offset")) == (400, 2)

    asyncio.run(scenario())


def test_what_is_not_read_in_bulk_starts_no_worker_and_goes_to_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "GIVEN_MIN", 512)

    async def scenario() -> None:
        async with serving(log_workers_max=2) as service:
            await service.add_queue("log", RetentionMode="Log")
            await send(service, MESSAGES)
            assert service.opening is not None

            assert (await fetch(service, 1)).status == 200
            assert (await fetch(service, 1, Columns=["offset", "message_id"])).status == 200

            service.opening.start_one()
            await until(lambda: service.opening is not None and service.opening.is_ready)
            assert (await fetch(service, 1)).status == 200
            assert pieces(service.opening) == 0

    asyncio.run(scenario())


def test_the_first_read_in_bulk_is_answered_while_a_worker_starts_for_those_after_it() -> None:
    async def scenario() -> None:
        async with serving(log_workers_max=1) as service:
            await service.add_queue("log", RetentionMode="Log")
            await send(service, MESSAGES)
            assert service.opening is not None

            first = await fetch(service, 1)
            await until(lambda: service.opening is not None and service.opening.is_ready)
            second = await fetch(service, 1)

            assert first.body == second.body
            assert pieces(service.opening) > 0

    asyncio.run(scenario())


def test_long_messages_are_opened_by_the_front_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "GIVEN_BYTES_EACH_MAX", 300)

    async def scenario() -> None:
        async with log_of(0) as (service, pool, _):
            await send_long(service, PIECE, 300)

            assert (await fetch(service, 1)).status == 200
            assert pieces(pool) == 0

    asyncio.run(scenario())


def test_of_longer_messages_a_worker_gets_fewer_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "PIECE_BYTES", 4_000)
    monkeypatch.setattr(log_reader, "GIVEN_BYTES_MIN", 500)

    async def scenario() -> None:
        async with log_of(0) as (service, pool, _):
            await send_long(service, 20, 1_000)
            service.broker.commands.clear()

            opened = await fetch(service, 1)

            asked = [one for one in service.broker.commands if isinstance(one, Fetch)]
            assert [one.to_sequence - one.from_sequence for one in asked] == [PIECE, *[3] * 4]
            assert pieces(pool)
            assert opened.headers["x-quaymaster-next-offset"] == "21"
            assert opened.body == (await fetch_here(service)).body

    asyncio.run(scenario())


# What becomes of workers


def test_a_request_is_answered_right_when_the_worker_is_killed_while_it_opens() -> None:
    async def scenario() -> None:
        async with log_of(MESSAGES, workers=1) as (service, pool, _):
            (pid,) = pool.pids
            os.kill(pid, signal.SIGSTOP)
            reading = asyncio.create_task(fetch(service, 1))
            await until(lambda: pool.outstanding == AT_ONCE)
            assert not reading.done()

            os.kill(pid, signal.SIGKILL)
            opened = await reading

            assert opened.body == (await fetch_here(service)).body
            await until(lambda: failures(pool) == 1)
            assert not is_there(pid)

    asyncio.run(scenario())


def test_another_worker_takes_the_place_of_one_that_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening_pool, "REST_MIN_S", 0.0)

    async def scenario() -> None:
        async with log_of(MESSAGES, workers=1) as (service, pool, _):
            (killed,) = pool.pids
            os.kill(killed, signal.SIGKILL)
            await until(lambda: failures(pool) == 1)
            before = pieces(pool)

            assert (await fetch(service, 1)).status == 200
            await until(lambda: pool.is_ready)
            assert (await fetch(service, 1)).status == 200

            assert pool.pids != [killed]
            assert pieces(pool) > before

    asyncio.run(scenario())


def test_a_silent_worker_is_killed_and_its_request_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening_process, "REPLY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(opening_process, "END_TIMEOUT_S", 0.05)

    async def scenario() -> None:
        async with log_of(MESSAGES, workers=1) as (service, pool, _):
            (pid,) = pool.pids
            os.kill(pid, signal.SIGSTOP)

            opened = await fetch(service, 1)

            assert opened.body == (await fetch_here(service)).body
            await until(lambda: not is_there(pid))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "command",
    [
        ["/nonexistent/python"],
        [sys.executable, "-c", "raise SystemExit(3)"],
        [sys.executable, "-c", "import os; os.write(0, bytes(4)); os.read(0, 1)"],
        [sys.executable, "-c", "import os; os.write(0, bytes(4)); os.read(0, 9); os.write(0, b'\\xff' * 4)"],
        [
            sys.executable,
            "-c",
            "import os; os.write(0, bytes(4)); os.read(0, 9); os.write(0, b'\\1\\0\\0\\0x')",
        ],
    ],
    ids=["is not there", "ends at once", "ends at its first piece", "answers nonsense", "answers no columns"],
)
def test_a_worker_that_fails_is_given_a_rest_and_its_messages_are_left_to_the_caller(
    command: list[str],
) -> None:
    async def scenario() -> None:
        pool = OpeningPool(1, command=command)
        try:
            pool.start_one()
            await until(lambda: pool.is_ready or failures(pool))
            if pool.is_ready:
                assert await pool.give(piece_of()) is None
            await until(lambda: failures(pool) == 1)

            for _ in range(20):
                pool.start_one()
                await asyncio.sleep(0)
            assert failures(pool) == 1
            assert not pool.is_ready
        finally:
            await pool.close()

    asyncio.run(scenario())


def test_rests_grow_until_a_worker_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1_000.0
    monkeypatch.setattr(opening_pool, "_monotonic", lambda: now_s)

    async def fail(pool: OpeningPool) -> float:
        """Let a worker fail to start; return how long no other is started, and let that time pass."""
        nonlocal now_s
        before = failures(pool)
        pool.start_one()
        await until(lambda: failures(pool) > before)
        failed_s = now_s
        while not pool.may_start:
            now_s += 0.5
        return now_s - failed_s

    async def scenario() -> None:
        nonlocal now_s
        pool = OpeningPool(1, command=["/nonexistent/python"])

        assert [await fail(pool) for _ in range(9)] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]

        pool.command = opening_pool.COMMAND
        pool.start_one()
        await until(lambda: pool.is_ready)
        assert await pool.give(piece_of()) is not None
        os.kill(pool.pids[0], signal.SIGKILL)
        await until(lambda: not pool.is_ready and not pool.may_start)
        pool.command = ["/nonexistent/python"]
        await until(lambda: failures(pool) == 10)
        now_s += 1.0
        assert pool.may_start
        await pool.close()

    asyncio.run(scenario())


def test_workers_have_so_many_pieces_at_most() -> None:
    async def scenario() -> None:
        pool = OpeningPool(1)
        try:
            pool.start_one()
            await until(lambda: pool.is_ready)
            (pid,) = pool.pids
            os.kill(pid, signal.SIGSTOP)
            answers = []
            while pool.find_room():
                answers.append(pool.give(piece_of()))

            assert len(answers) == pool.outstanding == AT_ONCE

            os.kill(pid, signal.SIGCONT)
            for answer in answers:
                assert bodies(await answer) == b"the body" * 3
            assert pool.outstanding == 0
            assert pool.find_room()
        finally:
            await pool.close()

    asyncio.run(scenario())


def test_what_workers_have_no_room_for_is_opened_meanwhile_and_comes_in_its_order() -> None:
    async def scenario() -> None:
        async with log_of(MESSAGES, workers=1) as (service, pool, _):
            os.kill(pool.pids[0], signal.SIGSTOP)
            service.broker.commands.clear()
            reading = asyncio.create_task(fetch(service, 1))
            await until(lambda: sum(isinstance(one, Fetch) for one in service.broker.commands) == 5)
            assert pool.outstanding == AT_ONCE

            os.kill(pool.pids[0], signal.SIGCONT)
            opened = await reading

            assert pieces(pool) == AT_ONCE
            assert opened.body == (await fetch_here(service)).body

    asyncio.run(scenario())


def test_the_first_of_damaged_messages_is_told_though_a_later_one_was_found_before() -> None:
    async def scenario() -> None:
        async with log_of(MESSAGES, workers=1) as (service, pool, queue_id):
            for number in (2, 30):  # with the worker, and opened meanwhile
                new = service.broker.queues[queue_id].messages[number].new
                new.payload = new.payload[:-1] + bytes([new.payload[-1] ^ 1])
            os.kill(pool.pids[0], signal.SIGSTOP)
            service.broker.commands.clear()
            reading = asyncio.create_task(fetch(service, 1))
            await until(lambda: sum(isinstance(one, Fetch) for one in service.broker.commands) == 4)
            for _ in range(20):
                await asyncio.sleep(0.001)
            os.kill(pool.pids[0], signal.SIGCONT)

            assert (await reading).json["Offset"] == 2

    asyncio.run(scenario())


def test_as_many_workers_start_as_there_is_work_for_and_no_more() -> None:
    async def scenario() -> None:
        pool = OpeningPool(2)
        try:
            pool.start_one()
            await until(lambda: pool.is_ready)
            for _ in range(3):
                assert pool.find_room()
                assert await pool.give(piece_of()) is not None
            assert len(pool.pids) == 1, "one after another they need one"

            os.kill(pool.pids[0], signal.SIGSTOP)
            answers = []
            while pool.find_room():
                answers.append(pool.give(piece_of()))
            await until(lambda: len(pool.pids) == 2)
            assert pool.find_room()
            answers.append(pool.give(piece_of()))
            await answers[-1]
            assert not pool.may_start
            os.kill(pool.pids[0], signal.SIGCONT)

            for answer in answers:
                assert bodies(await answer) == b"the body" * 3
            assert len(pool.pids) == 2
        finally:
            await pool.close()

    asyncio.run(scenario())


def test_workers_that_wait_for_cores_are_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening_pace, "SLOW_RATIO", 0.0)
    monkeypatch.setattr(opening_pace, "PIECES_MIN", 1)

    async def scenario() -> None:
        async with log_of(MESSAGES, workers=2) as (service, pool, _):
            first = await fetch(service, 1)
            assert counted(pool)["quaymaster_log_worker_pauses_total"] == 1
            before = pieces(pool)

            second = await fetch(service, 1)

            assert not pool.is_ready
            assert not pool.may_start
            assert pieces(pool) == before
            assert first.body == second.body
            assert failures(pool) == 0

    asyncio.run(scenario())


def test_whoever_gives_up_takes_nothing_from_those_behind_him() -> None:
    async def scenario() -> None:
        pool = OpeningPool(1)
        try:
            pool.start_one()
            await until(lambda: pool.is_ready)
            first, second = pool.give(piece_of(2)), pool.give(piece_of(5))
            first.cancel()

            assert bodies(await second) == b"the body" * 5
        finally:
            await pool.close()

    asyncio.run(scenario())


def test_idle_workers_end_and_that_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening_pool, "IDLE_S", 0.02)

    async def scenario() -> None:
        pool = OpeningPool(1)
        pool.start_one()
        await until(lambda: pool.is_ready)
        (pid,) = pool.pids

        await until(lambda: not pool.is_ready)
        await until(lambda: not is_there(pid))

        assert failures(pool) == 0
        await until(lambda: pool.may_start)
        await pool.close()

    asyncio.run(scenario())


def test_close_ends_workers_that_are_ready_that_start_and_that_are_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening_process, "END_TIMEOUT_S", 0.05)

    async def scenario() -> None:
        pool = OpeningPool(2)
        pool.start_one()
        await until(lambda: pool.is_ready)
        (pid,) = pool.pids
        os.kill(pid, signal.SIGSTOP)
        waiting = pool.give(piece_of())
        pool.start_one()

        await pool.close()

        assert await waiting is None
        assert not is_there(pid)
        assert failures(pool) == 0
        pool.start_one()
        assert not pool.may_start

    asyncio.run(scenario())


def test_workers_have_no_secrets_in_their_environment_or_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QUAYMASTER_MASTER_KEY", "m" * 44)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s" * 40)

    async def scenario() -> None:
        async with log_of(MESSAGES) as (service, pool, _):
            assert (await fetch(service, 1)).status == 200

            for pid in pool.pids:
                environment = facts_of(pid, "environ")
                command = facts_of(pid, "cmdline").rstrip(b"\0").split(b"\0")
                assert b"QUAYMASTER_" not in environment
                assert b"AWS_" not in environment
                assert command[1:] == [b"-P", b"-m", b"quaymaster.frontend.logs.opening_worker"]

    asyncio.run(scenario())


# How many


def test_a_process_may_use_the_cores_that_its_container_is_given(tmp_path: Path) -> None:
    limit = tmp_path / "cpu.max"
    alone = usable_cores(tmp_path / "none")

    for text, cores in (
        ("max 100000", alone),
        ("100000 100000", 1),
        ("50000 100000", 1),
        ("nonsense", alone),
    ):
        limit.write_text(text)
        assert usable_cores(limit) == cores
    limit.write_text(f"{(alone + 5) * 100_000} 100000")
    assert usable_cores(limit) == alone
