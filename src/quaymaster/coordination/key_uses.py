"""When access keys were used last: rows `key_uses/<access key id>`, outside of what processes follow.

A row is the beginning of the hour of the last use, in ms since 1970 (`coordination/number_rows`). Front ends write it
(`frontend/callers/key_uses`), and what deletes a key deletes it in the same transaction. It is read when keys are
shown.
"""

from __future__ import annotations

from typing import Final

KEY_USES: Final = "key_uses/"
