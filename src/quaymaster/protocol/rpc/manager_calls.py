"""What operators ask a manager of a cell, as it goes over the RPC.

cell.status                                ─▶ CellStatus (managers/cell_status), JSON
cell.decisions                             ─▶ ManagerDecisions (managers/decision_log), JSON
cell.broker_state    BrokerStateRequest    ─▶ nothing; MessagePack
"""

from __future__ import annotations

from typing import Final

import msgspec

from quaymaster.core.cell.cell import BrokerState

STATUS: Final = "cell.status"
DECISIONS: Final = "cell.decisions"
SET_BROKER_STATE: Final = "cell.broker_state"


class BrokerStateRequest(msgspec.Struct, frozen=True):
    """Let a broker drain, stop, or be active again. `by`: the user and host that ask, as far as the caller tells."""

    broker: str
    state: BrokerState
    by: str = ""


encode_state_request = msgspec.msgpack.Encoder().encode
decode_state_request = msgspec.msgpack.Decoder(BrokerStateRequest).decode
