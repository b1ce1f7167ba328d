"""Queues with KmsMasterKeyId: whose keys their messages depend on, and how often who is asked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from harness.server_metadata import count_all

from metadata.kms.support import (
    CONTENT,
    DAY_S,
    KEY,
    MESSAGE_ID,
    FrontEnd,
    StandInKeys,
    data_key_rows,
    front_end,
    with_service,
)
from metadata.support import ACCOUNT, REGION, World, eventually, run
from metadata.test_data_key_sweep import add_journals
from quaymaster.coordination.interface import Put
from quaymaster.core.values.errors import (
    KmsDisabled,
    KmsNotFound,
    NotNow,
    QueueDoesNotExist,
    Unreachable,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import CellFormat
from quaymaster.messaging.encryption import MessageCipher, MessageDamaged
from quaymaster.metadata.kms import queue_keys
from quaymaster.metadata.queue_registry import QueueRegistry
from quaymaster.metadata.store.rows import QUEUE_KEYS, QueueKeyRow, encode_row, id_text
from quaymaster.net.routing.metadata_client import when_known
from quaymaster.protocol.rpc.metadata_messages import CreateQueue, DeleteQueue, SetAttributes

# A key of a service


def test_messages_are_encrypted_with_a_data_key_that_the_service_wraps(tmp_path: Path) -> None:
    async def scenario(world: World, one: FrontEnd, keys: StandInKeys) -> None:
        queue = await one.queue("orders")
        message = await one.send(queue)

        (row,) = [row for row in (await data_key_rows(world)).values() if row.service]
        assert (row.service, row.kms_key, row.queue_id) == ("aws", KEY, queue.queue_id)
        assert row.queue_arn == f"arn:aws:sqs:{REGION}:{ACCOUNT}:orders"
        assert await keys.decrypt(KEY, row.wrapped, {"aws:sqs:arn": row.queue_arn})
        assert row.key_id != queue.data_key_id
        with pytest.raises(MessageDamaged, match=f"data key {row.key_id}"):
            MessageCipher(one.service.data_key).open(message)
        assert await one.receive(queue, message) == [CONTENT]

    with_service(scenario, tmp_path)


def test_queues_without_the_attribute_ask_nobody(tmp_path: Path) -> None:
    async def scenario(world: World, one: FrontEnd, keys: StandInKeys) -> None:
        queue = await one.service.queues.change(CreateQueue(ACCOUNT, "plain"))
        keys.is_silent = True

        message = one.cipher.encrypt_content(CONTENT, queue, MESSAGE_ID)
        one.cipher.check_receive(queue)

        assert one.cipher.open(message) == CONTENT
        assert keys.asked == []

    with_service(scenario, tmp_path)


def test_one_question_answers_all_who_wait(tmp_path: Path) -> None:
    async def scenario(world: World, one: FrontEnd, keys: StandInKeys) -> None:
        queue = await one.queue("orders")
        keys.held = asyncio.Event()
        sends = [asyncio.ensure_future(one.send(queue)) for _ in range(100)]
        await eventually(lambda: keys.asked == ["generate"])

        keys.held.set()
        messages = await asyncio.gather(*sends)

        assert keys.asked == ["generate"]
        assert await one.receive(queue, *messages) == [CONTENT] * 100
        assert keys.asked == ["generate"]

    with_service(scenario, tmp_path)


def test_plaintext_is_used_for_the_reuse_period_and_then_asked_for_again(tmp_path: Path) -> None:
    async def scenario(world: World, one: FrontEnd, keys: StandInKeys) -> None:
        queue = await one.queue("orders", KmsDataKeyReusePeriodSeconds="60")
        message = await one.send(queue)
        keys.disabled.add(KEY)
        one.clock.s += 59

        await one.send(queue)
        assert await one.receive(queue, message) == [CONTENT]
        assert keys.asked == ["generate"]
        one.clock.s += 2
        for refused in (one.send(queue), one.receive(queue, message)):
            with pytest.raises(KmsDisabled, match="is disabled"):
                await refused

        keys.disabled.clear()
        one.clock.s += 2
        await one.send(queue)
        assert await one.receive(queue, message) == [CONTENT]
        assert keys.asked == ["generate", "decrypt", "decrypt"]

    with_service(scenario, tmp_path)


def test_what_may_no_longer_be_used_is_not_kept_in_memory(tmp_path: Path) -> None:
    async def scenario(world: World, one: FrontEnd, keys: StandInKeys) -> None:
        queue = await one.queue("orders", KmsDataKeyReusePeriodSeconds="60")
        await one.send(queue)
        lender = one.service.queue_keys
        (data_key_id,) = lender._lent
        assert lender.lent(data_key_id).derived
        one.clock.s += 61

        lender.drop_expired()

        assert lender._lent == {}

    with_service(scenario, tmp_path)


def test_each_day_has_a_data_key_of_its_own(tmp_path: Path) -> None:
    async def scenario(world: World, one: FrontEnd, keys: StandInKeys) -> None:
        queue = await one.queue("orders")
        first = await one.send(queue)
        world.clock.pass_s(DAY_S - 1)
        await one.send(queue)
        assert keys.asked == ["generate"]

        world.clock.pass_s(2)
        second = await one.send(queue)

        assert keys.asked == ["generate", "generate"]
        assert len([row for row in (await data_key_rows(world)).values() if row.service]) == 2
        assert await one.receive(queue, first, second) == [CONTENT] * 2

    with_service(scenario, tmp_path)


def test_two_front_ends_encrypt_with_one_data_key(tmp_path: Path) -> None:
    async def scenario(world: World, one: FrontEnd, keys: StandInKeys) -> None:
        queue = await one.queue("orders")
        async with front_end(world) as two:
            await eventually(lambda: two.service.find_queue(ACCOUNT, "orders") is not None)
            keys.held = asyncio.Event()
            sends = [asyncio.ensure_future(end.send(queue)) for end in (one, two)]
            await eventually(lambda: keys.asked == ["generate", "generate"])
            keys.held.set()

            messages = await asyncio.gather(*sends)

            assert len([row for row in (await data_key_rows(world)).values() if row.service]) == 1
            for end in (one, two):
                assert await end.receive(queue, *messages) == [CONTENT] * 2

    with_service(scenario, tmp_path)


def test_receives_of_a_queue_without_messages_are_refused_before_they_wait(tmp_path: Path) -> None:
    async def scenario(world: World, one: FrontEnd, keys: StandInKeys) -> None:
        queue = await one.queue("orders")
        missing = await one.queue("missing", "alias/missing")
        await one.receive(queue)
        await one.receive(queue)
        assert keys.asked == ["describe"]

        keys.disabled.add(KEY)
        one.clock.s += 301
        with pytest.raises(KmsDisabled):
            await one.receive(queue)
        with pytest.raises(KmsNotFound, match="'alias/missing' does not exist"):
            await one.receive(missing)
        with pytest.raises(KmsNotFound):
            await one.send(missing)

    with_service(scenario, tmp_path)


def test_refusal_is_remembered_for_a_second(tmp_path: Path) -> None:
    async def scenario(world: World, one: FrontEnd, keys: StandInKeys) -> None:
        queue = await one.queue("orders")
        keys.disabled.add(KEY)
        for _ in range(50):
            with pytest.raises(KmsDisabled):
                await one.send(queue)
        assert keys.asked == ["generate"]

        one.clock.s += 1.1
        keys.disabled.clear()
        await one.send(queue)

        assert keys.asked == ["generate", "generate"]

    with_service(scenario, tmp_path)


def test_questions_are_counted_by_what_came_of_them(tmp_path: Path) -> None:
    async def scenario(world: World, one: FrontEnd, keys: StandInKeys) -> None:
        queue = await one.queue("orders")
        missing = await one.queue("missing", "alias/missing")
        await one.send(queue)
        with pytest.raises(KmsNotFound):
            await one.send(missing)
        one.clock.s += 2
        keys.is_silent = True
        with pytest.raises(Unreachable):
            await one.send(missing)

        samples = {(sample.name, *sample.labels): sample.value for sample in one.service.queue_keys.samples()}

        assert samples == {
            ("quaymaster_kms_requests_total", "answered"): 1,
            ("quaymaster_kms_requests_total", "refused"): 1,
            ("quaymaster_kms_requests_total", "failed"): 1,
            ("quaymaster_kms_keys_in_use",): 1,
        }

    with_service(scenario, tmp_path)


def test_silent_service_is_not_now_and_stops_no_other_queue(tmp_path: Path) -> None:
    async def scenario(world: World, one: FrontEnd, keys: StandInKeys) -> None:
        queue = await one.queue("orders")
        own = await one.queue("own", "alias/aws/sqs")
        keys.is_silent = True

        with pytest.raises(Unreachable, match="does not answer"):
            await one.send(queue)
        with pytest.raises(Unreachable):
            await one.receive(queue)
        assert await one.receive(own, await one.send(own)) == [CONTENT]

    with_service(scenario, tmp_path)


def test_too_many_questions_at_once_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_keys, "ASKED_MAX", 2)

    async def scenario(world: World, one: FrontEnd, keys: StandInKeys) -> None:
        keys.held = asyncio.Event()
        queues = [await one.queue(f"q{number}") for number in range(3)]
        sends = [asyncio.ensure_future(one.send(queue)) for queue in queues[:2]]
        await eventually(lambda: len(keys.asked) == 2)

        with pytest.raises(NotNow, match="busy"):
            one.cipher.encrypt_content(CONTENT, queues[2], MESSAGE_ID)
        keys.held.set()
        await asyncio.gather(*sends)
        await one.send(queues[2])

    with_service(scenario, tmp_path)


def test_changed_attribute_counts_from_the_next_message_on(tmp_path: Path) -> None:
    async def scenario(world: World, one: FrontEnd, keys: StandInKeys) -> None:
        queue = await one.queue("orders")
        before = await one.send(queue)
        keys.disabled.add(KEY)
        one.clock.s += 1_000

        changed = await one.service.queues.change(
            SetAttributes(ACCOUNT, "orders", {"KmsMasterKeyId": "alias/new"})
        )
        message = await one.send(changed)

        assert await one.receive(changed, message) == [CONTENT]
        with pytest.raises(KmsDisabled):  # it was encrypted with the old one
            await one.receive(changed, before)
        removed = await one.service.queues.change(SetAttributes(ACCOUNT, "orders", {"KmsMasterKeyId": ""}))
        asked = len(keys.asked)
        plain = await one.send(removed)
        assert one.cipher.open(plain) == CONTENT
        assert len(keys.asked) == asked

    with_service(scenario, tmp_path, KEY, "alias/new")


def test_messages_stay_readable_after_a_restart_a_rotation_and_the_end_of_their_queue(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        keys = StandInKeys(KEY)
        world.key_services = {"aws": keys}
        async with front_end(world) as one:
            queue = await one.queue("orders")
            message = await one.send(queue)
            assert await world.memory.get(QUEUE_KEYS + id_text(queue.queue_id)) is not None
            await one.service.queues.change(DeleteQueue(ACCOUNT, "orders"))
            assert await world.memory.get(QUEUE_KEYS + id_text(queue.queue_id)) is None
            await one.service.rotate_master_key()
        async with front_end(world, "ignore") as one:
            part = MessageCipher(one.service.data_key, lender=one.service.queue_keys)
            assert await when_known(lambda: part.open(message)) == CONTENT

    run(scenario, tmp_path)


def test_ignored_attribute_changes_nothing(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with front_end(world, "ignore") as one:
            queue = await one.queue("orders", "alias/none")

            message = one.cipher.encrypt_content(CONTENT, queue, MESSAGE_ID)
            one.cipher.check_receive(queue)

            assert MessageCipher(one.service.data_key).open(message) == CONTENT

    run(scenario, tmp_path)


def test_service_without_settings_is_not_now(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with front_end(world, "vault") as one:
            queue = await one.queue("orders")
            with pytest.raises(Unreachable, match="no settings for"):
                await one.send(queue)

    run(scenario, tmp_path)


def test_older_cells_refuse_queues_with_keys_until_they_are_upgraded(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        cell_format = CellFormat(5)
        async with front_end(world, "local", cell_format=cell_format) as one:
            queue = await one.queue("orders", "alias/aws/sqs")
            plain = await one.service.queues.change(CreateQueue(ACCOUNT, "plain"))
            for refused in (one.send(queue), one.receive(queue)):
                with pytest.raises(UnsupportedOperation, match="cell upgrade"):
                    await refused
            with pytest.raises(UnsupportedOperation, match="cell upgrade"):
                await one.service.local_keys.create(ACCOUNT)
            await one.send(plain)

            cell_format.raise_to(6)
            assert await one.receive(queue, await one.send(queue)) == [CONTENT]

    run(scenario, tmp_path)


def test_own_key_of_the_service_wraps_as_for_other_queues_but_anew_each_day(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with front_end(world, "local") as one:
            queue = await one.queue("orders", "alias/aws/sqs")
            first = await one.send(queue)
            world.clock.pass_s(DAY_S + 1)
            second = await one.send(queue)
            await one.service.rotate_master_key()

            rows = await data_key_rows(world)
            assert [row.service for row in rows.values()] == ["", "", ""]
            assert await one.receive(queue, first, second) == [CONTENT] * 2
        async with front_end(world, "local") as one:
            assert await one.receive(queue, first, second) == [CONTENT] * 2

    run(scenario, tmp_path)


# Data keys that nothing needs


def test_data_key_of_a_day_goes_when_no_message_needs_it_and_its_queue_is_served_on(tmp_path: Path) -> None:
    async def scenario(world: World, one: FrontEnd, keys: StandInKeys) -> None:
        await add_journals(world, 0)
        registry = one.service.registry
        assert isinstance(registry, QueueRegistry)
        sweeps = registry.data_key_sweep
        queue = await one.queue("orders")
        first = await one.send(queue)
        (day_key,) = [row.key_id for row in (await data_key_rows(world)).values() if row.service]
        world.journal.named[0] = {day_key}
        await sweeps.run_if_due()
        for _ in range(20):
            world.clock.pass_s(DAY_S)
            await count_all(registry.counted_time)
            await sweeps.run_if_due()
        assert day_key in await data_key_rows(world)
        one.clock.s += DAY_S * 20
        assert await one.receive(queue, first) == [CONTENT]

        world.journal.named[0] = set()
        for _ in range(9):
            world.clock.pass_s(DAY_S)
            await count_all(registry.counted_time)
            await sweeps.run_if_due()

        assert day_key not in await data_key_rows(world)
        one.clock.s += DAY_S * 9
        await one.receive(queue)
        second = await one.send(queue)
        assert await one.receive(queue, second) == [CONTENT]
        keys.disabled.add(KEY)
        one.clock.s += DAY_S
        with pytest.raises(KmsDisabled):
            await one.receive(queue)

    with_service(scenario, tmp_path)


# Queues that are gone


async def rows_of_queues(world: World) -> list[str]:
    return [item.key for item in (await world.store.list_all(QUEUE_KEYS))[0]]


def test_who_has_not_heard_of_a_deletion_makes_no_data_key_for_the_queue(tmp_path: Path) -> None:
    async def scenario(world: World, one: FrontEnd, keys: StandInKeys) -> None:
        queue = await one.queue("orders")
        again = await one.queue("again")
        await one.service.queues.change(DeleteQueue(ACCOUNT, "orders"))
        await one.service.queues.change(DeleteQueue(ACCOUNT, "again"))
        await one.queue("again")
        before = keys.asked.count("generate")

        for gone in (queue, again):
            with pytest.raises(QueueDoesNotExist):
                await one.send(gone)

        assert keys.asked.count("generate") == before
        assert await rows_of_queues(world) == []

    async def with_reuse(world: World) -> None:
        keys = StandInKeys(KEY)
        world.key_services = {"aws": keys}
        async with front_end(world, queue_name_reuse_s=0) as one:
            await scenario(world, one, keys)

    run(with_reuse, tmp_path)


def test_queue_that_is_deleted_while_its_data_key_is_made_leaves_no_row(tmp_path: Path) -> None:
    async def scenario(world: World, one: FrontEnd, keys: StandInKeys) -> None:
        queue = await one.queue("orders")
        keys.held = asyncio.Event()
        sending = asyncio.ensure_future(one.send(queue))
        await eventually(lambda: "generate" in keys.asked)
        await one.service.queues.change(DeleteQueue(ACCOUNT, "orders"))

        keys.held.set()

        with pytest.raises(QueueDoesNotExist):
            await sending
        assert await rows_of_queues(world) == []

    with_service(scenario, tmp_path)


def test_rows_that_programs_of_before_left_of_deleted_queues_go_with_the_next_sweep(tmp_path: Path) -> None:
    async def scenario(world: World, one: FrontEnd, keys: StandInKeys) -> None:
        await add_journals(world, 0)
        queue = await one.queue("kept")
        await one.send(queue)
        row = QueueKeyRow(1, "aws", KEY, world.clock())
        left = [Put(QUEUE_KEYS + id_text(10**6 + number), encode_row(row)) for number in range(120)]
        for first in range(0, 120, 60):
            await world.memory.transaction([], left[first : first + 60])
        registry = one.service.registry
        assert isinstance(registry, QueueRegistry)

        for _ in range(2):
            await registry.data_key_sweep.run_if_due()
            world.clock.pass_s(DAY_S)
            await count_all(registry.counted_time)

        assert await rows_of_queues(world) == [QUEUE_KEYS + id_text(queue.queue_id)]

    with_service(scenario, tmp_path)
