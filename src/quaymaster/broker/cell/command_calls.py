"""Commands from other processes, given to the replica of the journal that is meant, if it is here.

command    journal id, u64 little-endian · command ─▶ outcome     (NotLeader, with a hint, where it does not lead)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quaymaster.broker.cell.authorization_floor import COMMAND
from quaymaster.broker.replica.journal_service import JournalService
from quaymaster.core.values.errors import NotLeader
from quaymaster.net.rpc import CallHandler, IncomingCall
from quaymaster.protocol.rpc.broker_calls import JOURNAL_ID
from quaymaster.protocol.rpc.command_codec import decode_command, encode_outcome


class CommandCalls:
    """`journals` are those here, by number. `leader_hint` returns the address of a journal's leader, if it is known."""

    def __init__(
        self,
        journals: Mapping[int, JournalService],
        *,
        leader_hint: Callable[[int], str | None] = lambda number: None,
        check: Callable[[IncomingCall], None] = lambda call: None,
    ) -> None:
        """`check` raises NotNow for a caller whose commands are not carried out."""
        self._journals = journals
        self._leader_hint = leader_hint
        self._check = check

    @property
    def handlers(self) -> dict[str, CallHandler]:
        """The calls, by method."""
        return {COMMAND: self._on_command}

    def _on_command(self, call: IncomingCall) -> None:
        self._check(call)
        (number,) = JOURNAL_ID.unpack_from(call.body)
        journal = self._journals.get(number)
        if journal is None:
            raise NotLeader(self._leader_hint(number))
        command = decode_command(memoryview(call.body)[JOURNAL_ID.size :])
        version = call.body[JOURNAL_ID.size]
        call.patience_ms = getattr(command, "wait_ms", 0)

        def reply(outcome: object) -> None:
            if isinstance(outcome, NotLeader):
                call.fail(NotLeader(self._leader_hint(number)))
            elif isinstance(outcome, Exception):
                call.fail(outcome)
            else:
                call.reply(encode_outcome(outcome, version=version))  # type: ignore[arg-type]  # what is no error is an outcome

        submitted = journal.submit(command, reply)
        call.on_cancel = submitted.cancel
