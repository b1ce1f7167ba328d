"""Queues whose keys are the server's own; and queues with keys in a cell."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from metadata.cell import Cell, run_cell
from metadata.kms.support import (
    CONTENT,
    KEY,
    MESSAGE_ID,
    FrontEnd,
    StandInKeys,
    data_key_rows,
    front_end,
)
from metadata.support import ACCOUNT, REGION, World, eventually, run
from quaymaster.core.values.errors import (
    CallerError,
    KmsAccessDenied,
    KmsDisabled,
    KmsInvalidState,
    KmsNotFound,
    NotYetKnown,
)

# Keys of the server


def with_local_key(scenario: Callable[[World, FrontEnd, str], Awaitable[None]], tmp_path: Path) -> None:
    async def in_world(world: World) -> None:
        async with front_end(world, "local") as one:
            key = await one.service.local_keys.create(ACCOUNT, alias=KEY)
            await scenario(world, one, key.key_id)

    run(in_world, tmp_path)


def test_disabled_key_refuses_at_once_and_serves_again_at_once(tmp_path: Path) -> None:
    async def scenario(world: World, one: FrontEnd, key_id: str) -> None:
        queue = await one.queue("orders")
        message = await one.send(queue)
        local = one.service.local_keys

        await local.set_enabled(ACCOUNT, key_id, enabled=False)
        for look in (
            lambda: one.cipher.encrypt_content(CONTENT, queue, MESSAGE_ID),
            lambda: one.cipher.check_receive(queue),
            lambda: one.cipher.open(message),
        ):
            with pytest.raises(KmsDisabled, match=f"{key_id} is disabled"):
                look()
        await local.set_enabled(ACCOUNT, key_id, enabled=True)

        await one.send(queue)
        assert await one.receive(queue, message) == [CONTENT]

    with_local_key(scenario, tmp_path)


def test_key_is_named_by_id_alias_and_arn(tmp_path: Path) -> None:
    async def scenario(world: World, one: FrontEnd, key_id: str) -> None:
        arn = one.service.local_keys.show(ACCOUNT, key_id).arn
        for number, name in enumerate((key_id, KEY, arn, f"arn:aws:kms:{REGION}:{ACCOUNT}:{KEY}")):
            queue = await one.queue(f"q{number}", name)
            assert await one.receive(queue, await one.send(queue)) == [CONTENT]

    with_local_key(scenario, tmp_path)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("alias/missing", KmsNotFound),
        ("1234", KmsNotFound),
        ("arn:aws:kms:eu-west-1:000000000000:alias/orders", KmsNotFound),
        ("arn:aws:kms:us-east-1:111111111111:alias/orders", KmsAccessDenied),
        ("not a key", KmsNotFound),
    ],
)
def test_names_that_are_no_key_of_the_account_are_refused(
    tmp_path: Path, name: str, error: type[CallerError]
) -> None:
    async def scenario(world: World, one: FrontEnd, key_id: str) -> None:
        queue = await one.queue("orders", name)
        for refused in (one.send(queue), one.receive(queue)):
            with pytest.raises(error):
                await refused

    with_local_key(scenario, tmp_path)


def test_keys_of_other_accounts_are_refused_like_those_that_do_not_exist(tmp_path: Path) -> None:
    async def scenario(world: World, one: FrontEnd, key_id: str) -> None:
        await one.service.accounts.create_account("other", "111111111111")
        other = await one.service.local_keys.create("111111111111")
        texts = []
        for number, name in enumerate((other.arn, other.arn[:-1] + "x")):
            queue = await one.queue(f"q{number}", name)
            with pytest.raises(KmsAccessDenied) as refused:
                await one.send(queue)
            texts.append(refused.value.message.replace(name, ""))
        assert texts[0] == texts[1]

    with_local_key(scenario, tmp_path)


def test_alias_that_moves_counts_from_the_next_message_on(tmp_path: Path) -> None:
    async def scenario(world: World, one: FrontEnd, key_id: str) -> None:
        queue = await one.queue("orders")
        before = await one.send(queue)
        local = one.service.local_keys
        other = await local.create(ACCOUNT)

        await local.set_alias(ACCOUNT, KEY, other.key_id)
        after = await one.send(queue)
        await local.set_enabled(ACCOUNT, key_id, enabled=False)

        assert await one.receive(queue, after) == [CONTENT]
        with pytest.raises(KmsDisabled):
            await one.receive(queue, before)
        services = {row.kms_key for row in (await data_key_rows(world)).values() if row.service}
        assert services == {f"{ACCOUNT}/{key_id}", f"{ACCOUNT}/{other.key_id}"}

    with_local_key(scenario, tmp_path)


def test_local_keys_survive_restarts_and_rotations_and_a_change_of_the_mode(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with front_end(world, "local") as one:
            key = await one.service.local_keys.create(ACCOUNT, alias=KEY)
            queue = await one.queue("orders")
            message = await one.send(queue)
            await one.service.rotate_master_key()
        async with front_end(world, "ignore") as one:
            assert await one.receive(queue, message) == [CONTENT]
            await one.service.rotate_master_key()
        async with front_end(world, "local") as one:
            assert await one.receive(queue, message) == [CONTENT]
            await one.service.local_keys.schedule_deletion(ACCOUNT, key.key_id, 7)
            with pytest.raises(KmsInvalidState, match="pending deletion"):
                await one.receive(queue, message)

    run(scenario, tmp_path)


def test_look_that_must_ask_says_so_without_waiting(tmp_path: Path) -> None:
    async def scenario(world: World, one: FrontEnd, key_id: str) -> None:
        queue = await one.queue("orders")
        with pytest.raises(NotYetKnown):
            one.cipher.encrypt_content(CONTENT, queue, MESSAGE_ID)
        await one.send(queue)

    with_local_key(scenario, tmp_path)


# Cells


def in_cell(scenario: Callable[[FrontEnd, FrontEnd, StandInKeys], Awaitable[None]], tmp_path: Path) -> None:
    async def in_world(cell: Cell) -> None:
        keys = StandInKeys(KEY)
        async with cell.started(kms="aws", key_services={"aws": keys}) as (a, b):
            await scenario(FrontEnd(a), FrontEnd(b), keys)

    run_cell(in_world, tmp_path)


def test_front_ends_of_a_cell_read_each_others_messages(tmp_path: Path) -> None:
    async def scenario(a: FrontEnd, b: FrontEnd, keys: StandInKeys) -> None:
        queue = await a.queue("orders")
        messages = [await a.send(queue), await b.send(queue)]

        for end in (a, b):
            assert await end.receive(queue, *messages) == [CONTENT] * 2
        await a.service.rotate_receipt_key()
        assert keys.asked.count("generate") <= 2

    in_cell(scenario, tmp_path)


def test_local_keys_count_on_every_front_end_of_a_cell(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started(kms="local") as ends:
            a, b = map(FrontEnd, ends)
            key = await a.service.local_keys.create(ACCOUNT, alias=KEY)
            queue = await a.queue("orders")
            message = await a.send(queue)
            await eventually(lambda: b.service.local_keys.list_keys(ACCOUNT) == [key])
            assert await b.receive(queue, message) == [CONTENT]

            await b.service.local_keys.set_enabled(ACCOUNT, key.key_id, enabled=False)

            await eventually(lambda: a.service.local_keys.show(ACCOUNT, KEY).state == "disabled")
            with pytest.raises(KmsDisabled):
                await a.receive(queue)
            assert b"the body" not in b"".join(
                bytes(link.seen) for end in ends for link in end.links.values()
            )

    run_cell(scenario, tmp_path)
