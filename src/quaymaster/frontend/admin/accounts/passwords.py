"""Passwords of users: hashed with scrypt on a thread, one at a time in a process.

    scrypt$14$8$5$SALT$HASH      2^14 rounds of block size 8, five times: 16 MiB and some 0.2 s; salt and hash in base64

A hash says how it was made, so costs can grow for new ones. Whether there is a user cannot be told by the time that an
answer takes: for none, as much is computed.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import os
from concurrent.futures import ThreadPoolExecutor
from hashlib import scrypt
from typing import Final

from quaymaster.core.values.errors import Overloaded

SALT_BYTES: Final = 16
HASH_BYTES: Final = 32
ROUNDS_LOG2: Final = 14
BLOCK_SIZE: Final = 8
LANES: Final = 5
LANES_MAX: Final = 16
ROUNDS_LOG2_MAX: Final = 17
WAITING_MAX: Final = 16
"""So many hashes are made or waited for at a time: 3 s."""

_POOL: Final = ThreadPoolExecutor(1, thread_name_prefix="passwords")
"""Its thread begins with the first hash. Each takes memory, so there is one for both ports."""


class Passwords:
    """Makes and checks hashes."""

    def __init__(self) -> None:
        self._waiting = 0
        self._nobodys = ""

    async def hash(self, password: str) -> str:
        """Return the hash of a password, as it is kept; Overloaded."""
        salt = os.urandom(SALT_BYTES)
        made = await self._run(password, salt, ROUNDS_LOG2, BLOCK_SIZE, LANES)
        costs = (ROUNDS_LOG2, BLOCK_SIZE, LANES)
        return "$".join(("scrypt", *map(str, costs), _text(salt), _text(made)))

    async def is_right(self, password: str, kept: str) -> bool:
        """Tell whether a password is that of a hash. `kept` empty: it is nobody's, which takes as long; Overloaded."""
        if not kept and not self._nobodys:
            self._nobodys = await self.hash("")
        found = _parse(kept or self._nobodys)
        if found is None:
            return False
        salt, expected, *costs = found
        made = await self._run(password, salt, *costs)
        return hmac.compare_digest(made, expected) and bool(kept)

    async def _run(self, password: str, salt: bytes, log2: int, block: int, lanes: int) -> bytes:
        if self._waiting >= WAITING_MAX:
            raise Overloaded
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(_POOL, _scrypt, password, salt, log2, block, lanes)
        finally:
            self._waiting -= 1


def _scrypt(password: str, salt: bytes, log2: int, block: int, lanes: int) -> bytes:
    memory = 128 * block * ((1 << log2) + lanes + 2)
    return scrypt(
        password.encode(), salt=salt, n=1 << log2, r=block, p=lanes, maxmem=memory + 1_024, dklen=HASH_BYTES
    )


def _parse(kept: str) -> tuple[bytes, bytes, int, int, int] | None:
    """Return salt, hash and costs of a hash; None where this program cannot check it."""
    try:
        kind, log2, block, lanes, salt, made = kept.split("$")
        costs = int(log2), int(block), int(lanes)
        if (
            kind != "scrypt"
            or not 1 <= costs[0] <= ROUNDS_LOG2_MAX
            or costs[1] > 2 * BLOCK_SIZE
            or costs[2] > LANES_MAX
        ):
            return None
        return base64.b64decode(salt, validate=True), base64.b64decode(made, validate=True), *costs
    except (ValueError, binascii.Error):
        return None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
