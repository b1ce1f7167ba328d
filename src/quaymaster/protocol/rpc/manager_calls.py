"""What operators ask a manager of a cell, as it goes over the RPC.

cell.status                                ─▶ CellStatus (managers/cell_status), JSON
cell.decisions                             ─▶ ManagerDecisions (core/cell/decisions), JSON
cell.broker_state    BrokerStateRequest    ─▶ nothing; MessagePack
"""

from __future__ import annotations

from typing import Final

import msgspec

from quaymaster.core.cell.cell import BrokerState
from quaymaster.core.cell.decisions import ManagerDecisions

STATUS: Final = "cell.status"
DECISIONS: Final = "cell.decisions"
SET_BROKER_STATE: Final = "cell.broker_state"


CALLERS: Final[dict[str, tuple[str, ...]]] = {
    STATUS: ("operator",),
    DECISIONS: ("operator", "console"),
    SET_BROKER_STATE: ("operator",),
}
"""Which roles may call what."""


class BrokerStateRequest(msgspec.Struct, frozen=True):
    """Let a broker drain, stop, or be active again. `by`: the user and host that ask, as far as the caller tells."""

    broker: str
    state: BrokerState
    by: str = ""


encode_decisions = msgspec.json.Encoder().encode
decode_decisions = msgspec.json.Decoder(ManagerDecisions).decode
encode_state_request = msgspec.msgpack.Encoder().encode
decode_state_request = msgspec.msgpack.Decoder(BrokerStateRequest).decode
