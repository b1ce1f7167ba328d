"""What operators do with the server itself: routes of the admin API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from quaymaster import __version__
from quaymaster.core.values.errors import InvalidParameterValue, NotNow, UnsupportedOperation
from quaymaster.frontend.admin.accounts.account_admin import AccountService
from quaymaster.frontend.admin.admin_calls import AdminCall, AdminRoute
from quaymaster.frontend.usage.incarnations import FrontEndIncarnations, Incarnation
from quaymaster.monitoring.health import Health
from quaymaster.protocol.admin import server as shapes
from quaymaster.protocol.admin.members import Nothing
from quaymaster.settings import Settings, effective_settings


class ServerKeys(Protocol):
    """The part of the metadata service that owns the server's own keys."""

    @property
    def master_key_id(self) -> str: ...

    async def rotate_master_key(self) -> str: ...

    async def rotate_receipt_key(self) -> int: ...

    async def rotate_session_key(self) -> int: ...


class Operations(Protocol):
    """What the admin API asks of the parts that keep data. Whoever puts the process together hands it in."""

    async def status(self) -> Mapping[str, Any]:
        """Return figures of journal, cache and disk, ready for JSON."""
        ...

    async def pauses(self) -> list[Mapping[str, float]]:
        """Return the longest pause of each event loop in each second of the last minute that had one."""
        ...

    async def accept_clock(self) -> None:
        """Let messages expire again although the clock jumped: an operator says that it is right."""
        ...

    async def backup(self, destination: Path, progress: Callable[[int, int], None]) -> Mapping[str, Any]:
        """Write a consistent copy of all data to a directory that does not exist yet; return what was
        written.

        `progress` is told (bytes done, bytes in all) now and then. Raises CallerError for a destination that
        cannot be, NotNow when a backup cannot be made now.
        """
        ...


class ServerAdmin:
    """Answers requests about the server."""

    def __init__(
        self,
        settings: Settings,
        keys: ServerKeys,
        accounts: AccountService,
        health: Health,
        operations: Operations,
        incarnations: FrontEndIncarnations | None,
    ) -> None:
        """`incarnations`: of front ends that record usage."""
        self._settings = settings
        self._keys = keys
        self._accounts = accounts
        self._health = health
        self._operations = operations
        self._incarnations = incarnations
        self._backup = shapes.BackupProgress(state="none")

    def routes(self) -> dict[str, AdminRoute]:
        """Return what answers each operation."""
        return {
            "GetStatus": AdminRoute(self._show_status),
            "GetPauses": AdminRoute(self._show_pauses),
            "GetSettings": AdminRoute(self._show_settings),
            "AcceptClock": AdminRoute(self._accept_clock),
            "ListFrontEnds": AdminRoute(self._list_front_ends),
            "SealFrontEnd": AdminRoute(self._seal_front_end),
            "GetBackup": AdminRoute(self._show_backup),
            "CreateBackup": AdminRoute(self._make_backup),
            "RotateMasterKey": AdminRoute(self._rotate_master_key),
            "RotateReceiptKey": AdminRoute(self._rotate_receipt_key),
            "RotateSessionKey": AdminRoute(self._rotate_session_key),
        }

    async def _show_status(self, call: AdminCall, given: Nothing) -> shapes.StatusView:
        reason = self._health.why_not_ready()
        return shapes.StatusView(
            version=__version__,
            state=self._health.state,
            ready=reason is None,
            reason=reason,
            broker=dict(await self._operations.status()),
            accounts=self._accounts.count_accounts(),
        )

    async def _show_pauses(self, call: AdminCall, given: Nothing) -> shapes.PauseList:
        return shapes.PauseList(pauses=[dict(pause) for pause in await self._operations.pauses()])

    async def _accept_clock(self, call: AdminCall, given: Nothing) -> shapes.AcceptedClock:
        await self._operations.accept_clock()
        return shapes.AcceptedClock(expiry_held=False)

    async def _show_settings(self, call: AdminCall, given: Nothing) -> dict[str, Any]:
        return dict(effective_settings(self._settings))

    async def _rotate_master_key(self, call: AdminCall, given: Nothing) -> shapes.RotatedMasterKey:
        if self._settings.master_key_source == "environment":
            raise UnsupportedOperation(
                "The master key is in the environment. To rotate it, start the server with the new one in "
                "QUAYMASTER_MASTER_KEY and the present one in QUAYMASTER_MASTER_KEY_PREVIOUS."
            )
        previous = self._keys.master_key_id
        master_key_id = await self._keys.rotate_master_key()
        # Backups made before this can be read with the previous one only.
        return shapes.RotatedMasterKey(master_key_id=master_key_id, previous_master_key_id=previous)

    async def _rotate_receipt_key(self, call: AdminCall, given: Nothing) -> shapes.RotatedReceiptKey:
        return shapes.RotatedReceiptKey(receipt_key_id=await self._keys.rotate_receipt_key())

    async def _rotate_session_key(self, call: AdminCall, given: Nothing) -> shapes.RotatedSessionKey:
        return shapes.RotatedSessionKey(session_key_id=await self._keys.rotate_session_key())

    async def _list_front_ends(self, call: AdminCall, given: Nothing) -> shapes.FrontEndList:
        rows = {} if self._incarnations is None else await self._incarnations.rows()
        return shapes.FrontEndList(
            front_ends=[_front_end_view(name, row) for name, row in sorted(rows.items())]
        )

    async def _seal_front_end(self, call: AdminCall, given: shapes.FrontEndRequest) -> shapes.FrontEndView:
        if self._incarnations is None:
            raise UnsupportedOperation("This process records no usage.")
        return _front_end_view(given.front_end, await self._incarnations.seal(given.front_end))

    async def _show_backup(self, call: AdminCall, given: Nothing) -> shapes.BackupProgress:
        return self._backup

    async def _make_backup(self, call: AdminCall, given: shapes.BackupRequest) -> dict[str, Any]:
        destination = Path(given.path)
        if not destination.is_absolute() or "\0" in str(destination):
            raise InvalidParameterValue.of("path", destination, "Must be an absolute path.")
        if self._backup.state == "running":
            raise UnsupportedOperation("A backup is running; there can be one at a time.")

        def on_progress(done_bytes: int, total_bytes: int) -> None:
            self._backup = shapes.BackupProgress(
                state="running", path=str(destination), done_bytes=done_bytes, total_bytes=total_bytes
            )

        on_progress(0, 0)
        try:
            result = await self._operations.backup(destination, on_progress)
        except BaseException as error:
            self._backup = msgspec.structs.replace(self._backup, state="failed", reason=str(error))
            if isinstance(error, OSError):  # of the destination's: no permission, no room, no such path
                raise NotNow(f"The backup could not be written: {error}") from error
            raise
        self._backup = msgspec.structs.replace(self._backup, state="done")
        return {"path": str(destination), **result}


def _front_end_view(name: str, row: Incarnation) -> shapes.FrontEndView:
    return shapes.FrontEndView(
        front_end=name,
        incarnation=row.number,
        started_ms=row.started_us // 1000,
        seen_ms=max(row.started_us if not row.seals else 0, row.renewed_us) // 1000,
        sealed_incarnation=row.seals or None,
        is_told=row.is_told,
    )
