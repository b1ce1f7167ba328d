"""Issuers of web identity tokens, which operators set: their keys, and for whom their tokens must be.

    /oidc/oidc.example.com/ci      https://oidc.example.com/ci · audiences · JSON Web Key Set

All of them are in memory: there are few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final

from quaymaster.coordination.interface import Put
from quaymaster.core.values.errors import (
    InvalidParameterValue,
    LimitExceeded,
    ResourceNotFound,
)
from quaymaster.core.values.formats import FRONT_DOOR, CellFormat
from quaymaster.metadata.store.mirror import Mirror, MirrorTable
from quaymaster.metadata.store.rows import ISSUERS, IssuerRow, encode_row, row_decoder
from quaymaster.protocol.tokens.web_identity import SCHEME, BadKeySet, KeySet, is_issuer, parse_key_set

ISSUERS_MAX: Final = 64
AUDIENCES_MAX: Final = 16
AUDIENCE_CHARS_MAX: Final = 255


class Issuer:
    """An issuer with its keys. A change of the row makes another object."""

    def __init__(self, row: IssuerRow) -> None:
        self.row = row

    @property
    def name(self) -> str:
        """The issuer as policies name it: without its scheme."""
        return self.row.issuer.removeprefix(SCHEME)

    @property
    def audiences(self) -> tuple[str, ...]:
        """Those for whom its tokens may be."""
        return self.row.audiences

    @property
    def url(self) -> str:
        """The issuer as its tokens have it in iss."""
        return self.row.issuer

    @property
    def keys_url(self) -> str:
        """Where its keys are fetched; empty: where its discovery document says."""
        return self.row.keys_url

    @cached_property
    def keys(self) -> KeySet | None:
        """The keys that its tokens are signed with; None: they are fetched."""
        return parse_key_set(self.row.key_set) if self.row.key_set else None


class Issuers:
    """The issuers of a cell. `now_ms` is the wall clock."""

    def __init__(self, mirror: Mirror, now_ms: Callable[[], int], *, cell_format: CellFormat) -> None:
        decode = row_decoder(IssuerRow)
        self._mirror = mirror
        self._now_ms = now_ms
        self._cell_format = cell_format
        self._rows: MirrorTable[Issuer] = mirror.table(ISSUERS, lambda data: Issuer(decode(data)))

    def find(self, issuer: str) -> Issuer | None:
        """Return an issuer by its URL, None where there is none."""
        return self._rows.get(issuer.removeprefix(SCHEME)) if issuer.startswith(SCHEME) else None

    def list_all(self) -> list[Issuer]:
        """Return all of them in order of their names."""
        return [issuer for _, issuer in sorted(self._rows.items())]

    async def put(
        self, issuer: str, audiences: Sequence[str], key_set: str = "", keys_url: str = ""
    ) -> Issuer:
        """Set an issuer, or change it; InvalidParameterValue, LimitExceeded.

        Its keys are in `key_set`, or at `keys_url`, or where its discovery document says. UnsupportedOperation in a
        cell of an older format.
        """
        self._cell_format.require(FRONT_DOOR, "Issuers of web identity tokens are set")
        if not is_issuer(issuer):
            raise InvalidParameterValue.of("issuer", issuer, "Must be an https URL without query, as in iss.")
        if not 0 < len(audiences) <= AUDIENCES_MAX:
            raise InvalidParameterValue.of(
                "audiences", len(audiences), f"There must be 1 to {AUDIENCES_MAX} audiences."
            )
        for audience in audiences:
            if not 0 < len(audience) <= AUDIENCE_CHARS_MAX:
                raise InvalidParameterValue.of(
                    "audiences", audience, f"An audience has 1 to {AUDIENCE_CHARS_MAX} characters."
                )
        if keys_url and (key_set or not is_issuer(keys_url)):
            raise InvalidParameterValue.of(
                "keys_url", keys_url, "Must be an https URL without query, and not be given with keys."
            )
        try:
            if key_set:
                parse_key_set(key_set)
        except BadKeySet as error:
            raise InvalidParameterValue.of("keys", "(not shown)", str(error)) from None
        if self.find(issuer) is None and len(self._rows) >= ISSUERS_MAX:
            raise LimitExceeded(f"There may be {ISSUERS_MAX} issuers of web identity tokens.")
        row = IssuerRow(issuer, tuple(audiences), key_set, self._now_ms(), keys_url)
        made = Issuer(row)
        await self._mirror.transact([], [Put(ISSUERS + made.name, encode_row(row))])
        return made

    async def delete(self, name: str) -> None:
        """Delete an issuer by its name: its tokens are refused. Sessions that it got stay; ResourceNotFound."""
        if self._rows.get(name) is None:
            raise ResourceNotFound(f"The issuer {name} does not exist.")
        await self._mirror.transact([], deletes=[ISSUERS + name])
