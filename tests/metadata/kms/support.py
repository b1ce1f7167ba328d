"""Front ends whose queues name keys, and a key service in memory that really wraps and can be silenced and held."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from metadata.support import ACCOUNT, World, run
from quaymaster.core.values.errors import KmsDisabled, Unreachable
from quaymaster.core.values.messages import MessageContent
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.messaging.encryption import MessageCipher
from quaymaster.metadata.kms.key_names import not_found
from quaymaster.metadata.kms.key_service import GeneratedKey
from quaymaster.metadata.service import MetadataService
from quaymaster.metadata.store.rows import DATA_KEYS, DataKeyRow, row_decoder
from quaymaster.net.routing.metadata_client import when_known
from quaymaster.protocol.rpc.metadata_messages import CreateQueue


class StandInKeys:
    """A `KeyService`. `asked` counts questions by their kind."""

    def __init__(self, *names: str) -> None:
        self._keys = {name: AESGCM(os.urandom(32)) for name in names}
        self.disabled: set[str] = set()
        self.is_silent = False
        self.held: asyncio.Event | None = None
        self.asked: list[str] = []
        self.is_closed = False

    async def generate(self, name: str, account_id: str, context: Mapping[str, str]) -> GeneratedKey:
        key = await self._key("generate", name)
        plaintext, nonce = os.urandom(32), os.urandom(12)
        return GeneratedKey(name, plaintext, nonce + key.encrypt(nonce, plaintext, _bound_to(context)))

    async def decrypt(self, key: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        cipher = await self._key("decrypt", key)
        return cipher.decrypt(wrapped[:12], wrapped[12:], _bound_to(context))

    async def describe(self, name: str, account_id: str) -> None:
        await self._key("describe", name)

    async def close(self) -> None:
        self.is_closed = True

    async def _key(self, question: str, name: str) -> AESGCM:
        self.asked.append(question)
        if self.held is not None:
            await self.held.wait()
        if self.is_silent:
            raise Unreachable("The key service does not answer.")
        if name in self.disabled:
            raise KmsDisabled(f"{name} is disabled.")
        if name not in self._keys:
            raise not_found(name)
        return self._keys[name]


def _bound_to(context: Mapping[str, str]) -> bytes:
    return repr(sorted(context.items())).encode()


CONTENT = MessageContent("the body", b"m" * 16, [], None, "sender")
MESSAGE_ID = bytes(range(16))
DAY_S = 86_400
KEY = "alias/orders"


class Seconds:
    """A clock that nobody sets."""

    def __init__(self) -> None:
        self.s = 1_000.0

    def __call__(self) -> float:
        return self.s


class FrontEnd:
    """A service with its cipher, and what its requests do."""

    def __init__(self, service: MetadataService) -> None:
        self.service = service
        self.clock = service.queue_keys._monotonic_s = Seconds()
        self.cipher = MessageCipher(service.data_key, lender=service.queue_keys)

    async def queue(self, name: str, key: str = KEY, **attributes: str) -> QueueDefinition:
        given = {"KmsMasterKeyId": key, **attributes}
        return await self.service.queues.change(CreateQueue(ACCOUNT, name, given))

    async def send(self, queue: QueueDefinition) -> bytes:
        return await when_known(lambda: self.cipher.encrypt_content(CONTENT, queue, MESSAGE_ID))

    async def receive(self, queue: QueueDefinition, *messages: bytes) -> list[MessageContent]:
        await when_known(lambda: self.cipher.check_receive(queue))
        return [await when_known(partial(self.cipher.open, message)) for message in messages]


@asynccontextmanager
async def front_end(world: World, mode: str = "aws", **options: Any) -> AsyncIterator[FrontEnd]:
    async with world.service(kms=mode, **options) as service:
        yield FrontEnd(service)


def with_service(
    scenario: Callable[[World, FrontEnd, StandInKeys], Awaitable[None]], tmp_path: Path, *names: str
) -> None:
    async def in_world(world: World) -> None:
        keys = StandInKeys(*(names or (KEY,)))
        world.key_services = {"aws": keys}
        async with front_end(world) as one:
            await scenario(world, one, keys)

    run(in_world, tmp_path)


async def data_key_rows(world: World) -> Mapping[int, DataKeyRow]:
    items, _ = await world.memory.list_all(DATA_KEYS)
    rows = [row_decoder(DataKeyRow)(item.value) for item in items]
    return {row.key_id: row for row in rows}
