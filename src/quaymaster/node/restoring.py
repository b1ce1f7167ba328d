"""A restore from files to a data directory that is known to open: backup, master keys, and the check of both."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from quaymaster.broker.copies.backup import STORE_NAME, BackupUnusable, restore
from quaymaster.broker.replica.clock import wall_ms
from quaymaster.coordination.interface import StoreUnusable
from quaymaster.coordination.noted_acts import act_of_user, encode_act
from quaymaster.coordination.stores.sqlite import SQLiteCoordination
from quaymaster.metadata.keys.key_providers import KeysUnusable, MasterKeyMissing
from quaymaster.metadata.queue_registry import QueueRegistry
from quaymaster.metadata.service import MetadataService
from quaymaster.node.from_settings import key_provider, metadata_options
from quaymaster.settings import Settings

KEYS_WANTED = (
    "Nothing in a backup can be read without its master keys. Name a copy of the server's keys/ directory with "
    "--keys, or set QUAYMASTER_MASTER_KEY_SOURCE=environment and QUAYMASTER_MASTER_KEY."
)


class RestoreRefused(Exception):
    """The backup, or the keys given with it, cannot be used; no data directory was made."""


def restore_data_directory(
    source: Path, settings: Settings, keys: Path | None, progress: Callable[[int, int], None]
) -> None:
    """Restore `source` into the settings' data directory, with the master keys in `keys` (None: environment).

    `progress` is told (bytes done, bytes in all).
    """
    data = settings.data_directory.absolute()
    if data.exists() and any(data.iterdir()):
        raise RestoreRefused(f"{data} is not empty; restore into a new directory.")
    try:
        act = act_of_user("RestoreBackup", {"backup": str(source.absolute()), "data": str(data)})
        restore(source, data, progress, restored=encode_act(act))
        if keys is not None:
            _copy_keys(keys, data / "keys")
        asyncio.run(check_keys(settings, data))
    except MasterKeyMissing as error:
        shutil.rmtree(data, ignore_errors=True)
        # The directory it looked in is the copy just made and removed again.
        raise RestoreRefused(str(MasterKeyMissing(error.key_id, keys or data / "keys"))) from error
    except (BackupUnusable, KeysUnusable, StoreUnusable, OSError) as error:
        shutil.rmtree(data, ignore_errors=True)
        raise RestoreRefused(str(error)) from error


def _copy_keys(source: Path, target: Path) -> None:
    if not source.is_dir():
        raise KeysUnusable(f"{source} is no directory of master keys")
    target.mkdir(mode=0o700)
    for path in sorted(source.iterdir()):
        descriptor = os.open(target / path.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(path.read_bytes())
            file.flush()
            os.fsync(file.fileno())


async def check_keys(settings: Settings, data: Path) -> None:
    """Unwrap every secret of the metadata once; raises KeysUnusable when the keys are not those it needs."""
    store = await SQLiteCoordination.open(data / STORE_NAME)
    try:
        options = metadata_options(settings)
        registry = QueueRegistry(store, options, now_ms=wall_ms)
        metadata = MetadataService(registry, key_provider(settings, data), options, now_ms=wall_ms)
        await metadata.start()
        await metadata.close()
    finally:
        await store.close()
