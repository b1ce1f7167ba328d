"""The actions on the SQS endpoint that SQS does not have."""

from __future__ import annotations

from quaymaster.protocol.log_shapes import LOG_ACTIONS
from quaymaster.protocol.shapes import Action
from quaymaster.protocol.transaction_shapes import TRANSACTION_ACTIONS

OWN_ACTIONS: dict[str, Action] = LOG_ACTIONS | TRANSACTION_ACTIONS
