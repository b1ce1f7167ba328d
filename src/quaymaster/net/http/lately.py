"""Which access keys signed from which peers lately: new connections of these begin better than those of strangers.

    signature held ──note──▶ (key, peer) is remembered for 10 minutes
    new connection of that peer, whose first request names that key ──▶ read in the turn of the key's account
                        │
                        └── it is not signed after all ──forget──▶ the next one is a stranger's, as all others

What a request names is proven by nothing, so this is worth the turn of its first request, and that its address is not
refused unread for wrong signatures of others. Its connection and memory are a stranger's until its signature has held.
A peer that shares the address can name the key as well: once for each time that the pair is noted.

Public: `Lately` (`note`, `account_of`, `forget`).
"""

from __future__ import annotations

from typing import Final

from quaymaster.net.http.strangers import peer_name

KEPT_MS: Final = 600_000
PAIRS_MAX: Final = 16_384
"""So many pairs are remembered; one more takes the place of the one noted least lately."""
ACCOUNT_PAIRS_MAX: Final = 1_024
"""So many of one account, which makes as many keys and sessions as it likes."""

_Pair = tuple[str, str]


class Lately:
    """What one server remembers. Times are milliseconds of a clock that does not jump."""

    def __init__(self) -> None:
        self._noted: dict[_Pair, tuple[str, float]] = {}
        """Accounts, and when it was; the one noted least lately first."""
        self._of_account: dict[str, dict[_Pair, None]] = {}

    def __len__(self) -> int:
        return len(self._noted)

    def note(self, key: str, peer: str, account: str, now_ms: float) -> None:
        """Note that a signature by a key of an account held, which came from a peer's address."""
        pair = key, peer_name(peer)
        self._drop(pair)
        own = self._of_account.get(account, {})
        if len(own) >= ACCOUNT_PAIRS_MAX:
            self._drop(next(iter(own)))
        elif len(self._noted) >= PAIRS_MAX:
            self._drop(next(iter(self._noted)))
        self._noted[pair] = account, now_ms
        self._of_account.setdefault(account, {})[pair] = None

    def account_of(self, key: str, peer: str, now_ms: float) -> str | None:
        """Return whose a key is that signed from that peer lately; None where none did."""
        noted = self._noted.get((key, peer_name(peer)))
        return None if noted is None or now_ms - noted[1] > KEPT_MS else noted[0]

    def forget(self, key: str, peer: str) -> None:
        """Remember a pair no longer: a request that named it was not signed so."""
        self._drop((key, peer_name(peer)))

    def _drop(self, pair: _Pair) -> None:
        noted = self._noted.pop(pair, None)
        if noted is not None:
            own = self._of_account[noted[0]]
            del own[pair]
            if not own:
                del self._of_account[noted[0]]
