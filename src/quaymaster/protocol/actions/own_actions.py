"""The actions on the SQS endpoint that SQS does not have."""

from __future__ import annotations

from quaymaster.protocol.actions.log_shapes import LOG_ACTIONS
from quaymaster.protocol.actions.transaction_shapes import TRANSACTION_ACTIONS
from quaymaster.protocol.sqs.shapes import Action

OWN_ACTIONS: dict[str, Action] = LOG_ACTIONS | TRANSACTION_ACTIONS
