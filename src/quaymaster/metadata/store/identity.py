"""What everything stored rests on: account and region, which queues, keys and ARNs carry. Noted once, never changed."""

from __future__ import annotations

import contextlib
from typing import Final

import msgspec

from quaymaster.coordination.interface import ABSENT, Coordination, RevisionMismatch, StoreUnusable

IDENTITY_KEY: Final = "identity"


class Identity(msgspec.Struct, frozen=True):
    """The default account, and the region."""

    account_id: str
    region: str


async def check_identity(store: Coordination, account_id: str, region: str) -> None:
    """Note, at the first start, what the stored ARNs and accounts rest on; refuse other values later."""
    wanted = Identity(account_id, region)
    found = await store.get(IDENTITY_KEY)
    if found is None:
        with contextlib.suppress(RevisionMismatch):
            await store.compare_and_swap(IDENTITY_KEY, ABSENT, msgspec.json.encode(wanted))
        found = await store.get(IDENTITY_KEY)
        assert found is not None, "the identity was just written, by us or by another node"
    compare_identities(wanted, msgspec.json.decode(found.value, type=Identity))


def compare_identities(wanted: Identity, known: Identity) -> None:
    """Raise StoreUnusable when the settings say something else than what is stored."""
    if known != wanted:
        raise StoreUnusable(
            f"This data was made with account_id = {known.account_id} and region = {known.region}, which its "
            f"queues, keys and ARNs carry; the settings say account_id = {wanted.account_id} and region = "
            f"{wanted.region}. Set them back, or use a new data directory."
        )
