"""The keys of session tokens: rows with random keys, wrapped by the master key.

    made ──everybody follows the rows for a minute──▶ mints ──a week, or `session-key rotate`──▶ opens ──37 h──▶ deleted

A token lasts 36 h at most, and the hour more is for clocks that disagree. The week and the 37 h are of counted time
(`coordination/counted_time`), so no wall clock takes a key from the clients of all front ends. Keys exist from cell
format FRONT_DOOR on: programs of before would leave them wrapped with a master key that is retired.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Final

from quaymaster.coordination.interface import Compare, Put, RevisionMismatch
from quaymaster.core.values.errors import InvalidClientTokenId, NotNow
from quaymaster.core.values.formats import FRONT_DOOR, CellFormat
from quaymaster.metadata.keys.data_keys import KEY_BYTES, session_key_purpose
from quaymaster.metadata.keys.key_ages import is_known_everywhere, is_older
from quaymaster.metadata.keys.master_keys import MasterKeys
from quaymaster.metadata.store.counted_time import CountedTime
from quaymaster.metadata.store.mirror import Mirror, MirrorTable
from quaymaster.metadata.store.rows import SESSION_KEYS, SessionKeyRow, encode_row, id_text, row_decoder
from quaymaster.protocol.tokens.session_tokens import (
    NONCE_BYTES,
    SessionContent,
    SessionTokens,
    UnknownTokenKey,
)

SESSION_KEY_KEPT_MS: Final = 37 * 3_600_000
SESSION_KEY_RENEWED_MS: Final = 7 * 24 * 3_600_000


class SessionKeys:
    """Mints and opens session tokens with the keys of the moment.

    `lead_ms`: how old a key must be to mint, so that all front ends can open its tokens. `on_missing` is asked for the
    row of a key that is not in memory: it returns when there is none, and otherwise raises NotYetKnown.
    """

    def __init__(
        self,
        mirror: Mirror,
        master_keys: MasterKeys,
        now_ms: Callable[[], int],
        *,
        cell_format: CellFormat,
        counted_time: CountedTime,
        lead_ms: int,
        on_missing: Callable[[str], None],
    ) -> None:
        self._mirror = mirror
        self._master_keys = master_keys
        self._now_ms = now_ms
        self._cell_format = cell_format
        self._time = counted_time
        self._lead_ms = lead_ms
        self._on_missing = on_missing
        self._rows: MirrorTable[SessionKeyRow] = mirror.table(
            SESSION_KEYS, row_decoder(SessionKeyRow), self._on_row
        )
        self._is_started = False
        self._tokens = SessionTokens()

    async def start(self) -> None:
        """Make the first key if there is none and may be one, and get ready to mint tokens."""
        self._is_started = True
        self.take_keys()
        if not len(self._rows) and self._may_be_made:
            with suppress(NotNow):  # the store cannot be written now; upkeep tries again
                await self._add(1)

    @property
    def _may_be_made(self) -> bool:
        return bool(self._cell_format.version_of(FRONT_DOOR))

    def mint(self, content: SessionContent) -> str:
        """Return a token with a content.

        Raises:
            UnsupportedOperation: the cell is of an older format.
            NotNow: the first key could not be stored yet.
        """
        self._cell_format.require(FRONT_DOOR, "Temporary credentials are made")
        if self._tokens.current is None:
            raise NotNow("The first key of session tokens is not made yet. Try again.")
        return self._tokens.mint(content, os.urandom(NONCE_BYTES))

    def open(self, token: str) -> SessionContent:
        """Return the content of a token, however old it is.

        Raises:
            InvalidClientTokenId: it is none, or its key is gone.
            NotYetKnown: its key is being asked for.
        """
        try:
            return self._tokens.open(token)
        except UnknownTokenKey as unknown:
            # Anybody can make up a token. Keys are numbered, so only the next one is worth a look.
            if unknown.key_id == self._newest_id() + 1:
                self._on_missing(SESSION_KEYS + id_text(unknown.key_id))
            raise InvalidClientTokenId from None

    async def rotate(self) -> int:
        """Mint tokens with a new key, once every front end knows it, and return its id."""
        self._cell_format.require(FRONT_DOOR, "Keys of session tokens are made")
        while True:
            key_id = self._newest_id() + 1
            if await self._add(key_id):
                return key_id

    async def keep_up(self) -> None:
        """Make a new key when the newest is a week old, and delete those that no token can need any more."""
        now_ms = await self._time.read_ms()
        await self._time.begin_counting_all(self._rows, "since_counted_ms")
        rows = self._sorted()
        if self._may_be_made and (not rows or is_older(rows[-1], SESSION_KEY_RENEWED_MS, now_ms)):
            await self._add(self._newest_id() + 1)
        for row, successor in pairwise(rows):
            if is_older(successor, SESSION_KEY_KEPT_MS, now_ms):
                await self._mirror.transact([], deletes=[SESSION_KEYS + id_text(row.key_id)])
        self.take_keys()

    def take_keys(self) -> None:
        """Open tokens of every key there is, and mint with the newest that is old enough."""
        rows = self._sorted()
        keys = {
            row.key_id: self._master_keys.unwrap(session_key_purpose(row.key_id), row.wrapped) for row in rows
        }
        now_ms = self._time.known_ms
        ready = [row.key_id for row in rows if is_known_everywhere(row, self._lead_ms, now_ms)]
        self._tokens.set_keys(keys, max(ready, default=min(keys, default=None)))

    async def _add(self, key_id: int) -> bool:
        """Make a key of an id; False when there is one already."""
        key = SESSION_KEYS + id_text(key_id)
        while True:
            await self._master_keys.ready()
            since_ms = await self._time.begin_ms()
            wrapped = self._master_keys.wrap(session_key_purpose(key_id), os.urandom(KEY_BYTES))
            row = SessionKeyRow(key_id, wrapped, self._now_ms(), since_ms)
            try:
                await self._mirror.transact(
                    [self._master_keys.compare(), Compare(key, 0)], [Put(key, encode_row(row))]
                )
            except RevisionMismatch:
                if self._rows.get(id_text(key_id)) is None:
                    continue  # the master key was rotated meanwhile
                return False
            return True

    def _sorted(self) -> list[SessionKeyRow]:
        return sorted((row for _, row in self._rows.items()), key=lambda row: row.key_id)

    def _newest_id(self) -> int:
        return max((row.key_id for _, row in self._rows.items()), default=0)

    def _on_row(self, suffix: str, old: SessionKeyRow | None, new: SessionKeyRow | None) -> None:
        # A rewrap changes the wrapping, not the key.
        if self._is_started and (old is None or new is None):
            self._master_keys.soon(self.take_keys)
