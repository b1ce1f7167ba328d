"""Where master keys are kept, what they wrap, and how they are replaced without losing anything."""

from __future__ import annotations

import asyncio
import base64
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from metadata.support import ACCOUNT, World, eventually, is_good, run
from quaymaster.coordination.interface import Compare, CoordinationUnavailable, Put
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.errors import CallerError, NotNow, NotYetKnown, UnsupportedOperation
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.messages import MessageContent, encode_moved
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.messaging.encryption import MessageCipher
from quaymaster.metadata.keys.key_providers import (
    CombinedKeyProvider,
    EnvironmentKeyProvider,
    FileKeyProvider,
    KeysUnusable,
)
from quaymaster.metadata.keys.master_keys import wrapping_key_id
from quaymaster.metadata.queues.shared_data_keys import DataKeyStale
from quaymaster.metadata.service import MetadataService
from quaymaster.metadata.store.rows import (
    DATA_KEYS,
    MASTER_KEY,
    WRAPPING_KEYS,
    DataKeyRow,
    MasterKeyRow,
    WrappingKeyRow,
    encode_row,
    id_text,
    row_decoder,
)
from quaymaster.net.routing.metadata_client import when_known
from quaymaster.protocol.rpc.metadata_messages import CreateQueue, DeleteQueue

CONTENT = MessageContent("the body", b"m" * 16, [], None, "sender")
MESSAGE_ID = bytes(range(16))


def random_key() -> str:
    return base64.b64encode(os.urandom(32)).decode()


# The file provider


def test_created_key_is_in_a_file_only_its_owner_can_read(tmp_path: Path) -> None:
    directory = tmp_path / "keys"
    provider = FileKeyProvider(directory)

    key_id = provider.create()

    assert provider.key_ids() == [key_id]
    assert len(provider.key(key_id)) == 32
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert [stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()] == [0o600]
    assert FileKeyProvider(directory).key(key_id) == provider.key(key_id)


def test_retired_key_is_gone(tmp_path: Path) -> None:
    provider = FileKeyProvider(tmp_path)
    key_id = provider.create()

    provider.retire(key_id)
    provider.retire(key_id)

    assert provider.key_ids() == []
    with pytest.raises(KeysUnusable, match=f"{key_id}.key is not in"):
        provider.key(key_id)


def test_key_file_others_can_read_is_refused(tmp_path: Path) -> None:
    provider = FileKeyProvider(tmp_path)
    key_id = provider.create()
    (tmp_path / f"{key_id}.key").chmod(0o640)

    with pytest.raises(KeysUnusable, match="can be read by others"):
        provider.key(key_id)


@pytest.mark.parametrize("damage", [b"", b"x", b"quaymaster-master-key-1 mk-0 AAAA\n", b"\xff\xfe"])
def test_damaged_key_file_is_refused_without_showing_it(tmp_path: Path, damage: bytes) -> None:
    provider = FileKeyProvider(tmp_path)
    key_id = provider.create()
    secret = base64.b64encode(provider.key(key_id)).decode()
    path = tmp_path / f"{key_id}.key"
    path.write_bytes(damage or path.read_bytes()[:-5])

    with pytest.raises(KeysUnusable, match="not a whole master key file") as refused:
        provider.key(key_id)

    assert secret[:20] not in str(refused.value)


def test_half_written_key_file_is_no_key(tmp_path: Path) -> None:
    (tmp_path / "mk-0123456789abcdef.tmp").write_bytes(b"half")

    assert FileKeyProvider(tmp_path).key_ids() == []


def test_open_directory_is_closed_to_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)

    FileKeyProvider(tmp_path)

    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


# The environment provider


@pytest.mark.parametrize("text", ["", "short", base64.b64encode(b"x" * 31).decode(), "!" * 44])
def test_environment_key_that_is_no_key_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(KeysUnusable, match=r"QUAYMASTER_MASTER_KEY is not base64 of 32 bytes\.") as refused:
        EnvironmentKeyProvider(text)

    assert text == "" or text not in str(refused.value)


def test_environment_key_is_replaced_by_starting_with_both(tmp_path: Path) -> None:
    old, new = random_key(), random_key()

    async def scenario(world: World) -> None:
        world.provider = EnvironmentKeyProvider(old)
        async with world.service() as service:
            queue = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            data_key = service.data_key(queue.data_key_id)
            access_key = service.default_access_key
            with pytest.raises(UnsupportedOperation, match="QUAYMASTER_MASTER_KEY_PREVIOUS"):
                await service.rotate_master_key()
        world.provider = EnvironmentKeyProvider(new)
        with pytest.raises(KeysUnusable, match="QUAYMASTER_MASTER_KEY_PREVIOUS"):
            async with world.service():
                raise AssertionError("started without the key it needs")

        world.provider = EnvironmentKeyProvider(new, old)
        async with world.service() as service:
            await service.run_upkeep()
        world.provider = EnvironmentKeyProvider(new)

        async with world.service() as service:
            assert service.data_key(queue.data_key_id) == data_key
            assert service.default_access_key == access_key

    run(scenario, tmp_path)


def test_environment_provider_does_not_show_its_keys() -> None:
    key = random_key()
    provider = EnvironmentKeyProvider(key)

    assert key not in repr(provider)
    assert key[:12] not in repr(provider.key_ids())


# Wrapping


def test_wrapped_secret_opens_for_its_purpose_only(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            wrapped = service.master_keys.wrap("data-key/1", b"secret")

            assert service.master_keys.unwrap("data-key/1", wrapped) == b"secret"
            assert b"secret" not in wrapped
            with pytest.raises(KeysUnusable, match="data-key/2"):
                service.master_keys.unwrap("data-key/2", wrapped)
            for at in range(len(wrapped)):
                damaged = bytearray(wrapped)
                damaged[at] ^= 1
                # A wrapping key that is not known is asked for first.
                with pytest.raises((KeysUnusable, NotYetKnown)):
                    service.master_keys.unwrap("data-key/1", bytes(damaged))

    run(scenario, tmp_path)


def test_store_whose_master_key_is_missing_does_not_open(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            key_id = service.master_key_id
        remove_key(tmp_path, key_id)

        with pytest.raises(KeysUnusable, match=f"{key_id}.key is not in"):
            async with world.service():
                raise AssertionError("started without its master key")
        assert keys_in(tmp_path) == []

    run(scenario, tmp_path)


def test_store_that_does_not_name_its_master_key_does_not_open(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.memory.transaction([], [Put("/accounts/000000000000", b"\x01")])
        world.memory = MemoryCoordination()
        world.store = world.memory
        await world.memory.transaction([], [Put("/ids/queue", b"64")])

        with pytest.raises(KeysUnusable, match="which master key"):
            async with world.service():
                raise AssertionError("started on a store without a master key")

    run(scenario, tmp_path)


def test_first_start_that_stopped_after_making_a_key_uses_that_key(tmp_path: Path) -> None:
    left_over = FileKeyProvider(tmp_path).create()

    async def scenario(world: World) -> None:
        async with world.service() as service:
            assert service.master_key_id == left_over
            assert keys_in(tmp_path) == [left_over]

    run(scenario, tmp_path)


# Rotation


def keys_in(directory: Path) -> list[str]:
    return sorted(path.stem for path in directory.glob("*.key"))


def remove_key(directory: Path, key_id: str) -> None:
    (directory / f"{key_id}.key").unlink()


async def wrapping_keys(store: MemoryCoordination, service: MetadataService) -> set[str]:
    """Return the ids of all keys that wrap anything in the store."""
    current = service.master_keys.row.current_key_id
    found = set()
    for prefix in ("/data_keys/", "/receipt_keys/", "/session_keys/", "/access_keys/"):
        items, _ = await store.list_all(prefix)
        for item in items:
            for key_id in (current, *service.master_keys.row.retiring_key_ids):
                if key_id.encode() in item.value:
                    found.add(key_id)
    return found


def test_rotation_wraps_everything_anew_and_retires_the_old_key(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            old = service.master_key_id
            queues = [
                await service.queues.change(CreateQueue(ACCOUNT, f"q{number}")) for number in range(130)
            ]
            data_keys = {queue.data_key_id: service.data_key(queue.data_key_id) for queue in queues}
            assert service.default_access_key is not None
            session = service.sessions.create(service.default_access_key.access_key_id, 60_000)
            handle = service.receipt_handles.mint(1, 0, 1, 1, 1)

            new = await service.rotate_master_key()

            assert new != old
            assert keys_in(tmp_path) == [new]
            assert service.master_key_id == new
            assert await wrapping_keys(world.memory, service) == {service.master_keys.row.current_key_id}
            assert service.master_keys.row.retiring_key_ids == ()
            service.receipt_handles.parse(handle, 1)
        async with world.service() as service:
            assert {key_id: service.data_key(key_id) for key_id in data_keys} == data_keys
            assert is_good(service, session)
            service.receipt_handles.parse(handle, 1)

    run(scenario, tmp_path)


def test_messages_stay_readable_through_rotation_move_and_deletion_of_their_queue(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            queue = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            encrypted = MessageCipher(service.data_key).encrypt_content(CONTENT, queue, MESSAGE_ID)
            dead = encode_moved(queue.queue_id, 0, 1, None, "arn:aws:sqs:r:0:orders", encrypted)
            redriven = encode_moved(99, 0, 1, bytes(16), None, dead)

            await service.queues.change(DeleteQueue(ACCOUNT, "orders"))
            await service.rotate_master_key()
            await service.rotate_master_key()

        async with world.service() as service:
            cipher = MessageCipher(service.data_key)
            for message in (encrypted, dead, redriven):
                assert cipher.open(message) == CONTENT

    run(scenario, tmp_path)


class Crash(Exception):
    """The process dies here."""


class CrashingProvider(FileKeyProvider):
    """Dies before or after the n-th thing it does to the directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.crash_at = -1
        self.after = False

    def create(self) -> str:
        self._step(after=False)
        key_id = super().create()
        self._step(after=True)
        return key_id

    def retire(self, key_id: str) -> None:
        self._step(after=False)
        super().retire(key_id)
        self._step(after=True)

    def _step(self, *, after: bool) -> None:
        if after == self.after:
            self.crash_at -= 1
            if self.crash_at == -1:
                self.crash_at = -2
                raise Crash


class CrashingStore(MemoryCoordination):
    """Dies before or after the n-th transaction."""

    crash_at = -1
    after = False

    async def transaction(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        if self.crash_at == 0 and not self.after:
            raise CoordinationUnavailable
        revision = await super().transaction(compares, puts, deletes)
        if self.crash_at == 0:
            raise CoordinationUnavailable
        self.crash_at -= 1
        return revision


async def check_after_crash(
    world: World, queues: list[QueueDefinition], data_keys: dict[int, bytes], encrypted: bytes
) -> None:
    async with world.service() as service:
        assert {queue.data_key_id: service.data_key(queue.data_key_id) for queue in queues} == data_keys
        assert MessageCipher(service.data_key).open(encrypted) == CONTENT
        await service.run_upkeep()
        assert service.master_keys.row.retiring_key_ids == ()
        assert await wrapping_keys(world.memory, service) == {service.master_keys.row.current_key_id}
        before = service.master_keys.row.current_key_id

        after = await service.rotate_master_key()

        assert after != before
        assert keys_in(world.keys) == [after]
        assert {queue.data_key_id: service.data_key(queue.data_key_id) for queue in queues} == data_keys
    async with world.service() as service:
        assert {queue.data_key_id: service.data_key(queue.data_key_id) for queue in queues} == data_keys
        assert MessageCipher(service.data_key).open(encrypted) == CONTENT


# Two steps of the provider (make, retire); four transactions (switch, rewrap 60 and 12 secrets, over).
@pytest.mark.parametrize("cell_format", [5, 6])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("part", "step"), [("provider", 0), ("provider", 1), *(("store", step) for step in range(4))]
)
def test_rotation_that_dies_at_any_step_loses_nothing_and_can_be_taken_up(
    tmp_path: Path, part: str, step: int, after: bool, cell_format: int
) -> None:
    """With format 5 the store has no wrapping key yet: the rotation that dies is also its migration."""

    async def scenario(world: World) -> None:
        store = world.memory = CrashingStore()
        world.store = store
        provider = CrashingProvider(tmp_path)
        world.provider = provider
        number = CellFormat(cell_format)
        async with world.service(cell_format=number) as service:
            assert (service.master_keys.row.current_key_id == service.master_key_id) == (cell_format < 6)
            own_key = {"KmsMasterKeyId": "alias/own"}
            queues = [
                await service.queues.change(CreateQueue(ACCOUNT, f"q{number}", own_key))
                for number in range(70)
            ]
            data_keys = {queue.data_key_id: service.data_key(queue.data_key_id) for queue in queues}
            assert len(data_keys) == 70
            encrypted = MessageCipher(service.data_key).encrypt_content(CONTENT, queues[0], MESSAGE_ID)
            died = provider if part == "provider" else store
            died.after = after
            died.crash_at = step
            number.raise_to(6)
            with pytest.raises((Crash, CoordinationUnavailable)):
                await service.rotate_master_key()
        provider.crash_at = store.crash_at = -1
        world.provider = None

        await check_after_crash(world, queues, data_keys, encrypted)

    run(scenario, tmp_path)


def test_queues_and_keys_made_during_a_rotation_are_wrapped_with_the_new_key(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as one, world.service() as two:
            # The other node has wrapped a secret with the old key and is about to store it.
            late = await two.data_keys.new_data_key()

            await one.rotate_master_key()

            # Its transaction fails, because it compares what the rotation changed; it tries again.
            with pytest.raises(DataKeyStale):
                await two.registry.queues.change(CreateQueue(ACCOUNT, "orders", data_key=late))
            made = await two.queues.change(CreateQueue(ACCOUNT, "orders"))
            await two.accounts.create_access_key(ACCOUNT)
            await eventually(lambda: one.find_queue(ACCOUNT, "orders") is not None)
            assert one.data_key(made.data_key_id) == two.data_key(made.data_key_id)
            assert await wrapping_keys(world.memory, one) == {one.master_keys.row.current_key_id}
            assert late.key_id != made.data_key_id

    run(scenario, tmp_path)


def test_rotations_at_once_end_with_one_key(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await asyncio.gather(service.rotate_master_key(), service.rotate_master_key())

            assert keys_in(tmp_path) == [service.master_key_id]

    run(scenario, tmp_path)


def test_wrapped_bytes_name_the_key_that_wraps_them(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            wrapped = service.master_keys.wrap("x", b"")

            assert wrapping_key_id(wrapped) == service.master_keys.row.current_key_id
            with pytest.raises(KeysUnusable):
                wrapping_key_id(b"\x02" + wrapped[1:])

    run(scenario, tmp_path)


# Wrapping keys


def test_new_store_has_one_wrapping_key_and_it_is_not_in_the_clear(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            (item,), _ = await world.memory.list_all(WRAPPING_KEYS)
            row = row_decoder(WrappingKeyRow)(item.value)
            master = FileKeyProvider(tmp_path).key(row.master_key_id)

            assert row.key_id == service.master_keys.row.current_key_id
            assert row.master_key_id == service.master_key_id
            assert master not in item.value
            with pytest.raises(KeysUnusable, match="it is damaged"):
                await FileKeyProvider(tmp_path).unwrap(
                    row.master_key_id, "wrapping-key/wk-other", row.wrapped
                )

    run(scenario, tmp_path)


def test_old_store_is_served_as_it_is_and_gets_its_wrapping_key_by_the_first_rotation(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service(cell_format=CellFormat(5)) as service:
            queue = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            data_key = service.data_key(queue.data_key_id)
            old = await service.rotate_master_key()
            assert service.master_keys.row.current_key_id == old
        async with world.service() as service:
            assert service.data_key(queue.data_key_id) == data_key
            assert (await world.memory.list_all(WRAPPING_KEYS))[0] == []
            key = service.default_access_key

            new = await service.rotate_master_key()

            assert len((await world.memory.list_all(WRAPPING_KEYS))[0]) == 1
            assert keys_in(tmp_path) == [new] != [old]
        async with world.service() as service:
            assert service.data_key(queue.data_key_id) == data_key
            assert service.default_access_key == key

    run(scenario, tmp_path)


def test_rotation_leaves_one_wrapping_key(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            before = service.master_keys.row.current_key_id
            await service.rotate_master_key()
            (item,), _ = await world.memory.list_all(WRAPPING_KEYS)

            assert item.key == WRAPPING_KEYS + service.master_keys.row.current_key_id
            assert service.master_keys.row.current_key_id != before

    run(scenario, tmp_path)


class AskedProvider(FileKeyProvider):
    """Keeps its keys to itself, as a service does: who needs one unwrapped must ask, and may not get an answer."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.asked = 0
        self.is_silent = False

    def holds(self, key_id: str) -> bool:
        return False

    async def unwrap(self, key_id: str, purpose: str, wrapped: bytes) -> bytes:
        self.asked += 1
        if self.is_silent:
            raise NotNow("The key service does not answer.")
        await asyncio.sleep(0)
        return await super().unwrap(key_id, purpose, wrapped)


def test_provider_that_gives_no_keys_away_is_asked_once_at_the_start(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        provider = AskedProvider(tmp_path)
        world.provider = provider
        async with world.service() as service:
            await service.queues.change(CreateQueue(ACCOUNT, "first"))
        provider.asked = 0
        async with world.service() as service:
            provider.is_silent = True
            queue = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            await service.accounts.create_access_key(ACCOUNT)

            assert len(service.data_key(queue.data_key_id)) == 32
            assert provider.asked == 1
        with pytest.raises(NotNow, match="does not answer"):
            async with world.service():
                raise AssertionError("started without its wrapping key")

    run(scenario, tmp_path)


def test_keys_that_another_process_rotated_are_asked_for_when_they_are_needed(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.provider = AskedProvider(tmp_path)
        async with world.service() as one, world.service() as two:
            await one.rotate_master_key()
            await one.rotate_receipt_key()
            queue = await one.queues.change(CreateQueue(ACCOUNT, "orders"))
            await eventually(lambda: two.find_queue(ACCOUNT, "orders") is not None)

            key = await when_known(lambda: two.data_key(queue.data_key_id))

            assert key == one.data_key(queue.data_key_id)
            handle = one.receipt_handles.mint(queue.queue_id, 0, 1, 1, 1)
            await eventually(lambda: parses(two, handle, queue.queue_id))
            await two.accounts.create_access_key(ACCOUNT)

    run(scenario, tmp_path)


def test_start_and_new_keys_need_no_retiring_key_that_is_gone(tmp_path: Path) -> None:
    """A rotation that died between its steps 5 and 6."""

    async def scenario(world: World) -> None:
        provider = AskedProvider(tmp_path)
        world.provider = provider
        async with world.service() as service:
            old = service.master_key_id
            await service.master_keys.begin_rotation()
            await service._rotation._finish()
            async with world.service() as other:
                row = MasterKeyRow(other.master_keys.row.current_key_id, ("wk-0000000000000000",))
                await world.memory.transaction([], [Put(MASTER_KEY, encode_row(row))])
            assert keys_in(tmp_path) != [old]
        async with world.service() as service:
            assert service.master_keys.row.retiring_key_ids
            await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            await service.run_upkeep()
            assert service.master_keys.row.retiring_key_ids == ()

    run(scenario, tmp_path)


def test_start_during_a_rotation_asks_for_both_keys(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        provider = AskedProvider(tmp_path)
        world.provider = provider
        async with world.service() as service:
            queue = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            data_key = service.data_key(queue.data_key_id)
            await service.master_keys.begin_rotation()
        provider.asked = 0
        async with world.service() as service:
            assert provider.asked >= 2
            provider.is_silent = True
            assert service.data_key(queue.data_key_id) == data_key
            await service.accounts.create_access_key(ACCOUNT)

    run(scenario, tmp_path)


def parses(service: MetadataService, handle: str, queue_id: int) -> bool:
    with suppress(CallerError):
        service.receipt_handles.parse(handle, queue_id)
        return True
    return False


def test_store_moves_from_one_provider_to_another_at_the_next_start(tmp_path: Path) -> None:
    in_environment = EnvironmentKeyProvider(base64.b64encode(os.urandom(32)).decode())

    async def scenario(world: World) -> None:
        files = FileKeyProvider(tmp_path)
        async with world.service() as service:
            queue = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            data_key = service.data_key(queue.data_key_id)
        for provider, owner in (
            (CombinedKeyProvider(in_environment, [files]), in_environment),
            (CombinedKeyProvider(files, [in_environment]), files),
        ):
            world.provider = provider
            async with world.service() as service:
                await service.run_upkeep()
                assert owner.owns(service.master_key_id)
                assert service.master_keys.row.retiring_key_ids == ()
                assert bool(keys_in(tmp_path)) is (owner is files)
            world.provider = owner
            async with world.service() as service:
                assert service.data_key(queue.data_key_id) == data_key

    run(scenario, tmp_path)


def test_key_service_needs_a_cell_that_knows_wrapping_keys(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        files = FileKeyProvider(tmp_path)
        async with world.service(cell_format=CellFormat(5)):
            pass
        world.provider = CombinedKeyProvider(Elsewhere(tmp_path / "elsewhere"), [files])
        with pytest.raises(KeysUnusable, match="quaymaster cell upgrade"):
            async with world.service(cell_format=CellFormat(5)):
                raise AssertionError("started")
        async with world.service() as service:
            assert service.master_key_id == "elsewhere"

    run(scenario, tmp_path)


class Elsewhere(AskedProvider):
    """Has one key, which is the one wanted."""

    def owns(self, key_id: str) -> bool:
        return key_id == "elsewhere"

    def wanted_key_id(self) -> str:
        return "elsewhere"

    def key(self, key_id: str) -> bytes:
        return b"e" * 32

    def retire(self, key_id: str) -> None:
        raise AssertionError("it is not this one's")


def test_look_for_secrets_under_the_old_key_lets_others_have_their_turns(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            wrapped = service.master_keys.wrap("data-key/1", b"k" * 32)
            for first in range(10**6, 10**6 + 5_000, 50):
                rows = (DataKeyRow(number, wrapped, 0) for number in range(first, first + 50))
                puts = [Put(DATA_KEYS + id_text(row.key_id), encode_row(row)) for row in rows]
                await world.memory.transaction([], puts)
            looking = asyncio.ensure_future(service._rotation._left())
            turns = 0
            while not looking.done():
                await asyncio.sleep(0)
                turns += 1

            assert await looking == []
            assert turns >= 5

    run(scenario, tmp_path)
