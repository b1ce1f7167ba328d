"""Keys in Vault's transit engine, against a stand-in that really encrypts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from harness.vault import TOKEN, StandInVault

from metadata.cell import Cell, FrontEnd, run_cell
from metadata.kms.support import CONTENT, front_end
from metadata.support import ACCOUNT, World, eventually, run
from quaymaster.core.values.errors import (
    CallerError,
    KmsAccessDenied,
    KmsInvalidState,
    KmsNotFound,
    KmsThrottled,
    NotNow,
    Unreachable,
)
from quaymaster.metadata.keys.key_providers import CombinedKeyProvider, FileKeyProvider, KeysUnusable
from quaymaster.metadata.kms.vault import Vault, VaultKeyProvider, VaultKeys, VaultSettings
from quaymaster.metadata.store.rows import WRAPPING_KEYS
from quaymaster.net.outbound.client import OutboundClient
from quaymaster.protocol.rpc.metadata_messages import CreateQueue

MASTER = "quaymaster"
CONTEXT = {"aws:sqs:arn": "arn:aws:sqs:us-east-1:000000000000:orders"}
ORDERS = f"{ACCOUNT}-orders"


def vault_of(stand_in: StandInVault, directory: Path, **changes: Any) -> Vault:
    token_file = directory / "vault-token"
    token_file.write_text(f"{TOKEN}\n")
    given = {"url": stand_in.url, "namespace": None, "mount": "transit", "timeout_s": 20.0, **changes}
    return Vault(VaultSettings(token_file=token_file, **given), OutboundClient(rules=None))


def with_vault(
    scenario: Callable[[World, StandInVault, Vault], Awaitable[None]], tmp_path: Path, *names: str
) -> None:
    async def in_world(world: World) -> None:
        async with StandInVault(*(names or (MASTER, ORDERS))).running() as stand_in:
            vault = vault_of(stand_in, tmp_path)
            try:
                await scenario(world, stand_in, vault)
            finally:
                await vault.close()

    run(in_world, tmp_path / "keys")


# The master key


def test_store_depends_on_a_key_that_vault_keeps(tmp_path: Path) -> None:
    async def scenario(world: World, stand_in: StandInVault, vault: Vault) -> None:
        world.provider = VaultKeyProvider(vault_of(stand_in, tmp_path), MASTER)
        async with world.service() as service:
            queue = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            data_key = service.data_key(queue.data_key_id)
            assert service.master_key_id == f"vault/{MASTER}"
            (item,), _ = await world.memory.list_all(WRAPPING_KEYS)
            assert b"vault:v1:" in item.value
        assert not list((tmp_path / "keys").glob("*"))
        stand_in.asked.clear()
        world.provider = VaultKeyProvider(vault_of(stand_in, tmp_path), MASTER)
        async with world.service() as service:
            assert service.data_key(queue.data_key_id) == data_key
            assert stand_in.asked == [f"decrypt {MASTER}"]

    with_vault(scenario, tmp_path)


def test_rotation_wraps_with_vaults_newest_version_and_needs_the_old_one_no_more(tmp_path: Path) -> None:
    async def scenario(world: World, stand_in: StandInVault, vault: Vault) -> None:
        world.provider = VaultKeyProvider(vault_of(stand_in, tmp_path), MASTER)
        async with world.service() as service:
            queue = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            data_key = service.data_key(queue.data_key_id)
            stand_in.rotate(MASTER)
            await service.rotate_master_key()
        stand_in.min_decryption_version[MASTER] = 2
        world.provider = VaultKeyProvider(vault_of(stand_in, tmp_path), MASTER)
        async with world.service() as service:
            assert service.data_key(queue.data_key_id) == data_key
            (item,), _ = await world.memory.list_all(WRAPPING_KEYS)
            assert b"vault:v2:" in item.value

    with_vault(scenario, tmp_path)


def test_store_moves_from_files_to_vault_and_its_file_goes(tmp_path: Path) -> None:
    async def scenario(world: World, stand_in: StandInVault, vault: Vault) -> None:
        async with world.service() as service:
            queue = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            data_key = service.data_key(queue.data_key_id)
        in_vault = VaultKeyProvider(vault_of(stand_in, tmp_path), MASTER)
        world.provider = CombinedKeyProvider(in_vault, [FileKeyProvider(tmp_path / "keys")])
        async with world.service() as service:
            await service.run_upkeep()
            assert service.master_key_id == f"vault/{MASTER}"
        assert not list((tmp_path / "keys").glob("*"))
        world.provider = VaultKeyProvider(vault_of(stand_in, tmp_path), MASTER)
        async with world.service() as service:
            assert service.data_key(queue.data_key_id) == data_key

    with_vault(scenario, tmp_path)


def test_store_does_not_open_without_vault_or_with_another_key(tmp_path: Path) -> None:
    async def scenario(world: World, stand_in: StandInVault, vault: Vault) -> None:
        world.provider = VaultKeyProvider(vault_of(stand_in, tmp_path), MASTER)
        async with world.service():
            pass

        async def start() -> None:
            world.provider = VaultKeyProvider(vault_of(stand_in, tmp_path), MASTER)
            async with world.service():
                raise AssertionError("started")

        stand_in.says = (503, ["Vault is sealed"])
        with pytest.raises(NotNow, match="HTTP status 503"):
            await start()
        stand_in.says = (403, ["permission denied"])
        with pytest.raises(KeysUnusable, match="does not allow the use"):
            await start()
        stand_in.says = None
        stand_in.keys[MASTER] = StandInVault(MASTER).keys[MASTER]
        with pytest.raises(NotNow, match="HTTP status 400"):
            await start()

    with_vault(scenario, tmp_path)


def test_wrapped_key_opens_for_its_purpose_only(tmp_path: Path) -> None:
    async def scenario(world: World, stand_in: StandInVault, vault: Vault) -> None:
        provider = VaultKeyProvider(vault, MASTER)
        (key_id,) = provider.key_ids()
        wrapped = await provider.wrap(key_id, "wrapping-key/wk-1", b"k" * 32)

        assert await provider.unwrap(key_id, "wrapping-key/wk-1", wrapped) == b"k" * 32
        with pytest.raises(NotNow):
            await provider.unwrap(key_id, "wrapping-key/wk-2", wrapped)
        with pytest.raises(KeysUnusable, match="does not give"):
            provider.key(key_id)
        assert TOKEN not in repr(provider)

    with_vault(scenario, tmp_path)


# Keys of queues


def test_data_keys_are_bound_to_their_queue(tmp_path: Path) -> None:
    async def scenario(world: World, stand_in: StandInVault, vault: Vault) -> None:
        keys = VaultKeys(vault, "us-east-1")
        made = await keys.generate("alias/orders", ACCOUNT, CONTEXT)

        assert made.key == ORDERS
        assert await keys.decrypt(made.key, made.wrapped, CONTEXT) == made.plaintext
        with pytest.raises(NotNow):
            await keys.decrypt(made.key, made.wrapped, {"aws:sqs:arn": "arn:another"})
        await keys.describe("orders", ACCOUNT)

    with_vault(scenario, tmp_path)


def test_queue_with_a_key_in_vault_is_served(tmp_path: Path) -> None:
    async def scenario(world: World, stand_in: StandInVault, vault: Vault) -> None:
        world.key_services = {"vault": VaultKeys(vault_of(stand_in, tmp_path), "us-east-1")}
        async with front_end(world, "vault") as one:
            queue = await one.queue("orders")
            message = await one.send(queue)
            del stand_in.keys[ORDERS]
            assert await one.receive(queue, message) == [CONTENT]
            one.clock.s += 301
            with pytest.raises(KmsNotFound):
                await one.receive(queue, message)

    with_vault(scenario, tmp_path)


@pytest.mark.parametrize("name", ["alias/other", "alias/team/orders", "a.b", "quaymaster"])
def test_keys_that_the_account_does_not_have_are_not_made(tmp_path: Path, name: str) -> None:
    async def scenario(world: World, stand_in: StandInVault, vault: Vault) -> None:
        keys = VaultKeys(vault, "us-east-1")
        for asked in (keys.generate(name, ACCOUNT, CONTEXT), keys.describe(name, ACCOUNT)):
            with pytest.raises(KmsNotFound):
                await asked
        with pytest.raises(KmsAccessDenied):
            await keys.describe("arn:aws:kms:us-east-1:111111111111:key/orders", ACCOUNT)
        assert set(stand_in.keys) == {MASTER, ORDERS}

    with_vault(scenario, tmp_path)


@pytest.mark.parametrize(
    ("status", "errors", "error"),
    [
        (403, ["permission denied"], KmsAccessDenied),
        (404, [], KmsNotFound),
        (400, ["encryption key not found"], KmsNotFound),
        (400, ["... version is disallowed by policy (too old)"], KmsInvalidState),
        (429, [], KmsThrottled),
        (400, ["other"], Unreachable),
        (500, ["internal"], Unreachable),
        (503, ["Vault is sealed"], Unreachable),
        (302, [], Unreachable),
    ],
)
def test_refusals_are_those_of_sqs(
    tmp_path: Path, status: int, errors: list[str], error: type[CallerError | NotNow]
) -> None:
    async def scenario(world: World, stand_in: StandInVault, vault: Vault) -> None:
        stand_in.says = (status, errors)
        with pytest.raises(error):
            await VaultKeys(vault, "us-east-1").describe("orders", ACCOUNT)

    with_vault(scenario, tmp_path)


@pytest.mark.parametrize(
    "answer", [b"", b"[]", b"{}", b'{"data": 1}', b'{"data": {}}', b"\xff", b"x" * 100_000]
)
def test_answers_that_make_no_sense_are_not_now(tmp_path: Path, answer: bytes) -> None:
    async def scenario(world: World, stand_in: StandInVault, vault: Vault) -> None:
        stand_in.answer = answer
        for asked in (vault.encrypt(MASTER, b"", b""), vault.decrypt(MASTER, b"", b"")):
            with pytest.raises(Unreachable):
                await asked

    with_vault(scenario, tmp_path)


def test_token_is_read_anew_for_each_call_and_namespace_and_mount_are_used(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        stand_in = StandInVault(MASTER, mount="secrets/transit", namespace="team/a")
        async with stand_in.running():
            vault = vault_of(stand_in, tmp_path, namespace="team/a", mount="secrets/transit")
            await vault.describe(MASTER)
            stand_in.token = "renewed"
            with pytest.raises(KmsAccessDenied):
                await vault.describe(MASTER)
            (tmp_path / "vault-token").write_text("renewed")
            await vault.describe(MASTER)
            for text in ("", "two\nlines", "\xe9"):
                (tmp_path / "vault-token").write_text(text)
                with pytest.raises(Unreachable, match="token"):
                    await vault.describe(MASTER)
            (tmp_path / "vault-token").unlink()
            with pytest.raises(Unreachable, match="cannot be read"):
                await vault.describe(MASTER)
            await vault.close()

    run(scenario, tmp_path / "keys")


def test_front_ends_of_a_cell_move_to_vault_one_by_one(tmp_path: Path) -> None:
    async def in_cell(cell: Cell) -> None:
        async with StandInVault(MASTER).running() as stand_in, cell.node("one"), AsyncExitStack() as stack:

            async def start(name: str, *, has_vault: bool = True, is_primary: bool) -> FrontEnd:
                files = FileKeyProvider(cell.keys_of(name))
                in_vault = VaultKeyProvider(vault_of(stand_in, tmp_path), MASTER)
                given = [in_vault, files] if is_primary else [files, in_vault] if has_vault else [files]
                provider = CombinedKeyProvider(given[0], given[1:])
                return await stack.enter_async_context(
                    cell.front_end(name, nodes=("one",), provider=provider)
                )

            a = await start("a", is_primary=False)
            cell.copy_keys("a", "b")
            b = await start("b", has_vault=False, is_primary=False)
            queue = await a.queues.change(CreateQueue(ACCOUNT, "orders"))
            data_key = a.data_key(queue.data_key_id)
            await a.close()

            with pytest.raises(
                KeysUnusable, match=r"front ends b do not have .* settings of its key service"
            ):
                await start("a", is_primary=True)
            await b.close()
            b = await start("b", is_primary=False)
            a = await start("a", is_primary=True)
            await a.run_upkeep()

            assert a.master_key_id == f"vault/{MASTER}"
            later = await a.queues.change(CreateQueue(ACCOUNT, "later"))
            assert await b.look_up(lambda: b.data_key(later.data_key_id)) == a.data_key(later.data_key_id)
            assert await b.look_up(lambda: b.data_key(queue.data_key_id)) == data_key
            await eventually(lambda: not [*cell.keys_of("a").iterdir(), *cell.keys_of("b").iterdir()])
            await b.close()
            b = await start("b", is_primary=True)
            assert b.data_key(queue.data_key_id) == data_key

    run_cell(in_cell, tmp_path / "cell")
